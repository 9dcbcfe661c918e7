//! The published status: plain figures that every output reads and none changes. An unknown
//! figure is `None`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Not;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::devices::NvmlStatus;
use crate::diagnosis::Evidence;
use crate::diagnosis::shared::balance::Balance;
use crate::diagnosis::shared::input::RunInput;
use crate::diagnosis::shared::kept_blocks::KeptBlocks;
use crate::diagnosis::shared::pressure;
use crate::diagnosis::shared::trend_figures::{TrendFigures, soonest};
use crate::findings::ActiveFinding;
use crate::findings::acks::ActiveAck;
use crate::kind::{DiagnosisKind, Severity};
use crate::output::snapshot_status::SnapshotStatus;
use crate::processes::ProcessView;
use crate::ranks::basis::Basis;
use crate::ranks::container_view::ContainerView;
use crate::ranks::host::HostView;
use crate::ranks::limits::LimitOrigin;
use crate::ranks::table::RecordCounts;
use crate::ranks::totals::RankTotals;
use crate::ranks::view::RankActivity;
use stepmem_detect::{Axis, Detector, Signal};
use stepmem_types::claims::{Sentence, Statement};
use stepmem_types::device::{
    Attribution, Container, DeviceInfo, DeviceMemory, DevicePod, GpuSample, OwnProcessState,
    ProcessMemory,
};
use stepmem_types::end::EndReport;
use stepmem_types::format::units::{duration, grouped};
use stepmem_types::host::{ContainerId, ContainerReading, PodMemory};
use stepmem_types::ids::{GpuUuid, ProcessId, Rank, RankId, Run, SubjectId, subject_fields};
use stepmem_types::launch::Launch;
use stepmem_types::site::{LeakSite, TensorHolder};
use stepmem_types::step::{Identity, StepFigures};
use stepmem_types::units::{Bytes, Count, DurationCounts};

/// Everything at one time.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Status {
    /// The time when this was made, as a Unix time.
    pub time: f64,
    /// The runs that have a present rank, or one that ended lately, ascending.
    pub runs: Vec<RunStatus>,
    /// The present ranks and those that ended lately, ascending by run and rank.
    pub ranks: Vec<RankStatus>,
    /// The present unmanaged processes, ascending by device and process id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessStatus>,
    /// The containers of present ranks, ascending by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<ContainerStatus>,
    /// The devices that answer, ascending.
    pub devices: Vec<DeviceStatus>,
    /// The containers that the kubelet gave devices to, ascending; empty where it is not asked.
    pub device_pods: Vec<DevicePod>,
    /// The memory of pods that use a device, and of their containers, by pod; empty where the
    /// control groups of the node are not read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_memory: Vec<PodMemory>,
    /// The findings that hold now, ascending by subject and kind: ranks, processes, devices.
    pub findings: Vec<FindingStatus>,
    /// The findings that were lowered to info for a time.
    pub acks: Vec<AckStatus>,
    /// The last memory snapshots that were asked for or reported, the oldest first.
    pub snapshots: Vec<SnapshotStatus>,
    /// The outcomes of the records since the exporter began.
    pub records: RecordCounts,
    /// The state of NVML.
    pub gpu: NvmlStatus,
    /// The state of the exporter itself.
    pub exporter: ExporterStatus,
}

/// A run with its present ranks.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RunStatus {
    /// The name of the run.
    pub run: Run,
    /// Number of its ranks that push here.
    pub ranks: usize,
    /// Number of its ranks, as its ranks report.
    pub ranks_expected: Option<u32>,
    /// Number of processes that were refused lately, because another live one pushes the same
    /// rank of this run: two programs use one name.
    #[serde(default)]
    pub challengers: usize,
    /// The name that its program asked for first; another live program pushes under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_for: Option<Run>,
    /// (worst - median) / median over the recent peaks of its present ranks, or else their
    /// high-water marks.
    pub imbalance_ratio: Option<f64>,
    /// The rank with the highest recent peak.
    pub worst_rank: Option<Rank>,
    /// The step that it ends with, where its ranks name that, agree on it and can be believed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_step: Option<Count>,
    /// The time when it ends, as a Unix time: with that step at the pace of its slowest rank,
    /// or by its deadline, whichever comes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<f64>,
}

/// A rank: what it pushed last, its limits, and the known facts of its growth.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RankStatus {
    /// The name of its run.
    pub run: Run,
    /// The global rank.
    pub rank: Rank,
    /// The global rank as a label's value.
    #[serde(skip)]
    pub rank_label: String,
    /// The rank's own description.
    #[serde(flatten)]
    pub identity: Identity,
    /// The launch, where its process reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<Launch>,
    /// The last train step.
    #[serde(flatten)]
    pub last_train: Option<StepFigures>,
    /// The rank's host memory beyond that of its process; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Box<HostView>>,
    /// The rank's activity: it pushes, or does not.
    pub state: RankActivity,
    /// The time that it has been silent, in seconds, where that is longer than a live process
    /// is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_seconds: Option<f64>,
    /// The rank's end, as its process reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<EndReport>,
    /// The counts since the exporter began.
    #[serde(flatten)]
    pub totals: RankTotals,
    /// Evaluations, checkpoints and epochs that it reported, since the exporter began.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub marks_total: BTreeMap<Cow<'static, str>, u64>,
    /// Set when its memory is judged by time, as it takes no steps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_by_time: bool,
    /// Seconds that it has gone on after its last step without another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_steps_seconds: Option<f64>,
    /// The Unix time of its last accepted record.
    pub last_push_time: f64,
    /// The Unix time at which its process was last asked to checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_asked_time: Option<f64>,
    /// The greatest known peak of allocated of this and the last whole interval.
    #[serde(rename = "interval_peak_allocated_bytes")]
    pub interval_peak_allocated: Option<Bytes>,
    /// The greatest known peak of allocated of the recent window.
    #[serde(rename = "recent_peak_allocated_bytes")]
    pub recent_peak_allocated: Option<Bytes>,
    /// The maximum of allocated since its process began.
    #[serde(rename = "high_water_allocated_bytes")]
    pub high_water_allocated: Option<Bytes>,
    /// The limit that binds: of its device, or its own.
    #[serde(rename = "capacity_bytes")]
    pub capacity: Option<Bytes>,
    /// The origin of the capacity; absent where it is its device's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_set_by: Option<LimitOrigin>,
    /// Bytes that it can still take before its device is full, or its own limit is reached; while
    /// its live memory grows, those that its finding has.
    pub headroom_bytes: Option<f64>,
    /// The memory that the headroom rests on; `None` while that is its growth.
    pub headroom_basis: Option<Basis>,
    /// Peak by capacity, by basis.
    pub pressures: BTreeMap<Basis, f64>,
    /// The share of reserved that was not in use at the peak of the last train step.
    pub fragmentation_ratio: Option<f64>,
    /// Bytes that its process uses on the device beyond its allocator.
    pub outside_allocator_bytes: Option<f64>,
    /// Device memory of its process as its client read it; absent where the exporter's NVML
    /// lists the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_used_bytes: Option<Bytes>,
    /// Device memory of its process where neither the driver nor its client reports it: an
    /// estimate, all that is in use on a device that only its container has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_estimated_bytes: Option<Bytes>,
    /// The reason for which its client does not know that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_used_state: Option<OwnProcessState>,
    /// The rank's recent peak by the median of the others', less 1.
    pub imbalance_ratio: Option<f64>,
    /// Set when the detector has seen enough of this incarnation to judge it.
    pub is_judged: bool,
    /// The step from which on it will be, at one record per step; absent once it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judging_from_step: Option<u64>,
    /// The known facts of each signal's growth.
    pub creep: Vec<SignalStatus>,
    /// The testimony of the number of the allocator's live blocks; `None` after its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_blocks: Option<KeptBlocks>,
    /// The testimony in words, with the steps at which it began and was certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_blocks_sentence: Option<String>,
    /// The rate of all reserved memory in bytes per step. The growth of the signal `reserved` is
    /// of what no larger batch explains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_slope_bytes_per_step: Option<f64>,
    /// Ends of phases that are not compared, since the rank has too many names of them; absent
    /// at 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub phases_left_out_total: u64,
    /// Steps until the first creeping signal has used up its headroom; `None` when that is not
    /// known within a factor of three.
    pub oom_eta_steps: Option<f64>,
    /// Seconds until then.
    pub oom_eta_seconds: Option<f64>,
    /// The least of these steps.
    #[serde(default)]
    pub oom_eta_lower_steps: Option<f64>,
    /// The least of these seconds.
    #[serde(default)]
    pub oom_eta_lower_seconds: Option<f64>,
    /// Seconds until host memory that grows next to a device's reaches its limit; absent when
    /// that is not known within a factor of three.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_oom_eta_seconds: Option<f64>,
    /// The least of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_oom_eta_lower_seconds: Option<f64>,
    /// The result of a memory snapshot on its growth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<LeakSite>,
    /// The rank's fastest-growing live object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<TensorHolder>,
}

/// An unmanaged process.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ProcessStatus {
    /// The device, and the process id on its node.
    #[serde(flatten)]
    pub id: ProcessId,
    /// Bytes that it holds on the device.
    #[serde(rename = "used_bytes")]
    pub used: Bytes,
    /// The capacity of the device.
    #[serde(rename = "capacity_bytes")]
    pub capacity: Option<Bytes>,
    /// Bytes that it can still take before its device is full.
    pub headroom_bytes: Option<f64>,
    /// The share of the capacity that it holds.
    pub pressure_ratio: Option<f64>,
    /// The known facts of its growth.
    pub creep: Option<SignalStatus>,
    /// Seconds until it has used up its headroom, while it creeps; `None` when that is not
    /// known within a factor of three.
    pub oom_eta_seconds: Option<f64>,
    /// The least of these seconds.
    #[serde(default)]
    pub oom_eta_lower_seconds: Option<f64>,
}

/// A control group with a limit, in which ranks run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ContainerStatus {
    /// The limit and the use, as one of its ranks read them last.
    #[serde(flatten)]
    pub reading: ContainerReading,
    /// Bytes that are left until the limit.
    pub headroom_bytes: Option<f64>,
    /// The present ranks, ascending.
    pub ranks: Vec<RankId>,
    /// The rate at which that changes; `None` until there is an estimate.
    pub slope_bytes_per_second: Option<f64>,
    /// Growth since the onset, while it creeps.
    pub growth_bytes: Option<f64>,
    /// Seconds until the kernel kills one of its processes, while it creeps; `None` when that
    /// is not known within a factor of three.
    pub oom_eta_seconds: Option<f64>,
    /// The least of these seconds.
    pub oom_eta_lower_seconds: Option<f64>,
}

/// The growth of one signal.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SignalStatus {
    /// The series that is judged.
    pub signal: Signal,
    /// The slope, in bytes per step; `None` of an unmanaged process.
    pub slope_bytes_per_step: Option<f64>,
    /// The lower end of the 95 % interval of the slope.
    pub slope_lower_bytes_per_step: Option<f64>,
    /// The upper end of the 95 % interval of the slope.
    pub slope_upper_bytes_per_step: Option<f64>,
    /// The slope in time.
    pub slope_bytes_per_second: Option<f64>,
    /// Set when it rises in a straight line, however little that is of the memory left.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_straight: bool,
    /// The rest, while it is rising or creeping.
    pub trend: Option<TrendStatus>,
}

/// The known facts of a signal while it rises or creeps.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct TrendStatus {
    /// Grown since the onset, in bytes.
    pub growth_bytes: f64,
    /// The step at which it began; `None` of an unmanaged process.
    pub onset_step: Option<f64>,
    /// The time when growth began, as a Unix time.
    pub onset_time: f64,
    /// The detector's confidence that it grows, 0 to 1.
    pub confidence_ratio: f64,
}

/// A device that answers, with the processes on it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct DeviceStatus {
    /// The UUID of the device.
    pub uuid: GpuUuid,
    /// The description of the device: its index, name and driver.
    #[serde(flatten)]
    pub info: DeviceInfo,
    /// The device's memory, where that means something.
    pub memory: Option<DeviceMemory>,
    /// The meaning of its process list where the exporter runs.
    pub attribution: Attribution,
    /// The sum over the processes whose memory is known.
    pub attributed_bytes: Option<u64>,
    /// Bytes in use beyond that; may be negative where driver and processes disagree.
    pub unattributed_bytes: Option<f64>,
    /// The processes on it, ascending by process id.
    pub processes: Vec<DeviceProcessStatus>,
    /// Bytes that the processes beyond the bound on series use together.
    pub other_processes_bytes: Option<u64>,
}

/// A process on a device.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct DeviceProcessStatus {
    /// The process id on the node.
    pub pid: u32,
    /// Bytes that it uses; `None` when the driver does not know.
    #[serde(rename = "used_bytes")]
    pub used: Option<Bytes>,
    /// The name of the process, where it can be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Box<str>>,
    /// The rank that pushes from it.
    pub owner: Option<RankId>,
    /// The container that it runs in, where that can be seen.
    pub container: Option<Container>,
    /// Set when no process of the machine has this id any more: its memory outlives it.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_gone: bool,
}

/// A diagnosis that holds; `E` is its evidence, which is decoded by its kind.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct FindingStatus<E = Evidence> {
    /// The diagnosis that holds.
    pub kind: DiagnosisKind,
    /// The name of the diagnosis on pages.
    #[serde(rename = "status")]
    pub title: Cow<'static, str>,
    /// The subject: `run` and `rank`, `uuid` and `pid`, or `uuid`.
    #[serde(flatten, with = "subject_fields")]
    pub subject: SubjectId,
    /// The severity of the finding.
    pub severity: Severity,
    /// The time since which it has held, as a Unix time.
    pub since: f64,
    /// The figures behind it.
    pub evidence: E,
    /// The evidence in a sentence.
    pub sentence: String,
    /// The first thing to check.
    pub advice: Cow<'static, str>,
    /// The statements of both, one by one.
    #[serde(default)]
    pub statements: Vec<Statement>,
}

impl<'de> Deserialize<'de> for FindingStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let of = FindingStatus::<Value>::deserialize(deserializer)?;
        let evidence = Evidence::decode(of.kind, &of.evidence).map_err(D::Error::custom)?;
        Ok(Self {
            kind: of.kind,
            title: of.title,
            subject: of.subject,
            severity: of.severity,
            since: of.since,
            evidence,
            sentence: of.sentence,
            advice: of.advice,
            statements: of.statements,
        })
    }
}

/// A diagnosis that was lowered to info for a time.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AckStatus {
    /// The subject: `run` and `rank`, `uuid` and `pid`, or `uuid`.
    #[serde(flatten, with = "subject_fields")]
    pub subject: SubjectId,
    /// The diagnosis that is lowered.
    pub kind: DiagnosisKind,
    /// The operator's reason.
    pub reason: String,
    /// The time since which it is in force, as a Unix time.
    pub since: f64,
    /// The time until which it is in force, as a Unix time.
    pub until: f64,
}

/// Number of times that something happened, by a label's value.
pub type LabelCounts = BTreeMap<Cow<'static, str>, u64>;

/// The state of the exporter itself; the composition root fills in what the engine does not
/// know.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct ExporterStatus {
    /// The version of the program.
    pub version: Cow<'static, str>,
    /// Push requests by their outcome.
    pub pushes: LabelCounts,
    /// The durations of push requests.
    pub push_seconds: DurationCounts,
    /// Pushed batches that wait for the engine.
    pub inbox_depth: usize,
    /// The reason that no device is opened, and what to set, while it is unknown which ones to
    /// open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices_hint: Option<Cow<'static, str>>,
    /// The state of each collector.
    pub collectors: Vec<CollectorStatus>,
    /// Memory snapshots by outcome.
    pub snapshots: LabelCounts,
    /// Summaries by outcome; empty where none are written.
    #[serde(default)]
    pub summaries: LabelCounts,
    /// Lines of recordings by outcome; empty where nothing is recorded.
    #[serde(default)]
    pub recording_lines: LabelCounts,
    /// Files of recordings that were removed; `None` where nothing is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recordings_given_up: Option<u64>,
    /// Analyses of snapshots by outcome; empty where none are read.
    #[serde(default)]
    pub snapshot_analyses: LabelCounts,
    /// Timelines of snapshots by outcome; empty where none are drawn.
    #[serde(default)]
    pub snapshot_timelines: LabelCounts,
    /// Heap scans by their outcome.
    #[serde(default)]
    pub looks: LabelCounts,
    /// Connections that were evicted, or refused, by listener.
    pub connections_shed: LabelCounts,
    /// Clients over TCP that were refused, by reason.
    #[serde(default)]
    pub access_refused: LabelCounts,
    /// Number of times that the file of TLS and users was read again, by result; empty without
    /// one.
    #[serde(default)]
    pub web_reloads: LabelCounts,
    /// OTLP exports by result; empty when none is configured.
    pub otlp_exports: LabelCounts,
    /// Points that a collector refused of exports that it took; `None` where none is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otlp_rejected_points: Option<u64>,
    /// Processes of the command that the kernel killed for lack of memory; `None` but for
    /// `run`, and where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    /// Set for the exporter of `run`, which is gone once its command has ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends_with_command: bool,
    /// Number of series that an output has.
    pub series: usize,
    /// Number of series that were left out to keep a bound, by reason.
    pub series_dropped: LabelCounts,
    /// The figures of the operating system about this process, by their usual names.
    pub process: BTreeMap<String, f64>,
    /// The settings that a sidecar found wrong or could not follow at its start.
    #[serde(default)]
    pub startup_problems: Vec<String>,
}

/// The state of one collector.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct CollectorStatus {
    /// The name of the collector, a label's value.
    pub collector: Cow<'static, str>,
    /// The duration of its last round, in seconds.
    pub duration_seconds: f64,
    /// Set when its last round succeeded.
    pub is_success: bool,
}

impl ExporterStatus {
    /// Counts something more that was left out to keep a bound.
    pub(crate) fn add_dropped(&mut self, reason: &'static str, count: u64) {
        *self.series_dropped.entry(reason.into()).or_default() += count;
    }
}

impl RunStatus {
    /// A run's present ranks and their balance; its name is its own.
    pub fn of(input: &RunInput<'_>, balance: Option<&Balance>) -> Self {
        let pushing = || input.ranks.iter().filter(|(_, view)| view.ended.is_none());
        Self {
            run: input.run.clone(),
            ranks: pushing().count(),
            ranks_expected: pushing().filter_map(|(_, view)| view.identity.world_size).max(),
            challengers: 0,
            asked_for: None,
            imbalance_ratio: balance.map(|balance| balance.skew_ratio),
            worst_rank: balance.map(|balance| balance.worst_rank),
            end_step: input.end.total_steps.filter(|_| pushing().count() > 0),
            end_time: pushing()
                .filter_map(|(_, view)| input.end.time_by(view))
                .reduce(f64::max),
        }
    }
}

impl RunStatus {
    /// Returns the end in words: `at step 10,000, in 38 min 0 s`; `None` where that is unknown.
    /// `now` is a Unix time.
    pub fn end_words(&self, now: f64) -> Option<String> {
        let step = self.end_step.map(|step| format!("at step {}", grouped(step.get())));
        let time = self.end_time.map(|time| format!("in {}", duration((time - now).max(0.0))));
        let parts: Vec<String> = step.into_iter().chain(time).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

impl ProcessStatus {
    /// The status of an unmanaged process, by the engine's view of it.
    pub fn of(id: &ProcessId, view: &ProcessView<'_>) -> Self {
        let soonest = soonest(view.outlook().into_iter());
        Self {
            id: id.clone(),
            used: view.used,
            capacity: view.capacity,
            headroom_bytes: view.headroom_bytes(),
            pressure_ratio: pressure::of_process(view).map(|pressure| pressure.ratio),
            creep: SignalStatus::of(Signal::Process, view.creep),
            oom_eta_seconds: soonest.as_ref().and_then(|trend| trend.oom_eta_seconds),
            oom_eta_lower_seconds: soonest.and_then(|trend| trend.oom_eta_lower_seconds),
        }
    }
}

impl ContainerStatus {
    /// Returns the containers of present ranks, ascending by name.
    pub(super) fn all(runs: &[RunInput<'_>]) -> Vec<Self> {
        let mut all: BTreeMap<&ContainerId, Self> = BTreeMap::new();
        let views = runs.iter().flat_map(|run| run.ranks.iter().map(|of| (run.run, of)));
        for (run, (rank, view)) in views {
            let Some(container) = view.container else { continue };
            let reading = container.reading;
            let of = all.entry(&reading.id).or_insert_with(|| Self::of(&container));
            of.ranks.push(RankId { run: run.clone(), rank: *rank });
        }
        all.into_values().collect()
    }

    fn of(container: &ContainerView<'_>) -> Self {
        let figures = container.creeping().map(|outlook| TrendFigures::of(&outlook));
        let slope = container.creep.slope(Signal::Allocated);
        let slope = slope.and_then(|slope| slope.bytes_per_second);
        Self {
            reading: container.reading.clone(),
            headroom_bytes: container.reading.headroom_bytes(),
            ranks: Vec::new(),
            slope_bytes_per_second: slope.map(|slope| slope.value),
            growth_bytes: figures.as_ref().map(|trend| trend.growth_bytes),
            oom_eta_seconds: figures.as_ref().and_then(|trend| trend.oom_eta_seconds),
            oom_eta_lower_seconds: figures.and_then(|trend| trend.oom_eta_lower_seconds),
        }
    }
}

impl SignalStatus {
    pub(crate) fn of(signal: Signal, creep: &Detector) -> Option<Self> {
        let slope = creep.slope(signal)?;
        let per_step = slope.bytes_per_step;
        Some(Self {
            signal,
            slope_bytes_per_step: per_step.map(|slope| slope.value),
            slope_lower_bytes_per_step: per_step.map(|slope| slope.lower),
            slope_upper_bytes_per_step: per_step.map(|slope| slope.upper),
            slope_bytes_per_second: slope.bytes_per_second.map(|slope| slope.value),
            is_straight: slope.is_straight,
            trend: creep.trend(signal).filter(|trend| trend.is_told()).map(|trend| {
                TrendStatus {
                    growth_bytes: trend.growth_bytes,
                    onset_step: Some(trend.onset.position)
                        .filter(|_| trend.axis == Axis::Steps),
                    onset_time: trend.onset.time.get(),
                    confidence_ratio: trend.confidence_ratio,
                }
            }),
        })
    }
}

impl DeviceStatus {
    /// A device by its last reading. `owners` are the ranks that push from its processes. At
    /// most `processes_max` processes are listed one by one, the largest first.
    pub fn of(
        sample: &GpuSample,
        owners: &BTreeMap<u32, RankId>,
        processes_max: usize,
    ) -> Self {
        let sum = |processes: &[ProcessMemory]| -> Option<u64> {
            processes
                .iter()
                .filter_map(|process| process.used)
                .map(Bytes::get)
                .reduce(u64::saturating_add)
        };
        let mut by_size = sample.processes.clone();
        by_size.sort_by_key(|process| std::cmp::Reverse(process.used));
        // An id that means nothing here names no process.
        let processes_max = match sample.attribution {
            Attribution::ForeignPidNamespace => 0,
            _ => processes_max.min(by_size.len()),
        };
        let (largest, rest) = by_size.split_at(processes_max);
        let attributed_bytes = sum(&sample.processes);
        let used = sample.memory.map(|memory| memory.used.as_f64());
        let attributed =
            attributed_bytes.and_then(|sum| Bytes::new(sum).ok()).map(Bytes::as_f64);
        Self {
            uuid: sample.device.clone(),
            info: sample.info.clone(),
            memory: sample.memory,
            attribution: sample.attribution,
            attributed_bytes,
            unattributed_bytes: used
                .zip(attributed)
                .map(|(used, attributed)| used - attributed),
            processes: largest
                .iter()
                .map(|process| DeviceProcessStatus {
                    pid: process.pid,
                    used: process.used,
                    name: process.name.clone(),
                    owner: owners.get(&process.pid).cloned(),
                    container: process.container.clone(),
                    is_gone: process.is_gone,
                })
                .collect(),
            other_processes_bytes: sum(rest),
        }
    }

    /// Lets the device that stands for the memory of a GPU instance show it for the MIG devices
    /// that share it. Sums over devices then count it once.
    pub(crate) fn share_memory(devices: &mut [Self]) {
        let shared: Vec<(GpuUuid, Option<u64>)> = devices
            .iter_mut()
            .filter_map(|device| {
                let holder = device.info.memory_of.clone()?;
                device.memory = None;
                device.unattributed_bytes = None;
                Some((holder, device.attributed_bytes.take()))
            })
            .collect();
        for (holder, attributed) in shared {
            let Some(device) = devices.iter_mut().find(|device| device.uuid == holder) else {
                continue;
            };
            let sum = [device.attributed_bytes, attributed].into_iter().flatten();
            device.attributed_bytes = sum.reduce(u64::saturating_add);
            let attributed = device.attributed_bytes.and_then(|sum| Bytes::new(sum).ok());
            device.unattributed_bytes = device
                .memory
                .zip(attributed)
                .map(|(memory, attributed)| memory.used.as_f64() - attributed.as_f64());
        }
    }
}

impl FindingStatus {
    /// A finding with its words.
    pub fn of(active: &ActiveFinding) -> Self {
        let ActiveFinding { finding, since } = active;
        let about = finding.kind.about();
        let (sentence, advice) = (finding.evidence.sentence(), finding.advice());
        Self {
            kind: finding.kind,
            title: about.title.into(),
            subject: finding.subject.clone(),
            severity: finding.severity,
            since: *since,
            evidence: finding.evidence.clone(),
            sentence: sentence.words().to_owned(),
            advice: advice.words().to_owned().into(),
            statements: sentence.then(". ", advice).into_statements(),
        }
    }

    /// Returns its sentence with what it states, and its advice likewise.
    pub fn told(&self) -> (Sentence, Sentence) {
        Sentence::read_with_advice(&self.sentence, &self.advice, &self.statements)
    }
}

impl AckStatus {
    /// An acknowledgment with its times as Unix times.
    pub fn of(active: &ActiveAck, since: f64, until: f64) -> Self {
        Self {
            subject: active.ack.subject().clone(),
            kind: active.ack.kind(),
            reason: active.ack.reason().to_owned(),
            since,
            until,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

//! What the engine publishes: plain figures that every output reads and none changes. What is unknown is `None`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::analysis::creep::estimator::CreepEstimator;
use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::trend::{Stage, Trend, TrendFigures};
use crate::analysis::diagnosis::imbalance::{Balance, RankBalance};
use crate::analysis::diagnosis::{Evidence, Held, RunScene, Severity, high_pressure, wording};
use crate::analysis::rank::window::{Identity, LastTrain, RankReport};
use crate::model::device::{
    Attribution, Container, DeviceInfo, DeviceMemory, DevicePod, GpuSample, ProcessMemory,
};
use crate::model::ids::{GpuUuid, Rank, Run};
use crate::model::units::{Bytes, Count};

/// Everything at one time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    /// When this was made, as a Unix time.
    pub time: f64,
    /// The runs that have a present rank, ascending.
    pub runs: Vec<RunStatus>,
    /// The present ranks, ascending by run and rank.
    pub ranks: Vec<RankStatus>,
    /// The devices that answer, ascending.
    pub devices: Vec<DeviceStatus>,
    /// The containers that the kubelet gave devices to, ascending; empty where it is not asked.
    pub device_pods: Vec<DevicePod>,
    /// What holds now, ascending by run, rank and kind.
    pub findings: Vec<FindingStatus>,
    /// What somebody lowered to info for a time.
    pub acks: Vec<AckStatus>,
    /// The last memory snapshots that were asked for or reported, the oldest first.
    pub snapshots: Vec<SnapshotStatus>,
    /// What became of the records since the exporter began.
    pub records: RecordCounts,
    /// How NVML is.
    pub gpu: GpuStatus,
    /// How the exporter itself is.
    pub exporter: ExporterStatus,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct RunStatus {
    /// Its name.
    pub run: Run,
    /// How many of its ranks are present here.
    pub ranks: usize,
    /// How many ranks it has by its own word.
    pub ranks_expected: Option<u32>,
    /// (worst - median) / median over the recent peaks of its present ranks.
    pub imbalance_ratio: Option<f64>,
    /// The rank with the highest recent peak.
    pub worst_rank: Option<Rank>,
}

/// One rank.
#[derive(Clone, Debug, Serialize)]
pub struct RankStatus {
    /// Its run.
    pub run: Run,
    /// The global rank.
    pub rank: Rank,
    /// The global rank as a label's value.
    #[serde(skip)]
    pub rank_label: String,
    /// What it says of itself.
    #[serde(flatten)]
    pub identity: Identity,
    /// Its last train step.
    #[serde(flatten)]
    pub last_train: Option<LastTrain>,
    /// Train steps accepted since the exporter began.
    pub steps_total: u64,
    /// When its last push came, as a Unix time; `None` of a process that does not push.
    pub last_push_time: Option<f64>,
    /// The greatest allocated of this and the last whole interval.
    #[serde(rename = "interval_peak_allocated_bytes")]
    pub interval_peak_allocated: Option<Bytes>,
    /// The greatest allocated of the recent window.
    #[serde(rename = "recent_peak_allocated_bytes")]
    pub recent_peak_allocated: Option<Bytes>,
    /// Its capacity.
    #[serde(rename = "capacity_bytes")]
    pub capacity: Option<Bytes>,
    /// What it can still take before its device is full, in bytes.
    pub headroom_bytes: Option<f64>,
    /// Peak by capacity, by basis: `allocated`, `reserved`, `device`, or `process` of one that does not push.
    pub pressures: Vec<(&'static str, f64)>,
    /// The share of reserved that was not live at the end of the last train step.
    pub fragmentation_ratio: Option<f64>,
    /// What its process uses on the device beyond its allocator, in bytes.
    pub outside_allocator_bytes: Option<f64>,
    /// Its recent peak by the median of the others', less 1.
    pub imbalance_ratio: Option<f64>,
    /// What is known of each signal's growth.
    pub creep: Vec<SignalStatus>,
    /// Steps until the first creeping signal has used up its headroom.
    pub oom_eta_steps: Option<f64>,
    /// Seconds until then.
    pub oom_eta_seconds: Option<f64>,
}

/// The growth of one signal of one rank.
#[derive(Clone, Debug, Serialize)]
pub struct SignalStatus {
    /// Which: a label of [`Signal`].
    pub signal: &'static str,
    /// Its slope, in bytes per step; `None` of a process that does not push.
    pub slope_bytes_per_step: Option<f64>,
    /// The lower end of the 95 % interval of the slope.
    pub slope_lower_bytes_per_step: Option<f64>,
    /// The upper end of the 95 % interval of the slope.
    pub slope_upper_bytes_per_step: Option<f64>,
    /// The slope in time.
    pub slope_bytes_per_second: Option<f64>,
    /// The rest, while it is rising or creeping.
    pub trend: Option<TrendStatus>,
}

/// What is known of a signal while it rises or creeps.
#[derive(Clone, Debug, Serialize)]
pub struct TrendStatus {
    /// Grown since the onset, in bytes.
    pub growth_bytes: f64,
    /// The step at which it began; `None` of a process that does not push.
    pub onset_step: Option<f64>,
    /// When it began, as a Unix time.
    pub onset_time: f64,
    /// How sure the estimator is, 0 to 1.
    pub confidence_ratio: f64,
}

/// One device.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceStatus {
    /// Its UUID.
    pub uuid: GpuUuid,
    /// What describes it.
    #[serde(flatten)]
    pub info: DeviceInfo,
    /// Its memory, where that means something.
    pub memory: Option<DeviceMemory>,
    /// What its process list can mean here.
    pub attribution: Attribution,
    /// The sum over the processes whose memory is known.
    pub attributed_bytes: Option<u64>,
    /// What is in use beyond that; it may be negative where driver and processes disagree.
    pub unattributed_bytes: Option<f64>,
    /// Its processes.
    pub processes: Vec<ProcessStatus>,
    /// What the processes beyond the bound on series use together.
    pub other_processes_bytes: Option<u64>,
}

/// One process on a device.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessStatus {
    /// Its id.
    pub pid: u32,
    /// What it uses; `None` when the driver does not know.
    #[serde(rename = "used_bytes")]
    pub used: Option<Bytes>,
    /// The rank that pushes from it, or that it is itself.
    pub owner: Option<(Run, Rank)>,
    /// The container that it runs in, where that can be seen.
    pub container: Option<Container>,
}

/// One diagnosis that holds.
#[derive(Clone, Debug, Serialize)]
pub struct FindingStatus {
    /// Its name in labels.
    pub kind: &'static str,
    /// Its name on pages.
    pub status: &'static str,
    /// The run.
    pub run: Run,
    /// The rank.
    pub rank: Rank,
    /// How much it matters.
    pub severity: Severity,
    /// Since when it has held, as a Unix time.
    pub since: f64,
    /// The figures behind it.
    pub evidence: Evidence,
    /// The evidence in a sentence.
    pub sentence: String,
    /// What to look at first.
    pub advice: &'static str,
}

/// One finding that somebody lowered to info for a time.
#[derive(Clone, Debug, Serialize)]
pub struct AckStatus {
    /// The run.
    pub run: Run,
    /// The rank.
    pub rank: Rank,
    /// The diagnosis that is lowered.
    pub kind: &'static str,
    /// Why.
    pub reason: String,
    /// Since when, as a Unix time.
    pub since: f64,
    /// Until when, as a Unix time.
    pub until: f64,
}

/// One memory snapshot.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotStatus {
    /// The run.
    pub run: Run,
    /// The rank.
    pub rank: Rank,
    /// Why it is taken: `creep`, `oom` or `manual`.
    pub reason: &'static str,
    /// What became of it: `waiting`, `written`, `failed` or `unanswered`.
    pub outcome: &'static str,
    /// When it was asked for, or reported when nobody asked, as a Unix time.
    pub since: f64,
    /// The last step that it shows.
    pub step: Option<Count>,
    /// Where it is, as the training process sees it.
    pub path: Option<String>,
    /// How large it is.
    pub bytes: Option<Bytes>,
    /// Why there is none.
    pub error: Option<String>,
}

/// What became of the records of accepted pushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordCounts {
    /// Used.
    pub accepted: u64,
    /// A step seen before.
    pub duplicate: u64,
    /// A step older than one seen before.
    pub late: u64,
    /// Used, although figures contradict each other (these are among the accepted).
    pub inconsistent: u64,
    /// Used, and began a new life of their rank (these are among the accepted).
    pub restarted: u64,
}

/// How NVML is.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GpuStatus {
    /// Whether it answers; `None` when nobody asks it.
    pub is_up: Option<bool>,
    /// When it last answered, as a Unix time.
    pub last_success_time: Option<f64>,
    /// How often it failed, by code, ascending.
    pub errors: Vec<(&'static str, u64)>,
    /// Xid errors by device and number.
    pub xids: Vec<(GpuUuid, u64, u64)>,
    /// Xid errors of further kinds.
    pub xids_dropped: u64,
    /// Readings of processes beyond the bound on series.
    pub processes_dropped: u64,
}

/// How the exporter itself is; the composition root fills it in.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExporterStatus {
    /// The program's version.
    pub version: &'static str,
    /// Push requests by what became of them.
    pub pushes: Vec<(&'static str, u64)>,
    /// How long push requests took.
    pub push_seconds: DurationCounts,
    /// Batches that wait to be taken.
    pub inbox_depth: usize,
    /// How each collector is.
    pub collectors: Vec<CollectorStatus>,
    /// Memory snapshots by what became of them.
    pub snapshots: Vec<(&'static str, u64)>,
    /// Connections that gave way, or found no place, by listener.
    pub connections_shed: Vec<(&'static str, u64)>,
    /// OTLP exports by result; empty when none is configured.
    pub otlp_exports: Vec<(&'static str, u64)>,
    /// How many series an output has.
    pub series: usize,
    /// What was left out to keep a bound, by reason.
    pub series_dropped: Vec<(&'static str, u64)>,
    /// The figures of the operating system about this process, by their usual names.
    pub process: Vec<(String, f64)>,
}

/// How one collector is.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CollectorStatus {
    /// Its name.
    pub collector: &'static str,
    /// How long its last round took, in seconds.
    pub duration_seconds: f64,
    /// Whether its last round succeeded.
    pub is_success: bool,
}

/// Durations counted in buckets.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DurationCounts {
    /// Upper bound in seconds and how many were at most that, ascending and cumulative.
    pub buckets: Vec<(f64, u64)>,
    /// How many there were.
    pub count: u64,
    /// Their sum.
    pub sum_seconds: f64,
}

impl RunStatus {
    /// A run's present ranks and their balance.
    pub fn of(scene: &RunScene<'_>, balance: Option<&Balance>) -> Self {
        Self {
            run: scene.run.clone(),
            ranks: scene.ranks.len(),
            ranks_expected: scene
                .ranks
                .iter()
                .filter_map(|(_, report)| report.identity.world_size)
                .max(),
            imbalance_ratio: balance.map(|balance| balance.skew_ratio),
            worst_rank: balance.map(|balance| balance.worst_rank),
        }
    }
}

impl RankStatus {
    /// A rank by its report; `last_push_time` is a Unix time, of a process that pushes.
    pub fn of(
        (run, rank): (&Run, Rank),
        report: &RankReport<'_>,
        balance: Option<&RankBalance>,
        last_push_time: Option<f64>,
    ) -> Self {
        let left = |trend: &TrendFigures| trend.oom_eta_steps.or(trend.oom_eta_seconds);
        let soonest = report
            .creep
            .trends()
            .filter(|trend| trend.stage == Stage::Creeping)
            .map(Trend::figures)
            .filter_map(|trend| Some((left(&trend)?, trend)))
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, trend)| trend);
        Self {
            run: run.clone(),
            rank,
            rank_label: rank.to_string(),
            identity: report.identity.clone(),
            last_train: report.last_train.copied(),
            steps_total: report.steps_total,
            last_push_time,
            interval_peak_allocated: report.interval_peak_allocated,
            recent_peak_allocated: report.recent_peak_allocated,
            capacity: report.capacity,
            headroom_bytes: report.headroom_bytes(),
            pressures: high_pressure::pressures(report).map(|p| (p.basis, p.ratio)).collect(),
            fragmentation_ratio: report.fragmentation_ratio(),
            outside_allocator_bytes: report.outside_allocator_bytes(),
            imbalance_ratio: balance.map(|balance| balance.imbalance_ratio),
            creep: Signal::ALL
                .into_iter()
                .filter_map(|signal| SignalStatus::of(signal, report.creep))
                .collect(),
            oom_eta_steps: soonest.as_ref().and_then(|trend| trend.oom_eta_steps),
            oom_eta_seconds: soonest.and_then(|trend| trend.oom_eta_seconds),
        }
    }
}

impl SignalStatus {
    fn of(signal: Signal, creep: &CreepEstimator) -> Option<Self> {
        let slope = creep.slope(signal)?;
        let per_step = slope.bytes_per_step;
        let trend = creep.trends().find(|trend| trend.signal == signal).map(Trend::figures);
        Some(Self {
            signal: signal.as_label(),
            slope_bytes_per_step: per_step.map(|slope| slope.value),
            slope_lower_bytes_per_step: per_step.map(|slope| slope.lower),
            slope_upper_bytes_per_step: per_step.map(|slope| slope.upper),
            slope_bytes_per_second: slope.bytes_per_second.map(|slope| slope.value),
            trend: trend.map(|trend| TrendStatus {
                growth_bytes: trend.growth_bytes,
                onset_step: trend.onset_step.map(Count::as_f64),
                onset_time: trend.onset_time.get(),
                confidence_ratio: trend.confidence_ratio,
            }),
        })
    }
}

impl DeviceStatus {
    /// A device by its last reading; `owners` are the ranks that push from its processes, and at most
    /// `processes_max` processes are told apart, the largest first.
    pub fn of(
        sample: &GpuSample,
        owners: &BTreeMap<u32, (Run, Rank)>,
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
                .map(|process| ProcessStatus {
                    pid: process.pid,
                    used: process.used,
                    owner: owners.get(&process.pid).cloned(),
                    container: process.container.clone(),
                })
                .collect(),
            other_processes_bytes: sum(rest),
        }
    }

    /// Lets the device that stands for the memory of a GPU instance show it for the MIG devices that share it, so that
    /// sums over devices count it once.
    pub fn share_memory(devices: &mut [Self]) {
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
    pub fn of(held: &Held) -> Self {
        let Held { finding, since } = held;
        let diagnosis = wording::diagnosis(finding.kind);
        Self {
            kind: finding.kind,
            status: diagnosis.map_or(finding.kind, |diagnosis| diagnosis.status),
            run: finding.run.clone(),
            rank: finding.rank,
            severity: finding.severity,
            since: *since,
            evidence: finding.evidence.clone(),
            sentence: wording::sentence(&finding.evidence),
            advice: diagnosis.map_or("", |diagnosis| diagnosis.advice),
        }
    }
}

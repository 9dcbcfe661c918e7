//! THE TABLE: every metric's name, unit, help, labels and reader. Every output walks it; a
//! metric's name stands in no other Rust file, but for those of `recorded`.

use crate::diagnosis::shared::plan::Plan;
use crate::metrics::readers::{
    OUTCOME, bytes, children, container_growth, container_info, containers, count, counts,
    device_info, device_pods, devices, ended, findings, holder_info, host_holder_info,
    leaking_share, marks, own_limits, plan_info, plans, pressures, process, process_info,
    process_memory, process_unknown, processes, rank_info, ranks, records, runs, signals,
    site_info, size, slopes_by_time, whole, xid_errors,
};
use crate::metrics::types::{Group, Kind, Metric, Read, Unit, Visit};
use crate::output::status::Status;
use stepmem_detect::Signal;
use stepmem_types::end::EndOutcome;

/// Returns the number of series that the table gives for a status.
pub fn count_series(status: &Status) -> usize {
    let mut n_series = 0;
    for metric in METRICS {
        match metric.read {
            Read::Series(read) | Read::Subjects(read) => {
                read(status, &mut Visit::new(&mut |_, _| n_series += 1));
            }
            Read::Durations(read) => n_series += read(status).buckets.len() + 3,
        }
    }
    n_series
}

/// The metrics as a page of documentation.
pub fn document() -> String {
    let mut page = String::from(
        "# Metrics\n\nGenerated from `crates/engine/src/metrics/table.rs`. A value that is not known is an absent series. Over \
         OTLP (`otlp.md`)\nan empty label is absent, and an info metric is a gauge. The standard translation to Prometheus turns each \
         OpenTelemetry\nname into the one on its left. The metrics of the exporter's process (`process_*`) are not \
         exported over OTLP.\n",
    );
    let code = |text: &str| format!("`{text}`");
    let mut group = None;
    for metric in METRICS {
        if group != Some(metric.group) {
            group = Some(metric.group);
            let heading = format!("\n## {}\n\n", metric.group.heading());
            page.push_str(&heading);
            page.push_str("| name | OpenTelemetry | type | unit | labels | meaning |\n|---|---|---|---|---|---|\n");
        }
        let otel = metric.otel.map_or("–".to_owned(), code);
        let labels: Vec<String> = metric.labels.iter().map(|label| code(label)).collect();
        let (name, kind, unit) = (metric.name, metric.kind.as_label(), metric.unit.as_ucum());
        let (labels, help) = (labels.join(", "), metric.help);
        let row = format!("| `{name}` | {otel} | {kind} | `{unit}` | {labels} | {help} |\n");
        page.push_str(&row);
    }
    page
}

/// The labels that all series of a rank begin with.
pub const RANK: &[&str] = &["run", "rank", "uuid"];
const RANK_SIGNAL: &[&str] = &["run", "rank", "uuid", "signal"];
const RANK_STATE: &[&str] = &["run", "rank", "uuid", "state"];
const RANK_OUTCOME: &[&str] = &["run", "rank", "uuid", EndOutcome::KEY];
const RANK_MARK: &[&str] = &["run", "rank", "uuid", "mark"];
const SUBJECT_KIND: &[&str] = &["run", "rank", "uuid", "pid", "kind"];
const DEVICE: &[&str] = &["uuid"];
const RUN: &[&str] = &["run"];
const NONE: &[&str] = &[];

const BYTES: Unit = Unit::Bytes;
const SECONDS: Unit = Unit::Seconds;
const RATIO: Unit = Unit::Ratio;
const STEPS: Unit = Unit::Countable("{step}");
const RANKS: Unit = Unit::Countable("{rank}");
const PROCESSES: Unit = Unit::Countable("{process}");
const STATES: Unit = Unit::Countable("{state}");
const EVENTS: Unit = Unit::Countable("{event}");
const FILES: Unit = Unit::Countable("{file}");

/// A row of the table.
macro_rules! row {
    ($group:ident $kind:ident $name:literal $otel:literal, $unit:expr, $labels:expr, $help:literal, $read:expr) => {
        row!(@ $group $kind $name Some(concat!("stepmem.", $otel)), $unit, $labels, $help, Read::Series($read))
    };
    ($group:ident $kind:ident $name:literal, $unit:expr, $labels:expr, $help:literal, $read:expr) => {
        row!(@ $group $kind $name None, $unit, $labels, $help, Read::Series($read))
    };
    (@ $group:ident $kind:ident $name:literal $otel:expr, $unit:expr, $labels:expr, $help:literal, $read:expr) => {
        Metric {
            name: $name,
            otel: $otel,
            kind: Kind::$kind,
            unit: $unit,
            help: $help,
            labels: $labels,
            group: Group::$group,
            read: $read,
        }
    };
}

/// Every metric, in the order in which it is exposed.
#[rustfmt::skip]
pub const METRICS: &[Metric] = &[
    row!(Nvml Gauge "stepmem_device_memory_total_bytes" "device.memory.total", BYTES, DEVICE,
        "Capacity of the device.", |s, v| devices(s, v, |d| bytes(Some(d.memory?.total)))),
    row!(Nvml Gauge "stepmem_device_memory_used_bytes" "device.memory.used", BYTES, DEVICE,
        "Memory in use on the device, by everything; with the older memory query of NVML (v1) it includes what the driver reserves.",
        |s, v| devices(s, v, |d| bytes(Some(d.memory?.used)))),
    row!(Nvml Gauge "stepmem_device_memory_free_bytes" "device.memory.free", BYTES, DEVICE,
        "Free memory of the device. What total has beyond used and free is what the driver keeps for itself.", |s, v| devices(s, v, |d| bytes(d.memory?.free))),
    row!(Nvml Info "stepmem_device_info" "device.info", STATES, DEVICE_INFO,
        "Description of the device; a label is empty where the driver does not report it. memory_kind: unified is the machine's memory, numa_node is managed by the operating system. attribution is the way in which the exporter sees the device's processes. \
         host, shared_pid_namespace: it finds the process of a rank. own_pid_namespace: it sees no training process. foreign_pid_namespace: it sees process ids of the host, \
         which it cannot resolve, so no process has a series. memory_hidden: it sees no memory. unsupported: it gets no usable list.", device_info),
    row!(Nvml Gauge "stepmem_device_memory_unattributed_bytes" "device.memory.unattributed", BYTES, DEVICE,
        "Memory in use on the device beyond that of the processes whose memory is known; negative where driver and processes disagree.",
        |s, v| devices(s, v, |d| d.unattributed_bytes)),
    row!(Nvml Gauge "stepmem_process_memory_used_bytes" "process.memory.used", BYTES, PROCESS_RANK,
        "Device memory of a process; absent where the driver does not know it. The labels rank and run name the rank that the process pushes for; they are empty where none is known. A rank's client reports its own process where the exporter does not see it.",
        process_memory),
    row!(Nvml Gauge "stepmem_process_memory_estimated_bytes" "process.memory.estimated", BYTES, RANK,
        "Device memory of a rank's process where neither the driver nor its client reports it: all that is in use on a device that the kubelet gave to its container alone, and that no other rank uses.",
        |s, v| ranks(s, v, |r| bytes(r.process_estimated_bytes))),
    row!(Nvml Gauge "stepmem_process_memory_unknown" "process.memory.unknown", STATES, RANK_STATE,
        "1 for the reason for which the rank's client does not know the device memory of its own process. foreign_pid_namespace: the driver does not list it by its own process id. \
         memory_hidden: it lists no memory. unsupported: no usable NVML. no_answer: NVML hangs.", process_unknown),
    row!(Nvml Gauge "stepmem_process_memory_other_bytes" "process.memory.other", BYTES, DEVICE,
        "Sum over the processes without series of their own (--nvml.processes.max).",
        |s, v| devices(s, v, |d| whole(d.other_processes_bytes))),
    row!(Nvml Info "stepmem_process_info" "process.info", STATES, PROCESS_INFO,
        "Name (comm) of a process on the device, and the container that it runs in; a label is empty where that is not visible, comm also with --nvml.no-process-names.",
        process_info),
    row!(Nvml Info "stepmem_device_pod_info" "device.pod.info", STATES, DEVICE_POD,
        "A container to which the kubelet assigned the device; only with --kubelet.socket.", device_pods),
    row!(Nvml Info "stepmem_container_info" "container.info", STATES, CONTAINER_INFO,
        "A control group that the exporter reads itself: the container and the pod that it is of; container_id is empty for a pod's own. Only with --kubelet.cgroups.",
        container_info),
    row!(Nvml Counter "stepmem_device_xid_errors_total" "device.xid_errors", EVENTS, DEVICE_XID,
        "Xid errors that the driver reported for the device.", xid_errors),

    row!(Pushed Gauge "stepmem_rank_step" "rank.step", STEPS, RANK,
        "Last global step that the rank completed, or call of a rank that takes no steps; absent before the first.",
        |s, v| ranks(s, v, |r| count(r.last_train.filter(|_| r.totals.steps > 0 || !r.is_by_time).map(|last| last.step)))),
    row!(Pushed Counter "stepmem_rank_steps_total" "rank.steps", STEPS, RANK,
        "Train steps that the rank has reported since the exporter started; calls of one that takes no steps.", |s, v| ranks(s, v, |r| whole(Some(r.totals.steps)))),
    row!(Pushed Counter "stepmem_rank_unread_steps_total" "rank.unread_steps", STEPS, RANK,
        "Train steps at which the rank's client did not read its memory, because the steps are so short that reading would have taken too large a share of them.",
        |s, v| ranks(s, v, |r| whole(Some(r.totals.unread_steps)))),
    row!(Pushed Gauge "stepmem_rank_without_steps_seconds" "rank.without_steps", SECONDS, RANK,
        "How long the rank's process has continued since its last step without taking another; absent while it takes steps.",
        |s, v| ranks(s, v, |r| r.without_steps_seconds)),
    row!(Pushed Counter "stepmem_rank_marks_total" "rank.marks", EVENTS, RANK_MARK,
        "Evaluations, checkpoints and epochs of the rank that its client noticed since the exporter started.", marks),
    row!(Pushed Gauge "stepmem_rank_last_push_timestamp_seconds" "rank.last_push_timestamp", SECONDS, RANK,
        "When the rank's last accepted push arrived, as a Unix time; absent once the rank has ended.",
        |s, v| ranks(s, v, |r| Some(r.last_push_time).filter(|_| r.end.is_none()))),
    row!(Pushed Gauge "stepmem_rank_ended_timestamp_seconds" "rank.ended_timestamp", SECONDS, RANK_OUTCOME,
        "When the rank ended, as a Unix time: as its process reported it, else its last push. outcome is completed, failed or oom. Absent while it pushes, or fell silent.", ended),
    row!(Pushed Gauge "stepmem_rank_checkpoint_asked_timestamp_seconds" "rank.checkpoint_asked_timestamp", SECONDS, RANK,
        "When the rank's present process was last asked to checkpoint, as a Unix time; absent until it is, and once it has ended.",
        |s, v| ranks(s, v, |r| r.checkpoint_asked_time.filter(|_| r.end.is_none()))),
    row!(Pushed Gauge "stepmem_rank_memory_allocated_bytes" "rank.memory.allocated", BYTES, RANK,
        "Live tensor memory at the end of the last train step.", |s, v| ranks(s, v, |r| bytes(Some(r.last_train?.allocated)))),
    row!(Pushed Gauge "stepmem_rank_memory_peak_allocated_bytes" "rank.memory.peak_allocated", BYTES, RANK,
        "Maximum of allocated within the last train step; absent where the pusher does not know it.", |s, v| ranks(s, v, |r| bytes(r.last_train?.peak_allocated))),
    row!(Pushed Gauge "stepmem_rank_memory_reserved_bytes" "rank.memory.reserved", BYTES, RANK,
        "Memory that the caching allocator had reserved from the driver at the end of the last train step.",
        |s, v| ranks(s, v, |r| bytes(r.last_train?.reserved))),
    row!(Pushed Gauge "stepmem_rank_memory_inactive_split_bytes" "rank.memory.inactive_split", BYTES, RANK,
        "Free parts of split blocks at the end of the last train step.", |s, v| ranks(s, v, |r| bytes(r.last_train?.inactive_split))),
    row!(Pushed Gauge "stepmem_rank_memory_private_pools_bytes" "rank.memory.private_pools", BYTES, RANK,
        "The part of reserved memory that is in private pools (CUDA graphs, MemPools) at the end of the last train step; absent where the allocator counts none.",
        |s, v| ranks(s, v, |r| bytes(r.last_train?.private_pools))),
    row!(Pushed Gauge "stepmem_rank_host_memory_allocated_bytes" "rank.host.memory.allocated", BYTES, RANK,
        "Anonymous and shared host memory of a rank on a device, without pages of files and child processes; absent where it is not read.",
        |s, v| ranks(s, v, |r| bytes(r.host.as_ref()?.allocated_bytes))),
    row!(Pushed Gauge "stepmem_rank_host_memory_limit_bytes" "rank.host.memory.limit", BYTES, RANK,
        "Host memory that the process of a rank on a device may use: the limit of its control group or its own, or the machine's memory.",
        |s, v| ranks(s, v, |r| bytes(r.host.as_ref()?.total_bytes))),
    row!(Pushed Gauge "stepmem_container_memory_limit_bytes" "container.memory.limit", BYTES, CONTAINER,
        "Limit of the control group that limits the host memory of ranks: their container's, or the smallest around it that they see. The label cgroup names it. \
         With --kubelet.cgroups also that of each container whose processes use a device, and of its pod.",
        |s, v| containers(s, v, |c| bytes(c.limit))),
    row!(Pushed Gauge "stepmem_container_memory_used_bytes" "container.memory.used", BYTES, CONTAINER,
        "Memory of all its processes that the kernel cannot reclaim: anonymous, shared and the kernel's own, without pages of files; absent where it is not read.",
        |s, v| containers(s, v, |c| bytes(c.used))),
    row!(Pushed Counter "stepmem_container_oom_kills_total" "container.oom_kills", EVENTS, CONTAINER,
        "Processes of the container that the kernel killed for lack of memory, by oom_kill of its control group. What --kubelet.cgroups adds are the kills in a pod \
         (version 2) or in a container (version 1).",
        |s, v| containers(s, v, |c| count(c.oom_kills))),
    row!(Pushed Gauge "stepmem_rank_memory_shared_bytes" "rank.memory.shared", BYTES, RANK,
        "Shared memory that the rank uses, a part of allocated where that is host memory; absent where it uses none.",
        |s, v| ranks(s, v, |r| bytes(r.host.as_ref()?.figures.shared))),
    row!(Pushed Gauge "stepmem_rank_child_processes" "rank.child_processes", PROCESSES, RANK_CHILDREN,
        "Child processes of the rank, at any depth, that are not ranks themselves: worker (DataLoader workers and others that multiprocessing started) or other; absent where there are none.",
        |s, v| children(s, v, |count, _, _| Some(count.into()))),
    row!(Pushed Gauge "stepmem_rank_child_processes_unread" "rank.child_processes.unread", PROCESSES, RANK,
        "Child processes of a rank beyond those that its client reads, as last read: the memory of all is unknown then; absent if there are none.",
        |s, v| ranks(s, v, |r| r.host.as_ref()?.figures.children_unread.filter(|n| *n > 0).map(Into::into))),
    row!(Pushed Gauge "stepmem_rank_child_memory_bytes" "rank.child.memory", BYTES, RANK_CHILDREN,
        "Host memory that these processes share with no other process, and that is not a part of allocated; absent where it cannot be read.",
        |s, v| children(s, v, |_, held, _| bytes(held))),
    row!(Pushed Gauge "stepmem_rank_interval_peak_allocated_bytes" "rank.interval_peak_allocated", BYTES, RANK,
        "Highest known peak of allocated in the current and the last complete interval of --rank.peak-interval, so that a spike between two scrapes shows.",
        |s, v| ranks(s, v, |r| bytes(r.interval_peak_allocated))),
    row!(Pushed Counter "stepmem_rank_alloc_retries_total" "rank.alloc_retries", EVENTS, RANK,
        "Failed mallocs that flushed the allocator's cache, since the training process started.",
        |s, v| ranks(s, v, |r| count(r.last_train?.alloc_retries))),
    row!(Pushed Counter "stepmem_rank_oom_events_total" "rank.oom_events", EVENTS, RANK,
        "How often the rank ended out of memory, or its own count of such errors rose, since the exporter started.",
        |s, v| ranks(s, v, |r| whole(Some(r.totals.ooms)))),
    row!(Pushed Counter "stepmem_rank_dropped_records_total" "rank.dropped_records", EVENTS, RANK,
        "Records that the rank's pusher dropped, since the training process started, because no exporter accepted them in time.",
        |s, v| ranks(s, v, |r| count(r.last_train?.dropped_records))),
    row!(Pushed Counter "stepmem_rank_late_records_total" "rank.late_records", EVENTS, RANK,
        "Records of the rank that arrived too late to count, since the exporter started: a later step had arrived before, or another process is live.",
        |s, v| ranks(s, v, |r| whole(Some(r.totals.late_records)))),
    row!(Pushed Info "stepmem_rank_info" "rank.info", STATES, RANK_INFO,
        "Identity that the rank reports; a label is empty where the rank does not report it. cgroup is the control group that limits its host memory, launch the launch that all ranks and attempts of a job share, unit what the rank counts: steps, calls or replays.", rank_info),

    row!(Derived Gauge "stepmem_rank_unjudged" "rank.unjudged", STATES, RANK,
        "1 until creep detection has seen enough of the rank since its process started to judge it, absent after.",
        |s, v| ranks(s, v, |r| (!r.is_judged).then_some(1.0))),
    row!(Derived Gauge "stepmem_creep_slope_bytes_per_step" "creep.slope_bytes_per_step", Unit::BytesPerStep, RANK_SIGNAL,
        "How fast the signal grows (Theil-Sen), of a rank that takes no steps per call; absent until there is an estimate, and, but for live memory, while the signal neither rises nor creeps.",
        |s, v| signals(s, v, |c| c.slope_bytes_per_step.filter(|_| c.trend.is_some() || c.signal == Signal::Allocated))),
    row!(Derived Gauge "stepmem_creep_slope_bytes_per_second" "creep.slope", Unit::BytesPerSecond, RANK_SIGNAL,
        "The slope per second of a rank that is judged by time, and, while the signal rises or creeps, of one that counts calls; of others it is the slope per step times rate(stepmem_rank_steps_total[5m]).",
        slopes_by_time),
    row!(Derived Gauge "stepmem_creep_slope_lower_bytes_per_step" "creep.slope_lower_bytes_per_step", Unit::BytesPerStep, RANK_SIGNAL,
        "Lower end of the 95 % interval of the slope, while the signal rises or creeps.",
        |s, v| signals(s, v, |c| c.slope_lower_bytes_per_step.filter(|_| c.trend.is_some()))),
    row!(Derived Gauge "stepmem_creep_slope_upper_bytes_per_step" "creep.slope_upper_bytes_per_step", Unit::BytesPerStep, RANK_SIGNAL,
        "Upper end of the 95 % interval of the slope, while the signal rises or creeps.",
        |s, v| signals(s, v, |c| c.slope_upper_bytes_per_step.filter(|_| c.trend.is_some()))),
    row!(Derived Gauge "stepmem_creep_growth_bytes" "creep.growth", BYTES, RANK_SIGNAL,
        "Growth since the onset, while the signal rises or creeps.", |s, v| signals(s, v, |c| Some(c.trend.as_ref()?.growth_bytes))),
    row!(Derived Gauge "stepmem_creep_onset_step" "creep.onset_step", STEPS, RANK_SIGNAL,
        "Step at which the growth began, while the signal rises or creeps.", |s, v| signals(s, v, |c| c.trend.as_ref()?.onset_step)),
    row!(Derived Gauge "stepmem_creep_confidence_ratio" "creep.confidence", RATIO, RANK_SIGNAL,
        "How sure the detector is that the signal grows, 0 to 1, while it rises or creeps.",
        |s, v| signals(s, v, |c| Some(c.trend.as_ref()?.confidence_ratio))),
    row!(Derived Gauge "stepmem_rank_child_memory_slope_bytes_per_step" "rank.child.memory.slope_bytes_per_step", Unit::BytesPerStep, RANK_CHILDREN,
        "How fast the memory of these processes grows (least squares over the last four fifths of the steps since they were started); absent until there is an estimate.",
        |s, v| children(s, v, |_, _, slope| slope)),
    row!(Derived Info "stepmem_creep_site_info" "creep.site.info", STATES, RANK_SITE,
        "The line that leaks, by a memory snapshot of the rank: path, line and function, the last 128 characters of each; absent where no snapshot shows one.",
        site_info),
    row!(Derived Gauge "stepmem_creep_site_share_ratio" "creep.site.share", RATIO, RANK,
        "Share of the growth in that snapshot that the line explains, 0 to 1.", |s, v| ranks(s, v, leaking_share)),
    row!(Derived Info "stepmem_creep_holder_info" "creep.holder.info", STATES, RANK_HOLDER,
        "The live object of the rank whose tensors grow fastest, as its process reports it, and the line that made or fills it; absent where none is known.",
        holder_info),
    row!(Derived Info "stepmem_host_creep_holder_info" "host.creep.holder.info", STATES, RANK_HOLDER,
        "The live object that holds the host memory next to the rank's device memory which rises or creeps, and the line that made or fills it; with the kind `allocating line`, the line that allocates it; absent where none is known.",
        host_holder_info),
    row!(Derived Gauge "stepmem_oom_eta_seconds" "oom.eta", SECONDS, RANK,
        "Time to out-of-memory: headroom divided by the slope of the first creeping signal; absent when no signal creeps, the headroom is unknown, or the time is not known within a factor of three.",
        |s, v| ranks(s, v, |r| r.oom_eta_seconds)),
    row!(Derived Gauge "stepmem_host_oom_eta_seconds" "host.oom.eta", SECONDS, RANK,
        "Seconds until growing host memory of a rank on a device, or that of its child processes, reaches its limit, for HOST_CREEP_CONFIRMED; absent when that is not known within a factor of three.",
        |s, v| ranks(s, v, |r| r.host_oom_eta_seconds)),
    row!(Derived Gauge "stepmem_host_oom_eta_lower_seconds" "host.oom.eta_lower", SECONDS, RANK,
        "Least of that time, the lower end of its 95 % interval.", |s, v| ranks(s, v, |r| r.host_oom_eta_lower_seconds)),
    row!(Derived Gauge "stepmem_oom_eta_steps" "oom.eta_steps", STEPS, RANK,
        "The same in steps.", |s, v| ranks(s, v, |r| r.oom_eta_steps)),
    row!(Derived Gauge "stepmem_oom_eta_lower_seconds" "oom.eta_lower", SECONDS, RANK,
        "Least time to out-of-memory, the lower end of its 95 % interval; present while a signal creeps and the headroom is known.",
        |s, v| ranks(s, v, |r| r.oom_eta_lower_seconds)),
    row!(Derived Gauge "stepmem_headroom_bytes" "headroom", BYTES, RANK,
        "Memory that the rank can still allocate before its device is full: capacity less what others use and less its recent peak (where that is unknown, the maximum since the process started, else what the allocator has reserved); while its live memory grows, what its finding has left, which is also less the cache that would not be given back. For host memory, the rank's child processes are among the others.",
        |s, v| ranks(s, v, |r| r.headroom_bytes)),
    row!(Derived Gauge "stepmem_rank_limit_bytes" "rank.limit", BYTES, RANK_LIMIT,
        "The rank's capacity while that is a limit of its own process and not its device's. program: what a memory fraction lets PyTorch's allocator reserve.",
        own_limits),
    row!(Derived Gauge "stepmem_pressure_ratio" "pressure", RATIO, RANK_BASIS,
        "Recent use divided by capacity. allocated: the known peaks of the last 512 steps or ten minutes (where none is known, high_water: the maximum since the process started). reserved: the known maximum over the same time. device: as NVML last read it. host: host memory of a rank on a device, or of its container.",
        pressures),
    row!(Derived Gauge "stepmem_fragmentation_ratio" "fragmentation", RATIO, RANK,
        "(reserved - peak) / reserved of the last train step; where its peak is unknown, at least the share above the high-water mark.", |s, v| ranks(s, v, |r| r.fragmentation_ratio)),
    row!(Derived Gauge "stepmem_memory_outside_allocator_bytes" "memory.outside_allocator", BYTES, RANK,
        "Device memory of the rank's process beyond what its allocator has reserved: CUDA context, NCCL, other libraries.",
        |s, v| ranks(s, v, |r| r.outside_allocator_bytes)),
    row!(Derived Gauge "stepmem_run_imbalance_ratio" "run.imbalance", RATIO, RUN,
        "(worst - median) / median over the recent peaks of the run's ranks that push here, or over their high-water marks where those of more ranks are known.", |s, v| runs(s, v, |r| r.imbalance_ratio)),
    row!(Derived Gauge "stepmem_run_worst_rank" "run.worst_rank", RANKS, RUN,
        "Rank with the highest of those peaks.", |s, v| runs(s, v, |r| Some(r.worst_rank?.get().into()))),
    row!(Derived Gauge "stepmem_run_ranks" "run.ranks", RANKS, RUN,
        "Ranks of the run that push here and are not silent.", |s, v| runs(s, v, |r| whole(u64::try_from(r.ranks).ok()))),
    row!(Derived Gauge "stepmem_run_challengers" "run.challengers", PROCESSES, RUN,
        "Processes refused in the last minute because another live process pushes for the same rank: two programs use the run's name.",
        |s, v| runs(s, v, |r| whole(u64::try_from(r.challengers).ok()))),
    row!(Derived Gauge "stepmem_run_ranks_expected" "run.ranks_expected", RANKS, RUN,
        "World size that the run reports.", |s, v| runs(s, v, |r| Some(r.ranks_expected?.into()))),
    row!(Derived Gauge "stepmem_run_end_step" "run.end_step", STEPS, RUN,
        "Step that the run ends with, as its ranks report it (total_steps); absent where they do not, disagree, change it or have gone past it.",
        |s, v| runs(s, v, |r| count(r.end_step))),
    row!(Derived Gauge "stepmem_run_end_timestamp_seconds" "run.end_timestamp", SECONDS, RUN,
        "When the run ends, as a Unix time: with that step at the pace of its slowest rank, or by its deadline, whichever comes first; absent where neither is known.",
        |s, v| runs(s, v, |r| r.end_time)),
    row!(Derived Gauge "stepmem_container_oom_eta_seconds" "container.oom.eta", SECONDS, CONTAINER,
        "Time until the kernel kills a process of a container whose memory creeps: headroom divided by slope; absent when it is not known within a factor of three.",
        |s, v| container_growth(s, v, |c| c.oom_eta_seconds)),
    row!(Derived Gauge "stepmem_container_oom_eta_lower_seconds" "container.oom.eta_lower", SECONDS, CONTAINER,
        "Least of that time, the lower end of its 95 % interval.", |s, v| container_growth(s, v, |c| c.oom_eta_lower_seconds)),
    row!(Derived Gauge "stepmem_process_creep_slope_bytes_per_second" "process.creep.slope", Unit::BytesPerSecond, PROCESS,
        "How fast the device memory of an unmanaged process (nobody pushes for it) grows (Theil-Sen); absent until there is an estimate.",
        |s, v| processes(s, v, |p| p.creep.as_ref()?.slope_bytes_per_second)),
    row!(Derived Gauge "stepmem_process_creep_growth_bytes" "process.creep.growth", BYTES, PROCESS,
        "Growth since the onset, while the process rises or creeps.", |s, v| processes(s, v, |p| Some(p.creep.as_ref()?.trend.as_ref()?.growth_bytes))),
    row!(Derived Gauge "stepmem_process_creep_onset_timestamp_seconds" "process.creep.onset_timestamp", SECONDS, PROCESS,
        "When the growth began, as a Unix time, while the process rises or creeps.",
        |s, v| processes(s, v, |p| Some(p.creep.as_ref()?.trend.as_ref()?.onset_time))),
    row!(Derived Gauge "stepmem_process_creep_confidence_ratio" "process.creep.confidence", RATIO, PROCESS,
        "How sure the detector is that the process grows, 0 to 1, while it rises or creeps.",
        |s, v| processes(s, v, |p| Some(p.creep.as_ref()?.trend.as_ref()?.confidence_ratio))),
    row!(Derived Gauge "stepmem_process_oom_eta_seconds" "process.oom.eta", SECONDS, PROCESS,
        "Time until an unmanaged process that creeps is out of memory: headroom divided by slope; absent when it is not known within a factor of three.",
        |s, v| processes(s, v, |p| p.oom_eta_seconds)),
    row!(Derived Gauge "stepmem_process_oom_eta_lower_seconds" "process.oom.eta_lower", SECONDS, PROCESS,
        "Least of that time, the lower end of its 95 % interval.", |s, v| processes(s, v, |p| p.oom_eta_lower_seconds)),
    row!(Derived Gauge "stepmem_process_headroom_bytes" "process.headroom", BYTES, PROCESS,
        "Memory that an unmanaged process can still allocate before its device is full.", |s, v| processes(s, v, |p| p.headroom_bytes)),
    row!(Derived Gauge "stepmem_process_pressure_ratio" "process.pressure", RATIO, PROCESS,
        "Highest device memory of an unmanaged process in the last ten minutes (or 512 readings), divided by the capacity of its device.", |s, v| processes(s, v, |p| p.pressure_ratio)),
    row!(@ Derived Gauge "stepmem_diagnosis_severity" Some("stepmem.diagnosis.severity"), STATES, SUBJECT_KIND,
        "Severity of the diagnosis while it holds: 1 info, 2 warning, 3 critical.", Read::Subjects(|s, v| findings(s, v, |f| f.severity.level().into()))),
    row!(@ Derived Gauge "stepmem_diagnosis_since_timestamp_seconds" Some("stepmem.diagnosis.since_timestamp"), SECONDS, SUBJECT_KIND,
        "When the diagnosis began to hold, as a Unix time.", Read::Subjects(|s, v| findings(s, v, |f| f.since))),
    row!(Derived Info "stepmem_plan_info" "plan.info", STATES, RANK_PLAN,
        "The verdict on the plan of the run while a finding of the rank states one: let_run (the run ends first), restart, stop (no restart gets it to its end) or change (nearly full and level).",
        plan_info),
    row!(Derived Gauge "stepmem_plan_restarts" "plan.restarts", Unit::Countable("{restart}"), RANK_FINDING,
        "Restarts from a checkpoint that the run takes to its end; only with the verdict restart.",
        |s, v| plans(s, v, |plan| if let Plan::Restart { restarts, .. } = plan { Some(restarts) } else { None })),
    row!(Derived Gauge "stepmem_plan_restart_buys_seconds" "plan.restart_buys", SECONDS, RANK_FINDING,
        "Time that each of these restarts adds, where that is known.",
        |s, v| plans(s, v, |plan| if let Plan::Restart { buys_seconds, .. } = plan { buys_seconds } else { None })),

    row!(Own Gauge "stepmem_up" "up", STATES, NONE, "1 while the exporter answers.", |_, v| v.series(&[], 1.0)),
    row!(Own Info "stepmem_build_info" "build.info", STATES, VERSION, "The exporter's version.",
        |s, v| v.series(&[s.exporter.version.as_ref()], 1.0)),
    row!(Own Gauge "stepmem_ends_with_command" "ends_with_command", STATES, NONE,
        "1 for the exporter of stepmem run, which is gone once its command has ended; absent for others.",
        |s, v| if s.exporter.ends_with_command { v.series(&[], 1.0); }),
    row!(Own Gauge "stepmem_startup_problem" "startup.problem", STATES, SETTING,
        "1 for each setting that was wrong, unreadable or taken at the start of the exporter, which runs without it (--sidecar); the log gives the reason.",
        |s, v| s.exporter.startup_problems.iter().for_each(|setting| v.series(&[setting], 1.0))),
    row!(Own Gauge "stepmem_nvml_up" "nvml.up", STATES, NONE,
        "1 while NVML answers, 0 without NVML or while it fails (a normal state on a machine without a GPU); absent when it is not polled.",
        |s, v| s.gpu.is_up.into_iter().for_each(|is_up| v.series(&[], f64::from(u8::from(is_up))))),
    row!(Own Gauge "stepmem_nvml_last_success_timestamp_seconds" "nvml.last_success_timestamp", SECONDS, NONE,
        "When NVML last answered, as a Unix time.", |s, v| s.gpu.last_success_time.into_iter().for_each(|time| v.series(&[], time))),
    row!(Own Counter "stepmem_nvml_errors_total" "nvml.errors", EVENTS, CODE,
        "NVML failures by error code.", |s, v| counts(&s.gpu.errors, v)),
    row!(Own Counter "stepmem_pushes_total" "pushes", EVENTS, RESULT,
        "Push requests by result.", |s, v| counts(&s.exporter.pushes, v)),
    row!(Own Counter "stepmem_push_records_total" "push.records", EVENTS, RESULT,
        "Records of accepted pushes by result; restarted and inconsistent records count as accepted, too.", records),
    row!(@ Own Histogram "stepmem_push_duration_seconds" Some("stepmem.push.duration"), SECONDS, NONE,
        "How long push requests took, from the end of the head to the answer.", Read::Durations(|s| &s.exporter.push_seconds)),
    row!(Own Gauge "stepmem_inbox_depth" "inbox.depth", EVENTS, NONE,
        "Pushed batches that wait for the engine.", |s, v| size(s.exporter.inbox_depth, v)),
    row!(Own Counter "stepmem_connections_shed_total" "connections.shed", EVENTS, LISTENER,
        "Connections that were evicted for newer ones, or refused, at the bound on connections.",
        |s, v| counts(&s.exporter.connections_shed, v)),
    row!(Own Counter "stepmem_access_refused_total" "access.refused", EVENTS, REASON,
        "TCP clients refused because of --web.config.file: a failed TLS handshake, a missing or wrong password, too many passwords to compare, or a rate exceeded.",
        |s, v| counts(&s.exporter.access_refused, v)),
    row!(Own Counter "stepmem_web_config_reloads_total" "web_config.reloads", EVENTS, RESULT,
        "Reloads of --web.config.file after it, or a file that it names, changed: ok, or failed, after which the previous content stays in force. Absent without the file.",
        |s, v| counts(&s.exporter.web_reloads, v)),
    row!(Own Counter "stepmem_snapshots_total" "snapshots", EVENTS, RESULT,
        "Memory snapshots by result; limited ones were not requested, because of --snapshot.run-max or --snapshot.cooldown.",
        |s, v| counts(&s.exporter.snapshots, v)),
    row!(Own Counter "stepmem_summaries_total" "summaries", EVENTS, RESULT,
        "Summaries for --summary.dir by result: written, failed (the log gives the reason), or dropped while too many waited; removed counts launches beyond --summary.launches-max. Absent without a directory.",
        |s, v| counts(&s.exporter.summaries, v)),
    row!(Own Counter "stepmem_recording_lines_total" "recording.lines", EVENTS, RESULT,
        "Lines of recordings by result: written, failed (the log gives the reason), or dropped while too many waited. Absent where nothing is recorded.",
        |s, v| counts(&s.exporter.recording_lines, v)),
    row!(Own Counter "stepmem_recordings_given_up_total" "recordings.given_up", EVENTS, NONE,
        "Recording files that were removed to stay within --record.max-bytes. Absent where nothing is recorded.",
        |s, v| if let Some(n) = whole(s.exporter.recordings_given_up) { v.series(&[], n); }),
    row!(Own Counter "stepmem_snapshot_analyses_total" "snapshot.analyses", EVENTS, OUTCOME,
        "Analyses of memory snapshots by outcome; absent without --snapshot.read-directory.",
        |s, v| counts(&s.exporter.snapshot_analyses, v)),
    row!(Own Counter "stepmem_snapshot_timelines_total" "snapshot.timelines", EVENTS, RESULT,
        "Timelines of memory snapshots by result: written, failed (the log gives the reason), or removed for newer ones. Absent without --snapshot.timeline-directory.",
        |s, v| counts(&s.exporter.snapshot_timelines, v)),
    row!(Own Counter "stepmem_holders_total" "holders", EVENTS, RESULT,
        "Heap scans, in which a rank searches its live objects, by result.", |s, v| counts(&s.exporter.looks, v)),
    row!(Own Gauge "stepmem_collector_duration_seconds" "collector.duration", SECONDS, COLLECTOR,
        "How long the collector's last round took.",
        |s, v| s.exporter.collectors.iter().for_each(|c| v.series(&[c.collector.as_ref()], c.duration_seconds))),
    row!(Own Gauge "stepmem_collector_success" "collector.success", STATES, COLLECTOR,
        "1 when the collector's last round succeeded, else 0.",
        |s, v| s.exporter.collectors.iter().for_each(|c| v.series(&[c.collector.as_ref()], f64::from(u8::from(c.is_success))))),
    row!(Own Counter "stepmem_oom_kills_total" "oom_kills", EVENTS, NONE,
        "Processes that the kernel killed for lack of memory, by oom_kill of the control groups of the command and of its ranks; only with stepmem run.",
        |s, v| if let Some(n) = whole(s.exporter.oom_kills) { v.series(&[], n); }),
    row!(Own Gauge "stepmem_series" "series", EVENTS, NONE,
        "Number of series in this table.", |s, v| size(s.exporter.series, v)),
    row!(Own Counter "stepmem_series_dropped_total" "series.dropped", EVENTS, REASON,
        "Items left out to stay within a bound: records of ranks or runs over their limit, readings of processes, devices or pods over theirs, and kinds of Xid errors.",
        |s, v| counts(&s.exporter.series_dropped, v)),
    row!(Own Counter "stepmem_otlp_exports_total" "otlp.exports", EVENTS, RESULT,
        "OTLP exports by result; absent where OTLP is not configured.", |s, v| counts(&s.exporter.otlp_exports, v)),
    row!(Own Counter "stepmem_otlp_rejected_points_total" "otlp.rejected_points", EVENTS, NONE,
        "Points that the collector refused of exports that it took, by its answers over HTTP; absent where OTLP is not configured.",
        |s, v| if let Some(n) = whole(s.exporter.otlp_rejected_points) { v.series(&[], n); }),
    row!(Own Counter "process_cpu_seconds_total", SECONDS, NONE,
        "Processor time of the exporter.", |s, v| process(s, v, "process_cpu_seconds_total")),
    row!(Own Gauge "process_resident_memory_bytes", BYTES, NONE,
        "Resident memory of the exporter.", |s, v| process(s, v, "process_resident_memory_bytes")),
    row!(Own Gauge "process_virtual_memory_bytes", BYTES, NONE,
        "Virtual memory of the exporter.", |s, v| process(s, v, "process_virtual_memory_bytes")),
    row!(Own Gauge "process_open_fds", FILES, NONE,
        "Open file descriptors of the exporter.", |s, v| process(s, v, "process_open_fds")),
    row!(Own Gauge "process_max_fds", FILES, NONE,
        "Maximum number of open file descriptors of the exporter.", |s, v| process(s, v, "process_max_fds")),
    row!(Own Gauge "process_start_time_seconds", SECONDS, NONE,
        "When the exporter started, as a Unix time.", |s, v| process(s, v, "process_start_time_seconds")),
    row!(Own Gauge "process_threads", Unit::Countable("{thread}"), NONE,
        "Threads of the exporter.", |s, v| process(s, v, "process_threads")),
];

const DEVICE_INFO: &[&str] = &[
    "uuid",
    "device",
    "model",
    "driver_version",
    "mig_profile",
    "parent_uuid",
    "addressing",
    "memory_kind",
    "attribution",
];
const DEVICE_XID: &[&str] = &["uuid", "xid"];
const CONTAINER: &[&str] = &["cgroup"];
const PROCESS: &[&str] = &["uuid", "pid"];
const PROCESS_RANK: &[&str] = &["uuid", "pid", "rank", "run"];
const PROCESS_INFO: &[&str] = &["uuid", "pid", "container_id", "pod_uid", "comm"];
const CONTAINER_INFO: &[&str] = &["cgroup", "pod_uid", "container_id"];
const DEVICE_POD: &[&str] = &["uuid", "pod_namespace", "pod_name", "container_name"];
const RANK_INFO: &[&str] = &[
    "run",
    "rank",
    "uuid",
    "local_rank",
    "node_rank",
    "world_size",
    "attempt",
    "pid",
    "cgroup",
    "launch",
    "unit",
];
const RANK_CHILDREN: &[&str] = &["run", "rank", "uuid", "kind"];
const RANK_BASIS: &[&str] = &["run", "rank", "uuid", "basis"];
const RANK_LIMIT: &[&str] = &["run", "rank", "uuid", "origin"];
const RANK_SITE: &[&str] = &["run", "rank", "uuid", "file", "line", "function"];
const RANK_HOLDER: &[&str] =
    &["run", "rank", "uuid", "holder", "kind", "file", "line", "function"];
const RANK_FINDING: &[&str] = &["run", "rank", "kind"];
const RANK_PLAN: &[&str] = &["run", "rank", "kind", "plan"];
const VERSION: &[&str] = &["version"];
const SETTING: &[&str] = &["setting"];
const CODE: &[&str] = &["code"];
const RESULT: &[&str] = &["result"];
const LISTENER: &[&str] = &["listener"];
const COLLECTOR: &[&str] = &["collector"];
const REASON: &[&str] = &["reason"];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Kind, METRICS, Read};

    #[test]
    fn names_are_unique_and_follow_the_conventions() {
        let mut names = BTreeSet::new();
        let mut otel_names = BTreeSet::new();
        for metric in METRICS {
            let name = metric.name;
            assert!(names.insert(name), "{name} stands twice");
            assert!(name.starts_with("stepmem_") || name.starts_with("process_"), "{name}");
            assert_eq!(metric.kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert_eq!(metric.kind == Kind::Info, name.ends_with("_info"), "{name}");
            let stem = name.trim_end_matches("_total");
            if let Some(unit) = metric.unit.as_suffix() {
                assert!(stem.ends_with(&format!("_{unit}")), "{name} does not end in {unit}");
            }
            assert_eq!(
                metric.kind == Kind::Histogram,
                matches!(metric.read, Read::Durations(_))
            );
            if let Some(otel) = metric.otel {
                assert!(otel_names.insert(otel), "{otel} stands twice");
            }
        }
    }
}

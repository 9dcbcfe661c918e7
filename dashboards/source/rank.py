"""The dashboard of one rank in depth."""

from .dashboard import CLUSTER, NAMESPACE, ONE_RANK, ONE_RUN, Dashboard, diagnoses_since
from .kinds import plain, titled, verdict
from .panels import Column, Row, Stat, StateTimeline, Table, TimeSeries, instant, query
from .style import ETA, JUDGED, NESTED, PRESSURE, SEVERITY, SIGNALS

VERDICT = [
    Stat(
        "Verdict",
        (4, 4),
        "Worst active diagnosis of the rank and its device, and its severity. Without one, the rank "
        "is healthy once it is judged; until then it has no verdict.",
        [
            instant(verdict("<RANK_FINDINGS>", "<RANK>"), "{{kind}}"),
        ],
        mappings=SEVERITY,
    ),
    Stat(
        "Judged",
        (3, 4),
        "Whether creep detection has seen enough of the rank since its process started. A restart begins again.",
        [
            instant(
                "1 - max(stepmem_rank_unjudged{<RANK>})"
                " or max(stepmem_rank_info{<RANK>})"
            )
        ],
        mappings=JUDGED,
    ),
    Stat(
        "Out of memory in",
        (4, 4),
        "Headroom divided by slope, or its lower bound where that is not known; empty while nothing creeps.",
        [instant("min(stepmem_oom_eta_seconds{<RANK>} or stepmem_oom_eta_lower_seconds{<RANK>})")],
        "s",
        thresholds=ETA,
        no_value="–",
    ),
    Stat(
        "Steps left",
        (3, 4),
        "Headroom divided by slope, in steps; empty while nothing creeps or that is not known.",
        [instant("min(stepmem_oom_eta_steps{<RANK>})")],
        "none",
        decimals=0,
        no_value="–",
    ),
    Stat(
        "Headroom",
        (4, 4),
        "Memory that the rank can still allocate before its device is full: capacity less what others use and less its recent peak. "
        "The allocator's cache counts as free, but not all of it while memory grows.",
        [instant("min(stepmem_headroom_bytes{<RANK>})")],
        "bytes",
    ),
    Stat(
        "Step",
        (3, 4),
        "Last global step that the rank completed.",
        [instant("max(stepmem_rank_step{<RANK>})")],
        "none",
        decimals=0,
    ),
    Stat(
        "Last push",
        (3, 4),
        "Time since the rank's last push.",
        [instant("time() - max(stepmem_rank_last_push_timestamp_seconds{<RANK>})")],
        "s",
    ),
]

MEMORY = [
    TimeSeries(
        "Memory as it nests",
        (24, 11),
        "From the inside out: live memory at the end of the step, its peak within the step, the "
        "allocator's reserved memory, the process, everything on the device, the device's "
        "capacity. The layers overlap; they do not add up.",
        [
            query(
                "max(stepmem_device_memory_used_bytes{<PLACE>} and on (uuid) <RANK_UUID>)",
                "device used",
            ),
            query("max(stepmem_process_memory_used_bytes{<RANK>})", "process"),
            query("max(stepmem_rank_memory_reserved_bytes{<RANK>})", "reserved"),
            query("max(stepmem_rank_interval_peak_allocated_bytes{<RANK>})", "peak allocated"),
            query("max(stepmem_rank_memory_allocated_bytes{<RANK>})", "allocated"),
            query(
                "max(stepmem_device_memory_total_bytes{<PLACE>} and on (uuid) <RANK_UUID>)",
                "capacity",
            ),
        ],
        "bytes",
        overrides=NESTED,
        fill=12,
        min=0,
    ),
    StateTimeline(
        "Diagnoses",
        (24, 5),
        "Diagnoses of the rank and its device over time, with their severity.",
        [query(titled("max by (kind) (<RANK_FINDINGS>)"), "{{kind}}")],
        mappings=SEVERITY,
        no_value="nothing diagnosed",
    ),
]

CREEP = [
    Row("Creep"),
    TimeSeries(
        "Slope with its interval, by signal",
        (12, 9),
        "Theil–Sen slope of live memory; and of each signal, with its 95 % interval, while it grows.",
        [
            query(
                "max by (signal) (stepmem_creep_slope_bytes_per_step{<RANK>})",
                "{{signal}}",
            ),
            query(
                "max by (signal) (stepmem_creep_slope_lower_bytes_per_step{<RANK>})",
                "{{signal}} low",
            ),
            query(
                "max by (signal) (stepmem_creep_slope_upper_bytes_per_step{<RANK>})",
                "{{signal}} high",
            ),
        ],
        "bytes",
        overrides=SIGNALS,
        fill=0,
        zero=True,
    ),
    TimeSeries(
        "Growth since the onset",
        (12, 9),
        "Growth of each signal since the step at which it began.",
        [query("stepmem_creep_growth_bytes{<RANK>}", "{{signal}}")],
        "bytes",
        no_value="nothing grows",
        min=0,
    ),
    Table(
        "Leaking line",
        (12, 5),
        "The line that leaks, by a memory snapshot of the rank, and its share of the growth. "
        "Empty without a snapshot that shows one.",
        columns=[
            Column(
                "Share of the growth",
                "max by (file, line, function) (stepmem_creep_site_info{<RANK>}"
                " * on (namespace, pod, run, rank) group_left ()"
                " stepmem_creep_site_share_ratio{<RANK>})",
                "percentunit",
            ),
        ],
    ),
    Table(
        "Held by",
        (12, 5),
        "The live object of the rank whose tensors grow fastest, and the line that made or fills it.",
        columns=[
            Column(
                "Known",
                plain("max by (holder, kind, file, line) (stepmem_creep_holder_info{<RANK>})"),
                is_hidden=True,
            ),
        ],
    ),
    TimeSeries(
        "Confidence",
        (8, 7),
        "The detector's confidence that the signal grows; empty while it does not.",
        [query("stepmem_creep_confidence_ratio{<RANK>}", "{{signal}}")],
        "percentunit",
        no_value="nothing grows",
        min=0,
        max=1,
        fill=0,
    ),
    TimeSeries(
        "Onset",
        (8, 7),
        "The step at which the growth began.",
        [query("stepmem_creep_onset_step{<RANK>}", "{{signal}}")],
        "none",
        no_value="nothing grows",
        fill=0,
    ),
    TimeSeries(
        "Out of memory in",
        (8, 7),
        "Headroom divided by slope, or its lower bound where that is not known, while the rank creeps.",
        [query("min(stepmem_oom_eta_seconds{<RANK>} or stepmem_oom_eta_lower_seconds{<RANK>})", "rank {{rank}}")],
        "s",
        no_value="nothing creeps",
        min=0,
    ),
]

ROOM = [
    Row("Capacity"),
    TimeSeries(
        "Pressure, by basis",
        (12, 8),
        "Recent peak as a share of capacity: allocated memory, reserved memory, and the whole "
        "device.",
        [query("max by (basis) (stepmem_pressure_ratio{<RANK>})", "{{basis}}")],
        "percentunit",
        thresholds=PRESSURE,
        threshold_lines=True,
        fill=0,
        min=0,
        max=1,
    ),
    TimeSeries(
        "Against the other ranks",
        (12, 8),
        "The rank's recent peak divided by the median of the run's ranks, over all pods, minus 1.",
        [
            query(
                "max(stepmem_rank_interval_peak_allocated_bytes{<RANK>})"
                " / quantile(0.5, <PEAKS>) - 1",
                "imbalance",
            )
        ],
        "percentunit",
        fill=0,
        zero=True,
    ),
    TimeSeries(
        "Fragmentation",
        (12, 8),
        "Share of reserved memory that is not in use at the peak of the step.",
        [query("max(stepmem_fragmentation_ratio{<RANK>})", "unused share")],
        "percentunit",
        min=0,
        max=1,
    ),
    TimeSeries(
        "Outside the allocator",
        (12, 8),
        "Device memory of the rank's process outside its allocator.",
        [query("max(stepmem_memory_outside_allocator_bytes{<RANK>})", "outside")],
        "bytes",
        min=0,
    ),
    TimeSeries(
        "Memory of child processes",
        (12, 8),
        "Host memory that child processes share with no other process: workers are those that "
        "multiprocessing started, such as a DataLoader's.",
        [query("sum by (kind) (stepmem_rank_child_memory_bytes{<RANK>})", "{{kind}}")],
        "bytes",
        min=0,
    ),
    TimeSeries(
        "Child processes",
        (12, 8),
        "Their number. Not read are those beyond the 256 that the client reads.",
        [
            query("sum by (kind) (stepmem_rank_child_processes{<RANK>})", "{{kind}}"),
            query("max(stepmem_rank_child_processes_unread{<RANK>})", "not read"),
        ],
        min=0,
        fill=0,
    ),
]

PACE = [
    Row("Pace"),
    TimeSeries(
        "Duration of a step",
        (12, 8),
        "Mean duration of the train steps of an interval.",
        [query("1 / max(rate(stepmem_rank_steps_total{<RANK>}[$__rate_interval]) > 0)", "step")],
        "s",
        min=0,
        fill=0,
    ),
    TimeSeries(
        "Retries and out-of-memory errors",
        (12, 8),
        "Failed allocations that flushed the allocator's cache, and out-of-memory errors, per "
        "interval.",
        [
            query(
                "sum(increase(stepmem_rank_alloc_retries_total{<RANK>}[$__rate_interval]))",
                "retries",
            ),
            query("sum(increase(stepmem_rank_oom_events_total{<RANK>}[$__rate_interval]))", "OOMs"),
        ],
        bars=True,
        min=0,
    ),
    Table(
        "Identity",
        (24, 5),
        "The identity that the rank reports.",
        columns=[
            Column(
                "info",
                "max by (run, rank, local_rank, node_rank, world_size, attempt, pid, uuid,"
                " namespace, pod) (stepmem_rank_info{<RANK>})",
                is_hidden=True,
            )
        ],
    ),
]

DASHBOARD = Dashboard(
    "stepmem-rank",
    "stepmem / Rank",
    "One rank in depth: its memory layer by layer, its slope by signal, its capacity and its pace.",
    [CLUSTER, NAMESPACE, ONE_RUN, ONE_RANK],
    [*VERDICT, *MEMORY, *CREEP, *ROOM, *PACE],
    [diagnoses_since("<RANK>")],
)

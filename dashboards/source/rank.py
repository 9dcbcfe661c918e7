"""The dashboard of one rank in depth."""

from .dashboard import CLUSTER, NAMESPACE, ONE_RANK, ONE_RUN, Dashboard, diagnoses_since
from .panels import Column, Row, Stat, StateTimeline, Table, TimeSeries, instant, query
from .style import ETA, NESTED, PRESSURE, SEVERITY, SIGNALS

VERDICT = [
    Stat(
        "Verdict",
        (4, 4),
        "The worst severity of any diagnosis that holds for the rank.",
        [
            instant(
                "max(stepmem_diagnosis_severity{<RANK>}) or 0 * max(stepmem_rank_step{<RANK>})"
            )
        ],
        mappings=SEVERITY,
    ),
    Stat(
        "Out of memory in",
        (4, 4),
        "Headroom by slope; no value while nothing creeps.",
        [instant("min(stepmem_oom_eta_seconds{<RANK>})")],
        "s",
        thresholds=ETA,
        no_value="–",
    ),
    Stat(
        "Steps left",
        (4, 4),
        "Headroom by slope in steps; no value while nothing creeps.",
        [instant("min(stepmem_oom_eta_steps{<RANK>})")],
        "none",
        decimals=0,
        no_value="–",
    ),
    Stat(
        "Headroom",
        (4, 4),
        "What the rank can still take before its device is full.",
        [instant("min(stepmem_headroom_bytes{<RANK>})")],
        "bytes",
    ),
    Stat(
        "Step",
        (4, 4),
        "Global step that the rank completed last.",
        [instant("max(stepmem_rank_step{<RANK>})")],
        "none",
        decimals=0,
    ),
    Stat(
        "Last push",
        (4, 4),
        "How long ago the rank last pushed.",
        [instant("time() - max(stepmem_rank_last_push_timestamp_seconds{<RANK>})")],
        "s",
    ),
]

MEMORY = [
    TimeSeries(
        "Memory as it nests",
        (24, 11),
        "From the inside out: live memory at the end of the step, its peak within, what the "
        "allocator holds, the process, everything on the device, its capacity. They lie one over "
        "the other and are not added up.",
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
        "What was diagnosed, when, and how severe. Empty: nothing was.",
        [query("max by (kind) (stepmem_diagnosis_severity{<RANK>})", "{{kind}}")],
        mappings=SEVERITY,
        no_value="nothing diagnosed",
    ),
]

CREEP = [
    Row("Creep"),
    TimeSeries(
        "Slope with its interval, by signal",
        (12, 9),
        "Theil–Sen slope and its 95 % interval: of live memory, of what the allocator holds, of "
        "what it does not hold.",
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
        "Grown since the onset",
        (12, 9),
        "By how much each signal has grown since the step at which it began to.",
        [query("stepmem_creep_growth_bytes{<RANK>}", "{{signal}}")],
        "bytes",
        no_value="nothing grows",
        min=0,
    ),
    TimeSeries(
        "Confidence",
        (8, 7),
        "How sure the estimator is that the signal grows, while it does.",
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
        "Headroom by slope, while the rank creeps.",
        [query("min(stepmem_oom_eta_seconds{<RANK>})", "rank {{rank}}")],
        "s",
        no_value="nothing creeps",
        min=0,
    ),
]

ROOM = [
    Row("Room"),
    TimeSeries(
        "Pressure, by basis",
        (12, 8),
        "Recent peak by capacity: of allocated and reserved memory, and of the device.",
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
        "The rank's recent peak by the median of the others that push to the same exporter, less "
        "1.",
        [query("max(stepmem_imbalance_ratio{<RANK>})", "imbalance")],
        "percentunit",
        fill=0,
        zero=True,
    ),
    TimeSeries(
        "Fragmentation",
        (12, 8),
        "The share of reserved memory that is not live at the end of the step.",
        [query("max(stepmem_fragmentation_ratio{<RANK>})", "unused share")],
        "percentunit",
        min=0,
        max=1,
    ),
    TimeSeries(
        "Outside the allocator",
        (12, 8),
        "Device memory of the rank's process that its allocator does not hold.",
        [query("max(stepmem_memory_outside_allocator_bytes{<RANK>})", "outside")],
        "bytes",
        min=0,
    ),
]

PACE = [
    Row("Pace"),
    TimeSeries(
        "Duration of a step",
        (12, 8),
        "How long the last train step took.",
        [query("max(stepmem_rank_step_seconds{<RANK>})", "step")],
        "s",
        min=0,
        fill=0,
    ),
    TimeSeries(
        "Retries and out-of-memory errors",
        (12, 8),
        "Failed allocations that flushed the allocator's cache, and out-of-memory errors, in the "
        "interval.",
        [
            query(
                "sum(increase(stepmem_rank_alloc_retries_total{<RANK>}[$__rate_interval]))",
                "retries",
            ),
            query("sum(increase(stepmem_rank_ooms_total{<RANK>}[$__rate_interval]))", "OOMs"),
        ],
        bars=True,
        min=0,
    ),
    Table(
        "Who it is",
        (24, 5),
        "What the rank says of itself.",
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
    "One rank in depth: its memory as it nests, its slopes by signal, its room and its pace.",
    [CLUSTER, NAMESPACE, ONE_RUN, ONE_RANK],
    [*VERDICT, *MEMORY, *CREEP, *ROOM, *PACE],
    [diagnoses_since("<RANK>")],
)

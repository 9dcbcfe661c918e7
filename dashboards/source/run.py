"""The dashboard of one run: its ranks side by side."""

from .dashboard import CLUSTER, MANY_RANKS, NAMESPACE, ONE_RUN, Dashboard, diagnoses_since
from .panels import (
    TO_RANK,
    Column,
    Row,
    Stat,
    StateTimeline,
    StatusHistory,
    Table,
    TimeSeries,
    instant,
    query,
)
from .style import CAPACITY, ETA, ETA_CELLS, PRESSURE, PRESSURE_CELLS, SEVERITY, SKEW, STEEPEST

VERDICT = [
    Stat(
        "Verdict",
        (4, 4),
        "The worst severity of any diagnosis that holds for a rank of the run.",
        [
            instant(
                "max(stepmem_diagnosis_severity{<RANKS>}) or 0 * max(stepmem_run_ranks{<RUN>})"
            )
        ],
        mappings=SEVERITY,
    ),
    Stat(
        "Out of memory in",
        (4, 4),
        "The shortest time to out-of-memory of any rank; no value while nothing creeps.",
        [instant("min(stepmem_oom_eta_seconds{<RANKS>})")],
        "s",
        thresholds=ETA,
        no_value="–",
    ),
    Stat(
        "Highest pressure",
        (4, 4),
        "Recent peak of live memory by capacity, of the fullest rank. Reserved memory is left out: "
        "a caching allocator fills its device in good health.",
        [instant('max(stepmem_pressure_ratio{<RANKS>,basis=~"allocated|device"})')],
        "percentunit",
        thresholds=PRESSURE,
        min=0,
        max=1,
    ),
    Stat(
        "Imbalance",
        (4, 4),
        "Highest recent peak by the median of all ranks of the run, over all its pods, less 1.",
        [instant("max(<PEAKS>) / quantile(0.5, <PEAKS>) - 1")],
        "percentunit",
        thresholds=SKEW,
    ),
    Stat(
        "Ranks",
        (4, 4),
        "Ranks that push, and how many there are by the run's own word.",
        [
            instant("count(count by (rank) (stepmem_rank_step{<RUN>}))", "seen"),
            instant("max(stepmem_run_ranks_expected{<RUN>})", "expected"),
        ],
    ),
    Stat(
        "Steps per second",
        (4, 4),
        "Train steps of the slowest rank.",
        [instant("min(rate(stepmem_rank_steps_total{<RANKS>}[$__rate_interval]))")],
        "none",
        decimals=1,
    ),
    StateTimeline(
        "Diagnoses",
        (24, 7),
        "What was diagnosed, for which rank, when, and how severe. Empty: nothing was.",
        [
            query(
                "max by (rank, kind) (stepmem_diagnosis_severity{<RANKS>})",
                "rank {{rank}} · {{kind}}",
            )
        ],
        mappings=SEVERITY,
        no_value="nothing diagnosed",
    ),
]

MEMORY = [
    Row("Memory"),
    TimeSeries(
        "Live memory at its peak, by rank",
        (24, 10),
        "Highest allocated memory in this and the last whole interval of --rank.peak-interval, so "
        "that a spike between two scrapes is seen; the line is the capacity of the smallest "
        "device.",
        [
            query(
                "max by (rank) (stepmem_rank_interval_peak_allocated_bytes{<RANKS>})",
                "rank {{rank}}",
            ),
            query(
                "min(stepmem_device_memory_total_bytes{<PLACE>}"
                " and on (uuid) stepmem_rank_step{<RANKS>})",
                "capacity",
            ),
        ],
        "bytes",
        overrides=[CAPACITY],
        fill=0,
    ),
]

CREEP = [
    Row("Creep"),
    TimeSeries(
        "Slope of live memory, with its interval",
        (12, 9),
        "Theil–Sen slope of each rank, and the 95 % interval of the steepest. A band that lies "
        "above 0 is growth.",
        [
            query("max by (rank) (<SLOPE>)", "rank {{rank}}"),
            query(
                "max(stepmem_creep_slope_lower_bytes_per_step{<RANKS>} and <STEEPEST>)",
                "steepest low",
            ),
            query(
                "max(stepmem_creep_slope_upper_bytes_per_step{<RANKS>} and <STEEPEST>)",
                "steepest high",
            ),
        ],
        "bytes",
        overrides=STEEPEST,
        fill=0,
        zero=True,
    ),
    TimeSeries(
        "Out of memory in",
        (12, 9),
        "Headroom by slope, of the ranks that creep.",
        [query("min by (rank) (stepmem_oom_eta_seconds{<RANKS>})", "rank {{rank}}")],
        "s",
        no_value="nothing creeps",
        min=0,
    ),
    TimeSeries(
        "Grown since the onset",
        (12, 8),
        "By how much the signal has grown since the step at which it began to.",
        [query("stepmem_creep_growth_bytes{<RANKS>}", "rank {{rank}} · {{signal}}")],
        "bytes",
        no_value="nothing grows",
    ),
    TimeSeries(
        "Slope in time",
        (12, 8),
        "The slope per second. Processes that don't push are judged by it.",
        [
            query(
                'stepmem_creep_slope_bytes_per_second{<RANKS>,signal=~"allocated|process"}',
                "rank {{rank}}",
            )
        ],
        "Bps",
        fill=0,
        zero=True,
    ),
]

ROOM = [
    Row("Room"),
    TimeSeries(
        "Pressure",
        (12, 8),
        "Recent peak by capacity, by rank: the highest of allocated and device.",
        [
            query(
                'max by (rank) (stepmem_pressure_ratio{<RANKS>,basis=~"allocated|device"})',
                "rank {{rank}}",
            )
        ],
        "percentunit",
        thresholds=PRESSURE,
        threshold_lines=True,
        fill=0,
        min=0,
        max=1,
    ),
    TimeSeries(
        "Headroom",
        (12, 8),
        "What the rank can still take before its device is full.",
        [query("min by (rank) (stepmem_headroom_bytes{<RANKS>})", "rank {{rank}}")],
        "bytes",
        fill=0,
        min=0,
    ),
    StatusHistory(
        "Imbalance",
        (24, 9),
        "Each rank's recent peak by the median of the run's ranks, less 1, over all its pods.",
        [
            query(
                "max by (rank) (stepmem_rank_interval_peak_allocated_bytes{<RANKS>})"
                " / scalar(quantile(0.5, <PEAKS>)) - 1",
                "rank {{rank}}",
            )
        ],
        "percentunit",
        decimals=0,
        min=0,
        max=0.3,
        points=60,
    ),
]

NOT_IN_LIVE_MEMORY = [
    Row("What live memory does not show"),
    TimeSeries(
        "Fragmentation",
        (8, 8),
        "The share of reserved memory that is not live at the end of the step.",
        [query("max by (rank) (stepmem_fragmentation_ratio{<RANKS>})", "rank {{rank}}")],
        "percentunit",
        fill=0,
        min=0,
        max=1,
    ),
    TimeSeries(
        "Outside the allocator",
        (8, 8),
        "Device memory of the rank's process that its allocator does not hold: CUDA context, NCCL, "
        "other libraries.",
        [query("max by (rank) (stepmem_memory_outside_allocator_bytes{<RANKS>})", "rank {{rank}}")],
        "bytes",
        fill=0,
        min=0,
    ),
    TimeSeries(
        "Retries and out-of-memory errors",
        (8, 8),
        "Failed allocations that flushed the allocator's cache, and out-of-memory errors, of all "
        "ranks in the interval.",
        [
            query(
                "sum(increase(stepmem_rank_alloc_retries_total{<RANKS>}[$__rate_interval]))",
                "retries",
            ),
            query("sum(increase(stepmem_rank_ooms_total{<RANKS>}[$__rate_interval]))", "OOMs"),
        ],
        bars=True,
        min=0,
    ),
]

PACE = [
    Row("Pace"),
    TimeSeries(
        "Steps per second",
        (12, 8),
        "Train steps by rank.",
        [
            query(
                "sum by (rank) (rate(stepmem_rank_steps_total{<RANKS>}[$__rate_interval]))",
                "rank {{rank}}",
            )
        ],
        "none",
        fill=0,
        min=0,
    ),
    TimeSeries(
        "Since the last push",
        (12, 8),
        "How long ago each rank last pushed.",
        [
            query(
                "time() - max by (rank) (stepmem_rank_last_push_timestamp_seconds{<RANKS>})",
                "rank {{rank}}",
            )
        ],
        "s",
        fill=0,
        min=0,
    ),
    Table(
        "Ranks",
        (24, 9),
        "Where each rank is. A row opens the rank.",
        columns=[
            Column(
                "Step",
                "max by (run, rank, namespace, pod) (stepmem_rank_step{<RANKS>})",
                "none",
            ),
            Column(
                "Peak",
                "max by (run, rank, namespace, pod)"
                " (stepmem_rank_memory_peak_allocated_bytes{<RANKS>})",
                "bytes",
            ),
            Column(
                "Pressure",
                "max by (run, rank, namespace, pod)"
                ' (stepmem_pressure_ratio{<RANKS>,basis="allocated"})',
                "percentunit",
                PRESSURE_CELLS,
            ),
            Column(
                "Slope / step",
                "max by (run, rank, namespace, pod)"
                ' (stepmem_creep_slope_bytes_per_step{<RANKS>,signal="allocated"})',
                "bytes",
            ),
            Column(
                "Out of memory in",
                "min by (run, rank, namespace, pod) (stepmem_oom_eta_seconds{<RANKS>})",
                "s",
                ETA_CELLS,
            ),
        ],
        sort="Pressure",
        link=TO_RANK,
    ),
]

DASHBOARD = Dashboard(
    "stepmem-run",
    "stepmem / Run",
    "One training job: who of its ranks grows, how fast, how long it has, and how full and even "
    "they are.",
    [CLUSTER, NAMESPACE, ONE_RUN, MANY_RANKS],
    [*VERDICT, *MEMORY, *CREEP, *ROOM, *NOT_IN_LIVE_MEMORY, *PACE],
    [diagnoses_since("<RUN>")],
)

"""The dashboard of one run: its ranks side by side.

Of many ranks the worst are drawn as lines (`<WORST>`), and all as a heat map.
"""

from .dashboard import (
    CLUSTER,
    MANY_RANKS,
    NAMESPACE,
    ONE_RUN,
    WORST_DEVICES,
    WORST_RANKS,
    Dashboard,
    diagnoses_since,
)
from .kinds import plain, titled, verdict
from .panels import (
    TO_RANK,
    Column,
    Heatmap,
    Row,
    Stat,
    StateTimeline,
    Table,
    TimeSeries,
    instant,
    query,
)
from .style import (
    CAPACITY,
    ETA,
    ETA_CELLS,
    PRESSURE,
    PRESSURE_CELLS,
    SEVERITY,
    SEVERITY_CELLS,
    SKEW,
    STEEPEST,
)

VERDICT = [
    Stat(
        "Verdict",
        (4, 4),
        "Worst active diagnosis of the run's ranks and their devices, and its severity. Without one, "
        "the run is healthy once creep detection has seen enough of every rank; until then "
        "it is not judged yet.",
        [
            instant(verdict("<RANKS_FINDINGS>", "<RANKS>"), "{{kind}}"),
        ],
        mappings=SEVERITY,
    ),
    Stat(
        "Out of memory in",
        (4, 4),
        "Shortest time to out-of-memory of any rank, or its lower bound where it is not known; empty while nothing creeps.",
        [instant("min(stepmem_oom_eta_seconds{<RANKS>} or stepmem_oom_eta_lower_seconds{<RANKS>})")],
        "s",
        thresholds=ETA,
        no_value="–",
    ),
    Stat(
        "Highest pressure",
        (4, 4),
        "The highest of live memory at its recent peak, reserved memory and all memory in use on the device, as a share of "
        "capacity, of the fullest rank: PRESSURE of stepmem status. It includes the allocator's cache, which Headroom does not.",
        [instant('max(stepmem_pressure_ratio{<RANKS>,basis!="host"})')],
        "percentunit",
        thresholds=PRESSURE,
        min=0,
        max=1,
    ),
    Stat(
        "Imbalance",
        (4, 4),
        "Highest recent peak divided by the median of all ranks of the run, over all pods, minus "
        "1. A peak counts for one to two --rank.peak-interval, also after a restart.",
        [instant("max(<PEAKS>) / quantile(0.5, <PEAKS>) - 1")],
        "percentunit",
        thresholds=SKEW,
    ),
    Stat(
        "Ranks",
        (4, 4),
        "Ranks that push, and the world size that the run reports.",
        [
            instant("count(count by (rank) (stepmem_rank_step{<RUN>}))", "seen"),
            instant("max(stepmem_run_ranks_expected{<RUN>})", "expected"),
        ],
    ),
    Stat(
        "Steps per second",
        (4, 4),
        "Train steps per second of the slowest rank.",
        [instant("min(rate(stepmem_rank_steps_total{<RANKS>}[$__rate_interval]))")],
        "none",
        decimals=1,
    ),
    StateTimeline(
        "Diagnoses",
        (24, 7),
        "Diagnoses by rank over time, with their severity, and those of the ranks' devices.",
        [query(titled("max by (rank, kind) (<RANKS_FINDINGS>)"), "rank {{rank}} · {{kind}}")],
        mappings=SEVERITY,
        no_value="nothing diagnosed",
    ),
]

MEMORY = [
    Row("Memory"),
    TimeSeries(
        "Live memory at its peak, of the worst ranks",
        (24, 10),
        "Of sixteen ranks, by severity and pressure: highest allocated memory in the current and the previous --rank.peak-interval, which "
        "catches spikes between scrapes. The line is the capacity of the smallest device.",
        [
            query(
                "max by (rank) (stepmem_rank_interval_peak_allocated_bytes{<WORST>})",
                "rank {{rank}}",
            ),
            query(
                'min(stepmem_device_memory_total_bytes{<PLACE>,uuid=~"$device"})',
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
        "Theil–Sen slope of each rank, and the 95 % interval of the steepest. A band above 0 means "
        "growth.",
        [
            query("max by (rank) (<SLOPE>)", "rank {{rank}}"),
            query(
                "max(stepmem_creep_slope_lower_bytes_per_step{<WORST>} and <STEEPEST>)",
                "steepest low",
            ),
            query(
                "max(stepmem_creep_slope_upper_bytes_per_step{<WORST>} and <STEEPEST>)",
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
        "Headroom divided by slope, or its lower bound where that is not known, for ranks that creep.",
        [query("min by (rank) (stepmem_oom_eta_seconds{<WORST>} or stepmem_oom_eta_lower_seconds{<WORST>})", "rank {{rank}}")],
        "s",
        no_value="nothing creeps",
        min=0,
    ),
    TimeSeries(
        "Growth since the onset",
        (24, 8),
        "Growth of each signal since the step at which it began.",
        [query("stepmem_creep_growth_bytes{<WORST>}", "rank {{rank}} · {{signal}}")],
        "bytes",
        no_value="nothing grows",
    ),
    Table(
        "Leaking lines",
        (12, 4),
        "The line that leaks, by a memory snapshot of each rank, and its share of the growth.",
        columns=[
            Column(
                "Share of the growth",
                "max by (rank, file, line, function) (stepmem_creep_site_info{<RANKS>}"
                " * on (namespace, pod, run, rank) group_left ()"
                " stepmem_creep_site_share_ratio{<RANKS>})",
                "percentunit",
            ),
        ],
    ),
    Table(
        "Held by",
        (12, 4),
        "The live object of each rank whose memory grows fastest, and the line that made or fills it.",
        columns=[
            Column(
                "Known",
                plain("max by (rank, holder, kind, file, line) (stepmem_creep_holder_info{<RANKS>})"),
                is_hidden=True,
            ),
        ],
    ),
]

ROOM = [
    Row("Capacity"),
    TimeSeries(
        "Pressure",
        (12, 8),
        "Recent peak as a share of capacity: the highest of allocated, reserved and device memory. It includes the allocator's "
        "cache, which Headroom does not.",
        [
            query(
                'max by (rank) (stepmem_pressure_ratio{<WORST>,basis!="host"})',
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
        "Memory that the rank can still allocate before its device is full: capacity less what others use and less its recent peak. "
        "The allocator's cache counts as free, but not all of it while memory grows.",
        [query("min by (rank) (stepmem_headroom_bytes{<WORST>})", "rank {{rank}}")],
        "bytes",
        fill=0,
        min=0,
    ),
    Heatmap(
        "Every rank against the median",
        (24, 10),
        "Each rank's recent peak divided by the median of the run's ranks, over all pods, minus 1. A peak counts for one to two "
        "--rank.peak-interval, also after a restart.",
        [query("max by (rank) (stepmem_rank_interval_peak_allocated_bytes{<RANKS>})"
                " / scalar(quantile(0.5, <PEAKS>)) - 1", "rank {{rank}}")],
        "percentunit",
        min=0,
        max=0.3,
        points=60,
    ),
]

NOT_IN_LIVE_MEMORY = [
    Row("Beyond live memory"),
    TimeSeries(
        "Fragmentation",
        (8, 8),
        "Share of reserved memory that is not in use at the peak of the step.",
        [query("max by (rank) (stepmem_fragmentation_ratio{<WORST>})", "rank {{rank}}")],
        "percentunit",
        fill=0,
        min=0,
        max=1,
    ),
    TimeSeries(
        "Outside the allocator",
        (8, 8),
        "Device memory of the rank's process outside its allocator: CUDA context, NCCL, other "
        "libraries.",
        [query("max by (rank) (stepmem_memory_outside_allocator_bytes{<WORST>})", "rank {{rank}}")],
        "bytes",
        fill=0,
        min=0,
    ),
    TimeSeries(
        "Retries and out-of-memory errors",
        (8, 8),
        "Failed allocations that flushed the allocator's cache, and out-of-memory errors, per "
        "interval, of the worst ranks.",
        [
            query(
                "sum(increase(stepmem_rank_alloc_retries_total{<WORST>}[$__rate_interval]))",
                "retries",
            ),
            query("sum(increase(stepmem_rank_oom_events_total{<WORST>}[$__rate_interval]))", "OOMs"),
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
        "Train steps per second of each rank.",
        [
            query(
                "sum by (rank) (rate(stepmem_rank_steps_total{<WORST>}[$__rate_interval]))",
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
        "Time since each rank's last push.",
        [
            query(
                "time() - max by (rank) (stepmem_rank_last_push_timestamp_seconds{<WORST>})",
                "rank {{rank}}",
            )
        ],
        "s",
        fill=0,
        min=0,
    ),
    Table(
        "Ranks, the worst first",
        (24, 9),
        "Current figures of the fifty worst ranks. Click a rank to open it.",
        columns=[
            Column(
                "Severity",
                "max by (run, rank, namespace, pod) (stepmem_diagnosis_severity{<RANKS>}"
                " or -1 * stepmem_rank_unjudged{<RANKS>} or 0 * stepmem_rank_info{<RANKS>})"
                " and <WORST_RANKS>",
                cells=SEVERITY_CELLS,
            ),
            Column(
                "Step",
                "max by (run, rank, namespace, pod) (stepmem_rank_step{<RANKS>})"
                " and <WORST_RANKS>",
                "none",
            ),
            Column(
                "Peak",
                "max by (run, rank, namespace, pod)"
                " (stepmem_rank_memory_peak_allocated_bytes{<RANKS>}) and <WORST_RANKS>",
                "bytes",
            ),
            Column(
                "Pressure",
                "max by (run, rank, namespace, pod)"
                ' (stepmem_pressure_ratio{<RANKS>,basis!="host"})'
                " and <WORST_RANKS>",
                "percentunit",
                PRESSURE_CELLS,
            ),
            Column(
                "Slope / step",
                "max by (run, rank, namespace, pod)"
                ' (stepmem_creep_slope_bytes_per_step{<RANKS>,signal="allocated"})'
                " and <WORST_RANKS>",
                "bytes",
            ),
            Column(
                "Out of memory in",
                "min by (run, rank, namespace, pod) (stepmem_oom_eta_seconds{<RANKS>}"
                " or stepmem_oom_eta_lower_seconds{<RANKS>}) and <WORST_RANKS>",
                "s",
                ETA_CELLS,
            ),
        ],
        sort="Severity",
        link=TO_RANK,
    ),
]

DASHBOARD = Dashboard(
    "stepmem-run",
    "stepmem / Run",
    "One training job: which ranks grow, how fast, how long they have, and how full and balanced "
    "they are.",
    [CLUSTER, NAMESPACE, ONE_RUN, MANY_RANKS, WORST_RANKS, WORST_DEVICES],
    [*VERDICT, *MEMORY, *CREEP, *ROOM, *NOT_IN_LIVE_MEMORY, *PACE],
    [diagnoses_since("<RUN>")],
)

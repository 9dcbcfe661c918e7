"""The dashboard of all clusters and runs."""

from .dashboard import CLUSTER, NAMESPACE, Dashboard
from .kinds import titled
from .panels import (
    TO_RUN,
    BarGauge,
    Column,
    Histogram,
    Stat,
    Table,
    TimeSeries,
    instant,
    query,
)
from .style import (
    BY_KIND,
    CAPACITY,
    CREEPING_RANKS,
    ETA,
    ETA_CELLS,
    PRESSURE,
    PRESSURE_CELLS,
    SEVERITY_CELLS,
    SILENT_RANKS,
    SILENT_SECONDS,
)

FIGURES = [
    Stat(
        "Runs",
        (3, 4),
        "Runs with at least one rank that pushes.",
        [instant("count(count by (<BY_RUN>) (stepmem_rank_step{<PLACE>}))")],
        "none",
    ),
    Stat(
        "Ranks",
        (3, 4),
        "Ranks that push, over all runs.",
        [instant("count(count by (<BY_RUN>, rank) (stepmem_rank_step{<PLACE>}))")],
        "none",
    ),
    Stat(
        "Creeping ranks",
        (3, 4),
        "Ranks with MEMORY CREEP.",
        [
            instant(
                "count(count by (<BY_RUN>, rank)"
                ' (stepmem_diagnosis{<PLACE>,run!="",kind="CREEP_CONFIRMED"}))'
                " or 0 * count(stepmem_up{<PLACE>})"
            )
        ],
        "none",
        thresholds=CREEPING_RANKS,
    ),
    Stat(
        "Next OOM",
        (3, 4),
        "Shortest time to out-of-memory of all ranks and unmanaged processes, or its lower bound "
        "where it is not known; empty while nothing creeps.",
        [
            instant(
                "min(stepmem_oom_eta_seconds{<PLACE>} or stepmem_oom_eta_lower_seconds{<PLACE>}"
                " or stepmem_process_oom_eta_seconds{<PLACE>}"
                " or stepmem_process_oom_eta_lower_seconds{<PLACE>})"
            )
        ],
        "s",
        thresholds=ETA,
        no_value="–",
    ),
    Stat(
        "Silent ranks",
        (3, 4),
        "Ranks that have not pushed for five minutes and are still exported.",
        [
            instant(
                "count(time() - max by (<BY_RUN>, rank)"
                " (stepmem_rank_last_push_timestamp_seconds{<PLACE>}) > 300)"
                " or 0 * count(stepmem_up{<PLACE>})"
            )
        ],
        "none",
        thresholds=SILENT_RANKS,
    ),
    Stat(
        "GPUs",
        (3, 4),
        "Devices that the exporters see; a device that two of them see counts once.",
        [instant("count(count by (uuid) (stepmem_device_memory_total_bytes{<PLACE>}))")],
        "none",
    ),
    Stat(
        "Memory in use",
        (3, 4),
        "Memory in use as a share of capacity, over all devices.",
        [
            instant(
                "sum(max by (uuid) (stepmem_device_memory_used_bytes{<PLACE>}))"
                " / sum(max by (uuid) (stepmem_device_memory_total_bytes{<PLACE>}))"
            )
        ],
        "percentunit",
        thresholds=PRESSURE,
        min=0,
        max=1,
    ),
    Stat(
        "Exporters",
        (3, 4),
        "Exporters that answer.",
        [instant("sum(stepmem_up{<PLACE>})")],
        "none",
    ),
]

CREEPING = [
    Table(
        "Creeping ranks, soonest out of memory first",
        (24, 9),
        "Every rank with a time to out-of-memory. Click a run to open it. "
        "Unmanaged processes are on the Exporter dashboard.",
        columns=[
            Column(
                "Out of memory in",
                "min by (<BY_RUN>, rank, pod) (stepmem_oom_eta_seconds{<PLACE>} or stepmem_oom_eta_lower_seconds{<PLACE>})",
                "s",
                ETA_CELLS,
            ),
            Column(
                "Slope / s",
                "max by (<BY_RUN>, rank, pod)"
                " (stepmem_creep_slope_bytes_per_second{<PLACE>} and <RUNNING_OUT>)",
                "Bps",
            ),
            Column(
                "Grown",
                "max by (<BY_RUN>, rank, pod)"
                " (stepmem_creep_growth_bytes{<PLACE>} and <RUNNING_OUT>)",
                "bytes",
            ),
            Column(
                "Headroom",
                "min by (<BY_RUN>, rank, pod) (stepmem_headroom_bytes{<PLACE>} and <RUNNING_OUT>)",
                "bytes",
            ),
        ],
        sort="-Out of memory in",
        link=TO_RUN,
        no_value="nothing creeps",
    ),
]

RUNS = [
    Table(
        "Runs",
        (14, 9),
        "Every run with the figures of its worst rank. Click a run to open it.",
        columns=[
            Column(
                "Ranks",
                "count by (<BY_RUN>) (count by (<BY_RUN>, rank) (stepmem_rank_step{<PLACE>}))",
            ),
            Column(
                "Severity",
                'max by (<BY_RUN>) (stepmem_diagnosis_severity{<PLACE>,run!=""})',
                cells=SEVERITY_CELLS,
            ),
            Column(
                "Pressure",
                'max by (<BY_RUN>) (stepmem_pressure_ratio{<PLACE>,basis=~"allocated|high_water"})',
                "percentunit",
                PRESSURE_CELLS,
            ),
            Column(
                "Imbalance",
                "max by (<BY_RUN>) (stepmem_run_imbalance_ratio{<PLACE>})",
                "percentunit",
            ),
            Column(
                "Out of memory in",
                "min by (<BY_RUN>) (stepmem_oom_eta_seconds{<PLACE>} or stepmem_oom_eta_lower_seconds{<PLACE>})",
                "s",
                ETA_CELLS,
            ),
            Column(
                "Last push",
                "time() - max by (<BY_RUN>) (stepmem_rank_last_push_timestamp_seconds{<PLACE>})",
                "s",
            ),
        ],
        sort="Severity",
        link=TO_RUN,
    ),
    Histogram(
        "Pressure over all ranks",
        (10, 9),
        "Number of ranks by recent peak of live memory as a share of capacity.",
        [
            instant(
                'max by (<BY_RUN>, rank) (stepmem_pressure_ratio{<PLACE>,basis=~"allocated|high_water"})',
                "{{run}} {{rank}}",
            )
        ],
        "percentunit",
        bucket=0.05,
    ),
]

OVER_TIME = [
    TimeSeries(
        "Diagnoses",
        (12, 8),
        "Number of ranks, unmanaged processes and devices with each diagnosis.",
        [query(titled("count by (kind) (stepmem_diagnosis{<PLACE>})"), "{{kind}}")],
        "none",
        overrides=BY_KIND,
        min=0,
        stack=True,
        fill=30,
        no_value="nothing diagnosed",
    ),
    TimeSeries(
        "Memory of all devices",
        (12, 8),
        "Memory in use and capacity, summed over all devices.",
        [
            query("sum(max by (uuid) (stepmem_device_memory_used_bytes{<PLACE>}))", "used"),
            query("sum(max by (uuid) (stepmem_device_memory_total_bytes{<PLACE>}))", "capacity"),
        ],
        "bytes",
        overrides=[CAPACITY],
        min=0,
    ),
    BarGauge(
        "Silent runs",
        (12, 8),
        "Time since each run's last push, the longest first.",
        [
            instant(
                "topk(10, time() - max by (<BY_RUN>)"
                " (stepmem_rank_last_push_timestamp_seconds{<PLACE>}))",
                "{{run}}",
            )
        ],
        "s",
        thresholds=SILENT_SECONDS,
        min=0,
        max=600,
    ),
    TimeSeries(
        "Pressure of the fullest rank, by run",
        (12, 8),
        "Recent peak of live memory as a share of capacity, for the ten fullest runs.",
        [
            query(
                'topk(10, max by (<BY_RUN>) (stepmem_pressure_ratio{<PLACE>,basis=~"allocated|high_water"}))',
                "{{run}}",
            )
        ],
        "percentunit",
        fill=0,
        min=0,
        max=1,
        thresholds=PRESSURE,
        threshold_lines=True,
    ),
]

DASHBOARD = Dashboard(
    "stepmem-fleet",
    "stepmem / Fleet",
    "All clusters and runs: which ranks creep and run out of memory first, how full they are, "
    "which are silent.",
    [CLUSTER, NAMESPACE],
    [*FIGURES, *CREEPING, *RUNS, *OVER_TIME],
)

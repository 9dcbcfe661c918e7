"""The dashboard of all clusters and runs. It reads what the rules record, and nothing else."""

from .dashboard import RECORDED_CLUSTER, RECORDED_NAMESPACE, Dashboard
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
        [instant("count(run:stepmem_ranks:count{<PLACE>})")],
        "none",
    ),
    Stat(
        "Ranks",
        (3, 4),
        "Ranks that push, over all runs.",
        [instant("sum(run:stepmem_ranks:count{<PLACE>})")],
        "none",
    ),
    Stat(
        "Creeping ranks",
        (3, 4),
        "Ranks with MEMORY CREEP.",
        [instant("sum(run:stepmem_creeping_ranks:count{<PLACE>})")],
        "none",
        thresholds=CREEPING_RANKS,
    ),
    Stat(
        "Next OOM",
        (3, 4),
        "Shortest time to out-of-memory of all ranks and unmanaged processes, or its lower bound "
        "where it is not known, and whose it is; empty while nothing creeps. Unmanaged processes are on the Exporter dashboard.",
        [
            instant(
                "bottomk(1,"
                ' label_replace(min by (run) (run:stepmem_oom_eta_seconds:min{<PLACE>}'
                ' or run:stepmem_oom_eta_lower_seconds:min{<PLACE>}), "whose", "$1", "run", "(.+)")'
                ' or label_replace(min by (pid) (process:stepmem_oom_eta_seconds:min{<PLACE>}'
                ' or process:stepmem_oom_eta_lower_seconds:min{<PLACE>}), "whose", "process $1", "pid", "(.+)"))',
                "{{whose}}",
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
        [instant("sum(run:stepmem_silent_ranks:count{<PLACE>})")],
        "none",
        thresholds=SILENT_RANKS,
    ),
    Stat(
        "GPUs",
        (3, 4),
        "Devices that the exporters of the clusters see; a device that two of them see counts once.",
        [instant("sum(cluster:stepmem_devices:count{<CLUSTER>})")],
        "none",
    ),
    Stat(
        "Memory in use",
        (3, 4),
        "Memory in use as a share of capacity, over all devices of the clusters.",
        [
            instant(
                "sum(cluster:stepmem_device_memory_used_bytes:sum{<CLUSTER>})"
                " / sum(cluster:stepmem_device_memory_total_bytes:sum{<CLUSTER>})"
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
        "Exporters of the clusters that answer.",
        [instant("sum(cluster:stepmem_exporters:count{<CLUSTER>})")],
        "none",
    ),
]

CREEPING = [
    Table(
        "Creeping ranks, soonest out of memory first",
        (15, 6),
        "The fifty ranks that are out of memory first. Click a run to open it. "
        "Unmanaged processes are on the Exporter dashboard.",
        columns=[
            Column("Out of memory in", "bottomk(50, <OOM_IN>)", "s", ETA_CELLS),
            Column(
                "Grown",
                "max by (<BY_RUN>, rank, pod)"
                " (rank:stepmem_creep_growth_bytes:max{<PLACE>} and <SOONEST>)",
                "bytes",
            ),
            Column(
                "Severity",
                "max by (<BY_RUN>, rank, pod)"
                " (rank:stepmem_diagnosis_severity:max{<PLACE>} and <SOONEST>)",
                cells=SEVERITY_CELLS,
            ),
        ],
        sort="-Out of memory in",
        link=TO_RUN,
        no_value="nothing creeps",
    ),
    TimeSeries(
        "Diagnoses",
        (9, 6),
        "Number of ranks, unmanaged processes and devices of the clusters with each diagnosis.",
        [
            query(
                titled("sum by (kind) (cluster:stepmem_diagnoses:count{<CLUSTER>})"), "{{kind}}"
            )
        ],
        "none",
        overrides=BY_KIND,
        min=0,
        stack=True,
        fill=30,
        no_value="nothing diagnosed",
    ),
]

RUNS = [
    Table(
        "Runs, the worst first",
        (15, 6),
        "The fifty worst runs with the figures of their worst rank. Click a run to open it.",
        columns=[
            Column("Ranks", "max by (<BY_RUN>) (run:stepmem_ranks:count{<PLACE>}) and <WORST_RUNS>"),
            Column("Severity", "max by (<BY_RUN>) (topk(50, <SEVERITY>))", cells=SEVERITY_CELLS),
            Column(
                "Live pressure", "<RUN_PRESSURE> and <WORST_RUNS>", "percentunit", PRESSURE_CELLS
            ),
            Column(
                "Imbalance",
                "max by (<BY_RUN>) (run:stepmem_imbalance:ratio{<PLACE>}) and <WORST_RUNS>",
                "percentunit",
            ),
            Column(
                "Out of memory in",
                "min by (<BY_RUN>) (run:stepmem_oom_eta_seconds:min{<PLACE>}"
                " or run:stepmem_oom_eta_lower_seconds:min{<PLACE>}) and <WORST_RUNS>",
                "s",
                ETA_CELLS,
            ),
            Column(
                "Last push",
                "min by (<BY_RUN>) (run:stepmem_push_age_seconds:min{<PLACE>}) and <WORST_RUNS>",
                "s",
            ),
        ],
        sort="Severity",
        link=TO_RUN,
    ),
    Histogram(
        "Live pressure over all runs",
        (9, 6),
        "Number of runs by the recent peak of live memory of their fullest rank, as a share of "
        "capacity.",
        [instant("<RUN_PRESSURE>", "{{run}}")],
        "percentunit",
        bucket=0.05,
    ),
]

OVER_TIME = [
    TimeSeries(
        "Memory of all devices",
        (8, 7),
        "Memory in use and capacity, summed over all devices of the clusters.",
        [
            query("sum(cluster:stepmem_device_memory_used_bytes:sum{<CLUSTER>})", "used"),
            query("sum(cluster:stepmem_device_memory_total_bytes:sum{<CLUSTER>})", "capacity"),
        ],
        "bytes",
        overrides=[CAPACITY],
        min=0,
    ),
    BarGauge(
        "Silent runs",
        (8, 7),
        "Time since the last push of each of ten runs, the longest first.",
        [instant("topk(10, run:stepmem_push_age_seconds:min{<PLACE>})", "{{run}}")],
        "s",
        thresholds=SILENT_SECONDS,
        min=0,
        max=600,
    ),
    TimeSeries(
        "Live pressure of the fullest rank, by run",
        (8, 7),
        "Recent peak of live memory as a share of capacity, for the ten fullest runs.",
        [query("topk(10, <RUN_PRESSURE>)", "{{run}}")],
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
    [RECORDED_CLUSTER, RECORDED_NAMESPACE],
    [*FIGURES, *CREEPING, *RUNS, *OVER_TIME],
)

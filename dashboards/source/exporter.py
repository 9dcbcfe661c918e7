"""The dashboard of the exporters' own health."""

from .dashboard import CLUSTER, NAMESPACE, PODS, Dashboard, diagnoses_since
from .kinds import titled, worst_kind
from .panels import Column, Row, Stat, StateTimeline, Table, TimeSeries, instant, query
from .style import (
    ETA_CELLS,
    EXPORTER_MEMORY,
    NVML_UP,
    PRESSURE_CELLS,
    REFUSED_RATIO,
    SEVERITY,
    WORST_KIND_CELLS,
)

FIGURES = [
    Stat(
        "Exporters",
        (4, 4),
        "Exporters that answer.",
        [instant("sum(stepmem_up{<EXPORTER>})")],
        "none",
    ),
    Stat(
        "With NVML",
        (4, 4),
        "Exporters whose NVML answers.",
        [instant("sum(stepmem_nvml_up{<EXPORTER>})")],
        "none",
    ),
    Stat(
        "Series",
        (4, 4),
        "Series of all exporters together.",
        [instant("sum(stepmem_series{<EXPORTER>})")],
        "none",
    ),
    Stat(
        "Pushes per second",
        (4, 4),
        "Push requests with any result.",
        [instant("sum(rate(stepmem_pushes_total{<EXPORTER>}[$__rate_interval]))")],
        "reqps",
    ),
    Stat(
        "Refused",
        (4, 4),
        "Share of push requests that were not accepted.",
        [
            instant(
                'sum(rate(stepmem_pushes_total{<EXPORTER>,result!="accepted"}[$__rate_interval]))'
                " / sum(rate(stepmem_pushes_total{<EXPORTER>}[$__rate_interval]))"
            )
        ],
        "percentunit",
        thresholds=REFUSED_RATIO,
    ),
    Stat(
        "Largest memory",
        (4, 4),
        "Resident memory of the largest exporter.",
        [
            instant(
                "max(process_resident_memory_bytes{<EXPORTER>}"
                " and on (job, instance) stepmem_up)"
            )
        ],
        "bytes",
        thresholds=EXPORTER_MEMORY,
    ),
]


def push_duration(quantile):
    return query(
        f"histogram_quantile({quantile}, sum by (le)"
        " (rate(stepmem_push_duration_seconds_bucket{<EXPORTER>}[$__rate_interval])))",
        f"p{quantile * 100:.0f}",
    )


PUSHES = [
    Row("Pushes"),
    TimeSeries(
        "Push requests",
        (12, 8),
        "Push requests per second, by result.",
        [
            query(
                "sum by (result) (rate(stepmem_pushes_total{<EXPORTER>}[$__rate_interval])) > 0",
                "{{result}}",
            )
        ],
        "reqps",
        min=0,
        stack=True,
        fill=30,
    ),
    TimeSeries(
        "Duration of a push",
        (12, 8),
        "Time from the end of the request's head to the answer.",
        [push_duration(0.5), push_duration(0.9), push_duration(0.99)],
        "s",
        fill=0,
        min=0,
    ),
    TimeSeries(
        "Records",
        (12, 8),
        "Records of accepted pushes, by result; restarted and inconsistent records count as "
        "accepted, too.",
        [
            query(
                "sum by (result) (rate(stepmem_push_records_total{<EXPORTER>}[$__rate_interval]))",
                "{{result}}",
            )
        ],
        "cps",
        min=0,
        fill=0,
    ),
    TimeSeries(
        "Waiting, shed and dropped",
        (12, 8),
        "Waiting batches, connections closed for newer ones, and items dropped to stay within a limit.",
        [
            query("sum(stepmem_inbox_depth{<EXPORTER>})", "waiting batches"),
            query(
                "sum by (listener)"
                " (increase(stepmem_connections_shed_total{<EXPORTER>}[$__rate_interval]))",
                "connections shed: {{listener}}",
            ),
            query(
                "sum by (reason)"
                " (increase(stepmem_series_dropped_total{<EXPORTER>}[$__rate_interval]))",
                "dropped: {{reason}}",
            ),
        ],
        min=0,
        fill=0,
    ),
]

NVML = [
    Row("NVML"),
    StateTimeline(
        "NVML answers",
        (12, 7),
        "1 while NVML answers; 0 while it is missing or fails, which is normal on a node without "
        "GPUs; absent with --no-nvml.",
        [query("max by (instance) (stepmem_nvml_up{<EXPORTER>})", "{{instance}}")],
        mappings=NVML_UP,
        no_value="NVML is off",
    ),
    TimeSeries(
        "NVML errors",
        (12, 7),
        "Failed NVML calls per second, by error code.",
        [
            query(
                "sum by (code) (rate(stepmem_nvml_errors_total{<EXPORTER>}[$__rate_interval]))",
                "{{code}}",
            )
        ],
        "cps",
        min=0,
        no_value="none",
    ),
    TimeSeries(
        "Collector duration",
        (8, 7),
        "Duration of each collector's last round.",
        [
            query(
                "max by (collector) (stepmem_collector_duration_seconds{<EXPORTER>})",
                "{{collector}}",
            )
        ],
        "s",
        min=0,
        fill=0,
    ),
    TimeSeries(
        "Since NVML last answered",
        (8, 7),
        "Time since NVML last answered, the longest of all exporters.",
        [
            query(
                "max(time() - stepmem_nvml_last_success_timestamp_seconds{<EXPORTER>})",
                "longest",
            )
        ],
        "s",
        min=0,
        fill=0,
    ),
    TimeSeries(
        "Xid errors",
        (8, 7),
        "Xid errors that the driver reported, by number and device.",
        [
            query(
                "sum by (xid, uuid) (stepmem_device_xid_errors_total{<EXPORTER>})",
                "Xid {{xid}} · {{uuid}}",
            )
        ],
        min=0,
        fill=0,
        no_value="none",
    ),
    Table(
        "Process attribution",
        (12, 7),
        "Whether the exporter can match NVML's process list to ranks and pods, by device and "
        "state.",
        columns=[
            Column(
                "holds",
                "max by (instance, pod, uuid, attribution) (stepmem_device_info{<EXPORTER>})",
                is_hidden=True,
            )
        ],
    ),
    TimeSeries(
        "Failed collectors",
        (12, 7),
        "1 when a collector's last round failed.",
        [
            query(
                "1 - min by (collector, instance) (stepmem_collector_success{<EXPORTER>})",
                "{{collector}} · {{instance}}",
            )
        ],
        "none",
        min=0,
        max=1,
        fill=0,
    ),
]

WITHOUT_PUSHES = [
    Row("Unmanaged processes and devices"),
    Table(
        "Unmanaged processes",
        (24, 6),
        "Processes judged by NVML's figures alone, because nobody pushes for them. "
        "Their memory includes the allocator's cache.",
        columns=[
            Column(
                "Pressure",
                "max by (<BY_PROCESS>) (stepmem_process_pressure_ratio{<EXPORTER>})",
                "percentunit",
                PRESSURE_CELLS,
            ),
            Column(
                "Headroom",
                "min by (<BY_PROCESS>) (stepmem_process_headroom_bytes{<EXPORTER>})",
                "bytes",
            ),
            Column(
                "Growth / h",
                "3600 * max by (<BY_PROCESS>)"
                " (stepmem_process_creep_slope_bytes_per_second{<EXPORTER>})",
                "bytes",
            ),
            Column(
                "Out of memory in",
                "min by (<BY_PROCESS>) (stepmem_process_oom_eta_seconds{<EXPORTER>} or stepmem_process_oom_eta_lower_seconds{<EXPORTER>})",
                "s",
                ETA_CELLS,
            ),
            Column(
                "Diagnosis",
                worst_kind("<BY_PROCESS>", '<EXPORTER>,pid!=""'),
                cells=WORST_KIND_CELLS,
            ),
        ],
        sort="Pressure",
        no_value="no unmanaged process",
    ),
    StateTimeline(
        "Diagnoses of processes and devices",
        (24, 6),
        "Diagnoses over time, with their severity, of unmanaged processes (by device and "
        "process id) and of devices. Those of ranks are on the Run dashboard.",
        [
            query(
                titled(
                    "max by (uuid, pid, kind)"
                    ' (stepmem_diagnosis_severity{<EXPORTER>,run="",uuid!=""})'
                ),
                "{{uuid}} {{pid}} · {{kind}}",
            )
        ],
        mappings=SEVERITY,
        no_value="nothing diagnosed",
    ),
]

ITSELF = [
    Row("Exporter process"),
    TimeSeries(
        "Memory",
        (8, 8),
        "Resident memory of each exporter.",
        [
            query(
                "process_resident_memory_bytes{<EXPORTER>} and on (job, instance) stepmem_up",
                "{{instance}}",
            )
        ],
        "bytes",
        min=0,
        fill=0,
    ),
    TimeSeries(
        "Processor",
        (8, 8),
        "Processor time of each exporter as a share of one core.",
        [
            query(
                "rate(process_cpu_seconds_total{<EXPORTER>}[$__rate_interval])"
                " and on (job, instance) stepmem_up",
                "{{instance}}",
            )
        ],
        "percentunit",
        min=0,
        fill=0,
    ),
    TimeSeries(
        "Open files",
        (8, 8),
        "Open file descriptors of each exporter.",
        [
            query(
                "process_open_fds{<EXPORTER>} and on (job, instance) stepmem_up",
                "{{instance}}",
            )
        ],
        "none",
        min=0,
        fill=0,
    ),
    TimeSeries(
        "Series",
        (8, 8),
        "Number of series of each exporter.",
        [query("stepmem_series{<EXPORTER>}", "{{instance}}")],
        "none",
        min=0,
        fill=0,
    ),
    TimeSeries(
        "OTLP exports",
        (8, 8),
        "OTLP exports per second, by result; empty where OTLP is not configured.",
        [
            query(
                "sum by (result) (rate(stepmem_otlp_exports_total{<EXPORTER>}[$__rate_interval]))",
                "{{result}}",
            )
        ],
        "cps",
        min=0,
        fill=0,
        no_value="none configured",
    ),
    Table(
        "Versions",
        (8, 8),
        "Number of exporters by version.",
        columns=[Column("Exporters", "count by (version) (stepmem_build_info{<EXPORTER>})")],
    ),
]

DASHBOARD = Dashboard(
    "stepmem-exporter",
    "stepmem / Exporter",
    "The exporters' own health: pushes, NVML, limits, memory and processor; and unmanaged processes, "
    "which nobody pushes for.",
    [CLUSTER, NAMESPACE, PODS],
    [*FIGURES, *WITHOUT_PUSHES, *PUSHES, *NVML, *ITSELF],
    [diagnoses_since('<EXPORTER>,run="",uuid!=""', "device {{uuid}}, process {{pid}}")],
)

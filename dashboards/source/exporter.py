"""The dashboard of the exporters' own health."""

from .dashboard import CLUSTER, NAMESPACE, PODS, Dashboard
from .panels import Column, Row, Stat, StateTimeline, Table, TimeSeries, instant, query
from .style import EXPORTER_MEMORY, NVML_UP, REFUSED_RATIO

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
        "Exporters that NVML answers.",
        [instant("sum(stepmem_nvml_up{<EXPORTER>})")],
        "none",
    ),
    Stat(
        "Series",
        (4, 4),
        "Series that the exporters give, added up.",
        [instant("sum(stepmem_series{<EXPORTER>})")],
        "none",
    ),
    Stat(
        "Pushes per second",
        (4, 4),
        "Push requests, whatever became of them.",
        [instant("sum(rate(stepmem_pushes_total{<EXPORTER>}[$__rate_interval]))")],
        "reqps",
    ),
    Stat(
        "Refused",
        (4, 4),
        "Share of the push requests that were not accepted.",
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
        "By what became of them.",
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
        "From the end of the head to the answer.",
        [push_duration(0.5), push_duration(0.9), push_duration(0.99)],
        "s",
        fill=0,
        min=0,
    ),
    TimeSeries(
        "Records",
        (12, 8),
        "Of accepted pushes: restarted and inconsistent ones are among the accepted.",
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
        "Batches that wait; connections that gave way; what was left out to keep a bound.",
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
        "1 while NVML answers, 0 when there is none or it fails (a normal state); absent when "
        "nobody asks it.",
        [query("max by (instance) (stepmem_nvml_up{<EXPORTER>})", "{{instance}}")],
        mappings=NVML_UP,
        no_value="nobody asks NVML",
    ),
    TimeSeries(
        "Failures of NVML",
        (12, 7),
        "How often NVML refused, by the code it gave.",
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
        "Duration of a round",
        (8, 7),
        "How long a collector's last round took.",
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
        "The longest of all exporters.",
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
        "That the driver reported, by number and device.",
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
        "What process lists can mean",
        (12, 7),
        "By device and state: whether NVML's process list can be attributed from where the "
        "exporter runs.",
        columns=[
            Column(
                "holds",
                "max by (instance, pod, uuid, state)"
                " (stepmem_process_attribution{<EXPORTER>} == 1)",
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

ITSELF = [
    Row("Itself"),
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
        "Processor time of each exporter, as a share of a core.",
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
        "File descriptors of each exporter.",
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
        "How many series each exporter gives.",
        [query("stepmem_series{<EXPORTER>}", "{{instance}}")],
        "none",
        min=0,
        fill=0,
    ),
    TimeSeries(
        "OTLP exports",
        (8, 8),
        "By result; empty where none is configured.",
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
        "How many exporters run which version.",
        columns=[Column("Exporters", "count by (version) (stepmem_build_info{<EXPORTER>})")],
    ),
]

DASHBOARD = Dashboard(
    "stepmem-exporter",
    "stepmem / Exporter",
    "The exporters' own health: pushes, NVML, bounds, memory and processor.",
    [CLUSTER, NAMESPACE, PODS],
    [*FIGURES, *PUSHES, *NVML, *ITSELF],
)

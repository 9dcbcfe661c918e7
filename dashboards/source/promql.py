"""The parts of PromQL that queries share, each under a name.

A query of the tables is plain PromQL in which `<NAME>` stands for one of these parts.
"""

import re

PARTS = {
    # What the variables select. A rank is found by its run, whatever its pod is called.
    "CLUSTER": 'cluster=~"$cluster"',
    "PLACE": '<CLUSTER>,namespace=~"$namespace"',
    "RUN": '<PLACE>,run="$run"',
    "RANKS": '<RUN>,rank=~"$rank"',
    "WORST": '<RUN>,rank=~"$worst"',
    "RANK": '<RUN>,rank="$rank"',
    "EXPORTER": '<PLACE>,pod=~"$pod"',
    # Findings about devices, as severities; the label rank is "on UUID".
    "OF_DEVICES": (
        'label_replace(stepmem_diagnosis_severity{<PLACE>,run="",pid="",uuid!=""},'
        ' "rank", "on $1", "uuid", "(.+)")'
    ),
    # Findings about ranks, and about their devices.
    "RANKS_FINDINGS": (
        "(stepmem_diagnosis_severity{<RANKS>}"
        " or <OF_DEVICES> and on (uuid) stepmem_rank_step{<RANKS>})"
    ),
    "RANK_FINDINGS": (
        "(stepmem_diagnosis_severity{<RANK>}"
        " or <OF_DEVICES> and on (uuid) stepmem_rank_step{<RANK>})"
    ),
    # What a run is grouped by where there are many, and an unmanaged process.
    "BY_RUN": "cluster, namespace, run",
    "BY_PROCESS": "node, pod, uuid, pid",
    # Recent peak of each rank of the run, over all its pods.
    "PEAKS": "max by (rank) (stepmem_rank_interval_peak_allocated_bytes{<RUN>})",
    # Of the worst ranks the steepest has its interval drawn.
    "SLOPE": 'stepmem_creep_slope_bytes_per_step{<WORST>,signal="allocated"}',
    "STEEPEST": "on (rank, signal) topk(1, <SLOPE>)",
    # Ranks, the worst first: by severity, then by pressure.
    "BY_SEVERITY": (
        "10 * max by (rank) (stepmem_diagnosis_severity{<RANKS>})"
        ' or max by (rank) (stepmem_pressure_ratio{<RANKS>,basis=~"allocated|high_water"})'
        " or 0 * max by (rank) (stepmem_rank_info{<RANKS>})"
    ),
    # The device of the one rank.
    "RANK_UUID": "group by (uuid) (stepmem_rank_step{<RANK>})",
    "WORST_RANKS": "on (rank) topk(50, <BY_SEVERITY>)",
    # Recorded, of a fleet: the ranks that are out of memory first, and the worst runs.
    "OOM_IN": (
        "min by (<BY_RUN>, rank, pod) (rank:stepmem_oom_eta_seconds:min{<PLACE>}"
        " or rank:stepmem_oom_eta_lower_seconds:min{<PLACE>})"
    ),
    "SOONEST": "on (<BY_RUN>, rank, pod) bottomk(50, <OOM_IN>)",
    "SEVERITY": (
        "run:stepmem_diagnosis_severity:max{<PLACE>} or 0 * run:stepmem_ranks:count{<PLACE>}"
    ),
    "WORST_RUNS": "on (<BY_RUN>) topk(50, <SEVERITY>)",
    "RUN_PRESSURE": (
        "max by (<BY_RUN>)"
        ' (run:stepmem_pressure_ratio:max{<PLACE>,basis=~"allocated|high_water"})'
    ),
}


def promql(text):
    """The query with its named parts filled in."""
    return re.sub(r"<([A-Z_]+)>", lambda found: promql(PARTS[found[1]]), text)

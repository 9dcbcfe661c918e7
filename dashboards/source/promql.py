"""The parts of PromQL that queries share, each under a name.

A query of the tables is plain PromQL in which `<NAME>` stands for one of these parts.
"""

import re

PARTS = {
    # What the variables select. A rank is found by its run, whatever its pod is called.
    "PLACE": 'cluster=~"$cluster",namespace=~"$namespace"',
    "RUN": '<PLACE>,run="$run"',
    "RANKS": '<RUN>,rank=~"$rank"',
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
    # Of many ranks the steepest has its interval drawn.
    "SLOPE": 'stepmem_creep_slope_bytes_per_step{<RANKS>,signal="allocated"}',
    "STEEPEST": "on (rank, signal) topk(1, <SLOPE>)",
    # The device of the one rank.
    "RANK_UUID": "group by (uuid) (stepmem_rank_step{<RANK>})",
    # Ranks that have a time to out-of-memory.
    "RUNNING_OUT": "on (<BY_RUN>, rank, pod) stepmem_oom_eta_lower_seconds{<PLACE>}",
}


def promql(text):
    """The query with its named parts filled in."""
    return re.sub(r"<([A-Z_]+)>", lambda found: promql(PARTS[found[1]]), text)

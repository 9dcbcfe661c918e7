"""The names of runs: all pods of a Job are one run, and a Job that is created again is another."""

import re

from child import Failure
from cluster import answer, awaits
from scenarios.inject import awaits_policy
from scenarios.monitoring import discovering, prometheus, query

STEP = re.compile(r'^stepmem_rank_step\{run="([^"]+)",rank="(\d+)"', re.MULTILINE)
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
N_PODS = 2


def of_a_job(cluster):
    """Two pods of an indexed Job, injected, are one run by their own metrics and by the rules; a rerun is another run."""
    namespace = cluster.namespace("names")
    config = discovering(cluster)
    with cluster.release(namespace, cluster.values(mode="inject")), prometheus(cluster.folder / "names", config) as port:
        awaits_policy(cluster, namespace)
        first, again = (run_of(cluster, namespace, port) for _ in range(2))
        if first == again or not first.startswith("llm-"):
            raise Failure(f"the Job llm is run {first}, and its rerun is run {again}")
    return f"{N_PODS} pods are {re.sub('-.*', '-…', first)}, and those of the rerun another run"


def run_of(cluster, namespace, port):
    """The one run of a new Job's pods, which the rules count as its ranks; the Job is deleted afterwards."""
    template = cluster.pod("any", script="ranks", env=[
        {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}}, {"name": "WORLD_SIZE", "value": str(N_PODS)}, {"name": "LOCAL_WORLD_SIZE", "value": "1"},
        {"name": "MASTER_ADDR", "value": "llm-0.llm"}, {"name": "MASTER_PORT", "value": "29500"},
    ])
    template = {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]}
    job = {"backoffLimit": 0, "completions": N_PODS, "parallelism": N_PODS, "completionMode": "Indexed", "template": template}
    cluster.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "llm"}, "spec": job}, namespace=namespace)
    pods = awaits(lambda: pods_of_the_job(cluster, namespace), 30, lambda: "the Job has no pods")
    ranks = dict(sorted(rank_of(cluster, namespace, pod) for pod in pods))
    if list(ranks) != [str(rank) for rank in range(N_PODS)] or len(set(ranks.values())) != 1:
        raise Failure(f"the pods of one Job are the ranks {ranks}")
    counted = f'run:stepmem_ranks:count{{namespace="{namespace}",run="{ranks["0"]}"}}'
    awaits(lambda: [each["value"][1] for each in query(port, counted)] == [str(N_PODS)], 60, lambda: f"the rules count {query(port, 'run:stepmem_ranks:count')}, not {N_PODS} ranks of {ranks['0']}")
    cluster.kubectl("delete", "job", "llm", "-n", namespace, "--cascade=foreground", "--timeout=60s")
    return ranks["0"]


def pods_of_the_job(cluster, namespace):
    pods = [pod["metadata"]["name"] for pod in cluster.get("pods", "-n", namespace, "-l", "batch.kubernetes.io/job-name=llm")["items"]]
    return pods if len(pods) == N_PODS else None


def rank_of(cluster, namespace, pod):
    """The rank that the pod pushes, and its run."""
    cluster.awaits_phase(namespace, pod, "Running")
    with cluster.exporter(namespace, pod) as url:
        found = awaits(lambda: STEP.findall(answer(f"{url}/metrics") or ""), 60, lambda: f"pod {pod} pushes nothing: {cluster.kubectl('logs', pod, '-c', 'trainer', '-n', namespace)}")
    if len(found) != 1:
        raise Failure(f"pod {pod} pushes {found}")
    run, rank = found[0]
    return rank, run

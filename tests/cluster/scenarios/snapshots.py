"""The chart's volume of memory snapshots: a rank that grows writes below it, and its sidecar names the line that leaks."""

import re

from child import Failure
from cluster import answer, awaits, job
from scenarios.inject import awaits_policy

TRAINER = 1000
"""The user of the training container: not that of the sidecar."""
SITE_SECONDS_MAX = 120
SITE = re.compile(r'^stepmem_creep_site_info\{[^}]*file="([^"]*)",line="(\d+)",function="([^"]*)"', re.MULTILINE)
SCRIPT = "/train/evaluate.py"
FILES = "import os; print(*os.listdir(os.environ['STEPMEM_SNAPSHOT_DIRECTORY']))"


def name_the_line(cluster):
    """An injected rank is asked, writes as a user of its own, and the line is in /metrics; the sidecar cannot write there."""
    namespace = cluster.namespace("snapshots")
    with cluster.release(namespace, cluster.values(mode="inject", snapshots={"enabled": True})):
        awaits_policy(cluster, namespace)
        cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "train"}, "data": {"evaluate.py": job("evaluate")}}, namespace=namespace)
        volume = {"volumes": [{"name": "train", "configMap": {"name": "train"}}]}
        cluster.apply(cluster.pod(
            "leak", spec=volume, args=[SCRIPT], securityContext={"runAsUser": TRAINER, "runAsNonRoot": True}, volumeMounts=[{"name": "train", "mountPath": "/train"}],
            env=[{"name": "PYTHONPATH", "value": "/opt/client:/opt/stub"}],
        ), namespace=namespace)
        pod = cluster.awaits_phase(namespace, "leak", "Running")
        mounts = {mount["name"]: mount for mount in cluster.sidecar(pod)["volumeMounts"]}
        if not mounts["stepmem-snapshots"].get("readOnly"):
            raise Failure(f"the sidecar can write where training does: {mounts}")
        with cluster.exporter(namespace, "leak") as url:
            [found] = awaits(lambda: SITE.findall(answer(f"{url}/metrics") or ""), SITE_SECONDS_MAX, lambda: f"no line: {snapshots(url)}; {cluster.kubectl('logs', 'leak', '-c', 'trainer', '-n', namespace)}")
            analyzed = re.search(r'^stepmem_snapshot_analyses_total\{outcome="analysed"\} (\S+)$', answer(f"{url}/metrics"), re.MULTILINE)
        line = next(number for number, text in enumerate(job("evaluate").splitlines(), 1) if "the line that leaks" in text)
        if found != (SCRIPT, str(line), "evaluate"):
            raise Failure(f"the line is {found}, not {SCRIPT}:{line}")
        written = cluster.kubectl("exec", "leak", "-c", "trainer", "-n", namespace, "--", "/usr/bin/python3.11", "-c", FILES).split()
        if float(analyzed[1]) < 1 or not written:
            raise Failure(f"{analyzed[0]}, files {written}")
    return f"{SCRIPT}:{line} in evaluate, written by user {TRAINER}, read by the sidecar's"


def snapshots(url):
    return re.findall(r'^stepmem_snapshot.*[1-9]\d*$|"snapshots":\[.*?\]', (answer(f"{url}/metrics") or "") + (answer(f"{url}/api/v1/status") or ""), re.MULTILINE)

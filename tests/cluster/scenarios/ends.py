"""Pods that die: their end is scraped, although they are gone before a usual scrape would come."""

import yaml

from child import Failure
from cluster import ROOT, awaits, job
from scenarios.monitoring import prometheus, query
from scenarios.otlp import sidecar_pod

PODS = 3
"""Prometheus scrapes each pod at an offset of its own within the interval."""
GRACE_SECONDS = 30
"""What Kubernetes gives a pod by default."""


def is_scraped(cluster):
    """Each pod dies within seconds of its start; its end is in Prometheus, which scrapes every 15 s, and its sidecar ends by itself."""
    namespace = cluster.namespace("death")
    config = yaml.safe_load((ROOT / "alerts/prometheus.example.yaml").read_text())
    config["global"] = {"scrape_interval": "15s", "scrape_timeout": "10s"}
    config.pop("rule_files", None)
    config["scrape_configs"][0]["kubernetes_sd_configs"][0]["kubeconfig_file"] = str(cluster.kubeconfig)
    names = [f"oom-{number}" for number in range(PODS)]
    with prometheus(cluster.folder / "death", config) as port:
        pods = [sidecar_pod(cluster, name, {}) for name in names]
        for pod in pods:
            pod["spec"]["containers"][0]["args"] = ["-c", job("oom")]
            pod["spec"]["terminationGracePeriodSeconds"] = GRACE_SECONDS
        cluster.apply(*pods, namespace=namespace)
        ended = {name: sidecars(cluster.awaits_phase(namespace, name, "Failed", 120)) for name in names}
        deaths = f'last_over_time(stepmem_diagnosis_severity{{namespace="{namespace}",kind="OUT_OF_MEMORY"}}[10m])'
        scraped = awaits(lambda: query(port, deaths), 20, lambda: f"no death was scraped: {ended}")
    missing = set(names) - {each["metric"]["pod"] for each in scraped}
    if missing:
        raise Failure(f"the deaths of {sorted(missing)} were not scraped: {ended}")
    for name, terminated in ended.items():
        if terminated["exitCode"] or "OUT OF MEMORY" not in terminated.get("message", ""):
            raise Failure(f"the sidecar of {name} ended with {terminated}")
    return f"{PODS} of {PODS} deaths in Prometheus, by a scrape every 15 s"


def sidecars(pod):
    [sidecar] = [each for each in pod["status"]["initContainerStatuses"] if each["name"] == "stepmem"]
    return sidecar["state"]["terminated"]

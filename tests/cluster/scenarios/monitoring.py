"""Metrics and pages: Prometheus 3 by discovery alone and by the operator's configuration, the rules, Alertmanager."""

import contextlib
import gzip
import base64
import json
import pathlib
import re
import urllib.parse

import live
import programs
import yaml
from child import Child, Failure, free_ports, start_listening
from cluster import ROOT, answer, awaits
from scenarios.inject import awaits_policy

PAGE_SECONDS_MAX = 120
GROUP = "monitoring.coreos.com"


@contextlib.contextmanager
def prometheus(folder, config, address="127.0.0.1", lookback="5m"):
    """A running Prometheus 3, which also listens at the address; its port. `lookback` is how long a series lasts without a mark of its end."""
    folder.mkdir(exist_ok=True)
    (folder / "prometheus.yml").write_text(json.dumps(config))
    child, [port] = start_listening(
        lambda port: [programs.path("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", "--rules.alert.resend-delay=1s",
                      "--web.enable-otlp-receiver", f"--query.lookback-delta={lookback}", *([f"--web.listen-address={address}:{port}"] if address != "127.0.0.1" else [])],
        1, str(folder / "log"), is_ready=lambda port: answer(f"http://127.0.0.1:{port}/-/ready"),
    )
    with child:
        yield port


def query(port, expression):
    text = answer(f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
    return json.loads(text)["data"]["result"] if text else []


def discovering(cluster):
    """The example's configuration of Prometheus, for this cluster and with the rules."""
    config = yaml.safe_load((ROOT / "alerts/prometheus.example.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ROOT / "alerts/stepmem.rules.yaml")]
    config["scrape_configs"][0]["kubernetes_sd_configs"][0]["kubeconfig_file"] = str(cluster.kubeconfig)
    return config


def by_discovery(cluster):
    """The example's job finds a sidecar without the operator, with the labels that the rules group by."""
    namespace = cluster.namespace("discovery")
    config = discovering(cluster)
    config["scrape_configs"].append(by_annotations(cluster))
    train = cluster.pod("train", script="leak")
    train["metadata"]["annotations"] = documented_annotations()
    with cluster.release(namespace, cluster.values(mode="inject")):
        awaits_policy(cluster, namespace)
        cluster.apply(train, namespace=namespace)
        cluster.awaits_phase(namespace, "train", "Running")
        with prometheus(cluster.folder / "discovery", config) as port:
            of_job = lambda job: awaits(lambda: query(port, f'stepmem_rank_step{{job="{job}",namespace="{namespace}"}}'), 60, lambda: f"no series of the sidecar: {answer(f'http://127.0.0.1:{port}/api/v1/targets')}")
            found, annotated = of_job("stepmem"), of_job("annotated")
    if [each["metric"]["pod"] for each in annotated] != ["train"]:
        raise Failure(f"by annotations there are {annotated}")
    wanted = {"job": "stepmem", "namespace": namespace, "pod": "train", "container": "stepmem", "node": "stepmem-node"}
    got = {name: found[0]["metric"].get(name) for name in wanted}
    if got != wanted:
        raise Failure(f"the labels are {got}, not {wanted}")
    return "job, namespace, pod, container and node; and by annotations"


def by_annotations(cluster):
    """The usual job for pods annotated prometheus.io/scrape, port and path."""
    annotation = "__meta_kubernetes_pod_annotation_prometheus_io_"
    return {"job_name": "annotated", "kubernetes_sd_configs": [{"role": "pod", "kubeconfig_file": str(cluster.kubeconfig)}], "relabel_configs": [
        {"source_labels": [f"{annotation}scrape"], "regex": "true", "action": "keep"},
        {"source_labels": [f"{annotation}path"], "regex": "(.+)", "target_label": "__metrics_path__"},
        {"source_labels": ["__address__", f"{annotation}port"], "regex": r"([^:]+)(?::\d+)?;(\d+)", "replacement": "$1:$2", "target_label": "__address__"},
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
    ]}


def documented_annotations():
    """The annotations of docs/kubernetes.md."""
    [block] = re.findall(r"```yaml\n(metadata:\n  annotations: .+?)```", (ROOT / "docs/kubernetes.md").read_text(), re.DOTALL)
    return yaml.safe_load(block)["metadata"]["annotations"]


def crds():
    """The operator's kinds, from its own module."""
    folder = programs.prepare(programs.OPERATOR)
    root = pathlib.Path(programs.go(folder, "list", "-m", "-f", "{{.Dir}}", "github.com/prometheus-operator/prometheus-operator").strip().splitlines()[-1])
    return sorted((root / "example/prometheus-operator-crd").glob("*.yaml"))


def brings_kinds(cluster):
    """Makes the operator's kinds known; they stay."""
    for file in crds():
        cluster.kubectl("apply", "--server-side", "-f", str(file))
    cluster.kubectl("wait", "--for=condition=Established", f"crd/podmonitors.{GROUP}", f"crd/prometheusrules.{GROUP}", f"crd/prometheuses.{GROUP}", "--timeout=60s")


def by_operator(cluster):
    """A leaking Job is paged: the chart's PodMonitor and rules as the operator writes them, Prometheus 3, Alertmanager, a webhook."""
    brings_kinds(cluster)
    namespace = cluster.namespace("paged")
    values = cluster.values(mode="inject", podMonitor={"interval": "1s", "scrapeTimeout": "1s"})
    with cluster.release(namespace, values) as notes:
        if "Left out" in notes:
            raise Failure(f"the operator's kinds are there, and the notes say: {notes}")
        awaits_policy(cluster, namespace)
        template = cluster.pod("leak", script="leak", labels={"stepmem.io/inject": "true"})
        template = {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]}
        cluster.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "leak"}, "spec": {"backoffLimit": 0, "template": template}}, namespace=namespace)
        config, rules = operated(cluster, namespace)
        receiver = live.Receiver()
        page = paged(cluster, namespace, config, rules, receiver)
    labels = page["labels"]
    if labels["namespace"] != namespace or not labels["pod"].startswith("leak-"):
        raise Failure(f"the page is about {labels}")
    return f"{labels['alertname']} of pod {labels['pod'].rsplit('-', 1)[0]}-…, by webhook"


def operated(cluster, namespace):
    """What the real operator generates from the chart's objects: the configuration, and the text of the rules by file."""
    everything = {"podMonitorSelector": {}, "podMonitorNamespaceSelector": {}, "ruleSelector": {}, "ruleNamespaceSelector": {}}
    cluster.apply({"apiVersion": f"{GROUP}/v1", "kind": "Prometheus", "metadata": {"name": "test"}, "spec": {**everything, "evaluationInterval": "1s", "replicas": 0}}, namespace=namespace)
    [api, web] = free_ports(2)
    with contextlib.ExitStack() as stack:
        stack.enter_context(Child([programs.path("kubectl"), *cluster.access, "proxy", f"--port={api}"], str(cluster.folder / "proxy.log")))
        awaits(lambda: answer(f"http://127.0.0.1:{api}/version"), 20, lambda: "kubectl proxy does not answer")
        operator = stack.enter_context(Child([programs.path("operator"), f"--apiserver=http://127.0.0.1:{api}", f"--web.listen-address=127.0.0.1:{web}", f"--namespaces={namespace}"], str(cluster.folder / "operator.log")))

        def generated():
            secret = cluster.kubectl("get", "secret", "prometheus-test", "-n", namespace, "-o", "json", check=False)
            maps = cluster.get("configmaps", "-n", namespace, "-l", "prometheus-name=test")["items"]
            if secret.returncode or not maps:
                return None
            text = gzip.decompress(base64.b64decode(json.loads(secret.stdout)["data"]["prometheus.yaml.gz"]))
            # The operator's reloader puts the replica's own number in.
            config = yaml.safe_load(text.replace(b"$(SHARD)", b"0"))
            return (config, maps[0]["data"]) if config.get("scrape_configs") else None

        return awaits(generated, 60, lambda: f"the operator generates nothing:\n{operator.log_tail()}")


def paged(cluster, namespace, config, rules, receiver):
    """The page of the leak, from Prometheus with this configuration; time is compressed by 60 as in tests/ops/live.py."""
    folder = cluster.folder / "paged"
    folder.mkdir()
    for name, text in rules.items():
        (folder / name).write_text(live.compressed(text))
    for scrape in config["scrape_configs"]:
        for discovery in scrape["kubernetes_sd_configs"]:
            discovery["kubeconfig_file"] = str(cluster.kubeconfig)
    config["rule_files"] = [str(folder / name) for name in rules]
    (folder / "alertmanager.yaml").write_text(json.dumps({
        "route": {"receiver": "pager", "group_by": ["alertname", "pod"], "group_wait": "1s", "group_interval": "1s", "repeat_interval": "1h"},
        "receivers": [{"name": "pager", "webhook_configs": [{"url": f"http://127.0.0.1:{receiver.port}/pager"}]}],
    }))
    alertmanager, [port] = start_listening(
        lambda port: [programs.path("alertmanager"), f"--config.file={folder}/alertmanager.yaml", f"--storage.path={folder}/alerts", f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=", "--log.level=warn"],
        1, str(folder / "alertmanager.log"), is_ready=lambda port: answer(f"http://127.0.0.1:{port}/-/ready"),
    )
    with alertmanager:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]}
        with prometheus(folder / "prometheus", config) as web:

            def page():
                return next((alert for _, alert in receiver.alerts() if alert["labels"]["alertname"] == "StepmemMemoryCreep" and alert["labels"].get("namespace") == namespace), None)

            return awaits(page, PAGE_SECONDS_MAX, lambda: f"no page: {[alert['labels'] for _, alert in receiver.alerts()]}, {query(web, 'ALERTS')}, {answer(f'http://127.0.0.1:{web}/api/v1/targets')}")

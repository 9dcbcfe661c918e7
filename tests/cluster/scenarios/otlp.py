"""OTLP from real pods, over HTTP and gRPC through the real Collector and into Prometheus 3: the names are the scraped ones."""

import contextlib
import json
import re

import policies
import programs
from child import free_ports, start_listening
from cluster import ROOT, answer, awaits
from scenarios import alike
from scenarios.monitoring import prometheus, query

ARRIVES_SECONDS_MAX = 60
EVERY_SECOND = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}, "rule_files": [str(ROOT / "alerts/stepmem.rules.yaml")]}
LASTS = "5s"
"""How long a series of OTLP lasts after its last export. OTLP does not mark an end; a longer time would show what has cleared."""
SAMPLE = re.compile(r"^(stepmem_\w+)[{ ]", re.MULTILINE)


@contextlib.contextmanager
def collector(cluster):
    """A running Collector: its ports for OTLP over HTTP and gRPC, and that of its Prometheus text."""
    gateway, folder = cluster.node.gateway, cluster.folder
    [http, grpc] = free_ports(2)

    def command(port):
        config = {
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"{gateway}:{http}"}, "grpc": {"endpoint": f"{gateway}:{grpc}"}}}},
            "exporters": {"prometheus": {"endpoint": f"127.0.0.1:{port}", "resource_to_telemetry_conversion": {"enabled": True}, "metric_expiration": LASTS}},
            "service": {"telemetry": {"metrics": {"level": "none"}}, "pipelines": {"metrics": {"receivers": ["otlp"], "exporters": ["prometheus"]}}},
        }
        (folder / "collector.yaml").write_text(json.dumps(config))
        return [programs.path("collector"), f"--config={folder}/collector.yaml"]

    child, [port] = start_listening(command, 1, str(folder / "collector.log"))
    with child:
        yield http, grpc, port


def exports(cluster):
    """Three pods export at once; each name that arrives is one of /metrics, none of them is missing, and the dashboards show the same."""
    namespace, gateway = cluster.namespace("otlp"), cluster.node.gateway
    with collector(cluster) as (http, grpc, port), prometheus(cluster.folder / "otlp", receiving(port), gateway, LASTS) as web:
        ways = {
            "http": {"otlp.endpoint": f"http://{gateway}:{http}"},
            "grpc": {"otlp.endpoint": f"http://{gateway}:{grpc}", "otlp.protocol": "grpc"},
            "prometheus": {"otlp.endpoint": f"http://{gateway}:{web}/api/v1/otlp"},
        }
        cluster.apply(*(sidecar_pod(cluster, name, {**way, "otlp.interval": "1s"}) for name, way in ways.items()), namespace=namespace)
        for name in ways:
            cluster.awaits_phase(namespace, name, "Running")
            with cluster.exporter(namespace, name) as url:
                receive = by_prometheus(web, namespace, name) if name == "prometheus" else by_collector(port, namespace, name)
                awaits_alike(lambda: scraped(url), receive, name)
        n_queries = dashboards_agree(cluster, namespace, list(ways), web)
    return f"names, namespace and pod as in the scrape; so are the series of {n_queries} queries of the dashboards"


def receiving(port):
    """Prometheus as docs/otlp.md configures it: it receives OTLP, and scrapes the Collector at the port."""
    scrape = {"job_name": "collector", "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
    return {**EVERY_SECOND, "otlp": {"promote_resource_attributes": ["cluster", "namespace", "pod"]}, "scrape_configs": [scrape]}


def dashboards_agree(cluster, namespace, pods, receiver):
    """How many queries the dashboards have, once each gives the same by OTLP as over a scrape of the same pods."""
    targets = [{"targets": [f"{cluster.status(namespace, pod)['status']['podIP']}:9477"], "labels": {"namespace": namespace, "pod": pod}} for pod in pods]
    config = {**EVERY_SECOND, "scrape_configs": [{"job_name": "stepmem", "static_configs": targets}]}
    with prometheus(cluster.folder / "scraped", config, lookback=LASTS) as scraper:
        [run, *_] = {each["metric"]["run"] for each in awaits(lambda: query(scraper, "stepmem_rank_step"), ARRIVES_SECONDS_MAX, lambda: "no series is scraped")}
        return alike.agree(scraper, receiver, run=run, rank="0")


def scraped(url):
    """The names at /metrics, once the leak is found: there are more then."""
    found = set(SAMPLE.findall(answer(f"{url}/metrics") or ""))
    return found if "stepmem_diagnosis_severity" in found else set()


def by_collector(port, namespace, pod):
    """Asks for the names that the Collector has of the pod."""
    return lambda: {match[1] for match in SAMPLE.finditer(answer(f"http://127.0.0.1:{port}/metrics") or "") if is_of(match, namespace, pod)}


def is_of(sample, namespace, pod):
    line = sample.string[sample.start() :].partition("\n")[0]
    return f'pod="{pod}"' in line and f'namespace="{namespace}"' in line


def by_prometheus(web, namespace, pod):
    """Asks for the names that Prometheus has of the pod."""
    return lambda: {each["metric"]["__name__"] for each in query(web, f'{{__name__=~"stepmem_.+", namespace="{namespace}", pod="{pod}"}}')}


def awaits_alike(scrape, receive, name):
    """Waits until the same names are scraped and received."""
    last = {}

    def look():
        last.update(scraped=scrape(), received=receive())
        return last["scraped"] and last["scraped"] == last["received"]

    awaits(look, ARRIVES_SECONDS_MAX, lambda: f"{name}: missing {sorted(last['scraped'] - last['received'])}, not scraped {sorted(last['received'] - last['scraped'])}")


def sidecar_pod(cluster, name, settings):
    """A pod with a hand-written sidecar of these settings."""
    shared = {"name": "stepmem", "mountPath": "/run/stepmem"}
    volumes = [{"name": volume, "emptyDir": {}} for volume in ("stepmem", "stepmem-state")]
    spec = {"initContainers": [policies.sidecar(cluster.values(settings=settings))], "volumes": volumes}
    return cluster.pod(name, script="leak", spec=spec, labels={"stepmem.io/inject": "false"}, volumeMounts=[shared])

"""OTLP from real pods, over HTTP and gRPC through the real Collector and into Prometheus 3: the names are the scraped ones."""

import contextlib
import json
import re

import policies
import programs
from child import free_ports, start_listening
from cluster import answer, awaits
from scenarios.monitoring import prometheus, query

ARRIVES_SECONDS_MAX = 60
SAMPLE = re.compile(r"^(stepmem_\w+)[{ ]", re.MULTILINE)


@contextlib.contextmanager
def collector(cluster):
    """A running Collector: its ports for OTLP over HTTP and gRPC, and that of its Prometheus text."""
    gateway, folder = cluster.node.gateway, cluster.folder
    [http, grpc] = free_ports(2)

    def command(port):
        config = {
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"{gateway}:{http}"}, "grpc": {"endpoint": f"{gateway}:{grpc}"}}}},
            "exporters": {"prometheus": {"endpoint": f"127.0.0.1:{port}", "resource_to_telemetry_conversion": {"enabled": True}}},
            "service": {"telemetry": {"metrics": {"level": "none"}}, "pipelines": {"metrics": {"receivers": ["otlp"], "exporters": ["prometheus"]}}},
        }
        (folder / "collector.yaml").write_text(json.dumps(config))
        return [programs.path("collector"), f"--config={folder}/collector.yaml"]

    child, [port] = start_listening(command, 1, str(folder / "collector.log"))
    with child:
        yield http, grpc, port


def exports(cluster):
    """Three pods export at once; each name that arrives is one of /metrics, and none of them is missing."""
    namespace, gateway = cluster.namespace("otlp"), cluster.node.gateway
    config = {"otlp": {"promote_resource_attributes": ["cluster", "namespace", "pod"]}}
    with collector(cluster) as (http, grpc, port), prometheus(cluster.folder / "otlp", config, gateway) as web:
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
                n_names = awaits_alike(lambda: scraped(url), receive, name)
    return f"{n_names} names alike, with namespace and pod"


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
    """How many names there are once the same ones are scraped and received."""
    last = {}

    def look():
        last.update(scraped=scrape(), received=receive())
        return last["scraped"] and last["scraped"] == last["received"]

    awaits(look, ARRIVES_SECONDS_MAX, lambda: f"{name}: missing {sorted(last['scraped'] - last['received'])}, not scraped {sorted(last['received'] - last['scraped'])}")
    return len(last["scraped"])


def sidecar_pod(cluster, name, settings):
    """A pod with a hand-written sidecar of these settings."""
    shared = {"name": "stepmem", "mountPath": "/run/stepmem"}
    spec = {"initContainers": [policies.sidecar(cluster.values(settings=settings))], "volumes": [{"name": "stepmem", "emptyDir": {}}]}
    return cluster.pod(name, script="leak", spec=spec, labels={"stepmem.io/inject": "false"}, volumeMounts=[shared])

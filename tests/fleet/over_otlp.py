"""A fleet over OTLP: the pods of run.py, each a process, through the real Collector into the real Prometheus 3, and scraped next to it.

    over_otlp.py PODS_PROGRAM --work-dir DIR [--pods N] [--seconds S]

The pods export to one Collector by the settings of docs/otlp.md. One Prometheus scrapes it, another receives what it forwards; a
third scrapes the pods. All evaluate the rules, whose `for` and `keep_firing_for` are divided by 60. Ends with a message when

- a planted fault is not found in one of them, or any other alert fires;
- a series of the scrape is missing over OTLP or has other labels, or one is there that never was in the scrape;
- a rule or a query of a dashboard fails, or has series for other labels than with the scrape;
- a series is the SDK's overflow, or a pod has no `target_info` by which its other attributes can be joined;
- a receiver does with a sum of deltas what docs/otlp.md does not say.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

import run as fleet
from child import Child, Failure, end_on_sigterm, wait_until

import otlp_stack

SETTLE_SECONDS_MAX = 120
# A machine with other work to do scrapes all pods at once within this time.
SCRAPE_SECONDS = 5
CLUSTER = "lab"
# Their labels change each minute, or they have ended: over OTLP former values stay for five minutes.
CHANGING = re.compile("next-|restarts")
ENDED = re.compile("oom|killed|residue")
# The identity of the exporter, which is another one over OTLP, and the node that a scrape adds.
IDENTITY = {"job", "instance"}
# Attributes of the resource that the Collector's exporter also makes labels.
RESOURCE = {
    "k8s_cluster_name", "k8s_namespace_name", "k8s_pod_name", "service_name", "service_instance_id", "service_version",
    "telemetry_sdk_language", "telemetry_sdk_name", "telemetry_sdk_version",
}
SCOPE = {"otel_scope_name", "otel_scope_version", "otel_scope_schema_url"}
# Recorded figures that do not change while the fleet runs.
CONSTANT = [
    "run:stepmem_ranks:count", "run:stepmem_ranks_expected:max", "run:stepmem_creeping_ranks:count", "run:stepmem_silent_ranks:count",
    "run:stepmem_diagnosis_severity:max", "rank:stepmem_diagnosis_severity:max", "cluster:stepmem_exporters:count", "cluster:stepmem_devices:count",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pods_program", type=pathlib.Path)
    parser.add_argument("--pods", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=45, help="how long the pods export before the engines are compared")
    parser.add_argument("--work-dir", type=pathlib.Path, required=True)
    args = parser.parse_args()
    end_on_sigterm()
    try:
        with contextlib.ExitStack() as children:
            check(args, children)
    except Failure as failure:
        sys.exit(f"error: {failure}")


def check(args, children):
    args.work_dir = args.work_dir.resolve()
    args.work_dir.mkdir(parents=True)
    folder = str(args.work_dir)
    bundle = fleet.Bundle("now", lambda path: (fleet.ROOT / path).read_text())
    rules = args.work_dir / "rules.yaml"
    rules.write_text(json.dumps({"groups": list(bundle.live_groups())}))
    forwarded = otlp_stack.prometheus(folder, children, otlp_stack.documented("otlp:"), rules, SCRAPE_SECONDS)
    (_, http), scraped = otlp_stack.collector(folder, children, otlp_stack.receiver_of(forwarded))
    collected = otlp_stack.prometheus(folder, children, otlp_stack.scrape_of(scraped), rules, SCRAPE_SECONDS)
    pods = start_pods(args, children, f"http://127.0.0.1:{http}")
    plain = otlp_stack.prometheus(folder, children, scrape_config(pods), rules, SCRAPE_SECONDS)
    scrape, engines = fleet.Api(plain), {"scraped Collector": fleet.Api(collected), "forwarded": fleet.Api(forwarded)}
    fleet.say(f"{len(pods)} pods export for {args.seconds:g} s")
    time.sleep(args.seconds)
    fleet.awaited_alerts(scrape)
    for name, engine in engines.items():
        fleet.say(f"comparing: {name}")
        fleet.awaited_alerts(engine)
        engine.check_rules()
        series_are_those_scraped(name, engine, scrape)
        rules_record_the_same(name, engine, scrape, bundle)
        dashboards_show_the_same(name, engine, scrape, bundle)
        attributes_can_be_joined(name, engine, len(pods))
    deltas_are_treated_as_documented(forwarded, http, scraped)


def start_pods(args, children, url):
    """A process for each pod of the plan, by the pod's name: its port."""
    with fleet.Pods(args.pods_program, args.pods, args.work_dir) as planned:
        names = [pod["name"] for pod in planned.pods]
    started = {}
    for name in names:
        attributes = f"k8s.cluster.name={CLUSTER},k8s.namespace.name={fleet.NAMESPACE},k8s.pod.name={name}"
        child = Child(
            [args.pods_program, args.pods, name, url], args.work_dir / f"{name}.log", stdout=subprocess.PIPE,
            env={**os.environ, "OTEL_RESOURCE_ATTRIBUTES": attributes},
        )
        started[name] = children.enter_context(child)
    return {name: json.loads(child.process.stdout.readline() or fail(child))["port"] for name, child in started.items()}


def fail(child):
    raise Failure(f"{child.name} ended:\n{child.log_tail()}")


def scrape_config(pods):
    targets = [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {"__metrics_path__": f"/{name}/metrics", "cluster": CLUSTER, "namespace": fleet.NAMESPACE, "pod": name},
        }
        for name, port in pods.items()
    ]
    return "scrape_configs: " + json.dumps([{"job_name": "stepmem", "static_configs": targets}])


def series(engine, query):
    """The labels of the result, without what is another identity over OTLP, and their values."""
    found = {}
    for each in engine.get("query", query=query)["result"]:
        labels = {key: value for key, value in each["metric"].items() if key not in IDENTITY | RESOURCE | SCOPE}
        if "le" in labels:
            # Prometheus' receiver writes 1 for 1.0.
            labels["le"] = str(float(labels["le"]))
        if not any(CHANGING.match(labels.get(key, "")) for key in ("run", "pod")):
            found[frozenset(labels.items())] = each["value"][1]
    return found


def shown(all_labels):
    return "\n".join(str(sorted(labels)) for labels in sorted(all_labels, key=sorted)[:5])


def series_are_those_scraped(name, engine, scrape):
    """Every series of the scrape is there, with its labels; what is there beyond them was in the scrape before."""
    selector = '{__name__=~"stepmem_.+"}'

    def differences():
        now, arrived = series(scrape, selector), series(engine, selector)
        before = series(scrape, f"last_over_time({selector}[15m])")
        return now.keys() - arrived.keys(), arrived.keys() - before.keys()

    def explain():
        missing, foreign = differences()
        return f"{name}: {len(missing)} series are missing:\n{shown(missing)}\n{len(foreign)} never were in the scrape:\n{shown(foreign)}"

    wait_until(lambda: not any(differences()), SETTLE_SECONDS_MAX, explain)
    overflow = engine.get("query", query='count by (__name__) ({otel_metric_overflow="true"})')["result"]
    if overflow:
        raise Failure(f"{name}: overflow of {[each['metric'] for each in overflow]}")
    fleet.say(f"{len(series(engine, selector))} series")


def rules_record_the_same(name, engine, scrape, bundle):
    recorded = {rule["record"]: rule["expr"] for group in bundle.groups for rule in group["rules"] if "record" in rule}
    await_the_same(name, engine, scrape, recorded, recorded.get)

    def differences():
        return [record for record in CONSTANT if series(engine, record) != series(scrape, record)]

    wait_until(lambda: not differences(), SETTLE_SECONDS_MAX, lambda: f"{name}: other values than with the scrape: {differences()}")
    fleet.say(f"{len(recorded)} recording rules have the same series")


def dashboards_show_the_same(name, engine, scrape, bundle):
    queries = [query for stem in fleet.DASHBOARDS for query, _ in bundle.queries(stem)]
    await_the_same(name, engine, scrape, queries, str)
    fleet.say(f"{len(queries)} queries of dashboards have the same series")


def await_the_same(name, engine, scrape, queries, definition_of):
    """Awaits results with the same labels, but for what the ended runs leave, and for which runs and ranks are the highest now."""
    others = set(queries)

    def labels_of(each, query):
        chosen = {"run", "rank", "pod", "uuid"} if "topk" in definition_of(query) else set()
        for labels in map(dict, series(each, query)):
            if not any(ENDED.match(labels.get(key, "")) for key in ("run", "pod")):
                yield frozenset((key, value) for key, value in labels.items() if key not in chosen)

    def differences(query):
        now, arrived = set(labels_of(scrape, query)), set(labels_of(engine, query))
        return now - arrived, arrived - now

    def are_the_same():
        others.difference_update({query for query in others if not any(differences(query))})
        return not others

    def explain():
        found = [(query, *map(shown, differences(query))) for query in sorted(others)]
        return "\n".join(f"{name}: {query}\nmissing:\n{missing}\nbeyond the scrape's:\n{foreign}" for query, missing, foreign in found)

    wait_until(are_the_same, SETTLE_SECONDS_MAX, explain)


def attributes_can_be_joined(name, engine, n_pods):
    """By target_info, as Prometheus documents it."""
    joined = "stepmem_up * on (job, instance) group_left (k8s_pod_name) target_info"
    names = {each["metric"].get("k8s_pod_name") for each in engine.get("query", query=joined)["result"]}
    if len(names) != n_pods or None in names:
        raise Failure(f"{name}: {len(names)} of {n_pods} pods by target_info: {names}")


def deltas_are_treated_as_documented(port, http, scraped):
    """Deltas of 1 and 2: Prometheus refuses them, the Collector's exporter for Prometheus sums them up."""
    began = time.time_ns() - 2 * 10**9
    refusal = send_delta(f"{otlp_stack.receiver_of(port)}/v1/metrics", 1, began)
    if "invalid temporality and type combination" not in refusal:
        raise Failure(f"Prometheus answers a sum of deltas with {refusal}")
    for value in (1, 2):
        send_delta(f"http://127.0.0.1:{http}/v1/metrics", value, began + (value - 1) * 10**9)
    wait_until(
        lambda: re.search(r"^delta_probe_total\{.*\} 3$", fleet.ask(f"http://127.0.0.1:{scraped}/metrics").decode(), re.MULTILINE),
        SETTLE_SECONDS_MAX,
        lambda: "the Collector does not sum up deltas",
    )


def send_delta(url, value, began):
    """Sends what one second after `began` added, in nanoseconds; returns the answer."""
    point = {"asInt": str(value), "startTimeUnixNano": str(began), "timeUnixNano": str(began + 10**9)}
    metric = {"name": "delta_probe", "sum": {"aggregationTemporality": 1, "isMonotonic": True, "dataPoints": [point]}}
    body = {"resourceMetrics": [{"resource": {}, "scopeMetrics": [{"scope": {"name": "probe"}, "metrics": [metric]}]}]}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


if __name__ == "__main__":
    main()

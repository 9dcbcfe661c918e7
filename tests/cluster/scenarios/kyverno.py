"""Kyverno's policies through its own command, without a cluster: `kyverno apply` changes pods as the webhook would."""

import json
import subprocess

import injection
import policies
import programs
import yaml
from child import Failure

POLICIES = {"ClusterPolicy": {"engine": "Kyverno"}, "MutatingPolicy": {"engine": "Kyverno", "apiVersion": "policies.kyverno.io/v1"}}


def applies(kind):
    """Every pod of injection.py after the policy of this kind."""

    def scenario(cluster):
        folder = cluster.folder / kind
        folder.mkdir()
        (folder / "policy.yaml").write_text(yaml.safe_dump(policies.rendered(kind, POLICIES[kind])))
        pods = {f"p{index}": (title, pod) for index, (title, pod) in enumerate(injection.pods())}
        for name, (_, pod) in pods.items():
            pod["metadata"] |= {"name": name, "namespace": "ml"}
        (folder / "pods.yaml").write_text(yaml.safe_dump_all(pod for _, pod in pods.values()))
        done = subprocess.run([programs.path("kyverno"), "apply", folder / "policy.yaml", "--resource", folder / "pods.yaml", "-o", folder / "after.yaml"], capture_output=True, text=True)
        if "error: 0" not in done.stdout:
            raise Failure(f"{done.stdout[-1500:]}{done.stderr[-500:]}")
        after = [document for document in yaml.safe_load_all((folder / "after.yaml").read_text()) if document]
        # The last one counts, should a pod be there after each rule that changed it.
        changed = {document["metadata"]["name"]: document for document in after}
        results = {title: {"pod": changed.get(name, pod)} for name, (title, pod) in pods.items()}
        policies.check(results, kind)
        return f"{len(results)} pods, by kyverno apply"

    return scenario

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
        results = {}
        for index, (title, pod) in enumerate(injection.pods()):
            pod["metadata"] |= {"name": f"p{index}", "namespace": "ml"}
            (folder / "pod.yaml").write_text(yaml.safe_dump(pod))
            (folder / "after").mkdir(exist_ok=True)
            done = subprocess.run([programs.path("kyverno"), "apply", folder / "policy.yaml", "--resource", folder / "pod.yaml", "-o", folder / "after.yaml"], capture_output=True, text=True)
            if "error: 0" not in done.stdout:
                raise Failure(f"a pod {title}: {done.stdout[-1500:]}{done.stderr[-500:]}")
            after = [document for document in yaml.safe_load_all((folder / "after.yaml").read_text()) if document] if (folder / "after.yaml").exists() else []
            results[title] = {"pod": after[-1] if after else pod}
            (folder / "after.yaml").unlink(missing_ok=True)
        policies.check(results, kind)
        return f"{len(results)} pods, by kyverno apply"

    return scenario

"""A sidecar through the life of its pod: completion, kills, restarts of training, and what it finds at its start."""

import json
import os
import pathlib
import re
import signal
import struct

from child import Failure
from cluster import answer, awaits
from scenarios.inject import awaits_policy

FINDING_SECONDS_MAX = 90


def status(url):
    text = answer(f"{url}/api/v1/status")
    return json.loads(text) if text else None


def completes(cluster):
    """A Job with the sidecar completes when training ends."""
    namespace = cluster.namespace("job")
    with cluster.release(namespace, cluster.values(mode="inject")):
        awaits_policy(cluster, namespace)
        template = cluster.pod("any", script="short")
        template = {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]}
        cluster.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": {"backoffLimit": 0, "template": template}}, namespace=namespace)
        done = cluster.kubectl("wait", "--for=condition=Complete", "job/train", "-n", namespace, "--timeout=90s", check=False)
        if done.returncode:
            raise Failure(f"the Job does not complete: {cluster.kubectl('get', 'pods', '-n', namespace, '-o', 'wide')}")
        [pod] = cluster.get("pods", "-n", namespace, "-l", "job-name=train")["items"]
        if not cluster.sidecar(pod):
            raise Failure("the Job's pod is not injected")
        log = cluster.kubectl("logs", pod["metadata"]["name"], "-c", "trainer", "-n", namespace)
        if "trained" not in log:
            raise Failure(f"training did not end by itself: {log}")
    return "complete, with the sidecar"


def confirmed(url):
    """The leak's finding, once it is confirmed; CREEP_EARLY before it has a `since` of its own."""
    found = status(url)
    return next((each for each in (found or {}).get("findings", []) if each["kind"] == "CREEP_CONFIRMED"), None)


def survives_a_kill(cluster):
    """A sidecar that SIGKILL ends comes back with the leak's finding and its `since`."""
    namespace = cluster.namespace("kill")
    with cluster.release(namespace, cluster.values(mode="inject")):
        awaits_policy(cluster, namespace)
        cluster.apply(cluster.pod("leak", script="leak"), namespace=namespace)
        cluster.awaits_phase(namespace, "leak", "Running")
        with cluster.exporter(namespace, "leak") as url:
            before = awaits(lambda: confirmed(url), FINDING_SECONDS_MAX, lambda: f"no confirmed finding of the leak: {answer(f'{url}/api/v1/status')}")
            awaits(lambda: holds(cluster, namespace, before), 30, lambda: "the sidecar does not write the finding to its state")
            kill(cluster, namespace, "leak")
            awaits(lambda: restarts(cluster, namespace, "leak") >= 1, 60, lambda: "the sidecar is not restarted")
            after = awaits(lambda: confirmed(url), 60, lambda: f"no confirmed finding after the restart: {answer(f'{url}/api/v1/status')}")
        if after["since"] != before["since"]:
            raise Failure(f"the finding is since {before['since']} before and since {after['since']} after the kill")
    return "the finding and its `since`, before and after"


def holds(cluster, namespace, finding):
    """Whether the state file of the pod, which is written every 10 s, has the finding: it keeps a time as eight bytes."""
    uid = cluster.status(namespace, "leak")["metadata"]["uid"]
    file = pathlib.Path(cluster.node.folder) / f"kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/stepmem-state/state"
    return file.exists() and struct.pack("<d", finding["since"]) in file.read_bytes()


def restarts(cluster, namespace, name):
    return sum(each["restartCount"] for each in cluster.status(namespace, name)["status"]["initContainerStatuses"] if each["name"] == "stepmem")


def kill(cluster, namespace, name):
    """SIGKILL to the sidecar's process, from the node."""
    [container] = [each["containerID"] for each in cluster.status(namespace, name)["status"]["initContainerStatuses"] if each["name"] == "stepmem"]
    for line in (cluster.node.ctr("tasks", "ls") or "").splitlines():
        if line.startswith(container.removeprefix("containerd://")):
            os.kill(int(line.split()[1]), signal.SIGKILL)
            return
    raise Failure(f"no process of {container}")


def training_restarts(cluster):
    """A training container that fails and goes on from its checkpoint is the same rank in a new incarnation, without a finding."""
    namespace = cluster.namespace("restart")
    with cluster.release(namespace, cluster.values(mode="inject")):
        awaits_policy(cluster, namespace)
        volume = {"volumes": [{"name": "checkpoints", "emptyDir": {}}], "restartPolicy": "OnFailure"}
        cluster.apply(cluster.pod("train", script="checkpoint", spec=volume, env=[{"name": "STEPMEM_RUN", "value": "train"}], volumeMounts=[{"name": "checkpoints", "mountPath": "/checkpoints"}]), namespace=namespace)
        cluster.awaits_phase(namespace, "train", "Running")
        with cluster.exporter(namespace, "train") as url:
            found = awaits(lambda: beyond(url, 400), 90, lambda: f"training does not go on: {answer(f'{url}/api/v1/status')}")
        [training] = cluster.status(namespace, "train")["status"]["containerStatuses"]
        if training["restartCount"] != 1 or restarts(cluster, namespace, "train"):
            raise Failure(f"restarts: training {training['restartCount']}, sidecar {restarts(cluster, namespace, 'train')}")
        if [each for each in found["findings"] if each["kind"].startswith("CREEP")]:
            raise Failure(f"a restart is a finding: {found['findings']}")
        if len(found["ranks"]) != 1:
            raise Failure(f"one rank is {len(found['ranks'])}")
        with cluster.exporter(namespace, "train") as url:
            text = answer(f"{url}/metrics") or ""
        counts = [float(re.search(rf'^stepmem_push_records_total\{{result="{result}"\}} (\S+)$', text, re.MULTILINE)[1]) for result in ("restarted", "late")]
        if counts != [1.0, 0.0]:
            raise Failure(f"a restart from a checkpoint is {counts[0]:.0f} new lives, and {counts[1]:.0f} records are late")
    return "one rank in a new incarnation, from step 251, no record late"


def beyond(url, step):
    """The status once a rank is beyond this step in its second life."""
    found = status(url)
    ranks = (found or {}).get("ranks", [])
    return found if any((rank.get("step") or 0) > step for rank in ranks) else None

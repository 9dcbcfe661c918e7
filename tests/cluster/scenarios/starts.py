"""A sidecar that finds something wrong at its start: training starts all the same, and the sidecar says what it does without."""

import re

from child import Failure
from cluster import answer, awaits, job
from scenarios.otlp import sidecar_pod

SHARED = {"name": "stepmem", "mountPath": "/run/stepmem"}


def before(cluster, name, script, **more):
    """An init container that runs before the sidecar."""
    return {"name": name, "image": cluster.image("trainer"), "args": ["-c", job(script)], "volumeMounts": [SHARED], **more}


def troubled(cluster):
    """The pods: a value that no setting takes, a taken port, a foreign file at the socket, a token that is not there."""
    pods = {
        "bad-setting": sidecar_pod(cluster, "bad-setting", {"creep.critical-eta": "soon"}),
        "taken-port": sidecar_pod(cluster, "taken-port", {}),
        "foreign-file": sidecar_pod(cluster, "foreign-file", {}),
        "no-token": sidecar_pod(cluster, "no-token", {"push.token-file": "/run/stepmem/token"}),
    }
    pods["taken-port"]["spec"]["initContainers"].insert(0, before(cluster, "squat", "squat", restartPolicy="Always", startupProbe={"tcpSocket": {"port": 9477}, "periodSeconds": 1, "failureThreshold": 60}))
    pods["foreign-file"]["spec"]["initContainers"].insert(0, before(cluster, "foreign", "foreign", securityContext={"runAsUser": 0}))
    return pods


PROBLEMS = {"bad-setting": "creep.critical-eta", "foreign-file": "push.unix-socket", "no-token": "push.token-file"}


def never_exits(cluster):
    """Training runs in each of them and the sidecar was not restarted; where it answers, a metric names the setting."""
    namespace = cluster.namespace("starts")
    pods = troubled(cluster)
    cluster.apply(*pods.values(), namespace=namespace)
    for name in pods:
        pod = cluster.awaits_phase(namespace, name, "Running")
        if name in PROBLEMS:
            with cluster.exporter(namespace, name) as url:
                text = awaits(lambda: answer(f"{url}/metrics"), 30, lambda: f"the sidecar of {name} does not answer")
            row = rf'stepmem_startup_problem\{{[^}}]*setting="{re.escape(PROBLEMS[name])}"'
            if not re.search(row, text):
                raise Failure(f"{name}: no metric names {PROBLEMS[name]}: {re.findall('stepmem_startup_problem.*', text)}")
        pod = cluster.status(namespace, name)
        [sidecar] = [each for each in pod["status"]["initContainerStatuses"] if each["name"] == "stepmem"]
        if sidecar["restartCount"] or "running" not in sidecar["state"]:
            raise Failure(f"{name}: the sidecar has ended {sidecar['restartCount']} times: {cluster.kubectl('logs', name, '-c', 'stepmem', '-n', namespace)}")
        log = cluster.kubectl("logs", name, "-c", "stepmem", "-n", namespace)
        if "WARN" not in log and "ERROR" not in log:
            raise Failure(f"{name}: its log names no problem: {log}")
    return ", ".join(pods)


def answers_in_kubectl(cluster):
    """After a run, its verdict is in the pod's termination message, and the summary card at the end of the log."""
    namespace = cluster.namespace("answer")
    pod = sidecar_pod(cluster, "leak", {})
    pod["spec"]["containers"][0]["args"] = ["-c", job("brief")]
    cluster.apply(pod, namespace=namespace)
    cluster.awaits_phase(namespace, "leak", "Succeeded", 120)
    [state] = [each["state"] for each in cluster.status(namespace, "leak")["status"]["initContainerStatuses"] if each["name"] == "stepmem"]
    message = state["terminated"].get("message", "")
    for needed in ("MEMORY", "rank 0", "/step"):
        if needed not in message:
            raise Failure(f"the termination message lacks {needed}: {message!r}")
    log = cluster.kubectl("logs", "leak", "-c", "stepmem", "-n", namespace)
    if "Verdict" not in log and "MEMORY" not in log.splitlines()[-20:].__str__():
        raise Failure(f"the log has no summary: {log[-1500:]}")
    return message.splitlines()[0]

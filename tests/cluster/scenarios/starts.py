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
    """The pods: a value that no setting takes, a taken port, a foreign file at the socket, a token that is missing or of another user."""
    pods = {
        "bad-setting": sidecar_pod(cluster, "bad-setting", {"creep.critical-eta": "soon"}),
        "taken-port": sidecar_pod(cluster, "taken-port", {}),
        "foreign-file": sidecar_pod(cluster, "foreign-file", {}),
        "no-token": sidecar_pod(cluster, "no-token", {"push.token-file": "/run/stepmem/token"}),
        "unreadable-token": sidecar_pod(cluster, "unreadable-token", {"push.token-file": "/run/stepmem/token"}),
    }
    pods["taken-port"]["spec"]["initContainers"].insert(0, before(cluster, "squat", "squat", restartPolicy="Always", startupProbe={"tcpSocket": {"port": 9477}, "periodSeconds": 1, "failureThreshold": 60}))
    pods["foreign-file"]["spec"]["initContainers"].insert(0, before(cluster, "foreign", "foreign", securityContext={"runAsUser": 0}))
    pods["unreadable-token"]["spec"]["initContainers"].insert(0, before(cluster, "secret", "secret", securityContext={"runAsUser": 0}))
    return pods


PROBLEMS = {"bad-setting": "creep.critical-eta", "taken-port": "web.listen-address", "foreign-file": "push.unix-socket", "no-token": "push.token-file", "unreadable-token": "push.token-file"}
CLOSED = {"no-token", "unreadable-token"}
"""Those whose push listener must not open: it would be open to all."""
SOCKET = "import os; print(os.path.exists('/run/stepmem/push.sock'))"
FREE_PORT = re.compile(r"is taken; port (\d+)")


def never_exits(cluster):
    """Training runs in each of them and the sidecar was not restarted; a metric names the setting, also on the port that replaces a taken one."""
    namespace = cluster.namespace("starts")
    pods = troubled(cluster)
    cluster.apply(*pods.values(), namespace=namespace)
    for name in pods:
        pod = cluster.awaits_phase(namespace, name, "Running")
        log = lambda: cluster.kubectl("logs", name, "-c", "stepmem", "-n", namespace)
        port = int(awaits(lambda: FREE_PORT.search(log()), 30, lambda: f"{name}: no free port: {log()}")[1]) if name == "taken-port" else 9477
        with cluster.exporter(namespace, name, port) as url:
            text = awaits(lambda: answer(f"{url}/metrics"), 30, lambda: f"the sidecar of {name} does not answer")
        row = rf'stepmem_startup_problem\{{[^}}]*setting="{re.escape(PROBLEMS[name])}"'
        if not re.search(row, text):
            raise Failure(f"{name}: no metric names {PROBLEMS[name]}: {re.findall('stepmem_startup_problem.*', text)}")
        pod = cluster.status(namespace, name)
        [sidecar] = [each for each in pod["status"]["initContainerStatuses"] if each["name"] == "stepmem"]
        if sidecar["restartCount"] or "running" not in sidecar["state"]:
            raise Failure(f"{name}: the sidecar has ended {sidecar['restartCount']} times: {log()}")
        if name in CLOSED and cluster.kubectl("exec", name, "-c", "trainer", "-n", namespace, "--", "/usr/bin/python3.11", "-c", SOCKET).strip() != "False":
            raise Failure(f"{name}: it listens for pushes without its token")
        if "ERROR" not in log():
            raise Failure(f"{name}: its log names no problem: {log()}")
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

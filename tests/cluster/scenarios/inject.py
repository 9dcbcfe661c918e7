"""Injection as a real API server does it, and the pods that result."""

import json
import random
import re

import injection
import policies
from child import Failure
from cluster import POLICY_SECONDS_MAX, SAFE, answer, awaits

STATUS_SECONDS_MAX = 30


def in_a_real_server(cluster):
    """Every pod of injection.py, admitted by the API server without being created: injected once, or left alone."""
    namespace = cluster.namespace("admit")
    with cluster.release(namespace, cluster.values(mode="inject")):
        expected = policies.sidecar(cluster.values())
        awaits_policy(cluster, namespace)
        for title, pod in injection.pods():
            # Its name would be another each time.
            pod["spec"]["automountServiceAccountToken"] = False
            after = admitted(cluster, namespace, title, pod)
            del pod["metadata"]["labels"]
            before = admitted(cluster, namespace, f"{title}, without the label", pod)
            ours = cluster.sidecar(after) if title in injection.INJECTED else None
            for default in ("terminationMessagePath", "terminationMessagePolicy") if ours else ():
                ours.pop(default)
            injection.check(title, after, expected, "the API server", before)
    return f"{len(dict(injection.pods()))} pods admitted"


def awaits_policy(cluster, namespace):
    """The policy works some moments after it was made."""
    awaits(lambda: cluster.injects(namespace), POLICY_SECONDS_MAX, lambda: "no pod is injected")


def admitted(cluster, namespace, title, pod):
    """The pod as the server would store it."""
    done = cluster.kubectl("create", "-n", namespace, "--dry-run=server", "-o", "json", "-f", "-", given=json.dumps(pod), check=False)
    if done.returncode or done.stderr.strip():
        raise Failure(f"a pod {title} is {'refused' if done.returncode else 'warned about'}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def running(cluster):
    """Pods that are injected or left alone all run; an injected one's exporter answers."""
    namespace = cluster.namespace("inject")
    with cluster.release(namespace, cluster.values(mode="inject")):
        awaits_policy(cluster, namespace)
        own = {"volumes": [{"name": "own", "emptyDir": {}}]}
        mount = {"volumeMounts": [{"name": "own", "mountPath": "/run/stepmem"}]}
        first = {"initContainers": [{"name": "first", "image": cluster.image("trainer"), "args": ["-c", "print('first')"]}]}
        host = {"hostNetwork": True}
        pods = [("plain", {}, {}, True), ("after-init", first, {}, True), ("own-mount", own, mount, False), *((f"host-{i}", host, {}, False) for i in (1, 2) if cluster.node)]
        cluster.apply(*(cluster.pod(name, spec=spec, **container) for name, spec, container, _ in pods), namespace=namespace)
        for name, _, _, is_injected in pods:
            pod = cluster.awaits_phase(namespace, name, "Running")
            if bool(cluster.sidecar(pod)) != is_injected:
                raise Failure(f"pod {name} is {'not ' if is_injected else ''}injected")
            if is_injected:
                with cluster.exporter(namespace, name) as url:
                    awaits(lambda: answer(f"{url}/-/healthy"), STATUS_SECONDS_MAX, lambda: f"the sidecar of {name} does not answer")
        by_any_user(cluster, namespace)
        return ", ".join([*(name for name, *_ in pods), "users 0, 1000 and a random one"])


def by_any_user(cluster, namespace):
    """Training as root, as a usual user and as a random one pushes over the read-only socket, and may not do what an operator does."""
    users = [0, 1000, random.randrange(100_000, 2_000_000_000)]
    cluster.apply(*(cluster.pod(f"user-{uid}", script="user", securityContext={"runAsUser": uid}) for uid in users), namespace=namespace)
    for uid in users:
        name = f"user-{uid}"
        cluster.awaits_phase(namespace, name, "Succeeded")
        said = cluster.kubectl("logs", name, "-c", "trainer", "-n", namespace)
        if "release: HTTP/1.1 403" not in said:
            raise Failure(f"{name}: {said}")
        log = cluster.kubectl("logs", name, "-c", "stepmem", "-n", namespace)
        if not re.search(rf"ended .*peer=uid {uid}\b", log):
            raise Failure(f"{name}: the log of the sidecar does not name the user of the rank's end: {log}")


def restricted(cluster):
    """In a namespace that enforces Pod Security *restricted*, an injected pod is admitted and trains."""
    namespace = cluster.namespace("restricted", **{"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest"})
    with cluster.release(namespace, cluster.values(mode="inject")):
        awaits_policy(cluster, namespace)
        cluster.apply(cluster.pod("safe", script="short", securityContext=SAFE), namespace=namespace)
        cluster.awaits_phase(namespace, "safe", "Succeeded")
        return "admitted, and trained as user 1000"

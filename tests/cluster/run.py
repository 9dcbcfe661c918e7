"""Tries the bundle on a real Kubernetes, and ends with a table of what was tried with which versions.

    run.py STEPMEM FAKE_NVML [NAME...]     the release binary, the stand-in for NVML; names of scenarios, or all

By default the cluster is one node on this machine, built from Go modules and taken away afterwards. CLUSTER_KUBECONFIG and
CLUSTER_CONTEXT name another one, CLUSTER_REGISTRY (HOST/PATH) the registry for its images, CLUSTER_REGISTRY_AUTH (USER:PASSWORD)
how to push there. The shell's KUBECONFIG is never used.
"""

import contextlib
import fcntl
import os
import pathlib
import secrets
import shutil
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "peers"), str(HERE.parent / "ops")]

import images
import node
import programs
from child import Failure, end_on_sigterm
from cluster import Cluster
from injection import Problem
from table import print_table
from scenarios import SCENARIOS


def main():
    stepmem, fake_nvml, *names = sys.argv[1:]
    unknown = set(names) - {scenario.name for scenario in SCENARIOS}
    if unknown:
        sys.exit(f"error: no scenario {', '.join(sorted(unknown))}; there are {', '.join(scenario.name for scenario in SCENARIOS)}")
    os.environ.pop("KUBECONFIG", None)
    end_on_sigterm()
    programs.CACHE.mkdir(parents=True, exist_ok=True)
    with open(programs.CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sys.exit(tried(pathlib.Path(stepmem), pathlib.Path(fake_nvml), [scenario for scenario in SCENARIOS if not names or scenario.name in names]))


def tried(stepmem, fake_nvml, scenarios):
    """Runs the scenarios; returns the exit status."""
    named = os.environ.get("CLUSTER_KUBECONFIG")
    problem = borrowing_problem() if named else node.obstacle()
    if problem or not shutil.which("go"):
        return f"error: {problem or 'Go is missing, and the programs of the cluster are built with it'}"
    try:
        programs.build_missing()
    except programs.BuildError as error:
        return f"error: {error}"
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stepmem-images-", dir="/var/tmp")))
        began = time.monotonic()
        if named:
            made = images.make(os.environ["CLUSTER_REGISTRY"], f"test-{secrets.token_hex(4)}", stepmem, folder)
            images.push(made)
            cluster = Cluster(named, os.environ["CLUSTER_CONTEXT"], made, folder)
        else:
            made = images.make("registry.stepmem.test", "0.1.0", stepmem, folder)
            own = stack.enter_context(node.Node(made))
            cluster = Cluster(own.kubeconfig, None, made, own.folder, own)
        stack.callback(cluster.clean)
        print(f"a cluster after {time.monotonic() - began:.0f} s", flush=True)
        cluster.fake_nvml = fake_nvml
        rows = [row_of(scenario, cluster) for scenario in scenarios]
    print_table(rows)
    failed = [row.name for row in rows if row.outcome == "failed"]
    return f"failed: {', '.join(failed)}" if failed else 0


def borrowing_problem():
    lacking = [name for name in ("CLUSTER_CONTEXT", "CLUSTER_REGISTRY") if not os.environ.get(name)]
    return f"CLUSTER_KUBECONFIG needs {' and '.join(lacking)} beside it" if lacking else None


def row_of(scenario, cluster):
    """The scenario's row of the table, after it was run."""
    began = time.monotonic()
    if cluster.node is None and scenario.needs_node:
        outcome, note = "skipped", "needs a node of its own"
    else:
        try:
            outcome, note = "passed", scenario.act(cluster)
            if note is None:
                outcome, note = "skipped", "does not apply to this cluster"
        except (Failure, Problem) as failure:
            outcome, note = "failed", str(failure)
        except Exception:  # a mistake in a scenario must not hide the others
            outcome, note = "failed", "".join(traceback.format_exc().splitlines(keepends=True)[-6:])
    seconds = time.monotonic() - began
    print(f"{outcome} {scenario.name} ({seconds:.0f} s){': ' + note if outcome == 'failed' else ''}", flush=True)
    return scenario.row(outcome, note, cluster)


if __name__ == "__main__":
    main()

"""The device memory of a rank's process in a default sidecar, which does not share its PID namespace with training."""

import json
import pathlib
import re
import shutil

from child import Failure
from cluster import answer, awaits
from scenarios.inject import awaits_policy
from scenarios.sidecar import status

GPU = "GPU-01234567-89ab-cdef-0123-456789abcdef"
"""The device of the stub of PyTorch."""
GIB = 1 << 30
SECONDS_MAX = 90
DRIVERS = {"new": ("580.159.04", {"pid": 1, "used": 40 * GIB}), "old": ("525.147.05", {"pid": 48_211, "used": 40 * GIB})}
"""By pod: the driver's version, and how it lists the training process, which is process 1 of its container."""


def of_own_process(cluster):
    """With a new driver the process is shown and OUTSIDE ALLOCATOR found; with an old one the sidecar shows the reason why not."""
    namespace = cluster.namespace("memory", **{"pod-security.kubernetes.io/enforce": "privileged"})
    with cluster.release(namespace, cluster.values(mode="inject")):
        awaits_policy(cluster, namespace)
        for name, (version, row) in DRIVERS.items():
            volume = {"volumes": [{"name": "driver", "hostPath": {"path": str(driver(cluster, name, version, row))}}]}
            variables = {"LD_LIBRARY_PATH": "/driver", "PYTHONPATH": "/opt/client:/opt/stub", "STEPMEM_RUN": name}
            env = [{"name": key, "value": value} for key, value in variables.items()]
            cluster.apply(cluster.pod(name, script="outside", spec=volume, env=env, volumeMounts=[{"name": "driver", "mountPath": "/driver", "readOnly": True}]), namespace=namespace)
        for name in DRIVERS:
            pod = cluster.awaits_phase(namespace, name, "Running")
            if pod["spec"].get("shareProcessNamespace") or not cluster.sidecar(pod):
                raise Failure(f"{name} is no pod with a default sidecar: {pod['spec']}")
        with cluster.exporter(namespace, "new") as url:
            awaits(lambda: series(url, "process_memory_used_bytes", "new", 'pid="1"') == 40.0 * GIB, SECONDS_MAX, lambda: f"no process: {answer(f'{url}/metrics')}")
            awaits(lambda: "OUTSIDE_ALLOCATOR" in [each["kind"] for each in (status(url) or {}).get("findings", [])], SECONDS_MAX, lambda: f"no finding: {status(url)}")
        with cluster.exporter(namespace, "old") as url:
            awaits(lambda: series(url, "process_memory_unknown", "old", 'state="foreign_pid_namespace"') == 1.0, SECONDS_MAX, lambda: f"no reason: {answer(f'{url}/metrics')}")
            if series(url, "process_memory_used_bytes", "old", "") is not None:
                raise Failure(f"an old driver gives memory: {answer(f'{url}/metrics')}")
    return "40 GiB and OUTSIDE ALLOCATOR with driver 580; foreign_pid_namespace with 525"


def driver(cluster, name, version, row):
    """A folder with a simulated driver."""
    folder = pathlib.Path(cluster.node.folder) / f"driver-{name}"
    folder.mkdir()
    shutil.copy(cluster.fake_nvml, folder / "libnvidia-ml.so.1")
    device = {"uuid": GPU, "memory": {"total": 80 * GIB, "reserved": GIB, "used": 41 * GIB}, "compute": [row], "graphics": [], "mps": []}
    (folder / "libnvidia-ml.so.1.json").write_text(json.dumps({"driver_version": version, "devices": [device]}))
    return folder


def series(url, name, run, label):
    """The value of the run's series with that label; None if there is none."""
    lines = (answer(f"{url}/metrics") or "").splitlines()
    found = [line for line in lines if line.startswith(f"stepmem_{name}{{") and f'run="{run}"' in line and label in line]
    return float(re.search(r"\S+$", found[0])[0]) if found else None

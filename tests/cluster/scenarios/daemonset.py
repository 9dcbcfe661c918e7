"""The DaemonSet on a node with a stand-in for NVML and a device plugin: which pod has which device."""

import json
import pathlib
import re
import shutil

import programs
from child import Child, Failure
from cluster import answer, awaits

UUIDS = ["GPU-stepmem-a", "GPU-stepmem-b"]
GIB = 1 << 30


def driver(cluster, name, compute=()):
    """A folder with a stand-in for NVML, whose first device has these processes."""
    folder = pathlib.Path(cluster.node.folder) / name
    folder.mkdir(exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    shutil.copy(cluster.fake_nvml, library)
    memory = {"total": 80 * GIB, "reserved": 0, "used": GIB}
    devices = [{"uuid": uuid, "name": "NVIDIA H100", "memory": memory, "compute": list(compute) if uuid == UUIDS[0] else []} for uuid in UUIDS]
    pathlib.Path(f"{library}.json").write_text(json.dumps({"driver_version": "570.86.15", "devices": devices}))
    return folder


def of_daemonset(cluster, folder, **daemonset):
    """Values of a DaemonSet that has its driver, its socket and its state in a folder."""
    settings = {"nvml.library": f"{folder}/libnvidia-ml.so.1", "nvml.interval": "1s"}
    daemonset = {"kubeletDirectory": f"{cluster.node.folder}/kubelet", **daemonset}
    return cluster.values(mode="daemonset", nvml={"enabled": True}, socketDirectory=str(folder), stateDirectory=f"{folder}/state", settings=settings, daemonset=daemonset)


def exporter(cluster, namespace):
    """The name of the DaemonSet's pod, once it runs."""
    [pod] = awaits(lambda: cluster.get("pods", "-n", namespace, "-l", "app.kubernetes.io/component=node")["items"], 60, lambda: "the DaemonSet has no pod")
    cluster.awaits_phase(namespace, pod["metadata"]["name"], "Running")
    return pod["metadata"]["name"]


def reads_control_groups(cluster):
    """The limit of a pod that uses a device, and a process that the kernel kills in it, by the node's control groups, mounted read-only."""
    namespace = cluster.namespace("limits", **{"pod-security.kubernetes.io/enforce": "privileged"})
    cluster.apply(cluster.pod("train", script="workers", spec={"restartPolicy": "OnFailure"}, resources={"limits": {"memory": "128Mi"}}), namespace=namespace)
    pod = cluster.awaits_phase(namespace, "train", "Running")
    pid = process(cluster, pod["status"]["containerStatuses"][0]["containerID"])
    folder = driver(cluster, "limits", [{"pid": pid, "used": GIB}])
    tree, version = ("/sys/fs/cgroup/memory", 1) if pathlib.Path("/sys/fs/cgroup/memory").is_dir() else ("/sys/fs/cgroup", 2)
    with cluster.release(namespace, of_daemonset(cluster, folder, cgroupDirectory=tree)), cluster.exporter(namespace, name := exporter(cluster, namespace)) as url:
        of = lambda name, needed: [line.rsplit(" ", 1) for line in (answer(f"{url}/metrics") or "").splitlines() if line.startswith(f"stepmem_container_{name}{{") and needed in line]
        info = awaits(lambda: of("info", f'pod_uid="{pod["metadata"]["uid"]}"'), 60, lambda: f"no control group of the pod: {answer(f'{url}/metrics')}")
        groups = [re.search(r'cgroup="\w+"', series)[0] for series, _ in info]
        values = lambda name: [float(value) for group in groups for _, value in of(name, group)]
        if set(values("memory_limit_bytes")) != {128.0 * (1 << 20)}:
            raise Failure(f"not the pod's limit: {answer(f'{url}/metrics')}")
        awaits(lambda: max(values("oom_kills_total"), default=0.0) >= 1.0, 60, lambda: f"no kill: {answer(f'{url}/metrics')}")
        number = "from stepmem import _cgroup; print(f'{_cgroup.tightest().number():016x}')"
        own = cluster.kubectl("exec", "train", "-n", namespace, "--", "/usr/bin/python3.11", "-c", number).strip()
        if f'cgroup="{own}"' not in groups:
            raise Failure(f"the client calls its control group {own}, the exporter has {groups}")
        node = process(cluster, cluster.status(namespace, name)["status"]["containerStatuses"][0]["containerID"])
        mounts = [line for line in pathlib.Path(f"/proc/{node}/mounts").read_text().splitlines() if " /host/sys/fs/cgroup" in line]
        if len(mounts) != 1 or "ro" not in mounts[0].split()[3].split(","):
            raise Failure(f"the node's control groups are not mounted read-only: {mounts}")
    return f"limit and OOM kill of a container, under the name that its client has for it, by version {version} of control groups"


def process(cluster, container):
    """The id of a container's first process on the node."""
    tasks = [line.split() for line in (cluster.node.ctr("tasks", "ls") or "").splitlines()]
    return next(int(pid) for name, pid, *_ in tasks if name == container.removeprefix("containerd://"))


def attributes(cluster):
    """A pod that was given a device is named beside it, through the kubelet's own socket in a directory of its own."""
    namespace = cluster.namespace("node", **{"pod-security.kubernetes.io/enforce": "privileged"})
    shared = driver(cluster, "shared")
    values = of_daemonset(cluster, shared, pushSocket=True)
    with Child([programs.path("deviceplugin"), "/var/lib/kubelet/device-plugins", *UUIDS], str(cluster.folder / "deviceplugin.log")), cluster.release(namespace, values):
        awaits(lambda: cluster.get("nodes")["items"][0]["status"]["allocatable"].get("nvidia.com/gpu") == str(len(UUIDS)), 60, lambda: "the node has no nvidia.com/gpu")
        cluster.apply(cluster.pod("train", resources={"limits": {"nvidia.com/gpu": 1}}), namespace=namespace)
        cluster.awaits_phase(namespace, "train", "Running")
        name = exporter(cluster, namespace)
        with cluster.exporter(namespace, name) as url:
            row = awaits(lambda: re.search(r"stepmem_device_pod_info\{[^}]*\} 1", answer(f"{url}/metrics") or ""), 60, lambda: f"no device has a pod: {answer(f'{url}/metrics')}")[0]
        uuid = cluster.kubectl("exec", "train", "-n", namespace, "--", "/usr/bin/python3.11", "-c", "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])").strip()
        for needed in (f'uuid="{uuid}"', 'pod_name="train"', f'pod_namespace="{namespace}"', 'container_name="trainer"'):
            if needed not in row:
                raise Failure(f"{row} lacks {needed}")
        host = {"hostNetwork": True, "volumes": [{"name": "socket", "hostPath": {"path": str(shared)}}]}
        cluster.apply(cluster.pod("rdma", script="leak", spec=host, volumeMounts=[{"name": "socket", "mountPath": "/run/stepmem", "readOnly": True}]), namespace=namespace)
        with cluster.exporter(namespace, name) as url:
            awaits(lambda: "stepmem_rank_step{" in (answer(f"{url}/metrics") or ""), 60, lambda: "the pushes of a pod on the node's network do not arrive")
    return "from a kubelet whose directory is not /var/lib/kubelet; a hostNetwork pod pushes to it"

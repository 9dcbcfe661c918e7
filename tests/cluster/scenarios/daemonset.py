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


def attributes(cluster):
    """A pod that was given a device is named beside it, through the kubelet's own socket in a directory of its own."""
    namespace = cluster.namespace("node", **{"pod-security.kubernetes.io/enforce": "privileged"})
    shared = pathlib.Path(cluster.node.folder) / "shared"
    shared.mkdir()
    library = shared / "libnvidia-ml.so.1"
    shutil.copy(cluster.fake_nvml, library)
    devices = [{"uuid": uuid, "name": "NVIDIA H100", "memory": {"total": 80 * GIB, "reserved": 0, "used": GIB}, "compute": []} for uuid in UUIDS]
    pathlib.Path(f"{library}.json").write_text(json.dumps({"driver_version": "570.86.15", "devices": devices}))
    values = cluster.values(
        mode="daemonset", nvml={"enabled": True}, socketDirectory=str(shared), stateDirectory=f"{cluster.node.folder}/state", settings={"nvml.library": str(library), "nvml.interval": "1s"},
        daemonset={"kubeletDirectory": f"{cluster.node.folder}/kubelet", "pushSocket": True},
    )
    with Child([programs.path("deviceplugin"), "/var/lib/kubelet/device-plugins", *UUIDS], str(cluster.folder / "deviceplugin.log")), cluster.release(namespace, values):
        awaits(lambda: cluster.get("nodes")["items"][0]["status"]["allocatable"].get("nvidia.com/gpu") == str(len(UUIDS)), 60, lambda: "the node has no nvidia.com/gpu")
        cluster.apply(cluster.pod("train", resources={"limits": {"nvidia.com/gpu": 1}}), namespace=namespace)
        cluster.awaits_phase(namespace, "train", "Running")
        [exporter] = awaits(lambda: cluster.get("pods", "-n", namespace, "-l", "app.kubernetes.io/component=node")["items"], 60, lambda: "the DaemonSet has no pod")
        name = exporter["metadata"]["name"]
        cluster.awaits_phase(namespace, name, "Running")
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

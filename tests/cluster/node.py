"""A Kubernetes of one node on this machine: started, and taken away without a trace.

Everything is in a folder of its own in /var/tmp, but for what Kubernetes keeps elsewhere whatever it is told: the kubelet's
folder for device plugins, the cgroup kubepods, the cache of CNI and the sockets of containerd's shims. These are removed only if
they were not there before.
"""

import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import programs
from child import Child, Failure, free_ports, wait_until

START_SECONDS_MAX = 120
NAME = "stepmem-node"
TOOLS = {"etcd": "etcd-server", "containerd": "containerd", "ctr": "containerd", "runc": "runc", "ip": "iproute2"}
PLUGINS = pathlib.Path("/usr/lib/cni")
ELSEWHERE = [pathlib.Path(path) for path in ("/var/lib/kubelet", "/var/lib/cni", "/run/containerd")]
CGROUP = pathlib.Path("/sys/fs/cgroup")


def obstacle():
    """Why no cluster can be started here, or None."""
    if os.geteuid() != 0:
        return "a cluster needs root"
    lacking = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)} | (set() if PLUGINS.is_dir() else {"containernetworking-plugins"}))
    if lacking:
        return f"programs are missing (Debian: apt-get install --no-install-recommends {' '.join(lacking)})"
    for process in pathlib.Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if process.read_text().startswith("kubelet"):
                return f"a kubelet runs here already (process {process.parent.name}): this machine is a node"
    return None


class Node:
    """Use it in a `with`; `kubeconfig` is its administrator's."""

    def __init__(self, images):
        self.images, self.processes = images, {}
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="stepmem-cluster-", dir="/var/tmp"))
        self.bridge = f"stepmem{secrets.token_hex(3)}"
        self.subnet = free_subnet()
        self.gateway = f"{self.subnet}.1"
        self.kubeconfig = self.folder / "kubeconfig"
        self.sock = self.folder / "containerd.sock"
        self.made = [path for path in ELSEWHERE if not path.exists()]
        self.cgroups = [controller / "kubepods" for controller in controllers() if not (controller / "kubepods").exists()]

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def run(self, name, *words):
        self.processes[name] = Child(words, str(self.folder / f"{name}.log"))
        return self.processes[name]

    def start(self):
        run(["ip", "link", "add", self.bridge, "type", "bridge"])
        run(["ip", "addr", "add", f"{self.gateway}/24", "dev", self.bridge])
        run(["ip", "link", "set", self.bridge, "up"])
        self.start_containers()
        self.start_control_plane()
        self.start_kubelet()

    def start_containers(self):
        (self.folder / "cni").mkdir()
        ipam = f'{{"type": "host-local", "dataDir": "{self.folder}/addresses", "ranges": [[{{"subnet": "{self.subnet}.0/24", "gateway": "{self.gateway}"}}]], "routes": [{{"dst": "0.0.0.0/0"}}]}}'
        (self.folder / "cni/10-pods.conflist").write_text(
            f'{{"cniVersion": "0.4.0", "name": "{self.bridge}", "plugins": [{{"type": "bridge", "bridge": "{self.bridge}", "isGateway": true, "hairpinMode": true, "ipam": {ipam}}},'
            ' {"type": "portmap", "capabilities": {"portMappings": true}}]}'
        )
        config = self.folder / "containerd.toml"
        # Without CAP_SYS_RESOURCE a container's score cannot be below our own.
        config.write_text(f"""version = 2
root = "{self.folder}/images"
state = "{self.folder}/containers"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = "{self.sock}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{self.images['pause'][0]}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{PLUGINS}"
conf_dir = "{self.folder}/cni"
""")
        child = self.run("containerd", "containerd", "-c", config)
        self.awaits(child, lambda: self.ctr("version"))
        for _, archive in self.images.values():
            run(["ctr", "-a", self.sock, "-n", "k8s.io", "images", "import", archive])

    def ctr(self, *words):
        """The output of ctr, or None."""
        done = subprocess.run(["ctr", "-a", self.sock, "-n", "k8s.io", *words], capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else None

    def start_control_plane(self):
        etcd, peers, api = free_ports(3)
        certificates, key, tokens = self.folder / "certificates", self.folder / "accounts.key", self.folder / "tokens.csv"
        run(["openssl", "genrsa", "-out", key, "2048"])
        token = secrets.token_hex(16)
        tokens.write_text(f"{token},admin,admin,system:masters\n")
        store = f"http://127.0.0.1:{etcd}"
        self.run("etcd", "etcd", f"--data-dir={self.folder}/etcd", f"--listen-client-urls={store}", f"--advertise-client-urls={store}", f"--listen-peer-urls=http://127.0.0.1:{peers}", "--unsafe-no-fsync")
        server = self.run(
            "apiserver", programs.path("kube-apiserver"), f"--etcd-servers={store}", f"--secure-port={api}", "--bind-address=127.0.0.1", f"--advertise-address={self.gateway}", f"--cert-dir={certificates}",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}", f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP",
        )
        self.kubeconfig.touch(0o600)
        self.kubeconfig.write_text(f"""apiVersion: v1
kind: Config
clusters: [{{name: test, cluster: {{server: "https://127.0.0.1:{api}", certificate-authority: {certificates}/apiserver.crt}}}}]
users: [{{name: test, user: {{token: {token}}}}}]
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
current-context: test
""")
        self.awaits(server, lambda: self.kubectl("get", "--raw", "/readyz"))
        self.run("controllers", programs.path("kube-controller-manager"), f"--kubeconfig={self.kubeconfig}", f"--service-account-private-key-file={key}", f"--root-ca-file={certificates}/apiserver.crt", "--leader-elect=false", "--secure-port=0")
        self.run("scheduler", programs.path("kube-scheduler"), f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0")

    def start_kubelet(self):
        config = self.folder / "kubelet.yaml"
        config.write_text(f"""apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
address: {self.gateway}
healthzPort: 0
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
clusterDNS: ["{self.gateway}"]
clusterDomain: cluster.local
resolvConf: ""
containerRuntimeEndpoint: unix://{self.sock}
imageGCHighThresholdPercent: 100
evictionHard: {{memory.available: "1Mi", nodefs.available: "1%", imagefs.available: "1%"}}
""")
        child = self.run("kubelet", programs.path("kubelet"), f"--config={config}", f"--kubeconfig={self.kubeconfig}", f"--root-dir={self.folder}/kubelet", f"--hostname-override={NAME}", f"--cert-dir={self.folder}/kubelet-certificates", f"--node-ip={self.gateway}")
        self.awaits(child, lambda: "True" in (self.kubectl("get", "node", NAME, "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}") or ""))
        Names(self).start()

    def kubectl(self, *words):
        """The output of kubectl, or None."""
        done = subprocess.run([programs.path("kubectl"), f"--kubeconfig={self.kubeconfig}", *words], capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else None

    def awaits(self, child, is_ready):
        def settled():
            if child.has_ended():
                raise Failure(f"{child.name} ended:\n{child.log_tail()}")
            ready = is_ready()
            if ready is None or ready is False:
                time.sleep(0.3)
                return False
            return True

        wait_until(settled, START_SECONDS_MAX, lambda: f"{child.name} is not ready after {START_SECONDS_MAX} s:\n{child.log_tail()}")

    def stop(self):
        """Ends the pods, the programs and what they left; goes on whatever fails."""
        if "apiserver" in self.processes:
            self.kubectl("delete", "jobs,daemonsets,deployments,statefulsets,pods", "--all", "--all-namespaces", "--now", "--wait=true", "--timeout=60s", "--request-timeout=70s")
        for name in ("kubelet", "scheduler", "controllers", "apiserver", "etcd"):
            if name in self.processes:
                self.processes[name].stop()
        namespaces = self.end_containers()
        if "containerd" in self.processes:
            self.processes["containerd"].stop()
        self.end_shims()
        for mount in [*mounts_below(self.folder), *namespaces]:
            subprocess.run(["umount", "-l", mount], capture_output=True)
        for path in namespaces:
            with contextlib.suppress(OSError):
                os.unlink(path)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)
        for path in [self.folder, *self.made]:
            remove(path)
        for cgroup in self.cgroups:
            for path in sorted(cgroup.rglob("*"), reverse=True) if cgroup.exists() else []:
                if path.is_dir():
                    with contextlib.suppress(OSError):
                        path.rmdir()
            with contextlib.suppress(OSError):
                cgroup.rmdir()

    def end_containers(self):
        """Kills what still runs; returns the network namespaces that were left."""
        left = set()
        for name in (self.ctr("containers", "ls", "-q") or "").split():
            for line in (self.ctr("containers", "info", name) or "").splitlines():
                if "/netns/" in line and '"path"' in line:
                    left.add(line.split('"')[3])
            self.ctr("tasks", "delete", "--force", name)
            self.ctr("containers", "delete", name)
        return left

    def end_shims(self):
        """Ends the shims of this containerd, which outlive it: they are known by the path of its socket."""
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if b"containerd-shim" in words[0] and str(self.sock).encode() in words:
                    os.kill(int(process.name), signal.SIGKILL)


class Names(threading.Thread):
    """A resolver for the pods: NAME.NAMESPACE.svc of a Service is the addresses behind it."""

    def __init__(self, node):
        super().__init__(daemon=True)
        self.node, self.socket = node, socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((node.gateway, 53))

    def run(self):
        while True:
            question, peer = self.socket.recvfrom(512)
            with contextlib.suppress(OSError, IndexError, UnicodeDecodeError):
                self.socket.sendto(self.answer(question), peer)

    def answer(self, question):
        labels, at = [], 12
        while question[at]:
            labels.append(question[at + 1 : at + 1 + question[at]].decode())
            at += 1 + question[at]
        kind, found = int.from_bytes(question[at + 1 : at + 3], "big"), []
        is_known = len(labels) >= 3 and labels[2:] in (["svc"], ["svc", "cluster", "local"])
        if is_known and kind == 1:
            found = (self.node.kubectl("get", "endpoints", labels[0], "-n", labels[1], "-o", "jsonpath={.subsets[*].addresses[*].ip}") or "").split()
        flags = b"\x85\x80" if is_known else b"\x85\x83"
        records = b"".join(b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x01\x00\x04" + socket.inet_aton(address) for address in found)
        return question[:2] + flags + b"\x00\x01" + len(found).to_bytes(2, "big") + b"\x00\x00\x00\x00" + question[12 : at + 5] + records


def run(words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def free_subnet():
    """The first three numbers of a private network that nothing here uses."""
    used = run(["ip", "-4", "addr"]) + run(["ip", "-4", "route"])
    return next(subnet for subnet in (f"10.{second}.0" for second in range(89, 256)) if f"{subnet}." not in used)


def controllers():
    """The cgroup hierarchies: one per controller in version 1, one in version 2."""
    return [CGROUP] if (CGROUP / "cgroup.procs").exists() else [path for path in CGROUP.iterdir() if path.is_dir() and not path.is_symlink()]


def mounts_below(folder):
    """Mount points in the folder, the innermost first."""
    points = [line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    return sorted((point for point in points if point.startswith(f"{folder}/")), key=len, reverse=True)


def remove(path):
    """Removes a folder of ours, unless something is still mounted in it."""
    if mounts_below(path):
        print(f"left alone, since something is mounted in it: {path}")
    else:
        shutil.rmtree(path, ignore_errors=True)

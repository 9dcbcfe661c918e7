"""The programs of the test cluster: which module and version each is built from, and building the missing ones.

    programs.py           builds what is missing
    programs.py --check   exits with 1 and names what is missing
    programs.py --bless   writes modules.sums anew, from what is built

Every program is a module of Go's proxy. What was built stays in the cache folder, under a name with its version. A program that
was linked from other modules than modules.sums has, or from others with the same versions, is refused.
"""

import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = (HERE / "go", HERE.parent / "peers/go")
"""Where programs of our own are; the Collector is that of the other tests."""
SUMS = HERE / "modules.sums"
"""A line a program: its name, its version, and the hash of the versions and checksums of all modules in it."""
CACHE = pathlib.Path(os.environ.get("STEPMEM_CLUSTER_CACHE") or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "stepmem/cluster")

KUBERNETES = "1.36.3"
KUBERNETES_BETA = "1.34.4"
"""The oldest Kubernetes whose policy is tried: its MutatingAdmissionPolicy is v1beta1."""
COLLECTOR = "0.155.0"


@dataclasses.dataclass(frozen=True)
class Module:
    """A folder to build in: the modules it needs, and replacements."""

    name: str
    requires: tuple
    replaces: tuple = ()
    kubernetes: str = ""
    """The Kubernetes version whose staging modules replace all others."""


@dataclasses.dataclass(frozen=True)
class Program:
    module: Module
    version: str
    package: str
    """An import path, or the name of a folder in one of SOURCES."""
    tags: str = ""

    @property
    def is_ours(self):
        return "/" not in self.package


def kubernetes(version):
    return Module(f"kubernetes-{version}", (f"k8s.io/kubernetes@v{version}",), kubernetes=version)


NODE = kubernetes(KUBERNETES)
HELM = Module("helm", ("helm.sh/helm/v4@v4.3.1",))
PROMETHEUS = Module("prometheus", ("github.com/prometheus/prometheus@v0.312.0",))
ALERTMANAGER = Module("alertmanager", ("github.com/prometheus/alertmanager@v0.31.1",))
OPERATOR = Module("operator", ("github.com/prometheus-operator/prometheus-operator@v0.85.0",))
OTELCOL = Module(f"collector-{COLLECTOR}", tuple(f"go.opentelemetry.io/collector/{part}@v{COLLECTOR}" for part in ("otelcol", "receiver/otlpreceiver", "exporter/otlphttpexporter"))
                 + (f"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/prometheusexporter@v{COLLECTOR}", "go.opentelemetry.io/collector/confmap/provider/fileprovider@v1.61.0"))
KYVERNO = Module("kyverno", ("github.com/kyverno/kyverno@v1.19.1",), ("k8s.io/pod-security-admission=github.com/kyverno/pod-security-admission@v0.0.0-20251031094455-46f20778634f",))
POLICY_BETA = Module(f"policy-{KUBERNETES_BETA}", tuple(f"k8s.io/{part}@v0.{KUBERNETES_BETA.removeprefix('1.')}" for part in ("api", "apimachinery", "apiserver", "client-go")))
OURS = Module("ours", ())

PROGRAMS = {
    "pause": Program(OURS, "1", "pause"),
    **{name: Program(NODE, KUBERNETES, f"k8s.io/kubernetes/cmd/{name}") for name in ("kube-apiserver", "kubelet", "kube-controller-manager", "kube-scheduler", "kubectl")},
    "deviceplugin": Program(NODE, KUBERNETES, "deviceplugin"),
    "policy": Program(NODE, KUBERNETES, "policy"),
    "policy-beta": Program(POLICY_BETA, KUBERNETES_BETA, "policy", "v1beta1"),
    "helm": Program(HELM, "4.3.1", "helm.sh/helm/v4/cmd/helm"),
    # Prometheus 3 counts its modules apart: 0.312 is 3.12.
    "prometheus": Program(PROMETHEUS, "3.12.0", "github.com/prometheus/prometheus/cmd/prometheus", "netgo,remove_all_sd,enable_kubernetes_sd"),
    "alertmanager": Program(ALERTMANAGER, "0.31.1", "github.com/prometheus/alertmanager/cmd/alertmanager"),
    "operator": Program(OPERATOR, "0.85.0", "github.com/prometheus-operator/prometheus-operator/cmd/operator"),
    "collector": Program(OTELCOL, COLLECTOR, "collector"),
    "kyverno": Program(KYVERNO, "1.19.1", "github.com/kyverno/kyverno/cmd/cli/kubectl-kyverno"),
}


class BuildError(Exception):
    """A program cannot be built."""


def source_of(package):
    return next(folder / package for folder in SOURCES if (folder / package).is_dir())


def path(name):
    """Where a program is, once built."""
    program = PROGRAMS[name]
    source = ""
    if program.is_ours:
        files = sorted(source_of(program.package).iterdir())
        source = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]
    return CACHE / "bin" / "-".join(part for part in (name, program.version, source) if part)


def missing():
    return [name for name in PROGRAMS if not path(name).exists()]


def environment():
    return {**os.environ, "GOFLAGS": " ".join(filter(None, ["-mod=mod", os.environ.get("GOFLAGS", "")])), "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}


def go(folder, *words):
    done = subprocess.run(["go", *words], cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise BuildError(f"go {' '.join(words)}:\n{done.stdout[-3000:]}")
    return done.stdout


def prepare(module):
    """The module's folder with a go.mod; that of Kubernetes names the published versions of its staging modules."""
    folder = CACHE / "src" / module.name
    if (folder / "ready").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    go(folder, "mod", "init", f"stepmem.test/{module.name}")
    replaces = list(module.replaces)
    if module.kubernetes:
        [required] = module.requires
        go(folder, "mod", "download", required)
        upstream = pathlib.Path(go(folder, "env", "GOMODCACHE").strip()) / "cache/download/k8s.io/kubernetes/@v" / f"v{module.kubernetes}.mod"
        staged = [line.split("=>")[0].removeprefix("replace").strip() for line in upstream.read_text().splitlines() if "=> ./staging" in line]
        replaces += [f"{name}={name}@v0.{module.kubernetes.removeprefix('1.')}" for name in staged]
    if replaces:
        go(folder, "mod", "edit", *(f"-replace={replace}" for replace in replaces))
    if module.requires:
        go(folder, "get", *module.requires)
    (folder / "ready").touch()
    return folder


def build(name):
    program = PROGRAMS[name]
    folder = prepare(program.module)
    package = program.package
    if program.is_ours:
        # Each module here has a go.mod of its own.
        shutil.copytree(source_of(package), folder / package, dirs_exist_ok=True, ignore=shutil.ignore_patterns("go.mod", "go.sum"))
        package = f"./{package}"
    flags = "-s -w"
    if program.module.kubernetes:
        major, minor, _ = program.version.split(".")
        base = "k8s.io/component-base/version"
        flags += f" -X {base}.gitVersion=v{program.version} -X {base}.gitMajor={major} -X {base}.gitMinor={minor}"
    target = path(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Without tables for a debugger each package compiles a tenth faster.
    go(folder, "build", "-gcflags=all=-dwarf=false", "-ldflags", flags, "-tags", program.tags, "-o", f"{target}.new", package)
    recorded, found = recorded_sums().get(name), sum_of_modules(f"{target}.new")
    if recorded != (program.version, found):
        raise BuildError(f"{name}: its modules have the hash {found}, and {SUMS.name} has {recorded}; go version -m {target}.new lists them")
    os.replace(f"{target}.new", target)


def sum_of_modules(file):
    """A hash of the modules that a program was linked from, with their checksums; our own one has none."""
    lines = go(HERE, "version", "-m", str(file)).splitlines()
    linked = [line.strip() for line in lines if line.startswith(("\tmod\t", "\tdep\t", "\t=>\t")) and "stepmem.test/" not in line]
    return hashlib.sha256("\n".join(linked).encode()).hexdigest()


def recorded_sums():
    """The version and hash of each program."""
    return {name: (version, found) for name, version, found in (line.split() for line in SUMS.read_text().splitlines())}


def build_missing():
    for name in missing():
        print(f"building {name} {PROGRAMS[name].version}", end=" ", flush=True)
        began = time.monotonic()
        build(name)
        print(f"({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(f"not built yet: {', '.join(missing())}" if missing() else 0)
    if sys.argv[1:] == ["--bless"]:
        SUMS.write_text("".join(f"{name} {program.version} {sum_of_modules(path(name))}\n" for name, program in PROGRAMS.items()))
        sys.exit()
    try:
        build_missing()
    except (BuildError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")

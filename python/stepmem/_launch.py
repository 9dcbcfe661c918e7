"""Identifies the launch that this process belongs to, without communication: every rank must find the same.

The launcher is the process that started all ranks of this node: the nearest ancestor whose environment does not name a
rank, as torchrun's agent. A process that was not launched as a rank is its own launcher.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Mapping, NamedTuple, Optional

from ._descriptors import read_file
from ._isolation import library
from ._signals import raise_if_of_handler

PROC_BYTES_MAX = 1 << 22
"""Bytes of a file of `/proc` that are read, at most."""

IMPORTED_BY = os.getpid()
"""The process that imported the client: in a forked child, its parent or an older ancestor."""

IMPORTED_AT = time.time()
"""Unix time of the import, in seconds."""

ANCESTORS_MAX = 16
"""Ancestors that are read, at most."""

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""Variables of the rank: torchrun and Ray, Open MPI, MPICH and Intel MPI, Slurm."""

LOCAL_SIZE_VARIABLES = (
    ("LOCAL_WORLD_SIZE", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
    ("MPI_LOCALNRANKS", "PMI_SIZE"),
)
"""Variables of the number of ranks on this node and of all."""


LAUNCH_BYTES_MAX = 32
"""Longest result of `launch_suffix`, in bytes."""


class Launcher(NamedTuple):
    """The process that started the ranks of this node."""

    pid: int
    ticks: str
    """Time at which it started, in clock ticks since the machine did; empty if unknown."""
    started_at: float
    """Time at which it started, in Unix seconds."""


def find_launcher(environment: Mapping[str, str]) -> Launcher:
    """Returns the launcher of this process."""
    multiprocessing: Any = library("multiprocessing")
    parent = multiprocessing.parent_process() if hasattr(multiprocessing, "parent_process") else None
    pid: int = IMPORTED_BY if parent is None else parent.pid
    for _ in range(0 if _is_alone(environment) else ANCESTORS_MAX):
        above = _parent(pid) if _is_rank(pid) else 0
        if above < 1:
            break
        pid = above
    ticks = _stat(pid, 22)
    return Launcher(pid, ticks, _started_at(ticks))


def launch_id(environment: Mapping[str, str]) -> str:
    """Returns an identifier of the launch, equal on all its ranks and in all its attempts.

    Where several nodes are launched on their own, it is that of their rendezvous, which a later launch may repeat.
    """
    if spans_nodes(environment):
        if environment.get("STEPMEM_KUBERNETES_UID"):
            return _hash("kubernetes", environment["STEPMEM_KUBERNETES_UID"])
        if environment.get("SLURM_JOB_ID"):
            return _hash("slurm", environment["SLURM_JOB_ID"], environment.get("SLURM_STEP_ID", ""))
        return _hash("rendezvous", environment.get("TORCHELASTIC_RUN_ID", ""), _rendezvous(environment))
    launcher = find_launcher(environment)
    return _hash("process", _boot_id(), _pid_namespace(), str(launcher.pid), launcher.ticks or str(IMPORTED_AT))


def launch_suffix(environment: Mapping[str, str]) -> str:
    """Returns `-MMDD-HHMMSS-PID` of the launcher, in UTC, or `-` and six hex digits where several nodes are launched."""
    if spans_nodes(environment):
        return f"-{fnv1a(_rendezvous(environment)) % (1 << 24):06x}"
    launcher = find_launcher(environment)
    return time.strftime("-%m%d-%H%M%S", time.gmtime(launcher.started_at)) + f"-{launcher.pid}"


def script_name() -> str:
    """Returns the name of the script or module that Python runs; `python` if there is none."""
    path = sys.argv[0] if sys.argv else ""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and path in ("-m", spec.origin):
        name: str = spec.name
        return name[: -len(".__main__")] if name.endswith(".__main__") else name
    if path == "-m":  # the module's packages are still being imported
        words = getattr(sys, "orig_argv", ["-m"])  # from Python 3.10 on
        path = next(iter(words[words.index("-m") + 1 :]), "") if "-m" in words else ""
        return path or "python"
    name = os.path.splitext(os.path.basename(path))[0]
    return "python" if path in ("", "-", "-c") or not name else name


def spans_nodes(environment: Mapping[str, str]) -> bool:
    """Returns whether the ranks of this launch are on several nodes."""
    for local, world in LOCAL_SIZE_VARIABLES:
        if environment.get(local, "").isdecimal() and environment.get(world, "").isdecimal():
            return int(environment[local]) < int(environment[world])
    nodes = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES", "")
    if "SLURM_PROCID" in environment and nodes.isdecimal():
        return int(nodes) > 1
    world, address = environment.get("WORLD_SIZE", ""), environment.get("MASTER_ADDR", "")
    # In older PyTorchJobs the master's own address of itself is localhost.
    is_local = address in ("", "localhost", "127.0.0.1", "::1") and not environment.get("STEPMEM_KUBERNETES_UID")
    return world.isdecimal() and int(world) > 1 and not is_local


def _rendezvous(environment: Mapping[str, str]) -> str:
    """Returns the address at which the ranks of a launch meet."""
    return f"{environment.get('MASTER_ADDR', '')}:{environment.get('MASTER_PORT', '')}"


def _is_alone(environment: Mapping[str, str]) -> bool:
    """Returns whether a rank was set by hand for a single process: its parent is a shell that may start it again."""
    launched = ("TORCHELASTIC_RUN_ID", *RANK_VARIABLES[1:])
    return environment.get("WORLD_SIZE", "1") == "1" and not any(name in environment for name in launched)


def _is_rank(pid: int) -> bool:
    """Returns whether a process was started with a rank in its environment; False if that is not readable."""
    names = {entry.partition(b"=")[0] for entry in _read(f"/proc/{pid}/environ").split(b"\0")}
    return any(name.encode() in names for name in RANK_VARIABLES)


def _parent(pid: int) -> int:
    """Returns the id of a process's parent; 0 if unknown or in another PID namespace."""
    parent = _stat(pid, 4)
    return int(parent) if parent.isdecimal() else 0


def _stat(pid: int, field: int) -> str:
    """Returns a field of `/proc/PID/stat`, counted from 1 as in proc(5); empty if unknown."""
    fields = _read(f"/proc/{pid}/stat").decode("utf-8", "replace").rpartition(")")[2].split()
    return fields[field - 3] if len(fields) > field - 3 else ""


def _started_at(ticks: str) -> float:
    try:
        booted_at = next(int(line.split()[1]) for line in _read("/proc/stat").split(b"\n") if line.startswith(b"btime "))
        return booted_at + int(ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, StopIteration) as error:
        raise_if_of_handler(error)
        return IMPORTED_AT


def _read(path: str) -> bytes:
    """Returns a file of `/proc`; empty if it cannot be read."""
    return read_file(path, PROC_BYTES_MAX) or b""


def _boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def _pid_namespace() -> str:
    """Returns the PID namespace, which differs between containers whose launchers are all process 1."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError as error:
        raise_if_of_handler(error)
        return ""


def _hash(*parts: str) -> str:
    """Returns sixteen hex digits."""
    return f"{fnv1a('|'.join(parts)):016x}"


def fnv1a(text: str) -> int:
    """Returns the 64-bit FNV-1a hash. Importing `hashlib` would take MiBs."""
    value = 0xCBF29CE484222325
    for byte in text.encode("utf-8", "surrogateescape"):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value

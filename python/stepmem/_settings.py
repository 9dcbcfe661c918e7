"""Parses the environment: where to push, and the place of this process in its run."""

from __future__ import annotations

import os
import sys
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

SOCKET_DEFAULT = "/run/stepmem/push.sock"
"""Unix socket to push to if it exists and no address is set."""

ADDRESS_DEFAULT = ("127.0.0.1", 9478)
"""Host and port to push to by default."""

RUN_BYTES_MAX = 128
"""Longest run name that the exporter accepts, in bytes of UTF-8."""

RANK_MAX = (1 << 20) - 1
"""Largest rank that the exporter accepts."""


class Target(NamedTuple):
    """Address of the exporter: a Unix socket if `socket_path` is set, otherwise host and port.

    `prefix` is the path before `/v1`, empty or with a leading slash.
    """

    socket_path: Optional[str]
    host: str
    port: int
    prefix: str

    def __str__(self) -> str:
        return f"unix://{self.socket_path}" if self.socket_path else f"http://{self.host}:{self.port}{self.prefix}"


class Settings(NamedTuple):
    """The environment variables `STEPMEM_*` except those of Identity; None if not set."""

    url: Optional[str]
    token: Optional[str]
    resets_peak: bool
    snapshot_directory: Optional[str]
    is_disabled: bool

    @staticmethod
    def read(environment: Mapping[str, str]) -> "Settings":
        """Parses the settings. Raises ValueError or OSError, naming the variable, if one is invalid."""
        url = environment.get("STEPMEM_PUSH_URL") or None
        if url is not None:
            parse_url(url)
        token_file = environment.get("STEPMEM_PUSH_TOKEN_FILE")
        token = None
        if token_file:
            with open(token_file, encoding="latin-1") as file:
                token = file.read().strip()
            if any(character < "!" or character > "~" for character in token):
                raise ValueError(f"STEPMEM_PUSH_TOKEN_FILE: {token_file} does not hold a single word of printable ASCII")
        return Settings(
            url=url,
            token=token,
            resets_peak=_switch(environment, "STEPMEM_RESET_PEAK"),
            snapshot_directory=environment.get("STEPMEM_SNAPSHOT_DIRECTORY") or None,
            is_disabled=_switch(environment, "STEPMEM_DISABLED"),
        )

    def target(self) -> Target:
        """Returns where to push now; without an address, the Unix socket if it exists at this moment."""
        if self.url is not None:
            return parse_url(self.url)
        if os.path.exists(SOCKET_DEFAULT):
            return Target(SOCKET_DEFAULT, "localhost", 0, "")
        return Target(None, *ADDRESS_DEFAULT, "")


class Identity(NamedTuple):
    """The place of this process in its run; None if unknown."""

    run: str
    attempt: int
    rank: int
    local_rank: Optional[int]
    world_size: Optional[int]
    node_rank: Optional[int]

    @staticmethod
    def read(environment: Mapping[str, str]) -> "Identity":
        """Reads `STEPMEM_*`, `torch.distributed`, torchrun (Ray sets the same), MPI or Slurm, in this order.

        The rank is 0 if none of them sets it.
        """
        variables = _launcher(environment)
        group_rank, world_size = _process_group()
        rank = _integer(environment, ["STEPMEM_RANK"])
        if rank is None:
            rank = group_rank if group_rank is not None else _integer(environment, variables[:1])
        attempts = ["STEPMEM_ATTEMPT", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"]
        return Identity(
            run=_run(environment),
            attempt=_integer(environment, attempts) or 0,
            rank=rank if rank is not None and rank <= RANK_MAX else 0,
            local_rank=_integer(environment, variables[1:2]),
            world_size=world_size or _integer(environment, variables[2:3]) or None,
            node_rank=_integer(environment, variables[3:4]),
        )


LAUNCHERS = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_NODE_RANK"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_NODEID"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NODEID"),
)
"""Variables of rank, local rank, world size and node rank: torchrun and Ray, Open MPI, MPICH and Intel MPI, Slurm."""


def parse_url(url: str) -> Target:
    """Parses `unix:///path/of.sock` or `http://host:port`. Raises ValueError for anything else."""
    invalid = ValueError(f"STEPMEM_PUSH_URL: {url!r} is neither unix:///PATH nor http://HOST:PORT")
    if url.startswith("unix://"):
        path = url[len("unix://") :]
        if not path.startswith("/"):
            raise invalid
        return Target(path, "localhost", 0, "")
    if not url.startswith("http://"):
        raise invalid
    authority, _, path = url[len("http://") :].partition("/")
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        host, port = authority, str(ADDRESS_DEFAULT[1])
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or any(c <= " " or c > "~" for c in url):
        raise invalid
    return Target(None, host, int(port), "/" + path.rstrip("/") if path.rstrip("/") else "")


def _switch(environment: Mapping[str, str], name: str) -> bool:
    """Parses 1, 0, true or false; 0 if not set."""
    value = environment.get(name, "").lower()
    if value in ("1", "true"):
        return True
    if value in ("", "0", "false"):
        return False
    raise ValueError(f"{name}: {value!r} is neither 1 nor 0")


def _integer(environment: Mapping[str, str], names: "List[str] | Tuple[str, ...]") -> Optional[int]:
    """Returns the first of these variables that is a non-negative integer; None if none is."""
    for name in names:
        value = environment.get(name, "")
        if value.isdecimal() and len(value) < 16:
            return int(value)
    return None


def _launcher(environment: Mapping[str, str]) -> Tuple[str, ...]:
    """Returns the entry of LAUNCHERS that is set; empty if none is."""
    for variables in LAUNCHERS:
        if environment.get(variables[0], "").isdecimal():
            if variables[0] == "RANK" and "NODE_RANK" in environment:
                return (*variables[:3], "NODE_RANK")
            return variables
    return ()


def _process_group() -> Tuple[Optional[int], Optional[int]]:
    """Returns rank and world size of the default process group of `torch.distributed`; None if there is none."""
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
    except Exception:  # a stub, or a group that is being destroyed
        pass
    return None, None


def _run(environment: Mapping[str, str]) -> str:
    """Returns the run's name: `STEPMEM_RUN`, the launcher's, or the program's."""
    name = environment.get("STEPMEM_RUN")
    if not name and environment.get("TORCHELASTIC_RUN_ID", "none") != "none":
        run_id = environment["TORCHELASTIC_RUN_ID"]
        # The script's name says more than a UUID that torchrun made up.
        name = "" if len(run_id) == 36 and run_id.count("-") == 4 else run_id
    if not name and environment.get("SLURM_JOB_ID") and "SLURM_PROCID" in environment:
        name = f"{environment.get('SLURM_JOB_NAME') or 'slurm'}-{environment['SLURM_JOB_ID']}"
    if not name:
        name = _program()
    return _clean(name) or "default"


def _program() -> str:
    """Returns the script's name without `.py`, the module of `python -m`, or `python` for `-c` and standard input."""
    script = sys.argv[0] if sys.argv else ""
    if script in ("-c", "-"):
        return "python"
    if script == "-m":  # the module is not found yet
        words = getattr(sys, "orig_argv", [])  # from Python 3.10 on
        module = words[words.index("-m") + 1 :][:1] if "-m" in words else []
        return module[0] if module else "python"
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return str(spec.name[: -len(".__main__")] if spec.name.endswith(".__main__") else spec.name)
    return os.path.splitext(os.path.basename(script))[0]


def _clean(name: str) -> str:
    """Returns a name that the exporter accepts: no control characters, at most RUN_BYTES_MAX bytes."""
    plain = "".join(character for character in name if character.isprintable())
    return plain.encode("utf-8", "ignore")[:RUN_BYTES_MAX].decode("utf-8", "ignore")

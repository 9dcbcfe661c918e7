"""What the environment says: where to push, and who this process is. Nothing else reads the environment."""

from __future__ import annotations

import os
import sys
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

SOCKET_DEFAULT = "/run/stepmem/push.sock"
"""The Unix socket that is used when it is there and no address is given."""

ADDRESS_DEFAULT = ("127.0.0.1", 9478)
"""Where the exporter takes pushes when nothing else is said."""

RUN_BYTES_MAX = 128
"""The longest name of a run that the exporter takes."""

RANK_MAX = (1 << 20) - 1
"""The greatest rank that the exporter takes."""


class Target(NamedTuple):
    """Where to push: a Unix socket, or a host and port with the path before `/v1`."""

    socket_path: Optional[str]
    host: str
    port: int
    prefix: str

    def __str__(self) -> str:
        return f"unix://{self.socket_path}" if self.socket_path else f"http://{self.host}:{self.port}{self.prefix}"


class Settings(NamedTuple):
    """What the environment says to this client."""

    url: Optional[str]
    token: Optional[str]
    resets_peak: bool
    snapshot_directory: Optional[str]
    is_disabled: bool

    @staticmethod
    def read(environment: Mapping[str, str]) -> "Settings":
        """Reads the settings; raises ValueError or OSError, which names the variable, for what makes no sense."""
        url = environment.get("STEPMEM_PUSH_URL") or None
        if url is not None:
            parse_url(url)
        token_file = environment.get("STEPMEM_PUSH_TOKEN_FILE")
        token = None
        if token_file:
            with open(token_file, encoding="latin-1") as file:
                token = file.read().strip()
            if any(character < "!" or character > "~" for character in token):
                raise ValueError(f"STEPMEM_PUSH_TOKEN_FILE: {token_file} holds more than one word of ASCII")
        return Settings(
            url=url,
            token=token,
            resets_peak=_switch(environment, "STEPMEM_RESET_PEAK"),
            snapshot_directory=environment.get("STEPMEM_SNAPSHOT_DIRECTORY") or None,
            is_disabled=_switch(environment, "STEPMEM_DISABLED"),
        )

    def target(self) -> Target:
        """Where to push now; without an address, the Unix socket as soon as it is there."""
        if self.url is not None:
            return parse_url(self.url)
        if os.path.exists(SOCKET_DEFAULT):
            return Target(SOCKET_DEFAULT, "localhost", 0, "")
        return Target(None, *ADDRESS_DEFAULT, "")


class Identity(NamedTuple):
    """Who this process is in its run; None is unknown."""

    run: str
    attempt: int
    rank: int
    local_rank: Optional[int]
    world_size: Optional[int]
    node_rank: Optional[int]

    @staticmethod
    def read(environment: Mapping[str, str]) -> "Identity":
        """As `torch.distributed` says, else torchrun (Ray sets the same), MPI or Slurm; alone, rank 0."""
        variables = _launcher(environment)
        rank, world_size = _distributed()
        if rank is None:
            rank = _integer(environment, ["STEPMEM_RANK", *variables[:1]])
        else:
            own = _integer(environment, ["STEPMEM_RANK"])
            rank = rank if own is None else own
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
"""The variables of rank, local rank, world size and node rank: torchrun and Ray, Open MPI, MPICH and Intel MPI, Slurm."""


def parse_url(url: str) -> Target:
    """`unix:///path/of.sock` or `http://host:port`; raises ValueError for anything else."""
    problem = ValueError(f"STEPMEM_PUSH_URL: {url!r} is neither unix:///PATH nor http://HOST:PORT")
    if url.startswith("unix://"):
        path = url[len("unix://") :]
        if not path.startswith("/"):
            raise problem
        return Target(path, "localhost", 0, "")
    if not url.startswith("http://"):
        raise problem
    authority, _, path = url[len("http://") :].partition("/")
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        host, port = authority, str(ADDRESS_DEFAULT[1])
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or any(c <= " " or c > "~" for c in url):
        raise problem
    return Target(None, host, int(port), "/" + path.rstrip("/") if path.rstrip("/") else "")


def _switch(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "").lower()
    if value in ("1", "true"):
        return True
    if value in ("", "0", "false"):
        return False
    raise ValueError(f"{name}: {value!r} is neither 1 nor 0")


def _integer(environment: Mapping[str, str], names: "List[str] | Tuple[str, ...]") -> Optional[int]:
    """The first of these variables that holds a plain integer."""
    for name in names:
        value = environment.get(name, "")
        if value.isdecimal() and len(value) < 16:
            return int(value)
    return None


def _launcher(environment: Mapping[str, str]) -> Tuple[str, ...]:
    for variables in LAUNCHERS:
        if environment.get(variables[0], "").isdecimal():
            if variables[0] == "RANK" and "NODE_RANK" in environment:
                return (*variables[:3], "NODE_RANK")
            return variables
    return ()


def _distributed() -> Tuple[Optional[int], Optional[int]]:
    """Rank and world size of torch's process group, where there is one."""
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
    except Exception:  # a stub, or one that is being torn down
        pass
    return None, None


def _run(environment: Mapping[str, str]) -> str:
    """The run's name: as given, the launcher's, else that of the script."""
    name = environment.get("STEPMEM_RUN")
    if not name and environment.get("TORCHELASTIC_RUN_ID", "none") != "none":
        given = environment["TORCHELASTIC_RUN_ID"]
        # What torchrun made up says less than the script's name.
        name = "" if len(given) == 36 and given.count("-") == 4 else given
    if not name and environment.get("SLURM_JOB_ID") and "SLURM_PROCID" in environment:
        name = f"{environment.get('SLURM_JOB_NAME') or 'slurm'}-{environment['SLURM_JOB_ID']}"
    if not name:
        name = os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))[0]
    return _clean(name) or "default"


def _clean(name: str) -> str:
    """A name that the exporter takes: no control characters, at most RUN_BYTES_MAX bytes."""
    plain = "".join(character for character in name if character.isprintable())
    return plain.encode("utf-8", "ignore")[:RUN_BYTES_MAX].decode("utf-8", "ignore")

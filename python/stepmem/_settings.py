"""Parses the environment: where to push, and the place of this process in its run."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import os
import stat
import sys
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ._descriptors import OwnFile, opened
from ._launch import LAUNCH_BYTES_MAX, RANK_VARIABLES, launch_id, launch_suffix, script_name, spans_nodes
from ._signals import raise_if_of_handler

SOCKET_DEFAULT = "/run/stepmem/push.sock"
"""Unix socket to push to if it exists and no address is set."""

ADDRESS_DEFAULT = ("127.0.0.1", 9478)
"""Host and port to push to by default."""

RUN_BYTES_MAX = 128
"""Longest run name that the exporter accepts, in bytes of UTF-8."""

TOKEN_FILE_BYTES_MAX = 8192
"""Characters of a token file that are read, at most."""

TIME_MAX = 253_402_300_799
"""Largest Unix time that the exporter accepts: the end of the year 9999."""

RANK_MAX = (1 << 20) - 1
"""Largest rank that the exporter accepts."""


IMAGE_UID = 65532
"""User of the exporter's image, which may own the default socket."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Hosts of plain http to which a token may go without a warning."""


class Target(NamedTuple):
    """Address of the exporter: a Unix socket if `socket_path` is set, otherwise host and port.

    `prefix` is the path before `/v1`, empty or with a leading slash.
    """

    socket_path: Optional[str]
    host: str
    port: int
    prefix: str
    is_tls: bool = False

    def __str__(self) -> str:
        if self.socket_path:
            return f"unix://{self.socket_path}"
        return f"http{'s' if self.is_tls else ''}://{self.host}:{self.port}{self.prefix}"


class Settings(NamedTuple):
    """The environment variables `STEPMEM_*` except those of Identity; None if not set."""

    url: Optional[str]
    token: Optional[str]
    counts_peaks: bool
    """Gives each step its exact peak, which resets PyTorch's counters; otherwise there are high-water marks only."""
    snapshot_directory: Optional[str]
    is_disabled: bool
    capacity_bytes: Optional[int] = None
    """The memory that a process without CUDA may take."""
    names_holders: bool = True
    """Lets the client search for what holds the memory when the exporter requests it."""
    socket_uid: Optional[int] = None
    """User that may own the socket besides root and the own one."""
    token_file: Optional[str] = None
    """File of `token`, to read it again after the exporter refused it."""
    ca_file: Optional[str] = None
    """Certificates that the exporter's is checked against; the system's if not set."""
    cert_file: Optional[str] = None
    """Certificate of this client, if the exporter requires one."""
    key_file: Optional[str] = None
    """Key of `cert_file`, if it is in a file of its own."""
    writes_on_oom: bool = False
    """Makes out-of-memory errors leave a snapshot, without a call of the program."""
    reads_every_step: bool = False
    """Makes the client read short steps that the optimizer hook counts, too, at any cost."""
    traces_lines: Optional[bool] = None
    """Lets the client trace the lines that allocate growing host memory. None: only if an operator requests it."""
    deadline_signal: Optional[int] = None
    """Signal that the process gets when memory runs out soon, if the program has a handler for it."""
    problems: str = ""
    """A sentence about the variables that are invalid, and what is taken instead; empty if none is."""

    @staticmethod
    def read(environment: Mapping[str, str]) -> "Settings":
        """Parses the settings. Raises ValueError or OSError, naming the variable, if one is invalid that decides where to push.

        Of the others an invalid one counts as what does least to the program.
        """
        problems: List[str] = []

        def lenient(parse: Callable[..., Any], instead: Any, shown: str, *name: str) -> Any:
            try:
                return parse(environment, *name)
            except ValueError as error:
                raise_if_of_handler(error)
                problems.append(f"{error}, so {shown}")
                return instead

        url = environment.get("STEPMEM_PUSH_URL") or None
        if url is not None:
            parse_url(url)
        token_file = environment.get("STEPMEM_PUSH_TOKEN_FILE") or None
        read = Settings(
            url=url,
            token=read_token(token_file) if token_file else None,
            counts_peaks=lenient(_counts_peaks, False, "peaks are observed, and no counter is reset"),
            snapshot_directory=environment.get("STEPMEM_SNAPSHOT_DIRECTORY") or None,
            is_disabled=lenient(_switch, True, "nothing is pushed", "STEPMEM_DISABLED"),
            capacity_bytes=lenient(_bytes, None, "no capacity is set", "STEPMEM_CAPACITY"),
            names_holders=lenient(_names_holders, False, "no holder is searched for"),
            socket_uid=_uid(environment, "STEPMEM_PUSH_SOCKET_UID"),
            token_file=token_file,
            ca_file=environment.get("STEPMEM_PUSH_CA_FILE") or None,
            cert_file=environment.get("STEPMEM_PUSH_CERT_FILE") or None,
            key_file=environment.get("STEPMEM_PUSH_KEY_FILE") or None,
            writes_on_oom=lenient(_switch, False, "out-of-memory errors leave no snapshot", "STEPMEM_SNAPSHOT_ON_OOM"),
            reads_every_step=lenient(_switch, False, "short steps are not all read", "STEPMEM_EVERY_STEP"),
            traces_lines=lenient(_traces_lines, False, "no line is traced"),
            deadline_signal=lenient(_signal_number, None, "no signal is sent", "STEPMEM_DEADLINE_SIGNAL"),
        )
        return read._replace(problems="; ".join(problems))

    def target(self) -> Target:
        """Returns where to push now; without an address, the Unix socket if it exists at this moment."""
        if self.url is not None:
            return parse_url(self.url)
        if os.path.exists(SOCKET_DEFAULT):
            return Target(SOCKET_DEFAULT, "localhost", 0, "")
        return Target(None, *ADDRESS_DEFAULT, "")

    def trusts_owner(self, socket_path: str, uid: int) -> bool:
        """Returns whether the exporter on `socket_path` may run as user `uid`."""
        if uid == 0 or uid == os.geteuid() or uid == self.socket_uid:
            return True
        return self.socket_uid is None and socket_path == SOCKET_DEFAULT and uid == IMAGE_UID

    def may_push(self, target: Target) -> bool:
        """Returns whether anything is pushed to `target`: with a token, to no default TCP address, where anybody may listen."""
        return not self.token_file or self.url is not None or target.socket_path is not None


class Identity(NamedTuple):
    """The place of this process in its run; None if unknown."""

    run: str
    attempt: int
    rank: int
    local_rank: Optional[int]
    world_size: Optional[int]
    node_rank: Optional[int]
    instance: Optional[str] = None
    """Sixteen random hex digits of this process. They appear in pushes only."""
    launch: Optional[str] = None
    """Equal on all ranks of a launch, in all its attempts."""
    deadline: Optional[int] = None
    """Unix time at which the job's time is over."""

    @staticmethod
    def read(environment: Mapping[str, str]) -> "Identity":
        """Reads `STEPMEM_*`, `torch.distributed`, torchrun (Ray sets the same), MPI or Slurm, in this order.

        The rank is 0 if none of them sets it.
        """
        variables = _launcher(environment)
        group_rank, world_size = _process_group()
        rank = _integer(environment, ["STEPMEM_RANK"], RANK_MAX)
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
            instance=os.urandom(8).hex(),
            launch=launch_id(environment),
            deadline=min(_integer(environment, ["SLURM_JOB_END_TIME"]) or 0, TIME_MAX) or None,
        )


def misread(environment: Mapping[str, str], identity: Identity) -> str:
    """Returns a sentence about the user's variables that Identity could not read; empty if there are none."""
    taken = (("STEPMEM_RANK", RANK_MAX, identity.rank), ("STEPMEM_ATTEMPT", INTEGER_MAX, identity.attempt))
    return "; ".join(
        f"{name}: {environment[name][:64]!r} is not an integer from 0 to {largest}, so it is {used}"
        for name, largest, used in taken
        if environment.get(name) and _integer(environment, [name], largest) is None
    )


LAUNCHERS = tuple(
    (rank, *others)
    for rank, others in zip(
        RANK_VARIABLES,
        (
            ("LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_NODE_RANK"),
            ("MPI_LOCALRANKID", "PMI_SIZE", "MPI_NODEID"),
            ("SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NODEID"),
        ),
    )
)
"""Variables of rank, local rank, world size and node rank: torchrun and Ray, Open MPI, MPICH and Intel MPI, Slurm."""


def read_token(path: str) -> str:
    """Reads a token: one word of printable ASCII, not empty. Raises ValueError or OSError."""
    try:
        token = _first_bytes(path, TOKEN_FILE_BYTES_MAX).decode("utf-8", "replace").strip()
    except OSError as error:
        raise_if_of_handler(error)
        raise OSError(f"STEPMEM_PUSH_TOKEN_FILE: {error}") from None
    if not token or any(character < "!" or character > "~" for character in token):
        raise ValueError(f"STEPMEM_PUSH_TOKEN_FILE: {path} does not hold a single word of printable ASCII")
    return token


def _first_bytes(path: str, n_bytes_max: int) -> bytes:
    """Reads the beginning of a file or pipe. Raises OSError."""
    if stat.S_ISREG(os.stat(path).st_mode):
        with opened(path) as file:
            return file.read(n_bytes_max)
    found = b""
    with OwnFile(os.open, path, os.O_RDONLY | os.O_CLOEXEC, is_marked=False) as file:  # a pipe may have to be waited for
        while len(found) < n_bytes_max:
            if not file.is_ours():
                raise OSError("the program closed a file of the client")
            part = os.read(file.number, n_bytes_max - len(found))
            if not part:
                break
            found += part
    return found


def parse_url(url: str) -> Target:
    """Parses `unix:///path/of.sock`, `http://host:port` or `https://host:port`. Raises ValueError for anything else.

    A user and a password are left out: the client shows a token.
    """
    shown = shown_url(url)
    invalid = ValueError(f"STEPMEM_PUSH_URL: {shown!r} is neither unix:///PATH nor http://HOST:PORT nor https://HOST:PORT")
    if url.startswith("unix://"):
        path = url[len("unix://") :]
        if not path.startswith("/"):
            raise invalid
        return Target(path, "localhost", 0, "")
    scheme, separator, rest = url.partition("://")
    if scheme not in ("http", "https") or not separator:
        raise invalid
    authority, _, path = rest.partition("/")
    authority = authority.rpartition("@")[2]
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        host, port = authority, str(ADDRESS_DEFAULT[1])
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or any(c <= " " or c > "~" for c in url):
        raise invalid
    prefix = "/" + path.rstrip("/") if path.rstrip("/") else ""
    return Target(None, host, int(port), prefix, scheme == "https")


def shown_url(url: str) -> str:
    """Returns a URL without its user and password, for people. All up to the last `@` is hidden, also if it is no URL."""
    if "@" not in url or url.startswith("unix://"):
        return url
    before, _, after = url.rpartition("@")
    scheme, separator, _ = before.partition("://")
    return f"{scheme}://…@{after}" if separator and "@" not in scheme else f"…@{after}"


def _uid(environment: Mapping[str, str], name: str) -> Optional[int]:
    """Parses a user id; None if not set."""
    value = environment.get(name, "")
    if not value:
        return None
    if not (value.isdecimal() and value.isascii() and int(value) < 1 << 32):
        raise ValueError(f"{name}: {value!r} is not a user id")
    return int(value)


def _switch(environment: Mapping[str, str], name: str) -> bool:
    """Parses 1, 0, true or false; 0 if not set."""
    value = environment.get(name, "").lower()
    if value in ("1", "true"):
        return True
    if value in ("", "0", "false"):
        return False
    raise ValueError(f"{name}: {value!r} is neither 1 nor 0")


def _counts_peaks(environment: Mapping[str, str]) -> bool:
    """Parses `STEPMEM_PEAKS`, or the older `STEPMEM_RESET_PEAK`; True if neither is set."""
    value = environment.get("STEPMEM_PEAKS", "").lower()
    if value not in ("", "exact", "observe"):
        raise ValueError(f"STEPMEM_PEAKS: {value!r} is neither exact nor observe")
    if not value and environment.get("STEPMEM_RESET_PEAK"):
        return _switch(environment, "STEPMEM_RESET_PEAK")
    return value != "observe"


def _names_holders(environment: Mapping[str, str]) -> bool:
    """Parses `STEPMEM_HOLDERS`; True if it is not set."""
    value = environment.get("STEPMEM_HOLDERS", "").lower()
    if value not in ("", "on", "off"):
        raise ValueError(f"STEPMEM_HOLDERS: {value!r} is neither on nor off")
    return value != "off"


def _traces_lines(environment: Mapping[str, str]) -> Optional[bool]:
    """Parses `STEPMEM_TRACEMALLOC`; None if it is not set."""
    value = environment.get("STEPMEM_TRACEMALLOC", "").lower()
    if value not in ("", "auto", "off"):
        raise ValueError(f"STEPMEM_TRACEMALLOC: {value!r} is neither auto nor off")
    return None if not value else value == "auto"


def _signal_number(environment: Mapping[str, str], name: str) -> Optional[int]:
    """Parses the name of a signal, such as USR1 or SIGUSR1; None if not set."""
    value = environment.get(name, "").upper()
    full = value if value.startswith("SIG") else f"SIG{value}"
    number: Any = vars(signal).get(full)
    if value and (type(number) is not int or full in NO_SIGNALS or "_" in full):
        raise ValueError(f"{name}: {value!r} is not a signal that a program can handle, such as USR1")
    return number if value else None


NO_SIGNALS = ("SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")
"""Signals that no program handles, or only as an error of its own."""

UNITS: Dict[str, int] = {"": 1, "b": 1, **{f"{prefix}ib": 1024 ** (power + 1) for power, prefix in enumerate("kmgt")}}
UNITS.update({name[:2]: factor for name, factor in UNITS.items() if len(name) == 3})  # as Kubernetes writes them: 2Gi
UNITS.update({f"{prefix}b": 1000 ** (power + 1) for power, prefix in enumerate("kmgt")})
"""Bytes in each unit, in lower case."""

BYTES_MAX = 1 << 53
"""Most bytes that the exporter accepts."""


def _bytes(environment: Mapping[str, str], name: str) -> Optional[int]:
    """Parses a size; None if not set."""
    value = environment.get(name, "").strip()
    return parse_bytes(name, value) if value else None


def parse_bytes(name: str, value: str) -> int:
    """Parses `2GiB`, `512 MB` or plain bytes. Raises ValueError, which names the value, for anything else."""
    number = value.rstrip("bBiIkKmMgGtT ")
    try:
        n_bytes: int = round(float(number) * UNITS[value[len(number) :].strip().lower()])
    except (KeyError, OverflowError, ValueError) as error:
        raise_if_of_handler(error)
        n_bytes = 0
    if not 0 < n_bytes <= BYTES_MAX:
        raise ValueError(f"{name}: {value!r} is not a number of bytes such as 2GiB, from 1 to {BYTES_MAX}")
    return n_bytes


INTEGER_MAX = 10**15 - 1
"""Largest integer that is read of a variable."""


def _integer(
    environment: Mapping[str, str], names: "List[str] | Tuple[str, ...]", largest: int = INTEGER_MAX
) -> Optional[int]:
    """Returns the first of these variables that is an integer from 0 to `largest`; None if none is."""
    for name in names:
        value = environment.get(name, "")
        if value.isdecimal() and len(value) < 16 and int(value) <= largest:
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
    except Exception as error:  # a stub, or a group that is being destroyed
        raise_if_of_handler(error)
    return None, None


def world_size(environment: Mapping[str, str]) -> Optional[int]:
    """Returns the number of ranks by the launcher's variables; None if none says it."""
    return _integer(environment, _launcher(environment)[2:3])


def is_first_of_machine(environment: Mapping[str, str]) -> bool:
    """Returns whether no other rank of this machine has a lower number."""
    return not _integer(environment, _launcher(environment)[1:2])


KUBERNETES_JOBS = (
    "STEPMEM_KUBERNETES_RAYJOB",
    "STEPMEM_KUBERNETES_JOBSET",
    "STEPMEM_KUBERNETES_PYTORCHJOB",
    "STEPMEM_KUBERNETES_JOB",
)
"""Variables that a pod sets from its labels; a JobSet and a RayJob create Jobs, whose names say less."""

UID_BYTES = 8
"""Characters of a job's UID that are part of the run's name: up to its first dash."""


def _run(environment: Mapping[str, str]) -> str:
    """Returns the run's name: `STEPMEM_RUN`, the launcher's, the Kubernetes job's, or the script's with its launch."""
    name = environment.get("STEPMEM_RUN")
    if not name and environment.get("TORCHELASTIC_RUN_ID", "none") != "none":
        run_id = environment["TORCHELASTIC_RUN_ID"]
        # The script's name says more than a UUID that torchrun made up.
        name = "" if len(run_id) == 36 and run_id.count("-") == 4 else run_id
    if not name and environment.get("SLURM_JOB_ID") and "SLURM_PROCID" in environment:
        name = f"{environment.get('SLURM_JOB_NAME') or 'slurm'}-{environment['SLURM_JOB_ID']}"
    name = name or _kubernetes_run(environment)
    if not name and environment.get("RAY_JOB_ID"):
        name = f"ray-{_ray_cluster()}{environment['RAY_JOB_ID']}"
    script = _clean(script_name(), RUN_BYTES_MAX - LAUNCH_BYTES_MAX) or "python"
    return _clean(name or "") or script + launch_suffix(environment)


def _kubernetes_run(environment: Mapping[str, str]) -> str:
    """Returns the name of the Kubernetes job with what distinguishes its reruns; empty if there is none.

    A Job that is deleted and created again has its old name and a new UID. A RayJob gives each of its clusters a new name, and
    a cluster numbers its jobs.
    """
    variable = next((variable for variable in KUBERNETES_JOBS if environment.get(variable)), None)
    if variable is None:
        return ""
    is_ray = variable == "STEPMEM_KUBERNETES_RAYJOB"
    launch = environment.get("RAY_JOB_ID", "") if is_ray else environment.get("STEPMEM_KUBERNETES_UID", "")[:UID_BYTES]
    index = "" if is_ray else _pod_index(environment)
    return "-".join(filter(None, (environment[variable], launch, index)))


def _pod_index(environment: Mapping[str, str]) -> str:
    """Returns the index of this pod if each pod of an indexed Job trains on its own; empty if they train together."""
    _, world_size = _process_group()
    is_placed = environment.get("STEPMEM_RANK") or ((world_size or 1) > 1 and "LOCAL_WORLD_SIZE" not in environment)
    return "" if is_placed or spans_nodes(environment) else environment.get("JOB_COMPLETION_INDEX", "")


def _ray_cluster() -> str:
    """Returns when the Ray cluster was started, as `MMDD-HHMMSS-`; empty if unknown. A cluster counts its jobs from 1."""
    try:
        session = sys.modules["ray"]._private.worker.global_worker.node.session_name
        _, date, clock, *_ = session.split("_")  # session_2026-11-21_16-43-11_123456_4711
        return f"{date[5:].replace('-', '')}-{clock.replace('-', '')}-"
    except Exception as error:  # these names are private
        raise_if_of_handler(error)
        return ""


HIDDEN = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0\ufffc\U00016fe4\U0001d159"
"""Characters that are invisible, though Python calls them printable; the exporter refuses names with them."""

COMBINING = (
    *((0x300, 0x36F), (0x483, 0x489), (0x591, 0x5BD), (0x610, 0x61A), (0x64B, 0x65F), (0x670, 0x670), (0x6D6, 0x6DC)),
    *((0x6DF, 0x6E4), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0x302A, 0x302F), (0x3099, 0x309A)),
    *((0xFE20, 0xFE2F), (0x101FD, 0x101FD), (0x1D165, 0x1D169), (0x1D16D, 0x1D172)),
)
"""Ranges of characters with which a name does not begin: they are drawn onto the one before."""


def _clean(name: str, n_bytes_max: int = RUN_BYTES_MAX) -> str:
    """Returns a name that the exporter accepts: visible, at most `n_bytes_max` bytes; empty if nothing of it is visible."""
    plain = "".join(character for character in name if character.isprintable() and not _is_hidden(character))
    while plain and any(first <= ord(plain[0]) <= last for first, last in COMBINING):
        plain = plain[1:]
    if not plain.strip():
        return ""
    return plain.encode("utf-8", "ignore")[:n_bytes_max].decode("utf-8", "ignore")


def _is_hidden(character: str) -> bool:
    """Returns whether a printable character is invisible: one of HIDDEN, or a variation selector."""
    return character in HIDDEN or "\ufe00" <= character <= "\ufe0f" or "\U000e0000" <= character <= "\U000e0fff"

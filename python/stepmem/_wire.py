"""The layout of a record in the ring, and all JSON that is exchanged with the exporter.

The training thread packs a record, the sender's thread unpacks it and encodes it as JSON.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any, Dict, List, Optional, Set, Tuple

from ._process import Process
from ._settings import RUN_BYTES_MAX, Identity

PHASES = ("train", "eval", "checkpoint", "sample", "idle")
"""Phases of training; a record holds the index of the one that just ended. The last two are records by time: of a model that runs
without steps, and of a process that does neither."""

TIMED_PHASES = PHASES[1:3]
"""Phases that a program can report by these names; others are its own."""

PHASE_NAMES_MAX = 16
PHASE_BYTES_MAX = 32
PHASE_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
"""Names of its own that a program may give to phases, and how long and of what each may be; the exporter takes no others."""

UNKNOWN_PHASE = "a phase of the program's own"
"""Stands among the keys that an exporter does not know for names of phases. It gets `eval`, which counts for peaks only, too."""

EVENT_MARKERS = ("eval", "checkpoint", "epoch")
"""Event markers of a record of a step. A set of them is an integer with a bit for each, in this order."""

UNIT, OF_REPLAYS, OF_CALLS = "unit", 1 << len(EVENT_MARKERS), 1 << 7
UNITS = {OF_REPLAYS: "replays", OF_CALLS: "calls"}
"""JSON key of what the steps of a record are, if others than steps; bits of the two others among the event markers, and their names."""

OUTCOMES = ("completed", "failed", "oom")
"""Outcomes of a rank."""

STEP_MAX = 1 << 53
"""Largest step that the exporter accepts."""

UNKNOWN = -1
"""Unknown integer in a record; the JSON omits its key."""

UNKNOWN_SECONDS = -1.0
"""Unknown duration in a record; the JSON omits its key."""

HOST_PARTS = (
    "host_shared_bytes",
    "host_split_bytes",
    "host_pinned_bytes",
    "workers",
    "workers_bytes",
    "child_processes",
    "child_processes_bytes",
    "host_allocated_bytes",
    "host_total_bytes",
    "workers_own_bytes",
    "child_processes_own_bytes",
    "host_children_shared_bytes",
    "host_children_unread",
    "host_shm_used_bytes",
    "host_shm_limit_bytes",
)
"""JSON keys of shared memory in the rank's host memory, of pinned memory, of its child processes, of that memory and its limit next to a device's figures,
of what the child processes hold of their own and share and how many are not read, and of files in `/dev/shm`."""

PROCESS_LIMITS = ("data_limit_bytes", "data_used_bytes", "address_space_limit_bytes", "address_space_used_bytes")
"""JSON keys of the kernel's limits of the process (`ulimit -d`, `ulimit -v`), each with the figure that it limits."""

CONTAINER = ("container", "container_limit_bytes", "container_used_bytes", "container_oom_kills")
"""JSON keys of the control group that limits the host memory of this process and others. A record holds the number of the group."""

MALLOC = ("malloc_used_bytes", "malloc_free_bytes", "malloc_threads_bytes")
"""JSON keys of what glibc's allocator has given out, what is free, and the part of both outside of its first arena."""

RESERVED_LIMIT = "reserved_limit_bytes"
"""JSON key of the most that the allocator may reserve, by a limit that the program set; in records and in ends."""

PROCESS_USED = "process_used_bytes"
"""JSON key of this process's memory on its GPU, as the driver lists it. Instead of bytes, a record may hold one of these codes."""

FOREIGN_PID_NAMESPACE, MEMORY_HIDDEN, UNSUPPORTED, NO_ANSWER = -2, -3, -4, -5
PROCESS_USED_STATE = "process_used_state"
PROCESS_USED_STATES = {
    FOREIGN_PID_NAMESPACE: "foreign_pid_namespace",
    MEMORY_HIDDEN: "memory_hidden",
    UNSUPPORTED: "unsupported",
    NO_ANSWER: "no_answer",
}
"""JSON key and values of the reason for which the bytes are unknown, by code."""

TOTAL_STEPS = "total_steps"
"""JSON key of the step with which training ends."""

ON_DEADLINE, CHECKPOINT = "on_deadline", "checkpoint"
"""JSON key of what the program does when memory runs out soon, and its value; also the type of the exporter's ask."""

DEVICE_MEMORY, UNIFIED, NUMA_NODE = "device_memory", "unified", "numa_node"
"""JSON key and values of the kind of a GPU's memory that is not its own alone: it is the machine's, or the operating system manages it."""

FIGURES = (
    "allocated_bytes",
    "peak_allocated_bytes",
    "reserved_bytes",
    "peak_reserved_bytes",
    "inactive_split_bytes",
    "alloc_retries",
    "ooms",
    "requested_bytes",
    "live_blocks",
    "private_pools_bytes",
    "total_bytes",
    "free_bytes",
    RESERVED_LIMIT,
    "high_water_allocated_bytes",
    "high_water_reserved_bytes",
    *HOST_PARTS,
    *PROCESS_LIMITS,
    *MALLOC,
    *CONTAINER,
    PROCESS_USED,
)
"""JSON keys of a record's figures, in the order of RECORD. Each figure may be UNKNOWN. A new one needs no other table."""

COUNTS = ("alloc_retries", "ooms", "live_blocks", "workers", "child_processes", "container_oom_kills")
"""The figures that take four bytes of a record; each of the others takes eight."""

RECORD = struct.Struct("<dfqqIBBB" + "".join("i" if key in COUNTS else "q" for key in FIGURES))
"""One record in the ring: Unix time, duration (both in seconds), sequence number, step, how many steps it stands for, indices of
device and phase, event markers, and a value for each of FIGURES."""

FILL = ("items", "items_max", "items_per_step")
LINES = "lines"
"""Keys of a holder that has a bound, and of a report with a search for lines."""

END_PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes")
"""Keys of an end for the peaks since the last record."""

BEGAN = "began"
"""Outcome of a snapshot that is being recorded."""

UNKNOWN_KEYS_MAX = 64
"""Keys that are left out for an exporter that does not know them."""

KEY_BYTES_MAX = 64
"""A key is shorter."""

STEPS_PATH = "/v1/steps"
SNAPSHOTS_PATH = "/v1/snapshots"
HOLDERS_PATH = "/v1/holders"

JSON = "application/json"
JSON_LINES = "application/x-ndjson"

ERROR_CHARACTERS_MAX = 400
"""Longest error text that is pushed; the rest is cut off."""

ERROR_TYPE_BYTES_MAX = 128
MESSAGE_BYTES_MAX = 256
"""Longest type and message of the error in an end, in bytes of UTF-8."""

HOLDER_NAME_BYTES_MAX = 160
HOLDER_KIND_BYTES_MAX = 48
HOLDER_FILE_BYTES_MAX = 512
HOLDER_FUNCTION_BYTES_MAX = 128
"""Longest texts of a holder, in bytes of UTF-8."""

INFINITY = float("inf")

SCAN_STEPS_DEFAULT = 20
"""Steps between two heap scans for a request that does not name a number."""

SNAPSHOT_STEPS_DEFAULT = 20
"""Steps to record for a request that does not name a number."""

REASON_BYTES_MAX = 512
"""Longest reason of an ask to write a checkpoint, in bytes of UTF-8; the rest is cut off."""

EVERY_SECONDS, EVERY_SECONDS_MIN = 600.0, 60.0
"""Time in which at most one checkpoint is written, in seconds: of an ask that names none, and at least."""

SNAPSHOT_REASONS = ("creep", "manual")
"""Reasons of the exporter for a snapshot; one that it does not name, or names otherwise, is the first."""


class Request:
    """A POST request to the exporter. `path` starts with `/v1/`."""

    __slots__ = ("body", "content_type", "path")  # a NamedTuple would take 8 KiB of memory

    def __init__(self, path: str, content_type: str, body: bytes) -> None:
        self.path = path
        self.content_type = content_type
        self.body = body


class SnapshotRequest:
    """The exporter's request for a snapshot, not validated yet."""

    __slots__ = ("id", "max_entries", "n_steps", "rank", "reason")

    def __init__(self, action: Dict[str, object]) -> None:
        self.id = str(action.get("id", ""))
        self.rank = action.get("rank")
        self.n_steps = action.get("steps", SNAPSHOT_STEPS_DEFAULT)
        reason = action.get("reason")
        self.reason = str(reason) if reason in SNAPSHOT_REASONS else SNAPSHOT_REASONS[0]
        entries = action.get("entries_max")
        self.max_entries: Optional[int] = entries if isinstance(entries, int) and entries > 0 else None
        """The most allocations and frees to keep; None if the exporter names no number."""


class SnapshotResult:
    """Result of one memory snapshot: written if `error` is None, unless it has only begun."""

    __slots__ = ("error", "events_per_step", "has_begun", "n_bytes", "path", "reason", "relative_path", "request_id", "step")

    def __init__(self, reason: str, step: Optional[int], request_id: Optional[str]) -> None:
        self.reason = reason
        """`creep` (the exporter requested it), `oom` or `manual`."""
        self.step = step
        """The last step in the snapshot; None if it failed before any."""
        self.request_id = request_id
        """The exporter's id of its request; None if the program asked."""
        self.path: Optional[str] = None
        """Absolute path of the file; None if it failed before there was one."""
        self.n_bytes: Optional[int] = None
        """Size of the file in bytes; None if it failed."""
        self.error: Optional[str] = None
        self.relative_path: Optional[str] = None
        """The path below the directory that the training side named; None if it is elsewhere."""
        self.has_begun = False
        """Set if this only reports that the recording has begun."""
        self.events_per_step: Optional[int] = None
        """Allocations and frees of the first recorded step; None if unknown."""

    def fields(self) -> Dict[str, object]:
        """Returns the JSON fields other than run and rank."""
        if self.has_begun:
            began: Dict[str, object] = {"id": self.request_id, "reason": self.reason, "outcome": BEGAN}
            return {**began, "events_per_step": self.events_per_step}
        error = None if self.error is None else "".join(c for c in self.error if c.isprintable())[:ERROR_CHARACTERS_MAX]
        return {
            "id": self.request_id,
            "reason": self.reason,
            "step": self.step,
            "path": self.path,
            "file": self.relative_path,
            "outcome": "written" if error is None else "failed",
            "bytes": self.n_bytes,
            "error": error,
        }


class HeapScanRequest:
    """The exporter's request for a search of what holds the memory, not validated yet."""

    __slots__ = ("bytes_per_step", "id", "is_on_host", "n_steps", "rank", "wants_lines")

    def __init__(self, action: Dict[str, object]) -> None:
        self.id = str(action.get("id", ""))
        self.rank = action.get("rank")
        self.n_steps: Any = action.get("steps", SCAN_STEPS_DEFAULT)
        growth: Any = action.get("bytes_per_step")
        self.bytes_per_step: Optional[float] = growth if type(growth) in (int, float) and 0 < growth < INFINITY else None
        """Growth of the memory; None if the exporter does not report it."""
        self.is_on_host = action.get("is_on_host") is not False
        """Set if that is the host's memory, not a device's."""
        self.wants_lines = action.get(LINES) is True
        """Set if an operator wants to know the line that allocates it, which takes a window of tracemalloc."""


class MallocRequest:
    """The exporter's request to read the allocator."""

    __slots__ = ("rank",)

    def __init__(self, action: Dict[str, object]) -> None:
        self.rank = action.get("rank")


class CheckpointRequest:
    """The exporter's ask to write a checkpoint, not validated yet."""

    __slots__ = ("every_seconds", "id", "rank", "reason", "seconds_left", "steps_left")

    def __init__(self, action: Dict[str, object]) -> None:
        self.id = str(action.get("id", ""))
        self.rank = action.get("rank")
        self.reason = cut(str(action.get("reason", "")), REASON_BYTES_MAX)
        self.seconds_left, self.steps_left = (_amount(action.get(key)) for key in ("seconds_left", "steps_left"))
        every = _amount(action.get("every_seconds"))
        self.every_seconds = EVERY_SECONDS if every is None else max(every, EVERY_SECONDS_MIN)
        """Time in which at most one is written."""

    def fields(self) -> Dict[str, object]:
        """Returns what the program is given of it."""
        return {"reason": self.reason, "seconds_left": self.seconds_left, "steps_left": self.steps_left}


def _amount(value: Any) -> Optional[float]:
    return float(value) if type(value) in (int, float) and 0 <= value < INFINITY else None


class HoldersResult:
    """The result of a search for holders. `fields` reads source files, so it is for the sender's thread."""

    __slots__ = ("error", "first_step", "holders", "last_step", "lines", "objects", "outcome", "request_id", "saw_growth")

    def __init__(self, request_id: str, outcome: str) -> None:
        self.request_id = request_id
        self.outcome = outcome
        """`began`, `named`, `none`, `gave_up` or `failed`."""
        self.error: Optional[str] = None
        self.first_step: Optional[int] = None
        self.last_step: Optional[int] = None
        self.objects: Optional[Tuple[int, int]] = None
        """Objects that were read, and those that were met."""
        self.saw_growth: Optional[bool] = None
        """Whether the memory grew meanwhile as that which is searched for."""
        self.holders: List[Any] = []
        """Holders of `_holders`."""
        self.lines: Optional[Dict[str, object]] = None
        """JSON fields of a search for lines; None without one."""

    @staticmethod
    def of_search(request_id: str, search: Any) -> "HoldersResult":
        """Returns the result of a search that is over."""
        result = HoldersResult(request_id, search.outcome.value)
        result.error, result.holders = search.error, search.holders
        result.first_step, result.last_step, result.objects = search.first_step, search.last_step, search.objects
        result.saw_growth = search.saw_growth
        return result

    def fields(self) -> Dict[str, object]:
        """Returns the JSON fields other than run and rank."""
        return {
            "id": self.request_id,
            "outcome": self.outcome,
            "error": None if self.error is None else cut(self.error, ERROR_CHARACTERS_MAX) or "unknown",
            "first_step": self.first_step,
            "last_step": self.last_step,
            **dict(zip(("objects_read", "objects_met"), self.objects or ())),
            "saw_growth": self.saw_growth,
            "holders": [_holder_fields(each.located(idx == 0)) for idx, each in enumerate(self.holders)] or None,
            LINES: self.lines or None,
        }


def _holder_fields(holder: Any) -> Dict[str, object]:
    name, spot = holder.name, holder.name.spot
    kind = "".join(character for character in name.kind if character.isascii() and (character.isalnum() or character in "_. "))
    fields: Dict[str, object] = {
        "name": cut(name.text, HOLDER_NAME_BYTES_MAX) or "unnamed",
        "kind": kind[:HOLDER_KIND_BYTES_MAX] or "object",
        "file": None if spot.file is None else cut(spot.file, HOLDER_FILE_BYTES_MAX) or None,
        "line": spot.line if spot.file else None,
        "function": None if spot.function is None else cut(spot.function, HOLDER_FUNCTION_BYTES_MAX) or None,
        "tensors": holder.n_tensors,
        "bytes": holder.n_bytes,
        "tensors_per_step": round(holder.tensors_per_step, 6),
        "bytes_per_step": round(holder.bytes_per_step, 3),
        "keeps_more": True if holder.keeps_more else False if holder.is_measured else None,
        "added_per_step": None if holder.added_per_step is None else round(max(0.0, holder.added_per_step), 6),
        "removal": None if holder.removal is None else _removal_fields(holder.removal),
    }
    if holder.fill is not None:
        rate = round(holder.fill.items_per_step, 6)
        fields.update(zip(FILL, (holder.fill.items, holder.fill.items_max, rate)))
    return fields


def _removal_fields(removal: Any) -> Dict[str, object]:
    file = cut(removal.file, HOLDER_FILE_BYTES_MAX) or "unknown"
    return {"outcome": removal.outcome, "file": file, "line": removal.line}


class End:
    """The end of this rank; a field that is None is unknown."""

    __slots__ = (
        *("error_message", "error_type", "is_automatic", "ooms", "outcome", "peaks", "requested_bytes", RESERVED_LIMIT, "step", "time"),
        "unread_steps",
    )

    def __init__(self, outcome: str, is_automatic: bool) -> None:
        self.outcome = outcome
        """One of OUTCOMES."""
        self.is_automatic = is_automatic
        """Set if it is reported because the process exits, and not by the program."""
        self.time: Optional[float] = None
        """Unix time in seconds."""
        self.step: Optional[int] = None
        self.unread_steps: Optional[int] = None
        """Steps after the last record, if there are any."""
        self.peaks: Dict[str, object] = {}
        """Bytes by END_PEAKS, of the time since the last record."""
        self.error_type: Optional[str] = None
        self.error_message: Optional[str] = None
        self.ooms: Optional[int] = None
        """Out-of-memory errors since the process started; None if there were none, or that is unknown."""
        self.requested_bytes: Optional[int] = None
        """The request that could not be met."""
        self.reserved_limit_bytes: Optional[int] = None
        """The most that the allocator may reserve, where the error names that."""

    def fields(self) -> Dict[str, object]:
        """Returns the JSON fields other than rank and instance."""
        return {name: getattr(self, name) for name in self.__slots__ if name not in ("is_automatic", "peaks")} | self.peaks


class Encoder:
    """Encodes all that is pushed, in the run's current name, without the keys that the exporter does not know."""

    def __init__(self, process: Process) -> None:
        self._unknown: Set[str] = set()
        self._process = process
        self._devices: List[str] = []
        self._memory_kinds: Dict[str, str] = {}
        self._heads: Dict[str, str] = {}
        self._heads_of: Optional[Tuple[Identity, Optional[int], Optional[str]]] = None

    def leave_out(self, key: str) -> bool:
        """Leaves a key out from now on. Returns False if it was already, or too many are."""
        if not key or key in self._unknown or len(self._unknown) >= UNKNOWN_KEYS_MAX:
            return False
        self._unknown.add(key)
        self._heads.clear()
        return True

    def leave_nothing_out(self) -> None:
        """Gives all keys again."""
        self._unknown.clear()
        self._heads.clear()

    def add_device(self, device: str) -> int:
        """Returns the index that stands for `device` in records."""
        self._devices.append(device)
        return len(self._devices) - 1

    def set_memory_kind(self, device: str, kind: str) -> None:
        """Gives the records of a GPU the kind of its memory."""
        if self._memory_kinds.get(device) != kind:
            self._memory_kinds[device] = kind
            self._heads.pop(device, None)

    def step(self, record: bytes, n_dropped: int) -> str:
        """Returns a packed record as one line of JSON."""
        time, seconds, _, step, n_steps, device_idx, phase_idx, markers, *figures = RECORD.unpack(record)
        head = self._head(self._devices[device_idx])
        line = f'{head}, "step": {step}, "time": {time:.6f}, "dropped_records": {n_dropped}'
        unknown = self._unknown
        if n_steps > 1 and "steps" not in unknown:
            line += f', "steps": {n_steps}'
        if seconds >= 0:
            line += f', "step_seconds": {seconds:.6f}'
        if phase_idx:
            line += f', "phase": "{self._phase(phase_idx)}"'
        if markers and UNIT not in unknown:
            line += "".join(f', "{UNIT}": "{name}"' for bit, name in UNITS.items() if markers & bit)
        marks = marker_names(markers)
        if marks and "marks" not in unknown:
            line += f', "marks": {json.dumps(marks)}'
        for name, value in zip(FIGURES, figures):
            if value >= 0 and name not in unknown:
                line += f', "{name}": {value}' if name != CONTAINER[0] else f', "{name}": "{value:016x}"'
        if figures[-1] < UNKNOWN and PROCESS_USED_STATE not in unknown:
            line += f', "{PROCESS_USED_STATE}": "{PROCESS_USED_STATES[figures[-1]]}"'
        return line + "}\n"

    def _phase(self, idx: int) -> str:
        """Returns the name of a phase, as the exporter knows it."""
        if idx < len(PHASES):
            return PHASES[idx]
        return TIMED_PHASES[0] if UNKNOWN_PHASE in self._unknown else self._process.phase_names[idx - len(PHASES)]

    def _head(self, device: str) -> str:
        """Returns what all records about `device` start with: a JSON object without its closing brace."""
        heads_of = identity, total, on_deadline = self._process.identity(), self._process.total_steps, self._process.on_deadline
        if self._heads_of != heads_of:
            self._heads_of = heads_of
            self._heads.clear()
        head = self._heads.get(device)
        if head is None:
            kind = self._memory_kinds.get(device)
            fields = {**identity._asdict(), TOTAL_STEPS: total, ON_DEADLINE: on_deadline, "device": device, DEVICE_MEMORY: kind, "pid": os.getpid()}
            head = self._heads[device] = self._encode(fields).decode()[:-1]
        return head

    def control(self, message: "SnapshotResult | HoldersResult | End") -> Request:
        """Returns the request for a message that is not a step."""
        identity = self._process.identity()
        fields = {"rank": identity.rank, "instance": identity.instance, **message.fields()}
        if isinstance(message, End):
            run = "".join(f"%{byte:02X}" for byte in identity.run.encode())
            return Request(f"/v1/runs/{run}/end", JSON, self._encode(fields))
        path = SNAPSHOTS_PATH if isinstance(message, SnapshotResult) else HOLDERS_PATH
        return Request(path, JSON, self._encode({"run": identity.run, **fields}))

    def _encode(self, fields: Dict[str, object]) -> bytes:
        return json.dumps(self._known(fields)).encode()

    def _known(self, value: Any) -> Any:
        """Returns JSON without values of None, and without what the exporter does not know."""
        if isinstance(value, dict):
            return {key: self._known(each) for key, each in value.items() if each is not None and key not in self._unknown}
        return [self._known(each) for each in value] if isinstance(value, list) else value


def marker_names(markers: int) -> List[str]:
    """Returns the names of a set of event markers."""
    return [name for idx, name in enumerate(EVENT_MARKERS) if markers >> idx & 1]


def cut(text: str, n_bytes: int) -> str:
    """Returns the printable part of a text, at most `n_bytes` of UTF-8."""
    plain = "".join(character for character in text if character.isprintable())
    return plain.encode("utf-8", "ignore")[:n_bytes].decode("utf-8", "ignore")


def unknown_key(body: bytes) -> str:
    """Returns the key that a refusal names as unknown; empty if it names none."""
    if b"phase: " in body and b"is not one of" in body:
        return UNKNOWN_PHASE
    if b'"unit: ' in body or b" unit: " in body:  # one that it does not know
        return UNIT
    return body.partition(b"unknown field `")[2][:KEY_BYTES_MAX].partition(b"`")[0].decode("utf-8", "replace")


class Held:
    """A 409 answer: the rank is pushed by another live process."""

    __slots__ = ("detail", "offer")

    def __init__(self, body: bytes) -> None:
        try:
            answer: Dict[str, object] = dict(json.loads(body))
        except Exception:  # also RecursionError: another program wrote it
            answer = {}
        self.detail = str(answer.get("detail", ""))[:ERROR_CHARACTERS_MAX]
        offer = answer.get("offer")
        is_valid = isinstance(offer, str) and offer.isprintable() and 0 < len(offer.encode()) <= RUN_BYTES_MAX
        self.offer = str(offer) if is_valid else None
        """The name that the run may have instead; None if the exporter offers none."""


def sequence_number(record: bytes) -> int:
    """Returns the number of records that this process made before this one."""
    n_before: int = RECORD.unpack(record)[2]
    return n_before


def decode_snapshot_requests(body: bytes) -> List[SnapshotRequest]:
    """Returns the snapshot requests in an answer's actions. Ignores other actions; raises if the answer is malformed."""
    if b'"actions":[]' in body:
        return []
    actions: List[Any] = json.loads(body).get("actions", [])
    return [SnapshotRequest(each) for each in actions if isinstance(each, dict) and each.get("type") == "snapshot"]


def decode_heap_scan_requests(body: bytes) -> List[HeapScanRequest]:
    """Returns the heap-scan requests in an answer's actions; raises if the answer is malformed."""
    return [HeapScanRequest(each) for each in _actions(body, "holders")]


def decode_malloc_requests(body: bytes) -> List[MallocRequest]:
    """Returns the requests to read the allocator in an answer's actions; raises if the answer is malformed."""
    return [MallocRequest(each) for each in _actions(body, "malloc")]


def decode_checkpoint_requests(body: bytes) -> List[CheckpointRequest]:
    """Returns the asks to write a checkpoint in an answer's actions; raises if the answer is malformed."""
    return [CheckpointRequest(each) for each in _actions(body, CHECKPOINT)]


def _actions(body: bytes, type_: str) -> List[Dict[str, object]]:
    if f'"{type_}"'.encode() not in body:
        return []
    actions: List[Any] = json.loads(body).get("actions", [])
    return [each for each in actions if isinstance(each, dict) and each.get("type") == type_]

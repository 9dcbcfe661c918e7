"""The layout of a record in the ring, and all JSON that is exchanged with the exporter.

The training thread packs a record, the sender's thread unpacks it and encodes it as JSON.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any, Dict, List, Optional, Sequence

from ._settings import Identity

PHASES = ("train", "eval", "checkpoint")
"""Phases of training; a record holds the index of the one that just ended."""

OUTCOMES = ("completed", "failed", "oom")
"""Outcomes of a rank."""

STEP_MAX = 1 << 53
"""Largest step that the exporter accepts."""

UNKNOWN = -1
"""Unknown integer in a record; the JSON omits its key."""

UNKNOWN_SECONDS = -1.0
"""Unknown duration in a record; the JSON omits its key."""

RECORD = struct.Struct("<dfqqBB5q2i2q")
"""One record in the ring: Unix time, duration (both in seconds), sequence number, step, indices of device and phase,
and a value for each of FIGURES."""

FIGURES = (
    "allocated_bytes",
    "peak_allocated_bytes",
    "reserved_bytes",
    "peak_reserved_bytes",
    "inactive_split_bytes",
    "alloc_retries",
    "ooms",
    "total_bytes",
    "free_bytes",
)
"""JSON keys of a record's figures, in the order of RECORD. Each figure may be UNKNOWN."""

STEPS_PATH = "/v1/steps"
SNAPSHOTS_PATH = "/v1/snapshots"

JSON = "application/json"
JSON_LINES = "application/x-ndjson"

ERROR_CHARACTERS_MAX = 400
"""Longest error text that is pushed; the rest is cut off."""

CAPTURE_STEPS_DEFAULT = 3
"""Steps to record for a capture that does not name a number."""


class Request:
    """A POST request to the exporter. `path` starts with `/v1/`."""

    __slots__ = ("body", "content_type", "path")  # a NamedTuple would take 8 KiB of memory

    def __init__(self, path: str, content_type: str, body: bytes) -> None:
        self.path = path
        self.content_type = content_type
        self.body = body


class Capture:
    """The exporter's request for a snapshot, not validated yet."""

    __slots__ = ("directory", "id", "n_steps", "rank")

    def __init__(self, action: Dict[str, object]) -> None:
        self.id = str(action.get("id", ""))
        self.rank = action.get("rank")
        self.n_steps = action.get("steps", CAPTURE_STEPS_DEFAULT)
        self.directory = action.get("directory")


class SnapshotResult:
    """Result of one memory snapshot: written if `error` is None."""

    __slots__ = ("capture_id", "error", "n_bytes", "path", "reason", "step")

    def __init__(self, reason: str, step: Optional[int], capture_id: Optional[str]) -> None:
        self.reason = reason
        """`creep` (the exporter asked), `oom` or `manual`."""
        self.step = step
        """The last step in the snapshot; None if it failed before any."""
        self.capture_id = capture_id
        """The exporter's id of the capture; None if the exporter did not ask for this snapshot."""
        self.path: Optional[str] = None
        """Absolute path of the file; None if it failed before there was one."""
        self.n_bytes: Optional[int] = None
        """Size of the file in bytes; None if it failed."""
        self.error: Optional[str] = None


def encode_head(identity: Identity, device: str) -> str:
    """Returns the JSON that all records about `device` start with: an object without its closing brace."""
    fields: Dict[str, object] = {
        "run": identity.run,
        "attempt": identity.attempt,
        "rank": identity.rank,
        "local_rank": identity.local_rank,
        "world_size": identity.world_size,
        "node_rank": identity.node_rank,
        "device": device,
        "pid": os.getpid(),
    }
    return json.dumps(_without_none(fields))[:-1]


def encode_step(record: bytes, heads: Sequence[str], n_dropped: int) -> str:
    """Returns a packed record as one line of JSON. `heads` holds the result of `encode_head` for each device index."""
    time, seconds, _, step, device_idx, phase_idx, *figures = RECORD.unpack(record)
    line = f'{heads[device_idx]}, "step": {step}, "time": {time:.6f}, "dropped_records": {n_dropped}'
    if seconds >= 0:
        line += f', "step_seconds": {seconds:.6f}'
    if phase_idx:
        line += f', "phase": "{PHASES[phase_idx]}"'
    for name, value in zip(FIGURES, figures):
        if value >= 0:
            line += f', "{name}": {value}'
    return line + "}\n"


def sequence_number(record: bytes) -> int:
    """Returns the number of records that this process made before this one."""
    n_before: int = RECORD.unpack(record)[2]
    return n_before


def snapshot_request(identity: Identity, result: SnapshotResult) -> Request:
    """Returns the request that reports a snapshot."""
    fields: Dict[str, object] = {
        "run": identity.run,
        "rank": identity.rank,
        "id": result.capture_id,
        "reason": result.reason,
        "step": result.step,
        "path": result.path,
        "outcome": "written" if result.error is None else "failed",
        "bytes": result.n_bytes,
    }
    if result.error is not None:
        fields["error"] = "".join(c for c in result.error if c.isprintable())[:ERROR_CHARACTERS_MAX]
    return Request(SNAPSHOTS_PATH, JSON, json.dumps(_without_none(fields)).encode())


def end_request(identity: Identity, outcome: str) -> Request:
    """Returns the request that ends this rank; `outcome` is one of OUTCOMES."""
    run = "".join(f"%{byte:02X}" for byte in identity.run.encode())
    return Request(f"/v1/runs/{run}/end", JSON, json.dumps({"rank": identity.rank, "outcome": outcome}).encode())


def decode_captures(body: bytes) -> List[Capture]:
    """Returns the captures in an answer's actions. Ignores other actions; raises if the answer is malformed."""
    if b'"actions":[]' in body:
        return []
    actions: List[Any] = json.loads(body).get("actions", [])
    return [Capture(each) for each in actions if isinstance(each, dict) and each.get("type") == "snapshot"]


def _without_none(fields: Dict[str, object]) -> Dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}

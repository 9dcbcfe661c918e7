"""Judges whether the memory of a test grows with its steps: counts what is alive at their ends, and searches for what holds it.

This is no detector. A test has few steps and no device to fill, so nothing is weighed against the memory that is left: what counts is
that something of each step stays.
"""

from __future__ import annotations

import gc
import io
import logging
import os
import sys
from array import array
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ._descriptors import opened
from ._malloc import glibc, given_out, private_bytes
from ._holders.candidates import Holder, Whole
from ._holders.criteria import EXPLAINED, SHARE_OF_RATE
from ._holders.search import Search
from ._procfs import read, sizes
from ._torch import cuda_torch

STEPS_MIN = 16
"""Steps without which growth is not judged."""

WARM_UP_STEPS = 4
"""Steps at first that are not judged, which fill caches: so many, or a quarter of all."""

BLOCKS = 4
"""Parts of the steps after that: memory grows if the least of each part is above that of the part before."""

LOOKS_MAX = 64
"""Steps of a test whose memory is kept. With more, that of every second one, then of every fourth."""

SCAN_STEPS = 3
"""Steps between the first two heap scans of a search: it has its result after three times as many, within STEPS_MIN."""

SCAN_SECONDS = 1.0
"""Processor time of one heap scan, at most: a test waits for it."""

NONE_BYTES = 1024
"""Growth below so many bytes a step is none: a test keeps numbers. A scalar tensor takes 512 bytes of a GPU."""

SMALL_OBJECT_BYTES = 64
"""What one of Python's small objects counts as: Python knows their number, and not their bytes, which are 16 to 512."""

RESIDENT_BYTES = 65_536
"""Growth that shows, a step, where only resident memory is known: pages come and go."""

HOST, DEVICE = "host memory", "GPU memory"

LOGS = ("`LogCaptureHandler.records`", "`Stash._storage[…]`")
WARNINGS = tuple(os.path.join("_pytest", name) for name in ("warnings.py", "recwarn.py"))
"""Names, and files of pytest, in which it keeps what a test logs and warns."""


class Verdict(NamedTuple):
    """Growth of one kind of memory."""

    kind: str
    """HOST or DEVICE."""
    bytes_per_step: float
    is_growth: bool
    first_step: int
    last_step: int
    holders: List[Holder]
    """What explains it, or why it is none: a container that has a bound, or records that pytest keeps."""
    error: Optional[str] = None
    """The reason that the search had for finding nothing."""


class Watch:
    """The memory of one test. `step_ends` is called at the ends of its steps, on its thread."""

    def __init__(self, allowed_bytes: int) -> None:
        """Growth by less than `allowed_bytes` a step is none."""
        self.n_steps = 0
        self._allowed = allowed_bytes
        self._glibc = glibc()
        self._every = 1
        """Steps from one that is kept to the next."""
        # Arrays, made at once: lists would grow with the steps.
        self._steps = array("q", [0]) * LOOKS_MAX
        self._bytes: Dict[str, Any] = {kind: array("q", [0]) * LOOKS_MAX for kind in (HOST, DEVICE)}
        self._n_looks = 0
        self._searches: Dict[str, Search] = {}
        self._own = 0
        """Bytes of the host that the searches have."""

    @property
    def is_exact(self) -> bool:
        """Returns whether the host's figures are counts of what is alive, rather than resident memory."""
        return "t" not in sys.abiflags and given_out(self._glibc) is not None

    def step_ends(self) -> None:
        """Notes what is alive at the end of a step, without garbage while the collector is on. Searches for what grows."""
        self.n_steps += 1
        if self.n_steps % self._every == 0:
            self._look()
        if self.n_steps == WARM_UP_STEPS:
            self._searches[HOST] = Search(SCAN_STEPS, Whole(self._allowed), SCAN_SECONDS)
            if cuda_torch() is not None:
                self._searches[DEVICE] = Search(SCAN_STEPS, Whole(self._allowed, False), SCAN_SECONDS)
        due = [search for search in self._searches.values() if search.is_due(self.n_steps)]
        if due:
            before = self._live()
            for search in due:
                search.next_seconds = SCAN_SECONDS
                search.at_step_end(self.n_steps)
            self._own += self._live() - before

    def verdicts(self) -> List[Verdict]:
        """Returns those of both kinds of memory, the device's first, once no step follows. Ends the searches."""
        for search in self._searches.values():
            search.cut_short(self.n_steps)
        found = [self._verdict(kind) for kind in (DEVICE, HOST)]
        return [each for each in found if each is not None]

    def close(self) -> None:
        """Frees what the searches know."""
        for search in self._searches.values():
            search.close()

    def _look(self) -> None:
        if self._n_looks == LOOKS_MAX:
            self._n_looks //= 2
            self._every *= 2
            for each in (self._steps, *self._bytes.values()):
                each[: self._n_looks] = each[1::2]
            if self.n_steps % self._every:
                return
        idx = self._n_looks
        self._steps[idx] = self.n_steps
        self._bytes[HOST][idx] = self._live() - self._own
        self._bytes[DEVICE][idx] = _on_devices()
        self._n_looks += 1

    def _live(self) -> int:
        """Returns the live bytes of the host; without garbage, unless the program has turned the collector off."""
        if gc.isenabled():
            gc.collect()
        used = given_out(self._glibc)
        if used is None or not self.is_exact:
            return private_bytes()
        return used + SMALL_OBJECT_BYTES * sys.getallocatedblocks() - _captured_bytes()

    def allowed_of(self, kind: str) -> int:
        """Returns the bytes a step below which growth is none."""
        return max(self._allowed, RESIDENT_BYTES) if kind == HOST and not self.is_exact else self._allowed

    def _verdict(self, kind: str) -> Optional[Verdict]:
        """Returns the verdict of one kind of memory; None without enough steps."""
        levels = self._levels(kind)
        if self.n_steps < STEPS_MIN or len(levels) < BLOCKS:
            return None
        (first_step, first), (last_step, last) = levels[0], levels[-1]
        rate = (last - first) / (last_step - first_step)
        allowed = self.allowed_of(kind)
        rates = [(after - before) / (to - since) for (since, before), (to, after) in zip(levels, levels[1:])]
        is_growth = min(rates) >= allowed and rates[-1] >= SHARE_OF_RATE * rates[0]
        verdict = Verdict(kind, rate, is_growth, self._first_judged(), self.n_steps, [])
        return self._explained(verdict) if is_growth else verdict

    def _first_judged(self) -> int:
        return max(WARM_UP_STEPS, self.n_steps // 4) + 1

    def _levels(self, kind: str) -> List[Tuple[int, int]]:
        """Returns the least of each block, with its step."""
        first = self._first_judged()
        looks = [(self._steps[idx], self._bytes[kind][idx]) for idx in range(self._n_looks) if self._steps[idx] >= first]
        levels: List[Tuple[int, int]] = []
        for block in range(BLOCKS):
            part = looks[len(looks) * block // BLOCKS : len(looks) * (block + 1) // BLOCKS]
            if part:
                levels.append(min(part, key=lambda look: look[1]))
        return levels

    def _explained(self, verdict: Verdict) -> Verdict:
        """Adds what was found. What has a bound, or is pytest's own, is no leak, if it is most of the growth and nothing else explains it."""
        search = self._searches.get(verdict.kind)
        if search is None:
            return verdict
        whole = Whole(verdict.bytes_per_step, verdict.kind == HOST)
        holders = [each for each in whole.ranked(search.holders) if whole.explained_by(each)]
        innocent = [each for each in holders if each.fill is not None or _is_pytests(each)]
        is_growth = len(innocent) < len(holders) or not any(map(whole.is_all_of, innocent))
        located = [each.located(False) for each in holders]
        return verdict._replace(is_growth=is_growth, holders=located, error=None if holders else search.error)


class Peak:
    """The most memory that a test takes beyond what is there when it begins."""

    def __init__(self) -> None:
        """Raises OSError where the host's peak cannot be lowered."""
        gc.collect()
        torch = cuda_torch()
        self._devices: Dict[int, int] = {}
        for idx in range(0 if torch is None else torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(idx)
            self._devices[idx] = torch.cuda.memory_allocated(idx)
        with opened("/proc/self/clear_refs", os.O_WRONLY) as file:
            file.write(b"5")  # lowers the peak of resident memory to what is resident now
        self._before = _resident()

    def taken(self) -> Tuple[str, int]:
        """Returns the kind of memory, and its bytes: of that GPU which the test took most of, or else of the host.

        Of the host without pages of files that are still mapped. Raises OSError where it is unknown.
        """
        torch = cuda_torch()
        on_device = 0
        for idx in range(0 if torch is None else torch.cuda.device_count()):
            peak = torch.cuda.memory_stats_as_nested_dict(idx)["allocated_bytes"]["all"]["peak"]
            on_device = max(on_device, peak - self._devices.get(idx, 0))
        if on_device > 0:
            return DEVICE, on_device
        (peak, of_files), (_, of_files_before) = _resident(), self._before
        return HOST, max(0, peak - self._before[0] - max(0, of_files - of_files_before))


def _resident() -> Tuple[int, int]:
    """Returns the peak of resident memory, and what of files is resident now. Raises OSError where they are unknown."""
    names = (b"VmHWM", b"RssFile")
    found = sizes(iter((read("/proc/self/status") or b"").split(b"\n")), names)
    if len(found) < len(names):
        raise OSError("/proc/self/status has no VmHWM or RssFile")
    return found[b"VmHWM"], found[b"RssFile"]


def _on_devices() -> int:
    """Returns the live bytes of PyTorch's allocator on all GPUs."""
    torch = cuda_torch()
    return 0 if torch is None else sum(torch.cuda.memory_allocated(idx) for idx in range(torch.cuda.device_count()))


def _captured_bytes() -> int:
    """Returns the bytes of texts that pytest captures in memory: what a test logs, and with `capsys` what it prints."""
    streams = [getattr(handler, "stream", None) for handler in logging.root.handlers]
    streams += [getattr(stream, "buffer", None) for stream in (sys.stdout, sys.stderr)]
    return sum(sys.getsizeof(each) for each in streams if type(each) in (io.StringIO, io.BytesIO))


def _is_pytests(holder: Holder) -> bool:
    """Returns whether a holder is where pytest keeps what the test logs and warns."""
    return holder.name.text in LOGS or (holder.name.spot.file or "").endswith(WARNINGS)

"""Agreement of all ranks of a program on a step, without waiting: by the key-value store of `torch.distributed`.

A rank proposes a step that is still to come. The others find that out at their own steps' ends, and each that has not come so far
notes that it knows. At the step, the first rank to arrive writes the decision: yes, if all had noted it by then. The others read it.
So either all ranks act at the end of that step or none does, and none waits for another. Only ranks that end after that, to be started
again, wait until all have done their part.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Callable, Dict, Optional

KEY = "stepmem/deadline"
"""Beginning of the keys in the store."""

POLL_SECONDS = 1.0
"""Time from one look for a proposal to the next, at least: a look takes 20 to 100 µs."""

AHEAD_SECONDS, AHEAD_STEPS = 3.0, 3
"""A proposal is of a step so far ahead, by either, that each rank has looked before; after one that was not taken, twice as far."""

TRIES_MAX = 6
"""Proposals for one ask, at most."""

YES, NO = "yes", "no"

OTHERS_SECONDS = 1800.0
"""Time for which a rank waits until the others have written their parts of a checkpoint."""

LOOK_SECONDS = 0.05
"""Time between two looks meanwhile."""

LEAVE_SECONDS = 10.0
"""Time for which rank 0, whose process may have the store, waits until the others have read the decision to end."""


def world_size() -> int:
    """Returns the number of ranks of the default process group; 1 if there is none."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


def default_store() -> Any:
    """Returns the store of the default process group. May raise anything."""
    return sys.modules["torch.distributed.distributed_c10d"]._get_default_store()


class Agreement:
    """One rank's part in the agreements of a program, one after the other. Only the training thread calls it, at ends of steps."""

    def __init__(self, base: int, store: Callable[[], Any] = default_store) -> None:
        """`base` is the step at which the program opted in. Ranks that have another one count other steps, and agree on nothing."""
        self.base = base
        self._store = store
        self._number = 0
        """Number of the agreement that is next, or under way."""
        self._step: Optional[int] = None
        """The step that it is about; None without a proposal that this rank has taken."""
        self._subject: Dict[str, object] = {}
        self._n_tries = 0
        self._polled_at = -POLL_SECONDS
        self._polled_step = 0

    def world_size(self) -> int:
        """Returns the number of ranks that have to agree. May raise anything."""
        return world_size()

    @property
    def is_under_way(self) -> bool:
        """Returns whether a step was proposed that is still to come."""
        return self._step is not None

    def at_step_end(self, world: int, step: int, wish: "Optional[Dict[str, object]]", now: float) -> "Optional[Dict[str, object]]":
        """Returns the subject if all ranks agreed to act at the end of `step`. `wish` is the subject for which this rank wants that."""
        if self._step is not None:
            return self._decide(world, self._store()) if step >= self._step else None
        elapsed = now - self._polled_at
        if elapsed < POLL_SECONDS:
            return None
        store = self._store()
        ahead = self._ahead(step, elapsed)
        self._polled_at, self._polled_step = now, step
        if wish is None:
            self._n_tries = 0
        self._take_proposals(store, step)
        if self._step is None and wish is not None and self._n_tries < TRIES_MAX:
            self._n_tries += 1
            proposal = json.dumps({"step": step + ahead, "base": self.base, "subject": wish})
            store.compare_set(self._key("proposal"), "", proposal)
            self._take_proposals(store, step)
        return None

    def _ahead(self, step: int, elapsed: float) -> int:
        n_steps = max(0, step - self._polled_step) if elapsed < 60.0 * POLL_SECONDS else 0
        return max(AHEAD_STEPS, int(AHEAD_SECONDS * n_steps / elapsed) + 1) << self._n_tries

    def _take_proposals(self, store: Any, step: int) -> None:
        """Notes that this rank knows of a proposal, unless it is past that step: then it goes on to the next one."""
        while self._step is None and store.check([self._key("proposal")]):
            proposal = json.loads(_text(store.get(self._key("proposal"))))
            if proposal["base"] == self.base and step < proposal["step"]:
                self._step, self._subject = proposal["step"], proposal["subject"]
                store.add(self._key("known"), 1)  # last: what others rely on has to be done
            else:
                self._number += 1

    def _decide(self, world: int, store: Any) -> "Optional[Dict[str, object]]":
        known, decision = self._key("known"), self._key("decision")
        self._number, self._step = self._number + 1, None  # first: after an error, the step is past
        own = YES if store.add(known, 0) == world else NO
        return self._subject if _text(store.compare_set(decision, "", own)) == YES else None

    def all_may(self, world: int, is_first: bool, may_end: bool) -> bool:
        """Returns whether all ranks may end after what they agreed on last. Waits for the others, unless this one may not."""
        store = self._store()
        ready, decision = self._last_key("ready"), self._last_key("end")
        if may_end:
            until = time.monotonic() + OTHERS_SECONDS
            may_end = store.add(ready, 1) == world
            while not may_end and time.monotonic() < until and not store.check([decision]):
                time.sleep(LOOK_SECONDS)
                may_end = store.add(ready, 0) == world
        if _text(store.compare_set(decision, "", YES if may_end else NO)) != YES:
            return False
        left, until = self._last_key("left"), time.monotonic() + LEAVE_SECONDS
        n_left = store.add(left, 1)
        while is_first and n_left < world and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
            n_left = store.add(left, 0)
        return True

    def _last_key(self, name: str) -> str:
        return f"{KEY}/{self._number - 1}/{name}"

    def _key(self, name: str) -> str:
        return f"{KEY}/{self._number}/{name}"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


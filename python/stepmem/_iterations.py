"""Counts iterations of a training loop by the optimizers that step in it."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, Optional, Set

from ._foreign import attribute, first, item

STAGE_ITERATIONS = 8
"""Iterations in a row in which one optimizer stepped alone, after which another one that takes over is the next stage."""

OPTIMIZERS_MAX = 4096
"""Optimizers that are remembered, at most. One that is forgotten counts as new, and at worst joins an iteration that it began."""


class Iterations:
    """An iteration ends when an optimizer that already stepped in it steps again.

    It is counted at its first optimizer step, the leader's, so that none is missing at the end. So two optimizers of a GAN,
    or three of SAC, or one for each parameter are one iteration, and five steps of a discriminator for each of the
    generator's are five. An optimizer that takes over from the leader (the next fold, stage or model of a sweep) leads on.
    """

    def __init__(self) -> None:
        self.leader: Callable[[], Any] = _none
        """Returns the optimizer that began this iteration; None before the first, and once it is gone."""
        self.others: Set[int] = set()
        """Ids of those that stepped after it in this iteration."""
        self._newcomers: Set[int] = set()
        """Ids of those of them that had never stepped before."""
        self._led_since = 0
        """Iterations before the first one that this leader began."""
        self._alone_since = 0
        """Iterations until the last one in which another optimizer stepped too."""
        self._known: "Dict[int, weakref.ReferenceType[Any]]" = {}
        self._n_unknown = 0
        """Steps of optimizers that could not be remembered."""

    def begun_by(self, optimizer: Any, n_before: int) -> int:
        """Returns how many iterations have begun with this step: 0, 1, or 2 with one that was not counted yet.

        `n_before`: the iterations that were counted so far. Need not be called if the leader steps and there are no others.
        """
        leader = self.leader()
        if leader is optimizer:
            self.others.clear()
            self._newcomers.clear()
            self._alone_since = n_before
            return 1
        key = id(optimizer)
        if key in self.others:  # it came back before the leader did: was its first step here an iteration of its own?
            is_first_stage = key in self._newcomers and n_before - self._led_since > 1
            is_stage = is_first_stage or n_before - self._alone_since >= STAGE_ITERATIONS
            return self._lead(optimizer, n_before) + is_stage
        is_new = self._remember(key, optimizer)
        is_successor = is_new and _first_parameter(optimizer) is _first_parameter(leader) is not None
        if leader is None or is_successor:  # the leader is gone, or was made for one step or stage of this model
            return self._lead(optimizer, n_before)
        if is_new:
            self._newcomers.add(key)
        if len(self.others) < OPTIMIZERS_MAX:
            self.others.add(key)
        return 0

    def _lead(self, optimizer: Any, n_before: int) -> int:
        self.leader = weakref.ref(optimizer)
        self.others.clear()
        self._newcomers.clear()
        self._led_since = self._alone_since = n_before
        return 1

    def _remember(self, key: int, optimizer: Any) -> bool:
        """Returns whether an optimizer steps for the first time."""
        known = self._known.get(key)
        if known is not None and known() is optimizer:
            return False
        if len(self._known) >= OPTIMIZERS_MAX:
            if self._n_unknown % OPTIMIZERS_MAX == 0:  # so that a step of one need not go through all others
                self._known = {key: each for key, each in self._known.items() if each() is not None}
            self._n_unknown += 1
        if len(self._known) < OPTIMIZERS_MAX:
            self._known[key] = weakref.ref(optimizer)
        return True


def _none() -> None:
    return None


def _first_parameter(optimizer: Any) -> Optional[Any]:
    return first(item(first(attribute(optimizer, "param_groups")), "params"))

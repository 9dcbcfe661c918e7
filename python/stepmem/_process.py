"""Facts about this training process: its settings, its place in the run and its current step."""

from __future__ import annotations

import time
from typing import List, Optional

from ._environment import environment
from ._iterations import Iterations
from ._settings import Identity, Settings, misread
from ._signals import raise_if_of_handler
from ._warn import warn_once


SCATTER, SCATTERED = 0x9E3779B1, 1 << 32
"""Multiples of the first, modulo the second, are spread evenly, also of every tenth number: it is SCATTERED by the golden ratio
(Knuth, TAOCP 3, 6.4)."""


class Process:
    """State of this process that several modules need. Settings and identity are read once, when first needed."""

    def __init__(self) -> None:
        self.began_at = time.monotonic()
        """Time from which the run counts, on the monotonic clock."""
        self.step = 0
        """The last optimizer step; 0 before the first."""
        self.n_steps = 0
        """Optimizer steps, read or not."""
        self.n_recorded = 0
        """Number of steps until the last one that was read."""
        self.iterations = Iterations()
        """Iterations, of which the steps of optimizers are parts."""
        self.read_below = SCATTERED
        """Limit for the steps that the optimizer hook counts: a step is read if its number times SCATTER, modulo SCATTERED, is below it."""
        self.is_followed = False
        """Set while a snapshot or a search for holders needs each step's end."""
        self.noted_calls = 0
        """Calls since the last record of a step that may be event markers, see `_event_markers`."""
        self.is_sampled = False
        """Set once it was sampled by time."""
        self.counts_calls = False
        """Set while what is counted are calls, of a program that takes no steps."""
        self.has_short_calls = False
        """Set while a slice of a search would be a large part of such a call."""
        self.has_lost_rank = False
        """Set once it is no longer sampled, because another process has its rank."""
        self.is_forked = False
        """Set in a forked child."""
        self.phase_names: List[str] = []
        """Names that the program gave to phases, in the order of their first ends."""
        self.total_steps: Optional[int] = None
        """The step with which training ends; None if unknown."""
        self.on_deadline: Optional[str] = None
        """What the program does when memory runs out soon; None if nothing."""
        self.found_total: Optional[int] = None
        """What the first look at a trainer's state came to, see `_total_steps`."""
        self.looks_at = 2
        """Number of steps after which the next look is due."""
        self.step_began_at: Optional[float] = None
        """Time at which the current step began, on the monotonic clock; None if unknown."""
        self._settings: Optional[Settings] = None
        self._identity: Optional[Identity] = None

    def follow(self) -> None:
        """Makes the optimizer hook read each step, until `is_followed` is cleared."""
        self.is_followed = True
        self.read_below = SCATTERED

    def settings(self) -> Optional[Settings]:
        """Returns the settings; None (and warns) if they are invalid."""
        if self._settings is None:
            try:
                self._settings = Settings.read(environment())
                if self._settings.problems:
                    warn_once("invalid settings", self._settings.problems)
            except (OSError, ValueError) as error:
                raise_if_of_handler(error)
                warn_once("settings", f"nothing is pushed, because a setting is invalid: {error}")
        return self._settings

    def identity(self) -> Identity:
        """Returns the run, rank and attempt of this process."""
        if self._identity is None:
            self._identity = Identity.read(environment())
            problem = misread(environment(), self._identity)
            if problem:
                warn_once("identity variables", problem)
        return self._identity

    def rename_run(self, run: str) -> None:
        """Makes `run` the name of the run from now on, because the exporter holds the old one for another process."""
        self._identity = self.identity()._replace(run=run)

    def snapshot_directory(self) -> Optional[str]:
        """Returns `STEPMEM_SNAPSHOT_DIRECTORY`; None if it is not set or the settings are invalid."""
        settings = self.settings()
        return None if settings is None else settings.snapshot_directory

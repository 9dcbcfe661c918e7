"""A planned restart: the program's end after a checkpoint, where `stepmem run --restart-on-deadline` starts it again.

Each rank leaves two files in the launch's directory: of its first step, and of its planned end. Launchers have exit codes of their own.
"""

from __future__ import annotations

import json
import os
import time

from ._environment import environment
from ._process import Process
from ._signals import raise_if_of_handler
from ._warn import log, warn_once

DIRECTORY = "STEPMEM_RESTART_DIRECTORY"
"""Variable with that directory."""

LAST = "last"
"""File there that makes this attempt the last one: it goes on for as long as it can."""

PLANNED_CODE = 77
"""Exit code of a program that ended as planned."""


class PlannedRestart:
    """The files of one rank, and its end."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._directory = environment().get(DIRECTORY, "")
        self._looks = 0
        """Ends of steps so far, up to 2: by the second it is known who counts them."""
        self._began_at, self._counted = 0.0, False
        self._is_leaving = False

    @property
    def is_wanted(self) -> bool:
        """Returns whether the program is started again if it ends after a checkpoint."""
        return self._has_directory() and not os.path.exists(os.path.join(self._directory, LAST))

    def _has_directory(self) -> bool:
        return self._directory != "" and os.path.isdir(self._directory)

    @property
    def needs_next_step(self) -> bool:
        """Returns whether `at_step_end` has to be called at the next step's end."""
        return self._is_leaving or self._looks == 1

    def at_step_end(self, is_counted: bool) -> None:
        """Leaves the first file at the first step. `is_counted` is set if the client counts the steps."""
        if self._is_leaving:  # the program caught its end, and goes on
            self._is_leaving = False
            self._remove("ended")
        if self._looks == 1 and self._counted and not is_counted:
            self._write("began", self._began_at, False)  # the hook had counted the first step
        if self._looks == 0:
            self._began_at, self._counted = time.time(), is_counted
            self._write("began", self._began_at, is_counted)
        self._looks = min(2, self._looks + 1)

    def end(self, asked_at: float) -> None:
        """Ends the program by SystemExit, once the checkpoint is written that it began at the Unix time `asked_at`."""
        if self.is_wanted and self._write("ended", asked_at, False):
            self._is_leaving = True
            log(f"[step {self._process.step}] ends for a planned restart", "info")
            raise SystemExit(PLANNED_CODE)

    def _write(self, what: str, at: float, is_counted: bool) -> bool:
        if not self._has_directory():
            return False
        identity = self._process.identity()
        fields = {"run": identity.run, "step": self._process.step, "time": at, "is_counted": is_counted}
        path = self._path(what)
        try:
            with open(f"{path}.part", "w", encoding="utf-8") as file:
                json.dump(fields, file)
            os.replace(f"{path}.part", path)
        except Exception as error:
            raise_if_of_handler(error)
            warn_once("restart", f"no planned restart, because {path} cannot be written: {error!r}")
            return False
        return True

    def _remove(self, what: str) -> None:
        try:
            os.unlink(self._path(what))
        except OSError as error:
            raise_if_of_handler(error)

    def _path(self, what: str) -> str:
        return os.path.join(self._directory, f"{what}-{self._process.identity().rank}.json")

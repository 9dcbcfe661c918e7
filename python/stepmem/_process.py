"""Facts about this training process: its settings, its place in the run and its current step."""

from __future__ import annotations

import os
from typing import Optional

from ._settings import Identity, Settings
from ._warn import warn_once


class Process:
    """What several modules need to know of this process. Settings and identity are read once, when first needed."""

    def __init__(self) -> None:
        self.step = 0
        """The last recorded optimizer step; 0 before the first."""
        self.n_steps = 0
        """Optimizer steps that were recorded."""
        self.step_began_at: Optional[float] = None
        """When the current step began, on the monotonic clock; None if unknown."""
        self._settings: Optional[Settings] = None
        self._identity: Optional[Identity] = None

    def settings(self) -> Optional[Settings]:
        """Returns the settings; None (and warns) if they are invalid."""
        if self._settings is None:
            try:
                self._settings = Settings.read(os.environ)
            except (OSError, ValueError) as error:
                warn_once("settings", f"nothing is pushed, because a setting is invalid: {error}")
        return self._settings

    def identity(self) -> Identity:
        """Returns the run, rank and attempt of this process."""
        if self._identity is None:
            self._identity = Identity.read(os.environ)
        return self._identity

    def rename_run(self, run: str) -> None:
        """Makes `run` the name of the run from now on, because the exporter holds the old one for another process."""
        self._identity = self.identity()._replace(run=run)

    def snapshot_directory(self) -> Optional[str]:
        """Returns `STEPMEM_SNAPSHOT_DIRECTORY`; None if it is not set or the settings are invalid."""
        settings = self.settings()
        return None if settings is None else settings.snapshot_directory

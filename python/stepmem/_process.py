"""This training process: its settings, its place in the run, and the step that it is at."""

from __future__ import annotations

import os
from typing import Optional

from ._settings import Identity, Settings
from ._warn import warn_once


class Process:
    """Facts about this process that several parts need. Settings and identity are read once, when first needed."""

    def __init__(self) -> None:
        self.step = 0
        """The last optimizer step that was recorded; 0 before the first."""
        self.step_began_at: Optional[float] = None
        """When the current step began, in monotonic seconds; None before the first."""
        self._settings: Optional[Settings] = None
        self._identity: Optional[Identity] = None

    def settings(self) -> Optional[Settings]:
        """Returns the settings; None, and a warning, if they are invalid."""
        if self._settings is None:
            try:
                self._settings = Settings.read(os.environ)
            except (OSError, ValueError) as error:
                warn_once("settings", f"nothing is pushed: {error}")
        return self._settings

    def identity(self) -> Identity:
        """Returns the run, rank and attempt of this process."""
        if self._identity is None:
            self._identity = Identity.read(os.environ)
        return self._identity

    def snapshot_directory(self) -> Optional[str]:
        """Returns the directory set for snapshots; None if none is set or the settings are invalid."""
        settings = self.settings()
        return None if settings is None else settings.snapshot_directory

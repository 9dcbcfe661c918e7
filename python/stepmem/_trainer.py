"""The training of a library that reports its steps through a callback, and whether it goes on."""

from __future__ import annotations

import sys
from _thread import get_ident
from types import CodeType, FrameType
from typing import Optional


class Training:
    """A call of a library's trainer. An error that it raises ends it, and no callback hears of that."""

    def __init__(self, package: str, was_explicit: bool) -> None:
        """Called through a callback of the trainer, which belongs to `package`."""
        self.was_explicit = was_explicit
        """Set if the program reported steps itself before."""
        self._thread = get_ident()
        self._code: Optional[CodeType] = None
        """Frame of the outermost function of the package on the stack; None if there is none."""
        frame: Optional[FrameType] = sys._getframe(1)
        while frame is not None:
            name = frame.f_globals.get("__name__")
            if type(name) is str and name.partition(".")[0] == package:
                self._code = frame.f_code
            frame = frame.f_back

    def is_over(self) -> bool:
        """Returns whether its thread, if that is the current one, has left it."""
        if self._code is None or self._thread != get_ident():
            return False
        frame: Optional[FrameType] = sys._getframe(1)
        while frame is not None:
            if frame.f_code is self._code:
                return False
            frame = frame.f_back
        return True

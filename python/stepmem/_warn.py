"""Says each thing once, through `logging`; never raises."""

from __future__ import annotations

from typing import Set

_said: Set[str] = set()

SAID_MAX = 64
"""How many different things are said at most."""


def warn_once(topic: str, message: str) -> None:
    """Logs `message` as a warning of the logger `stepmem`, the first time that it is about `topic`."""
    if topic in _said or len(_said) >= SAID_MAX:
        return
    _said.add(topic)
    try:
        import logging  # only a process that is warned pays for it

        logging.getLogger("stepmem").warning("stepmem: %s", message)
    except Exception:
        pass

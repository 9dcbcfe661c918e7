"""Says each thing once, through `logging` where the program uses it; never raises."""

from __future__ import annotations

import sys
from typing import Set

_said: Set[str] = set()

SAID_MAX = 64
"""How many different things are said at most."""


def warn_once(topic: str, message: str) -> None:
    """Logs `message` as a warning of the logger `stepmem`, or prints it, the first time that it is about `topic`."""
    if topic in _said or len(_said) >= SAID_MAX:
        return
    _said.add(topic)
    try:
        logging = sys.modules.get("logging")  # importing it would take a MiB
        if logging is not None:
            logging.getLogger("stepmem").warning("stepmem: %s", message)
        elif sys.stderr is not None:
            sys.stderr.write(f"stepmem: {message}\n")
    except Exception:
        pass

"""Logs each kind of problem once. Never raises."""

from __future__ import annotations

import sys
from typing import Set

TOPICS_MAX = 64
"""After this many different topics nothing more is logged."""

_topics: Set[str] = set()


def warn_once(topic: str, message: str) -> None:
    """Logs `message` to the logger `stepmem`, or prints it, unless `topic` has been logged before."""
    if topic in _topics or len(_topics) >= TOPICS_MAX:
        return
    _topics.add(topic)
    try:
        logging = sys.modules.get("logging")  # importing it would take a MiB
        if logging is not None:
            logging.getLogger("stepmem").warning("stepmem: %s", message)
        elif sys.stderr is not None:
            sys.stderr.write(f"stepmem: {message}\n")
    except Exception:
        pass

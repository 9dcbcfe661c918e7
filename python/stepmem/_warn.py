"""Logs each kind of problem or fact once. Never raises."""

from __future__ import annotations

import sys
from typing import Set

TOPICS_MAX = 64
"""After this many different topics nothing more is logged."""

_topics: Set[str] = set()


def warn_once(topic: str, message: str) -> None:
    """Logs `message` as a warning to the logger `stepmem`, or prints it, unless `topic` has been logged before."""
    _log_once(topic, message, "warning")


def inform_once(topic: str, message: str) -> None:
    """Logs `message` at level info, like `warn_once`."""
    _log_once(topic, message, "info")


def printable(text: str) -> str:
    """Returns a text of others in which no character steers a terminal: each such one is escaped."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in str(text))


def _log_once(topic: str, message: str, level: str) -> None:
    if topic in _topics or len(_topics) >= TOPICS_MAX:
        return
    _topics.add(topic)
    log(message, level)


def log(message: str, level: str) -> None:
    """Logs `message` to the logger `stepmem`; prints it if the program does not use `logging`."""
    try:
        logging = sys.modules.get("logging")  # importing it would take a MiB
        if logging is not None:
            getattr(logging.getLogger("stepmem"), level)("stepmem: %s", message)
        elif sys.stderr is not None:
            sys.stderr.write(f"stepmem: {message}\n")
    except Exception:
        pass

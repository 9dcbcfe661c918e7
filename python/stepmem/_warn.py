"""Logs each kind of problem or fact once. Never raises, and leaves nothing in the buffers of Python's standard streams.

What stays there because it cannot be written, as on a full disk, makes Python exit with 120 whatever the program's exit code is.
"""

from __future__ import annotations

import io
import os
import select
import sys
from _thread import get_ident
from typing import Any, Dict, Iterator, Optional, Set

from ._isolation import library
from ._signals import raise_if_of_handler

TOPICS_MAX = 64
"""Topics after which nothing more is logged."""

LINE_BYTES_MAX = 4096
"""Longest text that is written to a descriptor: as much as a pipe takes at once, or not at all."""

_topics: Set[str] = set()


def warn_once(topic: str, message: str) -> None:
    """Logs `message` as a warning to the logger `stepmem`, or prints it, unless `topic` has been logged before."""
    _log_once(topic, message, "warning")


def inform_once(topic: str, message: str) -> None:
    """Logs `message` at level info, like `warn_once`."""
    _log_once(topic, message, "info")


def announce_once(topic: str, message: str) -> None:
    """Logs `message` like `inform_once`; on a terminal it is printed if the program's `logging` leaves level info out."""
    if _is_new(topic) and not _print_on_terminal(message):
        log(message, "info")


def note_once(topic: str, message: str) -> None:
    """Logs `message` at level debug, and never prints it."""
    _log_once(topic, message, "debug")


def printable(text: str) -> str:
    """Returns a text of others in which no character steers a terminal: each such one is escaped."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in str(text))


def _log_once(topic: str, message: str, level: str) -> None:
    if _is_new(topic):
        log(message, level)


def _is_new(topic: str) -> bool:
    if topic in _topics or len(_topics) >= TOPICS_MAX:
        return False
    _topics.add(topic)
    return True


def _print_on_terminal(message: str) -> bool:
    """Prints a line if standard error is a terminal and `logging` would not show it. Returns whether it did."""
    try:
        logging: Any = library("logging")
        descriptor = _descriptor(sys.stderr)
        if descriptor is None or not os.isatty(descriptor):
            return False
        if logging is not None and logging.getLogger("stepmem").isEnabledFor(logging.INFO):
            return False
        _write_to(descriptor, f"stepmem: {message}\n")
        return True
    except Exception as error:
        raise_if_of_handler(error)
        return False


def log(message: str, level: str) -> None:
    """Logs `message` to the logger `stepmem`; prints a warning if the program does not use `logging`."""
    try:
        logging: Any = library("logging")  # importing it would take a MiB
        if logging is not None:
            threads = _threads_known()
            is_known = get_ident() in threads
            try:
                _log(logging, logging.getLogger("stepmem"), message, getattr(logging, level.upper()))
            finally:
                if not is_known:
                    threads.pop(get_ident(), None)  # a record has the name of its thread, which makes the program know it
        elif level not in ("debug", "info"):
            write(f"stepmem: {message}\n")
    except Exception as error:
        raise_if_of_handler(error)


def _threads_known() -> Dict[int, Any]:
    """Returns the threads that the program's `threading` knows."""
    threads: Any = getattr(library("threading"), "_active", None)
    return threads if type(threads) is dict else {}


def write(text: str) -> None:
    """Writes to standard error. Raises nothing."""
    try:
        _write(sys.stderr, text)
    except Exception as error:
        raise_if_of_handler(error)


def _write(stream: Any, text: str) -> None:
    descriptor = _descriptor(stream)
    if descriptor is not None:
        _write_to(descriptor, text)
    elif stream is not None:  # a notebook's, or one in memory
        stream.write(text)


def _descriptor(stream: Any) -> Optional[int]:
    """Returns the descriptor below one of Python's own text streams; None for others, such as one that compresses, and if it has none."""
    try:
        is_plain = isinstance(stream, io.TextIOWrapper) and isinstance(getattr(stream.buffer, "raw", stream.buffer), io.FileIO)
        return stream.fileno() if is_plain else None
    except (OSError, ValueError) as error:
        raise_if_of_handler(error)
        return None


def _write_to(descriptor: int, text: str) -> None:
    """Writes text past Python's buffers, unless that would wait, or raise a SIGPIPE."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if poll.poll(0) == [(descriptor, select.POLLOUT)]:
        os.write(descriptor, text.encode("utf-8", "backslashreplace")[:LINE_BYTES_MAX])


def _log(logging: Any, logger: Any, message: str, level: int) -> None:
    """Does what `logger.log` does, apart from handlers of streams, whose text is written past the buffers."""
    if logger.disabled or not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(logger.name, level, __file__, 0, "stepmem: %s", (message,), None, "log")
    if not logger.filter(record):
        return
    for handler in _handlers(logging, logger):
        if level < handler.level:
            continue
        is_plain = isinstance(handler, logging.StreamHandler) and type(handler).emit is logging.StreamHandler.emit
        descriptor = _descriptor(handler.stream) if is_plain else None
        if descriptor is None:
            handler.handle(record)
        elif handler.filter(record):
            _write_to(descriptor, handler.format(record) + handler.terminator)


def _handlers(logging: Any, logger: Any) -> Iterator[Any]:
    """Yields the handlers of a logger and of those above it; the handler of last resort if there is none."""
    has_one = False
    above = logger
    while above:
        for handler in list(above.handlers):
            has_one = True
            yield handler
        above = above.parent if above.propagate else None
    if not has_one and logging.lastResort is not None:
        yield logging.lastResort

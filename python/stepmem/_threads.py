"""Threads of the client, made without `threading`: the program neither counts them nor waits for them, its trace functions do not run
in them, and from Python 3.12 on the idle ones leave before a fork, which would warn of them."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import atexit
import ctypes
import os
import sys
from functools import partial
from time import monotonic, sleep
from typing import Any, Callable, List, Optional

from ._warn import warn_once

BEGIN_SECONDS = 10.0
"""Time for which the interpreter's end waits until a thread that was just started runs, at most."""

LEAVE_SECONDS = 0.001
"""Time for which a fork waits until the idle threads have left, at most."""

LEAVE_POLL_SECONDS = 0.00002
"""Time between two looks whether they have: on a busy machine, one that yields instead comes last."""

WARNS_OF_THREADS = sys.version_info >= (3, 12)
"""Set if a fork warns of the process's other threads."""


class Leave(BaseException):
    """Ends a thread that is started again after a fork."""


class Event:
    """A flag that one thread awaits. Setting it takes no lock: a signal handler may interrupt that and set it, too."""

    def __init__(self) -> None:
        self._is_set = False
        self._token = _thread.allocate_lock()
        """Held unless there may be news for the thread that waits."""
        self._token.acquire()

    def is_set(self) -> bool:
        """Returns whether the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Sets the flag."""
        self._is_set = True
        self.nudge()

    def nudge(self) -> None:
        """Makes the thread that waits look what is new."""
        try:
            self._token.release()
        except RuntimeError:  # it has not looked yet
            pass

    def clear(self) -> None:
        """Clears the flag."""
        self._is_set = False

    def wait(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Waits until the flag is set, or for so many seconds, or until `is_over` at a nudge. Returns the flag."""
        deadline = monotonic() + seconds
        while not self._is_set and not is_over():
            left = deadline - monotonic()
            if left <= 0.0:
                break
            self._token.acquire(True, left)
        return self._is_set


class Thread:
    """A thread that never keeps the process alive. It gets no signals: the program's own threads handle those."""

    def __init__(self, run: Callable[[], object]) -> None:
        """`run` waits in `pause` whenever it is idle. It is called again if the thread had to leave from there."""
        self._run = run
        self._id = 0
        self._deciding = _thread.RLock()
        """Guards the four that follow."""
        self._paused_at: Optional[Event] = None
        """The event that it awaits while it is idle."""
        self._has_to_leave = False
        self._has_to_stay = False
        """Set if it is wanted again before it has left."""
        self._has_left = False
        self._has_ended = Event()
        self._begins = _thread.allocate_lock()
        """Held from its start until it runs."""

    def start(self) -> None:
        """Starts the thread. Raises RuntimeError if there are too many, or the interpreter ends."""
        before = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
        self._begins = _thread.allocate_lock()
        self._begins.acquire()
        _threads.append(self)
        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
            _thread.start_new_thread(self._body, ())
        except BaseException:
            _threads.remove(self)
            raise
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, before)

    def is_alive(self) -> bool:
        """Returns whether it has not ended. One that has left lives on."""
        return self in _threads and not self._has_ended.is_set()

    def join(self, seconds: float) -> None:
        """Waits until it has ended, for so many seconds at most."""
        self._has_ended.wait(seconds)

    def await_beginning(self) -> None:
        """Waits until it runs."""
        if self._begins.acquire(True, BEGIN_SECONDS):
            self._begins.release()

    def pause(self, event: Event, seconds: float) -> bool:
        """Waits like `event.wait`; the thread may leave meanwhile, and be started again. Called on the thread itself."""
        with self._deciding:
            self._paused_at = event
        event.wait(seconds, lambda: self._has_to_leave)
        with self._deciding:
            self._paused_at = None
            if self._has_to_leave:
                raise Leave
        return event.is_set()

    def leave(self) -> bool:
        """Makes it leave if it is idle. Returns whether it is."""
        with self._deciding:
            event = self._paused_at
            if event is None:
                return False
            self._has_to_leave, self._has_to_stay = True, False
            event.nudge()
        return True

    def is_gone(self) -> bool:
        """Returns whether the system does not count it any more."""
        if self._has_left:
            try:
                os.stat(f"/proc/self/task/{self._id}")
            except OSError:
                return True
        return False

    def come_back(self) -> None:
        """Starts it again if it has left or is about to. Does nothing where no thread can be started: it may be called again."""
        with self._deciding:
            if not self._has_left:
                self._has_to_stay = self._has_to_leave
                return
            try:
                _threads.remove(self)
                self.start()
                self._has_to_leave = self._has_left = False
            except RuntimeError:
                _threads.append(self)

    def _body(self) -> None:
        self._begins.release()
        self._id = _thread.get_native_id()
        try:
            while self._leaves():
                with self._deciding:
                    if not self._has_to_stay:
                        self._has_left = True
                        return
                    self._has_to_leave = self._has_to_stay = False
        except BaseException as error:
            warn_once("thread", f"a thread of the client ended: {error!r}")
        self._has_ended.set()
        if self in _threads:
            _threads.remove(self)

    def _leaves(self) -> bool:
        """Runs it. Returns whether it has to leave, and has not ended."""
        try:
            self._run()
        except Leave:
            return True
        return False


_threads: List[Thread] = []
"""Threads that have not ended."""


def _at_exit() -> None:
    """Waits until all threads run: the interpreter's end frees what one needs that has been started, and does not run yet."""
    for thread in list(_threads):
        thread.await_beginning()


def _before_fork() -> None:
    """Makes the idle threads leave, and waits until the system does not count them any more."""
    leaving = [thread for thread in list(_threads) if thread.leave()]
    deadline = monotonic() + LEAVE_SECONDS
    for thread in leaving:
        while not thread.is_gone() and monotonic() < deadline:
            sleep(LEAVE_POLL_SECONDS)


def _after_fork(argument: Any) -> int:
    """Starts them again. The interpreter calls it between two instructions of the main thread."""
    try:
        for thread in list(_threads):
            thread.come_back()
    except BaseException as error:
        warn_once("thread", f"a thread of the client cannot go on after a fork: {error!r}")
    return 0


def in_child() -> None:
    """Forgets the threads of the parent in a forked child."""
    _threads.clear()


try:
    # glibc loads it when the interpreter's end stops a thread, and ends the process where that fails, as after `chroot`.
    ctypes.CDLL("libgcc_s.so.1")
except OSError:
    pass
atexit.register(_at_exit)  # before all others of the client, so that it runs after them
if WARNS_OF_THREADS:
    # Python counts the threads after the functions for the parent, so these must not start any: the pending call comes after that.
    # It is added without an instruction of Python, between which it would come at once.
    _pending_call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_after_fork)
    os.register_at_fork(before=_before_fork, after_in_parent=partial(ctypes.pythonapi.Py_AddPendingCall, _pending_call, None))

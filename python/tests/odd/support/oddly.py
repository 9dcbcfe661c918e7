"""What the odd programs share: their optimizer steps, and the state of the interpreter that they print at their end.

It binds what it needs when it is imported, and imports only what every Python has imported by then or has built in: a program may
have modules of its own by any other name.
"""

import builtins
import gc
import posix
import sys
from _signal import SIG_BLOCK, getitimer, getsignal, pthread_sigmask
from time import monotonic, sleep

STEPS_MAX = 1500
"""Steps after which a program goes on though no search has ended, as where nothing can be pushed."""

STEPS_MIN = 100
SECONDS = 0.0005
SIGNALS = 65
DESCRIPTORS = 64

_stat, _readlink, _range, _len, _str, _repr, _type, _getattr = posix.stat, posix.readlink, range, len, str, repr, type, getattr
_exists, _sorted, _print_to, _OSError, _ValueError = FileNotFoundError, sorted, posix.write, OSError, ValueError
_over = posix.environ.get(b"ODD_OVER", b"")
_began = dict(vars(builtins))
_phase = 0


def steps(kept, at_most=STEPS_MAX):
    """Takes optimizer steps, each of which keeps some memory, until a search for holders is over that began in them."""
    global _phase
    from torch.optim.optimizer import Optimizer

    _phase += 1
    optimizer = Optimizer()
    for n in _range(at_most):
        kept.append(bytearray(20_000))
        optimizer.step()
        sleep(SECONDS)
        if n >= STEPS_MIN:
            try:
                _stat(b"%s.%d" % (_over, _phase))
                break
            except _exists:
                pass
            except _OSError:
                break


def step():
    """Takes one step."""
    from torch.optim.optimizer import Optimizer

    Optimizer().step()


def say(text):
    """Writes a line past Python's buffers."""
    _print_to(1, text.encode() + b"\n")


def _descriptors():
    """Returns those that stay: the client's thread has some open for a moment. In that moment the program's next one gets a later number,
    as beside any other thread: so they are in the order of their numbers, apart from the standard streams."""
    stay = None
    for _ in _range(5):
        found = {}
        for n in _range(DESCRIPTORS):
            try:
                found[n] = _readlink("/proc/self/fd/%d" % n).partition(":[")[0]
            except _OSError:
                pass
        stay = found if stay is None else {n: target for n, target in stay.items() if found.get(n) == target}
        sleep(0.002)
    return [target if n > 2 else (n, target) for n, target in stay.items()]


def _name(value):
    return _getattr(value, "__name__", None) or _type(value).__name__


def _states():
    import _warnings

    monitoring = _getattr(sys, "monitoring", None)
    threading = sys.modules.get("threading")
    yield "collector", (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug(), [_name(each) for each in gc.callbacks])
    yield "trace", (_name(sys.gettrace()), _name(sys.getprofile()))
    yield "traces of threads", (_name(_getattr(threading, "_trace_hook", None)), _name(_getattr(threading, "_profile_hook", None)))
    yield "monitoring", monitoring and [monitoring.get_tool(n) for n in _range(6)]
    yield "limits", (sys.getrecursionlimit(), sys.getswitchinterval())
    yield "filters", [_str(each) for each in _warnings.filters]
    yield "hooks", [_name(_getattr(sys, name)) for name in ("excepthook", "unraisablehook", "displayhook", "breakpointhook")]
    yield "own hooks", [_getattr(sys, name) is _getattr(sys, "__%s__" % name) for name in ("excepthook", "unraisablehook", "displayhook")]
    yield "hook of threads", _name(_getattr(threading, "excepthook", None))
    yield "threads", threading and (threading.active_count(), [each.name for each in threading.enumerate()])
    yield "handlers", [_name(getsignal(n)) if callable(getsignal(n)) else _repr(getsignal(n)) for n in _range(1, SIGNALS) if n not in (32, 33)]
    yield "mask", _sorted(int(each) for each in pthread_sigmask(SIG_BLOCK, ()))
    yield "timers", [getitimer(n)[1] for n in _range(3)]
    yield "descriptors", _descriptors()
    umask = posix.umask(0o22)
    posix.umask(umask)
    yield "umask", umask
    yield "users", (posix.getuid(), posix.geteuid(), posix.getgid(), posix.getegid())
    try:
        yield "directory", posix.getcwd()
    except _OSError as error:
        yield "directory", error.errno
    import os

    yield "environment", {name: value for name, value in os.environ.items() if not name.startswith(("STEPMEM_", "ODD_", "PYTHONPATH", "_"))}
    yield "finders", [_name(each) for each in sys.meta_path if _type(each).__module__.partition(".")[0] not in ("sitecustomize", "stepmem", "_stepmem")]
    yield "path", [each for each in sys.path if "/client-" not in each]
    now = vars(builtins)
    yield "builtins", _sorted(name for name in {**_began, **now} if _began.get(name) is not now.get(name))
    yield "modules", _sorted(name for name in sys.modules if name not in DOCUMENTED and name.partition(".")[0] not in ("encodings", "stepmem", "_stepmem"))
    yield "streams", [_name(_type(each)) for each in (sys.stdin, sys.stdout, sys.stderr)]
    yield "flags", (sys.dont_write_bytecode, sys.get_asyncgen_hooks() == (None, None), sys.flags.optimize, sys.flags.utf8_mode)


DOCUMENTED = ("sitecustomize",)
"""Modules that the client adds to `sys.modules`, next to its own. A codec is looked up once, by whoever needs it first."""


def state():
    """Prints the state of the interpreter, a line for each kind."""
    for name, value in list(_states()):
        say("%s: %s" % (name, _repr(value)))

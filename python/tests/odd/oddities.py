"""The oddities of which odd programs are made. Each draws the sections of a program: what comes `first`, before PyTorch is imported, what
comes `then`, the list that is `kept`, the `steps`, what comes `between` two rounds of them, `last` and at the `end`."""

from __future__ import annotations

import textwrap
from random import Random
from typing import Any, Callable, Dict, List, NamedTuple

Sections = Dict[str, Any]


class Oddity(NamedTuple):
    kind: str
    name: str
    draw: Callable[[Random], Sections]
    mixes: bool
    """Set if it goes together with any other one."""
    has_end: bool

    def make(self, of: Random) -> Sections:
        return {name: textwrap.dedent(value) if isinstance(value, str) else value for name, value in self.draw(of).items()}


ODDITIES: List[Oddity] = []
ENDS: List[Oddity] = []


def odd(kind: str, name: str, mixes: bool = True, **sections: Any) -> None:
    """Adds an oddity whose sections are always the same."""
    add(kind, name, lambda of: dict(sections), mixes, "end" in sections)


def add(kind: str, name: str, draw: Callable[[Random], Sections], mixes: bool = True, has_end: bool = False) -> None:
    (ENDS if kind == "end" else ODDITIES).append(Oddity(kind, name, draw, mixes, has_end))
    if kind == "end":
        ODDITIES.append(Oddity(kind, name, draw, False, True))


def drawn(kind: str, name: str, mixes: bool = True, has_end: bool = False) -> Callable[[Callable[[Random], Sections]], None]:
    """Adds the oddity that a function draws."""
    return lambda draw: add(kind, name, draw, mixes, has_end)


# Signals.

odd("signals", "alarms", then="""
    import signal
    alarms = []
    signal.signal(signal.SIGALRM, lambda number, frame: alarms.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
""", last="""
    while len(alarms) < 5:
        signal.pause()
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("alarms", set(alarms))
""")

odd("signals", "alarms_that_raise", then="""
    import signal
    class Alarm(TimeoutError):
        pass
    def alarm(number, frame):
        raise Alarm(number)
    signal.signal(signal.SIGALRM, alarm)
""", between="""
    for _ in range(30):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.001 + _ * 1e-5)
            while True:
                oddly.step()
        except Alarm as error:
            pass
    print("each alarm came")
""")

odd("signals", "exits_by_alarm", mixes=False, then="""
    import signal
    def alarm(number, frame):
        raise SystemExit(21)
    signal.signal(signal.SIGALRM, alarm)
""", end="""
    print("waits", flush=True)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    while True:
        oddly.step()
""")

odd("signals", "children", then="""
    import os, signal
    ended = []
    def child(number, frame):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            ended.append(os.WEXITSTATUS(status))
    signal.signal(signal.SIGCHLD, child)
""", between="""
    for code in (3, 4, 5):
        if os.fork() == 0:
            os._exit(code)
    while len(ended) < 3:
        oddly.step()
        oddly.sleep(0.001)
    print("children", sorted(ended))
""")

odd("signals", "wakeup_fd", then="""
    import os, signal
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    signal.set_wakeup_fd(writer)
""", between="""
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGUSR1)
        oddly.step()
    print("woken", os.read(reader, 100), signal.set_wakeup_fd(-1) == writer)
""")

odd("signals", "interrupts", then="""
    import os, signal
    signal.signal(signal.SIGUSR2, lambda number, frame: oddly.say("usr2"))
    signal.siginterrupt(signal.SIGUSR2, False)
""", between="os.kill(os.getpid(), signal.SIGUSR2)")

odd("signals", "blocked", then="""
    import os, signal
    signal.signal(signal.SIGUSR1, lambda number, frame: oddly.say("usr1"))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGTERM)
    print("pending", sorted(map(int, signal.sigpending())))
""", between="""
    print("taken", int(signal.sigtimedwait({signal.SIGTERM}, 20).si_signo))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
""")

odd("signals", "ignored", first="""
    import signal
    for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGCHLD"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
""")

odd("signals", "steps_in_handler", then="""
    import os, signal
    def handler(number, frame):
        for _ in range(5):
            oddly.step()
        oddly.say("stepped")
    signal.signal(signal.SIGUSR1, handler)
""", between="os.kill(os.getpid(), signal.SIGUSR1)")

for number in ("SIGTERM", "SIGKILL", "SIGUSR1", "SIGINT", "SIGABRT", "SIGSEGV"):
    odd("end", f"killed_by_{number}", end=f"""
        import os, resource, signal
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.{number}, signal.SIG_DFL) if "{number}" != "SIGKILL" else None
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        sys_flush = __import__("sys").stdout.flush()
        os.kill(os.getpid(), signal.{number})
        signal.pause()
    """)

# Tracing.

odd("tracing", "trace", first="""
    import sys, collections
    lines = collections.Counter()
    def trace(frame, event, argument):
        if frame.f_code.co_name == "traced":
            lines[event] += 1
            return trace
    def traced(n):
        total = 0
        for each in range(n):
            total += each
        return total
    sys.settrace(trace)
""", between="print('traced', traced(7), sorted(lines.items()))", last="print('traced', traced(3), sorted(lines.items()))")

odd("tracing", "profile", then="""
    import sys
    calls = []
    def profile(frame, event, argument):
        if frame.f_code.co_name == "profiled":
            calls.append(event)
    def profiled():
        return len([1, 2])
    sys.setprofile(profile)
""", between="profiled(); print('profiled', calls)")

odd("tracing", "threads_traced", first="""
    import sys, threading
    def trace(frame, event, argument):
        if threading.current_thread() is not threading.main_thread():
            oddly.say("traced " + frame.f_code.co_name)
    threading.settrace(trace)
    threading.setprofile(trace)
""", last="threading.settrace(None); threading.setprofile(None)")

odd("tracing", "monitoring", then="""
    import sys
    counted = []
    if hasattr(sys, "monitoring"):
        sys.monitoring.use_tool_id(3, "odd")
        def begins(code, offset):
            if code.co_name == "monitored":
                counted.append(code.co_name)
        sys.monitoring.register_callback(3, sys.monitoring.events.PY_START, begins)
        sys.monitoring.set_events(3, sys.monitoring.events.PY_START)
    def monitored():
        pass
""", between="monitored(); print('monitored', len(counted))")

odd("tracing", "trace_that_raises", mixes=False, then="""
    import sys
    def trace(frame, event, argument):
        if frame.f_code.co_name == "raises" and event == "line":
            raise ValueError("by a trace function")
        return trace
    def raises():
        oddly.step()
        return 1
""", between="""
    for _ in range(3):
        sys.settrace(trace)
        try:
            raises()
        except ValueError as error:
            print(error, sys.gettrace())
""")

odd("tracing", "tracemalloc", first="import tracemalloc; tracemalloc.start(3)", last="print('traces', tracemalloc.is_tracing(), tracemalloc.get_traceback_limit()); tracemalloc.stop()")

odd("tracing", "faulthandler", first="""
    import faulthandler, signal
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=False, file=open("faults", "w"))
""", last="print('faults', faulthandler.is_enabled())")

# The collector.


@drawn("collector", "thresholds")
def _thresholds(of: Random) -> Sections:
    first, second, third = of.choice((0, 1, 50, 100_000)), of.randint(1, 50), of.randint(1, 50)
    return {"first": f"import gc\ngc.set_threshold({first}, {second}, {third})"}


odd("collector", "frozen", then="import gc\ngc.collect()\ngc.freeze()\nbefore = gc.get_freeze_count() > 1000", last="print('frozen', before)\ngc.unfreeze()")
odd("collector", "debug", first="import gc\ngc.set_debug(gc.DEBUG_SAVEALL)", last="gc.set_debug(gc.DEBUG_UNCOLLECTABLE)\ngc.garbage.clear()")
odd("collector", "off", first="import gc\ngc.disable()", between="print('off', gc.isenabled())")
odd("collector", "callbacks", first="import gc\ncollections = []\ndef on_collection(phase, info):\n    collections.append((phase, info['generation']))\ngc.callbacks.append(on_collection)", between="""
    del collections[:]
    gc.disable()
    gc.collect()
    print("collections", collections)
    gc.enable()
""")
odd("collector", "cycles", first="""
    import gc
    gc.disable()
    class Cycle:
        def __init__(self, n):
            self.n, self.me = n, self
        def __del__(self):
            oddly.say("deleted %d" % self.n)
    for n in range(3):
        Cycle(n)
""", between="print('unreachable', gc.collect() >= 3, flush=True)\nCycle(7)", last="gc.collect()")

# Recursion, and the interpreter's limits.


@drawn("recursion", "deep")
def _deep(of: Random) -> Sections:
    limit, margin = of.choice((400, 1000, 3000)), of.randint(25, 80)
    return {
        "then": f"""
            import sys
            sys.setrecursionlimit({limit})
            def depth():
                frame, n = sys._getframe(), 0
                while frame is not None:
                    frame, n = frame.f_back, n + 1
                return n
            def descend(n):
                if n:
                    return descend(n - 1)
                for _ in range(20):
                    oddly.step()
                return "stepped"
        """,
        "between": f"print(descend({limit} - depth() - {margin}))",
    }


odd("recursion", "to_the_limit", then="""
    import sys
    def endless(n):
        if n % 50 == 0:
            oddly.step()
        return endless(n + 1)
""", between="""
    for _ in range(3):
        try:
            endless(1)
        except RecursionError as error:
            print(type(error).__name__)
""")
odd("recursion", "low_limit", then="import sys\nsys.setrecursionlimit(120)", last="sys.setrecursionlimit(1000)")
add("interpreter", "switches", lambda of: {"first": f"import sys\nsys.setswitchinterval({of.choice((1e-6, 1e-4, 0.5))})"})
odd("interpreter", "async_hooks", first="import sys\nsys.set_coroutine_origin_tracking_depth(4)\nsys.set_asyncgen_hooks(firstiter=lambda generator: oddly.say('first'))")
odd("interpreter", "no_bytecode", first="import sys\nsys.dont_write_bytecode = True\nsys.displayhook = lambda value: None")

# Warnings.

odd("warnings", "errors", flags=["-W", "error"])
odd("warnings", "always", flags=["-W", "always"], between="import warnings\nwarnings.warn('mine')")
odd("warnings", "developer", flags=["-X", "dev"])
odd("warnings", "none", first="import warnings\nwarnings.resetwarnings()\nwarnings.simplefilter('error')")
odd("warnings", "shown", first="""
    import warnings
    warnings.simplefilter("always")
    def shown(message, category, filename, lineno, file=None, line=None):
        oddly.say("warning: %s" % (message,))
    warnings.showwarning = shown
""", last="warnings.warn('shown')")
odd("warnings", "caught", mixes=False, first="import warnings", steps="""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        oddly.steps(kept)
        warnings.warn("in between")
        print("caught", [str(each.message) for each in caught])
""")

# Hooks.

odd("hooks", "excepthook", first="import sys\nsys.excepthook = lambda kind, error, trace: oddly.say('hooked %s' % kind.__name__)", end="raise LookupError('uncaught')")
odd("hooks", "unraisable", first="""
    import sys
    sys.unraisablehook = lambda unraisable: oddly.say("unraisable %r" % (unraisable.exc_value,))
    class Raises:
        def __del__(self):
            raise ValueError("in __del__")
""", between="Raises()", last="Raises()")
odd("hooks", "of_threads", first="""
    import threading
    threading.excepthook = lambda arguments: oddly.say("of a thread: %r" % (arguments.exc_value,))
    def fails():
        oddly.step()
        raise KeyError("in a thread")
""", between="thread = threading.Thread(target=fails); thread.start(); thread.join()")
odd("hooks", "excepthook_that_raises", mixes=False, first="""
    import sys
    def hook(kind, error, trace):
        raise RuntimeError("in the hook")
    sys.excepthook = hook
""", end="raise ValueError('first')")
odd("hooks", "audit", first="""
    import sys
    seen = set()
    def audit(event, arguments):
        if event in ("socket.bind", "os.fork", "os.exec", "subprocess.Popen", "os.chmod", "os.rename", "os.remove", "shutil.rmtree"):
            seen.add(event)
    sys.addaudithook(audit)
""", last="print('audited', sorted(seen))")

# Ends.


@drawn("end", "exit")
def _exit(of: Random) -> Sections:
    code = of.choice(("", "0", "None", "3", "255", "300", "-1", "True", "False", "'a text'", "(1, 2)", "1.5", "b'x'", "Odd()", "Zero(0)", "OddInt(5)"))
    return {
        "end": f"""
            import sys
            class Odd:
                def __eq__(self, other):
                    oddly.say("compared")
                    return True
                def __str__(self):
                    return "odd"
                def __getattribute__(self, name):
                    oddly.say("asked for " + name)
                    return object.__getattribute__(self, name)
            class Zero(int):
                def __eq__(self, other):
                    oddly.say("compared")
                    return True
                __hash__ = None
            class OddInt(int):
                def __repr__(self):
                    oddly.say("shown")
                    return "odd"
            {of.choice(("sys.exit", "raise SystemExit"))}({code})
        """
    }


@drawn("end", "uncaught")
def _uncaught(of: Random) -> Sections:
    error = of.choice(("ValueError('a', 1)", "Says('x')", "KeyError(Odd())", "OSError(2, 'No such', Odd())", "KeyboardInterrupt()", "MemoryError('none')", "Meta('x')", "ExceptionGroup('several', [ValueError(1)])" if False else "LookupError()"))
    return {
        "end": f"""
            class Odd:
                def __repr__(self):
                    oddly.say("shown")
                    return "odd"
                __str__ = __repr__
                @property
                def __class__(self):
                    oddly.say("asked for its class")
                    return int
            class Says(Exception):
                def __str__(self):
                    oddly.say("says")
                    return "said"
                def __getattribute__(self, name):
                    if name in ("__cause__", "__context__", "code", "__class__"):
                        oddly.say("asked for " + name)
                    return super().__getattribute__(name)
            class Kinds(type):
                def __getattribute__(kind, name):
                    if name == "__instancecheck__":
                        oddly.say("asked for " + name)
                    return super().__getattribute__(name)
            class Meta(Exception, metaclass=Kinds):
                pass
            try:
                raise ValueError("before")
            except ValueError{of.choice((" as error", ""))}:
                raise {error}{of.choice(("", " from None"))}
        """
    }


odd("end", "os_exit", end="import os, sys\nsys.stdout.flush()\nos._exit(17)")
odd("end", "atexit", first="""
    import atexit
    atexit.register(oddly.say, "first at exit")
    atexit.register(lambda: oddly.step())
""", then="atexit.register(oddly.say, 'second at exit')", end="""
    def fails():
        raise ValueError("at exit")
    atexit.register(fails)
    atexit.register(oddly.say, "third at exit")
    atexit.unregister(fails)
""")
odd("end", "exit_at_exit", end="import atexit, sys\natexit.register(lambda: oddly.say('leaves'))\natexit.register(exec, 'raise SystemExit(9)')")
odd("end", "exit_in_thread", end="import threading, sys\nthread = threading.Thread(target=sys.exit, args=(5,))\nthread.start()\nthread.join()\nprint('lives')")
odd("end", "quit", end="import sys\nsys.stdout.flush()\nquit(6)")
odd("end", "exit_that_is_caught", end="""
    import sys
    try:
        sys.exit(4)
    except SystemExit as error:
        print("caught", error.code)
    try:
        raise SystemExit(8)
    finally:
        oddly.step()
        print("finally")
""")
odd("end", "exec", end="""
    import os, sys
    sys.stdout.flush()
    os.environ["ODD_OVER"] = ""
    os.execv(sys.executable, [sys.executable, "-c", "import oddly, torch; oddly.steps([], 30); oddly.state(); raise SystemExit(12)"])
""")

# Threads.

odd("threads", "stepping", then="import threading", between="""
    threads = [threading.Thread(target=oddly.steps, args=([], 40), daemon=n % 2 == 0) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("joined", threading.active_count())
""")
odd("threads", "awaited", mixes=False, then="import threading", between="""
    threading.Thread(target=oddly.sleep, args=(0.02,)).start()
    while threading.active_count() > 1:
        oddly.step()
        oddly.sleep(0.001)
    print("alone", [thread.name for thread in threading.enumerate()])
""")
odd("threads", "left_running", mixes=False, then="import threading", end="""
    def late():
        oddly.sleep(0.05)
        oddly.steps([], 30)
        oddly.say("late")
    threading.Thread(target=late).start()
    threading.Thread(target=oddly.sleep, args=(1000,), daemon=True).start()
    oddly.say("main ends")
""")
odd("threads", "queue", then="""
    import queue, threading
    tasks = queue.Queue()
    def work():
        while True:
            each = tasks.get()
            oddly.step()
            tasks.task_done()
    threading.Thread(target=work, daemon=True).start()
""", between="for each in range(20):\n    tasks.put(each)\ntasks.join()\nprint('worked')")
odd("threads", "locals", then="""
    import threading
    class Local(threading.local):
        def __init__(self):
            oddly.say("made for " + threading.current_thread().name)
    local = Local()
    timer = threading.Timer(0.01, lambda: setattr(local, "x", 1))
    timer.start()
    timer.join()
""")


# Forks.


@drawn("forks with threads", "forks")
def _forks(of: Random) -> Sections:
    n_threads, n_children, steps = of.randint(1, 4), of.randint(1, 3), of.choice((0, 10))
    when = of.choice(("then", "between", "last"))
    fork = f"""
        for n in range({n_children}):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    os.environ["RANK"] = str(n + 1)
                    {"oddly.steps([], %d)" % steps if steps else "pass"}
                    oddly.say("child %d: %s" % (n, sorted(thread.name for thread in threading.enumerate())))
                    code = 40 + n
                finally:
                    os._exit(code)
            print("child", os.WEXITSTATUS(os.waitpid(child, 0)[1]), flush=True)
    """
    threads = f"""
        import os, threading, warnings
        over = threading.Event()
        def busy(n):
            while not over.wait(0.002):
                sum(range(100))
        threads = [threading.Thread(target=busy, args=(n,), name="busy-%d" % n, daemon=True) for n in range({n_threads})]
        for each in threads:
            each.start()
    """
    sections = {"then": textwrap.dedent(threads)}
    sections[when] = sections.get(when, "") + textwrap.dedent(fork)
    sections["last"] = sections.get("last", "") + "over.set()\nfor each in threads:\n    each.join()\n"
    return sections


odd("forks with threads", "forked_by_threads", then="""
    import os, threading
    codes = []
    def forks(n):
        child = os.fork()
        if child == 0:
            os._exit(30 + n)
        codes.append(os.WEXITSTATUS(os.waitpid(child, 0)[1]))
""", between="""
    threads = [threading.Thread(target=forks, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("forked", sorted(codes))
""")
odd("forks with threads", "child_goes_on", mixes=False, then="""
    import os, threading, sys
    threading.Thread(target=oddly.sleep, args=(1000,), daemon=True).start()
""", between="""
    sys.stdout.flush()
    child = os.fork()
    if child:
        print("child", os.waitpid(child, 0)[1] >> 8, flush=True)
    else:
        os.environ["RANK"] = "1"
        kept = []
""", end="sys.exit(0 if child else 14)")
odd("forks with threads", "handlers_at_fork", first="""
    import os
    os.register_at_fork(before=lambda: oddly.say("before"), after_in_parent=lambda: parents.append(1), after_in_child=lambda: oddly.say("child"))
    parents = []
""", then="import threading; threading.Thread(target=oddly.sleep, args=(1000,), daemon=True).start()", between="""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    print("parents", parents)
""")


@drawn("forks with threads", "multiprocessing", mixes=False)
def _multiprocessing(of: Random) -> Sections:
    method = of.choice(("fork", "fork", "spawn", "forkserver"))
    return {
        "first": """
            import multiprocessing, threading
            def work(n):
                oddly.steps([], 10)
                return n * n
            def loops():
                oddly.sleep(1000)
            if __name__ != "__main__":
                raise SystemError("imported as a module")
        """.replace("if __name__ != \"__main__\":\n                raise SystemError(\"imported as a module\")", ""),
        "start": "guarded",
        "between": f"""
            threading.Thread(target=loops, daemon=True).start()
            context = multiprocessing.get_context({method!r})
            with context.Pool(2) as pool:
                print("pool", pool.map(work, range(4)), flush=True)
            process = context.Process(target=oddly.steps, args=([], 10))
            process.start()
            process.join()
            print("process", process.exitcode, flush=True)
        """,
    }


# Other processes.

odd("processes", "subprocess", between="""
    import subprocess, sys
    code = "import torch, oddly; oddly.steps([], 20); print('inner'); raise SystemExit(7)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**__import__("os").environ, "ODD_OVER": "", "RANK": "1"})
    print(ended.returncode, ended.stdout, [line for line in ended.stderr.splitlines() if not line.startswith("stepmem: ")])
    print(subprocess.run("ls /proc/self/fd | wc -l", shell=True, capture_output=True, text=True).stdout)
""")
odd("processes", "preexec", between="""
    import subprocess
    subprocess.run(["true"], preexec_fn=lambda: oddly.say("before exec"), close_fds=False)
    print("system", __import__("os").system("exit 3") >> 8, flush=True)
""")
odd("processes", "spawned", between="""
    import os
    child = os.posix_spawn("/bin/sh", ["sh", "-c", "ls /proc/self/fd | tr '\\\\n' ' '; exit 9"], os.environ)
    print("spawned", os.WEXITSTATUS(os.waitpid(child, 0)[1]), flush=True)
""")
odd("processes", "daemon", mixes=False, between="""
    import os
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.dup2(writer, 1)
        os.closerange(3, 4096)
        os.environ["RANK"] = "1"
        oddly.steps([], 20)
        oddly.say("daemon")
        os._exit(0)
    os.close(writer)
    os.wait()
    print("heard", os.read(reader, 100))
    os.close(reader)
""")

# Descriptors and files.

odd("descriptors", "closed", then="import os", between="""
    os.closerange(3, 4096)
    for n in range(3, 20):
        file = os.open("closed%d" % n, os.O_CREAT | os.O_RDWR)
        os.dup2(file, 100 + n)
        os.close(file)
        os.dup2(100 + n, n, False)
        os.close(100 + n)
""", last="print('sizes', {os.fstat(n).st_size for n in range(3, 20)})\nos.closerange(3, 64)")
odd("descriptors", "duplicated", then="""
    import os
    file = os.open("mine", os.O_CREAT | os.O_RDWR)
    for n in range(20, 64):
        os.dup2(file, n)
    os.close(file)
""", last="print('size', os.fstat(20).st_size)")
odd("descriptors", "streams_closed", mixes=False, then="import os, sys", between="sys.stdin.close()\nsys.stdout.flush()\nos.dup2(1, 9)", end="sys.stdout.close()\nos.close(2)\nsys.exit(0)")
odd("descriptors", "stderr_closed", mixes=False, first="import os\nos.close(2)")
odd("descriptors", "limited", then="import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (128, 4096))")
odd("descriptors", "limited_between", between="import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (10, 4096))")
odd("files", "elsewhere", first="import os\nos.mkdir('inner')\nos.chdir('inner')", between="os.chdir('..')")
odd("files", "gone", then="import os\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')", mixes=False)
odd("files", "umask", first="import os\nos.umask(0o077)", between="open('private', 'w').close()\nprint(oct(os.stat('private').st_mode))")
odd("files", "chroot", mixes=False, then="import os", between="os.mkdir('root')\nos.chroot('root')\nos.chdir('/')\nprint(os.listdir('/'))\nopen('/inside', 'w').close()", needs_root=True)
odd("files", "size_limit", then="""
    import resource, signal
    signal.signal(signal.SIGXFSZ, lambda number, frame: oddly.say("too large"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1 << 30))
""", between="""
    try:
        with open("large", "wb", buffering=0) as file:
            print(file.write(b"x" * 2000), file.write(b"x"))
    except OSError as error:
        print(error)
""", last="resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))")
odd("limits", "address_space", then="""
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, resource.RLIM_INFINITY))
""", between="""
    try:
        bytearray(1 << 33)
    except MemoryError:
        print("no memory")
""")
odd("limits", "stack", first="import threading\nthreading.stack_size(256 * 1024)", last="print(threading.stack_size())")
odd("users", "setuid", mixes=False, then="import os", between="os.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\nprint(os.getuid(), flush=True)", needs_root=True)
odd("users", "setuid_before_steps", mixes=False, then="import os\nos.setgid(65534)\nos.setuid(65534)", needs_root=True)
odd("users", "seteuid", mixes=False, then="import os", between="os.setegid(65534)\nos.seteuid(65534)", last="os.seteuid(0)\nos.setegid(0)", needs_root=True)

# Builtins.

OPENS = """
    import builtins
    def opens(*arguments, **named):
        raise SystemExit("opened %s" % (arguments[:1],))
"""
odd("builtins", "open_that_exits", mixes=False, then=OPENS + "    builtins.open = opens", last="del builtins.open\nbuiltins.open = __import__('io').open")
odd("builtins", "open_that_exits_from_the_start", mixes=False, first=OPENS + "    builtins.open = opens", last="builtins.open = __import__('io').open")
for name in ("open", "isinstance", "len", "print", "getattr", "hasattr", "sorted", "repr", "range", "min", "type", "issubclass", "callable", "__build_class__", "__import__"):
    if name in ("type", "range"):
        continue
    odd("builtins", f"own_{name.strip('_')}", mixes=name == "print", then=f"""
        import builtins
        theirs = builtins.{name}
        def own(*arguments, **named):
            oddly.say("called {name}")
            return theirs(*arguments, **named)
    """, steps=f"""
        import torch.optim.optimizer
        builtins.{name} = own
        oddly.steps(kept)
        builtins.{name} = theirs
    """, between=f"builtins.{name} = own\noddly.step()\nbuiltins.{name} = theirs")
odd("builtins", "removed", mixes=False, then="""
    import builtins
    removed = {name: getattr(builtins, name) for name in ("sorted", "open", "isinstance", "sum", "max", "OSError", "ValueError", "Exception")}
""", steps="""
    oddly.steps(kept, 1)
    for name in removed:
        delattr(builtins, name)
    oddly.steps(kept)
    vars(builtins).update(removed)
""")
odd("builtins", "added", first="import builtins\nbuiltins.odd = builtins._ = 1\nbuiltins.__debug__")

# Modules.

odd("modules", "deleted", then="""
    import sys
    for name in ("json", "json.decoder", "socket", "ssl", "threading", "re", "select", "ctypes", "struct", "encodings.idna", "encodings.latin_1", "os.path", "signal", "pickle", "gc", "weakref"):
        sys.modules.pop(name, None)
""", last="import json\nprint(json.dumps({'a': 1}))", mixes=False)
odd("modules", "refused", then="""
    import sys
    for name in ("json", "socket", "ssl", "logging", "select", "ctypes", "struct", "encodings.idna", "resource", "tracemalloc", "dis", "opcode"):
        sys.modules[name] = None
""", mixes=False)
odd("modules", "all_forgotten", mixes=False, between="""
    import sys
    kept_modules = dict(sys.modules)
    for name in list(sys.modules):
        if name not in ("sys", "builtins", "__main__", "oddly") and not name.startswith("torch"):
            del sys.modules[name]
""", last="sys.modules.update(kept_modules)")
odd("modules", "replaced", mixes=False, then="""
    import sys
    class Module:
        def __getattr__(self, name):
            oddly.say("looked up " + name)
            raise SystemExit("no module")
    for name in ("json", "socket", "select", "struct", "random", "resource", "logging", "dis", "numpy", "transformers", "multiprocessing.process"):
        sys.modules[name] = Module()
""", last="""
    for name in list(sys.modules):
        if type(sys.modules[name]) is Module:
            del sys.modules[name]
""", end="import os\nos._exit(3)")

OWN_MODULES = ("json", "struct", "socket", "queue", "logging", "random", "select", "signal", "typing", "enum", "ctypes", "resource", "selectors", "contextvars", "heapq", "mmap", "array", "fcntl", "tracemalloc", "pickle", "dis", "ssl", "calendar", "copy", "stepmem", "code", "string", "platform", "inspect", "statistics")


@drawn("own modules", "beside", mixes=False)
def _beside(of: Random) -> Sections:
    names = of.sample(OWN_MODULES, 6)
    files = {f"{name}.py": f"import oddly\noddly.say('module {name} runs')\nODD = {name!r}\n" for name in names}
    return {"files": files, "last": "\n".join(f"import {name}\nprint({name}.__name__, getattr({name}, 'ODD', None))" for name in names)}


@drawn("own modules", "later", mixes=False)
def _later(of: Random) -> Sections:
    names = of.sample(OWN_MODULES, 6)
    files = {f"later/{name}.py": f"import oddly\noddly.say('module {name} runs')\nODD = {name!r}\n" for name in names}
    between = "import sys\nsys.path.insert(0, 'later')\n" + "\n".join(f"import {name}\nprint(getattr({name}, 'ODD', None))" for name in names)
    return {"files": files, "between": between}


odd("own modules", "package", start="-m", files={"odd_package/json.py": "import oddly\noddly.say('runs')\n", "json.py": "import oddly\noddly.say('json runs')\n"}, mixes=False)
odd("imports", "path_cleared", mixes=False, then="import sys\ndel sys.path[:]", last="print(sys.path)")
odd("imports", "finder_that_tells", first="""
    import sys
    class Tells:
        def find_spec(self, name, path=None, target=None):
            if not name.startswith(("torch", "sitecustomize")):
                oddly.say("looked for " + name)
    sys.meta_path.insert(0, Tells())
""", mixes=False)
odd("imports", "hooks_cleared", mixes=False, then="import sys\ndel sys.path_hooks[:]\nsys.path_importer_cache.clear()")
odd("imports", "finders_cleared", mixes=False, then="import sys, torch.optim.optimizer\nfinders = sys.meta_path[:]\ndel sys.meta_path[:]", last="sys.meta_path[:] = finders")

# Functions that are replaced.


@drawn("patched", "time", mixes=False)
def _time(of: Random) -> Sections:
    name = of.choice(("time", "monotonic", "perf_counter", "sleep", "thread_time", "process_time", "time_ns"))
    body = of.choice(("return 0.0", "oddly.say('asked for the time'); return 1.0", "raise SystemExit('no time')"))
    where = of.choice(("first", "then"))
    return {where: f"import time\ndef own(*arguments):\n    {body}\ntheirs = time.{name}\ntime.{name} = own\n", "last": f"time.{name} = theirs"}


@drawn("patched", "os", mixes=False)
def _os(of: Random) -> Sections:
    names = of.sample(("write", "open", "read", "close", "stat", "fstat", "getpid", "urandom", "listdir", "pread", "readlink", "sysconf", "kill"), 4)
    body = of.choice(("oddly.say('called a function of os'); return None", "raise SystemExit('no os')", "raise OSError(5, 'no os')"))
    where = of.choice(("first", "then"))
    patches = "\n".join(f"theirs[{name!r}], os.{name} = os.{name}, own" for name in names)
    return {where: f"import os\ntheirs = {{}}\ndef own(*arguments, **named):\n    {body}\n{patches}\n", "last": "for name, value in theirs.items():\n    setattr(os, name, value)\n"}


odd("patched", "socket", mixes=False, then="""
    import socket
    class Blocked(Exception):
        pass
    def blocked(*arguments, **named):
        oddly.say("a socket is made")
        raise Blocked("no network")
    theirs = socket.socket, socket.create_connection, socket.getaddrinfo
    socket.socket = socket.create_connection = socket.getaddrinfo = blocked
""", last="socket.socket, socket.create_connection, socket.getaddrinfo = theirs")
odd("patched", "threads", mixes=False, then="""
    import threading, _thread
    def blocked(*arguments, **named):
        oddly.say("a thread is made")
        raise SystemExit("no threads")
    theirs = threading.Thread, threading.Event, threading.RLock, threading.current_thread
    threading.Thread = threading.Event = threading.RLock = threading.current_thread = blocked
""", last="threading.Thread, threading.Event, threading.RLock, threading.current_thread = theirs")
odd("patched", "json", mixes=False, then="""
    import json
    def blocked(*arguments, **named):
        oddly.say("json is used")
        raise SystemExit("no json")
    theirs = json.dumps, json.loads, json.JSONEncoder.encode, json.JSONEncoder.default, json.JSONDecoder.decode
    json.dumps = json.loads = json.JSONEncoder.encode = json.JSONEncoder.default = json.JSONDecoder.decode = blocked
""", last="json.dumps, json.loads, json.JSONEncoder.encode, json.JSONEncoder.default, json.JSONDecoder.decode = theirs")
odd("patched", "environment", then="import os\nbefore = dict(os.environ)\nos.environ.clear()\nos.environ['ODD'] = '\\udc80'", last="os.environ.clear()\nos.environ.update(before)")
odd("patched", "logging", then="""
    import logging, sys
    class Handler(logging.Handler):
        def emit(self, record):
            if not record.getMessage().startswith("stepmem: "):
                oddly.say("logged " + record.getMessage())
    logging.basicConfig(level=logging.DEBUG, handlers=[Handler()])
""", last="logging.info('mine')")

# Streams and texts.

odd("streams", "reads", stdin="one\ntwo\nthree\n", first="import sys\nprint(sys.stdin.readline())", between="print(input())", last="print(sys.stdin.read())", mixes=False)
odd("streams", "full", redirections=">/dev/full", last="print('lost')", mixes=False)
odd("streams", "full_at_exit", redirections="2>/dev/full", end="raise ValueError('lost')", mixes=False)
odd("streams", "closed", redirections="<&- 2>&-", mixes=False)
odd("streams", "in_memory", then="import io, sys\ntheirs = sys.stdout, sys.stderr\nsys.stdout, sys.stderr = io.StringIO(), io.StringIO()", last="""
    said = [each.getvalue() for each in (sys.stdout, sys.stderr)]
    sys.stdout, sys.stderr = theirs
    print(said[0], [line for line in said[1].splitlines() if not line.startswith("stepmem: ")])
""", mixes=False)
odd("streams", "absent", then="import sys\ntheirs = sys.stdout, sys.stderr, sys.stdin\nsys.stdout = sys.stderr = sys.stdin = None", last="sys.stdout, sys.stderr, sys.stdin = theirs", mixes=False)
odd("texts", "ascii", variables={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, last="import sys\nprint(sys.getfilesystemencoding(), ascii('é'))")
odd("texts", "latin", variables={"PYTHONIOENCODING": "latin-1:replace"}, last="print('\\xe9 \\u20ac')")
odd("texts", "utf8", flags=["-X", "utf8"], first="import locale\nlocale.setlocale(locale.LC_ALL, 'C')")

# How it is started.

for start in ("-c", "-m", "directory", "zip", "-"):
    odd("start", f"start_{start.strip('-') or 'stdin'}", start=start)
for flag in ("-I", "-E", "-S", "-O", "-OO", "-B", "-u", "-s", "-bb"):
    odd("flags", f"flag{flag}", flags=[flag], mixes=False, **({} if flag not in ("-I", "-E") else {}))

# Loops.

odd("loops", "asyncio", then="import asyncio", between="""
    async def other(n):
        await asyncio.sleep(0.001)
        return n
    async def main():
        results = await asyncio.gather(*[other(n) for n in range(5)])
        for _ in range(20):
            oddly.step()
            await asyncio.sleep(0)
        return results
    print("ran", asyncio.run(main()))
""")
odd("loops", "generators", then="""
    def trains():
        try:
            while True:
                oddly.step()
                yield
        finally:
            oddly.say("closed")
    training = trains()
    for _ in range(10):
        next(training)
""", between="training.close()")
odd("loops", "contexts", then="""
    import contextvars
    variable = contextvars.ContextVar("odd", default=None)
    variable.set([1, 2])
""", between="""
    context = contextvars.copy_context()
    context.run(variable.set, 3)
    context.run(oddly.steps, [], 20)
    print(variable.get(), context[variable], len(list(contextvars.copy_context())))
""")


# Source lines of 10^5 characters.


@drawn("long lines", "line")
def _line(of: Random) -> Sections:
    item, separator = of.choice(("0", "1.5", "'a'", "None", "x")), of.choice((", ", ",", ",      ", " , ", ",\t"))
    n = 100_000 // len(item + separator) + 1
    row = separator.join([item] * n)
    shape = of.choice(("table = [%s]", "def function(x=0):\n    return [%s]\n", "kept = []; table = (%s,)", "# %s", "table = '''%s'''", "kept = [] ; x = 0  # %s"))
    row = row.replace("x", "kept") if "def" not in shape and item == "x" else row
    where = "kept" if shape.startswith("kept") else "first"
    prefix = "kept = []\n" if item == "x" and where == "first" else ""
    return {where: prefix + shape % row, "last": "print('long')"}


@drawn("long lines", "spaces")
def _spaces(of: Random) -> Sections:
    blank = of.choice((" ", "\t", " \t", "\x0c"))
    shape = of.choice(("kept =%s[]", "kept = [%s]", "kept = []%s", "x = 1;%skept = []", "kept%s= []"))
    return {"kept": shape % (blank * (100_000 // len(blank)))}


@drawn("long lines", "names")
def _names(of: Random) -> Sections:
    name = of.choice(("a", "é", "_")) * of.choice((10_000, 100_000))
    shape = of.choice(("kept = {0} = []", "{0} = kept = []", "class Holder: pass\nholder = Holder(); holder.{0} = kept = []", "import sys; kept = []; vars(sys.modules['__main__'])['{0}'] = kept"))
    return {"kept": shape.format(name)}


@drawn("long lines", "imports")
def _imports(of: Random) -> Sections:
    n = 100_000 // 11 + 1
    names = ", ".join(f"name{idx:05}" for idx in range(n))
    return {"files": {"many.py": "".join(f"name{idx:05} = {idx}\n" for idx in range(n))}, "first": f"from many import {names}", "last": "print(name00003)"}


@drawn("long lines", "arguments")
def _arguments(of: Random) -> Sections:
    n = 100_000 // 13 + 1
    names = ", ".join(f"arg{idx:05}" for idx in range(200))
    calls = ", ".join(["kept.copy()"] * n)
    return {"then": f"def keeps({names}):\n    kept = []; return kept", "kept": f"kept = keeps({', '.join(['0'] * 200)}); others = lambda: [{calls}]"}


@drawn("long lines", "operators")
def _operators(of: Random) -> Sections:
    one = of.choice(("kept = ", "a.b.", "x[0]", "((", "'' ", "\\\n"))
    line = {
        "kept = ": "kept = " * 15_000 + "[]",
        "a.b.": "class a: pass\na.b = a\nkept = []\n" + "a.b." * 200 + "kept = kept; x = '" + "a.b." * 25_000 + "'",
        "x[0]": "x = {0: {}}\nkept = []; x[0] = kept; y = '" + "x[0]" * 25_000 + "'",
        "((": "kept = " + "(" * 80 + "[]" + ")" * 80 + " ; y = '" + "((" * 50_000 + "'",
        "'' ": "kept = []; y = " + "'' " * 34_000,
        "\\\n": "kept = \\\n" + "\\\n" * 3_000 + "[] ; y = '" + "=" * 100_000 + "'",
    }[one]
    return {"kept": line}


# Objects whose classes have code of their own wherever it may run.


def hostile(name: str, code: str, kept: str = "kept = []", then: str = "") -> None:
    odd("hostile heap", name, then=code, kept=kept + (f"\n{textwrap.dedent(then)}" if then else ""))


hostile("attributes", """
    class Odd:
        def __getattribute__(self, name):
            oddly.say("asked for " + name)
            raise SystemExit(name)
    things = [Odd() for _ in range(50)]
    named = {"thing": Odd(), "others": [Odd()]}
""", then="kept.append(Odd())")
hostile("metaclass", """
    class Kinds(type):
        def __eq__(self, other):
            oddly.say("compared")
            raise SystemExit("compared")
        def __hash__(self):
            oddly.say("hashed")
            raise SystemExit("hashed")
        def __instancecheck__(self, other):
            oddly.say("is it one?")
            return True
        def __subclasscheck__(self, other):
            oddly.say("is it below?")
            return True
        def __getattribute__(self, name):
            if name not in ("__del__",):
                oddly.say("kind asked for " + name)
            return type.__getattribute__(self, name)
        def mro(self):
            return super().mro()
    class Odd(metaclass=Kinds):
        pass
    things = [Odd() for _ in range(50)]
""", then="kept.append(Odd())")
hostile("texts", """
    class Text(str):
        def _told(self, *arguments, **named):
            oddly.say("a text is used")
            raise SystemExit("text")
        __format__ = __str__ = __repr__ = __eq__ = __hash__ = __len__ = __iter__ = __contains__ = __add__ = encode = split = isidentifier = startswith = partition = _told
        __hash__ = str.__hash__
    def function():
        return kept
    function.__name__ = Text("function")
    function.__qualname__ = Text("Odd.function")
    function.__module__ = Text("odd")
    class Named:
        pass
    Named.__module__ = Text("odd")
    Named.__qualname__ = Text("Qualified")
    named = Named()
    holders = {}
    dict.__setitem__(holders, Text("kept"), [])
""", then="named.kept = kept; named.function = function; function.kept = kept; globals()['alias'] = Named; Named.kept = kept")
hostile("numbers", """
    class Number(int):
        def _told(self, *arguments):
            oddly.say("a number is used")
            raise SystemExit("number")
        __add__ = __radd__ = __eq__ = __lt__ = __gt__ = __bool__ = __repr__ = __format__ = __int__ = __index__ = __mul__ = _told
        __hash__ = int.__hash__
    numbers = [Number(n) for n in range(100)]
    class Sized:
        nbytes = property(lambda self: Number(5))
        size = shape = property(lambda self: oddly.say("asked for its size"))
        def __len__(self):
            oddly.say("measured")
            return Number(3)
        def __sizeof__(self):
            oddly.say("measured")
            raise SystemExit("measured")
    sized = [Sized() for _ in range(50)]
""", then="kept.append(Sized())")
hostile("dictionaries", """
    class Odd(dict):
        def _told(self, *arguments):
            oddly.say("a dictionary is used")
            raise SystemExit("dictionary")
        __len__ = __iter__ = __getitem__ = __contains__ = keys = values = items = get = __eq__ = __repr__ = _told
        def __missing__(self, key):
            oddly.say("missed")
    things = Odd()
    class Namespace:
        __slots__ = ("__dict__",)
    space = Namespace()
    space.__dict__ = Odd()
""", kept="kept = []\ndict.__setitem__(things, 'kept', kept)\nspace.kept = kept")
hostile("lists", """
    class Odd(list):
        def _told(self, *arguments):
            oddly.say("a list is used")
            raise SystemExit("list")
        __len__ = __iter__ = __getitem__ = __contains__ = __eq__ = __repr__ = __bool__ = __sizeof__ = index = copy = _told
    class Many(tuple, ):
        __len__ = __iter__ = __getitem__ = __eq__ = __hash__ = Odd._told
    things = Odd()
    many = Many((1, 2, [3]))
""", kept="kept = Odd()")
hostile("deleted", """
    class Odd:
        def __init__(self, n):
            self.n = n
        def __del__(self):
            oddly.say("deleted %d" % self.n)
    things = [Odd(n) for n in range(3)]
""", then="things.clear()")
hostile("properties", """
    class Odd:
        @property
        def kept(self):
            oddly.say("property")
            raise SystemExit("property")
        __dict__ = property(lambda self: oddly.say("its names") or {})
        __class__ = property(lambda self: oddly.say("its class") or int)
        __slots__ = ("a", "b", "__weakref__")
        def __init__(self):
            self.a = self.b = [self]
    things = [Odd() for _ in range(50)]
""", then="things[0].a = kept")
hostile("weak", """
    import weakref
    class Odd:
        pass
    targets = [Odd() for _ in range(5)]
    references = [weakref.ref(each, lambda reference: oddly.say("gone")) for each in targets]
    weak = weakref.WeakValueDictionary(enumerate(targets))
    weak_keys = weakref.WeakKeyDictionary((each, [each.__class__]) for each in targets)
    finalizers = [weakref.finalize(each, oddly.say, "finalized") for each in targets[:1]]
""", then="targets.pop()")
hostile("proxies", """
    import weakref
    class Odd:
        def __getattribute__(self, name):
            oddly.say("through a proxy: " + name)
            raise SystemExit(name)
        def __len__(self):
            raise SystemExit("len")
    target = Odd()
    proxies = [weakref.proxy(target) for _ in range(20)]
""", then="kept.append(proxies[0])")
hostile("torch_functions", """
    class Tensor:
        pass
    torch.Tensor = Tensor
    Tensor.__torch_function__ = classmethod(lambda cls, *arguments, **named: oddly.say("torch function"))
    class Wrapped(Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            oddly.say("torch function")
            raise SystemExit("function")
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            oddly.say("torch dispatch")
            raise SystemExit("dispatch")
        def __getattribute__(self, name):
            oddly.say("tensor asked for " + name)
            raise SystemExit(name)
    tensors = [Wrapped() for _ in range(50)]
""", then="kept.append(Wrapped())")
hostile("descriptors", """
    class Tells:
        def __get__(self, instance, owner):
            oddly.say("got")
            raise SystemExit("got")
        def __set_name__(self, owner, name):
            pass
    class Odd:
        __name__ = __qualname__ = nbytes = shape = numel = element_size = __len__ = __array_interface__ = __cuda_array_interface__ = Tells()
    things = [Odd() for _ in range(50)]
    class Module:
        _parameters = _modules = _buffers = Tells()
    modules = [Module() for _ in range(5)]
""", then="kept.append(Odd())")
hostile("modules", """
    import sys, types
    class Module(types.ModuleType):
        def __getattr__(self, name):
            oddly.say("module asked for " + name)
            raise SystemExit(name)
        @property
        def __dict__(self):
            oddly.say("module asked for its names")
            return {}
    sys.modules["odd_module"] = Module("odd_module")
    del sys.modules["odd_module"].__spec__ if False else None
""".replace("    del sys.modules[\"odd_module\"].__spec__ if False else None\n", ""), then="sys.modules['odd_module'].kept = kept")
hostile("generators", """
    def endless():
        try:
            while True:
                yield []
        finally:
            oddly.say("generator closed")
    running = endless()
    next(running)
    async def coroutine():
        pass
    waiting = coroutine()
    class Iterates:
        def __iter__(self):
            oddly.say("iterated")
            raise SystemExit("iterated")
        __next__ = __iter__
    things = [Iterates() for _ in range(20)]
    lazy = map(oddly.say, ["mapped"] * 5)
""", then="kept.append(things[0])")
ENDS_OF_HEAP = "waiting.close()"
hostile("callables", """
    import functools
    class Call:
        def __call__(self, *arguments):
            oddly.say("called")
            raise SystemExit("called")
        def __getattr__(self, name):
            oddly.say("call asked for " + name)
            raise SystemExit(name)
        __wrapped__ = property(lambda self: oddly.say("unwrapped"))
    things = [functools.partial(Call(), 1) for _ in range(20)]
    @functools.lru_cache(maxsize=None)
    def cached(n):
        return [n]
    for n in range(100):
        cached(n)
""", then="cached(1).append(kept)")
hostile("enumerations", """
    import collections, enum, types
    class Odd(enum.Enum):
        A = 1
        @classmethod
        def _missing_(cls, value):
            oddly.say("missing")
        def __eq__(self, other):
            oddly.say("compared")
            raise SystemExit("compared")
        __hash__ = object.__hash__
    class Ordered(collections.OrderedDict):
        def __iter__(self):
            oddly.say("iterated")
            raise SystemExit("iterated")
        keys = values = items = __len__ = __iter__
    things = [Odd.A] * 20 + [collections.ChainMap({}), types.MappingProxyType({"a": 1}), collections.Counter("abc")]
    ordered = Ordered()
""", then="ordered.kept = kept")

"""Steps from several threads, and what the program's own signal handlers raise inside a step."""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
import threading
import types
from typing import Callable, List

import pytest
from conftest import ROOT, STUB

from stepmem import _threads


def test_first_step_of_sixteen_threads_starts_one_sender(fake, train):
    exporter = fake(200)
    code = """
        import os, stepmem, sys, threading
        sys.setswitchinterval(1e-6)
        barrier = threading.Barrier(16)
        def step():
            barrier.wait()
            stepmem.step_end()
        threads = [threading.Thread(target=step) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        flushed = stepmem.flush(60)
        names = [open(f"/proc/self/task/{each}/comm").read() for each in os.listdir("/proc/self/task")]
        print(names.count("stepmem\\n"), flushed)
    """
    for _ in range(5):
        ended = train(code, exporter.url, STEPMEM_RUN="run").ended()
        assert (ended.code, ended.out, ended.err) == (0, "1 True\n", "")
    assert sorted(record["step"] for record in exporter.records) == sorted([*range(1, 17)] * 5)


@pytest.mark.parametrize("paths", ["", STUB], ids=["resident memory", "allocator"])
def test_every_step_of_eight_threads_arrives(fake, train, paths):
    exporter = fake(200)
    imports = "import torch" if paths else "import sys"
    code = f"""
        {imports}
        import os, stepmem, sys, threading
        sys.setswitchinterval(1e-6)
        def steps():
            for _ in range(500):
                stepmem.step_end()
        threads = [threading.Thread(target=steps) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(stepmem.flush(30), [thread.name for thread in threading.enumerate()], len(os.listdir("/proc/self/task")))
    """
    ended = train(code, exporter.url, PATHS=paths).ended()
    assert (ended.code, ended.out, ended.err) == (0, f"True ['MainThread'] {3 if paths else 2}\n", "")
    assert [record["step"] for record in exporter.records] == list(range(1, 4001)), "each once, in order"
    assert {record["dropped_records"] for record in exporter.records} == {0}


def test_flush_is_false_once_the_sender_has_stopped(fake, train):
    code = """
        import stepmem, time
        stepmem.step_end(1)
        assert stepmem.flush(60)
        sender = stepmem._client.CLIENT._sender
        sender._batch.fill = None   # no bug is known that stops it
        stepmem.step_end(2)
        print(stepmem.flush(60), sender._thread.is_alive())
        stepmem.step_end(3)
        print(stepmem.flush(60))
    """
    ended = train(code, fake(200).url).ended()
    assert (ended.code, ended.out) == (0, "False False\nFalse\n")
    assert ended.err.count("pushing stopped") == 1, ended.err


HANDLER = """
    import torch, signal, stepmem, sys, functools
    class Preempted(Exception):
        pass
    HANDLER
    signal.signal(signal.SIGUSR1, handler)
    read, due = torch._C._cuda_memoryStats, []
    def read_during_a_signal(device):
        if due:
            signal.raise_signal(signal.SIGUSR1)
        return read(device)
    torch._C._cuda_memoryStats = read_during_a_signal
    stepmem.step_end(1)
    due.append(True)
    optimizer = torch.optim.Optimizer()
    try:
        STEP
        print("swallowed")
    except Preempted as error:
        print("raised", error)
    due.clear()
    stepmem.step_end(2)
    print(stepmem.flush(60))
"""
FUNCTION = "def handler(number, frame):\n        raise Preempted(number)"
WITHOUT_FRAME = "def handler(number, frame):\n        del frame\n        raise Preempted(number)"
METHOD = "class Handler:\n        def __call__(self, *arguments):\n            raise Preempted(arguments[0])\n    handler = Handler()"
PARTIAL = "def first(extra, number, frame):\n        raise Preempted(number)\n    handler = functools.partial(first, 1)"
DEEP = "def inner():\n        raise Preempted(10)\n    def handler(number, frame):\n        frame = None\n        inner()"
ONCE = "def handler(number, frame):\n        signal.signal(number, signal.SIG_DFL)\n        raise Preempted(number)"


@pytest.mark.parametrize("handler", [FUNCTION, WITHOUT_FRAME, METHOD, PARTIAL, DEEP, ONCE])
@pytest.mark.parametrize("step", ["stepmem.step_end(2)", "with stepmem.step(2): pass", "with stepmem.phase('eval'): pass"])
def test_exception_of_a_signal_handler_reaches_the_program(fake, train, handler, step):
    code = HANDLER.replace("    HANDLER", "    " + handler).replace("STEP", step)
    ended = train(code, fake(200).url, PATHS=STUB).ended()
    assert (ended.code, ended.out, ended.err) == (0, "raised 10\nTrue\n", "")


def test_exception_of_a_signal_handler_reaches_the_program_through_the_hook(fake, train):
    code = HANDLER.replace("    HANDLER", "    " + FUNCTION).replace("STEP", "optimizer.step()")
    code = code.replace("stepmem.step_end(1)", "stepmem.auto()\n    torch.optim.Optimizer().step()", 1).replace("stepmem.step_end(2)", "pass")
    code = code.replace("optimizer = torch.optim.Optimizer()", "import gc; gc.collect(); optimizer = torch.optim.Optimizer()")
    ended = train(code, fake(200).url, PATHS=STUB).ended()
    assert (ended.code, ended.out, ended.err) == (0, "raised 10\nTrue\n", "")


def test_error_of_the_allocator_does_not_reach_the_program(fake, train):
    code = HANDLER.replace("    HANDLER", "    " + FUNCTION).replace("STEP", "stepmem.step_end(2)")
    code = code.replace("signal.raise_signal(signal.SIGUSR1)", "raise Preempted('allocator')")
    ended = train(code, fake(200).url, PATHS=STUB).ended()
    assert ended.out == "swallowed\nTrue\n" and ended.err.count("a step was not recorded") == 1


def test_recording_starts_once_files_can_be_opened(fake, train):
    exporter = fake(200)
    code = """
        import resource, os, stepmem, time
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, limit[1]))
        for step in range(1, 101):
            stepmem.step_end(step)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        step = 101
        while stepmem._client.CLIENT._recorder is None:
            stepmem.step_end(step)
            step += 1
            time.sleep(0.01)
        print(stepmem.flush(60))
    """
    ended = train(code, exporter.url).ended()
    assert (ended.code, ended.out) == (0, "True\n"), ended.err
    assert ended.err.count("Too many open files") == 1, ended.err
    assert exporter.records[0]["step"] > 100


def test_what_the_system_needs_to_stop_a_thread_is_loaded_before_the_program_can_lose_it():
    """PyTorch loads it, too; a program with the stub alone does not."""
    code = "import stepmem; print('libgcc_s' in open('/proc/self/maps').read())"
    ended = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True)
    assert ended.stdout == "True\n", ended.stderr


class Begins:
    """Is the lock of a thread that begins while the interpreter's end waits for it."""

    def __init__(self) -> None:
        self.n_awaited = self.n_released = 0
        self.bodies: List[Callable[[], None]] = []

    def acquire(self, _: bool = True, seconds: float = -1) -> bool:
        if self.bodies:
            self.n_awaited += 1
            self.bodies.pop()()
        return True

    def release(self) -> None:
        self.n_released += 1


def test_end_of_the_interpreter_waits_until_a_thread_that_was_started_runs(monkeypatch):
    """The end frees what the system's thread needs before it runs Python, and kills the process if it comes too late."""
    begins = Begins()
    started = types.SimpleNamespace(allocate_lock=lambda: begins, start_new_thread=lambda body, _: begins.bodies.append(body), RLock=threading.RLock)
    monkeypatch.setattr(_threads, "_thread", types.SimpleNamespace(**{**vars(_thread), **vars(started)}))
    monkeypatch.setattr(_threads, "_threads", [])
    ran: List[int] = []
    thread = _threads.Thread(lambda: ran.append(1))
    thread._has_ended = types.SimpleNamespace(set=lambda: None)
    thread.start()
    assert not ran
    _threads._at_exit()
    assert (ran, begins.n_awaited) == ([1], 1)

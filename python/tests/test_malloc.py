"""What malloc has given out and what is free is read seldom, on the sender's thread, only where the exporter asks, and only of glibc's own malloc."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import textwrap

import pytest

from conftest import ROOT
from stepmem import _malloc
from stepmem._malloc import Malloc, MallocReading

REQUEST = {"type": "malloc", "run": "llm", "rank": 0}

is_glibc = platform.libc_ver()[0] == "glibc" and hasattr(ctypes.CDLL(None), "mallinfo2")
needs_glibc = pytest.mark.skipif(not is_glibc, reason="glibc is older than 2.33")

# Most of the memory of the program is malloc's, and each call is noted with the thread that makes it.
PRELUDE = """
import _thread, ctypes, itertools, os, sys
import stepmem
from stepmem import _malloc
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
for _ in range(1600):
    libc.memset(libc.malloc(65_536), 1, 65_536)
threads, find = [], _malloc.glibc
def find_and_count():
    library = find()
    if library is not None:
        call = library.mallinfo2
        def counted():
            threads.append(_thread.get_ident())
            return call()
        library.mallinfo2 = counted
    return library
_malloc.glibc = find_and_count
def steps(begin, end):
    for n in range(begin, end):
        stepmem.step_end(n)
        assert stepmem.flush(10)
"""


@pytest.fixture
def pushed(fake, train):
    """Runs a program whose exporter asks in each answer; returns its records with the figures, and what it printed."""

    def run(body: str, request: "dict[str, object]" = {}, **variables: str):
        exporter = fake(200)
        exporter.actions = [{**REQUEST, **request}]
        ended = train(PRELUDE + textwrap.dedent(body), exporter.url, STEPMEM_RUN="llm", **variables).ended()
        assert ended.code == 0, ended.err
        return [each for each in exporter.records if "malloc_free_bytes" in each], ended

    return run


PIECES = """
n = 1_000_000
blocks = list(map(libc.malloc, itertools.repeat(136, 2 * n)))
list(map(libc.free, blocks[::2]))
"""


@needs_glibc
def test_a_million_free_pieces_are_read_once_and_that_is_said(pushed):
    records, ended = pushed("_malloc.EVERY_SECONDS = 0.0\n" + PIECES + "steps(0, 8)\nprint(len(threads))")
    assert ended.out == "1\n"
    (record,) = records
    assert record["malloc_free_bytes"] >= 136e6 and record["malloc_used_bytes"] >= 136e6 + (100 << 20)
    assert "free pieces of memory, of which to read the size took" in " ".join([*ended.information, ended.err])


@needs_glibc
def test_malloc_is_read_at_most_once_a_minute_and_never_on_the_training_thread(pushed):
    records, ended = pushed("steps(0, 8)\nprint(len(threads), _thread.get_ident() in threads)")
    assert (len(records), ended.out) == (1, "1 False\n")
    records, ended = pushed("_malloc.EVERY_SECONDS = 0.0\nsteps(0, 8)\nprint(len(threads) > 3, _thread.get_ident() in threads)")
    assert len(records) > 3 and ended.out == "True False\n"


@needs_glibc
@pytest.mark.parametrize(
    ("request_", "variables"), [({"rank": 1}, {}), ({"type": "other"}, {}), ({}, {"STEPMEM_HOLDERS": "off"})], ids=["another rank", "nothing", "off"]
)
def test_malloc_is_not_read_unless_the_exporter_asks_this_rank_and_may(request_, variables, pushed):
    records, ended = pushed("steps(0, 4)\nprint(len(threads))", request=request_, **variables)
    assert (records, ended.out) == ([], "0\n")


@needs_glibc
def test_forked_child_starts_anew(pushed):
    body = """
    from stepmem._client import CLIENT
    steps(0, 4)
    assert CLIENT._malloc.last is not None
    child = os.fork()
    if not child:
        own = CLIENT._malloc
        os._exit(0 if own.last is None and own._due_at == 0.0 and not own._is_over else 1)
    assert os.waitpid(child, 0)[1] == 0
    """
    assert len(pushed(body)[0]) == 1


def taken(monkeypatch, seconds: float, times: "list[float]") -> int:
    """Returns the number of calls of so many seconds each that are made where there is a request at each of these times."""
    calls = []
    now = 0.0
    cpu = iter(lambda: len(calls) * seconds, None)

    class Library:
        def mallinfo2(self):
            calls.append(now)
            return _malloc._Mallinfo2(uordblks=1 << 40, fordblks=1 << 30)

        def sbrk(self, _):
            return None

    monkeypatch.setattr(_malloc, "glibc", lambda: Library())
    monkeypatch.setattr(_malloc, "clock", lambda: next(cpu))
    monkeypatch.setattr(_malloc, "monotonic", lambda: now)
    malloc = Malloc()
    for now in times:
        malloc.read(0)
    return len(calls)


@pytest.mark.parametrize(("seconds", "n_calls"), [(0.000001, 60), (0.0001, 60), (0.0002, 30), (0.001, 6), (0.0049, 2), (0.0051, 1)])
def test_longer_calls_come_more_rarely_and_after_too_long_a_one_there_is_none(seconds, n_calls, monkeypatch):
    times = [61.0 * n + 1.0 for n in range(60)]
    assert taken(monkeypatch, seconds, times) == n_calls
    assert n_calls * seconds <= 0.001 * 3600.0


WRAPPER = """
#define _GNU_SOURCE
#include <stddef.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);
void *malloc(size_t n) { return __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return __libc_calloc(n, size); }
void *realloc(void *block, size_t n) { return __libc_realloc(block, n); }
void *memalign(size_t to, size_t n) { return __libc_memalign(to, n); }
void free(void *block) { __libc_free(block); }
"""


@needs_glibc
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_another_allocator_by_preload_is_not_read(pushed, tmp_path):
    (tmp_path / "other.c").write_text(WRAPPER)
    library = str(tmp_path / "libother.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(tmp_path / "other.c")], check=True)
    records, ended = pushed("steps(0, 4)\nprint(len(threads))", LD_PRELOAD=library)
    assert (records, ended.out) == ([], "0\n")


@needs_glibc
@pytest.mark.parametrize("python", sorted({sys.executable, *filter(None, (shutil.which(f"python3.{minor}", path="/usr/bin") for minor in range(9, 15)))}))
def test_malloc_of_glibc_is_found_whether_the_interpreter_has_an_entry_of_its_own_for_it_or_not(python):
    code = "from stepmem import _malloc; print(_malloc.glibc() is not None)"
    ended = subprocess.run([python, "-c", code], env={"PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True)
    assert ended.stdout == "True\n", ended.stderr


@needs_glibc
def test_memory_that_malloc_does_not_explain_is_not_told(pushed):
    body = """
    import mmap
    other = mmap.mmap(-1, 400 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    other[:] = b"x" * (400 << 20)
    steps(0, 4)
    """
    assert pushed(body)[0] == []


@pytest.mark.parametrize("content", [b"x" * 65_532 + b"mimalloc: error", b"\0mimalloc_\0", b"malloc"])
def test_allocator_of_pytorchs_own_library_is_noticed(content, monkeypatch, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libc10.so").write_bytes(content)
    torch = type(sys)("torch")
    torch.__file__ = str(tmp_path / "__init__.py")
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert _malloc._has_torch_own() == (b"mimalloc" in content)


@pytest.mark.parametrize("missing", ["mallinfo2", "gnu_get_libc_version", "dladdr1", "sbrk"])
def test_library_without_these_functions_is_not_read(missing, monkeypatch):
    class Library:
        def __getattr__(self, name):
            if name == missing:
                raise AttributeError(name)
            return getattr(ctypes.pythonapi, "Py_IsInitialized") if name != "sbrk" else lambda: None

    monkeypatch.setattr(_malloc.ctypes, "CDLL", lambda _: Library())
    assert _malloc.glibc() is None


def test_rates_are_those_between_the_last_two_readings():
    malloc = Malloc()
    assert malloc.rates() is None
    malloc.last = MallocReading(140, 500, 300, 0)
    assert malloc.rates() is None
    malloc.before = MallocReading(40, 450, 100, 0)
    assert malloc.rates() == (0.5, 2.0)
    malloc.before = malloc.last
    assert malloc.rates() is None

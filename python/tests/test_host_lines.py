"""The line that allocates growing host memory: where a search for holders finds no object, one window of tracemalloc names it."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import pytest
from conftest import ROOT, Reply
from test_run import python, run  # noqa: F401

RUN = (ROOT / "python/tests/holders/run.py").read_text()
REQUEST = {"type": "holders", "id": "7-h1", "run": "llm", "rank": 0, "steps": 20, "is_on_host": True, "bytes_per_step": 65_536.0}

# tracemalloc is safe in few versions of Python, of which a machine need not have one. Time passes in steps of the program.
PRELUDE = """
import ctypes, os, sys, threading, tracemalloc
import stepmem
from stepmem._holders import allowance, lines, tracing
VERSION = sys.version_info[:2]
tracing.FIXED = {VERSION: 0}
allowance.SHARE_OF_WINDOW = allowance.CREDIT_SECONDS = 10.0  # the program lasts for less than a second
now, step_seconds = 0.0, 1.0
lines.clock = lambda: now
def step(n):
    global now
    now += step_seconds
    stepmem.step_end(n)
"""

# The memory is kept where no search looks: by the system's allocator, of which Python knows the line that asked for it.
LEAK = """
api = ctypes.pythonapi
api.PyBytes_FromStringAndSize.restype = ctypes.c_void_p
api.PyBytes_FromStringAndSize.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]
kept, text = 0, b"x" * 65_536
def leak():
    global kept
    kept = api.PyBytes_FromStringAndSize(text, 65_536)
"""

LOOP = """
for n in range(400):
    leak()
    step(n)
"""


def line_of(program: str, text: str) -> int:
    return next(n for n, line in enumerate(program.splitlines(), 1) if text in line)


@pytest.fixture
def answer(fake, train, tmp_path):
    """Runs a program that gets a request at its 60th step, and returns its reports and what it printed."""

    def run(body: str, request: "dict[str, object]" = {}, **variables: str):
        exporter = fake(200)
        exporter.actions = [{**REQUEST, **request}]
        program = tmp_path / "program.py"
        program.write_text(PRELUDE + LEAK + textwrap.dedent(body))
        variables = {"STEPMEM_TRACEMALLOC": "auto", "STEPMEM_RUN": "llm", **variables}
        ended = train(RUN, exporter.url, "60", str(program), **variables).ended()
        assert ended.code == 0, ended.err
        return exporter.holders, ended.out

    return run


def lines_of(reports):
    """Returns the last result about lines."""
    return [report["lines"] for report in reports if "lines" in report][-1]


def test_line_that_allocates_what_no_object_holds_is_named_with_its_pause(answer):
    reports, out = answer(LOOP + "print(tracemalloc.is_tracing())")
    assert [report["outcome"] for report in reports[:3]] == ["began", "none", "named"] and "lines" not in reports[1]
    (holder,) = reports[2]["holders"]
    assert holder["file"].endswith("program.py") and holder["line"] == line_of(PRELUDE + LEAK, "kept = api.")
    assert (holder["kind"], holder["tensors"]) == ("allocating line", 0)
    assert holder["bytes_per_step"] == pytest.approx(65_536, rel=0.05)
    lines = reports[2]["lines"]
    assert (lines["outcome"], lines["steps"], lines["slowdown_ratio"], lines["pause_seconds"]) == ("named", 40, 1.0, 0.0)
    assert out == "False\n"


def test_nothing_is_traced_unless_it_is_wanted(answer):
    body = "tracemalloc.start = None\n" + LOOP
    for variables in ({"STEPMEM_TRACEMALLOC": ""}, {"STEPMEM_TRACEMALLOC": "off"}):
        reports, _ = answer(body, **variables)
        assert reports[1]["outcome"] == "none" and not any("lines" in report for report in reports)
    reports, _ = answer(body, request={"is_on_host": False})
    assert not any("lines" in report for report in reports)


def test_operator_gets_the_line_without_the_setting_and_also_of_an_object(answer):
    reports, _ = answer(LOOP, request={"lines": True}, STEPMEM_TRACEMALLOC="")
    assert lines_of(reports)["outcome"] == "named"
    body = "held = []\nfor n in range(400):\n    held.append(bytearray(65_536))\n    step(n)\n"
    reports, _ = answer(body, request={"lines": True}, STEPMEM_TRACEMALLOC="")
    assert reports[-1]["holders"][0]["kind"] == "allocating line"
    assert [holder["name"] for holder in reports[-1]["holders"][1:]] == ["`held`"]


def test_operators_request_goes_before_a_search_and_is_refused_where_tracing_is_off(fake, train, tmp_path):
    exporter = fake(200)
    exporter.actions = [REQUEST, {**REQUEST, "id": "7-h2", "lines": True}]
    program = tmp_path / "program.py"
    program.write_text(PRELUDE + LEAK + LOOP)
    for setting in ("", "off"):
        exporter.accepted.clear()
        ended = train(RUN, exporter.url, "60", str(program), STEPMEM_TRACEMALLOC=setting, STEPMEM_RUN="llm").ended()
        assert ended.code == 0, ended.err
        results = {id_: [each for each in exporter.holders if each["id"] == id_] for id_ in ("7-h1", "7-h2")}
        if setting:
            assert results["7-h2"][0]["error"] == "STEPMEM_TRACEMALLOC=off" and results["7-h1"][-1]["outcome"] == "none"
        else:
            assert results["7-h2"][-1]["lines"]["outcome"] == "named" and len(results["7-h1"]) == 1


def test_object_that_holds_the_memory_is_named_without_tracing(answer):
    body = "tracemalloc.start = None\nheld = []\nfor n in range(400):\n    held.append(bytearray(65_536))\n    step(n)\n"
    reports, _ = answer(body)
    assert reports[-1]["holders"][0]["name"] == "`held`" and not any("lines" in report for report in reports)


@pytest.mark.parametrize(
    "disguise",
    [
        "tracing.FIXED = {VERSION: 99}",
        "tracing.FIXED = {(VERSION[0], VERSION[1] + 1): 0}",
        "sys.abiflags = 't'",
        "sys.implementation.name = 'other'",
    ],
)
def test_tracing_is_never_begun_where_it_is_not_safe_to_stop(disguise, answer):
    reports, _ = answer(f"{disguise}\ntracemalloc.start = None\n" + LOOP)
    assert lines_of(reports) == {"outcome": "unsafe"}


@pytest.mark.parametrize(("is_safe", "is_on_host", "expected"), [(True, True, None), (False, True, {"outcome": "unsafe"}), (False, False, None)])
def test_search_that_explains_nothing_reports_that_no_line_could_be_found_either(is_safe, is_on_host, expected, answer):
    disguise = "" if is_safe else "tracing.FIXED = {VERSION: 99}\nsys.modules.pop('stepmem._holders.lines')\n"
    out = "print('stepmem._holders.lines' in sys.modules)"
    reports, out = answer(disguise + LOOP + out, request={"is_on_host": is_on_host}, STEPMEM_TRACEMALLOC="")
    assert [report.get("lines") for report in reports] == [None, *[expected] * (len(reports) - 1)] and len(reports) > 1
    assert out == f"{is_safe}\n"  # it is imported by this test only


def test_only_releases_with_the_fix_are_traced():
    code = "import collections, sys; from stepmem._holders import lines; Version = collections.namedtuple('V', 'major minor micro')\n"
    code += "for version in ((3, 9, 25), (3, 12, 8), (3, 12, 9), (3, 13, 1), (3, 13, 2), (3, 14, 3), (3, 14, 4), (3, 15, 0)):\n"
    code += "    sys.version_info = version\n    print(lines.refusal())\n"
    out = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["unsafe", "unsafe", "None", "unsafe", "None", "unsafe", "None", "None"]


def test_programs_own_tracing_is_left_on_and_not_used(answer):
    reports, out = answer("tracemalloc.start(3)\n" + LOOP + "print(tracemalloc.is_tracing(), tracemalloc.get_traceback_limit())")
    assert lines_of(reports) == {"outcome": "own"} and out == "True 3\n"


@pytest.mark.parametrize(("call", "is_on"), [("tracemalloc.start(3)", "True 3"), ("tracemalloc.stop()", "False 1")])
def test_program_that_starts_or_stops_tracing_during_the_window_has_its_way(call, is_on, answer):
    body = f"""
    was_tracing = 0
    for n in range(400):
        leak()
        if tracemalloc.is_tracing():
            was_tracing += 1
            if was_tracing == 10:
                {call}
        step(n)
    print(tracemalloc.is_tracing(), tracemalloc.get_traceback_limit(), tracemalloc.start.__module__)
    """
    reports, out = answer(body)
    assert lines_of(reports)["outcome"] == "own" and out == f"{is_on} _tracemalloc\n"


def test_window_ends_after_a_traced_step_that_is_slower(answer):
    body = """
    traced = 0
    for n in range(400):
        leak()
        traced += tracemalloc.is_tracing()
        step_seconds = 1.06 if tracemalloc.is_tracing() else 1.0
        step(n)
    print(traced)
    """
    reports, out = answer(body)
    assert (lines_of(reports)["outcome"], lines_of(reports)["slowdown_ratio"], out) == ("slow", 1.06, "1\n")


def test_median_of_the_steps_before_is_what_a_step_is_compared_with(answer):
    body = """
    for n in range(400):
        leak()
        step_seconds = 1.04 if tracemalloc.is_tracing() else 9.0 if n % 3 == 0 else 1.0
        step(n)
    """
    reports, _ = answer(body, request={"steps": 8})
    assert (lines_of(reports)["outcome"], lines_of(reports)["slowdown_ratio"]) == ("named", 1.04)


def test_window_ends_at_its_time_and_at_the_memory_of_its_tables(answer):
    body = """
    traced = 0
    for n in range(400):
        leak()
        traced += tracemalloc.is_tracing()
        step_seconds = 10.0 if traced > 1 else 1.0
        step(n)
    print(traced < 10)
    """
    reports, out = answer(body)
    assert (lines_of(reports)["outcome"], out) == ("bound", "True\n")
    reports, _ = answer("lines.TABLES_BYTES_MAX = 4096\n" + LOOP)
    assert lines_of(reports)["outcome"] == "bound"


def test_window_with_many_allocations_ends_early_and_names_its_line(answer):
    """40 % of the tables' bound ends the first half, and 80 % the second; what is read of them is summed up over several steps' ends."""
    code = """
    lines.TABLES_BYTES_MAX = 300_000
    ticks = [0.0]
    def ticking():
        ticks[0] += lines.SLICE_SECONDS / 2
        return ticks[0]
    lines.processor_time = ticking
    many = []
    for n in range(400):
        leak()
        many.extend(object() for _ in range(200))
        step(n)
    """
    reports, _ = answer(textwrap.dedent(code))
    found = lines_of(reports)
    assert found["outcome"] == "named" and 8 <= found["steps"] < 40, found


def test_step_that_goes_beyond_a_bound_is_not_traced_to_its_end(answer):
    body = """
    for n in range(400):
        leak()
        if tracemalloc.is_tracing():
            lines.TABLES_BYTES_MAX = 4096
            while tracemalloc.is_tracing():
                threading.Event().wait(0.01)
        step(n)
    """
    reports, _ = answer(body)
    assert lines_of(reports)["outcome"] == "bound"


def test_growth_in_increments_farther_apart_than_the_window_is_not_looked_for(answer):
    reports, _ = answer("tracemalloc.start = None\n" + LOOP, request={"steps": 31})
    assert lines_of(reports) == {"outcome": "apart"}
    reports, _ = answer("tracemalloc.start = None\nstep_seconds = 8.0\n" + LOOP)
    assert lines_of(reports) == {"outcome": "apart"}


def test_steps_of_seconds_are_traced_for_the_time_there_is(answer):
    reports, _ = answer("step_seconds = 3.0\n" + LOOP)
    assert (lines_of(reports)["outcome"], lines_of(reports)["steps"]) == ("named", 20)


def test_forked_child_does_not_trace(answer):
    body = """
    children = []
    for n in range(400):
        leak()
        if tracemalloc.is_tracing() and len(children) < 3:
            pid = os.fork()
            if pid == 0:
                bytearray(100_000)
                os._exit(1 + tracemalloc.is_tracing())
            children.append(os.waitpid(pid, 0)[1] >> 8)
        step(n)
    print(children, tracemalloc.is_tracing())
    """
    reports, out = answer(body)
    assert lines_of(reports)["outcome"] == "named" and out == "[1, 1, 1] False\n"


def test_threads_that_allocate_and_take_steps_meanwhile_do_no_harm(answer):
    body = """
    is_over, lock = threading.Event(), threading.Lock()
    def allocate():
        while not is_over.is_set():
            b"".join([bytes(1000) for _ in range(100)])
    threads = [threading.Thread(target=allocate) for _ in range(3)]
    def train():
        for _ in range(150):
            with lock:
                leak()
                step(None)
    trainers = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads + trainers:
        thread.start()
    for thread in trainers:
        thread.join()
    is_over.set()
    for n in range(100):
        leak()
        step(None)
    """
    reports, _ = answer(body)
    assert lines_of(reports)["outcome"] == "named" and reports[-1]["holders"][0]["file"].endswith("program.py")


def test_process_has_one_window_and_further_ones_only_after_slow_probes(fake, train):
    exporter = fake(200)
    program = PRELUDE + LEAK + textwrap.dedent("""
    is_slow, windows, was = sys.argv[1] == "slow", 0, False
    for n in range(1500):
        leak()
        windows, was = windows + (tracemalloc.is_tracing() and not was), tracemalloc.is_tracing()
        step_seconds = 2.0 if was and is_slow else 1.0
        step(n)
        if n % 250 == 0:
            print(n, flush=True)
            sys.stdin.readline()
            assert stepmem.flush(10)
    print("windows", windows)
    """)
    for mode, n_windows in (("slow", 3), ("fast", 1)):
        training = train(program, exporter.url, mode, STEPMEM_TRACEMALLOC="auto", STEPMEM_RUN="llm")
        while (line := training.read_line()).isdecimal():
            exporter.actions = [{**REQUEST, "id": f"{mode}-{line}"}]
            training.write_line("")
        assert line == f"windows {n_windows}", training.ended().err
        assert training.ended().code == 0
        again = [report for report in exporter.holders if report["id"] == f"{mode}-1000"]
        if mode == "fast":  # what is known stays, and is not told again
            assert [report["outcome"] for report in again][:2] == ["began", "none"] and "lines" not in again[1]
        else:
            assert again[-1]["lines"]["outcome"] == "slow"


NATIVE = """
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def malloc(n_bytes):
    block = libc.malloc(n_bytes)
    libc.memset(block, 1, n_bytes)
    return block
"""


# As if the exporter had asked for readings a minute apart, and the allocator's figures had changed so between them.
RATES = """
from stepmem import _malloc
_malloc.Malloc.rates = lambda self: (USED, FREE)
"""


def test_native_memory_is_told_as_what_python_does_not_allocate(answer):
    rates = RATES.replace("USED", "65_536.0").replace("FREE", "0.0")
    reports, _ = answer(rates + NATIVE + "for n in range(400):\n    malloc(65_536)\n    step(n)\n")
    lines = lines_of(reports)
    assert lines["outcome"] == "native" and lines["malloc_used_bytes_per_step"] == 65_536


def test_freed_memory_that_the_allocator_keeps_is_told_apart(answer):
    body = NATIVE + """
blocks = [libc.malloc(65_536) for _ in range(401 * 2)]  # not resident before they are written
for n in range(400):
    libc.memset(blocks[2 * n], 1, 65_536)
    libc.free(blocks[2 * n])
    step(n)
"""
    reports, _ = answer(RATES.replace("USED", "-65_536.0").replace("FREE", "65_536.0") + body)
    lines = lines_of(reports)
    assert lines["outcome"] == "arenas" and lines["malloc_free_bytes_per_step"] == 65_536 and lines["malloc_used_bytes_per_step"] == 0


def test_window_without_readings_of_the_allocator_has_no_figures_of_it(answer):
    reports, _ = answer(NATIVE + "for n in range(400):\n    malloc(65_536)\n    step(n)\n")
    assert lines_of(reports)["outcome"] == "native" and "malloc_free_bytes_per_step" not in lines_of(reports)


def test_memory_that_is_level_during_the_window_is_not_called_native(answer):
    reports, _ = answer("for n in range(400):\n    step(n)\n")
    assert lines_of(reports)["outcome"] == "level"


def test_rough_early_figure_of_the_growth_does_not_hide_the_line(answer):
    for bytes_per_step in (1_000_000.0, 40_000.0):
        reports, _ = answer(LOOP, request={"bytes_per_step": bytes_per_step})
        assert reports[2]["holders"][0]["bytes_per_step"] == pytest.approx(65_536, rel=0.05)


def test_buffer_that_turns_over_is_not_named(answer):
    body = """
    import collections
    replay = collections.deque((bytes(200_000) for _ in range(300)), maxlen=300)
    for n in range(400):
        replay.append(bytes(200_000))
        leak()
        step(n)
    """
    reports, _ = answer(body)
    assert [holder["line"] for holder in reports[2]["holders"]] == [line_of(PRELUDE + LEAK, "kept = api.")]


def test_many_lines_of_which_none_explains_the_growth(answer):
    body = "for n in range(400):\n" + 16 * "    api.PyBytes_FromStringAndSize(text, 4_096)\n" + "    step(n)\n"
    reports, _ = answer(body)
    assert lines_of(reports)["outcome"] == "spread"


def test_exporter_that_does_not_know_lines_gets_the_report_without_them(fake, train, tmp_path):
    exporter = fake(Reply(400, refuses=("lines",)))
    exporter.actions = [REQUEST]
    program = tmp_path / "program.py"
    program.write_text(PRELUDE + LEAK + LOOP)
    ended = train(RUN, exporter.url, "60", str(program), STEPMEM_TRACEMALLOC="auto", STEPMEM_RUN="llm").ended()
    assert ended.code == 0, ended.err
    named = [report for report in exporter.holders if report["outcome"] == "named"]
    assert named and named[0]["holders"][0]["kind"] == "allocating line" and "lines" not in named[0]


def test_wrong_setting_is_named(train):
    ended = train("import stepmem\nstepmem.step_end(1)\n", None, STEPMEM_TRACEMALLOC="always").ended()
    assert "STEPMEM_TRACEMALLOC: 'always' is neither auto nor off" in ended.err


TEE = """
import itertools, sys, time, tracemalloc
from torch.optim.optimizer import Optimizer
import stepmem
from stepmem._holders import lines, tracing
tracing.FIXED = {sys.version_info[:2]: 0}
now = 0.0
lines.clock = lambda: now
def samples():
    while True:
        yield b"x" * (1 << 18)
used, unused = itertools.tee(samples())
optimizer = Optimizer()
was_tracing, n_left = False, 3000
while n_left:
    next(used)
    now += 1.0
    optimizer.step()
    time.sleep(0.003)
    n_left = min(n_left - 1, 200) if was_tracing and not tracemalloc.is_tracing() else n_left - 1
    was_tracing |= tracemalloc.is_tracing()
"""


def test_run_with_host_lines_names_the_line_in_the_summary(run, without_cuda, tmp_path):  # noqa: F811
    (tmp_path / "train.py").write_text(TEE)
    ended = python(run, "train.py", options=("--host-lines",), PYTHONPATH=without_cuda, STEPMEM_CAPACITY="1GiB").ended()
    assert ended.code == 0, ended.err
    found = rf"allocated at \S+/train\.py:{line_of(TEE, 'yield')} \(2[45]\d KiB more/step, all of the growth; 40 steps traced, longest pause"
    assert re.search(found, " ".join(ended.out.split() + ended.err.split())), ended.err

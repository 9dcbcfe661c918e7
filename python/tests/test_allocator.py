"""Allocator statistics, snapshots and the optimizer hook, with a stub of PyTorch whose allocator only counts."""

from __future__ import annotations

import json
import os
import pickle
import re
import textwrap

import pytest
from conftest import ASKED, STUB, Reply, await_true

STEPS = """
    import torch, stepmem
    def step(spike):
        torch.malloc(spike)
        torch.free(spike)
        stepmem.step_end()
        assert stepmem.flush(60)
    torch.malloc(1000)
    for spike in (5000, 100, 100, 9000):
        step(spike)
    print(torch._C.n_resets, torch._C.n_reads)
"""


def test_figures_are_those_of_the_allocator(exporter, train):
    ended = train(STEPS, exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "4 5\n", "statistics are read once a step, and once at the first to learn their shape"
    rank = exporter.rank()
    wanted = {
        "device": "GPU-01234567-89ab-cdef-0123-456789abcdef",
        "allocated_bytes": 1000,
        "requested_bytes": 1000,
        "live_blocks": 1,
        "peak_allocated_bytes": 10000,
        "reserved_bytes": 2024,
        "peak_reserved_bytes": 11024,
        "inactive_split_bytes": 512,
        "alloc_retries": 2,
        "ooms": 0,
        "total_bytes": 1 << 30,
    }
    assert {name: rank[name] for name in wanted} == wanted


def test_blocks_are_counted_as_they_are_kept_and_absent_where_the_allocator_counts_none(fake, train):
    code = """
        import torch, stepmem
        torch._C.counts_blocks = bool({})
        for _ in range(3):
            torch.malloc(1000), torch.malloc(24), torch.free(24)
            stepmem.step_end()
        assert stepmem.flush(60)
    """
    counting, silent = fake(200), fake(200)
    assert train(code.replace("{}", "1"), counting.url, PATHS=STUB).ended().code == 0
    assert [record["live_blocks"] for record in counting.records] == [1, 2, 3]
    assert train(code.replace("{}", "0"), silent.url, PATHS=STUB).ended().code == 0
    assert [set(record) & {"live_blocks", "requested_bytes"} for record in silent.records] == [set()] * 3


HOST = """
    import os, subprocess, sys, torch, stepmem
    stepmem._readers.HOST_EVERY = 0.0
    torch.malloc(1000)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    kept = []
    while len(kept) < 3 or not os.path.exists(sys.argv[1]):
        kept.append(b"x" * (64 << 20) if len(kept) < 3 else b"")
        stepmem.step_end()
        assert stepmem.flush(60)
    child.communicate(b"1")
"""


def test_host_memory_is_reported_next_to_the_device(fake, train, tmp_path):
    exporter, done = fake(200), tmp_path / "done"
    training = train(HOST, exporter.url, str(done), PATHS=STUB)
    await_true("its child is read", lambda: any(record.get("child_processes") for record in exporter.records))
    done.touch()
    ended = training.ended()
    assert (ended.code, ended.err) == (0, "")
    records = exporter.records[:3]
    assert [record["allocated_bytes"] for record in records] == [1000, 1000, 1000], "the device's"
    held = [record["host_allocated_bytes"] for record in records]
    rises = [after - before for before, after in zip(held, held[1:])]
    assert all(rise == pytest.approx(64 << 20, abs=1 << 20) for rise in rises), held
    assert records[-1]["host_total_bytes"] > held[-1]
    assert not any("host_pinned_bytes" in record for record in exporter.records), "it has none"


PINNED = """
    import os, sys, torch, stepmem
    stepmem._readers.PINNED_EVERY = 0.0
    torch.malloc(1000)
    torch._C.pinned = 3 << 30
    while not os.path.exists(sys.argv[2]):
        if os.path.exists(sys.argv[1]):
            torch._C.pinned = 0
        stepmem.step_end()
        assert stepmem.flush(60)
"""


def test_pinned_memory_is_reported_until_it_is_given_back(fake, train, tmp_path):
    exporter, freed, done = fake(200), tmp_path / "freed", tmp_path / "done"
    training = train(PINNED, exporter.url, str(freed), str(done), PATHS=STUB)
    await_true("pinned memory is read", lambda: any(record.get("host_pinned_bytes") == 3 << 30 for record in exporter.records))
    freed.touch()
    await_true("none is left", lambda: any(record.get("host_pinned_bytes") == 0 for record in exporter.records))
    done.touch()
    ended = training.ended()
    assert (ended.code, ended.err) == (0, "")


def test_host_memory_next_to_a_device_costs_short_steps_nothing(fake, train):
    exporter = fake(200)
    ended = train("import stepmem\nstepmem._readers.HOST_EVERY = 3600.0\n" + textwrap.dedent(STEPS), exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    assert [record["allocated_bytes"] for record in exporter.records] == [1000] * 4
    assert ["host_allocated_bytes" in record for record in exporter.records] == [True, False, False, False]


def test_exporter_that_does_not_know_host_memory_gets_the_device_alone(fake, train):
    exporter = fake(Reply(400, refuses=("host_allocated_bytes", "host_total_bytes")))
    ended = train(STEPS, exporter.url, PATHS=STUB).ended()
    assert ended.code == 0, ended.err
    assert [record["allocated_bytes"] for record in exporter.records] == [1000] * 4
    assert not any(name.startswith("host_") for record in exporter.records for name in record)


EXACT = [6000, 1100, 1100, 10000]
RISING = [None, None, None, 10000]


@pytest.mark.parametrize(
    "variables, peaks",
    [
        ({}, EXACT),
        ({"STEPMEM_PEAKS": "exact"}, EXACT),
        ({"STEPMEM_RESET_PEAK": "1"}, EXACT),
        ({"STEPMEM_PEAKS": "observe"}, RISING),
        ({"STEPMEM_RESET_PEAK": "0"}, RISING),
        ({"STEPMEM_PEAKS": "observe", "STEPMEM_RESET_PEAK": "1"}, RISING),
    ],
)
def test_peak_is_that_of_its_step_or_absent(fake, train, variables, peaks):
    exporter = fake(200)
    ended = train(STEPS, exporter.url, PATHS=STUB, **variables).ended()
    assert (ended.code, ended.err) == (0, "")
    assert [record.get("peak_allocated_bytes") for record in exporter.records] == peaks
    assert [record["high_water_allocated_bytes"] for record in exporter.records] == [6000, 6000, 6000, 10000]
    assert ended.out.split()[0] == ("4" if peaks is EXACT else "0")


@pytest.mark.parametrize("variables, peaks", [({}, EXACT), ({"STEPMEM_PEAKS": "observe"}, RISING)])
def test_peak_is_that_of_its_step_or_absent_though_the_program_resets_it(fake, train, variables, peaks):
    exporter = fake(200)
    code = STEPS.replace("def step(spike):", "def step(spike):\n        torch.cuda.reset_peak_memory_stats()")
    assert train(code, exporter.url, PATHS=STUB, **variables).ended().code == 0
    assert [record.get("peak_allocated_bytes") for record in exporter.records] == peaks


def test_steps_that_wait_to_be_packed_are_bounded_and_arrive_in_order(fake, train):
    exporter = fake(200)
    code = """
        import threading, torch, stepmem
        stepmem.step_end(1)
        recorder = stepmem._client.CLIENT._recorder
        pack, waits = recorder.pack, threading.Event()
        stepmem._client.CLIENT._sender._pack = lambda: (waits.wait(), pack())[1]   # a sender that is held up
        longest = 0
        for n in range(2, 202):
            torch.malloc(n)
            stepmem.step_end(n)
            torch.free(n)
            longest = max(longest, len(recorder._taken))
        peak = torch.cuda.memory_stats_as_nested_dict(0)["allocated_bytes"]["all"]["peak"]
        waits.set()
        print(longest, peak, stepmem.flush(60))
    """
    ended = train(code, exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.out, ended.err) == (0, "128 201 True\n", "")
    assert [record["step"] for record in exporter.records] == list(range(1, 202))
    assert [record["peak_allocated_bytes"] for record in exporter.records] == [0, *range(2, 202)]
    assert all(record["dropped_records"] == 0 for record in exporter.records)


def test_sudden_burst_of_steps_wakes_the_sender_when_a_batch_is_full(fake, train):
    exporter = fake(200)
    code = """
        import threading, torch, stepmem
        stepmem.step_end(0)
        assert stepmem.flush(60)
        sender, calls, waits = stepmem._client.CLIENT._sender, [], threading.Event()
        hurry, sender._pack = sender.hurry, lambda: (waits.wait(), 0)[1]   # it reads the ring at no time of its own
        stepmem._client.CLIENT._recorder._sender.hurry = lambda: calls.append(len(sender.ring)) or hurry()
        stepmem._client.CLIENT._recorder.record = stepmem._client.CLIENT._recorder._recording()
        for n in range(1, 385):
            stepmem.step_end(n)
        print(calls)
        waits.set()
    """
    assert train(code, exporter.url, PATHS=STUB).ended().out == "[256]\n"
    await_true("a full batch", lambda: len(exporter.records) >= 257)


def test_step_before_a_death_by_memory_is_pushed(fake, train):
    exporter = fake(200)
    code = """
        import torch, stepmem
        for n in range(1, 6):
            torch.malloc(1 << 20)
            stepmem.step_end(n)
        torch.malloc(1 << 40)
    """
    ended = train(code, exporter.url, PATHS=STUB).ended()
    assert ended.code == 1 and "CUDA out of memory" in ended.err
    assert [(record["step"], record["allocated_bytes"]) for record in exporter.records] == [(n, n << 20) for n in range(1, 6)]


@pytest.mark.parametrize(
    "broken",
    ["del torch._C._cuda_resetPeakMemoryStats", "torch._C._cuda_memoryStats = lambda device: {**read(device), 'new': {'a': {}}}"],
    ids=["name missing", "unknown shape"],
)
def test_counters_that_cannot_be_shared_are_not_reset(fake, train, broken):
    exporter = fake(200)
    code = STEPS.replace("def step", f"read = torch._C._cuda_memoryStats\n    {broken}\n    def step", 1)
    ended = train(code, exporter.url, PATHS=STUB).ended()
    assert ended.code == 0 and ended.err.count("high-water marks") == 1
    assert [record.get("peak_allocated_bytes") for record in exporter.records] == RISING
    assert ended.out.split()[0] == "0"


def test_capacity_of_a_gpu_is_its_own(fake, train):
    exporter = fake(200)
    assert train(STEPS, exporter.url, PATHS=STUB, STEPMEM_CAPACITY="1MiB").ended().code == 0
    assert {record["total_bytes"] for record in exporter.records} == {1 << 30}


def test_invalid_kind_of_peaks_resets_no_counter_and_is_told(fake, train):
    exporter = fake(200)
    ended = train(STEPS, exporter.url, PATHS=STUB, STEPMEM_PEAKS="some", STEPMEM_CAPACITY="20GG", STEPMEM_EVERY_STEP="yes").ended()
    assert "STEPMEM_PEAKS: 'some' is neither exact nor observe, so peaks are observed, and no counter is reset" in ended.err
    assert "STEPMEM_CAPACITY: '20GG' " in ended.err and "so no capacity is set" in ended.err
    assert "STEPMEM_EVERY_STEP: 'yes' is neither 1 nor 0, so short steps are not all read" in ended.err
    assert exporter.records and ended.out.split()[0] == "0"


def test_cuda_is_not_initialized_by_the_client(exporter, train):
    ended = train("import torch\ntorch.cuda.is_up = False\n" + STEPS.replace("\n    ", "\n"), exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.out) == (0, "0 0\n"), ended.err
    assert exporter.rank()["device"] == "cpu"


SECOND_GPU = """
    import torch, stepmem
    from types import SimpleNamespace
    stats_of_all = torch._C._cuda_memoryStats
    def stats(idx):
        allocated = torch._C.allocated
        torch._C.allocated = allocated if idx == 1 else 0
        try:
            return stats_of_all(idx)
        finally:
            torch._C.allocated = allocated
    torch._C._cuda_memoryStats = stats
    torch.cuda.device_count = lambda: 2
    torch.cuda.memory_allocated = lambda idx: stats(idx)["allocated_bytes"]["all"]["current"]
    torch.cuda.mem_get_info = lambda idx: (500 + idx, 1000 + idx)
    torch.cuda.get_device_properties = lambda idx: SimpleNamespace(uuid=f"number-{idx}")
    stepmem.step_end(1)
    torch.malloc(100)
    stepmem.step_end(2)
    assert stepmem.flush(60)
"""


def test_gpu_that_holds_the_tensors_is_reported_if_another_one_is_current(fake, train):
    exporter = fake(200)
    ended = train(SECOND_GPU, exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    figures = [(each["device"], each["allocated_bytes"], each["total_bytes"]) for each in exporter.records]
    assert figures == [("GPU-number-0", 0, 1000), ("GPU-number-1", 100, 1001)]


AUTO = """
    import stepmem, sys
    BEFORE
    import torch
    first, second = torch.optim.Optimizer(), torch.optim.Optimizer()
    for batch in range(12):
        if batch % 3 == 2:   # three batches are accumulated per step
            first.step()
            second.step()
    sys.exit(3)
"""


@pytest.mark.parametrize("before", ["", "import torch.optim"])
def test_optimizer_steps_are_counted_without_code_changes(exporter, train, before):
    through = ("-m", "stepmem")
    ended = train(AUTO.replace("BEFORE", before), exporter.url, through=through, PATHS=STUB).ended()
    assert (ended.code, ended.err) == (3, "")
    rank = exporter.rank()
    assert (rank["step"], rank["steps_total"]) == (4, 4)


def test_optimizer_steps_are_not_counted_if_the_program_reports_steps(exporter, train):
    code = AUTO.replace("BEFORE", "").replace("first.step()", "\n            with stepmem.step(batch): first.step()")
    ended = train(code, exporter.url, through=("-m", "stepmem"), PATHS=STUB).ended()
    assert (ended.code, ended.err) == (3, "")
    assert (exporter.rank()["step"], exporter.rank()["steps_total"]) == (11, 4)


def test_torch_without_the_hook_causes_a_warning(exporter, train):
    code = "import torch.optim.optimizer as o\ndel o.register_optimizer_step_post_hook\nimport stepmem\nstepmem.auto()\nprint('on')"
    ended = train(code, exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.out) == (0, "on\n") and "PyTorch 2.0" in ended.err


RECORDED = """
    import torch, stepmem
    stepmem.record(steps=(3, 4), directory="out", pair=PAIR)
    for step in range(1, 7):
        torch.malloc(step)
        stepmem.step_end(step)
    print(torch._C.history)
    assert stepmem.flush(60)
"""


def read(path):
    return pickle.loads(path.read_bytes())


def test_requested_steps_are_recorded_and_written(exporter, train, tmp_path):
    ended = train(RECORDED.replace("PAIR", "True"), exporter.url, PATHS=STUB, RANK="3", STEPMEM_RUN="my run").ended()
    assert (ended.code, ended.out, ended.err) == (0, "None\n", "")
    assert any("emptied PyTorch's cache" in line for line in ended.information), ended.information
    assert sorted(os.listdir(tmp_path / "out")) == ["my_run_after_rank3_step4.pickle", "my_run_before_rank3_step2.pickle"]
    after = read(tmp_path / "out/my_run_after_rank3_step4.pickle")
    assert [entry["size"] for entry in after["device_traces"][0]] == [3, 4]
    assert after["history"] == {"context": "all", "stacks": "all", "max_entries": 100000}
    shown = await_true("both results", lambda: len(exporter.status()["snapshots"]) == 2 and exporter.status()["snapshots"])
    assert [(each["reason"], each["outcome"], each["step"]) for each in shown] == [("manual", "written", 2), ("manual", "written", 4)]
    assert shown[1]["path"] == str(tmp_path / "out/my_run_after_rank3_step4.pickle")
    assert shown[1]["bytes"] == os.path.getsize(shown[1]["path"])


PAIR = """
    import gc, torch, stepmem
    gc.disable()
    class Node: pass
    stepmem.record(steps=(3, 4), directory="out", OPTIONS)
    for step in range(1, 5):
        node = Node()
        node.self = node
        del node
        stepmem.step_end(step)
    print(torch._C.cached, sum(isinstance(each, Node) for each in gc.get_objects()))
"""


@pytest.mark.parametrize(
    ("options", "left", "said"),
    [
        ("pair=True", "0 2", True),
        ("pair=True, collect=False", "1024 4", False),
        ("pair=False", "1024 4", False),
    ],
)
def test_the_first_of_a_pair_is_written_without_garbage_and_cache_and_says_so(exporter, train, options, left, said):
    ended = train(PAIR.replace("OPTIONS", options), exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.out, ended.err) == (0, left + "\n", ""), ended.err
    lines = [line for line in ended.information if "before the first of two snapshots" in line]
    assert len(lines) == said and all(re.search(r"\[step 2\] .*collected [1-9]\d* objects, emptied PyTorch's cache$", line) for line in lines)


@pytest.mark.parametrize(("stacks", "context"), [("all", "all"), ("python", "alloc")])
def test_stacks_of_a_recording_are_chosen(exporter, train, tmp_path, stacks, context):
    code = RECORDED.replace("pair=PAIR", f"stacks={stacks!r}")
    ended = train(code, exporter.url, PATHS=STUB, STEPMEM_RUN="chosen").ended()
    assert (ended.code, ended.err) == (0, "")
    history = read(tmp_path / "out/chosen_rank0_step4.pickle")["history"]
    assert history == {"context": context, "stacks": stacks, "max_entries": 100000}


def test_a_recording_beside_the_watch_for_errors_has_its_stacks_and_gives_them_back(exporter, train):
    code = """
        import torch, stepmem
        stepmem.snapshot_on_oom("out", max_entries=500)
        stepmem.record(steps=(3, 4), directory="out", max_entries=100)
        for step in range(1, 7):
            stepmem.step_end(step)
            print(step, torch._C.history)
        stepmem.record(steps=(8, 9), stacks="none")
    """
    ended = train(code, exporter.url, PATHS=STUB).ended()
    lean, full = [{"context": c, "stacks": s, "max_entries": 500} for c, s in (("alloc", "python"), ("all", "all"))]
    assert ended.out == "".join(f"{step} {full if step in (2, 3) else lean}\n" for step in range(1, 7))
    assert "stacks 'none' is neither 'all' nor 'python'" in ended.err


def test_history_that_the_program_records_is_left_on(exporter, train, tmp_path):
    code = RECORDED.replace("PAIR", "False").replace(
        "stepmem.record", "torch.cuda.memory._record_memory_history(max_entries=7)\n    stepmem.record"
    )
    ended = train(code, exporter.url, PATHS=STUB, STEPMEM_RUN="own").ended()
    assert ended.out == "{'context': 'all', 'stacks': 'all', 'max_entries': 7}\n", ended.err
    assert os.listdir(tmp_path / "out") == ["own_rank0_step4.pickle"]


def test_monitor_logs_each_interval_and_where_its_snapshot_went(train, tmp_path):
    code = """
        import torch, stepmem
        monitor = stepmem.MemoryMonitor(snapshot_step=2, snapshot_dir="out")
        for step in (1, 2, 3):
            torch.malloc(100 << 20)
            torch.malloc(step << 20)
            torch.free(step << 20)
            monitor.report(step)
        print(stepmem.memory_utilization())
    """
    ended = train(code, None, PATHS=STUB, STEPMEM_DISABLED="1").ended()
    assert (ended.code, ended.err, float(ended.out)) == (0, "", 300 / 1024)
    assert ended.information == [
        "stepmem: [step 1] GPU mem: allocated 100 MiB, peak 101 MiB / 1.00 GiB (10 %), reserved 100 MiB (10 %)",
        "stepmem: [step 2] GPU mem: allocated 200 MiB, peak 202 MiB / 1.00 GiB (20 %), reserved 200 MiB (20 %)",
        f"stepmem: [step 2] memory snapshot: {tmp_path}/out/memory_rank0_step2.pickle",
        "stepmem: [step 3] GPU mem: allocated 300 MiB, peak 303 MiB / 1.00 GiB (30 %), reserved 300 MiB (29 %)",
    ]


OOM = """
    import torch, stepmem
    WANTED
    torch.malloc(1 << 29)
    stepmem.step_end(1)
    for _ in range(5):
        try:
            GUARD torch.malloc(1 << 30)
        except torch.OutOfMemoryError as error:
            print(error)
    assert stepmem.flush(60)
"""


@pytest.mark.parametrize(
    "wanted, guard, observes",
    [
        ('stepmem.snapshot_on_oom("out")', "", True),
        ('guard = stepmem.snapshot_on_oom("out")', "\n                with guard:", True),
        ('guard = stepmem.snapshot_on_oom("out"); torch._C.observers.clear()', "\n                with guard:", False),
    ],
    ids=["observer", "both", "wrapper alone"],
)
def test_out_of_memory_error_leaves_a_snapshot_and_is_raised(exporter, train, tmp_path, wanted, guard, observes):
    ended = train(OOM.replace("WANTED", wanted).replace("GUARD", guard), exporter.url, PATHS=STUB, STEPMEM_RUN="r").ended()
    assert (ended.code, ended.out.count("Tried to allocate")) == (0, 5), ended.err
    assert os.listdir(tmp_path / "out") == ["r_oom_rank0_step1.pickle"]
    written = read(tmp_path / "out/r_oom_rank0_step1.pickle")
    assert written["segments"] == [{"allocated_size": 1 << 29}], "written while the memory was still held"
    shown = await_true("three results", lambda: len(exporter.status()["snapshots"]) == 3 and exporter.status()["snapshots"])
    assert {(each["reason"], each["outcome"]) for each in shown} == {("oom", "written")}, "the first three of five"


def test_oom_guard_is_a_decorator_and_changes_nothing_else(train):
    code = """
        import stepmem
        @stepmem.snapshot_on_oom()
        def work(a, b=2):
            "Works."
            return a + b
        print(work(1), work(1, b=3), work.__name__, work.__doc__)
        try:
            stepmem.snapshot_on_oom()(lambda: 1 / 0)()
        except ZeroDivisionError as error:
            print(error)
    """
    ended = train(code, "http://127.0.0.1:9").ended()
    assert (ended.code, ended.out, ended.err) == (0, "3 4 work Works.\ndivision by zero\n", "")


LEAK = """
    import torch, stepmem, sys, time
    for step in range(1, 4001):
        torch.malloc(200_000)
        stepmem.step_end(step)
        time.sleep(0.001)
        if step % 200 == 0:
            stepmem.flush(60)
        if step % 200 == 10 and WRITTEN:
            break
    stepmem.flush(60)
    print(torch._C.history)
"""


def asked(start, train, tmp_path, more="", **environment):
    """Runs a leaking program that an exporter asks for a snapshot. Returns the exporter, and what its status has of it."""
    directory = tmp_path / "volume"
    exporter = start("--snapshot.on-creep", "--snapshot.steps", "6", "--snapshot.cooldown", "1d", *environment.pop("arguments", ()))
    written = f"__import__('glob').glob({str(directory / '*.pickle')!r})"
    code = more + LEAK.replace("WRITTEN", written)
    ended = train(code, exporter.url, PATHS=STUB, RANK="5", STEPMEM_RUN="leak", **environment).ended()
    assert (ended.code, ended.out) == (0, "None\n"), ended.err
    shown = [each for each in exporter.status()["snapshots"] if each["reason"] == "creep"]
    return exporter, shown, ended


def test_exporter_that_detects_creep_gets_a_snapshot(start, train, tmp_path):
    directory = tmp_path / "volume"
    exporter, shown, ended = asked(start, train, tmp_path, STEPMEM_SNAPSHOT_DIRECTORY=str(directory))
    assert ended.err == ""
    first = shown[0]
    assert (first["outcome"], first["run"], first["rank"]) == ("written", "leak", 5)
    state = read(directory / f"leak_creep_rank5_step{first['step']}.pickle")
    trace = state["device_traces"][0]
    assert len(trace) == 6, "the history of six steps"
    steps = [f"step={step}" for step in range(first["step"] - 5, first["step"] + 1)]
    assert [entry["user_metadata"] for entry in trace] == steps
    assert exporter.metric('stepmem_snapshots_total{result="written"}') >= 1


NAMED = """
    import stepmem, time
    from torch._recorded import malloc, free

    kept = []

    def evaluate():
        kept.append(malloc())  # the line that leaks

    def train():
        activations = [malloc() for _ in range(5)]
        for each in activations:
            free(each)

    for step in range(1, 4001):
        train()
        evaluate()
        stepmem.step_end(step)
        time.sleep(0.002)
        if step % 200 == 0:
            stepmem.flush(60)
        if step > 3000 or step % 100 == 10 and NAMED:
            break
    stepmem.flush(60)
"""


def test_exporter_names_the_line_of_the_program_that_leaks(start, train, tmp_path):
    directory = tmp_path / "volume"
    directory.mkdir()
    exporter = start("--snapshot.on-creep", "--snapshot.read-directory", str(directory))

    code = NAMED.replace("NAMED", f"__import__('os').path.exists({str(tmp_path / 'named')!r})")
    running = train(code, exporter.url, PATHS=STUB, RANK="5", STEPMEM_RUN="leak", STEPMEM_SNAPSHOT_DIRECTORY=str(directory))

    def site():
        ranks = [each for each in exporter.status()["ranks"] if each["rank"] == 5 and "site" in each]
        return ranks[0]["site"] if ranks else None

    found = await_true("a line", site)
    (tmp_path / "named").touch()
    ended = running.ended()
    assert (ended.code, ended.err) == (0, "")
    assert found["verdict"] == "leak"
    assert found["at"]["function"] == "evaluate"
    lines = textwrap.dedent(code).splitlines()
    assert "the line that leaks" in lines[found["at"]["line"] - 1]
    assert [frame["function"] for frame in found["stack"]] == ["evaluate", "<module>"]
    assert found["share_ratio"] > 0.9 and abs(found["bytes_per_step"] / (8 << 20) - 1) < 0.05
    (finding,) = [each for each in exporter.status()["findings"] if each["kind"].startswith("CREEP")]
    assert "in evaluate" in finding["sentence"]
    assert exporter.metric('stepmem_snapshot_analyses_total{outcome="analysed"}') == 1


def test_exporter_is_told_that_no_directory_is_named(start, train, tmp_path):
    _, shown, ended = asked(start, train, tmp_path)
    assert {each["outcome"] for each in shown} == {"failed"}
    assert "set STEPMEM_SNAPSHOT_DIRECTORY" in shown[0]["error"]
    assert "no directory" in ended.err
    assert not list(tmp_path.glob("**/*.pickle"))


def test_recording_for_an_oom_goes_on_after_one_for_the_exporter(start, train, tmp_path):
    more = """
    import torch, stepmem
    stepmem.snapshot_on_oom(max_entries=50)
"""
    directory = tmp_path / "volume"
    exporter = start("--snapshot.on-creep", "--snapshot.steps", "6")
    written = f"__import__('glob').glob({str(directory / '*.pickle')!r})"
    code = more + LEAK.replace("WRITTEN", written)
    ended = train(code, exporter.url, PATHS=STUB, STEPMEM_RUN="leak", STEPMEM_SNAPSHOT_DIRECTORY=str(directory)).ended()
    assert ended.out == "{'context': 'alloc', 'stacks': 'python', 'max_entries': 50}\n", ended.err
    (path,) = directory.glob("*.pickle")
    assert read(path)["history"]["max_entries"] > 50, "the ring that the exporter's steps need"


def test_recording_ends_early_if_its_ring_would_overflow(start, train, tmp_path):
    more = """
    import stepmem._snapshots as snapshots
    snapshots._entries = lambda wanted: 100
"""
    directory = tmp_path / "volume"
    exporter = start("--snapshot.on-creep", "--snapshot.steps", "40")
    written = f"__import__('glob').glob({str(directory / '*.pickle')!r})"
    code = more + LEAK.replace("WRITTEN", written).replace("torch.malloc(200_000)", "[torch.malloc(20_000) for _ in range(10)]")
    train(code, exporter.url, PATHS=STUB, STEPMEM_RUN="leak", STEPMEM_SNAPSHOT_DIRECTORY=str(directory)).ended()
    (path,) = directory.glob("*.pickle")
    assert len(read(path)["device_traces"][0]) == 100, "ten steps of ten allocations"


def test_recording_that_cannot_hold_six_steps_fails_with_the_figure(start, train, tmp_path):
    more = """
    import stepmem._snapshots as snapshots
    snapshots._entries = lambda wanted: 20
"""
    _, shown, _ = asked(
        start,
        lambda code, *rest, **named: train(
            code.replace("torch.malloc(200_000)", "[torch.malloc(20_000) for _ in range(10)]"), *rest, **named
        ),
        tmp_path,
        more,
        STEPMEM_SNAPSHOT_DIRECTORY=str(tmp_path / "volume"),
    )
    assert shown[0]["outcome"] == "failed"
    assert "a step has 10 allocations and frees; 6 steps of them take" in shown[0]["error"]


def test_process_writes_five_of_the_snapshots_that_it_is_asked_for(fake, train, tmp_path):
    exporter = fake(200)
    own = tmp_path / "own"
    training = train(ASKED, exporter.url, PATHS=STUB, STEPMEM_RUN="asked", STEPMEM_SNAPSHOT_DIRECTORY=str(own))
    outcomes = []
    for number in range(1, 8):
        exporter.actions = [{"type": "snapshot", "id": f"1-{number}", "run": "asked", "rank": 0, "steps": 6}]

        def report(number=number):
            reports = [json.loads(body) for path, body in exporter.accepted if path == "/v1/snapshots"]
            return next((each for each in reports if each["id"] == f"1-{number}" and each["outcome"] != "began"), None)

        outcomes.append(await_true(f"report {number}", report))
    (tmp_path / "over").touch()
    assert training.ended().code == 0
    assert [each["outcome"] for each in outcomes] == ["written"] * 5 + ["failed"] * 2
    assert "has written 5 snapshots" in outcomes[-1]["error"]
    assert len(list(tmp_path.glob("**/*.pickle"))) == 5


def test_link_out_of_the_directory_is_not_followed(start, train, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "volume").mkdir()
    more = f"""
    import os, stepmem._snapshot_file as file
    below = file._below
    def moved(directory, path):
        if not os.path.islink({str(tmp_path / "volume")!r} + "/sub"):
            os.symlink({str(tmp_path / "elsewhere")!r}, {str(tmp_path / "volume")!r} + "/sub")
        return below(directory, os.path.join(directory, "sub", os.path.basename(path)))
    file._below = moved
"""
    _, shown, _ = asked(start, train, tmp_path, more, STEPMEM_SNAPSHOT_DIRECTORY=str(tmp_path / "volume"))
    assert shown[0]["outcome"] == "failed" and "is not below" in shown[0]["error"]
    assert not list(tmp_path.glob("**/*.pickle"))


def test_snapshot_without_cuda_returns_none_and_warns(train):
    ended = train("import stepmem\nstepmem.step_end(1)\nprint(stepmem.snapshot('x'))", "http://127.0.0.1:9").ended()
    assert (ended.code, ended.out) == (0, "None\n")
    assert "does not use CUDA" in ended.err


PRIVATE_POOLS = """
    import torch, stepmem
    torch.malloc(1000)
    for held in (None, {}, {(0, 1): 3 << 30, (7, 0): 1 << 30}, {(0, pool): 1 for pool in range(1000)}):
        torch._C.private_pools = held
        stepmem.step_end()
    assert stepmem.flush(60)
"""


def test_reserved_memory_of_private_pools_is_reported_where_pytorch_counts_it(fake, train):
    exporter = fake(200)
    ended = train(PRIVATE_POOLS, exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    pools = [record.get("private_pools_bytes") for record in exporter.records]
    assert pools == [None, None, 4 << 30, None], "a thousand pools are too many to add up at a step's end"

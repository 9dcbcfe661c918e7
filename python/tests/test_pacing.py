"""Which steps are read where reading is dear for so short steps, with a stub of PyTorch and clocks that the script sets."""

from __future__ import annotations

import pytest
from conftest import OLD, STUB, Reply

PACED = """
    import sys, stepmem
    import torch
    from stepmem import _auto, _recorder
    from stepmem._client import CLIENT

    now = 1000.0
    _auto.monotonic = _recorder.monotonic = lambda: now
    native = torch._C._cuda_memoryStats
    def read(device):
        global now
        now += cost
        return native(device)
    torch._C._cuda_memoryStats = read
    stepmem.auto()
    optimizer = torch.optim.Optimizer()
    torch.malloc(1000)

    def steps(n, seconds, spikes=()):
        global now
        for _ in range(n):
            now += seconds
            if CLIENT.process.step + 1 in spikes:
                torch.malloc(5000)
                torch.free(5000)
            optimizer.step()
            if CLIENT.process.step == 1:
                CLIENT._sender._pack = lambda: 0
            if CLIENT.process.step % 50 == 0:
                look()
    def look():
        CLIENT._recorder.pack()     # as the sender's thread does once a second
    def over():
        look()
        CLIENT._sender._pack = CLIENT._recorder.pack
        assert stepmem.flush(5)
"""
"""Steps of so many seconds, of which reading takes `cost`; the sender packs, and chooses, after each 50."""


def trained(exporter, train, code, **variables):
    ended = train(PACED + code, exporter.url, PATHS=STUB, **variables).ended()
    assert (ended.code, ended.err) == (0, "")
    return exporter.records


@pytest.mark.parametrize(
    "seconds, cost, expected",
    [
        (0.010, 4e-6, 1),
        (0.010, 7e-6, 2),
        (0.010, 15e-6, 8),
        (0.050, 60e-6, 4),
        (0.100, 60e-6, 2),
        (0.200, 60e-6, 1),
        (0.300, 0.001, 1),  # too dear, but every second one would be more than half a second apart
        (0.0001, 60e-6, 1024),
        (0.010, 60e-6, 32),
        (0.010, 0.010, 32),  # never less than twice a second
    ],
)
def test_reading_takes_a_small_share_of_short_steps(fake, train, seconds, cost, expected):
    code = f"""
    cost = {cost}
    steps(4096, {seconds})
    over()
    """
    records = trained(fake(200), train, code)
    numbers = [record["step"] for record in records]
    assert numbers[:256] == list(range(1, 257)), "short programs are read whole"
    late = [number for number in numbers if number > 2048]
    assert late == list(range(2048 + expected, 4097, expected)), "the same steps on all ranks"
    assert sum(record.get("steps", 1) for record in records) == 4096
    assert records[-1].get("steps") == (expected if expected > 1 else None)
    assert records[-1]["step_seconds"] == pytest.approx(seconds, rel=1e-5, abs=1.01 * cost), "of the last step alone"


def test_peaks_of_steps_that_are_not_read_are_not_lost(fake, train):
    code = """
    cost = 60e-6
    steps(1000, 0.010, spikes=(901, 905, 912))
    print(torch.cuda.memory_stats_as_nested_dict(0)["allocated_bytes"]["all"]["peak"], CLIENT.process.step)
    over()
    """
    exporter = fake(200)
    records = {record["step"]: record for record in trained(exporter, train, code)}
    assert [(n, records[n]["peak_allocated_bytes"]) for n in (896, 928, 960)] == [(896, 1000), (928, 6000), (960, 1000)]
    assert max(records) == 992


@pytest.mark.parametrize("grows", ["torch.malloc(1_500_000)", "torch._C.cached += 1_500_000"])
def test_growing_memory_is_read_at_each_step(fake, train, grows):
    code = f"""
    cost = 60e-6
    torch.malloc(10_000_000)
    torch._C.cached = 2_000_000
    steps(1000, 0.010)
    for _ in range(500):
        {grows}
        steps(1, 0.010)
    steps(2000, 0.010)
    over()
    """
    numbers = [record["step"] for record in trained(fake(200), train, code)]
    assert [number for number in numbers if 900 < number <= 1000] == [928, 960, 992]
    assert [number for number in numbers if 1100 < number <= 2524] == list(range(1101, 2525)), "the growth and 1,024 steps after it"
    assert numbers[-2:] == [3456, 3488]


@pytest.mark.parametrize("size, n_read", [(100, 32), (1500, 1000)])  # full after ten million steps, and after 700,000
def test_growth_is_read_at_each_step_if_it_may_take_the_device(fake, train, size, n_read):
    code = f"""
    cost = 60e-6
    steps(1000, 0.010)
    for _ in range(3000):
        torch.malloc({size})
        steps(1, 0.010)
    over()
    """
    numbers = [record["step"] for record in trained(fake(200), train, code)]
    assert len([number for number in numbers if number > 3000]) == n_read


def test_memory_that_varies_by_less_than_a_thousandth_is_not_growing(fake, train):
    code = """
    cost = 60e-6
    torch.malloc(10_000_000)
    steps(1000, 0.010)
    for n in range(1000):
        held = n * 7919 % 9000
        torch.malloc(held)
        steps(1, 0.010)
        torch.free(held)
    over()
    """
    numbers = [record["step"] for record in trained(fake(200), train, code)]
    assert len([number for number in numbers if 1000 < number <= 2000]) == 31


def test_evaluation_stands_for_no_steps(fake, train):
    code = """
    cost = 60e-6
    steps(1000, 0.010)
    with stepmem.phase("eval"):
        now += 1.0
    steps(24, 0.010)
    over()
    """
    last = [(each["step"], each.get("phase"), each.get("steps")) for each in trained(fake(200), train, code)[-3:]]
    assert last == [(992, None, 32), (1000, "eval", None), (1024, None, 32)]


def test_steps_that_become_longer_are_all_read_again(fake, train):
    code = """
    cost = 60e-6
    steps(1000, 0.0001)
    steps(1000, 0.5)
    over()
    """
    numbers = [record["step"] for record in trained(fake(200), train, code)]
    assert len([number for number in numbers if 500 < number <= 1000]) < 10
    assert [number for number in numbers if number > 1100] == list(range(1101, 2001))


@pytest.mark.parametrize(
    "code, variables",
    [
        ("cost = 60e-6; steps(1000, 0.001)", {"STEPMEM_EVERY_STEP": "1"}),
        ("cost = 60e-6; optimizer.step = stepmem.step_end; steps(1000, 0.001)", {}),
    ],
)
def test_every_step_is_read_if_the_program_says_so(fake, train, code, variables):
    records = trained(fake(200), train, f"\n    {code}; over()\n", **variables)
    assert [record["step"] for record in records] == list(range(1, 1001))
    assert not [record for record in records if "steps" in record]


def test_planned_snapshot_has_its_steps(fake, train, tmp_path):
    code = """
    cost = 60e-6
    steps(603, 0.010)
    stepmem.record(steps=(605, 607), directory="out")
    steps(397, 0.010)
    over()
    """
    numbers = [record["step"] for record in trained(fake(200), train, code)]
    assert [number for number in numbers if 580 < number < 612] == [604, 605, 606, 607, 608, 609, 610, 611]
    assert numbers[-2:] == [960, 992], "once it is over, steps are skipped again"
    assert [path.name.rpartition("_")[2] for path in (tmp_path / "out").iterdir()] == ["step607.pickle"]


ASK = {"type": "holders", "id": "a", "run": "r", "rank": 0, "steps": 20}


def test_search_for_holders_sees_each_step(fake, train):
    exporter = fake(200)
    exporter.actions = [ASK]
    code = """
    cost = 60e-6
    steps(600, 0.010)
    print(CLIENT.process.unread_mask)
    over()      # the answer asks for holders
    print(CLIENT.process.unread_mask)
    while CLIENT._holder_asks.is_waiting:
        steps(1, 0.010)
        look()
    steps(100, 0.010)
    print(CLIENT.process.unread_mask)
    CLIENT.flush(5)
    """
    ended = train(PACED + code, exporter.url, PATHS=STUB, STEPMEM_RUN="r").ended()
    assert (ended.code, ended.out, ended.err) == (0, "31\n0\n31\n", "")
    assert [report["outcome"] for report in exporter.holders] == ["began", "none"]


def test_older_exporter_gets_what_was_read(fake, train):
    exporter = fake(Reply(400, refuses=(*OLD.refuses, "steps")))
    records = trained(exporter, train, "\n    cost = 60e-6; steps(1000, 0.010); over()\n")
    assert records[-1]["step"] == 992
    assert not [record for record in records if "steps" in record]


def test_fork_begins_anew(fake, train):
    exporter = fake(200)
    code = """
    import os
    cost = 60e-6
    steps(600, 0.010)
    print(CLIENT.process.unread_mask, flush=True)
    if os.fork() == 0:
        print(CLIENT.process.unread_mask, flush=True)
        steps(100, 0.010)
        over()
        os._exit(0)
    assert os.wait()[1] == 0
    """
    ended = train(PACED + code, exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.out, ended.err) == (0, "31\n0\n", "")


def test_steps_at_the_end_are_counted_once(exporter, train):
    code = """
    cost = 60e-6
    steps(1000, 0.010)
    stepmem.end("completed")
    over()
    steps(1000, 0.010)      # it goes on
    over()
    """
    ended = train(PACED + code, exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    assert exporter.rank()["steps_total"] == 2000


@pytest.mark.parametrize("end", ["", "raise ValueError('bad')", "stepmem.end('failed')"])
def test_peaks_of_the_last_steps_are_not_lost(exporter, train, end):
    code = f"""
    cost = 60e-6
    steps(1000, 0.010, spikes=(995,))
    {end}
    """
    train(PACED + code, exporter.url, PATHS=STUB).ended()
    rank = exporter.rank()
    assert (rank["step"], rank["end"]["step"], rank["end"]["peak_allocated_bytes"]) == (992, 1000, 6000)
    assert (rank["recent_peak_allocated_bytes"], rank["high_water_allocated_bytes"]) == (6000, 6000)


def test_end_without_steps_that_were_not_read_has_no_peaks(exporter, train):
    train(PACED + "\n    cost = 1e-6; steps(100, 0.010, spikes=(90,)); torch.malloc(9000)\n", exporter.url, PATHS=STUB).ended()
    rank = exporter.rank()
    assert (rank["step"], rank["recent_peak_allocated_bytes"]) == (100, 6000)
    assert "peak_allocated_bytes" not in rank["end"] or rank["end"]["peak_allocated_bytes"] is None


def test_exporter_counts_steps_that_were_not_read(exporter, train):
    code = "\n    cost = 60e-6; steps(1000, 0.010); over()\n"
    ended = train(PACED + code, exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    rank = exporter.rank()
    assert (rank["step"], rank["steps_total"], rank["end"]["step"]) == (992, 1000, 1000)
    assert 500 < rank["unread_steps_total"] < 744

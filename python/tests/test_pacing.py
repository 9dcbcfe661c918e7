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
        assert stepmem.flush(60)
"""
"""Steps of so many seconds, of which reading takes `cost`; the sender packs, and chooses, after each 50."""


def one_of(n, numbers):
    """The numbers of the steps that are read where one of `n` is."""
    return [number for number in numbers if number * 0x9E3779B1 % 2**32 < 2**32 // n]


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
        (0.0001, 60e-6, 32),
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
    assert late == one_of(expected, range(2049, 4097)), "the same steps on all ranks"
    assert len(late) == pytest.approx(2048 / expected, abs=2)
    assert [record.get("steps", 1) for record in records[1:]] == [after - before for before, after in zip(numbers, numbers[1:])]
    assert records[-1]["step_seconds"] == pytest.approx(seconds, rel=1e-5, abs=1.01 * cost), "of the last step alone"


def test_peaks_of_steps_that_are_not_read_are_not_lost(fake, train):
    code = """
    cost = 60e-6
    steps(1000, 0.010, spikes=(901, 905, 940))
    print(torch.cuda.memory_stats_as_nested_dict(0)["allocated_bytes"]["all"]["peak"], CLIENT.process.step)
    over()
    """
    exporter = fake(200)
    records = {record["step"]: record for record in trained(exporter, train, code)}
    late = sorted(records)[-4:]
    assert [(n, records[n]["peak_allocated_bytes"]) for n in late] == [(877, 1000), (911, 6000), (932, 1000), (966, 6000)]


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
    assert [number for number in numbers if 900 < number <= 1000] == one_of(32, range(901, 1001))
    assert [number for number in numbers if 1100 < number <= 2524] == list(range(1101, 2525)), "the growth and 1,024 steps after it"
    assert numbers[-2:] == one_of(32, range(3501))[-2:]


@pytest.mark.parametrize("size, n_read", [(100, 31), (1500, 1000)])  # full after ten million steps, and after 700,000
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


def test_memory_that_grows_from_the_start_is_read_without_a_gap(fake, train):
    code = """
    cost = 60e-6
    for _ in range(600):
        torch.malloc(1_000_000)
        steps(1, 0.010)
    over()
    """
    assert [record["step"] for record in trained(fake(200), train, code)] == list(range(1, 601))


def test_memory_with_a_period_is_read_in_all_its_parts(fake, train):
    code = """
    cost = 60e-6
    torch.malloc(10_000)
    steps(1000, 0.010)
    for n in range(1001, 6001):
        if n % 32 == 0:
            torch.malloc(5000)
        steps(1, 0.010)
        if n % 32 == 0:
            torch.free(5000)
    over()
    """
    late = [record["allocated_bytes"] for record in trained(fake(200), train, code) if record["step"] > 1000]
    assert len(late) == pytest.approx(5000 / 32, abs=2)
    assert 3 <= late.count(16_000) <= 8, "one of 32"


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
    assert last == [(966, None, 34), (1000, "eval", None), (1021, None, 55)]


def test_steps_that_become_longer_are_all_read_again(fake, train):
    code = """
    cost = 60e-6
    steps(1000, 0.0001)
    steps(1000, 0.5)
    over()
    """
    numbers = [record["step"] for record in trained(fake(200), train, code)]
    assert [number for number in numbers if 500 < number <= 1000] == one_of(32, range(501, 1001))
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
    assert [number for number in numbers if 580 < number < 612] == [589, 604, 605, 606, 607, 608, 609, 610, 611]
    assert numbers[-2:] == [932, 966], "once it is over, steps are skipped again"
    assert [path.name.rpartition("_")[2] for path in (tmp_path / "out").iterdir()] == ["step607.pickle"]


REQUEST = {"type": "holders", "id": "a", "run": "r", "rank": 0, "steps": 20}


def test_search_for_holders_sees_each_step(fake, train):
    exporter = fake(200)
    exporter.actions = [REQUEST]
    code = """
    cost = 60e-6
    steps(600, 0.010)
    print((1 << 32) // CLIENT.process.read_below)
    over()      # the answer asks for holders
    print((1 << 32) // CLIENT.process.read_below)
    while CLIENT._heap_scans.is_waiting:
        steps(1, 0.010)
        look()
    steps(100, 0.010)
    print((1 << 32) // CLIENT.process.read_below)
    CLIENT.flush(5)
    """
    ended = train(PACED + code, exporter.url, PATHS=STUB, STEPMEM_RUN="r").ended()
    assert (ended.code, ended.out, ended.err) == (0, "32\n1\n32\n", "")
    assert [report["outcome"] for report in exporter.holders] == ["began", "none"]


def test_older_exporter_gets_what_was_read(fake, train):
    exporter = fake(Reply(400, refuses=(*OLD.refuses, "steps")))
    records = trained(exporter, train, "\n    cost = 60e-6; steps(1000, 0.010); over()\n")
    assert records[-1]["step"] == 966
    assert not [record for record in records if "steps" in record]


def test_fork_begins_anew(fake, train):
    exporter = fake(200)
    code = """
    import os
    cost = 60e-6
    steps(600, 0.010)
    print((1 << 32) // CLIENT.process.read_below, flush=True)
    if os.fork() == 0:
        print((1 << 32) // CLIENT.process.read_below, flush=True)
        steps(100, 0.010)
        over()
        os._exit(0)
    assert os.wait()[1] == 0
    """
    ended = train(PACED + code, exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.out, ended.err) == (0, "32\n1\n", "")


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
    assert (rank["step"], rank["end"]["step"], rank["end"]["peak_allocated_bytes"]) == (1000, 1000, 6000)
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
    assert (rank["step"], rank["steps_total"], rank["end"]["step"]) == (1000, 1000, 1000)
    assert 500 < rank["unread_steps_total"] < 744

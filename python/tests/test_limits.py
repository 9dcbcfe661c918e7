"""Limits of the process's own: a memory fraction of PyTorch's allocator, by the stub, and the kernel's limits."""

from __future__ import annotations

import importlib.util

import pytest
from conftest import STUB, Reply

FRACTION = """
    import torch, stepmem
    FIRST
    stepmem._recorder.CAPACITY_EVERY = 0.0
    torch.malloc(1000)
    for fraction in (None, 0.08, 0.5, 1.0):
        if fraction is not None:
            torch.cuda.set_per_process_memory_fraction(fraction)
        stepmem.step_end()
        assert stepmem.flush(60)
"""


@pytest.mark.parametrize("first", ["", "del torch._C._cuda_getMemoryFraction; stepmem.auto()"], ids=["read", "noted"])
def test_memory_fraction_is_sent_as_bytes_whenever_it_changes(fake, train, first):
    exporter = fake(200)
    ended = train(FRACTION.replace("FIRST", first), exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    limits = [record.get("reserved_limit_bytes") for record in exporter.records]
    # Lifted is told as all of it.
    assert limits == [None, int(0.08 * (1 << 30)), 1 << 29, 1 << 30]
    assert {record["total_bytes"] for record in exporter.records} == {1 << 30}


def test_setter_that_is_noted_is_the_programs_own(fake, train):
    code = """
        import torch, stepmem
        del torch._C._cuda_getMemoryFraction
        setter = torch._C._cuda_setMemoryFraction
        stepmem.auto()
        noting = torch._C._cuda_setMemoryFraction
        assert noting is not setter
        assert (noting.__name__, noting.__module__, noting.__doc__) == (setter.__name__, setter.__module__, setter.__doc__)
        stepmem._torch.watch_memory_fraction()
        assert torch._C._cuda_setMemoryFraction is noting, "once"
        try:
            noting("a", 0, 1)
        except TypeError as error:
            print(error)
        noting(object(), 0)
        stepmem.step_end()
        assert stepmem.flush(60)
    """
    exporter = fake(200)
    ended = train(code, exporter.url, PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    assert "_cuda_setMemoryFraction() takes 2 positional arguments" in ended.out
    assert "reserved_limit_bytes" not in exporter.records[0]


@pytest.mark.parametrize("answer", ["raise RuntimeError('CUDA error')", "return 'half'", "return -1.0", "return float('nan')"])
def test_fraction_that_makes_no_sense_is_none(fake, train, answer):
    code = f"""
        import torch, stepmem
        def read(device):
            {answer}
        torch._C._cuda_getMemoryFraction = read
        stepmem.step_end()
        assert stepmem.flush(60)
    """
    exporter = fake(200)
    ended = train(code, exporter.url, PATHS=STUB).ended()
    assert ended.code == 0
    assert "reserved_limit_bytes" not in exporter.records[0] and exporter.records[0]["allocated_bytes"] == 0


OF_2_0 = "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total capacity; 130.35 MiB already allocated; 47.06 MiB free; 512.00 MiB allowed; 188.00 MiB reserved in total by PyTorch)"
OTHERS = "".join(f"Process {pid} has 2.65 GiB memory in use. " for pid in range(40))
OF_2_11 = f"CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 93.76 GiB is free. {OTHERS}8.39 GiB allowed; Of the allocated memory 8.00 GiB"


@pytest.mark.parametrize(
    "message, limit",
    [
        (OF_2_0, 512 << 20),
        (OF_2_11, round(8.39 * (1 << 30))),
        ("CUDA out of memory. Tried to allocate 1.00 MiB. 100 bytes allowed; ", 100),
        ("CUDA out of memory. Tried to allocate 1.00 MiB. nothing allowed; 1 GiB", None),
        ("CUDA out of memory. Tried to allocate 1.00 MiB. allowed; ", None),
        ("CUDA out of memory. Tried to allocate 1.00 MiB. ٣ GiB allowed; ", 3 << 30),
        ("9 GiB " * 4096 + "8.39 GiB allowed;", None),
    ],
    ids=["PyTorch 2.0", "PyTorch 2.11", "bytes", "no number", "nothing", "digits", "too long"],
)
def test_limit_that_an_error_names_is_in_the_end(fake, train, message, limit):
    code = f"""
        import torch, stepmem
        stepmem.step_end(1)
        raise torch.OutOfMemoryError({message!r})
    """
    exporter = fake(200)
    assert train(code, exporter.url, PATHS=STUB).ended().code == 1
    (end,) = exporter.ends
    assert (end["outcome"], end.get("reserved_limit_bytes")) == ("oom", limit)


ULIMITS = """
    import mmap, resource, stepmem
    def limit(which, gib):
        resource.setrlimit(which, (gib << 30, resource.getrlimit(which)[1]))
    stepmem._recorder.CAPACITY_EVERY = 0.0
    def step():
        stepmem.step_end()
        assert stepmem.flush(60)
    step()
    limit(resource.RLIMIT_DATA, 3)
    limit(resource.RLIMIT_AS, 5)
    step()
    untouched = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE)
    step()
    shared = mmap.mmap(-1, 1 << 29)
    step()
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    step()
"""


def test_limits_of_the_kernel_come_with_what_they_limit(fake, train):
    exporter = fake(200)
    ended = train(ULIMITS, exporter.url).ended()
    assert (ended.code, ended.err) == (0, "")
    none, limited, private, shared, lifted = exporter.records
    names = ("data_limit_bytes", "data_used_bytes", "address_space_limit_bytes", "address_space_used_bytes")
    assert not any(name in none for name in names)
    assert [limited[name] for name in names[::2]] == [3 << 30, 5 << 30]
    near = dict(abs=64 << 20)
    # Neither is resident memory.
    assert private["data_used_bytes"] - limited["data_used_bytes"] == pytest.approx(1 << 30, **near)
    assert private["address_space_used_bytes"] - limited["address_space_used_bytes"] == pytest.approx(1 << 30, **near)
    assert private["allocated_bytes"] - limited["allocated_bytes"] == pytest.approx(0, **near)
    assert shared["data_used_bytes"] - private["data_used_bytes"] == pytest.approx(0, **near)
    assert shared["address_space_used_bytes"] - private["address_space_used_bytes"] == pytest.approx(1 << 29, **near)
    assert (lifted["data_limit_bytes"], lifted["address_space_limit_bytes"]) == (3 << 30, 1 << 53)
    assert {record["total_bytes"] for record in exporter.records} == {none["total_bytes"]}, "of the machine or the container"


def test_limits_of_the_kernel_stand_next_to_the_memory_of_a_device(fake, train):
    code = """
        import resource, torch, stepmem
        resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        stepmem._readers.HOST_EVERY = 0.0
        torch.malloc(1000)
        for _ in range(3):
            stepmem.step_end()
            assert stepmem.flush(60)
    """
    exporter = fake(200)
    assert train(code, exporter.url, PATHS=STUB).ended().code == 0
    last = exporter.records[-1]
    assert last["data_limit_bytes"] == 3 << 30 and 0 < last["data_used_bytes"] < 3 << 30
    assert last["host_total_bytes"] > last["host_allocated_bytes"] > 0
    assert "address_space_limit_bytes" not in last


def test_exporter_that_knows_no_limits_gets_all_else(fake, train):
    code = """
        import resource, torch, stepmem
        torch.cuda.set_per_process_memory_fraction(0.5)
        stepmem.step_end(1)
        assert stepmem.flush(60)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. 512.00 MiB allowed; ")
    """
    exporter = fake(Reply(400, refuses=("reserved_limit_bytes",)))
    assert train(code, exporter.url, PATHS=STUB).ended().code == 1
    (record,), (end,) = exporter.records, exporter.ends
    assert "reserved_limit_bytes" not in record and record["high_water_allocated_bytes"] == 0 and "instance" in record
    assert "reserved_limit_bytes" not in end and end["requested_bytes"] == 20 << 20


def test_fraction_that_was_set_before_the_client_came_is_unknown_until_the_error_names_it(exporter, train):
    code = """
        import torch
        del torch._C._cuda_getMemoryFraction
        torch.cuda.set_per_process_memory_fraction(0.5)
        torch.malloc(511 << 20)
        import stepmem
        stepmem.auto()
        stepmem.step_end(1)
        assert stepmem.flush(60)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. 512.00 MiB allowed; ")
    """
    assert train(code.partition("raise")[0], exporter.url, PATHS=STUB).ended().code == 0
    assert train(code, exporter.url, PATHS=STUB).ended().code == 1
    ranks = {rank["end"]["outcome"]: rank for rank in exporter.status()["ranks"]}
    assert (ranks["completed"]["capacity_bytes"], ranks["completed"].get("capacity_set_by")) == (1 << 30, None)
    assert (ranks["oom"]["capacity_bytes"], ranks["oom"]["capacity_set_by"]) == (1 << 29, "program")


def test_exporter_names_the_limit_that_binds(exporter, train):
    assert train(FRACTION.replace("FIRST", "").replace("(None, 0.08, 0.5, 1.0)", "(0.5,)"), exporter.url, PATHS=STUB).ended().code == 0
    rank = exporter.rank()
    assert (rank["capacity_bytes"], rank["capacity_set_by"], rank["total_bytes"]) == (1 << 29, "program", 1 << 30)


needs_torch = [pytest.mark.torch, pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: make test-torch")]

REAL = """
    import torch, stepmem
    # Its own setters and getters, over an allocator of 1 GiB that only counts, as there is no GPU.
    TOTAL, fractions, stats, native, is_up = 1 << 30, {}, {}, torch._C, False
    for name in ("allocated_bytes", "reserved_bytes"):
        stats[name] = {"all": dict.fromkeys(("current", "peak", "allocated", "freed"), 1000)}
    def set_fraction(fraction, device):
        fractions[device] = fraction
    def get_fraction(device):
        assert is_up, "asked before CUDA was"
        return fractions.get(device, 1.0)
    for name, function in {
        "_cuda_memoryStats": lambda device: stats, "_cuda_setMemoryFraction": set_fraction, "_cuda_getMemoryFraction": get_fraction,
        "_cuda_getDevice": lambda: 0,
    }.items():
        assert hasattr(native, name), f"PyTorch has no {name}"
        setattr(native, name, function)
    for where in (torch.cuda, torch.cuda.memory):
        where._lazy_init, where.is_initialized = lambda: None, lambda: is_up
    torch.cuda.device_count, torch.cuda.is_current_stream_capturing = lambda: 1, lambda: False
    torch.cuda.mem_get_info = lambda device=None: (TOTAL, TOTAL)
    torch.cuda.get_device_properties = lambda device: type("Properties", (), {"uuid": "0123", "total_memory": TOTAL})
    stepmem._recorder.CAPACITY_EVERY = 0.0
    def step():
        stepmem.step_end()
        assert stepmem.flush(60)
    step()
    GETTER
    stepmem.auto()
    is_up = True
    step()
    for set_fraction in (torch.cuda.set_per_process_memory_fraction, torch.cuda.memory.set_per_process_memory_fraction):
        for fraction in (0.25, 1.0):
            set_fraction(fraction)
            step()
    fractions[0] = 0.5
    step()
"""


@pytest.mark.parametrize(
    "getter, last",
    [pytest.param("", 1 << 29, id="reported", marks=needs_torch), pytest.param("del native._cuda_getMemoryFraction", 1 << 30, id="noted", marks=needs_torch)],
)
def test_pytorchs_own_setter_of_a_fraction_is_told_and_nothing_is_asked_before_cuda_is_up(fake, train, getter, last):
    exporter = fake(200)
    ended = train(REAL.replace("GETTER", getter), exporter.url, STEPMEM_PEAKS="observe").ended()
    assert (ended.code, ended.err) == (0, "")
    devices = [record["device"] for record in exporter.records]
    assert devices == ["cpu", *["GPU-0123"] * 6]
    limits = [record.get("reserved_limit_bytes") for record in exporter.records]
    # What the allocator's settings say is in PyTorch's own answer only.
    assert limits == [None, None, 1 << 28, 1 << 30, 1 << 28, 1 << 30, last]

"""Which optimizer steps are iterations, with a stub of PyTorch: several optimizers, folds, stages, wrappers, one per step."""

from __future__ import annotations

import pytest
from conftest import STUB

STEPS = """
    import torch
    class Optimizer(torch.optim.Optimizer):
        def __init__(self, *parameters):
            self.param_groups = [{"params": list(parameters or [object()])}]
    each = {}
    def steps(names):
        for name in names:
            each.setdefault(name, Optimizer()).step()
    PROGRAM
"""

CASES = {
    "one": ("steps('A' * 40)", 40),
    "two of a GAN": ("steps('DG' * 20)", 20),
    "three of SAC": ("steps('CAT' * 20)", 20),
    "policy every second time": ("steps('CCA' * 20)", 40),
    "five of the discriminator": ("steps('DDDDDG' * 10)", 50),
    "now and then": ("steps('DDG' 'DG' 'DDDDG' 'DG' 'D')", 9),
    "folds that are kept": ("steps('A' * 20 + 'B' * 20 + 'C' * 20)", 60),
    "short folds": ("steps('AA' 'BB' 'CC' 'DD')", 8),
    "folds that are freed": ("for _ in range(3): each.clear(); steps('A' * 20)", 60),
    "folds of a GAN": ("steps('DG' * 10 + 'EH' * 10 + 'FI' * 10)", 30),
    "stages that come again": ("steps('A' * 20 + 'B' * 20 + 'A' * 20 + 'B' * 20)", 80),
    "wrapped": ("steps('Aa' * 10 + 'Bb' * 10)", 20),
    "a warm-up, then two": ("steps('A' * 10 + 'AB' * 10)", 20),
    "one per parameter": ("names = [str(n) for n in range(50)]\n    for _ in range(10): steps(names)", 10),
    "one made for each step": ("for _ in range(20): Optimizer().step()", 20),
    "made for each step and kept": ("kept, weight = [], object()\n    for _ in range(20): kept.append(Optimizer(weight)); kept[-1].step()", 20),
    "stages of one model": ("weight = object()\n    each.update(A=Optimizer(weight), B=Optimizer(weight))\n    steps('A' * 10 + 'B' * 10)", 20),
    "two over shared weights": ("weight = object()\n    each.update(A=Optimizer(weight), B=Optimizer(weight))\n    steps('AB' * 10)", 11),
    "without parameters": ("class Optimizer(torch.optim.Optimizer): pass\n    steps('AB' * 10)", 10),
}


@pytest.mark.parametrize("case", CASES)
def test_iteration_ends_when_an_optimizer_that_stepped_in_it_steps_again(case, exporter, train):
    program, n_iterations = CASES[case]
    ended = train(STEPS.replace("PROGRAM", program), exporter.url, through=("-m", "stepmem"), PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    rank = exporter.rank()
    assert (rank["step"], rank["steps_total"]) == (n_iterations, n_iterations)


def test_threads_with_an_optimizer_each_are_counted(exporter, train):
    program = """
    import threading
    def train():
        optimizer = Optimizer()
        for _ in range(200):
            optimizer.step()
    threads = [threading.Thread(target=train) for _ in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    """
    ended = train(STEPS.replace("PROGRAM", program.strip()), exporter.url, through=("-m", "stepmem"), PATHS=STUB).ended()
    assert (ended.code, ended.err) == (0, "")
    assert 200 <= exporter.rank()["steps_total"] <= 600


def test_step_of_an_optimizer_that_is_not_remembered_costs_no_look_at_all_others(monkeypatch):
    from stepmem import _iterations

    class Optimizer:
        pass

    monkeypatch.setattr(_iterations, "OPTIMIZERS_MAX", 64)
    optimizers = [Optimizer() for _ in range(256)]
    iterations = _iterations.Iterations()
    seen = []
    monkeypatch.setattr(_iterations, "weakref", type("Counted", (), {"ref": lambda each: (lambda: seen.append(1) or each)}))
    for n in range(4):
        for optimizer in optimizers:
            iterations.begun_by(optimizer, n)
    assert len(seen) < 64 * 16 + 3 * len(optimizers) * 4

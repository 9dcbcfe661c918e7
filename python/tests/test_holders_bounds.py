"""Holders that have a bound: how full they are, and that nothing without a certain bound has one. The programs train for real."""

from __future__ import annotations

import textwrap

import pytest
from test_holders import answer, needs_torch  # noqa: F401

TENSOR_BYTES = 4000
"""Of a tensor that the programs keep."""

HEAD = """
    import collections, functools, queue, torch, stepmem

    class Keeper:
        def __init__(self, kept):
            self.kept = kept

    def made():
        return torch.randn(1000)

    def train(keep, n_steps=300):
        for step in range(n_steps):
            keep(step)
            stepmem.step_end(step)
"""

BOUNDED = {
    "deque": ("keeper = Keeper(collections.deque(maxlen=1000))\ntrain(lambda step: keeper.kept.append(made()))", 1000),
    "deque of transitions": (
        "keeper = Keeper(collections.deque(maxlen=500))\ntrain(lambda step: keeper.kept.append((made(), made(), step)))",
        500,
    ),
    "queue": ("jobs = queue.Queue(maxsize=800)\ntrain(lambda step: jobs.put(made()))", 800),
    "stack": ("jobs = queue.LifoQueue(maxsize=800)\ntrain(lambda step: jobs.put(made()))", 800),
    "lru_cache": (
        "@functools.lru_cache(maxsize=450)\ndef features(n):\n    return made()\ntrain(features)",
        450,
    ),
    "list made in advance": (
        "def put(step):\n    keeper.kept[step] = made()\nkeeper = Keeper([None] * 900)\ntrain(put)",
        900,
    ),
    "list made in advance, in another order": (
        "def put(step):\n    keeper.kept[step * 7 % 400] = made()\nkeeper = Keeper([None] * 400)\ntrain(put)",
        400,
    ),
    "cache of a dataset": (
        """
class Cached:
    def __init__(self, paths):
        self.paths, self.cache = paths, {}
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = made()
        return self.cache[index]
dataset = Cached(list(map(str, range(600))))
train(lambda step: dataset[step])
""",
        600,
    ),
    "cache around a dataset": (
        """
class Base:
    def __init__(self):
        self.rows = torch.zeros(700, 2)
    def __getitem__(self, index):
        return self.rows[index]
class Trainer:
    def __init__(self):
        self.dataset, self.cache = Base(), {}
trainer = Trainer()
def put(step):
    trainer.cache[step * 11 % 700] = made()
train(put)
""",
        700,
    ),
}

UNBOUNDED = {
    "deque without a limit": "keeper = Keeper(collections.deque())\ntrain(lambda step: keeper.kept.append(made()))",
    "queue without a limit": "jobs = queue.Queue()\ntrain(lambda step: jobs.put(made()))",
    "lru_cache without a limit": "@functools.lru_cache(maxsize=None)\ndef features(n):\n    return made()\ntrain(features)",
    "dictionary by step": "keeper = Keeper({})\ntrain(lambda step: keeper.kept.update({step: made()}))",
    "dictionary by step next to a list": """
class Trainer:
    def __init__(self):
        self.rows, self.losses = list(range(900)), {}
trainer = Trainer()
train(lambda step: trainer.losses.update({step: made()}))
""",
    "list made in advance and appended to": """
keeper = Keeper([None] * 100)
train(lambda step: keeper.kept.insert(0, made()))
""",
    "items that become larger": """
keeper = Keeper(collections.deque(maxlen=1000))
train(lambda step: keeper.kept.append(torch.randn(10 * step + 10)))
""",
    "losses with their graphs": """
weights = torch.ones(100, requires_grad=True)
keeper = Keeper(collections.deque(maxlen=1000))
train(lambda step: keeper.kept.append((weights * step).sum()))
""",
}

EXPERTS = """
    import torch, stepmem
    torch.manual_seed(0)
    experts = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(400))
    head = torch.nn.Linear(32, 1000)
    optimizer = torch.optim.Adam([*head.parameters(), *experts.parameters()])
    for step in range(300):
        optimizer.zero_grad()
        head(experts[step](torch.randn(4, 32))).pow(2).mean().backward()
        optimizer.step()
        stepmem.step_end(step)
"""


def first_holder(answer, program, **request):  # noqa: F811
    (began, *_, result), _ = answer(textwrap.dedent(program), request=request)
    assert began["outcome"] == "began", result
    return result["holders"][0], result


def test_a_program_without_pytorch_reports_the_bound_of_its_buffer(answer):  # noqa: F811
    program = (
        "import collections, stepmem\nkept = collections.deque(maxlen=700)\n"
        "for n in range(400):\n    kept.append(bytearray(100_000))\n    stepmem.step_end(n)\n"
    )
    holder, result = first_holder(answer, program, bytes_per_step=100_000.0)
    assert (holder["name"], holder["items_max"]) == ("`kept`", 700)
    assert holder["items"] == result["last_step"] + 1
    assert holder["items_per_step"] == pytest.approx(1, abs=0.02)
    assert holder["bytes"] / holder["items"] == pytest.approx(100_000, rel=0.01)


class TestPrograms:
    pytestmark = needs_torch

    @pytest.mark.parametrize("name", BOUNDED)
    def test_a_bound_is_reported_with_how_full_it_is(self, answer, name):  # noqa: F811
        program, items_max = BOUNDED[name]
        holder, result = first_holder(answer, textwrap.dedent(HEAD) + program)
        assert holder.get("items_max") == items_max, holder
        assert holder["items"] == result["last_step"] + 1
        assert holder["items_per_step"] == pytest.approx(1, abs=0.02)
        of_all, of_new = holder["bytes"] / holder["items"], holder["bytes_per_step"] / holder["items_per_step"]
        assert of_new == pytest.approx(of_all, rel=0.02)
        assert TENSOR_BYTES <= of_all <= 3.2 * TENSOR_BYTES

    @pytest.mark.parametrize("name", UNBOUNDED)
    def test_where_it_is_in_doubt_there_is_no_bound(self, answer, name):  # noqa: F811
        holder, _ = first_holder(answer, textwrap.dedent(HEAD) + UNBOUNDED[name])
        if "items" in holder:  # then the exporter sees that its items differ
            of_all, of_new = holder["bytes"] / holder["items"], holder["bytes_per_step"] / holder["items_per_step"]
            assert name == "items that become larger" and of_new > 1.2 * of_all, holder

    def test_state_that_is_made_expert_by_expert_is_counted_by_elements(self, answer):  # noqa: F811
        holder, result = first_holder(answer, EXPERTS)
        assert (holder["name"], holder["kind"]) == ("`Adam.state`", "optimizer state in elements"), result
        expert, head = 32 * 33, 33 * 1000
        assert holder["items_max"] == head + 400 * expert
        assert holder["items"] == head + (result["last_step"] + 1) * expert
        assert holder["items_per_step"] == pytest.approx(expert, rel=0.02)
        of_all, of_new = holder["bytes"] / holder["items"], holder["bytes_per_step"] / holder["items_per_step"]
        assert of_all == pytest.approx(8, rel=0.05) and of_new == pytest.approx(of_all, rel=0.05)

"""How much a holder has, and how fast that grows: never more than it holds or than is not free, and not less than its items hold."""

from __future__ import annotations

import textwrap

import pytest
from test_holders import answer, needs_torch  # noqa: F401

AT_OLD_ADDRESSES = """
    import MODULES
    short_lived, kept, n_reused = [[MADE] for _ in range(100)], [], 0
    for n in range(400):
        address = id(short_lived.pop().pop()) if n % 4 == 0 and short_lived else None
        kept.append({0: KEPT})
        n_reused += id(OWNER) == address
        stepmem.step_end(n)
    print(n_reused)
"""


@pytest.mark.parametrize(
    ("modules", "made", "kept", "owner"),
    [
        ("stepmem", "bytes(20_000)", "bytes(20_000)", "kept[-1][0]"),
        pytest.param("numpy, stepmem", "numpy.ones(2_500)", "numpy.ones(2_500)[:]", "kept[-1][0].base", marks=needs_torch),
    ],
)
def test_items_at_addresses_that_the_first_scan_met_have_their_whole_size(modules, made, kept, owner, answer):
    program = AT_OLD_ADDRESSES.replace("MODULES", modules).replace("MADE", made).replace("KEPT", kept).replace("OWNER", owner)
    (_, *_, result), ended = answer(textwrap.dedent(program), request={"bytes_per_step": 20_000.0})
    [holder] = result["holders"]
    assert int(ended.out) >= 90
    assert holder["bytes_per_step"] == pytest.approx(20_000, rel=0.05)


def test_memory_that_was_freed_and_stays_with_the_allocator_is_not_to_be_explained(answer):
    program = """
        import stepmem
        from stepmem import _malloc
        kept = []
        _malloc.Malloc.rates = lambda self: (100_000.0, 900_000.0)
        for n in range(300):
            kept.append(bytes(50_000))
            stepmem.step_end(n)
    """
    (_, *_, result), _ = answer(textwrap.dedent(program), request={"bytes_per_step": 1_000_000.0, "is_on_host": True})
    assert [holder["name"] for holder in result["holders"]] == ["`kept`"]


SMALL_CLONES = """
    import stepmem
    kept, n = [], 0
    class Report:
        def __init__(self):
            self.examples = []
    report = Report()
    for n in range(300):
        report.examples.append((bytearray(400), [n]))
        stepmem.step_end(n)
"""


@pytest.mark.parametrize(("bytes_per_step", "names"), [(800_000.0, []), (4_000.0, ["`Report.examples`"])])
def test_list_that_has_next_to_nothing_of_the_growth_is_not_its_holder(bytes_per_step, names, answer):
    (_, *_, result), _ = answer(textwrap.dedent(SMALL_CLONES), request={"bytes_per_step": bytes_per_step, "is_on_host": True})
    assert [holder["name"] for holder in result.get("holders", [])] == names


UNLIKE_ITEMS = """
    import stepmem
    kept = {n: None for n in range(ITEMS)}
    for n in range(ITEMS, ITEMS + 300):
        kept[n] = bytearray(100_000)
        stepmem.step_end(n)
"""


@pytest.mark.parametrize(("n_items", "n_steps_least"), [(0, 1), (200, 1), (5_000, 0)])
def test_size_of_a_holder_is_no_more_than_all_its_items_hold(n_items, n_steps_least, answer):
    program = textwrap.dedent(UNLIKE_ITEMS).replace("ITEMS", str(n_items))
    (_, *_, result), _ = answer(program, request={"bytes_per_step": 100_000.0})
    (holder,) = result["holders"]
    assert holder["bytes_per_step"] == pytest.approx(100_000, rel=0.1)
    n_held = result["last_step"] - n_items + 1
    least = n_held if n_steps_least else result["last_step"] - result["first_step"]  # of too many items, those that are new
    assert 0.95 * least <= holder["bytes"] / 100_000 <= 1.05 * n_held

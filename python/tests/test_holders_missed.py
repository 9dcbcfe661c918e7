"""Holders that a search has to reach or measure in a way of their own: texts, images, hooks, what only a library refers to."""

from __future__ import annotations

import textwrap

import pytest
from test_holders import answer, needs_torch  # noqa: F401

TEXTS = """
    import stepmem
    class Log:
        def __init__(self):
            self.lines = MADE
    log = Log()
    for n in range(400):
        text = "x" * 50_000 + str(n)
        KEEP
        del text
        stepmem.step_end(n)
"""


@pytest.mark.parametrize(
    ("made", "keep"),
    [
        ("[]", "log.lines.append(text)"),
        ("{}", "log.lines[n] = text"),
        ("[]", "log.lines.append({'step': n, 'text': text})"),
        ("{}", "log.lines[text] = n"),
        ("set()", "log.lines.add(text)"),
    ],
)
def test_texts_that_are_kept_are_a_holder(made, keep, answer):
    program = textwrap.dedent(TEXTS).replace("MADE", made).replace("KEEP", keep)
    (_, *_, result), _ = answer(program, request={"bytes_per_step": 50_000.0, "is_on_host": True})
    [holder] = result["holders"]
    assert (holder["name"], holder["line"]) == ("`Log.lines`", 5)
    assert holder["bytes_per_step"] == pytest.approx(50_000, rel=0.1)


ROWS = """
    import gc, stepmem
    from stepmem._holders.heap import Modules
    from stepmem._holders.heap_scan import HeapScan
    from stepmem._holders.places import Slice
    rows, order, expand = MADE, [], HeapScan._expand
    def noted(scan, node, thing, now):
        order.append(id(thing))
        return expand(scan, node, thing, now)
    HeapScan._expand = noted
    class Callback:
        def __init__(self): self.kept = []
    class Loop:
        def __init__(self, callback): self.parts = {"callbacks": [[callback]]}
        def run(self):
            gc.collect()
            scan = HeapScan(Modules())
            assert scan.advance(Slice(scan.modules), float("inf"))
            print(order.index(id(self.parts["callbacks"][0][0].kept)))
    Loop(Callback()).run()
"""


@pytest.mark.parametrize("made", ["[(n, n, n) for n in range(400)]", "[[n] for n in range(400)]", "[{'loss': [n]} for n in range(400)]"])
def test_rows_of_a_log_come_after_what_a_loop_refers_to(made, answer):
    places = []
    for rows in (made, "[]"):
        _, ended = answer(textwrap.dedent(ROWS).replace("MADE", rows), request_at=10_000)
        places.append(int(ended.out))
    assert places[0] - places[1] < 10, places


GRADIENTS = """
    import torch, stepmem
    ensemble = []
    for n in range(200):
        model = torch.nn.Linear(64, 64, bias=False)
        model(torch.ones(1, 64)).sum().backward()
        ensemble.append(model)
        stepmem.step_end(n)
"""


@pytest.mark.parametrize("kept", [pytest.param("model", marks=needs_torch), pytest.param("model.weight", marks=needs_torch)])
def test_gradients_belong_to_what_keeps_their_parameters(kept, answer):
    program = textwrap.dedent(GRADIENTS).replace("append(model)", f"append({kept})")
    (_, *_, result), _ = answer(program, request={"bytes_per_step": 32_768.0})
    [holder] = result["holders"]
    assert (holder["name"], holder["line"]) == ("`ensemble`", 3)
    assert holder["bytes_per_step"] == pytest.approx(32_768, rel=0.1)

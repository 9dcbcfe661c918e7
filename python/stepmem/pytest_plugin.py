"""Plugin of pytest. With `--stepmem`, a test with the marker `memory` fails if it exceeds its limit, or if its memory grows.

PYTEST_DONT_REWRITE: no assertion here is a test's.
"""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional

import pytest

if TYPE_CHECKING:
    from ._growth import Peak, Verdict, Watch

MARKER = """memory(limit, growth, rounds): with --stepmem, fails a test that takes more memory at once than `limit` ("2GiB"), or that keeps more \
of each of its steps than `growth` ("none", or bytes a step: "64KiB"). Its steps are those that it marks with the fixture `memory`; without it, \
the test is run `rounds` times (16)"""

ROUNDS_MAX = 10_000
"""Times that a test without steps is run, at most."""

HOLDERS_SHOWN = 3

TOTALS = "stepmem"
"""Name of the property of a report that has what was measured."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--stepmem`."""
    group = parser.getgroup("stepmem")
    group.addoption("--stepmem", action="store_true", help="judge the memory of tests with the marker or the fixture `memory`")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker, and with `--stepmem` what judges it."""
    config.addinivalue_line("markers", MARKER)
    if config.getoption("stepmem"):
        config.pluginmanager.register(Judge(), "stepmem-judge")


class Steps:
    """The steps of a test. Without `--stepmem` it does nothing."""

    def __init__(self) -> None:
        self._watch: "Optional[Watch]" = None

    def step(self) -> "Step":
        """Returns a context manager for one step of the test: `with memory.step():`. A step that raises does not count."""
        return Step(self)

    def step_end(self) -> None:
        """Marks the end of a step."""
        if self._watch is not None:
            self._watch.step_ends()

    def follow(self, watch: "Optional[Watch]") -> None:
        """Counts the steps from now on; None: no longer."""
        self._watch = watch


class Step:
    """Context manager for one step."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self._steps.step_end()


@pytest.fixture(name="memory")
def memory_fixture(request: pytest.FixtureRequest) -> Steps:
    """Marks the steps of a test, at whose ends `--stepmem` looks at the memory: `with memory.step():`."""
    judge: Any = request.config.pluginmanager.get_plugin("stepmem-judge")
    return Steps() if judge is None else judge.begin_steps()


class Plan(NamedTuple):
    """The arguments of a test's markers."""

    limit: Optional[int] = None
    """Bytes."""
    growth: Optional[int] = None
    """Bytes a step from which on memory grows; None: not judged."""
    rounds: int = 0
    texts: Dict[str, Any] = {}
    """The arguments as they were given."""

    @staticmethod
    def of(item: pytest.Item) -> "Optional[Plan]":
        """Returns that of the markers of a test, its own before its class's; None without one. Raises ValueError."""
        texts: Dict[str, Any] = {}
        marks = list(item.iter_markers("memory"))
        for mark in reversed(marks):
            if mark.args:
                raise ValueError(f"memory: {mark.args[0]!r} has no name: limit, growth or rounds")
            unknown = sorted(mark.kwargs.keys() - {"limit", "growth", "rounds"})
            if unknown:
                raise ValueError(f"memory: {unknown[0]!r} is none of limit, growth and rounds")
            texts.update(mark.kwargs)
        return Plan.parsed(texts) if marks else None

    @staticmethod
    def parsed(texts: Dict[str, Any]) -> "Plan":
        """Parses the arguments. Without a limit, growth is judged. Raises ValueError."""
        from ._growth import NONE_BYTES, STEPS_MIN

        growth, rounds = texts.get("growth", None if "limit" in texts else "none"), texts.get("rounds", STEPS_MIN)
        if type(rounds) is not int or not STEPS_MIN <= rounds <= ROUNDS_MAX:
            raise ValueError(f"memory: rounds {rounds!r} is not an integer in {STEPS_MIN}..={ROUNDS_MAX}")
        limit = None if "limit" not in texts else _size("limit", texts["limit"])
        allowed = NONE_BYTES if growth == "none" else None if growth is None else _size("growth", growth)
        return Plan(limit, allowed, rounds, {"growth": growth, **texts})


def _size(name: str, value: Any) -> int:
    """Parses a size in bytes, or a text with one. Raises ValueError."""
    from ._settings import parse_bytes

    if type(value) is not str and type(value) is not int:
        raise ValueError(f"memory: {name} {value!r} is neither a text such as \"2GiB\" nor a number of bytes")
    return parse_bytes(f"memory: {name}", str(value))


class Judge:
    """Judges the memory of one test after the other."""

    def __init__(self) -> None:
        self._plan: Optional[Plan] = None
        """That of the test that runs; None if it has no marker."""
        self._steps: Optional[Steps] = None
        """Its steps, if it has the fixture."""

    def begin_steps(self) -> Steps:
        """Returns the steps of the test that runs."""
        self._steps = Steps()
        return self._steps

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Reads the markers of a test."""
        self._plan = self._steps = None
        try:
            self._plan = Plan.of(item)
        except ValueError as error:
            pytest.fail(str(error), pytrace=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Puts the judging around the test itself, so that pytest and its plugins see a failure as one of the test."""
        plan = self._plan
        if self._steps is not None and (plan is None or plan.growth is None):
            from ._growth import NONE_BYTES

            plan = plan or Plan()
            plan = plan._replace(growth=NONE_BYTES, texts={**plan.texts, "growth": "none"})
        if plan is not None:
            runtest = item.runtest
            setattr(item, "runtest", lambda: Trial(item, runtest, plan, self._steps).run())

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Takes it away again."""
        vars(item).pop("runtest", None)
        self._plan = self._steps = None

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Lists what was measured."""
        reports = [each for of_outcome in terminalreporter.stats.values() for each in of_outcome if getattr(each, "when", "") == "call"]
        totals = {each.nodeid: text for each in reports for name, text in each.user_properties if name == TOTALS}
        if totals:
            terminalreporter.section("stepmem")
            for nodeid, text in totals.items():
                terminalreporter.write_line(f"{nodeid}: {text}")


class Trial:
    """One test that is judged."""

    def __init__(self, item: pytest.Item, runtest: Callable[[], None], plan: Plan, steps: Optional[Steps]) -> None:
        from ._growth import Watch

        self._item, self._runtest, self._plan, self._steps = item, runtest, plan, steps
        self._watch = None if plan.growth is None else Watch(plan.growth)

    def run(self) -> None:
        """Runs the test, more often if its growth is judged and it marks no steps. Fails it by its memory, unless it has failed by itself."""
        try:
            peak = self._peak()
            if self._steps is not None:
                self._steps.follow(self._watch)
            self._runtest()
            if not getattr(self._item, "_excinfo", None):  # where unittest puts what a test raised
                self._judge(peak)
        finally:
            if self._steps is not None:
                self._steps.follow(None)
            if self._watch is not None:
                self._watch.close()

    def _peak(self) -> "Optional[Peak]":
        from ._growth import Peak

        try:
            return None if self._plan.limit is None else Peak()
        except OSError as error:
            pytest.fail(f"limit={self._plan.texts['limit']!r} cannot be judged: {error}", pytrace=False)

    def _judge(self, peak: "Optional[Peak]") -> None:
        totals = [] if peak is None else [self._within_limit(peak)]
        verdicts: "List[Verdict]" = []
        if self._watch is not None:
            if self._steps is None:
                self._repeat(self._watch)
            verdicts = self._verdicts(self._watch)
            grown = [each for each in verdicts if each.is_growth]
            rates = [f"{each.kind} grows by {_format(each.bytes_per_step)} a step" for each in grown]
            totals.append(" and ".join(rates) or f"no growth in {self._watch.n_steps} steps")
        self._item.user_properties.append((TOTALS, ", ".join(totals)))
        failed = [self._text(each) for each in verdicts if each.is_growth]
        if failed:
            pytest.fail("\n".join(failed), pytrace=False)

    def _within_limit(self, peak: "Peak") -> str:
        """Returns the peak as a text; fails the test if it exceeds the limit."""
        limit = self._plan.limit or 0
        try:
            kind, taken = peak.taken()
        except OSError as error:
            pytest.fail(f"limit={self._plan.texts['limit']!r} cannot be judged: {error}", pytrace=False)
        text = f"peak {_format(taken)} of {kind}, limit {_format(limit)}"
        if taken > limit:
            self._item.user_properties.append((TOTALS, text))
            pytest.fail(f"The test takes {_format(taken)} of {kind} at once; limit={self._plan.texts['limit']!r}", pytrace=False)
        return text

    def _repeat(self, watch: "Watch") -> None:
        """Runs the test again, as often as it is to be run."""
        watch.step_ends()
        while watch.n_steps < self._plan.rounds:
            _forget_logs()
            try:
                self._runtest()
            except BaseException:
                text = f"This is run {watch.n_steps + 1} of {self._plan.rounds} for growth, with the fixtures of the first one"
                self._item.add_report_section("call", "stepmem", text)
                raise
            watch.step_ends()

    def _verdicts(self, watch: "Watch") -> "List[Verdict]":
        from ._growth import STEPS_MIN

        verdicts = watch.verdicts()
        if not verdicts:
            text = f"Growth cannot be judged: the test ended {watch.n_steps} steps, and {STEPS_MIN} are needed"
            pytest.fail(text, pytrace=False)
        return verdicts

    def _text(self, verdict: "Verdict") -> str:
        steps = f"steps {verdict.first_step} to {verdict.last_step}"
        text = f"Memory grows: {verdict.kind} by {_format(verdict.bytes_per_step)} a step ({steps}); growth={self._plan.texts['growth']!r}"
        if self._watch is not None:
            text += f" allows less than {_format(self._watch.allowed_of(verdict.kind))}"
        if not verdict.holders:
            reason = f" ({verdict.error})" if verdict.error else ""
            return f"{text}\nNo object of Python was found that holds it{reason}: memory of C or C++, or growth that comes seldom"
        return "\n".join([text, "Held by", *(f"  {_holder(each)}" for each in verdict.holders[:HOLDERS_SHOWN])])


def _forget_logs() -> None:
    """Lets the next run of a test find nothing that the run before it has logged, as the first one did."""
    for handler in logging.root.handlers:
        records, stream = getattr(handler, "records", None), getattr(handler, "stream", None)
        if type(handler).__name__ == "LogCaptureHandler" and isinstance(records, list) and isinstance(stream, io.StringIO):
            records.clear()
            stream.seek(0)
            stream.truncate()


def _holder(holder: Any) -> str:
    """Returns a line about a holder: `losses`, list, test_train.py:12, in test_fits: 3.10 KiB and 1 tensor a step."""
    name, spot = holder.name, holder.name.spot
    place = "" if spot.file is None else spot.file if spot.line is None else f"{spot.file}:{spot.line}"
    function = f"in {spot.function}" if spot.function else ""
    grows = [f"{_format(holder.bytes_per_step)} a step"] if holder.bytes_per_step > 0 else []
    grows += [f"{holder.tensors_per_step:.1f} tensors a step"] if holder.tensors_per_step > 0 else []
    text = ", ".join(filter(None, [name.text, name.kind, place, function]))
    if grows:
        text += ": " + ", ".join(grows)
    return "".join(each if each.isprintable() else "?" for each in text)


def _format(n_bytes: float) -> str:
    from ._stats import format_bytes

    return format_bytes(round(n_bytes))

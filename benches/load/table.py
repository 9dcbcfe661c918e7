"""The table of figures, and the targets."""

import statistics

from job import N_DEVICES, N_PROCESSES, N_RANKS
from process import memory_bytes
from wrk import N_CONNECTIONS

PUSH_RATIO_MIN = 5.0
SCRAPE_P99_SECONDS_MAX = 1e-3
RSS_BYTES_MAX = 12 << 20
RSS_GROWTH_BYTES_MAX = 256 << 10  # an allocator's slack, not something kept per step
IDLE_CPU_RATIO_MAX = 0.002
COLD_START_SECONDS_MAX = 0.1
POLL_CPU_RATIO_MAX = 0.001

PUSH_CPU_RATIO_MAX = 1.15
SCRAPE_CPU_RATIO_MAX = {8: 2.0, 1024: 3.0}

HEAD = ["", "stepmem", "pushgateway", "node-exporter", "bare hyper", "ratio*", "ratio**", "target", ""]
PROGRAMS = HEAD[1:5]
LEFT_ALIGNED = (0, 8)


class Table:
    """Collects rows: a measure, its figure for each program, the ratio to Pushgateway's, target."""

    def __init__(self):
        self.rows = []

    def row(self, measure, figures, show, target="", passed=None):
        """Adds a row. `figures`: by program; `passed`: whether stepmem's meets the target."""
        ours, theirs = figures.get("stepmem"), figures.get("pushgateway")
        ratio = f"{ours / theirs:.2f}" if ours and theirs else ""
        bare = figures.get("bare hyper")
        to_bare = f"{ours / bare:.2f}" if ours and bare else ""
        shown = [show(figures[name]) if name in figures else "" for name in PROGRAMS]
        verdict = "" if passed is None else "PASS" if passed else "MISS"
        self.rows.append([measure, *shown, ratio, to_bare, target, verdict])

    def row_at_most(self, measure, figures, show, limit, show_limit=None):
        """Adds a row whose target is that stepmem's figure is at most `limit`."""
        target = f"<= {(show_limit or show)(limit)}"
        self.row(measure, figures, show, target, figures["stepmem"] <= limit)

    def pushes(self, rounds):
        rates = medians(rounds, lambda each: each.rate)
        is_fast = rates["stepmem"] >= PUSH_RATIO_MIN * rates["pushgateway"]
        measure = f"pushes/s, {N_CONNECTIONS} connections"
        self.row(measure, rates, count, f">= {PUSH_RATIO_MIN:g} x", is_fast)
        self.row("  p50", medians(rounds, lambda each: each.p50_seconds), milliseconds)
        self.row("  p99", medians(rounds, lambda each: each.p99_seconds), milliseconds)
        cpu = medians(rounds, lambda each: each.cpu_seconds)
        self.beside_hyper("  processor time", cpu, PUSH_CPU_RATIO_MAX)
        self.errors(rounds)

    def beside_hyper(self, measure, cpu_seconds, limit):
        """Adds a row of processor time, whose target is a ratio to bare hyper's."""
        passed = None
        if cpu_seconds.get("bare hyper"):
            passed = cpu_seconds["stepmem"] <= limit * cpu_seconds["bare hyper"]
        self.row(measure, cpu_seconds, microseconds, f"<= {limit:g} x**", passed)

    def scrapes(self, rounds):
        rates = medians(rounds, lambda each: each.rate)
        self.row(f"scrapes/s, {N_CONNECTIONS} connections", rates, count)
        self.row("  p50", medians(rounds, lambda each: each.p50_seconds), milliseconds)
        p99 = medians(rounds, lambda each: each.p99_seconds)
        self.row_at_most("  p99", p99, milliseconds, SCRAPE_P99_SECONDS_MAX)
        cpu = medians(rounds, lambda each: each.cpu_seconds)
        self.row("  processor time", cpu, microseconds)
        self.errors(rounds)

    def scrape_cost(self, n_ranks, cpu_seconds):
        measure = f"processor time of a scrape, {n_ranks:,} ranks that push"
        self.beside_hyper(measure, cpu_seconds, SCRAPE_CPU_RATIO_MAX[n_ranks])

    def errors(self, rounds):
        errors = {name: sum(each.n_errors for each in of) for name, of in rounds.items()}
        self.row("  errors", errors, count, "0", errors["stepmem"] == 0)

    def scrapes_alone(self, label, alone):
        """`alone`: (seconds of each scrape, bytes of one) by program."""
        p50 = {name: percentile(seconds, 50) for name, (seconds, _) in alone.items()}
        self.row(f"scrape alone, {label}, p50", p50, milliseconds)
        p99 = {name: percentile(seconds, 99) for name, (seconds, _) in alone.items()}
        self.row_at_most("  p99", p99, milliseconds, SCRAPE_P99_SECONDS_MAX)
        self.row("  bytes", {name: n_bytes for name, (_, n_bytes) in alone.items()}, count)

    def rss(self, measure, programs):
        memory = {each.name: memory_bytes(each.child.pid) for each in programs}
        self.row(measure, {name: each["VmRSS"] for name, each in memory.items()}, mebibytes)
        self.row("  peak", {name: each["VmHWM"] for name, each in memory.items()}, mebibytes)

    def memory(self, n_steps, memory):
        measure = f"RSS, {N_RANKS} ranks, {n_steps:,} steps each"
        self.row_at_most(measure, {"stepmem": memory.first}, mebibytes, RSS_BYTES_MAX)
        growth = {"stepmem": memory.last - memory.first}
        self.row_at_most("  growth over as many more", growth, mebibytes, RSS_GROWTH_BYTES_MAX)
        self.row("  peak", {"stepmem": memory.peak}, mebibytes)

    def recording(self, cost):
        self.row("CPU of a record", {"stepmem": cost.cpu_seconds}, microseconds)
        self.row("  with --record.directory", {"stepmem": cost.cpu_seconds_recorded}, microseconds)
        self.row("  RSS, peak", {"stepmem": cost.resident}, mebibytes)
        self.row("  bytes on the disk", {"stepmem": cost.bytes_a_record}, one_decimal)

    def nvml(self, cost):
        measure = f"RSS with NVML, {N_DEVICES} devices, {N_PROCESSES} processes"
        self.row_at_most(measure, {"stepmem": cost.resident}, mebibytes, RSS_BYTES_MAX)
        self.row("  peak", {"stepmem": cost.peak}, mebibytes)
        measure, ratio = "  CPU of a core, polling at 1 Hz", {"stepmem": cost.cpu_ratio}
        self.row_at_most(measure, ratio, fine_percent, POLL_CPU_RATIO_MAX, percent)

    def idle_cpu(self, seconds, ratios):
        measure = f"CPU of a core, scraped at 1 Hz, {seconds} s"
        self.row_at_most(measure, ratios, percent, IDLE_CPU_RATIO_MAX)

    def cold_start(self, seconds):
        middle = {name: statistics.median(each) for name, each in seconds.items()}
        self.row_at_most("start to first scrape", middle, milliseconds, COLD_START_SECONDS_MAX)

    def text(self):
        rows = [HEAD, *self.rows]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
        lines = [aligned(row, widths) for row in rows]
        lines.insert(1, "-" * max(map(len, lines)))
        return "\n".join([*lines, "", "* stepmem's figure / Pushgateway's", "** stepmem's figure / bare hyper's"])


def aligned(row, widths):
    cells = [
        cell.ljust(width) if column in LEFT_ALIGNED else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths))
    ]
    return "  ".join(cells).rstrip()


def medians(rounds, figure):
    """By program, the median of a figure over its rounds."""
    return {name: statistics.median(figure(each) for each in of) for name, of in rounds.items()}


def percentile(values, percent_below):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent_below // 100)]


def count(value):
    return f"{value:,.0f}"


def milliseconds(seconds):
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.01 else f"{seconds * 1e3:.0f} ms"


def microseconds(seconds):
    return f"{seconds * 1e6:.2f} µs"


def one_decimal(value):
    return f"{value:.1f}"


def mebibytes(n_bytes):
    return f"{n_bytes / (1 << 20):.2f} MiB"


def percent(ratio):
    return f"{ratio * 100:.2f} %"


def fine_percent(ratio):
    return f"{ratio * 100:.3f} %"

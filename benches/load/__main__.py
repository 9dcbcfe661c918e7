"""Measures stepmem under load beside Debian's Pushgateway and node-exporter, on one machine.

    python3 benches/load target/dist/stepmem [--bare-hyper PATH] [--fake-nvml PATH] [--quick]

Pushes and scrapes: `wrk` with one thread and 8 connections loads the programs in turn, several
rounds, medians. Beside them stands hyper alone, which takes the same pushes and answers the same
bytes: processor time per request is compared with its. Scrapes are also timed alone: one connection, one scrape after the other, nothing
else running, once plain and once as Prometheus asks (OpenMetrics, gzip); these times include the
client's, which is Python. Then CPU while scraped once a second, memory after many steps, and the
time from start to the first scrape, and CPU, memory and disk of a record with
--record.directory. With --fake-nvml also the cost of polling NVML: memory, and CPU
of the polling threads, with a stand-in for the driver (tests/fake-nvml). The stand-in's own cost
counts as stepmem's; a real driver's calls cost more.

Prints a table with the targets beside the figures; every row that has a target ends in PASS or
MISS. Traffic stays on loopback, is bounded, and every program started here ends with this one.
Needs what `tests/peers/install.sh bench` installs, and Python 3.9 without further packages.
"""

from __future__ import annotations

import argparse
import http.client
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "peers"))
from child import Failure, end_on_sigterm  # noqa: E402
from job import N_DEVICES, N_PROCESSES, N_RANKS  # noqa: E402
from measures import cold_start, idle_cpu, memory_after_steps, nvml_cost, recording_cost, scrape_cost  # noqa: E402
from programs import BareHyper, NodeExporter, Pushgateway, Recording, Stepmem, WithNvml  # noqa: E402
from scraper import AS_PROMETHEUS, PLAIN, scrape_alone  # noqa: E402
from table import Table  # noqa: E402
from wrk import Wrk, in_turn  # noqa: E402

FILL_STEPS = 1_000
"""Steps of each rank that stepmem holds while it is scraped."""
MANY_RANKS, MANY_FILL_STEPS = 1_024, 250
"""A fleet's ranks at one exporter, and the steps of each that it holds."""


class Effort:
    """How much is done. `--quick` only shows that everything works: its figures are rough."""

    def __init__(self, is_quick):
        self.rounds = 1 if is_quick else 3
        self.wrk_seconds = 1 if is_quick else 5
        self.scrapes_alone = 200 if is_quick else 1_000
        self.scrapes_between_pushes = {N_RANKS: 200, MANY_RANKS: 20} if is_quick else {N_RANKS: 2_000, MANY_RANKS: 100}
        self.memory_steps = 5_000 if is_quick else 100_000
        self.recorded_steps = 1_000 if is_quick else 20_000
        self.idle_seconds = 5 if is_quick else 20
        self.cold_starts = 3 if is_quick else 10


def main():
    args = arguments()
    end_on_sigterm()
    try:
        with tempfile.TemporaryDirectory(prefix="stepmem-load-") as folder:
            print(measure(args, Effort(args.quick), folder).text())
    except (Failure, OSError, http.client.HTTPException) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted")


def arguments():
    parser = argparse.ArgumentParser(
        prog="benches/load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("stepmem", help="path of the stepmem binary, built with --profile dist")
    parser.add_argument(
        "--bare-hyper",
        help="path of the example bare-hyper, built with --profile dist; without it these rows are left out",
    )
    parser.add_argument(
        "--fake-nvml",
        help="path of libfake_nvml.so, built with --profile dist; without it NVML is left out",
    )
    parser.add_argument(
        "--quick", action="store_true", help="seconds instead of minutes, rough figures"
    )
    return parser.parse_args()


def measure(args, effort, folder):
    """Takes every measure; returns the table."""
    table, stepmem, fake_nvml = Table(), args.stepmem, args.fake_nvml
    ours, pushgateway = Stepmem(stepmem, folder), Pushgateway(folder)
    programs = [ours, pushgateway, NodeExporter(folder)]

    report_progress(f"cold start, {effort.cold_starts} times each")
    table.cold_start({each.name: cold_start(each, effort.cold_starts) for each in programs})

    bare = None
    try:
        for each in programs:
            each.start()
        table.rss("RSS after the start", programs)
        if args.bare_hyper:
            bare = BareHyper(args.bare_hyper, folder, ours)
            bare.start()
        beside = [bare] if bare else []
        measure_pushes(table, [ours, pushgateway, *beside], effort, folder)
        fill(ours, pushgateway)
        if bare:
            bare.copy(ours)
        measure_scrapes(table, programs, beside, effort, folder)
        report_progress(f"idle, scraped once a second for {effort.idle_seconds} s")
        table.idle_cpu(effort.idle_seconds, idle_cpu(programs, effort.idle_seconds))
        if bare:
            measure_scrape_cost(table, ours, bare, effort)
            many = Stepmem(stepmem, folder, MANY_RANKS)
            ours.stop()
            programs.append(many)
            many.start()
            many.push_steps(0, MANY_FILL_STEPS)
            many.next_step = MANY_FILL_STEPS
            bare.copy(many)
            measure_scrape_cost(table, many, bare, effort)
    finally:
        for each in [*programs, *([bare] if bare else [])]:
            each.stop()

    if fake_nvml:
        seconds = effort.idle_seconds
        size = f"{N_DEVICES} devices, {N_PROCESSES} processes"
        report_progress(f"NVML polled once a second for {seconds} s, {size}")
        table.nvml(nvml_cost(WithNvml(stepmem, folder, fake_nvml), FILL_STEPS, seconds))

    report_progress(f"recording, {effort.recorded_steps} steps of {N_RANKS} ranks")
    recording = Recording(stepmem, folder)
    table.recording(recording_cost(ours, recording, effort.recorded_steps))

    report_progress(f"memory, {2 * effort.memory_steps} steps of {N_RANKS} ranks")
    table.memory(effort.memory_steps, memory_after_steps(ours, effort.memory_steps))
    return table


def measure_pushes(table, programs, effort, folder):
    report_progress(f"pushes, {effort.rounds} rounds of {effort.wrk_seconds} s each")
    wrk = Wrk(effort.wrk_seconds, folder)
    table.pushes(in_turn(programs, effort.rounds, wrk.load_pushes))
    table.rss("RSS after these pushes", programs[:2])


def fill(ours, pushgateway):
    """Starts both anew, with the series of a job to be scraped."""
    ours.restart()
    pushgateway.restart()
    ours.push_steps(0, FILL_STEPS)
    ours.next_step = FILL_STEPS
    pushgateway.push_groups(FILL_STEPS)


def measure_scrape_cost(table, ours, bare, effort):
    n_scrapes = effort.scrapes_between_pushes[ours.n_ranks]
    report_progress(f"{n_scrapes} scrapes of {ours.n_ranks} ranks that push between any two")
    bare.restart()
    cost = scrape_cost({ours.name: (ours, ours), bare.name: (bare, ours)}, n_scrapes)
    table.scrape_cost(ours.n_ranks, cost)


def measure_scrapes(table, programs, beside, effort, folder):
    report_progress(f"scrapes, {effort.rounds} rounds of {effort.wrk_seconds} s each")
    wrk = Wrk(effort.wrk_seconds, folder)
    table.scrapes(in_turn([*programs, *beside], effort.rounds, wrk.load_scrapes))
    report_progress(f"scrapes alone, {effort.scrapes_alone} each")
    for label, headers in [("plain", PLAIN), ("OpenMetrics, gzip", AS_PROMETHEUS)]:
        n_scrapes = effort.scrapes_alone
        alone = {each.name: scrape_alone(each.web_port, n_scrapes, headers) for each in programs}
        table.scrapes_alone(label, alone)
    table.rss("RSS after these scrapes", programs)


def report_progress(text):
    print(f"benches/load: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

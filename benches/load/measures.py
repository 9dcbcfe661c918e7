"""Single measures: time to start, CPU when idle, memory after many steps, the cost of NVML."""

import re
import time
from dataclasses import dataclass

from child import Child, Failure, free_ports, wait_until
from job import N_PROCESSES, N_RANKS
from process import cpu_seconds, memory_bytes, nvml_cpu_seconds
from scraper import AS_PROMETHEUS, PLAIN, Scraper
from web import REQUEST_SECONDS_MAX, connect, get


def cold_start(program, n_starts):
    """Seconds from the start of the process to its first successful scrape, for each start."""
    return [first_scrape_seconds(program) for _ in range(n_starts)]


def first_scrape_seconds(program):
    ports = free_ports(program.n_ports)
    begin = time.perf_counter()
    with Child(program.argv(*ports), program.log_path) as child:
        while True:
            try:
                get(ports[0], "/metrics")
                return time.perf_counter() - begin
            except OSError:
                is_late = time.perf_counter() - begin > REQUEST_SECONDS_MAX
                if child.has_ended() or is_late:
                    log = child.log_tail()
                    raise Failure(f"{program.name} did not start:\n{log}") from None


def once_a_second(seconds, act):
    """Calls `act` once a second, for so many seconds; returns how long that took."""
    begin = time.monotonic()
    for tick in range(1, seconds + 1):
        act()
        time.sleep(max(0.0, begin + tick - time.monotonic()))  # the pace, not a wait for a change
    return time.monotonic() - begin


def idle_cpu(programs, seconds):
    """Share of a core that each program uses while all are scraped once a second."""
    scrapers = [Scraper(each.web_port, AS_PROMETHEUS) for each in programs]

    def scrape_all():
        for scraper in scrapers:
            scraper.scrape()

    scrape_all()
    before = {each.name: cpu_seconds(each.child.pid) for each in programs}
    elapsed = once_a_second(seconds, scrape_all)
    for scraper in scrapers:
        scraper.close()
    after = {each.name: cpu_seconds(each.child.pid) for each in programs}
    return {name: (after[name] - before[name]) / elapsed for name in before}


def scrape_cost(programs, n_scrapes):
    """Processor time of a scrape by program, while every rank pushes between any two scrapes.

    `programs`: by name a pair, of what is measured and of the program whose records it is pushed.
    The pushes' own cost is that of as many rounds without scrapes, which take turns with them.
    """
    parts = 10
    seconds = {name: {True: 0.0, False: 0.0} for name in programs}
    step = {name: pushed.next_step for name, (_, pushed) in programs.items()}
    for part in range(2 * parts):
        for name, (program, pushed) in programs.items():
            connection, scraper = connect(program.push_port), Scraper(program.web_port, PLAIN)
            is_scraped = part % 2 == 0
            before = cpu_seconds(program.child.pid)
            for _ in range(n_scrapes // parts):
                step[name] += 1
                body = pushed.step_of_all(step[name])
                headers = {"Content-Type": "application/x-ndjson"}
                connection.request("POST", "/v1/steps", body.encode(), headers)
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    raise Failure(f"{program.name} answered {answer.status} to a push")
                if is_scraped:
                    scraper.scrape()
            seconds[name][is_scraped] += cpu_seconds(program.child.pid) - before
            connection.close()
            scraper.close()
    return {name: (of[True] - of[False]) / n_scrapes for name, of in seconds.items()}


@dataclass
class MemoryAfterSteps:
    """Bytes resident after the steps and after as many more, and the highest on the way."""

    first: int
    last: int
    peak: int


def memory_after_steps(stepmem, n_steps):
    """Memory of a fresh stepmem."""
    stepmem.start()
    try:
        stepmem.push_steps(0, n_steps)
        first = memory_bytes(stepmem.child.pid)["VmRSS"]
        stepmem.push_steps(n_steps, 2 * n_steps)
        last = memory_bytes(stepmem.child.pid)
        return MemoryAfterSteps(first, last["VmRSS"], last["VmHWM"])
    finally:
        stepmem.stop()


@dataclass
class RecordingCost:
    """What a record costs, in seconds of CPU over all threads, and what it takes of a disk."""

    cpu_seconds: float
    cpu_seconds_recorded: float
    resident: int
    bytes_a_record: float


def recording_cost(plain, recording, n_steps):
    """Cost of a record without and with a recording."""
    n_records = n_steps * N_RANKS

    def cpu_of(program):
        program.start()
        try:
            before = cpu_seconds(program.child.pid)
            program.push_steps(0, n_steps)
            memory = memory_bytes(program.child.pid)["VmHWM"]
            if program is recording:
                wait_until(lambda: is_recorded(program, n_records), REQUEST_SECONDS_MAX, explain)
            return (cpu_seconds(program.child.pid) - before) / n_records, memory
        finally:
            program.stop()

    def explain():
        return f"not every record was recorded:\n{recording.child.log_tail()}"

    (cpu, _), (cpu_recorded, resident) = cpu_of(plain), cpu_of(recording)
    return RecordingCost(cpu, cpu_recorded, resident, recording.recorded_bytes() / n_records)


def is_recorded(program, n_records):
    body = get(program.web_port, "/metrics").decode()
    written = re.search(r'^stepmem_recording_lines_total\{result="written"\} (\d+)$', body, re.M)
    return written is not None and int(written[1]) >= n_records


@dataclass
class NvmlCost:
    """Bytes resident and at most, and the share of a core of the threads that poll NVML."""

    resident: int
    peak: int
    cpu_ratio: float


def nvml_cost(program, n_steps, seconds):
    """Cost with the devices polled and ranks that push."""

    def all_are_shown():
        return program.n_processes() == N_PROCESSES

    def explain():
        shown = f"{program.n_processes()} of {N_PROCESSES} processes are shown"
        return f"{shown}:\n{program.child.log_tail()}"

    program.start()
    try:
        wait_until(all_are_shown, REQUEST_SECONDS_MAX, explain)
        program.push_steps(0, n_steps)
        pid = program.child.pid
        before = nvml_cpu_seconds(pid)
        elapsed = once_a_second(seconds, lambda: get(program.web_port, "/metrics"))
        cpu_ratio = (nvml_cpu_seconds(pid) - before) / elapsed
        memory = memory_bytes(pid)
        return NvmlCost(memory["VmRSS"], memory["VmHWM"], cpu_ratio)
    finally:
        program.stop()

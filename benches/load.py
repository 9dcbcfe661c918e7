"""Measures stepmem under load beside Debian's Pushgateway and node-exporter, in one run on one machine.

Pushes and scrapes are loaded with `wrk` (one thread, 8 connections), the programs in turn, several rounds,
medians. Scrapes are also timed alone: one connection, one scrape after the other, nothing else going on, once
plain and once as Prometheus asks (OpenMetrics, gzip); these times include the client's, which is Python. Then
memory after many steps, CPU while scraped once a second, and the time from start to the first scrape. Last, what
asking NVML costs: memory, and CPU of the threads that ask, with a stand-in for the driver (tests/fake-nvml), whose own
cost counts as ours; a driver's calls cost more.

Prints a table with the targets beside the figures; every row that has a target ends in PASS or MISS.
Traffic stays on loopback, is bounded, and every program started here ends with this one.
Needs what `tests/peers/install.sh bench` installs, and Python 3.9 with nothing beside it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "peers"))
from child import Child, Failure, end_on_sigterm, free_ports, start_listening, wait_until  # noqa: E402

N_RANKS = 8
N_CONNECTIONS = 8
BATCH_RECORDS = 500
LEAKING_RANK = 3
DEVICE_BYTES = 80 << 30
FILL_STEPS = 1_000

PUSH_RATIO_MIN = 5.0
SCRAPE_P99_SECONDS_MAX = 1e-3
RSS_BYTES_MAX = 12 << 20
RSS_GROWTH_BYTES_MAX = 256 << 10  # "flat": an allocator's slack, not something kept per step
IDLE_CPU_RATIO_MAX = 0.002
COLD_START_SECONDS_MAX = 0.1
N_DEVICES = 8
N_PROCESSES = 64
POLL_CPU_RATIO_MAX = 0.001

REQUEST_SECONDS_MAX = 10.0
DRAIN_SECONDS_MAX = 60.0

PLAIN = "Accept: text/plain;version=0.0.4\r\n"
AS_PROMETHEUS = (
    "Accept: application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\nAccept-Encoding: gzip\r\n"
)


class Effort:
    """How much is done; `--quick` looks whether everything works, the figures are rough."""

    def __init__(self, quick):
        self.rounds = 1 if quick else 3
        self.wrk_seconds = 1 if quick else 5
        self.scrapes_alone = 200 if quick else 1_000
        self.memory_steps = 5_000 if quick else 100_000
        self.idle_seconds = 5 if quick else 20
        self.cold_starts = 3 if quick else 10


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stepmem", help="path of the stepmem binary, built with --release")
    parser.add_argument("--fake-nvml", help="path of libfake_nvml.so, built with --release; without it NVML is left out")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, rough figures")
    args = parser.parse_args()
    end_on_sigterm()
    try:
        with tempfile.TemporaryDirectory(prefix="stepmem-load-") as folder:
            print(measure(args.stepmem, args.fake_nvml, Effort(args.quick), folder).text())
    except (Failure, OSError, http.client.HTTPException) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted")


def measure(stepmem, fake_nvml, effort, folder):
    """Takes every measure; returns the table."""
    table = Table()
    programs = [Stepmem(stepmem, folder), Pushgateway(folder), NodeExporter(folder)]
    pushed_to = programs[:2]

    say(f"cold start, {effort.cold_starts} times each")
    table.cold_start({each.name: cold_start(each, effort.cold_starts) for each in programs})

    try:
        for each in programs:
            each.start()
        table.rss("RSS after the start", programs)

        say(f"pushes, {effort.rounds} rounds of {effort.wrk_seconds} s each")
        rounds = in_turn(pushed_to, effort.rounds, lambda program: load_pushes(program, effort, folder))
        table.load("push", rounds, PUSH_RATIO_MIN, None)
        table.rss("RSS after these pushes", pushed_to)

        programs[0].restart()
        programs[1].restart()
        programs[0].push_steps(0, FILL_STEPS)
        programs[1].push_groups()
        say(f"scrapes, {effort.rounds} rounds of {effort.wrk_seconds} s each")
        rounds = in_turn(programs, effort.rounds, lambda program: load_scrapes(program, effort, folder))
        table.load("scrape", rounds, None, SCRAPE_P99_SECONDS_MAX)
        say(f"scrapes alone, {effort.scrapes_alone} each")
        for label, headers in [("plain", PLAIN), ("OpenMetrics, gzip", AS_PROMETHEUS)]:
            alone = {each.name: scrape_alone(each.web_port, effort.scrapes_alone, headers) for each in programs}
            table.scrapes_alone(label, alone)
        table.rss("RSS after these scrapes", programs)

        say(f"idle, scraped once a second for {effort.idle_seconds} s")
        table.idle_cpu(effort.idle_seconds, idle_cpu(programs, effort.idle_seconds))
    finally:
        for each in programs:
            each.stop()

    if fake_nvml:
        say(f"NVML asked once a second for {effort.idle_seconds} s, {N_DEVICES} devices, {N_PROCESSES} processes")
        table.nvml(*nvml_cost(WithNvml(stepmem, folder, fake_nvml), effort.idle_seconds))

    say(f"memory, {2 * effort.memory_steps} steps of {N_RANKS} ranks")
    table.memory(effort.memory_steps, *memory_after_steps(programs[0], effort.memory_steps))
    return table


def say(text):
    """Tells on stderr what is going on."""
    print(f"load.py: {text}", file=sys.stderr, flush=True)


# --- the programs ---


class Program:
    """A program that serves /metrics on loopback; a subclass knows its name, ports and arguments."""

    name = ""
    n_ports = 1

    def __init__(self, folder):
        self.log_path = os.path.join(folder, f"{self.name}.log")
        self.child = None
        self.ports = []

    def argv(self, *ports):
        raise NotImplementedError

    @property
    def web_port(self):
        return self.ports[0]

    def start(self):
        self.child, self.ports = start_listening(self.argv, self.n_ports, self.log_path)

    def stop(self):
        if self.child:
            self.child.stop()
            self.child = None

    def restart(self):
        self.stop()
        self.start()


class Pushgateway(Program):
    name = "pushgateway"

    def argv(self, *ports):
        return ["prometheus-pushgateway", f"--web.listen-address=127.0.0.1:{ports[0]}", "--log.level=warn"]

    @property
    def push_port(self):
        return self.ports[0]

    def push_head(self, rank):
        return f"POST /metrics/job/default/instance/{rank} HTTP/1.1", "text/plain; version=0.0.4"

    def push_body(self, _rank):
        """The record's figures in the text format, as a client library pushes them."""
        names = ["step", "step_seconds", *BYTES_FIELDS, "total_bytes", "alloc_retries_total", "ooms_total"]
        values = ["%10d", "0.25", *["%12d"] * len(BYTES_FIELDS), str(DEVICE_BYTES), "0", "0"]
        return "".join(
            f"# TYPE rank_{name} {'counter' if name.endswith('_total') else 'gauge'}\nrank_{name} {value}\n"
            for name, value in zip(names, values)
        )

    def push_groups(self):
        """Pushes one group for each rank."""
        for rank in range(N_RANKS):
            line, content_type = self.push_head(rank)
            post(self.push_port, line.split()[1], content_type, self.push_body(rank) % figures(rank, FILL_STEPS))


class NodeExporter(Program):
    name = "node-exporter"

    def argv(self, *ports):
        return ["prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{ports[0]}", "--log.level=warn"]


class Stepmem(Program):
    name = "stepmem"
    n_ports = 2

    def __init__(self, binary, folder):
        super().__init__(folder)
        self.binary = os.path.abspath(binary)

    def argv(self, *ports):
        web, push = ports
        return [
            *[self.binary, "serve", "--no-nvml"],
            *["--web.listen-address", f"127.0.0.1:{web}"],
            *["--push.listen-address", f"127.0.0.1:{push}"],
        ]

    @property
    def push_port(self):
        return self.ports[1]

    def push_head(self, _rank):
        return "POST /v1/steps HTTP/1.1", "application/json"

    def push_body(self, rank):
        """One record, to be filled with `figures`."""
        fields = "".join(f',"{name}":%12d' for name in BYTES_FIELDS)
        return (
            f'{{"run":"default","rank":{rank},"world_size":{N_RANKS}'
            f',"device":"GPU-00000000-0000-0000-0000-00000000000{rank}"'
            f',"step":%10d,"step_seconds":0.25{fields},"total_bytes":{DEVICE_BYTES}'
            f',"alloc_retries":0,"ooms":0}}'
        )

    def push_steps(self, first, end):
        """Pushes the steps first..end of every rank in batches and waits until the last ones are served."""
        bodies = [self.push_body(rank) for rank in range(N_RANKS)]
        connection = http.client.HTTPConnection("127.0.0.1", self.push_port, timeout=REQUEST_SECONDS_MAX)
        batch = []
        for step in range(first, end):
            for rank, body in enumerate(bodies):
                batch.append(body % figures(rank, step))
                if len(batch) == BATCH_RECORDS:
                    self.post_batch(connection, batch)
                    batch = []
        if batch:
            self.post_batch(connection, batch)
        connection.close()
        wait_until(
            lambda: self.served_steps() == [end - 1] * N_RANKS,
            DRAIN_SECONDS_MAX,
            lambda: f"stepmem serves rank_step {self.served_steps()}, not {end - 1} for {N_RANKS} ranks:\n"
            + self.child.log_tail(),
        )

    def post_batch(self, connection, batch):
        """Posts one batch; a full inbox (503) is tried again."""
        body = "\n".join(batch).encode()

        def answered():
            connection.request("POST", "/v1/steps", body, {"Content-Type": "application/x-ndjson"})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
            if answer.status not in (200, 503):
                raise Failure(f"stepmem answered {answer.status} to a batch of {len(batch)} records: {text}")
            return answer.status == 200

        wait_until(answered, DRAIN_SECONDS_MAX, lambda: "stepmem's inbox stayed full")

    def served_steps(self):
        body = get(self.web_port, "/metrics").decode()
        return [int(step) for step in re.findall(r"^stepmem_rank_step\{[^\n]*\} (\d+)$", body, re.MULTILINE)]


class WithNvml(Stepmem):
    """stepmem beside a simulated driver."""

    name = "stepmem-nvml"

    def __init__(self, binary, folder, fake_nvml):
        super().__init__(binary, folder)
        self.library = os.path.join(folder, "libnvidia-ml.so.1")
        shutil.copy(fake_nvml, self.library)
        # Processes that exist, as a shared namespace shows them; this one and its ancestors will do.
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        pids = (pids + list(range(1 << 21, (1 << 21) + N_PROCESSES)))[:N_PROCESSES]
        devices = [self.device(idx, pids[idx::N_DEVICES]) for idx in range(N_DEVICES)]
        with open(f"{self.library}.json", "w") as scenario:
            json.dump({"driver_version": "570.86.15", "devices": devices}, scenario)

    @staticmethod
    def device(idx, pids):
        return {
            "uuid": f"GPU-00000000-0000-0000-0000-00000000000{idx}",
            "name": "NVIDIA H100 80GB HBM3",
            "memory": {"total": DEVICE_BYTES, "reserved": 1 << 30, "used": 40 << 30},
            "addressing": 1,
            "compute": [{"pid": pid, "used": 1 << 30} for pid in pids],
            "graphics": [],
            "mps": [],
        }

    def argv(self, *ports):
        nvml = ["--nvml.library", self.library, "--nvml.interval", "1s", "--nvml.devices", "all"]
        return [word for word in super().argv(*ports) if word != "--no-nvml"] + nvml

    def n_processes(self):
        return get(self.web_port, "/metrics").decode().count("\nstepmem_process_memory_used_bytes{")


BYTES_FIELDS = [
    "allocated_bytes",
    "peak_allocated_bytes",
    "reserved_bytes",
    "peak_reserved_bytes",
    "inactive_split_bytes",
]


def figures(rank, step):
    """Step and bytes of one record: noise of up to 4 MiB, and 64 KiB a step on the rank that leaks."""
    noise = (step * 2_654_435_761 + rank * 40_503) % 1024 * 4096
    allocated = (40 << 30) + noise + (step * 65_536 if rank == LEAKING_RANK else 0)
    return step, allocated, allocated + (4 << 30), allocated + (6 << 30), allocated + (8 << 30), 1 << 28


# --- load with wrk ---

LUA = r"""
-- One request a call: the ranks in turn, the step rising. Numbers are padded, so that Content-Length is constant.
local heads, bodies = {%(heads)s}, {%(bodies)s}
local n_ranks, leaking_rank, n = %(n_ranks)d, %(leaking_rank)d, 0

function init(arguments)
   n = tonumber(arguments[1]) * n_ranks
end

function request()
   local rank, step = n %% n_ranks, math.floor(n / n_ranks)
   n = n + 1
   local allocated = 42949672960 + (step * 40503 + rank * 977) %% 1024 * 4096
   if rank == leaking_rank then allocated = allocated + step * 65536 end
   return heads[rank + 1] .. string.format(bodies[rank + 1], step, allocated, allocated + 4294967296,
      allocated + 6442450944, allocated + 8589934592, 268435456)
end
"""

LUA_DONE = r"""
function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      '\n{"requests": %d, "refused": %d, "failed": %d, "seconds": %f, "p50_seconds": %f, "p99_seconds": %f}\n',
      summary.requests, errors.status, errors.connect + errors.read + errors.write + errors.timeout,
      summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6))
end
"""


class Round:
    """What one round of wrk saw."""

    def __init__(self, seen):
        self.n_requests = seen["requests"]
        self.n_errors = seen["refused"] + seen["failed"]
        self.rate = (seen["requests"] - seen["refused"]) / seen["seconds"]
        self.p50_seconds = seen["p50_seconds"]
        self.p99_seconds = seen["p99_seconds"]


def in_turn(programs, n_rounds, load):
    """Loads the programs one after the other, every second round in the opposite order."""
    rounds = {each.name: [] for each in programs}
    for number in range(n_rounds):
        for program in programs if number % 2 == 0 else reversed(programs):
            rounds[program.name].append(load(program))
    return rounds


def load_pushes(program, effort, folder):
    """Loads with one-record pushes; the steps go on where the last round ended."""
    heads, bodies = [], []
    for rank in range(N_RANKS):
        line, content_type = program.push_head(rank)
        body = program.push_body(rank)
        length = len(body % figures(rank, 0))
        heads.append(
            f"{line}\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"
        )
        bodies.append(body)
    # A JSON string of printable ASCII is a Lua string too.
    script = LUA % {
        "heads": ", ".join(map(json.dumps, heads)),
        "bodies": ", ".join(map(json.dumps, bodies)),
        "n_ranks": N_RANKS,
        "leaking_rank": LEAKING_RANK,
    }
    first_step = getattr(program, "next_step", 0)
    seen = wrk(program, program.push_port, "/", script, effort, folder, str(first_step))
    program.next_step = first_step + seen.n_requests // N_RANKS + N_CONNECTIONS
    return seen


def load_scrapes(program, effort, folder):
    return wrk(program, program.web_port, "/metrics", "", effort, folder)


def wrk(program, port, path, script, effort, folder, *arguments):
    """Runs wrk for one round against a program that must outlive it."""
    script_path = os.path.join(folder, "wrk.lua")
    with open(script_path, "w") as out:
        out.write(script + LUA_DONE)
    argv = ["wrk", "-t1", f"-c{N_CONNECTIONS}", f"-d{effort.wrk_seconds}s", "--latency", "-s", script_path]
    argv += [f"http://127.0.0.1:{port}{path}", "--", *arguments]
    with Child(argv, os.path.join(folder, "wrk.log"), stdout=subprocess.PIPE) as child:
        try:
            output, _ = child.process.communicate(timeout=effort.wrk_seconds + REQUEST_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise Failure(f"wrk against {program.name} did not end in time") from None
    lines = [line for line in output.decode().splitlines() if line.startswith("{")]
    if child.process.returncode != 0 or not lines:
        raise Failure(f"wrk against {program.name}: {output.decode()}{child.log_tail()}")
    if program.child.has_ended():
        raise Failure(f"{program.name} ended under load:\n{program.child.log_tail()}")
    seen = Round(json.loads(lines[-1]))
    if not seen.n_requests or seen.n_errors == seen.n_requests:
        raise Failure(f"{program.name} refused every request of {path}")
    return seen


# --- the other measures ---


def scrape_alone(port, n_scrapes, headers):
    """Times scrapes one after the other on a kept-alive connection; returns (seconds, bytes of one)."""
    scraper = Scraper(port, headers)
    seconds = []
    for _ in range(n_scrapes):
        begin = time.perf_counter()
        n_bytes = scraper.scrape()
        seconds.append(time.perf_counter() - begin)
    scraper.close()
    return seconds, n_bytes


class Scraper:
    """GET /metrics on one kept-alive connection, with as little Python around it as will do."""

    def __init__(self, port, headers):
        self.request = f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode()
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=REQUEST_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def scrape(self):
        """One scrape; returns the length of its answer."""
        self.socket.sendall(self.request)
        answer = self.more()
        while b"\r\n\r\n" not in answer:
            answer += self.more()
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise Failure(f"/metrics answered {head.splitlines()[0].decode(errors='replace')}")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if length:
            while len(body) < int(length[1]):
                body += self.more()
        else:
            while not body.endswith(b"0\r\n\r\n"):  # chunked
                body += self.more()
        return len(body)

    def more(self):
        more = self.socket.recv(1 << 18)
        if not more:
            raise Failure("the connection was closed in the middle of a scrape")
        return more

    def close(self):
        self.socket.close()


def cold_start(program, n_starts):
    """Seconds from the start of the process to its first successful scrape, for each start."""
    seconds = []
    for _ in range(n_starts):
        ports = free_ports(program.n_ports)
        begin = time.perf_counter()
        with Child(program.argv(*ports), program.log_path) as child:
            while True:
                try:
                    get(ports[0], "/metrics")
                    break
                except OSError:
                    if child.has_ended() or time.perf_counter() - begin > REQUEST_SECONDS_MAX:
                        raise Failure(f"{program.name} did not start:\n{child.log_tail()}") from None
            seconds.append(time.perf_counter() - begin)
    return seconds


def idle_cpu(programs, seconds):
    """Share of a core that each program uses while all are scraped once a second."""
    scrapers = [Scraper(each.web_port, AS_PROMETHEUS) for each in programs]
    for scraper in scrapers:
        scraper.scrape()
    before = {each.name: cpu_seconds(each.child.pid) for each in programs}
    begin = time.monotonic()
    for tick in range(1, seconds + 1):
        for scraper in scrapers:
            scraper.scrape()
        time.sleep(max(0.0, begin + tick - time.monotonic()))  # the pace, not a wait for something
    elapsed = time.monotonic() - begin
    for scraper in scrapers:
        scraper.close()
    return {each.name: (cpu_seconds(each.child.pid) - before[each.name]) / elapsed for each in programs}


def memory_after_steps(stepmem, n_steps):
    """(VmRSS after the steps, VmRSS after as many more, VmHWM) of a fresh stepmem, in bytes."""
    stepmem.start()
    try:
        stepmem.push_steps(0, n_steps)
        first = memory_bytes(stepmem.child.pid)["VmRSS"]
        stepmem.push_steps(n_steps, 2 * n_steps)
        last = memory_bytes(stepmem.child.pid)
        return first, last["VmRSS"], last["VmHWM"]
    finally:
        stepmem.stop()


def nvml_cost(program, seconds):
    """(VmRSS with the devices read and ranks that push, VmHWM, share of a core of the threads that ask NVML)."""
    program.start()
    try:
        told = lambda: f"{program.n_processes()} of {N_PROCESSES} processes are shown:\n{program.child.log_tail()}"
        wait_until(lambda: program.n_processes() == N_PROCESSES, REQUEST_SECONDS_MAX, told)
        program.push_steps(0, FILL_STEPS)
        before, begin = nvml_cpu_seconds(program.child.pid), time.monotonic()
        for tick in range(1, seconds + 1):
            get(program.web_port, "/metrics")
            time.sleep(max(0.0, begin + tick - time.monotonic()))  # the pace, not a wait for something
        ratio = (nvml_cpu_seconds(program.child.pid) - before) / (time.monotonic() - begin)
        memory = memory_bytes(program.child.pid)
        return memory["VmRSS"], memory["VmHWM"], ratio
    finally:
        program.stop()


def nvml_cpu_seconds(pid):
    """CPU time of the threads that ask NVML."""
    tasks = [f"/proc/{pid}/task/{task}" for task in os.listdir(f"/proc/{pid}/task")]
    asking = [task for task in tasks if read(f"{task}/comm").startswith("nvml")]
    return sum(int(read(f"{task}/schedstat").split()[0]) for task in asking) / 1e9


def memory_bytes(pid):
    """VmRSS and VmHWM from /proc/PID/status."""
    with open(f"/proc/{pid}/status") as lines:
        fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM")}


def cpu_seconds(pid):
    """CPU time of a process.

    The scheduler's own nanoseconds over all threads where the kernel has them (no thread may end on the
    way), for utime + stime count in steps of 10 ms, a quarter of what the target allows in 20 s.
    """
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return sum(int(read(f"/proc/{pid}/task/{task}/schedstat").split()[0]) for task in tasks) / 1e9
    except FileNotFoundError:
        fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read(path):
    with open(path) as file:
        return file.read()


def get(port, path):
    """GET on a connection of its own; raises OSError while nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS_MAX)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise Failure(f"GET {path} answered {answer.status}: {body[:200].decode(errors='replace')}")
    return body


def post(port, path, content_type, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS_MAX)
    connection.request("POST", path, body.encode(), {"Content-Type": content_type})
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    connection.close()
    if answer.status >= 300:
        raise Failure(f"POST {path} answered {answer.status}: {text}")


# --- the table ---


class Table:
    """Collects rows: a measure, its figure for each program, the ratio to Pushgateway's, target, verdict."""

    HEAD = ["", "stepmem", "pushgateway", "node-exporter", "ratio*", "target", ""]

    def __init__(self):
        self.rows = []

    def row(self, measure, figures, show, target="", passed=None):
        ours, theirs = figures.get("stepmem"), figures.get("pushgateway")
        ratio = f"{ours / theirs:.2f}" if ours and theirs else ""
        shown = [show(figures[name]) if name in figures else "" for name in self.HEAD[1:4]]
        verdict = "" if passed is None else "PASS" if passed else "MISS"
        self.rows.append([measure, *shown, ratio, target, verdict])

    def load(self, what, rounds, ratio_min, p99_seconds_max):
        """Rows of one kind of wrk load: medians over the rounds, errors added up."""

        def median(figure):
            return {name: statistics.median(figure(each) for each in of) for name, of in rounds.items()}

        plural = {"push": "pushes", "scrape": "scrapes"}[what]
        rates = median(lambda each: each.rate)
        if ratio_min:
            is_fast = rates["stepmem"] >= ratio_min * rates["pushgateway"]
            self.row(f"{plural}/s, {N_CONNECTIONS} connections", rates, count, f">= {ratio_min:g} x", is_fast)
        else:
            self.row(f"{plural}/s, {N_CONNECTIONS} connections", rates, count)
        self.row("  p50", median(lambda each: each.p50_seconds), milliseconds)
        p99 = median(lambda each: each.p99_seconds)
        if p99_seconds_max:
            is_quick = p99["stepmem"] <= p99_seconds_max
            self.row("  p99", p99, milliseconds, f"<= {milliseconds(p99_seconds_max)}", is_quick)
        else:
            self.row("  p99", p99, milliseconds)
        errors = {name: sum(each.n_errors for each in of) for name, of in rounds.items()}
        self.row("  errors", errors, count, "0", errors["stepmem"] == 0)

    def scrapes_alone(self, label, alone):
        p50 = {name: percentile(each[0], 50) for name, each in alone.items()}
        self.row(f"scrape alone, {label}, p50", p50, milliseconds)
        p99 = {name: percentile(each[0], 99) for name, each in alone.items()}
        is_quick = p99["stepmem"] <= SCRAPE_P99_SECONDS_MAX
        self.row("  p99", p99, milliseconds, f"<= {milliseconds(SCRAPE_P99_SECONDS_MAX)}", is_quick)
        self.row("  bytes", {name: each[1] for name, each in alone.items()}, count)

    def rss(self, measure, programs):
        memory = {each.name: memory_bytes(each.child.pid) for each in programs}
        self.row(measure, {name: each["VmRSS"] for name, each in memory.items()}, mebibytes)
        self.row("  peak", {name: each["VmHWM"] for name, each in memory.items()}, mebibytes)

    def memory(self, n_steps, first, last, peak):
        label = f"RSS, {N_RANKS} ranks, {n_steps:,} steps each"
        self.row(label, {"stepmem": first}, mebibytes, f"<= {mebibytes(RSS_BYTES_MAX)}", first <= RSS_BYTES_MAX)
        growth = last - first
        is_flat = growth <= RSS_GROWTH_BYTES_MAX
        target = f"<= {mebibytes(RSS_GROWTH_BYTES_MAX)}"
        self.row("  growth over as many more", {"stepmem": growth}, mebibytes, target, is_flat)
        self.row("  peak", {"stepmem": peak}, mebibytes)

    def nvml(self, resident, peak, ratio):
        label = f"RSS with NVML, {N_DEVICES} devices, {N_PROCESSES} processes"
        self.row(label, {"stepmem": resident}, mebibytes, f"<= {mebibytes(RSS_BYTES_MAX)}", resident <= RSS_BYTES_MAX)
        self.row("  peak", {"stepmem": peak}, mebibytes)
        is_cheap = ratio <= POLL_CPU_RATIO_MAX
        target = f"<= {percent(POLL_CPU_RATIO_MAX)}"
        self.row("  CPU of a core, polling at 1 Hz", {"stepmem": ratio}, fine_percent, target, is_cheap)

    def idle_cpu(self, seconds, ratios):
        is_idle = ratios["stepmem"] <= IDLE_CPU_RATIO_MAX
        label = f"CPU of a core, scraped at 1 Hz, {seconds} s"
        self.row(label, ratios, percent, f"<= {percent(IDLE_CPU_RATIO_MAX)}", is_idle)

    def cold_start(self, seconds):
        medians = {name: statistics.median(each) for name, each in seconds.items()}
        is_quick = medians["stepmem"] <= COLD_START_SECONDS_MAX
        self.row("start to first scrape", medians, milliseconds, f"<= {milliseconds(COLD_START_SECONDS_MAX)}", is_quick)

    def text(self):
        rows = [self.HEAD, *self.rows]
        widths = [max(len(row[column]) for row in rows) for column in range(len(self.HEAD))]
        lines = [
            "  ".join(
                cell.ljust(width) if column in (0, 6) else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths))
            ).rstrip()
            for row in rows
        ]
        lines.insert(1, "-" * max(map(len, lines)))
        return "\n".join([*lines, "", "* stepmem's figure / Pushgateway's"])


def percentile(values, percent_below):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent_below // 100)]


def count(value):
    return f"{value:,.0f}"


def milliseconds(seconds):
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.01 else f"{seconds * 1e3:.0f} ms"


def mebibytes(n_bytes):
    return f"{n_bytes / (1 << 20):.2f} MiB"


def fine_percent(ratio):
    return f"{ratio * 100:.3f} %"


def percent(ratio):
    return f"{ratio * 100:.2f} %"


if __name__ == "__main__":
    main()

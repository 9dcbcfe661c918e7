"""Load with wrk: pushes and scrapes on many connections."""

import json
import os
import subprocess

from child import Child, Failure
from job import LEAKING_RANK, N_RANKS, figures
from process import cpu_seconds
from web import REQUEST_SECONDS_MAX

N_CONNECTIONS = 8

PUSH = r"""
-- A push each call: the ranks in turn, the step rising. Padding keeps Content-Length constant.
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
   return heads[rank + 1] .. string.format(bodies[rank + 1], step, allocated,
      allocated + 4294967296, allocated + 6442450944, allocated + 8589934592, 268435456)
end
"""

REPORT = r"""
function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      '\n{"requests": %d, "refused": %d, "failed": %d, "seconds": %f, ' ..
      '"p50_seconds": %f, "p99_seconds": %f}\n',
      summary.requests, errors.status,
      errors.connect + errors.read + errors.write + errors.timeout,
      summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6))
end
"""


def in_turn(programs, n_rounds, load):
    """Loads the programs one after the other, every second round in the opposite order."""
    rounds = {each.name: [] for each in programs}
    for number in range(n_rounds):
        for program in programs if number % 2 == 0 else reversed(programs):
            rounds[program.name].append(load(program))
    return rounds


class Round:
    """The figures of one round of wrk. `cpu_seconds`: processor time of the program for a request."""

    def __init__(self, seen, cpu_seconds):
        self.n_requests = seen["requests"]
        self.n_errors = seen["refused"] + seen["failed"]
        self.rate = (seen["requests"] - seen["refused"]) / seen["seconds"]
        self.p50_seconds = seen["p50_seconds"]
        self.p99_seconds = seen["p99_seconds"]
        self.cpu_seconds = cpu_seconds / max(1, seen["requests"])


class Wrk:
    """Runs wrk for rounds of so many seconds."""

    def __init__(self, seconds, folder):
        self.seconds = seconds
        self.script_path = os.path.join(folder, "wrk.lua")
        self.log_path = os.path.join(folder, "wrk.log")

    def load_pushes(self, program):
        """Loads with one-record pushes; the steps go on where the last round ended."""
        url = f"http://127.0.0.1:{program.push_port}/"
        seen = self.round(program, url, push_script(program), str(program.next_step))
        program.next_step += seen.n_requests // N_RANKS + N_CONNECTIONS
        return seen

    def load_scrapes(self, program):
        return self.round(program, f"http://127.0.0.1:{program.web_port}/metrics", "")

    def round(self, program, url, script, *arguments):
        """One round against a program that must outlive it."""
        before = cpu_seconds(program.child.pid)
        output = self.run(program, url, script, *arguments)
        if program.child.has_ended():
            raise Failure(f"{program.name} ended under load:\n{program.child.log_tail()}")
        seen = Round(output, cpu_seconds(program.child.pid) - before)
        if not seen.n_requests or seen.n_errors == seen.n_requests:
            raise Failure(f"{program.name} refused every request to {url}")
        return seen

    def run(self, program, url, script, *arguments):
        """Runs wrk with a Lua script; returns what `done` reported."""
        with open(self.script_path, "w") as out:
            out.write(script + REPORT)
        options = ["-t1", f"-c{N_CONNECTIONS}", f"-d{self.seconds}s", "--latency"]
        argv = ["wrk", *options, "-s", self.script_path, url, "--", *arguments]
        with Child(argv, self.log_path, stdout=subprocess.PIPE) as child:
            try:
                timeout = self.seconds + REQUEST_SECONDS_MAX
                output = child.process.communicate(timeout=timeout)[0].decode()
            except subprocess.TimeoutExpired:
                raise Failure(f"wrk against {program.name} did not end in time") from None
        reports = [line for line in output.splitlines() if line.startswith("{")]
        if child.process.returncode != 0 or not reports:
            raise Failure(f"wrk against {program.name}: {output}{child.log_tail()}")
        return json.loads(reports[-1])


def push_script(program):
    heads, bodies = [], []
    for rank in range(N_RANKS):
        body = program.push_body(rank)
        heads.append(push_head(program, rank, len(body % figures(rank, 0))))
        bodies.append(body)
    return PUSH % {
        "heads": lua_strings(heads),
        "bodies": lua_strings(bodies),
        "n_ranks": N_RANKS,
        "leaking_rank": LEAKING_RANK,
    }


def push_head(program, rank, n_bytes):
    return (
        f"POST {program.push_path(rank)} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: {program.push_content_type}\r\nContent-Length: {n_bytes}\r\n\r\n"
    )


def lua_strings(texts):
    """A JSON string of printable ASCII is a Lua string too."""
    return ", ".join(map(json.dumps, texts))

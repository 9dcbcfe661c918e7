#!/usr/bin/env python3
"""Gives a command what the client would push of a job if its steps were short, so that one of STRIDE is read.

    tests/creep/bars.py target/creep/jobs public 0-2 -- python3 tests/creep/paced.py STRIDE stepmem replay -

Reads pushes and device readings on standard input. The client's own constants say which steps are read; the sender's thread
chooses anew after each CHOICE_STEPS.
"""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"))

from stepmem._pacing import Growth
from stepmem._process import SCATTER, SCATTERED
from stepmem._readers import UNKNOWN, Capacity

CHOICE_STEPS = 100  # a second of steps of 10 ms
RESTART_SECONDS = 600.0  # after a pause as long as this, or a step that comes again, a process has begun anew
PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes")


class Process:
    """What the client of one process has seen of its steps."""

    def __init__(self):
        self.n_steps, self.n_unread, self.read_below = 0, 0, SCATTERED
        self.growth, self.capacity = Growth(), Capacity(UNKNOWN, UNKNOWN)
        self.peaks = dict.fromkeys(PEAKS, 0)
        self.step, self.time = -1, float("inf")

    def pushed(self, record, stride):
        """The record that the client pushes at this step's end; None where the step is not read."""
        is_step = "phase" not in record
        self.step, self.time = record["step"], record["time"]
        self.n_steps += is_step
        self.n_unread += is_step
        for name in PEAKS:
            self.peaks[name] = max(self.peaks[name], record.get(name, 0))
        is_read = not is_step or self.n_steps * SCATTER % SCATTERED < self.read_below
        if is_read:
            record.update(self.peaks)
            self.peaks = dict.fromkeys(PEAKS, 0)
            if is_step:
                self.note(record)
        if self.n_steps % CHOICE_STEPS == 0:
            self.read_below = SCATTERED if self.n_steps < self.growth.reads_all_until else SCATTERED // stride
        return record if is_read else None

    def note(self, record):
        if self.n_unread > 1:
            record["steps"] = self.n_unread
        self.n_unread = 0
        if "total_bytes" in record:
            self.capacity = Capacity(record["total_bytes"], record.get("free_bytes", UNKNOWN))
        reserved = record["reserved_bytes"]
        self.growth.note(self.n_steps, (record["allocated_bytes"], reserved, self.capacity.room(reserved)))


def main():
    stride, command = int(sys.argv[1]), sys.argv[2:]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1 << 20)
    processes = {}
    for line in sys.stdin:
        record = json.loads(line)
        if "nvml" not in record:
            process = processes.get(record["rank"])
            if process is None or record["step"] < process.step or record["time"] > process.time + RESTART_SECONDS:
                process = processes[record["rank"]] = Process()
            record = process.pushed(record, stride)
        if record is not None:
            reader.stdin.write(json.dumps(record, separators=(",", ":")) + "\n")
    reader.stdin.close()
    sys.exit(reader.wait())


if __name__ == "__main__":
    main()

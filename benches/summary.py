#!/usr/bin/env python3
"""Measures `stepmem summary` on a stream of 1,024 ranks x 100,000 steps: time, and the most resident memory.

Usage: benches/summary.py BINARY [RANKS [STEPS [free]]]

The stream is generated while it is read and never stored; one rank leaks. With `free` the ranks push free_bytes too, so
that memory outside the allocator is judged as well. Prints a line of figures, and the card.
"""

import os
import subprocess
import sys
import threading
import time

BINARY = sys.argv[1]
RANKS = int(sys.argv[2]) if len(sys.argv) > 2 else 1024
STEPS = int(sys.argv[3]) if len(sys.argv) > 3 else 100_000
WITH_FREE = sys.argv[4:] == ["free"]
GIB = 1 << 30
LEAK_BYTES_PER_STEP = 200_000


def write(pipe):
    # One template per step of all ranks; only the values that change are replaced.
    lines = []
    free = b',"free_bytes":%d' % (17 * GIB) if WITH_FREE else b""
    for rank in range(RANKS):
        live = b"@LEAK@" if rank == 7 else b"%d" % (30 * GIB + rank)
        lines.append(
            b'{"rank":%d,"step":@STEP@,"time":@TIME@,"allocated_bytes":%s,"peak_allocated_bytes":%d,'
            b'"reserved_bytes":%d,"total_bytes":%d%s}\n' % (rank, live, 60 * GIB, 62 * GIB, 80 * GIB, free)
        )
    template = b"".join(lines)
    with pipe:
        for step in range(1, STEPS + 1):
            text = template.replace(b"@STEP@", b"%d" % step).replace(b"@TIME@", b"%d" % (1_764_000_000 + step))
            pipe.write(text.replace(b"@LEAK@", b"%d" % (30 * GIB + LEAK_BYTES_PER_STEP * step)))


def main():
    began = time.monotonic()
    process = subprocess.Popen([BINARY, "summary", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    writer = threading.Thread(target=write, args=(process.stdin,))
    writer.start()
    card = process.stdout.read().decode()
    writer.join()
    _, status, usage = os.wait4(process.pid, 0)
    took = time.monotonic() - began
    records = RANKS * STEPS
    print(
        f"{RANKS} ranks x {STEPS} steps = {records} records: {took:.0f} s, of which the summary used "
        f"{usage.ru_utime + usage.ru_stime:.0f} s of processor time "
        f"({1e6 * (usage.ru_utime + usage.ru_stime) / records:.2f} us a record), "
        f"at most {usage.ru_maxrss / 1024:.1f} MiB resident, exit {os.waitstatus_to_exitcode(status)}"
    )
    print(card)


main()

"""Leaks through the real client for 1200 steps, and ends."""

import resource
import time

import stepmem

resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
kept = []
for step in range(1, 1201):
    with stepmem.step(step):
        kept.append(bytearray(b"\1") * (256 << 10))
        time.sleep(0.01)

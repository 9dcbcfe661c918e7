"""Leaks through the real client until it is stopped: 256 KiB a step of at most 1 GiB."""

import resource
import time

import stepmem

resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
kept, step = [], 0
while True:
    step += 1
    with stepmem.step(step):
        kept.append(bytearray(b"\1") * (256 << 10))
        time.sleep(0.02)
    if step == 3600:  # near the limit: hold what there is
        time.sleep(3600)

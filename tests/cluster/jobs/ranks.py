"""Trains slowly through the real client until it is stopped."""

import time

import stepmem

step = 0
while True:
    step += 1
    with stepmem.step(step):
        kept = bytearray(1 << 16)
        time.sleep(0.1)

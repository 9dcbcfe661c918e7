"""Trains 30 steps through the real client, and ends."""

import time

import stepmem

kept = []
for step in range(1, 31):
    with stepmem.step(step):
        kept = [bytearray(1 << 16)]
        time.sleep(0.02)
print("trained")

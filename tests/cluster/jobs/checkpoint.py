"""Trains to step 300 and fails; restarted, it goes on from its checkpoint at 250 and keeps training."""

import pathlib
import time

import stepmem

checkpoint = pathlib.Path("/checkpoints/step")
first = int(checkpoint.read_text()) if checkpoint.exists() else 1
step = first
while True:
    with stepmem.step(step):
        kept = bytearray(1 << 16)
        time.sleep(0.01)
    if step == 250:
        checkpoint.write_text("251")
    if step == 300 and first == 1:
        raise SystemExit("the node's GPU fell off the bus")
    step += 1

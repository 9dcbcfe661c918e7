"""Pushes five steps through the real client and dies of a MemoryError at once."""

import resource

import stepmem

resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
for step in range(1, 6):
    with stepmem.step(step):
        kept = bytearray(b"\1") * (64 << 20)
kept = bytearray(2 << 30)

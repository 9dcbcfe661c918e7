"""The simulated job: its size, and the figures of each of its steps."""

N_RANKS = 8
N_DEVICES = 8
N_PROCESSES = 64
LEAKING_RANK = 3
DEVICE_BYTES = 80 << 30

BYTES_FIELDS = [
    "allocated_bytes",
    "peak_allocated_bytes",
    "reserved_bytes",
    "peak_reserved_bytes",
    "inactive_split_bytes",
]


def uuid(idx):
    return f"GPU-00000000-0000-0000-0000-{idx:012}"


def figures(rank, step):
    """Step and BYTES_FIELDS of a record: noise up to 4 MiB, 64 KiB a step on the leaking rank."""
    noise = (step * 2_654_435_761 + rank * 40_503) % 1024 * 4096
    leaked = step * 65_536 if rank == LEAKING_RANK else 0
    allocated = (40 << 30) + noise + leaked
    peak_allocated = allocated + (4 << 30)
    reserved = allocated + (6 << 30)
    peak_reserved = allocated + (8 << 30)
    inactive_split = 1 << 28
    return step, allocated, peak_allocated, reserved, peak_reserved, inactive_split

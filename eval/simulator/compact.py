"""Jobs in the compact form that a runner reads: 36 bytes a record, and nothing to parse.

A file is one line of text, "NAME RANKS TOTAL_BYTES", and rows in order of arrival, little-endian: kind u8 (0 a record, 1 a reading of NVML), rank u8,
evaluation u8, padding u8, step u32, time f64; then of a record allocated, peak allocated, reserved and peak reserved, u32 in units of 512 bytes, and the
number of live blocks, u32, 0xFFFFFFFF where it is unknown; of a reading the bytes used on the device and by the rank's process, u64, and padding u32.
"""
import numpy as np

UNIT = 512
BLOCKS_UNKNOWN = 0xFFFFFFFF
RECORD = np.dtype([("kind", "u1"), ("rank", "u1"), ("evaluation", "u1"), ("padding", "u1"), ("step", "<u4"), ("time", "<f8"),
                   ("allocated", "<u4"), ("peak_allocated", "<u4"), ("reserved", "<u4"), ("peak_reserved", "<u4"), ("blocks", "<u4")])
READING = np.dtype([("kind", "u1"), ("rank", "u1"), ("evaluation", "u1"), ("padding", "u1"), ("step", "<u4"), ("time", "<f8"),
                    ("device_used", "<u8"), ("process_used", "<u8"), ("padding_at_end", "<u4")])
FIGURES = ("allocated", "peak_allocated", "reserved", "peak_reserved")


def readings(rank, times, device_used, process_used):
    """Rows of readings."""
    rows = np.zeros(len(times), READING)
    rows["kind"], rows["rank"], rows["time"] = 1, rank, times
    rows["device_used"], rows["process_used"] = device_used, process_used
    return rows


def rows_of(job):
    """All rows of a simulated job. Readings after a rank's last record are left out."""
    rows, keys = [], []
    for rank in range(job.world):
        pushes = job.pushes(rank)
        times = pushes["time"]
        records = np.zeros(len(times), RECORD)
        records["rank"], records["step"], records["time"] = rank, pushes["step"], times
        records["evaluation"] = pushes["phase"] != 0
        for name in FIGURES:
            records[name] = -(-pushes[name] // UNIT)
        records["blocks"] = pushes.get("blocks", BLOCKS_UNKNOWN)
        arrival = np.maximum.accumulate(times + job.truth["straggle"][rank]) if len(times) else times
        rows.append(records)
        keys.append((np.arange(len(times)), np.full(len(times), rank), arrival))
        at, used, process = (column[job.nvml[rank][0] <= (times[-1] if len(times) else -np.inf)] for column in job.nvml[rank])
        rows.append(readings(rank, at, used, process).view(RECORD))
        keys.append((np.full(len(at), -1), np.full(len(at), rank), at))
    order = np.lexsort([np.concatenate(key) for key in zip(*keys)])
    return np.concatenate(rows)[order]


def write(path, name, n_ranks, total_bytes, rows):
    with open(path, "wb") as file:
        file.write(f"{name} {n_ranks} {int(total_bytes)}\n".encode())
        rows.tofile(file)


def read(path):
    """A file's name, number of ranks, total bytes, records and readings."""
    with open(path, "rb") as file:
        name, n_ranks, total_bytes = file.readline().decode().split()
        rows = np.fromfile(file, RECORD)
    is_reading = rows["kind"] == 1
    return name, int(n_ranks), int(total_bytes), rows[~is_reading], rows[is_reading].view(READING)

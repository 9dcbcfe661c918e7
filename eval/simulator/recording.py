"""A simulated job as a recording, JSON lines that `stepmem replay` and `stepmem explain` read.

    cd eval && python -m simulator.recording FAMILY SEED > job.jsonl
"""
import heapq
import sys

import numpy as np

from .families import DEV
from .job import make_job

DRIVER_BYTES, SMALL_BYTES = 300 << 20, 100 << 20


def record_lines(job, rank):
    """(arrival, rank, number, line) of each push of a rank."""
    pushes = job.pushes(rank)
    times = pushes["time"]
    arrival = np.maximum.accumulate(times + job.truth["straggle"][rank]) if len(times) else times
    head = (f'{{"run":"{job.family}-{job.seed}","rank":{rank},"world_size":{job.world},"device":"GPU-{rank}","pid":{1000 + rank},'
            f'"total_bytes":{job.total},"step":')
    figures = (pushes[name].astype(np.int64).tolist() for name in ("allocated", "peak_allocated", "reserved", "peak_reserved", "blocks"))
    rows = zip(arrival.tolist(), pushes["step"].tolist(), times.tolist(), *figures, pushes["phase"].tolist())
    for number, (at, step, time, allocated, peak, reserved, peak_reserved, blocks, phase) in enumerate(rows):
        yield at, rank, number, (f'{head}{step},"time":{time:.3f},"allocated_bytes":{allocated},"peak_allocated_bytes":{peak},'
                                 f'"reserved_bytes":{reserved},"peak_reserved_bytes":{peak_reserved},"live_blocks":{blocks}'
                                 + (',"phase":"eval"}\n' if phase else "}\n"))


def reading_lines(job, rank):
    """(time, rank, -1, line) of each reading of a rank's device, until its last push."""
    times = job.pushes(rank)["time"]
    end = times[-1] if len(times) else -np.inf
    for time, used, process in zip(*job.nvml[rank]):
        if time > end:
            break
        processes = f'{{"pid":{1000 + rank},"used_bytes":{int(process)}}}'
        other = int(used - process)
        if other > DRIVER_BYTES + SMALL_BYTES:
            processes += f',{{"pid":{9000 + rank},"used_bytes":{other - DRIVER_BYTES}}}'
        yield float(time), rank, -1, (f'{{"nvml":true,"time":{time:.3f},"device":"GPU-{rank}","used_bytes":{int(used)},'
                                      f'"total_bytes":{job.total},"processes":[{processes}]}}\n')


def lines(job):
    """All lines of a job in order of arrival."""
    parts = [record_lines(job, rank) for rank in range(job.world)] + [reading_lines(job, rank) for rank in range(job.world)]
    for *_, line in heapq.merge(*parts, key=lambda part: part[:3]):
        yield line


if __name__ == "__main__":
    family, seed = sys.argv[1:]
    sys.stdout.writelines(lines(make_job(DEV, family, int(seed))))

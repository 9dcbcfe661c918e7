"""Writes frame.csv, index.csv and frame.jsonl: a device that leaks 4.8 GiB an hour next to one that does not, read every minute, as pandas writes it."""
import random

import pandas

START = "2026-11-20 07:00:00"
SAMPLES = 180

random.seed(7)
times = pandas.date_range(START, periods=SAMPLES, freq="60s", tz="UTC")
rows = []
for n, time in enumerate(times):
    for gpu in (0, 1):
        mib = 20480 + (82 * n if gpu else 0) + random.randrange(16)
        used = None if (n, gpu) == (60, 0) else mib
        rows.append({"time": time, "gpu": gpu, "memory_used_mib": used, "memory_total_mib": 81920, "loss": 1 / (1 + n)})
frame = pandas.DataFrame(rows)
frame.to_csv("frame.csv")  # with the index, a column without a name
frame.to_json("frame.jsonl", orient="records", lines=True, date_format="epoch")  # times in milliseconds, an absent figure as null
wide = frame.pivot(index="time", columns="gpu", values="memory_used_mib").add_prefix("gpu.memory_used_mib.")
wide.to_csv("index.csv", sep=";", date_format="%Y-%m-%dT%H:%M:%S.%f%z")

"""Series of real jobs: reads them, and writes them as jobs of one process that NVML reads."""
import gzip
import json
from pathlib import Path

from simulator import compact

FOLDER = Path(__file__).parent / "series"
N_SERIES = 291
# Host memory has no capacity. With this one, a leak has used up the free memory at its end.
HOST_CAPACITY_PER_PEAK = 1.1


def load_all():
    """All series, by their names."""
    paths = sorted(FOLDER.glob("*.json.gz"))
    if len(paths) != N_SERIES:
        raise FileNotFoundError(f"{FOLDER} has {len(paths)} of {N_SERIES} series")
    return {path.name.removesuffix(".json.gz"): json.loads(gzip.decompress(path.read_bytes())) for path in paths}


def is_host(series):
    return series["meta"]["figure"] == "host_rss"


def total_bytes(series):
    known = None if is_host(series) else series["meta"].get("total")
    return int(max(known or HOST_CAPACITY_PER_PEAK * max(series["v"]), max(series["v"])))


def write(path, series):
    """Writes a series as a compact job file."""
    times = [series["t0"] + t for t in series["t"]]
    used = [int(value) for value in series["v"]]
    compact.write(path, series["meta"]["id"], 1, total_bytes(series), compact.readings(0, times, used, used))

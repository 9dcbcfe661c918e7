"""Leaks added to real series: growth in segments from the 20th minute on, which fills the free memory at the last reading."""
START_SECONDS = 1200.0
LENGTH_SECONDS_MIN = 3600.0
SEGMENT_BYTES = 20 << 20
# A series must leave a tenth of its peak free.
CAPACITY_PER_PEAK_MIN = 1.1


def with_leak(series):
    """The series with a leak, or None where it is too short, has no room, is not of one process, or may leak by itself."""
    meta, total, peak, end = series["meta"], series["meta"].get("total"), max(series["v"]), series["t"][-1]
    if not meta["figure"].startswith("process_") or meta["truth"] not in ("healthy", "unknown"):
        return None
    if not total or total < CAPACITY_PER_PEAK_MIN * peak or end < LENGTH_SECONDS_MIN:
        return None
    grown = (max(0.0, (t - START_SECONDS) / (end - START_SECONDS)) * (total - peak) for t in series["t"])
    values = [min(total, value + int(growth / SEGMENT_BYTES) * SEGMENT_BYTES) for value, growth in zip(series["v"], grown)]
    return {**series, "v": values}


def delay(series, page_time):
    """When a page comes, as a share of the time from the leak's start to its end. Negative before the leak."""
    return (page_time - series["t0"] - START_SECONDS) / (series["t"][-1] - START_SECONDS)

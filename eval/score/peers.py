"""Other detectors as runners: they read job files' paths and print transitions.

    python -m score.peers traceml-live     paths on standard input
    eval/run.sh --sets peers               the comparison of docs/detector/evaluation.md

traceml-live, traceml-summary: the step-memory diagnosis of TraceML 0.3.6 (PyPI: traceml-ai), evaluated every 2 s, its refresh interval; a page is its
MEMORY CREEP (warn), a CREEP_EARLY its MEMORY RISING (info). The live view uses the last 400 steps that all ranks sent, the summary the last 10,000. TraceML
writes a summary once, at the end; here it is evaluated all along, because a leak ends the process that would write it. Its other findings (HIGH PRESSURE,
IMBALANCE) are ignored, and a creep counts even if one of them holds too. The newer row of a rank and step replaces the older. With -1000 or -12000 it does not
report until that many steps are complete. Its rank is the one with the highest peak. The slope is the one that the live view prints, from both ends of the
window; the summary prints a rise between two bands, which is divided by the steps between their middles.

promql-deriv, promql-predict: a Prometheus rule on the device's used bytes, scraped with the readings (15 s) and evaluated every minute, one alert a device:

    deriv(used[30m]) > 2^20                 for: 10m    from 45 minutes after the device's first sample on
    predict_linear(free[1h], 4 * 3600) < 0  for: 10m    from 75 minutes after

The slope is the regression's, per second, times the seconds per step of the rank on that device over the same range.
"""
import json
import math
import sys

import numpy as np
from numba import njit

from simulator import compact

MEBIBYTE = 2.0**20
GIBIBYTE = 2.0**30


class Recording:
    """A job in columns, in order of arrival: the train steps, and the readings of each device. Rank N is on device N."""

    def __init__(self, path):
        _, n_ranks, total_bytes, records, readings = compact.read(path)
        train = records[records["evaluation"] == 0]
        # The clock of the reader: the newest time that has arrived.
        self.end = max(records["time"].max(initial=-math.inf), readings["time"].max(initial=-math.inf))
        self.clock = np.maximum.accumulate(records["time"])[records["evaluation"] == 0] if len(records) else train["time"]
        self.rank, self.step = train["rank"].astype(np.int64), train["step"].astype(np.int64)
        # In the order of TraceML's metrics: peak allocated, peak reserved.
        self.peaks = np.array([train[name].astype(float) * compact.UNIT for name in ("peak_allocated", "peak_reserved")])
        self.readings = {}
        for rank in range(n_ranks):
            own = readings[readings["rank"] == rank]
            used = own["device_used"].astype(float)
            if len(own):
                self.readings[rank] = np.array([own["time"], used, total_bytes - used])


class Alerts:
    """Turns the alerts that hold at each time into transitions: one that stops holding is cleared."""

    def __init__(self):
        self.held, self.transitions = {}, []

    def hold(self, time, step, found):
        """`found`: all alerts that hold now, (rank, kind, severity) -> evidence."""
        for key in [key for key in self.held if key not in found]:
            self._say(time, step, key, "cleared", self.held.pop(key))
        for key, evidence in found.items():
            if key not in self.held: self._say(time, step, key, "raised", evidence)
            self.held[key] = evidence

    def _say(self, time, step, key, state, evidence):
        rank, kind, severity = key
        self.transitions.append(dict(time=round(time, 3), step=int(step), rank=int(rank), kind=kind, state=state, severity=severity, evidence=evidence))


# ------------------------------------------------------------------------------------------------- TraceML

METRICS = "peak_allocated", "peak_reserved"
REFRESH_SECONDS = 2.0
STEPS_MIN = 50
# Early, middle and recent, as shares of a window.
BANDS = (0.15, 0.25), (0.45, 0.55), (0.90, 1.00)
# From the middle of the early band to that of the recent one.
MIDDLES_APART = (BANDS[2][0] + BANDS[2][1] - BANDS[0][0] - BANDS[0][1]) / 2
CONFIRMED_BYTES = GIBIBYTE
SCORE_BYTES = 100 * MEBIBYTE
# How many steps back the live view looks for those that all ranks sent, in windows; how many rows of a rank are kept.
SCAN_WINDOWS = 20
ROWS_KEPT = 15_000
LIVE_STEPS = 400
SUMMARY_STEPS = 10_000


@njit(cache=True)
def band_means(values, columns, means):
    """Returns whether a series rises from its early over its middle to its recent band; fills in their means."""
    n = len(columns)
    for band, (low, high) in enumerate(BANDS):
        start, stop = math.floor(n * low), math.ceil(n * high)
        total = 0.0
        for column in columns[start:stop]: total += values[column]
        means[band] = total / (stop - start)
    return means[0] < means[1] < means[2]


@njit(cache=True)
def growth(series, columns, verdict):
    """Returns the risen metric that TraceML ranks first, or -1; fills in (is confirmed, rise in bytes, score)."""
    found = -1
    worst, median = np.empty(3), np.empty(3)
    for metric in range(2):
        if not (band_means(series[metric, 0], columns, worst) and band_means(series[metric, 1], columns, median)): continue
        rise = worst[2] - worst[0]
        score = rise / SCORE_BYTES
        if worst[0] > 1e-12: score += 10.0 * rise / worst[0]
        if median[0] > 1e-12: score += 6.0 * (median[2] - median[0]) / median[0]
        is_confirmed = 1.0 if rise >= CONFIRMED_BYTES else 0.0
        if found < 0 or (is_confirmed, score) > (verdict[0], verdict[2]):
            found = metric
            verdict[0], verdict[1], verdict[2] = is_confirmed, rise, score
    return found


@njit(cache=True)
def look_on(row_rank, row_column, row_peaks, rows_at_look, steps, n_ranks, window_steps, scan_steps):
    """The result of each look: the newest common step (-1: too few), the metric (-1: none has risen), whether it is
    confirmed, its rise, the rank with the highest peak, the rise from the window's first to its last step, the
    window's length. `steps` rises; a row's column is the index of its step."""
    n_columns = len(steps)
    peaks = np.full((2, n_ranks, n_columns), -1.0)
    newest_row, n_rows = np.zeros((n_ranks, n_columns), np.int64), np.zeros(n_ranks, np.int64)
    n_sent, n_seen = np.zeros(n_columns, np.int64), 0
    # Of each step that all ranks sent: the worst and the median rank's peaks.
    series, is_common = np.zeros((2, 2, n_columns)), np.zeros(n_columns, np.bool_)
    common, n, first = np.zeros(n_columns, np.int64), 0, 0
    seen = np.zeros((len(rows_at_look), 7))
    verdict, taken = np.zeros(3), 0
    for look, n_taken in enumerate(rows_at_look):
        for row in range(taken, n_taken):
            rank, column = row_rank[row], row_column[row]
            if peaks[0, rank, column] < 0.0: n_sent[column] += 1
            if n_rows[rank] == 0:
                # A step is common only when this rank has sent it as well.
                n_seen, n, first = n_seen + 1, 0, 0
                is_common[:] = False
            peaks[:, rank, column] = row_peaks[:, row]
            n_rows[rank] += 1
            newest_row[rank, column] = n_rows[rank]
            if n_sent[column] < n_seen: continue
            for metric in range(2):
                of_ranks = np.sort(peaks[metric, :, column])[n_ranks - n_seen:]
                series[metric, 0, column] = of_ranks[-1]
                series[metric, 1, column] = (of_ranks[(n_seen - 1) // 2] + of_ranks[n_seen // 2]) / 2
            if not is_common[column]:
                is_common[column] = True
                at = n
                while at > 0 and common[at - 1] > column:
                    common[at] = common[at - 1]
                    at -= 1
                common[at] = column
                n += 1
        taken = n_taken
        while first < n and (newest_row[:, common[first]] <= n_rows - ROWS_KEPT).any(): first += 1
        start = max(first, n - window_steps)
        while scan_steps > 0 and start < n and steps[common[start]] <= steps[common[n - 1]] - scan_steps: start += 1
        window = common[start:n]
        seen[look] = -1.0
        if len(window) < STEPS_MIN: continue
        metric = growth(series, window, verdict)
        seen[look, 0], seen[look, 1] = steps[window[-1]], metric
        if metric < 0: continue
        highest, worst_rank = -1.0, 0
        for rank in range(n_ranks):
            for column in window:
                if peaks[metric, rank, column] > highest: highest, worst_rank = peaks[metric, rank, column], rank
        seen[look, 2], seen[look, 3], seen[look, 4] = verdict[0], verdict[1], worst_rank
        seen[look, 5], seen[look, 6] = series[metric, 0, window[-1]] - series[metric, 0, window[0]], len(window)
    return seen


def traceml(recording, window_steps, is_live, muted_steps=0):
    clock, alerts = recording.clock, Alerts()
    if not len(clock): return []
    ranks, row_rank = np.unique(recording.rank, return_inverse=True)
    steps, row_column = np.unique(recording.step, return_inverse=True)
    looks = np.arange(clock[0], recording.end + REFRESH_SECONDS, REFRESH_SECONDS)
    rows_at_look = np.searchsorted(clock, looks, side="right")
    scan_steps = SCAN_WINDOWS * window_steps if is_live else 0
    seen = look_on(row_rank, row_column, recording.peaks, rows_at_look, steps, len(ranks), window_steps, scan_steps)
    for time, sight in zip(looks, seen):
        step, metric, is_confirmed, rise, rank, end_to_end, n_steps = sight.tolist()
        found = {}
        if metric >= 0 and step > muted_steps:
            slope = end_to_end / (n_steps - 1) if is_live else rise / (n_steps * MIDDLES_APART)
            evidence = dict(signal=METRICS[int(metric)], growth_bytes=rise)
            # For a slope that is not positive, the live view prints the rise instead.
            if slope > 0: evidence["slope_bytes_per_step"] = slope
            kind = ("CREEP_CONFIRMED", "warning") if is_confirmed else ("CREEP_EARLY", "info")
            found = {(ranks[int(rank)], *kind): evidence}
        alerts.hold(time, step, found)
    return alerts.transitions


# ------------------------------------------------------------------------------------------------- PromQL

EVALUATE_SECONDS = 60.0
FOR_SECONDS = 600.0
DERIV_MIN_PER_SECOND = MEBIBYTE
PREDICT_SECONDS = 4 * 3600.0


def regression(times, values, at):
    """Prometheus' least squares, (slope per second, value of the line at a time); None for fewer than two samples."""
    if len(times) < 2: return None
    if (values == values[0]).all(): return 0.0, values[0]
    x = times - at
    x_mean, y_mean = x.mean(), values.mean()
    slope = ((x - x_mean) * (values - y_mean)).sum() / ((x - x_mean) ** 2).sum()
    return slope, y_mean - slope * x_mean


def deriv(times, used, free, at):
    """The evidence of `deriv(used) > 1 MiB/s`, in seconds, if it holds."""
    line = regression(times, used, times[0])
    return dict(slope=line[0]) if line and line[0] > DERIV_MIN_PER_SECOND else None


def predict(times, used, free, at):
    """The evidence of `predict_linear(free, 4 h) < 0`, in seconds, if it holds."""
    line = regression(times, free, at)
    if not line or line[0] * PREDICT_SECONDS + line[1] >= 0: return None
    return dict(slope=-line[0], eta=max(0.0, line[1] / -line[0])) if line[0] < 0 else dict(slope=0.0)


def promql(recording, expression, range_seconds, muted_seconds):
    alerts = Alerts()
    devices = sorted(recording.readings.items())
    if not devices: return []
    steps_of = {}
    for rank, _ in devices:
        own = recording.rank == rank
        steps_of[rank] = recording.clock[own], recording.step[own]
    begin = min(rows[0][0] for _, rows in devices)
    active_since = {}
    for now in np.arange(math.ceil(begin / EVALUATE_SECONDS) * EVALUATE_SECONDS, recording.end, EVALUATE_SECONDS):
        found = {}
        for rank, (times, used, free) in devices:
            # A range is open at its left end and closed at its right, as since Prometheus 3.
            part = slice(*np.searchsorted(times, (now - range_seconds, now), side="right"))
            is_muted = now - times[0] < muted_seconds
            held = None if is_muted or part.start == part.stop else expression(times[part], used[part], free[part], now)
            if held is None:
                active_since.pop(rank, None)
                continue
            if now - active_since.setdefault(rank, now) >= FOR_SECONDS:
                clock, steps = steps_of[rank]
                found[rank, "CREEP_CONFIRMED", "warning"] = promql_evidence(held, clock, steps, now, range_seconds)
        newest = max(0, np.searchsorted(recording.clock, now, side="right") - 1)
        alerts.hold(now, recording.step[newest], found)
    return alerts.transitions


def promql_evidence(held, clock, steps, now, range_seconds):
    """Seconds to steps, by the pace of the steps in the same range."""
    first, last = np.searchsorted(clock, (now - range_seconds, now), side="right")
    evidence = dict(slope_bytes_per_second=held["slope"])
    if last - first < 2 or steps[last - 1] <= steps[first]: return evidence
    seconds_per_step = (clock[last - 1] - clock[first]) / float(steps[last - 1] - steps[first])
    evidence["slope_bytes_per_step"] = held["slope"] * seconds_per_step
    if "eta" in held and seconds_per_step > 0: evidence["oom_eta_steps"] = held["eta"] / seconds_per_step
    return evidence


PEERS = {
    "traceml-live": lambda recording: traceml(recording, LIVE_STEPS, True),
    "traceml-live-1000": lambda recording: traceml(recording, LIVE_STEPS, True, 1000),
    "traceml-live-12000": lambda recording: traceml(recording, LIVE_STEPS, True, 12_000),
    "traceml-summary": lambda recording: traceml(recording, SUMMARY_STEPS, False),
    "traceml-summary-1000": lambda recording: traceml(recording, SUMMARY_STEPS, False, 1000),
    "traceml-summary-12000": lambda recording: traceml(recording, SUMMARY_STEPS, False, 12_000),
    "promql-deriv": lambda recording: promql(recording, deriv, 1800.0, 2700.0),
    "promql-predict": lambda recording: promql(recording, predict, 3600.0, 4500.0),
}


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in PEERS:
        sys.exit(f"peers: {' '.join(sys.argv[1:]) or 'no name'} is not one of {', '.join(PEERS)}")
    for path in sys.stdin.read().splitlines():
        for transition in PEERS[sys.argv[1]](Recording(path)):
            print(json.dumps(dict(job=path, **transition)))
        print(json.dumps(dict(job=path, done=1)))


if __name__ == "__main__":
    main()

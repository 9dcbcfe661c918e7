"""Compares a runner's transitions with the truth: a row for each job, and figures over all rows.

A page is a raised CREEP_CONFIRMED, FRAGMENTATION or OUTSIDE_ALLOCATOR of severity warning or critical. Pages of one job within 30 minutes of the last one
count as one, as Alertmanager would group them. A delay is a share of the time from the leak's onset to out-of-memory.
"""
import numpy as np
from scipy import stats

GROUP_SECONDS = 1800.0
PAGING = {"CREEP_CONFIRMED", "FRAGMENTATION", "OUTSIDE_ALLOCATOR"}
CONFIDENCE = 0.95


def pages(events):
    """Raised findings that page."""
    return [e for e in events if e["state"] == "raised" and e["kind"] in PAGING and e["severity"] in ("warning", "critical")]


def rising(events):
    return [e for e in events if e["state"] == "raised" and e["kind"] == "CREEP_EARLY"]


def n_grouped(events):
    """The number of notifications that pages make."""
    n, last = 0, -np.inf
    for time in sorted(e["time"] for e in events):
        n += time - last > GROUP_SECONDS
        last = time
    return n


def judge(job, events):
    """The row of a job."""
    truth = job.truth
    paged, early = pages(events), rising(events)
    row = dict(family=job.family, seed=job.seed, cls=truth["cls"], leak=truth["leak"], fatal=truth["leak"] and truth["oom"], rank_days=job.rank_days,
               pages=n_grouped(paged), rising=bool(early), found=False)
    if not truth["leak"]:
        return row
    onset = truth["onset_time"]
    row["pages_before_onset"] = n_grouped([e for e in paged if e["time"] < onset])
    row["pages_of_wrong_rank"] = n_grouped([e for e in paged if e["time"] >= onset and e["rank"] not in truth["leak_ranks"]])
    true = [e for e in paged if e["time"] >= onset and e["rank"] in truth["leak_ranks"]]
    true_early = [e for e in early if e["time"] >= onset]

    def delay(events):
        return (min(e["time"] for e in events) - onset) / max(1e-9, truth["oom_time"] - onset)

    if truth["oom"] and true_early:
        row["rising_delay"] = delay(true_early)
    if true:
        row["found"] = True
        if truth["oom"]:
            row["delay"] = delay(true)
        row.update(forecast(job, min(true, key=lambda e: e["time"])))
        row.update(time_left(job, true))
        row.update(later_forecasts(job, events))
    return row


def forecast(job, page):
    """The relative error of the slope, and whether its interval has the true one."""
    truth, evidence, found = job.truth, page.get("evidence", {}), {}
    leaked = job.leaked_by(page["rank"])
    at = min(int(np.searchsorted(job.time, page["time"])), len(leaked) - 1)
    if truth["restarts"]:
        since = int(np.searchsorted(job.time, truth["onset_time"]))
    else:
        since = int(np.searchsorted(job.step, evidence.get("onset_step", truth["onset_step"])))
    since = max(min(since, at - 1), 0)
    n_steps = int(job.step[at] - job.step[since])
    true_slope = float(leaked[at] - leaked[since]) / n_steps if n_steps > 0 else 0.0
    slope, low, high = (evidence.get(f"slope_{name}bytes_per_step") for name in ("", "lower_", "upper_"))
    if slope and true_slope > 0:
        found["slope_error"] = abs(slope / true_slope - 1)
        if low is not None and high is not None:
            found["in_interval"] = bool(low <= true_slope <= high)
            found["half_width"] = (high - low) / 2 / slope
    return found


def restarts(job):
    """The times of the last steps before the job starts again, and gives back what it holds."""
    return job.time[:-1][np.diff(job.step) < 0]


def time_left(job, paged):
    """The relative error of the time left, by the first page of the rank that runs out: when the others would have, nobody knows. Nor does anybody of what
    grew before the job started again."""
    truth = job.truth
    own = [e for e in paged if e["rank"] == truth["oom_rank"]]
    if not own or not truth["oom_step"]:
        return {}
    page = min(own, key=lambda e: e["time"])
    left = page["evidence"].get("oom_eta_steps")
    if not left or truth["oom_step"] <= page["step"] or (restarts(job) > page["time"]).any():
        return {}
    return dict(time_left_error=abs(left / (truth["oom_step"] - page["step"]) - 1))


def later_forecasts(job, events):
    """Relative errors of the time left that the paging findings give half-way from the onset to out-of-memory, and a minute before that: by each rank's
    newest outlook, and over the ranks by the first that is to run out, since that ends the job. Where the job starts again after that, nobody knows."""
    truth, found = job.truth, {}
    if not truth["oom_step"]:
        return found
    again = restarts(job)
    for name, moment in (("half", (truth["onset_time"] + truth["oom_time"]) / 2), ("last_minute", truth["oom_time"] - 60.0)):
        if (again > moment).any():
            continue
        began = max([truth["onset_time"], *again])
        newest = {}
        for event in events:
            if event["kind"] in PAGING and event["rank"] in truth["leak_ranks"] and began <= event["time"] <= moment:
                if event["state"] in ("outlook", "cleared"):
                    newest[event["rank"], event["kind"]] = event
        given = [e for e in newest.values() if e["state"] == "outlook" and e["evidence"].get("oom_eta_steps")]
        step = max((e["step"] for e in given), default=truth["oom_step"])
        if step < truth["oom_step"]:
            end = min(e["step"] + e["evidence"]["oom_eta_steps"] for e in given)
            found[f"{name}_error"] = abs((end - step) / (truth["oom_step"] - step) - 1)
    return found


def bounds(n, of):
    """The exact (Clopper and Pearson) interval of a share."""
    if not of:
        return None
    tail = (1 - CONFIDENCE) / 2
    low = stats.beta.ppf(tail, n, of - n + 1) if n else 0.0
    high = stats.beta.ppf(1 - tail, n + 1, of - n) if n < of else 1.0
    return [round(float(low), 4), round(float(high), 4)]


def count(values):
    """How many are true, of how many, and the interval of the share."""
    values = [bool(value) for value in values]
    return dict(n=sum(values), of=len(values), interval=bounds(sum(values), len(values)))


def quantiles(values):
    """Median and 90th percentile, and of how many."""
    if not values:
        return dict(p50=None, p90=None, of=0)
    return dict(p50=round(float(np.quantile(values, 0.5)), 4), p90=round(float(np.quantile(values, 0.9)), 4), of=len(values))


def figures(rows):
    """Sums over the rows. Jobs that cannot be judged either way (class `ambiguous`) have a figure of their own and are in no other."""
    healthy = [row for row in rows if row["cls"] == "healthy"]
    leaks = [row for row in rows if row["cls"] == "leak"]
    fatal = [row for row in leaks if row["fatal"]]

    def of(name):
        return [row[name] for row in fatal if name in row]

    days = sum(row["rank_days"] for row in healthy)
    return dict(
        n_families=len({row["family"] for row in rows}),
        healthy_paged=count(row["pages"] > 0 for row in healthy),
        healthy_rising=count(row["rising"] for row in healthy),
        healthy_rank_days=round(days, 1),
        pages_per_1000_rank_days=round(1000 * sum(row["pages"] for row in healthy) / days, 2) if days else None,
        ambiguous_paged=count(row["pages"] > 0 or row["found"] for row in rows if row["cls"] == "ambiguous"),
        found=count(row["found"] for row in fatal),
        paged_before_onset=count(row["pages_before_onset"] > 0 for row in leaks),
        wrong_rank=count(row["pages_of_wrong_rank"] > 0 for row in leaks),
        delay=quantiles(of("delay")),
        rising_delay=quantiles(of("rising_delay")),
        slope_error=quantiles(of("slope_error")),
        in_interval=count(of("in_interval")),
        half_width=quantiles(of("half_width")),
        time_left_error=quantiles(of("time_left_error")),
        half_error=quantiles(of("half_error")),
        last_minute_error=quantiles(of("last_minute_error")),
    )


def by_family(rows):
    """A few figures of each family, in the order of the rows."""
    found = {}
    for family in dict.fromkeys(row["family"] for row in rows):
        mine = [row for row in rows if row["family"] == family]
        fatal = [row for row in mine if row["fatal"]]
        found[family] = dict(cls=mine[0]["cls"], jobs=len(mine), paged=sum(row["pages"] > 0 for row in mine), rising=sum(row["rising"] for row in mine),
                             fatal=len(fatal), found=sum(row["found"] for row in fatal), delay_p50=quantiles([row["delay"] for row in fatal if "delay" in row])["p50"])
    return found


def real_figures(series, drawn, events):
    """Figures of the real series. `series` and `drawn` are lists of (path, series)."""
    from real import inject
    from real.series import is_host

    def paged(of):
        return count(bool(pages(events[str(path)])) for path, _ in of)

    def picked(host, truth):
        return [(path, each) for path, each in series if is_host(each) == host and each["meta"]["truth"].startswith(truth)]

    firsts = [(each, [e["time"] for e in pages(events[str(path)])]) for path, each in drawn]
    delays = [inject.delay(each, min(times)) for each, times in firsts if times]
    in_time = [delay for delay in delays if delay >= 0]
    healthy = picked(False, "healthy")
    return dict(
        n_series=len(series),
        gpu_healthy_paged=paged(healthy),
        gpu_healthy_rising=count(bool(rising(events[str(path)])) for path, _ in healthy),
        gpu_healthy_hours=round(sum(each["t"][-1] for _, each in healthy) / 3600),
        gpu_fatal_found=paged(picked(False, "leak, fatal")),
        gpu_others_paged=paged(picked(False, "unknown") + picked(False, "failed")),
        host_healthy_paged=paged(picked(True, "healthy")),
        host_leaks_found=paged(picked(True, "leak")),
        host_others_paged=paged(picked(True, "unknown") + picked(True, "failed")),
        drawn_found=dict(n=len(in_time), of=len(drawn), interval=bounds(len(in_time), len(drawn))),
        drawn_paged_before=len(delays) - len(in_time),
        drawn_delay=quantiles(in_time),
    )


def null_figures(counts):
    """Pages per 1,000 rank-days of null models, with the upper bound of an exact Poisson interval."""
    n_pages, n_rising, days = (sum(one[name] for one in counts) for name in ("pages", "rising", "rank_days"))
    bound = stats.chi2.ppf(CONFIDENCE, 2 * (n_pages + 1)) / 2
    return dict(rank_days=round(days), pages=n_pages, rising=n_rising, pages_per_1000_rank_days=round(1000 * n_pages / days, 2),
                upper_95=round(1000 * float(bound) / days, 2))

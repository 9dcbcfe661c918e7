"""The limits of the figures, and the tables that are printed."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """A limit of one figure: `figure` is its path in the set's results, `unit` how it is written."""

    name: str
    figure: tuple
    side: str
    limit: float
    unit: str = "share"


# A count's limit is a share, so that a part of the jobs can be held against it.
BARS = {
    "dev": (
        Bar("healthy jobs paged", ("ranks", "healthy_paged"), "<=", 1 / 260, "count"),
        Bar("fatal leaks found", ("ranks", "found"), ">=", 0.95, "count"),
        Bar("jobs paged before the onset", ("ranks", "paged_before_onset"), "<=", 0.0, "count"),
        Bar("jobs paged for a wrong rank", ("ranks", "wrong_rank"), "<=", 0.0, "count"),
        Bar("delay, p50", ("ranks", "delay", "p50"), "<=", 0.09),
        Bar("delay, p90", ("ranks", "delay", "p90"), "<=", 0.28),
        Bar("error of the slope, p50", ("ranks", "slope_error", "p50"), "<=", 0.015, "percent"),
        Bar("error of the slope, p90", ("ranks", "slope_error", "p90"), "<=", 0.11, "percent"),
        Bar("interval has the true slope", ("ranks", "in_interval"), ">=", 0.94, "count"),
        Bar("error of the time left, p50", ("ranks", "time_left_error", "p50"), "<=", 0.10, "percent"),
        Bar("error of the time left, p90", ("ranks", "time_left_error", "p90"), "<=", 0.40, "percent"),
    ),
    "real": (
        Bar("healthy GPU series paged", ("gpu_healthy_paged",), "<=", 0.0, "count"),
        Bar("fatal GPU leaks found", ("gpu_fatal_found",), ">=", 1.0, "count"),
        Bar("added leaks found", ("drawn_found",), ">=", 52 / 55, "count"),
        Bar("their delay, p50", ("drawn_delay", "p50"), "<=", 0.19),
    ),
}
# Printed and published without a limit.
PLAIN = {
    "dev": (
        ("healthy jobs with MEMORY RISING", ("ranks", "healthy_rising"), "count"),
        ("delay of MEMORY RISING, p50", ("ranks", "rising_delay", "p50"), "share"),
        ("pages per 1,000 healthy rank-days", ("ranks", "pages_per_1000_rank_days"), "number"),
        ("half the width of the interval, p50", ("ranks", "half_width", "p50"), "percent"),
        ("pages with a known time left", ("ranks", "time_left_error", "of"), "number"),
        ("its error half-way to the end, p50", ("ranks", "half_error", "p50"), "percent"),
        ("its error half-way to the end, p90", ("ranks", "half_error", "p90"), "percent"),
        ("its error in the last minute, p50", ("ranks", "last_minute_error", "p50"), "percent"),
        ("its error in the last minute, p90", ("ranks", "last_minute_error", "p90"), "percent"),
        ("growth that ends or fades, paged", ("ranks", "ambiguous_paged"), "count"),
        ("as processes: healthy jobs paged", ("processes", "healthy_paged"), "count"),
        ("as processes: fatal leaks found", ("processes", "found"), "count"),
        ("as processes: delay, p50", ("processes", "delay", "p50"), "share"),
    ),
    "real": (
        ("their delay, p90", ("drawn_delay", "p90"), "share"),
        ("paged before the added leak", ("drawn_paged_before",), "number"),
        ("healthy GPU series with MEMORY RISING", ("gpu_healthy_rising",), "count"),
        ("failed or unknown GPU series paged", ("gpu_others_paged",), "count"),
        ("healthy host series paged", ("host_healthy_paged",), "count"),
        ("host leaks found", ("host_leaks_found",), "count"),
        ("failed or unknown host series paged", ("host_others_paged",), "count"),
    ),
}
PLAIN["test"] = (
    ("families", ("ranks", "n_families"), "number"),
    *((bar.name, bar.figure, bar.unit) for bar in BARS["dev"]),
    *(row for row in PLAIN["dev"] if row[0] != "growth that ends or fades, paged"),
)
PLAIN["seen"] = PLAIN["witness"] = PLAIN["test"]


def value_at(results, path):
    for key in path:
        results = results[key]
    return results


def plain_at(results, path):
    """A figure without a limit; None of one that was not measured yet."""
    try:
        return value_at(results, path)
    except KeyError:
        return None


def text(value, unit):
    """A figure as it is printed and published."""
    if value is None:
        return "–"
    if unit == "count":
        return f"{value['n']} of {value['of']}"
    if unit == "interval":
        return "{:.1f} to {:.1f} %".format(*(100 * end for end in value["interval"]))
    if unit == "percent":
        return f"{100 * value:.1f} %"
    return f"{value:.3f}" if unit == "share" else f"{value:,}"


def limit_text(bar, value):
    sign = "at most" if bar.side == "<=" else "at least"
    if bar.unit == "count" and bar.limit * value["of"] == int(round(bar.limit * value["of"])):
        return f"{sign} {round(bar.limit * value['of'])} of {value['of']}"
    return f"{sign} {100 * bar.limit:.3g} %" if bar.unit != "share" else f"{sign} {bar.limit:.2f}"


def is_kept(bar, value):
    """Whether a figure is within its limit. One that does not exist is not."""
    if bar.unit == "count":
        value = value["n"] / value["of"] if value["of"] else None
    if value is None:
        return False
    return value <= bar.limit + 1e-9 if bar.side == "<=" else value >= bar.limit - 1e-9


def rows(which, results):
    """(name, figure, limit, whether it is kept) of a set: first those with a limit."""
    for bar in BARS.get(which, ()):
        value = value_at(results, bar.figure)
        yield bar.name, text(value, bar.unit), limit_text(bar, value), is_kept(bar, value)
    for name, path, unit in PLAIN[which]:
        yield name, text(plain_at(results, path), unit), "", True


def print_table(which, results):
    """Prints a set's table; returns whether all limits are kept."""
    print(f"\n{which} ({results['runner']})")
    all_kept = True
    for name, figure, limit, kept in rows(which, results):
        print(f"  {name:40}{figure:>14}   {limit:24}{'' if kept else 'MISSED'}".rstrip())
        all_kept = all_kept and kept
    return all_kept


def print_null(results):
    print(f"\nnull models ({results['runner']}): pages per 1,000 rank-days of memory that never runs out")
    print(f"  {'model':24}{'rank-days':>10}{'pages':>7}{'rising':>8}{'per 1,000':>11}{'at most (95 %)':>16}")
    for model, one in [*results["models"].items(), ("all", results["all"])]:
        print(f"  {model:24}{one['rank_days']:>10,}{one['pages']:>7}{one['rising']:>8}{one['pages_per_1000_rank_days']:>11.2f}{one['upper_95']:>16.2f}")


def peer_line(name, figures):
    healthy, found = (text(figures[key], "count") for key in ("healthy_paged", "found"))
    return f"  {name:24}healthy paged {healthy:14}found {found:14}delay {text(figures['delay']['p50'], 'share')}, {text(figures['delay']['p90'], 'share')}"


def print_families(judged):
    """A line for each family of simulated jobs. `judged` are the rows of ranks and of processes, in the same order."""
    ranks, processes = judged
    by_key = {(row["family"], row["seed"]): row for row in processes}
    print(f"\n  {'family':24}{'class':>10}{'paged':>9}{'rising':>9}{'found':>9}{'delays':>8}   (paged or found as processes)")
    for family in dict.fromkeys(row["family"] for row in ranks):
        mine = [row for row in ranks if row["family"] == family]
        as_processes = [by_key[row["family"], row["seed"]] for row in mine]
        head = f"  {family:24}{mine[0]['cls']:>10}"
        n_rising = f"{sum(row['rising'] for row in mine)}/{len(mine)}"
        if not mine[0]["leak"]:
            n_paged = sum(row["pages"] > 0 for row in mine)
            seeds = [row["seed"] for row in mine if row["pages"]]
            print(f"{head}{n_paged:>6}/{len(mine):<2}{n_rising:>9}{'':>9}  {f'seeds {seeds}' if seeds else ''}   ({sum(row['pages'] > 0 for row in as_processes)})")
            continue
        fatal = [row for row in mine if row["fatal"]]
        delays = " ".join(f"{row['delay']:.2f}" if "delay" in row else "-" for row in fatal)
        n_found = f"{sum(row['found'] for row in fatal)}/{len(fatal)}"
        print(f"{head}{'':>9}{n_rising:>9}{n_found:>9}  {delays}   ({sum(row['found'] for row in as_processes if row['fatal'])})")

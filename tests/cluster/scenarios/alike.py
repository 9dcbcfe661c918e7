"""Every query of the dashboards over two Prometheus that have the same exporters by different ways."""

import re

import live
from child import Failure
from cluster import awaits

AGREE_SECONDS_MAX = 90
TOLERANCE = 0.2
"""Two Prometheus do not look at the same moment: counters, leaks and ages go on in between."""
SECONDS_APART_MAX = 5.0
COUNT_APART_MAX = 0.05
SECONDS = re.compile(r"_seconds|timestamp|time\(\)")
SERIES_MIN = 60
"""Fewer series over the scrape would mean that the queries were asked too early, or not about these exporters."""
NEVER_ALIKE = {"job", "instance"}
"""Labels of the way, not of the exporter."""
ONLY_SCRAPED = re.compile(r"\b(process_\w+|up)\b")
"""docs/otlp.md: the exporter's own process, and whether it answers, are not in OTLP."""


def agree(scraping, receiving, **variables):
    """Waits until every query gives the same series with about the same values at both ports; returns how many queries there are."""
    asked = [(stem, panel["title"], expression) for stem, dashboard in live.dashboards() for panel, expression in of_dashboard(dashboard, stem, variables)]
    last = {}

    def look():
        last["differ"], last["series"] = [], 0
        for stem, title, expression in asked:
            ours, theirs = series(scraping, expression), series(receiving, expression)
            names = {name for labels, _ in ours for name in labels} - NEVER_ALIKE
            apart_max = SECONDS_APART_MAX if SECONDS.search(expression) else COUNT_APART_MAX
            problem = difference(by_labels(ours, names), by_labels(theirs, names), apart_max)
            last["series"] += len(ours)
            if problem:
                last["differ"].append(f"{stem}, {title}: {expression}: {problem}")
        return not last["differ"] and last["series"] >= SERIES_MIN

    awaits(look, AGREE_SECONDS_MAX, lambda: f"{len(last['differ'])} of {len(asked)} queries differ, {last['series']} series:\n" + "\n".join(last["differ"][:12]), pause=1)
    return len(asked)


def of_dashboard(dashboard, stem, variables):
    """The queries of a dashboard that OTLP can answer, each with its panel."""
    before, live.VALUES = live.VALUES, live.VALUES | variables
    try:
        return [(panel, expression) for panel, _, expression, _ in live.queries(dashboard, stem) if not ONLY_SCRAPED.search(expression)]
    finally:
        live.VALUES = before


def series(port, expression):
    """The series of an expression now: their labels and values."""
    answer = live.query(port, expression, True)
    if answer["status"] != "success":
        raise Failure(f"{expression}: {answer['error']}")
    found = answer["data"]["result"]
    return [({}, float(found[1]))] if answer["data"]["resultType"] == "scalar" else [(each["metric"], float(each["value"][1])) for each in found]


def by_labels(found, names):
    """The values by the labels that scraped series have; over OTLP there may be more, those of the resource."""
    return sorted((sorted((name, labels.get(name, "")) for name in names), value) for labels, value in found)


def difference(ours, theirs, apart_max):
    if [labels for labels, _ in ours] != [labels for labels, _ in theirs]:
        return f"scraped {len(ours)} series {ours[:2]}, received {len(theirs)} {theirs[:2]}"
    for (labels, one), (_, other) in zip(ours, theirs):
        if one != other and one == one and not abs(one - other) <= max(apart_max, TOLERANCE * abs(one)):
            return f"scraped {one}, received {other} of {labels}"
    return None

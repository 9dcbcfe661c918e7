#!/usr/bin/env python3
"""Writes the chart's dashboards, to which this folder links, from the tables in `source/`.

    dashboards/build.py            write them
    dashboards/build.py --check    compare only; exits with 1 when one is stale

A table rather than clicks in the UI, so that the same unit, color, legend and description stand
wherever a figure is shown, every query is filtered by the same variables, and a renamed metric is
one edit. Standard library only.

Run, Rank and Exporter read raw metrics and work without the recording rules; Fleet reads what the rules
record, so that it is as quick over ten thousand pods. Memory that nests
(allocated within reserved within the process within the device) is drawn one over the other and not
as differences, so that a series that is absent takes nothing else away.
"""

import json
import pathlib
import sys

# Everything in dashboards/ is read as text by the tests, so no compiled modules next to the sources.
sys.dont_write_bytecode = True
from source import exporter, fleet, rank, run  # noqa: E402

CHART = pathlib.Path(__file__).parents[1] / "helm/stepmem/files/dashboards"
DASHBOARDS = [run.DASHBOARD, rank.DASHBOARD, fleet.DASHBOARD, exporter.DASHBOARD]


def main():
    is_check = sys.argv[1:] == ["--check"]
    stale = []
    for dashboard in DASHBOARDS:
        path = CHART / f"{dashboard.uid}.json"
        text = json.dumps(dashboard.json(DASHBOARDS), indent=2, ensure_ascii=False) + "\n"
        if not is_check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"{', '.join(stale)}: not what dashboards/build.py writes; run it")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""creepjobs.py's score, and the calibration of confidence_ratio: the share of true findings by confidence.

    PYTHONPATH=../shared/data/creep tests/creep/score.py score [creepjobs.py's options] -- stepmem replay -
    tests/creep/score.py table ROWS.jsonl       the same tables again from the rows of --out

A finding is true when the rank leaks and the leak has begun. Raising it again at another severity does not count.
A finding about a process that does not push counts as one about the rank whose device it is on.
Jobs whose truth cannot be known while they run (cls "ambiguous") are left out of the share and counted separately.
"""
import json
import sys

PAGING = ("CREEP_CONFIRMED", "FRAGMENTATION", "OUTSIDE_ALLOCATOR")
BINS = (0.0, 0.5, 0.8, 0.9, 0.95, 1.01)


def by_rank(events):
    """The events, each with a rank; the device of rank N is GPU-N."""
    return [event if "rank" in event else {**event, "rank": int(event["uuid"].removeprefix("GPU-"))} for event in events]


def findings(run, events):
    """Raised findings, each once until it is cleared: kind, confidence, whether it is true, whether it pages."""
    held, found = {}, []
    for event in events:
        key = event["rank"], event.get("pid"), event["kind"]
        if event["state"] == "cleared":
            held.pop(key, None)
            continue
        confidence = (event.get("evidence") or {}).get("confidence_ratio")
        pages = event["kind"] in PAGING and event["severity"] in ("warning", "critical")
        if confidence is None or (key in held and held[key] >= pages):
            continue
        held[key] = pages
        truth = run.truth
        is_true = bool(truth["leak"]) and event["rank"] in truth["leak_ranks"] and event["time"] >= truth["onset_time"]
        found.append(dict(kind=event["kind"], rank=event["rank"], step=event.get("step"), confidence=confidence, true=is_true, pages=pages))
    return found


def calibration(rows, pages):
    def picked(row): return [f for f in row.get("findings", []) if f["pages"] == pages]
    known = [f for row in rows if row["cls"] != "ambiguous" for f in picked(row)]
    unknown = [f for row in rows if row["cls"] == "ambiguous" for f in picked(row)]
    print(f"\n{'pages' if pages else 'CREEP_EARLY (info)'}: confidence  findings  true   share  of ambiguous jobs")
    for low, high in list(zip(BINS, BINS[1:])) + [(0.9, 1.01)]:
        within = [f for f in known if low <= f["confidence"] < high]
        beside = sum(low <= f["confidence"] < high for f in unknown)
        n_true = sum(f["true"] for f in within)
        share = f"{n_true / len(within):.3f}" if within else "    -"
        name = f"{low:.2f} to {min(high, 1.0):.2f}"
        print(f"  {name:>28} {len(within):9d} {n_true:5d}   {share}  {beside}")


def tables(rows):
    # Peers do not report a confidence.
    if not any(row.get("findings") for row in rows): return
    calibration(rows, True)
    calibration(rows, False)


def main():
    if sys.argv[1:2] == ["table"]:
        rows = [row for row in map(json.loads, open(sys.argv[2])) if "error" not in row]
        try:
            import creepjobs
            print(json.dumps(creepjobs.totals(rows)))
        except ImportError:
            pass
        return tables(rows)
    import creepjobs

    judge, totals = creepjobs.judge, creepjobs.totals
    kept = []
    creepjobs.judge = lambda run, events: {**judge(run, by_rank(events)), "findings": findings(run, by_rank(events))}
    creepjobs.totals = lambda rows: kept.extend(rows) or totals(rows)
    creepjobs.main()
    tables(kept)


if __name__ == "__main__":
    main()

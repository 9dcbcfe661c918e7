#!/usr/bin/env python3
"""What `stepmem judge` says of the real series, and of those with an added leak thinned to a sample a minute.

    eval/judge.py STEPMEM            prints each figure next to its limit; exit code 1 where one is missed
    eval/judge.py STEPMEM --save     also writes them to eval/results.json, and to the documents that quote them

STEPMEM is the program. It reads files as others write them: CSV with a Unix time, bytes in use and the capacity.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from real import inject, series as real  # noqa: E402
from score import report  # noqa: E402

THINNED_SECONDS = 60
# At least so many of the added leaks are found.
FOUND_MIN = 0.8
FILES_EACH = 32


def thinned(series):
    """The series with neighboring samples at least a minute apart."""
    kept = []
    for t, value in zip(series["t"], series["v"]):
        if not kept or t - kept[-1][0] >= THINNED_SECONDS:
            kept.append((t, value))
    times, values = zip(*kept)
    return {**series, "t": times, "v": values}


def write(folder, name, series):
    total = real.total_bytes(series)
    rows = (f"{series['t0'] + t:.3f},{int(value)},{total}\n" for t, value in zip(series["t"], series["v"]))
    (folder / f"{name}.csv").write_text("timestamp,memory_used_bytes,memory_total_bytes\n" + "".join(rows))


def verdicts(program, all_series):
    """The verdict on each series, by name."""
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, series in all_series.items():
            write(folder, name, series)
        files = sorted(folder.glob("*.csv"))
        for at in range(0, len(files), FILES_EACH):
            part = files[at : at + FILES_EACH]
            # A single file's series has no label of its file.
            part = part if len(part) > 1 else [*part, files[0]]
            answer = subprocess.run([program, "judge", "--json", *part], stdout=subprocess.PIPE, check=True)
            for each in json.loads(answer.stdout)["series"]:
                found[Path(each["labels"]["file"]).stem] = each["verdict"]
    return found


def main():
    program = str(Path(sys.argv[1]).resolve())
    all_series = real.load_all()
    gpu = {name: series for name, series in all_series.items() if not real.is_host(series)}
    pages = ("creep", "ended")
    healthy = {name: series for name, series in gpu.items() if series["meta"]["truth"] == "healthy"}
    of_healthy = verdicts(program, healthy)
    n_healthy = sum(verdict in pages for verdict in of_healthy.values())
    thin = verdicts(program, {name: thinned(series) for name, series in healthy.items()})
    n_thin = sum(verdict in pages for verdict in thin.values())
    leaks = {name: inject.with_leak(series) for name, series in all_series.items()}
    leaks = {name: thinned(series) for name, series in leaks.items() if series}
    of_leaks = verdicts(program, leaks)
    n_found = sum(verdict in pages for verdict in of_leaks.values())
    missed = {name: verdict for name, verdict in of_leaks.items() if verdict not in pages}
    print(f"healthy GPU series, CREEP: {n_healthy} of {len(healthy)} (limit 0)")
    print(f"the same, thinned to {THINNED_SECONDS} s: {n_thin} of {len(healthy)} (limit 0)")
    print(f"added leaks, thinned to {THINNED_SECONDS} s, found: {n_found} of {len(leaks)} (limit {FOUND_MIN:.0%})")
    if missed:
        print("missed:", ", ".join(f"{name} ({verdict})" for name, verdict in missed.items()))
    if "--save" in sys.argv[2:]:
        figures = dict(
            healthy_paged=dict(n=n_healthy, of=len(healthy)),
            healthy_thinned_paged=dict(n=n_thin, of=len(healthy)),
            drawn_thinned_found=dict(n=n_found, of=len(leaks)),
        )
        results = report.load() | dict(judge=figures)
        report.save(results)
        report.write_documents(results)
    return int(n_healthy > 0 or n_thin > 0 or n_found < FOUND_MIN * len(leaks))


if __name__ == "__main__":
    sys.exit(main())

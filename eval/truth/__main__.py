"""Draws jobs, has stepmem tell of them, and judges what it says: python -m truth STEPMEM [--set dev] [--recordings N] [--programs N]."""

import argparse
import itertools
import multiprocessing
import pathlib
import shutil
import sys
import tempfile

from . import compared, outside, planted, programs, recordings, report
from .figures import UNDECIDABLE
from .judge import Statement, judge, judge_program
from .limits import NoGroup
from .program_runs import RunFailed, run
from .recording_runs import RUNS_MAX, Exporter, observe

TEST_SEEDS = 1_000_000
"""The first seed of the programs of the test set."""


def main():
    """Runs what is asked for and prints the tables."""
    parser = argparse.ArgumentParser(prog="truth", description=__doc__)
    parser.add_argument("stepmem", type=pathlib.Path, help="the binary")
    parser.add_argument("--set", default="dev", choices=("dev", "test"), help="test has other seeds and the programs of outside.py, and shows no single statement")
    parser.add_argument("--recordings", type=int)
    parser.add_argument("--programs", type=int)
    parser.add_argument("--python", type=pathlib.Path, help="an interpreter with PyTorch; without it no program runs")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--quick", action="store_true", help="96 recordings, and no programs unless they are asked for")
    parser.add_argument("--write", type=pathlib.Path, help="write the tables into this document, between its markers")
    parser.add_argument("--only", default="", help="print each statement of this row that is not TRUE")
    arguments = parser.parse_args()
    if arguments.recordings is None:
        arguments.recordings = 96 if arguments.quick else 3000
    if arguments.programs is None:
        arguments.programs = 0 if arguments.quick else 300
    work = pathlib.Path(tempfile.mkdtemp(prefix="truth-"))
    try:
        chunks = [
            (arguments.stepmem.resolve(), work / str(start), arguments.set, range(start, min(start + RUNS_MAX, arguments.first + arguments.recordings)))
            for start in range(arguments.first, arguments.first + arguments.recordings, RUNS_MAX)
        ]
        statements = []
        runs = [
            (arguments.stepmem.resolve(), arguments.python, work / f"program-{name}", name, program)
            for name, program in (drawn(arguments.set, arguments.first, arguments.programs) if arguments.python else ())
        ]
        if not arguments.python and (arguments.programs or arguments.set == "test"):
            print("SKIPPED the programs: they need an interpreter with PyTorch (--python)", file=sys.stderr)
        with multiprocessing.Pool(2) as pool:
            for part in itertools.chain(pool.imap(of_chunk, chunks), pool.imap(of_program, runs)):
                statements += part
    finally:
        shutil.rmtree(work, ignore_errors=True)
    tables = f"{report.sums(statements)}.\n\n{report.table(statements)}"
    print(tables)
    if arguments.set == "dev":
        print(report.examples(statements, arguments.only))
    if arguments.write:
        write(arguments.write, arguments.set, tables)
    missed = [*report.missed(statements, is_whole=not arguments.quick), *(f"planted, not found: {fault}" for fault in planted.unfound())]
    print("\n".join(missed))
    print(f"truth: {len(missed)} limits missed")
    sys.exit(1 if missed else 0)


def write(document, name, tables):
    """Replaces what stands between the markers of a set."""
    text = document.read_text()
    begin, end = f"<!-- truth:{name} -->\n", f"<!-- /truth:{name} -->"
    before, rest = text.split(begin)
    document.write_text(before + begin + tables + "\n" + end + rest.split(end, 1)[1])


def of_chunk(chunk):
    """The statements about the recordings of some seeds, all pushed to one exporter."""
    stepmem, folder, prefix, seeds = chunk
    exporter = Exporter(stepmem, folder)
    try:
        statements = []
        for seed in seeds:
            recording = recordings.draw(seed, prefix)
            observed = observe(exporter, recording)
            job = f"{recording.name}: {recording.words}"
            statements += judge(job, recording.truths, recording.facts, observed)
            if seed % compared.EVERY == 0:
                told = compared.of_recording(stepmem, folder / recording.name, recording)
                statements += [Statement(row, outcome, job, step, rank, *more) for row, outcome, step, rank, *more in told]
        return statements
    finally:
        exporter.stop()


def of_program(of):
    """The statements about a program."""
    stepmem, python, folder, name, program = of
    job = f"program {name}: {program.name}"
    try:
        observed, counted = run(stepmem, python, program, folder)
        statements = judge_program(program, counted, observed)
    except NoGroup as missing:
        print(f"SKIPPED program {name}: {missing}", file=sys.stderr)
        statements = []
    except (RunFailed, KeyError, TypeError, ValueError) as error:
        statements = [Statement("can be judged", UNDECIDABLE, job, 0, 0, repr(error))]
    shutil.rmtree(folder, ignore_errors=True)
    return [statement._replace(job=job) for statement in statements]


def drawn(name, first, count):
    """The programs of a set: drawn ones, and in the test set also those of outside.py."""
    seeds = range(first, first + count)
    if name == "dev":
        return [(str(seed), programs.draw(seed)) for seed in seeds]
    whole = [(str(idx), program) for idx, program in enumerate(outside.PROGRAMS)]
    return whole + [(str(seed), programs.draw(TEST_SEEDS + seed)) for seed in seeds]


if __name__ == "__main__":
    main()

#!/usr/bin/env bash
# Scores the detector on simulated jobs with known truth, and prints the totals and the calibration of its confidence.
#
#     tests/creep/score.sh                               every family, seeds 0 to 4: about an hour on one core
#     tests/creep/score.sh --families fast,cache_exp --seeds 0-1 --out rows.jsonl
#
# The jobs come from ../shared/data/creep (CREEP_JOBS=… names another folder); without them nothing is scored.
# STEPMEM=… names another binary than target/release/stepmem. numpy and numba go into target/tools/creep.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
jobs=${CREEP_JOBS:-$root/../shared/data/creep}
binary=${STEPMEM:-$root/target/release/stepmem}
venv=$root/target/tools/creep
python=${PYTHON:-$venv/bin/python}

if [ ! -f "$jobs/creepjobs.py" ]; then
    printf 'tests/creep/score.sh: no creepjobs.py in %s, nothing scored\n' "$jobs" >&2
    exit 0
fi
if ! "$python" -c 'import numpy, numba' 2>/dev/null; then
    "${PYTHON3:-python3}" -m venv "$venv"
    python=$venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 numba==0.68.1
fi
[ -x "$binary" ] || (cd "$root" && cargo build --quiet --release)
[ $# -gt 0 ] || set -- --seeds 0-4 --jobs "${JOBS:-1}"
PYTHONPATH=$jobs exec "$python" "$root/tests/creep/score.py" score "$@" -- "$binary" replay -

#!/usr/bin/env bash
# Scores the detector on simulated jobs with known truth, and prints the totals and the calibration of its confidence.
#
#     tests/creep/score.sh                               every family, seeds 0 to 4: about an hour of one core
#     tests/creep/score.sh --families fast,cache_exp --seeds 0-1 --out rows.jsonl
#     tests/creep/score.sh --peer traceml-live …         the same for another detector (peers.py lists them)
#     tests/creep/score.sh --bars [public 0-9]           each figure beside its bar, on jobs kept in target/creep/jobs
#     tests/creep/score.sh --rules [public 0-9]          each rule on and off, into docs/creep.md, on the same jobs
#     tests/creep/score.sh --cross [public 0-9]          main constants chosen without one family, into docs/creep.md
#     tests/creep/score.sh --agree                       the detector against the design's reference, on 30 jobs
#
# The jobs come from ../shared/data/creep (CREEP_JOBS=… chooses another folder); without them it does nothing.
# STEPMEM=… chooses another binary than target/dist/stepmem. numpy, numba and scipy go into target/tools/creep.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
jobs=${CREEP_JOBS:-$root/../shared/data/creep}
binary=${STEPMEM:-$root/target/dist/stepmem}
venv=$root/target/tools/creep
python=${PYTHON:-$venv/bin/python}

if [ ! -f "$jobs/creepjobs.py" ]; then
    printf 'tests/creep/score.sh: no creepjobs.py in %s, nothing scored\n' "$jobs" >&2
    exit 0
fi
if ! "$python" -c 'import numpy, numba, scipy' 2>/dev/null; then
    "${PYTHON3:-python3}" -m venv "$venv"
    python=$venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 numba==0.68.1 scipy==1.17.1
fi
export PYTHONPATH=$jobs
if [ "${1:-}" = --rules ] || [ "${1:-}" = --cross ]; then
    table=${1#--}
    shift
    [ $# -gt 0 ] || set -- public 0-9
    # Only speed differs from a release.
    (cd "$root" && CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        cargo build --quiet --profile dist --features without --target-dir target/without)
    mkdir -p "$root/target/creep"
    exec "$python" "$root/tests/creep/$table.py" "${CREEP_KEPT:-$root/target/creep/jobs}" "$@" --jobs "${JOBS:-$(nproc)}" \
        --out "$root/target/creep/$table.rows" --write "$root/docs/creep.md" -- "$root/target/without/release/stepmem"
fi
command=("$binary" replay -)
if [ "${1:-}" = --peer ]; then
    peer=${2:?--peer needs a name}
    shift 2
    if ! "$python" "$root/tests/creep/peers.py" list | grep -qxF -- "$peer"; then
        printf 'tests/creep/score.sh: no peer %s; tests/creep/peers.py list names them\n' "$peer" >&2
        exit 2
    fi
    command=("$python" "$root/tests/creep/peers.py" "$peer")
elif [ ! -x "$binary" ]; then
    (cd "$root" && cargo build --quiet --profile dist)
fi
if [ "${1:-}" = --bars ]; then
    shift
    [ $# -gt 0 ] || set -- public 0-9
    exec "$python" "$root/tests/creep/bars.py" "$root/target/creep/jobs" "$@" --jobs "${JOBS:-$(nproc)}" -- "${command[@]}"
fi
if [ "${1:-}" = --agree ]; then
    shift
    exec "$python" "$root/tests/creep/agree.py" "$binary" "$@"
fi
[ $# -gt 0 ] || set -- --seeds 0-4 --jobs "${JOBS:-$(nproc)}"
exec "$python" "$root/tests/creep/score.py" score "$@" -- "${command[@]}"

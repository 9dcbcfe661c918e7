#!/usr/bin/env bash
# Scores the detector on jobs of known truth and prints each figure next to its limit. `make eval` calls it; --help lists the options.
#
#     eval/run.sh                                              every set; writes eval/results.json and what is generated from it
#     eval/run.sh --sets dev --seeds 0-1 --families fast       a part, quickly; writes nothing
#
# RUNNER=… judges with another command than the example eval-runner; EVAL_JOBS=… keeps job files elsewhere than in target/eval/jobs.
# Exit code: 0 where every limit is kept, 1 where one is missed, 2 where something is missing or fails.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/target/tools/eval
python=$venv/bin/python
wanted="numpy==2.4.6 numba==0.68.1 scipy==1.17.1"

if [ "$(cat "$venv/installed" 2>/dev/null)" != "$wanted" ]; then
    # shellcheck disable=SC2086
    { "${PYTHON3:-python3}" -m venv "$venv" && "$python" -m pip install --quiet --disable-pip-version-check $wanted; } || exit 2
    printf '%s\n' "$wanted" >"$venv/installed"
fi
is_whole=
[ $# -gt 0 ] || [ -n "${RUNNER:-}" ] || is_whole=1
if [ -z "${RUNNER:-}" ]; then
    (cd "$root" && "${CARGO:-cargo}" build --quiet --profile dist --example eval-runner) || exit 2
    RUNNER=$root/target/dist/examples/eval-runner
    set -- --name "stepmem $(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -1)" "$@"
fi
# Paths are meant from where the caller stands.
program=${RUNNER%% *}
[ ! -e "$program" ] || RUNNER=$(realpath "$program")${RUNNER#"$program"}
jobs=$(realpath -m "${EVAL_JOBS:-$root/target/eval/jobs}")
export NUMBA_CACHE_DIR=$root/target/eval/numba PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
cd "$root/eval"
code=0
"$python" -m score --runner "$RUNNER" --jobs "$jobs" "$@" || code=$?
# `stepmem judge` reads the real series as files.
if [ -n "$is_whole" ] && [ "$code" -le 1 ]; then
    (cd "$root" && "${CARGO:-cargo}" build --quiet --profile dist --bin stepmem) || exit 2
    "$python" judge.py "$root/target/dist/stepmem" --save || code=$?
fi
exit "$code"

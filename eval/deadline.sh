#!/usr/bin/env bash
# Scores the ask to checkpoint on simulated jobs. `make deadline` calls it; --help lists the options.
#
# RUNNER=… runs another program than the example deadline-runner; EVAL_JOBS=… keeps job files elsewhere than in target/eval/jobs.
# Exit code: 0 where every limit is kept, 1 where one is missed, 2 where something is missing or fails.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/target/tools/eval/bin/python
wanted=$(sed -n 's/^wanted="\(.*\)"$/\1/p' "$root/eval/run.sh")
if [ "$(cat "$root/target/tools/eval/installed" 2>/dev/null)" != "$wanted" ]; then
    # shellcheck disable=SC2086
    { "${PYTHON3:-python3}" -m venv "$root/target/tools/eval" && "$python" -m pip install --quiet --disable-pip-version-check $wanted; } || exit 2
    printf '%s\n' "$wanted" >"$root/target/tools/eval/installed"
fi
if [ -z "${RUNNER:-}" ]; then
    (cd "$root" && "${CARGO:-cargo}" build --quiet --profile dist --example deadline-runner) || exit 2
    RUNNER=$root/target/dist/examples/deadline-runner
fi
jobs=$(realpath -m "${EVAL_JOBS:-$root/target/eval/jobs}")
export NUMBA_CACHE_DIR=$root/target/eval/numba PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
cd "$root/eval"
exec "$python" deadline.py --runner "$RUNNER" --jobs "$jobs" "$@"

#!/usr/bin/env bash
# `make test`: prints what it will install, installs that, runs every part, and names at the end what failed and what was
# skipped. What a part printed is in target/test-logs/PART.log, and is shown if it failed.
#
#     tests/run.sh           every part
#     tests/run.sh rust      one of them: rust, python or truth
#
# With SKIPPED_FILE, the SKIPPED lines are appended to that file instead.
set -uo pipefail
cd "$(dirname "$0")/.."
logs=target/test-logs
mkdir -p "$logs"
cargo=${CARGO:-cargo}
parts=${*:-rust python truth}
. tests/skipped.sh

plan() {
    for script in tests/peers/install.sh tests/ops/install.sh python/tests/install.sh; do
        PLAN=1 "$script"
    done
}

# Debian's packages are installed as root: at a terminal that is asked, without one it is only announced.
announce() {
    local planned answer
    planned=$(plan) || exit 1
    [ -n "$planned" ] || return 0
    printf 'make test installs, once (0.9 GB, 3 to 10 minutes):\n'
    printf '%s\n' "$planned" | sed "s|$PWD/||; s|^|  |"
    printf 'and then builds and tests for about 20 minutes on two cores.\n'
    if [ -t 0 ] && [ -z "${CI-}" ] && grep -q '^Debian packages' <<<"$planned"; then
        read -r -p 'Go on? [Y/n] ' answer
        case $answer in [nN]*) exit 1 ;; esac
    fi
}

failed=()
TIMEFORMAT='%R s, of processors %U s and, in the kernel, %S s'
# part NAME COMMAND... runs a part. Of a green one only the runners' closing lines and the time are shown.
part() {
    local name=$1 log=$logs/$1.log
    shift
    if { time "$@" >"$log" 2>&1; } 2>"$logs/$name.time"; then
        grep -E '^test result: |^[0-9]+ passed|^truth: ' "$log"
    else
        cat "$log"
        failed+=("$name")
    fi
    printf '%s: %s\n' "$name" "$(cat "$logs/$name.time")"
    skipped_in "$log"
}

# In a shell of its own, since it goes to another directory.
pytest() (
    cd python && ../target/tools/python-venv/bin/python -m pytest -n 4 -p no:cacheprovider -m "not torch"
)

truth() (
    cd eval && PYTHONDONTWRITEBYTECODE=1 "${PYTHON3:-python3}" -m truth ../target/debug/stepmem --quick
)

# Most tests wait for programs that they have started.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
announce
for script in tests/peers/install.sh tests/ops/install.sh python/tests/install.sh; do
    "$script" || exit 1
done
# Without a program there is nothing to test.
"$cargo" build --quiet --workspace || exit 1
for name in $parts; do
    case $name in
        rust)
            part rust "$cargo" test --quiet --workspace --no-fail-fast
            # Tests that are run only by a target of their own.
            skip_ignored
            ;;
        python)
            part python pytest
            skip 'tests with the real PyTorch (make test-torch)'
            ;;
        truth)
            part truth truth
            skip 'programs whose statements are judged (make truth)'
            ;;
        *) printf 'tests/run.sh: unknown part %s: rust, python or truth\n' "$name" >&2; exit 1 ;;
    esac
done
[ -n "${SKIPPED_FILE-}" ] || print_skipped
if [ ${#failed[@]} -gt 0 ]; then
    printf 'make test: failed: %s\n' "${failed[*]}" >&2
    exit 1
fi

#!/usr/bin/env bash
# `make test`: says first what it will install and skip and how long that takes, then runs every part, says how far it is, and
# names at the end what failed and what was skipped. What a part printed is in target/test-logs/PART.log; of one that failed
# it is shown, but for the tests that passed.
#
# Only Debian's packages need root. Without it, the tests that need one that is missing are skipped.
#
#     tests/run.sh           every part
#     tests/run.sh rust      one of them: rust, python or truth
#
# With PLAN=1 it only says what it would do. With SKIPPED_FILE, the SKIPPED lines are appended to that file instead.
set -uo pipefail
cd "$(dirname "$0")/.."
logs=target/test-logs
mkdir -p "$logs"
cargo=${CARGO:-cargo}
parts=${*:-rust python truth}
. tests/skipped.sh

installers=(tests/peers/install.sh tests/ops/install.sh python/tests/install.sh)

plan() {
    for script in "${installers[@]}"; do
        PLAN=1 "$script"
    done
}

# The tests that need one of Debian's packages, by module.
declare -A tests_of=(
    [prometheus]='ops:: peers:: tls:: judge::' [prometheus-alertmanager]='ops::' [chromium]='ops:: page:: peers:: reports:: snapshot_html::'
    [nodejs]='ops:: page:: reports:: snapshot_html::' [npm]='ops:: page:: reports:: snapshot_html::' [curl]='tls::' [systemd]='packages::'
)
# Where tests/peers/install.sh notes the packages that need root.
export MISSING_FILE=$PWD/$logs/missing
: >"$MISSING_FILE"

# Debian's packages are installed as root: at a terminal that is asked, without one it is only announced.
announce() {
    local planned installs answer
    planned=$(plan) || exit 1
    installs=''
    ! grep -q '/target/tools/' <<<"$planned" || installs='1.1 GB below target/tools'
    ! grep -q '^Debian packages' <<<"$planned" || installs="${installs:+$installs and }0.6 GB of Debian packages"
    installs=${installs:+once $installs (3 to 10 minutes)}
    installs=${installs:-nothing}
    printf 'make test: installs %s; builds 4.5 GB below target/debug; tests for 20 minutes on two cores that do nothing else; skips PyTorch (make test-torch, 6 GB) and what is named last.\n' "$installs"
    [ -n "$planned" ] || return 0
    printf '%s\n' "$planned" | sed "s|$PWD/||; s|^|  |"
    [ -z "${PLAN-}" ] || return 0
    if [ -t 0 ] && [ -z "${CI-}" ] && grep -q '^Debian packages' <<<"$planned"; then
        read -r -p 'Go on? [Y/n] ' answer
        case $answer in [nN]*) exit 1 ;; esac
    fi
}

failed=()
TIMEFORMAT='%R s, of processors %U s and, in the kernel, %S s'
SAY_EVERY=20
# progress NAME reads what a part prints: says at once what failed, and every SAY_EVERY seconds how far it is.
progress() {
    local name=$1 line='' last='' n_passed=0 began=$SECONDS said=$SECONDS code
    while :; do
        IFS= read -r -t "$SAY_EVERY" line
        code=$?
        # Without a line within the time it is more than 128, and 1 at the end.
        [ "$code" -ne 1 ] || break
        case $line in
            'test '*' ... ok' | *' PASSED'*) n_passed=$((n_passed + 1)) ;;
            'test '*' ... FAILED' | *' FAILED'* | 'error'*) printf '%s: %s\n' "$name" "$line" ;;
        esac
        [ -z "$line" ] || last=${line## }
        if [ $((SECONDS - said)) -ge "$SAY_EVERY" ]; then
            said=$SECONDS
            printf '%s: %d passed after %d s; %.100s\n' "$name" "$n_passed" $((SECONDS - began)) "$last"
        fi
    done
}

# part NAME COMMAND... runs a part. Of a green one, the runners' closing lines and the time are shown at its end.
part() {
    local name=$1 log=$logs/$1.log
    shift
    printf '%s: begins\n' "$name"
    if { time "$@" 2>&1; } 2>"$logs/$name.time" | tee "$log" | progress "$name"; then
        grep -E '^test result: |^=+ .*[0-9]+ passed|^[0-9]+ passed|^truth: ' "$log"
    else
        grep -vE '^test .* \.\.\. ok$| PASSED' "$log"
        failed+=("$name")
    fi
    printf '%s: %s\n' "$name" "$(cat "$logs/$name.time")"
    skipped_in "$log"
}

# In a shell of its own, since it goes to another directory.
pytest() (
    cd python && ../target/tools/python-venv/bin/python -m pytest -v -n 4 -p no:cacheprovider -m "not torch"
)

truth() (
    cd eval && PYTHONDONTWRITEBYTECODE=1 "${PYTHON3:-python3}" -m truth ../target/debug/stepmem --quick
)

# Most tests wait for programs that they have started.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
announce
[ -z "${PLAN-}" ] || exit 0
for script in "${installers[@]}"; do
    "$script" || exit 1
done
left_out=()
while read -r package; do
    for module in ${tests_of[$package]-}; do
        left_out+=(--skip "$module")
    done
    skip "no $package, which needs root (apt-get install $package): tests of ${tests_of[$package]-nothing}"
done < <(sort -u "$MISSING_FILE")
# Without a program there is nothing to test.
"$cargo" build --workspace || exit 1
for name in $parts; do
    case $name in
        rust)
            part rust "$cargo" test --workspace --no-fail-fast -- "${left_out[@]}"
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

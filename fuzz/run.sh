#!/usr/bin/env bash
# Fuzzes every target with libFuzzer: run.sh SECONDS [TARGET…], so long each, or EXECUTIONS if that is less. The stable toolchain
# suffices; a C++ compiler is needed once. SANITIZER=address builds everything with the address sanitizer, which the stable toolchain brings but
# enables only with RUSTC_BOOTSTRAP.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?seconds}
shift
if [ "${SANITIZER:-}" = address ]; then
    host=$(rustc -vV | sed -n 's/^host: //p')
    export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" CARGO_TARGET_DIR=target/fuzz-address
    build=(--target "$host")
    programs=$CARGO_TARGET_DIR/$host/debug
else
    export CARGO_TARGET_DIR=target
    build=()
    programs=target/debug
fi
RUSTC_WRAPPER=$PWD/fuzz/instrument.sh cargo build --quiet --bins --manifest-path fuzz/Cargo.toml "${build[@]}"
targets=("$@")
[ "$#" -gt 0 ] || targets=(decoders engine engine_steps http state config recordings summaries jobs kubelet owner snapshot snapshot_events series_tables series_events series_matrix)
for target in "${targets[@]}"; do
    # Longer inputs cost time and reach nothing more.
    case $target in
    engine_steps) bytes_max=512 ;;
    snapshot_events) bytes_max=2048 ;;
    summaries | jobs | series_*) bytes_max=32768 ;;
    *) bytes_max=4096 ;;
    esac
    corpus=target/fuzz-corpus/$target
    mkdir -p "$corpus" target/fuzz-artifacts
    # What is found goes to the first directory; the seeds are only read. Settings are read without the variables of this shell.
    env -i "$programs/$target" "$corpus" "fuzz/seeds/$target" -max_total_time="$seconds" -runs="${EXECUTIONS:--1}" \
        -max_len="$bytes_max" -rss_limit_mb=2048 -timeout=10 -artifact_prefix="target/fuzz-artifacts/$target-" -print_final_stats=1 \
        2>"target/fuzz-artifacts/$target.log" &
    process=$! is_good=true
    wait "$process" || is_good=false
    rm -rf "/dev/shm/stepmem-fuzz-$process"
    $is_good || { tail -40 "target/fuzz-artifacts/$target.log" >&2; exit 1; }
    sed -n "s/^stat::number_of_executed_units: */$target: /p" "target/fuzz-artifacts/$target.log"
done

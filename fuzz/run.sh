#!/usr/bin/env bash
# Fuzzes every target with libFuzzer: run.sh SECONDS [TARGET…], so long each. The stable toolchain suffices; a C++ compiler is
# needed once. SANITIZER=address builds everything with the address sanitizer, which the stable toolchain brings but
# enables only with RUSTC_BOOTSTRAP.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?seconds}
shift
if [ "${SANITIZER:-}" = address ]; then
    host=$(rustc -vV | sed -n 's/^host: //p')
    export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address"
    RUSTC_WRAPPER=$PWD/fuzz/instrument.sh CARGO_TARGET_DIR=target/fuzz-address \
        cargo build --quiet --release --manifest-path fuzz/Cargo.toml --target "$host"
    program=target/fuzz-address/$host/release/any
else
    RUSTC_WRAPPER=$PWD/fuzz/instrument.sh CARGO_TARGET_DIR=target \
        cargo build --quiet --release --manifest-path fuzz/Cargo.toml
    program=target/release/any
fi
targets=("$@")
[ "$#" -gt 0 ] || targets=(decoders engine http state config recordings summaries kubelet owner snapshot snapshot_events)
for target in "${targets[@]}"; do
    corpus=target/fuzz-corpus/$target
    mkdir -p "$corpus" target/fuzz-artifacts
    # What is found goes to the first directory; the seeds are only read.
    STEPMEM_FUZZ_TARGET=$target "$program" "$corpus" "fuzz/seeds/$target" -max_total_time="$seconds" -max_len=65536 \
        -rss_limit_mb=2048 -timeout=10 -artifact_prefix="target/fuzz-artifacts/$target-" -print_final_stats=1 \
        2>"target/fuzz-artifacts/$target.log" &
    process=$! is_good=true
    wait "$process" || is_good=false
    rm -rf "/dev/shm/stepmem-fuzz-$process"
    $is_good || { tail -40 "target/fuzz-artifacts/$target.log" >&2; exit 1; }
    sed -n "s/^stat::number_of_executed_units: */$target: /p" "target/fuzz-artifacts/$target.log"
done

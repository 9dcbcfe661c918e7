#!/usr/bin/env bash
# Fuzzes the push decoder with the engine behind it, and the snapshot reader: run.sh SECONDS, each. Installs cargo-fuzz into target/tools by pinned
# version, and uses the stable toolchain's own sanitizer hooks.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/target/tools
"$tools/bin/cargo-fuzz" --version 2>/dev/null | grep -qF 0.13.2 ||
    cargo install --quiet --locked cargo-fuzz@0.13.2 --root "$tools" --target-dir "$tools/build"
for target in wire snapshot snapshot_events; do
    corpus=target/fuzz-corpus/$target
    mkdir -p "$corpus"
    [ ! -d "fuzz/seeds/$target" ] || cp fuzz/seeds/"$target"/* "$corpus"
    RUSTC_BOOTSTRAP=1 "$tools/bin/cargo-fuzz" run --sanitizer none --target-dir target/fuzz "$target" "$corpus" -- \
        -max_total_time="${1:?seconds}" -max_len=65536 -rss_limit_mb=2048
done

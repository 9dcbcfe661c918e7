#!/usr/bin/env bash
# Fuzzes the push decoder and the engine behind it: run.sh SECONDS. Installs cargo-fuzz into target/tools by pinned
# version, and uses the stable toolchain's own sanitizer hooks.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/target/tools
"$tools/bin/cargo-fuzz" --version 2>/dev/null | grep -qF 0.13.2 ||
    cargo install --quiet --locked cargo-fuzz@0.13.2 --root "$tools" --target-dir "$tools/build"
mkdir -p target/fuzz-corpus/wire
cp fuzz/seeds/wire/* target/fuzz-corpus/wire/
RUSTC_BOOTSTRAP=1 "$tools/bin/cargo-fuzz" run --sanitizer none --target-dir target/fuzz wire target/fuzz-corpus/wire -- \
    -max_total_time="${1:?seconds}" -max_len=65536 -rss_limit_mb=2048

#!/usr/bin/env bash
# Builds the Debian package, with cargo-deb in target/tools, and prints its path.
set -euo pipefail
cd "$(dirname "$0")/.."
version=3.8.0
tools=target/tools

"$tools/bin/cargo-deb" --version 2>/dev/null | grep -qF "$version" ||
    cargo install --quiet --locked "cargo-deb@$version" --root "$tools" --target-dir "$tools/build"
cargo build --quiet --profile dist --locked --bin stepmem
rm -rf target/share
packaging/extras.sh target/dist/stepmem target/share
"$tools/bin/cargo-deb" --quiet --profile dist --no-build --output target/debian/

#!/usr/bin/env bash
# Installs the lint tools into target/tools by pinned version; quiet when they are there.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools=target/tools
install() { # name version
    "$tools/bin/$1" --version 2>/dev/null | grep -qF "$2" ||
        cargo install --quiet --locked "$1@$2" --root "$tools" --target-dir "$tools/build"
}
install cargo-deny 0.20.2
install cargo-machete 0.9.2

#!/usr/bin/env bash
# Installs what packs a release into target/tools by pinned version; quiet when it is there.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools=target/tools
"$tools/bin/cargo-cyclonedx" cyclonedx --version 2>/dev/null | grep -qF 0.5.9 ||
    cargo install --quiet --locked cargo-cyclonedx@0.5.9 --root "$tools" --target-dir "$tools/build"
python/tests/install.sh
python/tests/install.sh wheel
tests/ops/install.sh

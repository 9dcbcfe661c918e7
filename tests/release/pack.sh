#!/usr/bin/env bash
# Puts the release build, a list of its crates (CycloneDX) and checksums into a directory: pack.sh DIRECTORY
set -euo pipefail
cd "$(dirname "$0")/../.."
to=${1:?directory}
rm -rf "$to"
mkdir -p "$to"
# It writes beside each Cargo.toml; nothing may stay there.
target/tools/bin/cargo-cyclonedx cyclonedx --quiet --format json --override-filename stepmem.cdx
mv stepmem.cdx.json "$to"
rm -f fuzz/targets/stepmem.cdx.json tests/fake-nvml/stepmem.cdx.json
install target/release/stepmem "$to"
(cd "$to" && sha256sum stepmem stepmem.cdx.json >SHA256SUMS)

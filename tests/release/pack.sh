#!/usr/bin/env bash
# Puts the program as it is packed, a list of its crates (CycloneDX) and checksums into a directory: pack.sh DIRECTORY
set -euo pipefail
cd "$(dirname "$0")/../.."
to=${1:?directory}
rm -rf "$to"
mkdir -p "$to"
# It writes beside each Cargo.toml; nothing may stay there.
target/tools/bin/cargo-cyclonedx cyclonedx --quiet --format json --override-filename stepmem.cdx
# The list names our own crate by its directory here, which is of no use to others.
sed "s|path+file://$PWD#|path+file:///stepmem#|g" stepmem.cdx.json >"$to/stepmem.cdx.json"
rm stepmem.cdx.json
if grep -oF "$PWD" "$to/stepmem.cdx.json" >&2; then
    exit 1
fi
rm -f fuzz/targets/stepmem.cdx.json tests/fake-nvml/stepmem.cdx.json
install target/dist/stepmem "$to"
(cd "$to" && sha256sum stepmem stepmem.cdx.json >SHA256SUMS)

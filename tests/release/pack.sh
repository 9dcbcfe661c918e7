#!/usr/bin/env bash
# Puts the program as it is packed, a list of its crates (CycloneDX) and checksums into a directory: pack.sh DIRECTORY
set -euo pipefail
cd "$(dirname "$0")/../.."
to=${1:?directory}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
release=$(tests/release/inputs.sh "$version")
rm -rf "$to"
mkdir -p "$to"
printf '%s\n' "$release" >"$to/release.json"
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
(cd "$to" && sha256sum stepmem stepmem.cdx.json release.json >SHA256SUMS)
cat <<TEXT
$to: stepmem, stepmem.cdx.json (its crates), release.json (what it was made of), SHA256SUMS.
Not signed: any of them, nor image, chart, wheel and Debian package. Whoever publishes them signs SHA256SUMS with a key of their own.
Not built: the image. Its command:
    podman build --build-arg BUILDER=$BUILDER --build-arg BASE=$BASE \\
        --build-arg VERSION=$version --build-arg REVISION=$(git rev-parse HEAD) --build-arg SOURCE=$REPOSITORY -t stepmem:$version .
TEXT

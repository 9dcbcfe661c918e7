#!/usr/bin/env bash
# Builds the wheel of `pip install stepmem`: the program, its completions and manual pages, and the Python client.
#
#     packaging/wheel.sh dev OUT         around target/debug/stepmem, which is built if it is not there yet
#     packaging/wheel.sh release OUT     for every Linux with glibc 2.28 or newer, linked by zig
#
# Prints the path of the wheel. The one of `dev` is tagged with the newest version of glibc whose symbols it uses.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=$1 out=$2
tools=$PWD/target/tools

# While it packs, maturin moves the program away from where cargo put it, and back. It packs what is below stepmem.data/
# as files of the prefix.
exec 9>target/.wheel-lock
flock 9
trap 'rm -rf stepmem.data target/wheel' EXIT
rm -rf stepmem.data target/wheel

case $profile in
    dev)
        ${CARGO:-cargo} build --quiet --locked
        binary=target/debug/stepmem
        # The program of a debug build is large: less compression, less waiting.
        options=(--profile dev --auditwheel check --compression-level 1)
        export PATH=$tools/wheel-venv/bin:$PATH
        ;;
    release)
        target=$(rustc -vV | sed -n 's/^host: //p')
        binary=target/$target/dist/stepmem
        options=(--profile dist --zig --auditwheel check --target "$target" --compatibility manylinux_2_28)
        export PATH=$tools/zig-venv/bin:$PATH
        maturin build --quiet "${options[@]}" --out target/wheel >&2
        ;;
    *) printf 'packaging/wheel.sh: unknown profile %s: dev or release\n' "$profile" >&2; exit 1 ;;
esac
packaging/extras.sh "$binary" stepmem.data/data/share
rm -rf target/wheel
maturin build --quiet "${options[@]}" --out target/wheel >&2
name=$(cd target/wheel && echo *.whl)
mkdir -p "$out"
mv "target/wheel/$name" "$out"
printf '%s/%s\n' "$out" "$name"

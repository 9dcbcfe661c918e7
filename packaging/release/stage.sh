#!/usr/bin/env bash
# Writes the files of the commit to a directory, with what this release is made of (inputs.sh) in their metadata: stage.sh DIRECTORY
#
# The repository itself names no URL: it does not know where it is published.
set -euo pipefail
cd "$(dirname "$0")/../.."
to=${1:?directory}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
release=$(packaging/release/inputs.sh "$version")
rm -rf "$to"
mkdir -p "$to"
git archive HEAD | tar -x -C "$to"
printf '%s\n' "$release" >"$to/release.json"
cd "$to"

# Crates that are published.
find . -name Cargo.toml -not -path './target/*' | while read -r manifest; do
    if grep -q '^\[package\]' "$manifest" && ! grep -q '^publish = false' "$manifest"; then
        sed -i "s|^\[package\]\$|&\nrepository = \"$REPOSITORY\"\ndocumentation = \"$DOCUMENTATION\"|" "$manifest"
    fi
done
for project in pyproject.toml python/pyproject.toml; do
    printf '\n[project.urls]\nRepository = "%s"\nDocumentation = "%s"\n' "$REPOSITORY" "$DOCUMENTATION" >>"$project"
done
# The annotations are the last key of the chart.
python3 packaging/release/annotations.py CHANGELOG.md "$version" >>helm/stepmem/Chart.yaml
printf 'home: %s\nsources: [%s]\n' "$DOCUMENTATION" "$REPOSITORY" >>helm/stepmem/Chart.yaml
revision=$(sed -n 's/.*"revision": "\(.*\)".*/\1/p' release.json)
sed -i -e "s|^ARG BUILDER=.*|ARG BUILDER=$BUILDER|" -e "s|^ARG BASE=.*|ARG BASE=$BASE|" \
    -e "s|^ARG VERSION=.*|ARG VERSION=$version|" -e "s|^ARG REVISION=.*|ARG REVISION=$revision|" \
    -e "s|^ARG SOURCE=.*|ARG SOURCE=$REPOSITORY|" -e "s|^ARG DOCUMENTATION=.*|ARG DOCUMENTATION=$DOCUMENTATION|" Containerfile

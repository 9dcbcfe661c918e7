#!/usr/bin/env bash
# Checks licenses, sources and advisories of the crates that are linked, and that each is used.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/skipped.sh
tests/lint/install.sh rust
bin=target/tools/bin
"$bin/cargo-deny" --log-level error check licenses bans sources
# The database of advisories is a git repository that not every machine reaches.
if "$bin/cargo-deny" --log-level off fetch db 2>/dev/null; then
    "$bin/cargo-deny" --log-level error check advisories
else
    skip 'advisories: the database of RustSec cannot be fetched from here'
fi
"$bin/cargo-machete"
[ -n "${SKIPPED_FILE-}" ] || print_skipped

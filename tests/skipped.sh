# shellcheck shell=bash
# Notes what was not run, to print it last: `. tests/skipped.sh` from the repository's root. The lines are kept in SKIPPED_FILE,
# or in a file of their own.
skipped=${SKIPPED_FILE:-target/skipped.$$}
[ -n "${SKIPPED_FILE-}" ] || trap 'rm -f "$skipped"' EXIT

skip() { printf 'SKIPPED %s\n' "$*" >>"$skipped"; }

# skipped_in LOG notes the lines in which tests of Rust and pytest (-rs) report that they were skipped.
skipped_in() { grep -E '^SKIPPED' "$1" >>"$skipped" || true; }

# skip_ignored notes the tests of Rust that are ignored because they need something.
skip_ignored() {
    grep -rn --include='*.rs' '#\[ignore = "needs' tests | sed -E 's|^([^:]+:[0-9]+):.*"(.*)".*|SKIPPED \1: \2|' >>"$skipped" || true
}

print_skipped() {
    [ ! -s "$skipped" ] || sort -u "$skipped"
}

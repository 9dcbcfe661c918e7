#!/usr/bin/env bash
# Installs the packages for the Python client's tests into virtual environments under target/tools.
#
#     python/tests/install.sh          python-venv: pytest, mypy and the package's build backend; wheel-venv: maturin, uv;
#                                      trackers-venv: W&B and MLflow (0.2 GB)
#     python/tests/install.sh wheel    zig-venv: also zig, for wheels that are published (0.5 GB)
#     python/tests/install.sh torch    torch-venv: also PyTorch, Transformers, Accelerate, Lightning, TRL and TraceML (6 GB)
#
# Idempotent: prints nothing and needs no network if everything is installed. With PLAN=1 it only prints what it would
# install, a line each.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tools=$(cd "$here/../.." && pwd)/target/tools
python=${PYTHON:-python3}

say() { printf 'python/tests/install.sh: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }
plans() { [ -n "${PLAN-}" ] && printf '%s\n' "$*"; }

# install VENV REQUIREMENTS...
install() {
    local venv=$tools/$1 checksum file arguments=()
    shift
    checksum=$(cat "$@" | sha256sum)
    if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.requirements.sha256" 2>/dev/null)" = "$checksum" ]; then
        return
    fi
    plans "$venv: the packages of ${*##*/} (PyPI)" && return
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || die "$("$python" --version) is too old: 3.10 or newer"
    for file in "$@"; do arguments+=(-r "$file"); done
    say "creating $venv"
    "$python" -m venv --clear "$venv" || die "python3 -m venv failed (Debian: apt-get install python3-venv)"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${arguments[@]}" || die "pip could not install $*"
    printf '%s\n' "$checksum" >"$venv/.requirements.sha256"
}

mkdir -p "$tools"
exec 9>"$tools/.python-lock"
flock 9
case "${1-}" in
    "")
        install python-venv "$here/requirements.txt"
        install wheel-venv "$here/requirements-wheel.txt"
        install trackers-venv "$here/requirements-trackers.txt"
        ;;
    wheel) install zig-venv "$here/requirements-wheel.txt" "$here/requirements-zig.txt" ;;
    torch) install torch-venv "$here/requirements.txt" "$here/requirements-torch.txt" ;;
    *) die "unknown argument $1: expected none, wheel or torch" ;;
esac

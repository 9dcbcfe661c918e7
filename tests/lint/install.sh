#!/usr/bin/env bash
# Installs the lint tools into target/tools by pinned version; quiet when they are there.
#
#     tests/lint/install.sh rust         cargo-deny, cargo-machete
#     tests/lint/install.sh workflows    actionlint, a Go module
set -euo pipefail
cd "$(dirname "$0")/../.."
tools=target/tools
actionlint=1.7.12

# Without optimization: that is built in half the time, and what it checks takes seconds.
install() { # name version
    "$tools/bin/$1" --version 2>/dev/null | grep -qF "$2" ||
        cargo install --quiet --locked --debug "$1@$2" --root "$tools" --target-dir "$tools/build"
}

case "${1-}" in
    rust)
        install cargo-deny 0.20.2
        install cargo-machete 0.9.2
        ;;
    workflows)
        "$tools/bin/actionlint" -version 2>/dev/null | grep -qxF "v$actionlint" && exit
        . tests/go.sh
        find_go
        GOBIN=$PWD/$tools/bin GOTOOLCHAIN=local CGO_ENABLED=0 \
            "$go" install -trimpath "github.com/rhysd/actionlint/cmd/actionlint@v$actionlint"
        ;;
    *) printf 'tests/lint/install.sh: unknown argument %s: rust or workflows\n' "${1-}" >&2; exit 1 ;;
esac

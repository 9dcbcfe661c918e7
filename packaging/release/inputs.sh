#!/usr/bin/env bash
# Checks what a release is made of, and prints it as JSON: inputs.sh VERSION
#
#     REPOSITORY       URL of the repository that the release is made from
#     DOCUMENTATION    URL of the documentation
#     BUILDER          image that builds the program, by digest
#     BASE             image that the program's own is based on, by digest
#
# None has a default: a release names what it really is made of, or there is none.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=${1:?version}

refuse() {
    printf 'make release: %s\n' "$1" >&2
    printf 'make release REPOSITORY=https://HOST/PATH DOCUMENTATION=https://HOST/PATH %s\n' \
        'BUILDER=IMAGE@sha256:DIGEST BASE=IMAGE@sha256:DIGEST' >&2
    exit 1
}

check_url() {
    local name=$1 url=$2 meaning=$3
    [ -n "$url" ] || refuse "$name is missing: the URL of $meaning"
    # No user, password, query or quote.
    [[ $url =~ ^https://[a-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._~-]+)+/?$ ]] ||
        refuse "$name is not https://HOST/PATH, without a user, a query and a fragment"
    local host=${url#https://}
    host=${host%%[:/]*}
    case .$host in
        *.example | *.example.com | *.example.org | *.example.net | *.invalid | *.test | *.localhost)
            refuse "$name is at $host, which is nobody's: such names are for examples" ;;
    esac
}

check_image() {
    local name=$1 image=$2
    [ -n "$image" ] || refuse "$name is missing: an image by digest"
    [[ $image =~ ^[a-z0-9][a-z0-9._:/-]*@sha256:[0-9a-f]{64}$ ]] ||
        refuse "$name is not IMAGE@sha256: and 64 digits: a tag may be another image tomorrow"
}

check_url REPOSITORY "${REPOSITORY:-}" 'the repository that this release is made from'
check_url DOCUMENTATION "${DOCUMENTATION:-}" 'the documentation of this release'
check_image BUILDER "${BUILDER:-}"
check_image BASE "${BASE:-}"
revision=$(git rev-parse HEAD) || refuse 'there is no commit here: releases are made from a checkout'
[ -z "$(git status --porcelain --untracked-files=no)" ] ||
    refuse 'files differ from the commit: a release is made of what the repository has'
cat <<JSON
{
  "version": "$version",
  "repository": "$REPOSITORY",
  "documentation": "$DOCUMENTATION",
  "revision": "$revision",
  "builder": "$BUILDER",
  "base": "$BASE",
  "signed": []
}
JSON

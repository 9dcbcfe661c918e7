#!/usr/bin/env bash
# Writes what is installed with the program below share/ of a prefix: completion scripts and manual pages.
#
#     packaging/extras.sh BINARY SHARE
set -euo pipefail
binary=$1 share=$2

mkdir -p "$share"/{man/man1,bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
"$binary" man --directory "$share/man/man1"
"$binary" completions bash >"$share/bash-completion/completions/stepmem"
"$binary" completions zsh >"$share/zsh/site-functions/_stepmem"
"$binary" completions fish >"$share/fish/vendor_completions.d/stepmem.fish"

#!/bin/sh
# Compiles as RUSTC_WRAPPER: adds the hooks of libFuzzer, which stable Rust has, to stepmem and its targets, and leaves all
# other crates as they are.
case " $* " in
*" --crate-name stepmem "* | *" --crate-name stepmem_fuzz_targets "*)
    exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
        -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing
    ;;
*) exec "$@" ;;
esac

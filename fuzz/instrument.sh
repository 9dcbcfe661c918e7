#!/bin/sh
# Compiles as RUSTC_WRAPPER: adds the hooks of libFuzzer, which stable Rust has, to all crates of stepmem and its targets, and leaves
# all other crates as they are. Comparisons of the detector are of figures, which no byte of an input equals: half the time went there.
hooks="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table --cfg fuzzing"
case " $* " in
*" --crate-name stepmem_detect "* | *" --crate-name stepmem_forecast "*) exec "$@" $hooks ;;
*" --crate-name stepmem "* | *" --crate-name stepmem_"*) exec "$@" $hooks -Cllvm-args=-sanitizer-coverage-trace-compares ;;
*) exec "$@" ;;
esac

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stepmem_fuzz_targets::series_tables::run(data));

//! Every target under libFuzzer; `STEPMEM_FUZZ_TARGET` names the one.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use stepmem_fuzz_targets::TARGETS;

fuzz_target!(|data: &[u8]| chosen()(data));

fn chosen() -> fn(&[u8]) {
    static CHOSEN: OnceLock<fn(&[u8])> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var("STEPMEM_FUZZ_TARGET").unwrap_or_default();
        let named = TARGETS.iter().find(|target| target.name == name);
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        named.map(|target| target.run).unwrap_or_else(|| panic!("STEPMEM_FUZZ_TARGET: {names:?}"))
    })
}

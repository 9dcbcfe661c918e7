//! The house of the tests: each file stands alone on the rig, and waits for changes instead of sleeping.

use crate::architecture::house::{House, holds};
use crate::architecture::source::{Source, is_within};

/// Calls that let time pass, for the rig alone.
const PAUSES: [&str; 3] = ["sleep", "park_timeout", "sleep_ms"];

fn imports(house: &House) -> Vec<String> {
    let of_file = |file: &Source| {
        let is_rule = file.is_in("architecture");
        let is_free =
            |to: &str| is_within(to, "rig") || is_rule && is_within(to, "architecture");
        let imports = house.imports(file).into_iter().filter(|(to, _)| !is_free(to));
        file.at(imports.map(|(to, line)| (format!("imports {to}"), line)).collect::<Vec<_>>())
    };
    house.files.iter().flat_map(of_file).collect()
}

fn pauses(house: &House) -> Vec<String> {
    let others = house.files.iter().filter(|file| !file.is_in("rig"));
    let of_file = |file: &Source| {
        file.at(PAUSES.iter().flat_map(|word| file.places(&[word])).collect::<Vec<_>>())
    };
    others.flat_map(of_file).collect()
}

#[test]
fn no_test_imports_another_test() {
    holds("imports of tests", &imports(House::tests()));
}

#[test]
fn no_test_sleeps() {
    holds("pauses", &pauses(House::tests()));
}

#[test]
fn a_planted_breach_of_a_test_is_found() {
    let standing = |text: &str| {
        House::planted(&[
            ("tests/it/rig/exporter.rs", ""),
            ("tests/it/creep.rs", ""),
            ("tests/it/nvml/faults.rs", text),
            ("tests/it/nvml/mod.rs", "mod faults;"),
        ])
    };
    let creep = imports(&standing("use crate::creep::push;"));
    assert_eq!(creep, ["tests/it/nvml/faults.rs:1: imports creep"]);
    assert_eq!(imports(&standing("use crate::rig::exporter::Exporter;")), [""; 0]);
    assert_eq!(imports(&standing("use stepmem_types::ids::Run;")), [""; 0]);
    let asleep = "fn f() { std::thread::sleep(SECOND); thread::park_timeout(SECOND) }";
    assert_eq!(pauses(&standing(asleep)).len(), 2);
}

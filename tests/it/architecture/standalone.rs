//! Each file of the tests stands alone on the rig, and waits for changes instead of sleeping.

use crate::architecture::source::{Source, holds, tests};

/// Calls that let time pass, for the rig alone.
const PAUSES: [&str; 3] = ["sleep(", "park_timeout(", "sleep_ms("];

/// Returns the imports of other files but of the rig; the rules import each other, and `main.rs` nothing.
fn imports(files: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let code = file.code();
        let own =
            code.iter().filter_map(|(_, line)| line.strip_prefix("mod ")?.strip_suffix(';'));
        let own: Vec<String> = own.map(|name| format!("{name}::")).collect();
        for (number, line) in &code {
            let mut at = |path: &str, to: &str| {
                let name = to.split(|c: char| !c.is_alphanumeric() && c != '_').next();
                found.push(format!(
                    "{}:{number}: {path}{}",
                    file.path,
                    name.unwrap_or_default()
                ));
            };
            for (path, to) in after(line, "crate::") {
                let is_rule = file.is_in("architecture") && to.starts_with("architecture::");
                if !to.starts_with("rig::") && !is_rule {
                    at(path, to);
                }
            }
            after(line, "super::").for_each(|(path, to)| at(path, to));
            own.iter().flat_map(|name| after(line, name)).for_each(|(path, to)| at(path, to));
        }
    }
    found
}

fn pauses(files: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| !file.is_in("rig")) {
        for (number, line) in file.code() {
            let calls = PAUSES.into_iter().flat_map(|call| after(line, call));
            found.extend(calls.map(|(call, _)| format!("{}:{number}: {call}", file.path)));
        }
    }
    found
}

/// Returns each place of a word in a line, with what follows it: no part of a longer word, no method (which scripts in
/// Python have) and no text of a string that begins in the line.
fn after<'l>(line: &'l str, word: &'l str) -> impl Iterator<Item = (&'l str, &'l str)> {
    let places = line.match_indices(word).filter(|(at, _)| {
        let before = line[..*at].replace("\\\"", "");
        let is_whole = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.');
        is_whole && before.matches('"').count().is_multiple_of(2)
    });
    places.map(|(at, word)| (word, &line[at + word.len()..]))
}

#[test]
fn no_test_imports_another_test() {
    holds("imports of tests", &imports(tests()));
}

#[test]
fn no_test_sleeps() {
    holds("pauses", &pauses(tests()));
}

#[test]
fn a_planted_breach_of_a_test_is_found() {
    let file = |text: &str| [Source::new("tests/it/nvml/faults.rs", text)];
    let found = |text: &str| imports(&file(text));
    assert_eq!(found("use crate::creep::push;"), ["tests/it/nvml/faults.rs:1: crate::creep"]);
    assert_eq!(found("let a = super::push();"), ["tests/it/nvml/faults.rs:1: super::push"]);
    let child = "mod faults;\nlet a = [faults::push()];";
    assert_eq!(found(child), ["tests/it/nvml/faults.rs:2: faults::push"]);
    assert_eq!(found("use crate::rig::exporter::Exporter;"), [""; 0]);
    assert_eq!(found("use stepmem_types::ids::Run; // of \"x\""), [""; 0]);
    assert_eq!(found("let text = \"use crate::creep::push;\";"), [""; 0]);
    for asleep in ["std::thread::sleep(SECOND);", "f(\"a\", park_timeout(SECOND))", "sleep(1)"]
    {
        assert_eq!(pauses(&file(asleep)).len(), 1, "{asleep}");
    }
    assert_eq!(pauses(&file("    time.sleep(1)\nrun(\"sleep(1)\");")), [""; 0]);
}

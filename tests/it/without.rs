//! Every rule of the estimator of creep can be left out, is measured, and is in the table of its worth.

use std::collections::BTreeSet;
use std::fs;

use crate::rig::folder::root;

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names in a table of `without.rs`, a row: item, name.
fn of_source(table: &str) -> BTreeSet<String> {
    let source = text("src/analysis/creep/without.rs");
    let (_, from) = source.split_once(&format!("\n    {table} {{\n")).expect(table);
    let (rows, _) = from.split_once("\n    }\n").expect("a table ends");
    let names = rows.lines().filter(|line| line.ends_with("\","));
    names.filter_map(|line| line.split('"').nth(1).map(str::to_owned)).collect()
}

/// The keys of a table of a script, a row each: `"key": dict(…),`.
fn of_script(path: &str) -> BTreeSet<String> {
    let script = text(path);
    let rows = script.lines().filter(|line| line.contains("\": dict("));
    rows.filter_map(|line| line.split('"').nth(1).map(str::to_owned)).collect()
}

/// The names that begin the rows of a table of the page, between two marks.
fn of_page(table: &str) -> BTreeSet<String> {
    let page = text("docs/creep.md");
    let (_, from) = page.split_once(&format!("<!-- {table} -->")).expect(table);
    let (rows, _) = from.split_once(&format!("<!-- end of {table} -->")).expect(table);
    let rows = rows.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next().map(str::to_owned)).collect()
}

#[test]
fn every_rule_is_measured_and_in_the_table() {
    let rules = of_source("Rule");
    assert!(rules.len() >= 16, "{rules:?}");
    assert_eq!(rules, of_script("tests/creep/rules.py"), "tests/creep/rules.py");
    assert_eq!(
        rules,
        of_page("rules"),
        "docs/creep.md: tests/creep/score.sh --rules writes it"
    );
}

#[test]
fn every_constant_is_cross_validated() {
    let constants = of_source("Constant");
    assert!(constants.len() >= 7, "{constants:?}");
    assert_eq!(constants, of_script("tests/creep/cross.py"), "tests/creep/cross.py");
    let page = of_page("cross-validation");
    assert_eq!(constants, page, "docs/creep.md: tests/creep/score.sh --cross writes it");
}

#[test]
fn every_decision_with_a_gain_and_a_cost_is_one_of_a_rule() {
    let script = text("tests/creep/rules.py");
    let of_rules: BTreeSet<u32> = script
        .lines()
        .filter_map(|line| line.split_once("decisions=(")?.1.split_once(')'))
        .flat_map(|(numbers, _)| numbers.split(", ").map(|n| n.trim_end_matches(',')))
        .map(|number| number.parse().unwrap_or_else(|error| panic!("{number}: {error}")))
        .collect();
    let mut n_records = 0;
    for entry in fs::read_dir(root().join("docs/decisions")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !text(&format!("docs/decisions/{name}")).contains("\n**Gain and cost.**") {
            continue;
        }
        n_records += 1;
        let number = name.split('-').next().and_then(|number| number.parse().ok()).unwrap();
        assert!(of_rules.contains(&number), "{name}: tests/creep/rules.py has no row for it");
    }
    assert!(n_records >= 15, "{n_records}");
}

//! The cost of an addition: the places in `src/` that know a metric, a diagnosis, a setting or a command. This
//! adds nothing; it counts.

use std::collections::{BTreeMap, BTreeSet};

use stepmem::config::table::SETTINGS;
use stepmem_engine::diagnosis::DiagnosisKind;
use stepmem_engine::metrics::table::METRICS;

use crate::architecture::house::{House, holds};
use crate::architecture::items::is_word;
use crate::architecture::source::Source;
use crate::architecture::tokens::Token;

/// The door with the table of diagnoses.
const TABLE_OF_DIAGNOSES: &str = "src/analysis/diagnosis/mod.rs";

/// TraceML's own answer has TraceML's names, some of which are ours too.
const TRACEML: &str = "src/report/traceml";

/// `path:line` of every literal that is exactly this text.
fn places<'h>(house: &'h House, text: &str) -> Vec<(&'h str, usize)> {
    let quoted = format!("\"{text}\"");
    let of_file = |file: &'h Source| {
        let same = file.literals().filter(|(literal, _)| *literal == quoted);
        same.map(|(_, line)| (file.path.as_str(), line)).collect::<Vec<_>>()
    };
    house.files.iter().flat_map(of_file).collect()
}

/// The files among these places, each once.
fn files<'h>(places: &[(&'h str, usize)]) -> Vec<&'h str> {
    let mut files: Vec<&str> = places.iter().map(|(path, _)| *path).collect();
    files.dedup();
    files
}

/// Where a command is declared (`Command::new("serve")`) or chosen (`Some(("serve", …))`, `"serve" =>`): its name and
/// `path:line`.
fn commands(house: &House) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for file in house.files.iter().filter(|file| file.is_in("commands")) {
        for (idx, (token, line)) in file.tokens.iter().enumerate() {
            let Token::Text(name) = token else { continue };
            let near = |distance: isize| {
                let idx = idx.checked_add_signed(distance)?;
                file.tokens.get(idx).map(|(token, _)| token)
            };
            let is_new = near(-2).is_some_and(|token| is_word(token, "new"))
                && near(-5).is_some_and(|token| is_word(token, "Command"));
            let is_tuple = near(-1) == Some(&Token::Sign('('))
                && near(-2) == Some(&Token::Sign('('))
                && near(-3).is_some_and(|token| is_word(token, "Some"));
            let is_arm =
                near(1) == Some(&Token::Sign('=')) && near(2) == Some(&Token::Sign('>'));
            if is_new || is_tuple || is_arm {
                let at = format!("{}:{line}", file.path);
                found.push((name.trim_matches('"').to_owned(), at, is_new));
            }
        }
    }
    let declared: BTreeSet<String> =
        found.iter().filter(|(_, _, is_new)| *is_new).map(|(name, ..)| name.clone()).collect();
    found.retain(|(name, ..)| declared.contains(name) && name != "stepmem");
    found.into_iter().map(|(name, at, _)| (name, at)).collect()
}

#[test]
fn a_metric_costs_its_row() {
    for metric in METRICS {
        let places = places(House::standing(), metric.name);
        assert_eq!(files(&places).len(), 1, "{}: {places:?}", metric.name);
    }
}

#[test]
fn a_diagnosis_costs_its_file_and_a_line() {
    let house = House::standing();
    let door = house.files.iter().find(|file| file.path == TABLE_OF_DIAGNOSES).unwrap();
    for label in DiagnosisKind::ALL.iter().map(|kind| kind.label()) {
        let name = label.to_lowercase();
        let own = format!("src/analysis/diagnosis/{name}.rs");
        let mut files = files(&places(house, label));
        files.retain(|file| !file.starts_with(TRACEML));
        assert_eq!(files, [own.as_str()], "{label}");
        // Its `mod` line and its row.
        let rows =
            door.places(&["pub", "mod", &name]).len() + door.places(&[":", &name, ","]).len();
        assert_eq!(rows, 2, "{name} in {TABLE_OF_DIAGNOSES}");
    }
}

#[test]
fn a_setting_costs_its_row() {
    let mut found = Vec::new();
    for setting in SETTINGS {
        let places = places(House::standing(), setting.key);
        assert!(!places.is_empty(), "{}", setting.key);
        if places.len() > 1 {
            found.push(format!("{}: {places:?}", setting.key));
        }
    }
    holds("settings", &found);
}

#[test]
fn a_command_costs_its_file_and_a_line() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (command, at) in commands(House::standing()) {
        places.entry(command).or_default().push(at);
    }
    for command in ["serve", "demo", "replay", "summary", "compare", "status"] {
        assert!(places.contains_key(command), "{command}: {places:?}");
    }
    let has_file =
        |command: &str| House::standing().has_module(&format!("commands::{command}"));
    let dear = places.iter().filter(|(command, at)| at.len() > 1 || !has_file(command));
    let found: Vec<String> = dear.map(|(command, at)| format!("{command}: {at:?}")).collect();
    holds("commands", &found);
}

#[test]
fn planted_places_are_counted() {
    let house = House::planted(&[
        ("src/config/settings.rs", "const ROWS: &[&str] = &[\"rank.ttl\", \"rank.max\"];"),
        ("src/report/card.rs", "fn f() { (\"rank.ttl\", \"the rank.max\") }"),
        ("src/commands/serve.rs", "fn f() { Command::new(\"serve\") }"),
        ("src/commands/args.rs", "fn f() { match name { \"serve\" => g() } }"),
    ]);
    let ttl = places(&house, "rank.ttl");
    assert_eq!(files(&ttl), ["src/config/settings.rs", "src/report/card.rs"]);
    assert_eq!(places(&house, "rank.max").len(), 1);
    let at = |line: &str| ("serve".to_owned(), line.to_owned());
    assert_eq!(commands(&house), [at("src/commands/serve.rs:1"), at("src/commands/args.rs:1")]);
}

//! One place for a name: a metric's stands in one Rust file, and a type's is defined once. Two types may share a name
//! where a comment beside one of them says which other it shares it with, and why:
//! `// Same name as output::otlp::Config: each room has its own.`

use std::collections::BTreeMap;

use stepmem_engine::metrics::table::METRICS;

use crate::architecture::house::{House, holds};
use crate::architecture::items::{Item, Kind};
use crate::architecture::source::Source;

/// The file with the names of the metrics.
const METRICS_TABLE: &str = "metrics::table";

const SAME_NAME: &str = "// Same name as ";

fn metric_names(house: &House) -> Vec<String> {
    let is_name = |text: &str| {
        let text = text.trim_matches(['"', 'r', 'b', '#']);
        text.contains("stepmem_") || METRICS.iter().any(|metric| metric.name == text)
    };
    let others = house.files.iter().filter(|file| file.module != METRICS_TABLE);
    let named = |file: &Source| {
        let literals = file.literals().filter(|(text, _)| is_name(text));
        file.at(literals.map(|(text, line)| (text.to_owned(), line)).collect::<Vec<_>>())
    };
    others.flat_map(named).collect()
}

/// Names with more than one definition that no comment explains.
fn homonyms(house: &House) -> Vec<String> {
    let mut by_name: BTreeMap<&str, Vec<(&Source, usize)>> = BTreeMap::new();
    for file in &house.files {
        let is_type = |item: &Item<'_>| item.kind == Kind::Type && item.is_top;
        for item in file.items().into_iter().filter(is_type) {
            by_name.entry(item.name).or_default().push((file, item.line));
        }
    }
    let mut found = Vec::new();
    for (name, places) in by_name {
        let modules: Vec<&str> = places.iter().map(|(file, _)| file.module.as_str()).collect();
        let is_explained = |(file, line): &&(&Source, usize)| {
            let other = other_of(file, *line, name);
            other.is_some_and(|other| other != file.module && modules.contains(&other))
        };
        let n_explained = places.iter().filter(is_explained).count();
        if places.len() - n_explained > 1 {
            found.push(format!("{name}: {}", modules.join(", ")));
        }
    }
    found
}

/// The module that a comment above a definition names as the home of the same name, if it gives a reason.
fn other_of<'s>(file: &'s Source, line: usize, name: &str) -> Option<&'s str> {
    let lines: Vec<&str> = file.text.lines().take(line).collect();
    let is_above = |line: &&&str| {
        let line = line.trim();
        ["//", "#", "pub ", "struct ", "enum "].iter().any(|start| line.starts_with(start))
    };
    let comment = lines
        .iter()
        .rev()
        .take_while(is_above)
        .find_map(|line| line.trim().strip_prefix(SAME_NAME))?;
    let (path, reason) = comment.split_once(": ")?;
    let module = path.strip_suffix(name)?.strip_suffix("::")?;
    (!reason.trim().is_empty()).then_some(module)
}

#[test]
fn a_metrics_name_stands_in_one_rust_file() {
    holds("metric names", &metric_names(House::standing()));
}

#[test]
fn no_type_name_is_defined_twice_without_a_reason() {
    holds("type names", &homonyms(House::standing()));
}

#[test]
fn a_planted_metric_name_is_found() {
    for text in [
        "const A: &str = \"stepmem_rank_step\";",
        "fn f() { format!(\"stepmem_{x}\"); }",
        "fn f() { g(\"process_open_fds\"); }",
    ] {
        for (path, n) in [
            ("src/output/prometheus.rs", 1),
            ("src/metrics/readers.rs", 1),
            ("src/metrics/table.rs", 0),
        ] {
            let found = metric_names(&House::planted(&[(path, text)]));
            assert_eq!(found.len(), n, "{path}: {text}: {found:?}");
        }
    }
    let in_prose = "/// See `stepmem_rank_step`.\nfn f() {}";
    let house = House::planted(&[("src/output/prometheus.rs", in_prose)]);
    assert_eq!(metric_names(&house), [""; 0]);
}

#[test]
fn a_planted_homonym_is_found_unless_a_reason_stands_beside_it() {
    let found = |text: &str| {
        homonyms(&House::planted(&[
            ("src/net/server.rs", "pub struct Config;"),
            ("src/output/otlp.rs", text),
            (
                "src/report/card.rs",
                "impl Iterator for S { type Item = u8; } fn f() { struct Config; }",
            ),
        ]))
    };
    let twice = ["Config: net::server, output::otlp"];
    assert_eq!(found("pub(crate) enum Config { A }"), twice);
    assert_eq!(found("type Config = u8;"), twice);
    assert_eq!(found("mod inner { pub trait Config {} }"), twice);
    assert_eq!(found("// Same name as net::server::Config:\npub struct Config;"), twice);
    assert_eq!(found("// Same name as net::tls::Config: why.\npub struct Config;"), twice);
    assert_eq!(
        found("// Same name as net::server::Config: why.\n\nfn f() {}\npub struct Config;"),
        twice
    );
    let explained = "// Same name as net::server::Config: each room has its own.\n\
                     /// How it is served.\n#[derive(Clone)]\npub struct Config;";
    assert_eq!(found(explained), [""; 0]);
    assert_eq!(found("#[cfg(test)] struct Config;"), [""; 0]);
}

//! Only `wire` knows the push JSON. A format is the list of a record's keys, or a type of `wire` that derives `Deserialize`; its
//! keys are its fields. To read or write one as JSON, code must name all keys that the format asks for: as strings in one file, or as the
//! fields of a type that it reads. `Deserialize` is free otherwise, for our own JSON has types of its own, which have
//! fields that no push has. A format that asks for a single key (`for_seconds`) cannot be recognized by it, and is left out.

use std::collections::BTreeSet;

use stepmem_engine::wire::{KEYS, Key};

use crate::architecture::source::{Source, holds, product};

const WIRE: &str = "engine::wire";

/// Files that name the keys of a push as a pusher does: the example of `serve --help`, the demo's simulated job, and the tests
/// of the engine; and the table of claims, which names figures of evidence that are called the same.
const EXEMPT: &[&str] = &[
    "src/commands/demo.rs",
    "src/commands/simulated_job.rs",
    "src/commands/serve.rs",
    "crates/engine/tests/",
    "crates/types/src/claims/table.rs",
];

/// A kind of message that `wire` reads.
struct Format {
    name: String,
    keys: BTreeSet<String>,
    /// The keys that every such message has.
    asked: BTreeSet<String>,
}

/// A struct that derives `Deserialize`.
#[derive(Debug)]
struct ReadType {
    name: String,
    line: usize,
    /// The names of its fields in JSON.
    keys: BTreeSet<String>,
    /// The keys that may not be left out.
    asked: BTreeSet<String>,
}

fn formats(files: &[Source]) -> Vec<Format> {
    let wire = files.iter().filter(|file| file.is_in(WIRE));
    let types = wire.flat_map(read_types).map(|read| {
        let ReadType { name, keys, asked, .. } = read;
        Format { name, keys, asked }
    });
    let names = |key: &Key| key.name.to_owned();
    let record = Format {
        name: "a record".to_owned(),
        keys: KEYS.iter().map(names).collect(),
        asked: KEYS.iter().filter(|key| key.is_required()).map(names).collect(),
    };
    types.filter(|format| format.asked.len() > 1).chain([record]).collect()
}

/// The structs of a file that derive `Deserialize`.
fn read_types(file: &Source) -> Vec<ReadType> {
    let code = file.code();
    let mut found = Vec::new();
    let mut attributes = String::new();
    for (idx, (line, text)) in code.iter().enumerate() {
        let Some((_, rest)) = text.split_once("struct ").filter(|_| !text.contains('#')) else {
            attributes.push_str(text);
            if text.ends_with(['{', '}', ';']) {
                attributes.clear();
            }
            continue;
        };
        let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
        if attributes.contains("Deserialize") && text.ends_with('{') {
            let body = code[idx + 1..].iter().map(|(_, line)| line.trim());
            let fields = fields(body);
            let asked = fields.iter().filter(|(_, is_optional)| !is_optional);
            found.push(ReadType {
                name: name.unwrap_or_default().to_owned(),
                line: *line,
                asked: asked.map(|(key, _)| key.clone()).collect(),
                keys: fields.into_iter().map(|(key, _)| key).collect(),
            });
        }
        attributes.clear();
    }
    found
}

/// The fields of a struct by its lines: the key in JSON, and whether it may be left out.
fn fields<'l>(lines: impl Iterator<Item = &'l str>) -> Vec<(String, bool)> {
    let mut attributes = String::new();
    let mut fields = Vec::new();
    for line in lines.take_while(|line| *line != "}") {
        let Some((name, of)) = line.split_once(": ").filter(|_| !line.starts_with('#')) else {
            attributes.push_str(line);
            continue;
        };
        let renamed =
            attributes.split_once("rename = \"").and_then(|(_, rest)| rest.split('"').next());
        let key = renamed.unwrap_or_else(|| name.rsplit(' ').next().unwrap_or_default());
        let is_optional = attributes.contains("default") || of.contains("Option");
        fields.push((key.to_owned(), is_optional));
        attributes.clear();
    }
    fields
}

/// The words that a file has in quotes.
fn named(file: &Source) -> BTreeSet<&str> {
    let words = file.code().into_iter().flat_map(|(_, line)| line.split(['"', '\\', '/']));
    words.filter(|word| !word.is_empty()).collect()
}

fn violations(files: &[Source], formats: &[Format]) -> Vec<String> {
    let others = files.iter().filter(|file| !file.is_in(WIRE));
    others.flat_map(|file| of_file(file, formats)).collect()
}

fn of_file(file: &Source, formats: &[Format]) -> Vec<String> {
    let named = named(file);
    let mut found = Vec::new();
    for format in formats {
        if format.asked.iter().all(|key| named.contains(key.as_str())) {
            found.push(format!(
                "{}: it names every key that {} asks for",
                file.path, format.name
            ));
        }
        for read in read_types(file) {
            if read.keys.is_superset(&format.asked) && read.keys.is_subset(&format.keys) {
                let (path, ReadType { name, line, .. }) = (&file.path, read);
                found.push(format!("{path}:{line}: {name} reads what {} reads", format.name));
            }
        }
    }
    if file.is_in("input") {
        let lines = file.code().into_iter().filter(|(_, line)| line.contains("serde_json"));
        found.extend(lines.map(|(line, _)| format!("{}:{line}: serde_json", file.path)));
    }
    found
}

#[test]
fn only_wire_knows_the_push_format() {
    let formats = formats(product());
    let mut found = violations(product(), &formats);
    found.retain(|at| !EXEMPT.iter().any(|file| at.starts_with(file)));
    holds("push format", &found);
}

#[test]
fn the_formats_are_read_from_wire() {
    let formats = formats(product());
    let asked: Vec<Vec<&str>> = formats
        .iter()
        .map(|format| format.asked.iter().map(String::as_str).collect())
        .collect();
    assert!(asked.contains(&vec!["allocated_bytes", "rank", "step"]), "{asked:?}");
    assert!(
        asked.contains(&vec!["device", "nvml", "time", "total_bytes", "used_bytes"]),
        "{asked:?}"
    );
}

#[test]
fn planted_reading_of_pushes_is_found() {
    let formats = formats(product());
    for (path, text) in [
        (
            "src/commands/ack.rs",
            r#"fn f() { json!({"rank": 1, "step": 2, "allocated_bytes": 3}); }"#,
        ),
        (
            "crates/report/src/card.rs",
            r#"const RECORD: &str = "{\"rank\":1,\"step\":2,\"allocated_bytes\":3}";"#,
        ),
        (
            "src/exporter/mod.rs",
            r#"fn f(v: &Value) { (v["rank"], v.get("step"), v.pointer("/allocated_bytes")); }"#,
        ),
        (
            "crates/types/src/step.rs",
            "#[derive(Clone, Deserialize)]\npub struct Step<'a> {\n    run: Option<&'a str>,\n    rank: u32,\n    step: u64,\n    allocated_bytes: u64,\n}\n",
        ),
        (
            "crates/report/src/compare.rs",
            "#[derive(\n    serde::Deserialize,\n)]\nstruct S {\n    rank: u8,\n    step: u8,\n    #[serde(rename = \"allocated_bytes\")]\n    live: u8,\n}\n",
        ),
        ("src/input/push/http.rs", "fn f() { serde_json::from_slice(b); }"),
    ] {
        let found = violations(&[Source::new(path, text)], &formats);
        assert_eq!(found.len(), 1, "{path}: {text}: {found:?}");
        let wire = [Source::new("crates/engine/src/wire/step.rs", text)];
        assert_eq!(violations(&wire, &formats), [""; 0], "{text}");
    }
}

#[test]
fn our_own_json_may_be_read() {
    let formats = formats(product());
    for text in [
        "#[derive(Deserialize)]\npub struct RankStatus {\n    rank: u32,\n    step: u64,\n    allocated_bytes: u64,\n    steps_total: u64,\n}\n",
        "#[derive(Serialize)]\npub struct Line {\n    rank: u32,\n    step: u64,\n    allocated_bytes: u64,\n}\n",
        "#[derive(Deserialize)]\npub struct RankId {\n    run: Run,\n    rank: Rank,\n}\n",
        r#"const LABELS: &[&str] = &["run", "rank", "uuid"];"#,
    ] {
        let file = Source::new("crates/engine/src/output/status.rs", text);
        assert_eq!(violations(&[file], &formats), [""; 0], "{text}");
    }
}

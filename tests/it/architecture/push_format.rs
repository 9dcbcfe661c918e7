//! Only `wire` knows the push JSON. A format is the list of a record's keys, or a type of `wire` that derives `Deserialize`; its
//! keys are its fields. To read or write one as JSON, code must name all keys that the format asks for: as strings in one file, or as the
//! fields of a type that it reads. `Deserialize` is free otherwise, for our own JSON has types of its own, which have
//! fields that no push has. A format that asks for a single key (`for_seconds`) cannot be recognised by it, and is left out.

use std::collections::BTreeSet;

use stepmem_engine::wire::step::{KEYS, Key};

use crate::architecture::house::{House, holds};
use crate::architecture::items::{Item, Kind, split_at_commas};
use crate::architecture::source::Source;
use crate::architecture::tokens::{Placed, Token};

const WIRE: &str = "engine::wire";

/// Files that name the keys of a push as a pusher does: the example of `serve --help`, and the demo's simulated job.
const PUSHERS: &[&str] =
    &["src/commands/demo.rs", "src/commands/simulated_job.rs", "src/commands/serve.rs"];

/// A kind of message that `wire` reads.
struct Format {
    name: String,
    keys: BTreeSet<String>,
    /// Those that every such message has.
    asked: BTreeSet<String>,
}

/// A field as it is called in JSON, and whether it may be left out.
struct Field {
    key: String,
    is_optional: bool,
}

fn formats(house: &House) -> Vec<Format> {
    let wire = house.files.iter().filter(|file| file.is_in(WIRE));
    let types = wire.flat_map(read_types).map(|item| {
        let fields = fields(&item);
        let asked = fields.iter().filter(|field| !field.is_optional);
        Format {
            name: item.name.to_owned(),
            asked: asked.map(|field| field.key.clone()).collect(),
            keys: fields.into_iter().map(|field| field.key).collect(),
        }
    });
    let names = |key: &Key| key.name.to_owned();
    let record = Format {
        name: "a record".to_owned(),
        keys: KEYS.iter().map(names).collect(),
        asked: KEYS.iter().filter(|key| key.is_required()).map(names).collect(),
    };
    types.filter(|format| format.asked.len() > 1).chain([record]).collect()
}

/// The types of a file that derive `Deserialize`.
fn read_types(file: &Source) -> impl Iterator<Item = Item<'_>> {
    let types = file.items().into_iter().filter(|item| item.kind == Kind::Type);
    types.filter(|item| item.has("Deserialize"))
}

/// The fields of a struct.
fn fields(item: &Item<'_>) -> Vec<Field> {
    let of_field = |field: &[Placed]| {
        let colon = colon(field)?;
        let Token::Word(name) = &field[..colon].last()?.0 else { return None };
        let attributes = &field[..colon - 1];
        let renamed = attributes.windows(3).find_map(|window| match window {
            [(Token::Word(word), _), (Token::Sign('='), _), (Token::Text(text), _)]
                if word == "rename" =>
            {
                Some(text.trim_matches('"').to_owned())
            }
            _ => None,
        });
        let has = |tokens: &[Placed], word: &str| {
            tokens.iter().any(|(token, _)| *token == Token::Word(word.to_owned()))
        };
        let is_optional = has(attributes, "default") || has(&field[colon..], "Option");
        Some(Field { key: renamed.unwrap_or_else(|| name.clone()), is_optional })
    };
    split_at_commas(item.body()).into_iter().filter_map(of_field).collect()
}

/// The keys that literals of a file may be: whole ones, and what stands in quotes within them.
fn named(file: &Source) -> BTreeSet<&str> {
    let words = file.literals().flat_map(|(text, _)| text.split(['"', '\\', '/']));
    words.filter(|word| !word.is_empty()).collect()
}

fn violations(house: &House, formats: &[Format]) -> Vec<String> {
    let others = house.files.iter().filter(|file| !file.is_in(WIRE));
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
        for item in read_types(file) {
            let keys: BTreeSet<String> =
                fields(&item).into_iter().map(|field| field.key).collect();
            if keys.is_superset(&format.asked) && keys.is_subset(&format.keys) {
                let what = format!("{} reads what {} reads", item.name, format.name);
                found.extend(file.at([(what, item.line)]));
            }
        }
    }
    if file.is_in("input") {
        found.extend(file.at(file.places(&["serde_json"])));
    }
    found
}

/// Where the type of an argument or a field begins: its first colon outside of brackets that is not half of `::`.
fn colon(tokens: &[Placed]) -> Option<usize> {
    let mut depth = 0;
    tokens.iter().enumerate().position(|(idx, (token, _))| {
        match token {
            Token::Sign('(' | '[' | '{' | '<') => depth += 1,
            Token::Sign(')' | ']' | '}' | '>') => depth -= 1,
            _ => {}
        }
        let is_colon =
            |idx: usize| tokens.get(idx).is_some_and(|(it, _)| *it == Token::Sign(':'));
        depth == 0 && is_colon(idx) && !is_colon(idx + 1) && (idx == 0 || !is_colon(idx - 1))
    })
}

#[test]
fn only_wire_knows_the_push_format() {
    let formats = formats(House::standing());
    let mut found = violations(House::standing(), &formats);
    found.retain(|at| !PUSHERS.iter().any(|file| at.starts_with(file)));
    holds("push format", &found);
}

#[test]
fn the_formats_are_read_from_wire() {
    let formats = formats(House::standing());
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
    let formats = formats(House::standing());
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
            "#[derive(Clone, Deserialize)] pub struct Step<'a> { run: Option<&'a str>, rank: u32, step: u64, allocated_bytes: u64 }",
        ),
        (
            "crates/report/src/compare.rs",
            r#"#[derive(serde::Deserialize)] struct S { rank: u8, step: u8, #[serde(rename = "allocated_bytes")] live: u8 }"#,
        ),
        ("src/input/push/http.rs", "fn f() { serde_json::from_slice(b); }"),
    ] {
        let found = violations(&House::planted(&[(path, text)]), &formats);
        assert_eq!(found.len(), 1, "{path}: {text}: {found:?}");
        let wire = [("crates/engine/src/wire/step.rs", text)];
        assert_eq!(violations(&House::planted(&wire), &formats), [""; 0], "{text}");
    }
}

#[test]
fn our_own_json_may_be_read() {
    let formats = formats(House::standing());
    for text in [
        "#[derive(Deserialize)] pub struct RankStatus { rank: u32, step: u64, allocated_bytes: u64, steps_total: u64 }",
        "#[derive(Serialize)] pub struct Line { rank: u32, step: u64, allocated_bytes: u64 }",
        "#[derive(Deserialize)] pub struct RankId { run: Run, rank: Rank }",
        r#"const LABELS: &[&str] = &["run", "rank", "uuid"];"#,
    ] {
        let house = House::planted(&[("crates/engine/src/output/status.rs", text)]);
        assert_eq!(violations(&house, &formats), [""; 0], "{text}");
    }
}

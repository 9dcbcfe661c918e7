//! Every number, list and text of a saved state has a range: one that is out of it is refused where it is read, or does
//! no harm. Each is tried once for its field, in a state with a part of every kind.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stepmem_engine::saved::{SaveCursor, SavedPart, SavedState};
use stepmem_fuzz_targets::state::{RANKS_MAX, go_on, true_engine};

/// More values than nearly any list of a state has, and more characters than any text.
const LONG: usize = 2_000;
/// More values than a list has that grows with the number of ranks.
const LONGEST: usize = 100_000;
/// Pushes after a state was resumed: ten of each rank, and a tick after each twenty.
const PUSHES: u64 = 40;

/// A part of a state as JSON, whose numbers have names, and as it is in a file.
struct Part {
    json: Value,
    bytes: Vec<u8>,
}

fn parts() -> Vec<Part> {
    let (engine, now) = true_engine();
    let (mut parts, mut cursor) = (Vec::new(), SaveCursor::default());
    while let Some((part, next)) = engine.save(cursor, now) {
        let json = serde_json::to_value(&part).unwrap();
        parts.push(Part { json, bytes: postcard::to_allocvec(&part).unwrap() });
        cursor = next;
    }
    parts
}

/// The part with another value at a place, unless it is refused.
fn changed(part: &Part, pointer: &str, value: &Value) -> Result<SavedPart, String> {
    let mut json = part.json.clone();
    *json.pointer_mut(pointer).unwrap() = value.clone();
    serde::Deserialize::deserialize(&json).map_err(|error: serde_json::Error| error.to_string())
}

/// The state of these parts with another one at a place, unless it is refused. Beside the state of a rank there is none of
/// another one: they are read most slowly, and no number of one has to do with one of another.
fn state(parts: &[Part], place: usize, changed: SavedPart) -> Result<SavedState, String> {
    let (mut saved, is_rank) = (SavedState::default(), matches!(changed, SavedPart::Rank(..)));
    let mut changed = Some(changed);
    for (idx, part) in parts.iter().enumerate() {
        if is_rank && idx != place && part.json.get("Rank").is_some() {
            continue;
        }
        let own = || postcard::from_bytes(&part.bytes).unwrap();
        let part = changed.take_if(|_| idx == place).unwrap_or_else(own);
        saved.add(part, RANKS_MAX)?;
    }
    Ok(saved)
}

/// The places of a value, each by its pointer, and by its name without positions in lists.
fn places(value: &Value, (pointer, name): (&str, &str), found: &mut Vec<(String, String)>) {
    found.push((pointer.to_owned(), name.to_owned()));
    match value {
        Value::Array(values) => {
            for (idx, value) in values.iter().enumerate() {
                // The values of a pair are of their own kinds.
                let name = if values.len() <= 3 {
                    format!("{name}/{idx}")
                } else {
                    format!("{name}/*")
                };
                places(value, (&format!("{pointer}/{idx}"), &name), found);
            }
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                places(value, (&format!("{pointer}/{key}"), &format!("{name}/{key}")), found);
            }
        }
        _ => {}
    }
}

/// What is put in the place of a value: the first must be refused, the others may be harmless.
fn instead_of(value: &Value) -> (Vec<Value>, Vec<Value>) {
    match value {
        Value::Number(number) if number.is_f64() => {
            (vec![json!(1e300), json!(-1e300)], vec![json!(0.0), json!(-1.0)])
        }
        Value::Number(_) => (Vec::new(), vec![json!(0), json!(u32::MAX), json!(u64::MAX)]),
        Value::String(_) => (vec![json!("\u{1b}[2J"), json!("x".repeat(LONG))], Vec::new()),
        Value::Array(values) if !values.is_empty() => {
            (vec![Value::Array(vec![values[0].clone(); LONG])], vec![json!([])])
        }
        _ => (Vec::new(), Vec::new()),
    }
}

#[test]
fn every_number_list_and_text_of_a_state_has_a_range() {
    let parts = parts();
    let mut tried = BTreeSet::new();
    let (mut n_refused, mut n_harmless) = (0, 0);
    for (idx, part) in parts.iter().enumerate() {
        let mut found = Vec::new();
        places(&part.json, ("", ""), &mut found);
        for (pointer, name) in found {
            let value = part.json.pointer(&pointer).unwrap();
            let (wrong, doubtful) = instead_of(value);
            let kind = (name.clone(), value.is_f64(), value.is_u64(), value.is_array());
            if wrong.len() + doubtful.len() == 0 || !tried.insert(kind) {
                continue;
            }
            let with = |instead: &Value| {
                changed(part, &pointer, instead).and_then(|part| state(&parts, idx, part))
            };
            for instead in &wrong {
                let is_refused = with(instead).is_err()
                    || instead.get(0).is_some_and(|first| {
                        with(&Value::Array(vec![first.clone(); LONGEST])).is_err()
                    });
                assert!(is_refused, "{name} takes {:.80}", instead.to_string());
                n_refused += 1;
            }
            for instead in &doubtful {
                match with(instead) {
                    Ok(saved) => {
                        go_on(saved, PUSHES);
                        n_harmless += 1;
                    }
                    Err(_) => n_refused += 1,
                }
            }
        }
    }
    assert!(tried.len() > 200 && n_refused > 400, "{} {n_refused} {n_harmless}", tried.len());
}

//! Every number, list and text of a saved state has a range: one that is out of it is refused where it is read, or does
//! no harm. Each is tried once for its field, in a state with a part of every kind.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stepmem_engine::output::saved_state::{SaveCursor, SavedPart, SavedState};
use stepmem_fuzz_targets::state::{RANKS_MAX, go_on, true_engine};

/// More values than nearly any list of a state has, and more characters than any text.
const LONG: usize = 2_000;
/// More values than a list has that grows with the number of ranks.
const LONGEST: usize = 100_000;

/// The parts of a state as JSON, whose numbers have names.
fn parts() -> Vec<Value> {
    let (engine, now) = true_engine();
    let (mut parts, mut cursor) = (Vec::new(), SaveCursor::default());
    while let Some((part, next)) = engine.save(cursor, now) {
        parts.push(serde_json::to_value(&part).unwrap());
        cursor = next;
    }
    parts
}

/// The state of these parts, unless one is refused.
fn state(parts: &[Value]) -> Result<SavedState, String> {
    let mut saved = SavedState::default();
    for part in parts {
        let part: SavedPart = serde::Deserialize::deserialize(part)
            .map_err(|error: serde_json::Error| error.to_string())?;
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
        Value::Number(_) => {
            (Vec::new(), vec![json!(0), json!(u32::MAX), json!(u64::MAX - 1), json!(u64::MAX)])
        }
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
    for idx in 0..parts.len() {
        let mut found = Vec::new();
        places(&parts[idx], ("", ""), &mut found);
        for (pointer, name) in found {
            let value = parts[idx].pointer(&pointer).unwrap().clone();
            let (wrong, doubtful) = instead_of(&value);
            let kind = (name.clone(), value.is_f64(), value.is_u64(), value.is_array());
            if wrong.len() + doubtful.len() == 0 || !tried.insert(kind) {
                continue;
            }
            let with = |instead: &Value| {
                let mut parts = parts.clone();
                *parts[idx].pointer_mut(&pointer).unwrap() = instead.clone();
                state(&parts)
            };
            for instead in &wrong {
                // Of findings, a file has as many as its part has bytes for (`PART_BYTES_MAX`).
                let is_refused = name == "/Rest/findings"
                    || with(instead).is_err()
                    || instead.get(0).is_some_and(|first| {
                        with(&Value::Array(vec![first.clone(); LONGEST])).is_err()
                    });
                assert!(is_refused, "{name} takes {:.80}", instead.to_string());
                n_refused += 1;
            }
            for instead in &doubtful {
                match with(instead) {
                    Ok(saved) => {
                        go_on(saved);
                        n_harmless += 1;
                    }
                    Err(_) => n_refused += 1,
                }
            }
        }
    }
    assert!(tried.len() > 200 && n_refused > 400, "{} {n_refused} {n_harmless}", tried.len());
}

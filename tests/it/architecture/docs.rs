//! A doc comment says more than the name below it: a unit, a range, what absence means. One that only repeats the name
//! is left out.

use crate::architecture::house::{House, holds};
use crate::architecture::source::Source;

/// Words that add nothing to a name.
const EMPTY_WORDS: [&str; 17] = [
    "a", "all", "an", "every", "in", "is", "it", "its", "itself", "of", "one", "the", "their",
    "this", "what", "which", "whole",
];

/// `path:line` of every doc comment of one line that only repeats the name of its item, field or variant.
fn fillers(house: &House) -> Vec<String> {
    let of_file = |file: &Source| {
        let found = repeats(&file.text);
        found.into_iter().map(|line| format!("{}:{line}", file.path)).collect::<Vec<_>>()
    };
    house.files.iter().flat_map(of_file).collect()
}

/// The lines, from 1, of the comments of a text that only repeat a name.
fn repeats(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let doc = |idx: usize| lines.get(idx).and_then(|line| line.strip_prefix("///"));
    let mut found = Vec::new();
    for idx in 0..lines.len() {
        let (Some(comment), None) = (doc(idx), doc(idx + 1)) else { continue };
        if idx > 0 && doc(idx - 1).is_some() {
            continue;
        }
        let item = lines.iter().skip(idx + 1).find(|line| !line.starts_with("#["));
        let name = item.map_or(Vec::new(), |item| words(name_of(item)));
        let said = words(comment);
        let is_new = |word: &String| {
            let is_named = name.iter().any(|part| stem(part) == stem(word));
            !EMPTY_WORDS.contains(&word.as_str()) && !is_named
        };
        if !name.is_empty() && !said.is_empty() && !said.iter().any(is_new) {
            found.push(idx + 1);
        }
    }
    found
}

/// The name that a line declares: what follows its keyword, else its first word but for `pub`.
fn name_of(item: &str) -> &str {
    let mut words = item
        .split(|sign: char| !sign.is_alphanumeric() && sign != '_')
        .filter(|word| !["", "pub", "super", "crate", "async", "unsafe", "in"].contains(word));
    let first = words.next().unwrap_or_default();
    let is_keyword = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod"];
    if is_keyword.contains(&first) { words.next().unwrap_or_default() } else { first }
}

/// The words of a name or a sentence in lower case: `RunStatus` has "run" and "status".
fn words(text: &str) -> Vec<String> {
    let mut spaced = String::new();
    let mut was_lower = false;
    for sign in text.chars() {
        if sign.is_uppercase() && was_lower {
            spaced.push(' ');
        }
        was_lower = sign.is_lowercase() || sign.is_numeric();
        spaced.extend(sign.to_lowercase());
    }
    let parts = spaced.split(|sign: char| !sign.is_alphanumeric());
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// A word without a plural's s.
fn stem(word: &str) -> &str {
    word.trim_end_matches('s')
}

#[test]
fn no_doc_comment_only_repeats_a_name() {
    holds("doc comments that repeat a name", &fillers(House::standing()));
}

#[test]
fn a_planted_filler_is_found() {
    for text in [
        "/// The run.\npub run: Run,",
        "/// Its processes.\n#[serde(default)]\nprocesses: Vec<Process>,",
        "/// A device.\nDevice(GpuUuid),",
        "/// Run status.\npub struct RunStatus {",
        "/// The whole stack.\nStack,",
    ] {
        assert_eq!(repeats(text), [1], "{text}");
    }
    for text in [
        "/// Unix time in seconds.\npub time: f64,",
        "/// Global rank; absent for a process.\npub rank: Option<Rank>,",
        "/// The run\n/// that was asked.\npub run: Run,",
        "// The run.\npub run: Run,",
    ] {
        assert!(repeats(text).is_empty(), "{text}");
    }
}

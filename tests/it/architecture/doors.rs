//! A door (`mod.rs`, and `lib.rs` for the crate) holds its paragraph, its `mod` lines, and its table where the room has
//! one: no code.

use crate::architecture::house::{House, holds};
use crate::architecture::items::{Item, Kind};
use crate::architecture::source::Source;
use crate::architecture::tokens::Token;

/// Doors with a table, and its name: that of a constant, or of the macro that makes it.
const TABLES: &[(&str, &str)] =
    &[("analysis::diagnosis", "diagnoses"), ("commands", "COMMANDS")];

fn violations(house: &House) -> Vec<String> {
    house.files.iter().filter(|file| file.is_door()).flat_map(of_door).collect()
}

fn of_door(door: &Source) -> Vec<String> {
    let table = TABLES.iter().find(|(room, _)| door.module == *room).map(|(_, table)| *table);
    let is_allowed = |item: &Item<'_>| match item.kind {
        // A module with a body is code without a file.
        Kind::Module => item.after.first().is_some_and(|(next, _)| *next == Token::Sign(';')),
        Kind::Constant => table == Some(item.name),
        Kind::Function | Kind::Type => false,
    };
    let items = door.items();
    let mut held: Vec<&str> =
        items.iter().filter(|item| !is_allowed(item)).map(|item| item.name).collect();
    let words = ["impl", "macro_rules", "extern", "use"];
    let words = &words[..if table.is_some() { 3 } else { 4 }];
    held.extend(words.iter().filter(|word| !door.places(&[word]).is_empty()));
    held.extend(door.macros().filter(|name| table != Some(*name)));
    if !door.text.starts_with("//!") && !door.text.starts_with("#![doc") {
        held.push("no paragraph");
    }
    if held.is_empty() {
        Vec::new()
    } else {
        vec![format!("{}: {}", door.path, held.join(", "))]
    }
}

#[test]
fn doors_hold_their_paragraph_their_modules_and_their_table() {
    holds("doors", &violations(House::standing()));
    holds("doors of the tests", &violations(House::tests()));
}

#[test]
fn a_planted_living_room_is_found() {
    for text in [
        "//! A room.\npub mod a; pub fn f() {}",
        "//! A room.\npub mod a; struct S;",
        "//! A room.\npub mod a; pub use a::S;",
        "//! A room.\npub mod a; impl a::S {}",
        "//! A room.\npub mod a; pub const LIMIT: u8 = 1;",
        "//! A room.\npub mod a { fn f() {} }",
        "pub mod a;",
    ] {
        let found = violations(&House::planted(&[("src/report/mod.rs", text)]));
        assert!(!found.is_empty(), "{text}");
    }
    for (room, table) in [
        ("commands", "//! A room.\nmod a; use a::A; pub const COMMANDS: &[D] = &[A];"),
        ("analysis/diagnosis", "//! A room.\nmod a; kind::diagnoses! { A: a, a::A; }"),
    ] {
        let door = format!("src/{room}/mod.rs");
        assert_eq!(violations(&House::planted(&[(&door, table)])), [""; 0]);
        assert_ne!(violations(&House::planted(&[("src/report/mod.rs", table)])), [""; 0]);
    }
    let plain =
        "//! A room.\n\n/// First.\npub mod a;\n\npub(crate) mod b;\n#[cfg(test)] mod tests;";
    assert_eq!(violations(&House::planted(&[("src/report/mod.rs", plain)])), [""; 0]);
}

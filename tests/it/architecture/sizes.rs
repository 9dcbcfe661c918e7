//! How long a file may be, and how much a function may take. Clippy counts the lines of functions and their arguments;
//! here the elements of a tuple count as arguments, since a tuple is not a way around the limit.

use std::fs;

use crate::architecture::house::{House, holds};
use crate::architecture::items::{Item, Kind, inside, split_at_commas};
use crate::architecture::source::Source;
use crate::architecture::tokens::{Placed, Token};
use crate::rig::folder::root;

const LINES_MAX: usize = 600;
const ARGUMENTS_MAX: usize = 4;

/// Tables, which are as long as they have rows.
const TABLES: &[&str] = &["src/config/settings.rs", "src/metrics/table.rs"];

fn too_long(house: &House) -> Vec<String> {
    let is_long = |file: &&Source| {
        file.text.lines().count() > LINES_MAX && !TABLES.contains(&file.path.as_str())
    };
    let named = |file: &Source| format!("{}: {} lines", file.path, file.text.lines().count());
    house.files.iter().filter(is_long).map(named).collect()
}

fn too_wide(house: &House) -> Vec<String> {
    let of_file = |file: &Source| {
        let functions = file.items().into_iter().filter(|item| item.kind == Kind::Function);
        let wide = functions
            .map(|item| (n_arguments(&item), item))
            .filter(|(n, _)| *n > ARGUMENTS_MAX);
        let named =
            wide.map(|(n, item)| (format!("{} takes {n} arguments", item.name), item.line));
        file.at(named.collect::<Vec<_>>())
    };
    house.files.iter().flat_map(of_file).collect()
}

/// The arguments of a function, each element of a tuple counted.
fn n_arguments(function: &Item<'_>) -> usize {
    let open = open_parenthesis(function.after);
    let arguments = inside(&function.after[open..], '(', ')');
    split_at_commas(arguments).iter().map(|argument| n_values(argument)).sum()
}

/// Where the arguments begin: behind the generics, if there are any.
fn open_parenthesis(after: &[Placed]) -> usize {
    let mut depth = 0;
    for (idx, (token, _)) in after.iter().enumerate() {
        match token {
            Token::Sign('<') => depth += 1,
            Token::Sign('>') if idx > 0 && after[idx - 1].0 != Token::Sign('-') => depth -= 1,
            Token::Sign('(') if depth == 0 => return idx,
            _ => {}
        }
    }
    0
}

/// 1, or of a tuple its elements.
fn n_values(argument: &[Placed]) -> usize {
    let mut of_type = colon(argument).map_or(&[][..], |colon| &argument[colon + 1..]);
    while let [(Token::Sign('&'), _), rest @ ..] = of_type {
        of_type = rest;
    }
    match of_type {
        [(Token::Sign('('), _), ..] => split_at_commas(inside(of_type, '(', ')')).len().max(1),
        _ => 1,
    }
}

/// Where the type of an argument or a field begins: its first colon outside of brackets that is not half of `::`.
pub fn colon(tokens: &[Placed]) -> Option<usize> {
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
fn no_file_is_longer_than_the_limit_but_named_tables() {
    holds("lengths", &too_long(House::standing()));
    holds("lengths of the tests", &too_long(House::tests()));
    for table in TABLES {
        assert!(root().join(table).exists(), "{table} is exempt and not there");
    }
}

#[test]
fn no_function_takes_more_than_the_limit_by_way_of_tuples() {
    holds("arguments", &too_wide(House::standing()));
}

#[test]
fn main_is_short() {
    let main = House::standing().file("main").unwrap();
    assert!(main.text.lines().count() <= 40);
}

#[test]
fn clippy_holds_the_other_limits() {
    let settings = fs::read_to_string(root().join("clippy.toml")).unwrap();
    for limit in ["too-many-lines-threshold = 70", "too-many-arguments-threshold = 4"] {
        assert!(settings.lines().any(|line| line == limit), "{limit}");
    }
}

#[test]
fn a_planted_long_file_is_found() {
    let [long, exact] = [601, 600].map(|n_lines| "// A line.\n".repeat(n_lines));
    let found = too_long(&House::planted(&[
        ("src/report/card.rs", &long),
        ("src/report/compare.rs", &exact),
        ("src/metrics/table.rs", &long),
    ]));
    assert_eq!(found, ["src/report/card.rs: 601 lines"]);
}

#[test]
fn a_planted_tuple_that_hides_an_argument_is_found() {
    let wide = "impl S { fn wide<F: Fn(u8) -> u8>(&self, a: Vec<(u8, u8)>, (b, c): (&str, u32), d: F) {} }";
    let found = too_wide(&House::planted(&[("src/report/card.rs", wide)]));
    assert_eq!(found, ["src/report/card.rs:1: wide takes 5 arguments"]);
    for fine in [
        "fn f(a: u8, b: (u8, u8), c: u8) {}",
        "fn f() {}",
        "fn f(a: fn(u8, u8), b: u8) -> u8 { 1 }",
    ] {
        assert_eq!(
            too_wide(&House::planted(&[("src/report/card.rs", fine)])),
            [""; 0],
            "{fine}"
        );
    }
}

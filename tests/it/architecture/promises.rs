//! docs/security.md against the repository: each promise names what holds it, and each test, script and target that it
//! names is there; the table of fuzzing has every target.

use std::collections::BTreeSet;
use std::fs;

use crate::architecture::source::{Source, holds, product, tests};
use crate::rig::folder::root;

fn page() -> String {
    fs::read_to_string(root().join("docs/security.md")).unwrap()
}

/// The rows of the table below this head: the two first cells of each.
fn rows<'p>(page: &'p str, head: &str) -> Vec<(&'p str, &'p str)> {
    let rows = page.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let cells = rows.take_while(|line| line.starts_with('|')).map(|row| {
        let mut cells = row.split('|').skip(1).map(str::trim);
        (cells.next().unwrap_or_default(), cells.next().unwrap_or_default())
    });
    cells.collect()
}

/// The texts between backquotes.
fn spans(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The promises that name nothing, and the names that stand for nothing.
fn broken(files: [&[Source]; 2], page: &str) -> Vec<String> {
    let mut broken = Vec::new();
    for (promise, held_by) in rows(page, "| promise | held by |") {
        let names = spans(held_by);
        if names.is_empty() && !promise.starts_with("**") {
            broken.push(format!("nothing holds {promise:?}"));
        }
        broken.extend(names.into_iter().filter_map(|name| missing(files, name)));
    }
    broken
}

/// The complaint about a name that is none of these: a target of make, a file, a test in a file
/// of Python, or tests of ours by their path. `…` leaves out the rest of one test's name.
fn missing(files: [&[Source]; 2], name: &str) -> Option<String> {
    let text_of = |path: &str| fs::read_to_string(root().join(path)).unwrap_or_default();
    let is_there = if let Some(target) = name.strip_prefix("make ") {
        text_of("Makefile").lines().any(|line| line.starts_with(&format!("{target}:")))
    } else if let Some((file, test)) = name.split_once(".py::") {
        let text = text_of(&format!("{file}.py"));
        let names = text.split("\ndef ").skip(1).map(|after| after.split('(').next());
        let is_named = |name: &str| match test.strip_suffix('…') {
            Some(start) => name.starts_with(start),
            None => name == test,
        };
        names.flatten().filter(|name| is_named(name)).count() == 1
    } else if name.contains('/') {
        root().join(name).exists()
    } else {
        let n_tests = n_tests(files, name);
        if name.ends_with('…') { n_tests == 1 } else { n_tests > 0 }
    };
    (!is_there).then(|| format!("{name} is not there, or is not one test"))
}

/// The number of tests that a path names: those of a module and the modules in it, or of a
/// module those whose names begin so.
fn n_tests(files: [&[Source]; 2], path: &str) -> usize {
    let path = path.trim_end_matches("::tests");
    let (module, start) = match path.strip_suffix('…') {
        Some(cut) => cut.rsplit_once("::").unwrap_or(("", cut)),
        None => (path, ""),
    };
    let files = files.into_iter().flatten();
    let files =
        files.filter(|file| file.is_in(module) && (start.is_empty() || file.module == module));
    files.map(|file| tests_of(file).filter(|test| test.starts_with(start)).count()).sum()
}

/// The names of a file's tests.
fn tests_of(file: &Source) -> impl Iterator<Item = &str> {
    file.text.split("#[test]").skip(1).filter_map(|after| {
        let name = after.split_once("fn ")?.1;
        name.split_once('(').map(|(name, _)| name)
    })
}

#[test]
fn every_promise_of_the_security_page_is_held_by_what_it_names() {
    let page = page();
    assert!(rows(&page, "| promise | held by |").len() > 25, "{page}");
    holds("docs/security.md", &broken([tests(), product()], &page));
}

#[test]
fn the_table_of_fuzzing_has_every_target() {
    let page = page();
    let listed: BTreeSet<&str> = rows(&page, "| target | input |")
        .iter()
        .flat_map(|(target, _)| spans(target))
        .collect();
    let lib = fs::read_to_string(root().join("fuzz/targets/src/lib.rs")).unwrap();
    let targets = lib.split("name: \"").skip(1).map(|after| after.split('"').next().unwrap());
    let mut targets: BTreeSet<&str> = targets.collect();
    assert!(targets.len() > 10, "{targets:?}");
    targets.insert("test_trust.py");
    assert_eq!(listed, targets);
}

#[test]
fn a_planted_promise_without_a_test_is_found() {
    let page = "| promise | held by |\n|---|---|\n\
                | **Against others** | |\n\
                | Doors are locked | `doors::locked…`, `doors`, `make test`, `tests/it/main.rs` |\n\
                | Keys are kept | `python/tests/test_trust.py::test_own_socket_and_root_are_trusted` |\n\
                | Windows too | |\n\
                | Walls | `doors::wall…`, `doors::lock…`, `walls`, `make walls`, `tests/walls.py` |\n\
                | Roofs | `python/tests/test_trust.py::test_roof` |\n";
    let planted = [Source::new(
        "tests/it/doors.rs",
        "#[test]\nfn locked_at_night() {}\n#[test]\nfn locks_turn() {}\nfn wall() {}",
    )];
    let is_not = |name: &str| format!("{name} is not there, or is not one test");
    let names = [
        "doors::wall…",
        "doors::lock…",
        "walls",
        "make walls",
        "tests/walls.py",
        "python/tests/test_trust.py::test_roof",
    ];
    let expected: Vec<String> =
        [vec!["nothing holds \"Windows too\"".to_owned()], names.map(is_not).to_vec()].concat();
    assert_eq!(broken([&planted, &[]], page), expected);
}

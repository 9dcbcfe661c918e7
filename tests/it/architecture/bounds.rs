//! The table of bounds in ARCHITECTURE.md against the code: each bound that it names exists, and each bound that a room
//! publishes is in it.

use std::fs;
use std::sync::LazyLock;

use stepmem::config::table::SETTINGS;

use crate::architecture::house::{House, holds};
use crate::architecture::items::Kind;
use crate::architecture::source::Source;
use crate::rig::folder::root;

/// The endings of the names of bounds.
const ENDINGS: [&str; 3] = ["_MAX", "_CAPACITY", "_WITHIN"];

static ARCHITECTURE: LazyLock<String> =
    LazyLock::new(|| fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap());

/// Where a row of the table says that its bound is.
#[derive(Debug, PartialEq, Eq)]
enum Bound {
    /// A constant by its path: of a module, or of a type in it.
    Constant(String),
    /// The key of a setting.
    Setting(String),
    /// A name in a file that is not Rust.
    Elsewhere(String, String),
}

/// The bounds in the column `where`.
fn table(document: &str) -> Vec<Bound> {
    let rows = document
        .lines()
        .skip_while(|line| !line.starts_with("| bound |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    rows.flat_map(|row| of_cell(row.split('|').nth(2).unwrap_or_default())).collect()
}

fn of_cell(cell: &str) -> Vec<Bound> {
    let spans: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
    if let [name, file] = spans[..]
        && file.contains('/')
    {
        return vec![Bound::Elsewhere(name.to_owned(), file.to_owned())];
    }
    let mut room = "";
    let mut bounds = Vec::new();
    for span in spans {
        if let Some(key) = span.strip_prefix("--") {
            bounds.push(Bound::Setting(key.to_owned()));
            continue;
        }
        let (path, names) = span.rsplit_once("::").unwrap_or((room, span));
        room = path;
        let names = names.trim_matches(['{', '}']).split(", ");
        bounds.extend(names.map(|name| Bound::Constant(format!("{path}::{name}"))));
    }
    bounds
}

/// The bounds of the table that do not exist.
fn dead(house: &House, table: &[Bound]) -> Vec<String> {
    let exists = |bound: &&Bound| match bound {
        Bound::Constant(path) => is_constant(house, path),
        Bound::Setting(key) => SETTINGS.iter().any(|setting| setting.key == key),
        Bound::Elsewhere(name, file) => {
            fs::read_to_string(root().join(file)).is_ok_and(|text| text.contains(name.as_str()))
        }
    };
    let written = |bound: &Bound| match bound {
        Bound::Constant(path) => path.clone(),
        Bound::Setting(key) => format!("--{key}"),
        Bound::Elsewhere(name, file) => format!("{name} in {file}"),
    };
    table.iter().filter(|bound| !exists(bound)).map(written).collect()
}

/// Whether a file has this constant, or one of its types has it.
fn is_constant(house: &House, path: &str) -> bool {
    house.files.iter().any(|file| constants(file).any(|(constant, _)| constant == path))
}

/// The constants of a file by their paths, and whether others may name them.
fn constants(file: &Source) -> impl Iterator<Item = (String, bool)> {
    let constants = file.items().into_iter().filter(|item| item.kind == Kind::Constant);
    constants.map(|item| {
        let owner = item.owner.map(|owner| format!("{owner}::")).unwrap_or_default();
        (format!("{}::{owner}{}", file.module, item.name), item.is_public)
    })
}

/// The bounds that files publish and the table does not have.
fn missing(house: &House, table: &[Bound]) -> Vec<String> {
    let is_bound = |path: &str| ENDINGS.iter().any(|ending| path.ends_with(ending));
    let is_listed = |path: &str| {
        table.iter().any(|bound| matches!(bound, Bound::Constant(listed) if listed == path))
    };
    let published = house.files.iter().flat_map(constants).filter(|(_, is_public)| *is_public);
    let paths = published.map(|(path, _)| path);
    paths.filter(|path| is_bound(path) && !is_listed(path)).collect()
}

#[test]
fn every_bound_of_the_table_exists() {
    let table = table(&ARCHITECTURE);
    assert!(table.len() > 30, "{table:?}");
    holds("bounds that are not there", &dead(House::standing(), &table));
}

#[test]
fn every_bound_of_a_room_is_in_the_table() {
    let table = table(&ARCHITECTURE);
    holds("bounds without a row", &missing(House::standing(), &table));
}

#[test]
fn a_planted_bound_is_missed_on_either_side() {
    let document = "| bound | where | when it is reached |\n|---|---|---|\n\
                    | heads | `net::server::{HEAD_MAX, GONE_MAX}`, `IDLE_WITHIN` | 431 |\n\
                    | a rank | `model::ids::Run::BYTES_MAX`, `--rank.max`, `--rank.min` | refused |\n\
                    | a ring | `RING_CAPACITY` in `python/stepmem/_sender.py` | forgotten |\n\
                    | rows | as many as TraceML | forgotten |\n\n| other | `a::B_MAX` |";
    let table = table(document);
    let house = House::planted(&[
        (
            "src/net/server.rs",
            "pub const HEAD_MAX: u8 = 1; pub(crate) const IDLE_WITHIN: u8 = 2; const OWN_MAX: u8 = 3;",
        ),
        (
            "src/model/ids.rs",
            "pub struct Run; impl Run { pub const BYTES_MAX: u8 = 1; } pub const PID_MAX: u8 = 2;",
        ),
    ]);
    assert_eq!(dead(&house, &table), ["net::server::GONE_MAX", "--rank.min"]);
    assert_eq!(missing(&house, &table), ["model::ids::PID_MAX"]);
    let lost =
        [Bound::Elsewhere("RING_CAPACITY".to_owned(), "python/stepmem/none.py".to_owned())];
    assert_eq!(dead(&house, &lost), ["RING_CAPACITY in python/stepmem/none.py"]);
}

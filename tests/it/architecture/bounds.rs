//! The tables of bounds in docs/limits.md against the code: each bound that they name exists and has this value, each
//! bound that a room publishes is in them, and each counter is a metric. `STEPMEM_BLESS=1` writes the values.

use std::sync::LazyLock;
use std::{env, fs};

use stepmem::config::table::SETTINGS;
use stepmem_engine::metrics::table::METRICS;

use crate::architecture::house::{House, holds};
use crate::architecture::items::Kind;
use crate::architecture::source::Source;
use crate::architecture::tokens::{Token, read};
use crate::architecture::values::{evaluate, written};
use crate::rig::folder::root;

/// The endings of the names of bounds.
const ENDINGS: [&str; 3] = ["_MAX", "_CAPACITY", "_WITHIN"];
const PAGE: &str = "docs/limits.md";
/// Stands for the value of a setting without a default, and of a bound that is no constant.
const NO_VALUE: &str = "–";

static LIMITS: LazyLock<String> =
    LazyLock::new(|| fs::read_to_string(root().join(PAGE)).unwrap());

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

/// The cells of a row of a table of bounds: bound, where, value, what happens beyond it, counters.
fn cells(line: &str) -> Option<[&str; 5]> {
    let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
    let [bound, place, value, beyond, counters, ""] = cells[..] else { return None };
    let is_row = bound != "bound" && !bound.starts_with("---");
    is_row.then_some([bound, place, value, beyond, counters])
}

/// The rows of the tables of bounds.
fn rows(document: &str) -> impl Iterator<Item = [&str; 5]> {
    document.lines().filter_map(cells)
}

/// The bounds in the column `where`.
fn table(document: &str) -> Vec<Bound> {
    rows(document).flat_map(|[_, place, ..]| of_cell(place)).collect()
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
    constants.map(|item| (path_of(file, item.owner, item.name), item.is_public))
}

fn path_of(file: &Source, owner: Option<&str>, name: &str) -> String {
    let owner = owner.map(|owner| format!("{owner}::")).unwrap_or_default();
    format!("{}::{owner}{name}", file.module)
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

/// The value of a bound as the page has it.
fn value(house: &House, bound: &Bound) -> String {
    let computed = || "computed".to_owned();
    match bound {
        Bound::Constant(path) => {
            let items = house.files.iter().flat_map(|file| {
                let items = file.items().into_iter().filter(|item| item.kind == Kind::Constant);
                items.map(move |item| (path_of(file, item.owner, item.name), item))
            });
            let item = items.into_iter().find(|(found, _)| found == path).map(|(_, item)| item);
            let is_equals = |(token, _): &(Token, usize)| *token == Token::Sign('=');
            item.and_then(|item| {
                let begin = item.after.iter().position(is_equals)? + 1;
                Some(written(item.name, evaluate(&item.after[begin..])?))
            })
            .unwrap_or_else(computed)
        }
        Bound::Setting(key) => {
            let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) else {
                return NO_VALUE.to_owned();
            };
            match setting.default.parse() {
                Ok(number) => written(setting.value_name, (number, false)),
                Err(_) if setting.default.is_empty() => NO_VALUE.to_owned(),
                Err(_) => setting.default.to_owned(),
            }
        }
        Bound::Elsewhere(name, file) => {
            let text = fs::read_to_string(root().join(file)).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} = ")));
            let value = line.and_then(|line| evaluate(&read(file, line.split('#').next()?)));
            value.map_or_else(computed, |value| written(name, value))
        }
    }
}

/// The values of a row; one where all are the same.
fn values(house: &House, place: &str) -> String {
    let mut values: Vec<String> =
        of_cell(place).iter().map(|bound| value(house, bound)).collect();
    if values.iter().all(|value| Some(value) == values.first()) {
        values.truncate(1);
    }
    if values.is_empty() { NO_VALUE.to_owned() } else { values.join("; ") }
}

/// The document with the values that the code has.
fn with_values(house: &House, document: &str) -> String {
    let lines = document.lines().map(|line| match cells(line) {
        Some([bound, place, _, beyond, counters]) => {
            let end =
                if counters.is_empty() { "|".to_owned() } else { format!("{counters} |") };
            format!("| {bound} | {place} | {} | {beyond} | {end}\n", values(house, place))
        }
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// The counters of the tables that are no metrics.
fn unknown_counters(document: &str) -> Vec<String> {
    let counters =
        rows(document).flat_map(|[.., counters]| counters.split('`').skip(1).step_by(2));
    let is_metric = |counter: &&str| {
        let name = format!("stepmem_{}", counter.split('{').next().unwrap_or_default());
        METRICS.iter().any(|metric| metric.name == name)
    };
    counters.filter(|counter| !is_metric(counter)).map(str::to_owned).collect()
}

#[test]
fn every_bound_of_the_tables_exists() {
    let table = table(&LIMITS);
    assert!(table.len() > 100, "{table:?}");
    holds("bounds that are not there", &dead(House::standing(), &table));
    holds("counters that are no metrics", &unknown_counters(&LIMITS));
}

#[test]
fn every_bound_has_the_value_of_the_code() {
    let current = with_values(House::standing(), &LIMITS);
    if env::var_os("STEPMEM_BLESS").is_some() {
        fs::write(root().join(PAGE), &current).unwrap();
        return;
    }
    let stale = LIMITS.lines().zip(current.lines()).filter(|(old, new)| old != new);
    holds("stale rows (make bless)", &stale.map(|(_, new)| new.to_owned()).collect::<Vec<_>>());
}

#[test]
fn every_bound_of_a_room_is_in_the_tables() {
    let table = table(&LIMITS);
    holds("bounds without a row", &missing(House::standing(), &table));
}

#[test]
fn a_planted_bound_is_missed_on_either_side() {
    let document = "| bound | where | value | beyond it | counter |\n|---|---|---|---|---|\n\
                    | heads | `net::server::{HEAD_MAX, GONE_MAX}`, `IDLE_WITHIN` | 1 | 431 | |\n\
                    | a rank | `types::ids::Run::BYTES_MAX`, `--rank.max`, `--rank.min` | 1 KiB | refused | `none_total{a=\"b\"}` |\n\n\
                    ## Client\n\n| bound | where | value | beyond it | counter |\n|---|---|---|---|---|\n\
                    | a ring | `RING_CAPACITY` in `python/stepmem/_sender.py` | 1 | forgotten | `pushes_total` |\n\
                    | rows | as many as TraceML | 1 | forgotten | |\n\n| other | `a::B_MAX` |";
    let table = table(document);
    let house = House::planted(&[
        (
            "src/net/server.rs",
            "pub const HEAD_MAX: u8 = 1; pub(crate) const IDLE_WITHIN: u8 = 2; const OWN_MAX: u8 = 3;",
        ),
        (
            "crates/types/src/ids.rs",
            "pub struct Run; impl Run { pub const BYTES_MAX: usize = 3 << 10; } pub const PID_MAX: u8 = 2;",
        ),
    ]);
    assert_eq!(dead(&house, &table), ["net::server::GONE_MAX", "--rank.min"]);
    assert_eq!(missing(&house, &table), ["types::ids::PID_MAX"]);
    assert_eq!(unknown_counters(document), ["none_total{a=\"b\"}"]);
    let current = with_values(&house, document);
    let values: Vec<&str> = rows(&current).map(|[_, _, value, ..]| value).collect();
    assert_eq!(values[0], "1; computed; 2");
    assert_eq!(values[1], "3 KiB; –; –");
    assert_eq!(values[3], "–");
    assert!(current.contains("## Client") && current.ends_with("| other | `a::B_MAX` |\n"));
    let lost =
        [Bound::Elsewhere("RING_CAPACITY".to_owned(), "python/stepmem/none.py".to_owned())];
    assert_eq!(dead(&house, &lost), ["RING_CAPACITY in python/stepmem/none.py"]);
}

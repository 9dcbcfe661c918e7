//! The tables of bounds in docs/limits.md against the code: each bound that they name exists and has this value, each
//! bound that a module publishes is in them, and each counter is a metric. `STEPMEM_BLESS=1` writes the values.

use std::sync::LazyLock;
use std::{env, fs};

use stepmem::config::table::SETTINGS;
use stepmem_engine::metrics::METRICS;

use crate::architecture::source::{Source, holds, product};
use crate::architecture::values::{evaluate, written};
use crate::rig::folder::root;

/// The endings of the names of bounds.
const ENDINGS: [&str; 3] = ["_MAX", "_CAPACITY", "_WITHIN"];
const PAGE: &str = "docs/limits.md";
/// Stands for the value of a setting without a default, and of a bound that is no constant.
const NO_VALUE: &str = "–";

static LIMITS: LazyLock<String> =
    LazyLock::new(|| fs::read_to_string(root().join(PAGE)).unwrap());

/// The place of a bound, as its row of the table names it.
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

/// A constant of the code.
#[derive(Debug, PartialEq, Eq)]
struct Constant {
    /// The module, the type where it is in an `impl` block, and the name.
    path: String,
    /// Set where others may name it.
    is_public: bool,
    expression: String,
}

fn constants(files: &[Source]) -> Vec<Constant> {
    files.iter().flat_map(constants_of).collect()
}

fn constants_of(file: &Source) -> Vec<Constant> {
    let code = file.code();
    let mut owner = None;
    let mut found = Vec::new();
    for (idx, (_, line)) in code.iter().enumerate() {
        if line.starts_with("impl") {
            owner = Some(subject(line));
        } else if line.starts_with('}') {
            owner = None;
        }
        let declared = line.split_once("const ").or_else(|| line.split_once("static "));
        let Some((before, rest)) = declared else { continue };
        let Some((name, _)) = rest.split_once(": ") else { continue };
        let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let visibility = before.trim();
        let is_item = ["", "pub"].contains(&visibility)
            || visibility.starts_with("pub(") && visibility.ends_with(')');
        if !is_item || !name.chars().all(is_name) {
            continue;
        }
        let lines = code[idx..].iter().map(|(_, line)| *line);
        let text: String = lines.clone().take_while(|line| !line.ends_with(';')).collect();
        let text = text + lines.clone().find(|line| line.ends_with(';')).unwrap_or_default();
        let (_, expression) = text.split_once('=').unwrap_or_default();
        let owner = owner.map(|owner| format!("{owner}::")).unwrap_or_default();
        found.push(Constant {
            path: format!("{}::{owner}{name}", file.module),
            is_public: !visibility.is_empty(),
            expression: expression.trim_end_matches(';').to_owned(),
        });
    }
    found
}

/// The type of an `impl` block: the last word of its head, generics left out.
fn subject(head: &str) -> &str {
    let head = head.trim_end_matches(" {");
    let of = head.rsplit_once(" for ").or_else(|| head.rsplit_once("> "));
    let (_, of) = of.or_else(|| head.split_once(' ')).unwrap_or_default();
    let path = of.split(['<', ' ']).next().unwrap_or_default();
    path.rsplit("::").next().unwrap_or_default()
}

/// The bounds of the table that do not exist.
fn dead(constants: &[Constant], table: &[Bound]) -> Vec<String> {
    let exists = |bound: &&Bound| match bound {
        Bound::Constant(path) => constants.iter().any(|constant| constant.path == *path),
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

/// The bounds that files publish and the table does not have.
fn missing(constants: &[Constant], table: &[Bound]) -> Vec<String> {
    let is_bound = |path: &str| ENDINGS.iter().any(|ending| path.ends_with(ending));
    let is_listed = |path: &str| {
        table.iter().any(|bound| matches!(bound, Bound::Constant(listed) if listed == path))
    };
    let published = constants.iter().filter(|constant| constant.is_public);
    let paths = published.map(|constant| constant.path.clone());
    paths.filter(|path| is_bound(path) && !is_listed(path)).collect()
}

/// The value of a bound as the page has it.
fn value(constants: &[Constant], bound: &Bound) -> String {
    let computed = || "computed".to_owned();
    match bound {
        Bound::Constant(path) => {
            let constant = constants.iter().find(|constant| constant.path == *path);
            let value = constant.and_then(|constant| evaluate(&constant.expression));
            value.map_or_else(computed, |value| written(path, value))
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
            let value = line.and_then(|line| evaluate(line.split('#').next()?));
            value.map_or_else(computed, |value| written(name, value))
        }
    }
}

/// The values of a row; one where all are the same.
fn values(constants: &[Constant], place: &str) -> String {
    let mut values: Vec<String> =
        of_cell(place).iter().map(|bound| value(constants, bound)).collect();
    if values.iter().all(|value| Some(value) == values.first()) {
        values.truncate(1);
    }
    if values.is_empty() { NO_VALUE.to_owned() } else { values.join("; ") }
}

/// The document with the values that the code has.
fn with_values(constants: &[Constant], document: &str) -> String {
    let lines = document.lines().map(|line| match cells(line) {
        Some([bound, place, _, beyond, counters]) => {
            let end =
                if counters.is_empty() { "|".to_owned() } else { format!("{counters} |") };
            format!("| {bound} | {place} | {} | {beyond} | {end}\n", values(constants, place))
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
    holds("bounds that are not there", &dead(&constants(product()), &table));
    holds("counters that are no metrics", &unknown_counters(&LIMITS));
}

#[test]
fn every_bound_has_the_value_of_the_code() {
    let current = with_values(&constants(product()), &LIMITS);
    if env::var_os("STEPMEM_BLESS").is_some() {
        fs::write(root().join(PAGE), &current).unwrap();
        return;
    }
    let stale = LIMITS.lines().zip(current.lines()).filter(|(old, new)| old != new);
    holds("stale rows (make bless)", &stale.map(|(_, new)| new.to_owned()).collect::<Vec<_>>());
}

#[test]
fn every_bound_of_a_module_is_in_the_tables() {
    let table = table(&LIMITS);
    holds("bounds without a row", &missing(&constants(product()), &table));
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
    let files = [
        Source::new(
            "src/net/server.rs",
            "pub const HEAD_MAX: u8 = 1;\npub(crate) const IDLE_WITHIN: u8 =\n    2;\nconst OWN_MAX: u8 = 3;\n",
        ),
        Source::new(
            "crates/types/src/ids.rs",
            "pub struct Run;\n\nimpl Run {\n    pub const BYTES_MAX: usize = 3 << 10;\n}\n\npub const PID_MAX: u8 = 2;\n",
        ),
    ];
    let found = constants(&files);
    assert_eq!(dead(&found, &table), ["net::server::GONE_MAX", "--rank.min"]);
    assert_eq!(missing(&found, &table), ["types::ids::PID_MAX"]);
    assert_eq!(unknown_counters(document), ["none_total{a=\"b\"}"]);
    let current = with_values(&found, document);
    let values: Vec<&str> = rows(&current).map(|[_, _, value, ..]| value).collect();
    assert_eq!(values[0], "1; computed; 2");
    assert_eq!(values[1], "3 KiB; –; –");
    assert_eq!(values[3], "–");
    assert!(current.contains("## Client") && current.ends_with("| other | `a::B_MAX` |\n"));
    let lost =
        [Bound::Elsewhere("RING_CAPACITY".to_owned(), "python/stepmem/none.py".to_owned())];
    assert_eq!(dead(&found, &lost), ["RING_CAPACITY in python/stepmem/none.py"]);
}

#[test]
fn the_type_of_an_impl_block_is_read() {
    for (head, expected) in [
        ("impl Run {", "Run"),
        ("impl<'a, T: Fn(u8) -> u8> Ladder<'a, T> {", "Ladder"),
        ("impl fmt::Display for ids::Run {", "Run"),
        ("impl<T> Walk for Row<Vec<T>>", "Row"),
        ("impl<T> ids::Row<Vec<T>> {", "Row"),
        ("impl<const N: usize> Saved for Run where N: X {", "Run"),
    ] {
        assert_eq!(subject(head), expected, "{head}");
    }
}

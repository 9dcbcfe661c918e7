//! What docs/detector says of the detector is what it does: the six series of meaning.md, and the numbers of algorithm.md.

use std::fs;

use serde_json::Value;
use stepmem_detect::Config;

use crate::rig::command::stepmem;
use crate::rig::folder::{Folder, root};
use crate::rig::job::{Job, recording};
use crate::rig::noise::noise;
use crate::rig::units::{GIB, MIB, float};

fn document(name: &str) -> String {
    fs::read_to_string(root().join("docs/detector").join(name)).unwrap()
}

/// A rank with 38 GiB live and 2 GiB more within a step, on a device of 80 GiB, two steps a second.
fn job(n_steps: u64, more: fn(u64) -> u64) -> Job {
    let live = move |step| 38 * GIB + noise(0, step, MIB) + more(step);
    let job = Job::new(1, n_steps).seconds_per_step(0.5);
    job.live(move |_, step| live(step))
        .peak(move |_, step| live(step) + 2 * GIB)
        .reserved(move |_, step| live(step) + 2 * GIB + GIB / 4)
}

/// The transitions of records, as `STEP KIND STATE`; a finding that is level is `level`, with
/// the step that it is level since.
fn transitions(name: &str, records: &[Value]) -> Vec<String> {
    let folder = Folder::new(&format!("meaning-{name}"));
    let ended = stepmem(&["replay", &folder.write("job.jsonl", &recording(records))], &[], b"");
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{name}");
    let lines = ended.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let word = |transition: &Value| {
        let step = transition["step"].as_u64()?;
        let kind = transition["kind"].as_str()?;
        Some(
            match (&transition["evidence"]["level_since_step"], transition["state"].as_str()?) {
                (Value::Number(since), "raised") => {
                    format!("{step} {kind} level since {since}")
                }
                (_, state) => format!("{step} {kind} {state}"),
            },
        )
    };
    lines.filter_map(|line| word(&line)).collect()
}

/// The cells of the row of a table that begins like this.
fn row(document: &str, first: &str) -> String {
    let found = document.lines().find(|line| line.starts_with(&format!("| {first}")));
    found.unwrap_or_else(|| panic!("no row begins with {first}")).to_owned()
}

/// A step, a kind and a state, and the words of the document for that.
type Said = (&'static str, &'static str);

/// Holds the transitions of a record against the row of the document that begins like this.
fn check(name: &str, first: &str, records: &[Value], expected: &[Said]) {
    let row = row(&document("meaning.md"), first);
    let transitions = transitions(name, records);
    let steps: Vec<&str> = expected.iter().map(|(transition, _)| *transition).collect();
    assert_eq!(transitions, steps, "{first}");
    for (_, words) in expected {
        assert!(row.contains(words), "{row} lacks {words}");
    }
}

#[test]
fn leak_and_buffer_are_reported_as_the_document_says() {
    let leak = job(2500, |step| step.saturating_sub(1000) * 8 * MIB);
    check(
        "leak",
        "grows by 8 MiB",
        &leak.records(),
        &[
            ("1027 CREEP_EARLY raised", "RISING at step 1,027"),
            ("1495 CREEP_EARLY cleared", "**CREEP at 1,495**"),
            ("1495 CREEP_CONFIRMED raised", "**CREEP at 1,495**"),
        ],
    );
    let buffer = job(3000, |step| step.min(2000) * 8 * MIB);
    check(
        "buffer",
        "a buffer grows",
        &buffer.records(),
        &[
            ("47 CREEP_EARLY raised", "RISING at step 47"),
            ("631 CREEP_EARLY cleared", "**CREEP at 631**"),
            ("631 CREEP_CONFIRMED raised", "**CREEP at 631**"),
            (
                "2191 CREEP_CONFIRMED level since 1978",
                "level since 1,978 (info, known at step 2,191)",
            ),
            ("2403 CREEP_CONFIRMED cleared", "cleared at 2,403"),
        ],
    );
}

#[test]
fn cache_garbage_and_level_shift_are_reported_as_the_document_says() {
    let cache =
        job(6000, |step| 8 * GIB - (0..step).fold(8 * GIB, |left, _| left - left / 600));
    check(
        "cache",
        "a cache of 8 GiB fills",
        &cache.records(),
        &[
            ("47 CREEP_EARLY raised", "RISING from step 47"),
            ("1951 CREEP_EARLY cleared", "until 1,951"),
            ("2195 CREEP_EARLY raised", "from 2,195"),
            ("4009 CREEP_EARLY cleared", "until 4,009"),
        ],
    );
    let garbage = job(6000, |step| step % 300 * 8 * MIB);
    check(
        "garbage",
        "garbage piles up",
        &garbage.records(),
        &[
            ("47 CREEP_EARLY raised", "RISING during the first pile"),
            ("329 CREEP_EARLY cleared", "silent from then on"),
        ],
    );
    let shift = job(4000, |step| if step < 1500 { 0 } else { 6 * GIB });
    check("shift", "one allocation of 6 GiB", &shift.records(), &[]);
}

#[test]
fn growth_at_each_evaluation_is_reported_as_the_document_says() {
    let stairs = job(4000, |step| (step - 1) / 500 * 1229 * MIB);
    let evaluation = |train: &Value| {
        let mut record = train.clone();
        record["phase"] = "eval".into();
        record["time"] = (train["time"].as_f64().unwrap() + 0.1).into();
        train["step"].as_u64().unwrap().is_multiple_of(500).then_some(record)
    };
    let with_evaluations = |train: Value| [Some(train.clone()), evaluation(&train)];
    let records = stairs.records().into_iter().flat_map(with_evaluations).flatten();
    check(
        "stairs",
        "rises by 1.2 GiB after each evaluation",
        &records.collect::<Vec<_>>(),
        &[
            ("1516 CREEP_EARLY raised", "RISING after the third"),
            ("2016 CREEP_EARLY cleared", "**CREEP after the fourth**"),
            ("2016 CREEP_CONFIRMED raised", "at step 2,016"),
        ],
    );
}

/// The Config table has a row for each field, in the order of the code, and the default that it states.
#[test]
fn table_of_the_config_is_that_of_the_code() {
    let stated: Vec<(String, Option<f64>)> = section("Config")
        .lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let field = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
            Some((field.to_owned(), number(cells[2])))
        })
        .collect();
    let values = serde_json::to_value(Config::default()).unwrap();
    let config = fs::read_to_string(root().join("crates/detect/src/config.rs")).unwrap();
    let fields =
        config.lines().filter_map(|line| line.strip_prefix("    pub ")?.split_once(": "));
    let fields = fields
        .filter(|(name, _)| !name.contains(' '))
        .map(|(field, _)| (field.to_owned(), values[field].as_f64()));
    assert_eq!(stated, fields.collect::<Vec<_>>());
}

/// Every number of detect and forecast that decides is a field of the Config, or the page names it and why it is none.
#[test]
fn numbers_that_are_no_fields_are_those_that_the_page_names() {
    let section = section("Constants");
    let quoted = section.split('`').skip(1).step_by(2).map(str::to_owned);
    let mut stated: Vec<String> = quoted.collect();
    let sources =
        ["detect/src", "forecast/src", "forecast/src/stats"].into_iter().flat_map(code);
    let mut coded: Vec<String> = sources
        .flat_map(|(_, code)| code.lines().filter_map(constant).collect::<Vec<_>>())
        .collect();
    stated.sort();
    coded.sort();
    assert_eq!(stated, coded, "a name of its own for each");
}

/// No number that decides hides in an expression of the detector.
#[test]
fn expressions_of_the_detector_hold_no_number_that_decides() {
    for (name, code) in code("detect/src") {
        let code = code.lines().filter(|line| constant(line).is_none() && name != "config.rs");
        for line in code {
            let words = line.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.'));
            let numbers = words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
            for number in numbers.filter(|word| word.contains('.') && !word.contains("..")) {
                assert!(["0.0", "1.0", "2.0"].contains(&number), "{name}: {line}");
            }
        }
    }
}

/// The text below a heading of algorithm.md.
fn section(heading: &str) -> String {
    let algorithm = document("algorithm.md");
    let begin = format!("## {heading}\n");
    let below = algorithm.split(&begin).nth(1).unwrap_or_else(|| panic!("no {begin}"));
    below.split("\n## ").next().unwrap().to_owned()
}

/// The files of a folder of crates, by name, without their tests and comments.
fn code(folder: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(root().join("crates").join(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let named = paths.map(|path| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let is_code = |line: &&str| !line.trim_start().starts_with("//");
        (name, code.lines().filter(is_code).collect::<Vec<_>>().join("\n"))
    });
    named.filter(|(name, _)| name != "tests.rs").collect()
}

/// The name of the number that a line declares; `None` of a bound of memory, which ends in `BYTES_MAX`.
fn constant(line: &str) -> Option<String> {
    let (before, after) = line.split_once("const ")?;
    let is_declared = before.trim().is_empty() || before.trim().starts_with("pub");
    let (name, kind) = after.split_once(": ").filter(|_| is_declared)?;
    let kind = kind.trim_start_matches('[');
    let is_number = ["f32", "f64", "u8", "u16", "u32", "u64", "usize", "i32", "i64"]
        .into_iter()
        .any(|number| kind.starts_with(number));
    (is_number && !name.ends_with("BYTES_MAX")).then(|| name.to_owned())
}

/// The number of a cell such as `259,200 s` or `32 MiB`; `None` of `none`.
fn number(cell: &str) -> Option<f64> {
    let mut words = cell.split(' ');
    let digits = words.next().unwrap().replace(',', "").parse::<f64>().ok();
    let factor = match words.next() {
        Some("MiB") => MIB,
        Some("GiB") => GIB,
        _ => 1,
    };
    digits.map(|value| value * float(factor))
}

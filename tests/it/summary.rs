//! `stepmem summary`: what it says of a recording, and what must not change that.

use std::sync::LazyLock;

use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};
use serde_json::{Value, json};

use stepmem::report::summary::model::{IssueEvidence, IssueKind, Summary};

use crate::rig::{Folder, root, stepmem};

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
const START: f64 = 1_764_000_000.0;

type Of = Box<dyn Fn(u64, u64) -> u64>;

/// A job of ranks that push a record a second: figures by rank and step.
pub struct Job {
    ranks: std::ops::Range<u64>,
    steps: u64,
    every: u64,
    attempt: u64,
    world: Option<u64>,
    start: f64,
    capacity: u64,
    device: Option<&'static str>,
    live: Of,
    peak: Option<Of>,
    reserved: Option<Of>,
}

impl Job {
    pub fn new(n_ranks: u64, steps: u64) -> Self {
        Self {
            ranks: 0..n_ranks,
            steps,
            every: 1,
            attempt: 0,
            world: None,
            start: START,
            capacity: 80 * GIB,
            device: None,
            live: Box::new(|_, _| GIB),
            peak: None,
            reserved: None,
        }
    }

    pub fn first_rank(self, first: u64) -> Self {
        Self { ranks: first..first + self.ranks.end, ..self }
    }

    pub fn every(self, every: u64) -> Self {
        Self { every, ..self }
    }

    /// Attempts begin an hour after one another.
    pub fn attempt(self, attempt: u64) -> Self {
        Self { attempt, start: START + 3600.0 * float(attempt), ..self }
    }

    pub fn starting_at(self, seconds: f64) -> Self {
        Self { start: START + seconds, ..self }
    }

    pub fn world(self, world: u64) -> Self {
        Self { world: Some(world), ..self }
    }

    pub fn capacity(self, capacity: u64) -> Self {
        Self { capacity, ..self }
    }

    pub fn device(self, device: &'static str) -> Self {
        Self { device: Some(device), ..self }
    }

    pub fn live(self, live: impl Fn(u64, u64) -> u64 + 'static) -> Self {
        Self { live: Box::new(live), ..self }
    }

    pub fn peak(self, peak: impl Fn(u64, u64) -> u64 + 'static) -> Self {
        Self { peak: Some(Box::new(peak)), ..self }
    }

    pub fn reserved(self, reserved: impl Fn(u64, u64) -> u64 + 'static) -> Self {
        Self { reserved: Some(Box::new(reserved)), ..self }
    }

    /// The recording, steps in order and within them ranks.
    pub fn records(&self) -> String {
        let mut lines = String::new();
        for n in 1..=self.steps {
            for rank in self.ranks.clone() {
                lines.push_str(&format!("{}\n", self.record(rank, n)));
            }
        }
        lines
    }

    fn record(&self, rank: u64, n: u64) -> Value {
        let step = n * self.every;
        json!({
            "run": "job",
            "attempt": self.attempt,
            "rank": rank,
            "step": step,
            "time": self.start + float(n),
            "world_size": self.world,
            "device": self.device,
            "allocated_bytes": (self.live)(rank, step),
            "peak_allocated_bytes": self.peak.as_ref().map(|peak| peak(rank, step)),
            "reserved_bytes": self.reserved.as_ref().map(|reserved| reserved(rank, step)),
            "total_bytes": self.capacity,
        })
    }
}

fn float(n: u64) -> f64 {
    f64::from(u32::try_from(n).unwrap())
}

fn index(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

/// Even noise of 0 to `range` that is the same in every run of the tests.
pub fn noise(rank: u64, step: u64, range: u64) -> u64 {
    let mut bits = (rank << 32 | step).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (bits ^ (bits >> 31)) % range.max(1)
}

/// What the command says of a recording, as JSON.
pub fn summary(records: &str) -> Value {
    let ended = stepmem(&["summary", "--json", "-"], &[], records.as_bytes());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    serde_json::from_str(&ended.out).unwrap()
}

/// The issue of a kind.
pub fn issue(summary: &Value, kind: &str) -> Option<Value> {
    summary["issues"].as_array().unwrap().iter().find(|issue| issue["kind"] == kind).cloned()
}

/// A job of which a rank leaks, another is heavier, and a third dies.
fn troubled() -> Job {
    Job::new(6, 1200).world(8).live(|rank, step| match rank {
        1 => 30 * GIB + noise(rank, step, 16 * MIB) + step * 16 * MIB,
        4 => 50 * GIB,
        _ => 30 * GIB + noise(rank, step, 16 * MIB),
    })
}

fn golden(name: &str, text: &str) {
    let path = root().join("tests/data/report").join(name);
    if std::env::var_os("STEPMEM_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text, expected,
        "{name}: STEPMEM_BLESS=1 cargo test --test it summary writes it"
    );
}

#[test]
fn card_says_verdict_reason_and_advice_and_shows_every_rank() {
    let dead = Job::new(1, 300).first_rank(6).live(|_, _| 30 * GIB).records();
    let ended = stepmem(&["summary", "-"], &[], (dead + &troubled().records()).as_bytes());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.lines().all(|line| line.chars().count() <= 100), "{}", ended.out);
    golden("troubled.txt", &ended.out);
}

#[test]
fn card_of_a_thousand_ranks_fits_a_screen() {
    let job = Job::new(1024, 20).live(|rank, _| (30 + rank % 5) * GIB);
    let ended = stepmem(&["summary", "-"], &[], job.records().as_bytes());
    assert!(ended.out.lines().all(|line| line.chars().count() <= 100), "{}", ended.out);
    assert!(ended.out.lines().count() < 40, "{}", ended.out);
    assert!(ended.out.contains("… and 1008 more ranks"), "{}", ended.out);
}

#[test]
fn long_names_break_no_line() {
    let run = "a".repeat(128);
    let record = json!({ "run": run, "rank": 0, "step": 1, "allocated_bytes": 1 }).to_string();
    let ended = stepmem(&["summary", "-"], &[], record.as_bytes());
    assert!(ended.out.lines().all(|line| line.chars().count() <= 100), "{}", ended.out);
}

#[test]
fn summary_has_the_shape_that_its_schema_describes() {
    let schema = root().join("docs/final_summary.schema.json");
    let schema: Value = serde_json::from_slice(&std::fs::read(schema).unwrap()).unwrap();
    let summary = summary(&troubled().records());
    let version = &schema["properties"]["generator"]["properties"]["schema_version"]["const"];
    assert_eq!(summary["generator"]["schema_version"], *version);
    check(&schema, &schema, &summary, "");
}

#[test]
fn summary_reads_back_as_it_was_written() {
    let peaks = Job::new(2, 1500)
        .live(|_, _| 30 * GIB)
        .peak(|_, step| if step == 40 { 79 * GIB } else { 36 * GIB });
    let low = Job::new(4, 600).live(|rank, _| if rank == 1 { 10 * GIB } else { 60 * GIB });
    for records in [troubled(), peaks, low, Job::new(2, 20)].map(|job| job.records()) {
        let written = summary(&records);
        let read: Summary = serde_json::from_value(written.clone()).unwrap();
        for issue in &read.issues {
            assert!(!matches!(issue.kind, IssueKind::Other(_)), "{issue:?}");
            assert!(!matches!(issue.evidence, IssueEvidence::Other(_)), "{issue:?}");
        }
        assert_eq!(serde_json::to_value(read).unwrap(), written);
    }
}

/// Holds a value to the part of JSON Schema that ours uses.
fn check(root: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let target = root.pointer(name.trim_start_matches('#')).unwrap();
        return check(root, target, value, at);
    }
    let is = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{at}: no such type {other}"),
    };
    match &schema["type"] {
        Value::String(name) => assert!(is(name), "{at}: {value} is no {name}"),
        Value::Array(names) => {
            let fits = names.iter().any(|name| is(name.as_str().unwrap()));
            assert!(fits, "{at}: {value} is none of {names:?}");
        }
        _ => {}
    }
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{at}: {value} is none of {allowed:?}");
    }
    if let (Some(properties), Some(object)) =
        (schema["properties"].as_object(), value.as_object())
    {
        for key in schema["required"].as_array().into_iter().flatten() {
            assert!(object.contains_key(key.as_str().unwrap()), "{at}: {key} is missing");
        }
        for (key, value) in object {
            let at = format!("{at}/{key}");
            match properties.get(key) {
                Some(schema) => check(root, schema, value, &at),
                None => {
                    assert!(schema["additionalProperties"] != json!(false), "{at}: unknown");
                }
            }
        }
    }
    if let (Some(others), Some(object)) =
        (schema["additionalProperties"].as_object(), value.as_object())
    {
        let named = schema["properties"].as_object();
        let is_other = |key: &String| named.is_none_or(|named| !named.contains_key(key));
        for (key, value) in object.iter().filter(|(key, _)| is_other(key)) {
            check(root, &json!(others), value, &format!("{at}/{key}"));
        }
    }
    if let (Some(items), Some(array)) = (schema.get("items"), value.as_array()) {
        for (idx, value) in array.iter().enumerate() {
            check(root, items, value, &format!("{at}/{idx}"));
        }
    }
}

#[test]
fn recordings_of_more_than_one_run_ask_for_its_name() {
    let two = ["a", "b"].map(|run| {
        json!({ "run": run, "rank": 0, "step": 1, "allocated_bytes": 1 }).to_string() + "\n"
    });
    for policy in ["stepmem", "traceml"] {
        let ask = |run: &[&str]| {
            let arguments = [&["summary", "--policy", policy, "-"], run].concat();
            stepmem(&arguments, &[], two.concat().as_bytes())
        };
        let ended = ask(&[]);
        assert_eq!(ended.code, Some(1));
        assert!(ended.err.contains("--run"), "{}", ended.err);
        assert_eq!(ask(&["--run", "a"]).code, Some(0));
    }
    let ended = stepmem(&["summary", "--run", "c", "-"], &[], two.concat().as_bytes());
    assert!(ended.err.contains("no run c") && ended.code == Some(1), "{}", ended.err);
    let ended = stepmem(&["summary", "--window", "5", "-"], &[], two.concat().as_bytes());
    assert!(ended.err.contains("--policy traceml") && ended.code == Some(1), "{}", ended.err);
}

#[test]
fn replay_by_traceml_says_its_last_word_in_a_line() {
    let records = Job::new(2, 60).live(|_, _| 79 * GIB).records();
    let ended = stepmem(&["replay", "--policy", "traceml", "-"], &[], records.as_bytes());
    let line: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(line["status"]["diagnosis"]["kind"], "NO_DATA", "no peaks were pushed");
    let ended = stepmem(&["summary", "--policy", "traceml", "-"], &[], records.as_bytes());
    assert!(ended.out.contains("peak_reserved_bytes"), "{}", ended.out);
    let ended = stepmem(&["replay", "--policy", "ours", "-"], &[], records.as_bytes());
    assert!(ended.err.contains("neither stepmem nor traceml"), "{}", ended.err);
}

static TROUBLED: LazyLock<(Vec<String>, Value)> = LazyLock::new(|| {
    let records: Vec<String> = troubled().records().lines().map(str::to_owned).collect();
    let summary = summary(&records.join("\n"));
    (records, summary)
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..Default::default() })]

    #[test]
    fn order_of_ranks_says_nothing(seed in any::<u64>()) {
        let (records, expected) = &*TROUBLED;
        let mut steps: Vec<Vec<String>> = records.chunks(6).map(<[String]>::to_vec).collect();
        for (idx, ranks) in (0_u64..).zip(&mut steps) {
            ranks.rotate_left(index(noise(seed, idx, 6)));
            if noise(seed, idx, 2) == 1 {
                ranks.reverse();
            }
        }
        prop_assert_eq!(&summary(&steps.concat().join("\n")), expected);
    }

    #[test]
    fn pushes_that_come_twice_say_nothing(seed in any::<u64>()) {
        let (records, expected) = &*TROUBLED;
        let twice = (0_u64..).zip(records).flat_map(|(idx, record)| {
            std::iter::repeat_n(record.as_str(), 1 + index(noise(seed, idx, 3)))
        });
        let twice: Vec<&str> = twice.collect();
        prop_assert_eq!(&summary(&twice.join("\n")), expected);
    }

    #[test]
    fn how_a_recording_is_split_says_nothing(seed in any::<u64>(), n_files in 2_usize..6, by_rank in any::<bool>()) {
        let (records, expected) = &*TROUBLED;
        let folder = Folder::new(&format!("split-{seed}"));
        let mut files = vec![String::new(); n_files];
        for (idx, record) in records.iter().enumerate() {
            let file = if by_rank { idx % 6 % n_files } else { idx * n_files / records.len() };
            files[file].push_str(&format!("{record}\n"));
        }
        let mut paths: Vec<String> =
            files.iter().enumerate().map(|(idx, text)| folder.write(&format!("{idx}"), text)).collect();
        paths.rotate_left(index(seed % 5) % n_files);
        let arguments: Vec<&str> =
            ["summary", "--json"].into_iter().chain(paths.iter().map(String::as_str)).collect();
        let ended = stepmem(&arguments, &[], b"");
        prop_assert_eq!(&serde_json::from_str::<Value>(&ended.out).unwrap(), expected);
    }
}

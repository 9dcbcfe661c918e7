//! All that is said of a moment agrees: status, metrics, tables, card, explanation, page and alerts, as a job grows, after a restart, after its
//! death and after a good end.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::process::Command;

use serde_json::{Value, json};

use crate::rig::command::words;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, root, text};
use crate::rig::job::Job;
use crate::rig::json::items;
use crate::rig::noise::noise;
use crate::rig::units::{GIB, MIB};

/// The rank that leaks, beside one that does not.
const LEAKING: u64 = 1;
const LEAK: u64 = 8 * MIB;
const CAPACITY: u64 = 24 * GIB;
const BASE: u64 = 4 * GIB;
/// The memory that the leaking rank's program lets it take.
const LIMIT: u64 = 20 * GIB;
/// The last step whose memory fits.
const LAST: u64 = (LIMIT - BASE - GIB) / LEAK;
/// The time left, in seconds, below which an alert says that the end is imminent.
const IMMINENT_SECONDS: f64 = 1800.0;

/// Steps of two ranks, one of which leaks, with some noise and a cache of 1 GiB.
fn leak(from: u64, to: u64) -> Job {
    let live = |rank, step: u64| {
        BASE + noise(rank, step, 4 * MIB) + if rank == LEAKING { step * LEAK } else { 0 }
    };
    Job::new(2, 0)
        .steps(from..to)
        .world(2)
        .capacity(CAPACITY)
        .seconds_per_step(10.0)
        .live(live)
        .peak(live)
        .reserved(move |rank, step| live(rank, step) + GIB)
        .more(|rank, _| {
            let device = format!("GPU-{rank}");
            json!({"device": device, "reserved_limit_bytes": (rank == LEAKING).then_some(LIMIT)})
        })
}

/// The answers of all surfaces on the leaking rank, read one after the other.
struct Moment {
    name: String,
    /// The status before all others, and after them: what only goes down or up meanwhile lies
    /// between.
    status: [Value; 2],
    /// The answers to the page, by path.
    answers: Value,
    metrics: BTreeMap<String, f64>,
    table: String,
    summary: Value,
    card: String,
    explained: String,
}

impl Moment {
    fn read(exporter: &Exporter, name: &str) -> Self {
        let before = exporter.status();
        let mut answers = json!({"/api/v1/status": before});
        let ranks = items(&before["ranks"]).flat_map(|of| {
            let path = format!("/api/v1/runs/job/ranks/{}", of["rank"]);
            [format!("{path}/history"), format!("{path}/windows?format=json")]
        });
        for path in ranks.chain(["/api/v1/runs/job/history".to_owned()]) {
            answers[&path] = exporter.get(&path, &[]).json();
        }
        let told = |arguments: &[&str]| exporter.asked(arguments).quiet();
        let number = LEAKING.to_string();
        Self {
            name: name.to_owned(),
            metrics: exporter.scrape(),
            table: told(&["status"]),
            summary: exporter.summary("job"),
            card: told(&["summary", "--run", "job"]),
            explained: words(&told(&["explain", "--run", "job", "--rank", &number])),
            answers,
            status: [before, exporter.status()],
        }
    }

    /// The rank before and after.
    fn ranks(&self) -> [&Value; 2] {
        self.status.each_ref().map(|status| Self::own(&status["ranks"]).unwrap())
    }

    /// The item of the rank in a list.
    fn own(list: &Value) -> Option<&Value> {
        items(list).find(|of| of["rank"] == LEAKING)
    }

    /// The findings of the rank.
    fn findings(&self) -> impl Iterator<Item = &Value> {
        items(&self.status[0]["findings"]).filter(|of| of["rank"] == LEAKING)
    }

    /// The finding about growth of live memory.
    fn growth(&self) -> Option<&Value> {
        self.findings().find(|of| of["evidence"]["signal"] == "allocated")
    }

    fn has_ended(&self) -> bool {
        self.ranks()[0]["state"] == "ended"
    }

    /// A figure of the rank, at the least and at the most.
    fn figure(&self, pointer: &str) -> Option<RangeInclusive<f64>> {
        let [before, after] =
            self.ranks().map(|rank| rank.pointer(pointer).and_then(Value::as_f64));
        let both = before.zip(after).map(|(a, b)| a.min(b)..=a.max(b));
        assert_eq!(both.is_some(), before.or(after).is_some(), "{}: {pointer}", self.name);
        both
    }

    /// A figure of the rank's live memory.
    fn of_growth(&self, key: &str) -> Option<RangeInclusive<f64>> {
        let signals = items(&self.ranks()[0]["creep"]);
        let idx = signals.map(|of| &of["signal"]).position(|signal| signal == "allocated")?;
        self.figure(&format!("/creep/{idx}/{key}"))
    }

    /// The time left, or the least, and which of them it is.
    fn seconds(&self) -> Option<(RangeInclusive<f64>, bool)> {
        let known = self.figure("/oom_eta_seconds").map(|seconds| (seconds, false));
        known.or_else(|| self.figure("/oom_eta_lower_seconds").map(|least| (least, true)))
    }

    fn steps(&self) -> Option<RangeInclusive<f64>> {
        self.figure("/oom_eta_steps").or_else(|| self.figure("/oom_eta_lower_steps"))
    }

    /// The cell of the rank's row in a table of text, below a head.
    fn cell(table: &str, head: &str) -> Option<String> {
        let mut lines = table.lines().skip_while(|line| !line.contains(head));
        let heads = lines.next()?;
        let (before, _) = heads.split_once(head)?;
        // Columns are aligned at their right ends.
        let start = before.trim_end().chars().count();
        let end = before.chars().count() + head.chars().count();
        let at = heads.split_whitespace().position(|of| of == "RANK")?;
        let number = LEAKING.to_string();
        let row = lines
            .take_while(|line| !line.is_empty())
            .find(|line| line.split_whitespace().nth(at) == Some(&number))?;
        let cell: String = row.chars().take(end).skip(start).collect();
        Some(cell.trim().to_owned())
    }

    /// Checks that a text has a figure, or has none where there is none.
    #[track_caller]
    fn says(&self, surface: &str, told: Option<Told>, truth: Option<RangeInclusive<f64>>) {
        match (told, truth) {
            (None, None) => {}
            (Some(told), Some(truth)) if told.is_in(&truth) => {}
            (told, truth) => {
                panic!("{}: {surface} has {told:?}, not {truth:?}", self.name)
            }
        }
    }

    /// The same of a figure as it is.
    #[track_caller]
    fn has(&self, surface: &str, value: Option<f64>, truth: Option<RangeInclusive<f64>>) {
        self.says(surface, value.map(|value| Told { value, unit: 1e-6 * value.abs() }), truth);
    }
}

/// A figure that was read in a text, and how exact it is.
#[derive(Debug)]
struct Told {
    value: f64,
    unit: f64,
}

/// The units of times and of bytes, by name, as stepmem, the page and Prometheus write them.
const UNITS: [(&str, f64); 15] = [
    ("d", 86_400.0),
    ("h", 3_600.0),
    ("min", 60.0),
    ("m", 60.0),
    ("s", 1.0),
    ("steps", 1.0),
    ("step", 1.0),
    ("B", 1.0),
    ("KiB", 1_024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("%", 0.01),
    ("ms", 0.001),
    ("PiB", 1_125_899_906_842_624.0),
];

impl Told {
    /// The amount at the beginning of a text, of one or several parts ("1 h 33 min", "1h 33m 20s", "4.38 GiB").
    fn first(text: &str) -> Option<Self> {
        let (mut told, mut rest) = (None::<Self>, text.trim_start());
        loop {
            let n = rest.find(|c: char| !(c.is_ascii_digit() || ".,\u{2212}-".contains(c)));
            let (number, after) = rest.split_at(n.unwrap_or(rest.len()));
            let plain = number.replace(',', "").replace('\u{2212}', "-");
            let Ok(value) = plain.parse::<f64>() else { return told };
            let after = after.trim_start();
            let n = after.find(|c: char| !(c.is_alphabetic() || c == '%'));
            let (unit, after) = after.split_at(n.unwrap_or(after.len()));
            let Some((_, size)) = UNITS.iter().find(|(name, _)| *name == unit) else {
                return told;
            };
            let n_digits = plain.split_once('.').map_or(0, |(_, digits)| digits.len());
            let unit = size / 10_f64.powi(i32::try_from(n_digits).unwrap());
            let before = told.map_or(0.0, |told| told.value);
            told = Some(Self { value: before + value * size, unit });
            rest = after.trim_start();
        }
    }

    /// The amount behind some words.
    fn behind(text: &str, words: &str) -> Option<Self> {
        Self::first(text.split_once(words)?.1)
    }

    /// Returns whether it lies in a range, but for how exact it is.
    fn is_in(&self, range: &RangeInclusive<f64>) -> bool {
        (range.start() - self.unit..=range.end() + self.unit).contains(&self.value)
    }

    /// The amount before some words: a number, which may be alone, and its unit.
    fn before(text: &str, words: &str) -> Option<Self> {
        let before = text.split_once(words)?.0.trim_end();
        let mut last = before.rsplit(' ').map(|word| word.trim_start_matches('('));
        let word = last.next()?;
        if !word.starts_with(|c: char| c.is_ascii_digit()) {
            return Self::first(&format!("{} {word}", last.next()?));
        }
        let is_alone = !word.contains(char::is_alphabetic);
        Self::first(&format!("{word}{}", if is_alone { " steps" } else { "" }))
    }

    /// The time left in a sentence, whether it is about that time or the least.
    fn time_left(text: &str, is_least: bool) -> Option<Self> {
        let (one, other) = ("out of memory in about ", "out of memory in at least ");
        let (words, others) = if is_least { (other, one) } else { (one, other) };
        assert!(!text.contains(others), "{text}");
        Self::behind(text, words)
    }
}

/// Compares the metrics of the moment.
#[track_caller]
fn metrics_agree(moment: &Moment) {
    let metric = |name: &str, more: &str| {
        let of_rank = format!("{name}{{run=\"job\",rank=\"{LEAKING}\",");
        let is_it = |series: &&String| series.starts_with(&of_rank) && series.contains(more);
        moment.metrics.iter().find(|(series, _)| is_it(series)).map(|(_, value)| *value)
    };
    for (name, key) in [
        ("stepmem_oom_eta_seconds", "/oom_eta_seconds"),
        ("stepmem_oom_eta_steps", "/oom_eta_steps"),
        ("stepmem_oom_eta_lower_seconds", "/oom_eta_lower_seconds"),
        ("stepmem_headroom_bytes", "/headroom_bytes"),
        ("stepmem_rank_memory_allocated_bytes", "/allocated_bytes"),
    ] {
        moment.has(name, metric(name, ""), moment.figure(key));
    }
    let is_own = moment.ranks()[0].get("capacity_set_by").is_some();
    let limit = moment.figure("/capacity_bytes").filter(|_| is_own);
    moment.has("stepmem_rank_limit_bytes", metric("stepmem_rank_limit_bytes", ""), limit);
    for (name, key) in [
        ("stepmem_creep_slope_bytes_per_step", "slope_bytes_per_step"),
        ("stepmem_creep_growth_bytes", "trend/growth_bytes"),
        ("stepmem_creep_onset_step", "trend/onset_step"),
    ] {
        let value = metric(name, r#"signal="allocated""#);
        moment.has(name, value, moment.of_growth(key));
    }
    for finding in moment.findings() {
        let kind = finding["kind"].as_str().unwrap();
        let series = format!(
            "stepmem_diagnosis_severity{{run=\"job\",rank=\"{LEAKING}\",kind=\"{kind}\"}}"
        );
        let level = f64::from(severity(finding));
        assert_eq!(moment.metrics.get(&series), Some(&level), "{}: {kind}", moment.name);
    }
}

/// The severity of a finding, from 1.
fn severity(finding: &Value) -> u8 {
    match finding["severity"].as_str().unwrap() {
        "critical" => 3,
        "warning" => 2,
        _ => 1,
    }
}

/// Compares the figures in the tables of the moment.
#[track_caller]
fn tables_agree(moment: &Moment) {
    let slope = moment.of_growth("slope_bytes_per_step");
    let seconds = moment.seconds().map(|(seconds, _)| seconds);
    for (surface, table, head, truth) in [
        ("status", &moment.table, "OOM IN", seconds),
        ("status", &moment.table, "CAPACITY", moment.figure("/capacity_bytes")),
        ("status", &moment.table, "SLOPE/STEP", slope.clone()),
        ("card", &moment.card, "PER STEP", slope),
        ("card", &moment.card, "CAPACITY", moment.figure("/capacity_bytes")),
        ("card", &moment.card, "HEADROOM", moment.figure("/headroom_bytes")),
    ] {
        let cell = Moment::cell(table, head).unwrap_or_else(|| panic!("no {head}: {table}"));
        let told = Told::first(cell.trim_start_matches('≥'));
        moment.says(&format!("{surface}: {head}"), told, truth);
    }
    let explained = Told::behind(&moment.explained, " Headroom: ");
    moment.says("explain: headroom", explained, moment.figure("/headroom_bytes"));
}

/// Compares all that is told of the growth of the moment.
#[track_caller]
fn growth_agrees(moment: &Moment) {
    let told = [
        ("status", words(&moment.table)),
        ("card", words(&moment.card)),
        ("explain", moment.explained.clone()),
    ];
    let Some(growth) = moment.growth() else {
        for (surface, told) in told {
            let is_said = told.contains("out of memory in");
            assert!(!is_said, "{}: {surface}: {told}", moment.name);
        }
        return;
    };
    let seconds = moment.seconds();
    let is_least = seconds.as_ref().is_some_and(|(_, is_least)| *is_least);
    let seconds = seconds.map(|(seconds, _)| seconds);
    let slope = moment.of_growth("slope_bytes_per_step");
    let grown = moment.of_growth("trend/growth_bytes");
    let verb = if moment.has_ended() { " grew by " } else { " grows by " };
    let sentence = growth["sentence"].as_str().unwrap().to_owned();
    for (surface, told) in told.into_iter().chain([("finding", sentence)]) {
        let says = |what: &str, told, truth| {
            moment.says(&format!("{surface}: {what}"), told, truth);
        };
        says("time left", Told::time_left(&told, is_least), seconds.clone());
        let forecast = told.contains("out of memory in").then_some(&*told);
        let n_steps = forecast.and_then(|told| Told::before(told, "steps)"));
        says("steps left", n_steps, moment.steps());
        says("slope", Told::behind(&told, verb), slope.clone());
        says("growth", Told::before(&told, " since step "), grown.clone());
        let left = Told::before(&told, " left, out of memory");
        says("left", left, seconds.as_ref().and(moment.figure("/headroom_bytes")));
    }
    let summary = Moment::own(&moment.summary["ranks"]).unwrap();
    for (what, figures) in [("evidence", &growth["evidence"]), ("summary", &summary["trend"])] {
        for (key, truth) in [
            ("oom_eta_steps", moment.figure("/oom_eta_steps")),
            ("growth_bytes", grown.clone()),
            ("slope_bytes_per_step", slope.clone()),
        ] {
            moment.has(&format!("{what}: {key}"), figures[key].as_f64(), truth);
        }
    }
    let evidence = growth["evidence"]["oom_eta_seconds"].as_f64();
    moment.has("evidence: oom_eta_seconds", evidence, moment.figure("/oom_eta_seconds"));
}

/// Compares what the page shows of the moment.
#[track_caller]
fn page_agrees(moment: &Moment, shown: &Value) {
    let (name, number) = (&moment.name, LEAKING.to_string());
    let row = items(&shown["ranks"]).find(|row| row["Rank"] == *number).unwrap();
    let of_cell = |row: &Value, head: &str| {
        let cell = row[head].as_str().unwrap_or_else(|| panic!("{name}: no {head} in {row}"));
        Told::first(cell.trim_start_matches(['≥', '↗', '→', '↘']))
    };
    let seconds = moment.seconds().map(|(seconds, _)| seconds);
    let slope = moment.of_growth("slope_bytes_per_step");
    let capacity = moment.figure("/capacity_bytes");
    moment.says("page: OOM in", of_cell(row, "OOM in"), seconds.clone());
    moment.says(
        "page: OOM in of the run",
        of_cell(&shown["runs"][0], "OOM in"),
        seconds.clone(),
    );
    moment.says("page: Slope per step", of_cell(row, "Slope per step"), slope.clone());
    moment.says("page: Capacity", of_cell(row, "Capacity"), capacity);
    moment.says(
        "page: Allocated",
        of_cell(row, "Allocated"),
        moment.figure("/allocated_bytes"),
    );
    for finding in moment.findings() {
        let [severity, status, sentence] =
            ["severity", "status", "sentence"].map(|key| finding[key].as_str().unwrap());
        let badge = format!("{severity}: {status}");
        assert!(row["Findings"].as_str().unwrap().contains(&badge), "{name}: {badge}: {row}");
        let is_told =
            items(&shown["findings"]).any(|item| item.as_str().unwrap().contains(sentence));
        assert!(is_told, "{name}: {sentence}: {}", shown["findings"]);
    }
    let verdict = shown["verdict"].as_str().unwrap();
    let worst = items(&moment.status[0]["findings"]).next();
    let is_of_growth = worst.is_some() && worst == moment.growth();
    let told = ["out of memory in about ", "out of memory in at least "]
        .iter()
        .find_map(|words| Told::behind(verdict, words));
    moment.says("page: verdict", told, seconds.clone().filter(|_| is_of_growth));
    if moment.growth().is_none() {
        return;
    }
    let facts = |term: &str| shown["facts"][term].as_str().unwrap_or_default();
    let left = facts("Out of memory");
    let told = Told::first(left.trim_start_matches("in about ").trim_start_matches("≥ "));
    moment.says("page: Out of memory", told, seconds.clone());
    let truth = seconds.and(moment.figure("/headroom_bytes"));
    moment.says("page: left", Told::before(left, " left"), truth);
    moment.says("page: Growth", Told::first(facts("Growth")), slope);
    let grown = Told::before(facts("Growth"), " since step ");
    moment.says("page: grown", grown, moment.of_growth("trend/growth_bytes"));
}

/// An alert of a moment.
#[derive(Debug)]
struct Alert {
    name: String,
    rank: String,
    summary: String,
    description: String,
}

/// Has promtool evaluate the rules over metrics that stay as they are at each moment; returns what fires.
fn alerts(folder: &Folder, moments: &[Moment]) -> Vec<Vec<Alert>> {
    let rules = root().join("alerts/stepmem.rules.yaml");
    let names = fs::read_to_string(&rules).unwrap();
    let names: std::collections::BTreeSet<_> =
        names.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let tests = moments.iter().enumerate().map(|(idx, moment)| {
        let own = moment.metrics.iter().filter(|(series, _)| series.starts_with("stepmem_"));
        let series = own.map(|(series, value)| {
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            json!({"series": format!("{name}{{namespace=\"ml\",pod=\"p\",{labels}"), "values": format!("{value}x30")})
        });
        let asked = names.iter().map(|name| json!({"eval_time": "25m", "alertname": name, "exp_alerts": []}));
        json!({
            "name": format!("moment {idx}"),
            "interval": "1m",
            "input_series": series.collect::<Vec<_>>(),
            "alert_rule_test": asked.collect::<Vec<_>>(),
        })
    });
    let groups = ["ranks", "runs", "fleet", "processes", "exporters"];
    let all = json!({
        "rule_files": [rules],
        "evaluation_interval": "1m",
        "group_eval_order": groups.map(|name| format!("stepmem.{name}")),
        "tests": tests.collect::<Vec<_>>(),
    });
    // JSON is YAML.
    let test = folder.write("test.yaml", &all.to_string());
    let ended = Command::new("promtool").args(["test", "rules", &test]).output();
    let ended = ended.expect("no promtool: run make tools");
    // No alert was expected, so it prints each that there is.
    let said = [ended.stdout, ended.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    let mut found: Vec<Vec<Alert>> = moments.iter().map(|_| Vec::new()).collect();
    let mut idx = None;
    let quoted = |line: &str, key: &str| {
        let (_, rest) = line.split_once(&format!("{key}=\"")).unwrap_or(("", "\""));
        rest.split("\", ").next().unwrap().split("\"}").next().unwrap().to_owned()
    };
    for line in said.lines().map(str::trim) {
        if let Some(number) = line.strip_prefix("name: moment ") {
            idx = number.trim_end_matches(',').parse::<usize>().ok();
        } else if line.starts_with("Labels:{") {
            let (name, rank) = (quoted(line, "alertname"), quoted(line, "rank"));
            let (summary, description) = (String::new(), String::new());
            found[idx.unwrap()].push(Alert { name, rank, summary, description });
        } else if line.starts_with("Annotations:{") {
            let alert = found[idx.unwrap()].last_mut().unwrap();
            alert.summary = quoted(line, "summary");
            alert.description = quoted(line, "description");
        } else {
            assert!(!line.contains("error"), "{said}");
        }
    }
    found
}

/// Compares the alerts of the moment.
#[track_caller]
fn alerts_agree(moment: &Moment, alerts: &[Alert]) {
    let severity =
        |kind: &str| moment.findings().find(|of| of["kind"] == kind).map_or(0, severity);
    let creep = severity("CREEP_CONFIRMED");
    let seconds = moment.seconds();
    let is_soon = seconds.as_ref().is_some_and(|(seconds, is_least)| {
        *seconds.start() < IMMINENT_SECONDS && (!is_least || creep == 3)
    });
    let number = LEAKING.to_string();
    for (name, fires) in [
        ("StepmemMemoryCreep", creep > 1),
        ("StepmemMemoryRising", severity("CREEP_EARLY") > 0 && !moment.has_ended()),
        ("StepmemOOMImminent", creep > 1 && is_soon),
        ("StepmemOutOfMemory", severity("OUT_OF_MEMORY") > 1),
        ("StepmemHighPressure", severity("HIGH_PRESSURE") > 1),
    ] {
        let all = alerts.iter().filter(|alert| alert.name == name).collect::<Vec<_>>();
        let own = all.iter().find(|alert| alert.rank == number);
        assert_eq!(own.is_some(), fires, "{}: {name}: {alerts:#?}", moment.name);
        assert!(all.iter().all(|alert| alert.rank == number), "{}: {all:#?}", moment.name);
        if let Some(alert) = own {
            alert_agrees(moment, alert);
        }
    }
}

/// Compares the figures in the text of an alert.
#[track_caller]
fn alert_agrees(moment: &Moment, alert: &Alert) {
    let Alert { name, summary, description, .. } = alert;
    let seconds = moment.seconds().map(|(seconds, _)| seconds);
    let headroom = moment.figure("/headroom_bytes");
    // Of a time that is known at the least only, each has words of its own.
    let time = |text: &str| {
        ["in about ", "in at least ", " memory in "]
            .iter()
            .find_map(|words| Told::behind(text, words))
    };
    match name.as_str() {
        "StepmemMemoryCreep" => {
            moment.says(&format!("{name}: summary"), time(summary), seconds.clone());
            moment.says(name, time(description), seconds);
            let slope = moment.of_growth("slope_bytes_per_step");
            moment.says(
                &format!("{name}: slope"),
                Told::rounded(Told::behind(description, "grows steadily by "), 4),
                slope,
            );
            let grown = Told::rounded(Told::before(description, " since its onset"), 4);
            moment.says(
                &format!("{name}: growth"),
                grown,
                moment.of_growth("trend/growth_bytes"),
            );
            let left = Told::rounded(Told::before(description, " are left"), 4);
            moment.says(&format!("{name}: left"), left, headroom);
        }
        "StepmemOOMImminent" => {
            moment.says(&format!("{name}: summary"), time(summary), seconds.clone());
            moment.says(name, time(description), seconds);
            let steps = Told::before(description, "steps)");
            moment.says(&format!("{name}: steps"), steps, moment.figure("/oom_eta_steps"));
            let left = Told::rounded(Told::before(description, " are left"), 4);
            moment.says(&format!("{name}: left"), left, headroom);
        }
        "StepmemOutOfMemory" => {
            let left = Told::rounded(Told::behind(description, "the last headroom was "), 4);
            moment.says(name, left, headroom);
            assert!(!description.contains(" left"), "{}: {description}", moment.name);
        }
        "StepmemMemoryRising" => {
            let slope = Told::rounded(Told::behind(description, " rises by "), 4);
            let truth = moment.of_growth("slope_bytes_per_step");
            moment.says(&format!("{name}: slope"), slope, truth);
            let grown = Told::rounded(Told::before(description, " since its onset"), 4);
            moment.says(name, grown, moment.of_growth("trend/growth_bytes"));
        }
        _ => {}
    }
}

impl Told {
    /// Takes a figure as exact to so many digits, as Prometheus writes them, without trailing zeros.
    fn rounded(told: Option<Self>, n_digits: i32) -> Option<Self> {
        told.map(|told| Self { unit: told.value.abs() * 10_f64.powi(1 - n_digits), ..told })
    }
}

/// Compares all surfaces of some moments; an exporter serves the page.
#[track_caller]
fn all_agree(name: &str, exporter: &Exporter, moments: &[Moment]) {
    for moment in moments {
        let (seconds, steps) = (moment.seconds(), moment.steps());
        assert_eq!(seconds.is_some(), steps.is_some(), "{}", moment.name);
        metrics_agree(moment);
        tables_agree(moment);
        growth_agrees(moment);
    }
    let folder = Folder::new(&format!("surfaces-{name}"));
    let answers: Vec<_> = moments.iter().map(|moment| &moment.answers).collect();
    let file = folder.write("moments.json", &json!(answers).to_string());
    let output = Command::new("node")
        .arg(root().join("tests/ops/page_moments.mjs"))
        .args([&format!("http://{}/", exporter.web), &file])
        .output()
        .expect("no node: run make tools");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the page (run make tools?): {said}");
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(items(&shown).count(), moments.len());
    for (moment, shown) in moments.iter().zip(items(&shown)) {
        page_agrees(moment, shown);
    }
    for (moment, alerts) in moments.iter().zip(alerts(&folder, moments)) {
        alerts_agree(moment, &alerts);
    }
}

#[test]
fn all_surfaces_agree_at_ten_moments_of_growth() {
    let exporter = Exporter::start(&[]);
    let mut from = 0;
    let steps = [60, 200, 600, 1_000, 1_300, 1_500, 1_700, LAST - 60, LAST - 30, LAST - 10];
    let moments = steps.map(|step| {
        exporter.push(&leak(from, step + 1).records());
        from = step + 1;
        Moment::read(&exporter, &format!("step {step}"))
    });
    let has_time = |moment: &Moment| moment.growth().is_some() && moment.seconds().is_some();
    assert!(moments[2..].iter().all(has_time));
    all_agree("growth", &exporter, &moments);
}

#[test]
fn all_surfaces_agree_while_memory_rises() {
    // It would take a day to fill the device.
    let live = |rank, step: u64| BASE + noise(rank, step, MIB) + rank * step * LEAK;
    let exporter = Exporter::start(&[]);
    let moments = [(0, 150), (150, 700)].map(|(from, to)| {
        let job =
            leak(from, to).capacity(80 * GIB).live(live).peak(live).more(|_, _| json!({}));
        exporter.push(&job.reserved(live).records());
        Moment::read(&exporter, &format!("step {to}"))
    });
    let is_early =
        |moment: &Moment| moment.growth().is_some_and(|of| of["kind"] == "CREEP_EARLY");
    assert!(moments.iter().all(|moment| is_early(moment) && moment.seconds().is_some()));
    all_agree("rising", &exporter, &moments);
}

#[test]
fn all_surfaces_agree_after_a_restart_of_the_exporter() {
    let folder = Folder::new("surfaces");
    let path = text(&folder.path("state"));
    let arguments = ["--state.file", path.as_str()];
    let first = Exporter::start(&arguments);
    first.push(&leak(0, 1_001).records());
    let mut moments = vec![Moment::read(&first, "before")];
    first.stop();
    let second = Exporter::start(&arguments);
    moments.push(Moment::read(&second, "restored"));
    for (from, to) in [(1_001, 1_002), (1_002, 1_200), (1_200, LAST - 20)] {
        second.push(&leak(from, to).records());
        moments.push(Moment::read(&second, &format!("step {to} after a restart")));
    }
    all_agree("restart", &second, &moments);
}

#[test]
fn all_surfaces_agree_after_a_death_and_in_the_next_attempt() {
    let exporter = Exporter::start(&[]);
    exporter.push(&leak(0, LAST).records());
    let mut moments = vec![Moment::read(&exporter, "the last step")];
    let oom = json!({"rank": LEAKING, "outcome": "oom", "step": LAST, "requested_bytes": 2 * GIB,
        "error_type": "torch.OutOfMemoryError", "error_message": "CUDA out of memory. 20.00 GiB allowed; "});
    exporter.end("job", &oom);
    moments.push(Moment::read(&exporter, "out of memory"));
    for (from, to) in [(0, 20), (20, 800)] {
        exporter.push(&leak(from, to).attempt(1).starting_at(50_000.0).records());
        moments.push(Moment::read(&exporter, &format!("step {to} of the next attempt")));
    }
    all_agree("death", &exporter, &moments);
}

#[test]
fn all_surfaces_agree_after_a_good_end() {
    let exporter = Exporter::start(&[]);
    exporter.push(&leak(0, 1_700).records());
    let before = Moment::read(&exporter, "the last step");
    exporter.end("job", &json!({"outcome": "completed"}));
    let moments = [before, Moment::read(&exporter, "completed")];
    let [before, after] = &moments;
    assert!(before.seconds().is_some() && after.growth().is_some());
    assert!(after.seconds().is_none());
    all_agree("end", &exporter, &moments);
}

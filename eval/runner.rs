//! Runs the detector on jobs in their compact form (see `eval/simulator/compact.py`) and prints each transition as a line of JSON.
//!
//!     eval-runner [--process | --bytes-alone] [--set FIELD=VALUE]... < PATHS
//!     eval-runner --null MODEL --days N --seed S [--set FIELD=VALUE]...
//!
//! `--process` leaves out what ranks push: each is judged as an unmanaged process. `--bytes-alone` leaves out the number of live
//! blocks. `--set` changes a field of the detector's
//! configuration. `--null` counts what is raised in so many rank-days of a null model (see `eval/null_models.rs`).

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a tool of this repository, which ends at the first surprise"
)]

mod null_models;

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufWriter, Write};

use serde_json::{Value, json};
use stepmem_detect::{
    Asked, AxisPoint, Config, Detector, DeviceReading, Outlook, Sample, Signal, Stage, Trend,
};
use stepmem_types::units::UnixTime;

use null_models::Model;

/// Bytes of one row of a job.
const ROW_BYTES: usize = 36;
/// Bytes that a row's figures count in.
const UNIT_BYTES: f64 = 512.0;
/// Stands for an unknown number of live blocks.
const BLOCKS_UNKNOWN: f64 = 0xffff_ffff_u32 as f64;
/// A rank whose live memory falls below this share after a gap has restarted, as the exporter judges it.
const RESUME_FALL_RATIO: f64 = 0.75;
const RESUME_GAP_SECONDS: f64 = 30.0;
const RESUME_GAP_RATIO: f64 = 15.0;

/// A rank's outlooks are printed once in so many of its samples and readings.
const OUTLOOK_EVERY: u32 = 32;

/// Pages within so many seconds of the last one are one, as Alertmanager would group them.
const GROUP_SECONDS: f64 = 1800.0;

/// What the runner was asked for.
struct Options {
    config: Config,
    is_process: bool,
    has_blocks: bool,
    null: Option<Model>,
    days: u32,
    seed: u64,
}

pub fn main() {
    let options = options(std::env::args().skip(1));
    if let Some(model) = options.null {
        println!("{}", null_counts(model, &options));
        return;
    }
    let mut out = BufWriter::new(io::stdout().lock());
    for path in io::stdin().lock().lines() {
        let path = path.expect("standard input is text");
        run(&path, &options, &mut out);
        writeln!(out, "{}", json!({"job": path, "done": 1})).expect("standard output is open");
    }
}

fn options(arguments: impl Iterator<Item = String>) -> Options {
    let mut arguments = arguments;
    let (mut null, mut days, mut seed) = (None, 0, 0);
    let mut config = serde_json::to_value(Config::default()).expect("it serializes");
    let (mut is_process, mut has_blocks) = (false, true);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--process" => is_process = true,
            "--bytes-alone" => has_blocks = false,
            "--null" => {
                let name = arguments.next().expect("--null MODEL");
                null = Some(Model::named(&name).unwrap_or_else(|| panic!("no model {name}")));
            }
            "--days" => days = number(arguments.next()),
            "--seed" => seed = number(arguments.next()).into(),
            "--set" => {
                let set = arguments.next().expect("--set FIELD=VALUE");
                let (field, value) = set.split_once('=').expect("--set FIELD=VALUE");
                let slot = config.get_mut(field).unwrap_or_else(|| panic!("no field {field}"));
                *slot = value.parse::<u64>().map_or_else(
                    |_| json!(value.parse::<f64>().expect("a number")),
                    Value::from,
                );
            }
            other => panic!("unknown argument {other}"),
        }
    }
    let config = serde_json::from_value(config).expect("a configuration");
    Options { config, is_process, has_blocks, null, days, seed }
}

fn number(argument: Option<String>) -> u32 {
    argument.and_then(|text| text.parse().ok()).expect("a number")
}

/// Counts what is raised in the runs of a null model.
fn null_counts(model: Model, options: &Options) -> Value {
    let (mut n_pages, mut n_rising, mut n_days) = (0, 0, 0);
    for run in null_models::runs(model, options.days, options.seed) {
        n_days += null_models::RUN_DAYS;
        let mut rank = Rank::new(&options.config, true);
        let mut last = [f64::NEG_INFINITY; 2];
        for record in run {
            let position = f64::from(record.step);
            let time = UnixTime::new(record.time).expect("a time");
            let sample = Sample {
                at: AxisPoint { position, time },
                allocated: record.allocated,
                requested: None,
                peak: Some(record.peak),
                peak_bound: Some(record.peak),
                reserved: Some(record.reserved),
                peak_reserved: Some(record.reserved),
                live_blocks: None,
            };
            rank.detector.train(&sample, Some(null_models::TOTAL_BYTES));
            for transition in rank.transitions(null_models::TOTAL_BYTES) {
                if transition["state"] != "raised" {
                    continue;
                }
                let is_rising = transition["kind"] == "CREEP_EARLY";
                let n_raised = if is_rising { &mut n_rising } else { &mut n_pages };
                let last = &mut last[usize::from(is_rising)];
                *n_raised += i32::from(record.time - *last > GROUP_SECONDS);
                *last = record.time;
            }
        }
    }
    json!({"pages": n_pages, "rising": n_rising, "rank_days": n_days})
}

fn run(path: &str, options: &Options, out: &mut impl Write) {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let head = bytes.iter().position(|byte| *byte == b'\n').expect("a first line");
    let (head, rows) = bytes.split_at(head + 1);
    let head = std::str::from_utf8(head).expect("text");
    let mut head =
        head.split_whitespace().skip(1).map(|field| field.parse::<f64>().expect("a number"));
    let (n_ranks, total) = (head.next().expect("ranks"), head.next().expect("bytes"));
    let pushes = !options.is_process && rows.chunks_exact(ROW_BYTES).any(|row| row[0] == 0);
    let has_blocks = options.has_blocks;
    let new = || Rank { has_blocks, ..Rank::new(&options.config, pushes) };
    let mut ranks: Vec<Rank> = (0..n_ranks as usize).map(|_| new()).collect();
    for row in rows.chunks_exact(ROW_BYTES) {
        let time = f64::from_le_bytes(row[8..16].try_into().unwrap());
        let rank = usize::from(row[1]);
        let state = &mut ranks[rank];
        match row[0] {
            0 if pushes => state.record(row, time, total),
            0 => continue,
            _ => state.reading(row, time, total),
        }
        for mut transition in state.transitions(total) {
            transition["job"] = json!(path);
            transition["rank"] = json!(rank);
            transition["time"] = json!(time);
            transition["step"] = json!(state.step.max(0.0) as u64);
            writeln!(out, "{transition}").expect("standard output is open");
        }
    }
}

/// One rank of a job.
struct Rank {
    detector: Detector,
    pushes: bool,
    has_blocks: bool,
    step: f64,
    time: f64,
    allocated: f64,
    usual_gap: f64,
    shown: BTreeMap<&'static str, Value>,
    n_asked: u32,
}

impl Rank {
    fn new(config: &Config, pushes: bool) -> Self {
        let detector =
            if pushes { Detector::new(*config) } else { Detector::of_process(*config) };
        Self {
            detector,
            pushes,
            has_blocks: true,
            step: -1.0,
            time: -1.0,
            allocated: 0.0,
            usual_gap: 0.0,
            shown: BTreeMap::new(),
            n_asked: 0,
        }
    }

    fn record(&mut self, row: &[u8], time: f64, total: f64) {
        let number =
            |at: usize| f64::from(u32::from_le_bytes(row[at..at + 4].try_into().unwrap()));
        let (step, is_eval) = (number(4), row[2] == 1);
        if time <= self.time && (is_eval || step <= self.step) {
            return;
        }
        let gap = if self.time > 0.0 { (time - self.time).max(0.0) } else { 0.0 };
        self.time = time;
        let bytes = |at: usize| UNIT_BYTES * number(at);
        let sample = Sample {
            at: AxisPoint { position: step, time: UnixTime::new(time).expect("a time") },
            allocated: bytes(16),
            requested: None,
            peak: Some(bytes(20)),
            peak_bound: Some(bytes(20)),
            reserved: Some(bytes(24)),
            peak_reserved: Some(bytes(28)),
            live_blocks: Some(number(32))
                .filter(|number| self.has_blocks && *number < BLOCKS_UNKNOWN),
        };
        if is_eval {
            self.detector.other_phase(&sample);
            return;
        }
        let is_resumed = sample.allocated < RESUME_FALL_RATIO * self.allocated
            && gap > RESUME_GAP_SECONDS
            && gap > RESUME_GAP_RATIO * self.usual_gap;
        if step < self.step || is_resumed {
            self.detector.restart();
            self.usual_gap = 0.0;
        }
        self.usual_gap = if self.usual_gap == 0.0 {
            gap
        } else {
            self.usual_gap + 0.02 * (gap.min(5.0 * self.usual_gap) - self.usual_gap)
        };
        (self.step, self.allocated) = (step, sample.allocated);
        self.detector.train(&sample, Some(total));
    }

    fn reading(&mut self, row: &[u8], time: f64, total: f64) {
        let bytes = |at: usize| u64::from_le_bytes(row[at..at + 8].try_into().unwrap()) as f64;
        let reading = DeviceReading {
            time: UnixTime::new(time).expect("a time"),
            device_used: bytes(16),
            process_used: Some(bytes(24)),
        };
        if self.pushes {
            self.detector.device(&reading, Some(total));
        } else {
            self.detector.process(&reading, Some(total));
        }
    }

    /// Returns what was raised and cleared since the last call.
    fn transitions(&mut self, total: f64) -> Vec<Value> {
        let growing = self.detector.trends().filter(|trend| trend.is_growing());
        let now: BTreeMap<&'static str, Value> = growing
            .filter_map(|trend| {
                let outlook =
                    self.detector.outlook(trend.signal, Some(total), &Asked::default())?;
                Some((kind(trend)?, evidence(trend, &outlook)))
            })
            .collect();
        let mut transitions = Vec::new();
        self.n_asked += 1;
        if self.n_asked.is_multiple_of(OUTLOOK_EVERY) {
            for (kind, evidence) in &now {
                transitions
                    .push(json!({"kind": kind, "state": "outlook", "evidence": evidence}));
            }
        }
        for kind in self.shown.keys().filter(|kind| !now.contains_key(*kind)) {
            transitions.push(json!({"kind": kind, "state": "cleared"}));
        }
        for (kind, evidence) in now.iter().filter(|(kind, _)| !self.shown.contains_key(*kind)) {
            transitions.push(json!({"kind": kind, "state": "raised", "severity": if *kind == "CREEP_EARLY" { "info" } else { "warning" }, "evidence": evidence}));
        }
        self.shown = now;
        transitions
    }
}

fn kind(trend: &Trend) -> Option<&'static str> {
    match (trend.signal, trend.stage) {
        (Signal::Allocated | Signal::Process, Stage::Creeping) => Some("CREEP_CONFIRMED"),
        (Signal::Allocated | Signal::Process, Stage::Rising) => Some("CREEP_EARLY"),
        (Signal::Reserved, Stage::Creeping) => Some("FRAGMENTATION"),
        (Signal::OutsideAllocator, Stage::Creeping) => Some("OUTSIDE_ALLOCATOR"),
        _ => None,
    }
}

fn evidence(trend: &Trend, outlook: &Outlook) -> Value {
    let slope = outlook.bytes_per_unit().expect("a slope along its axis");
    let mut evidence = json!({
        "slope_bytes_per_step": slope.value,
        "slope_lower_bytes_per_step": slope.lower,
        "slope_upper_bytes_per_step": slope.upper,
        "onset_step": trend.onset.position,
        "growth_bytes": trend.growth_bytes,
        "share_ratio": trend.share_ratio,
        "confidence_ratio": trend.confidence_ratio,
    });
    let steps = outlook.steps.and_then(|left| left.known);
    if let Some(steps) = steps {
        evidence["oom_eta_steps"] = json!(steps);
    }
    evidence
}

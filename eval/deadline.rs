//! Runs the engine on jobs in their compact form (see `eval/simulator/compact.py`), on a clock of their own, as if every rank's
//! program would checkpoint when it is asked, and prints each ask as a line of JSON.
//!
//!     deadline-runner [--before SECONDS] [--findings] < PATHS
//!
//! `--findings` prints the findings that began and ended, too.
//!
//! A rank pushes what it has once a second, as the client does; the answer has the ask. The engine judges all once a second.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a tool of this repository, which ends at the first surprise"
)]

use std::io::{self, BufRead, BufWriter, Write};
use std::time::Duration;

use serde_json::json;
use stepmem_engine::{Engine, EngineConfig, Event, Handled, RequestKind};
use stepmem_types::device::{Attribution, DeviceInfo, DeviceMemory, GpuSample, ProcessMemory};
use stepmem_types::ids::{GpuUuid, Rank, Run};
use stepmem_types::step::{Identity, MarkSet, OnDeadline, Phase, StepFigures, StepSample};
use stepmem_types::units::{Bytes, Count, Seconds, Uptime};

/// Bytes of one row of a job.
const ROW_BYTES: usize = 36;
/// Bytes that a row's figures count in.
const UNIT_BYTES: u64 = 512;
/// Stands for an unknown number of live blocks.
const BLOCKS_UNKNOWN: u32 = u32::MAX;
/// Seconds from one push of a rank to its next, and from one tick to the next.
const EVERY_SECONDS: f64 = 1.0;
/// The id of the process of rank 0.
const PID_FIRST: u32 = 1000;

pub fn main() {
    let mut arguments = std::env::args().skip(1);
    let (mut config, mut has_findings) = (EngineConfig::default(), false);
    while let Some(argument) = arguments.next() {
        if argument == "--findings" {
            has_findings = true;
            continue;
        }
        assert_eq!(argument, "--before", "unknown argument");
        let seconds = arguments.next().expect("--before SECONDS");
        config.checkpoint_before = Duration::from_secs(seconds.parse().expect("a number"));
    }
    let mut out = BufWriter::new(io::stdout().lock());
    for path in io::stdin().lock().lines() {
        let path = path.expect("standard input is text");
        Job { has_findings, ..Job::read(&path, &config) }.run(&mut out);
        writeln!(out, "{}", json!({"job": path, "done": 1})).expect("standard output is open");
    }
}

/// A job, and the engine that it pushes to.
struct Job {
    path: String,
    rows: Vec<u8>,
    total: Bytes,
    engine: Engine,
    has_findings: bool,
    started: f64,
    ticked: f64,
    /// The records of each rank that are not pushed yet, and when they will be.
    waiting: Vec<(Vec<StepSample>, f64)>,
}

impl Job {
    fn read(path: &str, config: &EngineConfig) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let head = bytes.iter().position(|byte| *byte == b'\n').expect("a first line") + 1;
        let (text, rows) = bytes.split_at(head);
        let text = std::str::from_utf8(text).expect("text");
        let mut fields = text.split_whitespace().skip(1).map(str::parse::<u64>);
        let n_ranks = fields.next().expect("ranks").expect("a number");
        let total = fields.next().expect("bytes").expect("a number");
        let started = rows.chunks_exact(ROW_BYTES).next().map_or(0.0, time_of) - 1.0;
        Self {
            path: path.to_owned(),
            rows: rows.to_vec(),
            total: Bytes::new(total).unwrap(),
            engine: Engine::new(config.clone(), started),
            has_findings: false,
            started,
            ticked: started,
            waiting: vec![(Vec::new(), 0.0); n_ranks as usize],
        }
    }

    fn run(&mut self, out: &mut impl Write) {
        let rows = std::mem::take(&mut self.rows);
        for row in rows.chunks_exact(ROW_BYTES) {
            let time = time_of(row).max(self.ticked);
            self.push_until(time, out);
            let rank = usize::from(row[1]);
            if row[0] == 0 {
                let (records, due) = &mut self.waiting[rank];
                if records.is_empty() {
                    *due = time + EVERY_SECONDS;
                }
                let record = record_of(row, rank, self.total);
                records.push(record);
            } else {
                let reading = reading_of(row, rank, self.total);
                self.handle(&Event::Reading(Box::new(reading)), time);
            }
        }
        self.push_until(f64::INFINITY, out);
    }

    /// Pushes what is due before a time, in turn.
    fn push_until(&mut self, time: f64, out: &mut impl Write) {
        loop {
            let due =
                self.waiting.iter().enumerate().filter(|(_, (records, _))| !records.is_empty());
            let next =
                due.min_by(|(_, a), (_, b)| a.1.total_cmp(&b.1)).map(|(rank, of)| (rank, of.1));
            let Some((rank, at)) = next.filter(|(_, at)| *at <= time) else { return };
            let at = at.max(self.ticked);
            if at - self.ticked >= EVERY_SECONDS {
                self.handle(&Event::Tick, at);
                self.ticked = at;
            }
            let records = std::mem::take(&mut self.waiting[rank].0);
            let step = records.iter().map(|record| record.figures.step.get()).max();
            let handled = self.handle(&Event::Steps(records), at);
            for request in handled.map(|handled| handled.receipt.requests).unwrap_or_default() {
                if let RequestKind::Checkpoint(due) = request.kind {
                    let ask = json!({"job": self.path, "rank": rank, "time": at, "step": step,
                        "seconds_left": due.seconds_left, "reason": due.reason});
                    writeln!(out, "{ask}").expect("standard output is open");
                }
            }
        }
    }

    fn handle(&mut self, event: &Event, time: f64) -> Option<Handled> {
        let now = Uptime(Duration::from_secs_f64(time - self.started));
        let handled = self.engine.handle(event, now).ok()?;
        for of in handled.transitions.iter().filter(|_| self.has_findings) {
            let words = of.evidence.sentence();
            println!("{time:.0} {} {:?} {:?}: {words}", of.kind.label(), of.state, of.severity);
        }
        Some(handled)
    }
}

fn number(row: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(row[at..at + 4].try_into().unwrap())
}

fn time_of(row: &[u8]) -> f64 {
    f64::from_le_bytes(row[8..16].try_into().unwrap())
}

fn device(rank: usize) -> GpuUuid {
    GpuUuid::new(&format!("GPU-{rank}")).unwrap()
}

fn pid(rank: usize) -> u32 {
    PID_FIRST + u32::try_from(rank).unwrap()
}

fn record_of(row: &[u8], rank: usize, total: Bytes) -> StepSample {
    let bytes = |at: usize| Bytes::new(UNIT_BYTES * u64::from(number(row, at))).unwrap();
    let blocks = number(row, 32);
    StepSample {
        run: Run::new("job").unwrap(),
        rank: Rank::new(rank as u64).unwrap(),
        identity: Identity {
            device: Some(device(rank)),
            pid: Some(pid(rank)),
            total: Some(total),
            on_deadline: Some(OnDeadline::Checkpoint),
            ..Identity::default()
        },
        figures: StepFigures {
            step: Count::new(u64::from(number(row, 4))).unwrap(),
            allocated: bytes(16),
            peak_allocated: Some(bytes(20)),
            reserved: Some(bytes(24)),
            peak_reserved: Some(bytes(28)),
            live_blocks: (blocks != BLOCKS_UNKNOWN)
                .then(|| Count::new(u64::from(blocks)).unwrap()),
            ..StepFigures::default()
        },
        n_steps: 1,
        time: Some(Seconds::new(time_of(row)).unwrap()),
        phase: if row[2] == 1 { Phase::Eval } else { Phase::Train },
        phase_name: None,
        marks: MarkSet::default(),
        instance: None,
        launch: None,
        high_water_allocated: None,
        high_water_reserved: None,
        own_process: None,
        host: None,
        container: None,
    }
}

fn reading_of(row: &[u8], rank: usize, total: Bytes) -> GpuSample {
    let bytes = |at: usize| {
        Bytes::new(u64::from_le_bytes(row[at..at + 8].try_into().unwrap())).unwrap()
    };
    GpuSample {
        device: device(rank),
        info: DeviceInfo::default(),
        memory: Some(DeviceMemory { total, used: bytes(16), free: None, reserved: None }),
        processes: vec![ProcessMemory::new(pid(rank), Some(bytes(24)))],
        attribution: Attribution::Host,
        machine_total: None,
    }
}

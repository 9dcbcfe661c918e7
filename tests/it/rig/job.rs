//! Pushes of a training: single records, and whole jobs.

use std::ops::Range;

use serde_json::{Value, json};

use crate::rig::noise::noise;
use crate::rig::units::{GIB, MIB, float};

/// The Unix time when jobs begin.
pub const START: u64 = 1_764_000_000;

/// Names that a writer of exposition or a reader of it may stumble over.
pub const HOSTILE_NAMES: [&str; 6] = [
    r#"a "quoted" \back\slash\n"#,
    r#"{le="1"} 5"#,
    "# HELP not a comment",
    "ünïcode 🔥 \u{3000} \u{301}",
    " spaces , and = commas ",
    "a}b{c",
];

/// A record as JSON text: a rank's step with live memory, and never more within the step.
pub fn record(rank: u32, step: u64, allocated: u64) -> String {
    format!(
        r#"{{"rank":{rank},"step":{step},"allocated_bytes":{allocated},"peak_allocated_bytes":{allocated}}}"#
    )
}

/// Figures by rank and step.
type Of = Box<dyn Fn(u64, u64) -> u64>;

/// A job whose ranks push a record a second, on devices of 80 GiB with 1 GiB live, which is their peak too.
pub struct Job {
    run: String,
    ranks: Range<u64>,
    steps: Range<u64>,
    every: u64,
    attempt: u64,
    world: Option<u64>,
    start: Option<f64>,
    step_seconds: f64,
    capacity: u64,
    device: Option<&'static str>,
    live: Of,
    peak: Option<Of>,
    reserved: Option<Of>,
    more: Box<dyn Fn(u64, u64) -> Value>,
}

impl Job {
    /// Ranks from 0 and steps from 1.
    pub fn new(n_ranks: u64, n_steps: u64) -> Self {
        Self {
            run: "job".to_owned(),
            ranks: 0..n_ranks,
            steps: 1..n_steps + 1,
            every: 1,
            attempt: 0,
            world: None,
            start: Some(float(START)),
            step_seconds: 1.0,
            capacity: 80 * GIB,
            device: None,
            live: Box::new(|_, _| GIB),
            peak: None,
            reserved: None,
            more: Box::new(|_, _| json!({})),
        }
    }

    /// Four ranks with 16 MiB of noise on 20 GiB, ten seconds a step; rank 2 leaks so many bytes a step.
    pub fn leaking(run: &str, steps: Range<u64>, leak: u64) -> Self {
        let live = move |rank, step| {
            let leaked = if rank == 2 { leak * step } else { 0 };
            20 * GIB + noise(rank, step, 16 * MIB) + leaked
        };
        let job = Self::new(4, 0).run(run).steps(steps).seconds_per_step(10.0);
        job.live(live)
            .peak(move |rank, step| live(rank, step) + 20 * GIB)
            .reserved(|_, _| 48 * GIB)
    }

    pub fn run(self, run: &str) -> Self {
        Self { run: run.to_owned(), ..self }
    }

    pub fn first_rank(self, first: u64) -> Self {
        Self { ranks: first..first + self.ranks.end, ..self }
    }

    pub fn steps(self, steps: Range<u64>) -> Self {
        Self { steps, ..self }
    }

    /// Pushes every so many steps only.
    pub fn every(self, every: u64) -> Self {
        Self { every, ..self }
    }

    /// Attempts begin an hour after one another.
    pub fn attempt(self, attempt: u64) -> Self {
        Self { attempt, ..self }.starting_at(3600.0 * float(attempt))
    }

    pub fn starting_at(self, seconds: f64) -> Self {
        Self { start: Some(float(START) + seconds), ..self }
    }

    /// Leaves the time to the exporter's clock.
    pub fn untimed(self) -> Self {
        Self { start: None, ..self }
    }

    pub fn seconds_per_step(self, step_seconds: f64) -> Self {
        Self { step_seconds, ..self }
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

    /// Further fields of each record, or others in place of these.
    pub fn more(self, more: impl Fn(u64, u64) -> Value + 'static) -> Self {
        Self { more: Box::new(more), ..self }
    }

    /// The records, steps in order and within them ranks.
    pub fn records(&self) -> Vec<Value> {
        let of_step = |n| self.ranks.clone().map(move |rank| self.record(rank, n));
        self.steps.clone().flat_map(of_step).collect()
    }

    /// The records as a recording.
    pub fn recording(&self) -> String {
        recording(&self.records())
    }

    fn record(&self, rank: u64, n: u64) -> Value {
        let step = n * self.every;
        let mut record = json!({
            "run": self.run,
            "attempt": self.attempt,
            "rank": rank,
            "step": step,
            "time": self.start.map(|start| start + self.step_seconds * float(n)),
            "world_size": self.world,
            "device": self.device,
            "allocated_bytes": (self.live)(rank, step),
            "peak_allocated_bytes": self.peak.as_ref().map_or_else(
                || (self.live)(rank, step),
                |peak| peak(rank, step),
            ),
            "reserved_bytes": self.reserved.as_ref().map(|reserved| reserved(rank, step)),
            "total_bytes": self.capacity,
        });
        for (field, value) in (self.more)(rank, step).as_object().unwrap() {
            record[field] = value.clone();
        }
        record
    }
}

/// Records, a line each.
pub fn recording(records: &[Value]) -> String {
    records.iter().map(|record| record.to_string() + "\n").collect()
}

//! The rig: an engine, and records for it.

use std::time::Duration;

use serde_json::{Value, json};

use stepmem_engine::status::{ExporterStatus, FindingStatus, RankStatus, Status};
use stepmem_engine::wire::{Layout, decode_end, decode_steps};
use stepmem_engine::{DiagnosisKind, Engine, EngineConfig, Event, Handled, Refusal, Severity};
use stepmem_types::end::{EndAuthority, RankEnd};
use stepmem_types::ids::Run;
use stepmem_types::units::Uptime;

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// The Unix time at uptime 0.
pub const START: f64 = 1.764e9;

/// An engine, and the seconds of its last event.
pub struct Given {
    engine: Engine,
    now: f64,
}

impl Given {
    pub fn new() -> Self {
        Self::with(EngineConfig::default())
    }

    pub fn with(config: EngineConfig) -> Self {
        Self { engine: Engine::new(config, START), now: 0.0 }
    }

    /// Hands an event over at so many seconds.
    pub fn at(&mut self, seconds: f64, event: &Event) -> Result<Handled, Refusal> {
        self.now = seconds;
        self.engine.handle(event, uptime(seconds))
    }

    /// Pushes records, and has them judged.
    pub fn push(&mut self, seconds: f64, records: &[Value]) -> Handled {
        let handled = self.at(seconds, &steps(records)).unwrap();
        self.tick(seconds);
        handled
    }

    /// Pushes `record` of each of the steps, a second after another.
    pub fn train(&mut self, steps: std::ops::Range<u32>, record: impl Fn(u64) -> Value) {
        for step in steps {
            self.at(step.into(), &self::steps(&[record(step.into())])).unwrap();
        }
        self.tick(self.now);
    }

    /// Ends ranks of the run `job`.
    pub fn end(&mut self, seconds: f64, end: &Value) -> Result<Handled, Refusal> {
        let end = decode_end(end.to_string().as_bytes()).unwrap();
        self.at(seconds, &Event::End(Run::new("job").unwrap(), end))
    }

    /// Ends ranks of the run `job` in the name of an operator.
    pub fn operator_end(&mut self, seconds: f64, end: &Value) -> Result<Handled, Refusal> {
        let end = decode_end(end.to_string().as_bytes()).unwrap();
        let end = RankEnd { authority: EndAuthority::Any, ..end };
        self.at(seconds, &Event::End(Run::new("job").unwrap(), end))
    }

    pub fn tick(&mut self, seconds: f64) -> Handled {
        self.at(seconds, &Event::Tick).unwrap()
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub fn status(&self) -> Status {
        self.engine.status(uptime(self.now), ExporterStatus::default())
    }

    /// The first rank.
    pub fn rank(&self) -> RankStatus {
        self.status().ranks.remove(0)
    }

    /// The first finding of a kind.
    pub fn finding(&self, kind: DiagnosisKind) -> Option<FindingStatus> {
        self.status().findings.into_iter().find(|finding| finding.kind == kind)
    }

    pub fn severity(&self, kind: DiagnosisKind) -> Option<Severity> {
        self.finding(kind).map(|finding| finding.severity)
    }
}

pub fn uptime(seconds: f64) -> Uptime {
    Uptime(Duration::from_secs_f64(seconds))
}

/// Records as one event.
pub fn steps(records: &[Value]) -> Event {
    let body = Value::from(records.to_vec()).to_string();
    Event::Steps(decode_steps(body.as_bytes(), Layout::Json).unwrap())
}

/// A step of rank 0 of the run `job` on a device of 80 GiB, with other fields in addition.
pub fn record(step: u64, fields: &Value) -> Value {
    let mut record = json!({"run": "job", "rank": 0, "step": step, "device": "GPU-0",
        "total_bytes": 80 * GIB, "allocated_bytes": GIB});
    for (field, value) in fields.as_object().unwrap() {
        record[field] = value.clone();
    }
    record
}

/// Even noise below `range` that depends on the rank and the step alone (`SplitMix64`, Steele, Lea
/// and Flood 2014).
pub fn noise(rank: u64, step: u64, range: u64) -> u64 {
    let mut bits = ((rank << 32) | step).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (bits ^ (bits >> 31)) % range
}

/// A number of steps as seconds and metrics have it.
pub fn float(n: u64) -> f64 {
    f64::from(u32::try_from(n).unwrap())
}

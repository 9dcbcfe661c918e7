//! The verdict on series of others: each is played through an engine of its own as readings of
//! a process that pushes nothing, and told as `explain` tells of one.

mod html;
mod json;
mod source;
mod text;

pub use html::document;
pub use json::JudgedTold;
pub use source::SourceTold;
pub use text::render;

use std::time::Duration;

use crate::explain::story::{LookTime, Story, SubjectFigures};
use crate::series::{Point, Series};
use stepmem_engine::{
    DiagnosisKind, Engine, EngineConfig, Event, Transition, TransitionState, TrendFigures,
};
use stepmem_types::device::{Attribution, DeviceInfo, DeviceMemory, GpuSample, ProcessMemory};
use stepmem_types::ids::{GpuUuid, ProcessId, SubjectId};
use stepmem_types::units::{Bytes, Count, OutOfRange, UnixTime, Uptime};

/// A note on what samples by time cannot show.
pub(crate) const BY_TIME: &str = "Samples by time cannot show optimizer steps, what holds the memory, or a peak between two of them. A push per step \
                           (import stepmem) shows all three.";

/// The name of a series' device in its engine.
const DEVICE: &str = "GPU-series";
const PID: u32 = 1;
/// Time for which a device stays present after its last reading, as in a recording that no
/// exporter wrote.
const DEVICE_TTL: Duration = Duration::from_mins(10);

/// The verdict on a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The memory creeps at the end of the series.
    Creep,
    /// The memory crept, and no longer grows at the end of the series.
    Ended,
    /// The memory rises at the end of the series, and an innocent explanation is left.
    Rising,
    /// No growth was found.
    NoGrowth,
    /// No window was long enough to be tested.
    TooShort,
}

impl Verdict {
    /// Returns the verdict in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Creep => "CREEP",
            Self::Ended => "crept, ended",
            Self::Rising => "RISING",
            Self::NoGrowth => "no growth",
            Self::TooShort => "too short",
        }
    }
}

/// A series with its verdict.
#[derive(Debug)]
pub struct Judged {
    /// The series as it was decoded.
    pub series: Series,
    /// The course of the series, as `explain` shows one.
    pub story: Story,
    /// The verdict at the end of the series.
    pub verdict: Verdict,
    /// The growth behind the verdict, when it was seen last.
    pub growth: Option<TrendFigures>,
    /// The seconds that count as loading, and those that a verdict takes after them.
    pub(super) needs: [f64; 2],
}

impl Judged {
    /// Judges a series with the settings of an exporter.
    ///
    /// # Errors
    /// A figure is out of range.
    pub fn of(series: Series, config: &EngineConfig) -> Result<Self, OutOfRange> {
        let mut play = Play::new(&series, config)?;
        for point in &series.points {
            play.read(*point, series.capacity)?;
        }
        play.handle(&Event::Tick);
        let verdict = play.verdict();
        let growth = match verdict {
            Verdict::Creep | Verdict::Ended => play.crept,
            Verdict::Rising => play.rose,
            Verdict::NoGrowth | Verdict::TooShort => None,
        };
        let n_samples = Count::new(u64::try_from(config.creep.blocks_min).unwrap_or(u64::MAX))?;
        let judging = n_samples.as_f64() * config.process_reading_every.as_secs_f64();
        let needs = [config.creep.process_warmup_seconds, judging];
        Ok(Self { story: play.story, verdict, growth, needs, series })
    }
}

/// An engine that reads one series.
struct Play {
    engine: Engine,
    id: ProcessId,
    device: GpuUuid,
    began: UnixTime,
    now: Uptime,
    story: Story,
    /// Set while its memory creeps, or rises.
    creeps: bool,
    rises: bool,
    /// The growth when it was last seen to creep, and to rise.
    crept: Option<TrendFigures>,
    rose: Option<TrendFigures>,
}

impl Play {
    fn new(series: &Series, config: &EngineConfig) -> Result<Self, OutOfRange> {
        let config = EngineConfig { gpu_ttl: DEVICE_TTL, ..config.clone() };
        let began = UnixTime::new(series.points.first().map_or(0.0, |point| point.time))?;
        let device = GpuUuid::new(DEVICE)?;
        let id = ProcessId { uuid: device.clone(), pid: PID };
        let story = Story::new(SubjectId::Process(id.clone()), &config);
        Ok(Self {
            story: story.of_series(series.name()),
            engine: Engine::new(config, began.get()),
            id,
            device,
            began,
            now: Uptime::default(),
            creeps: false,
            rises: false,
            crept: None,
            rose: None,
        })
    }

    /// Takes a point as a reading of a device that one process has for itself.
    fn read(&mut self, point: Point, capacity: Option<f64>) -> Result<(), OutOfRange> {
        let used = Bytes::rounded(point.bytes)?;
        // None stands for a capacity that is unknown, as where the driver reports none.
        let total = capacity
            .map_or(Ok(Bytes::default()), |total| Bytes::rounded(total.max(point.bytes)));
        let memory = DeviceMemory { total: total?, used, free: None, reserved: None };
        let since = UnixTime::new(point.time)?.since(self.began);
        self.now = Uptime(Duration::try_from_secs_f64(since).unwrap_or_default());
        self.handle(&Event::Reading(Box::new(GpuSample {
            device: self.device.clone(),
            info: DeviceInfo::default(),
            memory: Some(memory),
            processes: vec![ProcessMemory::new(PID, Some(used))],
            attribution: Attribution::SharedPidNamespace,
            machine_total: None,
        })));
        Ok(())
    }

    fn handle(&mut self, event: &Event) {
        // No refusal is of a reading or a tick.
        let transitions = self.engine.handle(event, self.now);
        let transitions = transitions.map(|handled| handled.transitions).unwrap_or_default();
        for transition in &transitions {
            self.hold(transition);
        }
        let Some(view) = self.engine.process(&self.id, self.now) else { return };
        if self.creeps || self.rises {
            let growth = view.outlook().map(|outlook| TrendFigures::of(&outlook));
            let of = if self.creeps { &mut self.crept } else { &mut self.rose };
            *of = growth.or_else(|| of.take());
        }
        let at = LookTime { now: self.now, time: self.engine.unix_time(self.now) };
        self.story.see(&SubjectFigures::Process(view), at, &transitions);
    }

    fn hold(&mut self, transition: &Transition) {
        let is_raised = transition.state == TransitionState::Raised;
        match transition.kind {
            DiagnosisKind::CreepConfirmed => self.creeps = is_raised,
            DiagnosisKind::CreepEarly => self.rises = is_raised,
            _ => {}
        }
    }

    fn verdict(&self) -> Verdict {
        let is_level = self.crept.as_ref().is_some_and(TrendFigures::is_level);
        let is_tested = self.story.windows.values().any(|level| level.n_tests > 0);
        match (&self.crept, is_tested) {
            (Some(_), _) if self.creeps && !is_level => Verdict::Creep,
            (Some(_), _) => Verdict::Ended,
            (None, _) if self.rises => Verdict::Rising,
            (None, true) => Verdict::NoGrowth,
            (None, false) => Verdict::TooShort,
        }
    }
}

//! The story of one rank or process, gathered record by record: its live memory, its findings,
//! and the explanations that stopped its windows. Nothing is put into words here.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use stepmem_detect::{
    Bound, Capacity, Detector, Explanation, Shown, ShownBy, Signal, Stopped, WindowReport,
};
use stepmem_engine::{
    DiagnosisKind, EngineConfig, KeptBlocks, LIVE_SIGNALS, LimitOrigin, ProcessView, RankView,
    Transition, TransitionState,
};
use stepmem_types::ids::SubjectId;
use stepmem_types::step::StepUnit;
use stepmem_types::units::{Bytes, Uptime};

/// The points of a picture, at most.
pub(crate) const POINTS_MAX: usize = 92;

/// The story of one rank or process.
#[derive(Debug)]
pub struct Story {
    /// The rank or process itself.
    pub subject: SubjectId,
    /// The name of the series of others that stands for a process.
    pub series: Option<String>,
    /// The subject's device, if known.
    pub device: Option<String>,
    /// The subject's capacity, if known: its device's, or its own limit.
    pub capacity: Option<Bytes>,
    /// The origin of the capacity, where it is a limit of the process's own; and the device's
    /// capacity.
    pub capacity_set_by: Option<(LimitOrigin, Option<Bytes>)>,
    /// Number of train steps that were accepted, or of readings.
    pub n_steps: u64,
    /// Set when these are samples by time, of a rank that took no steps.
    pub is_by_time: bool,
    /// The unit of the steps.
    pub unit: StepUnit,
    /// The first and the last of them.
    pub span: Option<(StoryPoint, StoryPoint)>,
    /// Number of its restarts.
    pub n_restarts: u32,
    /// Each signal after the steps, warm-ups left out.
    pub minima: BTreeMap<Signal, PartMinima>,
    /// The findings that were raised and cleared, in order.
    pub events: Vec<StoryEvent>,
    /// The outcomes of the windows, by signal and level.
    pub windows: BTreeMap<(Signal, usize), LevelTests>,
    /// The window of each signal that came nearest to a trend.
    pub closest: BTreeMap<Signal, Closest>,
    /// The last testimony of the number of live blocks in its current incarnation.
    pub kept_blocks: Option<KeptBlocks>,
    /// Number of steps of an incarnation that are warm-up.
    warmup_pushes: u32,
    /// A rank that is silent for longer leaves every output.
    rank_ttl: Duration,
    /// Number of further steps of the current incarnation that are warm-up.
    n_warmup: u32,
    /// Set when the current incarnation has a window.
    has_window: bool,
}

/// The figures of the subject at one time.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is copied")]
pub enum SubjectFigures<'a> {
    /// The figures of a rank.
    Rank(RankView<'a>),
    /// The figures of an unmanaged process.
    Process(ProcessView<'a>),
}

impl<'a> SubjectFigures<'a> {
    fn capacity(&self) -> Option<Bytes> {
        match self {
            Self::Rank(rank) => rank.capacity,
            Self::Process(process) => process.capacity,
        }
    }

    fn capacity_set_by(&self) -> Option<(LimitOrigin, Option<Bytes>)> {
        let Self::Rank(rank) = self else { return None };
        Some((rank.capacity_set_by()?, rank.limits.shared.map(|limit| limit.bytes)))
    }

    /// Returns the capacity that growth of a signal is weighed against.
    fn capacity_of(&self, signal: Signal) -> Capacity {
        match self {
            Self::Rank(rank) => rank.capacity_of(signal),
            Self::Process(process) => process.capacity.map(Bytes::as_f64).into(),
        }
    }

    /// Returns the detector that judges a signal.
    fn detector(&self, signal: Signal) -> &'a Detector {
        match self {
            Self::Rank(rank) => rank.detectors.of(signal),
            Self::Process(process) => process.creep,
        }
    }

    fn last_seen(&self) -> Uptime {
        match self {
            Self::Rank(rank) => rank.last_seen,
            Self::Process(process) => process.last_seen,
        }
    }

    /// Returns the last step of a rank.
    fn last_step(&self) -> Option<u64> {
        match self {
            Self::Rank(rank) => rank.last_train.map(|last| last.step.get()),
            Self::Process(_) => None,
        }
    }

    fn bytes(&self, signal: Signal) -> Option<f64> {
        match (self, signal) {
            (Self::Rank(rank), Signal::Allocated) => Some(rank.last_train?.allocated.as_f64()),
            (Self::Rank(rank), Signal::Reserved) => Some(rank.last_train?.reserved?.as_f64()),
            (Self::Rank(rank), Signal::OutsideAllocator) => rank.outside_allocator_bytes,
            (Self::Rank(rank), Signal::Host) => {
                rank.host?.view().allocated_bytes.map(Bytes::as_f64)
            }
            (Self::Rank(rank), Signal::Children) => {
                rank.host?.children_own().map(Bytes::as_f64)
            }
            (Self::Rank(rank), Signal::Shm) => rank.host?.shm().map(|(used, _)| used.as_f64()),
            (Self::Process(process), Signal::Process) => Some(process.used.as_f64()),
            _ => None,
        }
    }
}

/// The point at which something happened.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StoryPoint {
    /// The last train step; `None` of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The Unix time.
    pub time: f64,
}

/// The time at which a subject is evaluated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LookTime {
    /// The time since the recording began.
    pub now: Uptime,
    /// The Unix time.
    pub time: f64,
}

/// A finding that was raised or cleared.
#[derive(Debug)]
pub struct StoryEvent {
    pub transition: Transition,
    /// Number of steps that the charts had then.
    pub n_pictured: u64,
    /// The window that shows a raised finding or, as when its severity changes, has shown it.
    /// `None` when the intervals between event markers do, or the finding is about no window.
    pub window: Option<WindowReport>,
    /// Set when the intervals between event markers show a raised finding.
    pub is_between_events: bool,
    /// Set when the newest readings show a raised finding, each by itself.
    pub is_rapid: bool,
    /// The testimony of the number of live blocks, where it alone shows a raised finding.
    pub by_blocks: Option<KeptBlocks>,
    /// The reason that a finding was cleared.
    pub cause: Cause,
    /// Set when the rank had ended by then.
    pub has_ended: bool,
}

/// The reason that a finding was cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The figures no longer show the finding.
    Figures,
    Became(DiagnosisKind),
    Restart,
    /// The rank was silent for too long.
    Silence,
}

/// The outcomes of one level's windows.
#[derive(Debug)]
pub struct LevelTests {
    /// Number of windows that were tested.
    pub n_tests: u32,
    /// Number of windows by their outcome.
    pub ends: BTreeMap<End, u32>,
    /// The last window, tested or not.
    pub last: WindowReport,
}

/// The outcome of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// An innocent explanation stopped it.
    Stopped(Explanation),
    /// The window shows growth that an explanation keeps from being called creep.
    Rises(Explanation),
    Creeps,
}

impl End {
    /// Returns the outcome that a verdict amounts to.
    pub fn of(verdict: &Result<Shown, Stopped>) -> Self {
        match verdict {
            Err(stop) => Self::Stopped(stop.explanation),
            Ok(Shown { obstacle: Some(stop), .. }) => Self::Rises(stop.explanation),
            Ok(Shown { obstacle: None, .. }) => Self::Creeps,
        }
    }
}

/// The window of a signal that came nearest to a trend.
#[derive(Clone, Copy, Debug)]
pub struct Closest {
    pub window: WindowReport,
    /// The step at which it did; `None` of a process.
    pub step: Option<u64>,
}

impl Story {
    /// Returns a story that has not begun.
    pub fn new(subject: SubjectId, config: &EngineConfig) -> Self {
        Self {
            subject,
            series: None,
            device: None,
            capacity: None,
            capacity_set_by: None,
            n_steps: 0,
            is_by_time: false,
            unit: StepUnit::Steps,
            span: None,
            n_restarts: 0,
            warmup_pushes: config.creep.warmup_samples,
            rank_ttl: config.rank_ttl,
            n_warmup: 0,
            minima: BTreeMap::new(),
            events: Vec::new(),
            windows: BTreeMap::new(),
            closest: BTreeMap::new(),
            kept_blocks: None,
            has_window: false,
        }
    }

    /// Makes it that of a series of others, which stands for a process.
    #[must_use]
    pub(crate) fn of_series(self, name: String) -> Self {
        Self { series: Some(name), ..self }
    }

    /// Returns whether it is of an unmanaged process.
    pub fn is_process(&self) -> bool {
        matches!(self.subject, SubjectId::Process(_))
    }

    /// Returns whether it has readings instead of steps: of an unmanaged process, or samples by
    /// time.
    pub(crate) fn has_readings(&self) -> bool {
        self.is_process() || self.is_by_time
    }

    /// Returns whether a signal was read in any incarnation.
    pub fn has(&self, signal: Signal) -> bool {
        self.minima.contains_key(&signal) || self.windows.keys().any(|(of, _)| *of == signal)
    }

    /// Takes the subject's figures after any record, and the `transitions` that the record
    /// caused.
    pub fn see(
        &mut self,
        view: &SubjectFigures<'_>,
        LookTime { now, time }: LookTime,
        transitions: &[Transition],
    ) {
        let is_restarted = self.test(view);
        if self.n_steps == 0 || is_restarted {
            self.n_warmup = self.warmup_pushes;
        }
        let (n_steps, is_by_time) = match view {
            SubjectFigures::Rank(rank) if rank.totals.steps == 0 => {
                (rank.lifetime.n_samples(), rank.is_by_time())
            }
            SubjectFigures::Rank(rank) => (rank.totals.steps, false),
            SubjectFigures::Process(process) => {
                let is_read = self.span.is_none_or(|(_, last)| last.time < time);
                (self.n_steps + u64::from(is_read && process.last_seen == now), false)
            }
        };
        (self.capacity, self.capacity_set_by) = (view.capacity(), view.capacity_set_by());
        let unit = match view {
            SubjectFigures::Rank(rank) => rank.identity.unit,
            SubjectFigures::Process(_) => StepUnit::Steps,
        };
        if unit != self.unit {
            // The pictures begin again, as the windows do.
            (self.unit, self.span, self.n_warmup) = (unit, None, self.warmup_pushes);
            self.minima.clear();
        }
        if n_steps != self.n_steps {
            if self.is_by_time && !is_by_time {
                // The first step begins the pictures again, as it does the windows.
                (self.span, self.n_warmup) = (None, self.warmup_pushes);
                self.minima.clear();
            }
            self.is_by_time = is_by_time;
            let moment = StoryPoint { step: view.last_step(), time };
            self.n_steps = n_steps;
            self.device = match (&self.subject, view) {
                (SubjectId::Process(id), _) => Some(id.uuid.to_string()),
                (_, SubjectFigures::Rank(rank)) => {
                    rank.identity.device.as_ref().map(ToString::to_string)
                }
                _ => None,
            };
            self.span = Some((self.span.map_or(moment, |(first, _)| first), moment));
            self.picture(view);
        }
        let is_silent = now.since(view.last_seen()) > self.rank_ttl;
        let mine: Vec<&Transition> =
            transitions.iter().filter(|other| other.subject == self.subject).collect();
        for transition in &mine {
            let became = mine.iter().find(|other| {
                other.state == TransitionState::Raised
                    && signal(other).is_some()
                    && signal(other) == signal(transition)
            });
            let cause = match became {
                Some(other) => Cause::Became(other.kind),
                None if is_restarted => Cause::Restart,
                None if is_silent => Cause::Silence,
                None => Cause::Figures,
            };
            self.add_event(transition, view, cause);
        }
    }

    /// Adds the figures after the last step to the pictures.
    fn picture(&mut self, view: &SubjectFigures<'_>) {
        if self.n_warmup > 0 && !self.has_readings() {
            self.n_warmup -= 1;
            return;
        }
        for signal in Signal::ALL {
            let bytes = view.bytes(signal);
            if signal.is_beside() && bytes.is_none() {
                continue; // most ranks have none
            }
            let bytes = bytes.unwrap_or(f64::NAN);
            self.minima.entry(signal).or_default().add(bytes);
        }
    }

    /// Adds a transition with the window behind it.
    fn add_event(&mut self, transition: &Transition, view: &SubjectFigures<'_>, cause: Cause) {
        let of_signal =
            signal(transition).filter(|_| transition.state == TransitionState::Raised);
        let shown_by = of_signal.and_then(|of| view.detector(of).shown_by(of));
        let by_blocks = of_signal
            .filter(|of| view.detector(*of).is_shown_by_blocks(*of))
            .and_then(|of| KeptBlocks::of(view.detector(of)));
        let stage = transition.kind.about().stage;
        // A longer window may have taken over in the same moment, without showing as much.
        let worth = |level_idx| {
            move |window: &WindowReport| {
                let is_shown = window.outcome.is_ok_and(|shown| Some(shown.stage) == stage);
                (is_shown, window.level_idx == level_idx)
            }
        };
        let window_of = |level_idx| {
            let windows = of_signal
                .into_iter()
                .flat_map(|of| view.detector(of).windows(of, view.capacity_of(of)));
            windows.max_by_key(worth(level_idx))
        };
        self.events.push(StoryEvent {
            transition: transition.clone(),
            n_pictured: self.minima.values().map(|minima| minima.n_added).max().unwrap_or(0),
            window: match shown_by {
                Some(ShownBy::Window(level_idx)) if by_blocks.is_none() => window_of(level_idx),
                _ => None,
            },
            by_blocks,
            is_rapid: shown_by == Some(ShownBy::Rapid),
            is_between_events: matches!(shown_by, Some(ShownBy::Shifts | ShownBy::Intervals)),
            cause,
            has_ended: has_ended(view),
        });
    }

    /// Counts the outcomes of the windows that got a block since the last evaluation; returns
    /// whether the rank restarted.
    fn test(&mut self, view: &SubjectFigures<'_>) -> bool {
        let step = view.last_step();
        let had_window = std::mem::take(&mut self.has_window);
        for signal in Signal::ALL {
            for window in view.detector(signal).windows(signal, view.capacity_of(signal)) {
                self.has_window |= LIVE_SIGNALS.contains(&signal);
                let key = (signal, window.level_idx);
                let is_new = |tests: &LevelTests| tests.last.to.total_cmp(&window.to).is_ne();
                // A level has no new block unless the one below has.
                if !self.windows.get(&key).is_none_or(is_new) {
                    break;
                }
                self.count(&window, step);
            }
        }
        // A rank that ended has no windows any more.
        let has_ended = has_ended(view);
        if !has_ended {
            self.kept_blocks = KeptBlocks::of(view.detector(Signal::Allocated));
        }
        let is_restarted = had_window && !self.has_window && !has_ended;
        self.n_restarts += u32::from(is_restarted);
        is_restarted
    }

    fn count(&mut self, window: &WindowReport, step: Option<u64>) {
        let end = End::of(&window.outcome);
        let tests = self
            .windows
            .entry((window.signal, window.level_idx))
            .or_insert_with(|| LevelTests { n_tests: 0, ends: BTreeMap::new(), last: *window });
        tests.last = *window;
        if end == End::Stopped(Explanation::TooShort) {
            return;
        }
        tests.n_tests += 1;
        *tests.ends.entry(end).or_default() += 1;
        let closest =
            self.closest.entry(window.signal).or_insert(Closest { window: *window, step });
        if nearness(&window.outcome) > nearness(&closest.window.outcome) {
            *closest = Closest { window: *window, step };
        }
    }
}

/// Returns whether the subject is a rank that ended.
fn has_ended(view: &SubjectFigures<'_>) -> bool {
    matches!(view, SubjectFigures::Rank(rank) if rank.ended.is_some())
}

/// Orders windows by how far they got: to which explanation, then how near to disproving it.
fn nearness(verdict: &Result<Shown, Stopped>) -> (End, u64) {
    let stop = match verdict {
        Ok(passed) => passed.obstacle,
        Err(stop) => Some(*stop),
    };
    (End::of(verdict), stop.map_or(0, |stop| passed_by(&stop)))
}

/// Orders the stops by one explanation: bits of a positive ratio rise with it.
fn passed_by(failure: &Stopped) -> u64 {
    let ratio = match failure.explanation.bound() {
        Bound::AtLeast => failure.value / failure.limit,
        Bound::AtMost => failure.limit / failure.value,
    };
    if ratio > 0.0 { ratio.to_bits() } else { 0 }
}

/// Returns the signal that grows, if the transition is about one.
pub(crate) fn signal(transition: &Transition) -> Option<Signal> {
    transition.evidence.signal()
}

/// The least value of a figure in equal parts of an incarnation, at most [`POINTS_MAX`] of
/// them.
#[derive(Debug, Default)]
pub struct PartMinima {
    points: Vec<f64>,
    /// Two to the power of this steps make a point.
    halvings: u32,
    /// Number of steps.
    n_added: u64,
}

impl PartMinima {
    /// Returns the number of steps that make a point.
    pub(crate) fn steps_per_point(&self) -> u64 {
        1 << self.halvings
    }

    /// Returns the points in order, in bytes; NaN where the figure is unknown.
    pub fn points(&self) -> &[f64] {
        &self.points
    }

    /// Returns whether the last point has all its steps.
    fn is_full(&self) -> bool {
        self.n_added.is_multiple_of(self.steps_per_point())
    }

    fn add(&mut self, bytes: f64) {
        if self.points.len() == POINTS_MAX && self.is_full() {
            let pairs = self.points.chunks(2);
            self.points =
                pairs.map(|pair| pair.iter().copied().fold(f64::NAN, f64::min)).collect();
            self.halvings += 1;
        }
        let is_full = self.is_full();
        match self.points.last_mut() {
            Some(last) if !is_full => *last = last.min(bytes),
            _ => self.points.push(bytes),
        }
        self.n_added += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::explain::story::{
        Cause, LookTime, POINTS_MAX, PartMinima, Story, SubjectFigures,
    };
    use stepmem_detect::{Asked, Detector};
    use stepmem_engine::{
        Basis, DiagnosisKind, EngineConfig, Evidence, PressureEvidence, ProcessView, Severity,
        Transition, TransitionState,
    };
    use stepmem_types::ids::{GpuUuid, ProcessId, SubjectId};
    use stepmem_types::units::{Bytes, Uptime};

    fn process(pid: u32) -> SubjectId {
        SubjectId::Process(ProcessId { uuid: GpuUuid::new("GPU-7").unwrap(), pid })
    }

    fn pressure(subject: SubjectId, state: TransitionState) -> Transition {
        let evidence = PressureEvidence {
            too_large: None,
            unit: stepmem_types::step::StepUnit::Steps,
            pressure_ratio: 0.95,
            is_on_host: false,
            is_unified: false,
            is_of_container: false,
            basis: Basis::Process,
            capacity_set_by: None,
            never_live_ratio: None,
            private_pools_bytes: None,
            is_level: false,
            taken_at_start_bytes: None,
            capacity_bytes: 100,
        };
        Transition {
            time: 0.0,
            step: None,
            subject,
            kind: DiagnosisKind::HighPressure,
            state,
            severity: Severity::Warning,
            evidence: Evidence::HighPressure(evidence),
        }
    }

    /// The story of a process that is read at second 0 and evaluated again at `seconds`, when
    /// `transitions` come.
    fn story(seconds: u64, is_listed: bool, transitions: &[Transition]) -> Story {
        let config = EngineConfig::default();
        let estimator = Detector::of_process(config.creep);
        let mut story = Story::new(process(1), &config);
        let mut see = |seconds: u64, last_seen: u64, transitions: &[Transition]| {
            let at = |seconds| Uptime(Duration::from_secs(seconds));
            let view = SubjectFigures::Process(ProcessView {
                recent_peak: None,
                used: Bytes::new(95).unwrap(),
                capacity: Bytes::new(100).ok(),
                creep: &estimator,
                last_seen: at(last_seen),
                asked: Asked::default(),
            });
            let time = 1000.0 + Duration::from_secs(seconds).as_secs_f64();
            story.see(&view, LookTime { now: at(seconds), time }, transitions);
        };
        see(0, 0, &[]);
        see(seconds, if is_listed { seconds } else { 0 }, transitions);
        story
    }

    #[test]
    fn story_of_a_process_spans_its_readings_and_has_no_steps() {
        let story = story(20, true, &[]);
        let (first, last) = story.span.unwrap();
        assert_eq!((first.step, last.step), (None, None));
        assert_eq!((first.time, last.time, story.n_steps), (1000.0, 1020.0, 2));
        assert_eq!(story.device.as_deref(), Some("GPU-7"));
    }

    #[test]
    fn look_without_a_reading_adds_none() {
        let story = story(20, false, &[]);
        assert_eq!((story.n_steps, story.span.unwrap().1.time), (1, 1000.0));
    }

    #[test]
    fn findings_of_other_subjects_are_not_part_of_the_story() {
        let raised = |pid| pressure(process(pid), TransitionState::Raised);
        let story = story(20, true, &[raised(2), raised(1)]);
        let subjects: Vec<_> =
            story.events.iter().map(|event| &event.transition.subject).collect();
        assert_eq!(subjects, [&process(1)]);
    }

    #[test]
    fn finding_is_cleared_by_its_figures_or_by_silence() {
        let cleared = [pressure(process(1), TransitionState::Cleared)];
        let cause = |seconds, is_listed| story(seconds, is_listed, &cleared).events[0].cause;
        assert_eq!(cause(20, true), Cause::Figures);
        let rank_ttl = EngineConfig::default().rank_ttl.as_secs();
        assert_eq!(
            (cause(rank_ttl, false), cause(rank_ttl + 1, false)),
            (Cause::Figures, Cause::Silence)
        );
    }

    #[test]
    fn minima_keep_the_least_of_equal_parts() {
        let mut minima = PartMinima::default();
        for step in 0..10_000_u32 {
            minima.add(f64::from(step));
        }
        assert!(minima.points().len() <= POINTS_MAX);
        assert_eq!(minima.points().len(), 79);
        assert_eq!(minima.steps_per_point(), 128);
        for (point, n) in minima.points().iter().zip(0_u32..) {
            assert!((point - f64::from(128 * n)).abs() < 0.5, "{point}");
        }
    }
}

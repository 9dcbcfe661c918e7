//! A story, and a live exporter's facts about a rank, as JSON. Bytes, seconds and steps stand
//! in the names, and an unknown figure is absent.

use std::ops::Not;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::explain::json_windows::{ClosestWindow, LevelWindows, TestMeaning, WindowShown};
use crate::explain::live;
use crate::explain::story::{Cause, End, PartMinima, Story, StoryEvent, StoryPoint};
use crate::explain::text::{held, signals, tell, tests};
use stepmem_detect::Signal;
use stepmem_engine::status::{AckStatus, FindingStatus, RankStatus, Status};
use stepmem_engine::{
    DiagnosisKind, KeptBlocks, LimitOrigin, RankView, Severity, Transition, TransitionState,
};
use stepmem_types::claims::Statement;
use stepmem_types::ids::{SubjectId, subject_fields};
use stepmem_types::units::Bytes;

/// A story, for programs.
#[derive(Debug, Serialize)]
pub struct StoryTold<'a> {
    #[serde(flatten, with = "subject_fields")]
    subject: SubjectId,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_set_by: Option<LimitOrigin>,
    /// Train steps that were accepted, of a rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<u64>,
    /// The readings that were taken, of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    readings: Option<u64>,
    restarts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<StoryPoint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<StoryPoint>,
    /// The findings that still hold at the end.
    held: Vec<FindingHeld>,
    signals: Vec<SignalTold>,
    /// The last testimony of the number of the allocator's live blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_blocks: Option<KeptBlocks>,
    events: Vec<EventTold<'a>>,
    /// The tests that outcomes name.
    tests: Vec<TestMeaning>,
    /// The statements of the text, in its order.
    statements: Vec<Statement>,
}

impl<'a> StoryTold<'a> {
    /// The story in JSON, with the same sentences as in its text.
    pub fn of(story: &'a Story) -> Self {
        let has_readings = story.has_readings();
        let n_steps = Some(story.n_steps);
        let held = held(story).map(|event| FindingHeld {
            kind: event.transition.kind,
            severity: event.transition.severity,
        });
        let ends = story.windows.values().flat_map(|level| level.ends.keys().copied());
        Self {
            subject: story.subject.clone(),
            device: story.device.as_deref(),
            capacity_bytes: story.capacity.map(Bytes::get),
            capacity_set_by: story.capacity_set_by.map(|(origin, _)| origin),
            steps: n_steps.filter(|_| !has_readings),
            readings: n_steps.filter(|_| has_readings),
            restarts: story.n_restarts,
            first: story.span.map(|(first, _)| first),
            last: story.span.map(|(_, last)| last),
            held: held.collect(),
            signals: signals(story).map(|signal| SignalTold::of(story, signal)).collect(),
            kept_blocks: story.kept_blocks,
            events: story.events.iter().map(|event| EventTold::of(event, story)).collect(),
            tests: tests(ends).into_iter().map(TestMeaning::of).collect(),
            statements: tell(story, None).into_said(),
        }
    }
}

/// A finding that holds.
#[derive(Debug, Serialize)]
struct FindingHeld {
    kind: DiagnosisKind,
    severity: Severity,
}

/// A signal over the whole story.
#[derive(Debug, Serialize)]
struct SignalTold {
    signal: Signal,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "floor")]
    minima: Option<MinimaJson>,
    /// The windows that were tested, by level.
    windows: Vec<LevelWindows>,
    #[serde(skip_serializing_if = "Option::is_none")]
    closest: Option<ClosestWindow>,
}

impl SignalTold {
    fn of(story: &Story, signal: Signal) -> Self {
        let is_capacity_known = story.capacity.is_some();
        let of_signal = story.windows.iter().filter(|((of, _), _)| *of == signal);
        let tested = of_signal.map(|(_, level)| level).filter(|level| level.n_tests > 0);
        let minima = story.minima.get(&signal);
        Self {
            signal,
            minima: minima.and_then(|minima| MinimaJson::of(minima, story.has_readings())),
            windows: tested.map(|level| LevelWindows::of(level, is_capacity_known)).collect(),
            closest: story
                .closest
                .get(&signal)
                .map(|closest| ClosestWindow::of(closest, is_capacity_known)),
        }
    }
}

/// The chart of a signal: its least value in equal parts of an incarnation.
#[derive(Debug, Serialize)]
struct MinimaJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    steps_per_point: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    readings_per_point: Option<u64>,
    /// `null` where it is unknown.
    points_bytes: Vec<Option<f64>>,
}

impl MinimaJson {
    /// Returns a picture with a known point.
    fn of(minima: &PartMinima, has_readings: bool) -> Option<Self> {
        let points = minima.points().iter();
        let points_bytes: Vec<_> =
            points.map(|bytes| Some(*bytes).filter(|bytes| bytes.is_finite())).collect();
        points_bytes.iter().any(Option::is_some).then(|| Self {
            steps_per_point: (!has_readings).then(|| minima.steps_per_point()),
            readings_per_point: has_readings.then(|| minima.steps_per_point()),
            points_bytes,
        })
    }
}

/// A finding that was raised or cleared, and what shows it.
#[derive(Debug, Serialize)]
struct EventTold<'a> {
    /// The transition as `replay` writes it.
    transition: &'a Transition,
    /// The cause for which a finding was cleared.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    /// The finding that a cleared one became.
    #[serde(skip_serializing_if = "Option::is_none")]
    became: Option<DiagnosisKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<WindowShown>,
    /// The testimony of the number of live blocks, where it alone shows a raised finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_blocks: Option<KeptBlocks>,
    /// Set when the intervals between event markers show a raised finding.
    #[serde(skip_serializing_if = "Not::not")]
    is_between_events: bool,
}

impl<'a> EventTold<'a> {
    fn of(event: &'a StoryEvent, story: &Story) -> Self {
        let is_capacity_known = story.capacity.is_some();
        let is_cleared = event.transition.state == TransitionState::Cleared;
        Self {
            transition: &event.transition,
            cause: is_cleared.then(|| cause(event.cause)),
            became: match event.cause {
                Cause::Became(kind) if is_cleared => Some(kind),
                _ => None,
            },
            window: event.window.map(|window| WindowShown::of(&window, is_capacity_known)),
            by_blocks: event.by_blocks,
            is_between_events: event.is_between_events,
        }
    }
}

/// Returns the word for a cause.
fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Figures => "figures",
        Cause::Became(_) => "became",
        Cause::Restart => "restart",
        Cause::Silence => "silence",
    }
}

/// The windows of a rank as they are now, for programs.
#[derive(Debug, Serialize)]
pub struct WindowsNow {
    windows: Vec<WindowNow>,
    /// The tests that outcomes name.
    tests: Vec<TestMeaning>,
}

/// A window of a rank.
#[derive(Debug, Serialize)]
struct WindowNow {
    signal: Signal,
    #[serde(flatten)]
    window: WindowShown,
}

impl WindowsNow {
    /// The windows of each signal that the detector looks at now.
    pub fn of(rank: &RankView<'_>) -> Self {
        let mut ends = Vec::new();
        let mut now = Vec::new();
        for signal in Signal::ALL {
            let capacity = rank.capacity_of(signal);
            let windows = rank.detectors.of(signal).windows(signal, capacity);
            for window in windows.filter(|window| window.n_samples > 0.0) {
                ends.push(End::of(&window.outcome));
                let window = WindowShown::of(&window, capacity.is_known());
                now.push(WindowNow { signal, window });
            }
        }
        let tests = tests(ends.into_iter()).into_iter().map(TestMeaning::of).collect();
        Self { windows: now, tests }
    }
}

/// [`WindowsNow`] as a reader has it.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct WindowsRead {
    windows: Vec<Value>,
    tests: Vec<Value>,
}

/// A live exporter's facts about a rank, for programs.
#[derive(Debug, Serialize)]
pub struct RankTold<'a> {
    rank: &'a RankStatus,
    findings: Vec<&'a FindingStatus>,
    acks: Vec<&'a AckStatus>,
    #[serde(flatten)]
    windows: WindowsRead,
    /// The statements of the text, in its order.
    statements: Vec<Statement>,
}

impl<'a> RankTold<'a> {
    /// The figures of one rank of a status, and its windows.
    pub fn of(status: &'a Status, rank: &'a RankStatus, windows: WindowsRead) -> Self {
        let subject = SubjectId::Rank(rank.id());
        let is_mine = |of: &SubjectId| *of == subject;
        Self {
            rank,
            findings: status.findings.iter().filter(|it| is_mine(&it.subject)).collect(),
            acks: status.acks.iter().filter(|it| is_mine(&it.subject)).collect(),
            windows,
            statements: live::tell(status, rank, None).into_said(),
        }
    }
}

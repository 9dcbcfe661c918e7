//! The run's own end, next to that of its memory: which of them comes first.

use serde::{Deserialize, Serialize};

use crate::ranks::view::RankView;
use stepmem_detect::{Axis, Bend, Outlook, TimeLeft};
use stepmem_types::claims::{Claim, Statement};
use stepmem_types::format::units::{counted, duration, grouped};
use stepmem_types::ids::Rank;
use stepmem_types::units::{Count, Seconds, UnixTime};

/// The run ends first if the least time to OOM is so many times the time until then. A total that
/// is a little too small leaves time to act.
const FIRST_FROM: f64 = 1.2;
/// The factor down to which a run still ends first: what hovers around a limit is not paged
/// again and again.
const FIRST_UNTIL: f64 = 1.1;
/// The last steps take at most so many times as long as the usual pace has it: evaluations and
/// checkpoints come between them.
const PACE_WITHIN: f64 = 1.5;

/// The end of a run, as far as its ranks agree on it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunEnd {
    /// The last step.
    pub total_steps: Option<Count>,
    /// The time when the run is ended from outside, as a Unix time.
    pub deadline: Option<Seconds>,
}

/// The order of the two ends.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndsFirst {
    /// The run, clearly.
    Run,
    /// Likely the run, but memory may run out before.
    Open,
    /// Memory, likely.
    Memory,
}

/// The end of a run, as growth of one of its ranks sees it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RunEndFigures {
    pub first: EndsFirst,
    /// The step that it ends with; absent where its deadline comes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Count>,
    /// Steps until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_steps: Option<f64>,
    /// Seconds until it ends; absent while the pace is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_seconds: Option<f64>,
    /// Steps by which memory lasts longer; below 0 those that it lacks. Absent where the time to
    /// OOM is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare_steps: Option<f64>,
    /// Seconds by which memory lasts longer; below 0 those that it lacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare_seconds: Option<f64>,
    /// Restarts from a checkpoint by which the run gets to its end; absent where memory lasts, or
    /// that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<f64>,
}

/// An end of a run, from the newest sample of a rank on.
#[derive(Clone, Copy)]
struct Left {
    /// Units of the axis of growth until then.
    units: f64,
    /// The upper bound of the units until then.
    units_max: f64,
    seconds: Option<f64>,
    step: Option<Count>,
    in_steps: Option<f64>,
}

impl RunEnd {
    /// Returns the end of a run by its ranks. All that go on must name the same last step; of
    /// their deadlines the latest counts, as each may have been reckoned apart.
    pub fn of(ranks: &[(Rank, RankView<'_>)]) -> Self {
        let is_over = ranks.iter().all(|(_, view)| view.is_over());
        let counts = |view: &&RankView<'_>| is_over || !view.is_over();
        let named =
            || ranks.iter().map(|(_, view)| view).filter(counts).map(|view| view.planned_end);
        let first = named().next().and_then(|end| end.total_steps);
        let later = |a: Seconds, b: Seconds| if a < b { b } else { a };
        Self {
            total_steps: first
                .filter(|total| named().all(|end| end.total_steps == Some(*total))),
            deadline: named()
                .map(|end| end.deadline)
                .reduce(|a, b| a.zip(b).map(|(a, b)| later(a, b)))
                .flatten(),
        }
    }

    /// Returns the time when it ends as a Unix time, by the pace of a rank and by its deadline.
    pub(crate) fn time_by(&self, rank: &RankView<'_>) -> Option<f64> {
        let detector = rank.detectors.own();
        let newest = detector.newest()?.time.get();
        let pace = detector.seconds_per_step();
        let by_steps = self
            .steps_left(rank)
            .zip(pace)
            .map(|(steps, seconds_per_step)| newest + steps * seconds_per_step);
        let by_deadline = self.deadline.map(Seconds::get);
        [by_steps, by_deadline].into_iter().flatten().reduce(f64::min)
    }

    /// Returns whether the run clearly ends before a rank has taken so many more steps.
    pub(crate) fn is_reached_within(&self, rank: &RankView<'_>, steps: f64) -> bool {
        let ends = [self.by_steps(rank, Axis::Steps), self.by_deadline(rank, Axis::Steps)];
        ends.into_iter().flatten().any(|left| steps > FIRST_FROM * left.units_max)
    }

    /// Returns the steps that a rank still takes.
    fn steps_left(&self, rank: &RankView<'_>) -> Option<f64> {
        let (total, last) = (self.total_steps?, rank.last_train?.step);
        Some((total.as_f64() - last.as_f64()).max(0.0))
    }

    /// Returns the end by the last step, along the axis of growth.
    fn by_steps(&self, rank: &RankView<'_>, axis: Axis) -> Option<Left> {
        let steps = self.steps_left(rank)?;
        let seconds = rank.detectors.own().seconds_per_step().map(|pace| steps * pace);
        let (units, units_max) = match axis {
            Axis::Steps => (steps, steps),
            // After its last step, only time would tell.
            Axis::Seconds if steps > 0.0 => (seconds?, PACE_WITHIN * seconds?),
            Axis::Seconds => return None,
        };
        let step = self.total_steps;
        Some(Left { units, units_max, seconds, step, in_steps: Some(steps) })
    }

    /// Returns the end by the deadline, along the axis of growth.
    fn by_deadline(&self, rank: &RankView<'_>, axis: Axis) -> Option<Left> {
        let newest = rank.detectors.own().newest()?.time;
        let seconds = UnixTime::from(self.deadline?).since(newest).max(0.0);
        let units = match axis {
            Axis::Steps => seconds / rank.detectors.own().seconds_per_step()?,
            Axis::Seconds => seconds,
        };
        let seconds = Some(seconds);
        Some(Left { units, units_max: units, seconds, step: None, in_steps: None })
    }
}

impl RunEndFigures {
    /// Returns the end of a run for growth of one of its ranks, whose `memory` ends as that
    /// outlook has it. `was_first` tells whether the run ended first when last evaluated. `None`
    /// where an end is unknown.
    pub fn of(
        end: &RunEnd,
        rank: &RankView<'_>,
        memory: &Outlook,
        was_first: bool,
    ) -> Option<Self> {
        let lasts = memory.units_at_newest?;
        let axis = memory.axis;
        let ends = [end.by_steps(rank, axis), end.by_deadline(rank, axis)];
        let left =
            ends.into_iter().flatten().reduce(|a, b| if b.units < a.units { b } else { a })?;
        let pace = match axis {
            Axis::Steps => rank.detectors.own().seconds_per_step(),
            Axis::Seconds => Some(1.0),
        };
        let spare = lasts.known.map(|known| known - left.units);
        let silence = if left.step.is_none() { rank.asked.silence_seconds } else { 0.0 };
        Some(Self {
            first: EndsFirst::of(&left, lasts, was_first),
            step: left.step,
            in_steps: left.in_steps,
            in_seconds: left.seconds.map(|seconds| (seconds - silence).max(0.0)),
            spare_steps: spare.filter(|_| axis == Axis::Steps && left.step.is_some()),
            spare_seconds: spare.zip(pace).map(|(units, pace)| units * pace),
            restarts: spare.and_then(|spare| restarts(memory, -spare)),
        })
    }

    /// Returns whether the run clearly ends before its memory does, which keeps growth from
    /// being paged.
    pub fn is_run_first(&self) -> bool {
        self.first == EndsFirst::Run
    }

    /// States when the run ends, next to when its memory does.
    pub fn statement(&self) -> Statement {
        let when = match (self.step, self.in_seconds) {
            (Some(step), Some(seconds)) if seconds < 1.0 => {
                format!("ends at step {} in less than a second", grouped(step.get()))
            }
            (Some(step), Some(seconds)) => {
                format!("ends at step {} in {}", grouped(step.get()), duration(seconds))
            }
            (Some(step), None) => format!("ends at step {}", grouped(step.get())),
            (None, seconds) => {
                format!("reaches its deadline in {}", duration(seconds.unwrap_or_default()))
            }
        };
        let order = match (self.first, self.by()) {
            (EndsFirst::Run, None) => "before".to_owned(),
            (EndsFirst::Run, Some(by)) => format!("{by} before"),
            (EndsFirst::Open, _) => "likely before".to_owned(),
            (EndsFirst::Memory, None) => "likely after".to_owned(),
            (EndsFirst::Memory, Some(by)) => format!("{by} after"),
        };
        let words = format!("the run {when}, {order} memory does");
        Statement::new(Claim::RunEnds, words).of(self.in_seconds)
    }

    /// States that it ended first, of a run that is over.
    pub(crate) fn statement_after(&self) -> Option<Statement> {
        let step = self.step.filter(|_| self.is_run_first() && self.in_steps == Some(0.0))?;
        let words = format!("the run ended before, at step {}", grouped(step.get()));
        Some(Statement::new(Claim::RunEnded, words).of(step.as_f64()))
    }

    /// States by how much one end comes before the other, where that is known.
    fn by(&self) -> Option<String> {
        let steps = self.spare_steps.map(|steps| counted(steps.abs(), "step"));
        steps.or(self.spare_seconds.map(|seconds| duration(seconds.abs())))
    }
}

/// Returns the number of restarts that make up for units of the axis that memory lacks. Each
/// begins where the growth did, and lasts until the memory is used up again.
fn restarts(memory: &Outlook, lacking: f64) -> Option<f64> {
    let room = memory.headroom_bytes? + memory.growth_bytes;
    let lasts = room / memory.bytes_per_unit()?.value;
    let restarts = (lacking / lasts).ceil();
    (restarts >= 1.0 && memory.bend != Bend::Faster).then_some(restarts)
}

impl EndsFirst {
    fn of(left: &Left, lasts: TimeLeft, was_first: bool) -> Self {
        let factor = if was_first { FIRST_UNTIL } else { FIRST_FROM };
        if lasts.lower > factor * left.units_max {
            Self::Run
        } else if lasts.likely > left.units {
            Self::Open
        } else {
            Self::Memory
        }
    }
}

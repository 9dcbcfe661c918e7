//! Growth that holds, and the figures that follow from it: confidence, slopes and time to
//! out-of-memory.

use std::ops::Not;

use serde::{Deserialize, Serialize, Serializer};

use crate::analysis::creep::axis::{Axis, AxisPoint};
use crate::analysis::creep::context::{BytesLeft, Growing, PeakUse, SeriesContext};
use crate::analysis::creep::course::PowerLaw;
use crate::analysis::creep::pace::PackedPace;
use crate::analysis::creep::record::MemoryRecord;
use crate::analysis::creep::signal::Signal;
use crate::model::site::{EmptySearch, LeakSite, TensorHolder};
use crate::model::units::{Count, Interval, UnixTime};

/// Scales the confidence of a trend that only rises: one in seven of those is a cache that
/// fills up.
const RISING_CONFIDENCE_RATIO: f64 = 0.9;

/// A time left is known when the upper end of its interval is at most this many times the lower
/// one; of one that is not, the least is told.
const KNOWN_WITHIN: f64 = 10.0;

/// A window whose growth sets in this share of its length after a trend's onset still shows all of
/// the trend: its line is drawn back to there.
const DRAWN_BACK_RATIO: f64 = 0.125;

/// How urgent a trend is.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub enum Stage {
    /// Grows steadily, but has used little of the headroom or leaves more time than the
    /// horizon.
    Rising,
    /// Has used a notable share of the headroom and would use the rest within the horizon.
    Creeping,
}

/// Growth that holds now: steady, unreverted and not yet known to stop.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Trend {
    /// The series that grows.
    pub signal: Signal,
    /// The axis that it is counted along.
    pub axis: Axis,
    pub stage: Stage,
    /// Where this stage was raised.
    pub raised: AxisPoint,
    /// Where the growth sets in; it stays as it was when the stage was raised.
    pub onset: AxisPoint,
    /// The rate by the latest window that shows it, in bytes per unit of the signal's axis,
    /// with its 95 % interval.
    pub slope_bytes_per_unit: Interval,
    /// What the allocator adds to that, per unit of the signal's axis: it runs out by both.
    pub(super) unsplit_bytes: f64,
    /// The growth within that window, less what larger batches explain.
    pub growth_bytes: f64,
    /// The growth since the onset, up to the newest window that shows the trend.
    pub(super) since_onset: SinceOnset,
    /// Whether reserved memory rises along with live memory.
    pub(super) is_followed: bool,
    /// Bytes left to grow into as of the latest block.
    pub(super) room: BytesLeft,
    /// How many times as long it takes to gain those as at this rate: above 1 when growth fades.
    pub(super) stretch: f64,
    /// The growth as a share of growth and headroom, 0 to 1.
    pub share_ratio: f64,
    /// The probability that the growth exceeds a random walk's, 0 to 1: the normal tail of the
    /// window's rise in standard deviations of a walk with the same moves, drawn towards one
    /// half by the rule of succession for its number of moves, and a fifth lower when the
    /// capacity is unknown.
    pub(super) growth_chance: f64,
    /// Smoothed seconds per unit of the axis.
    pub(super) pace: PackedPace,
}

impl Trend {
    /// Returns the probability that this is a leak, 0 to 1: that it grows, and a tenth less
    /// while it only rises.
    pub fn confidence_ratio(&self) -> f64 {
        match self.stage {
            Stage::Rising => RISING_CONFIDENCE_RATIO * self.growth_chance,
            Stage::Creeping => self.growth_chance,
        }
    }

    /// Returns the bytes left to grow into as of the latest block; `None` when the capacity is
    /// unknown.
    pub fn headroom_bytes(&self) -> Option<f64> {
        self.room.bytes().map(|room| room.value)
    }

    /// Returns the smoothed seconds per unit of the axis; `None` while unknown.
    pub fn seconds_per_unit(&self) -> Option<f64> {
        self.pace.get()
    }

    /// Returns the rate at which memory runs out: with what the allocator adds.
    pub(super) fn taken_per_unit(&self) -> f64 {
        self.slope_bytes_per_unit.value + self.unsplit_bytes
    }

    /// Returns the steps left at this rate; `None` when the headroom is unknown or the signal
    /// does not count steps.
    pub fn eta_steps(&self) -> Option<Eta> {
        self.eta_units().filter(|_| self.axis == Axis::Steps)
    }

    /// Returns the seconds left at this rate; `None` when the headroom or the pace is unknown.
    pub fn eta_seconds(&self) -> Option<Eta> {
        let pace = self.seconds_per_unit()?;
        self.eta_units().map(|eta| eta.scaled(pace))
    }

    /// Returns the figures of this trend for JSON, pages and metrics, as of the newest window that shows it.
    pub fn figures(&self) -> TrendFigures {
        let slope = Slope::along(self.axis, self.slope_bytes_per_unit, self.seconds_per_unit());
        let (per_step, per_second) = (slope.bytes_per_step, slope.bytes_per_second);
        let (steps, seconds) = (self.eta_steps(), self.eta_seconds());
        let is_step = self.axis == Axis::Steps;
        TrendFigures {
            signal: self.signal,
            is_on_host: false,
            slope_bytes_per_step: per_step.map(|slope| slope.value),
            slope_lower_bytes_per_step: per_step.map(|slope| slope.lower),
            slope_upper_bytes_per_step: per_step.map(|slope| slope.upper),
            slope_bytes_per_second: per_second.map(|slope| slope.value),
            slope_lower_bytes_per_second: per_second.map(|slope| slope.lower),
            slope_upper_bytes_per_second: per_second.map(|slope| slope.upper),
            growth_bytes: self.since_onset.bytes,
            onset_step: is_step.then(|| whole_step(self.onset.position)).flatten(),
            onset_time: self.onset.time,
            headroom_bytes: self.headroom_bytes(),
            oom_eta_steps: steps.and_then(|eta| eta.known()),
            oom_eta_lower_steps: steps.map(|eta| eta.lower),
            oom_eta_upper_steps: steps.and_then(|eta| eta.upper),
            oom_eta_seconds: seconds.and_then(|eta| eta.known()),
            oom_eta_lower_seconds: seconds.map(|eta| eta.lower),
            oom_eta_upper_seconds: seconds.and_then(|eta| eta.upper),
            confidence_ratio: self.confidence_ratio(),
            site: None,
            holder: None,
            searched: None,
        }
    }

    /// Returns the units of the axis left at this rate.
    fn eta_units(&self) -> Option<Eta> {
        let room = self.room.bytes()?;
        let at = |headroom: f64, slope: f64, stretch: f64| {
            Some(stretch * headroom / slope).filter(|units| slope > 0.0 && units.is_finite())
        };
        let Interval { lower, upper, .. } = self.slope_bytes_per_unit;
        Some(Eta {
            likely: at(room.value, self.taken_per_unit(), self.stretch)?,
            lower: at(room.lower, upper, self.stretch.min(1.0))?,
            upper: at(room.upper, lower, self.stretch.max(1.0)),
        })
    }

    /// Takes over the measurements of `latest`; keeps stage, onset and where it was raised.
    pub(super) fn follow(&mut self, latest: &Self) {
        let Self { stage, raised, onset, stretch, since_onset, .. } = *self;
        *self = Self { stage, raised, onset, stretch, ..*latest };
        self.since_onset = since_onset.followed(onset.position, latest);
    }

    /// Takes over where an earlier finding of the same growth began, and what had grown by then.
    pub(super) fn begin_with(&mut self, early: &Self) {
        let latest = *self;
        self.onset = early.onset;
        self.since_onset = early.since_onset.followed(early.onset.position, &latest);
    }

    /// Returns the same trend as of a later record: what has grown since the newest window at its rate, but no more
    /// than the series did.
    #[must_use]
    pub(super) fn as_of(&self, newest: &MemoryRecord) -> Self {
        let bytes = match self.signal {
            Signal::Allocated | Signal::Process => Some(newest.allocated),
            Signal::Reserved => newest.reserved,
            Signal::OutsideAllocator => None,
        };
        let SinceOnset { bytes: grown, until, level } = self.since_onset;
        let at_rate = self.slope_bytes_per_unit.value * (newest.at.position - until);
        let more = bytes.map_or(0.0, |bytes| at_rate.min(bytes - level).max(0.0));
        let since_onset = SinceOnset { bytes: grown + more, ..self.since_onset };
        Self { since_onset, ..*self }
    }

    /// Updates the figures that do not depend on a window.
    pub(super) fn refresh(&mut self, most: PeakUse, context: &SeriesContext) {
        let headroom = context.headroom(most, self.signal);
        self.room = context.room(most, &self.growing());
        self.share_ratio = self.growth_bytes / (headroom + self.growth_bytes);
        self.pace = PackedPace::of(context.seconds_per_unit);
    }

    /// Sets how the growth since the start of its life goes on; `None` when a line does as well.
    pub(super) fn bend(&mut self, course: Option<PowerLaw>) {
        let slope = self.taken_per_unit();
        self.stretch = course
            .zip(self.headroom_bytes())
            .and_then(|(course, headroom)| course.stretch(slope, headroom))
            .unwrap_or(1.0);
    }

    fn growing(&self) -> Growing {
        let (signal, is_followed) = (self.signal, self.is_followed);
        Growing { signal, bytes: self.growth_bytes, is_followed }
    }
}

/// The growth since the onset of a trend, measured over the same span as its rate.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct SinceOnset {
    pub(super) bytes: f64,
    /// Where it was measured, in units of the axis.
    until: f64,
    /// The least of the series near there.
    level: f64,
}

impl SinceOnset {
    /// Measures growth at a rate from `onset` to `until`, near which the least of the series is `level`.
    pub(super) fn at_rate(rate: f64, onset: AxisPoint, until: AxisPoint, level: f64) -> Self {
        let bytes = rate * (until.position - onset.position);
        Self { bytes: bytes.max(0.0), until: until.position, level }
    }

    /// Takes growth as it was measured.
    pub(super) fn measured(bytes: f64, until: AxisPoint, level: f64) -> Self {
        Self { bytes, until: until.position, level }
    }

    /// Returns the growth since `onset` when `latest` shows the trend: by its line where that reaches back so far, else
    /// by what had grown before and its rate since then.
    fn followed(self, onset: f64, latest: &Trend) -> Self {
        let (rate, newest) = (latest.slope_bytes_per_unit.value, latest.since_onset);
        let is_drawn_back = latest.onset.position - onset
            <= DRAWN_BACK_RATIO * (newest.until - latest.onset.position);
        let bytes = if is_drawn_back {
            rate * (newest.until - onset)
        } else {
            self.bytes + rate * (newest.until - self.until).max(0.0)
        };
        Self { bytes: bytes.max(0.0), ..newest }
    }
}

/// What shows a trend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownBy {
    /// The window of this level.
    Window(usize),
    Stairs,
    /// The first records, or growth that set in later.
    Surge,
}

/// How long the headroom lasts, with the interval that follows from the slope's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Eta {
    /// With the likely headroom, at the slope.
    pub likely: f64,
    /// With the least headroom, at the upper end of the slope's interval.
    pub lower: f64,
    /// With the most headroom, at the lower end of the slope's interval; `None` when that is not
    /// growth.
    pub upper: Option<f64>,
}

impl Eta {
    /// Returns the likely time; `None` when the interval is too wide to call it known.
    pub fn known(&self) -> Option<f64> {
        let is_known = self.upper.is_some_and(|upper| upper <= KNOWN_WITHIN * self.lower);
        is_known.then_some(self.likely)
    }

    fn scaled(self, factor: f64) -> Self {
        Self {
            likely: self.likely * factor,
            lower: self.lower * factor,
            upper: self.upper.map(|upper| upper * factor),
        }
    }
}

/// How fast a signal changes, with 95 % intervals.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Slope {
    /// Bytes per step; `None` for a signal that does not count steps.
    pub bytes_per_step: Option<Interval>,
    /// Bytes per second; `None` while the pace is unknown.
    pub bytes_per_second: Option<Interval>,
    /// Whether the signal rises in a straight line, however little.
    pub is_straight: bool,
}

impl Slope {
    /// Converts a slope along an axis; `seconds_per_unit` of that axis, if known.
    pub(super) fn along(
        axis: Axis,
        bytes_per_unit: Interval,
        seconds_per_unit: Option<f64>,
    ) -> Self {
        Self {
            bytes_per_step: Some(bytes_per_unit).filter(|_| axis == Axis::Steps),
            bytes_per_second: seconds_per_unit.map(|seconds| Interval {
                value: bytes_per_unit.value / seconds,
                lower: bytes_per_unit.lower / seconds,
                upper: bytes_per_unit.upper / seconds,
            }),
            is_straight: false,
        }
    }
}

/// The figures of a trend, named as in JSON. Unknown figures are absent; so are steps of a
/// process that does not push.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TrendFigures {
    /// The series that grows.
    pub signal: Signal,
    /// Whether it is host memory, of a rank that trains on the CPU.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_on_host: bool,
    /// How fast it grows; of live GPU memory what the program asks for, the middle of what it may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_bytes_per_step: Option<f64>,
    /// The lower end of the slope's 95 % interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_lower_bytes_per_step: Option<f64>,
    /// The upper end of the slope's 95 % interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_upper_bytes_per_step: Option<f64>,
    /// The slope in time; absent while the pace is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_bytes_per_second: Option<f64>,
    /// The lower end of its 95 % interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_lower_bytes_per_second: Option<f64>,
    /// The upper end of its 95 % interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_upper_bytes_per_second: Option<f64>,
    /// Growth since the onset.
    pub growth_bytes: f64,
    /// The step at which the growth began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub onset_step: Option<Count>,
    /// The Unix time at which the growth began, written with milliseconds.
    #[serde(serialize_with = "with_milliseconds")]
    pub onset_time: UnixTime,
    /// Bytes left to grow into; absent when the capacity is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headroom_bytes: Option<f64>,
    /// Steps until the headroom is used up; absent when that is not known to a factor of ten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_steps: Option<f64>,
    /// The least of them: the lower end of their interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_lower_steps: Option<f64>,
    /// The most of them; absent when the lower end of the slope's interval is not growth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_upper_steps: Option<f64>,
    /// Seconds until the headroom is used up; absent when that is not known to a factor of ten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_seconds: Option<f64>,
    /// The least of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_lower_seconds: Option<f64>,
    /// The most of them; absent when the lower end of the slope's interval is not growth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_upper_seconds: Option<f64>,
    /// The probability that this is a leak, 0 to 1.
    pub confidence_ratio: f64,
    /// What a memory snapshot says of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<Box<LeakSite>>,
    /// What grows fastest among the live objects of its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Box<TensorHolder>>,
    /// A search that named no holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub searched: Option<EmptySearch>,
}

impl TrendFigures {
    /// Returns the figures of a life that is over: nothing counts down in it.
    #[must_use]
    pub fn without_eta(self) -> Self {
        Self {
            oom_eta_steps: None,
            oom_eta_lower_steps: None,
            oom_eta_upper_steps: None,
            oom_eta_seconds: None,
            oom_eta_lower_seconds: None,
            oom_eta_upper_seconds: None,
            ..self
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a field by reference")]
fn with_milliseconds<S: Serializer>(time: &UnixTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((time.get() * 1000.0).round() / 1000.0)
}

#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and a step is never negative"
)]
fn whole_step(step: f64) -> Option<Count> {
    Count::new(step as u64).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

    use crate::analysis::creep::axis::AxisPoint;
    use crate::analysis::creep::context::BytesLeft;
    use crate::analysis::creep::estimator::CreepEstimator;
    use crate::analysis::creep::pace::PackedPace;
    use crate::analysis::creep::record::MemoryRecord;
    use crate::analysis::creep::rules::CreepSettings;
    use crate::analysis::creep::signal::Signal;
    use crate::analysis::creep::simulation::{CAPACITY, Simulation, at, record};
    use crate::analysis::creep::trend::{SinceOnset, Stage, Trend, TrendFigures};
    use crate::model::units::{Interval, MEBIBYTE};

    /// 6 bytes a unit, 3 to 12, with 120 bytes left and 2 seconds a unit.
    fn trend(signal: Signal) -> Trend {
        Trend {
            signal,
            axis: signal.axis(),
            stage: Stage::Rising,
            raised: at(700.0, 2000.0),
            onset: at(600.0, 1_000.123_456),
            slope_bytes_per_unit: Interval { value: 6.0, lower: 3.0, upper: 12.0 },
            growth_bytes: 40.0,
            since_onset: SinceOnset::at_rate(6.0, at(600.0, 1000.0), at(700.0, 2000.0), 90.0),
            unsplit_bytes: 0.0,
            is_followed: false,
            room: BytesLeft::new(120.0, 0.0),
            stretch: 1.0,
            share_ratio: 0.25,
            growth_chance: 0.5,
            pace: PackedPace::of(Some(2.0)),
        }
    }

    fn keys(figures: &TrendFigures) -> Vec<String> {
        let json = serde_json::to_value(figures).unwrap();
        json.as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn figures_of_a_rank_are_by_step_and_in_time() {
        let figures = trend(Signal::Allocated).figures();
        assert_eq!(figures.slope_bytes_per_step, Some(6.0));
        assert_eq!(figures.slope_upper_bytes_per_second, Some(6.0));
        let steps =
            [figures.oom_eta_lower_steps, figures.oom_eta_steps, figures.oom_eta_upper_steps];
        assert_eq!(steps, [10.0, 20.0, 40.0].map(Some));
        let seconds = [
            figures.oom_eta_lower_seconds,
            figures.oom_eta_seconds,
            figures.oom_eta_upper_seconds,
        ];
        assert_eq!(seconds, [20.0, 40.0, 80.0].map(Some));
        let json = serde_json::to_value(&figures).unwrap();
        assert_eq!(json["signal"], "allocated");
        assert_eq!(json["onset_step"].as_u64(), Some(600));
        assert_eq!(json["onset_time"].as_f64(), Some(1000.123));
        assert_eq!(keys(&figures).len(), 18);
    }

    #[test]
    fn figures_of_a_process_name_no_steps() {
        let figures = trend(Signal::Process).figures();
        assert_eq!(figures.slope_bytes_per_second, Some(3.0));
        assert_eq!(figures.oom_eta_seconds, Some(40.0));
        let keys = keys(&figures);
        assert!(keys.iter().all(|key| !key.contains("step")), "{keys:?}");
        assert_eq!(keys.len(), 11);
    }

    #[test]
    fn unknown_figures_are_absent() {
        let known = trend(Signal::Allocated);
        let without_capacity = Trend { room: BytesLeft::UNKNOWN, ..known }.figures();
        assert_eq!(without_capacity.oom_eta_steps, None);
        assert_eq!(without_capacity.oom_eta_seconds, None);
        let without_pace = Trend { pace: PackedPace::of(None), ..known }.figures();
        assert_eq!(without_pace.oom_eta_steps, Some(20.0));
        assert_eq!(without_pace.oom_eta_seconds, None);
        assert_eq!(without_pace.slope_bytes_per_second, None);
        let maybe_level = Interval { lower: 0.0, ..known.slope_bytes_per_unit };
        let maybe_level = Trend { slope_bytes_per_unit: maybe_level, ..known }.figures();
        assert_eq!((maybe_level.oom_eta_steps, maybe_level.oom_eta_upper_steps), (None, None));
        assert!(maybe_level.oom_eta_lower_steps.is_some_and(|least| least < 20.0));
    }

    #[test]
    fn trend_that_only_rises_is_less_sure() {
        let rising = trend(Signal::Allocated);
        let creeping = Trend { stage: Stage::Creeping, ..rising };
        assert!(rising.confidence_ratio() < creeping.confidence_ratio());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn trend_ignores_where_steps_and_time_start(
            step_shift in 0_u32..1_000_000_000, time_shift in 0_u32..1_000_000_000
        ) {
            let (step_shift, time_shift) = (f64::from(step_shift), f64::from(time_shift));
            let (mut here, mut there) = (Simulation::new(), Simulation::new());
            here.run(2000, |step| record(step, 2.0 * MEBIBYTE * step));
            there.run(2000, |step| {
                let record = record(step, 2.0 * MEBIBYTE * step);
                let time = record.at.time.get() + time_shift;
                MemoryRecord { at: at(step + step_shift, time), ..record }
            });
            let here = here.trend(Signal::Allocated).unwrap();
            let there = there.trend(Signal::Allocated).unwrap();
            prop_assert_eq!(there.stage, here.stage);
            prop_assert!((there.raised.position - here.raised.position - step_shift).abs() < 1e-6);
            let ratio = there.slope_bytes_per_unit.value / here.slope_bytes_per_unit.value;
            prop_assert!((ratio - 1.0).abs() < 1e-9);
            prop_assert!((there.share_ratio - here.share_ratio).abs() < 1e-9);
        }

        #[test]
        fn trend_scales_with_bytes_and_steps(
            bytes_factor in 1_u32..1000, step_factor in 1_u32..1000
        ) {
            let (bytes_factor, step_factor) = (f64::from(bytes_factor), f64::from(step_factor));
            let of = |bytes_factor: f64, step_factor: f64| {
                let mut estimator = CreepEstimator::new(CreepSettings::default());
                for i in 0..2000 {
                    let MemoryRecord { at: AxisPoint { position, time }, allocated, peak, reserved, .. } =
                        record(f64::from(i), 2.0 * MEBIBYTE * f64::from(i));
                    let reserved = reserved.map(|bytes| bytes * bytes_factor);
                    let peak = peak.map(|peak| peak * bytes_factor);
                    estimator.train(
                        &MemoryRecord {
                            at: AxisPoint { position: position * step_factor, time },
                            allocated: allocated * bytes_factor,
                            peak,
                            peak_bound: peak,
                            reserved,
                            peak_reserved: reserved,
                        },
                        CAPACITY.map(|bytes| bytes * bytes_factor),
                    );
                }
                *estimator.trends().next().unwrap()
            };
            let (here, there) = (of(1.0, 1.0), of(bytes_factor, step_factor));
            prop_assert_eq!(there.stage, here.stage);
            prop_assert!(there.raised.time.since(here.raised.time).abs() < 1e-6);
            let ratio = there.taken_per_unit() / here.taken_per_unit();
            prop_assert!((ratio * step_factor / bytes_factor - 1.0).abs() < 1e-9);
            prop_assert!((there.share_ratio - here.share_ratio).abs() < 1e-6);
        }

        #[test]
        fn order_within_a_block_does_not_matter(turn in 1_u32..16) {
            let of = |turn: u32| {
                let mut estimator = CreepEstimator::new(CreepSettings::default());
                for i in 0..2000_u32 {
                    let source = i - i % 16 + (i % 16 + turn) % 16;
                    let leak = record(f64::from(source), 2.0 * MEBIBYTE * f64::from(source));
                    let step = f64::from(i);
                    estimator.train(&MemoryRecord { at: at(step, 1e9 + step), ..leak }, CAPACITY);
                }
                *estimator.trends().next().unwrap()
            };
            let (straight, turned) = (of(0), of(turn));
            prop_assert_eq!(turned.stage, straight.stage);
            prop_assert!((turned.raised.position - straight.raised.position).abs() < 1e-9);
            let ratio = turned.slope_bytes_per_unit.value / straight.slope_bytes_per_unit.value;
            prop_assert!((ratio - 1.0).abs() < 1e-12);
        }
    }
}

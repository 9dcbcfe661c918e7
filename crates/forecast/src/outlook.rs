//! The outlook of a signal: how it grows, and what comes of that, as of the moment of asking.
//!
//! A trend is tested when a window gets a block, which may be hundreds of steps ago. What is
//! printed of it is computed here, for now: the memory in use is carried on from the last test
//! by the slope, and time that passes without a sample counts.

use crate::axis::{Axis, AxisPoint};
use crate::signal::Signal;
use crate::slope_interval::Bend;
use crate::time_to_oom::TimeToOom;
use crate::trend::{Slope, Stage, Trend};
use stepmem_types::units::Interval;

/// No time left is known without a sample for so many usual pauses between two.
const PAUSES_MAX: f64 = 10.0;
/// Nor is it after as many seconds, if that is longer: what is pushed and read comes once a
/// second, or less often.
const SILENCE_SECONDS_MIN: f64 = 10.0;

/// The facts that are known of a subject at the moment of asking.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Asked {
    /// Seconds since its newest sample arrived.
    pub silence_seconds: f64,
    /// Seconds between two arrivals of samples, usually.
    pub pause_seconds: f64,
    /// Set when it has ended: nothing of it moves.
    pub is_over: bool,
}

/// The course of an outlook's subject: it goes on, stalls or is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Course {
    /// Samples arrive as usual.
    GoesOn,
    /// No sample has come for so many seconds: longer than it usually takes.
    Stalled(f64),
    /// The subject has ended.
    Over,
}

/// Growth of a signal, and what comes of it, as of one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlook {
    /// The series that grows.
    pub signal: Signal,
    /// The axis that it is counted along.
    pub axis: Axis,
    /// The urgency of the growth.
    pub stage: Stage,
    /// The course of its subject.
    pub course: Course,
    /// The rate since the onset, with its 95 % interval, which excludes 0.
    pub slope: Slope,
    /// The change of that rate since the onset.
    pub bend: Bend,
    /// The point where the growth begins.
    pub onset: AxisPoint,
    /// The growth since then.
    pub growth_bytes: f64,
    /// The point where the signal last rose, if its growth has ended.
    pub level_since: Option<AxisPoint>,
    /// The bytes left to grow into; `None` where the capacity is unknown, and of what is over.
    pub headroom_bytes: Option<f64>,
    /// The steps left; `None` where nothing counts down, and of an axis that has none.
    pub steps: Option<TimeLeft>,
    /// The seconds left; `None` where nothing counts down, or the pace is unknown.
    pub seconds: Option<TimeLeft>,
    /// The likely seconds that were left at the newest sample, also of what has ended since: what
    /// was urgent then stays so in a summary.
    pub seconds_at_newest: Option<f64>,
    /// The units of the axis that were left at the newest sample, likewise.
    pub units_at_newest: Option<TimeLeft>,
    /// The probability that a random walk does not grow like that, 0 to 1.
    pub confidence_ratio: f64,
}

/// Time until the headroom is used up, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeLeft {
    /// `None` when it is not known well enough.
    pub known: Option<f64>,
    /// The likely time, be it known well or not: what is urgent is judged by it.
    pub likely: f64,
    /// The lower end of its interval.
    pub lower: f64,
    /// The upper end; `None` when there is none.
    pub upper: Option<f64>,
}

/// The facts that a signal's outlook rests on besides its trend.
#[derive(Clone, Copy, Debug)]
pub struct Basis {
    /// Bytes of the capacity that are not used outside its process; `None` where that is unknown.
    pub free_bytes: Option<f64>,
    /// Seconds per unit of the axis, if known.
    pub seconds_per_unit: Option<f64>,
    /// The factor between the ends of an interval up to which a time is known.
    pub known_within: f64,
}

impl Outlook {
    /// Returns the outlook of a trend.
    pub fn of(trend: &Trend, basis: &Basis, asked: &Asked) -> Self {
        let course = Course::of(basis, asked);
        let slope = trend.slope_bytes_per_unit;
        let pace = basis.seconds_per_unit;
        let silence = if course == Course::GoesOn { asked.silence_seconds } else { 0.0 };
        // Along an axis of time growth goes on between two samples.
        let since_sample = if trend.axis == Axis::Seconds { silence } else { 0.0 };
        let units = (trend.seen.position - trend.used_at + since_sample).max(0.0);
        let is_over = course == Course::Over;
        let remaining = basis.free_bytes.map(|free| {
            let grown = if trend.is_growing() { slope.value * units } else { 0.0 };
            trend.remaining(free, grown)
        });
        let at_newest = remaining.filter(|_| trend.is_growing()).and_then(|remaining| {
            let factor = trend.time_factor.unwrap_or(1.0);
            let rate = trend.used_at(trend.ahead_bytes_per_unit);
            TimeToOom::of(remaining, rate, factor, trend.rising())
        });
        let left = at_newest.filter(|_| course == Course::GoesOn);
        let known = |time: TimeToOom| {
            let is_known = trend.time_factor.is_some();
            time.known_within(basis.known_within).filter(|_| is_known)
        };
        let steps = left.filter(|_| trend.axis == Axis::Steps);
        let seconds = left.zip(pace).map(|(time, pace)| time.scaled(pace));
        // Steps stay to be made, while the clock goes on.
        let since_step = if trend.axis == Axis::Steps { silence } else { 0.0 };
        Self {
            signal: trend.signal,
            axis: trend.axis,
            stage: trend.stage,
            course,
            slope: Slope::along(trend.axis, slope, pace),
            bend: trend.bend,
            onset: trend.onset,
            growth_bytes: trend.growth_bytes,
            level_since: trend.level_since(),
            headroom_bytes: remaining.filter(|_| !is_over).map(|remaining| remaining.value),
            seconds_at_newest: at_newest.zip(pace).map(|(time, pace)| time.likely * pace),
            units_at_newest: at_newest.map(|time| TimeLeft::of(time, known(time), 0.0)),
            steps: steps.map(|time| TimeLeft::of(time, known(time), 0.0)),
            seconds: seconds.map(|time| TimeLeft::of(time, known(time), since_step)),
            confidence_ratio: trend.confidence_ratio,
        }
    }

    /// Returns whether the growth goes on, or did when its subject ended.
    pub fn is_growing(&self) -> bool {
        self.level_since.is_none()
    }

    /// Returns the slope in bytes per unit of the axis.
    pub fn bytes_per_unit(&self) -> Option<Interval> {
        self.slope
            .bytes_per_step
            .filter(|_| self.axis == Axis::Steps)
            .or(self.slope.bytes_per_second)
    }
}

impl Course {
    fn of(basis: &Basis, asked: &Asked) -> Self {
        let usual = basis.seconds_per_unit.unwrap_or(0.0).max(asked.pause_seconds);
        let silence_max = (PAUSES_MAX * usual).max(SILENCE_SECONDS_MIN);
        if asked.is_over {
            Self::Over
        } else if asked.silence_seconds > silence_max {
            Self::Stalled(asked.silence_seconds)
        } else {
            Self::GoesOn
        }
    }

    /// Returns for how long it has stalled.
    pub fn stalled_seconds(self) -> Option<f64> {
        if let Self::Stalled(seconds) = self { Some(seconds) } else { None }
    }
}

impl TimeLeft {
    /// Returns the rest of a `time` that was known `seconds` ago.
    fn of(time: TimeToOom, known: Option<f64>, seconds: f64) -> Self {
        let left = |time: f64| (time - seconds).max(0.0);
        Self {
            known: known.map(left),
            likely: left(time.likely),
            lower: left(time.lower),
            upper: time.upper.map(left),
        }
    }
}

//! Windows as JSON, with the tests that stop them.

use serde::Serialize;

use crate::explain::story::{Closest, End, LevelTests};
use crate::explain::test_words::{TestUnit, words_of};
use crate::explain::words::reason;
use stepmem_detect::{Axis, Bound, Explanation, Shown, Stage, Stopped, WindowReport};
use stepmem_types::units::Count;

/// The windows of one level, over a whole story.
#[derive(Debug, Serialize)]
pub(super) struct LevelWindows {
    /// The number of records of the last window.
    #[serde(skip_serializing_if = "Option::is_none")]
    records: Option<Count>,
    /// Number of windows that were judged.
    judged: u32,
    outcomes: Vec<EndCount>,
    /// The last window, tested or not.
    last: WindowShown,
}

impl LevelWindows {
    pub(super) fn of(level: &LevelTests, is_capacity_known: bool) -> Self {
        Self {
            records: whole_count(level.last.n_samples),
            judged: level.n_tests,
            outcomes: level.ends.iter().map(|(end, n)| EndCount::of(*end, *n)).collect(),
            last: WindowShown::of(&level.last, is_capacity_known),
        }
    }
}

/// Number of windows that had an outcome.
#[derive(Debug, Serialize)]
struct EndCount {
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    test: Option<&'static str>,
    count: u32,
}

impl EndCount {
    fn of(end: End, count: u32) -> Self {
        let test = match end {
            End::Stopped(test) | End::Rises(test) => Some(words_of(test).name),
            End::Creeps => None,
        };
        Self { outcome: outcome(end), test, count }
    }
}

/// Returns an outcome in a word.
fn outcome(end: End) -> &'static str {
    match end {
        End::Stopped(_) => "stopped",
        End::Rises(_) => "rises",
        End::Creeps => "creeps",
    }
}

/// The window that came nearest to a trend.
#[derive(Debug, Serialize)]
pub(super) struct ClosestWindow {
    /// The step at which it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    window: WindowShown,
}

impl ClosestWindow {
    pub(super) fn of(closest: &Closest, is_capacity_known: bool) -> Self {
        let window = WindowShown::of(&closest.window, is_capacity_known);
        Self { step: closest.step, window }
    }
}

/// A window, and its outcome.
#[derive(Debug, Serialize)]
pub(super) struct WindowShown {
    #[serde(skip_serializing_if = "Option::is_none")]
    records: Option<Count>,
    #[serde(flatten)]
    extent: ExtentShown,
    outcome: &'static str,
    #[serde(flatten)]
    stop: Option<StopShown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trend: Option<TrendShown>,
}

impl WindowShown {
    pub(super) fn of(window: &WindowReport, is_capacity_known: bool) -> Self {
        let (stop, shown) = match window.outcome {
            Err(stop) => (Some(stop), None),
            Ok(shown) => (shown.obstacle, Some(shown)),
        };
        Self {
            records: whole_count(window.n_samples),
            extent: ExtentShown::of(window.axis, window.from, window.to),
            outcome: outcome(End::of(&window.outcome)),
            stop: stop.map(|stop| StopShown::of(&stop)),
            trend: shown.map(|shown| TrendShown::of(&shown, window.axis, is_capacity_known)),
        }
    }
}

/// The part of an incarnation that something spans: steps of a rank, seconds since the first
/// reading of a process.
#[derive(Debug, Default, Serialize)]
struct ExtentShown {
    #[serde(skip_serializing_if = "Option::is_none")]
    first_step: Option<Count>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_step: Option<Count>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_seconds: Option<f64>,
}

impl ExtentShown {
    fn of(axis: Axis, first: f64, last: f64) -> Self {
        match axis {
            Axis::Steps => Self {
                first_step: whole_count(first),
                last_step: whole_count(last),
                ..Self::default()
            },
            Axis::Seconds => Self {
                first_seconds: finite(first),
                last_seconds: finite(last),
                ..Self::default()
            },
        }
    }
}

/// The test that stopped something.
#[derive(Debug, Serialize)]
struct StopShown {
    test: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<f64>,
    /// The unit of value and limit.
    unit: &'static str,
    /// The side of the limit on which the value passes.
    bound: &'static str,
    /// The reason as a clause.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl StopShown {
    fn of(failure: &Stopped) -> Self {
        let row = words_of(failure.explanation);
        let (value, limit) = (finite(failure.value), finite(failure.limit));
        Self {
            test: row.name,
            value,
            limit,
            unit: match row.unit {
                TestUnit::Bytes => "bytes",
                TestUnit::Count => "count",
                TestUnit::Number => "number",
                TestUnit::Share => "ratio",
                TestUnit::Seconds => "seconds",
            },
            bound: match failure.explanation.bound() {
                Bound::AtLeast => "at_least",
                Bound::AtMost => "at_most",
            },
            reason: value.and(limit).map(|_| reason(failure)),
        }
    }
}

/// The growth that a window shows.
#[derive(Debug, Default, Serialize)]
struct TrendShown {
    stage: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_bytes: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slope_bytes_per_step: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slope_bytes_per_second: Option<f64>,
    /// The headroom that the growth is weighed against; of a stand-in where the capacity is
    /// unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    headroom_bytes: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stand_in_headroom_bytes: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    share_ratio: Option<f64>,
    /// The growth by the spread of as many increments of a random walk.
    #[serde(skip_serializing_if = "Option::is_none")]
    t: Option<f64>,
}

impl TrendShown {
    fn of(shown: &Shown, axis: Axis, is_capacity_known: bool) -> Self {
        let (slope, headroom) = (finite(shown.slope), finite(shown.headroom_bytes));
        Self {
            stage: match shown.stage {
                Stage::Rising => "rising",
                Stage::Creeping => "creeping",
            },
            growth_bytes: finite(shown.growth_bytes),
            slope_bytes_per_step: slope.filter(|_| axis == Axis::Steps),
            slope_bytes_per_second: slope.filter(|_| axis == Axis::Seconds),
            headroom_bytes: headroom.filter(|_| is_capacity_known),
            stand_in_headroom_bytes: headroom.filter(|_| !is_capacity_known),
            share_ratio: finite(shown.share_ratio),
            t: finite(shown.t),
        }
    }
}

/// An entry of the glossary.
#[derive(Debug, Serialize)]
pub(super) struct TestMeaning {
    test: &'static str,
    meaning: &'static str,
}

impl TestMeaning {
    pub(super) fn of(explanation: Explanation) -> Self {
        let row = words_of(explanation);
        Self { test: row.name, meaning: row.meaning }
    }
}

/// Returns a figure that is a number.
fn finite(value: f64) -> Option<f64> {
    Some(value).filter(|value| value.is_finite())
}

/// Returns a count of whole things that was computed with fractions.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and a count is never negative"
)]
fn whole_count(value: f64) -> Option<Count> {
    finite(value).and_then(|value| Count::new(value.round() as u64).ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::explain::json_windows::StopShown;
    use stepmem_detect::{Explanation, Stopped};

    #[test]
    fn test_has_its_figures_as_far_as_they_are_numbers() {
        let shown = |explanation, value, limit| {
            serde_json::to_value(StopShown::of(&Stopped { explanation, value, limit })).unwrap()
        };
        let far = shown(Explanation::FarOff, 345_600.0, 259_200.0);
        let reason =
            "what is left lasts 4 d 0 h; only growth that ends within 3 d 0 h is creep";
        let expected = json!({"test": "far off", "value": 345_600.0, "limit": 259_200.0,
            "unit": "seconds", "bound": "at_most", "reason": reason});
        assert_eq!(far, expected);
        let unknown = shown(Explanation::Ended, f64::NAN, 0.25);
        let expected =
            json!({"test": "ended", "limit": 0.25, "unit": "ratio", "bound": "at_least"});
        assert_eq!(unknown, expected);
    }
}

//! Windows, stairs and first steps as JSON, with the gates that stop them.

use serde::Serialize;

use crate::analysis::creep::axis::Axis;
use crate::analysis::creep::gates::{Bound, Gate, GateFailure, GateUnit};
use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::stairs::StairsEvidence;
use crate::analysis::creep::surge::SurgeEvidence;
use crate::analysis::creep::trend::{Stage, Trend};
use crate::analysis::creep::window::WindowVerdict;
use crate::model::units::Count;
use crate::report::explain::story::{Closest, End, LevelTests};
use crate::report::explain::words::reason;

/// The windows of one level, over a whole story.
#[derive(Debug, Serialize)]
pub(super) struct LevelWindows {
    /// Of the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    records: Option<Count>,
    /// How many were tested.
    tests: u32,
    outcomes: Vec<EndCount>,
    /// The last window, tested or not.
    last: WindowShown,
}

impl LevelWindows {
    pub(super) fn of(level: &LevelTests, is_capacity_known: bool) -> Self {
        Self {
            records: whole_count(level.last.n_records),
            tests: level.n_tests,
            outcomes: level.ends.iter().map(|(end, n)| EndCount::of(*end, *n)).collect(),
            last: WindowShown::of(&level.last, is_capacity_known),
        }
    }
}

/// How many windows had an outcome.
#[derive(Debug, Serialize)]
struct EndCount {
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    gate: Option<&'static str>,
    count: u32,
}

impl EndCount {
    fn of(end: End, count: u32) -> Self {
        let gate = match end {
            End::Stopped(gate) | End::Rises(gate) => Some(gate.row().name),
            End::Creeps => None,
        };
        Self { outcome: outcome(end), gate, count }
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

/// One window, and its outcome.
#[derive(Debug, Serialize)]
pub(super) struct WindowShown {
    #[serde(skip_serializing_if = "Option::is_none")]
    records: Option<Count>,
    #[serde(flatten)]
    extent: ExtentShown,
    #[serde(flatten)]
    headroom: RoomShown,
    outcome: &'static str,
    /// Whether records have it judged: not while a longer one creeps.
    is_asked: bool,
    #[serde(flatten)]
    stop: Option<StopShown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trend: Option<TrendShown>,
}

impl WindowShown {
    pub(super) fn of(window: &WindowVerdict, is_capacity_known: bool) -> Self {
        let (stop, trend) = match window.outcome {
            Err(stop) => (Some(stop), None),
            Ok(passed) => (passed.obstacle, Some(passed.trend)),
        };
        let (first, last) = (window.first_position, window.last_position);
        Self {
            records: whole_count(window.n_records),
            extent: ExtentShown::of(window.axis, first, last),
            headroom: RoomShown::of(window.headroom_bytes, is_capacity_known),
            outcome: outcome(End::of(&window.outcome)),
            is_asked: window.is_asked,
            stop: stop.map(|stop| StopShown::of(&stop)),
            trend: trend.map(|trend| TrendShown::of(&trend)),
        }
    }
}

/// The part of a life that something spans: steps of a rank, seconds since the first reading of a process.
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

/// Bytes left to grow into: of the capacity, or of what stands in for an unknown one.
#[derive(Debug, Serialize)]
struct RoomShown {
    #[serde(rename = "headroom_bytes", skip_serializing_if = "Option::is_none")]
    known: Option<f64>,
    #[serde(rename = "stand_in_headroom_bytes", skip_serializing_if = "Option::is_none")]
    stand_in: Option<f64>,
}

impl RoomShown {
    fn of(bytes: f64, is_capacity_known: bool) -> Self {
        let bytes = finite(bytes);
        Self {
            known: bytes.filter(|_| is_capacity_known),
            stand_in: bytes.filter(|_| !is_capacity_known),
        }
    }
}

/// The gate that stopped something.
#[derive(Debug, Serialize)]
struct StopShown {
    gate: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<f64>,
    /// Of both.
    unit: &'static str,
    /// On which side of the limit the value passes.
    bound: &'static str,
    /// The same as a clause.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl StopShown {
    fn of(failure: &GateFailure) -> Self {
        let row = failure.gate.row();
        let (value, limit) = (finite(failure.value), finite(failure.limit));
        Self {
            gate: row.name,
            value,
            limit,
            unit: match row.unit {
                GateUnit::Bytes => "bytes",
                GateUnit::Count | GateUnit::Fraction => "count",
                GateUnit::Share => "ratio",
                GateUnit::Seconds => "seconds",
            },
            bound: match row.bound {
                Bound::AtLeast => "at_least",
                Bound::AtMost => "at_most",
            },
            reason: value.and(limit).map(|_| reason(failure)),
        }
    }
}

/// Growth that was seen.
#[derive(Debug, Serialize)]
struct TrendShown {
    stage: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_bytes: Option<f64>,
    #[serde(flatten)]
    slope: SlopeShown,
    /// The growth as a share of growth and headroom.
    #[serde(skip_serializing_if = "Option::is_none")]
    share_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    confidence_ratio: Option<f64>,
}

impl TrendShown {
    fn of(trend: &Trend) -> Self {
        Self {
            stage: match trend.stage {
                Stage::Rising => "rising",
                Stage::Creeping => "creeping",
            },
            growth_bytes: finite(trend.growth_bytes),
            slope: SlopeShown::of(trend),
            share_ratio: finite(trend.share_ratio),
            confidence_ratio: finite(trend.confidence_ratio()),
        }
    }
}

/// How fast something grows, with the 95 % interval: per step of a rank, per second of a process.
#[derive(Debug, Default, Serialize)]
struct SlopeShown {
    #[serde(rename = "slope_bytes_per_step", skip_serializing_if = "Option::is_none")]
    per_step: Option<f64>,
    #[serde(rename = "slope_lower_bytes_per_step", skip_serializing_if = "Option::is_none")]
    lower_per_step: Option<f64>,
    #[serde(rename = "slope_upper_bytes_per_step", skip_serializing_if = "Option::is_none")]
    upper_per_step: Option<f64>,
    #[serde(rename = "slope_bytes_per_second", skip_serializing_if = "Option::is_none")]
    per_second: Option<f64>,
    #[serde(rename = "slope_lower_bytes_per_second", skip_serializing_if = "Option::is_none")]
    lower_per_second: Option<f64>,
    #[serde(rename = "slope_upper_bytes_per_second", skip_serializing_if = "Option::is_none")]
    upper_per_second: Option<f64>,
}

impl SlopeShown {
    fn of(trend: &Trend) -> Self {
        let slope = trend.slope_bytes_per_unit;
        let (value, lower, upper) =
            (finite(slope.value), finite(slope.lower), finite(slope.upper));
        match trend.axis {
            Axis::Steps => Self {
                per_step: value,
                lower_per_step: lower,
                upper_per_step: upper,
                ..Self::default()
            },
            Axis::Seconds => Self {
                per_second: value,
                lower_per_second: lower,
                upper_per_second: upper,
                ..Self::default()
            },
        }
    }
}

/// Stairs of live memory.
#[derive(Debug, Serialize)]
pub(super) struct StairsSeen {
    count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_height_bytes: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_distance_steps: Option<f64>,
    /// What kept the newest of them from being called a leak.
    #[serde(flatten)]
    stop: Option<StopShown>,
}

impl StairsSeen {
    pub(super) fn of(stairs: &StairsEvidence) -> Self {
        Self {
            count: stairs.n_stairs,
            mean_height_bytes: stairs.mean.and_then(|mean| finite(mean.height_bytes)),
            mean_distance_steps: stairs.mean.and_then(|mean| finite(mean.distance_steps)),
            stop: stairs.failure.map(|stop| StopShown::of(&stop)),
        }
    }
}

/// The first steps of a life, the first minutes of a process, or growth that set in later.
#[derive(Debug, Serialize)]
pub(super) struct SurgeShown {
    signal: Signal,
    #[serde(flatten)]
    extent: ExtentShown,
    #[serde(flatten)]
    headroom: RoomShown,
    #[serde(skip_serializing_if = "Option::is_none")]
    trend: Option<TrendShown>,
    /// What stopped them last.
    #[serde(flatten)]
    stop: Option<StopShown>,
}

impl SurgeShown {
    pub(super) fn of(surge: &SurgeEvidence, is_capacity_known: bool) -> Self {
        let (first, last) = (surge.first_position, surge.last_position);
        Self {
            signal: surge.signal,
            extent: ExtentShown::of(surge.axis, first, last),
            headroom: RoomShown::of(surge.headroom_bytes, is_capacity_known),
            trend: surge.trend.map(|trend| TrendShown::of(&trend)),
            stop: surge.failure.map(|stop| StopShown::of(&stop)),
        }
    }
}

/// An entry of the glossary.
#[derive(Debug, Serialize)]
pub(super) struct GateMeaning {
    gate: &'static str,
    meaning: &'static str,
}

impl GateMeaning {
    pub(super) fn of(gate: Gate) -> Self {
        let row = gate.row();
        Self { gate: row.name, meaning: row.meaning }
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

    use crate::analysis::creep::gates::{Gate, GateFailure};
    use crate::report::explain::json_windows::StopShown;

    #[test]
    fn gate_has_its_figures_as_far_as_they_are_numbers() {
        let shown = |gate, value, limit| {
            serde_json::to_value(StopShown::of(&GateFailure { gate, value, limit })).unwrap()
        };
        let far = shown(Gate::Horizon, 345_600.0, 259_200.0);
        let reason = "what is left lasts 4 d 0 h, and creep is what ends within 3 d 0 h";
        let expected = json!({"gate": "far off", "value": 345_600.0, "limit": 259_200.0,
            "unit": "seconds", "bound": "at_most", "reason": reason});
        assert_eq!(far, expected);
        let unknown = shown(Gate::SlackGain, f64::NAN, 0.5);
        let expected =
            json!({"gate": "not slack", "limit": 0.5, "unit": "ratio", "bound": "at_least"});
        assert_eq!(unknown, expected);
    }
}

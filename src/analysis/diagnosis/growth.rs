//! A signal that creeps: how that is judged, and its evidence.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::{Signal, Stage, Trend};
use crate::analysis::diagnosis::kind::{Figures, Score, Severity};
use crate::analysis::diagnosis::pressure;
use crate::analysis::diagnosis::scene::{RELEASE_MARGIN, Scene, Subject};
use crate::text::units::{bytes, duration};

/// The signals of MEMORY CREEP and MEMORY RISING: live memory of a rank that pushes, else all that the driver reports.
pub const LIVE_SIGNALS: [Signal; 2] = [Signal::Allocated, Signal::Process];

/// Judges a signal that creeps: critical when its time to out-of-memory is short or pressure is high, else a warning.
/// One that was critical stays so until the time is half as long again as the limit.
pub fn creeping(
    scene: &Scene<'_>,
    subject: &Subject<'_, '_>,
    signal: Signal,
) -> Option<(Severity, Box<GrowthEvidence>)> {
    let trend = subject.trend(signal, Stage::Creeping)?;
    let was_critical = subject.active == Some(Severity::Critical);
    let limit =
        scene.thresholds.creep_critical_eta_seconds * if was_critical { 1.5 } else { 1.0 };
    let is_soon = trend.eta_seconds().is_some_and(|eta| eta < limit);
    let margin = if was_critical { RELEASE_MARGIN } else { 0.0 };
    let is_full = pressure::highest(subject)
        .is_some_and(|pressure| pressure.ratio >= scene.thresholds.pressure_warning - margin);
    let severity = if is_soon || is_full { Severity::Critical } else { Severity::Warning };
    Some((severity, Box::new(GrowthEvidence::of(trend))))
}

/// The evidence of a series that grows. What is not known is absent: steps and figures per step of a process that
/// does not push.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct GrowthEvidence {
    /// Which series.
    pub signal: Signal,
    /// How fast it grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_bytes_per_step: Option<f64>,
    /// The lower end of the 95 % interval of the slope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_lower_bytes_per_step: Option<f64>,
    /// The upper end of the 95 % interval of the slope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_upper_bytes_per_step: Option<f64>,
    /// The same slope in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_bytes_per_second: Option<f64>,
    /// The lower end of its 95 % interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_lower_bytes_per_second: Option<f64>,
    /// The upper end of its 95 % interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_upper_bytes_per_second: Option<f64>,
    /// How much it has grown since the onset.
    pub growth_bytes: f64,
    /// The step at which it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub onset_step: Option<u64>,
    /// When it began, as a Unix time with milliseconds.
    pub onset_time: f64,
    /// What is left for it to grow into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headroom_bytes: Option<f64>,
    /// Steps until that is used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_steps: Option<f64>,
    /// The same at the upper end of the slope's interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_lower_steps: Option<f64>,
    /// The same at its lower end; absent when that is no growth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_upper_steps: Option<f64>,
    /// Seconds until that is used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_seconds: Option<f64>,
    /// The same at the upper end of the slope's interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_lower_seconds: Option<f64>,
    /// The same at its lower end; absent when that is no growth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_upper_seconds: Option<f64>,
    /// How sure the estimator is that it grows, 0 to 1.
    pub confidence_ratio: f64,
}

impl GrowthEvidence {
    /// The evidence of one trend.
    pub fn of(trend: &Trend) -> Self {
        let pace = Some(trend.seconds_per_step).filter(|seconds| *seconds > 0.0);
        let steps = |value: Option<f64>| value.filter(|_| trend.signal.counts_steps());
        let in_time = |slope: Option<f64>| Some(slope? / pace?);
        let seconds = |n_steps: Option<f64>| Some(n_steps? * pace?);
        let slope = Some(trend.slope_bytes_per_step);
        let slope_lower = Some(trend.slope_lower_bytes_per_step);
        let slope_upper = Some(trend.slope_upper_bytes_per_step);
        let eta = trend.eta();
        let eta_lower = eta.map(|eta| eta.lower_steps);
        let eta_upper = eta.and_then(|eta| eta.upper_steps);
        let eta = eta.map(|eta| eta.steps);
        Self {
            signal: trend.signal,
            slope_bytes_per_step: steps(slope),
            slope_lower_bytes_per_step: steps(slope_lower),
            slope_upper_bytes_per_step: steps(slope_upper),
            slope_bytes_per_second: in_time(slope),
            slope_lower_bytes_per_second: in_time(slope_lower),
            slope_upper_bytes_per_second: in_time(slope_upper),
            growth_bytes: trend.growth_bytes,
            onset_step: steps(Some(trend.onset_step)).map(whole_step),
            onset_time: (trend.onset_time * 1000.0).round() / 1000.0,
            headroom_bytes: trend.headroom_bytes,
            oom_eta_steps: steps(eta),
            oom_eta_lower_steps: steps(eta_lower),
            oom_eta_upper_steps: steps(eta_upper),
            oom_eta_seconds: seconds(eta),
            oom_eta_lower_seconds: seconds(eta_lower),
            oom_eta_upper_seconds: seconds(eta_upper),
            confidence_ratio: trend.confidence_ratio(),
        }
    }
}

impl Figures for GrowthEvidence {
    fn sentence(&self) -> String {
        let what = match self.signal {
            Signal::Allocated => "live memory grows",
            Signal::Reserved => "reserved memory grows without live memory",
            Signal::OutsideAllocator => "memory outside the allocator grows",
            Signal::Process => "memory of the process grows",
        };
        let growth = bytes(self.growth_bytes);
        let mut text = match (self.slope_bytes_per_step, self.onset_step) {
            (Some(slope), Some(step)) => {
                format!("{what} by {}/step, {growth} since step {step}", bytes(slope))
            }
            _ => format!("{what}, {growth} so far"),
        };
        if let (None, Some(slope)) = (self.slope_bytes_per_step, self.slope_bytes_per_second) {
            text = format!(
                "{what} by {}/h, {growth} in {}",
                bytes(3600.0 * slope),
                duration(self.growth_bytes / slope)
            );
        }
        if let Some(headroom) = self.headroom_bytes {
            text = format!("{text}; {} left", bytes(headroom));
        }
        let eta = match (self.oom_eta_seconds, self.oom_eta_steps) {
            (Some(seconds), Some(steps)) => {
                format!(", out of memory in about {} ({steps:.0} steps)", duration(seconds))
            }
            (Some(seconds), None) => format!(", out of memory in about {}", duration(seconds)),
            (None, Some(steps)) => format!(", out of memory in about {steps:.0} steps"),
            (None, None) => String::new(),
        };
        text + &eta
    }

    fn score(&self) -> Score {
        Score { metric: self.signal.as_label(), value: self.growth_bytes }
    }

    fn signal(&self) -> Option<Signal> {
        Some(self.signal)
    }
}

#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and a step is never negative"
)]
fn whole_step(step: f64) -> u64 {
    step as u64
}

//! The time until the remaining bytes are used up.

use stepmem_types::units::Interval;

/// The time until the remaining bytes are used up. Its interval follows from the slope's and
/// theirs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeToOom {
    /// With the likely bytes, at the slope.
    pub likely: f64,
    /// With the least bytes, at the upper end of the slope's interval.
    pub lower: f64,
    /// With the most bytes, at the lower end of the slope's interval; `None` when that is not
    /// growth.
    pub upper: Option<f64>,
}

impl TimeToOom {
    /// Returns the units that `bytes` last at `slope`, where growth takes `time_factor` times
    /// as long as a line; `None` when the slope is not growth.
    pub(crate) fn of(bytes: Interval, slope: Interval, time_factor: f64) -> Option<Self> {
        let at = |bytes: f64, slope: f64, factor: f64| {
            Some(factor * bytes / slope).filter(|units| slope > 0.0 && units.is_finite())
        };
        Some(Self {
            likely: at(bytes.value, slope.value, time_factor)?,
            lower: at(bytes.lower, slope.upper, time_factor.min(1.0))?,
            upper: at(bytes.upper, slope.lower, time_factor.max(1.0)),
        })
    }

    /// Returns the likely time; `None` unless the ends of its interval differ by at most
    /// `factor`.
    pub(crate) fn known_within(&self, factor: f64) -> Option<f64> {
        let is_known = self.upper.is_some_and(|upper| upper <= factor * self.lower);
        is_known.then_some(self.likely)
    }

    pub(crate) fn scaled(self, factor: f64) -> Self {
        Self {
            likely: self.likely * factor,
            lower: self.lower * factor,
            upper: self.upper.map(|upper| upper * factor),
        }
    }
}

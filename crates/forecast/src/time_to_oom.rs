//! The time until the remaining bytes are used up.

use stepmem_types::units::Interval;

/// The time until the remaining bytes are used up. Its interval follows from the slope's and
/// theirs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TimeToOom {
    /// The time with the likely bytes, at the slope.
    pub likely: f64,
    /// The time with the least bytes, at the upper end of the slope's interval, and less where
    /// the rate goes on rising.
    pub lower: f64,
    /// The time with the most bytes, at the lower end of the slope's interval; `None` when that
    /// is not growth.
    pub upper: Option<f64>,
}

/// A rate that goes on rising.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rising {
    /// The rate now.
    pub rate: f64,
    /// The rise of the rate with each unit; 0 where it does not rise.
    pub gain: f64,
}

impl Rising {
    /// Returns the units until it has gained `bytes`; for ever where it does not rise.
    fn units_until(self, bytes: f64) -> f64 {
        let Self { rate, gain } = self;
        if gain > 0.0 {
            ((rate * rate + 2.0 * gain * bytes).sqrt() - rate) / gain
        } else {
            f64::INFINITY
        }
    }
}

impl TimeToOom {
    /// Returns the units that `bytes` last at `slope`, where growth takes `time_factor` times
    /// as long as a line; `None` when the slope is not growth. `ahead` is what may come next.
    pub(crate) fn of(
        bytes: Interval,
        slope: Interval,
        time_factor: f64,
        ahead: Rising,
    ) -> Option<Self> {
        let at = |bytes: f64, slope: f64, factor: f64| {
            Some(factor * bytes / slope).filter(|units| slope > 0.0 && units.is_finite())
        };
        Some(Self {
            likely: at(bytes.value, slope.value, time_factor)?,
            lower: at(bytes.lower, slope.upper, time_factor.min(1.0))?
                .min(ahead.units_until(bytes.lower)),
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

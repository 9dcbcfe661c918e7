//! The time that one unit of a series' axis takes.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::axis::AxisPoint;

/// The smoothed pace of a series.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Pace {
    /// The end of the last block.
    last: Option<AxisPoint>,
    /// Positive; `None` until two blocks show it.
    seconds_per_unit: Option<f64>,
}

impl Pace {
    /// The weight of the newest block.
    const GAIN_RATIO: f64 = 0.05;
    /// A pause counts as at most this many times the pace.
    const PAUSE_MAX: f64 = 4.0;

    pub(super) fn advance(&mut self, now: AxisPoint) {
        let Some(last) = self.last.replace(now) else { return };
        if now.position <= last.position {
            return;
        }
        let latest = (now.time.since(last.time) / (now.position - last.position)).max(0.0);
        let smoothed = self.seconds_per_unit.map_or(latest, |pace| {
            pace + Self::GAIN_RATIO * (latest.min(Self::PAUSE_MAX * pace) - pace)
        });
        self.seconds_per_unit = Some(smoothed).filter(|seconds| *seconds > 0.0);
    }

    /// Returns the seconds per unit of the axis; `None` until two blocks show it.
    pub(super) fn seconds_per_unit(&self) -> Option<f64> {
        self.seconds_per_unit
    }
}

/// Seconds per unit that may be unknown, in eight bytes: an `Option<f64>` takes sixteen.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct PackedPace(
    // Invariant: 0 stands for unknown and does not leave this type; a pace is positive.
    f64,
);

impl PackedPace {
    pub(super) fn of(seconds_per_unit: Option<f64>) -> Self {
        Self(seconds_per_unit.unwrap_or(0.0))
    }

    pub(super) fn get(self) -> Option<f64> {
        Some(self.0).filter(|seconds| *seconds > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use crate::analysis::creep::pace::Pace;
    use crate::analysis::creep::simulation::{assert_within, at};

    #[test]
    fn pace_is_not_moved_by_a_pause() {
        let mut pace = Pace::default();
        for i in 0..100 {
            pace.advance(at(16.0 * f64::from(i), 32.0 * f64::from(i)));
        }
        pace.advance(at(1600.0, 1e6));
        assert_within(pace.seconds_per_unit().unwrap(), 2.0, 0.31);
        pace.advance(at(1600.0, 2e6));
        pace.advance(at(1616.0, 1e3));
        assert!(pace.seconds_per_unit().unwrap() > 0.0);
    }

    #[test]
    fn pace_is_unknown_until_time_passes() {
        let mut pace = Pace::default();
        pace.advance(at(16.0, 100.0));
        assert_eq!(pace.seconds_per_unit(), None);
        pace.advance(at(32.0, 100.0));
        assert_eq!(pace.seconds_per_unit(), None, "no time passed");
        pace.advance(at(48.0, 90.0));
        assert_eq!(pace.seconds_per_unit(), None, "time went back");
        pace.advance(at(64.0, 98.0));
        assert_eq!(pace.seconds_per_unit(), Some(0.5));
    }
}

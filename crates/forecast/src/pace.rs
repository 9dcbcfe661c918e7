//! The time that one unit of a series' axis takes.

use serde::{Deserialize, Deserializer, Serialize};

use crate::axis::AxisPoint;
use stepmem_types::saved;
use stepmem_types::units::Seconds;

/// A unit of the axis takes at least this many seconds: less is unknown, and no divisor.
const SECONDS_MIN: f64 = 1e-9;

/// The smoothed seconds per unit of the axis.
///
/// Samples that have one time came together, as records of a batch do that say no time of their
/// own. What lies between two such batches is measured, and never what lies within one.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Pace {
    /// The first sample of the newest time.
    last: Option<AxisPoint>,
    #[serde(deserialize_with = "read_pace")]
    seconds_per_unit: Option<f64>,
    /// Figures that it was smoothed of.
    n_taken: u32,
}

impl Pace {
    /// The share of a new figure in the smoothed one, at least: the first ones are averaged.
    const GAIN_RATIO: f64 = 0.02;
    /// A pause counts as at most this many paces.
    const PAUSE_MAX: f64 = 5.0;
    /// A sample follows a pause if it comes later than its step takes by this many paces, and
    /// by [`Self::LATE_SECONDS`]. In a pause a checkpoint is written, or an evaluation runs
    /// that sends nothing.
    const LATE_PACES: f64 = 2.0;
    /// See [`Self::LATE_PACES`].
    const LATE_SECONDS: f64 = 2.0;

    /// Takes the place of the next sample; returns whether it follows a pause.
    pub fn advance(&mut self, now: AxisPoint) -> bool {
        let Some(last) = self.last else {
            self.last = Some(now);
            return false;
        };
        let (units, seconds) = (now.position - last.position, now.time.since(last.time));
        if seconds == 0.0 {
            return false;
        }
        self.last = Some(now);
        if units <= 0.0 {
            return false;
        }
        self.n_taken = self.n_taken.max(1);
        let latest = (seconds / units).max(0.0);
        let is_late = self.seconds_per_unit.is_some_and(|pace| {
            let late = seconds - units * pace;
            late > Self::LATE_SECONDS && late > Self::LATE_PACES * pace
        });
        let smoothed = self.seconds_per_unit.map_or(latest, |pace| {
            self.n_taken = self.n_taken.saturating_add(1);
            let gain = f64::from(self.n_taken).recip().max(Self::GAIN_RATIO);
            pace + gain * (latest.min(Self::PAUSE_MAX * pace) - pace)
        });
        self.seconds_per_unit = Some(smoothed).filter(|seconds| *seconds >= SECONDS_MIN);
        is_late
    }

    /// Returns the seconds per unit; `None` until two samples show it.
    pub fn seconds_per_unit(&self) -> Option<f64> {
        self.seconds_per_unit
    }
}

/// Reads seconds per unit of an axis.
fn read_pace<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    saved::within(deserializer, SECONDS_MIN, Seconds::MAX)
}

//! How long a step takes.

use serde::{Deserialize, Serialize};

/// How long a step takes, smoothed.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Pace {
    /// The step and the time of the last block.
    last: Option<(f64, f64)>,
    /// 0 while it is unknown.
    pub(super) seconds_per_step: f64,
}

impl Pace {
    /// The weight of the newest block.
    const GAIN_RATIO: f64 = 0.05;
    /// How many times the pace a pause may count as.
    const PAUSE_MAX: f64 = 4.0;

    pub(super) fn advance(&mut self, step: f64, time: f64) {
        let Some((last_step, last_time)) = self.last.replace((step, time)) else { return };
        if step <= last_step {
            return;
        }
        let latest = ((time - last_time) / (step - last_step)).max(0.0);
        let pace = self.seconds_per_step;
        self.seconds_per_step = if pace > 0.0 {
            pace + Self::GAIN_RATIO * (latest.min(Self::PAUSE_MAX * pace) - pace)
        } else {
            latest
        };
    }

    pub(super) fn known(&self) -> Option<f64> {
        Some(self.seconds_per_step).filter(|seconds| *seconds > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use crate::analysis::creep::pace::Pace;
    use crate::analysis::creep::simulation::assert_within;

    #[test]
    fn pace_is_not_moved_by_a_pause() {
        let mut pace = Pace::default();
        for i in 0..100 {
            pace.advance(16.0 * f64::from(i), 32.0 * f64::from(i));
        }
        pace.advance(1600.0, 1e6);
        assert_within(pace.seconds_per_step, 2.0, 0.31);
        pace.advance(1600.0, 2e6);
        pace.advance(1616.0, 1e3);
        assert!(pace.seconds_per_step > 0.0);
    }
}

//! The estimator of a rank that takes no steps: its records are samples by time.

use crate::analysis::creep::axis::{Axis, AxisPoint};
use crate::analysis::creep::estimator::CreepEstimator;
use crate::analysis::creep::record::MemoryRecord;
use crate::analysis::creep::rules::CreepSettings;

impl CreepEstimator {
    /// Creates the estimator of a rank that takes no steps.
    pub fn of_samples(settings: CreepSettings) -> Self {
        let mut estimator = Self::new(settings);
        estimator.axis = Axis::Seconds;
        estimator
    }

    /// Returns its settings.
    pub fn settings(&self) -> &CreepSettings {
        &self.settings
    }

    /// Returns the axis of its records.
    pub fn axis(&self) -> Axis {
        self.axis
    }

    /// Counts its records by steps again, in the life that begins.
    pub fn count_steps(&mut self) {
        self.axis = Axis::Steps;
    }

    /// Takes a sample, as [`Self::train`] does a train record; where it lies on the axis follows
    /// from its time.
    pub fn sample(&mut self, record: &MemoryRecord, capacity: Option<f64>) -> bool {
        let time = record.at.time;
        let position = self.readings.seconds_since_first(time);
        let is_later = self.newest.is_none_or(|newest| position > newest.at.position);
        let at = AxisPoint { position, time };
        is_later && self.train(&MemoryRecord { at, ..*record }, capacity)
    }

    /// Notes an event after which memory may hold more, as an evaluation.
    pub fn mark(&mut self) {
        self.stairs.mark();
    }
}

#[cfg(test)]
mod tests {
    use crate::analysis::creep::axis::Axis;
    use crate::analysis::creep::estimator::CreepEstimator;
    use crate::analysis::creep::rules::CreepSettings;
    use crate::analysis::creep::simulation::{CAPACITY, assert_within, record};
    use crate::analysis::creep::trend::Stage;
    use crate::model::units::MEBIBYTE;

    #[test]
    fn leak_of_samples_is_counted_by_time_alone() {
        let mut estimator = CreepEstimator::of_samples(CreepSettings::default());
        for i in 0..1000 {
            let seconds = f64::from(i);
            estimator.sample(&record(seconds, 40.0 * MEBIBYTE * seconds), CAPACITY);
        }
        let trend = *estimator.trends().next().unwrap();
        let figures = trend.figures();
        assert_eq!((trend.stage, trend.axis), (Stage::Creeping, Axis::Seconds));
        assert_within(figures.slope_bytes_per_second.unwrap(), 40.0 * MEBIBYTE, MEBIBYTE);
        assert_eq!((figures.slope_bytes_per_step, figures.oom_eta_steps), (None, None));
        assert_eq!((figures.onset_step, estimator.seconds_per_step()), (None, None));
    }
}

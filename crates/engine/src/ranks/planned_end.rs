//! The end of its training as a rank's process names it, and whether that can be believed.

use serde::{Deserialize, Serialize};

use stepmem_types::step::Identity;
use stepmem_types::units::{Count, Seconds};

/// A process that pushes so many seconds after its deadline was not ended by it. Schedulers wait
/// between their first signal and the kill.
const DEADLINE_GRACE_SECONDS: f64 = 60.0;

/// A process that has gone on for so many seconds after a step without another no longer trains
/// toward its last one. A long evaluation is shorter.
const WITHOUT_STEPS_SECONDS_MAX: f64 = 3600.0;

/// The end as the process of one incarnation has named it so far.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct NamedEnd {
    total_steps: Named<Count>,
    deadline: Named<Seconds>,
}

/// A figure that should stay the same.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
struct Named<T> {
    /// The first value.
    first: Option<T>,
    /// Set when the last record has it.
    is_current: bool,
    /// Set once it was another value, or was exceeded. Nothing that comes later is believed.
    is_refuted: bool,
}

/// The end of a rank's training as far as it can be believed; `None` where it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PlannedEnd {
    /// The last step.
    pub total_steps: Option<Count>,
    /// The time when the run is ended from outside, as a Unix time.
    pub deadline: Option<Seconds>,
}

impl NamedEnd {
    /// Takes what a record names, whose step ended at the Unix time `time`.
    pub(crate) fn take(&mut self, identity: &Identity, step: Count, time: f64) {
        self.total_steps.take(identity.total_steps);
        self.deadline.take(identity.deadline);
        self.total_steps.refute_if(|total| step > total);
        self.deadline.refute_if(|end| time > end.get() + DEADLINE_GRACE_SECONDS);
    }

    /// Returns the part of it that can be believed, of a process that has taken no step for
    /// some seconds.
    pub(crate) fn planned(&self, without_steps_seconds: Option<f64>) -> PlannedEnd {
        let is_training =
            without_steps_seconds.is_none_or(|seconds| seconds <= WITHOUT_STEPS_SECONDS_MAX);
        PlannedEnd {
            total_steps: self.total_steps.believed().filter(|_| is_training),
            deadline: self.deadline.believed(),
        }
    }
}

impl<T: Copy + PartialEq> Named<T> {
    fn take(&mut self, value: Option<T>) {
        self.is_current = value.is_some();
        self.first = self.first.or(value);
        self.is_refuted |= value.is_some() && value != self.first;
    }

    fn refute_if(&mut self, is_wrong: impl Fn(T) -> bool) {
        self.is_refuted |= self.first.is_some_and(is_wrong);
    }

    fn believed(&self) -> Option<T> {
        self.first.filter(|_| self.is_current && !self.is_refuted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_is_believed_until_a_minute_after_it() {
        let believed = |time: f64| {
            let mut named = NamedEnd::default();
            let deadline = Seconds::new(1000.0).ok();
            named.take(&Identity { deadline, ..Identity::default() }, Count::default(), time);
            named.planned(None).deadline.is_some()
        };
        assert_eq!((believed(1060.0), believed(1060.1)), (true, false));
    }

    #[test]
    fn last_step_is_believed_up_to_an_hour_without_one() {
        let mut named = NamedEnd::default();
        let total_steps = Count::new(1000).ok();
        named.take(&Identity { total_steps, ..Identity::default() }, Count::default(), 0.0);
        let believed = |seconds| named.planned(Some(seconds)).total_steps.is_some();
        assert_eq!((believed(3600.0), believed(3600.1)), (true, false));
    }
}

//! Planned restarts of a run: what its launcher knows of them, and what they cost.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use stepmem_engine::lifetime::Moment;
use stepmem_types::claims::{Claim, Sentence, Statement};
use stepmem_types::format::units::{counted, percent};
use stepmem_types::ids::Run;
use stepmem_types::units::Count;

/// The planned restarts of a run so far, as its launcher knows them. What the newest one cost is
/// known once its attempt has taken a step.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct RestartsSoFar {
    /// The run; `None` before an attempt of this launcher has ended.
    pub run: Option<Run>,
    /// Planned restarts, also of earlier launchers.
    pub restarts: u64,
    /// Steps that were computed twice, of all restarts but the newest; `None` where each attempt
    /// counts its steps from 1 on.
    pub lost_steps: Option<u64>,
    /// Seconds from the begin of a last checkpoint to the next first step, of this launcher's
    /// restarts but the newest.
    pub lost_seconds: f64,
    /// The last step before the newest restart.
    pub last_step: u64,
    /// The Unix time when the last checkpoint before the newest restart began; `None` of another
    /// launcher.
    pub asked_time: Option<f64>,
    /// The Unix time when the launcher began.
    pub since: f64,
    /// The directory in which each rank of the newest attempt leaves its first step. What it
    /// counted before its program named a step is no step of the run.
    pub folder: PathBuf,
}

/// Planned restarts of a run, and what they cost.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct PlannedRestarts {
    pub restarts: Count,
    /// Steps that were computed twice; `None` where each attempt counts its steps from 1 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_steps: Option<Count>,
    /// The share of the time that they took; `None` where this launcher made none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_ratio: Option<f64>,
}

impl PlannedRestarts {
    /// Sums up restarts. `began` is the first step of the newest attempt, if it has taken one, and
    /// `until` the Unix time of its last record.
    pub(super) fn of(
        so_far: &RestartsSoFar,
        began: Option<Moment>,
        until: f64,
    ) -> Option<Self> {
        let again = began
            .map_or(0, |began| so_far.last_step.saturating_add(1).saturating_sub(began.step));
        let lost_steps = so_far.lost_steps.map(|before| before.saturating_add(again));
        let lost = so_far.asked_time.map(|asked| {
            so_far.lost_seconds + began.map_or(0.0, |began| (began.time - asked).max(0.0))
        });
        let ratio = lost.map(|lost| lost / (until - so_far.since));
        Some(Self {
            restarts: Count::new(so_far.restarts).ok().filter(|n| n.get() > 0)?,
            lost_steps: lost_steps.and_then(|steps| Count::new(steps).ok()),
            lost_ratio: ratio.filter(|ratio| (0.0..=1.0).contains(ratio)),
        })
    }

    /// States what they cost.
    pub(super) fn sentence(self) -> Sentence {
        let n = self.restarts.as_f64();
        let restarts =
            Statement::new(Claim::PlannedRestarts, counted(n, "planned restart")).of(n);
        let lost = self.lost_steps.map(Count::as_f64);
        let lost = lost.map(|lost| {
            let words = format!("{} lost", counted(lost, "step"));
            Statement::new(Claim::LostSteps, words).of(lost)
        });
        let cost = self.lost_ratio.map(|ratio| {
            let words = format!("the leak costs {} of the time", percent(ratio));
            Statement::new(Claim::LeakCosts, words).of(ratio)
        });
        Sentence::from(restarts).then_if(", ", lost).then_if("; ", cost).end(".")
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use crate::summary::planned::{PlannedRestarts, RestartsSoFar};
    use stepmem_engine::lifetime::Moment;
    use stepmem_types::units::Count;

    #[test]
    fn newest_restart_costs_what_its_attempt_shows_once_it_has_taken_a_step() {
        let so_far = RestartsSoFar {
            run: None,
            restarts: 2,
            lost_steps: Some(3),
            lost_seconds: 10.0,
            last_step: 100,
            asked_time: Some(1_500.0),
            since: 1_000.0,
            folder: PathBuf::new(),
        };
        let of = |so_far: &RestartsSoFar, began: Option<(u64, f64)>| {
            let began = began.map(|(step, time)| Moment { step, time });
            let of = PlannedRestarts::of(so_far, began, 2_000.0)?;
            Some((of.restarts.get(), of.lost_steps.map(Count::get), of.lost_ratio))
        };
        assert_eq!(of(&so_far, None), Some((2, Some(3), Some(0.01))));
        assert_eq!(of(&so_far, Some((101, 1_510.0))), Some((2, Some(3), Some(0.02))));
        assert_eq!(of(&so_far, Some((91, 1_510.0))), Some((2, Some(13), Some(0.02))));
        let of_another = RestartsSoFar { asked_time: None, ..so_far.clone() };
        assert_eq!(of(&of_another, Some((101, 1_510.0))), Some((2, Some(3), None)));
        let counted = RestartsSoFar { lost_steps: None, ..so_far.clone() };
        assert_eq!(of(&counted, Some((1, 1_510.0))), Some((2, None, Some(0.02))));
        let set_back = RestartsSoFar { since: 3_000.0, ..so_far.clone() };
        assert_eq!(of(&set_back, Some((101, 1_510.0))), Some((2, Some(3), None)));
        assert_eq!(of(&RestartsSoFar { restarts: 0, ..so_far }, None), None);
    }

    #[test]
    fn sentence_leaves_out_what_is_not_known() {
        let count = |n| Count::new(n).unwrap();
        let restarts = |n, lost_steps, lost_ratio| {
            let of = PlannedRestarts { restarts: count(n), lost_steps, lost_ratio };
            of.sentence().words().to_owned()
        };
        assert_eq!(
            restarts(4, Some(count(0)), Some(0.019)),
            "4 planned restarts, 0 steps lost; the leak costs 2% of the time."
        );
        assert_eq!(restarts(1, None, None), "1 planned restart.");
    }
}

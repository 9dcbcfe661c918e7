//! The current launch of each run, which determines the directory of its summary.

use std::collections::BTreeMap;

use crate::store::launches::LaunchId;
use stepmem_engine::RunLaunch;
use stepmem_types::ids::Run;
use stepmem_types::launch::Launch;
use stepmem_types::units::Count;

/// The current launch of every run.
#[derive(Debug, Default)]
pub(in crate::exporter) struct RunLaunches(BTreeMap<Run, CurrentLaunch>);

/// The launch of a run that began last.
#[derive(Debug)]
pub(in crate::exporter) struct CurrentLaunch {
    launch: Option<Launch>,
    attempt: Count,
    began: f64,
    incarnation_began: f64,
    /// Set when its summary was written as that of a run that is over, and the launch did not
    /// go on.
    pub(in crate::exporter) is_over: bool,
}

impl CurrentLaunch {
    /// Returns the id by which its directory is found.
    pub(in crate::exporter) fn id(&self) -> LaunchId {
        let launch = self.launch.as_ref().map(|launch| launch.as_str().to_owned());
        LaunchId { launch, began: (self.began * 1000.0).round() / 1000.0 }
    }

    /// Returns whether an incarnation belongs to this launch. Where processes report no launch,
    /// a run that is over goes on only with the same incarnation or with a higher attempt.
    fn includes(&self, seen: &RunLaunch) -> bool {
        if let (Some(own), Some(seen)) = (&self.launch, &seen.launch) {
            return own == seen;
        }
        let is_same_life = self.incarnation_began.total_cmp(&seen.incarnation_began).is_eq();
        !self.is_over || is_same_life || seen.attempt > self.attempt
    }
}

impl RunLaunches {
    /// Takes the launch of a run that began last. Returns whether a launch that was over goes
    /// on with another incarnation.
    pub(in crate::exporter) fn see(&mut self, run: &Run, seen: RunLaunch) -> bool {
        if let Some(current) = self.0.get_mut(run).filter(|current| current.includes(&seen)) {
            let is_same_life =
                current.incarnation_began.total_cmp(&seen.incarnation_began).is_eq();
            current.attempt = seen.attempt;
            current.incarnation_began = seen.incarnation_began;
            return current.is_over && !is_same_life;
        }
        let RunLaunch { launch, attempt, began, incarnation_began, .. } = seen;
        let current =
            CurrentLaunch { launch, attempt, began, incarnation_began, is_over: false };
        self.0.insert(run.clone(), current);
        false
    }

    pub(in crate::exporter) fn get(&self, run: &Run) -> Option<&CurrentLaunch> {
        self.0.get(run)
    }

    pub(in crate::exporter) fn get_mut(&mut self, run: &Run) -> Option<&mut CurrentLaunch> {
        self.0.get_mut(run)
    }

    /// Returns whether this launch differs from the current one of the run, which goes on.
    pub(in crate::exporter) fn is_rival(&self, run: &Run, launch: &Launch) -> bool {
        let is_other = |current: &CurrentLaunch| {
            !current.is_over && current.launch.as_ref().is_some_and(|own| own != launch)
        };
        self.get(run).is_some_and(is_other)
    }

    /// Forgets the runs for which `is_held` is false.
    pub(in crate::exporter) fn retain(&mut self, is_held: impl Fn(&Run) -> bool) {
        self.0.retain(|run, _| is_held(run));
    }
}

#[cfg(test)]
mod tests {
    use crate::exporter::summaries::launches::RunLaunches;
    use stepmem_engine::RunLaunch;
    use stepmem_types::ids::{Rank, Run};
    use stepmem_types::launch::Launch;
    use stepmem_types::units::Count;

    fn seen(launch: Option<&str>, attempt: u64, incarnation_began: f64) -> RunLaunch {
        RunLaunch {
            launch: launch.map(|launch| Launch::new(launch).unwrap()),
            attempt: Count::new(attempt).unwrap(),
            began: incarnation_began,
            incarnation_began,
            first_rank: Rank::default(),
        }
    }

    /// The starts of the launches of these incarnations; after each, the run is over.
    fn launches(incarnations: &[(Option<&str>, u64, f64)]) -> Vec<f64> {
        let (mut launches, run) = (RunLaunches::default(), Run::new("run").unwrap());
        let began = |(launch, attempt, time): &(Option<&str>, u64, f64)| {
            launches.see(&run, seen(*launch, *attempt, *time));
            let current = launches.get_mut(&run).unwrap();
            current.is_over = true;
            current.began
        };
        incarnations.iter().map(began).collect()
    }

    #[test]
    fn attempts_of_a_launch_are_one_and_a_relaunch_is_another() {
        let incarnations = [(Some("a"), 0, 1.0), (Some("a"), 1, 2.0), (Some("b"), 0, 3.0)];
        assert_eq!(launches(&incarnations), [1.0, 1.0, 3.0]);
        // The second attempt of the relaunch began before the first of the exporter's.
        assert_eq!(launches(&[(Some("a"), 1, 1.0), (Some("b"), 2, 2.0)]), [1.0, 2.0]);
    }

    #[test]
    fn without_a_launch_a_higher_attempt_goes_on_and_any_other_life_does_not() {
        let incarnations = [(None, 0, 1.0), (None, 1, 2.0), (None, 1, 2.0), (None, 0, 3.0)];
        assert_eq!(launches(&incarnations), [1.0, 1.0, 1.0, 3.0]);
    }
}

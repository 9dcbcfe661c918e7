//! The runs that should checkpoint now, by what holds for their ranks.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::findings::{ActiveFinding, Findings};
use crate::kind::{DiagnosisKind, Severity};
use crate::requests::checkpoint::{self, CheckpointDue};
use stepmem_types::ids::Run;

/// Growth that has not taken a third of its way to out-of-memory yet is no reason: what is taken
/// for growth at the start of a job often ends soon. The rest of the way lasts twice as long.
const LEFT_RATIO_MAX: f64 = 2.0;

impl Findings {
    /// Returns the runs that should checkpoint, as their memory may run out within a time.
    pub(crate) fn checkpoints_due(&self, before: Duration) -> BTreeMap<Run, CheckpointDue> {
        let mut runs: BTreeMap<Run, CheckpointDue> = BTreeMap::new();
        for of_subject in self.by_subject.values().filter(|_| !before.is_zero()) {
            let pages = |of: &&ActiveFinding| of.finding.severity > Severity::Info;
            let pressure = of_subject.values().filter(pages).find(|of| is_pressure(of));
            for active in of_subject.values() {
                let Some(rank) = active.finding.subject.rank() else { continue };
                let Some(due) = due(active, pressure, before) else { continue };
                if runs.get(&rank.run).is_none_or(|earlier| due.is_sooner_than(earlier)) {
                    runs.insert(rank.run.clone(), due);
                }
            }
        }
        runs
    }
}

/// Returns the reason to checkpoint that a finding of growth is, next to the pressure on its rank:
/// memory may run out within the time, or live memory grows where memory is nearly full. How much
/// of the allocator's cache is of use then is not known, nor when memory runs out.
fn due(
    active: &ActiveFinding,
    pressure: Option<&ActiveFinding>,
    before: Duration,
) -> Option<CheckpointDue> {
    let finding = Some(&active.finding).filter(|of| of.severity > Severity::Info)?;
    let growth = finding.evidence.growth().filter(|growth| !growth.is_over)?;
    let is_live =
        matches!(finding.kind, DiagnosisKind::CreepConfirmed | DiagnosisKind::HostCreep);
    let pressure = pressure.filter(|_| is_live);
    let left = growth.oom_eta_lower_seconds;
    let is_soon = left.is_some_and(|left| left < before.as_secs_f64());
    let is_under_way = growth.headroom_bytes? <= LEFT_RATIO_MAX * growth.growth_bytes;
    (is_under_way && (is_soon || pressure.is_some())).then_some(())?;
    let beside = pressure.map(|pressure| pressure.finding.evidence.sentence());
    let told = finding.evidence.sentence().then_if("; ", beside);
    Some(CheckpointDue {
        reason: checkpoint::reason(
            &format!("rank {}", finding.subject.rank()?.rank),
            told.words(),
        ),
        seconds_left: left,
        steps_left: growth.oom_eta_lower_steps,
        every: before,
    })
}

fn is_pressure(active: &ActiveFinding) -> bool {
    matches!(active.finding.kind, DiagnosisKind::HighPressure | DiagnosisKind::HostPressure)
}

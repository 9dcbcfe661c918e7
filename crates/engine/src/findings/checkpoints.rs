//! The runs that should checkpoint now, by what holds for their ranks.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::diagnosis::shared::input::DiagnosisInput;
use crate::findings::{ActiveFinding, Finding, Findings};
use crate::kind::{DiagnosisKind, Severity};
use crate::ranks::basis::Basis;
use crate::requests::checkpoint::{self, CheckpointDue};
use stepmem_types::format::units::bytes;
use stepmem_types::ids::Run;

/// Growth that has not taken a third of its way to out-of-memory yet is no reason: what is taken
/// for growth at the start of a job often ends soon. The rest of the way lasts twice as long.
const LEFT_RATIO_MAX: f64 = 2.0;

/// A ninth of the way is enough of creep that is critical, where memory is nearly full; half of
/// it of growth of what the allocator or others hold, which a cache takes, too; and two thirds
/// of growth that is not yet known to be a leak.
const CRITICAL_LEFT_RATIO_MAX: f64 = 8.0;
const CACHE_LEFT_RATIO_MAX: f64 = 1.0;
const RISING_LEFT_RATIO_MAX: f64 = 0.5;

/// Critical creep with more time left, by its lower bound, counts as a warning: it is critical
/// because live memory is high.
const CRITICAL_SECONDS_MAX: f64 = 1800.0;

/// Less than this part of the capacity is never said to be left: a peak may be anything below it.
const CAPACITY_RATIO_MIN: f64 = 0.01;

impl Findings {
    /// Returns the runs that should checkpoint, as their memory may run out within a time.
    /// `runs` has those of which memory rises in stairs; what was acknowledged does not count.
    pub(crate) fn checkpoints_due(
        &self,
        before: Duration,
        mut runs: BTreeMap<Run, CheckpointDue>,
        is_acknowledged: impl Fn(&Finding) -> bool,
    ) -> BTreeMap<Run, CheckpointDue> {
        for of_subject in self.by_subject.values().filter(|_| !before.is_zero()) {
            let pages = |of: &&ActiveFinding| of.finding.severity > Severity::Info;
            let pressure = of_subject.values().filter(pages).find(|of| is_pressure(of));
            let others = of_subject.values().filter(|of| !is_acknowledged(&of.finding));
            for active in others {
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

/// Returns the runs of which live memory rises in stairs where memory is nearly full. What comes
/// so seldom, or so unevenly, has no trend yet when memory ends.
pub(crate) fn due_by_stairs(
    input: &DiagnosisInput<'_>,
    found: &[Finding],
    before: Duration,
) -> BTreeMap<Run, CheckpointDue> {
    let pages = |of: &&Finding| of.severity > Severity::Info && !before.is_zero();
    let pressed =
        found.iter().filter(pages).filter(|of| of.kind == DiagnosisKind::HighPressure);
    let due = |of: &Finding| {
        let id = of.subject.rank()?;
        let run = input.runs.iter().find(|run| *run.run == id.run)?;
        let rank = &run.ranks.iter().find(|(rank, _)| *rank == id.rank)?.1;
        let stairs = rank.floors.stairs()?;
        let left = rank.headroom().filter(|left| left.basis == Basis::Allocated)?.bytes;
        let left = left.max(CAPACITY_RATIO_MIN * rank.capacity?.as_f64());
        let steps_left = left / stairs.growth_bytes * stairs.steps;
        let is_first = run.end.is_reached_within(rank, steps_left);
        (left <= LEFT_RATIO_MAX * stairs.growth_bytes && !is_first).then_some(())?;
        let grown = bytes(stairs.growth_bytes);
        let words = format!(
            "live memory rose in {} stairs by {grown}, and {} are left; {}",
            stairs.count,
            bytes(left),
            of.evidence.sentence().words()
        );
        Some((
            id.run.clone(),
            CheckpointDue {
                reason: checkpoint::reason(&format!("rank {}", id.rank), &words),
                seconds_left: None,
                steps_left: None,
                every: before,
            },
        ))
    };
    pressed.filter_map(due).collect()
}

/// Returns the reason to checkpoint that a finding of growth is, next to the pressure on its rank:
/// memory may run out within the time, or grows where it is nearly full. How much of the
/// allocator's cache is of use then is not known, nor when memory runs out.
fn due(
    active: &ActiveFinding,
    pressure: Option<&ActiveFinding>,
    before: Duration,
) -> Option<CheckpointDue> {
    let finding = &active.finding;
    let growth = finding.evidence.growth().filter(|growth| !growth.is_over)?;
    let seconds_left = growth.oom_eta_lower_seconds;
    let is_soon = seconds_left.is_some_and(|left| left < before.as_secs_f64());
    let alone = (is_soon && finding.severity > Severity::Info).then_some(LEFT_RATIO_MAX);
    let pressed = pressure.and_then(|_| left_ratio_max_under_pressure(finding));
    let left_ratio_max = alone.into_iter().chain(pressed).reduce(f64::max)?;
    (growth.headroom_bytes? <= left_ratio_max * growth.growth_bytes).then_some(())?;
    let beside =
        pressure.filter(|_| pressed.is_some()).map(|of| of.finding.evidence.sentence());
    let told = finding.evidence.sentence().then_if("; ", beside);
    Some(CheckpointDue {
        reason: checkpoint::reason(
            &format!("rank {}", finding.subject.rank()?.rank),
            told.words(),
        ),
        seconds_left,
        steps_left: growth.oom_eta_lower_steps,
        every: before,
    })
}

/// Returns the bytes that may be left for each byte of growth where memory is nearly full, by
/// how sure the growth is; `None` where it is no reason.
fn left_ratio_max_under_pressure(finding: &Finding) -> Option<f64> {
    let soon = |left: f64| left < CRITICAL_SECONDS_MAX;
    let is_critical = finding.severity == Severity::Critical
        && finding.evidence.growth()?.oom_eta_lower_seconds.is_none_or(soon);
    match finding.kind {
        DiagnosisKind::CreepConfirmed | DiagnosisKind::HostCreep if is_critical => {
            Some(CRITICAL_LEFT_RATIO_MAX)
        }
        DiagnosisKind::CreepEarly | DiagnosisKind::HostRising => {
            Some(RISING_LEFT_RATIO_MAX).filter(|_| !finding.evidence.is_run_first())
        }
        // Level because nothing is left for it.
        DiagnosisKind::Fragmentation | DiagnosisKind::OutsideAllocator
            if finding.evidence.growth().is_some_and(|of| of.is_level() && of.is_full) =>
        {
            Some(f64::INFINITY)
        }
        _ if finding.severity == Severity::Info => None,
        DiagnosisKind::CreepConfirmed | DiagnosisKind::HostCreep => Some(LEFT_RATIO_MAX),
        DiagnosisKind::Fragmentation | DiagnosisKind::OutsideAllocator => {
            Some(CACHE_LEFT_RATIO_MAX)
        }
        _ => None,
    }
}

fn is_pressure(active: &ActiveFinding) -> bool {
    matches!(active.finding.kind, DiagnosisKind::HighPressure | DiagnosisKind::HostPressure)
}

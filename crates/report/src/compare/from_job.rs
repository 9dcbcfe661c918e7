//! The figures of a job as an engine has it that keeps the recorded set. Sampled figures are
//! not compared.

use crate::compare::figures::{
    LeakingLine, RankFigures, RunFigures, RunGrowth, RunIssue, RunPeak, RunSetup, RunSkew,
    SlopeInterval, device_kinds,
};
use crate::job::model::{Job, JobRank};
use crate::policy::PolicyName;

/// Returns the figures of a job.
pub fn figures(job: &Job) -> RunFigures {
    let ranks = &job.ranks;
    let peaks = || ranks.iter().filter_map(|rank| Some((rank, rank.peak_allocated_bytes?)));
    let highest = peaks().reduce(|a, b| if b.1 > a.1 { b } else { a });
    let worst = job.diagnosis.ranks.first().copied().or(highest.map(|(rank, _)| rank.rank));
    let peak = RunPeak { max: highest.map(|(_, peak)| peak), ..RunPeak::default() };
    RunFigures {
        policy: PolicyName::Stepmem,
        run: Some(job.run.to_string()),
        setup: setup(job),
        issues: RunIssue::of_all(&job.issues),
        status: job.diagnosis.status.to_string(),
        has_data: !ranks.is_empty(),
        is_judged: ranks.iter().any(|rank| rank.slope.is_some()),
        steps: None,
        allocated: RunPeak::default(),
        peak_allocated: peak,
        peak_reserved: RunPeak::default(),
        pressure_ratio: None,
        headroom: None,
        host_headroom: None,
        growth: fastest(ranks),
        skew: job.imbalance_ratio.map(|ratio| RunSkew { ratio, is_of_means: false }),
        worst_rank: worst.map(|rank| rank.get().into()),
        n_lost: Some(job.n_ranks_missing.into()),
        n_ooms: None,
        leaking_line: leaking_line(ranks),
        is_going_on: false,
        end: None,
        ranks: ranks.iter().map(rank_figures).collect(),
    }
}

fn setup(job: &Job) -> RunSetup {
    let seen = u64::try_from(job.ranks.len()).ok();
    RunSetup {
        world_size: job.ranks_expected.or(seen).filter(|n| *n > 0),
        device_kinds: device_kinds(job.ranks.iter().filter_map(|rank| rank.device.as_ref())),
        ..RunSetup::default()
    }
}

fn rank_figures(rank: &JobRank) -> RankFigures {
    RankFigures {
        rank: rank.rank.get().into(),
        issues: rank.holding().map(|finding| finding.status.to_string()).collect(),
        allocated: RunPeak::default(),
        peak_allocated: RunPeak { max: rank.peak_allocated_bytes, ..RunPeak::default() },
    }
}

/// The growth of the rank whose live memory grows fastest, of those that rise or creep if there
/// is one.
fn fastest(ranks: &[JobRank]) -> Option<RunGrowth> {
    let growth = |rank: &JobRank| {
        let slope = rank.slope?;
        let is_live = |signal: &str| signal == "allocated";
        let mut growths = rank.holding().filter_map(|finding| finding.growth.as_ref());
        let is_growing = growths.any(|growth| is_live(growth.signal));
        let ends = slope.lower_bytes_per_step.zip(slope.upper_bytes_per_step);
        Some(RunGrowth {
            is_growing,
            slope: slope.bytes_per_step?,
            interval: ends
                .filter(|_| is_growing)
                .map(|(lower, upper)| SlopeInterval { lower, upper }),
        })
    };
    RunGrowth::fastest(ranks.iter().filter_map(growth))
}

fn leaking_line(ranks: &[JobRank]) -> Option<LeakingLine> {
    let mut growths =
        ranks.iter().flat_map(JobRank::holding).filter_map(|of| of.growth.as_ref());
    let line = growths.find_map(|growth| growth.line.as_ref())?;
    Some(LeakingLine { at: line.to_string(), holder: None })
}

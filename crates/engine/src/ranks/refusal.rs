//! The reason why a batch or an acknowledgment may not enter.

use crate::ranks::name_conflicts::{Claim, NameConflict};
use stepmem_types::end::EndOutcome;
use stepmem_types::ids::{Rank, RankId, Run, SubjectId};

/// The reason why a batch or an acknowledgment may not enter, with the limit that it breaks.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The batch would take more ranks than are held.
    #[error("the batch brings the ranks to {ranks}, which exceeds the limit of {max}")]
    TooManyRanks {
        /// Number of ranks that there would be.
        ranks: usize,
        /// Number of ranks that are held at most.
        max: usize,
    },
    /// The batch would take more runs than are held.
    #[error("the batch brings the runs to {runs}, which exceeds the limit of {max}")]
    TooManyRuns {
        /// Number of runs that there would be.
        runs: usize,
        /// Number of runs that are held at most.
        max: usize,
    },
    /// A rank of the batch is held by another live process.
    #[error("{}", conflict_text(.0))]
    Held(Box<NameConflict>),
    /// The end or report is about a rank that another process holds.
    #[error("rank {} of {} is held by another process, which has not ended", .0.rank, .0.run)]
    OfAnother(RankId),
    /// The end or report names no process, and its rank was pushed by one that named itself.
    #[error(
        "rank {} of {} was pushed with an instance: only a process that names the same one, or an admin, may end it or report on it",
        .0.rank,
        .0.run
    )]
    OfUnnamed(RankId),
    /// The acknowledgment is about a subject that is not held.
    #[error("{}", unknown(.0))]
    UnknownSubject(SubjectId),
    /// The end is about a run that is not held.
    #[error("no run {0} has pushed here")]
    UnknownRun(Run),
    /// The end is about ranks that have all ended, and otherwise.
    #[error("{} ended before ({}), and the first end counts", subject_text(.run, *.rank), .outcome.as_label())]
    HasEnded {
        /// The run that the end is about.
        run: Run,
        /// The rank; `None` where the end is of the whole run.
        rank: Option<Rank>,
        /// The outcome of the first end.
        outcome: EndOutcome,
    },
    /// The acknowledgment would exceed the bound on their number.
    #[error("the acknowledgments would exceed {max}")]
    TooManyAcks {
        /// Number of acknowledgments in force at most.
        max: usize,
    },
}

fn subject_text(run: &Run, rank: Option<Rank>) -> String {
    rank.map_or_else(|| run.to_string(), |rank| format!("rank {rank} of {run}"))
}

fn unknown(subject: &SubjectId) -> String {
    match subject {
        SubjectId::Rank(id) => format!("no rank {} of that run pushes here now", id.rank),
        SubjectId::Process(id) => format!("no process {} is judged on that device", id.pid),
        SubjectId::Device(_) => "that device is neither read nor failing here".to_owned(),
    }
}

fn conflict_text(conflict: &NameConflict) -> String {
    let NameConflict { rank, holder, claimant, offer, .. } = conflict;
    let shown = |claim: &Claim| {
        let pid = claim.pid.map_or("an unknown pid".to_owned(), |pid| format!("pid {pid}"));
        format!("{pid}, attempt {}, since {:.0}", claim.attempt, claim.started)
    };
    let next = match offer {
        Some(name) => format!("both push, so take the name {name}"),
        None => "ask again until it is silent or has pushed again".to_owned(),
    };
    format!(
        "rank {} of {} is held by another live process ({}), not yours ({}): {next}",
        rank.rank,
        rank.run,
        shown(holder),
        shown(claimant)
    )
}

//! Why a batch or an acknowledgement may not enter.

use crate::model::ids::SubjectId;

/// Why a batch or an acknowledgement may not enter, with the limit that it breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The batch would take more ranks than are held.
    #[error("the batch brings the ranks to {ranks}, which exceeds the limit of {max}")]
    TooManyRanks {
        /// How many ranks there would be.
        ranks: usize,
        max: usize,
    },
    /// The batch would take more runs than are held.
    #[error("the batch brings the runs to {runs}, which exceeds the limit of {max}")]
    TooManyRuns {
        /// How many runs there would be.
        runs: usize,
        max: usize,
    },
    /// The acknowledgement is about a subject that is not held.
    #[error("{}", unknown(.0))]
    UnknownSubject(SubjectId),
    /// The acknowledgement would exceed the bound on their number.
    #[error("the acknowledgements would exceed {max}")]
    TooManyAcks { max: usize },
}

fn unknown(subject: &SubjectId) -> String {
    match subject {
        SubjectId::Rank(id) => format!("no rank {} of that run has pushed here", id.rank),
        SubjectId::Process(id) => format!("no process {} is judged on that device", id.pid),
        SubjectId::Device(_) => "that device is neither read nor failing here".to_owned(),
    }
}

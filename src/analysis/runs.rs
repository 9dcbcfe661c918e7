//! One run as a summary sees it.

use std::collections::BTreeSet;

use crate::analysis::diagnosis::scene::Thresholds;
use crate::analysis::findings::Finding;
use crate::analysis::rank::view::RankView;
use crate::model::ids::{Rank, Run};

/// One run: every rank of its latest attempt, also those that have left the outputs.
#[derive(Debug)]
pub struct RunView<'a> {
    pub run: &'a Run,
    /// When this was made, as a Unix time.
    pub time: f64,
    /// The ranks, ascending.
    pub ranks: Vec<(Rank, RankView<'a>)>,
    /// Those among them whose end was announced.
    pub ended: BTreeSet<Rank>,
    /// Those among them that have been silent for longer than a rank may be.
    pub silent: BTreeSet<Rank>,
    /// What is true of the ranks by their last figures, the worst diagnosis first and then by rank.
    pub findings: Vec<Finding>,
    /// The limits that they were judged by.
    pub thresholds: &'a Thresholds,
}

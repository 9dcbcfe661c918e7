//! One run as a summary sees it.

use std::collections::{BTreeMap, BTreeSet};

use crate::analysis::diagnosis::scene::Thresholds;
use crate::analysis::findings::Finding;
use crate::analysis::rank::view::RankView;
use crate::model::end::EndReport;
use crate::model::ids::{Rank, Run};
use crate::model::launch::Launch;

/// One run: every rank of the launch and attempt whose life began last, also those that have left the outputs.
#[derive(Debug)]
pub struct RunView<'a> {
    pub run: &'a Run,
    /// The launch, where it is reported.
    pub launch: Option<Launch>,
    /// When this was made, as a Unix time.
    pub time: f64,
    /// The ranks, ascending.
    pub ranks: Vec<(Rank, RankView<'a>)>,
    /// Those among them whose end was announced.
    pub ended: BTreeMap<Rank, EndReport>,
    /// Those among them that have been silent for longer than a rank may be.
    pub silent: BTreeSet<Rank>,
    /// Whether all ranks have ended or are silent, and fell silent within a minute of each other: the run is over, and did
    /// not say so.
    pub is_unannounced: bool,
    /// What is true of the ranks by their last figures, the worst diagnosis first and then by rank.
    pub findings: Vec<Finding>,
    /// The limits that they were judged by.
    pub thresholds: &'a Thresholds,
}

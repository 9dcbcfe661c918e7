//! One run as a summary sees it, and the launch that is its newest.

use std::collections::{BTreeMap, BTreeSet};

use crate::findings::Finding;
use crate::ranks::view::RankView;
use crate::thresholds::Thresholds;
use stepmem_types::end::EndReport;
use stepmem_types::ids::{Rank, Run};
use stepmem_types::launch::Launch;
use stepmem_types::units::Count;

/// The launch and attempt of a run whose incarnation began last.
#[derive(Clone, Debug)]
pub struct RunLaunch {
    /// The launch, where it is reported.
    pub launch: Option<Launch>,
    /// The attempt of its launcher, from 0 on.
    pub attempt: Count,
    /// The time when the first record of the launch ended that is still known here, as a Unix
    /// time.
    pub began: f64,
    /// The time when the first record ended of the incarnation that began last, as a Unix time.
    pub incarnation_began: f64,
    /// The lowest that is held.
    pub first_rank: Rank,
}

/// A run: every rank of the launch and attempt whose incarnation began last, also those that
/// have left the outputs.
#[derive(Debug)]
pub struct RunView<'a> {
    /// The name of the run.
    pub run: &'a Run,
    /// The launch, where it is reported.
    pub launch: Option<Launch>,
    /// The declared workload of all runs of this exporter.
    pub workload: Option<&'a str>,
    /// The time when this was made, as a Unix time.
    pub time: f64,
    /// The ranks, ascending.
    pub ranks: Vec<(Rank, RankView<'a>)>,
    /// The ranks whose end was announced.
    pub ended: BTreeMap<Rank, EndReport>,
    /// The ranks that have been silent for longer than a rank may be.
    pub silent: BTreeSet<Rank>,
    /// The silent ranks that no rank outlasted by more than a minute, once no rank goes on. The
    /// run is over, and they did not announce it.
    pub unannounced: BTreeSet<Rank>,
    /// The findings that hold for the ranks by their last figures, the worst diagnosis first
    /// and then by rank.
    pub findings: Vec<Finding>,
    /// The limits that they were judged by.
    pub thresholds: &'a Thresholds,
}

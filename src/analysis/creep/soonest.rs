//! Which of several trends is the first to use up its headroom.

use crate::analysis::creep::estimator::CreepEstimator;
use crate::analysis::creep::trend::{Stage, TrendFigures};

/// Returns the creeping trend that is the first to use up its headroom.
pub fn soonest(creep: &CreepEstimator) -> Option<TrendFigures> {
    creep
        .trends()
        .filter(|trend| trend.stage == Stage::Creeping)
        .filter_map(|trend| Some((trend.eta_steps().or(trend.eta_seconds())?.likely, trend)))
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, trend)| creep.figures(trend))
}

//! The container of a rank, as diagnoses see it.

use stepmem_detect::detector::Detector;
use stepmem_detect::signal::Signal;
use stepmem_detect::trend::{Stage, Trend};
use stepmem_types::host::ContainerReading;

/// A container, as one of its ranks sees it.
#[derive(Clone, Copy, Debug)]
pub struct ContainerView<'a> {
    /// The newest reading of any of its ranks.
    pub reading: &'a ContainerReading,
    pub creep: &'a Detector,
    /// Its ranks that push.
    pub n_ranks: usize,
    /// Set for the one of its ranks that has what is found of it.
    pub is_lead: bool,
    /// Set when host memory of one of its ranks creeps, which explains its own.
    pub has_creep: bool,
}

impl<'a> ContainerView<'a> {
    /// Returns the growth of its memory that creeps.
    pub fn creeping(&self) -> Option<&'a Trend> {
        let trend = self.creep.trend(Signal::Allocated)?;
        (trend.stage == Stage::Creeping && trend.is_growing()).then_some(trend)
    }
}

//! The container of a rank, as diagnoses see it.

use stepmem_detect::{Asked, Detector, Outlook, Signal, Stage};
use stepmem_types::host::ContainerReading;

/// A container, as one of its ranks sees it.
#[derive(Clone, Copy, Debug)]
pub struct ContainerView<'a> {
    /// The newest reading of any of its ranks.
    pub reading: &'a ContainerReading,
    pub creep: &'a Detector,
    /// The number of its ranks that push.
    pub n_ranks: usize,
    /// Set for the one of its ranks that has what is found of it.
    pub is_lead: bool,
    /// Set when host memory of one of its ranks creeps, which explains its own.
    pub has_creep: bool,
    /// The facts with which its outlook is asked for.
    pub asked: Asked,
}

impl ContainerView<'_> {
    /// Returns the outlook of its memory if that creeps.
    pub fn creeping(&self) -> Option<Outlook> {
        let limit = Some(self.reading.limit.as_f64());
        let outlook = self.creep.outlook(Signal::Allocated, limit, &self.asked)?;
        (outlook.stage == Stage::Creeping && outlook.is_growing()).then_some(outlook)
    }
}

//! The reports of collectors to the engine's task.

use stepmem_engine::Event;

/// A report of a collector.
#[derive(Debug)]
pub(in crate::exporter) enum Collected {
    /// Something happened.
    Event(Event),
    /// A round is over, in which this happened.
    Round(CollectorRound, Vec<Event>),
    /// The reason that no device is opened from now on, and the setting to change; `None` when
    /// some are.
    DevicesHint(Option<&'static str>),
}

/// A round of a collector.
#[derive(Clone, Copy, Debug)]
pub(in crate::exporter) struct CollectorRound {
    pub(in crate::exporter) collector: &'static str,
    /// Duration of the round, in seconds.
    pub(in crate::exporter) duration_seconds: f64,
    /// True if the round succeeded.
    pub(in crate::exporter) is_success: bool,
    pub(in crate::exporter) dropped: DropCounts,
}

/// Counts of items that a collector left out to keep its bounds.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::exporter) struct DropCounts {
    pub(in crate::exporter) containers: u64,
    pub(in crate::exporter) devices: u64,
    pub(in crate::exporter) pods: u64,
    pub(in crate::exporter) processes: u64,
}

impl DropCounts {
    /// Adds those of another round.
    pub(in crate::exporter) fn add(&mut self, other: Self) {
        let Self { containers, devices, pods, processes } = other;
        self.containers += containers;
        self.devices += devices;
        self.pods += pods;
        self.processes += processes;
    }
}

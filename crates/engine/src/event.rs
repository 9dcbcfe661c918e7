//! The events of the engine, and the result of each. A recording is a list of them.

use std::collections::BTreeSet;

use crate::findings::Transition;
use crate::findings::acks::Ack;
use crate::requests::causes::{AnalysisRequest, FoundCause, HoldersReport, SnapshotAnalysis};
use crate::requests::snapshot::SnapshotReport;
use crate::requests::tracker::RankRequest;
use stepmem_types::device::{DevicePod, GpuSample, GpuUnavailable};
use stepmem_types::end::RankEnd;
use stepmem_types::host::PodMemory;
use stepmem_types::ids::{GpuUuid, RankId, Run};
use stepmem_types::step::StepSample;
use stepmem_types::units::Seconds;

/// Everything that can happen to the engine.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Ranks pushed steps, which are taken as a whole or not at all.
    Steps(Vec<StepSample>),
    /// A rank, or a whole run, ended.
    End(Run, RankEnd),
    /// An operator lowered a finding.
    Ack(Ack),
    /// A training process reported a memory snapshot.
    SnapshotReport(SnapshotReport),
    /// A training process reported what holds its tensors.
    HoldersReport(HoldersReport),
    /// An operator wants a snapshot of a rank, over so many steps.
    SnapshotWanted(RankId, Option<u32>),
    /// An operator wants to know the line that allocates a rank's host memory.
    LinesWanted(RankId),
    /// The analysis of a snapshot, by its number, is over.
    SnapshotAnalyzed(u64, Box<SnapshotAnalysis>),
    /// A cause of a rank's growth was found. Recordings have this instead of the report or the
    /// analysis that found it.
    CauseFound(FoundCause),
    /// A device was read.
    Reading(Box<GpuSample>),
    /// A device, or NVML, gave no answer.
    DeviceLost(GpuUnavailable),
    /// NVML is released for now.
    DevicesReleased,
    /// A device reported an Xid error.
    Xid(GpuUuid, u64),
    /// The kubelet listed the containers that it gave devices to.
    Pods(Vec<DevicePod>),
    /// The control groups of pods that use a device were read.
    PodMemory(Vec<PodMemory>),
    /// Prometheus read everything that the last status shows.
    Scraped,
    /// The system's clock was set to this Unix time.
    ClockSet(Seconds),
    /// Time passed.
    Tick,
}

impl Event {
    /// Returns whether recordings have it. Instead of reports and analyses they have what
    /// [`Effect::Record`] names.
    pub fn is_recorded(&self) -> bool {
        match self {
            Self::Steps(_)
            | Self::End(..)
            | Self::Ack(_)
            | Self::CauseFound(_)
            | Self::Reading(_)
            | Self::DeviceLost(_)
            | Self::DevicesReleased
            | Self::Xid(..)
            | Self::ClockSet(_)
            | Self::Tick => true,
            Self::SnapshotReport(_)
            | Self::HoldersReport(_)
            | Self::SnapshotWanted(..)
            | Self::LinesWanted(_)
            | Self::SnapshotAnalyzed(..)
            | Self::Pods(_)
            | Self::PodMemory(_)
            | Self::Scraped => false,
        }
    }
}

/// The result of an event that the engine took.
#[derive(Debug, Default)]
pub struct Handled {
    /// The answer to the sender of the event.
    pub receipt: Receipt,
    /// The findings that the event raised, changed or cleared.
    pub transitions: Vec<Transition>,
    /// The effects that the program has to bring about now, in this order.
    pub effects: Vec<Effect>,
}

/// The answer to who submitted an event.
#[derive(Debug, PartialEq)]
pub struct Receipt {
    /// Number of records in it.
    pub n_records: usize,
    /// Requests to its ranks.
    pub requests: Vec<RankRequest>,
    /// The id of the request that an operator made.
    pub id: Option<Box<str>>,
    /// Set when the diagnosis of an acknowledgment is found on its subject; `None` of another
    /// event.
    pub is_found: Option<bool>,
}

impl Default for Receipt {
    /// The receipt of a single record that requests nothing.
    fn default() -> Self {
        Self { n_records: 1, requests: Vec::new(), id: None, is_found: None }
    }
}

/// An action that the program has to take now. The program asks the engine nothing else that
/// steers it.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Record this event.
    Record(Event),
    /// Announce this finding again: the line or the object behind it is known now.
    Announce(Box<Transition>),
    /// Write the summary of a run that is over.
    Summarize(Run),
    /// Open these devices and close all others: ranks push from them.
    OpenDevices(BTreeSet<GpuUuid>),
    /// Wait for a scrape before a stop (or no longer): a rank ended badly, and Prometheus has
    /// not read that.
    AwaitScrape(bool),
    /// Wait for analyses of snapshots before a stop (or no longer).
    AwaitAnalyses(bool),
    /// Analyze a snapshot.
    Analyze(AnalysisRequest),
}

/// The effects that the program was told last.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) devices: BTreeSet<GpuUuid>,
    pub(crate) awaits_scrape: bool,
    pub(crate) awaits_analyses: bool,
}

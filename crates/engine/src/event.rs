//! The events of the engine.

use crate::findings::acks::AdmittedAck;
use crate::ranks::table::{Admitted, AdmittedEnd};
use crate::requests::causes::{HoldersReport, RecordedSite, SnapshotAnalysis};
use crate::requests::snapshot::CaptureReport;
use stepmem_types::device::{DevicePod, GpuSample, GpuUnavailable};
use stepmem_types::ids::{GpuUuid, RankId};
use stepmem_types::units::Uptime;

/// One thing that happened.
#[derive(Debug)]
pub enum Event {
    /// Ranks pushed steps.
    Steps(Admitted),
    /// An operator lowered a finding.
    Ack(AdmittedAck),
    /// A rank, or a whole run, ended.
    End(AdmittedEnd),
    /// Prometheus read everything that the last status shows.
    Scrape,
    /// A training process reported a memory snapshot.
    Capture(CaptureReport),
    /// The analysis of a snapshot, by its number, is over.
    Analysed(u64, Box<SnapshotAnalysis>),
    /// A training process reported what holds its tensors.
    Holders(HoldersReport),
    /// A recording has what was found out of a rank when it was asked at that time.
    Site(RankId, RecordedSite, Uptime),
    /// A device was read.
    Gpu(GpuSample),
    /// A device, or NVML, gave no answer.
    GpuUnavailable(GpuUnavailable),
    /// NVML is released for now.
    GpuReleased,
    /// A device reported an Xid error.
    Xid(GpuUuid, u64),
    /// The kubelet listed the containers that it gave devices to.
    DevicePods(Vec<DevicePod>),
    /// Time passed.
    Tick,
}

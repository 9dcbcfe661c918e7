//! The state that outlasts a restart of the exporter. Its encoding is decided elsewhere.

use serde::{Deserialize, Deserializer, Serialize};

use crate::containers::{CONTAINERS_MAX, ContainerState, ContainerTable};
use crate::findings::acks::{ACKS_MAX, LABEL_BYTES_MAX, SavedAck};
use crate::findings::{ActiveFinding, Finding, Findings};
use crate::kind::DiagnosisKind;
use crate::processes::{PROCESSES_JUDGED_MAX, ProcessState, ProcessTable};
use crate::ranks::detectors::RankDetectors;
use crate::ranks::floors::Floors;
use crate::ranks::history::History;
use crate::ranks::lifetime::LifetimeStats;
use crate::ranks::phase_floors::PhaseFloors;
use crate::ranks::state::RankState;
use crate::ranks::table::{ENDED_MAX, SavedRanks};
use crate::requests::causes::{ENDED_SITES_MAX, RankSites, SiteTable};
use crate::requests::heap_scans::SavedHeapScans;
use crate::requests::snapshot::Snapshot;
use crate::requests::tracker::SavedRequests;
use stepmem_detect::Detector;
use stepmem_types::host::ContainerId;
use stepmem_types::ids::{ProcessId, Rank, RankId, Run, SubjectId};
use stepmem_types::saved;
use stepmem_types::units::{UnixTime, Uptime};

/// Bytes that a rank takes at most. One that goes on without steps has a second detector, of
/// its samples by time; each may have one of host memory, and one of child
/// processes.
const RANK_BYTES_MAX: usize = 2 * RankDetectors::BYTES_MAX
    + LifetimeStats::BYTES_MAX
    + History::BYTES_MAX
    + PhaseFloors::HEAP_BYTES_MAX
    + Floors::BYTES_MAX
    + 4096;
/// Bytes that an unmanaged process takes at most.
const PROCESS_BYTES_MAX: usize = Detector::PROCESS_BYTES_MAX + 4096;
/// Bytes that a container takes at most.
const CONTAINER_BYTES_MAX: usize = Detector::HOST_BYTES_MAX + 4096;
/// Bytes that an ended rank takes at most.
const ENDED_BYTES_MAX: usize = RankDetectors::RELEASED_BYTES_MAX
    + LifetimeStats::BYTES_MAX
    + History::ENDED_BYTES_MAX
    + 4096;
/// The findings whose beginnings are saved: those that have held longest.
pub const FINDINGS_SAVED_MAX: usize = 2048;
/// Bytes that are saved in addition to ranks and processes, at most.
const OTHER_BYTES_MAX: usize = 1024 * 1024;
/// Parts that are not of one rank or process.
const OTHERS_MAX: usize = 3;
/// Bytes that the name of a rank takes at most.
const NAME_BYTES_MAX: usize = Run::BYTES_MAX + 16;
/// The length of a part, in bytes.
const LENGTH_BYTES: usize = 4;

/// The state that outlasts a restart of the exporter, in parts. First come the state of each
/// rank and process, the code behind a rank's memory, and the requests to ranks. Then come the
/// findings with their times, and the acknowledgments.
#[derive(Debug, Deserialize)]
pub enum SavedPart {
    /// The state of one rank.
    Rank(Run, Rank, Box<RankState>),
    /// An unmanaged process.
    Process(ProcessId, Box<ProcessState>),
    /// The last one.
    Rest(SavedRest),
    /// The lines and objects behind a rank's memory.
    Sites(Run, Rank, Box<RankSites>),
    /// The requests for memory snapshots of all runs.
    Snapshots(SavedRequests<Snapshot>),
    /// The requests for heap scans of all runs.
    HeapScans(SavedHeapScans),
    /// The state of a container in which ranks run.
    Container(Box<ContainerState>),
}

/// A [`SavedPart`] where it is held: the same bytes.
#[derive(Debug, Serialize)]
pub(crate) enum PartToSave<'a> {
    Rank(&'a Run, Rank, &'a RankState),
    Process(&'a ProcessId, &'a ProcessState),
    Rest(SavedRest),
    Sites(&'a Run, Rank, &'a RankSites),
    Snapshots(SavedRequests<Snapshot>),
    HeapScans(SavedHeapScans),
    Container(&'a ContainerState),
}

/// The last part of a state.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct SavedRest {
    /// The Unix time at which the uptime was 0.
    #[serde(deserialize_with = "unix_time")]
    pub started: f64,
    /// The uptime at which this was saved.
    pub uptime: Uptime,
    /// The findings that hold, and since when.
    #[serde(deserialize_with = "saved::list::<_, _, FINDINGS_SAVED_MAX>")]
    pub(crate) findings: Vec<SavedFinding>,
    #[serde(deserialize_with = "saved::list::<_, _, ACKS_MAX>")]
    pub(crate) acks: Vec<SavedAck>,
}

/// The progress of saving a state.
#[derive(Clone, Debug, Default)]
pub struct SaveCursor(pub(crate) NextPart);

/// The part that is saved next.
#[derive(Clone, Debug, Default)]
pub(crate) enum NextPart {
    #[default]
    FirstRank,
    RankAfter(RankId),
    ProcessAfter(ProcessId),
    ContainerAfter(ContainerId),
    SitesAfter(RankId),
    HeapScans,
    Rest,
    End,
}

/// A state as its parts are added.
#[derive(Debug, Default)]
pub struct SavedState {
    pub(crate) ranks: SavedRanks,
    /// The unmanaged processes.
    pub(crate) processes: ProcessTable,
    pub(crate) containers: ContainerTable,
    pub(crate) sites: SiteTable,
    pub(crate) snapshots: SavedRequests<Snapshot>,
    pub(crate) heap_scans: SavedHeapScans,
    /// The last part, with the times.
    pub rest: SavedRest,
    n_ranks: usize,
    n_sites: usize,
    is_whole: bool,
}

impl SavedState {
    /// The greatest size of a part, in bytes.
    pub const PART_BYTES_MAX: usize = OTHER_BYTES_MAX;

    /// Returns the greatest size of a state of so many ranks, in bytes.
    pub fn bytes_max(ranks_max: usize) -> usize {
        ranks_max
            .saturating_mul(RANK_BYTES_MAX + LENGTH_BYTES)
            .saturating_add(PROCESSES_JUDGED_MAX * (PROCESS_BYTES_MAX + LENGTH_BYTES))
            .saturating_add(CONTAINERS_MAX * (CONTAINER_BYTES_MAX + LENGTH_BYTES))
            .saturating_add(ENDED_MAX * (ENDED_BYTES_MAX + LENGTH_BYTES))
            .saturating_add(
                ranks_max
                    .saturating_add(ENDED_SITES_MAX)
                    .saturating_mul(RankSites::BYTES_MAX + NAME_BYTES_MAX + LENGTH_BYTES),
            )
            .saturating_add(OTHERS_MAX * (OTHER_BYTES_MAX + LENGTH_BYTES))
    }

    /// Adds the next part of a state of so many ranks.
    ///
    /// # Errors
    /// It is out of order, one too many, or has a time out of range.
    pub fn add(&mut self, part: SavedPart, ranks_max: usize) -> Result<(), String> {
        if self.is_whole {
            return Err("something follows its last part".to_owned());
        }
        match part {
            SavedPart::Rank(run, rank, state) => {
                self.n_ranks += 1;
                let max = ranks_max.saturating_add(ENDED_MAX);
                if self.n_ranks > max {
                    return Err(format!("its ranks exceed {max}"));
                }
                self.ranks.insert(run, rank, *state);
            }
            SavedPart::Process(id, state) => self.processes.insert(id, *state)?,
            SavedPart::Container(state) => self.containers.insert(*state)?,
            SavedPart::Sites(run, rank, sites) => {
                self.n_sites += 1;
                let max = ranks_max.saturating_add(ENDED_SITES_MAX);
                if self.n_sites > max {
                    return Err(format!("the ranks with sites exceed {max}"));
                }
                self.sites.insert(&RankId { run, rank }, *sites);
            }
            SavedPart::Snapshots(snapshots) => self.snapshots = snapshots,
            SavedPart::HeapScans(heap_scans) => self.heap_scans = heap_scans,
            SavedPart::Rest(rest) => {
                self.is_whole = true;
                self.rest = rest;
            }
        }
        Ok(())
    }

    /// Returns whether every part is there.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }
}

/// A finding, and since when it holds.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct SavedFinding {
    subject: SubjectId,
    #[serde(deserialize_with = "saved::texts::<_, _, LABEL_BYTES_MAX>")]
    kind: String,
    #[serde(deserialize_with = "saved::times")]
    since: f64,
}

impl SavedFinding {
    /// Returns the findings that are saved: [`FINDINGS_SAVED_MAX`] that have held longest.
    pub(crate) fn of_all(findings: &Findings) -> Vec<Self> {
        let mut active: Vec<&ActiveFinding> = findings.iter().collect();
        if active.len() > FINDINGS_SAVED_MAX {
            active.sort_by(|one, other| one.since.total_cmp(&other.since));
            active.truncate(FINDINGS_SAVED_MAX);
        }
        active.into_iter().map(Self::of).collect()
    }

    fn of(active: &ActiveFinding) -> Self {
        let ActiveFinding { finding, since } = active;
        let kind = finding.kind.label().to_owned();
        Self { subject: finding.subject.clone(), kind, since: *since }
    }

    /// Returns whether it is of this finding.
    pub(crate) fn is_of(&self, finding: &Finding) -> bool {
        self.subject == finding.subject && self.kind == finding.kind.label()
    }

    /// Sets since when the finding has held, if it holds again.
    pub(crate) fn restore(&self, findings: &mut Findings) {
        if let Some(kind) = DiagnosisKind::from_label(&self.kind) {
            findings.set_since(&self.subject, kind, self.since);
        }
    }
}

/// Reads a Unix time that is held as a float.
fn unix_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    UnixTime::deserialize(deserializer).map(UnixTime::get)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::diagnosis::Evidence;
    use crate::findings::{Finding, Findings};
    use crate::kind::{DiagnosisKind, Severity};
    use crate::output::saved_state::{FINDINGS_SAVED_MAX, SavedFinding, SavedRest};
    use stepmem_types::ids::{GpuUuid, SubjectId};

    #[test]
    fn findings_that_have_held_longest_are_saved_and_read_back() {
        let evidence =
            Evidence::decode(DiagnosisKind::GpuLost, &json!({"code": "gpu_is_lost"})).unwrap();
        let finding = |n: usize| Finding {
            subject: SubjectId::Device(GpuUuid::new(&format!("GPU-{n:05}")).unwrap()),
            kind: DiagnosisKind::GpuLost,
            severity: Severity::Critical,
            evidence: evidence.clone(),
        };
        let mut findings = Findings::default();
        findings.replace((2..=FINDINGS_SAVED_MAX).map(finding).collect(), 1000.0);
        // The first in order began last.
        findings.replace((1..=FINDINGS_SAVED_MAX).map(finding).collect(), 2000.0);
        assert_eq!(SavedFinding::of_all(&findings).len(), FINDINGS_SAVED_MAX);
        findings.replace((0..=FINDINGS_SAVED_MAX).map(finding).collect(), 3000.0);
        let saved = SavedFinding::of_all(&findings);
        assert_eq!(saved.len(), FINDINGS_SAVED_MAX);
        assert!(saved.iter().any(|saved| saved.is_of(&finding(1))));
        assert!(!saved.iter().any(|saved| saved.is_of(&finding(0))));
        let read = |n: usize| {
            let findings = vec![&saved[0]; n];
            let rest = json!({"started": 1e9, "uptime": {"secs": 60, "nanos": 0}, "findings": findings, "acks": []});
            serde_json::from_value::<SavedRest>(rest)
        };
        assert_eq!(read(FINDINGS_SAVED_MAX).unwrap().findings.len(), FINDINGS_SAVED_MAX);
        let error = read(FINDINGS_SAVED_MAX + 1).unwrap_err().to_string();
        assert!(error.contains("2049 values exceed 2048"), "{error}");
    }
}

//! The demo's timeline for a terminal: a short line for each event of the job, and for each
//! finding of the exporter.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

use crate::commands::simulated_job::{JobProgress, LEAK_FROM_STEP, LEAKING, SimulatedJob};
use stepmem_engine::DiagnosisKind;
use stepmem_engine::status::{FindingStatus, RankStatus, Status};
use stepmem_types::format::clean::clean;
use stepmem_types::format::units::{duration, grouped, whole_bytes};
use stepmem_types::ids::SubjectId;

/// The news reported so far, and the source of further news.
pub(super) struct DemoTimeline {
    latest: watch::Receiver<Arc<Status>>,
    /// The exporter's time at the first line, as a Unix time.
    began: Option<f64>,
    /// The findings that were reported and still hold.
    told: BTreeSet<(SubjectId, DiagnosisKind)>,
    /// The attempt and the names of causes that were reported.
    causes: BTreeSet<(u64, String)>,
}

impl DemoTimeline {
    pub(super) fn new(latest: watch::Receiver<Arc<Status>>) -> Self {
        Self { latest, began: None, told: BTreeSet::new(), causes: BTreeSet::new() }
    }

    /// Returns a line about the result of a step of the job; empty if there is nothing new.
    pub(super) fn of_job(&mut self, job: &SimulatedJob, progress: JobProgress) -> String {
        let words = match progress {
            JobProgress::OutOfMemory => {
                format!("rank {LEAKING} dies at step {}; the job is down", grouped(job.step))
            }
            JobProgress::Restarted => format!("the job restarted as attempt {}", job.attempt),
            JobProgress::Stepped if job.step == LEAK_FROM_STEP && !job.is_fixed() => {
                let rate = whole_bytes(job.leak_bytes_per_step);
                format!("rank {LEAKING} leaks {rate} per step, from step {LEAK_FROM_STEP} on")
            }
            JobProgress::Stepped | JobProgress::Down => return String::new(),
        };
        self.line(&words)
    }

    /// Returns the lines about the exporter's findings since the last call.
    pub(super) fn of_status(&mut self) -> String {
        if !self.latest.has_changed().unwrap_or_default() {
            return String::new();
        }
        let status = Arc::clone(&self.latest.borrow_and_update());
        let holds: BTreeSet<_> = status.findings.iter().map(key).collect();
        // A warning that became critical is reported as the same finding.
        self.told.retain(|told| holds.contains(told));
        let mut text = String::new();
        for finding in &status.findings {
            if self.told.insert(key(finding)) {
                text += &self.line(&found(finding));
            }
        }
        for rank in &status.ranks {
            for cause in causes(rank) {
                if self.causes.insert((rank.identity.attempt.get(), cause.clone())) {
                    text += &self.line(&cause);
                }
            }
        }
        text
    }

    fn line(&mut self, words: &str) -> String {
        let now = self.latest.borrow().time;
        let began = *self.began.get_or_insert(now);
        format!("{:>11}  {}\n", duration(now - began), clean(words))
    }
}

fn key(finding: &FindingStatus) -> (SubjectId, DiagnosisKind) {
    (finding.subject.clone(), finding.kind)
}

/// Returns a short form of a finding.
fn found(finding: &FindingStatus) -> String {
    let FindingStatus { title, subject, evidence, sentence, .. } = finding;
    let place =
        subject.rank().map_or_else(|| subject.to_string(), |id| format!("rank {}", id.rank));
    if evidence.signal().is_none() {
        return format!("{title} on {place}");
    }
    // The rate of growth, and its end; its cause has separate lines.
    let rate = sentence.split([',', ';']).next().unwrap_or_default();
    let end = sentence.split("out of memory in ").nth(1);
    let end = end.and_then(|end| end.split(" (").next());
    let end = end.map_or(String::new(), |end| format!("; out of memory in {end}"));
    format!("{title} on {place}: {rate}{end}")
}

/// Returns the line and the object behind the growth of a rank, as far as they are known.
fn causes(rank: &RankStatus) -> impl Iterator<Item = String> {
    let number = rank.rank;
    let line = rank.site.as_ref().and_then(|site| site.at.as_ref());
    let line = line.map(|at| format!("rank {number} allocates it at {at}"));
    let holder = rank.holder.as_ref();
    let holder = holder.map(|holder| {
        format!("rank {number} keeps it in {}", holder.name.as_str().replace('`', ""))
    });
    line.into_iter().chain(holder)
}

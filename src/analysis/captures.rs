//! PyTorch memory snapshots of the ranks: who is asked for one, and what became of it. Taking and writing them is the
//! training process's work.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::model::ids::{RankId, Run};
use crate::model::units::{Bytes, Count, Uptime};

/// How many snapshots are listed at most; the oldest that no rank is asked for leaves.
pub const LISTED_MAX: usize = 64;
/// For how many runs it is known what they were asked; the one asked longest ago is forgotten.
pub const RUNS_MAX: usize = 1024;
/// The longest path that is taken, in bytes.
pub const PATH_BYTES_MAX: usize = 1024;
/// The longest error that is taken, in bytes.
pub const ERROR_BYTES_MAX: usize = 512;
/// A rank that was asked and has not reported within this time will not.
pub const REPORT_WITHIN: Duration = Duration::from_mins(10);

/// When ranks are asked.
#[derive(Clone, Debug)]
pub struct CaptureSettings {
    /// Whether MEMORY CREEP asks for one.
    pub on_creep: bool,
    /// Where the training process shall write it, as it sees it.
    pub directory: String,
    /// For how many steps it shall record.
    pub steps: u32,
    /// How many a run is asked for at most.
    pub run_max: u32,
    /// The time between two of a run.
    pub cooldown: Duration,
}

impl Default for CaptureSettings {
    fn default() -> Self {
        Self {
            on_creep: false,
            directory: String::new(),
            steps: 3,
            run_max: 3,
            cooldown: Duration::from_hours(1),
        }
    }
}

/// What a training process is asked for in the answer to its push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureRequest {
    /// What its report names.
    pub id: String,
    pub rank: RankId,
    /// For how many steps to record.
    pub steps: u32,
    /// Where to write.
    pub directory: String,
}

/// Why a snapshot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureReason {
    /// The exporter asked, on MEMORY CREEP.
    Creep,
    /// The device was full.
    Oom,
    /// The program wanted it.
    Manual,
}

impl CaptureReason {
    /// Its name in the status.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Creep => "creep",
            Self::Oom => "oom",
            Self::Manual => "manual",
        }
    }
}

/// What became of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaptureOutcome {
    /// The rank was asked and has not reported yet.
    Waiting,
    Written {
        /// Where, as the training process sees it.
        path: Box<str>,
        /// How large it is.
        bytes: Option<Bytes>,
    },
    /// It could not be taken or written.
    Failed { error: Box<str> },
    /// The rank did not report in time.
    Unanswered,
}

impl CaptureOutcome {
    /// Its name in the status.
    pub fn as_label(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Written { .. } => "written",
            Self::Failed { .. } => "failed",
            Self::Unanswered => "unanswered",
        }
    }
}

/// What a training process says of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureReport {
    pub rank: RankId,
    /// Id of the request; `None` for a snapshot that the trainer took by itself.
    pub id: Option<Box<str>>,
    /// Why it was taken.
    pub reason: CaptureReason,
    /// The last step that it shows.
    pub step: Option<Count>,
    /// What became of it; never [`CaptureOutcome::Waiting`].
    pub outcome: CaptureOutcome,
}

/// One snapshot that is listed.
#[derive(Clone, Debug)]
pub struct Capture {
    /// The report, or what will be reported.
    pub report: CaptureReport,
    /// When it was asked for, or reported if it was not asked for.
    pub since: Uptime,
}

/// The snapshots of all runs.
#[derive(Debug)]
pub struct Captures {
    settings: CaptureSettings,
    // Invariant: at most LISTED_MAX.
    listed: VecDeque<Capture>,
    // Invariant: at most RUNS_MAX.
    runs: BTreeMap<Run, RunRequests>,
    n_requests: u64,
    n_written: u64,
    n_failed: u64,
    n_unanswered: u64,
    n_limited: u64,
}

/// What a run was asked for.
#[derive(Clone, Copy, Debug)]
struct RunRequests {
    n_requests: u32,
    last: Uptime,
}

impl Captures {
    pub fn new(settings: CaptureSettings) -> Self {
        Self {
            settings,
            listed: VecDeque::new(),
            runs: BTreeMap::new(),
            n_requests: 0,
            n_written: 0,
            n_failed: 0,
            n_unanswered: 0,
            n_limited: 0,
        }
    }

    /// Asks a rank that creeps for a snapshot, unless its run has had enough.
    pub fn creeps(&mut self, rank: &RankId, now: Uptime) {
        let before = self.runs.get(&rank.run).copied();
        if !self.settings.on_creep || self.is_waiting_for(rank) {
            return;
        }
        let is_too_many = before.is_some_and(|before| {
            before.n_requests >= self.settings.run_max
                || now.since(before.last) < self.settings.cooldown
        });
        if is_too_many {
            self.n_limited += 1;
            return;
        }
        if before.is_none() && self.runs.len() >= RUNS_MAX {
            let longest_ago = self.runs.iter().min_by_key(|(_, requests)| requests.last);
            if let Some(run) = longest_ago.map(|(run, _)| run.clone()) {
                self.runs.remove(&run);
            }
        }
        let n_requests = before.map_or(0, |before| before.n_requests) + 1;
        self.runs.insert(rank.run.clone(), RunRequests { n_requests, last: now });
        self.n_requests += 1;
        // The time keeps ids of an earlier exporter apart.
        let id = format!("{}-{}", now.0.as_millis(), self.n_requests);
        let report = CaptureReport {
            rank: rank.clone(),
            id: Some(id.into()),
            reason: CaptureReason::Creep,
            step: None,
            outcome: CaptureOutcome::Waiting,
        };
        self.list(Capture { report, since: now });
    }

    /// Returns what these ranks are asked for; the same until they report, since an answer may get lost.
    pub fn requests(&self, ranks: &[RankId]) -> Vec<CaptureRequest> {
        let waiting = self.listed.iter().map(|listed| &listed.report);
        waiting
            .filter(|report| report.outcome == CaptureOutcome::Waiting)
            .filter(|report| ranks.contains(&report.rank))
            .filter_map(|report| {
                Some(CaptureRequest {
                    id: report.id.as_deref()?.to_owned(),
                    rank: report.rank.clone(),
                    steps: self.settings.steps,
                    directory: self.settings.directory.clone(),
                })
            })
            .collect()
    }

    /// Takes a report; it settles the request that it names, or is listed as new.
    pub fn take(&mut self, report: CaptureReport, now: Uptime) {
        match report.outcome {
            CaptureOutcome::Written { .. } => self.n_written += 1,
            CaptureOutcome::Failed { .. } => self.n_failed += 1,
            CaptureOutcome::Unanswered | CaptureOutcome::Waiting => {}
        }
        let request = self.listed.iter_mut().find(|listed| {
            let of = &listed.report;
            of.id.is_some() && of.id == report.id && of.rank == report.rank
        });
        match request {
            Some(listed) => listed.report = report,
            None => self.list(Capture { report, since: now }),
        }
    }

    /// Gives up requests that have waited too long.
    pub fn expire(&mut self, now: Uptime) {
        for listed in &mut self.listed {
            let is_late = now.since(listed.since) > REPORT_WITHIN;
            if is_late && listed.report.outcome == CaptureOutcome::Waiting {
                listed.report.outcome = CaptureOutcome::Unanswered;
                self.n_unanswered += 1;
            }
        }
    }

    /// Returns the snapshots that are listed, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Capture> {
        self.listed.iter()
    }

    /// Returns how many there were by what became of them.
    pub fn results(&self) -> [(&'static str, u64); 4] {
        [
            ("failed", self.n_failed),
            ("limited", self.n_limited),
            ("unanswered", self.n_unanswered),
            ("written", self.n_written),
        ]
    }

    fn is_waiting_for(&self, rank: &RankId) -> bool {
        self.listed.iter().any(|Capture { report, .. }| {
            report.outcome == CaptureOutcome::Waiting && report.rank == *rank
        })
    }

    fn list(&mut self, listed: Capture) {
        if self.listed.len() >= LISTED_MAX {
            let is_settled =
                |listed: &Capture| listed.report.outcome != CaptureOutcome::Waiting;
            let Some(idx) = self.listed.iter().position(is_settled) else { return };
            self.listed.remove(idx);
        }
        self.listed.push_back(listed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CaptureOutcome, CaptureReason, CaptureReport, LISTED_MAX, REPORT_WITHIN};
    use super::{CaptureSettings, Captures};
    use crate::model::ids::{Rank, RankId, Run};
    use crate::model::units::Uptime;

    const COOLDOWN: Duration = Duration::from_mins(30);

    fn captures() -> Captures {
        let directory = "/snapshots".to_owned();
        let (on_creep, steps, run_max) = (true, 3, 2);
        let cooldown = COOLDOWN;
        Captures::new(CaptureSettings { on_creep, directory, steps, run_max, cooldown })
    }

    fn who(rank: u64) -> RankId {
        RankId { run: Run::new("llm").unwrap(), rank: Rank::new(rank).unwrap() }
    }

    fn report(rank: u64, id: Option<&str>) -> CaptureReport {
        let outcome = CaptureOutcome::Failed { error: "no".into() };
        let id = id.map(Into::into);
        CaptureReport { rank: who(rank), id, reason: CaptureReason::Creep, step: None, outcome }
    }

    fn result(captures: &Captures, name: &str) -> u64 {
        captures.results().into_iter().find(|(label, _)| *label == name).unwrap().1
    }

    #[test]
    fn a_creeping_rank_is_asked_until_it_reports() {
        let mut captures = captures();
        let rank = who(3);
        captures.creeps(&rank, Uptime::default());
        captures.creeps(&rank, Uptime(Duration::from_secs(1)));
        assert_eq!(captures.requests(&[who(4)]), []);
        let asks = captures.requests(&[who(4), who(3)]);
        let [ask] = &asks[..] else { panic!("{asks:?}") };
        assert_eq!((ask.steps, ask.directory.as_str()), (3, "/snapshots"));
        captures.take(report(3, Some(&ask.id)), Uptime(Duration::from_secs(2)));
        assert_eq!(captures.requests(&[who(3)]), []);
        assert_eq!(captures.iter().count(), 1);
        assert_eq!((result(&captures, "failed"), result(&captures, "limited")), (1, 0));
    }

    #[test]
    fn a_run_is_asked_at_most_so_often() {
        let mut captures = captures();
        let (rank, other) = (who(3), who(4));
        let asks = |captures: &Captures| captures.requests(&[who(3), who(4)]).len();
        captures.creeps(&rank, Uptime::default());
        captures.creeps(&other, Uptime(COOLDOWN / 2));
        assert_eq!((asks(&captures), result(&captures, "limited")), (1, 1));
        captures.creeps(&other, Uptime(COOLDOWN));
        assert_eq!((asks(&captures), result(&captures, "limited")), (2, 1));
        captures.expire(Uptime(COOLDOWN * 2));
        assert_eq!((asks(&captures), result(&captures, "unanswered")), (0, 2));
        captures.creeps(&rank, Uptime(COOLDOWN * 9));
        assert_eq!((asks(&captures), result(&captures, "limited")), (0, 2));
    }

    #[test]
    fn no_rank_is_asked_unless_the_setting_says_so() {
        let mut captures = captures();
        captures.settings.on_creep = false;
        let rank = who(0);
        captures.creeps(&rank, Uptime::default());
        assert_eq!(captures.requests(&[who(0)]), []);
    }

    #[test]
    fn no_number_of_reports_pushes_out_a_request() {
        let mut captures = captures();
        captures.creeps(&who(3), Uptime::default());
        for rank in 100..300 {
            captures.take(report(rank, None), Uptime::default());
        }
        assert_eq!(captures.requests(&[who(3)]).len(), 1);
        assert_eq!(captures.iter().count(), LISTED_MAX);
    }

    #[test]
    fn the_list_forgets_the_oldest() {
        let mut captures = captures();
        for rank in 0..=LISTED_MAX {
            let rank = u64::try_from(rank).unwrap();
            captures.take(report(rank, None), Uptime(REPORT_WITHIN));
        }
        assert_eq!(captures.iter().count(), LISTED_MAX);
        assert_eq!(captures.iter().next().unwrap().report.rank.rank.get(), 1);
    }
}

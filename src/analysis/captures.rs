//! PyTorch memory snapshots of the ranks: who is asked for one, and what became of it. Taking and writing them is the
//! training process's work.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::model::ids::{Rank, Run};
use crate::model::units::{Bytes, Count, Uptime};

/// How many snapshots are listed at most; the oldest leaves.
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
pub struct SnapshotSettings {
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

/// What a training process is asked for in the answer to its push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What its report names.
    pub id: String,
    /// The run.
    pub run: Run,
    /// The rank.
    pub rank: Rank,
    /// For how many steps to record.
    pub steps: u32,
    /// Where to write.
    pub directory: String,
}

/// Why a snapshot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The exporter asked, on MEMORY CREEP.
    Creep,
    /// The device was full.
    Oom,
    /// The program wanted it.
    Manual,
}

impl Reason {
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
pub enum Outcome {
    /// The rank was asked and has not reported yet.
    Waiting,
    /// It was written.
    Written {
        /// Where, as the training process sees it.
        path: Box<str>,
        /// How large it is.
        bytes: Option<Bytes>,
    },
    /// It could not be taken or written.
    Failed {
        /// Why.
        error: Box<str>,
    },
    /// The rank did not report in time.
    Unanswered,
}

impl Outcome {
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
pub struct SnapshotReport {
    /// The run.
    pub run: Run,
    /// The rank.
    pub rank: Rank,
    /// What it was asked under; `None` when nobody asked.
    pub id: Option<Box<str>>,
    /// Why it was taken.
    pub reason: Reason,
    /// The last step that it shows.
    pub step: Option<Count>,
    /// What became of it; never [`Outcome::Waiting`].
    pub outcome: Outcome,
}

/// One snapshot that is listed.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The report, or what will be reported.
    pub report: SnapshotReport,
    /// When it was asked for, or reported when nobody asked.
    pub since: Uptime,
}

/// The snapshots of all runs.
#[derive(Debug)]
pub struct Snapshots {
    settings: SnapshotSettings,
    listed: VecDeque<Listed>,
    /// How many each run was asked for, and when last.
    runs: BTreeMap<Run, (u32, Uptime)>,
    n_asked: u64,
    n_written: u64,
    n_failed: u64,
    n_unanswered: u64,
    n_limited: u64,
}

impl Snapshots {
    /// None yet.
    pub fn new(settings: SnapshotSettings) -> Self {
        Self {
            settings,
            listed: VecDeque::new(),
            runs: BTreeMap::new(),
            n_asked: 0,
            n_written: 0,
            n_failed: 0,
            n_unanswered: 0,
            n_limited: 0,
        }
    }

    /// A rank creeps: it is asked for a snapshot, unless its run has had enough.
    pub fn creeps(&mut self, run: &Run, rank: Rank, now: Uptime) {
        let asked = self.runs.get(run).copied();
        if !self.settings.on_creep || self.is_waiting_for(run, rank) {
            return;
        }
        let is_too_many = asked.is_some_and(|(n_asked, last)| {
            n_asked >= self.settings.run_max || now.since(last) < self.settings.cooldown
        });
        if is_too_many {
            self.n_limited += 1;
            return;
        }
        if asked.is_none() && self.runs.len() >= RUNS_MAX {
            let longest_ago = self.runs.iter().min_by_key(|(_, (_, last))| *last);
            if let Some(run) = longest_ago.map(|(run, _)| run.clone()) {
                self.runs.remove(&run);
            }
        }
        self.runs.insert(run.clone(), (asked.map_or(0, |(n_asked, _)| n_asked) + 1, now));
        self.n_asked += 1;
        // The time tells it from those of an exporter before this one.
        let id = format!("{}-{}", now.0.as_millis(), self.n_asked);
        let report = SnapshotReport {
            run: run.clone(),
            rank,
            id: Some(id.into()),
            reason: Reason::Creep,
            step: None,
            outcome: Outcome::Waiting,
        };
        self.list(Listed { report, since: now });
    }

    /// What these ranks are asked for; the same until they report, since an answer may get lost.
    pub fn asks(&self, ranks: &[(Run, Rank)]) -> Vec<Ask> {
        let waiting = self.listed.iter().map(|listed| &listed.report);
        waiting
            .filter(|report| report.outcome == Outcome::Waiting)
            .filter(|report| ranks.iter().any(|of| of.0 == report.run && of.1 == report.rank))
            .filter_map(|report| {
                Some(Ask {
                    id: report.id.as_deref()?.to_owned(),
                    run: report.run.clone(),
                    rank: report.rank,
                    steps: self.settings.steps,
                    directory: self.settings.directory.clone(),
                })
            })
            .collect()
    }

    /// Takes a report; it settles what it was asked under, or is listed as new.
    pub fn take(&mut self, report: SnapshotReport, now: Uptime) {
        match report.outcome {
            Outcome::Written { .. } => self.n_written += 1,
            Outcome::Failed { .. } => self.n_failed += 1,
            Outcome::Unanswered | Outcome::Waiting => {}
        }
        let asked = self.listed.iter_mut().find(|listed| {
            let of = &listed.report;
            of.id.is_some()
                && of.id == report.id
                && of.run == report.run
                && of.rank == report.rank
        });
        match asked {
            Some(listed) => listed.report = report,
            None => self.list(Listed { report, since: now }),
        }
    }

    /// Gives up those that have waited too long.
    pub fn expire(&mut self, now: Uptime) {
        for listed in &mut self.listed {
            let is_late = now.since(listed.since) > REPORT_WITHIN;
            if is_late && listed.report.outcome == Outcome::Waiting {
                listed.report.outcome = Outcome::Unanswered;
                self.n_unanswered += 1;
            }
        }
    }

    /// Those that are listed, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Listed> {
        self.listed.iter()
    }

    /// How many there were by what became of them.
    pub fn results(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("failed", self.n_failed),
            ("limited", self.n_limited),
            ("unanswered", self.n_unanswered),
            ("written", self.n_written),
        ]
    }

    fn is_waiting_for(&self, run: &Run, rank: Rank) -> bool {
        self.listed.iter().any(|Listed { report, .. }| {
            report.outcome == Outcome::Waiting && report.run == *run && report.rank == rank
        })
    }

    fn list(&mut self, listed: Listed) {
        if self.listed.len() >= LISTED_MAX {
            self.listed.pop_front();
        }
        self.listed.push_back(listed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{LISTED_MAX, Outcome, REPORT_WITHIN, Reason, SnapshotReport};
    use super::{SnapshotSettings, Snapshots};
    use crate::model::ids::{Rank, Run};
    use crate::model::units::Uptime;

    const COOLDOWN: Duration = Duration::from_mins(30);

    fn snapshots() -> Snapshots {
        let directory = "/snapshots".to_owned();
        let (on_creep, steps, run_max) = (true, 3, 2);
        let cooldown = COOLDOWN;
        Snapshots::new(SnapshotSettings { on_creep, directory, steps, run_max, cooldown })
    }

    fn who(rank: u64) -> (Run, Rank) {
        (Run::new("llm").unwrap(), Rank::new(rank).unwrap())
    }

    fn report(rank: u64, id: Option<&str>) -> SnapshotReport {
        let (run, rank) = who(rank);
        let outcome = Outcome::Failed { error: "no".into() };
        let id = id.map(Into::into);
        SnapshotReport { run, rank, id, reason: Reason::Creep, step: None, outcome }
    }

    fn result(snapshots: &Snapshots, name: &str) -> u64 {
        snapshots.results().into_iter().find(|(label, _)| *label == name).unwrap().1
    }

    #[test]
    fn a_creeping_rank_is_asked_until_it_reports() {
        let mut snapshots = snapshots();
        let (run, rank) = who(3);
        snapshots.creeps(&run, rank, Uptime::default());
        snapshots.creeps(&run, rank, Uptime(Duration::from_secs(1)));
        assert_eq!(snapshots.asks(&[who(4)]), []);
        let asks = snapshots.asks(&[who(4), who(3)]);
        let [ask] = &asks[..] else { panic!("{asks:?}") };
        assert_eq!((ask.steps, ask.directory.as_str()), (3, "/snapshots"));
        snapshots.take(report(3, Some(&ask.id)), Uptime(Duration::from_secs(2)));
        assert_eq!(snapshots.asks(&[who(3)]), []);
        assert_eq!(snapshots.iter().count(), 1);
        assert_eq!((result(&snapshots, "failed"), result(&snapshots, "limited")), (1, 0));
    }

    #[test]
    fn a_run_is_asked_at_most_so_often() {
        let mut snapshots = snapshots();
        let ((run, rank), (_, other)) = (who(3), who(4));
        let asks = |snapshots: &Snapshots| snapshots.asks(&[who(3), who(4)]).len();
        snapshots.creeps(&run, rank, Uptime::default());
        snapshots.creeps(&run, other, Uptime(COOLDOWN / 2));
        assert_eq!((asks(&snapshots), result(&snapshots, "limited")), (1, 1));
        snapshots.creeps(&run, other, Uptime(COOLDOWN));
        assert_eq!((asks(&snapshots), result(&snapshots, "limited")), (2, 1));
        snapshots.expire(Uptime(COOLDOWN * 2));
        assert_eq!((asks(&snapshots), result(&snapshots, "unanswered")), (0, 2));
        snapshots.creeps(&run, rank, Uptime(COOLDOWN * 9));
        assert_eq!((asks(&snapshots), result(&snapshots, "limited")), (0, 2));
    }

    #[test]
    fn nobody_is_asked_unless_it_is_wanted() {
        let mut snapshots = snapshots();
        snapshots.settings.on_creep = false;
        let (run, rank) = who(0);
        snapshots.creeps(&run, rank, Uptime::default());
        assert_eq!(snapshots.asks(&[who(0)]), []);
    }

    #[test]
    fn the_list_forgets_the_oldest() {
        let mut snapshots = snapshots();
        for rank in 0..=LISTED_MAX {
            let rank = u64::try_from(rank).unwrap();
            snapshots.take(report(rank, None), Uptime(REPORT_WITHIN));
        }
        assert_eq!(snapshots.iter().count(), LISTED_MAX);
        assert_eq!(snapshots.iter().next().unwrap().report.rank.get(), 1);
    }
}

//! The causes of growth by rank: the lines that allocate the memory, and the objects that hold
//! it. They come from analyzed snapshots and from training processes' reports of their live
//! objects.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use stepmem_detect::Signal;
use stepmem_types::ids::{Rank, RankId, Run};
use stepmem_types::launch::Instance;
use stepmem_types::site::{
    EmptySearch, LeakSite, LineSearch, OOM_LINES_MAX, OomSite, SITE_FRAMES_MAX,
    SITE_TEXT_BYTES_MAX, SiteText, TensorHolder,
};
use stepmem_types::units::{Count, Uptime};

/// The time from one search for holders to the next while the growth lasts.
pub(crate) const HEAP_SCAN_COOLDOWN: Duration = Duration::from_mins(10);
/// The result of a search counts until so many later ones should have come to something.
const SEARCHES_MISSED: u32 = 2;

/// The outcome of a snapshot's analysis.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AnalysisOutcome {
    /// The analysis is complete, whether it names a line or not.
    Analysed,
    /// The process that analyzed it took too much processor time.
    CpuTime,
    /// The process that analyzed it died.
    Crashed,
    /// The system does not let the exporter read the file.
    Forbidden,
    /// The file is not a readable snapshot.
    Malformed,
    /// The process that analyzed it took more memory than it may.
    Memory,
    /// There is no such file.
    Missing,
    /// The file is not a regular one.
    NotAFile,
    /// The analysis is not started, because the memory that is left would not do.
    NotStarted,
    /// The path leads out of the directory.
    Outside,
    /// The file belongs to another user than the process that reported it.
    Owner,
    /// Too many snapshots wait.
    Queue,
    /// The analysis took too long.
    Timeout,
    /// The file is larger than the bound on files that are read.
    TooLarge,
}

impl AnalysisOutcome {
    /// Every outcome, in the order of labels.
    pub const ALL: [Self; 14] = [
        Self::Analysed,
        Self::CpuTime,
        Self::Crashed,
        Self::Forbidden,
        Self::Malformed,
        Self::Memory,
        Self::Missing,
        Self::NotAFile,
        Self::NotStarted,
        Self::Outside,
        Self::Owner,
        Self::Queue,
        Self::Timeout,
        Self::TooLarge,
    ];

    /// Returns its name in labels.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Analysed => "analysed",
            Self::CpuTime => "cpu_time",
            Self::Crashed => "crashed",
            Self::Forbidden => "forbidden",
            Self::Malformed => "malformed",
            Self::Memory => "memory",
            Self::Missing => "missing",
            Self::NotAFile => "not_a_file",
            Self::NotStarted => "not_started",
            Self::Outside => "outside",
            Self::Owner => "owner",
            Self::Queue => "queue",
            Self::Timeout => "timeout",
            Self::TooLarge => "too_large",
        }
    }
}

/// The result of the analysis of one snapshot.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotAnalysis {
    /// The outcome; of any other than `Analysed` nothing else is known but a reason.
    pub outcome: AnalysisOutcome,
    /// The reason that it was not analyzed.
    pub reason: Option<SiteText>,
    /// The result on growth.
    pub leak: Option<LeakSite>,
    /// The result on the last out-of-memory error.
    pub oom: Option<OomSite>,
    /// The outcome of its timeline; `None` where none is drawn. The process that analyzes does
    /// not report it.
    #[serde(skip)]
    pub timeline: Option<TimelineOutcome>,
}

/// The outcome of a snapshot's timeline.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TimelineOutcome {
    /// The timeline is on disk.
    Written {
        /// The id by which it is served.
        id: Box<str>,
        /// Older ones that it took the place of.
        n_removed: u64,
    },
    /// The timeline could not be written.
    Failed,
}

impl SnapshotAnalysis {
    /// A snapshot that was not analyzed; `reason` is cut to what a text may have.
    pub fn failed(outcome: AnalysisOutcome, reason: &str) -> Self {
        let plain: String = reason.chars().filter(|c| !c.is_control()).take(120).collect();
        let reason = SiteText::new(&plain).ok();
        Self { outcome, reason, leak: None, oom: None, timeline: None }
    }
}

/// A request to analyze a snapshot.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AnalysisRequest {
    /// The number of the snapshot.
    pub number: u64,
    /// The path of the file, relative to the directory that snapshots are read from.
    pub file: Box<str>,
    /// The user id of the process that reported it, where that is known.
    pub owner: Option<u32>,
}

/// A training process's report of its live objects.
#[derive(Clone, Debug, PartialEq)]
pub struct HoldersReport {
    /// The rank that was scanned.
    pub rank: RankId,
    /// The process that reports it; `None` where it does not name itself.
    pub instance: Option<Instance>,
    /// Set when the connection shows who reports it: a Unix socket, a token, or a machine that
    /// is trusted.
    pub is_known: bool,
    /// Id of the request; `None` for a program that scanned without one.
    pub id: Option<Box<str>>,
    /// The outcome of the scans so far.
    pub outcome: HoldersOutcome,
    /// The step of the first scan.
    pub first_step: Option<Count>,
    /// The step of the second scan.
    pub last_step: Option<Count>,
    /// Objects that the less complete of the two scans read.
    pub objects_read: Option<Count>,
    /// Objects that this scan met.
    pub objects_met: Option<Count>,
    /// Set when the memory grew meanwhile as that which is searched for.
    pub saw_growth: Option<bool>,
    /// The search for lines that followed, where there was one.
    pub lines: Option<LineSearch>,
}

impl HoldersReport {
    /// Returns the cause that it reports, with `is_own` in its bound: whether the rank's own
    /// process reports it. `None` while the search goes on, and of one that failed.
    pub fn cause(&self, is_own: bool) -> Option<Cause> {
        let empty = |is_complete| {
            Cause::Searched(EmptySearch {
                step: self.last_step,
                is_complete,
                objects_read: self.objects_read,
                objects_met: self.objects_met,
                saw_growth: self.saw_growth,
                lines: self.lines,
            })
        };
        match &self.outcome {
            HoldersOutcome::Named(holders) => {
                let mut first = holders.first()?.clone();
                first.fill.iter_mut().for_each(|fill| fill.is_own = is_own);
                Some(Cause::Holder(Box::new(first)))
            }
            HoldersOutcome::Nothing => Some(empty(true)),
            HoldersOutcome::GaveUp { .. } => Some(empty(false)),
            HoldersOutcome::Began | HoldersOutcome::Failed { .. } => None,
        }
    }
}

/// The outcome of a heap scan.
#[derive(Clone, Debug, PartialEq)]
pub enum HoldersOutcome {
    /// The process has begun to scan.
    Began,
    /// The growing objects, the fastest first; never empty.
    Named(Vec<TensorHolder>),
    /// Nothing that holds tensors grows.
    Nothing,
    /// The search would have taken too long.
    GaveUp {
        /// The reason, as the process words it.
        error: Box<str>,
    },
    /// The scan ended in an error.
    Failed {
        /// The error, as the process words it.
        error: Box<str>,
    },
}

impl HoldersOutcome {
    /// Returns its name in labels.
    pub fn as_label(&self) -> &'static str {
        match self {
            Self::Began => "began",
            Self::Named(_) => "named",
            Self::Nothing => "none",
            Self::GaveUp { .. } => "gave_up",
            Self::Failed { .. } => "failed",
        }
    }
}

/// The line or the object behind a rank's growth, as one report names it.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// The result of a snapshot.
    Snapshot(Box<SnapshotAnalysis>),
    /// The fastest-growing live object.
    Holder(Box<TensorHolder>),
    /// A search that named no holder.
    Searched(EmptySearch),
}

/// A cause, and the rank that it is of.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundCause {
    pub rank: RankId,
    pub cause: Cause,
    /// The memory that it is behind: the rank's own, or the host's next to a device.
    pub signal: Signal,
    /// The time when the rank was asked for it.
    pub since: Uptime,
}

/// The known facts of what holds one memory of a rank, in its present incarnation.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeldView<'a> {
    /// The fastest-growing live object.
    pub holder: Option<&'a KnownHolder>,
    /// Set when no search after that came to something else.
    pub is_holder_newest: bool,
    /// A search that named no holder, where none is known.
    pub searched: Option<EmptySearch>,
    /// Set when the bound of its holder withheld its page when last evaluated.
    pub is_withheld: bool,
}

impl HeldView<'_> {
    /// Returns whether what it holds has a bound.
    pub(crate) fn has_bound(&self) -> bool {
        self.holder.is_some_and(|known| known.holder.fill.is_some())
    }
}

/// The known facts of the code behind a rank's memory, in its present incarnation.
#[derive(Clone, Copy, Debug, Default)]
pub struct SiteView<'a> {
    /// The result of a snapshot on its growth.
    pub leak: Option<&'a LeakSite>,
    /// The result of a snapshot on its last out-of-memory error.
    pub oom: Option<&'a OomSite>,
    /// The facts on what holds its own memory.
    pub own: HeldView<'a>,
    /// The facts on what holds host memory next to a device's.
    pub host: HeldView<'a>,
}

impl<'a> SiteView<'a> {
    /// Returns the facts on what holds the memory of a signal: what holds one memory explains
    /// no other.
    pub fn held(&self, signal: Signal) -> HeldView<'a> {
        match signal {
            Signal::Allocated => self.own,
            Signal::Host => self.host,
            Signal::Reserved
            | Signal::OutsideAllocator
            | Signal::Children
            | Signal::Shm
            | Signal::Process => HeldView::default(),
        }
    }
}

/// Number of ended ranks whose causes are kept. Beyond, those that were learned first are
/// forgotten.
pub(crate) const ENDED_SITES_MAX: usize = 64;

/// A value, and when the snapshot or the heap scan that it comes from was asked for.
type Dated<T> = Option<(Uptime, Box<T>)>;

/// A holder, and when it became known.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct KnownHolder {
    /// The time when the rank was asked.
    pub asked: Uptime,
    /// The time when it reported.
    pub reported: Uptime,
    pub holder: TensorHolder,
}

impl KnownHolder {
    /// Returns whether two more searches should have come to something by then.
    pub(crate) fn is_outdated_at(&self, now: Uptime) -> bool {
        let search = HEAP_SCAN_COOLDOWN + self.reported.since(self.asked);
        now.since(self.reported) > SEARCHES_MISSED * search
    }
}

/// The known facts of the code behind the memory of one rank, and when each was asked for.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct RankSites {
    leak: Dated<LeakSite>,
    oom: Dated<OomSite>,
    own: Held,
    host: Held,
}

/// The results of the searches for holders of one memory.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Held {
    holder: Option<Box<KnownHolder>>,
    searched: Dated<EmptySearch>,
}

impl Held {
    /// Returns the time when the newest of it was asked for.
    fn learned(&self) -> Option<Uptime> {
        let searched = self.searched.as_ref().map(|(since, _)| *since);
        self.holder.as_ref().map(|known| known.asked).max(searched)
    }

    /// Returns the known facts of an incarnation that began at `began`.
    fn view(&self, began: Option<Uptime>) -> HeldView<'_> {
        let is_present = |since: Uptime| began.is_none_or(|began| since >= began);
        let holder = self.holder.as_deref().filter(|of| is_present(of.asked));
        let searched = self.searched.as_ref().filter(|(since, _)| is_present(*since));
        let searched_at = self.searched.as_ref().map(|(since, _)| *since);
        HeldView {
            holder,
            is_holder_newest: searched_at <= holder.map(|of| of.asked),
            searched: searched.filter(|_| holder.is_none()).map(|(_, search)| **search),
            is_withheld: false,
        }
    }
}

impl RankSites {
    /// Bytes that they take when they are saved, at most.
    pub const BYTES_MAX: usize =
        (2 * (SITE_FRAMES_MAX + OOM_LINES_MAX + 5) + 2) * (SITE_TEXT_BYTES_MAX + 32);

    /// Returns the time when the newest of it was asked for.
    fn learned(&self) -> Option<Uptime> {
        let of = [
            self.leak.as_ref().map(|(since, _)| *since),
            self.oom.as_ref().map(|(since, _)| *since),
            self.own.learned(),
            self.host.learned(),
        ];
        of.into_iter().max().flatten()
    }
}

/// The causes of all ranks.
#[derive(Debug, Default)]
pub(crate) struct SiteTable {
    // Invariant: only of ranks that the rank table holds, after each `retain`; of at most
    // ENDED_SITES_MAX that ended.
    runs: BTreeMap<Run, BTreeMap<Rank, RankSites>>,
    n_dropped: u64,
}

impl SiteTable {
    /// Takes a cause that was found at `now`. A holder that is known stays against a search
    /// that names none: its figures are dated.
    pub(crate) fn take(&mut self, found: &FoundCause, now: Uptime) {
        let FoundCause { rank, cause, signal, since } = found;
        match cause {
            Cause::Snapshot(analysis) => self.take_analysis(rank, analysis, *since),
            Cause::Holder(holder) => {
                let holder = (**holder).clone();
                let known = KnownHolder { asked: *since, reported: now, holder };
                self.held_mut(rank, *signal).holder = Some(Box::new(known));
            }
            Cause::Searched(search) => {
                let searched = Some((*since, Box::new(*search)));
                self.held_mut(rank, *signal).searched = searched;
            }
        }
    }

    /// Takes the result of a snapshot. A result that names a line stays against one that names
    /// none, and newer replaces older.
    fn take_analysis(&mut self, rank: &RankId, analysis: &SnapshotAnalysis, since: Uptime) {
        if analysis.leak.is_none() && analysis.oom.is_none() {
            return;
        }
        let sites = self.of_mut(rank);
        if let Some(leak) = &analysis.leak {
            let before = sites.leak.as_ref().map(|(at, before)| (*at, before.verdict));
            // A verdict of an earlier incarnation is not better than one of this.
            if before.is_none_or(|(at, before)| before <= leak.verdict || at > since) {
                sites.leak = Some((since, Box::new(leak.clone())));
            }
        }
        if let Some(oom) = &analysis.oom {
            sites.oom = Some((since, Box::new(oom.clone())));
        }
    }

    /// Returns the known facts of a rank whose present incarnation began at `began`.
    pub(crate) fn of(&self, run: &Run, rank: Rank, began: Option<Uptime>) -> SiteView<'_> {
        fn present<T>(dated: Option<&(Uptime, Box<T>)>, began: Option<Uptime>) -> Option<&T> {
            let (since, value) = dated?;
            began.is_none_or(|began| *since >= began).then_some(&**value)
        }
        let sites = self.runs.get(run).and_then(|ranks| ranks.get(&rank));
        sites.map_or_else(SiteView::default, |sites| SiteView {
            leak: present(sites.leak.as_ref(), began),
            oom: present(sites.oom.as_ref(), began),
            own: sites.own.view(began),
            host: sites.host.view(began),
        })
    }

    /// Adds the causes of a rank as they were saved.
    pub(crate) fn insert(&mut self, id: &RankId, sites: RankSites) {
        *self.of_mut(id) = sites;
    }

    /// Returns the causes of the first rank in order, or of the first one after this.
    pub(crate) fn first_after(
        &self,
        after: Option<&RankId>,
    ) -> Option<(&Run, Rank, &RankSites)> {
        let first = |run| {
            self.runs.range::<Run, _>(run).find_map(|(run, ranks)| {
                ranks.first_key_value().map(|(rank, sites)| (run, *rank, sites))
            })
        };
        let Some(RankId { run, rank }) = after else {
            return first((Bound::Unbounded, Bound::Unbounded));
        };
        let of_run = self.runs.get_key_value(run).and_then(|(run, ranks)| {
            let mut later = ranks.range((Bound::Excluded(rank), Bound::Unbounded));
            later.next().map(|(rank, sites)| (run, *rank, sites))
        });
        of_run.or_else(|| first((Bound::Excluded(run), Bound::Unbounded)))
    }

    /// Forgets the ranks that are not held any more, and ended ones beyond [`ENDED_SITES_MAX`].
    /// `has_ended` returns whether a rank ended; `None` of one that is not held.
    pub(crate) fn retain(&mut self, has_ended: impl Fn(&Run, Rank) -> Option<bool>) {
        let mut ended = Vec::new();
        for (run, ranks) in &mut self.runs {
            ranks.retain(|rank, sites| {
                let state = has_ended(run, *rank);
                if state == Some(true) {
                    ended.push((sites.learned(), RankId { run: run.clone(), rank: *rank }));
                }
                state.is_some()
            });
        }
        let n_too_many = ended.len().saturating_sub(ENDED_SITES_MAX);
        if n_too_many > 0 {
            ended.sort();
            ended.truncate(n_too_many);
            for (_, RankId { run, rank }) in ended {
                self.runs.get_mut(&run).and_then(|ranks| ranks.remove(&rank));
                self.n_dropped += 1;
            }
        }
        self.runs.retain(|_, ranks| !ranks.is_empty());
    }

    /// Returns the number of ended ranks whose causes were forgotten to keep the bound.
    pub(crate) fn n_dropped(&self) -> u64 {
        self.n_dropped
    }

    fn held_mut(&mut self, id: &RankId, signal: Signal) -> &mut Held {
        let sites = self.of_mut(id);
        if signal == Signal::Host { &mut sites.host } else { &mut sites.own }
    }

    fn of_mut(&mut self, id: &RankId) -> &mut RankSites {
        self.runs.entry(id.run.clone()).or_default().entry(id.rank).or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{AnalysisOutcome, ENDED_SITES_MAX, SiteTable, SnapshotAnalysis};
    use stepmem_types::ids::{Rank, RankId, Run};
    use stepmem_types::site::{LeakSite, SiteVerdict};
    use stepmem_types::units::Uptime;

    fn analysis(verdict: SiteVerdict, steps: u64) -> SnapshotAnalysis {
        let leak = LeakSite::without_line(verdict, steps);
        let outcome = AnalysisOutcome::Analysed;
        SnapshotAnalysis { outcome, reason: None, leak: Some(leak), oom: None, timeline: None }
    }

    #[test]
    fn a_line_stays_against_none_and_goes_with_its_incarnation() {
        let at = |seconds| Uptime(Duration::from_secs(seconds));
        let id = RankId { run: Run::new("llm").unwrap(), rank: Rank::new(3).unwrap() };
        let mut table = SiteTable::default();
        let steps = |table: &SiteTable, began| {
            table.of(&id.run, id.rank, Some(at(began))).leak.map(|leak| leak.steps)
        };
        table.take_analysis(&id, &analysis(SiteVerdict::None, 1), at(10));
        table.take_analysis(&id, &analysis(SiteVerdict::Leak, 2), at(20));
        table.take_analysis(&id, &analysis(SiteVerdict::InsufficientHistory, 3), at(30));
        assert_eq!(steps(&table, 5), Some(2));
        table.take_analysis(&id, &analysis(SiteVerdict::Leak, 4), at(40));
        assert_eq!((steps(&table, 40), steps(&table, 41)), (Some(4), None));
        table.retain(|_, _| None);
        assert_eq!(steps(&table, 5), None);
    }

    #[test]
    fn ended_ranks_beyond_the_bound_are_forgotten_oldest_first() {
        let run = Run::new("llm").unwrap();
        let number = |idx: usize| u64::try_from(idx).unwrap();
        let rank = |idx: usize| Rank::new(number(idx)).unwrap();
        let mut table = SiteTable::default();
        for idx in 0..ENDED_SITES_MAX + 3 {
            let id = RankId { run: run.clone(), rank: rank(idx) };
            let asked = Uptime(Duration::from_secs(1000 - number(idx)));
            table.take_analysis(&id, &analysis(SiteVerdict::Leak, 1), asked);
        }
        let n_known = |table: &SiteTable, ranks: std::ops::Range<usize>| {
            ranks.filter(|idx| table.of(&run, rank(*idx), None).leak.is_some()).count()
        };
        table.retain(|_, rank| Some(rank.get() > 0));
        assert_eq!(n_known(&table, 0..ENDED_SITES_MAX + 1), ENDED_SITES_MAX + 1);
        assert_eq!(n_known(&table, ENDED_SITES_MAX + 1..ENDED_SITES_MAX + 3), 0);
        assert_eq!(table.n_dropped(), 2);
    }

    #[test]
    fn labels_are_those_of_the_json() {
        for outcome in AnalysisOutcome::ALL {
            let json = serde_json::to_value(outcome).unwrap();
            assert_eq!(json, outcome.as_label());
        }
    }
}

//! Heap-scan requests to ranks that grow: who is asked to find out which of its tensors are
//! kept, and the outcome. The training process scans.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::requests::causes::{HoldersOutcome, HoldersReport};
use crate::requests::schedule::{Growth, RequestPlan, ScheduleSettings};
use crate::requests::tracker::{
    Listed, Progress, RankRequest, RequestKind, RequestTracker, Requested, SavedRequests,
    UNANSWERED,
};
use stepmem_detect::Signal;
use stepmem_types::ids::RankId;
use stepmem_types::units::Uptime;

/// Steps between the two scans of one request, at the least.
const STEPS: u32 = 20;
/// Heap scans of a run, at most: enough for a week, and each costs some 40 ms.
const RUN_MAX: u32 = 1000;
/// Periods of growth in level shifts that lie between the two scans. The objects that grew are
/// then watched for two more.
const PERIODS: f64 = 1.0;

/// A heap scan of a rank.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct HeapScan {
    progress: Progress,
    /// Set when it was asked for before the growth was a finding.
    is_early: bool,
    /// Set when an operator wants the line that allocates the memory.
    wants_lines: bool,
    /// The memory whose holder is searched for.
    signal: Signal,
}

impl HeapScan {
    fn of(signal: Signal) -> Self {
        Self { progress: Progress::Waiting, is_early: false, wants_lines: false, signal }
    }
}

impl Requested for HeapScan {
    const OUTCOMES: &'static [&'static str] =
        &["failed", "gave_up", "named", "none", UNANSWERED];

    fn id_mark(&self) -> &'static str {
        if self.signal == Signal::Host { "m" } else { "h" }
    }

    fn kind(&self) -> RequestKind {
        let HeapScan { wants_lines, signal, .. } = *self;
        RequestKind::Holders { bytes_per_step: None, signal, is_on_host: false, wants_lines }
    }

    fn progress(&self) -> Progress {
        self.progress
    }

    fn give_up(&mut self) {
        self.progress = Progress::Over;
    }
}

/// The heap scans of all runs. Those of host memory next to a device have a schedule of their
/// own, so that growth of one memory does not keep the other from being searched.
#[derive(Debug)]
pub(crate) struct HeapScans {
    is_on: bool,
    own: RequestTracker<HeapScan>,
    host: RequestTracker<HeapScan>,
}

/// Heap scans that outlast a restart.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct SavedHeapScans {
    own: SavedRequests<HeapScan>,
    host: SavedRequests<HeapScan>,
}

impl HeapScans {
    /// Creates an empty list; `is_on`: whether growth asks for a heap scan.
    pub(crate) fn new(is_on: bool, cooldown: Duration) -> Self {
        let settings =
            ScheduleSettings { steps: STEPS, periods: PERIODS, run_max: RUN_MAX, cooldown };
        let tracker = |signal| RequestTracker::new(settings, HeapScan::of(signal));
        Self { is_on, own: tracker(Signal::Allocated), host: tracker(Signal::Host) }
    }

    /// Returns whether growth asks for a heap scan.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    fn of_mut(&mut self, signal: Signal) -> &mut RequestTracker<HeapScan> {
        if signal == Signal::Host { &mut self.host } else { &mut self.own }
    }

    /// Returns the scans whose report is still to come.
    fn open(&self) -> impl Iterator<Item = &Listed<HeapScan>> {
        self.own.open().chain(self.host.open())
    }

    /// Returns the requests that wait for ranks that `accepts` allows, by the rank and the time
    /// of the request.
    pub(crate) fn waiting(
        &self,
        accepts: impl Fn(&RankId, Uptime) -> bool + Copy,
    ) -> impl Iterator<Item = RankRequest> {
        self.own.waiting(accepts).chain(self.host.waiting(accepts))
    }

    /// Returns the number of heap scans by outcome.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let both = self.own.outcomes().zip(self.host.outcomes());
        both.map(|((outcome, own), (_, host))| (outcome, own + host))
    }

    /// Returns the part that outlasts a restart.
    pub(crate) fn saved(&self) -> SavedHeapScans {
        SavedHeapScans { own: self.own.saved(), host: self.host.saved() }
    }

    /// Takes suspected growth of a rank. The rank is asked for a heap scan, so that the holder
    /// is known when the growth is a finding.
    pub(crate) fn suspects(&mut self, growth: &Growth<'_>, now: Uptime) {
        self.grows(growth, true, now);
    }

    /// Takes growth of a rank whose incarnation began at `began`, at the growth's beginning and
    /// while it lasts. The rank is asked for a heap scan unless one goes on, or its run has had
    /// enough.
    pub(crate) fn creeps(&mut self, growth: &Growth<'_>, began: Option<Uptime>, now: Uptime) {
        if began.is_some_and(|began| self.were_before(growth, began)) {
            self.of_mut(growth.signal).schedule.forget(growth.rank);
        }
        self.grows(growth, false, now);
    }

    fn grows(&mut self, growth: &Growth<'_>, is_early: bool, now: Uptime) {
        // A process makes one search at a time.
        if self.is_on && !self.open().any(|open| open.rank == *growth.rank) {
            let of = HeapScan { is_early, ..HeapScan::of(growth.signal) };
            self.of_mut(growth.signal).grows(growth, of, now);
        }
    }

    /// Asks a rank for the line that allocates host memory, which is that of `signal`, because
    /// an operator wants it. Returns the id of the request, that of the open one if the rank was
    /// asked for it already.
    pub(crate) fn want_lines(
        &mut self,
        rank: &RankId,
        signal: Signal,
        now: Uptime,
    ) -> Box<str> {
        let is_same = |open: &&Listed<HeapScan>| open.rank == *rank && open.of.wants_lines;
        let open = self.open().find(is_same);
        if let Some(id) = open.and_then(|open| open.id.clone()) {
            return id;
        }
        let of = HeapScan { wants_lines: true, ..HeapScan::of(signal) };
        self.of_mut(signal).ask((rank.clone(), RequestPlan::of_steps(STEPS)), of, now)
    }

    /// Returns whether a rank was asked about a memory, and only before its incarnation began: its present
    /// holders are not known.
    fn were_before(&self, growth: &Growth<'_>, began: Uptime) -> bool {
        let tracker = if growth.signal == Signal::Host { &self.host } else { &self.own };
        let mut scans = tracker.iter().filter(|scan| scan.rank == *growth.rank).peekable();
        scans.peek().is_some() && scans.all(|scan| scan.since < began)
    }

    /// Takes a report. Returns the memory that it is about, and since when what it names is
    /// known: when the rank was asked, or now.
    pub(crate) fn take(&mut self, report: &HoldersReport, now: Uptime) -> (Signal, Uptime) {
        let run = &report.rank.run;
        let is_of_host = self.host.named(report.id.as_deref(), &report.rank).is_some();
        let signal = if is_of_host { Signal::Host } else { Signal::Allocated };
        let requests = self.of_mut(signal);
        let scan = requests.named(report.id.as_deref(), &report.rank);
        let since = scan.as_ref().map_or(now, |scan| scan.since);
        let is_over = report.outcome != HoldersOutcome::Began;
        if let Some(Listed { of: scan, .. }) = scan {
            if scan.progress == Progress::Over {
                return (signal, since);
            }
            scan.progress = if is_over { Progress::Over } else { Progress::Begun };
            let is_named = matches!(report.outcome, HoldersOutcome::Named(_));
            if is_over && scan.is_early && !is_named {
                requests.schedule.close(run);
            }
        }
        requests.count(report.outcome.as_label());
        // A bound withholds the page of its own rank alone.
        if let HoldersOutcome::Named(holders) = &report.outcome
            && holders.first().is_some_and(|holder| holder.fill.is_some())
        {
            requests.schedule.ask_each(run);
        }
        if is_over {
            requests.ask_next(run, now);
        }
        (signal, since)
    }

    /// Gives up heap scans that have waited too long, and those whose process has gone, where
    /// `is_present` is false.
    pub(crate) fn expire(&mut self, is_present: impl Fn(&RankId, Uptime) -> bool, now: Uptime) {
        let is_gone = |scan: &Listed<HeapScan>| !is_present(&scan.rank, scan.since);
        self.own.expire(is_gone, now);
        self.host.expire(is_gone, now);
    }

    /// Goes on where an earlier exporter stood, unless the settings no longer want it.
    pub(crate) fn resume(&mut self, saved: SavedHeapScans) {
        let is_on = self.is_on;
        let is_kept = |scan: &Listed<HeapScan>| is_on || scan.of.wants_lines;
        self.own.resume(saved.own, is_kept);
        self.host.resume(saved.host, is_kept);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::HeapScans;
    use crate::requests::causes::{HEAP_SCAN_COOLDOWN, HoldersOutcome, HoldersReport};
    use crate::requests::schedule::Growth;
    use crate::requests::tracker::RankRequest;
    use stepmem_detect::Signal;
    use stepmem_types::ids::{Rank, RankId, Run};
    use stepmem_types::site::{Fill, SiteText, TensorHolder};
    use stepmem_types::units::{Bytes, Count, Uptime};

    fn rank() -> RankId {
        RankId { run: Run::new("llm").unwrap(), rank: Rank::new(3).unwrap() }
    }

    fn at(seconds: u64) -> Uptime {
        Uptime(Duration::from_secs(seconds))
    }

    /// Lets a rank, whose incarnation began at a second, grow.
    fn creep_of(heap_scans: &mut HeapScans, rank: &RankId, [began, seconds]: [u64; 2]) {
        let growth = Growth {
            rank,
            signal: Signal::Allocated,
            bytes_per_step: None,
            seconds_per_step: None,
            level_shifts: None,
        };
        heap_scans.creeps(&growth, Some(at(began)), at(seconds));
    }

    fn creep(heap_scans: &mut HeapScans, began: u64, seconds: u64) {
        creep_of(heap_scans, &rank(), [began, seconds]);
    }

    fn waiting(heap_scans: &HeapScans) -> Vec<RankRequest> {
        heap_scans.waiting(|_, _| true).collect()
    }

    fn outcome(heap_scans: &HeapScans, name: &str) -> u64 {
        heap_scans.outcomes().find(|(outcome, _)| *outcome == name).unwrap().1
    }

    fn bounded() -> TensorHolder {
        let count = |n| Count::new(n).unwrap();
        TensorHolder {
            name: SiteText::new("`replay`").unwrap(),
            kind: SiteText::new("deque").unwrap(),
            at: None,
            tensors: count(1),
            bytes: Bytes::new(8).unwrap(),
            tensors_per_step: 1.0,
            bytes_per_step: 8.0,
            step: None,
            since_step: None,
            lines: None,
            keeps_more: None,
            added_per_step: None,
            removal: None,
            fill: Some(Fill {
                items: count(1),
                items_max: count(9),
                items_per_step: 1.0,
                is_own: true,
            }),
        }
    }

    fn report(request: &RankRequest, outcome: HoldersOutcome) -> HoldersReport {
        HoldersReport {
            rank: rank(),
            instance: None,
            is_known: false,
            id: Some(request.id.clone()),
            outcome,
            first_step: None,
            last_step: None,
            objects_read: None,
            objects_met: None,
            saw_growth: None,
            lines: None,
        }
    }

    #[test]
    fn figures_are_renewed_every_ten_minutes_while_growth_lasts() {
        let mut heap_scans = HeapScans::new(true, HEAP_SCAN_COOLDOWN);
        let mut asked_at = Vec::new();
        for seconds in (0..3600).step_by(60) {
            creep(&mut heap_scans, 0, seconds);
            for request in waiting(&heap_scans) {
                asked_at.push(seconds);
                heap_scans.take(&report(&request, HoldersOutcome::Nothing), at(seconds));
            }
        }
        assert_eq!(asked_at, [0, 600, 1200, 1800, 2400, 3000]);
    }

    #[test]
    fn rank_that_restarted_is_asked_again_at_once_and_then_every_ten_minutes() {
        let mut heap_scans = HeapScans::new(true, HEAP_SCAN_COOLDOWN);
        let mut asked_at = Vec::new();
        for seconds in (0..1800).step_by(60) {
            // The incarnation that began at the start ends after its heap scan has begun.
            let began = if seconds < 120 { 0 } else { 100 };
            heap_scans.expire(|_, since| since >= at(began), at(seconds));
            creep(&mut heap_scans, began, seconds);
            for request in waiting(&heap_scans) {
                asked_at.push(seconds);
                let is_cut = seconds == 0;
                let outcome =
                    if is_cut { HoldersOutcome::Began } else { HoldersOutcome::Nothing };
                heap_scans.take(&report(&request, outcome), at(seconds));
            }
        }
        assert_eq!(asked_at, [0, 120, 600, 1200]);
        assert_eq!(outcome(&heap_scans, "unanswered"), 1);
    }

    #[test]
    fn each_rank_of_a_run_with_a_bound_is_asked_once_in_ten_minutes() {
        let mut heap_scans = HeapScans::new(true, HEAP_SCAN_COOLDOWN);
        let run = Run::new("llm").unwrap();
        let ranks: Vec<RankId> =
            (0..5).map(|n| RankId { run: run.clone(), rank: Rank::new(n).unwrap() }).collect();
        let mut asked_at = vec![Vec::new(); ranks.len()];
        for seconds in (0..2400).step_by(60) {
            for rank in &ranks {
                creep_of(&mut heap_scans, rank, [0, seconds]);
            }
            // A report may let the next rank be asked at once.
            while let Some(request) = waiting(&heap_scans).pop() {
                let rank = request.rank.clone();
                let idx = ranks.iter().position(|of| *of == rank).unwrap();
                asked_at[idx].push(seconds);
                let outcome = HoldersOutcome::Named(vec![bounded()]);
                heap_scans
                    .take(&HoldersReport { rank, ..report(&request, outcome) }, at(seconds));
            }
        }
        for asked_at in &asked_at {
            assert!((4..=5).contains(&asked_at.len()), "{asked_at:?}");
            let mut pauses = asked_at.iter().zip(&asked_at[1..]).map(|(a, b)| b - a);
            assert!(pauses.all(|pause| pause >= 600), "{asked_at:?}");
        }
    }

    #[test]
    fn rank_is_asked_until_it_begins_and_its_report_is_dated_by_the_request() {
        let mut heap_scans = HeapScans::new(true, HEAP_SCAN_COOLDOWN);
        creep(&mut heap_scans, 0, 1);
        let asked = waiting(&heap_scans);
        let [request] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!(heap_scans.take(&report(request, HoldersOutcome::Began), at(2)).1, at(1));
        assert_eq!(waiting(&heap_scans), []);
        assert_eq!(heap_scans.take(&report(request, HoldersOutcome::Nothing), at(3)).1, at(1));
        heap_scans.expire(|_, _| true, at(100_000));
        assert_eq!((outcome(&heap_scans, "none"), outcome(&heap_scans, "unanswered")), (1, 0));
    }
}

//! The ranks of all runs: which may enter, what their records come to, and when they are
//! forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ranks::ended::RankEnded;
use crate::ranks::lifecycle::{Arrival, RecordVerdict};
use crate::ranks::name_conflicts::{NameConflicts, RankClaim};
use crate::ranks::refusal::Refusal;
use crate::ranks::state::RankState;
use stepmem_detect::{Config as DetectConfig, Signal};
use stepmem_types::end::RankEnd;
use stepmem_types::ids::{Rank, RankId, Run};
use stepmem_types::launch::Instance;
use stepmem_types::step::StepSample;
use stepmem_types::units::{Seconds, Uptime};

/// A client's clock may be ahead of ours by this many seconds.
pub(crate) const AHEAD_SECONDS_MAX: f64 = 300.0;

/// The limits of the rank table, and the settings of its ranks.
#[derive(Clone, Debug)]
pub struct RankSettings {
    pub creep: DetectConfig,
    /// Number of train records at the start of an incarnation that are not used, of runs that
    /// have a number of their own.
    pub warmup_pushes: BTreeMap<Run, u32>,
    /// A rank silent for longer leaves every output.
    pub ttl: Duration,
    /// Number of ranks that are held at most, over all runs.
    pub ranks_max: usize,
    /// Number of runs that are held at most.
    pub runs_max: usize,
    /// The length of the intervals of the interval peak.
    pub peak_interval: Duration,
}

impl RankSettings {
    /// The detector's settings for the ranks of a run.
    fn creep_of(&self, run: &Run) -> DetectConfig {
        let warmup = self.warmup_pushes.get(run).copied();
        let warmup_samples = warmup.unwrap_or(self.creep.warmup_samples);
        DetectConfig { warmup_samples, ..self.creep }
    }
}

/// The outcomes of the records of accepted pushes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct RecordCounts {
    /// Used.
    pub accepted: u64,
    /// A step seen before.
    pub duplicate: u64,
    /// A step older than one seen before.
    pub late: u64,
    /// Used, although figures contradict each other (these are among the accepted).
    pub inconsistent: u64,
    /// Used, and began a new incarnation of their rank (these are among the accepted).
    pub restarted: u64,
    /// Records with a time so far ahead of their arrival that the arrival counts instead,
    /// whatever became of them.
    pub clock_ahead: u64,
}

/// The outcome of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordResult {
    /// Set when the record was used.
    pub is_used: bool,
    /// Set when a trend changed.
    pub is_changed: bool,
    /// The memory whose growth is suspected for the first time.
    pub newly_suspected: Option<Signal>,
}

/// All ranks, by run.
#[derive(Debug)]
pub(crate) struct RankTable {
    settings: RankSettings,
    runs: BTreeMap<Run, BTreeMap<Rank, RankState>>,
    // Invariant: the number of ranks in `runs` that have not ended.
    n_ranks: usize,
    records: RecordCounts,
    records_dropped: u64,
    /// Ended ranks that left the outputs to keep a bound.
    ended_dropped: u64,
    name_conflicts: NameConflicts,
}

/// The ranks of an earlier exporter.
#[derive(Debug, Default)]
pub(crate) struct SavedRanks(BTreeMap<Run, BTreeMap<Rank, RankState>>);

impl SavedRanks {
    pub(crate) fn insert(&mut self, run: Run, rank: Rank, state: RankState) {
        self.0.entry(run).or_default().insert(rank, state);
    }
}

/// Number of ended ranks that are held in addition to the others.
pub(crate) const ENDED_MAX: usize = 1024;

/// Returns the first rank of these runs.
fn first_of<'a>(
    mut runs: impl Iterator<Item = (&'a Run, &'a BTreeMap<Rank, RankState>)>,
) -> Option<(&'a Run, Rank, &'a RankState)> {
    runs.find_map(|(run, ranks)| {
        let (rank, state) = ranks.first_key_value()?;
        Some((run, *rank, state))
    })
}

/// Returns whether a run counts toward the limit: one of its ranks has not ended.
fn has_place(ranks: &BTreeMap<Rank, RankState>) -> bool {
    ranks.values().any(|state| !state.is_ended())
}

impl RankTable {
    /// A table without a rank.
    pub(crate) fn new(settings: RankSettings) -> Self {
        Self {
            settings,
            runs: BTreeMap::new(),
            n_ranks: 0,
            records: RecordCounts::default(),
            records_dropped: 0,
            ended_dropped: 0,
            name_conflicts: NameConflicts::default(),
        }
    }

    /// Returns the first rank, or the first after another.
    pub(crate) fn first_after(
        &self,
        after: Option<&RankId>,
    ) -> Option<(&Run, Rank, &RankState)> {
        let Some(RankId { run, rank }) = after else { return first_of(self.runs.iter()) };
        let same_run = self.runs.get_key_value(run).and_then(|(run, ranks)| {
            let (rank, state) = ranks.range((Excluded(*rank), Unbounded)).next()?;
            Some((run, *rank, state))
        });
        same_run.or_else(|| first_of(self.runs.range((Excluded(run.clone()), Unbounded))))
    }

    /// A table that goes on where another stood.
    pub(crate) fn resume(settings: RankSettings, saved: SavedRanks) -> Self {
        let mut table = Self { runs: saved.0, ..Self::new(settings) };
        for (run, ranks) in &mut table.runs {
            let creep = table.settings.creep_of(run);
            for rank in ranks.values_mut() {
                rank.configure(&creep, table.settings.peak_interval);
            }
        }
        table.count();
        table
    }

    /// Makes place for the ranks of a batch that arrived at `now`, the Unix time `arrival`.
    /// Evicts ranks that have left the outputs where it must.
    ///
    /// # Errors
    ///
    /// The bound that the batch would break; its records are counted as dropped.
    pub(crate) fn admit(
        &mut self,
        batch: &[StepSample],
        now: Uptime,
        arrival: f64,
    ) -> Result<(), Refusal> {
        let mut has_newcomers = false;
        for of_run in batch.chunk_by(|a, b| a.run == b.run) {
            let ranks = of_run.first().and_then(|first| self.runs.get(&first.run));
            for sample in of_run {
                let state = ranks.and_then(|ranks| ranks.get(&sample.rank));
                let holder = state.and_then(|of| of.lifecycle().holder_against(sample, now));
                if let Some(holder) = holder {
                    return Err(self.refuse(RankClaim { sample, holder, now, time: arrival }));
                }
                has_newcomers |= state.is_none_or(RankState::is_ended);
            }
        }
        if !has_newcomers {
            return Ok(());
        }
        let (max_ranks, max_runs) = (self.settings.ranks_max, self.settings.runs_max);
        let (mut ranks, mut runs) = self.with_newcomers(batch);
        if ranks > max_ranks || runs > max_runs {
            self.evict_silent(now);
            (ranks, runs) = self.with_newcomers(batch);
        }
        let refusal = if ranks > max_ranks {
            Refusal::TooManyRanks { ranks, max: max_ranks }
        } else if runs > max_runs {
            Refusal::TooManyRuns { runs, max: max_runs }
        } else {
            return Ok(());
        };
        self.records_dropped += u64::try_from(batch.len()).unwrap_or(u64::MAX);
        Err(refusal)
    }

    /// Takes one record of a batch that was admitted and arrived at `now`, which is the Unix time
    /// `arrival`.
    pub(crate) fn push(
        &mut self,
        sample: &StepSample,
        now: Uptime,
        arrival: f64,
    ) -> RecordResult {
        let settings = &self.settings;
        // The name is cloned for a new run only.
        let ranks = match self.runs.get_mut(&sample.run) {
            Some(ranks) => ranks,
            None => self.runs.entry(sample.run.clone()).or_default(),
        };
        let state = ranks.entry(sample.rank).or_insert_with(|| {
            self.n_ranks += 1;
            RankState::new(&settings.creep_of(&sample.run), settings.peak_interval, now)
        });
        let was_ended = state.is_ended();
        let (verdict, is_changed) = state.push(sample, now, arrival);
        self.n_ranks += usize::from(was_ended && !state.is_ended());
        let records = &mut self.records;
        match verdict {
            RecordVerdict::Accepted => records.accepted += 1,
            RecordVerdict::Restarted => {
                records.accepted += 1;
                records.restarted += 1;
            }
            RecordVerdict::Duplicate => records.duplicate += 1,
            RecordVerdict::Late => records.late += 1,
        }
        let is_used = matches!(verdict, RecordVerdict::Accepted | RecordVerdict::Restarted);
        records.inconsistent += u64::from(is_used && sample.is_inconsistent());
        let newly_suspected = state.newly_suspected().filter(|_| is_used);
        RecordResult { is_used, is_changed, newly_suspected }
    }

    /// Checks that a process speaks of a rank of its own. One that is not held is.
    ///
    /// # Errors
    /// Another process holds the rank.
    pub(crate) fn check_own(
        &self,
        id: &RankId,
        instance: Option<Instance>,
    ) -> Result<(), Refusal> {
        let state = self.get(&id.run, id.rank);
        match (state.is_none_or(|state| state.lifecycle().is_of(instance)), instance) {
            (true, _) => Ok(()),
            (false, Some(_)) => Err(Refusal::OfAnother(id.clone())),
            (false, None) => Err(Refusal::OfUnnamed(id.clone())),
        }
    }

    /// Ends a rank, or all ranks of a run that the process holds. Returns whether the run is
    /// held. The ranks give their place free at once; what they came to stays, for at most
    /// [`ENDED_MAX`] ranks.
    pub(crate) fn end(&mut self, run: &Run, end: &RankEnd, arrival: Arrival) -> bool {
        let mut report = end.report.clone();
        self.correct_time(&mut report.time, arrival.time);
        let Some(ranks) = self.runs.get_mut(run) else { return false };
        for (of, state) in ranks.iter_mut() {
            let is_own = end.is_of_operator() || state.lifecycle().is_of(end.instance);
            if end.rank.is_none_or(|rank| rank == *of) && is_own {
                state.end(&report, arrival.now);
            }
        }
        self.bound_ended(arrival.now);
        self.count();
        true
    }

    /// Notes that Prometheus has read everything.
    pub(crate) fn scraped(&mut self) {
        self.states_mut().for_each(RankState::scraped);
    }

    /// Returns whether something of this time is of the rank's present incarnation.
    pub(crate) fn is_of_present_incarnation(&self, id: &RankId, since: Uptime) -> bool {
        let origin = self.get(&id.run, id.rank).and_then(|state| state.lifecycle().origin());
        origin.is_none_or(|origin| since >= origin.began)
    }

    /// Returns whether a rank ended badly that Prometheus has not read since.
    pub(crate) fn awaits_scrape(&self) -> bool {
        self.states().filter_map(RankState::ended).any(RankEnded::awaits_scrape)
    }

    /// Returns the number of ended ranks that left the outputs early to keep a bound.
    pub(crate) fn ended_dropped(&self) -> u64 {
        self.ended_dropped
    }

    /// Forgets the ranks that ended longest ago, those that were scraped first.
    fn bound_ended(&mut self, now: Uptime) {
        let mut ended: Vec<(bool, Uptime, RankId)> = Vec::new();
        for (run, ranks) in &self.runs {
            for (rank, state) in ranks {
                let Some(end) = state.ended() else { continue };
                let id = RankId { run: run.clone(), rank: *rank };
                ended.push((!end.is_scraped, end.at, id));
            }
        }
        let n_too_many = ended.len().saturating_sub(ENDED_MAX);
        ended.sort();
        for (_, _, id) in ended.into_iter().take(n_too_many) {
            let Some(ranks) = self.runs.get_mut(&id.run) else { continue };
            let state = ranks.remove(&id.rank);
            let is_shown = state.and_then(|state| Some(state.ended()?.is_shown(now)));
            self.ended_dropped += u64::from(is_shown == Some(true));
        }
    }

    /// Evicts the ranks that have left the outputs without an end, which count toward the
    /// limit.
    fn evict_silent(&mut self, now: Uptime) {
        let ttl = self.settings.ttl;
        for ranks in self.runs.values_mut() {
            ranks.retain(|_, rank| rank.is_ended() || now.since(rank.last_seen()) <= ttl);
        }
        self.runs.retain(|_, ranks| !ranks.is_empty());
        self.count();
    }

    /// Forgets the ranks that have been silent for longer than `silence`, and runs without a
    /// rank.
    pub(crate) fn forget(&mut self, now: Uptime, silence: Duration) {
        for ranks in self.runs.values_mut() {
            ranks.retain(|_, rank| now.since(rank.last_seen()) <= silence);
        }
        self.runs.retain(|_, ranks| !ranks.is_empty());
        self.count();
    }

    /// Returns the state of a rank.
    pub(crate) fn get(&self, run: &Run, rank: Rank) -> Option<&RankState> {
        self.runs.get(run)?.get(&rank)
    }

    /// Returns the state of a rank, to change it.
    pub(crate) fn get_mut(&mut self, run: &Run, rank: Rank) -> Option<&mut RankState> {
        self.runs.get_mut(run)?.get_mut(&rank)
    }

    /// Returns every run, ascending, with its ranks, ascending.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (&Run, &BTreeMap<Rank, RankState>)> {
        self.runs.iter()
    }

    /// Returns a run with its ranks.
    pub(crate) fn run(&self, run: &Run) -> Option<(&Run, &BTreeMap<Rank, RankState>)> {
        self.runs.get_key_value(run)
    }

    /// Returns every rank that pushes at `now`, ascending.
    pub(crate) fn pushing(&self, now: Uptime) -> impl Iterator<Item = (RankId, &RankState)> {
        let ttl = self.settings.ttl;
        self.runs.iter().flat_map(move |(run, ranks)| {
            ranks
                .iter()
                .filter(move |(_, state)| state.is_pushing(now, ttl))
                .map(move |(rank, state)| (RankId { run: run.clone(), rank: *rank }, state))
        })
    }

    /// Returns the state of every rank.
    pub(crate) fn states(&self) -> impl Iterator<Item = &RankState> {
        self.runs.values().flat_map(BTreeMap::values)
    }

    /// Returns the state of every rank, to change it.
    pub(crate) fn states_mut(&mut self) -> impl Iterator<Item = &mut RankState> {
        self.runs.values_mut().flat_map(BTreeMap::values_mut)
    }

    /// Replaces a time that is more than [`AHEAD_SECONDS_MAX`] ahead of the arrival, a Unix
    /// time, by that, and counts it. A client's clock that was wrong for a while must not make
    /// everything after it late.
    pub(crate) fn correct_time(&mut self, time: &mut Option<Seconds>, arrival: f64) {
        if time.is_some_and(|time| time.get() > arrival + AHEAD_SECONDS_MAX) {
            *time = Seconds::new(arrival).ok();
            self.records.clock_ahead += 1;
        }
    }

    /// Returns the counts of the records that were taken, by outcome.
    pub(crate) fn records(&self) -> RecordCounts {
        self.records
    }

    /// Returns the number of records that were refused to keep a bound.
    pub(crate) fn records_dropped(&self) -> u64 {
        self.records_dropped
    }

    fn count(&mut self) {
        self.n_ranks = self.states().filter(|state| !state.is_ended()).count();
    }

    /// Refuses a process that claims a rank of another live one.
    fn refuse(&mut self, claim: RankClaim<'_>) -> Refusal {
        let (runs, RankClaim { sample, now, .. }) = (&self.runs, &claim);
        let is_taken = |name: &Run| {
            let mut states = runs.get(name).into_iter().flat_map(BTreeMap::values);
            states
                .any(|state| state.lifecycle().is_live_of_another(sample.launch.as_ref(), *now))
        };
        Refusal::Held(Box::new(self.name_conflicts.refuse(claim, is_taken)))
    }

    /// Returns the number of processes that are refused because another live one holds their
    /// rank of the run.
    pub(crate) fn n_claimants(&self, run: &Run, now: Uptime) -> usize {
        self.name_conflicts.count(run, now)
    }

    /// Returns the name that the program of a run asked for first, where another live one held
    /// it.
    pub(crate) fn asked_for(&self, run: &Run) -> Option<&Run> {
        self.name_conflicts.asked_for(run)
    }

    /// Returns the numbers of ranks and runs that there would be with those of the batch.
    fn with_newcomers(&self, batch: &[StepSample]) -> (usize, usize) {
        let mut ranks = BTreeSet::new();
        let mut runs = BTreeSet::new();
        for sample in batch {
            match self.runs.get(&sample.run) {
                Some(held) if held.get(&sample.rank).is_some_and(|rank| !rank.is_ended()) => {}
                Some(held) if has_place(held) => {
                    ranks.insert((&sample.run, sample.rank));
                }
                _ => {
                    ranks.insert((&sample.run, sample.rank));
                    runs.insert(&sample.run);
                }
            }
        }
        let n_runs = self.runs.values().filter(|ranks| has_place(ranks)).count();
        (self.n_ranks + ranks.len(), n_runs + runs.len())
    }
}

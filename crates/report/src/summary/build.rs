//! Sums up a run: its coverage, its ranks, and the whole.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::policy::{PeakMetric, PolicyName};
use crate::summary::card;
use crate::summary::issues::issues;
use crate::summary::model::{
    Coverage, EndedTrend, FigureSummary, Generator, LostRank, PhaseSummary, RankOutcome,
    RankSummary, RankTrend, SCHEMA_VERSION, Summary,
};
use crate::summary::neutral::neutral;
use crate::summary::peaks::{LifetimePressure, Peaks};
use crate::summary::planned::{PlannedRestarts, RestartsSoFar};
use crate::summary::run_metrics::{is_judged, run_metrics};
use stepmem_detect::{Axis, Outlook, Signal, Trend};
use stepmem_engine::lifetime::{Figure, Kept, LifetimeStats, Moment, PhaseStats};
use stepmem_engine::status::SnapshotStatus;
use stepmem_engine::{LIVE_SIGNALS, RankView, RunView, TrendFigures, host_view, pressures};
use stepmem_types::format::units::rfc3339;
use stepmem_types::ids::Rank;
use stepmem_types::step::Phase;
use stepmem_types::units::Count;

/// A rank that is behind the furthest by more than this many steps, and by more than a
/// twentieth of the run, is lost.
const BEHIND_STEPS_MIN: u64 = 32;
/// Number of missing ranks that are named.
const MISSING_MAX: usize = 64;

impl Summary {
    /// Sums up a run; `snapshots` are those of the run, `None` where they are unknown, as in a
    /// recording.
    pub fn of(run: &RunView<'_>, snapshots: Option<Vec<SnapshotStatus>>) -> Self {
        let coverage = coverage(run);
        let mut ranks = rank_summaries(run, &coverage);
        let metrics = run_metrics(run, &ranks);
        let peak = metrics.get(&PeakMetric::Allocated);
        let (skew, highest) =
            (peak.map(|metric| metric.skew_pct), peak.map(|metric| metric.worst_rank));
        let mut issues = issues(run);
        if issues.is_empty() {
            issues.push(neutral(&coverage, &ranks, highest));
        }
        for issue in &mut issues {
            issue.skew_pct = skew.filter(|_| issue.is_wrong());
        }
        for rank in &mut ranks {
            let own = issues
                .iter()
                .filter(|issue| issue.is_wrong() && issue.ranks.contains(&rank.rank));
            rank.issues = own.map(|issue| issue.kind.clone()).collect();
        }
        let first = issues.first().cloned();
        let diagnosis = first.unwrap_or_else(|| neutral(&coverage, &ranks, highest));
        let span = coverage.first.zip(coverage.last);
        let mut summary = Self {
            generator: Generator {
                name: "stepmem".into(),
                version: env!("CARGO_PKG_VERSION").into(),
                schema_version: SCHEMA_VERSION,
            },
            policy: PolicyName::Stepmem,
            generated_at: rfc3339(run.time),
            run: run.run.clone(),
            launch: run.launch.clone(),
            workload: run.workload.map(str::to_owned),
            attempt: run
                .ranks
                .first()
                .map_or_else(Count::default, |(_, view)| view.identity.attempt),
            planned_restarts: None,
            duration_s: span
                .map(|(first, last)| (first.time, last.time))
                .or_else(|| by_time(run))
                .map(|(first, last)| (last - first).max(0.0)),
            worst_rank: diagnosis.ranks.first().copied().or(highest),
            diagnosis,
            issues,
            metrics,
            coverage,
            ranks,
            snapshots,
            text: String::new(),
            statements: Vec::new(),
        };
        card::put(&mut summary);
        summary
    }

    /// Adds the planned restarts of its run, and writes its card again. `began` is the first step
    /// of the newest attempt, and `until` the Unix time of its last record.
    pub fn add_restarts(&mut self, so_far: &RestartsSoFar, began: Option<Moment>, until: f64) {
        if so_far.run.as_ref().is_some_and(|run| *run != self.run) {
            return;
        }
        self.planned_restarts = PlannedRestarts::of(so_far, began, until);
        card::put(self);
    }
}

/// Returns the first and the last time of the samples of a run that took no steps, as Unix
/// times.
fn by_time(run: &RunView<'_>) -> Option<(f64, f64)> {
    let spans = run.ranks.iter().filter_map(|(_, view)| view.lifetime.by_time);
    spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

/// Returns the first of the expected ranks that are not seen, ascending, and how many there
/// are.
pub(crate) fn unseen(n_expected: u32, is_seen: impl Fn(u32) -> bool) -> (Vec<u32>, u32) {
    let all = || (0..n_expected).filter(|rank| !is_seen(*rank));
    (all().take(MISSING_MAX).collect(), u32::try_from(all().count()).unwrap_or(u32::MAX))
}

fn coverage(run: &RunView<'_>) -> Coverage {
    let lifetimes = || run.ranks.iter().map(|(_, rank)| rank.lifetime);
    let spans = || lifetimes().filter_map(|lifetime| lifetime.span);
    let ranks_expected =
        run.ranks.iter().filter_map(|(_, rank)| rank.identity.world_size).max();
    let is_seen = |rank| run.ranks.binary_search_by_key(&rank, |(seen, _)| seen.get()).is_ok();
    let (ranks_missing, n_ranks_missing) = unseen(ranks_expected.unwrap_or(0), is_seen);
    let earliest = |a: Moment, b: Moment| if b.step < a.step { b } else { a };
    let latest = |a: Moment, b: Moment| if b.step > a.step { b } else { a };
    let mut coverage = Coverage {
        ranks_expected,
        ranks_seen: run.ranks.len(),
        n_ranks_missing,
        ranks_missing,
        ranks_lost: Vec::new(),
        ranks_judged: run.ranks.iter().filter(|(_, rank)| is_judged(rank)).count(),
        restarts: lifetimes().map(|lifetime| u64::from(lifetime.n_restarts)).sum(),
        first: spans().map(|span| span.0).reduce(earliest),
        last: spans().map(|span| span.1).reduce(latest),
    };
    let (first, last) = (coverage.first, coverage.last);
    for (rank, view) in &run.ranks {
        let own = view.lifetime.span.map(|span| span.1);
        let is_behind = first.zip(last).is_some_and(|(first, last)| {
            let behind = last.step - own.map_or(first.step, |own| own.step);
            behind > BEHIND_STEPS_MIN && behind > (last.step - first.step) / 20
        });
        let state = match () {
            () if run.ended.contains_key(rank) => continue,
            () if run.unannounced.contains(rank) => continue,
            () if is_behind => RankOutcome::Behind,
            () if run.silent.contains(rank) => RankOutcome::Silent,
            () => continue,
        };
        coverage.ranks_lost.push(LostRank { rank: *rank, last: own, state });
    }
    coverage
}

fn rank_summaries(run: &RunView<'_>, coverage: &Coverage) -> Vec<RankSummary> {
    let peaks = Peaks::of(run, PeakMetric::Allocated);
    let summary = |(rank, view): &(Rank, RankView<'_>)| {
        let lost = coverage.ranks_lost.iter().find(|lost| lost.rank == *rank);
        let state = match lost {
            Some(lost) => lost.state,
            None if run.ended.contains_key(rank) => RankOutcome::Ended,
            None if run.silent.contains(rank) => RankOutcome::Unannounced,
            None => RankOutcome::Pushing,
        };
        let end = run.ended.get(rank).cloned();
        RankSummary { end, ..rank_summary(*rank, view, state, &peaks) }
    };
    run.ranks.iter().map(summary).collect()
}

fn rank_summary(
    rank: Rank,
    view: &RankView<'_>,
    state: RankOutcome,
    peaks: &Peaks,
) -> RankSummary {
    let lifetime = view.lifetime;
    RankSummary {
        rank,
        local_rank: view.identity.local_rank,
        node_rank: view.identity.node_rank,
        device: view.identity.device.clone(),
        device_model: view.device_model.map(str::to_owned),
        state,
        end: None,
        unit: view.identity.unit,
        steps: lifetime.n_steps(),
        unread_steps: lifetime.n_unread,
        samples: lifetime.n_samples(),
        seconds_without_steps: view.seconds_without_steps(),
        first: lifetime.span.map(|span| span.0),
        last: lifetime.span.map(|span| span.1),
        restarts: lifetime.n_restarts,
        issues: Vec::new(),
        allocated: figures(&lifetime.allocated),
        peak_allocated: figures(&lifetime.peak_allocated),
        reserved: figures(&lifetime.reserved),
        peak_reserved: figures(&lifetime.peak_reserved),
        capacity_bytes: view.capacity,
        capacity_set_by: view.capacity_set_by(),
        pressure_ratio: LifetimePressure::of(view)
            .map(|pressure| pressure.ratio)
            .into_iter()
            .chain(pressures(view).map(|now| now.ratio))
            .reduce(f64::max),
        headroom_bytes: view.headroom().map(|headroom| headroom.bytes),
        high_water_allocated_bytes: view.high_water_allocated,
        growth_headroom_bytes: view.growth_headroom_bytes(Signal::ALL),
        headroom_basis: view.headroom().map(|headroom| headroom.basis),
        peak_imbalance_ratio: peaks.against_others(rank).map(|imbalance| imbalance.ratio),
        fragmentation_ratio: view.fragmentation_ratio(),
        host: host_view(view),
        outside_allocator_bytes: view.outside_allocator_bytes,
        trend: LIVE_SIGNALS.iter().find_map(|signal| rank_trend(view, *signal)),
        reserved_rise_bytes_per_step: reserved_rise(view),
        phases: phases(lifetime),
        ooms: ooms(view),
        alloc_retries: view.last_train.and_then(|last| last.alloc_retries),
        series_bytes: lifetime.means(Kept::Allocated).map(f64::round).collect(),
    }
}

/// Returns the number of out-of-memory errors: those that the process counted, and the one that
/// ended it.
fn ooms(view: &RankView<'_>) -> Option<Count> {
    let counted = view.last_train.and_then(|last| last.ooms);
    match view.oom.map_or(0, |oom| oom.n_uncounted) {
        0 => counted,
        n => Count::new(counted.map_or(0, Count::get) + n).ok(),
    }
}

fn figures(figure: &Figure) -> Option<FigureSummary> {
    let (max, max_step) = figure.max?;
    Some(FigureSummary {
        max_bytes: max.get(),
        max_step,
        mean_bytes: figure.mean()?,
        last_bytes: figure.last?.get(),
        noise_bytes: figure.noise(),
    })
}

fn phases(lifetime: &LifetimeStats) -> BTreeMap<Cow<'static, str>, PhaseSummary> {
    let named = Phase::ALL.map(Phase::as_label).into_iter().zip(&lifetime.phases);
    named
        .filter(|(_, phase)| phase.n_records > 0)
        .map(|(name, PhaseStats { n_records, peak })| {
            (name.into(), PhaseSummary { records: *n_records, peak_bytes: *peak })
        })
        .collect()
}

fn reserved_rise(rank: &RankView<'_>) -> Option<f64> {
    let creep = rank.detectors.of(Signal::Reserved);
    let slope = creep.slope(Signal::Reserved)?;
    let rises =
        slope.is_straight || creep.trend(Signal::Reserved).is_some_and(Trend::is_growing);
    slope.bytes_per_step.filter(|_| rises).map(|slope| slope.value)
}

fn rank_trend(rank: &RankView<'_>, signal: Signal) -> Option<RankTrend> {
    let creep = rank.detectors.of(signal);
    let slope = creep.slope(signal)?;
    let per_step = slope.bytes_per_step;
    let outlook = rank.outlook(signal).filter(Outlook::is_growing);
    let ended = creep.ended_growth(signal).map(|ended| EndedTrend {
        growth_bytes: ended.bytes,
        level_since_step: Some(ended.until.position).filter(|_| creep.axis() == Axis::Steps),
        level_since_time: ended.until.time.get(),
    });
    let figures = outlook.map(|outlook| TrendFigures::of(&outlook));
    let figures = figures.as_ref();
    Some(RankTrend {
        signal,
        stage: outlook.map(|outlook| outlook.stage.into()),
        slope_bytes_per_step: per_step.map(|slope| slope.value),
        slope_lower_bytes_per_step: per_step.map(|slope| slope.lower),
        slope_upper_bytes_per_step: per_step.map(|slope| slope.upper),
        slope_bytes_per_second: slope.bytes_per_second.map(|slope| slope.value),
        is_straight: slope.is_straight,
        growth_bytes: figures.map(|trend| trend.growth_bytes),
        onset_step: figures.and_then(|trend| trend.onset_step).map(Count::as_f64),
        onset_time: figures.map(|trend| trend.onset_time.get()),
        ended,
        confidence_ratio: figures.map(|trend| trend.confidence_ratio),
        oom_eta_steps: figures.and_then(|trend| trend.oom_eta_steps),
        oom_eta_seconds: figures.and_then(|trend| trend.oom_eta_seconds),
        bands: rank.lifetime.bands(Kept::Allocated),
    })
}

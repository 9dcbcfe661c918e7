//! A run summed up: its diagnosis, why, and the figures of every rank. What is unknown is absent. Wording of the whole is
//! in `card`, TraceML's shape in `section`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::trend::{Stage, Trend};
use crate::analysis::diagnosis::balance::COMPARABLE_STEPS_MIN;
use crate::analysis::diagnosis::growth::LIVE_SIGNALS;
use crate::analysis::diagnosis::imbalance::PRESSURE_WARNING_MIN;
use crate::analysis::diagnosis::kind::{Score, Severity};
use crate::analysis::diagnosis::pressure::{self, Basis as PressureBasis};
use crate::analysis::diagnosis::{DiagnosisKind, Evidence};
use crate::analysis::estimate;
use crate::analysis::findings::Finding;
use crate::analysis::rank::tally::{Bands, Figure, Kept, Moment, PhaseTally, Tally};
use crate::analysis::rank::view::RankView;
use crate::analysis::runs::RunView;
use crate::analysis::status::SnapshotStatus;
use crate::model::ids::{GpuUuid, Rank, Run};
use crate::model::units::{Bytes, Count};
use crate::report::traceml::Severity as Level;
use crate::report::{card, section};
use crate::text::units::{bytes, percent, rfc3339};

/// The version of our own keys; it rises when one changes its meaning or goes.
pub const SCHEMA_VERSION: u32 = 1;
/// The version of TraceML's final summary whose keys we share.
pub const TRACEML_SCHEMA_VERSION: f64 = 1.7;
/// A rank that is behind the furthest by more than this many steps, and by more than a twentieth of the run, is lost.
const BEHIND_STEPS_MIN: u64 = 32;
/// How many missing ranks are named.
const MISSING_MAX: usize = 64;

/// One run, summed up: `final_summary.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// TraceML's version of the keys that we share.
    pub schema_version: f64,
    /// Who wrote this.
    pub generator: Generator,
    /// Whose words these are: `stepmem`.
    pub policy: &'static str,
    /// The time of the last record or of the question, RFC 3339.
    pub generated_at: String,
    /// The run.
    pub run: Run,
    /// Its latest attempt, which is all that this is about.
    pub attempt: Count,
    /// From the first to the last train step, in seconds.
    pub duration_s: Option<f64>,
    /// The run as TraceML describes it.
    pub meta: Value,
    /// The first issue.
    pub diagnosis: Issue,
    /// Everything that is wrong, the worst first; never empty.
    pub issues: Vec<Issue>,
    /// The figures of the run by metric.
    pub metrics: BTreeMap<&'static str, Metric>,
    /// Who was heard of, and who was not.
    pub coverage: Coverage,
    /// The rank that the diagnosis is about, else that of the highest peak.
    pub worst_rank: Option<Rank>,
    /// Every rank, ascending.
    pub ranks: Vec<RankSummary>,
    /// The memory snapshots that were asked for or reported, the oldest first; absent in a recording.
    pub snapshots: Option<Vec<SnapshotStatus>>,
    /// The same as `diagnosis`, where TraceML has its verdict.
    pub primary_diagnosis: Issue,
    /// No data: not ours.
    pub system: Value,
    /// No data: not ours.
    pub process: Value,
    /// No data: not ours.
    pub step_time: Value,
    /// Step memory in TraceML's shape, means where it has means.
    pub step_memory: Value,
    /// The card, `final_summary.txt`.
    pub text: String,
}

/// Who wrote a summary.
#[derive(Clone, Debug, Serialize)]
pub struct Generator {
    /// `stepmem`.
    pub name: &'static str,
    /// The program's version.
    pub version: &'static str,
    /// The version of our own keys.
    pub schema_version: u32,
}

/// One diagnosis and the ranks that it is about.
#[derive(Clone, Debug, Serialize)]
pub struct Issue {
    /// Its name in labels.
    pub kind: &'static str,
    /// Its name on pages.
    pub status: &'static str,
    /// How much it matters, by the worst of its ranks.
    pub severity: Level,
    /// The evidence in a sentence.
    pub summary: String,
    /// What to look at first.
    pub action: &'static str,
    /// The figure that it is about.
    pub metric: &'static str,
    /// `memory`, as TraceML has it; absent when nothing is wrong.
    pub phase: Option<&'static str>,
    /// What orders its ranks: a ratio, or bytes of growth.
    pub score: Option<f64>,
    /// Not used for memory.
    pub share_pct: Option<f64>,
    /// (worst - median) / median over the ranks' peaks: a ratio.
    pub skew_pct: Option<f64>,
    /// The ranks, the worst first.
    pub ranks: Vec<Rank>,
    /// The figures behind it, of the worst rank.
    pub evidence: Basis,
}

/// The figures behind an issue.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Basis {
    /// What holds by the last figures.
    Now(Evidence),
    /// A peak near the capacity, in the past.
    Past {
        /// Peak by capacity.
        pressure_ratio: f64,
        /// Whose peak: `allocated` or `reserved`.
        basis: PressureBasis,
        /// The capacity.
        capacity_bytes: u64,
        /// The first step that had it; absent outside train steps.
        step: Option<u64>,
    },
    /// A peak far below the other ranks'.
    Below {
        /// This rank's peak by the median of the others, less 1: negative.
        imbalance_ratio: f64,
        /// The median of the other ranks' peaks.
        median_bytes: f64,
    },
    /// Nothing is wrong, or nothing is known.
    Neutral {
        /// The train steps of the rank that came furthest.
        steps_used: u64,
        /// The rank with the highest peak.
        worst_rank: Option<Rank>,
    },
}

/// The figures of the run by one metric: TraceML's keys, with true maxima over the whole attempt.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "TraceML's own names; the schema describes them")]
pub struct Metric {
    pub metric: &'static str,
    pub window_size: Option<u64>,
    pub steps_used: u64,
    pub first_step: u64,
    pub completed_step: u64,
    pub ranks_seen: usize,
    pub ranks_used: usize,
    pub incomplete: bool,
    pub worst_peak_bytes: f64,
    pub median_peak_bytes: f64,
    pub worst_rank: Rank,
    pub skew_ratio: f64,
    pub skew_pct: f64,
    pub pressure_frac: Option<f64>,
    pub trend: MetricTrend,
}

/// The three levels of the rank that grew most.
#[derive(Clone, Debug, Default, Serialize)]
#[expect(missing_docs, reason = "TraceML's own names; the schema describes them")]
pub struct MetricTrend {
    pub eligible: bool,
    pub rank: Option<Rank>,
    pub baseline_avg_bytes: Option<f64>,
    pub mid_avg_bytes: Option<f64>,
    pub recent_avg_bytes: Option<f64>,
    pub overall_abs_delta_bytes: Option<f64>,
    pub overall_worst_growth_pct: Option<f64>,
    pub overall_median_growth_pct: Option<f64>,
    pub trend_window_steps: Option<u64>,
    pub avg_growth_bytes_per_step: Option<f64>,
    pub early: bool,
    pub confirmed: bool,
    pub score: Option<f64>,
}

/// Who was heard of, and who was not.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Coverage {
    /// How many ranks the run has by its own word.
    pub ranks_expected: Option<u32>,
    /// How many pushed.
    pub ranks_seen: usize,
    /// Ranks that never pushed, of those expected: the first 64.
    pub ranks_missing: Vec<u32>,
    /// How many never pushed.
    pub n_ranks_missing: u32,
    /// Ranks that stopped while others went on, or without a word.
    pub ranks_lost: Vec<Lost>,
    /// How many ranks ran long enough for creep to be judged.
    pub ranks_judged: usize,
    /// How often ranks began anew without a new attempt, over all ranks.
    pub restarts: u64,
    /// The first train step and when it ended.
    pub first: Option<Moment>,
    /// The last train step and when it ended.
    pub last: Option<Moment>,
}

/// A rank that stopped before the others, or without a word.
#[derive(Clone, Debug, Serialize)]
pub struct Lost {
    /// The rank.
    pub rank: Rank,
    /// Its last train step, and when it ended.
    pub last: Option<Moment>,
    /// `silent`, or `behind` the others.
    pub state: &'static str,
}

/// One rank.
#[derive(Clone, Debug, Serialize)]
pub struct RankSummary {
    /// The global rank.
    pub rank: Rank,
    /// Its rank within the node.
    pub local_rank: Option<Rank>,
    /// Its node's rank.
    pub node_rank: Option<Rank>,
    /// Its device.
    pub device: Option<GpuUuid>,
    /// `pushing`, `ended`, `silent`, or `behind` the others.
    pub state: &'static str,
    /// Train steps of its last life.
    pub steps: u64,
    /// The first of them.
    pub first: Option<Moment>,
    /// The last of them.
    pub last: Option<Moment>,
    /// How often it began anew.
    pub restarts: u32,
    /// The kinds of the issues that it is in.
    pub issues: Vec<&'static str>,
    /// Live memory at the end of train steps.
    pub allocated: Option<Figures>,
    /// The peak within train steps.
    pub peak_allocated: Option<Figures>,
    /// What the allocator held at the end of train steps.
    pub reserved: Option<Figures>,
    /// The most that it held within train steps.
    pub peak_reserved: Option<Figures>,
    /// Its capacity.
    pub capacity_bytes: Option<Bytes>,
    /// Its highest peak by its capacity.
    pub pressure_ratio: Option<f64>,
    /// Capacity less what others hold less the recent peak, in bytes.
    pub headroom_bytes: Option<f64>,
    /// Its highest peak by the median of the others', less 1.
    pub imbalance_ratio: Option<f64>,
    /// The share of reserved that was not live at the end of the last train step.
    pub fragmentation_ratio: Option<f64>,
    /// What its process uses beyond its allocator, in bytes.
    pub outside_allocator_bytes: Option<f64>,
    /// How live memory moves.
    pub trend: Option<RankTrend>,
    /// What ran beside train steps and with them, by phase.
    pub phases: BTreeMap<&'static str, Ran>,
    /// Out-of-memory errors since its process started.
    pub ooms: Option<Count>,
    /// Failed mallocs that flushed the cache, since its process started.
    pub alloc_retries: Option<Count>,
    /// Live memory as means over equal parts of its steps, in bytes.
    pub series_bytes: Vec<f64>,
}

/// One figure over the train steps of a rank.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// The greatest value.
    pub max_bytes: u64,
    /// The first step that had it.
    pub max_step: u64,
    /// The mean.
    pub mean_bytes: f64,
    /// The last value.
    pub last_bytes: u64,
    /// How far a step is from its neighbours.
    pub noise_bytes: Option<f64>,
}

/// How live memory of a rank moves.
#[derive(Clone, Debug, Serialize)]
pub struct RankTrend {
    /// Which series: a label of a signal.
    pub signal: &'static str,
    /// `creeping` or `rising` while growth holds.
    pub stage: Option<&'static str>,
    /// The slope; absent of a process that does not push.
    pub slope_bytes_per_step: Option<f64>,
    /// The lower end of its 95 % interval.
    pub slope_lower_bytes_per_step: Option<f64>,
    /// The upper end of its 95 % interval.
    pub slope_upper_bytes_per_step: Option<f64>,
    /// The slope in time.
    pub slope_bytes_per_second: Option<f64>,
    /// Grown since the onset.
    pub growth_bytes: Option<f64>,
    /// The step at which growth began.
    pub onset_step: Option<f64>,
    /// When it began, as a Unix time.
    pub onset_time: Option<f64>,
    /// How sure the estimator is, 0 to 1.
    pub confidence_ratio: Option<f64>,
    /// Steps until the headroom is used up.
    pub oom_eta_steps: Option<f64>,
    /// Seconds until then.
    pub oom_eta_seconds: Option<f64>,
    /// Early, middle and late level.
    pub bands: Option<Bands>,
}

/// What one phase of a rank brought.
#[derive(Clone, Debug, Serialize)]
pub struct Ran {
    /// How many records.
    pub records: u64,
    /// The greatest peak of allocated memory.
    pub peak_bytes: Option<Bytes>,
}

impl Summary {
    /// Sums up a run; `snapshots` are those of the run, `None` where nobody knows, as in a recording.
    pub fn of(report: &RunView<'_>, snapshots: Option<Vec<SnapshotStatus>>) -> Self {
        let coverage = coverage(report);
        let ranks: Vec<RankSummary> = rank_summaries(report, &coverage);
        let metrics = metrics(report, &ranks);
        let mut issues = issues(report);
        let skew = metrics.get(PEAK_ALLOCATED).map(|metric| metric.skew_pct);
        let highest = metrics.get(PEAK_ALLOCATED).map(|metric| metric.worst_rank);
        if issues.is_empty() {
            issues.push(neutral(&coverage, &ranks, highest));
        }
        for issue in &mut issues {
            issue.skew_pct = skew.filter(|_| issue.phase.is_some());
        }
        let ranks: Vec<RankSummary> = ranks
            .into_iter()
            .map(|rank| {
                let own = issues
                    .iter()
                    .filter(|issue| issue.phase.is_some() && issue.ranks.contains(&rank.rank));
                RankSummary { issues: own.map(|issue| issue.kind).collect(), ..rank }
            })
            .collect();
        let first = issues.first().cloned();
        let diagnosis = first.unwrap_or_else(|| neutral(&Coverage::default(), &[], None));
        let attempt = report
            .ranks
            .first()
            .map_or_else(Count::default, |(_, report)| report.identity.attempt);
        let span = coverage.first.zip(coverage.last);
        let mut summary = Self {
            schema_version: TRACEML_SCHEMA_VERSION,
            generator: Generator {
                name: env!("CARGO_PKG_NAME"),
                version: env!("CARGO_PKG_VERSION"),
                schema_version: SCHEMA_VERSION,
            },
            policy: "stepmem",
            generated_at: rfc3339(report.time),
            run: report.run.clone(),
            attempt,
            duration_s: span.map(|(first, last)| (last.time - first.time).max(0.0)),
            meta: Value::Null,
            worst_rank: diagnosis.ranks.first().copied().or(highest),
            primary_diagnosis: diagnosis.clone(),
            diagnosis,
            issues,
            metrics,
            coverage,
            ranks,
            snapshots,
            system: section::no_data("system"),
            process: section::no_data("process"),
            step_time: section::no_data("step_time"),
            step_memory: Value::Null,
            text: String::new(),
        };
        summary.meta = section::meta(&summary);
        summary.step_memory = section::step_memory(&summary);
        summary.text = card::render(&summary);
        summary
    }
}

/// The metric of the peak of live memory.
pub const PEAK_ALLOCATED: &str = "peak_allocated";
/// The metric of the most that the allocator held.
pub const PEAK_RESERVED: &str = "peak_reserved";

fn coverage(report: &RunView<'_>) -> Coverage {
    let tallies = || report.ranks.iter().map(|(_, rank)| rank.tally);
    let spans = || tallies().filter_map(|tally| tally.span);
    let ranks_expected =
        report.ranks.iter().filter_map(|(_, rank)| rank.identity.world_size).max();
    let is_seen =
        |rank: &u32| report.ranks.binary_search_by_key(rank, |(seen, _)| seen.get()).is_ok();
    let missing = (0..ranks_expected.unwrap_or(0)).filter(|rank| !is_seen(rank));
    let earliest = |a: Moment, b: Moment| if b.step < a.step { b } else { a };
    let latest = |a: Moment, b: Moment| if b.step > a.step { b } else { a };
    let mut coverage = Coverage {
        ranks_expected,
        ranks_seen: report.ranks.len(),
        n_ranks_missing: u32::try_from(missing.clone().count()).unwrap_or(u32::MAX),
        ranks_missing: missing.take(MISSING_MAX).collect(),
        ranks_lost: Vec::new(),
        ranks_judged: report.ranks.iter().filter(|(_, rank)| is_judged(rank)).count(),
        restarts: tallies().map(|tally| u64::from(tally.n_restarts)).sum(),
        first: spans().map(|span| span.0).reduce(earliest),
        last: spans().map(|span| span.1).reduce(latest),
    };
    let (first, last) = (coverage.first, coverage.last);
    for (rank, of_rank) in &report.ranks {
        let own = of_rank.tally.span.map(|span| span.1);
        let is_behind = first.zip(last).is_some_and(|(first, last)| {
            let behind = last.step - own.map_or(first.step, |own| own.step);
            behind > BEHIND_STEPS_MIN && behind > (last.step - first.step) / 20
        });
        let state = match () {
            () if report.ended.contains(rank) => continue,
            () if is_behind => "behind",
            () if report.silent.contains(rank) => "silent",
            () => continue,
        };
        coverage.ranks_lost.push(Lost { rank: *rank, last: own, state });
    }
    coverage
}

/// Whether the estimator has seen enough of the rank to say how its live memory moves.
fn is_judged(rank: &RankView<'_>) -> bool {
    LIVE_SIGNALS.iter().any(|signal| rank.creep.slope(*signal).is_some())
}

fn rank_summaries(report: &RunView<'_>, coverage: &Coverage) -> Vec<RankSummary> {
    let peaks: Vec<(Rank, f64)> = peaks(report, |tally| &tally.peak_allocated);
    let summary = |(rank, of_rank): &(Rank, RankView<'_>)| {
        let tally = of_rank.tally;
        let lost = coverage.ranks_lost.iter().find(|lost| lost.rank == *rank);
        let state = match lost {
            Some(lost) => lost.state,
            None if report.ended.contains(rank) => "ended",
            None => "pushing",
        };
        RankSummary {
            rank: *rank,
            local_rank: of_rank.identity.local_rank,
            node_rank: of_rank.identity.node_rank,
            device: of_rank.identity.device.clone(),
            state,
            steps: tally.n_steps(),
            first: tally.span.map(|span| span.0),
            last: tally.span.map(|span| span.1),
            restarts: tally.n_restarts,
            issues: Vec::new(),
            allocated: figures(&tally.allocated),
            peak_allocated: figures(&tally.peak_allocated),
            reserved: figures(&tally.reserved),
            peak_reserved: figures(&tally.peak_reserved),
            capacity_bytes: of_rank.capacity,
            pressure_ratio: past_pressure(of_rank)
                .map(|past| past.ratio)
                .into_iter()
                .chain(pressure::of_rank(of_rank).map(|now| now.ratio))
                .reduce(f64::max),
            headroom_bytes: of_rank.headroom_bytes(),
            imbalance_ratio: imbalance(&peaks, *rank).map(|(ratio, _)| ratio),
            fragmentation_ratio: of_rank.fragmentation_ratio(),
            outside_allocator_bytes: of_rank.outside_allocator_bytes,
            trend: LIVE_SIGNALS.iter().find_map(|signal| rank_trend(of_rank, *signal)),
            phases: phases(tally),
            ooms: of_rank.last_train.and_then(|last| last.ooms),
            alloc_retries: of_rank.last_train.and_then(|last| last.alloc_retries),
            series_bytes: tally.means(Kept::Allocated).map(f64::round).collect(),
        }
    };
    report.ranks.iter().map(summary).collect()
}

fn figures(figure: &Figure) -> Option<Figures> {
    let (max, max_step) = figure.max?;
    Some(Figures {
        max_bytes: max.get(),
        max_step,
        mean_bytes: figure.mean()?,
        last_bytes: figure.last?.get(),
        noise_bytes: figure.noise(),
    })
}

fn phases(tally: &Tally) -> BTreeMap<&'static str, Ran> {
    let named = ["train", "eval", "checkpoint"].into_iter().zip(&tally.phases);
    let ran = named.filter(|(_, phase)| phase.n_records > 0);
    ran.map(|(name, PhaseTally { n_records, peak })| {
        (name, Ran { records: *n_records, peak_bytes: *peak })
    })
    .collect()
}

fn rank_trend(rank: &RankView<'_>, signal: Signal) -> Option<RankTrend> {
    let slope = rank.creep.slope(signal)?;
    let per_step = slope.bytes_per_step;
    let trend = rank.creep.trends().find(|trend| trend.signal == signal);
    let figures = trend.map(Trend::figures);
    let figures = figures.as_ref();
    Some(RankTrend {
        signal: signal.as_label(),
        stage: trend.map(|trend| match trend.stage {
            Stage::Rising => "rising",
            Stage::Creeping => "creeping",
        }),
        slope_bytes_per_step: per_step.map(|slope| slope.value),
        slope_lower_bytes_per_step: per_step.map(|slope| slope.lower),
        slope_upper_bytes_per_step: per_step.map(|slope| slope.upper),
        slope_bytes_per_second: slope.bytes_per_second.map(|slope| slope.value),
        growth_bytes: figures.map(|trend| trend.growth_bytes),
        onset_step: figures.and_then(|trend| trend.onset_step).map(Count::as_f64),
        onset_time: figures.map(|trend| trend.onset_time.get()),
        confidence_ratio: figures.map(|trend| trend.confidence_ratio),
        oom_eta_steps: figures.and_then(|trend| trend.oom_eta_steps),
        oom_eta_seconds: figures.and_then(|trend| trend.oom_eta_seconds),
        bands: rank.tally.bands(Kept::Allocated),
    })
}

type FigureOf = fn(&Tally) -> &Figure;

/// The greatest value of a figure, by rank.
fn peaks(report: &RunView<'_>, of: FigureOf) -> Vec<(Rank, f64)> {
    let peak = |(rank, of_rank): &(Rank, RankView<'_>)| {
        Some((*rank, of(of_rank.tally).max?.0.as_f64()))
    };
    report.ranks.iter().filter_map(peak).collect()
}

/// A rank's peak by the median of the others', less 1, and that median.
fn imbalance(peaks: &[(Rank, f64)], rank: Rank) -> Option<(f64, f64)> {
    let own = peaks.iter().find(|(of, _)| *of == rank)?.1;
    let mut others: Vec<f64> =
        peaks.iter().filter(|(of, _)| *of != rank).map(|(_, peak)| *peak).collect();
    let median = estimate::median(&mut others).filter(|median| *median > 0.0)?;
    Some(((own - median) / median, median))
}

fn metrics(report: &RunView<'_>, ranks: &[RankSummary]) -> BTreeMap<&'static str, Metric> {
    let all: [(&'static str, FigureOf, Kept); 2] = [
        (PEAK_ALLOCATED, |tally| &tally.peak_allocated, Kept::PeakAllocated),
        (PEAK_RESERVED, |tally| &tally.peak_reserved, Kept::PeakReserved),
    ];
    all.into_iter()
        .filter_map(|(name, figure, kept)| {
            let peaks = peaks(report, figure);
            let mut sorted: Vec<f64> = peaks.iter().map(|(_, peak)| *peak).collect();
            let median = estimate::median(&mut sorted)?;
            // The lowest rank wins a tie.
            let (worst_rank, worst) =
                peaks.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a })?;
            let by_median = |value: f64| if median > 0.0 { value / median } else { 0.0 };
            let pressure = |(rank, peak): &(Rank, f64)| {
                let of_rank = ranks.iter().find(|of| of.rank == *rank)?;
                let capacity = of_rank.capacity_bytes.filter(|bytes| bytes.get() > 0)?;
                Some(peak / capacity.as_f64())
            };
            let metric = Metric {
                metric: name,
                window_size: None,
                steps_used: ranks.iter().map(|rank| rank.steps).max()?,
                first_step: ranks.iter().filter_map(|rank| Some(rank.first?.step)).min()?,
                completed_step: ranks.iter().filter_map(|rank| Some(rank.last?.step)).max()?,
                ranks_seen: ranks.len(),
                ranks_used: peaks.len(),
                incomplete: peaks.len() < ranks.len(),
                worst_peak_bytes: worst,
                median_peak_bytes: median,
                worst_rank,
                skew_ratio: by_median(worst),
                skew_pct: by_median(worst - median),
                pressure_frac: peaks.iter().filter_map(pressure).reduce(f64::max),
                trend: metric_trend(report, kept),
            };
            Some((name, metric))
        })
        .collect()
}

fn metric_trend(report: &RunView<'_>, kept: Kept) -> MetricTrend {
    let mut grown: Vec<(&(Rank, RankView<'_>), Bands, Option<f64>)> = report
        .ranks
        .iter()
        .filter_map(|rank| {
            let bands = rank.1.tally.bands(kept)?;
            let delta = bands.recent_bytes - bands.baseline_bytes;
            let growth =
                Some(delta / bands.baseline_bytes).filter(|_| bands.baseline_bytes > 0.0);
            Some((rank, bands, growth))
        })
        .collect();
    let delta = |bands: &Bands| bands.recent_bytes - bands.baseline_bytes;
    let mut growths: Vec<f64> = grown.iter().filter_map(|(_, _, growth)| *growth).collect();
    // The lowest rank wins a tie.
    grown.sort_by(|a, b| delta(&b.1).total_cmp(&delta(&a.1)));
    let Some(((rank, of_rank), bands, growth)) = grown.first() else {
        return MetricTrend::default();
    };
    let stage = |stage: Stage| {
        let mut trends = report.ranks.iter().flat_map(|(_, rank)| rank.creep.trends());
        trends.any(|trend| LIVE_SIGNALS.contains(&trend.signal) && trend.stage == stage)
    };
    MetricTrend {
        eligible: is_judged(of_rank),
        rank: Some(*rank),
        baseline_avg_bytes: Some(bands.baseline_bytes),
        mid_avg_bytes: Some(bands.mid_bytes),
        recent_avg_bytes: Some(bands.recent_bytes),
        overall_abs_delta_bytes: Some(delta(bands)),
        overall_worst_growth_pct: *growth,
        overall_median_growth_pct: estimate::median(&mut growths),
        trend_window_steps: Some(of_rank.tally.n_steps()),
        avg_growth_bytes_per_step: of_rank
            .creep
            .slope(Signal::Allocated)
            .and_then(|slope| slope.bytes_per_step)
            .map(|slope| slope.value),
        early: stage(Stage::Rising),
        confirmed: stage(Stage::Creeping),
        score: None,
    }
}

/// What is wrong, one issue a kind, the worst first.
fn issues(report: &RunView<'_>) -> Vec<Issue> {
    let issue_of = |(idx, kind): (usize, &DiagnosisKind)| {
        let findings = report.findings.iter().filter(|finding| finding.kind == *kind);
        let mut told: Vec<Told> = findings.filter_map(Told::of).collect();
        if *kind == DiagnosisKind::HighPressure {
            told.extend(past_pressures(report, &told));
        }
        if *kind == DiagnosisKind::Imbalance && told.is_empty() {
            told = below(report);
        }
        Some((idx, issue(*kind, told)?))
    };
    let mut issues: Vec<(usize, Issue)> =
        DiagnosisKind::ALL.iter().enumerate().filter_map(issue_of).collect();
    issues.sort_by_key(|(idx, issue)| (Reverse(issue.severity), *idx));
    issues.into_iter().map(|(_, issue)| issue).collect()
}

/// The pressures of ranks that went by and are not among those told.
fn past_pressures(report: &RunView<'_>, told: &[Told]) -> Vec<Told> {
    let limits = report.thresholds;
    let past = |(rank, of_rank): &(Rank, RankView<'_>)| {
        let is_told = told.iter().any(|told| told.rank == *rank);
        let past = past_pressure(of_rank).filter(|_| !is_told)?;
        // It went by: one level less than one that holds.
        let severity = match past.ratio {
            ratio if ratio >= limits.pressure_critical => Level::Warn,
            ratio if ratio >= limits.pressure_warning => Level::Info,
            _ => return None,
        };
        Some(past.told(*rank, severity))
    };
    report.ranks.iter().filter_map(past).collect()
}

fn issue(kind: DiagnosisKind, mut told: Vec<Told>) -> Option<Issue> {
    told.sort_by(|a, b| {
        let by_severity = b.severity.cmp(&a.severity);
        by_severity.then(b.score.total_cmp(&a.score)).then(a.rank.cmp(&b.rank))
    });
    let ranks = told.iter().map(|told| told.rank).collect();
    let worst = told.into_iter().next()?;
    Some(Issue {
        kind: kind.label(),
        status: kind.about().title,
        severity: worst.severity,
        summary: worst.sentence,
        action: kind.about().advice,
        metric: worst.metric,
        phase: Some("memory"),
        score: Some(worst.score),
        share_pct: None,
        skew_pct: None,
        ranks,
        evidence: worst.evidence,
    })
}

/// The ranks whose peak is far below that of the others, which then do more than their share: good to know on devices
/// that are not nearly empty.
fn below(report: &RunView<'_>) -> Vec<Told> {
    let peaks = peaks(report, |tally| &tally.peak_allocated);
    let is_in_use = |(_, rank): &(Rank, RankView<'_>)| {
        past_pressure(rank).is_some_and(|past| past.ratio >= PRESSURE_WARNING_MIN)
    };
    if !report.ranks.iter().any(is_in_use) {
        return Vec::new();
    }
    let comparable = report
        .ranks
        .iter()
        .filter(|(_, rank)| rank.life_steps >= COMPARABLE_STEPS_MIN)
        .map(|(rank, _)| *rank);
    comparable
        .filter_map(|rank| {
            let (imbalance_ratio, median_bytes) = imbalance(&peaks, rank)?;
            (imbalance_ratio <= -report.thresholds.imbalance_warning).then(|| Told {
                rank,
                severity: Level::Info,
                metric: PEAK_ALLOCATED,
                score: -imbalance_ratio,
                sentence: format!(
                    "its peak is {} below the median of the other ranks ({}), which do more",
                    percent(-imbalance_ratio),
                    bytes(median_bytes)
                ),
                evidence: Basis::Below { imbalance_ratio, median_bytes },
            })
        })
        .collect()
}

/// One diagnosis of one rank.
struct Told {
    rank: Rank,
    severity: Level,
    metric: &'static str,
    score: f64,
    sentence: String,
    evidence: Basis,
}

impl Told {
    fn of(finding: &Finding) -> Option<Self> {
        let Score { metric, value } = finding.evidence.score();
        Some(Self {
            rank: finding.subject.rank()?.rank,
            severity: match finding.severity {
                Severity::Info => Level::Info,
                Severity::Warning => Level::Warn,
                Severity::Critical => Level::Crit,
            },
            metric,
            score: value,
            sentence: finding.evidence.sentence(),
            evidence: Basis::Now(finding.evidence.clone()),
        })
    }
}

/// The highest peak of a life by the rank's capacity.
struct PastPressure {
    ratio: f64,
    basis: PressureBasis,
    capacity: Bytes,
    step: Option<u64>,
}

impl PastPressure {
    fn told(self, rank: Rank, severity: Level) -> Told {
        let Self { ratio, basis, capacity, step } = self;
        let at = step.map_or_else(
            || " outside train steps".to_owned(),
            |step| format!(" at step {step}"),
        );
        let (of, capacity_bytes) = (bytes(capacity.as_f64()), capacity.get());
        Told {
            rank,
            severity,
            metric: basis.as_metric(),
            score: ratio,
            sentence: format!(
                "the {} peak was at {} of {of}{at}",
                basis.as_label(),
                percent(ratio)
            ),
            evidence: Basis::Past { pressure_ratio: ratio, basis, capacity_bytes, step },
        }
    }
}

fn past_pressure(rank: &RankView<'_>) -> Option<PastPressure> {
    let capacity = rank.capacity?;
    let of_phases = rank.tally.phases.iter().filter_map(|phase| phase.peak);
    let allocated = of_phases.max()?;
    let train = rank.tally.peak_allocated.max.filter(|(peak, _)| *peak == allocated);
    let reserved = rank.tally.peak_reserved.max;
    let (basis, peak, step) = match reserved {
        Some((reserved, step)) if reserved > allocated => {
            (PressureBasis::Reserved, reserved, Some(step))
        }
        _ => (PressureBasis::Allocated, allocated, train.map(|(_, step)| step)),
    };
    Some(PastPressure { ratio: peak.as_f64() / capacity.as_f64(), basis, capacity, step })
}

fn neutral(coverage: &Coverage, ranks: &[RankSummary], worst_rank: Option<Rank>) -> Issue {
    let steps_used = ranks.iter().map(|rank| rank.steps).max().unwrap_or(0);
    let is_judged = coverage.ranks_judged > 0;
    let (kind, status, summary, action) = match steps_used {
        0 => ("NO_DATA", "NO DATA", "no train step was pushed", "Push a record a train step."),
        _ if is_judged => {
            ("BALANCED", "BALANCED", "no creep, pressure or imbalance", "Nothing to do.")
        }
        _ => (
            "BALANCED",
            "BALANCED",
            "no pressure or imbalance; too few steps to judge creep",
            "Look again after more steps.",
        ),
    };
    Issue {
        kind,
        status,
        severity: Level::Info,
        summary: summary.to_owned(),
        action,
        metric: PEAK_ALLOCATED,
        phase: None,
        score: None,
        share_pct: None,
        skew_pct: None,
        ranks: worst_rank.into_iter().collect(),
        evidence: Basis::Neutral { steps_used, worst_rank },
    }
}

//! TraceML 0.3.6's own summary diagnosis of step memory, as a pure function: what it would have said of the same steps.
//! Its formulas are kept as they are, also where ours differ on purpose; nothing here reaches an alert.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::analysis::estimate;
use crate::model::device::GpuSample;
use crate::model::ids::{GpuUuid, Rank};
use crate::model::step::StepSample;
use crate::model::units::Bytes;

/// How many steps TraceML's summary looks at, unless told otherwise.
pub const WINDOW_STEPS: usize = 10_000;
/// How many rows of a rank are kept for each step of the window: TraceML's own retention, 1.5.
const ROWS_PER_STEP: (usize, usize) = (3, 2);
/// How many rows of a rank are kept at least, whatever the window.
const ROWS_MIN: usize = 15_000;
/// Of a rank's steps, TraceML looks for common ones among this many times the window.
const CANDIDATES_PER_STEP: usize = 20;

/// Fewer common steps tell nothing.
pub const STEPS_MIN: usize = 50;
const PRESSURE_WARN: f64 = 0.92;
const PRESSURE_CRIT: f64 = 0.97;
/// Skew and pressure from which an imbalance is a warning, and from which it is critical.
const IMBALANCE_WARN: (f64, f64) = (0.20, 0.30);
const IMBALANCE_CRIT: (f64, f64) = (0.30, 0.50);
/// Growth from which creep is confirmed, in bytes: 1 GiB, on every device.
const CONFIRMED_BYTES: f64 = 1_073_741_824.0;
/// The growth that adds one to the score, in bytes: 100 MiB.
const SCORE_BYTES: f64 = 104_857_600.0;
/// The trend's own window of the growth per step.
const GROWTH_STEPS_MAX: usize = 1000;
/// Shares of the series between which its early, middle and late levels are averaged.
const BASELINE: (f64, f64) = (0.15, 0.25);
const MID: (f64, f64) = (0.45, 0.55);
const RECENT: (f64, f64) = (0.90, 1.00);
/// A baseline below this has no relative growth.
const BASELINE_MIN: f64 = 1e-12;

/// Steps as TraceML keeps them: of each rank the newest rows, each with both peaks.
///
/// It holds 24 bytes a row, at most 15,000 rows a rank or 1.5 times the window.
#[derive(Debug)]
pub struct Rows {
    window: usize,
    ranks: BTreeMap<Rank, VecDeque<Row>>,
    total: Option<f64>,
    /// Whether anything said that there is a GPU, or that there is none.
    has_gpu: Option<bool>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    step: u64,
    peak_allocated: f64,
    peak_reserved: f64,
}

impl Rows {
    /// No steps yet, for a summary of the last `window` common steps; 0 is taken as 1.
    pub fn new(window: usize) -> Self {
        Self { window: window.max(1), ranks: BTreeMap::new(), total: None, has_gpu: None }
    }

    /// Takes a push; like TraceML it does not ask for its attempt, and what lacks a peak is only seen.
    pub fn push(&mut self, sample: &StepSample) {
        let is_host =
            sample.device.as_ref().is_some_and(|device| device.as_str() == GpuUuid::CPU);
        if is_host {
            self.has_gpu.get_or_insert(false);
        } else if sample.device.is_some() || sample.total.is_some() {
            self.has_gpu = Some(true);
        }
        let rows = self.ranks.entry(sample.rank).or_default();
        if !is_host {
            self.total = max_total(self.total, sample.total);
        }
        let (Some(allocated), Some(reserved)) = (sample.peak_allocated, sample.peak_reserved)
        else {
            return;
        };
        let (more, less) = ROWS_PER_STEP;
        if rows.len() >= ROWS_MIN.max(self.window.saturating_mul(more) / less) {
            rows.pop_front();
        }
        rows.push_back(Row {
            step: sample.step.get(),
            peak_allocated: allocated.as_f64(),
            peak_reserved: reserved.as_f64(),
        });
    }

    /// Takes a reading of a device.
    pub fn gpu(&mut self, sample: &GpuSample) {
        self.has_gpu = Some(true);
        self.total = max_total(self.total, sample.memory.map(|memory| memory.total));
    }

    /// What TraceML says of these steps.
    pub fn answer(&self) -> Answer {
        let metrics = self.metrics();
        let fired = metrics.iter().filter(|_| self.has_gpu != Some(false));
        let mut issues: Vec<Issue> = fired.flat_map(Metric::issues).collect();
        issues.sort_by(|a, b| {
            let key = |issue: &Issue| (issue.priority(), Reverse(issue.severity));
            let score = |issue: &Issue| issue.score.unwrap_or(0.0);
            key(a).cmp(&key(b)).then(score(b).total_cmp(&score(a))).then(a.metric.cmp(b.metric))
        });
        if issues.is_empty() {
            issues.push(self.neutral(&metrics));
        }
        let metrics: BTreeMap<_, _> =
            metrics.into_iter().map(|metric| (metric.metric, metric)).collect();
        Answer { policy: "traceml", diagnosis: Primary::of(&issues, &metrics), issues, metrics }
    }

    /// What is said when no rule fires.
    fn neutral(&self, metrics: &[Metric]) -> Issue {
        let ready = metrics.iter().any(|metric| metric.steps_used >= STEPS_MIN);
        // Both peaks have the same steps; TraceML takes the last of them for a verdict, the first for its absence.
        let (kind, about) = if self.has_gpu == Some(false) {
            ("NO_GPU", None)
        } else if ready {
            ("BALANCED", metrics.last())
        } else {
            ("NO_DATA", metrics.first())
        };
        Issue {
            kind,
            status: status(kind),
            severity: Severity::Info,
            metric: about.map_or(PEAK_RESERVED, |metric| metric.metric),
            phase: None,
            score: None,
            share_pct: None,
            skew_pct: None,
            ranks: about.map(|metric| metric.worst_rank).into_iter().collect(),
            evidence: Evidence::Neutral {
                steps_used: about.map_or(0, |metric| metric.steps_used),
                worst_rank: about.map(|metric| metric.worst_rank),
            },
        }
    }

    fn metrics(&self) -> Vec<Metric> {
        let latest: Vec<(Rank, Vec<Row>)> = self
            .ranks
            .iter()
            .filter(|(_, rows)| !rows.is_empty())
            .map(|(rank, rows)| (*rank, self.candidates(rows)))
            .collect();
        let steps = common_steps(&latest, self.window);
        let window: Vec<(Rank, Vec<Row>)> =
            latest.into_iter().map(|(rank, rows)| (rank, only(rows, &steps))).collect();
        let metric = |metric, value| self.metric((metric, value), &steps, &window);
        let both = [
            metric(PEAK_ALLOCATED, |row: &Row| row.peak_allocated),
            metric(PEAK_RESERVED, |row: &Row| row.peak_reserved),
        ];
        both.into_iter().flatten().collect()
    }

    /// The latest row of each step, ascending, of as many of the highest steps as are looked at.
    fn candidates(&self, rows: &VecDeque<Row>) -> Vec<Row> {
        let mut rows: Vec<Row> = rows.iter().copied().collect();
        // Stable, so that of equal steps the newest comes last.
        rows.sort_by_key(|row| row.step);
        rows.reverse();
        rows.dedup_by_key(|row| row.step);
        rows.truncate(self.window.saturating_mul(CANDIDATES_PER_STEP));
        rows.reverse();
        rows
    }

    fn metric(
        &self,
        (metric, value): (&'static str, fn(&Row) -> f64),
        steps: &[u64],
        window: &[(Rank, Vec<Row>)],
    ) -> Option<Metric> {
        let mut column = Vec::with_capacity(window.len());
        let mut worst = Vec::with_capacity(steps.len());
        let mut middle = Vec::with_capacity(steps.len());
        for idx in 0..steps.len() {
            column.clear();
            column.extend(window.iter().filter_map(|(_, rows)| rows.get(idx)).map(value));
            worst.push(column.iter().copied().reduce(f64::max)?);
            middle.push(estimate::median(&mut column)?);
        }
        let peaks: Vec<(Rank, f64)> = window
            .iter()
            .filter_map(|(rank, rows)| Some((*rank, rows.iter().map(value).reduce(f64::max)?)))
            .collect();
        let median_peak =
            estimate::median(&mut peaks.iter().map(|(_, peak)| *peak).collect::<Vec<_>>())?;
        // The lowest rank wins a tie.
        let (worst_rank, worst_peak) =
            peaks.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a })?;
        let by_median = |value: f64| if median_peak > 0.0 { value / median_peak } else { 0.0 };
        let ranks_used = peaks.len();
        Some(Metric {
            metric,
            window_size: self.window,
            steps_used: steps.len(),
            first_step: *steps.first()?,
            completed_step: *steps.last()?,
            ranks_seen: self.ranks.len(),
            ranks_used,
            incomplete: ranks_used < self.ranks.len(),
            worst_peak_bytes: worst_peak,
            median_peak_bytes: median_peak,
            worst_rank,
            skew_ratio: by_median(worst_peak),
            skew_pct: by_median(worst_peak - median_peak),
            pressure_frac: self
                .total
                .filter(|total| *total > 0.0)
                .map(|total| (worst_peak / total).max(0.0)),
            trend: Trend::of(&worst, &middle),
        })
    }
}

/// What TraceML says: the same outer shape as our own summary.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// Whose words these are: `traceml`.
    pub policy: &'static str,
    /// The first issue, with how many steps it is about.
    pub diagnosis: Option<Primary>,
    /// Everything that fired, in TraceML's order; never empty.
    pub issues: Vec<Issue>,
    /// The figures by metric; empty when no step is common to all ranks.
    pub metrics: BTreeMap<&'static str, Metric>,
}

/// The first issue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Primary {
    /// The issue.
    #[serde(flatten)]
    pub issue: Issue,
    /// How many common steps it is about.
    pub steps_used: usize,
    /// The rank with the highest peak, also of a creep.
    pub worst_rank: Option<Rank>,
}

impl Primary {
    fn of(issues: &[Issue], metrics: &BTreeMap<&'static str, Metric>) -> Option<Self> {
        let issue = issues.first()?.clone();
        let about = metrics.get(issue.metric);
        Some(Self {
            steps_used: about.filter(|_| issue.kind != "NO_GPU").map_or(0, |of| of.steps_used),
            worst_rank: issue.ranks.first().copied(),
            issue,
        })
    }
}

/// One thing that TraceML found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Issue {
    /// Its name.
    pub kind: &'static str,
    /// Its name on cards.
    pub status: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// The metric: `peak_allocated` or `peak_reserved`.
    pub metric: &'static str,
    /// `memory`; `None` when nothing fired.
    pub phase: Option<&'static str>,
    /// What orders issues of a kind.
    pub score: Option<f64>,
    /// Not used for memory.
    pub share_pct: Option<f64>,
    /// (worst - median) / median over the ranks' peaks: a ratio.
    pub skew_pct: Option<f64>,
    /// The rank with the highest peak.
    pub ranks: Vec<Rank>,
    /// The figures behind it.
    pub evidence: Evidence,
}

impl Issue {
    fn priority(&self) -> usize {
        let order = ["HIGH_PRESSURE", "IMBALANCE", "CREEP_CONFIRMED", "CREEP_EARLY"];
        order.iter().position(|kind| *kind == self.kind).unwrap_or(order.len())
    }
}

/// How much an issue matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "TraceML's own names")]
pub enum Severity {
    Info,
    Warn,
    Crit,
}

impl Severity {
    /// The severity as it is written.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Crit => "crit",
        }
    }
}

/// The figures behind an issue.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[expect(missing_docs, reason = "TraceML's own names")]
pub enum Evidence {
    Imbalance {
        skew_pct: f64,
        pressure_frac: f64,
    },
    Pressure {
        pressure_frac: f64,
    },
    Creep {
        overall_abs_delta_bytes: f64,
        overall_worst_growth_pct: Option<f64>,
        overall_median_growth_pct: Option<f64>,
    },
    Neutral {
        steps_used: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        worst_rank: Option<Rank>,
    },
}

/// The figures of one metric over the common steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "TraceML's own names")]
pub struct Metric {
    pub metric: &'static str,
    pub window_size: usize,
    pub steps_used: usize,
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
    pub trend: Trend,
}

impl Metric {
    fn issues(&self) -> Vec<Issue> {
        if self.steps_used < STEPS_MIN {
            return Vec::new();
        }
        [self.pressure(), self.imbalance(), self.creep()].into_iter().flatten().collect()
    }

    fn issue(
        &self,
        kind: &'static str,
        severity: Severity,
        (score, evidence): (f64, Evidence),
    ) -> Issue {
        Issue {
            kind,
            status: status(kind),
            severity,
            metric: self.metric,
            phase: Some("memory"),
            score: Some(score),
            share_pct: None,
            // TraceML's rules see no negative skew.
            skew_pct: Some(self.skew_pct.max(0.0)),
            ranks: vec![self.worst_rank],
            evidence,
        }
    }

    fn pressure(&self) -> Option<Issue> {
        let pressure_frac = self.pressure_frac.filter(|pressure| *pressure >= PRESSURE_WARN)?;
        let severity =
            if pressure_frac >= PRESSURE_CRIT { Severity::Crit } else { Severity::Warn };
        let evidence = Evidence::Pressure { pressure_frac };
        Some(self.issue("HIGH_PRESSURE", severity, (pressure_frac, evidence)))
    }

    fn imbalance(&self) -> Option<Issue> {
        let (skew_pct, pressure_frac) = (self.skew_pct.max(0.0), self.pressure_frac?);
        let reaches =
            |(skew, pressure): (f64, f64)| skew_pct >= skew && pressure_frac >= pressure;
        let severity = if reaches(IMBALANCE_CRIT) {
            Severity::Crit
        } else if reaches(IMBALANCE_WARN) {
            Severity::Warn
        } else {
            return None;
        };
        let evidence = Evidence::Imbalance { skew_pct, pressure_frac };
        Some(self.issue("IMBALANCE", severity, (skew_pct, evidence)))
    }

    fn creep(&self) -> Option<Issue> {
        let (kind, severity) = match (self.trend.confirmed, self.trend.early) {
            (true, _) => ("CREEP_CONFIRMED", Severity::Warn),
            (false, true) => ("CREEP_EARLY", Severity::Info),
            (false, false) => return None,
        };
        let evidence = Evidence::Creep {
            overall_abs_delta_bytes: self.trend.overall_abs_delta_bytes?,
            overall_worst_growth_pct: self.trend.overall_worst_growth_pct,
            overall_median_growth_pct: self.trend.overall_median_growth_pct,
        };
        Some(self.issue(kind, severity, (self.trend.score, evidence)))
    }
}

/// How TraceML sees growth: three levels of the worst rank's and the middle rank's value at each step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "TraceML's own names")]
pub struct Trend {
    pub eligible: bool,
    pub baseline_avg_bytes: Option<f64>,
    pub mid_avg_bytes: Option<f64>,
    pub recent_avg_bytes: Option<f64>,
    pub overall_abs_delta_bytes: Option<f64>,
    pub overall_worst_growth_pct: Option<f64>,
    pub overall_median_growth_pct: Option<f64>,
    pub trend_window_steps: Option<usize>,
    pub avg_growth_bytes_per_step: Option<f64>,
    pub early: bool,
    pub confirmed: bool,
    pub score: f64,
}

impl Trend {
    fn of(worst: &[f64], middle: &[f64]) -> Self {
        if worst.len() < STEPS_MIN {
            return Self::default();
        }
        let (worst_levels, middle_levels) = (Levels::of(worst), Levels::of(middle));
        let delta = worst_levels.recent - worst_levels.baseline;
        let rises = worst_levels.rises() && middle_levels.rises();
        let (growth, middle_growth) = (worst_levels.growth(), middle_levels.growth());
        let floored = |growth: Option<f64>| growth.unwrap_or(0.0).max(0.0);
        let n_steps = worst.len().min(GROWTH_STEPS_MAX);
        let first = worst.get(worst.len() - n_steps);
        let per_step = first
            .zip(worst.last())
            .map(|(first, last)| (last - first) / (whole(n_steps) - 1.0));
        Self {
            eligible: true,
            baseline_avg_bytes: Some(worst_levels.baseline),
            mid_avg_bytes: Some(worst_levels.mid),
            recent_avg_bytes: Some(worst_levels.recent),
            overall_abs_delta_bytes: Some(delta),
            overall_worst_growth_pct: growth,
            overall_median_growth_pct: middle_growth,
            trend_window_steps: Some(n_steps),
            avg_growth_bytes_per_step: per_step,
            early: rises && delta > 0.0,
            confirmed: rises && delta >= CONFIRMED_BYTES,
            score: delta.max(0.0) / SCORE_BYTES
                + floored(growth) * 10.0
                + floored(middle_growth) * 6.0,
        }
    }
}

/// The early, middle and late level of a series.
struct Levels {
    baseline: f64,
    mid: f64,
    recent: f64,
}

impl Levels {
    /// Of at most [`WINDOW_STEPS`] of the newest values, as TraceML's trends are.
    fn of(values: &[f64]) -> Self {
        let newest = values.get(values.len().saturating_sub(WINDOW_STEPS)..).unwrap_or(values);
        let level = |(start, end): (f64, f64)| {
            let n = newest.len();
            let start = index((whole(n) * start).floor()).min(n.saturating_sub(1));
            let end = index((whole(n) * end).ceil()).clamp(start + 1, n.max(start + 1));
            let band = newest.get(start..end).unwrap_or_default();
            band.iter().sum::<f64>() / whole(band.len().max(1))
        };
        Self { baseline: level(BASELINE), mid: level(MID), recent: level(RECENT) }
    }

    fn rises(&self) -> bool {
        self.recent - self.mid > 0.0 && self.mid > self.baseline
    }

    fn growth(&self) -> Option<f64> {
        (self.baseline.abs() > BASELINE_MIN)
            .then(|| (self.recent - self.baseline) / self.baseline)
    }
}

const PEAK_ALLOCATED: &str = "peak_allocated";
const PEAK_RESERVED: &str = "peak_reserved";

fn status(kind: &'static str) -> &'static str {
    match kind {
        "HIGH_PRESSURE" => "HIGH PRESSURE",
        "CREEP_CONFIRMED" => "MEMORY CREEP",
        "CREEP_EARLY" => "MEMORY RISING",
        "NO_DATA" => "NO DATA",
        "NO_GPU" => "NO GPU",
        same => same,
    }
}

fn max_total(known: Option<f64>, total: Option<Bytes>) -> Option<f64> {
    let total = total.map(Bytes::as_f64);
    known.zip(total).map(|(a, b)| a.max(b)).or(known).or(total)
}

/// The last `window` steps that every rank has, ascending.
fn common_steps(ranks: &[(Rank, Vec<Row>)], window: usize) -> Vec<u64> {
    let Some(((_, first), others)) = ranks.split_first() else { return Vec::new() };
    let mut common: Vec<u64> = first.iter().map(|row| row.step).collect();
    for (_, rows) in others {
        let mut rows = rows.iter().map(|row| row.step).peekable();
        common.retain(|step| {
            while rows.next_if(|of_rank| of_rank < step).is_some() {}
            rows.peek() == Some(step)
        });
    }
    common.split_off(common.len().saturating_sub(window))
}

/// The rows of these steps.
fn only(rows: Vec<Row>, steps: &[u64]) -> Vec<Row> {
    let mut wanted = steps.iter().peekable();
    let mut rows = rows;
    rows.retain(|row| wanted.next_if_eq(&&row.step).is_some());
    rows
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "far below 2^53")]
fn whole(n: usize) -> f64 {
    n as f64
}

#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a length, never negative"
)]
fn index(value: f64) -> usize {
    value as usize
}

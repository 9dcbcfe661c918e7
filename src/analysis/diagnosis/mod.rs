//! The door of the diagnoses: what one is, what it looks at, and the table of all of them. Each judges in its own
//! file; [`wording`] says it to people.

pub mod creep_confirmed;
pub mod creep_early;
pub mod fragmentation;
pub mod high_pressure;
pub mod imbalance;
pub mod outside_allocator;
pub mod wording;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::trend::{Stage, Trend, TrendFigures};
use crate::analysis::rank::window::RankReport;
use crate::model::ids::{Rank, Run};

/// Every diagnosis, the worst first.
pub const DIAGNOSES: [&Diagnosis; 6] = [
    &creep_confirmed::CREEP_CONFIRMED,
    &high_pressure::HIGH_PRESSURE,
    &imbalance::IMBALANCE,
    &fragmentation::FRAGMENTATION,
    &outside_allocator::OUTSIDE_ALLOCATOR,
    &creep_early::CREEP_EARLY,
];

/// What MEMORY CREEP and MEMORY RISING are about: of a rank that pushes what is live, else all that the driver knows.
pub const LIVE_SIGNALS: [Signal; 2] = [Signal::Allocated, Signal::Process];

/// One thing that can be wrong with a rank.
#[derive(Debug)]
pub struct Diagnosis {
    /// The name in labels and recordings (`CREEP_CONFIRMED`).
    pub kind: &'static str,
    /// The name on pages (`MEMORY CREEP`), TraceML's where it has one.
    pub status: &'static str,
    /// When it holds, in one sentence.
    pub help: &'static str,
    /// What to look at first.
    pub advice: &'static str,
    /// Judges every rank of the scene. It is pure; two calls on one scene give the same findings.
    pub find: fn(&Scene<'_>) -> Vec<Finding>,
}

/// The diagnoses as a page of documentation.
pub fn document() -> String {
    let mut page = String::from(
        "# Diagnoses\n\nGenerated from `src/analysis/diagnosis/`, the worst first. While one holds for a rank, it is \
         in `/api/v1/status`, on\nthe page, and a series of the metric `diagnosis` with the label `kind`.\n",
    );
    for Diagnosis { kind, status, help, advice, .. } in DIAGNOSES {
        let part = format!("\n## {status}\n\n`{kind}`. {help}\n\n{advice}\n");
        page.push_str(&part);
    }
    page
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know.
    Info = 1,
    /// Look at it within the day.
    Warning = 2,
    /// Wakes somebody.
    Critical = 3,
}

impl Severity {
    /// The value of the metric `diagnosis_severity`.
    pub fn level(self) -> u8 {
        match self {
            Self::Info => 1,
            Self::Warning => 2,
            Self::Critical => 3,
        }
    }

    /// The severity in words.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// One diagnosis that holds for one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Which diagnosis: a [`Diagnosis::kind`].
    pub kind: &'static str,
    /// The run.
    pub run: Run,
    /// The rank.
    pub rank: Rank,
    /// How much it matters.
    pub severity: Severity,
    /// The figures behind it.
    pub evidence: Evidence,
}

/// The figures behind a finding.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Evidence {
    /// A series that grows.
    Creep(Box<TrendFigures>),
    /// A peak near the capacity.
    Pressure {
        /// Peak by capacity.
        pressure_ratio: f64,
        /// Whose peak: `allocated`, `reserved`, `device` or `process`.
        basis: &'static str,
        /// The capacity.
        capacity_bytes: u64,
    },
    /// A peak above the other ranks'.
    Imbalance {
        /// This rank's peak by the median of the others, less 1.
        imbalance_ratio: f64,
        /// The median of the other ranks' peaks.
        median_bytes: f64,
        /// This rank's peak by its capacity.
        pressure_ratio: f64,
    },
    /// Memory that the allocator holds without use.
    Fragmentation {
        /// The unused share of what the allocator held at its recent peak.
        fragmentation_ratio: f64,
        /// What it held at its recent peak.
        peak_reserved_bytes: u64,
        /// The capacity.
        capacity_bytes: u64,
    },
    /// Memory of the process that its allocator does not hold.
    OutsideAllocator {
        /// How much.
        outside_bytes: f64,
        /// Its share of the capacity.
        outside_ratio: f64,
        /// The capacity.
        capacity_bytes: u64,
    },
}

/// The limits that findings are judged by.
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds {
    /// Peak by capacity from which pressure is a warning.
    pub pressure_warning: f64,
    /// Peak by capacity from which pressure is critical.
    pub pressure_critical: f64,
    /// Skew from which a run out of balance is a warning.
    pub imbalance_warning: f64,
    /// Skew from which a run out of balance is critical.
    pub imbalance_critical: f64,
    /// A confirmed creep whose time to out-of-memory is below this many seconds is critical.
    pub creep_critical_eta_seconds: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            pressure_warning: 0.92,
            pressure_critical: 0.97,
            imbalance_warning: 0.20,
            imbalance_critical: 0.30,
            creep_critical_eta_seconds: 6.0 * 3600.0,
        }
    }
}

/// All present ranks at one time, and what was found of them the last time.
pub struct Scene<'a> {
    /// The ranks by run, in ascending order of run and rank.
    pub runs: &'a [RunScene<'a>],
    /// The limits.
    pub thresholds: &'a Thresholds,
    /// What held at the last look: findings let go later than they take hold.
    pub held: &'a Findings,
}

/// The present ranks of one run.
pub struct RunScene<'a> {
    /// The run.
    pub run: &'a Run,
    /// Its ranks, ascending.
    pub ranks: Vec<(Rank, RankReport<'a>)>,
}

/// A finding, and since when it holds as a Unix time.
#[derive(Clone, Debug)]
pub struct Held {
    /// The finding.
    pub finding: Finding,
    /// When it was first raised.
    pub since: f64,
}

/// The findings that hold, ascending by run, rank and kind.
#[derive(Debug, Default)]
pub struct Findings {
    by_run: BTreeMap<Run, BTreeMap<(Rank, &'static str), Held>>,
}

impl Findings {
    /// Every finding, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Held> {
        self.by_run.values().flat_map(BTreeMap::values)
    }

    /// Whether nothing holds.
    pub fn is_empty(&self) -> bool {
        self.by_run.is_empty()
    }

    /// Takes a finding in, in place of the one of its run, rank and kind.
    pub fn insert(&mut self, held: Held) {
        let key = (held.finding.rank, held.finding.kind);
        if let Some(of_run) = self.by_run.get_mut(&held.finding.run) {
            of_run.insert(key, held);
        } else {
            self.by_run.insert(held.finding.run.clone(), BTreeMap::from([(key, held)]));
        }
    }

    /// Takes out the finding of the same run, rank and kind.
    pub fn remove(&mut self, finding: &Finding) -> Option<Held> {
        self.by_run.get_mut(&finding.run)?.remove(&(finding.rank, finding.kind))
    }

    /// Says since when a finding that holds has held.
    pub fn held_since(&mut self, (run, rank, kind): (&Run, Rank, &str), since: f64) {
        let of_run = self.by_run.get_mut(run).into_iter().flat_map(BTreeMap::iter_mut);
        for (_, held) in of_run.filter(|((of, named), _)| *of == rank && *named == kind) {
            held.since = since;
        }
    }

    fn get(&self, run: &Run, rank: Rank, kind: &'static str) -> Option<&Held> {
        self.by_run.get(run)?.get(&(rank, kind))
    }
}

/// One rank of the scene.
#[derive(Clone, Copy)]
pub struct Subject<'a, 's> {
    /// Its run.
    pub run: &'a Run,
    /// The rank.
    pub rank: Rank,
    /// Its state.
    pub report: &'s RankReport<'a>,
}

impl Subject<'_, '_> {
    /// A finding about this rank.
    pub fn finding(
        &self,
        kind: &'static str,
        (severity, evidence): (Severity, Evidence),
    ) -> Finding {
        Finding { kind, run: self.run.clone(), rank: self.rank, severity, evidence }
    }

    /// The rank's trend of one signal at one stage, if there is one.
    pub fn trend(&self, signal: Signal, stage: Stage) -> Option<&Trend> {
        self.report.creep.trends().find(|trend| trend.signal == signal && trend.stage == stage)
    }
}

impl<'a> Scene<'a> {
    /// Every rank, in order of run and rank.
    pub fn subjects(&self) -> impl Iterator<Item = Subject<'a, '_>> {
        self.runs.iter().flat_map(|scene| {
            let run = scene.run;
            scene.ranks.iter().map(move |(rank, report)| Subject { run, rank: *rank, report })
        })
    }

    /// The severity with which `kind` held for the rank at the last look.
    pub fn held(&self, subject: &Subject<'_, '_>, kind: &'static str) -> Option<Severity> {
        self.held.get(subject.run, subject.rank, kind).map(|held| held.finding.severity)
    }
}

/// How far a ratio must fall below its limit before a finding that held lets go: no flapping around a limit.
pub const RELEASE_MARGIN: f64 = 0.02;

/// The severity of `value` against two limits; a severity that held stays until `value` is [`RELEASE_MARGIN`]
/// below its limit.
pub fn graded(
    value: f64,
    warning: f64,
    critical: f64,
    held: Option<Severity>,
) -> Option<Severity> {
    let reaches = |limit: f64, severity| {
        let margin = if held >= Some(severity) { RELEASE_MARGIN } else { 0.0 };
        value >= limit - margin
    };
    if reaches(critical, Severity::Critical) {
        Some(Severity::Critical)
    } else if reaches(warning, Severity::Warning) {
        Some(Severity::Warning)
    } else {
        None
    }
}

/// Judges a signal that creeps, as `kind`: critical when its time to out-of-memory is short or pressure is high,
/// else a warning. One that was critical stays so until the time is half as long again as the limit.
pub fn creeping(
    scene: &Scene<'_>,
    subject: &Subject<'_, '_>,
    signal: Signal,
    kind: &'static str,
) -> Option<(Severity, Evidence)> {
    let trend = subject.trend(signal, Stage::Creeping)?;
    let was_critical = scene.held(subject, kind) == Some(Severity::Critical);
    let limit =
        scene.thresholds.creep_critical_eta_seconds * if was_critical { 1.5 } else { 1.0 };
    let is_soon = trend.eta_seconds().is_some_and(|eta| eta.value < limit);
    let margin = if was_critical { RELEASE_MARGIN } else { 0.0 };
    let is_full = high_pressure::highest(subject.report)
        .is_some_and(|pressure| pressure.ratio >= scene.thresholds.pressure_warning - margin);
    let severity = if is_soon || is_full { Severity::Critical } else { Severity::Warning };
    Some((severity, Evidence::Creep(Box::new(trend.figures()))))
}

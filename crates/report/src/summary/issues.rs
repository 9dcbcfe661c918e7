//! The issues of a run: one a kind, the worst first.

use std::cmp::Reverse;

use crate::policy::{IssueSeverity, PeakMetric};
use crate::summary::model::{Issue, IssueEvidence, IssueKind, LowPeak, PastPeak};
use crate::summary::peaks::{LifetimePressure, PeakImbalance, Peaks};
use stepmem_engine::{
    Basis, COMPARABLE_STEPS_MIN, DiagnosisKind, Finding, PRESSURE_WARNING_MIN, RankView,
    RunView, Score, Severity, never_live_ratio, private_pools_bytes, words,
};
use stepmem_types::claims::{Claim, Sentence, Statement};
use stepmem_types::format::units::{bytes, grouped, percent};
use stepmem_types::ids::Rank;

/// One diagnosis of one rank.
struct RankIssue {
    rank: Rank,
    severity: IssueSeverity,
    metric: &'static str,
    /// The higher, the worse.
    score: f64,
    sentence: Sentence,
    /// Advice of its figures, where these have a better one than the diagnosis.
    advice: Option<Statement>,
    evidence: IssueEvidence,
}

/// Returns the issues of a run; none when nothing is wrong.
pub(crate) fn issues(run: &RunView<'_>) -> Vec<Issue> {
    let issue_of = |(idx, kind): (usize, &DiagnosisKind)| {
        let findings = run.findings.iter().filter(|finding| finding.kind == *kind);
        let mut of_ranks: Vec<RankIssue> = findings.filter_map(RankIssue::of).collect();
        if kind.of_own() == DiagnosisKind::HighPressure {
            of_ranks.extend(past_pressures(run, *kind, &of_ranks));
        }
        if *kind == DiagnosisKind::Imbalance && of_ranks.is_empty() {
            of_ranks = low_peaks(run);
        }
        Some((idx, issue(*kind, of_ranks)?))
    };
    let mut issues: Vec<(usize, Issue)> =
        DiagnosisKind::ALL.iter().enumerate().filter_map(issue_of).collect();
    issues.sort_by_key(|(idx, issue)| (Reverse(issue.severity), *idx));
    issues.into_iter().map(|(_, issue)| issue).collect()
}

/// Joins what was found of each rank, the worst first; `None` when that is nothing.
fn issue(kind: DiagnosisKind, mut of_ranks: Vec<RankIssue>) -> Option<Issue> {
    of_ranks.sort_by(|a, b| {
        let by_severity = b.severity.cmp(&a.severity);
        by_severity.then(b.score.total_cmp(&a.score)).then(a.rank.cmp(&b.rank))
    });
    let ranks = of_ranks.iter().map(|issue| issue.rank).collect();
    let worst = of_ranks.into_iter().next()?;
    let of_kind = || Statement::new(Claim::Advice, kind.about().advice);
    let advice = worst.advice.unwrap_or_else(of_kind);
    Some(Issue {
        kind: IssueKind::Diagnosis(kind),
        status: kind.about().title.into(),
        severity: worst.severity,
        summary: worst.sentence.words().to_owned(),
        action: advice.words().to_owned().into(),
        metric: worst.metric.into(),
        phase: Some("memory".into()),
        score: Some(worst.score),
        skew_pct: None,
        ranks,
        evidence: worst.evidence,
        statements: worst.sentence.then(". ", advice).into_statements(),
    })
}

/// Returns the ranks whose past peak was near their capacity, or that of the host next to it,
/// but for those that have an issue already.
fn past_pressures(
    run: &RunView<'_>,
    kind: DiagnosisKind,
    found: &[RankIssue],
) -> Vec<RankIssue> {
    let is_next_to = kind.is_of_host();
    let limits = run.thresholds;
    let past = |(rank, view): &(Rank, RankView<'_>)| {
        let is_found = found.iter().any(|issue| issue.rank == *rank);
        // It is over: one level less than one that holds, which is critical of live memory
        // only.
        let grade = |pressure: LifetimePressure| {
            let is_live = pressure.basis == Basis::Allocated;
            let severity = match pressure.ratio {
                ratio if is_live && ratio >= limits.pressure_critical => IssueSeverity::Warn,
                ratio if ratio >= limits.pressure_warning => IssueSeverity::Info,
                _ => return None,
            };
            Some((severity, pressure))
        };
        let worse = |a: (IssueSeverity, LifetimePressure),
                     b: (IssueSeverity, LifetimePressure)| {
            if (b.0, b.1.ratio) > (a.0, a.1.ratio) { b } else { a }
        };
        let of_host = LifetimePressure::of_host(view).filter(|_| is_next_to);
        let own = LifetimePressure::all(view).filter(|_| !is_next_to);
        let graded = own.chain(of_host).filter(|_| !is_found).filter_map(grade);
        let (severity, pressure) = graded.reduce(worse)?;
        let is_on_host = is_next_to || view.identity.is_host();
        let advice = words::pressure_advice(
            is_on_host,
            private_pools_bytes(view).filter(|_| pressure.basis == Basis::Reserved),
            never_live(view, pressure),
        );
        let issue = RankIssue::of_pressure(*rank, pressure, severity, is_on_host);
        Some(RankIssue { advice, ..issue })
    };
    run.ranks.iter().filter_map(past).collect()
}

/// Returns the share of the capacity that was reserved and never live, where the pressure was
/// of what was reserved.
fn never_live(view: &RankView<'_>, pressure: LifetimePressure) -> Option<f64> {
    let lifetime = view.lifetime;
    let live = lifetime.phases.iter().filter_map(|phase| phase.peak).max();
    let reserved = lifetime.peak_reserved.max.or(lifetime.reserved.max)?.0;
    let is_reserved = pressure.basis == Basis::Reserved;
    let live = live.or(view.high_water_allocated).filter(|_| is_reserved)?;
    never_live_ratio(reserved, live, pressure.capacity)
}

/// Returns the ranks whose peak is far below the others', which then do more than their share.
/// That is good to know on devices that are not nearly empty.
fn low_peaks(run: &RunView<'_>) -> Vec<RankIssue> {
    let is_in_use = |(_, view): &(Rank, RankView<'_>)| {
        LifetimePressure::of(view)
            .is_some_and(|pressure| pressure.ratio >= PRESSURE_WARNING_MIN)
    };
    if !run.ranks.iter().any(is_in_use) {
        return Vec::new();
    }
    let peaks = Peaks::of(run, PeakMetric::Allocated);
    let limit = -run.thresholds.imbalance_warning;
    run.ranks
        .iter()
        .filter(|(_, view)| view.life_steps >= COMPARABLE_STEPS_MIN)
        .filter_map(|(rank, _)| Some((*rank, peaks.against_others(*rank)?)))
        .filter(|(_, imbalance)| imbalance.ratio <= limit)
        .map(|(rank, imbalance)| RankIssue::of_low_peak(rank, imbalance))
        .collect()
}

impl RankIssue {
    /// Returns a finding of a rank; `None` of another subject, and of growth that has ended.
    fn of(finding: &Finding) -> Option<Self> {
        if finding.evidence.is_level() {
            return None;
        }
        let Score { metric, value } = finding.evidence.score();
        Some(Self {
            rank: finding.subject.rank()?.rank,
            severity: match finding.severity {
                Severity::Info => IssueSeverity::Info,
                Severity::Warning => IssueSeverity::Warn,
                Severity::Critical => IssueSeverity::Crit,
            },
            metric,
            score: value,
            sentence: finding.evidence.sentence(),
            advice: Some(finding.advice()),
            evidence: IssueEvidence::Finding(finding.evidence.clone()),
        })
    }

    fn of_pressure(
        rank: Rank,
        pressure: LifetimePressure,
        severity: IssueSeverity,
        is_on_host: bool,
    ) -> Self {
        let LifetimePressure { ratio, basis, capacity, step } = pressure;
        let at = match (step, basis) {
            (Some(step), _) => format!(" at step {}", grouped(step)),
            (None, Basis::HighWater) => String::new(),
            (None, _) => " outside train steps".to_owned(),
        };
        let peak = match basis {
            _ if is_on_host => "peak of host memory".to_owned(),
            Basis::HighWater => "high-water mark of allocated memory".to_owned(),
            _ => format!("{} peak", basis.as_label()),
        };
        let (of, capacity_bytes) = (bytes(capacity.as_f64()), capacity.get());
        let words = format!("the {peak} was at {} of {of}{at}", percent(ratio));
        let pressure = Statement::new(Claim::PastPressure, words);
        let capacity = Statement::new(Claim::Capacity, of).of(capacity.as_f64());
        Self {
            rank,
            severity,
            metric: basis.as_metric(),
            score: ratio,
            sentence: Sentence::from(pressure.of(ratio)).with(capacity),
            advice: None,
            evidence: IssueEvidence::PastPeak(PastPeak {
                pressure_ratio: ratio,
                basis,
                capacity_bytes,
                step,
            }),
        }
    }

    fn of_low_peak(rank: Rank, imbalance: PeakImbalance) -> Self {
        let PeakImbalance { ratio, median_bytes } = imbalance;
        let words = format!(
            "its peak is {} below the median of the other ranks ({}), which do more",
            percent(-ratio),
            bytes(median_bytes)
        );
        Self {
            rank,
            severity: IssueSeverity::Info,
            metric: PeakMetric::Allocated.as_label(),
            score: -ratio,
            sentence: Statement::new(Claim::LowPeak, words).of(-ratio).into(),
            advice: None,
            evidence: IssueEvidence::LowPeak(LowPeak {
                peak_imbalance_ratio: ratio,
                median_bytes,
            }),
        }
    }
}

//! Ranks as rows of a table for a terminal: their order and their cells.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::closing::color_of;
use crate::limits::limited_quantity;
use crate::rates::told_rate;
use stepmem_detect::Signal;
use stepmem_engine::status::{FindingStatus, RankStatus, SignalStatus, Status};
use stepmem_engine::{Basis, Severity};
use stepmem_types::format::page::{Cell, Column, Table};
use stepmem_types::format::units::{
    bytes, duration, grouped, hourly, or_unknown, percent, time_left_cell,
};
use stepmem_types::ids::SubjectId;
use stepmem_types::step::StepUnit;
use stepmem_types::units::Bytes;

/// An order of ranks, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankOrder {
    /// The severity of their worst finding.
    Severity,
    /// The share of the capacity that their peak takes.
    Pressure,
    /// The time until out-of-memory.
    Eta,
    /// The number of the rank.
    Rank,
}

impl RankOrder {
    /// Every order.
    pub const ALL: [Self; 4] = [Self::Severity, Self::Pressure, Self::Eta, Self::Rank];

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Severity => "severity",
            Self::Pressure => "pressure",
            Self::Eta => "eta",
            Self::Rank => "rank",
        }
    }
}

/// Sorts ranks, the most urgent first; equally urgent ones by run and rank, and those of which
/// it is unknown last.
pub fn sort_ranks<R: Borrow<RankStatus>>(
    ranks: &mut [R],
    findings: &[FindingStatus],
    order: RankOrder,
) {
    let eta = |rank: &R| {
        let rank = rank.borrow();
        rank.oom_eta_seconds.or(rank.oom_eta_lower_seconds).unwrap_or(f64::INFINITY)
    };
    let pressure = |rank: &R| -highest_pressure(rank.borrow()).unwrap_or(-1.0);
    ranks.sort_by(|a, b| {
        let (a, b) = (a.borrow(), b.borrow());
        (&a.run, a.rank).cmp(&(&b.run, b.rank))
    });
    match order {
        RankOrder::Rank => {}
        RankOrder::Severity => {
            let worst = worst_severities(findings);
            ranks.sort_by_cached_key(|rank| {
                Reverse(worst.get(&SubjectId::Rank(rank.borrow().id())).copied())
            });
        }
        RankOrder::Pressure => ranks.sort_by(|a, b| pressure(a).total_cmp(&pressure(b))),
        RankOrder::Eta => ranks.sort_by(|a, b| eta(a).total_cmp(&eta(b))),
    }
}

fn worst_severities(findings: &[FindingStatus]) -> BTreeMap<&SubjectId, Severity> {
    let mut worst = BTreeMap::new();
    for finding in findings {
        let of_subject = worst.entry(&finding.subject).or_insert(finding.severity);
        *of_subject = finding.severity.max(*of_subject);
    }
    worst
}

/// Returns the table of all ranks of a status, in its order.
pub fn rank_table(status: &Status) -> Table {
    let run = Column::left(1, "RUN").shortenable();
    // One run needs no column that shows which run it is.
    let run = if status.runs.len() > 1 { run } else { run.droppable(0) };
    let mut table = Table::new([
        run,
        Column::right(2, "RANK"),
        Column::right(2, "ATTEMPT").droppable(1),
        Column::right(2, "STEP").droppable(6),
        Column::right(2, "PUSHED").droppable(4),
        Column::right(2, "ALLOCATED"),
        Column::right(2, "PEAK").droppable(5),
        Column::right(2, "RESERVED").droppable(3),
        Column::right(2, "CAPACITY").droppable(2),
        Column::right(2, "PRESSURE").droppable(7),
        Column::right(2, "SLOPE/STEP"),
        Column::right(2, "OOM IN"),
        Column::left(2, "DIAGNOSIS"),
    ]);
    for rank in &status.ranks {
        table.row(rank_row(status, rank));
    }
    table
}

/// Returns the diagnoses of a rank, or why there are none yet.
fn verdict(status: &Status, rank: &RankStatus) -> Cell {
    let diagnoses = diagnoses(status, &SubjectId::Rank(rank.id()));
    match (activity(rank), rank.judging_from_step) {
        (Some(activity), _) if diagnoses.is_empty() && !rank.is_judged => {
            format!("TOO FEW {}; {activity}", rank.identity.unit.as_label().to_uppercase())
                .into()
        }
        (Some(activity), _) if diagnoses.is_empty() => activity.into(),
        (Some(activity), _) => diagnoses.with(&format!("; {activity}")),
        (None, Some(step)) if diagnoses.is_empty() => {
            let from = grouped(step);
            let noun = rank.identity.unit.noun();
            format!("no finding; growth judged from {noun} {from}").into()
        }
        _ if diagnoses.is_empty() && rises_straight(rank) => "rises straight".into(),
        (None, None) if diagnoses.is_empty() && rank.is_by_time => "judged by time".into(),
        _ => diagnoses,
    }
}

/// Returns whether live memory of a rank rises in a straight line, though no diagnosis holds of
/// it.
pub(crate) fn rises_straight(rank: &RankStatus) -> bool {
    rank.creep.iter().any(|signal| signal.signal == Signal::Allocated && signal.is_straight)
}

/// Returns that a rank ended or is silent, in words; `None` of one that pushes.
fn activity(rank: &RankStatus) -> Option<String> {
    if let Some(end) = &rank.end {
        return Some(format!("ended ({})", end.outcome.as_label()));
    }
    let silent = rank.silent_seconds.map(|seconds| format!("silent for {}", duration(seconds)));
    let without_steps = || {
        Some(format!(
            "no {} for {}",
            rank.identity.unit.noun(),
            duration(rank.without_steps_seconds?)
        ))
    };
    silent.or_else(without_steps)
}

fn rank_row(status: &Status, rank: &RankStatus) -> [Cell; 13] {
    let last = rank.last_train.as_ref();
    let has_steps = rank.totals.steps > 0 || !rank.is_by_time;
    let allocated = rank.creep.iter().find(|signal| signal.signal == Signal::Allocated);
    [
        rank.run.as_str().into(),
        rank.rank.to_string().into(),
        rank.identity.attempt.get().to_string().into(),
        or_unknown(last.filter(|_| has_steps).map(|last| last.step.get().to_string())).into(),
        duration((status.time - rank.last_push_time).max(0.0)).into(),
        quantity(last.map(|last| last.allocated)),
        quantity(rank.recent_peak_allocated),
        quantity(last.and_then(|last| last.reserved)),
        limited_quantity(rank.capacity, rank.capacity_set_by).into(),
        or_unknown(highest_pressure(rank).map(percent)).into(),
        or_unknown(allocated.and_then(|of| slope(of, rank.identity.unit))).into(),
        or_unknown(time_left_cell(rank.oom_eta_seconds, rank.oom_eta_lower_seconds)).into(),
        verdict(status, rank),
    ]
}

fn highest_pressure(rank: &RankStatus) -> Option<f64> {
    let of_device = rank.pressures.iter().filter(|(basis, _)| **basis != Basis::Host);
    of_device.map(|(_, ratio)| *ratio).reduce(f64::max)
}

/// Returns a quantity of bytes, or that it is unknown.
pub fn quantity(value: Option<Bytes>) -> Cell {
    or_unknown(value.map(|value| bytes(value.as_f64()))).into()
}

/// Returns the rate at which a signal grows: per step, or per hour where none are taken.
pub fn slope(signal: &SignalStatus, unit: StepUnit) -> Option<String> {
    let slope = signal.slope_bytes_per_step.filter(|_| !unit.is_calls());
    let ends = (signal.slope_lower_bytes_per_step, signal.slope_upper_bytes_per_step);
    let per_step = told_rate(slope, ends.0, ends.1).map(bytes);
    let by_time = || signal.slope_bytes_per_second.filter(|_| slope.is_none()).map(hourly);
    per_step.or_else(by_time)
}

/// Returns the diagnoses of a subject, in the color of the worst.
pub fn diagnoses(status: &Status, subject: &SubjectId) -> Cell {
    let own = || status.findings.iter().filter(|finding| finding.subject == *subject);
    let titles: Vec<&str> = own().map(|finding| finding.title.as_ref()).collect();
    let worst = own().map(|finding| finding.severity).max();
    Cell::from(titles.join(", ")).in_color(worst.map(color_of))
}

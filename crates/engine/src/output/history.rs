//! The past of ranks for charts, as others read it: columns of equal length.

use serde::Serialize;

use crate::engine::Engine;
use crate::kind::{DiagnosisKind, Severity};
use crate::ranks::history::{Figures, Happened, History, MarkerKind, POINTS_MAX};
use crate::ranks::state::RankState;
use stepmem_types::end::EndOutcome;
use stepmem_types::ids::{Rank, Run};
use stepmem_types::units::Bytes;

/// Number of values of a run's history at most, unless it has more ranks than that.
pub(crate) const RUN_VALUES_MAX: usize = 16_384;

/// The history of one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankHistory {
    pub run: Run,
    pub rank: Rank,
    /// Seconds that a point covers at most.
    pub resolution_seconds: f64,
    /// The Unix times of the points, ascending: that of the last record of each.
    pub time: Vec<f64>,
    /// The last train step of each.
    pub step: Vec<Option<u64>>,
    /// Live memory at that step.
    pub allocated_bytes: Vec<Option<Bytes>>,
    /// The greatest known peak within the point.
    pub peak_allocated_bytes: Vec<Option<Bytes>>,
    pub reserved_bytes: Vec<Option<Bytes>>,
    /// Host memory of its process, where the rank's other figures are a device's.
    pub host_allocated_bytes: Vec<Option<Bytes>>,
    /// The number of the allocator's live blocks at that step, where it counts them.
    pub live_blocks: Vec<Option<u64>>,
    /// The positions of points before which the rank was silent, or another process.
    pub gaps: Vec<usize>,
    /// The markers of what happened, the oldest first.
    pub markers: Vec<MarkerStatus>,
    /// Number of markers that were given up.
    pub markers_dropped: u64,
}

/// Something that happened to a rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MarkerStatus {
    /// The Unix time.
    pub time: f64,
    /// The last train step before it.
    pub step: Option<u64>,
    pub kind: &'static str,
    /// The outcome of an end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<EndOutcome>,
    /// The diagnosis of a finding that began, changed its severity or ceased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<DiagnosisKind>,
    /// The name of that diagnosis on pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<&'static str>,
    /// The severity of that finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
}

/// The live memory of the ranks of a run, at the same times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunHistory {
    pub run: Run,
    /// The Unix times, ascending and as far apart.
    pub time: Vec<f64>,
    pub ranks: Vec<RankLevels>,
}

/// The live memory of one rank at the times of its run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankLevels {
    pub rank: Rank,
    pub allocated_bytes: Vec<Option<Bytes>>,
}

impl Engine {
    /// Returns the history of a rank; `None` when it is not held.
    pub fn history(&self, run: &Run, rank: Rank) -> Option<RankHistory> {
        let state = self.ranks.get(run, rank)?;
        let (history, is_host) = (state.history(), state.identity().is_host());
        let points: Vec<Figures> = history.points().collect();
        let column = |of: fn(&Figures) -> Option<Bytes>| points.iter().map(of).collect();
        let is_gap =
            |(idx, point): (usize, &Figures)| (idx > 0 && point.follows_gap).then_some(idx);
        Some(RankHistory {
            run: run.clone(),
            rank,
            resolution_seconds: history.resolution_seconds(),
            time: points.iter().map(|point| rounded(point.time)).collect(),
            step: points.iter().map(|point| point.step).collect(),
            allocated_bytes: column(|point| point.allocated),
            peak_allocated_bytes: column(|point| point.peak_allocated),
            // Nothing reserves host memory.
            reserved_bytes: if is_host {
                vec![None; points.len()]
            } else {
                column(|point| point.reserved)
            },
            host_allocated_bytes: column(|point| point.host),
            live_blocks: points.iter().map(|point| point.live_blocks).collect(),
            gaps: points.iter().enumerate().filter_map(is_gap).collect(),
            markers: history.markers().map(|happened| MarkerStatus::of(&happened)).collect(),
            markers_dropped: history.markers_dropped(),
        })
    }

    /// Returns the live memory of all ranks of a run that are held, over the time of the
    /// longest history; `None` without one.
    pub fn run_history(&self, run: &Run) -> Option<RunHistory> {
        let (run, states) = self.ranks.run(run)?;
        let times = || {
            let histories = states.values().map(RankState::history);
            histories.flat_map(|history| history.points().map(|point| point.time))
        };
        let (first, last) = (times().reduce(f64::min)?, times().reduce(f64::max)?);
        let n_columns = (RUN_VALUES_MAX / states.len().max(1)).clamp(1, POINTS_MAX);
        let mut time: Vec<f64> = grid(first, last, n_columns).collect();
        // A short history has fewer tenths of a second than columns.
        time.dedup();
        let ranks = states.iter().map(|(rank, state)| RankLevels {
            rank: *rank,
            allocated_bytes: levels(state.history(), &time),
        });
        Some(RunHistory { run: run.clone(), ranks: ranks.collect(), time })
    }
}

impl MarkerStatus {
    fn of(happened: &Happened) -> Self {
        let Happened { time, step, kind } = *happened;
        let finding = match kind {
            MarkerKind::Raised(kind, severity) | MarkerKind::Cleared(kind, severity) => {
                Some((kind, severity))
            }
            _ => None,
        };
        let outcome = match kind {
            MarkerKind::End(outcome) => Some(outcome),
            _ => None,
        };
        Self {
            time: rounded(time),
            step,
            kind: kind.as_label(),
            outcome,
            diagnosis: finding.map(|(kind, _)| kind),
            status: finding.map(|(kind, _)| kind.about().title),
            severity: finding.map(|(_, severity)| severity),
        }
    }
}

/// Returns so many times as far apart, up to the last one.
fn grid(first: f64, last: f64, n_columns: usize) -> impl Iterator<Item = f64> {
    let n_columns = u32::try_from(n_columns).unwrap_or(1);
    let width = (last - first) / f64::from(n_columns);
    // Up, so that the last point is not after the last time.
    let tenth = |time: f64| (time * 10.0).ceil() / 10.0;
    (1..=n_columns).map(move |column| tenth(first + f64::from(column) * width))
}

/// Returns the last live memory of a rank at each of these times. It is unknown before the
/// rank's first point, after its last, and in a gap.
fn levels(history: &History, times: &[f64]) -> Vec<Option<Bytes>> {
    let width = times.iter().zip(times.iter().skip(1)).map(|(a, b)| b - a).next();
    let kept = width.unwrap_or(f64::INFINITY).max(history.resolution_seconds());
    let mut points = history.points().filter(|point| point.allocated.is_some()).peekable();
    let mut last: Option<Figures> = None;
    let level = |time: &f64| {
        while let Some(point) = points.next_if(|point| point.time <= *time) {
            last = Some(point);
        }
        let next_is_joined = points.peek().is_some_and(|next| !next.follows_gap);
        let held = last.filter(|last| next_is_joined || *time - last.time < kept)?;
        held.allocated
    };
    times.iter().map(level).collect()
}

/// Returns a Unix time to a tenth of a second.
fn rounded(time: f64) -> f64 {
    (time * 10.0).round() / 10.0
}

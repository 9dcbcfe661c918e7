//! The verdict on the plan of a run whose memory grows: what is best done with it.

use crate::diagnosis::Evidence;
use crate::diagnosis::shared::input::{DiagnosisInput, Subject, SubjectView};
use crate::diagnosis::shared::run_end::{EndsFirst, RunEndFigures};
use crate::diagnosis::shared::trend_figures::TrendFigures;
use crate::ranks::basis::Basis;
use crate::ranks::lifetime::Kept;
use crate::ranks::view::RankView;
use stepmem_detect::{Signal, Slope, Trend};
use stepmem_types::claims::Claim;
use stepmem_types::claims::Sentence;
use stepmem_types::claims::Statement;
use stepmem_types::format::units::{counted, duration};
use stepmem_types::ids::ProcessId;

/// A run that needs more restarts is not worth them.
const RESTARTS_MAX: f64 = 20.0;

/// Peaks and live memory are level if they rose by at most this part of what is left, over most
/// of a life.
const RISE_RATIO_MAX: f64 = 0.05;

/// The best action for a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Plan {
    /// The run ends before its memory does.
    LetRun,
    /// Restarts from a checkpoint get it to its end.
    Restart {
        restarts: f64,
        /// Seconds that each adds, where that is known.
        buys_seconds: Option<f64>,
    },
    /// No number of restarts does that is worth it.
    Stop,
    /// Memory is nearly full and level: only a smaller step leaves more of it.
    Change,
}

impl Plan {
    /// Returns the verdict on growth that goes on; `None` where it is open which end comes first,
    /// what a restart gains is not known, or nothing is left.
    pub(crate) fn of(growth: &TrendFigures) -> Option<Self> {
        let is_full = growth.headroom_bytes == Some(0.0);
        let goes_on = !growth.is_over && !growth.is_level() && !growth.ends() && !is_full;
        let RunEndFigures { first, restarts, .. } = growth.run_end.filter(|_| goes_on)?;
        match (first, restarts) {
            (EndsFirst::Run, _) => Some(Self::LetRun),
            (EndsFirst::Memory, Some(restarts)) if restarts <= RESTARTS_MAX => {
                Some(Self::Restart { restarts, buys_seconds: buys_seconds(growth) })
            }
            (EndsFirst::Memory, Some(_)) => Some(Self::Stop),
            (EndsFirst::Memory, None) | (EndsFirst::Open, _) => None,
        }
    }

    /// Returns the verdict that a finding states.
    pub(crate) fn of_evidence(evidence: &Evidence) -> Option<Self> {
        match evidence {
            Evidence::HighPressure(of) => of.is_level.then_some(Self::Change),
            _ => evidence.growth().and_then(Self::of),
        }
    }

    /// Returns the name in labels.
    pub(crate) fn as_label(self) -> &'static str {
        match self {
            Self::LetRun => "let_run",
            Self::Restart { .. } => "restart",
            Self::Stop => "stop",
            Self::Change => "change",
        }
    }

    /// Returns the verdict on a rank whose live memory is near its capacity. `None` beside growth
    /// of any kind, before it is known that there is none, and where the rest of the run is
    /// shorter than what was level.
    pub(crate) fn of_full(
        input: &DiagnosisInput<'_>,
        subject: &Subject<'_, '_>,
    ) -> Option<Self> {
        let SubjectView::Rank(run, _, rank) = subject.view else { return None };
        let is_over =
            rank.is_over() || run.end.is_reached_within(rank, f64::from(rank.life_steps));
        let is_level = is_level(rank) && !run.is_growing && !others_grow(input, rank);
        (is_level && !is_over).then_some(Self::Change)
    }

    /// States the verdict.
    pub(crate) fn sentence(self) -> Sentence {
        match self {
            Self::LetRun => Statement::new(Claim::LetRun, "let it run").into(),
            Self::Restart { restarts, buys_seconds } => {
                let (words, whose) = if restarts > 1.0 {
                    let n = counted(restarts, "restart");
                    (format!("it takes {n} from a checkpoint"), "each")
                } else {
                    ("one restart from a checkpoint is enough".to_owned(), "it")
                };
                let buys = buys_seconds.map(|seconds| {
                    let words = format!("{whose} buys {}", duration(seconds));
                    Statement::new(Claim::RestartBuys, words).of(seconds)
                });
                let takes = Statement::new(Claim::Restarts, words).of(restarts);
                Sentence::from(takes).then_if(", ", buys)
            }
            Self::Stop => {
                Statement::new(Claim::StopRun, "stop it, no restart gets it there").into()
            }
            Self::Change => {
                let words = "its peaks are level: change the run, a restart gains nothing";
                Statement::new(Claim::ChangeRun, words).into()
            }
        }
    }
}

/// Returns whether an unmanaged process grows on the device of a rank.
pub(super) fn others_grow(input: &DiagnosisInput<'_>, rank: &RankView<'_>) -> bool {
    let uses_its_device = |id: &ProcessId| rank.identity.device.as_ref() == Some(&id.uuid);
    input.processes.iter().any(|(id, process)| {
        let trend = process.creep.trend(Signal::Process);
        uses_its_device(id) && trend.is_some_and(Trend::is_growing)
    })
}

/// Returns whether the peaks of training steps, and what they leave behind, are known to be level.
fn is_level(rank: &RankView<'_>) -> bool {
    let detector = rank.detectors.own();
    // A rise that is too slow for a trend counts, too.
    let rises_not = |slope: Slope| {
        !slope.is_straight && slope.bytes_per_step.is_some_and(|slope| slope.lower <= 0.0)
    };
    let is_judged = !rank.is_by_time()
        && !rank.identity.unit.is_calls()
        && detector.samples_until_judged() == 0
        && rank.floors.is_judged()
        && detector.slope(Signal::Allocated).is_some_and(rises_not);
    let left = rank.headroom().filter(|left| is_judged && left.basis == Basis::Allocated);
    let Some((left, peaks)) = left.zip(rank.lifetime.bands(Kept::PeakAllocated)) else {
        return false;
    };
    let rise = peaks.recent_bytes - peaks.baseline_bytes.min(peaks.mid_bytes);
    !is_rise(rise, left.bytes) && rank.floors.stairs().is_none()
}

/// Returns whether memory that rose by so much, where so much is left, is not level.
pub(super) fn is_rise(bytes: f64, left_bytes: f64) -> bool {
    bytes > RISE_RATIO_MAX * left_bytes
}

/// Returns the time that memory lasts from where its growth began; `None` next to other growth in
/// its container.
fn buys_seconds(growth: &TrendFigures) -> Option<f64> {
    let room = growth.headroom_bytes.filter(|_| growth.container.is_none())?;
    let pace = growth.slope_bytes_per_second.filter(|pace| *pace > 0.0)?;
    Some((room + growth.growth_bytes) / pace)
}

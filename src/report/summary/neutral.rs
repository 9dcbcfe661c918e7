//! The issue that stands where no diagnosis holds: that memory is balanced, rises slowly all the same, or that the run
//! failed or was too short.

use std::borrow::Cow;

use crate::model::end::EndOutcome;
use crate::model::ids::{GpuUuid, Rank};
use crate::report::policy::{IssueSeverity, PeakMetric};
use crate::report::summary::model::{
    Coverage, Issue, IssueEvidence, IssueKind, RankOutcome, RankSummary,
};
use crate::text::units::{bytes, counted, time_left};

/// Growth that takes longer than this until out-of-memory is not worth a word: 30 days.
const RISE_SECONDS_MAX: f64 = 30.0 * 86_400.0;

/// Returns the issue of a run in which nothing is wrong; `highest` is the rank with the highest peak.
pub fn neutral(coverage: &Coverage, ranks: &[RankSummary], highest: Option<Rank>) -> Issue {
    let steps_used = ranks.iter().map(|rank| rank.steps).max().unwrap_or(0);
    let rise = StraightRise::of(ranks);
    let NeutralWords { kind, status, summary, action } = match steps_used {
        0 if ranks.iter().any(|rank| rank.samples > 0) => {
            by_time(coverage.ranks_judged > 0, abrupt_end(ranks))
        }
        0 => NeutralWords {
            kind: IssueKind::NoData,
            status: "NO DATA",
            summary: "no train step was pushed".to_owned(),
            action: "Push a record per train step.",
        },
        _ if goes_on_without_steps(coverage, ranks) && rise.is_none() => without_steps(),
        _ => words(coverage.ranks_judged > 0, abrupt_end(ranks), rise.as_ref()),
    };
    let about = rise.map(|rise| rise.rank).or(highest);
    Issue {
        kind,
        status: status.into(),
        severity: IssueSeverity::Info,
        summary,
        action: action.into(),
        metric: PeakMetric::Allocated.as_label().into(),
        phase: None,
        score: None,
        share_pct: None,
        skew_pct: None,
        ranks: about.into_iter().collect(),
        evidence: IssueEvidence::Neutral { steps_used, worst_rank: about },
    }
}

/// An issue in words.
struct NeutralWords {
    kind: IssueKind,
    status: &'static str,
    summary: String,
    action: &'static str,
}

/// Returns whether a run was too short to judge, and a process of it goes on without steps.
fn goes_on_without_steps(coverage: &Coverage, ranks: &[RankSummary]) -> bool {
    let goes_on = |rank: &RankSummary| rank.seconds_without_steps.is_some();
    coverage.ranks_judged == 0 && abrupt_end(ranks).is_none() && ranks.iter().any(goes_on)
}

fn without_steps() -> NeutralWords {
    NeutralWords {
        kind: IssueKind::TooFewSteps,
        status: "TOO FEW STEPS",
        summary:
            "no pressure or imbalance, and too few steps to judge creep: the process went \
                  on without steps"
                .to_owned(),
        action: "If it trained on in a loop of its own, report its steps with stepmem.step().",
    }
}

/// Returns the words for a run that took no steps.
fn by_time(is_judged: bool, end: Option<AbruptEnd>) -> NeutralWords {
    let (kind, status, calm, action) = if is_judged {
        (
            IssueKind::Balanced,
            "BALANCED",
            "no creep, pressure or imbalance, judged by time as no optimizer stepped",
            "Nothing to do.",
        )
    } else {
        (
            IssueKind::TooFewSteps,
            "TOO FEW SAMPLES",
            "no optimizer stepped, and the model ran for too short a time to judge creep by time",
            "Look again after a longer run.",
        )
    };
    match end {
        Some(end) => {
            let is_balanced = is_judged && end.is_failure;
            let status = if is_balanced { BALANCED_UNTIL } else { status };
            let summary = format!("{}; until then {calm}", end.sentence);
            NeutralWords { kind, status, summary, action: end.advice() }
        }
        None => NeutralWords { kind, status, summary: calm.to_owned(), action },
    }
}

/// The status of a run that failed, and not of memory.
const BALANCED_UNTIL: &str = "BALANCED UNTIL IT FAILED";

fn words(is_judged: bool, end: Option<AbruptEnd>, rise: Option<&StraightRise>) -> NeutralWords {
    let (kind, calm) = if is_judged {
        (IssueKind::Balanced, "no creep, pressure or imbalance")
    } else {
        (IssueKind::TooFewSteps, "no pressure or imbalance, and too few steps to judge creep")
    };
    let rises = rise.map_or_else(String::new, |rise| format!("; {}", rise.sentence));
    let (status, action) = match (&end, rise, is_judged) {
        (Some(end), _, true) if end.is_failure => (BALANCED_UNTIL, end.advice()),
        (Some(end), _, true) => ("BALANCED", end.advice()),
        (Some(end), _, false) => ("TOO FEW STEPS", end.advice()),
        (None, Some(_), _) => ("BALANCED SO FAR", RISE_ADVICE),
        (None, None, true) => ("BALANCED", "Nothing to do."),
        (None, None, false) => ("TOO FEW STEPS", LONGER),
    };
    let summary = match end {
        Some(end) => format!("{}; until then {calm}{rises}", end.sentence),
        None => format!("{calm}{rises}"),
    };
    NeutralWords { kind, status, summary, action }
}

/// The advice where memory rises that has not used a telling share of the machine.
const RISE_ADVICE: &str = "Compare with a known stable run (stepmem compare). Where its memory stays level, look at \
                           what is kept across steps.";

/// The advice where a run was too short.
const LONGER: &str = "Let a run take more steps: slow growth shows after a few hundred.";

/// Live memory that rises in a straight line.
struct StraightRise {
    rank: Rank,
    sentence: String,
}

impl StraightRise {
    /// Returns the rise that is the first to end in out-of-memory; `None` where none does within [`RISE_SECONDS_MAX`].
    fn of(ranks: &[RankSummary]) -> Option<Self> {
        let rises: Vec<(&RankSummary, f64, TimeLeft)> = ranks
            .iter()
            .filter_map(|rank| Some((rank, slope(rank)?, TimeLeft::of(rank))))
            .collect();
        let soon = rises.iter().filter(|(_, _, left)| left.is_soon());
        let (rank, slope, left) = soon.min_by(|a, b| a.2.order().total_cmp(&b.2.order()))?;
        let is_host = rank.device.as_ref().is_some_and(GpuUuid::is_host);
        let what = if is_host { "host memory" } else { "live memory" };
        let of =
            if ranks.len() > 1 { format!(" of rank {}", rank.rank) } else { String::new() };
        let sentence =
            format!("{what}{of} rises straight, by {}/step{}", bytes(*slope), left.words());
        Some(Self { rank: rank.rank, sentence })
    }
}

/// Returns how fast live memory of a rank rises in a straight line.
fn slope(rank: &RankSummary) -> Option<f64> {
    let trend = rank.trend.as_ref().filter(|trend| trend.is_straight)?;
    trend.slope_bytes_per_step
}

/// The time that the headroom lasts at the rate of a rise.
struct TimeLeft {
    steps: Option<f64>,
    seconds: Option<f64>,
}

impl TimeLeft {
    fn of(rank: &RankSummary) -> Self {
        let trend = rank.trend.as_ref();
        let at =
            |slope: Option<f64>| Some(rank.headroom_bytes? / slope?).filter(|n| n.is_finite());
        Self {
            steps: at(trend.and_then(|trend| trend.slope_bytes_per_step)),
            seconds: at(trend.and_then(|trend| trend.slope_bytes_per_second)),
        }
    }

    fn is_soon(&self) -> bool {
        self.seconds.is_none_or(|seconds| seconds <= RISE_SECONDS_MAX)
    }

    /// Orders rises: those of which it is unknown last.
    fn order(&self) -> f64 {
        self.seconds.or(self.steps).unwrap_or(f64::INFINITY)
    }

    fn words(&self) -> String {
        let steps = self.steps.map(|steps| counted(steps, "step"));
        match (self.seconds.map(time_left), steps) {
            (Some(left), Some(steps)) => {
                format!(": at this rate out of memory in {left} ({steps})")
            }
            (None, Some(steps)) => format!(": at this rate out of memory in about {steps}"),
            (_, None) => String::new(),
        }
    }
}

/// An end that nobody asked for.
struct AbruptEnd {
    /// Whether the program announced an error, rather than ending without a word.
    is_failure: bool,
    sentence: String,
}

impl AbruptEnd {
    fn advice(&self) -> &'static str {
        if self.is_failure {
            "Look at the error: nothing that was seen of memory explains it."
        } else {
            "Look at its exit code and log, and at the kernel's log for an out-of-memory kill: it announced no end."
        }
    }
}

/// Returns how the run ended where a rank failed, or ended without a word while a rank of it could not go on.
fn abrupt_end(ranks: &[RankSummary]) -> Option<AbruptEnd> {
    let has_failed = |rank: &&RankSummary| {
        let end = rank.end.as_ref().filter(|end| end.outcome == EndOutcome::Failed);
        end.is_some_and(|end| !end.is_keyboard_interrupt())
    };
    let is_gone = |rank: &&RankSummary| {
        let gone = [RankOutcome::Unannounced, RankOutcome::Silent, RankOutcome::Behind];
        gone.contains(&rank.state)
    };
    let failed = ranks.iter().find(has_failed);
    let rank = failed.or_else(|| ranks.iter().find(is_gone))?;
    let step = rank.last.map_or(Cow::Borrowed("before its first step"), |last| {
        let place = if failed.is_some() { "at" } else { "after" };
        format!("{place} step {}", last.step).into()
    });
    let error = rank.end.as_ref().and_then(|end| end.error_type.as_deref());
    let error = error.map_or_else(String::new, |kind| format!(" ({kind})"));
    let how = if failed.is_some() { "failed" } else { "ended without a word" };
    let sentence = format!("rank {} {how} {step}{error}", rank.rank);
    Some(AbruptEnd { is_failure: failed.is_some(), sentence })
}

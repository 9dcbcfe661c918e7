//! The issue where no diagnosis holds. Memory is balanced or rises slowly all the same, or the
//! run failed or was too short.

use std::borrow::Cow;

use crate::policy::{IssueSeverity, PeakMetric};
use crate::summary::model::{
    Coverage, Issue, IssueEvidence, IssueKind, Neutral, RankOutcome, RankSummary, RankTrend,
};
use stepmem_engine::words::SHM_ADVICE;
use stepmem_engine::{ChildView, DiagnosisKind};
use stepmem_types::claims::{Claim, Sentence, Statement};
use stepmem_types::end::EndOutcome;
use stepmem_types::format::units::{bytes, counted, date, grouped, time_left, whole};
use stepmem_types::ids::Rank;
use stepmem_types::step::StepUnit;
use stepmem_types::units::{Count, MEBIBYTE};

/// Growth that takes longer than this until out-of-memory is not worth a word: 30 days.
const RISE_SECONDS_MAX: f64 = 30.0 * 86_400.0;

/// Returns the issue of a run in which nothing is wrong; `highest` is the rank with the highest
/// peak.
pub(crate) fn neutral(
    coverage: &Coverage,
    ranks: &[RankSummary],
    highest: Option<Rank>,
) -> Issue {
    let steps_used = ranks.iter().map(|rank| rank.steps).max().unwrap_or(0);
    let rise = StraightRise::of(ranks);
    let unit = unit_of(ranks);
    let NeutralWords { kind, status, told, action } = match steps_used {
        0 if ranks.iter().any(|rank| rank.samples > 0) => {
            by_time(coverage.ranks_judged > 0, abrupt_end(ranks))
        }
        0 => NeutralWords {
            kind: IssueKind::NoData,
            status: "NO DATA",
            told: Statement::new(Claim::NoSteps, "no train step was pushed").into(),
            action: Statement::new(Claim::AdviceReport, "Push a record per train step."),
        },
        _ if goes_on_without_steps(coverage, ranks) && rise.is_none() => without_steps(),
        _ => words(coverage, abrupt_end(ranks), rise.as_ref(), unit),
    };
    let n_elsewhere = coverage.n_ranks_missing;
    let is_part = n_elsewhere > 0 && kind == IssueKind::Balanced;
    let (status, action) = match (status, action.claim()) {
        ("BALANCED", Claim::NothingToDo) if is_part => {
            (BALANCED_HERE, Statement::new(Claim::NothingToDo, NOTHING_HERE))
        }
        _ => (status, action),
    };
    let told = if is_part {
        let (n_here, all) = (coverage.ranks_seen, coverage.ranks_expected.unwrap_or_default());
        let words = format!("of the {n_here} of {all} ranks that push here");
        let part = Statement::new(Claim::PartOfRun, words).of(count(n_here));
        Sentence::from(part).then(": ", told)
    } else {
        told
    };
    let (ended, of_ended) = ended_growth(ranks).unzip();
    let told = told.then_if("; ", of_ended);
    let about = rise.map(|rise| rise.rank).or(ended).or(highest);
    Issue {
        kind,
        status: status.into(),
        severity: IssueSeverity::Info,
        summary: told.words().to_owned(),
        action: action.words().to_owned().into(),
        metric: PeakMetric::Allocated.as_label().into(),
        phase: None,
        score: None,
        skew_pct: None,
        ranks: about.into_iter().collect(),
        evidence: IssueEvidence::Neutral(Neutral { steps_used, worst_rank: about }),
        statements: told.then(". ", action).into_statements(),
    }
}

/// Returns the unit that all ranks count; steps where they differ.
pub(crate) fn unit_of(ranks: &[RankSummary]) -> StepUnit {
    let unit = ranks.first().map_or(StepUnit::Steps, |rank| rank.unit);
    let is_of_all = ranks.iter().all(|rank| rank.unit == unit);
    if is_of_all { unit } else { StepUnit::Steps }
}

/// Returns a number of ranks as a figure.
fn count(n: usize) -> Option<f64> {
    Count::new(u64::try_from(n).ok()?).ok().map(Count::as_f64)
}

/// Returns the rank whose growth that crept and ended was the largest, and that in words.
fn ended_growth(ranks: &[RankSummary]) -> Option<(Rank, Sentence)> {
    let ended =
        ranks.iter().filter_map(|rank| Some((rank, rank.trend.as_ref()?.ended.clone()?)));
    let (of_rank, ended) =
        ended.max_by(|a, b| a.1.growth_bytes.total_cmp(&b.1.growth_bytes))?;
    let rank = of_rank.rank;
    let what = if of_rank.is_host() { "host memory" } else { "live memory" };
    let of = if ranks.len() > 1 { format!(" of rank {rank}") } else { String::new() };
    let (claim, until, since) = match (ended.level_since_step, ended.level_since_time) {
        (Some(step), _) => {
            (Claim::LevelSince, format!("{} {}", of_rank.unit.noun(), whole(step)), step)
        }
        (None, time) => (Claim::LevelSinceTime, date(time), time),
    };
    let words = format!("{what}{of} grew {}", bytes(ended.growth_bytes));
    let growth = Statement::new(Claim::Growth, words).of(ended.growth_bytes);
    let level = Statement::new(claim, format!("until {until}; level since")).of(since);
    Some((rank, Sentence::from(growth).then(" ", level)))
}

/// An issue in words.
struct NeutralWords {
    kind: IssueKind,
    status: &'static str,
    told: Sentence,
    action: Statement,
}

/// Returns whether a run was too short to judge, and a process of it goes on without steps.
fn goes_on_without_steps(coverage: &Coverage, ranks: &[RankSummary]) -> bool {
    let goes_on = |rank: &RankSummary| rank.seconds_without_steps.is_some();
    coverage.ranks_judged == 0 && abrupt_end(ranks).is_none() && ranks.iter().any(goes_on)
}

fn without_steps() -> NeutralWords {
    let calm = "no pressure or imbalance, and too few steps to judge creep: the process went on without steps";
    let action =
        "If it went on training in a loop of its own, report its steps with stepmem.step().";
    NeutralWords {
        kind: IssueKind::TooFewSteps,
        status: "TOO FEW STEPS",
        told: Statement::new(Claim::CalmUnjudged, calm).into(),
        action: Statement::new(Claim::AdviceReport, action),
    }
}

/// Returns the words for a run that took no steps.
fn by_time(is_judged: bool, end: Option<AbruptEnd>) -> NeutralWords {
    let (kind, status, calm, action) = if is_judged {
        let calm = "no creep, pressure or imbalance, judged by time as no optimizer stepped";
        (IssueKind::Balanced, "BALANCED", Statement::new(Claim::Calm, calm), nothing())
    } else {
        let calm = "no optimizer stepped, and the model ran for too short a time to judge creep by time";
        let again = Statement::new(Claim::AdviceLonger, "Look again after a longer run.");
        let calm = Statement::new(Claim::CalmUnjudged, calm);
        (IssueKind::TooFewSteps, "TOO FEW SAMPLES", calm, again)
    };
    match end {
        Some(end) => {
            let is_balanced = is_judged && end.is_failure;
            let status = if is_balanced { BALANCED_UNTIL } else { status };
            let action = end.advice();
            let told = Sentence::from(end.statement).then("; until then ", calm);
            NeutralWords { kind, status, told, action }
        }
        None => NeutralWords { kind, status, told: calm.into(), action },
    }
}

/// States that nothing is wrong.
pub(crate) fn nothing() -> Statement {
    Statement::new(Claim::NothingToDo, "Nothing to do.")
}

/// The status, and the advice, where ranks of the run push elsewhere, if at all.
const BALANCED_HERE: &str = "BALANCED HERE";
const NOTHING_HERE: &str = "Nothing to do about these ranks. The others are in the summaries of their own exporters: stepmem summary of a \
                            directory that has them all, or --prometheus.";

/// The status of a run that may yet turn out otherwise.
pub(crate) const BALANCED_SO_FAR: &str = "BALANCED SO FAR";

/// The status of a run that failed, and not of memory.
const BALANCED_UNTIL: &str = "BALANCED UNTIL IT FAILED";

/// Returns the status of a run of which too little was seen, and its advice.
pub(crate) fn too_few(unit: StepUnit) -> (&'static str, &'static str) {
    match unit {
        StepUnit::Steps => ("TOO FEW STEPS", LONGER),
        StepUnit::Calls => ("TOO FEW CALLS", MORE_CALLS),
        StepUnit::Replays => ("TOO FEW REPLAYS", MORE_REPLAYS),
    }
}

fn words(
    coverage: &Coverage,
    end: Option<AbruptEnd>,
    rise: Option<&StraightRise>,
    unit: StepUnit,
) -> NeutralWords {
    let (too_few, longer) = too_few(unit);
    let is_judged = coverage.ranks_judged > 0;
    let (kind, calm) = if is_judged {
        let calm = Statement::new(Claim::Calm, "no creep, pressure or imbalance");
        (IssueKind::Balanced, calm)
    } else {
        let calm =
            format!("no pressure or imbalance, and too few {} to judge creep", unit.as_label());
        (IssueKind::TooFewSteps, Statement::new(Claim::CalmUnjudged, calm))
    };
    let unjudged = unjudged(coverage.ranks_judged, coverage.ranks_seen, unit);
    let (judged, not_all) = unjudged.filter(|_| is_judged).unzip();
    let calm = Sentence::from(calm)
        .then_if("; ", judged)
        .then_if("; ", rise.map(|rise| rise.told.clone()));
    let (status, action) = match (&end, rise, is_judged) {
        (Some(end), _, true) if end.is_failure => (BALANCED_UNTIL, end.advice()),
        (Some(end), _, true) => ("BALANCED", end.advice()),
        (Some(end), _, false) => (too_few, end.advice()),
        (None, Some(rise), _) if rise.left.is_soon() => (BALANCED_SO_FAR, rise.advice.clone()),
        (None, rise, true) => match (not_all, rise) {
            (Some(advice), _) => (BALANCED_SO_FAR, advice),
            (None, Some(_)) => ("BALANCED", Statement::new(Claim::LastsLong, LASTS_LONG)),
            (None, None) => ("BALANCED", nothing()),
        },
        (None, _, false) => (too_few, Statement::new(Claim::AdviceLonger, longer)),
    };
    let told = match end {
        Some(end) => Sentence::from(end.statement).then("; until then ", calm),
        None => calm,
    };
    NeutralWords { kind, status, told, action }
}

/// States that not all ranks were judged, with the advice then; `None` where all were.
pub(crate) fn unjudged(
    n_judged: usize,
    n_seen: usize,
    unit: StepUnit,
) -> Option<(Statement, Statement)> {
    let (took, not_all) = match unit {
        StepUnit::Steps => ("took enough steps", NOT_ALL),
        StepUnit::Calls => ("made enough calls", MORE_CALLS),
        StepUnit::Replays => ("made enough replays", MORE_REPLAYS),
    };
    let words = format!("{n_judged} of {n_seen} ranks {took} to judge creep");
    let judged = Statement::new(Claim::JudgedRanks, words).of(count(n_judged));
    let advice = Statement::new(Claim::NotAllJudged, not_all);
    (n_judged < n_seen).then_some((judged, advice))
}

/// The advice where memory rises that has not used a telling share of the machine.
const RISE_ADVICE: &str = "Compare with a known stable run (stepmem compare). Where its memory stays level, look at \
                           what is kept across steps.";

/// The same of a program that takes no steps.
const CALLS_RISE_ADVICE: &str = "Look at what the program keeps from call to call: caches by request or by length, conversations, results that are appended.";

/// The advice where memory rises, and lasts for longer than [`RISE_SECONDS_MAX`].
const LASTS_LONG: &str = "Let it run: at this rate memory lasts for more than 30 days.";

/// The advice where some ranks were judged, and others not.
const NOT_ALL: &str =
    "Let the other ranks take more steps: slow growth shows after a few hundred.";

/// The advice where a run was too short.
pub(crate) const LONGER: &str =
    "Let a run take more steps: slow growth shows after a few hundred.";

/// The advice where a program made too few calls.
const MORE_CALLS: &str = "Look again after more calls.";

/// The advice where a program replayed its graphs too few times.
const MORE_REPLAYS: &str =
    "Let a run replay its graphs more often: slow growth shows after a few hundred.";

/// The advice where the memory of workers rises.
const WORKERS_ADVICE: &str = "Look at what each worker keeps: a list or cache that its dataset fills, or Python objects that it shares with \
                              this process, which are copied once it touches them (copy-on-write). Keep NumPy arrays or torch \
                              tensors instead of lists of objects, and bound caches.";

/// The advice where the memory of other child processes rises.
const CHILDREN_ADVICE: &str =
    "Look at what these processes keep, and whether they are ended or reused in time.";

/// Memory of a rank that rises, most often in a straight line: its live memory, what its allocator
/// keeps, or that of its child processes.
struct StraightRise {
    rank: Rank,
    told: Sentence,
    advice: Statement,
    left: TimeLeft,
    /// The bytes by which it rose over the run.
    bytes: f64,
}

impl StraightRise {
    /// Returns the rise that is the first to end in out-of-memory. One that does not within
    /// [`RISE_SECONDS_MAX`] is told only if it comes to [`RISE_BYTES_MIN`].
    fn of(ranks: &[RankSummary]) -> Option<Self> {
        let is_one = ranks.len() == 1;
        let rises = ranks.iter().flat_map(|rank| {
            let children = Children::of(rank).filter_map(|of| of.rise(rank, is_one));
            let own = Self::of_live_memory(rank, is_one).into_iter();
            let beside = Self::of_shm(rank, is_one).into_iter().chain(children);
            own.chain(Self::of_reserved_memory(rank, is_one)).chain(beside)
        });
        let told = rises.filter(|rise| rise.left.is_soon() || rise.bytes >= RISE_BYTES_MIN);
        told.min_by(|a, b| a.left.order().total_cmp(&b.left.order()))
    }

    fn of_live_memory(rank: &RankSummary, is_one: bool) -> Option<Self> {
        let trend = rank.trend.as_ref()?;
        let slope = trend.slope_bytes_per_step?;
        let left = TimeLeft::at(rank, Some(slope), trend.slope_bytes_per_second);
        let what = if rank.is_host() { "host memory" } else { "live memory" };
        let what = format!("{what}{}", of_rank(rank, is_one));
        let (lower, upper) =
            (trend.slope_lower_bytes_per_step, trend.slope_upper_bytes_per_step);
        let told = if trend.is_straight {
            rises(&what, slope, &left, rank.unit)
        } else if is_certain(trend, rank.steps) {
            let rises = if left.is_over { "rose" } else { "rises" };
            let words = format!("{what} {rises}, by {} on average", rank.unit.rate(slope));
            let rise = Statement::new(Claim::RisesOnAverage, words).of(slope);
            rise.between(lower, upper).into()
        } else {
            return None;
        };
        let advice = if rank.unit.is_calls() { CALLS_RISE_ADVICE } else { RISE_ADVICE };
        let advice = Statement::new(Claim::AdviceRise, advice);
        let bytes = slope * steps_of(rank);
        Some(Self { rank: rank.rank, told, advice, left, bytes })
    }

    /// Returns the rise of files in `/dev/shm`, which is full or takes the rest of host memory.
    fn of_shm(rank: &RankSummary, is_one: bool) -> Option<Self> {
        let host = rank.host.as_deref()?;
        let slope = host.shm.filter(|of| of.is_straight)?.bytes_per_step?;
        let (used, limit) = (host.figures.shm_used?.as_f64(), host.figures.shm_limit?.as_f64());
        let of_host = if rank.is_host() { rank.headroom_bytes } else { host.headroom_bytes() };
        let bytes_left = of_host.map_or(limit - used, |left| left.min(limit - used));
        let pace = seconds_per_step(rank).map(|pace| slope / pace);
        let left = TimeLeft::of(rank, bytes_left, Some(slope), pace);
        let (used, limit) = (bytes(used), bytes(limit));
        let what = format!("what is in /dev/shm ({used} of {limit}){}", of_rank(rank, is_one));
        let told = rises(&what, slope, &left, rank.unit);
        let advice = Statement::new(Claim::AdviceShm, SHM_ADVICE);
        let bytes = slope * steps_of(rank);
        Some(Self { rank: rank.rank, told, advice, left, bytes })
    }

    /// Returns the rise of reserved memory. It has no time left: how much of its cache the
    /// allocator would give back is unknown.
    fn of_reserved_memory(rank: &RankSummary, is_one: bool) -> Option<Self> {
        let slope = rank.reserved_rise_bytes_per_step?;
        let is_over = rank.state != RankOutcome::Pushing;
        let left = TimeLeft { steps: None, seconds: None, is_over };
        let what =
            format!("reserved memory that no larger batch explains{}", of_rank(rank, is_one));
        let rises = if is_over { "rose" } else { "rises" };
        let words = format!("{what} {rises} steadily, by {}", rank.unit.rate(slope));
        let told = Statement::new(Claim::RisesStraight, words).of(slope).into();
        let advice = DiagnosisKind::Fragmentation.about().advice;
        let advice = Statement::new(Claim::Advice, advice);
        let bytes = slope * steps_of(rank);
        Some(Self { rank: rank.rank, told, advice, left, bytes })
    }
}

/// Returns the steps that a rank took.
fn steps_of(rank: &RankSummary) -> f64 {
    Count::new(rank.steps).map_or(0.0, Count::as_f64)
}

/// Less growth over a run is not worth a word.
const RISE_BYTES_MIN: f64 = 4.0 * MEBIBYTE;

/// Returns whether no slope of the interval is level, and the growth is worth a word.
fn is_certain(trend: &RankTrend, n_steps: u64) -> bool {
    let least = trend.slope_lower_bytes_per_step.unwrap_or(0.0);
    let n_steps = Count::new(n_steps).map_or(0.0, Count::as_f64);
    least * n_steps >= RISE_BYTES_MIN
}

fn rises(what: &str, slope: f64, left: &TimeLeft, unit: StepUnit) -> Sentence {
    let rises = if left.is_over { "rose" } else { "rises" };
    let words = format!("{what} {rises} straight, by {}", unit.rate(slope));
    let rise = Statement::new(Claim::RisesStraight, words).of(slope);
    Sentence::from(rise).then_if(": ", left.sentence(unit))
}

/// Child processes of one kind.
struct Children {
    view: ChildView,
    names: [&'static str; 2],
    advice: &'static str,
}

impl Children {
    fn of(rank: &RankSummary) -> impl Iterator<Item = Self> {
        let host = rank.host.as_deref();
        let workers = host.and_then(|host| host.workers).map(|view| Self {
            view,
            names: ["worker", "workers"],
            advice: WORKERS_ADVICE,
        });
        let others = host.and_then(|host| host.child_processes).map(|view| Self {
            view,
            names: ["child process", "child processes"],
            advice: CHILDREN_ADVICE,
        });
        workers.into_iter().chain(others)
    }

    /// Returns their rise, if they have one. It ends in out-of-memory where the rank's headroom
    /// is host memory.
    fn rise(&self, rank: &RankSummary, is_one: bool) -> Option<StraightRise> {
        let slope = self.view.bytes_per_step.filter(|_| self.view.is_straight)?;
        let left = if rank.is_host() {
            TimeLeft::at(rank, Some(slope), seconds_per_step(rank).map(|pace| slope / pace))
        } else {
            TimeLeft { steps: None, seconds: None, is_over: false }
        };
        let [one, many] = self.names;
        let (n, name) = (self.view.count, if self.view.count == 1 { one } else { many });
        let what = format!("the memory of {n} {name}{}", of_rank(rank, is_one));
        let told = rises(&what, slope, &left, rank.unit);
        let advice = Statement::new(Claim::AdviceChildren, self.advice);
        let bytes = slope * steps_of(rank);
        Some(StraightRise { rank: rank.rank, told, advice, left, bytes })
    }
}

/// Names a rank of several.
fn of_rank(rank: &RankSummary, is_one: bool) -> String {
    if is_one { String::new() } else { format!(" of rank {}", rank.rank) }
}

/// Returns the mean time of a step of a rank, in seconds.
fn seconds_per_step(rank: &RankSummary) -> Option<f64> {
    let (first, last) = (rank.first?, rank.last?);
    let n_steps = Count::new(last.step.checked_sub(first.step)?).ok()?.as_f64();
    Some((last.time - first.time) / n_steps).filter(|pace| pace.is_finite() && *pace > 0.0)
}

/// The time that the headroom lasts at the rate of a rise.
struct TimeLeft {
    steps: Option<f64>,
    seconds: Option<f64>,
    /// Set when the rank takes no further steps, so that nothing is left.
    is_over: bool,
}

impl TimeLeft {
    /// Returns the time to OOM at a rate in bytes per step, and per second.
    fn at(rank: &RankSummary, per_step: Option<f64>, per_second: Option<f64>) -> Self {
        let none =
            Self { steps: None, seconds: None, is_over: rank.state != RankOutcome::Pushing };
        rank.headroom_bytes.map_or(none, |left| Self::of(rank, left, per_step, per_second))
    }

    /// Returns the time in which bytes are used up, likewise.
    fn of(
        rank: &RankSummary,
        left: f64,
        per_step: Option<f64>,
        per_second: Option<f64>,
    ) -> Self {
        let at = |slope: Option<f64>| Some(left / slope?).filter(|n| n.is_finite());
        let is_over = rank.state != RankOutcome::Pushing;
        Self { steps: at(per_step), seconds: at(per_second), is_over }
    }

    fn is_soon(&self) -> bool {
        self.seconds.is_none_or(|seconds| seconds <= RISE_SECONDS_MAX)
    }

    /// Orders rises: those of which it is unknown last.
    fn order(&self) -> f64 {
        self.seconds.or(self.steps).unwrap_or(f64::INFINITY)
    }

    fn sentence(&self, unit: StepUnit) -> Option<Sentence> {
        if self.is_over {
            return None;
        }
        let n_steps = self.steps?;
        let steps = counted(n_steps, unit.noun());
        let Some(seconds) = self.seconds else {
            let words = format!("at this rate out of memory in about {steps}");
            return Some(Statement::new(Claim::StepsLeft, words).of(n_steps).into());
        };
        let words = format!("at this rate out of memory in {}", time_left(seconds));
        let left = Sentence::from(Statement::new(Claim::TimeLeft, words).of(seconds));
        let steps = Statement::new(Claim::StepsLeft, steps).of(n_steps);
        Some(left.then(" (", steps).end(")"))
    }
}

/// An end that nobody asked for.
struct AbruptEnd {
    /// Set when the program announced an error, rather than ending without a word.
    is_failure: bool,
    statement: Statement,
}

impl AbruptEnd {
    fn advice(&self) -> Statement {
        let words = if self.is_failure {
            "Look at the error: nothing that was seen of its memory explains it."
        } else {
            "Look at its exit code and log, and at the kernel's log for an out-of-memory kill: it reported no end."
        };
        Statement::new(Claim::AdviceError, words)
    }
}

/// Returns the end of the run where a rank failed, or ended without a word while a rank of it
/// could not go on.
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
    let noun = rank.unit.noun();
    let step = rank.last.map_or(Cow::Owned(format!("before its first {noun}")), |last| {
        let place = if failed.is_some() { "at" } else { "and was last heard of at" };
        format!("{place} {noun} {}", grouped(last.step)).into()
    });
    let error = rank.end.as_ref().and_then(|end| end.error_type.as_deref());
    let error = error.map_or_else(String::new, |kind| format!(" ({kind})"));
    let how = if failed.is_some() { "failed" } else { "ended without a word" };
    let words = format!("rank {} {how} {step}{error}", rank.rank);
    let last = rank.last.and_then(|last| Count::new(last.step).ok()).map(Count::as_f64);
    let statement = Statement::new(Claim::Failed, words).of(last);
    Some(AbruptEnd { is_failure: failed.is_some(), statement })
}

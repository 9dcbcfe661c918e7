//! A job as a card and as a table, of which sampled figures are marked with `~`.

use std::cmp::Reverse;

use crate::closing::color_of;
use crate::job::launches::JobLaunch;
use crate::job::model::{Job, JobFinding, JobGrowth, JobRank, JobSlope, unit_of};
use crate::policy::{IssueSeverity, PeakMetric};
use crate::summary::card::{listed, verdict};
use crate::summary::model::{Issue, IssueEvidence, IssueKind};
use crate::summary::neutral::{BALANCED_SO_FAR, nothing, too_few, unjudged};
use stepmem_engine::words::{CALLS_ADVICE, SHM_ADVICE};
use stepmem_engine::{DiagnosisKind, Severity};
use stepmem_types::claims::{Claim, Sentence, Statement};
use stepmem_types::end::EndOutcome;
use stepmem_types::format::page::{Cell, Column, Indent, Page, Table};
use stepmem_types::format::units::{
    bytes, date, duration, grouped, hourly, many, or_unknown, share, time_left,
};
use stepmem_types::step::StepUnit;

/// The ranks in a card's table.
const CARD_RANKS_MAX: usize = 16;
/// The launches, and the findings of the past, that are named.
const NAMED_MAX: usize = 8;
/// Explanation of the mark.
const SAMPLED: &str = "~ sampled when the rank was last scraped. Capacity, pressure and host memory are not recorded.";

/// The reader of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Set for a terminal that shows colors.
    pub is_colored: bool,
    /// Columns of the reader's terminal; `None` where text goes elsewhere.
    pub columns: Option<usize>,
}

/// Puts a job into words: its verdicts, how far it came, and its worst ranks.
pub fn card(job: &Job, shown: Shown) -> String {
    let mut page = Page::new(shown.is_colored).within(shown.columns);
    for issue in &job.issues {
        tell(&mut page, issue);
    }
    scope(&mut page, job);
    page.blank();
    table(&mut page, job, CARD_RANKS_MAX);
    page.into_text()
}

/// Puts a job into a table of at most so many ranks, and its findings.
pub fn status(job: &Job, n_ranks_max: usize, shown: Shown) -> String {
    let mut page = Page::new(shown.is_colored).within(shown.columns);
    table(&mut page, job, n_ranks_max);
    page.blank();
    scope(&mut page, job);
    for issue in job.issues.iter().filter(|issue| issue.is_wrong()) {
        page.blank();
        tell(&mut page, issue);
    }
    page.into_text()
}

/// Adds what is wrong on which ranks, why, and what to do next.
fn tell(page: &mut Page, issue: &Issue) {
    for (indent, sentence) in verdict(issue) {
        page.paragraph(indent, sentence.words());
    }
    page.blank();
}

/// Returns the issue of a job in which no finding holds, of these ranks.
pub(super) fn nothing_wrong(ranks: &[JobRank]) -> Issue {
    let n_judged = ranks.iter().filter(|rank| rank.slope.is_some()).count();
    calm(n_judged, ranks.len(), unit_of(ranks))
}

fn calm(n_judged: usize, n_ranks: usize, unit: StepUnit) -> Issue {
    let calm = "no finding held when the ranks were last scraped";
    let (kind, status, told, action) = if n_judged == 0 {
        let calm = format!("{calm}, and too few {} to judge creep", unit.as_label());
        let (status, longer) = too_few(unit);
        let longer = Statement::new(Claim::AdviceLonger, longer);
        let calm = Sentence::from(Statement::new(Claim::CalmUnjudged, calm));
        (IssueKind::TooFewSteps, status, calm, longer)
    } else {
        let told = Sentence::from(Statement::new(Claim::Calm, calm));
        let (status, told, action) = match unjudged(n_judged, n_ranks, unit) {
            Some((judged, action)) => (BALANCED_SO_FAR, told.then("; ", judged), action),
            None => ("BALANCED", told, nothing()),
        };
        (IssueKind::Balanced, status, told, action)
    };
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
        ranks: Vec::new(),
        evidence: IssueEvidence::Other(serde_json::Value::Null),
        statements: told.then(". ", action).into_statements(),
    }
}

/// Returns the evidence of a finding in a sentence without a full stop; of a rank that ended, or
/// whose launch is over, in the past tense.
pub(super) fn sentence(rank: &JobRank, finding: &JobFinding, is_over: bool) -> Sentence {
    let is_over = is_over || rank.end.is_some();
    if finding.kind == DiagnosisKind::OutOfMemory {
        return ran_out(rank, finding, is_over).into();
    }
    let of_growth = finding.growth.as_ref().map(|growth| grows(rank, growth, is_over));
    let since = || {
        let words = match (finding.since, is_over) {
            (Some(since), false) => format!("it holds since {} UTC", date(since)),
            (Some(since), true) => format!("it held from {} UTC until the end", date(since)),
            (None, _) => "it held when the rank was last scraped".to_owned(),
        };
        Statement::new(Claim::Holds, words).of(finding.since).into()
    };
    let left = rank.oom_eta_seconds.filter(|_| !is_over).map(|seconds| {
        let words = format!("out of memory in {}", time_left(seconds));
        Statement::new(Claim::TimeLeft, words).of(seconds)
    });
    of_growth.unwrap_or_else(since).then_if("; ", left)
}

/// Returns the advice of a finding. That of a program without steps is not of a loop.
pub(super) fn advice(rank: &JobRank, finding: &JobFinding) -> Statement {
    let growth = finding.growth.as_ref();
    let is_by_time = |growth: &JobGrowth| {
        rank.unit.is_calls()
            || (growth.slope.bytes_per_step.is_none()
                && growth.slope.bytes_per_second.is_some())
    };
    match growth.map(|growth| growth.signal) {
        Some("shm") => Statement::new(Claim::AdviceShm, SHM_ADVICE),
        Some("allocated" | "host") if growth.is_some_and(is_by_time) => {
            Statement::new(Claim::AdviceCalls, CALLS_ADVICE)
        }
        _ => Statement::new(Claim::Advice, finding.kind.about().advice),
    }
}

/// Says how a rank ran out of memory: it died, or went on.
fn ran_out(rank: &JobRank, finding: &JobFinding, is_over: bool) -> Statement {
    let at = |time: Option<f64>| {
        time.map_or(String::new(), |time| format!(" at {} UTC", date(time)))
    };
    let step = rank.sampled.step.map_or(String::new(), |step| {
        format!(", after {} ~{}", rank.unit.noun(), grouped(step))
    });
    let died = match rank.end {
        Some(end) if end.outcome == EndOutcome::Oom => Some(Some(end.time)),
        _ if finding.severity == Severity::Critical => Some(finding.since),
        _ => None,
    };
    if let Some(time) = died {
        let words = format!("it ran out of memory and died{}{step}", at(time));
        return Statement::new(Claim::OomEnded, words);
    }
    let how = if is_over { "went on until its end" } else { "goes on" };
    let words = format!("it ran out of memory{} and {how}", at(finding.since));
    Statement::new(Claim::OomWentOn, words)
}

fn grows(rank: &JobRank, growth: &JobGrowth, is_over: bool) -> Sentence {
    let verb = if is_over { "grew" } else { "grows" };
    let what = match growth.signal {
        "host" => format!("host memory {verb}"),
        "children" => format!("the memory of child processes {verb}"),
        "shm" => format!("what is in /dev/shm {verb}"),
        "reserved" => format!("reserved memory {verb} without live memory"),
        "outside_allocator" => format!("memory outside the allocator {verb}"),
        _ if rank.is_host() => format!("host memory {verb}"),
        _ => format!("live memory {verb}"),
    };
    let grown = growth.growth_bytes.map(|grown| {
        let of = Sentence::from(Statement::new(Claim::Growth, bytes(grown)).of(grown));
        match growth.onset_step {
            Some(step) => of.then(
                " ",
                Statement::new(
                    Claim::Since,
                    format!("since {} {}", rank.unit.noun(), grouped(step)),
                ),
            ),
            None => of.end(" so far"),
        }
    });
    let line = growth.line.as_ref().map(|line| {
        let part = growth.line_share_ratio.map(|ratio| format!("{} of it is ", share(ratio)));
        let words = format!("{}allocated at {line}", part.unwrap_or_default());
        Statement::new(Claim::Line, words).of(growth.line_share_ratio)
    });
    let holder = growth.holder.as_ref().map(|holder| {
        let kind = holder.kind.as_ref().map_or(String::new(), |kind| format!(" ({kind})"));
        let at = holder.at.as_ref().map_or(String::new(), |at| format!(" of {at}"));
        // A name of code has its backticks.
        let name = &holder.name;
        let name = if name.contains('`') { name.clone() } else { format!("`{name}`") };
        Statement::new(Claim::Holder, format!("held by {name}{kind}{at}"))
    });
    Sentence::from(pace(&what, &growth.slope, rank.unit))
        .then_if(", ", grown)
        .then_if("; ", line)
        .then_if("; ", holder)
}

/// States how fast memory grows, as far as that is known.
fn pace(what: &str, slope: &JobSlope, unit: StepUnit) -> Statement {
    let ends = (slope.lower_bytes_per_step, slope.upper_bytes_per_step);
    match (slope.bytes_per_step, slope.bytes_per_second) {
        (Some(slope), by_time) => {
            let by_time = by_time.filter(|_| unit.is_calls());
            let by_time = by_time.map_or(String::new(), |of| format!(" ({})", hourly(of)));
            let words = format!("{what} by {}{by_time}", unit.rate(slope));
            let (lower, upper) = ends;
            Statement::new(Claim::RatePerStep, words).of(slope).between(lower, upper)
        }
        (None, Some(slope)) => {
            let words = format!("{what} by {}", hourly(slope));
            Statement::new(Claim::RatePerHour, words).of(slope)
        }
        (None, None) => Statement::new(Claim::Grows, what),
    }
}

fn scope(page: &mut Page, job: &Job) {
    let JobLaunch { begin, end, is_over, attempt, .. } = job.launch;
    let of = job.ranks_expected.map_or(String::new(), |n| format!(" of {}", grouped(n)));
    let seen = grouped(u64::try_from(job.ranks.len()).unwrap_or(u64::MAX));
    let attempt = match attempt {
        None | Some(0) => String::new(),
        Some(attempt) => format!(", attempt {attempt}"),
    };
    let steps = job.ranks.iter().filter_map(|rank| rank.sampled.step).max();
    let steps = steps
        .map_or(String::new(), |step| format!(", to {} ~{}", job.unit().noun(), grouped(step)));
    let until = if is_over { format!("until {} UTC", date(end)) } else { "and goes on".into() };
    let took = duration((end - begin).max(0.0));
    let ended = if is_over { ended(&job.ranks) } else { String::new() };
    let words = format!(
        "Run {}, launch {}{attempt}: {seen}{of} ranks{steps}; from {} UTC {until} (~{took}){ended}.",
        job.run,
        job.launch.name(),
        date(begin),
    );
    page.paragraph(Indent::hanging(0), &words);
    if job.n_ranks_missing > 0 {
        let n_missing = usize::try_from(job.n_ranks_missing).unwrap_or(usize::MAX);
        let ranks = listed(job.ranks_missing.iter().map(ToString::to_string), n_missing);
        page.paragraph(Indent::hanging(0), &format!("Never scraped: rank {ranks}."));
    }
    past(page, job);
    others(page, job);
    for warning in &job.warnings {
        page.paragraph(Indent::hanging(0), &format!("The engine warns: {warning}"));
    }
}

/// Says how the ranks of a launch that is over ended, as far as a scrape saw it.
fn ended(ranks: &[JobRank]) -> String {
    let n_of = |outcome| {
        ranks.iter().filter(|rank| rank.end.is_some_and(|end| end.outcome == outcome)).count()
    };
    let kinds = [
        (EndOutcome::Completed, "completed"),
        (EndOutcome::Oom, "died out of memory"),
        (EndOutcome::Failed, "failed"),
    ];
    let found: Vec<(usize, &str)> = kinds
        .into_iter()
        .map(|(outcome, word)| (n_of(outcome), word))
        .filter(|(n, _)| *n > 0)
        .collect();
    match &found[..] {
        [] => String::new(),
        [(n, word)] if *n == ranks.len() => format!(", {word}"),
        some => {
            let words = some.iter().map(|(n, word)| format!("{n} {word}"));
            format!(", of which {}", words.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Adds the findings that no longer held at the end.
fn past(page: &mut Page, job: &Job) {
    let all = || {
        job.ranks.iter().flat_map(|rank| {
            let past = rank.findings.iter().filter_map(move |of| Some((rank, of, of.until?)));
            past.filter(|(_, finding, _)| finding.severity > Severity::Info)
        })
    };
    let words = all().map(|(rank, finding, until)| {
        format!("{} on rank {} until {} UTC", finding.status, rank.rank, date(until))
    });
    let n_all = all().count();
    if n_all > 0 {
        let words = format!("No longer held at the end: {}.", listed(words, n_all));
        page.paragraph(Indent::hanging(2), &words);
    }
}

/// Adds the other launches of the run.
fn others(page: &mut Page, job: &Job) {
    if job.launch.overlaps {
        let words = "Another launch of this name ran at the same time, so that peaks and pushes, which rules record by the name of \
                     the run, are left out. Give each its own name (STEPMEM_RUN).";
        page.paragraph(Indent::hanging(0), words);
    }
    let named = |of: &JobLaunch| {
        let place: Vec<&str> =
            [&of.cluster, &of.namespace].into_iter().flatten().map(String::as_str).collect();
        let place =
            if place.is_empty() { String::new() } else { format!(" in {}", place.join("/")) };
        let until = if of.is_over { date(of.end) } else { "now".to_owned() };
        format!("{}{place} ({} to {until})", of.name(), date(of.begin))
    };
    let latest = job.other_launches.iter().rev();
    let n_all = job.other_launches.len();
    if n_all > 0 {
        let words = listed(latest.take(NAMED_MAX).map(named), n_all);
        page.paragraph(Indent::hanging(2), &format!("Other launches of this name: {words}."));
    }
}

fn table(page: &mut Page, job: &Job, n_ranks_max: usize) {
    if job.ranks.is_empty() {
        return;
    }
    let (step, slope) = match job.unit() {
        StepUnit::Steps => ("~STEP", "SLOPE/STEP"),
        StepUnit::Calls => ("~CALL", "SLOPE/1,000 CALLS"),
        StepUnit::Replays => ("~REPLAY", "SLOPE/REPLAY"),
    };
    let mut table = Table::new([
        Column::right(1, "RANK"),
        Column::left(2, "POD").droppable(0),
        Column::right(2, step).droppable(3),
        Column::right(2, "PUSHED").droppable(2),
        Column::right(2, "PEAK"),
        Column::right(2, "~ALLOCATED"),
        Column::right(2, "~RESERVED").droppable(1),
        Column::right(2, slope),
        Column::right(2, "OOM IN"),
        Column::left(2, "DIAGNOSIS"),
    ]);
    let ranks = worst_first(job);
    let (shown, rest) = ranks.split_at(n_ranks_max.min(ranks.len()));
    let mut shown = shown.to_vec();
    shown.sort_by_key(|rank| (rank.holding().next().is_none(), rank.rank));
    for rank in shown {
        table.row(row(job, rank));
    }
    page.table(&table);
    if !rest.is_empty() {
        let ranks = many(u64::try_from(rest.len()).unwrap_or(u64::MAX), "more rank");
        let peaks = || rest.iter().filter_map(|rank| rank.peak_allocated_bytes);
        let range = peaks().reduce(f64::min).zip(peaks().reduce(f64::max));
        let range = range.map_or(String::new(), |(low, high)| {
            format!(", with peaks of {} to {}", bytes(low), bytes(high))
        });
        page.line(&format!("… and {ranks}{range}"));
    }
    page.paragraph(Indent::hanging(0), SAMPLED);
}

/// Returns the ranks with the severest findings first, then those with the highest peaks.
fn worst_first(job: &Job) -> Vec<&JobRank> {
    let mut ranks: Vec<&JobRank> = job.ranks.iter().collect();
    let worst = |rank: &JobRank| rank.holding().map(|finding| finding.severity).max();
    let peak = |rank: &JobRank| rank.peak_allocated_bytes.unwrap_or(0.0);
    ranks.sort_by(|a, b| {
        let by_severity = Reverse(worst(a)).cmp(&Reverse(worst(b)));
        by_severity.then(peak(b).total_cmp(&peak(a))).then(a.rank.cmp(&b.rank))
    });
    ranks
}

/// Returns a slope in a column of slopes per `of_column`; with its unit where that is another.
fn rated(slope: f64, unit: StepUnit, of_column: StepUnit) -> String {
    match unit {
        _ if unit != of_column => unit.rate(slope),
        StepUnit::Calls => bytes(1000.0 * slope),
        StepUnit::Steps | StepUnit::Replays => bytes(slope),
    }
}

fn row(job: &Job, rank: &JobRank) -> [Cell; 10] {
    let quantity = |value: Option<f64>| Cell::from(or_unknown(value.map(bytes)));
    let ago = |time: f64| duration((job.launch.end - time).max(0.0));
    let titles: Vec<&str> = rank.holding().map(|of| of.status.as_ref()).collect();
    let worst = rank.holding().map(|of| of.severity).max();
    [
        rank.rank.to_string().into(),
        or_unknown(rank.pod.clone()).into(),
        or_unknown(rank.sampled.step.map(|step| step.to_string())).into(),
        or_unknown(rank.last_push.filter(|_| !job.launch.is_over).map(ago)).into(),
        quantity(rank.peak_allocated_bytes),
        quantity(rank.sampled.allocated_bytes),
        quantity(rank.sampled.reserved_bytes),
        or_unknown(rank.slope.and_then(|slope| match slope.bytes_per_step {
            Some(per_step) => Some(rated(per_step, rank.unit, job.unit())),
            None => slope.bytes_per_second.map(hourly),
        }))
        .into(),
        or_unknown(rank.oom_eta_seconds.map(duration)).into(),
        Cell::from(titles.join(", ")).in_color(worst.map(color_of)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_to_do_only_where_all_ranks_were_judged() {
        let of = |n_judged, n_ranks| {
            let issue = calm(n_judged, n_ranks, StepUnit::Steps);
            let claims: Vec<Claim> = issue.statements.iter().map(Statement::claim).collect();
            (issue.status.to_string(), claims)
        };
        let judged = vec![Claim::Calm, Claim::NothingToDo];
        assert_eq!(of(2, 2), ("BALANCED".to_owned(), judged));
        let partly = vec![Claim::Calm, Claim::JudgedRanks, Claim::NotAllJudged];
        assert_eq!(of(1, 2), ("BALANCED SO FAR".to_owned(), partly));
        let unjudged = vec![Claim::CalmUnjudged, Claim::AdviceLonger];
        assert_eq!(of(0, 1), ("TOO FEW STEPS".to_owned(), unjudged));
    }
}

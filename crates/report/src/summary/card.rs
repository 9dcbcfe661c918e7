//! A summary as a card of at most 100 columns: the verdict, why, what to do next, then the
//! ranks.

use std::cmp::Reverse;

use crate::limits::limited_quantity;
use crate::policy::PeakMetric;
use crate::rates::told_rate;
use crate::summary::model::{FigureSummary, Issue, RankOutcome, RankSummary, Summary};
use crate::summary::neutral::unit_of;
use stepmem_engine::{Basis, LimitOrigin};
use stepmem_types::claims::{Claim, Sentence, Statement, Telling};
use stepmem_types::end::EndOutcome;
use stepmem_types::format::page::{Column, Indent, Page, Table};
use stepmem_types::format::spark::{sparkline, thinned};
use stepmem_types::format::units::{
    UNKNOWN, bytes, duration, grouped, hourly, many, or_unknown, percent,
};
use stepmem_types::ids::Rank;
use stepmem_types::step::StepUnit;
use stepmem_types::units::{Bytes, Count, GIBIBYTE};

/// The ranks in the table, at most; the rest is summed up.
const RANKS_MAX: usize = 16;
/// The ranks named in a line, at most.
const NAMED_MAX: usize = 8;
/// Explanations of the table's column HEADROOM: by the peak,…
const OF_PEAK: &str = "HEADROOM: capacity less what others hold and less the peak.";
/// …by what is held…
const OF_HELD: &str =
    "HEADROOM: capacity less what others hold and less what the rank holds; no peak is known.";
/// …or by either.
const OF_EITHER: &str = "HEADROOM: capacity less what others hold and less the peak, or what the rank holds where no peak is known.";
/// …or, of a limit of the process itself, by what that limits.
const OF_DATA: &str = "HEADROOM (data): capacity less the process's private writable memory.";
const OF_ADDRESS_SPACE: &str = "HEADROOM (address_space): capacity less all addresses that the process has mapped, which are more than its memory.";
const OF_GROWTH: &str =
    "Of memory that grows, it is also less the cache that would not be given back.";
/// The memory outside a rank's allocator from which the card tells of it, in bytes…
const OUTSIDE_BYTES_MIN: f64 = GIBIBYTE;
/// …or as a share of the capacity. A CUDA context takes half a gibibyte.
const OUTSIDE_RATIO_MIN: f64 = 0.05;
/// The characters of a sparkline, at most.
const SPARKS_MAX: usize = 24;
/// The characters of a sparkline on a narrow terminal.
const SPARKS_MIN: usize = 11;
/// The columns that the figures of a rank take before its sparkline.
const FIGURES_COLUMNS: usize = 73;

/// Puts a summary into words.
pub fn render(summary: &Summary) -> String {
    render_within(summary, None)
}

/// Puts a summary into words for a terminal of so many columns.
pub fn render_within(summary: &Summary, columns: Option<usize>) -> String {
    tell(summary, columns).into_text()
}

/// Writes the card of a summary, and what it states, into the summary.
pub fn put(summary: &mut Summary) {
    let told = tell(summary, None);
    summary.statements = told.said().to_vec();
    summary.text = told.into_text();
}

fn tell(summary: &Summary, columns: Option<usize>) -> Telling {
    let mut page = Telling::on(Page::default().within(columns));
    tell_verdicts(&mut page, summary);
    scope(&mut page, summary);
    snapshots(&mut page, summary);
    table(&mut page, summary, columns);
    page
}

/// The first lines of the card: what is wrong on which ranks, why, what to do next, and how far
/// the run came.
pub fn verdicts(summary: &Summary) -> String {
    let mut page = Telling::default();
    tell_verdicts(&mut page, summary);
    scope(&mut page, summary);
    page.into_text()
}

fn tell_verdicts(page: &mut Telling, summary: &Summary) {
    for issue in &summary.issues {
        for (indent, sentence) in verdict(issue) {
            page.say(indent, sentence);
        }
        page.blank();
    }
}

/// Returns the issue and its ranks, the reason, and the next thing to do, a paragraph each.
pub(crate) fn verdict(issue: &Issue) -> [(Indent, Sentence); 3] {
    let (why, next) = issue.told();
    // Of several ranks the sentence is about the worst.
    let why = match issue.ranks.as_slice() {
        [worst, _, ..] if issue.is_wrong() => {
            Sentence::from(Statement::new(Claim::OfRank, format!("rank {worst}")))
                .then(": ", why)
        }
        _ => why,
    };
    [
        (Indent::hanging(0), Statement::new(Claim::Verdict, about(issue)).into()),
        (Indent { first: 2, rest: 7 }, why.after("Why: ").end(".")),
        (Indent { first: 2, rest: 8 }, next.after("Next: ")),
    ]
}

/// Returns an issue and its ranks in words: `MEMORY CREEP (critical) on rank 2`.
pub(crate) fn about(issue: &Issue) -> String {
    if issue.is_wrong() {
        format!("{} ({}) on {}", issue.status, issue.severity.in_words(), named(issue))
    } else {
        issue.status.to_string()
    }
}

fn named(issue: &Issue) -> String {
    let word = if issue.ranks.len() == 1 { "rank" } else { "ranks" };
    let ranks = issue.ranks.iter().map(ToString::to_string);
    format!("{word} {}", listed(ranks, issue.ranks.len()))
}

/// Lists the first names of `n_all`.
pub(crate) fn listed(names: impl Iterator<Item = String>, n_all: usize) -> String {
    let shown: Vec<String> = names.take(NAMED_MAX).collect();
    let more = match n_all.saturating_sub(shown.len()) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("{}{more}", shown.join(", "))
}

/// Returns whether a rank was launched next to one that pushed: launchers number the ranks of a
/// node in the order of their local ranks.
fn is_launched_here(ranks: &[RankSummary], rank: u32) -> bool {
    ranks.iter().any(|seen| {
        let before = seen.local_rank.map_or(0, Rank::get);
        rank < seen.rank.get() && seen.rank.get() - rank <= before
    })
}

/// Names ranks, ascending: `rank 3`, or `ranks 0, 4–7`.
fn spans(ranks: &[u32]) -> String {
    let parts: Vec<String> = ranks
        .chunk_by(|a, b| a + 1 == *b)
        .filter_map(|span| match (span.first()?, span.last()?) {
            (first, last) if first == last => Some(first.to_string()),
            (first, last) => Some(format!("{first}–{last}")),
        })
        .collect();
    let n_all = parts.len();
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", listed(parts.into_iter(), n_all))
}

fn scope(page: &mut Telling, summary: &Summary) {
    let coverage = &summary.coverage;
    let of = coverage.ranks_expected.map_or(String::new(), |n| format!(" of {n}"));
    let steps = match coverage.first.zip(coverage.last) {
        Some((first, last)) => format!(
            ", {} {} to {}{}{}",
            unit(summary).as_label(),
            grouped(first.step),
            grouped(last.step),
            summary.duration_s.map_or(String::new(), |took| format!(" in {}", duration(took))),
            read_share(summary)
        ),
        None => sampled(summary),
    };
    let attempt = match summary.attempt.get() {
        0 => String::new(),
        attempt => format!(", attempt {attempt}"),
    };
    let restarts = match coverage.restarts {
        0 => String::new(),
        n => format!(", restarts of ranks: {n}"),
    };
    let seen = coverage.ranks_seen;
    let is_one = seen == 1 && coverage.ranks_expected.is_none_or(|n| n == 1);
    let ranks = if is_one { "rank" } else { "ranks" };
    let words =
        format!("Run {}{attempt}: {seen}{of} {ranks}{steps}{restarts}.", summary.run.as_str());
    page.say(Indent::hanging(0), Statement::new(Claim::Coverage, words).of(count(seen)));
    if let Some(planned) = summary.planned_restarts {
        page.say(Indent::hanging(0), planned.sentence());
    }
    missing(page, summary);
    ends(page, summary);
    outside(page, summary);
    host(page, summary);
    without_steps(page, summary);
    let ooms = summary.ranks.iter().filter_map(|rank| rank.ooms).map(Count::get);
    let ooms = ooms.fold(0, u64::saturating_add);
    if ooms > 0 {
        let words = format!("Out-of-memory errors: {ooms}.");
        let n_errors = Count::new(ooms).ok().map(Count::as_f64);
        page.say(Indent::hanging(0), Statement::new(Claim::Ooms, words).of(n_errors));
    }
}

/// Returns the unit of a run's steps.
fn unit(summary: &Summary) -> StepUnit {
    unit_of(&summary.ranks)
}

/// Returns the part of the steps that was read, unless all were.
fn read_share(summary: &Summary) -> String {
    let sum = |of: fn(&RankSummary) -> u64| {
        summary
            .ranks
            .iter()
            .filter_map(|rank| Count::new(of(rank)).ok())
            .map(Count::as_f64)
            .sum()
    };
    let (n_steps, n_unread): (f64, f64) =
        (sum(|rank| rank.steps), sum(|rank| rank.unread_steps));
    if !unit(summary).is_calls() && n_unread > 0.0 && n_unread < n_steps {
        format!(", {} of them read", percent(1.0 - n_unread / n_steps))
    } else {
        String::new()
    }
}

/// Returns the samples and the duration of a run without steps, in words.
fn sampled(summary: &Summary) -> String {
    let samples = summary.ranks.iter().map(|rank| rank.samples).fold(0, u64::saturating_add);
    match (samples, summary.duration_s) {
        (0, _) | (_, None) => String::new(),
        (n, Some(took)) => format!(
            ", no optimizer steps, {} samples by time in {}",
            grouped(n),
            duration(took)
        ),
    }
}

/// Adds the ranks that went on without steps.
fn without_steps(page: &mut Telling, summary: &Summary) {
    let seconds = |rank: &RankSummary| rank.seconds_without_steps;
    let ranks: Vec<&RankSummary> =
        summary.ranks.iter().filter(|rank| seconds(rank).is_some()).collect();
    let longest = ranks.iter().filter_map(|rank| Some((seconds(rank)?, rank.last?)));
    if let Some((longest, last)) = longest.max_by(|a, b| a.0.total_cmp(&b.0)) {
        let names = listed(ranks.iter().map(|of| of.rank.to_string()), ranks.len());
        let word = if ranks.len() == 1 { "rank" } else { "ranks" };
        let words = format!(
            "Went on without {}: {word} {names}, for {} after {} {}.",
            unit(summary).as_label(),
            duration(longest),
            unit(summary).noun(),
            grouped(last.step)
        );
        page.say(Indent::hanging(2), Statement::new(Claim::WithoutSteps, words).of(longest));
    }
}

/// Adds the ranks that did not push here, and those that were lost.
fn missing(page: &mut Telling, summary: &Summary) {
    let coverage = &summary.coverage;
    let is_of_here = |rank: &u32| is_launched_here(&summary.ranks, *rank);
    let (here, elsewhere): (Vec<u32>, Vec<u32>) =
        coverage.ranks_missing.iter().partition(|rank| is_of_here(rank));
    if !here.is_empty() {
        let words = format!("Never pushed: {}.", spans(&here));
        let never = Statement::new(Claim::NeverPushed, words).of(count(here.len()));
        page.say(Indent::hanging(0), never);
    }
    let n_missing = usize::try_from(coverage.n_ranks_missing).unwrap_or(usize::MAX);
    let n_more = n_missing.saturating_sub(coverage.ranks_missing.len());
    if !elsewhere.is_empty() {
        let more = if n_more > 0 { format!(" and {n_more} more") } else { String::new() };
        let push = if elsewhere.len() + n_more == 1 { "pushes" } else { "push" };
        let ranks = spans(&elsewhere);
        let words =
            format!("Not known here: {ranks}{more}, which {push} elsewhere or not at all.");
        let elsewhere = count(elsewhere.len().saturating_add(n_more));
        page.say(Indent::hanging(0), Statement::new(Claim::NeverPushed, words).of(elsewhere));
    }
    let lost = coverage.ranks_lost.iter().map(|lost| match lost.last {
        Some(last) => {
            format!("rank {} after {} {}", lost.rank, unit(summary).noun(), grouped(last.step))
        }
        None => format!("rank {} before its first {}", lost.rank, unit(summary).noun()),
    });
    if !coverage.ranks_lost.is_empty() {
        let ranks = listed(lost, coverage.ranks_lost.len());
        let lost = Statement::new(Claim::Lost, format!("Lost: {ranks}."));
        page.say(Indent::hanging(0), lost.of(count(coverage.ranks_lost.len())));
    }
}

/// Adds the ranks that ended with an error, and those that did not announce their end. An
/// out-of-memory error is a verdict.
fn ends(page: &mut Telling, summary: &Summary) {
    let failed = |is_stopped: bool| {
        let is_one = move |rank: &&RankSummary| {
            let failed = rank.end.as_ref().filter(|end| end.outcome == EndOutcome::Failed);
            failed.is_some_and(|end| end.is_keyboard_interrupt() == is_stopped)
        };
        summary.ranks.iter().filter(is_one).collect::<Vec<_>>()
    };
    let unannounced = summary.ranks.iter().filter(|r| r.state == RankOutcome::Unannounced);
    let kinds = [
        ("Ended with an error", failed(false)),
        ("Stopped by Ctrl-C", failed(true)),
        ("Ended without a word, as by a signal", unannounced.collect()),
    ];
    for (what, ranks) in kinds {
        if let Some(first) = ranks.first() {
            let names = listed(ranks.iter().map(|of| of.rank.to_string()), ranks.len());
            let (word, of) = match ranks.len() {
                1 => ("rank", String::new()),
                _ => ("ranks", format!("rank {} ", first.rank)),
            };
            let end = ended_at(first);
            let words = format!("{what}: {word} {names}, {of}{end}.");
            page.say(Indent::hanging(2), Statement::new(Claim::EndedBy, words));
        }
    }
}

/// Adds what the processes of ranks hold outside their allocators, where that is much.
fn outside(page: &mut Telling, summary: &Summary) {
    let held = |rank: &RankSummary| {
        let bytes = rank.outside_allocator_bytes?;
        let share = rank.capacity_bytes.map(|capacity| bytes / capacity.as_f64());
        let is_much = bytes > OUTSIDE_BYTES_MIN || share > Some(OUTSIDE_RATIO_MIN);
        is_much.then_some((rank.rank.get(), bytes))
    };
    let held: Vec<(u32, f64)> = summary.ranks.iter().filter_map(held).collect();
    let by_bytes = |a: &&(u32, f64), b: &&(u32, f64)| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0));
    let ends = held.iter().min_by(by_bytes).zip(held.iter().max_by(by_bytes));
    let Some(((_, least), (worst, most))) = ends else { return };
    let ranks = spans(&held.iter().map(|(rank, _)| *rank).collect::<Vec<_>>());
    let (least, most, value) = (bytes(*least), bytes(*most), *most);
    let words = match held.len() {
        1 => format!("{most} on {ranks}"),
        _ if least == most => format!("{most} each on {ranks}"),
        _ => format!("{least} to {most} on {ranks}, most on rank {worst}"),
    };
    let words = format!("Outside the allocator: {words}.");
    page.say(Indent::hanging(2), Statement::new(Claim::OutsideHeld, words).of(value));
}

/// Adds the host memory of the ranks that have most of it.
fn host(page: &mut Telling, summary: &Summary) {
    let held = |rank: &RankSummary| {
        rank.host.as_deref().map_or(0, |host| {
            let of_children = [host.workers, host.child_processes].into_iter().flatten();
            let children = of_children.filter_map(|children| children.bytes).map(Bytes::get);
            let own = host.allocated_bytes.or(host.figures.shared).map(Bytes::get);
            children.chain(own).fold(0, u64::saturating_add)
        })
    };
    let mut ranks: Vec<&RankSummary> =
        summary.ranks.iter().filter(|rank| words_of_host(rank).is_some()).collect();
    ranks.sort_by_key(|rank| Reverse(held(rank)));
    for rank in ranks.iter().take(NAMED_MAX) {
        let words = words_of_host(rank).unwrap_or_default();
        let words = format!("Rank {}: {words}.", rank.rank);
        page.say(Indent::hanging(2), Statement::new(Claim::HostHeld, words));
    }
    if let Some(n_more @ 1..) = ranks.len().checked_sub(NAMED_MAX) {
        let more = many(u64::try_from(n_more).unwrap_or(u64::MAX), "more rank");
        let words = format!("… and {more} with less.");
        page.say(Indent::hanging(2), Statement::new(Claim::HostHeld, words));
    }
}

fn words_of_host(rank: &RankSummary) -> Option<&str> {
    rank.host.as_deref().map(|host| host.sentence.as_str()).filter(|words| !words.is_empty())
}

/// Returns the step that a rank ended at, and the error, if there was one.
fn ended_at(rank: &RankSummary) -> String {
    let last = rank.last.map_or("before its first step".to_owned(), |last| {
        let place = if rank.end.is_some() { "at" } else { "last heard of at" };
        format!("{place} {} {}", rank.unit.noun(), grouped(last.step))
    });
    let end = rank.end.as_ref().filter(|end| !end.is_keyboard_interrupt());
    let error = end.and_then(|end| end.error_type.as_deref().zip(Some(end)));
    let error = error.map_or(String::new(), |(kind, end)| match &end.error_message {
        Some(message) => format!(": {kind}: {message}"),
        None => format!(": {kind}"),
    });
    last + &error
}

fn snapshots(page: &mut Telling, summary: &Summary) {
    let written = summary.snapshots.iter().flatten().filter(|of| of.outcome == "written");
    for snapshot in written {
        let path = snapshot.path.as_deref().unwrap_or(UNKNOWN);
        let step = snapshot
            .step
            .map_or(String::new(), |step| format!(", step {}", grouped(step.get())));
        let words = format!(
            "Snapshot of rank {}{step} ({}): {path}",
            snapshot.rank.rank, snapshot.reason
        );
        page.say(Indent::hanging(0), Statement::new(Claim::SnapshotWritten, words));
    }
}

fn table(page: &mut Telling, summary: &Summary, columns: Option<usize>) {
    if summary.ranks.is_empty() {
        return;
    }
    page.blank();
    let mut table = Table::new([
        Column::right(0, "RANK").at_least(7),
        Column::right(1, "PEAK").at_least(8),
        Column::right(1, "MEAN").at_least(8).droppable(2),
        Column::right(1, "LAST").at_least(8),
        Column::right(1, "RESERVED").at_least(8).droppable(3),
        Column::right(1, "CAPACITY").at_least(8).droppable(0),
        Column::right(1, "HEADROOM").at_least(8),
        Column::right(1, "PER STEP").at_least(9),
        Column::left(2, "LIVE MEMORY").droppable(1),
    ]);
    let ranks = worst_first(summary);
    // A line for one more rank would show less than the rank itself.
    let n_shown = if ranks.len() <= RANKS_MAX + 1 { ranks.len() } else { RANKS_MAX };
    let (shown, rest) = ranks.split_at(n_shown);
    let left = columns.map_or(SPARKS_MAX, |columns| columns.saturating_sub(FIGURES_COLUMNS));
    let n_sparks = left.clamp(SPARKS_MIN, SPARKS_MAX);
    let mut shown = shown.to_vec();
    // Ranks that nothing is wrong with are found by their number.
    shown.sort_by_key(|rank| (!is_blamed(summary, rank)).then_some(rank.rank));
    for rank in &shown {
        table.row(row(rank, n_sparks));
    }
    page.table(&table);
    for words in capacity_words(&shown).chain(headroom_words(&shown)) {
        page.explain(Indent::hanging(3), words);
    }
    let peaks = || rest.iter().filter_map(|rank| peak(rank));
    if let (Some(low), Some(high)) = (peaks().reduce(f64::min), peaks().reduce(f64::max)) {
        let words = format!(
            "… and {} more ranks, with peaks of {} to {}",
            rest.len(),
            bytes(low),
            bytes(high)
        );
        let more = Statement::new(Claim::MoreRanks, words).of(count(rest.len()));
        page.say(Indent::hanging(2), more);
    }
}

/// Returns a number of ranks as a figure.
fn count(n: usize) -> Option<f64> {
    Count::new(u64::try_from(n).ok()?).ok().map(Count::as_f64)
}

fn is_blamed(summary: &Summary, rank: &RankSummary) -> bool {
    summary.issues.iter().any(|issue| issue.is_wrong() && issue.ranks.contains(&rank.rank))
}

/// Returns the ranks with the worst issues first, then those with the highest peaks.
fn worst_first(summary: &Summary) -> Vec<&RankSummary> {
    let place = |rank: &RankSummary| {
        let of = |issue: &Issue| issue.is_wrong() && issue.ranks.contains(&rank.rank);
        summary.issues.iter().position(of).unwrap_or(usize::MAX)
    };
    let within = |rank: &RankSummary| {
        let issue = summary.issues.get(place(rank))?;
        issue.ranks.iter().position(|of| *of == rank.rank)
    };
    let mut ranks: Vec<(usize, Option<usize>, &RankSummary)> =
        summary.ranks.iter().map(|rank| (place(rank), within(rank), rank)).collect();
    ranks.sort_by(|a, b| {
        let peaks = peak(b.2).unwrap_or(0.0).total_cmp(&peak(a.2).unwrap_or(0.0));
        (a.0, a.1).cmp(&(b.0, b.1)).then(peaks).then(Reverse(b.2.rank).cmp(&Reverse(a.2.rank)))
    });
    ranks.into_iter().map(|(_, _, rank)| rank).collect()
}

fn peak(rank: &RankSummary) -> Option<f64> {
    peak_of(rank, PeakMetric::Allocated)
}

/// Returns a rank's highest peak in bytes.
pub(crate) fn peak_of(rank: &RankSummary, metric: PeakMetric) -> Option<f64> {
    match metric {
        PeakMetric::Allocated => {
            let of_steps = max_bytes(rank.peak_allocated.as_ref());
            of_steps.or(rank.high_water_allocated_bytes.map(Bytes::as_f64))
        }
        PeakMetric::Reserved => max_bytes(rank.peak_reserved.as_ref()),
    }
}

/// Returns the bytes left until out-of-memory; by its finding where the rank grows.
fn headroom(rank: &RankSummary) -> Option<f64> {
    rank.growth_headroom_bytes.or(rank.headroom_bytes)
}

/// Explains the limits of the process itself in the column CAPACITY.
fn capacity_words(ranks: &[&RankSummary]) -> impl Iterator<Item = &'static str> {
    let mut origins: Vec<LimitOrigin> = Vec::new();
    for origin in ranks.iter().filter_map(|rank| rank.capacity_set_by) {
        if !origins.contains(&origin) {
            origins.push(origin);
        }
    }
    origins.into_iter().filter_map(|origin| match origin {
        LimitOrigin::Device => None,
        LimitOrigin::Program => Some("CAPACITY (program): the program set it."),
        LimitOrigin::Data => Some("CAPACITY (data): set by ulimit -d."),
        LimitOrigin::AddressSpace => Some("CAPACITY (address_space): set by ulimit -v."),
    })
}

/// Explains the column HEADROOM by what these ranks have.
fn headroom_words(ranks: &[&RankSummary]) -> impl Iterator<Item = &'static str> {
    let all = || ranks.iter().filter(|rank| headroom(rank).is_some());
    let known = || all().filter(|rank| !rank.is_limited_beyond_memory());
    let is_of_peak = |rank: &&&RankSummary| {
        matches!(rank.headroom_basis, Some(Basis::Allocated | Basis::HighWater))
    };
    let n_of_peak = known().filter(is_of_peak).count();
    let words = match known().count() {
        0 => None,
        n if n == n_of_peak => Some(OF_PEAK),
        _ if n_of_peak == 0 => Some(OF_HELD),
        _ => Some(OF_EITHER),
    };
    let of_limit =
        |origin, words| all().any(|rank| rank.capacity_set_by == Some(origin)).then_some(words);
    let of_limits = [
        of_limit(LimitOrigin::Data, OF_DATA),
        of_limit(LimitOrigin::AddressSpace, OF_ADDRESS_SPACE),
    ];
    let has_growth = ranks.iter().any(|rank| rank.growth_headroom_bytes.is_some());
    let of_growth = has_growth.then_some(OF_GROWTH);
    words.into_iter().chain(of_limits.into_iter().flatten()).chain(of_growth)
}

fn row(rank: &RankSummary, n_sparks: usize) -> [String; 9] {
    let trend = rank.trend.as_ref();
    let per_step = trend.and_then(|trend| {
        let ends = (trend.slope_lower_bytes_per_step, trend.slope_upper_bytes_per_step);
        told_rate(trend.slope_bytes_per_step, ends.0, ends.1)
    });
    let is_hourly = rank.steps == 0 || rank.unit.is_calls();
    let per_step = per_step.filter(|_| !rank.unit.is_calls());
    let by_time = || trend?.slope_bytes_per_second.filter(|_| is_hourly).map(hourly);
    [
        rank.rank.to_string(),
        or_unknown(peak(rank).map(bytes)),
        or_unknown(rank.allocated.as_ref().map(|figures| bytes(figures.mean_bytes))),
        or_unknown(last_bytes(rank.allocated.as_ref()).map(bytes)),
        or_unknown(max_bytes(rank.peak_reserved.as_ref()).map(bytes)),
        limited_quantity(rank.capacity_bytes, rank.capacity_set_by),
        or_unknown(headroom(rank).map(bytes)),
        or_unknown(per_step.map(bytes).or_else(by_time)),
        sparkline(&thinned(&rank.series_bytes, n_sparks)),
    ]
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "at most 2^53")]
fn max_bytes(figures: Option<&FigureSummary>) -> Option<f64> {
    Some(figures?.max_bytes as f64)
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "at most 2^53")]
fn last_bytes(figures: Option<&FigureSummary>) -> Option<f64> {
    Some(figures?.last_bytes as f64)
}

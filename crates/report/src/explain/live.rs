//! A live exporter's facts about one rank, as text of at most 100 columns. They are its
//! findings and why, the acknowledgements, the growth of each signal, and the distance to
//! out-of-memory. Last come the tests that its windows do not pass now.

use crate::explain::story::End;
use crate::explain::text::{LIVE_BLOCKS, last_word, meanings, what};
use crate::rank_table::rises_straight;
use stepmem_detect::signal::Signal;
use stepmem_engine::kind::Severity;
use stepmem_engine::output::status::{FindingStatus, RankStatus, SignalStatus, Status};
use stepmem_engine::ranks::limits::capacity_words;
use stepmem_engine::ranks::view::RankView;
use stepmem_types::format::page::{Column, Indent, Page, Table};
use stepmem_types::format::units::{
    bytes, counted, date, duration, grouped, hourly, least_time_left, many, percent, time_left,
    whole,
};
use stepmem_types::ids::SubjectId;
use stepmem_types::step::StepUnit;

/// Puts a rank of a status into words, for a terminal of so many columns.
pub fn render(status: &Status, rank: &RankStatus, columns: Option<usize>) -> String {
    let subject = SubjectId::Rank(rank.id());
    let findings: Vec<&FindingStatus> =
        status.findings.iter().filter(|finding| finding.subject == subject).collect();
    let mut page = Page::default().within(columns);
    head(&mut page, status, rank);
    page.blank();
    page.line("Findings, and why");
    for finding in &findings {
        let is_acknowledged =
            status.acks.iter().any(|ack| ack.subject == subject && ack.kind == finding.kind);
        let why = match finding.severity {
            Severity::Info if rank.end.is_some() => ", as the rank has ended",
            Severity::Info if is_acknowledged => ", as it is acknowledged",
            _ => "",
        };
        self::finding(&mut page, finding, why);
    }
    for ack in status.acks.iter().filter(|ack| ack.subject == subject) {
        let (title, until) = (ack.kind.about().title, date(ack.until));
        let words = format!("{title} is acknowledged until {until}: {}", ack.reason);
        page.paragraph(Indent::hanging(2), &words);
    }
    if findings.is_empty() {
        page.paragraph(Indent::hanging(2), &absence(rank));
    }
    page.blank();
    page.line("Growth");
    for signal in &rank.creep {
        page.paragraph(Indent::hanging(2), &growth(signal, rank.identity.unit));
    }
    if let Some(kept) = &rank.kept_blocks {
        let words = format!("{LIVE_BLOCKS}: {}", kept.described(rank.identity.unit));
        page.paragraph(Indent::hanging(2), &words);
    }
    if let Some(slope) = rank.reserved_slope_bytes_per_step {
        let words = format!("All reserved memory: {}", rank.identity.unit.rate(slope));
        page.paragraph(Indent::hanging(2), &words);
    }
    if rank.creep.is_empty() {
        page.line("  No slope is known yet.");
    }
    room(&mut page, rank, &findings);
    let run = status.runs.iter().find(|of| of.run == rank.run);
    if let Some(end) = run.and_then(|run| run.end_words(status.time)) {
        page.paragraph(Indent::hanging(2), &format!("The run ends {end}"));
    }
    page.into_text()
}

fn head(page: &mut Page, status: &Status, rank: &RankStatus) {
    let device = rank.identity.device.as_ref();
    let device = device.map_or(String::new(), |device| format!(" on {device}"));
    let capacity = rank.capacity.map_or_else(
        || "capacity unknown".to_owned(),
        |capacity| capacity_words(capacity, rank.capacity_set_by, rank.identity.total),
    );
    let words = format!("Run {}, rank {}{device} ({capacity})", rank.run, rank.rank);
    page.paragraph(Indent::hanging(0), &words);
    let step = rank.last_train.as_ref().map_or_else(
        || "no train step".to_owned(),
        |last| format!("{} {}", rank.identity.unit.noun(), grouped(last.step.get())),
    );
    let activity = match (&rank.end, rank.silent_seconds) {
        (Some(end), _) => format!("ended ({})", end.outcome.as_label()),
        (None, Some(silent)) => format!("silent for {}", duration(silent)),
        (None, None) => {
            let age = (status.time - rank.last_push_time).max(0.0);
            format!("last push {} ago", duration(age))
        }
    };
    let unit = if rank.identity.unit.is_steps() { "train step" } else { "call" };
    let n_steps = many(rank.totals.steps, unit);
    let attempt = rank.identity.attempt.get();
    let words =
        format!("{n_steps} since the exporter began; {step} of attempt {attempt}, {activity}");
    page.paragraph(Indent::hanging(0), &words);
}

/// Adds a finding; `why` gives the reason for its severity, where that is not its figures.
fn finding(page: &mut Page, finding: &FindingStatus, why: &str) {
    let FindingStatus { title, severity, since, sentence, advice, .. } = finding;
    let severity = severity.as_label();
    let words = format!("{}: {title} ({severity}{why}): {sentence}", date(*since));
    page.paragraph(Indent::hanging(2), &words);
    page.paragraph(Indent { first: 4, rest: 10 }, &format!("Next: {advice}"));
}

/// Puts the windows of a rank into words, as they are now: how long each is, and which test
/// stops it.
pub fn windows(rank: &RankView<'_>) -> String {
    let mut page = Page::default();
    let mut ends = Vec::new();
    for signal in Signal::ALL {
        let mut table =
            Table::new([Column::right(2, "records"), Column::left(2, "outcome now")]);
        let n_ends = ends.len();
        let windows = rank.detectors.of(signal).windows(signal, rank.capacity_of(signal));
        for window in windows.filter(|window| window.n_samples > 0.0) {
            table.row([whole(window.n_samples), last_word(&window)]);
            ends.push(End::of(&window.outcome));
        }
        if ends.len() > n_ends {
            page.blank();
            page.line(&format!("{}: its windows", what(signal)));
            page.table(&table);
        }
    }
    meanings(&mut page, ends.into_iter());
    page.into_text()
}

/// Returns the reason that no finding holds, as far as the status knows.
fn absence(rank: &RankStatus) -> String {
    match rank.judging_from_step {
        Some(step) => format!(
            "None; judged from {} {} on",
            rank.identity.unit.noun(),
            grouped(step)
        ),
        None if !rank.is_judged && rank.is_by_time => {
            "None; too few samples by time so far".to_owned()
        }
        None if !rank.is_judged => "None; it ended before creep could be judged".to_owned(),
        None if rises_straight(rank) => {
            "None so far; but its live memory rises in a straight line. Compare with a known stable run".to_owned()
        }
        None => "None.".to_owned(),
    }
}

/// Returns the growth of a signal in words, with the interval of its slope.
fn growth(signal: &SignalStatus, unit: StepUnit) -> String {
    let mut parts = Vec::new();
    if let Some(slope) = signal.slope_bytes_per_step {
        parts.push(unit.rate(slope));
    }
    let interval = signal.slope_lower_bytes_per_step.zip(signal.slope_upper_bytes_per_step);
    if let Some((lower, upper)) = interval {
        let zero = if lower <= 0.0 && upper >= 0.0 { ", zero is within" } else { "" };
        parts.push(format!("95% interval {} to {}{zero}", bytes(lower), bytes(upper)));
    }
    if let Some(slope) = signal.slope_bytes_per_second {
        parts.push(hourly(slope));
    }
    if let Some(trend) = &signal.trend {
        let onset = trend
            .onset_step
            .map_or(String::new(), |step| format!("{} {}, ", unit.noun(), whole(step)));
        parts.push(format!(
            "{} since {onset}{}, {} sure",
            bytes(trend.growth_bytes),
            date(trend.onset_time),
            percent(trend.confidence_ratio)
        ));
    }
    format!("{}: {}", what(signal.signal), parts.join("; "))
}

/// Adds how far the rank is from its capacity; where it grows, by the headroom that its finding
/// has.
fn room(page: &mut Page, rank: &RankStatus, findings: &[&FindingStatus]) {
    const OF_GROWTH: &str = ", as its growth has it left";
    if let Some(headroom) = rank.headroom_bytes {
        let basis = rank.headroom_basis.map_or(OF_GROWTH.to_owned(), |basis| {
            format!(", by its {} memory", basis.as_label().replace('_', " "))
        });
        page.paragraph(Indent::hanging(2), &format!("Headroom: {}{basis}", bytes(headroom)));
    }
    let mut of_host = findings.iter().filter(|of| of.kind.about().signal == Some(Signal::Host));
    let of_host = of_host.find_map(|of| of.evidence.growth()?.headroom_bytes);
    let measured = || rank.host.as_ref()?.headroom_bytes();
    if let Some(headroom) = of_host.or_else(measured) {
        let by = if of_host.is_some() { OF_GROWTH } else { "" };
        let words = format!("Headroom on the host: {}{by}", bytes(headroom));
        page.paragraph(Indent::hanging(2), &words);
    }
    let known = rank.oom_eta_seconds.map(|seconds| (time_left(seconds), rank.oom_eta_steps));
    let least = || {
        let seconds = rank.oom_eta_lower_seconds?;
        Some((least_time_left(seconds), rank.oom_eta_lower_steps))
    };
    if let Some((left, steps)) = known.or_else(least) {
        let steps = steps.map_or_else(String::new, |n| {
            format!(" ({})", counted(n, rank.identity.unit.noun()))
        });
        page.paragraph(Indent::hanging(2), &format!("Out of memory in {left}{steps}"));
    }
    let known = rank.host_oom_eta_seconds.map(time_left);
    let left = known.or_else(|| rank.host_oom_eta_lower_seconds.map(least_time_left));
    if let Some(left) = left {
        page.paragraph(Indent::hanging(2), &format!("Out of host memory in {left}"));
    }
}

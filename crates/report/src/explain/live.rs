//! A live exporter's facts about one rank, as text of at most 100 columns. They are its
//! findings and why, the acknowledgments, the growth of each signal, and the distance to
//! out-of-memory. Last come the tests that its windows do not pass now.

use crate::explain::story::End;
use crate::explain::text::{LIVE_BLOCKS, last_word, meanings, what};
use crate::rank_table::rises_straight;
use stepmem_detect::{Explanation, Signal};
use stepmem_engine::status::{FindingStatus, RankStatus, SignalStatus, Status};
use stepmem_engine::words::capacity_words;
use stepmem_engine::{RankView, Severity};
use stepmem_types::claims::{Claim, Sentence, Statement, Telling};
use stepmem_types::format::page::{Column, Indent, Page, Table};
use stepmem_types::format::units::{
    bytes, counted, date, duration, grouped, hourly, least_time_left, many, percent, time_left,
    whole,
};
use stepmem_types::ids::SubjectId;
use stepmem_types::step::StepUnit;

/// Puts a rank of a status into words, for a terminal of so many columns.
pub fn render(status: &Status, rank: &RankStatus, columns: Option<usize>) -> String {
    tell(status, rank, columns).into_text()
}

/// Tells of a rank of a status, for a terminal of so many columns.
pub(crate) fn tell(status: &Status, rank: &RankStatus, columns: Option<usize>) -> Telling {
    let subject = SubjectId::Rank(rank.id());
    let findings: Vec<&FindingStatus> =
        status.findings.iter().filter(|finding| finding.subject == subject).collect();
    let mut page = Telling::on(Page::default().within(columns));
    head(&mut page, status, rank);
    page.blank();
    page.heading("Findings");
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
        page.say(Indent::hanging(2), Statement::new(Claim::Acknowledged, words).of(ack.until));
    }
    if findings.is_empty() {
        page.say(Indent::hanging(2), absence(rank));
    }
    page.blank();
    page.heading("Growth");
    for signal in &rank.creep {
        page.say(Indent::hanging(2), growth(signal, rank.identity.unit));
    }
    if let Some(kept) = &rank.kept_blocks {
        let kept = kept.full_statement(rank.identity.unit);
        let kept = Sentence::from(kept).after(LIVE_BLOCKS);
        page.say(Indent::hanging(2), kept);
    }
    if let Some(slope) = rank.reserved_slope_bytes_per_step {
        let words = format!("All reserved memory: {}", rank.identity.unit.rate(slope));
        page.say(Indent::hanging(2), Statement::new(Claim::Slope, words).of(slope));
    }
    if rank.creep.is_empty() {
        let none = Statement::new(Claim::NoSlope, "No slope is known yet.");
        page.say(Indent::hanging(2), none);
    }
    room(&mut page, rank, &findings);
    let run = status.runs.iter().find(|of| of.run == rank.run);
    if let Some(end) = run.and_then(|run| run.end_words(status.time)) {
        let words = format!("The run ends {end}");
        page.say(Indent::hanging(2), Statement::new(Claim::EndOfRun, words));
    }
    page
}

fn head(page: &mut Telling, status: &Status, rank: &RankStatus) {
    let device = rank.identity.device.as_ref();
    let device = device.map_or(String::new(), |device| format!(" on {device}"));
    let capacity = rank.capacity.map_or_else(
        || Statement::new(Claim::CapacityUnknown, "capacity unknown"),
        |capacity| {
            let words = capacity_words(capacity, rank.capacity_set_by, rank.identity.total);
            Statement::new(Claim::Capacity, words).of(capacity.as_f64())
        },
    );
    let words = format!("Run {}, rank {}{device}", rank.run, rank.rank);
    let subject = Sentence::from(Statement::new(Claim::Subject, words));
    page.say(Indent::hanging(0), subject.then(" (", capacity).end(")"));
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
    let unit = rank.identity.unit;
    let unit = if unit.is_steps() { "train step" } else { unit.noun() };
    let n_steps = many(rank.totals.steps, unit);
    let attempt = rank.identity.attempt.get();
    let words =
        format!("{n_steps} since the exporter began; {step} of attempt {attempt}, {activity}");
    page.say(Indent::hanging(0), Statement::new(Claim::Activity, words));
}

/// Adds a finding; `why` gives the reason for its severity, where that is not its figures.
fn finding(page: &mut Telling, finding: &FindingStatus, why: &str) {
    let FindingStatus { title, severity, since, .. } = finding;
    let severity = severity.as_label();
    let (sentence, advice) = finding.told();
    let raised = format!("{}: {title} ({severity}{why})", date(*since));
    let raised = Sentence::from(Statement::new(Claim::Raised, raised));
    page.say(Indent::hanging(2), raised.then(": ", sentence));
    page.say(Indent { first: 4, rest: 10 }, advice.after("Next: "));
}

/// Puts the windows of a rank into words, as they are now: how long each is, and which test
/// stops it.
pub fn windows(rank: &RankView<'_>) -> String {
    let mut page = Telling::default();
    let mut ends = Vec::new();
    for signal in Signal::ALL {
        let mut table =
            Table::new([Column::right(2, "records"), Column::left(2, "outcome now")]);
        let n_ends = ends.len();
        let windows = rank.detectors.of(signal).windows(signal, rank.capacity_of(signal));
        let mut longest = 0.0;
        for window in windows.filter(|window| window.n_samples > 0.0) {
            let end = End::of(&window.outcome);
            // A shorter window, in blocks half as long, already has these records.
            if end == End::Stopped(Explanation::TooShort) && window.n_samples <= longest {
                continue;
            }
            longest = longest.max(window.n_samples);
            table.row([whole(window.n_samples), last_word(&window)]);
            ends.push(end);
        }
        if ends.len() > n_ends {
            page.blank();
            page.heading_of(what(signal), ": its windows");
            page.table(&table);
        }
    }
    meanings(&mut page, ends.into_iter());
    page.into_text()
}

/// Returns the reason that no finding holds, as far as the status knows.
fn absence(rank: &RankStatus) -> Statement {
    let not_judged = |words: &str| Statement::new(Claim::NotJudged, words);
    match rank.judging_from_step {
        Some(step) => not_judged(&format!(
            "None; judged from {} {} on",
            rank.identity.unit.noun(),
            grouped(step)
        )),
        None if !rank.is_judged && rank.is_by_time => {
            not_judged("None; too few samples by time so far")
        }
        None if !rank.is_judged => not_judged("None; it ended before creep could be judged"),
        None if rises_straight(rank) => {
            let words = "None so far; but its live memory rises in a straight line. Compare with a known stable run";
            Statement::new(Claim::RisesUnfound, words)
        }
        None => Statement::new(Claim::NoFinding, "None."),
    }
}

/// Writes how sure a test is, which is never entirely.
fn sure(confidence_ratio: f64) -> String {
    if confidence_ratio > 0.99 { "more than 99%".to_owned() } else { percent(confidence_ratio) }
}

/// Returns the growth of a signal in words, with the interval of its slope.
fn growth(signal: &SignalStatus, unit: StepUnit) -> Sentence {
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
            sure(trend.confidence_ratio)
        ));
    }
    let words = format!("{}: {}", what(signal.signal), parts.join("; "));
    let (lower, upper) = interval.unzip();
    let slope = Statement::new(Claim::Slope, words).of(signal.slope_bytes_per_step);
    let grown = signal.trend.as_ref().map(|trend| trend.growth_bytes);
    let grown = grown.map(|grown| Statement::new(Claim::Growth, bytes(grown)).of(grown));
    Sentence::from(slope.between(lower, upper)).with(grown)
}

/// Adds how far the rank is from its capacity; where it grows, by the headroom that its finding
/// has.
fn room(page: &mut Telling, rank: &RankStatus, findings: &[&FindingStatus]) {
    const OF_GROWTH: &str = ", as its growth has it left";
    let headroom = |words, bytes| Statement::new(Claim::Headroom, words).of(bytes);
    if let Some(left) = rank.headroom_bytes {
        let basis = rank.headroom_basis.map_or(OF_GROWTH.to_owned(), |basis| {
            format!(", by its {} memory", basis.as_label().replace('_', " "))
        });
        let words = format!("Headroom: {}{basis}", bytes(left));
        page.say(Indent::hanging(2), headroom(words, left));
    }
    let mut of_host = findings.iter().filter(|of| of.kind.about().signal == Some(Signal::Host));
    let of_host = of_host.find_map(|of| of.evidence.growth()?.headroom_bytes);
    let measured = || rank.host.as_ref()?.headroom_bytes();
    if let Some(left) = of_host.or_else(measured) {
        let by = if of_host.is_some() { OF_GROWTH } else { "" };
        let words = format!("Headroom on the host: {}{by}", bytes(left));
        page.say(Indent::hanging(2), headroom(words, left));
    }
    let end = Ahead {
        what: "Out of memory in",
        seconds: rank.oom_eta_seconds,
        least_seconds: rank.oom_eta_lower_seconds,
        steps: rank.oom_eta_steps,
        least_steps: rank.oom_eta_lower_steps,
        unit: rank.identity.unit,
    };
    let of_host = Ahead {
        what: "Out of host memory in",
        seconds: rank.host_oom_eta_seconds,
        least_seconds: rank.host_oom_eta_lower_seconds,
        steps: None,
        least_steps: None,
        unit: rank.identity.unit,
    };
    for told in [end, of_host].iter().filter_map(Ahead::sentence) {
        page.say(Indent::hanging(2), told);
    }
}

/// The time until memory runs out.
struct Ahead {
    what: &'static str,
    seconds: Option<f64>,
    least_seconds: Option<f64>,
    steps: Option<f64>,
    least_steps: Option<f64>,
    unit: StepUnit,
}

impl Ahead {
    /// States when memory runs out, else when at the earliest; `None` where neither is known.
    fn sentence(&self) -> Option<Sentence> {
        let (claims, left, seconds, steps) = match (self.seconds, self.least_seconds) {
            (Some(seconds), _) => {
                let claims = (Claim::TimeLeft, Claim::StepsLeft);
                (claims, time_left(seconds), seconds, self.steps)
            }
            (None, Some(least)) => {
                let claims = (Claim::LeastTimeLeft, Claim::LeastStepsLeft);
                (claims, least_time_left(least), least, self.least_steps)
            }
            (None, None) => return None,
        };
        let left = Statement::new(claims.0, format!("{} {left}", self.what)).of(seconds);
        let left = Sentence::from(left.between(self.least_seconds, None));
        Some(match steps {
            Some(n) => {
                let steps = Statement::new(claims.1, counted(n, self.unit.noun())).of(n);
                left.then(" (", steps.between(self.least_steps, None)).end(")")
            }
            None => left,
        })
    }
}

//! A story as text of at most 100 columns: the pictures, the findings and why, and the tests
//! that stopped each window.

use std::collections::BTreeMap;

use crate::explain::story::{
    Cause, Closest, End, LevelTests, PartMinima, Story, StoryEvent, StoryPoint, signal,
};
use crate::explain::test_words::words_of;
use crate::explain::words::{measure, reason};
use stepmem_detect::{
    Axis, Explanation, LARGEST_T, Shown, Signal, Stage, Stopped, WindowReport,
};
use stepmem_engine::words::capacity_words;
use stepmem_engine::{LIVE_SIGNALS, Severity, Transition, TransitionState};
use stepmem_types::claims::{Claim, Sentence, Statement, Telling};
use stepmem_types::format::page::{COLUMNS, Column, Indent, Page, Table};
use stepmem_types::format::units::{
    bytes, date, duration, grouped, many, percent, share, whole,
};
use stepmem_types::ids::{GpuUuid, ProcessId, RankId, SubjectId};
use stepmem_types::step::StepUnit;
use stepmem_types::units::Count;

/// The text for growth that the intervals between event markers show.
const BETWEEN_EVENTS: &str =
    "seen between evaluations, checkpoints and pauses: it rises alike at each of them";

/// The text for growth that the newest readings show, each by itself.
const RAPID: &str = "seen in the newest readings of the device, one every few seconds: it rises alike from each to the next";

/// The text for growth that the number of live blocks shows.
const BY_BLOCKS: &str =
    "seen in the number of live blocks, which the bytes alone did not show yet";

/// The memory of a process in sentences. A series of others may be of anything.
const OF_PROCESS: &str = "memory of the process";
/// The memory of a series of others.
const OF_SERIES: &str = "memory";

/// The lead of the second witness of live memory.
pub(crate) const LIVE_BLOCKS: &str = "Live blocks of the allocator: ";

/// Puts a story into words, for a terminal of so many columns.
pub fn render(story: &Story, columns: Option<usize>) -> String {
    tell(story, columns).into_text()
}

/// Tells a story, for a terminal of so many columns.
pub(crate) fn tell(story: &Story, columns: Option<usize>) -> Telling {
    let mut page = Telling::on(Page::default().within(columns));
    head(&mut page, story);
    for signal in signals(story) {
        if LIVE_SIGNALS.contains(&signal) || has_event(story, signal) {
            picture(&mut page, story, signal, columns);
        }
    }
    page.blank();
    page.heading("Findings, and why");
    for event in &story.events {
        finding(&mut page, event, story);
    }
    if story.events.is_empty() {
        page.say(Indent::hanging(2), Statement::new(Claim::NoFinding, "None."));
    }
    for signal in signals(story) {
        if is_readable(story, signal) {
            windows(&mut page, story, signal);
        }
    }
    glossary(&mut page, story);
    page
}

/// Returns the signals that such a subject has; of the host only where it was read.
pub(crate) fn signals(story: &Story) -> impl Iterator<Item = Signal> {
    Signal::ALL
        .into_iter()
        .filter(|signal| (signal.axis() == Axis::Seconds) == story.is_process())
        .filter(|signal| !signal.is_beside() || story.has(*signal))
}

/// Returns whether a subject can have such a signal: a process on the host has no device's
/// allocator.
fn is_readable(story: &Story, signal: Signal) -> bool {
    let device = story.device.as_deref().and_then(|device| GpuUuid::new(device).ok());
    let is_on_host = device.is_some_and(|device| device.is_host());
    !is_on_host
        || matches!(
            signal,
            Signal::Allocated | Signal::Children | Signal::Shm | Signal::Process
        )
}

fn has_event(story: &Story, of: Signal) -> bool {
    story.events.iter().any(|event| signal(&event.transition) == Some(of))
}

fn head(page: &mut Telling, story: &Story) {
    let device = story.device.as_deref().filter(|_| story.series.is_none());
    let device = device.map_or(String::new(), |device| format!(" on {device}"));
    let capacity = story.capacity.map_or_else(
        || Statement::new(Claim::CapacityUnknown, "capacity unknown, 80 GiB assumed"),
        |capacity| {
            let (set_by, total) = story.capacity_set_by.unzip();
            let words = capacity_words(capacity, set_by, total.flatten());
            Statement::new(Claim::Capacity, words).of(capacity.as_f64())
        },
    );
    let who = match (&story.series, &story.subject) {
        (Some(name), _) => name.clone(),
        (_, SubjectId::Rank(RankId { run, rank })) => format!("Run {run}, rank {rank}"),
        (_, SubjectId::Process(ProcessId { pid, .. })) => format!("Process {pid}"),
        (_, SubjectId::Device(_)) => "Device".to_owned(),
    };
    let subject = Statement::new(Claim::Subject, format!("{who}{device}"));
    let subject = Sentence::from(subject).then(" (", capacity).end(")");
    page.say(Indent::hanging(0), subject);
    if let Some(span) = story.span {
        let seen = Statement::new(Claim::Seen, seen_words(story, span));
        let n_steps = Count::new(story.n_steps).ok().map(Count::as_f64);
        page.say(Indent::hanging(0), seen.of(n_steps));
    }
    let held: Vec<String> = held(story)
        .map(|event| {
            let transition = &event.transition;
            format!("{} ({})", transition.kind.about().title, severity(story, event))
        })
        .collect();
    let now = if held.is_empty() { "no finding".to_owned() } else { held.join(", ") };
    let standing = Statement::new(Claim::Standing, format!("At the end: {now}"));
    page.say(Indent::hanging(0), standing);
}

/// Returns the steps or samples that were seen of a subject, and their times, in words.
fn seen_words(story: &Story, (first, last): (StoryPoint, StoryPoint)) -> String {
    let restarts = match story.n_restarts {
        0 => String::new(),
        1 => ", 1 restart".to_owned(),
        n => format!(", {n} restarts"),
    };
    let lasted = duration(last.time - first.time);
    let (from, to) = (date(first.time), date(last.time));
    if story.is_by_time {
        let n_samples = many(story.n_steps, "sample");
        return format!(
            "{n_samples} by time, no optimizer steps{restarts}; {from} to {to} ({lasted}, times in UTC)"
        );
    }
    if let (Some(first), Some(last)) = (first.step, last.step) {
        let noun = story.unit.noun();
        let unit = if story.unit.is_steps() { "train step" } else { noun };
        let (n_steps, first, last) = (many(story.n_steps, unit), grouped(first), grouped(last));
        return format!(
            "{n_steps}{restarts}, from {noun} {first} at {from} to {noun} {last} at {to} ({lasted}, times in UTC)"
        );
    }
    if story.series.is_some() {
        let n_samples = many(story.n_steps, "sample");
        return format!("{n_samples} by time; {from} to {to} ({lasted}, times in UTC)");
    }
    let n_readings = many(story.n_steps, "reading");
    format!("{n_readings}, unmanaged; {from} to {to} ({lasted}, times in UTC)")
}

/// Returns the severity of a finding that was raised, and why it is info where it was more
/// before.
fn severity(story: &Story, event: &StoryEvent) -> String {
    let Transition { kind, severity, .. } = event.transition;
    let earlier = story.events.iter().take_while(|other| !std::ptr::eq(*other, event));
    let last = earlier.filter(|other| other.transition.kind == kind).last();
    let before = last.filter(|last| last.transition.state == TransitionState::Raised);
    let before = before.map(|before| before.transition.severity);
    match before.filter(|before| severity == Severity::Info && *before > severity) {
        Some(before) if event.transition.evidence.ends() => {
            format!("info; {} until a bound that fits was known", before.as_label())
        }
        Some(before) if event.transition.evidence.is_run_first() => {
            format!("info; {} until the run was known to end first", before.as_label())
        }
        Some(before) if !event.transition.evidence.is_level() => {
            let why =
                if event.has_ended { "the rank ended" } else { "the finding was acknowledged" };
            format!("info; {} until {why}", before.as_label())
        }
        _ => severity.as_label().to_owned(),
    }
}

/// Returns the findings that still hold at the end.
pub(crate) fn held(story: &Story) -> impl Iterator<Item = &StoryEvent> {
    story.events.iter().enumerate().filter_map(|(idx, event)| {
        let later = story.events.get(idx + 1..).unwrap_or(&[]);
        let is_last = later.iter().all(|other| other.transition.kind != event.transition.kind);
        (is_last && event.transition.state == TransitionState::Raised).then_some(event)
    })
}

fn picture(page: &mut Telling, story: &Story, of: Signal, columns: Option<usize>) {
    let Some(minima) = story.minima.get(&of) else { return };
    let room = columns.unwrap_or(COLUMNS).saturating_sub(2).max(1);
    // So many points of the story make one of the chart, where the width does not hold all.
    let n_joined = minima.points().len().div_ceil(room).max(1);
    let joined = minima.points().chunks(n_joined);
    let points: Vec<f64> =
        joined.map(|points| points.iter().copied().fold(f64::NAN, f64::min)).collect();
    let n_each = u64::try_from(n_joined).unwrap_or(1) * minima.steps_per_point();
    let known = || minima.points().iter().copied().filter(|bytes| bytes.is_finite());
    let lowest = known().fold(f64::INFINITY, f64::min);
    let highest = known().fold(f64::NEG_INFINITY, f64::max);
    if lowest > highest {
        return;
    }
    let (after, unit) = match story.unit {
        _ if story.has_readings() => ("", "reading"),
        StepUnit::Steps => (" after each step", "step"),
        StepUnit::Calls => (" after calls", "record"),
        StepUnit::Replays => (" after each replay", "replay"),
    };
    let each = match n_each {
        1 => unit.to_owned(),
        n => format!("{} {unit}s", grouped(n)),
    };
    page.blank();
    let words = format!(
        "{}{after}, the least of each {each}: {} to {}",
        told_as(story, of),
        bytes(lowest),
        bytes(highest)
    );
    page.say(Indent::hanging(0), Statement::new(Claim::Range, words).of(highest));
    page.chart(&points);
    let row = vec![' '; points.len()];
    marks(
        page,
        story.events.iter().filter(|event| signal(&event.transition) == Some(of)),
        n_each,
        row,
    );
}

/// Adds the row below a chart, in which each column is of so many steps. It shows where
/// findings were raised and cleared.
fn marks<'s>(
    page: &mut Telling,
    events: impl Iterator<Item = &'s StoryEvent>,
    n_each: u64,
    mut row: Vec<char>,
) {
    let mut legend: Vec<(char, &str)> = Vec::new();
    for event in events {
        let (mark, meaning) = match (event.transition.state, event.cause) {
            (TransitionState::Cleared, Cause::Became(_)) => continue,
            (TransitionState::Cleared, Cause::Restart) => ('|', "restart"),
            (TransitionState::Cleared, _) => ('x', "cleared"),
            (TransitionState::Raised, _) => {
                let about = event.transition.kind.about();
                (about.mark, about.title)
            }
        };
        let idx = event.n_pictured.saturating_sub(1) / n_each;
        if let Some(place) = usize::try_from(idx).ok().and_then(|idx| row.get_mut(idx)) {
            *place = mark;
        }
        if !legend.contains(&(mark, meaning)) {
            legend.push((mark, meaning));
        }
    }
    if !legend.is_empty() {
        page.marks(&row);
        let mark = |(mark, meaning): &(char, &str)| {
            Sentence::from(Statement::new(Claim::Mark, format!("{mark} {meaning}")))
        };
        let legend = legend.iter().map(mark).reduce(|all, mark| all.then("   ", mark));
        page.say(Indent::hanging(2), legend.unwrap_or_default());
    }
}

/// Returns the name of the records that a signal's windows consist of.
fn records(of: Signal) -> &'static str {
    match of {
        Signal::Allocated | Signal::Reserved | Signal::Host => "pushes",
        Signal::OutsideAllocator | Signal::Children | Signal::Shm | Signal::Process => {
            "readings"
        }
    }
}

/// Returns a signal of a story in words, at the beginning of a sentence.
fn told_as(story: &Story, of: Signal) -> &'static str {
    if story.series.is_some() { "Memory" } else { what(of) }
}

/// Returns a signal in words, at the beginning of a sentence.
pub(crate) fn what(signal: Signal) -> &'static str {
    match signal {
        Signal::Allocated => "Live memory",
        Signal::Reserved => "Reserved memory that no larger batch explains",
        Signal::OutsideAllocator => "Memory outside the allocator",
        Signal::Host => "Host memory",
        Signal::Children => "Memory of child processes",
        Signal::Shm => "Files in /dev/shm",
        Signal::Process => "Memory of the process",
    }
}

fn finding(page: &mut Telling, event: &StoryEvent, story: &Story) {
    let transition = &event.transition;
    let step = transition.step.filter(|_| !story.is_by_time);
    let value = step.and_then(|step| Count::new(step).ok()).map(Count::as_f64);
    let step = step.map_or(String::new(), |step| format!("step {}, ", grouped(step)));
    let when = format!("{step}{}:", date(transition.time));
    let (title, stage) = (transition.kind.about().title, transition.kind.about().stage);
    match (transition.state, event.cause) {
        // The next line reports it.
        (TransitionState::Cleared, Cause::Became(_)) => {}
        (TransitionState::Cleared, _) => {
            let why = why_cleared(event, story);
            let words = format!("{when} {title} cleared: {why}");
            page.say(Indent::hanging(2), Statement::new(Claim::Cleared, words).of(value));
        }
        (TransitionState::Raised, _) => {
            let mut sentence = transition.evidence.sentence();
            if story.series.is_some() {
                sentence = sentence.reworded(OF_PROCESS, OF_SERIES);
            }
            let words = format!("{when} {title}, {}", severity(story, event));
            let raised = Statement::new(Claim::Raised, words).of(value);
            page.say(Indent::hanging(2), Sentence::from(raised).then(": ", sentence));
            if let Some(kept) = &event.by_blocks {
                let shown = Sentence::from(Statement::new(Claim::ShownBy, BY_BLOCKS));
                page.say(Indent::hanging(6), shown.then(": ", kept.full_statement(story.unit)));
            } else if let Some((window, stage)) = event.window.as_ref().zip(stage) {
                shown(page, window, stage, story);
            } else if event.is_between_events {
                page.say(Indent::hanging(6), Statement::new(Claim::ShownBy, BETWEEN_EVENTS));
            } else if event.is_rapid {
                page.say(Indent::hanging(6), Statement::new(Claim::ShownBy, RAPID));
            }
        }
    }
}

/// Returns the reason for which a finding was cleared, in words.
fn why_cleared(event: &StoryEvent, story: &Story) -> &'static str {
    match event.cause {
        Cause::Restart if story.series.is_some() => {
            "it fell to less than a quarter, and its history is forgotten"
        }
        Cause::Restart => "the rank restarted, and its history is forgotten",
        Cause::Silence => "the rank was silent for longer than --rank.ttl",
        _ if event.transition.kind.about().stage == Some(Stage::Rising) => "its growth ended",
        _ if signal(&event.transition).is_some() => {
            "its growth ended, and it stayed level for as long again"
        }
        _ => "its figures no longer show it",
    }
}

/// Adds the window that shows a finding of a stage, as it was then.
fn shown(page: &mut Telling, window: &WindowReport, stage: Stage, story: &Story) {
    let place = format!(
        "{} ({} {})",
        extent(window, story.unit),
        whole(window.n_samples),
        records(window.signal)
    );
    let (shown, stop) = match &window.outcome {
        Ok(shown) if shown.stage >= stage => {
            let stop = shown.obstacle.filter(|_| stage == Stage::Rising);
            let stop = stop.map(|stop| {
                let words = format!("not yet creep: {}", reason(&stop));
                Statement::new(Claim::NotYetCreep, words)
            });
            let words = grown(&place, shown, story);
            (Statement::new(Claim::ShownBy, words).of(shown.growth_bytes), stop)
        }
        outcome => {
            let stop = outcome.map_or_else(Some, |shown| shown.obstacle);
            let since = stop.map(|stop| {
                let words = format!("shows less by now: {}", reason(&stop));
                Statement::new(Claim::ShowsLess, words)
            });
            (Statement::new(Claim::ShownBy, format!("seen in {place}")), since)
        }
    };
    page.say(Indent::hanging(6), shown);
    if let Some(stop) = stop {
        page.say(Indent::hanging(6), stop);
    }
}

/// Returns the growth that a window shows, in words.
fn grown(place: &str, shown: &Shown, story: &Story) -> String {
    let stand_in = if story.capacity.is_some() { "" } else { " (of an assumed capacity)" };
    format!(
        "seen in {place}: +{} without its largest increment, {} of that and the {} \
         left{stand_in}; {} standard deviations of a random walk",
        bytes(shown.growth_bytes),
        share(shown.share_ratio),
        bytes(shown.headroom_bytes),
        deviations(shown.t),
    )
}

/// Writes how many deviations a growth is; many are cut off.
fn deviations(t: f64) -> String {
    if t < LARGEST_T { format!("{t:.1}") } else { format!("{} or more", whole(LARGEST_T)) }
}

/// Returns the part of an incarnation that a window spans.
fn extent(window: &WindowReport, unit: StepUnit) -> String {
    let (from, to) = (window.from, window.to);
    if window.axis == Axis::Steps {
        format!("{} {} to {}", unit.as_label(), whole(from), whole(to))
    } else {
        format!("the last {}", duration(to - from))
    }
}

/// Returns whether the figures of a signal did not come, while those of live memory did.
fn is_unknown(story: &Story, of: Signal) -> bool {
    let is_read = |of: Signal| {
        let minima = story.minima.get(&of).map(PartMinima::points).unwrap_or_default();
        minima.iter().any(|point| point.is_finite())
    };
    let is_tested = |of: Signal| story.windows.keys().any(|(signal, _)| *signal == of);
    match of {
        // It has a figure after each step whose peak is known.
        Signal::Reserved => LIVE_SIGNALS.into_iter().any(is_tested) && !is_tested(of),
        _ => LIVE_SIGNALS.into_iter().any(is_read) && !is_read(of),
    }
}

/// Returns the levels of a signal with windows that were tested.
fn tested_levels(story: &Story, of: Signal) -> Vec<&LevelTests> {
    let levels = story.windows.iter();
    levels
        .filter(|((signal, _), level)| *signal == of && level.n_tests > 0)
        .map(|(_, level)| level)
        .collect()
}

/// Returns whether windows have outcomes that differ: one is said in words alone.
fn is_in_table(levels: &[&LevelTests]) -> bool {
    let mut ends = levels.iter().flat_map(|level| level.ends.keys());
    let first = ends.next();
    ends.any(|end| Some(end) != first)
}

fn windows(page: &mut Telling, story: &Story, of: Signal) {
    let levels = tested_levels(story, of);
    let records = records(of);
    page.blank();
    match levels.as_slice() {
        [] if is_unknown(story, of) => {
            let words = format!("{}: unknown, as the figures for it did not come", what(of));
            page.say(Indent::hanging(0), Statement::new(Claim::Unread, words));
        }
        [] => {
            let words =
                format!("{}: no window was long enough to be tested", told_as(story, of));
            page.say(Indent::hanging(0), Statement::new(Claim::Untested, words));
        }
        _ => {
            let words = format!("{}: {}", told_as(story, of), in_words(records, &levels));
            let n_tests: u32 = levels.iter().map(|level| level.n_tests).sum();
            let outcomes = Statement::new(Claim::Outcomes, words).of(f64::from(n_tests));
            page.say(Indent::hanging(0), outcomes);
            if is_in_table(&levels) {
                page.table(&table(records, &levels));
            }
        }
    }
    if let Some(closest) = story.closest.get(&of) {
        closest_word(page, closest, story.unit);
    }
    if let Some(kept) = story.kept_blocks.filter(|_| of == Signal::Allocated) {
        let kept = Sentence::from(kept.full_statement(story.unit)).after(LIVE_BLOCKS);
        page.say(Indent::hanging(0), kept);
    }
}

/// The least share of an outcome that is told in words.
const TOLD_SHARE_MIN: f64 = 0.05;

/// Says what the windows of all levels show, the most frequent first.
fn in_words(records: &str, levels: &[&LevelTests]) -> String {
    let mut n_by_end: BTreeMap<End, u32> = BTreeMap::new();
    for (end, n) in levels.iter().flat_map(|level| &level.ends) {
        *n_by_end.entry(*end).or_default() += n;
    }
    let n_tests: u32 = n_by_end.values().sum();
    let longest = levels.iter().map(|level| level.last.n_samples).fold(0.0, f64::max);
    let of_longest = format!("of up to {} {records}", whole(longest));
    let mut ends: Vec<(u32, End)> = n_by_end.into_iter().map(|(end, n)| (n, end)).collect();
    ends.sort_by(|a, b| b.cmp(a));
    if let [(n, end)] = ends.as_slice() {
        let windows = match n {
            1 => "the one window".to_owned(),
            n => format!("each of {} windows", grouped((*n).into())),
        };
        return format!("in {windows} {of_longest} it {}", did(*end));
    }
    let share_of = |n: u32| f64::from(n) / f64::from(n_tests);
    let told: Vec<String> = ends
        .iter()
        // Those that crept are the finding.
        .filter(|(n, end)| share_of(*n) >= TOLD_SHARE_MIN || *end == End::Creeps)
        .map(|(n, end)| {
            // Few that crept are not none.
            let written = if *end == End::Creeps { share } else { percent };
            format!("in {} it {}", written(share_of(*n)), did(*end))
        })
        .collect();
    let n_tests = grouped(n_tests.into());
    format!("of {n_tests} windows {of_longest}, {}", told.join(", "))
}

/// Says what memory did in a window with such an outcome.
fn did(end: End) -> &'static str {
    match end {
        End::Stopped(test) => words_of(test).did,
        End::Rises(_) => "rose, and that may still be innocent",
        End::Creeps => "crept",
    }
}

/// The width of the most frequent outcomes.
const MOSTLY_WIDTH: usize = 38;

/// Returns the windows of each level as a table.
fn table(records: &'static str, levels: &[&LevelTests]) -> Table {
    let mut table = Table::new([
        Column::right(2, records).at_least(8),
        Column::right(2, "tests").at_least(7),
        Column::left(2, "mostly").at_least(MOSTLY_WIDTH),
        Column::left(2, "the last one"),
    ]);
    let length = |level: &LevelTests| whole(level.last.n_samples);
    // The longest window of a level may be as long as that of the next.
    for alike in levels.chunk_by(|a, b| length(a) == length(b)) {
        let Some(longest) = alike.last() else { continue };
        let mut ends = BTreeMap::new();
        for (end, n) in alike.iter().flat_map(|level| &level.ends) {
            *ends.entry(*end).or_default() += n;
        }
        let n_tests: u32 = alike.iter().map(|level| level.n_tests).sum();
        table.row([
            length(longest),
            grouped(n_tests.into()),
            mostly(&ends, n_tests),
            last_word(&longest.last),
        ]);
    }
    table
}

/// Returns the two most frequent outcomes of so many tests, or the first where both do not fit.
fn mostly(ends: &BTreeMap<End, u32>, n_tests: u32) -> String {
    let mut ends: Vec<_> = ends.iter().map(|(end, n)| (*n, *end)).collect();
    ends.sort_by(|a, b| b.cmp(a));
    let of_tests = |n: u32| percent(f64::from(n) / f64::from(n_tests));
    ends.retain(|(n, _)| of_tests(*n) != "0%");
    let words: Vec<_> = ends
        .iter()
        .take(2)
        .map(|(n, end)| format!("{} {}", brief(*end), of_tests(*n)))
        .collect();
    let both = words.join(", ");
    if both.len() <= MOSTLY_WIDTH { both } else { words.into_iter().next().unwrap_or_default() }
}

/// Returns an outcome in a word or two.
fn brief(end: End) -> String {
    match end {
        End::Stopped(test) => words_of(test).name.to_owned(),
        End::Rises(test) => format!("rises ({})", words_of(test).name),
        End::Creeps => "creeps".to_owned(),
    }
}

/// Returns the outcome of a window and, where a test stopped it, its value and limit.
pub(crate) fn last_word(window: &WindowReport) -> String {
    let end = brief(End::of(&window.outcome));
    let stop = match &window.outcome {
        Err(stop) => Some(*stop),
        Ok(shown) => shown.obstacle,
    };
    match stop {
        Some(stop) => format!("{end}: {}", measure(&stop)),
        None => end,
    }
}

/// Adds how near the signal came to a trend: why nothing was raised.
fn closest_word(page: &mut Telling, closest: &Closest, unit: StepUnit) {
    let window = &closest.window;
    let words = match &window.outcome {
        Ok(shown) => match &shown.obstacle {
            None => return,
            Some(stop) => format!("it rose, but was not called creep: {}", reason(stop)),
        },
        // A signal that does not rise needs no further word.
        Err(Stopped { explanation: Explanation::Small, .. }) => return,
        Err(stop) => reason(stop),
    };
    let when = match closest.step {
        Some(step) => {
            format!("{} {}, over {}", unit.noun(), grouped(step), extent(window, unit))
        }
        None => {
            format!("its {}, over {}", duration(window.to), extent(window, unit))
        }
    };
    let words = format!("Nearest to a creep at {when}: {words}");
    let step = closest.step.and_then(|step| Count::new(step).ok()).map(Count::as_f64);
    page.say(Indent::hanging(2), Statement::new(Claim::Nearest, words).of(step));
}

fn glossary(page: &mut Telling, story: &Story) {
    let levels = signals(story).filter(|of| is_readable(story, *of));
    let levels = levels.map(|of| tested_levels(story, of)).filter(|levels| is_in_table(levels));
    meanings(page, levels.flatten().flat_map(|level| level.ends.keys().copied()));
}

/// Returns the explanations of some outcomes, in the order of asking.
pub(crate) fn tests(ends: impl Iterator<Item = End>) -> Vec<Explanation> {
    let mut tests: Vec<Explanation> = ends
        .filter_map(|end| match end {
            End::Stopped(test) | End::Rises(test) => Some(test),
            End::Creeps => None,
        })
        .collect();
    tests.sort();
    tests.dedup();
    tests
}

/// Adds the meaning of the words that tables of outcomes use.
pub(crate) fn meanings(page: &mut Telling, ends: impl Iterator<Item = End>) {
    let tests = tests(ends);
    if tests.is_empty() {
        return;
    }
    page.blank();
    page.heading("These outcomes, in the order in which a window is tested");
    for row in tests.iter().map(|test| words_of(*test)) {
        page.meaning(row.name, row.meaning);
    }
}

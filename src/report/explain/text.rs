//! A story as text of at most 100 columns: the pictures, the findings and why, and the gates that stopped each window.

use crate::analysis::creep::axis::Axis;
use crate::analysis::creep::gates::{Gate, GateFailure};
use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::stairs::{MeanStair, StairsEvidence};
use crate::analysis::creep::surge::SurgeEvidence;
use crate::analysis::creep::trend::{Stage, Trend};
use crate::analysis::creep::window::WindowVerdict;
use crate::analysis::diagnosis::growth::LIVE_SIGNALS;
use crate::analysis::diagnosis::kind::Severity;
use crate::analysis::findings::{Transition, TransitionState};
use crate::model::ids::{GpuUuid, ProcessId, RankId, SubjectId};
use crate::report::explain::story::{
    Cause, Closest, End, LevelTests, Story, StoryEvent, signal, stage_of,
};
use crate::report::explain::words::{measure, reason};
use crate::text::page::{COLUMNS, Column, Indent, Page, Table};
use crate::text::spark::sparkline;
use crate::text::units::{
    bytes, counted, date, duration, grouped, many, percent, share, whole,
};

/// Fewer stairs are not mentioned: any ramp has two.
const STAIRS_SHOWN_MIN: usize = 3;

/// Puts a story into words, for a terminal of so many columns.
pub fn render(story: &Story, columns: Option<usize>) -> String {
    let mut page = Page::default().within(columns);
    head(&mut page, story);
    for signal in signals(story) {
        if LIVE_SIGNALS.contains(&signal) || has_event(story, signal) {
            picture(&mut page, story, signal, columns);
        }
    }
    page.blank();
    page.line("Findings, and why");
    for event in &story.events {
        finding(&mut page, event, story);
    }
    if story.events.is_empty() {
        page.line("  None.");
    }
    for signal in signals(story) {
        if is_readable(story, signal) {
            windows(&mut page, story, signal);
        }
    }
    early(&mut page, story);
    stairs(&mut page, story);
    glossary(&mut page, story);
    page.into_text()
}

/// Returns the signals that such a subject has.
pub fn signals(story: &Story) -> impl Iterator<Item = Signal> {
    Signal::ALL
        .into_iter()
        .filter(|signal| (signal.axis() == Axis::Seconds) == story.is_process())
}

/// Returns whether a subject can have such a signal: a process on the host has no device's allocator.
fn is_readable(story: &Story, signal: Signal) -> bool {
    let device = story.device.as_deref().and_then(|device| GpuUuid::new(device).ok());
    let is_on_host = device.is_some_and(|device| device.is_host());
    !is_on_host || matches!(signal, Signal::Allocated | Signal::Process)
}

fn has_event(story: &Story, of: Signal) -> bool {
    story.events.iter().any(|event| signal(&event.transition) == Some(of))
}

fn head(page: &mut Page, story: &Story) {
    let device =
        story.device.as_deref().map_or(String::new(), |device| format!(" on {device}"));
    let capacity = story.capacity.map_or_else(
        || "capacity unknown, 80 GiB stand in".to_owned(),
        |capacity| bytes(capacity.as_f64()),
    );
    let restarts = match story.n_restarts {
        0 => String::new(),
        1 => ", 1 restart".to_owned(),
        n => format!(", {n} restarts"),
    };
    let who = match &story.subject {
        SubjectId::Rank(RankId { run, rank }) => format!("Run {run}, rank {rank}"),
        SubjectId::Process(ProcessId { pid, .. }) => format!("Process {pid}"),
        SubjectId::Device(_) => "Device".to_owned(),
    };
    page.paragraph(Indent::hanging(0), &format!("{who}{device} ({capacity})"));
    if let Some((first, last)) = story.span {
        let lasted = duration(last.time - first.time);
        let (from, to) = (date(first.time), date(last.time));
        let words = if story.is_by_time {
            let n_samples = many(story.n_steps, "sample");
            format!(
                "{n_samples} by time, no optimizer steps{restarts}; {from} to {to} ({lasted})"
            )
        } else if let (Some(first), Some(last)) = (first.step, last.step) {
            let (n_steps, first, last) =
                (many(story.n_steps, "train step"), grouped(first), grouped(last));
            format!(
                "{n_steps}{restarts}, from step {first} at {from} to step {last} at {to} ({lasted})"
            )
        } else {
            let n_readings = many(story.n_steps, "reading");
            format!("{n_readings}, it does not push; {from} to {to} ({lasted})")
        };
        page.paragraph(Indent::hanging(0), &words);
    }
    let held: Vec<String> = held(story)
        .map(|event| {
            let transition = &event.transition;
            format!("{} ({})", transition.kind.about().title, severity(story, event))
        })
        .collect();
    let now = if held.is_empty() { "no finding".to_owned() } else { held.join(", ") };
    page.paragraph(Indent::hanging(0), &format!("At the end: {now}"));
}

/// Returns the severity of a finding that was raised, and why it is info where it was more before.
fn severity(story: &Story, event: &StoryEvent) -> String {
    let Transition { kind, severity, .. } = event.transition;
    let earlier = story.events.iter().take_while(|other| !std::ptr::eq(*other, event));
    let last = earlier.filter(|other| other.transition.kind == kind).last();
    let before = last.filter(|last| last.transition.state == TransitionState::Raised);
    let before = before.map(|before| before.transition.severity);
    match before.filter(|before| severity == Severity::Info && *before > severity) {
        Some(before) => format!(
            "info; {} until the rank ended or the finding was acknowledged",
            before.as_label()
        ),
        None => severity.as_label().to_owned(),
    }
}

/// Returns the findings that still hold at the end.
pub fn held(story: &Story) -> impl Iterator<Item = &StoryEvent> {
    story.events.iter().enumerate().filter_map(|(idx, event)| {
        let later = story.events.get(idx + 1..).unwrap_or(&[]);
        let is_last = later.iter().all(|other| other.transition.kind != event.transition.kind);
        (is_last && event.transition.state == TransitionState::Raised).then_some(event)
    })
}

fn picture(page: &mut Page, story: &Story, of: Signal, columns: Option<usize>) {
    let Some(floor) = story.floors.get(&of) else { return };
    let room = columns.unwrap_or(COLUMNS).saturating_sub(2).max(1);
    // So many points of the story are one of the picture, where not all have room.
    let n_joined = floor.points().len().div_ceil(room).max(1);
    let joined = floor.points().chunks(n_joined);
    let points: Vec<f64> =
        joined.map(|points| points.iter().copied().fold(f64::NAN, f64::min)).collect();
    let n_each = u64::try_from(n_joined).unwrap_or(1) * floor.steps_per_point();
    let known = || floor.points().iter().copied().filter(|bytes| bytes.is_finite());
    let lowest = known().fold(f64::INFINITY, f64::min);
    let highest = known().fold(f64::NEG_INFINITY, f64::max);
    if lowest > highest {
        return;
    }
    let (after, unit) =
        if story.has_readings() { ("", "reading") } else { (" after each step", "step") };
    let each = match n_each {
        1 => unit.to_owned(),
        n => format!("{} {unit}s", grouped(n)),
    };
    page.blank();
    let words = format!(
        "{}{after}, the least of each {each}: {} to {}",
        what(of),
        bytes(lowest),
        bytes(highest)
    );
    page.paragraph(Indent::hanging(0), &words);
    page.line(&format!("  {}", sparkline(&points)));
    let row = vec![' '; points.len()];
    marks(
        page,
        story.events.iter().filter(|event| signal(&event.transition) == Some(of)),
        n_each,
        row,
    );
}

/// Adds the row below a picture, in which each place is of so many steps: it marks what was raised and cleared.
fn marks<'s>(
    page: &mut Page,
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
        page.line(&format!("  {}", row.iter().collect::<String>()));
        let legend: Vec<_> =
            legend.iter().map(|(mark, meaning)| format!("{mark} {meaning}")).collect();
        page.paragraph(Indent::hanging(2), &legend.join("   "));
    }
}

/// Returns what a signal's windows consist of.
fn records(of: Signal) -> &'static str {
    match of {
        Signal::Allocated | Signal::Reserved => "pushes",
        Signal::OutsideAllocator | Signal::Process => "readings",
    }
}

/// Returns a signal in words, at the beginning of a sentence.
pub fn what(signal: Signal) -> &'static str {
    match signal {
        Signal::Allocated => "Live memory",
        Signal::Reserved => "Reserved memory",
        Signal::OutsideAllocator => "Memory outside the allocator",
        Signal::Process => "Memory of the process",
    }
}

fn finding(page: &mut Page, event: &StoryEvent, story: &Story) {
    let transition = &event.transition;
    let step = transition.step.filter(|_| !story.is_by_time);
    let step = step.map_or(String::new(), |step| format!("step {}, ", grouped(step)));
    let when = format!("{step}{}:", date(transition.time));
    let (kind, title) = (transition.kind, transition.kind.about().title);
    match (transition.state, event.cause) {
        // The next line reports it.
        (TransitionState::Cleared, Cause::Became(_)) => {}
        (TransitionState::Cleared, cause) => {
            let why = match cause {
                Cause::Restart => "the rank restarted, and its past is forgotten",
                Cause::Silence => "the rank was silent for longer than --rank.ttl",
                _ if signal(transition).is_some() => {
                    "the window that showed it stopped growing: in eight blocks in a row, less than \
                     a quarter of its rate over the last eight"
                }
                _ => "its figures no longer show it",
            };
            page.paragraph(Indent::hanging(2), &format!("{when} {title} cleared: {why}"));
        }
        (TransitionState::Raised, _) => {
            let (severity, sentence) = (severity(story, event), transition.evidence.sentence());
            let words = format!("{when} {title}, {severity}: {sentence}");
            page.paragraph(Indent::hanging(2), &words);
            if let Some(window) = &event.window {
                shown(page, window, stage_of(kind), story);
            } else if let Some(surge) = &event.surge {
                surged(page, surge, story);
            } else if let Some(stairs) = &event.stairs {
                page.paragraph(Indent::hanging(6), &climbed(stairs));
            }
        }
    }
}

/// Adds the window behind a raised finding. One that changes its severity may show less by then.
fn shown(page: &mut Page, window: &WindowVerdict, stage: Stage, story: &Story) {
    let place =
        format!("{} ({} {})", extent(window), whole(window.n_records), records(window.signal));
    let (words, stop) = match &window.outcome {
        Ok(passed) if passed.trend.stage >= stage => {
            let words = grown(&place, &passed.trend, window.headroom_bytes, story);
            let stop = passed.obstacle.filter(|_| stage == Stage::Rising);
            (words, stop.map(|stop| format!("not yet creep: {}", reason(&stop))))
        }
        outcome => {
            let stop = outcome.map_or_else(Some, |passed| passed.obstacle);
            let since = stop.map(|stop| format!("shows less by now: {}", reason(&stop)));
            (format!("seen in {place}"), since)
        }
    };
    page.paragraph(Indent::hanging(6), &words);
    if let Some(stop) = stop {
        page.paragraph(Indent::hanging(6), &stop);
    }
}

/// Adds the first steps behind a raised finding, or the later ones.
fn surged(page: &mut Page, surge: &SurgeEvidence, story: &Story) {
    let Some(trend) = &surge.trend else { return };
    let place =
        if surge.is_later { later_steps(surge) } else { format!("the {}", first_steps(surge)) };
    let words = grown(&place, trend, surge.headroom_bytes, story);
    page.paragraph(Indent::hanging(6), &words);
    if let Some(stop) = surge.failure.filter(|_| trend.stage == Stage::Rising) {
        page.paragraph(Indent::hanging(6), &format!("not yet creep: {}", reason(&stop)));
    }
}

/// Writes a trend, the place where it is seen, and the bytes left.
fn grown(place: &str, trend: &Trend, left: f64, story: &Story) -> String {
    let is_by_time = trend.axis == Axis::Seconds;
    let (scale, per) = if is_by_time { (3600.0, "h") } else { (1.0, "step") };
    let slope = trend.slope_bytes_per_unit;
    let stand_in = if story.capacity.is_some() { "" } else { " (of a stand-in)" };
    format!(
        "seen in {place}: +{} at {}/{per} (95%: {} to {}), which is {} of that and the {} \
         left{stand_in}; confidence {:.2}",
        bytes(trend.growth_bytes),
        bytes(scale * slope.value),
        bytes(scale * slope.lower),
        bytes(scale * slope.upper),
        share(trend.share_ratio),
        bytes(left),
        trend.confidence_ratio(),
    )
}

/// Returns the part of the run that the first steps are.
fn first_steps(surge: &SurgeEvidence) -> String {
    let (first, last) = (surge.first_position, surge.last_position);
    if surge.axis == Axis::Steps {
        format!("first steps ({} to {})", whole(first), whole(last))
    } else {
        format!("first {}", duration(last - first))
    }
}

/// Returns the part of the run in which growth set in after the first steps.
fn later_steps(surge: &SurgeEvidence) -> String {
    let (first, last) = (surge.first_position, surge.last_position);
    if surge.axis == Axis::Seconds {
        return format!("the last {}, never as high before", duration(last - first));
    }
    format!("steps {} to {}, never as high before", whole(first), whole(last))
}

/// Returns the part of the run that a window spans.
fn extent(window: &WindowVerdict) -> String {
    if window.axis == Axis::Steps {
        format!("steps {} to {}", whole(window.first_position), whole(window.last_position))
    } else {
        format!("the last {}", duration(window.last_position - window.first_position))
    }
}

fn climbed(stairs: &StairsEvidence) -> String {
    let Some(MeanStair { height_bytes, distance_steps }) = stairs.mean else {
        return "seen as stairs".to_owned();
    };
    format!(
        "seen as {} stairs that nothing took back: {} each, {} steps apart",
        stairs.n_stairs,
        bytes(height_bytes),
        whole(distance_steps)
    )
}

fn windows(page: &mut Page, story: &Story, of: Signal) {
    let levels: Vec<&LevelTests> = story
        .windows
        .iter()
        .filter(|((signal, _), level)| *signal == of && level.n_tests > 0)
        .map(|(_, level)| level)
        .collect();
    let mut ends: Vec<End> =
        levels.iter().flat_map(|level| level.ends.keys().copied()).collect();
    ends.sort();
    ends.dedup();
    let records = records(of);
    page.blank();
    match ends.as_slice() {
        [] => page.line(&format!("{}: no window was long enough to be tested", what(of))),
        [End::Stopped(Gate::Known)] => page.line(&format!("{}: unknown", what(of))),
        [end] => {
            let n_tests: u32 = levels.iter().map(|level| level.n_tests).sum();
            let longest = levels.iter().map(|level| level.last.n_records).fold(0.0, f64::max);
            let words = format!(
                "{}: {} of up to {} {records} tested, all with the outcome: {}",
                what(of),
                counted(n_tests.into(), "window"),
                whole(longest),
                brief(*end)
            );
            page.paragraph(Indent::hanging(0), &words);
        }
        _ => {
            page.line(&format!("{}: outcomes of the windows that were tested", what(of)));
            page.table(&table(records, &levels));
        }
    }
    if let Some(closest) = story.closest.get(&of) {
        closest_word(page, closest);
    }
}

/// Returns the windows of each level as a table.
fn table(records: &'static str, levels: &[&LevelTests]) -> Table {
    let mut table = Table::new([
        Column::right(2, records).at_least(8),
        Column::right(2, "tests").at_least(7),
        Column::left(2, "mostly").at_least(38),
        Column::left(0, "the last one"),
    ]);
    for level in levels {
        table.row([
            whole(level.last.n_records),
            grouped(level.n_tests.into()),
            mostly(level),
            last_word(&level.last),
        ]);
    }
    table
}

/// Returns the two most frequent outcomes.
fn mostly(level: &LevelTests) -> String {
    let mut ends: Vec<_> = level.ends.iter().map(|(end, n)| (*n, *end)).collect();
    ends.sort_by(|a, b| b.cmp(a));
    let of_tests = |n: u32| percent(f64::from(n) / f64::from(level.n_tests));
    ends.retain(|(n, _)| of_tests(*n) != "0%");
    let words: Vec<_> = ends
        .iter()
        .take(2)
        .map(|(n, end)| format!("{} {}", brief(*end), of_tests(*n)))
        .collect();
    words.join(", ")
}

/// Returns an outcome in a word or two.
fn brief(end: End) -> String {
    match end {
        End::Stopped(gate) => gate.row().name.to_owned(),
        End::Rises(gate) => format!("rises ({})", gate.row().name),
        End::Creeps => "creeps".to_owned(),
    }
}

/// Returns the outcome of a window and, where a gate stopped it, its value and limit.
pub fn last_word(window: &WindowVerdict) -> String {
    let end = brief(End::of(&window.outcome));
    let stop = match &window.outcome {
        Err(stop) => Some(*stop),
        Ok(passed) => passed.obstacle,
    };
    match stop {
        _ if !window.is_asked => "a longer one creeps".to_owned(),
        Some(stop) => format!("{end}: {}", measure(&stop)),
        None => end,
    }
}

/// Adds how near the signal came to a trend: why nothing was raised.
fn closest_word(page: &mut Page, closest: &Closest) {
    let window = &closest.window;
    let words = match &window.outcome {
        Ok(passed) => match &passed.obstacle {
            None => return,
            Some(stop) => format!("it rose, and was not called creep: {}", reason(stop)),
        },
        // A signal that does not rise needs no further word.
        Err(GateFailure { gate: Gate::Known | Gate::Rise, .. }) => return,
        Err(stop) => reason(stop),
    };
    let when = match closest.step {
        Some(step) => format!("step {}, over {}", grouped(step), extent(window)),
        None => format!("its {}, over {}", duration(window.last_position), extent(window)),
    };
    page.paragraph(Indent::hanging(2), &format!("Nearest to a creep at {when}: {words}"));
}

/// Adds why the first steps were not called an urgent leak.
fn early(page: &mut Page, story: &Story) {
    let Some(surge) = story.first_steps.filter(|surge| surge.trend.is_none()) else { return };
    let Some(stop) = surge.failure else { return };
    let (name, place) = (stop.gate.row().name, first_steps(&surge));
    let place = place.replacen('f', "F", 1);
    page.blank();
    let words = format!("{place}: no urgent leak, {name}: {}", reason(&stop));
    page.paragraph(Indent::hanging(0), &words);
}

fn stairs(page: &mut Page, story: &Story) {
    let Some(stairs) = story.stairs.filter(|stairs| stairs.n_stairs >= STAIRS_SHOWN_MIN) else {
        return;
    };
    page.blank();
    let mean = stairs.mean.map_or(String::new(), |mean| {
        format!(
            ", {} high and {} steps apart in the mean",
            bytes(mean.height_bytes),
            whole(mean.distance_steps)
        )
    });
    let stop = stairs
        .failure
        .map_or(String::new(), |stop| format!("; not called a leak: {}", reason(&stop)));
    page.paragraph(
        Indent::hanging(0),
        &format!("Stairs of live memory: {} at the end{mean}{stop}", stairs.n_stairs),
    );
}

fn glossary(page: &mut Page, story: &Story) {
    meanings(page, story.windows.values().flat_map(|level| level.ends.keys().copied()));
}

/// Returns the gates of some outcomes whose names need a meaning, in the order of asking.
pub fn gates(ends: impl Iterator<Item = End>) -> Vec<Gate> {
    let mut gates: Vec<Gate> = ends
        .filter_map(|end| match end {
            End::Stopped(gate) | End::Rises(gate) => Some(gate),
            End::Creeps => None,
        })
        .collect();
    gates.sort();
    gates.dedup();
    gates.retain(|gate| *gate != Gate::Known);
    gates
}

/// Adds the meaning of the words that tables of outcomes use.
pub fn meanings(page: &mut Page, ends: impl Iterator<Item = End>) {
    let gates = gates(ends);
    if gates.is_empty() {
        return;
    }
    page.blank();
    page.line("These words, in the order in which a window is tested");
    for row in gates.iter().map(|gate| gate.row()) {
        page.paragraph(Indent::hanging(2), &format!("{:12} {}", row.name, row.meaning));
    }
}

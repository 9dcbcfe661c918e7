//! A story as text of at most 100 columns: the pictures, what was said and why, and what stopped each window.

use crate::analysis::creep::axis::Axis;
use crate::analysis::creep::gates::{Gate, GateFailure};
use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::stairs::{MeanStair, StairsEvidence};
use crate::analysis::creep::window::WindowVerdict;
use crate::analysis::diagnosis::growth::LIVE_SIGNALS;
use crate::analysis::findings::TransitionState;
use crate::model::ids::{ProcessId, RankId, SubjectId};
use crate::report::explain::story::{Cause, Closest, End, Story, Tally, Told, signal};
use crate::report::explain::words::{grouped, measure, reason, share, whole};
use crate::text::units::{bytes, duration, percent, rfc3339};

/// No line is longer.
const COLUMNS: usize = 100;
/// The levels of a picture, the lowest first.
const SPARKS: &str = "▁▂▃▄▅▆▇█";
/// What moves by less than this share of itself is shown as level.
const FLAT_RATIO: f64 = 0.01;
/// Fewer stairs are not worth a word: any ramp has two.
const STAIRS_TOLD_MIN: usize = 3;

/// Puts a story into words.
pub fn render(story: &Story) -> String {
    let mut page = Page::default();
    head(&mut page, story);
    for signal in signals(story) {
        if LIVE_SIGNALS.contains(&signal) || is_told(story, signal) {
            picture(&mut page, story, signal);
        }
    }
    page.line("");
    page.line("What was said of it, and why");
    for told in &story.told {
        tell(&mut page, told, story);
    }
    if story.told.is_empty() {
        page.line("  Nothing.");
    }
    for signal in signals(story) {
        windows(&mut page, story, signal);
    }
    stairs(&mut page, story);
    glossary(&mut page, story);
    page.text
}

/// The signals that there are of such a rank.
fn signals(story: &Story) -> impl Iterator<Item = Signal> {
    Signal::ALL
        .into_iter()
        .filter(|signal| (signal.axis() == Axis::Seconds) == story.is_process())
}

fn is_told(story: &Story, of: Signal) -> bool {
    story.told.iter().any(|told| signal(&told.transition) == Some(of))
}

/// Text in the making.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// Adds a paragraph, broken between words, with `indent` before its first line and two more before the others.
    fn paragraph(&mut self, indent: usize, words: &str) {
        let mut line = " ".repeat(indent);
        let mut is_begun = false;
        for word in words.split(' ') {
            if is_begun && line.chars().count() + 1 + word.chars().count() > COLUMNS {
                self.line(&line);
                line = " ".repeat(indent + 2);
                is_begun = false;
            }
            if is_begun {
                line.push(' ');
            }
            line.push_str(word);
            is_begun = true;
        }
        self.line(&line);
    }
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
    page.paragraph(0, &format!("{who}{device} ({capacity})"));
    if let Some((first, last)) = story.span {
        let (n_steps, lasted) = (grouped(story.n_steps), duration(last.time - first.time));
        let (from, to) = (at(first.time), at(last.time));
        let words = if story.is_process() {
            format!("{n_steps} readings, it does not push; {from} to {to} ({lasted})")
        } else {
            let (first, last) = (grouped(first.step), grouped(last.step));
            format!(
                "{n_steps} train steps{restarts}, from step {first} at {from} to step {last} at {to} ({lasted})"
            )
        };
        page.paragraph(0, &words);
    }
    let held: Vec<String> = held(story)
        .map(|told| {
            let transition = &told.transition;
            format!("{} ({})", transition.kind, transition.severity.as_label())
        })
        .collect();
    let now = if held.is_empty() { "nothing holds".to_owned() } else { held.join(", ") };
    page.paragraph(0, &format!("At the end: {now}"));
}

/// The last word on everything that still holds at the end.
fn held(story: &Story) -> impl Iterator<Item = &Told> {
    story.told.iter().enumerate().filter_map(|(idx, told)| {
        let later = story.told.get(idx + 1..).unwrap_or(&[]);
        let is_last = later.iter().all(|other| other.transition.kind != told.transition.kind);
        (is_last && told.transition.state == TransitionState::Raised).then_some(told)
    })
}

fn picture(page: &mut Page, story: &Story, of: Signal) {
    let Some(floor) = story.floors.get(&of) else { return };
    let known = || floor.points().iter().copied().filter(|bytes| bytes.is_finite());
    let lowest = known().fold(f64::INFINITY, f64::min);
    let highest = known().fold(f64::NEG_INFINITY, f64::max);
    if lowest > highest {
        return;
    }
    let (after, unit) =
        if story.is_process() { ("", "reading") } else { (" after each step", "step") };
    let each = match floor.steps_per_point() {
        1 => unit.to_owned(),
        n => format!("{} {unit}s", grouped(n)),
    };
    page.line("");
    let words = format!(
        "{}{after}, the least of each {each}: {} to {}",
        what(of),
        bytes(lowest),
        bytes(highest)
    );
    page.paragraph(0, &words);
    let spark = |value: &f64| {
        let height = (value - lowest) / (highest - lowest).max(FLAT_RATIO * highest);
        let reaches = |(_, i): &(char, u32)| height * 8.0 < f64::from(*i);
        match SPARKS.chars().zip(1_u32..).find(reaches) {
            _ if !value.is_finite() => ' ',
            Some((spark, _)) => spark,
            None => '█',
        }
    };
    page.line(&format!("  {}", floor.points().iter().map(spark).collect::<String>()));
    marks(page, story, of);
}

/// The line below a picture: where what was raised and cleared.
fn marks(page: &mut Page, story: &Story, of: Signal) {
    let Some(floor) = story.floors.get(&of) else { return };
    let mut row = vec![' '; floor.points().len()];
    let mut legend: Vec<(char, &str)> = Vec::new();
    for told in story.told.iter().filter(|told| signal(&told.transition) == Some(of)) {
        let (mark, meaning) = match (told.transition.state, told.cause) {
            (TransitionState::Cleared, Cause::Became(_)) => continue,
            (TransitionState::Cleared, Cause::Restart) => ('|', "restart"),
            (TransitionState::Cleared, _) => ('x', "cleared"),
            (TransitionState::Raised, _) => {
                let about = told.transition.kind.about();
                (about.mark, about.label)
            }
        };
        let idx = told.n_pictured.saturating_sub(1) / floor.steps_per_point();
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
        page.paragraph(2, &legend.join("   "));
    }
}

/// What a signal's windows are made of.
fn records(of: Signal) -> &'static str {
    match of {
        Signal::Allocated | Signal::Reserved => "pushes",
        Signal::OutsideAllocator | Signal::Process => "readings",
    }
}

/// A signal in words, at the beginning of a sentence.
fn what(signal: Signal) -> &'static str {
    match signal {
        Signal::Allocated => "Live memory",
        Signal::Reserved => "Reserved memory",
        Signal::OutsideAllocator => "Memory outside the allocator",
        Signal::Process => "Memory of the process",
    }
}

fn tell(page: &mut Page, told: &Told, story: &Story) {
    let transition = &told.transition;
    let step =
        transition.step.map_or(String::new(), |step| format!("step {}, ", grouped(step)));
    let when = format!("{step}{}:", at(transition.time));
    let kind = transition.kind;
    match (transition.state, told.cause) {
        // The next line says it.
        (TransitionState::Cleared, Cause::Became(_)) => {}
        (TransitionState::Cleared, cause) => {
            let why = match cause {
                Cause::Restart => "the rank began a new life, its past is forgotten",
                Cause::Silence => "the rank was not heard of for too long",
                _ if signal(transition).is_some() => {
                    "the window that showed it stopped growing: in eight blocks in a row, less than \
                     a quarter of its rate over the last eight"
                }
                _ => "its figures no longer show it",
            };
            page.paragraph(2, &format!("{when} {kind} cleared: {why}"));
        }
        (TransitionState::Raised, _) => {
            let severity = transition.severity.as_label();
            let words =
                format!("{when} {kind}, {severity}: {}", transition.evidence.sentence());
            page.paragraph(2, &words);
            if let Some(window) = &told.window {
                shown(page, window, story);
            } else if let Some(stairs) = &told.stairs {
                page.paragraph(6, &climbed(stairs));
            }
        }
    }
}

/// The window behind something raised.
fn shown(page: &mut Page, window: &WindowVerdict, story: &Story) {
    let Ok(passed) = window.outcome else { return };
    let trend = passed.trend;
    let (scale, per) = if story.is_process() { (3600.0, "h") } else { (1.0, "step") };
    let slope = trend.slope_bytes_per_unit;
    let stand_in = if story.capacity.is_some() { "" } else { " (of a stand-in)" };
    page.paragraph(
        6,
        &format!(
            "seen in {} ({} {}): +{} at {}/{per} (95%: {} to {}), which is {} of that and the {} \
             left{stand_in}; confidence {:.2}",
            extent(window),
            whole(window.n_records),
            records(window.signal),
            bytes(trend.growth_bytes),
            bytes(scale * slope.value),
            bytes(scale * slope.lower),
            bytes(scale * slope.upper),
            share(trend.share_ratio),
            bytes(window.headroom_bytes),
            trend.confidence_ratio(),
        ),
    );
    if let Some(stop) = passed.obstacle {
        page.paragraph(6, &format!("not yet creep: {}", reason(&stop)));
    }
}

/// Which part of the run a window spans.
fn extent(window: &WindowVerdict) -> String {
    if window.signal.axis() == Axis::Steps {
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
    let tallies: Vec<&Tally> = story
        .windows
        .iter()
        .filter(|((signal, _), tally)| *signal == of && tally.n_tests > 0)
        .map(|(_, tally)| tally)
        .collect();
    let mut ends: Vec<End> =
        tallies.iter().flat_map(|tally| tally.ends.keys().copied()).collect();
    ends.sort();
    ends.dedup();
    let records = records(of);
    page.line("");
    match ends.as_slice() {
        [] => page.line(&format!("{}: no window was long enough to be tested", what(of))),
        [End::Stopped(Gate::Known)] => page.line(&format!("{}: not known", what(of))),
        [end] => {
            let n_tests: u32 = tallies.iter().map(|tally| tally.n_tests).sum();
            let longest = tallies.iter().map(|tally| tally.last.n_records).fold(0.0, f64::max);
            let words = format!(
                "{}: {} windows of up to {} {records} were tested, and all came to: {}",
                what(of),
                grouped(n_tests.into()),
                whole(longest),
                brief(*end)
            );
            page.paragraph(0, &words);
        }
        _ => {
            page.line(&format!("{}: what became of the windows that were tested", what(of)));
            page.line(&format!("  {records:>8}  {:>7}  {:38}the last one", "tests", "mostly"));
            for tally in tallies {
                page.line(&format!(
                    "  {:>8}  {:>7}  {:38}{}",
                    whole(tally.last.n_records),
                    grouped(tally.n_tests.into()),
                    mostly(tally),
                    last_word(&tally.last)
                ));
            }
        }
    }
    if let Some(closest) = story.closest.get(&of) {
        closest_word(page, closest);
    }
}

/// What the most windows came to.
fn mostly(tally: &Tally) -> String {
    let mut ends: Vec<_> = tally.ends.iter().map(|(end, n)| (*n, *end)).collect();
    ends.sort_by(|a, b| b.cmp(a));
    let of_tests = |n: u32| percent(f64::from(n) / f64::from(tally.n_tests));
    ends.retain(|(n, _)| of_tests(*n) != "0%");
    let words: Vec<_> = ends
        .iter()
        .take(2)
        .map(|(n, end)| format!("{} {}", brief(*end), of_tests(*n)))
        .collect();
    words.join(", ")
}

/// What became of a window, in a word or two.
fn brief(end: End) -> String {
    match end {
        End::Stopped(gate) => gate.row().name.to_owned(),
        End::Rises(gate) => format!("rises ({})", gate.row().name),
        End::Creeps => "creeps".to_owned(),
    }
}

fn last_word(window: &WindowVerdict) -> String {
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

/// How near the signal came, for whoever asks why nothing was said.
fn closest_word(page: &mut Page, closest: &Closest) {
    let window = &closest.window;
    let words = match &window.outcome {
        Ok(passed) => match &passed.obstacle {
            None => return,
            Some(stop) => format!("it rose, and was not called creep: {}", reason(stop)),
        },
        // That nothing rises needs no further word.
        Err(GateFailure { gate: Gate::Known | Gate::Rise, .. }) => return,
        Err(stop) => reason(stop),
    };
    let when = if window.signal.axis() == Axis::Steps {
        format!("step {}, over {}", grouped(closest.step), extent(window))
    } else {
        format!("its {}, over {}", duration(window.last_position), extent(window))
    };
    page.paragraph(2, &format!("Nearest to a creep at {when}: {words}"));
}

fn stairs(page: &mut Page, story: &Story) {
    let Some(stairs) = story.stairs.filter(|stairs| stairs.n_stairs >= STAIRS_TOLD_MIN) else {
        return;
    };
    page.line("");
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
        0,
        &format!("Stairs of live memory: {} at the end{mean}{stop}", stairs.n_stairs),
    );
}

/// The words of the tables that were used.
fn glossary(page: &mut Page, story: &Story) {
    let mut gates: Vec<Gate> = story
        .windows
        .values()
        .flat_map(|tally| tally.ends.keys())
        .filter_map(|end| match end {
            End::Stopped(gate) | End::Rises(gate) => Some(*gate),
            End::Creeps => None,
        })
        .collect();
    gates.sort();
    gates.dedup();
    gates.retain(|gate| *gate != Gate::Known);
    if gates.is_empty() {
        return;
    }
    page.line("");
    page.line("What these words mean, in the order in which a window is asked");
    for row in gates.iter().map(|gate| gate.row()) {
        page.paragraph(2, &format!("{:12} {}", row.name, row.meaning));
    }
}

/// A Unix time as text, in UTC to the second.
fn at(time: f64) -> String {
    rfc3339(time).trim_end_matches('Z').replace('T', " ")
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, Page, at};

    #[test]
    fn times_are_dates() {
        assert_eq!(at(0.0), "1970-01-01 00:00:00");
        assert_eq!(at(951_782_400.0), "2000-02-29 00:00:00");
        assert_eq!(at(1_764_897_183.3), "2025-12-05 01:13:03");
        assert_eq!(at(4_107_542_399.0), "2100-02-28 23:59:59");
        assert_eq!(at(4_107_542_400.0), "2100-03-01 00:00:00");
    }

    #[test]
    fn paragraphs_break_between_words() {
        let mut page = Page::default();
        page.paragraph(4, &"word ".repeat(60));
        assert!(page.text.lines().all(|line| line.chars().count() <= COLUMNS));
        assert_eq!(page.text.matches("word").count(), 60);
        assert_eq!(page.text.lines().filter(|line| line.starts_with("      word")).count(), 3);
    }
}

//! The words about the code behind growth: the line that allocates, and the object that holds.

use crate::diagnosis::shared::filling::{Filling, FillingDoubt};
use crate::diagnosis::shared::malloc_figures;
use stepmem_types::claims::{Claim, Sentence, Statement};
use stepmem_types::format::units::{bytes, counted, grouped, many, percent, share as of_whole};
use stepmem_types::site::{
    CodeLine, EmptySearch, LeakSite, LineOutcome, LineSearch, Removal, RemovalOutcome,
    SiteVerdict, TensorHolder, holder_kind,
};
use stepmem_types::step::StepUnit;
use stepmem_types::units::Count;

/// Names the line that a snapshot shows, or states that it shows none.
pub(crate) fn of(site: &LeakSite, unit: StepUnit) -> Sentence {
    match (site.verdict, &site.at) {
        (SiteVerdict::Leak, Some(at)) => {
            let share = site.share_ratio.map_or("most".to_owned(), percent);
            let words = format!("{share} of it is allocated at {at}");
            Statement::new(Claim::Line, words).of(site.share_ratio).into()
        }
        (SiteVerdict::InsufficientHistory, _) => {
            let steps = many(site.steps, &format!("whole {}", unit.noun()));
            let words = format!("its snapshot has {steps}, too few for a verdict");
            let n_steps = Count::new(site.steps).ok().map(Count::as_f64);
            Statement::new(Claim::ShortSnapshot, words).of(n_steps).into()
        }
        (SiteVerdict::Leak | SiteVerdict::None, _) => {
            let most = site.at.as_ref().zip(site.bytes_per_step);
            let most = most.map(|(at, rate)| {
                let rate_words = unit.rate(rate);
                let words =
                    format!("the largest growth in its snapshot is {rate_words} at {at}");
                Statement::new(Claim::LargestLine, words).of(rate)
            });
            let none = Statement::new(Claim::NoLine, "no single line explains it");
            Sentence::from(none).then_if("; ", most)
        }
    }
}

/// States the result of a snapshot that someone asked for: also that nothing grew.
pub fn verdict(site: &LeakSite) -> Sentence {
    if site.verdict != SiteVerdict::None {
        return of(site, StepUnit::Steps);
    }
    let kept = site.at.as_ref();
    let kept = kept.map_or_else(String::new, |at| {
        format!("; most of what was allocated in it and stays is from {at}")
    });
    let words = format!("nothing grew in its {}{kept}", many(site.steps, "whole step"));
    Statement::new(Claim::NoLine, words).into()
}

/// The known facts of the code behind growth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub site: Option<&'a LeakSite>,
    pub holder: Option<&'a TensorHolder>,
    /// Steps from one evaluation, checkpoint or epoch to the next.
    pub steps_per_event: Option<f64>,
    /// The unit that the rank counts.
    pub unit: StepUnit,
}

impl Seen<'_> {
    /// Returns the first thing to check where a line or an object is known.
    pub(crate) fn advice(&self) -> Option<Statement> {
        let line = self.site.filter(|site| site.verdict == SiteVerdict::Leak);
        let line = line.and_then(|site| site.at.as_ref());
        let holder = self.holder;
        if let Some(holder) = holder
            && let Some(advice) = of_unmeasured(holder)
        {
            return Some(Statement::new(Claim::AdviceHolder, advice));
        }
        if let Some(at) = holder.filter(|of| of.lines.is_some()).and_then(|of| of.at.as_ref()) {
            let words = self.line_advice(at, REMEDY_OF_DATA);
            return Some(Statement::new(Claim::AdviceLine, words));
        }
        let remedy = holder.map_or(self.remedy_of_tensors(), |holder| self.remedy(holder));
        let words = match (holder, line) {
            (Some(holder @ TensorHolder { name, at: Some(at), .. }), _) => {
                format!("Look at {name} of {at}: {}. {remedy}", self.how(holder))
            }
            (Some(TensorHolder { name, at: None, .. }), Some(at)) => {
                format!("Look at {name}, and at {at}, which allocates what it keeps. {remedy}")
            }
            (Some(holder @ TensorHolder { name, at: None, .. }), None) => {
                format!("Look at {name}: {}. {remedy}", self.how(holder))
            }
            (None, Some(at)) => self.line_advice(at, remedy),
            (None, None) => return None,
        };
        let claim = if holder.is_some() { Claim::AdviceHolder } else { Claim::AdviceLine };
        Some(Statement::new(claim, words))
    }

    fn line_advice(&self, at: &CodeLine, remedy: &str) -> String {
        let noun = self.unit.noun();
        format!("Look at {at}: what it allocates is kept across {noun}s. {remedy}")
    }

    fn remedy_of_tensors(&self) -> &'static str {
        if self.unit.is_calls() { REMEDY_OF_SERVER } else { REMEDY }
    }

    /// Returns the remedy of growth that an object holds.
    fn remedy(&self, holder: &TensorHolder) -> &'static str {
        match holder.kind.as_str() {
            holder_kind::CYCLE => REMEDY_OF_CYCLE,
            holder_kind::OPTIMIZER_STATE => REMEDY_OF_OPTIMIZER,
            holder_kind::HOOKS => REMEDY_OF_HOOKS,
            _ if holder.fill.is_some() => REMEDY_OF_BOUNDED,
            _ if self.unit.is_calls() => REMEDY_OF_SERVER,
            _ if holder.tensors.get() == 0 => REMEDY_OF_DATA,
            _ => REMEDY,
        }
    }

    /// States when a holder gets more, as far as that was seen.
    fn how(&self, holder: &TensorHolder) -> String {
        let rate = holder.added_per_step.filter(|rate| *rate > 0.0 && *rate < RARE_MAX);
        let Some(rate) = rate else { return "it keeps more and more".to_owned() };
        let of_events =
            self.steps_per_event.filter(|steps| WITH_EVENTS.contains(&(rate * steps)));
        let noun = self.unit.noun();
        let steps = counted(of_events.unwrap_or(1.0 / rate), noun);
        if of_events.is_some() {
            format!(
                "it keeps more at evaluations, checkpoints or epochs, about every {steps}, not at every {noun}"
            )
        } else {
            format!("it keeps more about every {steps}, not at every {noun}")
        }
    }
}

/// An object that gets fewer items with each step does not get one at every step.
const RARE_MAX: f64 = 0.75;
/// An object gets its items at evaluations, checkpoints or epochs if it gets so many with each.
const WITH_EVENTS: std::ops::RangeInclusive<f64> = 0.4..=1.25;

/// Returns the advice about a holder of which no bytes are known.
fn of_unmeasured(holder: &TensorHolder) -> Option<&'static str> {
    match holder.kind.as_str() {
        holder_kind::GRAPH_CYCLE => Some(
            "Use torch.autograd.grad(…, create_graph=True) instead of backward(create_graph=True); in a function of your own, \
             keep its output with save_for_backward().",
        ),
        holder_kind::PROFILER => {
            Some("Give the profiler a schedule, or stop it: it keeps all events.")
        }
        _ => None,
    }
}

/// The remedy of cyclic garbage.
const REMEDY_OF_CYCLE: &str = "Break the cycle, for example with a weak reference, or have it collected: gc.enable(), or gc.collect() every few \
                               hundred steps.";
const REMEDY_OF_OPTIMIZER: &str = "It ends once every parameter has taken a step. If that does not fit, train fewer parameters, or use an optimizer \
                                   that keeps less for each.";
const REMEDY_OF_HOOKS: &str = "Remove each hook by the handle that registering it returned (handle.remove()), or register it once.";
const REMEDY_OF_BOUNDED: &str =
    "It has a bound. If what it holds when full does not fit, lower that bound.";
/// The remedy of what a server or an inference over data keeps.
const REMEDY_OF_SERVER: &str = "Give it a bound, or evict what was not used for long: a cache by request or by length, conversations, adapters.";
/// The remedy of most leaks of objects without tensors.
const REMEDY_OF_DATA: &str = "Bound it, or empty it.";

/// Returns the advice where a search named no holder, of host memory or of a GPU's; `None` where it
/// could name none.
pub(crate) fn without_tensors(search: &EmptySearch, is_on_host: bool) -> Option<Statement> {
    let outcome = search.lines.map(|lines| lines.outcome);
    match outcome.filter(|_| is_on_host) {
        Some(LineOutcome::Arenas) => {
            return Some(Statement::new(Claim::AdviceFreed, malloc_figures::ADVICE));
        }
        Some(LineOutcome::Native) => {
            return Some(Statement::new(Claim::AdviceNative, NATIVE));
        }
        _ if is_level(search) => return None,
        _ => {}
    }
    let next = match outcome {
        _ if !is_on_host && search.is_complete => {
            return Some(Statement::new(Claim::AdviceNoTensor, WITHOUT_GPU_TENSORS));
        }
        _ if !is_on_host => " A memory snapshot names the line that allocates it.",
        None => WITH_TRACEMALLOC,
        Some(_) => "",
    };
    if !search.is_complete {
        return Some(Statement::new(Claim::AdvicePartlyRead, format!("{PARTLY_READ}{next}")));
    }
    let words = format!("No growing tensor was found: look at {UNSEEN_ON_HOST}.{next}");
    Some(Statement::new(Claim::AdviceNoTensor, words))
}

/// The advice where tracing saw no line of Python.
const NATIVE: &str = "Python does not allocate it: look at native code, such as a profiler, a decoder, a data loader or a graph of autograd.";

/// The hint on the search for lines, which is off by default.
const WITH_TRACEMALLOC: &str =
    " STEPMEM_TRACEMALLOC=auto (stepmem run --host-lines) has the line searched for.";

const WITHOUT_GPU_TENSORS: &str = "No growing tensor was found: the memory is held by native code or another library, by a CUDA graph or a private \
                                   pool, or by tensors that Python does not reach (cycles in the autograd graph). A memory \
                                   snapshot names the line that allocates it.";

const PARTLY_READ: &str = "The search for the holder could not read all objects of the program, so what holds the memory may be any of them.";

/// The remedy of most leaks whose line is known, which fits losses with their graphs as well as
/// kept batches.
const REMEDY: &str = "Keep only what is needed: numbers (item()), detached values (detach()), or a copy (clone()) of the part of a batch \
                      that is used. Bound it, or empty it.";

/// Tensors that take less than this share of the growth are not the memory that grows. They
/// keep it alive, such as the graph behind a loss, whose bytes no search sees.
const OWN_SHARE_MIN: f64 = 0.1;

/// The share from which on a holder has all of the growth as far as the two can be measured.
const ALL_SHARE_MIN: f64 = 0.95;

/// Names the object that holds the memory of a process that grows by `slope` bytes a step, or
/// the line that allocates it. Adds its share of the growth.
pub(crate) fn of_holder(holder: &TensorHolder, slope: Option<f64>, unit: StepUnit) -> Sentence {
    match (&holder.lines, &holder.at) {
        (Some(lines), Some(at)) => {
            let (rate, told, share) = rate(holder.bytes_per_step, slope, unit);
            let words = format!("allocated at {at} ({rate}{})", of_window(lines, unit));
            let line = Statement::new(Claim::HolderLine, words).of(told);
            Sentence::from(line).with(share)
        }
        _ => of_object(holder, slope, unit),
    }
}

/// Bytes a step that were freed and stay in arenas, from which on they are told.
const FREE_MIN: f64 = 65_536.0;

/// States how many steps were traced, and for how long that held them up.
fn of_window(lines: &LineSearch, unit: StepUnit) -> String {
    let traced = lines.steps.map_or_else(String::new, |steps| {
        format!("; {} traced", many(steps.get(), unit.noun()))
    });
    let pause = lines
        .pause_seconds
        .map_or_else(String::new, |seconds| format!(", longest pause {:.0} ms", 1e3 * seconds));
    let free = lines.malloc_free_bytes_per_step.filter(|free| *free >= FREE_MIN);
    let free = free.map_or_else(String::new, |free| {
        format!(", {} freed and kept by glibc", unit.rate(free))
    });
    format!("{traced}{pause}{free}")
}

fn of_object(holder: &TensorHolder, slope: Option<f64>, unit: StepUnit) -> Sentence {
    let tensors = holder.tensors.get();
    let noun = if tensors == 1 { "tensor" } else { "tensors" };
    let (name, kind, n) = (&holder.name, &holder.kind, grouped(tensors));
    let own = holder.bytes_per_step;
    let noun_of = unit.noun();
    let step = holder
        .step
        .map_or_else(String::new, |step| format!(" at {noun_of} {}", grouped(step.get())));
    let is_small = slope.is_some_and(|slope| own < OWN_SHARE_MIN * slope);
    let keeps_more = is_small && holder.keeps_more != Some(false);
    let is_unmeasured =
        matches!(kind.as_str(), holder_kind::GRAPH_CYCLE | holder_kind::PROFILER);
    let (rate, told, share) = rate(own, slope, unit);
    let keeps_tensors = keeps_more && tensors > 0;
    let is_told = !(is_unmeasured || keeps_tensors);
    let mut text = if is_unmeasured {
        format!("held by {name}{}", step.replace(" at", ", seen at"))
    } else if keeps_tensors {
        let they_keep = if tensors == 1 { "it keeps" } else { "they keep" };
        format!("held by {name} ({kind}, {n} {noun} and what {they_keep} alive{step})")
    } else {
        let count = if tensors > 0 { format!("{n} {noun}, ") } else { String::new() };
        let all = bytes(holder.bytes.as_f64());
        format!("held by {name} ({kind}, {rate}; {count}{all}{step})")
    };
    if let Some(at) = &holder.at {
        text = format!("{text} of {at}");
    }
    let held = Statement::new(Claim::Holder, text).of(Some(told).filter(|_| is_told));
    let removal = holder
        .removal
        .as_ref()
        .map(|removal| Statement::new(Claim::Removal, of_removal(removal, holder, unit)));
    Sentence::from(held).with(share.filter(|_| is_told)).then_if("; ", removal)
}

/// States what the code of the program does to a holder.
fn of_removal(removal: &Removal, holder: &TensorHolder, unit: StepUnit) -> String {
    let Removal { outcome, at } = removal;
    match outcome {
        RemovalOutcome::Nothing => format!("no line found in {at} removes from it"),
        RemovalOutcome::Emptied => {
            let since = holder.since_step.map_or_else(String::new, |step| {
                format!("; it has not shrunk since {} {}", unit.noun(), grouped(step.get()))
            });
            format!("{at} can empty it{since}")
        }
        RemovalOutcome::HandedOn => {
            format!("whether {at} removes from it is not known")
        }
    }
}

/// Names the object that holds the memory, when it is full, and what is left then.
pub(crate) fn of_filling(holder: &TensorHolder, filling: &Filling, unit: StepUnit) -> Sentence {
    let left = filling.left_bytes.map(|left| {
        let words = format!("{} will be left", bytes(left));
        Statement::new(Claim::FillsLeaving, words).of(left)
    });
    let at = holder.at.as_ref();
    let at = at.map(|at| Statement::new(Claim::HolderLine, format!("filled at {at}")));
    let held = format!("held by {}", of_items(holder, filling, unit));
    let fills = Statement::new(Claim::Fills, of_end(filling, unit)).of(filling.full_in_steps);
    Sentence::from(Statement::new(Claim::Holder, held))
        .then(": ", fills)
        .then_if(", ", left)
        .then_if("; ", at)
}

/// States that an object will take more than there is.
pub(crate) fn of_too_large(
    holder: &TensorHolder,
    filling: &Filling,
    unit: StepUnit,
) -> Statement {
    let headroom = filling.left_bytes.unwrap_or(0.0) + filling.remaining_bytes;
    let (items, end) = (of_items(holder, filling, unit), of_end(filling, unit));
    let words = format!("{items} will not fit: {end}, {} are left", bytes(headroom));
    Statement::new(Claim::WillNotFit, words).of(filling.full_in_steps)
}

/// States why an end that the process reports does not count; `None` where the text about the
/// holder shows it.
pub(crate) fn of_doubt(filling: &Filling, unit: StepUnit) -> Option<Statement> {
    let end = of_end(filling, unit);
    let words = match filling.doubt? {
        FillingDoubt::PartOfGrowth => {
            format!("{end}, which ends part of the growth")
        }
        FillingDoubt::NotOwn => "its bound is not shown to be the rank's own report".to_owned(),
        FillingDoubt::Outdated => "its bound was reported too long ago".to_owned(),
        FillingDoubt::PastItsEnd => "which should be full by now".to_owned(),
        FillingDoubt::ItemsVary => {
            "which has a bound, but its new items differ in size".to_owned()
        }
        FillingDoubt::CapacityUnknown => {
            format!("{end}; whether that fits is unknown")
        }
        FillingDoubt::DoesNotFit => format!("which will not fit: {end}"),
        FillingDoubt::RestGrows => format!("{end}, but the rest grows too"),
    };
    Some(Statement::new(Claim::BoundInDoubt, words))
}

/// Names a holder with its items, dated where steps were taken since.
fn of_items(holder: &TensorHolder, filling: &Filling, unit: StepUnit) -> String {
    let (name, kind) = (&holder.name, &holder.kind);
    let Some(fill) = &holder.fill else { return format!("{name} ({kind})") };
    let then_left = (fill.items_max.as_f64() - fill.items.as_f64()) / fill.items_per_step;
    let step = holder.step.filter(|_| then_left - filling.full_in_steps >= 1.0);
    let step = step.map_or_else(String::new, |step| {
        format!(" at {} {}", unit.noun(), grouped(step.get()))
    });
    let (items, max) = (grouped(fill.items.get()), grouped(fill.items_max.get()));
    format!("{name} ({kind}, {items} of {max}{step})")
}

fn of_end(filling: &Filling, unit: StepUnit) -> String {
    let when = match filling.full_in_steps {
        steps if steps > 0.0 => format!("in {}", counted(steps, unit.noun())),
        _ => "by now".to_owned(),
    };
    format!("full {when} at {}", bytes(filling.full_bytes))
}

/// Writes how fast a holder grows, with that rate in bytes and its share. It is measured over fewer
/// steps than the whole, of which it cannot be more.
fn rate(own: f64, slope: Option<f64>, unit: StepUnit) -> (String, f64, Option<Statement>) {
    let more =
        |own: f64| unit.rate(own).replacen(unit.per(), &format!(" more{}", unit.per()), 1);
    let Some(slope) = slope.filter(|slope| *slope > 0.0) else {
        return (more(own), own, None);
    };
    let share = own / slope;
    let (own, words, share) = if share >= ALL_SHARE_MIN {
        (own.min(slope), "all of the growth".to_owned(), share.min(1.0))
    } else {
        (own, format!("{} of the growth", percent(share)), share)
    };
    let text = format!("{}, {words}", more(own));
    (text, own, Some(Statement::new(Claim::HolderShare, words).of(share)))
}

/// States that a search named no holder, and what else takes memory of that kind.
pub(crate) fn of_search(search: EmptySearch, is_on_host: bool, unit: StepUnit) -> Sentence {
    let (extent, scanned) = extent(search, unit);
    let level = level_scan(search, unit);
    if let Some(lines) = search.lines.filter(|_| is_on_host) {
        let none = level.unwrap_or_else(|| {
            let none = Statement::new(Claim::NoTensor, format!("{NO_TENSOR}{extent}"));
            Sentence::from(none).with(scanned)
        });
        let (joint, of_lines) = of_lines(lines, search.is_complete, unit);
        return none.then(joint, of_lines);
    }
    if let Some(level) = level {
        return level;
    }
    let (joint, rest) = rest(search.is_complete, is_on_host);
    let none = Statement::new(Claim::NoTensor, format!("{NO_TENSOR}{extent}{joint}{rest}"));
    Sentence::from(none).with(scanned)
}

/// The words for a search that named no holder.
const NO_TENSOR: &str = "no growing tensor was found";

/// States that a search named no holder, where it is known what grows.
pub(crate) fn of_search_alone(search: EmptySearch, unit: StepUnit) -> Sentence {
    if let Some(level) = level_scan(search, unit) {
        return level;
    }
    let (extent, scanned) = extent(search, unit);
    let none = format!("no object that holds it was found{extent}");
    Sentence::from(Statement::new(Claim::NoHolder, none)).with(scanned)
}

/// States that a search could name no holder, because the memory hardly grew meanwhile: growth
/// comes in level shifts, and none came, or as much was freed.
fn level_scan(search: EmptySearch, unit: StepUnit) -> Option<Sentence> {
    let until = until(search, unit);
    let words = format!("it hardly grew while objects were scanned{until}");
    is_level(&search).then(|| Sentence::from(Statement::new(Claim::ScannedLevel, words)))
}

fn is_level(search: &EmptySearch) -> bool {
    search.saw_growth == Some(false)
}

/// Writes the step of a search's last measurement.
fn until(search: EmptySearch, unit: StepUnit) -> String {
    let until = |step: Count| format!(" by {} {}", unit.noun(), grouped(step.get()));
    search.step.map_or_else(String::new, until)
}

/// Writes how much a search read, and until when.
fn extent(search: EmptySearch, unit: StepUnit) -> (String, Option<Statement>) {
    let known = search.objects_read.zip(search.objects_met);
    let ratio = known
        .filter(|(_, met)| met.get() > 0)
        .map(|(read, met)| (read.as_f64() / met.as_f64()).min(1.0));
    let share = ratio.map(of_whole);
    let scanned = ratio.zip(share.clone());
    let scanned = scanned.map(|(ratio, words)| Statement::new(Claim::Scanned, words).of(ratio));
    let among = match (search.is_complete, share) {
        (true, None) => String::new(),
        (true, Some(share)) => format!(" in {share} of the objects that Python reaches"),
        (false, None) => " among the objects scanned".to_owned(),
        (false, Some(share)) => format!(" among the objects scanned ({share} of those met)"),
    };
    (format!("{among}{}", until(search, unit)), scanned)
}

/// States what a search for lines came to that named none, after one for objects that may not have
/// read all.
fn of_lines(lines: LineSearch, is_complete: bool, unit: StepUnit) -> (&'static str, Statement) {
    let why_not = match lines.outcome {
        LineOutcome::Native => {
            let words =
                format!("Python does not allocate what grows{}", of_window(&lines, unit));
            return (", and ", Statement::new(Claim::NativeGrowth, words));
        }
        LineOutcome::Arenas => {
            let free = lines.malloc_free_bytes_per_step.unwrap_or_default();
            let words = format!("{} were freed and stay in glibc's arenas", unit.rate(free));
            return ("; ", Statement::new(Claim::ArenasKeep, words).of(free));
        }
        LineOutcome::Spread => {
            let words = "Python allocates it at many lines, each a small part";
            return ("; ", Statement::new(Claim::Spread, words));
        }
        LineOutcome::Named => "",
        LineOutcome::Level => "the memory did not grow while it was traced",
        LineOutcome::Slow => "a traced step took too long",
        LineOutcome::Bound => "tracing came to its bound",
        LineOutcome::Apart => "not looked for, as it would take longer than a window",
        LineOutcome::Own => "the program uses tracemalloc itself",
        LineOutcome::Unsafe => "tracemalloc is not safe in this Python",
        LineOutcome::Failed => "tracing failed",
    };
    let ratio = lines.slowdown_ratio.filter(|_| lines.outcome == LineOutcome::Slow);
    let ratio =
        ratio.map_or_else(String::new, |ratio| format!(" ({} of the usual)", percent(ratio)));
    let (joint, rest) = rest(is_complete, true);
    let words = format!("{rest}; no line is known: {why_not}{ratio}");
    (joint, Statement::new(Claim::LineUnknown, words))
}

/// Returns the other places that the memory may be in, and the words before them.
fn rest(is_complete: bool, is_on_host: bool) -> (&'static str, String) {
    if is_complete {
        (": ", format!("look at {}", unseen(is_on_host)))
    } else {
        ("; ", "the rest of them was not read".to_owned())
    }
}

/// The holders of host memory that no search sees.
const UNSEEN_ON_HOST: &str = "texts, arrays, figures, profiler, native code";

/// Returns the holders of memory that no search sees.
fn unseen(is_on_host: bool) -> &'static str {
    if is_on_host {
        UNSEEN_ON_HOST
    } else {
        "native code, other libraries, CUDA graphs, private pools, graph cycles"
    }
}

//! The page of `stepmem snapshot show`: for a terminal, section by section, ending with what to
//! do next.

use crate::analyze::categories;
use crate::analyze::device_report::Study;
use crate::analyze::fit::{self, FitQuestion};
use crate::analyze::leak::{LeakVerdict, Suspect};
use crate::analyze::oom::OutOfMemory;
use crate::analyze::passes;
use crate::analyze::sites::{STACK_FRAMES_MAX, Site, SiteRow, Sum};
use crate::integer::{at, count};
use crate::model::NO_STACK;
use crate::render::layout::{line, part_of, wrapped};
use crate::render::words::{self, Blamed, NAME_CHARS};
use crate::replay::Allocation;
use stepmem_types::format::clean::{clean, shortened};
use stepmem_types::format::units::{bytes, grouped, whole_bytes};

/// Columns of a page.
pub const WIDTH: usize = 100;
/// Lines that are named as holding stranded memory.
const PINNERS: usize = 5;
/// Frames that a page shows of a stack.
const FRAMES: usize = 6;

/// The request for a page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Question {
    /// The moment of the table.
    pub moment: ShownMoment,
    /// The kind of its rows.
    pub rows: RowKind,
    /// Number of rows of a table.
    pub top: usize,
    /// The known facts of the batch and the device.
    pub fit: FitQuestion,
}

/// A moment of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShownMoment {
    /// When the snapshot was taken.
    #[default]
    End,
    /// When most was active.
    Peak,
    /// At the first failed allocation.
    Oom,
    /// When most was active in a step.
    Step(u64),
    /// After a pass of backward of a step, from 1, before the program does anything else.
    Pass(u64, u64),
    /// When a step calls `zero_grad`, before anything is freed.
    ZeroGrad(u64),
}

/// The key by which memory is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowKind {
    /// File and line.
    #[default]
    Line,
    /// File and function.
    Function,
    Stack,
    /// Its use.
    Category,
    /// Each block by itself.
    Block,
}

/// The page of one device.
pub fn device(study: &Study<'_>, question: &Question) -> String {
    let mut page = String::new();
    head(&mut page, study);
    holders(&mut page, study, question);
    leak(&mut page, study);
    for failure in &study.oom {
        out_of_memory(&mut page, study, failure, question.top);
    }
    fragmentation(&mut page, study, question.top);
    steps(&mut page, study, question.top);
    will_it_fit(&mut page, study, question.fit);
    notes(&mut page, study);
    next(&mut page, study);
    page
}

fn head(page: &mut String, study: &Study<'_>) {
    let (scene, totals) = (&study.scene, study.totals);
    line(
        page,
        format_args!(
            "device {}: {} active of {} reserved, {} live blocks in {} segments",
            scene.device.index,
            whole_bytes(totals.active),
            whole_bytes(totals.reserved),
            grouped(totals.live_blocks),
            grouped(totals.segments),
        ),
    );
    if words::differs(totals.requested, totals.active) {
        line(
            page,
            format_args!(
                "  tensors asked for {} of the active bytes",
                whole_bytes(totals.requested)
            ),
        );
    }
    let pending = totals.active - totals.allocated;
    if pending > 0 {
        line(page, format_args!("  {} wait for another stream", whole_bytes(pending)));
    }
    if scene.events.is_empty() {
        line(page, format_args!("  no events: the snapshot shows the end only"));
        return;
    }
    line(
        page,
        format_args!(
            "  {} events, {}",
            grouped(count(scene.events.len())),
            words::steps(scene)
        ),
    );
    let peak = scene.timeline.peak;
    let moment = study.moment(peak.state);
    let place = match (moment.event, moment.step) {
        (Some(event), Some(step)) => format!("at event {event}, in step {step}"),
        (Some(event), None) => format!("at event {event}"),
        _ => "before the first event".to_owned(),
    };
    line(
        page,
        format_args!(
            "  peak {} active, {} reserved, {place}",
            whole_bytes(peak.active),
            whole_bytes(peak.reserved)
        ),
    );
    if scene.timeline.violations > 0 {
        line(
            page,
            format_args!(
                "  the file contradicts itself in {} places: PyTorch did not write it like this",
                grouped(scene.timeline.violations)
            ),
        );
    }
}

fn section(page: &mut String, title: &str) {
    line(page, format_args!("\n{title}"));
}

/// The state that a question is about, and its name.
fn state(study: &Study<'_>, when: ShownMoment) -> Option<(Option<u32>, String)> {
    match when {
        ShownMoment::End => Some((None, "at the end".to_owned())),
        ShownMoment::Peak => {
            Some((Some(study.scene.timeline.peak.state), "at the peak".to_owned()))
        }
        ShownMoment::Oom => {
            let first = study.oom.first()?;
            Some((Some(first.event), "when memory ran out".to_owned()))
        }
        ShownMoment::Step(step) => {
            let stage = study.stages.iter().find(|stage| stage.step == step)?;
            Some((Some(stage.peak_event + 1), format!("at the peak of step {step}")))
        }
        ShownMoment::Pass(step, number) => {
            let state = passes::after(study, step, number)?;
            Some((Some(state), format!("after backward pass {number} of step {step}")))
        }
        ShownMoment::ZeroGrad(step) => {
            let state = passes::before_zero_grad(study, step)?;
            Some((Some(state), format!("when step {step} calls zero_grad")))
        }
    }
}

fn holders(page: &mut String, study: &Study<'_>, question: &Question) {
    let Some((state, name)) = state(study, question.moment) else {
        section(page, "Who holds the memory: this window has no such moment");
        return;
    };
    let rows = match state {
        None => study.at_end.clone(),
        Some(state) => {
            study.scene.sites.at_state(study.scene.snapshot, &study.scene.timeline, state)
        }
    };
    let total: u64 = rows.iter().map(|row| row.sum.bytes).sum();
    section(page, &format!("Who holds the memory {name} ({})", whole_bytes(total)));
    match question.rows {
        RowKind::Line => table(page, study, &rows, question.top),
        RowKind::Function => table_by_function(page, study, &rows, question.top),
        RowKind::Stack => table_by_stack(page, study, state, question.top),
        RowKind::Category => table_by_category(page, study, state, total),
        RowKind::Block => table_of_blocks(page, study, state, question.top),
    }
}

fn table(page: &mut String, study: &Study<'_>, rows: &[SiteRow], top: usize) {
    let named = rows.iter().map(|row| (words::name_of(study, row.site), row.sum)).collect();
    print(page, named, top);
}

fn table_by_function(page: &mut String, study: &Study<'_>, rows: &[SiteRow], top: usize) {
    let mut sums = std::collections::BTreeMap::new();
    for row in rows {
        let site = study.scene.sites.site(row.site).unwrap_or(&Site::NOWHERE);
        let name = words::name(&Site { line: None, ..site.clone() });
        sums.entry(name).or_insert_with(Sum::default).join(row.sum);
    }
    print(page, sums.into_iter().collect(), top);
}

/// The allocations that are alive in a state, or at the end.
fn alive<'a>(study: &'a Study<'_>, state: Option<u32>) -> impl Iterator<Item = &'a Allocation> {
    study.scene.timeline.allocations.iter().filter(move |allocation| match state {
        Some(state) => allocation.is_alive(state),
        None => allocation.is_at_end(),
    })
}

fn table_by_stack(page: &mut String, study: &Study<'_>, state: Option<u32>, top: usize) {
    let scene = &study.scene;
    let mut sums = vec![Sum::default(); at(scene.sites.before()) + 1];
    for allocation in alive(study, state) {
        if let Some(sum) = sums.get_mut(at(scene.sites.origin(allocation))) {
            sum.add(allocation);
        }
    }
    let mut rows: Vec<(u32, Sum)> = (0..).zip(sums).filter(|(_, sum)| sum.blocks > 0).collect();
    rows.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.bytes));
    let total: u64 = rows.iter().map(|(_, sum)| sum.bytes).sum();
    for (origin, sum) in rows.iter().take(top) {
        row(page, &words::name_of(study, scene.sites.of_origin(*origin)), *sum, total);
        stack(page, study, *origin, 1);
    }
    rest(page, rows.iter().skip(top).map(|(_, sum)| *sum), total);
}

fn table_by_category(page: &mut String, study: &Study<'_>, state: Option<u32>, total: u64) {
    let sums = categories::sums(&study.scene, &study.categories, state);
    for (name, size) in sums.named() {
        if *size > 0 {
            line(
                page,
                format_args!(
                    "  {:>6}  {:>9}  {name}",
                    part_of(*size, total),
                    whole_bytes(*size)
                ),
            );
        }
    }
}

/// The largest blocks, each with its address.
fn table_of_blocks(page: &mut String, study: &Study<'_>, state: Option<u32>, top: usize) {
    let mut blocks: Vec<&Allocation> = alive(study, state).collect();
    let total = blocks.iter().map(|block| block.size).sum();
    blocks.sort_by_key(|block| (std::cmp::Reverse(block.size), block.address));
    let mut others = Sum::default();
    blocks.iter().skip(top).for_each(|block| others.add(block));
    for block in blocks.iter().take(top) {
        let (share, size) = (part_of(block.size, total), whole_bytes(block.size));
        let figures = format!("  {share:>6}  {size:>9}  {:#x}  ", block.address);
        let name = words::name_of(study, study.scene.sites.of(block));
        line(page, format_args!("{figures}{}", shortened(&name, room(&figures))));
    }
    if others.blocks > 0 {
        let name = "other blocks (--top N shows more)";
        row(page, name, others, total);
    }
}

fn print(page: &mut String, mut rows: Vec<(String, Sum)>, top: usize) {
    rows.sort_by(|a, b| b.1.bytes.cmp(&a.1.bytes).then_with(|| a.0.cmp(&b.0)));
    let total: u64 = rows.iter().map(|(_, sum)| sum.bytes).sum();
    for (name, sum) in rows.iter().take(top) {
        row(page, name, *sum, total);
    }
    rest(page, rows.iter().skip(top).map(|(_, sum)| *sum), total);
}

fn row(page: &mut String, name: &str, sum: Sum, total: u64) {
    let asked = if words::differs(sum.requested, sum.bytes) {
        format!("  (tensors: {})", whole_bytes(sum.requested))
    } else {
        String::new()
    };
    let (share, size) = (part_of(sum.bytes, total), whole_bytes(sum.bytes));
    let figures = format!("  {share:>6}  {size:>9}  {:>7}  ", grouped(sum.blocks));
    let name = shortened(name, room(&figures).saturating_sub(asked.chars().count()));
    line(page, format_args!("{figures}{name}{asked}"));
}

/// Characters of a line that are left.
fn room(before: &str) -> usize {
    WIDTH.saturating_sub(before.chars().count())
}

fn rest(page: &mut String, rows: impl Iterator<Item = Sum>, total: u64) {
    let (mut others, mut n_others) = (Sum::default(), 0_u64);
    for sum in rows {
        others.join(sum);
        n_others += 1;
    }
    if n_others > 0 {
        row(page, &format!("{} others (--top N shows more)", grouped(n_others)), others, total);
    }
}

/// The user's frames of a stack.
fn stack(page: &mut String, study: &Study<'_>, origin: u32, skipped: usize) {
    if origin == NO_STACK {
        return;
    }
    let scene = &study.scene;
    let frames = scene.sites.user_frames(scene.snapshot, origin);
    for frame in frames.skip(skipped).take(FRAMES.min(STACK_FRAMES_MAX)) {
        let frame = scene.snapshot.frame(frame);
        line(
            page,
            format_args!(
                "{:30}from {}:{} {}",
                "",
                words::tail(&scene.snapshot.text(frame.file)),
                frame.line,
                shortened(&scene.snapshot.text(frame.name), NAME_CHARS)
            ),
        );
    }
}

fn leak(page: &mut String, study: &Study<'_>) {
    section(page, "Leak");
    if study.leak.verdict == LeakVerdict::Leak {
        leaking(page, study);
    } else {
        page.push_str(&wrapped(&words::no_leak(study), "  ", WIDTH));
    }
}

fn leaking(page: &mut String, study: &Study<'_>) {
    let leak = &study.leak;
    let rate = leak.rate.unwrap_or(0.0);
    let Blamed { name: blamed, origin, skipped } = words::blamed(study);
    line(page, format_args!("  LEAK  {} a step, at {blamed}", bytes(rate)));
    stack(page, study, origin, skipped);
    if let Some(text) = words::explained(study) {
        page.push_str(&wrapped(&text, "  ", WIDTH));
    }
    for suspect in &leak.suspects {
        suspected(page, study, suspect);
    }
}

fn suspected(page: &mut String, study: &Study<'_>, suspect: &Suspect) {
    let label = |slot| study.scene.steps.label(slot).unwrap_or(0);
    let how =
        if suspect.is_remade { "; one buffer made anew and larger each time" } else { "" };
    let (rate, name) = (bytes(suspect.rise.rate), words::name_of(study, suspect.row.site));
    line(page, format_args!("  {rate:>9} a step  {name}"));
    line(
        page,
        format_args!(
            "{:19}{} of {} allocations stay, steps {} to {}{how}",
            "",
            grouped(suspect.n_survivors),
            grouped(suspect.n_allocations),
            label(suspect.rise.first),
            label(suspect.rise.last),
        ),
    );
}

fn out_of_memory(page: &mut String, study: &Study<'_>, failure: &OutOfMemory, top: usize) {
    section(page, "Out of memory");
    let place = words::failure_place(study, failure);
    let (asked, event) = (whole_bytes(failure.requested), failure.event);
    let asked = format!("{asked} asked for at event {event}, {place}");
    page.push_str(&wrapped(&asked, "  ", WIDTH));
    stack(page, study, failure.stack, 1);
    page.push_str(&wrapped(&words::reason(study, failure), "  ", WIDTH));
    table(page, study, &failure.rows, top);
}

fn fragmentation(page: &mut String, study: &Study<'_>, top: usize) {
    let found = &study.fragmentation;
    section(page, "Fragmentation");
    for (figure, name) in words::unused(found) {
        line(page, format_args!("  {:>9}  {name}", whole_bytes(figure)));
    }
    let pinners = found.pinners.iter().filter(|(_, share)| *share > 0);
    for (row, share) in pinners.take(top.min(PINNERS)) {
        let (share, size) = (whole_bytes(*share), whole_bytes(row.sum.bytes));
        let (blocks, name) = (words::blocks(row.sum.blocks), words::name_of(study, row.site));
        let holder = format!("  {share:>9}  held by {blocks} of {size}: ");
        let name = shortened(&name, room(&holder));
        line(page, format_args!("{holder}{name}"));
    }
}

fn steps(page: &mut String, study: &Study<'_>, top: usize) {
    if study.stages.is_empty() {
        return;
    }
    section(page, "Steps");
    let n_stages = study.stages.len();
    let shown = study.stages.iter().skip(n_stages.saturating_sub(top));
    if n_stages > top {
        line(page, format_args!("  the last {top} of {}", grouped(count(n_stages))));
    }
    let is_accumulating = study.stages.iter().any(|stage| stage.backward_passes > 1);
    for stage in shown {
        let passes = if is_accumulating {
            format!("  {} passes", grouped(stage.backward_passes))
        } else {
            String::new()
        };
        let phase = words::phase(stage.peak_phase);
        line(
            page,
            format_args!(
                "  step {:>6}  peak {:>9} in {phase:9}  {:>9} at its end  {:>9} allocated{passes}",
                stage.step,
                whole_bytes(stage.peak_bytes),
                whole_bytes(stage.end_bytes),
                whole_bytes(stage.allocated_bytes)
            ),
        );
    }
}

fn will_it_fit(page: &mut String, study: &Study<'_>, question: FitQuestion) {
    let found = fit::measure(&study.scene, &study.categories, &study.stages, question);
    let Some(found) = found else { return };
    section(page, "Will it fit?");
    for text in words::fit(&found) {
        page.push_str(&wrapped(&text, "  ", WIDTH));
    }
}

fn notes(page: &mut String, study: &Study<'_>) {
    section(page, "Notes");
    for note in &study.notes {
        let text = wrapped(&clean(&words::note(note)), "    ", WIDTH);
        page.push_str("  - ");
        page.push_str(text.trim_start());
    }
}

fn next(page: &mut String, study: &Study<'_>) {
    section(page, "Next");
    page.push_str(&wrapped(words::advice(study), "  ", WIDTH));
}

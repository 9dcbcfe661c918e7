//! The page of `stepmem snapshot show`: for a terminal, section by section, ending with what to do next.

use crate::snapshot::categories::{self, StepPhase};
use crate::snapshot::leak::{Blame, LeakVerdict, Suspect};
use crate::snapshot::model::{Action, NO_STACK};
use crate::snapshot::num::{at, count, real};
use crate::snapshot::oom::{OomCause, OutOfMemory};
use crate::snapshot::shown::{clean, grouped, line, percent, short, wrapped};
use crate::snapshot::sites::{STACK_FRAMES_MAX, Site, SiteKind, SiteRow, Sum};
use crate::snapshot::steps::Marker;
use crate::snapshot::study::Study;
use crate::text::units::{bytes, whole_bytes};

/// Columns of a page.
pub const WIDTH: usize = 100;
/// Characters of a file's or function's name: two of them and the columns before fit a page.
const NAME_CHARS: usize = 30;
/// Lines that are named as holding stranded memory.
const PINNERS: usize = 5;
/// Frames that a page shows of a stack.
const FRAMES: usize = 6;

/// What is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Question {
    /// The moment of the table.
    pub moment: ShownMoment,
    /// What its rows are.
    pub rows: RowKind,
    /// How many rows a table has.
    pub top: usize,
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
}

/// What memory is counted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowKind {
    /// File and line.
    #[default]
    Line,
    /// File and function.
    Function,
    Stack,
    /// What it is for.
    Category,
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
    if differs(totals.requested, totals.active) {
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
    let marks = count(scene.steps.marks.len());
    line(
        page,
        format_args!(
            "  {} events, {}",
            grouped(count(scene.events.len())),
            marked(marks, scene.steps.marker)
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

fn marked(n_marks: u64, marker: Marker) -> String {
    let by = match marker {
        Marker::Profiler => "ProfilerStep",
        Marker::Optimizer => "Optimizer.step",
        Marker::ZeroGrad => "Optimizer.zero_grad",
        Marker::Dataloader => "the DataLoader",
        Marker::Metadata => "user_metadata",
        Marker::Phases => "guesses from the phases of training",
        Marker::Recurrence => "guesses from what recurs",
        Marker::None => return "no steps to be seen".to_owned(),
    };
    format!("{} steps marked by {by}", grouped(n_marks))
}

/// Whether tensor bytes and block bytes differ enough to say both.
fn differs(requested: u64, active: u64) -> bool {
    real(active) > 1.1 * real(requested)
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
    }
}

fn table(page: &mut String, study: &Study<'_>, rows: &[SiteRow], top: usize) {
    let named = rows.iter().map(|row| (name_of(study, row.site), row.sum)).collect();
    print(page, named, top);
}

fn table_by_function(page: &mut String, study: &Study<'_>, rows: &[SiteRow], top: usize) {
    let mut sums = std::collections::BTreeMap::new();
    for row in rows {
        let site = study.scene.sites.site(row.site).unwrap_or(&Site::NOWHERE);
        let name = name(&Site { line: None, ..site.clone() });
        sums.entry(name).or_insert_with(Sum::default).join(row.sum);
    }
    print(page, sums.into_iter().collect(), top);
}

fn table_by_stack(page: &mut String, study: &Study<'_>, state: Option<u32>, top: usize) {
    let scene = &study.scene;
    let mut sums = vec![Sum::default(); at(scene.sites.before()) + 1];
    let alive = scene.timeline.allocations.iter().filter(|allocation| match state {
        Some(state) => allocation.is_alive(state),
        None => allocation.is_at_end(),
    });
    for allocation in alive {
        if let Some(sum) = sums.get_mut(at(scene.sites.origin(allocation))) {
            sum.add(allocation);
        }
    }
    let mut rows: Vec<(u32, Sum)> = (0..).zip(sums).filter(|(_, sum)| sum.blocks > 0).collect();
    rows.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.bytes));
    let total: u64 = rows.iter().map(|(_, sum)| sum.bytes).sum();
    for (origin, sum) in rows.iter().take(top) {
        row(page, &name_of(study, scene.sites.of_origin(*origin)), *sum, total);
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
                    percent(*size, total),
                    whole_bytes(*size)
                ),
            );
        }
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
    let asked = if differs(sum.requested, sum.bytes) {
        format!("  (tensors: {})", whole_bytes(sum.requested))
    } else {
        String::new()
    };
    line(
        page,
        format_args!(
            "  {:>6}  {:>9}  {:>7}  {name}{asked}",
            percent(sum.bytes, total),
            whole_bytes(sum.bytes),
            grouped(sum.blocks)
        ),
    );
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

/// A site by number, for a page.
pub fn name_of(study: &Study<'_>, site: u32) -> String {
    name(study.scene.sites.site(site).unwrap_or(&Site::NOWHERE))
}

/// A site for a page: the folder that a file is in is shown, the path to it is not.
pub fn name(site: &Site) -> String {
    let function =
        site.function.as_deref().map(|name| short(name, NAME_CHARS)).unwrap_or_default();
    match site.kind {
        SiteKind::Python => {
            let file = tail(site.file.as_deref().unwrap_or("?"));
            match site.line {
                Some(line) => format!("{file}:{line} {function}"),
                None => format!("{file} {function}"),
            }
        }
        SiteKind::Backward => {
            format!("backward of {}", short(site.node.as_deref().unwrap_or("?"), NAME_CHARS))
        }
        SiteKind::Cpp if function.is_empty() => "C++ without a telling frame".to_owned(),
        SiteKind::Cpp => format!("C++ {function}"),
        SiteKind::NoFrames => "(no stack recorded)".to_owned(),
        SiteKind::BeforeRecording => "(allocated before the recording)".to_owned(),
    }
}

/// The last two parts of a path.
fn tail(file: &str) -> String {
    let path = file.replace('\\', "/");
    let start = path.rmatch_indices('/').nth(1).map_or(0, |(slash, _)| slash + 1);
    short(path.get(start..).unwrap_or(&path), NAME_CHARS)
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
                tail(&scene.snapshot.text(frame.file)),
                frame.line,
                short(&scene.snapshot.text(frame.name), NAME_CHARS)
            ),
        );
    }
}

fn leak(page: &mut String, study: &Study<'_>) {
    let leak = &study.leak;
    section(page, "Leak");
    match leak.verdict {
        LeakVerdict::InsufficientHistory => {
            let marks = study.scene.steps.marks.len();
            let seen = if study.scene.events.is_empty() {
                "the snapshot has no events".to_owned()
            } else {
                format!("{marks} steps begin in the window")
            };
            page.push_str(&wrapped(
                &format!("Cannot be told: {seen}, and a verdict needs six marks, five whole steps. Record at least 20 steps."),
                "  ",
                WIDTH,
            ));
        }
        LeakVerdict::None => {
            let floor = leak.floor_rate.map_or_else(String::new, |rate| {
                format!(" The least active memory of a step changes by {} a step.", bytes(rate))
            });
            page.push_str(&wrapped(&format!("No line goes on growing.{floor}"), "  ", WIDTH));
        }
        LeakVerdict::Leak => leaking(page, study),
    }
}

fn leaking(page: &mut String, study: &Study<'_>) {
    let leak = &study.leak;
    let rate = leak.rate.unwrap_or(0.0);
    let (blamed, origin, skipped) = match &leak.blame {
        Some(Blame::Frame { frame, origin, .. }) => {
            let number = *frame;
            let site = Site::of_frame(study.scene.snapshot, number);
            let frames = study.scene.sites.user_frames(study.scene.snapshot, *origin);
            (name(&site), *origin, frames.take_while(|other| *other != number).count() + 1)
        }
        Some(Blame::Site(row)) => (name_of(study, row.site), row.origin, 1),
        None => ("an unknown line".to_owned(), NO_STACK, 0),
    };
    line(page, format_args!("  LEAK  {} a step, at {blamed}", bytes(rate)));
    stack(page, study, origin, skipped);
    if let Some(floor) = leak.floor_rate.filter(|floor| *floor > 0.0) {
        let ratio = 100.0 * rate / floor;
        let text = format!(
            "The least active memory of a step grows by {} a step; the lines below explain {ratio:.0}% of it.",
            bytes(floor)
        );
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
    let (rate, name) = (bytes(suspect.rise.rate), name_of(study, suspect.row.site));
    line(page, format_args!("  {rate:>9} a step  {name}"));
    line(
        page,
        format_args!(
            "{:19}{} of {} allocations stay, steps {} to {}{how}",
            "",
            grouped(suspect.row.sum.blocks),
            grouped(suspect.n_allocations),
            label(suspect.rise.first),
            label(suspect.rise.last),
        ),
    );
}

fn out_of_memory(page: &mut String, study: &Study<'_>, failure: &OutOfMemory, top: usize) {
    section(page, "Out of memory");
    let line_of = name_of(study, study.scene.sites.of_origin(failure.stack));
    let (asked, event) = (whole_bytes(failure.requested), failure.event);
    line(page, format_args!("  {asked} asked for at event {event}, at {line_of}"));
    stack(page, study, failure.stack, 1);
    let reason = match failure.cause {
        OomCause::Shortage => format!(
            "Shortage: {} were active of {} reserved, and the driver had {} left. Even without gaps it \
             would not have fitted.",
            whole_bytes(failure.active),
            whole_bytes(failure.reserved),
            whole_bytes(failure.device_free)
        ),
        OomCause::Fragmentation => format!(
            "Fragmentation: {} were free in the pool, but the largest piece was {}. Try \
             PYTORCH_ALLOC_CONF=expandable_segments:True.",
            whole_bytes(failure.eligible_free),
            whole_bytes(failure.largest_free)
        ),
        OomCause::PendingFree => format!(
            "Pending frees: {} had been freed, but another stream still used them.",
            whole_bytes(failure.pending)
        ),
    };
    page.push_str(&wrapped(&reason, "  ", WIDTH));
    table(page, study, &failure.rows, top);
}

fn fragmentation(page: &mut String, study: &Study<'_>, top: usize) {
    let found = &study.fragmentation;
    section(page, "Fragmentation");
    let figures = [
        (found.stranded, "stranded: free, in segments that a live block holds"),
        (found.releasable, "releasable: torch.cuda.empty_cache() would give it back"),
        (found.internal, "inside blocks, beyond what tensors asked for"),
        (found.largest_free, "the largest free block"),
    ];
    for (figure, name) in figures {
        line(page, format_args!("  {:>9}  {name}", whole_bytes(figure)));
    }
    let pinners = found.pinners.iter().filter(|(_, share)| *share > 0);
    for (row, share) in pinners.take(top.min(PINNERS)) {
        let (share, size) = (whole_bytes(*share), whole_bytes(row.sum.bytes));
        let (blocks, name) = (grouped(row.sum.blocks), name_of(study, row.site));
        line(page, format_args!("  {share:>9}  held by {blocks} blocks of {size}: {name}"));
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
    for stage in shown {
        let phase = match stage.peak_phase {
            StepPhase::Forward => "forward",
            StepPhase::Backward => "backward",
            StepPhase::Optimizer => "optimizer",
        };
        line(
            page,
            format_args!(
                "  step {:>6}  peak {:>9} in {phase:9}  {:>9} at its end  {:>9} allocated",
                stage.step,
                whole_bytes(stage.peak_bytes),
                whole_bytes(stage.end_bytes),
                whole_bytes(stage.allocated_bytes)
            ),
        );
    }
}

fn notes(page: &mut String, study: &Study<'_>) {
    section(page, "Notes");
    for note in &study.notes {
        let size =
            note.bytes.map(|size| format!(" ({})", whole_bytes(size))).unwrap_or_default();
        let steps = note.steps.map(|steps| format!(" ({steps} steps)")).unwrap_or_default();
        let text = wrapped(&format!("{}{size}{steps}", clean(&note.text)), "    ", WIDTH);
        page.push_str("  - ");
        page.push_str(text.trim_start());
    }
}

fn next(page: &mut String, study: &Study<'_>) {
    section(page, "Next");
    let failures =
        study.scene.events.iter().filter(|event| event.action == Action::OutOfMemory);
    let advice = if study.leak.verdict == LeakVerdict::Leak {
        "Look at the line named under Leak: something keeps what it makes. After the fix, record again \
         and compare with `stepmem snapshot diff BEFORE AFTER`."
    } else if failures.count() > 0 {
        "Look at what holds most under Out of memory; `--at oom --by category` sums it up."
    } else if study.leak.verdict == LeakVerdict::InsufficientHistory {
        "To tell a leak, record 20 steps or more: torch.cuda.memory._record_memory_history(\
         max_entries=1000000, context=\"alloc\", stacks=\"python\"), then _dump_snapshot()."
    } else {
        "`--at peak` shows who holds the peak, `--by category` what it is for."
    };
    page.push_str(&wrapped(advice, "  ", WIDTH));
}

//! The page of `stepmem snapshot show`: for a terminal, section by section, ending with what to
//! do next.

use std::collections::BTreeMap;

use crate::analyze::categories;
use crate::analyze::device_report::DeviceReport;
use crate::analyze::fit::{self, FitQuestion};
use crate::analyze::leak::{LeakVerdict, Suspect};
use crate::analyze::mirrors::Mirrored;
use crate::analyze::oom::OutOfMemory;
use crate::analyze::passes;
use crate::analyze::pinned::Pinned;
use crate::analyze::pools::{PoolSums, Totals};
use crate::analyze::sites::{STACK_FRAMES_MAX, Site, SiteRow, Sum};
use crate::events::words::{category_of, line_within};
use crate::integer::{at, count};
use crate::model::NO_STACK;
use crate::render::layout::{line, part_of, wrapped};
use crate::render::words::{self, Blamed};
use crate::replay::Allocation;
use stepmem_types::format::clean::clean;
use stepmem_types::format::units::{bytes, grouped, whole_bytes};

/// Columns of a page.
pub(crate) const WIDTH: usize = 80;
/// Lines that are named as holding stranded memory.
const PINNERS: usize = 5;
/// Frames that a page shows of a stack.
const FRAMES: usize = 6;
/// Lines that are named below a row.
const LINES_BELOW: usize = 3;

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
    /// The moment when the snapshot was taken.
    #[default]
    End,
    /// The moment when most was active.
    Peak,
    /// The first failed allocation.
    Oom,
    /// The moment when most was active in a step.
    Step(u64),
    /// The end of a pass of backward of a step, from 1, before the program does anything else.
    Pass(u64, u64),
    /// The moment when a step calls `zero_grad`, before anything is freed.
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
    /// The whole stack.
    Stack,
    /// The use of the memory.
    Category,
    /// Each block by itself.
    Block,
}

/// The page of one device.
pub fn device(report: &DeviceReport<'_>, question: &Question) -> String {
    let mut page = String::new();
    head(&mut page, report);
    holders(&mut page, report, question);
    leak(&mut page, report);
    for failure in &report.oom {
        out_of_memory(&mut page, report, failure, question);
    }
    fragmentation(&mut page, report, question.top);
    private_pools(&mut page, &report.pools, question.top);
    steps(&mut page, report, question.top);
    will_it_fit(&mut page, report, question.fit);
    notes(&mut page, report);
    next(&mut page, report);
    page
}

fn head(page: &mut String, report: &DeviceReport<'_>) {
    let (scene, totals) = (&report.scene, report.totals);
    let text = format!(
        "device {}: {} active of {} reserved, {} live blocks in {} segments",
        scene.device.index,
        whole_bytes(totals.active),
        whole_bytes(totals.reserved),
        grouped(totals.live_blocks),
        grouped(totals.segments),
    );
    page.push_str(&wrapped(&text, "", WIDTH));
    if words::differs(totals.requested, totals.active) {
        line(
            page,
            format_args!(
                "  tensors requested {} of the active bytes",
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
    let n_events = grouped(count(scene.events.len()));
    page.push_str(&wrapped(
        &format!("{n_events} events, {}", words::steps(scene)),
        "  ",
        WIDTH,
    ));
    let peak = scene.timeline.peak;
    let moment = report.moment(peak.state);
    let event = moment.event.map(|event| grouped(event.into()));
    let place = match (event, moment.step) {
        (Some(event), Some(step)) => format!("at event {event}, in step {step}"),
        (Some(event), None) => format!("at event {event}"),
        _ => "before the first event".to_owned(),
    };
    let (active, reserved) = (whole_bytes(peak.active), whole_bytes(peak.reserved));
    let text = format!("peak {active} active, {reserved} reserved, {place}");
    page.push_str(&wrapped(&text, "  ", WIDTH));
    if scene.timeline.violations > 0 {
        let text = format!(
            "the file contradicts itself in {} places: PyTorch did not write it this way",
            grouped(scene.timeline.violations)
        );
        page.push_str(&wrapped(&text, "  ", WIDTH));
    }
}

fn section(page: &mut String, title: &str) {
    line(page, format_args!("\n{title}"));
}

/// The state that a moment is, the end if `None`, and its name; `None` where the window has no
/// such moment.
pub fn state(report: &DeviceReport<'_>, when: ShownMoment) -> Option<(Option<u32>, String)> {
    match when {
        ShownMoment::End => Some((None, "at the end".to_owned())),
        ShownMoment::Peak => {
            Some((Some(report.scene.timeline.peak.state), "at the peak".to_owned()))
        }
        ShownMoment::Oom => {
            let first = report.oom.first()?;
            Some((Some(first.event), "when memory ran out".to_owned()))
        }
        ShownMoment::Step(step) => {
            let step_report =
                report.step_reports.iter().find(|step_report| step_report.step == step)?;
            Some((Some(step_report.peak_event + 1), format!("at the peak of step {step}")))
        }
        ShownMoment::Pass(step, number) => {
            let state = passes::after(report, step, number)?;
            Some((Some(state), format!("after backward pass {number} of step {step}")))
        }
        ShownMoment::ZeroGrad(step) => {
            let state = passes::before_zero_grad(report, step)?;
            Some((Some(state), format!("when step {step} calls zero_grad")))
        }
    }
}

fn holders(page: &mut String, report: &DeviceReport<'_>, question: &Question) {
    let Some((state, name)) = state(report, question.moment) else {
        section(page, "Who holds the memory: this window has no such moment");
        return;
    };
    let rows = match state {
        None => report.at_end.clone(),
        Some(state) => {
            report.scene.sites.at_state(report.scene.snapshot, &report.scene.timeline, state)
        }
    };
    let total: u64 = rows.iter().map(|row| row.sum.bytes).sum();
    section(page, &format!("Who holds the memory {name} ({})", whole_bytes(total)));
    match question.rows {
        RowKind::Line => table(page, report, (&rows, state), question.top),
        RowKind::Function => table_by_function(page, report, &rows, question.top),
        RowKind::Stack => table_by_stack(page, report, state, question.top),
        RowKind::Category => table_by_category(page, report, state, total),
        RowKind::Block => table_of_blocks(page, report, state, question.top),
    }
}

/// The lines that hold memory in a state, or at the end.
fn table(
    page: &mut String,
    report: &DeviceReport<'_>,
    (rows, state): (&[SiteRow], Option<u32>),
    top: usize,
) {
    let scene = &report.scene;
    let total: u64 = rows.iter().map(|row| row.sum.bytes).sum();
    for shown in rows.iter().take(top) {
        let found = words::mirrored(scene, shown.site, |other| other.is_alive_in(state));
        if let Some(found) = found {
            mirrored(page, report, &found, (shown.sum, total));
        } else {
            let site = scene.sites.site(shown.site).unwrap_or(&Site::NOWHERE);
            row(page, site, shown.sum, total);
        }
    }
    rest(page, rows.iter().skip(top).map(|row| row.sum), total);
}

/// The row of what backward made without stacks, and below it the lines that it is as large as.
fn mirrored(
    page: &mut String,
    report: &DeviceReport<'_>,
    found: &Mirrored,
    (sum, total): (Sum, u64),
) {
    row_named(page, &words::name_of_mirrored(found), sum, total);
    for (site, sum) in found.lines.iter().take(LINES_BELOW) {
        let before = format!("{:28}{:>9} as large as what ", "", whole_bytes(sum.bytes));
        let width = width_left(&before).saturating_sub(" made".len());
        let name = words::name_of_within(&report.scene, *site, width);
        line(page, format_args!("{before}{name} made"));
    }
}

fn table_by_function(
    page: &mut String,
    report: &DeviceReport<'_>,
    rows: &[SiteRow],
    top: usize,
) {
    let mut sums = BTreeMap::new();
    for row in rows {
        let site = report.scene.sites.site(row.site).unwrap_or(&Site::NOWHERE);
        let name = words::name(&Site { line: None, ..site.clone() });
        sums.entry(name).or_insert_with(Sum::default).join(row.sum);
    }
    let mut sums: Vec<(String, Sum)> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.bytes.cmp(&a.1.bytes).then_with(|| a.0.cmp(&b.0)));
    let total: u64 = sums.iter().map(|(_, sum)| sum.bytes).sum();
    for (name, sum) in sums.iter().take(top) {
        row_named(page, name, *sum, total);
    }
    rest(page, sums.iter().skip(top).map(|(_, sum)| *sum), total);
}

/// The allocations that are alive in a state, or at the end, by number.
fn alive<'a>(
    report: &'a DeviceReport<'_>,
    state: Option<u32>,
) -> impl Iterator<Item = (u32, &'a Allocation)> {
    let allocations = (0..).zip(&report.scene.timeline.allocations);
    allocations.filter(move |(_, allocation)| allocation.is_alive_in(state))
}

fn table_by_stack(
    page: &mut String,
    report: &DeviceReport<'_>,
    state: Option<u32>,
    top: usize,
) {
    let scene = &report.scene;
    let mut sums = vec![Sum::default(); scene.sites.n_origins()];
    for (_, allocation) in alive(report, state) {
        if let Some(sum) = sums.get_mut(at(scene.sites.origin(allocation))) {
            sum.add(allocation);
        }
    }
    let mut rows: Vec<(u32, Sum)> = (0..).zip(sums).filter(|(_, sum)| sum.blocks > 0).collect();
    rows.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.bytes));
    let total: u64 = rows.iter().map(|(_, sum)| sum.bytes).sum();
    for (origin, sum) in rows.iter().take(top) {
        row(page, site_of_stack(report, *origin), *sum, total);
        stack(page, report, *origin, 1);
    }
    rest(page, rows.iter().skip(top).map(|(_, sum)| *sum), total);
}

/// Each category with the lines that hold most of it: a line may be in several.
fn table_by_category(
    page: &mut String,
    report: &DeviceReport<'_>,
    state: Option<u32>,
    total: u64,
) {
    let scene = &report.scene;
    let mut of_category: BTreeMap<&str, Vec<&Allocation>> = BTreeMap::new();
    for (number, allocation) in alive(report, state) {
        of_category.entry(category_of(report, number)).or_default().push(allocation);
    }
    let sums = categories::sums(scene, &report.categories, state);
    for (name, size) in sums.named().into_iter().filter(|(_, size)| **size > 0) {
        let (share, bytes) = (part_of(*size, total), whole_bytes(*size));
        line(page, format_args!("  {share:>6}  {bytes:>9}  {name}"));
        let own = of_category.remove(name).unwrap_or_default();
        for row in scene.sites.table(scene.snapshot, own.into_iter()).iter().take(LINES_BELOW) {
            let before = format!("{:23}{:>9}  ", "", whole_bytes(row.sum.bytes));
            let name = words::name_in_within(scene, (row.site, state), width_left(&before));
            line(page, format_args!("{before}{name}"));
        }
    }
}

/// The largest blocks, each with its address.
fn table_of_blocks(
    page: &mut String,
    report: &DeviceReport<'_>,
    state: Option<u32>,
    top: usize,
) {
    let mut blocks: Vec<(u32, &Allocation)> = alive(report, state).collect();
    let total = blocks.iter().map(|(_, block)| block.size).sum();
    blocks.sort_by_key(|(_, block)| (std::cmp::Reverse(block.size), block.address));
    let mut others = Sum::default();
    blocks.iter().skip(top).for_each(|(_, block)| others.add(block));
    for (number, block) in blocks.iter().take(top) {
        let (share, bytes) = (part_of(block.size, total), whole_bytes(block.size));
        let figures = format!("  {share:>6}  {bytes:>9}  {:#x}  ", block.address);
        let name = line_within(report, *number, width_left(&figures));
        line(page, format_args!("{figures}{name}"));
    }
    if others.blocks > 0 {
        let name = "other blocks (--top N shows more)";
        row_named(page, name, others, total);
    }
}

fn row(page: &mut String, site: &Site, sum: Sum, total: u64) {
    let width = width_left(&figures(sum, total)).saturating_sub(requested(sum).chars().count());
    row_named(page, &words::name_within(site, width), sum, total);
}

fn row_named(page: &mut String, name: &str, sum: Sum, total: u64) {
    let (figures, requested) = (figures(sum, total), requested(sum));
    let width = width_left(&figures).saturating_sub(requested.chars().count());
    line(page, format_args!("{figures}{}{requested}", words::ending_of(name, width)));
}

fn figures(sum: Sum, total: u64) -> String {
    let (share, size) = (part_of(sum.bytes, total), whole_bytes(sum.bytes));
    format!("  {share:>6}  {size:>9}  {:>7}  ", grouped(sum.blocks))
}

/// The tensor bytes, where they differ from those of the blocks.
fn requested(sum: Sum) -> String {
    if words::differs(sum.requested, sum.bytes) {
        format!("  (tensors: {})", whole_bytes(sum.requested))
    } else {
        String::new()
    }
}

fn site_of_stack<'a>(report: &'a DeviceReport<'_>, origin: u32) -> &'a Site {
    let sites = report.scene.sites;
    sites.site(sites.of_origin(origin)).unwrap_or(&Site::NOWHERE)
}

/// Characters of a line that are left.
pub(crate) fn width_left(before: &str) -> usize {
    WIDTH.saturating_sub(before.chars().count())
}

/// Names the rows that are left out.
fn others_of(n_others: u64) -> String {
    let noun = if n_others == 1 { "other" } else { "others" };
    format!("{} {noun} (--top N shows more)", grouped(n_others))
}

fn rest(page: &mut String, rows: impl Iterator<Item = Sum>, total: u64) {
    let (mut others, mut n_others) = (Sum::default(), 0_u64);
    for sum in rows {
        others.join(sum);
        n_others += 1;
    }
    if n_others > 0 {
        let name = others_of(n_others);
        row_named(page, &name, others, total);
    }
}

/// The user's frames of a stack.
fn stack(page: &mut String, report: &DeviceReport<'_>, origin: u32, skipped: usize) {
    if origin == NO_STACK {
        return;
    }
    let scene = &report.scene;
    let frames = scene.sites.user_frames(scene.snapshot, origin);
    for frame in frames.skip(skipped).take(FRAMES.min(STACK_FRAMES_MAX)) {
        let before = format!("{:30}from ", "");
        let site = Site::of_frame(scene.snapshot, frame);
        let name = words::name_within(&site, width_left(&before));
        line(page, format_args!("{before}{name}"));
    }
}

fn leak(page: &mut String, report: &DeviceReport<'_>) {
    section(page, "Leak");
    if report.leak.verdict == LeakVerdict::Leak {
        leaking(page, report);
    } else {
        page.push_str(&wrapped(words::no_leak(report).words(), "  ", WIDTH));
    }
}

fn leaking(page: &mut String, report: &DeviceReport<'_>) {
    let leak = &report.leak;
    let rate = leak.rate.unwrap_or(0.0);
    let Blamed { name: blamed, origin, skipped } = words::blamed(report);
    let before = format!("  LEAK  {} a step, at ", bytes(rate));
    let blamed = words::ending_of(&blamed, width_left(&before));
    line(page, format_args!("{before}{blamed}"));
    stack(page, report, origin, skipped);
    for text in [words::explained(report), words::unfilled(report)].into_iter().flatten() {
        page.push_str(&wrapped(text.words(), "  ", WIDTH));
    }
    for suspect in &leak.suspects {
        suspected(page, report, suspect);
    }
}

fn suspected(page: &mut String, report: &DeviceReport<'_>, suspect: &Suspect) {
    let label = |slot| report.scene.steps.label(slot).unwrap_or(0);
    let how =
        if suspect.is_remade { "; one buffer made again, and larger, each time" } else { "" };
    let before = format!("  {:>9} a step  ", bytes(suspect.rise.rate));
    let name = words::name_of_within(&report.scene, suspect.row.site, width_left(&before));
    line(page, format_args!("{before}{name}"));
    let text = format!(
        "{} of {} allocations stay, steps {} to {}{how}",
        grouped(suspect.n_survivors),
        grouped(suspect.n_allocations),
        label(suspect.rise.first),
        label(suspect.rise.last),
    );
    page.push_str(&wrapped(&text, &format!("{:19}", ""), WIDTH));
}

fn out_of_memory(
    page: &mut String,
    report: &DeviceReport<'_>,
    failure: &OutOfMemory,
    question: &Question,
) {
    section(page, "Out of memory");
    let place = words::failure_place(report, failure);
    let (requested, event) = (whole_bytes(failure.requested), grouped(failure.event.into()));
    let failed = format!("{requested} requested at event {event}, {place}");
    page.push_str(&wrapped(&failed, "  ", WIDTH));
    stack(page, report, failure.stack, 1);
    page.push_str(&wrapped(words::reason(report, failure).words(), "  ", WIDTH));
    for (size, name) in words::device_figures(failure, question.fit.capacity) {
        line(page, format_args!("  {:>9}  {name}", whole_bytes(size)));
    }
    table(page, report, (&failure.rows, Some(failure.event)), question.top);
}

fn fragmentation(page: &mut String, report: &DeviceReport<'_>, top: usize) {
    let found = &report.fragmentation;
    section(page, "Fragmentation");
    for (figure, name) in words::unused(report) {
        line(page, format_args!("  {:>9}  {name}", whole_bytes(figure)));
    }
    let pinners = found.pinners.iter().filter(|(_, share)| *share > 0);
    for (row, share) in pinners.take(top.min(PINNERS)) {
        let (share, size) = (whole_bytes(*share), whole_bytes(row.sum.bytes));
        let blocks = words::blocks(row.sum.blocks);
        let holder = format!("  {share:>9}  held by {blocks} of {size}: ");
        let width = width_left(&holder);
        let name = words::name_in_within(&report.scene, (row.site, None), width);
        line(page, format_args!("{holder}{name}"));
    }
}

/// The pools whose memory nothing else can use.
fn private_pools(page: &mut String, pools: &[PoolSums], top: usize) {
    let private: Vec<&PoolSums> = pools.iter().filter(|pool| pool.is_private()).collect();
    if private.is_empty() {
        return;
    }
    section(page, "Private pools");
    line(page, format_args!("  {:>9}  {:>9}  segments  pool", "reserved", "active"));
    let row = |page: &mut String, totals: Totals, name: &str| {
        let (reserved, active) = (whole_bytes(totals.reserved), whole_bytes(totals.active));
        let segments = grouped(totals.segments);
        line(page, format_args!("  {reserved:>9}  {active:>9}  {segments:>8}  {name}"));
    };
    for pool in private.iter().take(top) {
        row(page, pool.totals, &words::pool(pool));
    }
    let mut others = Totals::default();
    private.iter().skip(top).for_each(|pool| others.join(pool.totals));
    if others.segments > 0 {
        row(page, others, &others_of(count(private.len() - top)));
    }
    let texts = [Some(words::PRIVATE_POOLS.to_owned()), words::pools_of_graphs(pools)];
    for text in texts.into_iter().flatten() {
        page.push_str(&wrapped(&text, "  ", WIDTH));
    }
}

/// The page of the host's pinned memory.
pub fn pinned(host: &Pinned<'_>, top: usize) -> String {
    let mut page = "pinned memory of the host\n".to_owned();
    for text in words::pinned(host) {
        page.push_str(&wrapped(&text, "  ", WIDTH));
    }
    let total = host.totals.active;
    if total > 0 {
        section(&mut page, &format!("Who holds it at the end ({})", whole_bytes(total)));
    }
    for shown in host.rows.iter().take(top) {
        let site = host.sites.site(shown.site).unwrap_or(&Site::NOWHERE);
        row(&mut page, site, shown.sum, total);
    }
    rest(&mut page, host.rows.iter().skip(top).map(|row| row.sum), total);
    private_pools(&mut page, &host.pools, top);
    page
}

fn steps(page: &mut String, report: &DeviceReport<'_>, top: usize) {
    if report.step_reports.is_empty() {
        return;
    }
    section(page, "Steps");
    let n_stages = report.step_reports.len();
    let shown = report.step_reports.iter().skip(n_stages.saturating_sub(top));
    if n_stages > top {
        line(page, format_args!("  the last {top} of {}", grouped(count(n_stages))));
    }
    let is_accumulating =
        report.step_reports.iter().any(|step_report| step_report.backward_passes > 1);
    let passes = if is_accumulating { "  passes" } else { "" };
    line(
        page,
        format_args!(
            "  {:>6}  {:>9}  {:10}  {:>10}  {:>9}{passes}",
            "step", "peak", "in", "at its end", "allocated"
        ),
    );
    for step_report in shown {
        let passes = if is_accumulating {
            format!("  {:>6}", grouped(step_report.backward_passes))
        } else {
            String::new()
        };
        line(
            page,
            format_args!(
                "  {:>6}  {:>9}  {:10}  {:>10}  {:>9}{passes}",
                step_report.step,
                whole_bytes(step_report.peak_bytes),
                words::phase(step_report.peak_phase),
                whole_bytes(step_report.end_bytes),
                whole_bytes(step_report.allocated_bytes)
            ),
        );
    }
}

fn will_it_fit(page: &mut String, report: &DeviceReport<'_>, question: FitQuestion) {
    let found = fit::measure(&report.scene, &report.categories, &report.step_reports, question);
    let Some(found) = found else { return };
    section(page, "Will it fit?");
    for told in words::fit(&found) {
        page.push_str(&wrapped(told.words(), "  ", WIDTH));
    }
}

fn notes(page: &mut String, report: &DeviceReport<'_>) {
    section(page, "Notes");
    for note in &report.notes {
        let text = wrapped(&clean(words::note(note).words()), "    ", WIDTH);
        page.push_str("  - ");
        page.push_str(text.trim_start());
    }
}

fn next(page: &mut String, report: &DeviceReport<'_>) {
    section(page, "Next");
    page.push_str(&wrapped(words::advice(report).words(), "  ", WIDTH));
}

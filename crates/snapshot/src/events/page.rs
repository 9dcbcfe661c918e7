//! The page of `stepmem snapshot events`: for a terminal of 80 columns.

use crate::analyze::casts::{self, CastSource};
use crate::analyze::sites::Sum;
use crate::events::chains::{self, ReuseChain};
use crate::events::list::{EventList, EventRow, RowAction};
use crate::events::told::{self, EventSums};
use crate::events::totals::{PhasePeak, RunningTotal};
use crate::events::tree::{self, TreeRow};
use crate::events::words;
use crate::integer::{at, count};
use crate::model::NO_STACK;
use crate::render::layout::{line, part_of, wrapped};
use crate::render::words::{differs, ending_of, frame, name_within, phase};
use stepmem_types::format::units::{grouped, many, whole_bytes};

/// Columns of a page.
const WIDTH: usize = 80;
/// Columns before the text about an event below its row.
const INDENT: &str = "               ";
/// Columns that a tree is indented by, at most.
const TREE_INDENT_MAX: usize = 16;

/// The amount that is shown.
#[derive(Clone, Copy, Debug)]
pub struct EventsExtent {
    /// Rows of the list, addresses of the chains, branches of a frame; all if `None`.
    pub rows: Option<usize>,
    /// Frames of both stacks of an event.
    pub frames: usize,
    /// Bytes of a branch of the tree, at least.
    pub bytes_min: u64,
}

impl EventsExtent {
    fn rows(self) -> usize {
        self.rows.unwrap_or(usize::MAX)
    }
}

/// The list of a device.
pub fn list(list: &EventList<'_>, extent: EventsExtent) -> String {
    let mut page = head(list);
    line(
        &mut page,
        format_args!("\n  event  step phase            size    active category      line"),
    );
    let (scene, total) = (&list.report.scene, RunningTotal::new(&list.report.scene));
    let copies = casts::copies(scene, &list.report.categories);
    let mut sums = EventSums::default();
    for row in list.rows() {
        sums.add(list, row);
        if sums.n_rows <= extent.rows() {
            event(&mut page, list, (row, total.after(scene, row.event)));
            if let Some(text) = text_of(list, row, copies.get(&row.allocation).copied()) {
                page.push_str(&wrapped(&text, INDENT, WIDTH));
            }
            if extent.frames > 0 {
                stacks(&mut page, list, row, extent.frames);
            }
        }
    }
    let n_left = sums.n_rows.saturating_sub(extent.rows());
    if sums.n_rows == 0 {
        page.push_str(&wrapped(told::nothing(list).words(), "  ", WIDTH));
    }
    line(&mut page, format_args!("\n{}", sums.told().words()));
    peaks(&mut page, &total.peaks(list));
    if n_left > 0 {
        let text = format!(
            "{} more events are not shown: --top 0 shows all, --step, --phase, --line, --address, --from, --to and \
             --min-size select.",
            grouped(count(n_left))
        );
        page.push_str(&wrapped(&text, "", WIDTH));
    }
    page
}

fn head(list: &EventList<'_>) -> String {
    let mut page = wrapped(told::head(list).words(), "", WIDTH);
    if let Some(frees) = told::frees(list) {
        page.push_str(&wrapped(frees.words(), "  ", WIDTH));
    }
    page
}

/// The most that was active in each phase, the highest first.
fn peaks(page: &mut String, peaks: &[PhasePeak]) {
    for (place, peak) in peaks.iter().enumerate() {
        let label = if place == 0 { "peak" } else { "" };
        let step = peak.step.map_or_else(String::new, |step| format!(", in step {step}"));
        line(
            page,
            format_args!(
                "{label:4}  {:>9} active in {:10}  after event {}{step}",
                whole_bytes(peak.active_bytes),
                phase(peak.phase),
                peak.event
            ),
        );
    }
}

/// A row; `active`: the bytes that are active after it.
fn event(page: &mut String, list: &EventList<'_>, (row, active): (EventRow, u64)) {
    let report = list.report;
    let event = report.scene.events.get(at(row.event)).copied().unwrap_or_default();
    let step = list.step(row.event).map_or_else(|| "-".to_owned(), |step| step.to_string());
    let (sign, category, site) = match row.action {
        RowAction::Alloc => ('+', words::category_of(report, row.allocation), None),
        RowAction::Free => ('-', words::category_of(report, row.allocation), None),
        RowAction::OutOfMemory => ('!', "out of memory", Some(event.stack)),
    };
    let figures = format!(
        "{:>7} {step:>5} {:10} {:>10} {:>9} {category:13} ",
        row.event,
        phase(list.phase(row.event)),
        format!("{sign}{}", whole_bytes(event.size)),
        whole_bytes(active),
    );
    let width = WIDTH.saturating_sub(figures.chars().count());
    let site = match (site, list.allocation(row.allocation)) {
        (None, Some(_)) => words::line_within(report, row.allocation, width),
        _ => name_within(words::site_of_stack(report, event.stack), width),
    };
    line(page, format_args!("{figures}{site}"));
}

/// Returns the text about an event below its row.
fn text_of(list: &EventList<'_>, row: EventRow, cast: Option<CastSource>) -> Option<String> {
    let allocation = list.allocation(row.allocation)?;
    let mut told = vec![format!("{:#x}", allocation.address)];
    told.extend(cast.map(|source| words::cast(source).to_owned()));
    if row.action == RowAction::Alloc {
        told.extend(words::mirrors(list.report, row.allocation));
        if differs(allocation.requested, allocation.size) {
            told.push(format!("a block of {}", whole_bytes(allocation.size)));
        }
        told.extend(words::lifetime(list, allocation));
        told.push(words::ending(list, allocation));
        told.extend(words::reuse(list, row.allocation));
    } else {
        told.push(match list.alloc_event(allocation) {
            Some(event) => format!("made at event {event}"),
            None => "made before the window".to_owned(),
        });
        told.push(words::ending(list, allocation));
        let completed = allocation.until.saturating_sub(1);
        if list.report.scene.events.get(at(completed)).is_some() && completed > row.event + 1 {
            told.push(format!("another stream used it until event {completed}"));
        }
    }
    Some(told.join("; "))
}

/// Both stacks of an event's block.
fn stacks(page: &mut String, list: &EventList<'_>, row: EventRow, n_max: usize) {
    let failed = list.report.scene.events.get(at(row.event)).map(|event| event.stack);
    let both = match list.allocation(row.allocation) {
        Some(allocation) => {
            vec![("allocated at", allocation.stack), ("freed at", list.free_stack(allocation))]
        }
        None => vec![("requested at", failed.unwrap_or(NO_STACK))],
    };
    let snapshot = list.report.scene.snapshot;
    for (what, stack) in both.into_iter().filter(|(_, stack)| *stack != NO_STACK) {
        let frames = words::frames(list.report, stack);
        for (place, number) in frames.iter().take(n_max).enumerate() {
            let label = if place == 0 { what } else { "from" };
            let of = snapshot.frame(*number);
            let text = frame(&snapshot.text(of.file), of.line, &snapshot.text(of.name));
            let before = format!("{INDENT}{label:>12} ");
            let width = WIDTH.saturating_sub(before.chars().count());
            line(page, format_args!("{before}{}", ending_of(&text, width)));
        }
        let n_left = frames.len().saturating_sub(n_max);
        if n_left > 0 {
            line(page, format_args!("{INDENT}{:12} {} more", "", grouped(count(n_left))));
        }
    }
}

/// The tensors of each address.
pub fn reuse(list: &EventList<'_>, extent: EventsExtent) -> String {
    let mut page = head(list);
    let chains = chains::find(list);
    for chain in chains.iter().take(extent.rows()) {
        address(&mut page, list, chain, extent);
    }
    if chains.is_empty() && list.rows().next().is_none() {
        page.push('\n');
        page.push_str(&wrapped(told::nothing(list).words(), "  ", WIDTH));
    }
    let n_left = chains.len().saturating_sub(extent.rows());
    line(&mut page, format_args!("\n{}", told::reused(&chains).words()));
    if n_left > 0 {
        line(
            &mut page,
            format_args!("{} more are not shown: --top 0 shows all", grouped(count(n_left))),
        );
    }
    page
}

fn address(page: &mut String, list: &EventList<'_>, chain: &ReuseChain, extent: EventsExtent) {
    let n_shown = count(chain.allocations.len());
    let of = if n_shown == chain.n_all {
        many(n_shown, "tensor")
    } else {
        format!("{} of {}", grouped(n_shown), many(chain.n_all, "tensor"))
    };
    line(
        page,
        format_args!(
            "\n{:#x}: {of}, blocks of up to {}",
            chain.address,
            whole_bytes(chain.bytes)
        ),
    );
    line(page, format_args!("  events          step      size category      line"));
    for number in chain.allocations.iter().take(extent.rows()) {
        let Some(allocation) = list.allocation(*number) else { continue };
        let from = list.alloc_event(allocation);
        let until = list.free_event(allocation);
        let or_open =
            |event: Option<u32>| event.map(|event| event.to_string()).unwrap_or_default();
        let step = from.and_then(|event| list.step(event));
        let figures = format!(
            "  {:15} {:>4} {:>9} {:13} ",
            format!("{}-{}", or_open(from), or_open(until)),
            step.map_or_else(|| "-".to_owned(), |step| step.to_string()),
            whole_bytes(allocation.requested),
            words::category_of(list.report, *number),
        );
        // Where it does not begin where the chain does.
        let offset = allocation.address.saturating_sub(chain.address);
        let offset =
            if offset == 0 { String::new() } else { format!("+{} ", whole_bytes(offset)) };
        let width = WIDTH.saturating_sub(figures.chars().count() + offset.chars().count());
        let site = words::line_within(list.report, *number, width);
        line(page, format_args!("{figures}{offset}{site}"));
    }
    let n_left = chain.allocations.len().saturating_sub(extent.rows());
    if n_left > 0 {
        line(page, format_args!("  {} more (--top 0 shows all)", grouped(count(n_left))));
    }
}

/// The allocations that are alive in a state, or at the end, by stack. `moment`: the state in
/// words.
pub fn alive(
    list: &EventList<'_>,
    (state, moment): (Option<u32>, &str),
    extent: EventsExtent,
) -> String {
    let mut page = head(list);
    let rows = tree::alive(list.report, state);
    let mut all = Sum::default();
    rows.iter().filter(|row| row.depth == 0).for_each(|row| all.join(row.sum));
    line(&mut page, format_args!("\n{}", told::alive(moment, all).words()));
    line(&mut page, format_args!("   share     bytes  blocks  where, from the outside in"));
    let mut branches = Branches { total: all.bytes, extent, levels: Vec::new() };
    branches.levels.push(BranchLevel::default());
    let mut rows = rows.iter().peekable();
    while let Some(row) = rows.next() {
        branches.close(&mut page, row.depth + 1);
        if !branches.show(&mut page, row) {
            while rows.next_if(|below| below.depth > row.depth).is_some() {}
        }
    }
    branches.close(&mut page, 0);
    page
}

/// A tree while it is written.
struct Branches {
    total: u64,
    extent: EventsExtent,
    /// The frames above the next row, the outermost first.
    levels: Vec<BranchLevel>,
}

/// The allocations or frames directly below a frame.
#[derive(Default)]
struct BranchLevel {
    indent: usize,
    /// The bytes that the frame holds, if there is one thing below it.
    only: Option<Sum>,
    n_shown: usize,
    left: Sum,
    n_left: u64,
}

impl Branches {
    /// Writes a frame, unless it is too small or one too many.
    fn show(&mut self, page: &mut String, row: &TreeRow) -> bool {
        let (total, extent) = (self.total, self.extent);
        let Some(level) = self.levels.last_mut() else { return false };
        let text = row.name.clone();
        let is_only = level.only == Some(row.sum);
        if !is_only && (level.n_shown >= extent.rows() || row.sum.bytes < extent.bytes_min) {
            level.left.join(row.sum);
            level.n_left += 1;
            return false;
        }
        level.n_shown += 1;
        let indent = level.indent;
        branch(page, indent, &text, (!is_only).then_some((row.sum, total)));
        let below = if is_only { indent } else { (indent + 2).min(TREE_INDENT_MAX) };
        let only = (row.n_children == 1).then_some(row.sum);
        self.levels.push(BranchLevel { indent: below, only, ..BranchLevel::default() });
        true
    }

    /// Goes back to a depth, and sums up what was left out below it.
    fn close(&mut self, page: &mut String, depth: usize) {
        while self.levels.len() > depth
            && let Some(level) = self.levels.pop()
        {
            if level.n_left > 0 {
                let plural = if level.n_left == 1 { "" } else { "s" };
                let text = format!("{} other{plural}", grouped(level.n_left));
                branch(page, level.indent, &text, Some((level.left, self.total)));
            }
        }
    }
}

/// A line of a tree; one without figures holds what the line above it does.
fn branch(page: &mut String, indent: usize, text: &str, figures: Option<(Sum, u64)>) {
    let figures = figures.map_or_else(String::new, |(sum, total)| {
        let (share, size) = (part_of(sum.bytes, total), whole_bytes(sum.bytes));
        format!("  {share:>6} {size:>9} {:>7}  ", grouped(sum.blocks))
    });
    let before = format!("{figures:28}{:indent$}", "");
    let width = WIDTH.saturating_sub(before.chars().count());
    line(page, format_args!("{before}{}", ending_of(text, width)));
}

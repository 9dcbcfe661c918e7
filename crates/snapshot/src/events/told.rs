//! What `stepmem snapshot events` states of a device, next to its rows.

use crate::analyze::sites::Sum;
use crate::events::chains::ReuseChain;
use crate::events::list::{EventList, EventRow, RowAction};
use crate::events::totals::PhasePeak;
use crate::integer::{at, count, real};
use crate::render::words::{NAME_CHARS, phase, steps};
use stepmem_types::claims::{Claim, Statement};
use stepmem_types::format::clean::shortened;
use stepmem_types::format::units::{grouped, many, whole_bytes};

/// Lines of a file that are named, at most.
const LINES_SHOWN: usize = 20;

/// States what the trace of a device has.
pub(super) fn head(list: &EventList<'_>) -> Statement {
    let scene = &list.report.scene;
    let n_events = count(scene.events.len());
    let events = many(n_events, "event");
    let words = format!("device {}: {events}, {}", scene.device.index, steps(scene));
    Statement::new(Claim::TraceHas, words).of(real(n_events))
}

/// States that frees have no stacks, if allocations have some.
pub(super) fn frees(list: &EventList<'_>) -> Option<Statement> {
    let is_half = list.report.scene.sites.has_stacks && !list.order.frees_have_stacks;
    let words = "Frees have no stacks in this file, so what freed a block is inferred from its neighbors: record with \
                 context=\"all\" for the lines.";
    is_half.then(|| Statement::new(Claim::FreesUnnamed, words))
}

/// States that nothing is listed, and which lines would be.
pub(super) fn nothing(list: &EventList<'_>) -> Statement {
    let words = match (list.line(), list.lines_instead()) {
        (Some(line), Some(lines)) if lines.is_empty() => format!(
            "No stack passes through a file {}: `stepmem snapshot show` names lines.",
            shortened(&line.file, NAME_CHARS)
        ),
        (Some(line), Some(lines)) => {
            let n_left = lines.len().saturating_sub(LINES_SHOWN);
            let shown: Vec<String> =
                lines.iter().take(LINES_SHOWN).map(ToString::to_string).collect();
            let others =
                if n_left == 0 { String::new() } else { format!(" and {n_left} more") };
            format!(
                "No stack passes through line {} of {}; stacks pass through its lines {}{others}.",
                line.line,
                shortened(&line.file, NAME_CHARS),
                shown.join(", ")
            )
        }
        _ => "No event matches.".to_owned(),
    };
    Statement::new(Claim::NoEvents, words)
}

/// The rows of a list, summed up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EventSums {
    pub n_rows: usize,
    allocated: u64,
    freed: u64,
}

impl EventSums {
    /// Adds up the rows of a list.
    pub(super) fn of(list: &EventList<'_>) -> Self {
        let mut sums = Self::default();
        list.rows().for_each(|row| sums.add(list, row));
        sums
    }

    /// Adds a row.
    pub(super) fn add(&mut self, list: &EventList<'_>, row: EventRow) {
        let size = list.report.scene.events.get(at(row.event)).map_or(0, |event| event.size);
        self.n_rows += 1;
        match row.action {
            RowAction::Alloc => self.allocated = self.allocated.saturating_add(size),
            RowAction::Free => self.freed = self.freed.saturating_add(size),
            RowAction::OutOfMemory => {}
        }
    }

    /// States them.
    pub(super) fn told(self) -> Statement {
        let n_rows = count(self.n_rows);
        let (allocated, freed) = (whole_bytes(self.allocated), whole_bytes(self.freed));
        let words = format!("{}: {allocated} allocated, {freed} freed", many(n_rows, "event"));
        Statement::new(Claim::EventsListed, words).of(real(n_rows))
    }
}

/// States the most that was active in a phase.
pub(super) fn peak(peak: &PhasePeak) -> Statement {
    let step = peak.step.map_or_else(String::new, |step| format!(", in step {step}"));
    let words = format!(
        "{} active in {} after event {}{step}",
        whole_bytes(peak.active_bytes),
        phase(peak.phase),
        peak.event
    );
    Statement::new(Claim::PhasePeak, words).of(real(peak.active_bytes))
}

/// States how many addresses were used more than once.
pub(super) fn reused(chains: &[ReuseChain]) -> Statement {
    let n_chains = count(chains.len());
    let plural = if n_chains == 1 { "address" } else { "addresses" };
    let words = format!("{} {plural} used more than once", grouped(n_chains));
    Statement::new(Claim::AddressesReused, words).of(real(n_chains))
}

/// States what is alive at a moment, in words.
pub(super) fn alive(moment: &str, all: Sum) -> Statement {
    let (size, blocks) = (whole_bytes(all.bytes), many(all.blocks, "block"));
    let words = format!("alive {moment}: {size} in {blocks}");
    Statement::new(Claim::AliveAt, words).of(real(all.bytes))
}

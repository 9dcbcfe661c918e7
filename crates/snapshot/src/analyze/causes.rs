//! Why memory ran out, as far as someone can change it: what would have had to be absent, and
//! what would have been free.

use std::collections::{HashMap, HashSet};

use crate::analyze::device::DeviceScene;
use crate::analyze::history::History;
use crate::analyze::leak::Leak;
use crate::analyze::mirrors;
use crate::analyze::oom::{OomCause, OutOfMemory, RootCause, Why};
use crate::analyze::phases::StepPhase;
use crate::analyze::sites::{Site, SiteKind, SiteRow};
use crate::analyze::step_figures::StepReport;
use crate::integer::at;
use crate::replay::Allocation;

/// Failures whose cause is searched for in all allocations; later ones have the allocator's.
const EXPLAINED_MAX: usize = 16;
/// Earlier steps that show what a step usually needs.
const EARLIER_STEPS_MIN: usize = 3;

/// The place where an allocation failed.
#[derive(Clone, Debug)]
pub(crate) struct FailurePlace {
    pub step: Option<u64>,
    pub phase: Option<StepPhase>,
    /// The line whose tensor has the size of an allocation without a stack.
    pub mirrors: Option<Site>,
}

/// Finds the root cause of each failed allocation. `step_reports`: the figures of each step.
pub(crate) fn explain(
    scene: &DeviceScene<'_>,
    leak: &Leak,
    step_reports: &[StepReport],
    failures: &mut [OutOfMemory],
) {
    let rooms = rooms(scene, leak, failures);
    let mut most = 0;
    let mut levels = scene.timeline.levels(scene.events).zip(0_u32..);
    for (n_explained, failure) in failures.iter_mut().enumerate() {
        // The most that this process ever had, or could have had.
        for (level, _) in levels.by_ref().take_while(|(_, number)| *number < failure.event) {
            most = most.max(level.reserved);
        }
        let reach = failure.within_reach();
        let taken = if failure.own_limit.is_some() { 0 } else { most.saturating_sub(reach) };
        failure.why = if n_explained < EXPLAINED_MAX {
            let room = rooms.get(&failure.event).copied();
            why(scene, leak, failure, Other { taken, room, step_reports })
        } else {
            by_allocator(failure, || (0, None))
        };
        most = most.max(reach);
    }
}

/// The other known facts when an allocation fails.
struct Other<'a> {
    /// Bytes that this process had, or could have had, and someone else has now.
    taken: u64,
    /// The largest piece without what leaked, where enough is free in pieces.
    room: Option<u64>,
    step_reports: &'a [StepReport],
}

fn why(
    scene: &DeviceScene<'_>,
    leak: &Leak,
    failure: &OutOfMemory,
    Other { taken, room, step_reports }: Other<'_>,
) -> Why {
    let reachable = failure.reachable();
    let of = |cause, bytes: u64, row| Why {
        cause,
        bytes,
        free_bytes: reachable.saturating_add(bytes),
        row,
    };
    let suffices =
        |bytes: u64| bytes > 0 && reachable.saturating_add(bytes) >= failure.requested;
    let leaked = scene.sites.table(scene.snapshot, leaked(scene, leak, failure.event));
    let leaked_bytes: u64 = leaked.iter().map(|row| row.sum.bytes).sum();
    let unusual = unusual_need(scene, failure, step_reports);
    let is_room = room.is_none_or(|room| room >= failure.requested);
    if suffices(leaked_bytes) && is_room && leaked_bytes >= taken.max(unusual) {
        return of(RootCause::Leak, leaked_bytes, leaked.into_iter().next());
    }
    if suffices(taken) && taken >= unusual {
        return of(RootCause::Others, taken, None);
    }
    // More waits for other streams than is free in pieces.
    if suffices(failure.pending) && failure.pending > failure.eligible_free.max(unusual) {
        return of(RootCause::PendingFrees, failure.pending, None);
    }
    by_allocator(failure, || {
        let own = own_rows(scene, failure);
        (own.iter().map(|row| row.sum.bytes).sum(), own.into_iter().next())
    })
}

/// The cause that the allocator itself shows. `own`: what the step has allocated, and the first
/// row of it.
fn by_allocator(failure: &OutOfMemory, own: impl FnOnce() -> (u64, Option<SiteRow>)) -> Why {
    let (cause, (bytes, row)) = match failure.cause {
        OomCause::Fragmentation => (RootCause::Fragmentation, (0, None)),
        OomCause::PendingFree => (RootCause::PendingFrees, (failure.pending, None)),
        OomCause::Shortage if failure.own_limit.is_some() => (RootCause::OwnLimit, own()),
        OomCause::Shortage => (RootCause::Peak, own()),
    };
    let reachable = failure.reachable();
    Why { cause, bytes, free_bytes: reachable.saturating_add(bytes), row }
}

/// The largest piece without what leaked, of each failure for which enough is free in pieces.
fn rooms(scene: &DeviceScene<'_>, leak: &Leak, failures: &[OutOfMemory]) -> HashMap<u32, u64> {
    let explained = failures.iter().take(EXPLAINED_MAX);
    let in_pieces = explained.filter(|failure| failure.cause == OomCause::Fragmentation);
    let in_pieces: Vec<&OutOfMemory> =
        in_pieces.filter(|_| !leak.suspects.is_empty()).collect();
    if in_pieces.is_empty() {
        return HashMap::new();
    }
    let mut history = History::at_end(scene);
    let room = |failure: &OutOfMemory| {
        history.rewind(scene, at(failure.event));
        let leaked = || leaked(scene, leak, failure.event);
        let addresses: HashSet<u64> = leaked().map(|allocation| allocation.address).collect();
        let bytes: u64 = leaked().map(|allocation| allocation.size).sum();
        let room = failure.room_without(scene, &history, &addresses);
        // What was never allocated was never taken from the driver.
        (failure.event, room.max(failure.given().saturating_add(bytes)))
    };
    in_pieces.into_iter().rev().map(room).collect()
}

/// Returns the allocations that suspects had leaked in a state, also before the window.
fn leaked<'a>(
    scene: &'a DeviceScene<'_>,
    leak: &'a Leak,
    state: u32,
) -> impl Iterator<Item = &'a Allocation> {
    let is_suspect = |site| leak.suspects.iter().any(|suspect| suspect.row.site == site);
    let older = scene.timeline.allocations.iter().filter(move |allocation| {
        allocation.is_older()
            && scene.is_kept(allocation)
            && scene.sites.kind(allocation) == SiteKind::Python
            && is_suspect(scene.sites.of(allocation))
    });
    let leaked = leak.leaked(scene).chain(older);
    leaked.filter(move |allocation| allocation.is_alive(state))
}

/// Returns the allocations of the step that fails; all that are alive if no step is known.
fn own_rows(scene: &DeviceScene<'_>, failure: &OutOfMemory) -> Vec<SiteRow> {
    let slot = scene.steps.slot(at(failure.event));
    let (first, _) = scene.steps.events_of(slot, scene.events.len());
    let own = scene.timeline.allocations.iter().filter(|allocation| {
        allocation.is_alive(failure.event) && (slot == 0 || allocation.from > first)
    });
    scene.sites.table(scene.snapshot, own)
}

/// Returns the bytes that the step that fails needs more than earlier ones did; 0 where that is
/// unknown.
fn unusual_need(
    scene: &DeviceScene<'_>,
    failure: &OutOfMemory,
    step_reports: &[StepReport],
) -> u64 {
    let earlier: Vec<&StepReport> = step_reports
        .iter()
        .filter(|step_report| step_report.peak_event < failure.event)
        .collect();
    let mut needs: Vec<u64> = earlier
        .iter()
        .zip(earlier.iter().skip(1))
        .map(|(before, step_report)| step_report.peak_bytes.saturating_sub(before.end_bytes))
        .collect();
    needs.sort_unstable();
    let usual = needs.get(needs.len() / 2).filter(|_| needs.len() >= EARLIER_STEPS_MIN);
    let slot = scene.steps.slot(at(failure.event));
    let (first, _) = scene.steps.events_of(slot, scene.events.len());
    let at_start = scene.timeline.allocations.iter().filter(|a| a.is_alive(first));
    let at_start: u64 = at_start.map(|allocation| allocation.size).sum();
    let need = failure.active.saturating_add(failure.requested).saturating_sub(at_start);
    usual.map_or(0, |usual| need.saturating_sub(*usual))
}

/// Finds where an allocation failed.
pub(crate) fn place(scene: &DeviceScene<'_>, failure: &OutOfMemory) -> FailurePlace {
    let event = at(failure.event);
    let is_known = scene.sites.has_stacks;
    FailurePlace {
        step: scene.steps.of_event(event),
        phase: is_known.then(|| scene.phases.of(event)),
        mirrors: mirrored(scene, failure),
    }
}

/// The only line with tensors of the requested size, of an allocation without a stack.
/// A gradient is as large as the tensor that it belongs to.
fn mirrored(scene: &DeviceScene<'_>, failure: &OutOfMemory) -> Option<Site> {
    let site = |origin| scene.sites.site(scene.sites.of_origin(origin));
    let has_line = site(failure.stack).is_some_and(|site| site.kind != SiteKind::NoFrames);
    if has_line || scene.phases.of(at(failure.event)) != StepPhase::Backward {
        return None;
    }
    let rounded = |requested| scene.snapshot.rounding.round(requested);
    let same_size = scene.timeline.allocations.iter().filter(|allocation| {
        allocation.is_alive(failure.event)
            && rounded(allocation.requested) == rounded(failure.requested)
    });
    let mut lines = same_size.filter_map(|allocation| mirrors::line(scene, allocation));
    let line = lines.next().filter(|line| lines.all(|other| other == *line))?;
    scene.sites.site(line).cloned()
}

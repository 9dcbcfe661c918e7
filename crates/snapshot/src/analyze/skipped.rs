//! Steps whose update was skipped: a gradient scaler saw an overflow.

use crate::analyze::device::DeviceScene;
use crate::analyze::roles::StackRole;
use crate::analyze::sites::{Site, SiteKind};
use crate::analyze::steps::marks_of;
use crate::integer::id;
use crate::model::Action;

/// Skipped steps are believed without any step from this many calls of `zero_grad` on.
const ZERO_GRADS_MIN: usize = 3;

/// Slots of whole steps without an update, rising. `overflowed`: whether older events are
/// missing.
pub(crate) fn find(scene: &DeviceScene<'_>, overflowed: Option<bool>) -> Vec<u32> {
    // Where older events are missing, marks are too.
    if overflowed == Some(true) {
        return Vec::new();
    }
    if scene.steps.training_loop.is_some() {
        in_the_loop(scene)
    } else if scene.steps.marker.is_marked() {
        between_marks(scene)
    } else {
        Vec::new()
    }
}

/// Iterations with a pass of backward and no update.
fn in_the_loop(scene: &DeviceScene<'_>) -> Vec<u32> {
    let n_events = scene.events.len();
    let last = scene.last_whole_slot();
    let (mut skipped, mut n_updated) = (Vec::new(), 0_usize);
    for slot in 1..=last {
        let updates = scene.steps.updates_in(slot, n_events);
        let (first, end) = scene.steps.events_of(slot, n_events);
        if updates.iter().any(|update| update.is_update) {
            n_updated += 1;
        } else if !scene.phases.passes_between(first, end).is_empty() {
            skipped.push(slot);
        }
    }
    // An optimizer that allocates in its first steps only shows no others, unless the file
    // marks them.
    let marks = |prefix| marks_of(scene.snapshot, scene.device, scene.events, prefix).len();
    let is_marked = marks("Optimizer.step#") > 0;
    let is_never = n_updated == 0 && marks("Optimizer.zero_grad#") >= ZERO_GRADS_MIN;
    if is_marked || is_never || n_updated > 0 && n_updated >= skipped.len() {
        skipped
    } else {
        Vec::new()
    }
}

/// Calls of `zero_grad` that no `Optimizer.step` follows before the next.
fn between_marks(scene: &DeviceScene<'_>) -> Vec<u32> {
    let marks = |prefix| marks_of(scene.snapshot, scene.device, scene.events, prefix);
    let (zero_grads, steps) = (marks("Optimizer.zero_grad#"), marks("Optimizer.step#"));
    if steps.is_empty() && zero_grads.len() < ZERO_GRADS_MIN {
        return Vec::new();
    }
    let first_after = |time: u64| scene.events.partition_point(|event| event.time_us < time);
    let pairs = zero_grads.iter().zip(zero_grads.iter().skip(1));
    pairs
        .filter(|(this, next)| {
            let between = first_after(this.time_us)..first_after(next.time_us);
            let events = scene.events.get(between).unwrap_or(&[]);
            let steps_before = |time| steps.partition_point(|step| step.time_us < time);
            events.iter().any(|event| event.action == Action::Alloc)
                && steps_before(this.time_us) == steps_before(next.time_us)
        })
        .map(|(this, _)| scene.steps.slot(first_after(this.time_us)))
        .collect()
}

/// The line that calls the gradient scaler in some slots, or else the one that updates in any.
pub(crate) fn line<'a>(scene: &'a DeviceScene<'_>, slots: &[u32]) -> Option<&'a Site> {
    let of_role = |wanted: StackRole, (first, end): (u32, u32)| {
        let numbers = (0..id(scene.events.len())).zip(scene.events);
        let stacks = numbers
            .filter(move |(number, _)| (first..end).contains(number))
            .filter(|(_, event)| event.action == Action::Alloc)
            .map(|(_, event)| event.stack);
        stacks
            .filter(move |stack| scene.roles.of(*stack) == wanted)
            .filter_map(|stack| scene.sites.site(scene.sites.of_origin(stack)))
            .find(|site| site.kind == SiteKind::Python)
    };
    let n_events = scene.events.len();
    let first = slots.first().map(|slot| scene.steps.events_of(*slot, n_events))?;
    let window = (0, id(n_events));
    of_role(StackRole::Scaling, first).or_else(|| of_role(StackRole::Update, window))
}

//! The states of a window that a picture shows: all of a short one. Of a long one, it shows the
//! highest and the lowest of each span, and every state near the moments that matter.

use std::collections::BTreeSet;

use crate::analyze::device::DeviceScene;
use crate::integer::{at, id};

/// The part of the samples that lies near moments.
const NEAR_DIVISOR: usize = 3;

/// Chooses at most `n_max` states (and the moments themselves), rising.
pub(crate) fn choose(scene: &DeviceScene<'_>, n_max: usize, moments: &[u32]) -> Vec<u32> {
    let last = id(scene.events.len());
    if at(last) < n_max {
        return (0..=last).collect();
    }
    let levels = scene.timeline.levels(scene.events).map(|level| level.active);
    let active: Vec<u64> =
        std::iter::once(scene.timeline.at_start.active).chain(levels).collect();
    let near = n_max / NEAR_DIVISOR;
    let mut chosen = BTreeSet::from([0, last]);
    extremes(&active, (n_max - near) / 2, &mut chosen);
    let each = id(near / moments.len().max(1)) / 2;
    for moment in moments.iter().copied().filter(|moment| *moment <= last) {
        chosen.insert(moment);
        chosen.extend(moment.saturating_sub(each)..moment.saturating_add(each).min(last));
    }
    chosen.into_iter().collect()
}

/// Adds the highest and the lowest state of each of so many stretches.
fn extremes(active: &[u64], n_stretches: usize, chosen: &mut BTreeSet<u32>) {
    let length = active.len().div_ceil(n_stretches.max(1)).max(1);
    for (stretch, values) in active.chunks(length).enumerate() {
        let place = |found: Option<(usize, &u64)>| {
            found.map(|(offset, _)| id(stretch * length + offset))
        };
        let values = || values.iter().enumerate();
        chosen.extend(place(
            values().max_by_key(|(offset, value)| (**value, usize::MAX - offset)),
        ));
        chosen.extend(place(values().min_by_key(|(_, value)| **value)));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::render::html::samples::extremes;

    #[test]
    fn each_stretch_keeps_its_highest_and_its_lowest() {
        let mut chosen = BTreeSet::new();
        extremes(&[5, 9, 1, 5, 5, 9, 7, 7], 2, &mut chosen);
        assert_eq!(Vec::from_iter(chosen), [1, 2, 4, 5]);
    }
}

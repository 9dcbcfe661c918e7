//! The least that a line holds in each step, and whether it goes on rising.

use crate::analyze::device::DeviceScene;
use crate::analyze::generations::Generations;
use crate::analyze::leak_limits::{
    EARLY_DEVIATIONS, FALLS_RATIO, LOST_RATIO, OUTLIER_FACTOR, SILENCE_GAPS, SILENCE_STEPS,
    SLOWER_RATIO_MIN, SPAN_STEPS,
};
use crate::integer::{at, count, difference, real, signed_real};
use crate::model::Action;

/// The movement of a line's minimum; first and last slot, and the minimum from each slot on in
/// which it changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct SiteMinima {
    current: i64,
    lowest: i64,
    slot: u32,
    changes: Vec<(u32, i64)>,
}

/// A change of what a line holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SiteChange {
    pub site: u32,
    pub bytes: u64,
    /// Set when its block is not in flight.
    pub is_long: bool,
}

impl SiteMinima {
    #[inline]
    fn add(&mut self, slot: u32, change: i64) {
        if self.slot < slot {
            self.settle(slot);
        }
        self.current += change;
        self.lowest = self.lowest.min(self.current);
    }

    /// Ends all slots before `slot`.
    fn settle(&mut self, slot: u32) {
        self.push(self.slot, self.lowest);
        if self.slot + 1 < slot {
            self.push(self.slot + 1, self.current);
        }
        (self.slot, self.lowest) = (slot, self.current);
    }

    /// Notes the minimum from a slot on; slots rise.
    pub(super) fn push(&mut self, slot: u32, minimum: i64) {
        if self.changes.last().is_none_or(|(_, last)| *last != minimum) {
            self.changes.push((slot, minimum));
        }
    }
}

/// Returns whether events become rarer by more than chance: so many fall into the first half of a
/// time, and so many into the second. Of events that come at one rate as many fall into each.
pub(super) fn become_rarer([early, late]: [u64; 2]) -> bool {
    let (early, late) = (real(early), real(late));
    early - late > EARLY_DEVIATIONS * (early + late).sqrt()
}

/// The minima of every site over what `counted` picks of the allocations (by number): of blocks
/// that are not in flight, and of all.
pub(crate) fn minima(
    scene: &DeviceScene<'_>,
    counted: impl Fn(u32) -> Option<SiteChange>,
) -> [Vec<SiteMinima>; 2] {
    let mut minima = [(); 2].map(|()| vec![SiteMinima::default(); scene.sites.sites.len()]);
    let mut slot = 0;
    let mut marks = scene.steps.marks.iter().peekable();
    let events = (0..).zip(scene.events).zip(&scene.timeline.of_event);
    for ((number, event), allocation) in events {
        while marks.next_if(|mark| **mark <= number).is_some() {
            slot += 1;
        }
        let is_rise = match event.action {
            Action::Alloc => true,
            Action::FreeCompleted => false,
            _ => continue,
        };
        let Some(change) = counted(*allocation) else { continue };
        let bytes = difference(change.bytes, 0);
        let bytes = if is_rise { bytes } else { -bytes };
        let [long, all] = &mut minima;
        if let Some(minimum) = all.get_mut(at(change.site)) {
            minimum.add(slot, bytes);
        }
        if let Some(minimum) = long.get_mut(at(change.site)).filter(|_| change.is_long) {
            minimum.add(slot, bytes);
        }
    }
    for minimum in minima.iter_mut().flatten() {
        minimum.settle(scene.last_slot() + 1);
    }
    minima
}

/// The slots that are analyzed, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// First slot.
    pub first: u32,
    /// Last slot.
    pub last: u32,
}

/// The rise of a minimum.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MinimaTrend {
    /// Slots and bytes.
    pub rises: Vec<(u32, i64)>,
    /// Bytes that it lost.
    pub falls: i64,
}

/// The result of a trend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Judgment {
    /// A minimum that goes on rising.
    Rising(Rise),
    /// So far it does, in too few steps or too irregularly to be sure.
    Possible(Rise),
    /// A minimum that rose, and slowed or stopped.
    Stopped,
    Nothing,
}

impl Judgment {
    /// The rise that goes on.
    pub(crate) fn rising(self) -> Option<Rise> {
        if let Self::Rising(rise) = self { Some(rise) } else { None }
    }
}

/// The blocks that are kept of those that a rise is of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Survivors {
    pub bytes: u64,
    /// The steps in which they were born; `None` of one buffer that is made again.
    pub generations: Option<Generations>,
    /// Whole steps at the end that made none.
    pub silence: u32,
}

impl Survivors {
    /// The survivors of one buffer that is made again.
    pub(crate) fn of_one(bytes: u64) -> Self {
        Self { bytes, generations: None, silence: 0 }
    }
}

/// A rise that goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rise {
    pub rate: f64,
    /// Slot of the first rise.
    pub first: u32,
    /// Slot of the last rise.
    pub last: u32,
}

impl Rise {
    /// The bytes by which it rises from the first rise to the last.
    pub fn bytes(self) -> f64 {
        self.rate * f64::from(self.last - self.first)
    }
}

impl SiteMinima {
    /// Returns whether it is larger at the end than in the first slot.
    pub(super) fn has_grown(&self) -> bool {
        let first =
            self.changes.first().filter(|(slot, _)| *slot == 0).map_or(0, |(_, it)| *it);
        self.changes.last().is_some_and(|(_, last)| *last > first)
    }

    /// Returns its rise in some slots, one-offs left out.
    pub(crate) fn trend(&self, span: Span) -> MinimaTrend {
        let mut trend = MinimaTrend::default();
        let mut before = 0;
        for (slot, minimum) in &self.changes {
            if *slot > span.last {
                break;
            }
            if *slot > span.first {
                match minimum - before {
                    rise @ 1.. => trend.rises.push((*slot, rise)),
                    fall => trend.falls -= fall,
                }
            }
            before = *minimum;
        }
        trend.leave_out_one_offs();
        trend
    }
}

impl MinimaTrend {
    /// Leaves out rises that are many times the median one.
    pub(crate) fn leave_out_one_offs(&mut self) {
        let mut sorted: Vec<i64> = self.rises.iter().map(|(_, rise)| *rise).collect();
        sorted.sort_unstable();
        if let Some(median) = sorted.get(sorted.len() / 2) {
            let limit = median.saturating_mul(OUTLIER_FACTOR);
            self.rises.retain(|(_, rise)| *rise <= limit);
        }
    }

    fn rise(&self) -> i64 {
        self.rises.iter().map(|(_, rise)| rise).sum()
    }

    /// Judges it. `kept`: what is there of it at the end.
    pub(crate) fn judge(&self, span: Span, rises_min: usize, kept: Survivors) -> Judgment {
        let (Some((first, _)), Some((last, _))) = (self.rises.first(), self.rises.last())
        else {
            return Judgment::Nothing;
        };
        let rise = signed_real(self.rise());
        if self.rises.len() < rises_min
            || signed_real(self.falls) >= FALLS_RATIO * rise
            || real(kept.bytes) < (1.0 - LOST_RATIO) * rise
        {
            return Judgment::Nothing;
        }
        if self.is_silent((span.last - last).max(kept.silence))
            || self.is_slower(*first, span.last)
        {
            return Judgment::Stopped;
        }
        let length = last - first;
        let after_first: i64 = self.rises.iter().skip(1).map(|(_, rise)| rise).sum();
        let rate = signed_real(after_first) / f64::from(length);
        let rise = Rise { rate, first: *first, last: *last };
        let is_long = length >= SPAN_STEPS || 2 * length >= span.last - span.first;
        match kept.generations {
            None if is_long => Judgment::Rising(rise),
            Some(born) if born.are_many() || (is_long && born.are_regular()) => {
                Judgment::Rising(rise)
            }
            Some(born) if born.are_all_kept() => Judgment::Possible(rise),
            _ => Judgment::Nothing,
        }
    }

    fn is_silent(&self, silence: u32) -> bool {
        let slots = || self.rises.iter().map(|(slot, _)| *slot);
        let longest = slots().zip(slots().skip(1)).map(|(a, b)| b - a).max().unwrap_or(0);
        let limit = (SILENCE_GAPS * f64::from(longest)).max(f64::from(SILENCE_STEPS));
        f64::from(silence) > limit
    }

    fn is_slower(&self, first: u32, end: u32) -> bool {
        let (mut early, mut late, mut places) = (0, 0, 0);
        for (slot, rise) in self.rises.iter().skip(1) {
            places += slot - first;
            if 2 * (slot - first) <= end - first { early += rise } else { late += rise }
        }
        // Laplace's test: the mean place of events that come at one rate is near the middle.
        let n_events = real(count(self.rises.len())) - 1.0;
        let middle = f64::from(end - first) * n_events / 2.0;
        let deviation = f64::from(end - first) * (n_events / 12.0).sqrt();
        signed_real(late) < SLOWER_RATIO_MIN * signed_real(early)
            || f64::from(places) < middle - EARLY_DEVIATIONS * deviation
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::leak_limits::RISES_MIN;

    const SPAN: Span = Span { first: 2, last: 40 };

    fn judge(rises: &[(u32, i64)], falls: i64) -> Judgment {
        let bytes = rises.iter().map(|(_, rise)| rise.unsigned_abs()).sum();
        let kept = Survivors::of_one(bytes);
        MinimaTrend { rises: rises.to_vec(), falls }.judge(SPAN, RISES_MIN, kept)
    }

    #[test]
    fn a_steady_rise_has_its_rate() {
        let rises: Vec<(u32, i64)> = (3..=40).map(|slot| (slot, 512)).collect();
        assert_eq!(
            judge(&rises, 0),
            Judgment::Rising(Rise { rate: 512.0, first: 3, last: 40 })
        );
    }

    #[test]
    fn stairs_have_the_rate_of_their_steps() {
        let rises = [(5, 1000), (15, 1000), (25, 1000), (35, 1000)];
        assert_eq!(
            judge(&rises, 0),
            Judgment::Rising(Rise { rate: 100.0, first: 5, last: 35 })
        );
    }

    #[test]
    fn a_cache_that_fills_has_stopped() {
        let rises: Vec<(u32, i64)> = (3..=14).map(|slot| (slot, 512)).collect();
        assert_eq!(judge(&rises, 0), Judgment::Stopped);
    }

    #[test]
    fn a_saw_tooth_is_nothing() {
        let rises: Vec<(u32, i64)> = (3..=40).map(|slot| (slot, 512)).collect();
        assert_eq!(judge(&rises, 512 * 25), Judgment::Nothing);
    }

    #[test]
    fn a_one_off_is_left_out() {
        let mut minimum = SiteMinima::default();
        for slot in 1..40 {
            minimum.add(slot, if slot == 7 { 1_000_000 } else { 512 });
        }
        minimum.settle(41);
        let trend = minimum.trend(SPAN);
        assert!(trend.rises.iter().all(|(_, rise)| *rise == 512), "{trend:?}");
        assert_eq!(trend.rises.len(), 37);
    }
}

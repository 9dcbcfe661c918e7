//! The least live memory of each part of a process's life: what it never gave back since then.
//!
//! The numbers by which it rises in stairs, below, are not the detector's. Stairs so few and uneven
//! pass none of its tests before memory ends. They page nobody: where memory is nearly full
//! already, they ask for a checkpoint.

use serde::{Deserialize, Serialize};

use stepmem_types::units::Bytes;

/// Parts at most; then each covers twice as many steps.
pub(crate) const PARTS_MAX: usize = 128;
/// Parts from which on stairs are told from the noise of the start.
const PARTS_MIN: usize = PARTS_MAX / 2;
/// Steps at the start that do not count: the model and its optimizer are still being built.
const WARMUP_STEPS: u32 = 24;
/// The newest sixteenth of life counts together: what is there for a moment is no floor.
const NEWEST: usize = 16;
/// Stairs at least, and the least part of all growth that each has.
const STAIRS_MIN: usize = 4;
const STAIR_RATIO_MIN: f64 = 0.05;
/// The greatest part of all growth that one stair may have: else it is a phase that began.
const STAIR_RATIO_MAX: f64 = 0.6;
/// The last stair is in the rest of life after this part of it: else it is over.
const LAST_AFTER: f64 = 0.6;
/// The unit of the floors, in bytes.
const PAGE_BYTES: u64 = 4096;
const PAGE: f64 = 4096.0;

/// A part covers at most 2 to the power of this of steps.
const DOUBLINGS_MAX: u32 = u32::BITS - 2;

/// The floors of one process.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(try_from = "SavedFloors")]
pub struct Floors {
    // Invariant: fewer than PARTS_MAX.
    /// The floor of each part, in pages.
    parts: Vec<u32>,
    /// A part covers 2 to this power of steps.
    doublings: u32,
    /// The floor of the part that goes on, and its steps.
    open: Option<(u32, u32)>,
    n_skipped: u32,
}

/// Floors as they were saved.
#[derive(Deserialize)]
struct SavedFloors {
    parts: Vec<u32>,
    doublings: u32,
    open: Option<(u32, u32)>,
    n_skipped: u32,
}

impl TryFrom<SavedFloors> for Floors {
    type Error = &'static str;

    fn try_from(saved: SavedFloors) -> Result<Self, Self::Error> {
        let SavedFloors { parts, doublings, open, n_skipped } = saved;
        let is_right = parts.len() < PARTS_MAX
            && doublings <= DOUBLINGS_MAX
            && open.is_none_or(|(_, n_steps)| n_steps < 1 << doublings)
            && n_skipped <= WARMUP_STEPS;
        if is_right {
            Ok(Self { parts, doublings, open, n_skipped })
        } else {
            Err("floors out of range")
        }
    }
}

/// Live memory that rose again and again in stairs, none of which was given back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stairs {
    /// Number of the rises.
    pub count: usize,
    pub growth_bytes: f64,
    /// Steps in which it rose so far.
    pub steps: f64,
}

impl Floors {
    /// The most that they take in addition to their own size, in bytes, in memory as in a state.
    pub const BYTES_MAX: usize = 5 * PARTS_MAX;

    /// Takes the live memory at the end of a train step.
    pub fn take(&mut self, live: Bytes) {
        if self.n_skipped < WARMUP_STEPS {
            self.n_skipped += 1;
            return;
        }
        let pages = u32::try_from(live.get() / PAGE_BYTES).unwrap_or(u32::MAX);
        let (floor, n_steps) = self.open.unwrap_or((pages, 0));
        let open = (floor.min(pages), n_steps + 1);
        self.open = Some(open);
        if open.1 < 1 << self.doublings {
            return;
        }
        self.open = None;
        self.parts.push(open.0);
        if self.parts.len() >= PARTS_MAX {
            let pairs = self.parts.chunks(2).filter_map(|pair| pair.iter().copied().min());
            self.parts = pairs.collect();
            self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        }
    }

    /// Returns whether its life is long enough to tell stairs.
    pub fn is_judged(&self) -> bool {
        self.parts.len() >= PARTS_MIN
    }

    /// Returns the stairs in which it rose, if they go on; `None` while it is too early to tell,
    /// and where it rose evenly: that is the detector's.
    pub fn stairs(&self) -> Option<Stairs> {
        // The first part has what is left of the start.
        let floors = self.parts.get(1..).filter(|_| self.is_judged())?;
        let mut kept: Vec<f64> = floors.iter().rev().copied().map(f64::from).collect();
        let mut least = f64::INFINITY;
        for floor in &mut kept {
            least = least.min(*floor);
            *floor = least;
        }
        kept.reverse();
        let until = kept.len() - kept.len() / NEWEST;
        let kept = kept.get(..until)?;
        let newest = *kept.last()?;
        let growth = newest - kept.first()?;
        let rise = |pair: &[f64]| if let [a, b] = pair { (b - a) / growth } else { 0.0 };
        let rises: Vec<f64> = kept.windows(2).map(rise).collect();
        let stairs = || rises.iter().enumerate().filter(|(_, rise)| **rise > STAIR_RATIO_MIN);
        let (begin, end) = (stairs().next()?.0, stairs().next_back()?.0);
        // What was there before, and was given back, comes and goes.
        let comes_and_goes = floors.iter().take(begin).any(|floor| f64::from(*floor) >= newest);
        let is_phase = rises.iter().any(|rise| *rise > STAIR_RATIO_MAX);
        let count = stairs().count();
        let goes_on = number(end) >= LAST_AFTER * number(floors.len());
        let is_leak = growth > 0.0 && count >= STAIRS_MIN && goes_on;
        (is_leak && !is_phase && !comes_and_goes).then(|| Stairs {
            count,
            growth_bytes: growth * PAGE,
            steps: number(floors.len()) * f64::from(1_u32 << self.doublings),
        })
    }
}

fn number(n: usize) -> f64 {
    u32::try_from(n).map_or(f64::INFINITY, f64::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::ranks::floors::{Floors, PARTS_MAX};
    use stepmem_types::units::Bytes;

    const MIB: u64 = 1 << 20;

    fn floors(n_steps: u64, live_mib: impl Fn(u64) -> u64) -> Floors {
        let mut floors = Floors::default();
        for step in 0..n_steps {
            floors.take(Bytes::new(live_mib(step) * MIB).unwrap());
            assert!(floors.parts.len() < PARTS_MAX);
        }
        floors
    }

    #[test]
    fn stairs_that_go_on_are_found_under_what_comes_and_goes() {
        let live = |step: u64| 1000 + step / 1500 * 100 + (step * 7919 % 13) * 30;
        let stairs = floors(20_000, live).stairs().unwrap();
        assert_eq!(stairs.count, 12);
        assert!((stairs.growth_bytes / 1_048_576.0 - 1200.0).abs() < 1e-9, "{stairs:?}");
        assert!(stairs.steps > 18_000.0 && stairs.steps <= 20_000.0, "{stairs:?}");
    }

    /// Returns whether an incarnation of so many floors, of steps each, has stairs: at these
    /// floors, by these MiB.
    fn has_stairs(n_floors: u64, stairs: &[(u64, u64)]) -> bool {
        // The start and the part after it do not count.
        let live = |step: u64| {
            let reached = stairs.iter().filter(|(at, _)| step >= 25 + at);
            1000 + reached.map(|(_, rise)| rise).sum::<u64>()
        };
        floors(25 + n_floors, live).stairs().is_some()
    }

    #[test]
    fn stairs_are_four_from_a_twentieth_of_the_growth_on_and_none_is_more_than_three_fifths() {
        let of = |rises: &[u64]| {
            let at = [20, 30, 40, 70].into_iter().zip(rises.iter().copied());
            has_stairs(100, &at.collect::<Vec<_>>())
        };
        assert_eq!((of(&[100, 100, 100, 100]), of(&[100, 100, 0, 200])), (true, false));
        assert_eq!((of(&[400, 300, 249, 51]), of(&[400, 300, 250, 50])), (true, false));
        assert_eq!((of(&[600, 150, 150, 100]), of(&[601, 150, 149, 100])), (true, false));
    }

    #[test]
    fn last_of_the_stairs_is_in_the_last_two_fifths_of_life_and_not_of_the_newest_sixteenth() {
        let until = |n_floors, last| {
            has_stairs(n_floors, &[(20, 100), (30, 100), (40, 100), (last, 100)])
        };
        assert_eq!((until(100, 61), until(100, 60)), (true, false));
        assert_eq!((until(96, 89), until(96, 90)), (true, false));
        assert_eq!((until(120, 112), until(120, 113)), (true, false));
    }

    #[test]
    fn life_is_judged_from_64_steps_after_the_start_on() {
        let is_judged = |n_steps| floors(n_steps, |_| 1000).is_judged();
        assert_eq!((is_judged(24 + 64), is_judged(24 + 63)), (true, false));
    }

    #[test]
    fn saved_floors_go_on_where_they_were_and_hostile_ones_are_refused() {
        let live = |step: u64| 1000 + step / 1500 * 100 + (step * 7919 % 13) * 30;
        let saved = serde_json::to_value(floors(10_001, live)).unwrap();
        let mut resumed: Floors = serde_json::from_value(saved.clone()).unwrap();
        for step in 10_001..20_000 {
            resumed.take(Bytes::new(live(step) * MIB).unwrap());
        }
        assert_eq!(resumed.stairs(), floors(20_000, live).stairs());
        assert!(resumed.stairs().is_some());
        for (key, value) in [
            ("parts", json!(vec![1; PARTS_MAX])),
            ("doublings", json!(31)),
            ("open", json!([1, u32::MAX])),
            ("n_skipped", json!(25)),
        ] {
            let mut hostile = saved.clone();
            hostile[key] = value;
            assert!(serde_json::from_value::<Floors>(hostile).is_err(), "{key}");
        }
    }

    #[test]
    fn what_is_even_single_given_back_or_over_has_no_stairs() {
        let cases: [fn(u64) -> u64; 6] = [
            |_| 1000,
            |step| 1000 + step,
            |step| 1000 + step / 10_000 * 5000,
            |step| 1000 + step % 5000 / 500 * 100,
            |step| 1000 + (step / 1000).min(8) * 100,
            |step| 1000 + (step * 7919 % 131) * 30,
        ];
        for (n, live) in cases.into_iter().enumerate() {
            assert_eq!(floors(20_000, live).stairs(), None, "case {n}");
        }
        assert_eq!(floors(60, |step| 1000 + step / 10 * 100).stairs(), None, "too early");
    }
}

//! How a process that does not push climbed, reading by reading: as a leak does, in many equal
//! climbs, or in few that become larger, as larger batches do.

use crate::analysis::creep::gates::{Gate, GateFailure};
use crate::analysis::creep::pyramid::{BLOCKS_MAX, Block};
use crate::analysis::creep::without::{Constant, Rule, Without};
use crate::analysis::estimate;

/// Growth worth this many equal climbs is no coincidence of a few large segments.
const CLIMBS_MANY: f64 = 32.0;
/// The last quarter of such growth must gain this share of what the first did. A cache that fills
/// exponentially then takes at most 9 % of what it still lacks within one window.
const STEADY_RATIO: f64 = 0.93;
/// Then this share of growth and headroom is enough, however short the window is: more than any
/// such cache that fits.
const MANY_SHARE_RATIO: f64 = 0.13;
/// Growth worth fewer climbs, as of a batch that grows, must show more, up to this share, however long its window is.
const FEW_SHARE_RATIO: f64 = 0.4;
/// Climbs of less than this share of the largest one are not compared with it.
const COMPARED_OF_LARGEST: f64 = 0.1;
/// The fewest climbs to compare.
const COMPARED_MIN: usize = 3;
/// Each climb is larger than the ones before when Kendall's tau of their heights is above this.
const LARGER_TAU_MAX: f64 = 0.7;

/// The climbs within one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Climbs {
    /// How many equal climbs from one reading to the next the growth is worth, at least.
    n_equal: f64,
    /// Whether the climbs become larger: Kendall's tau of their heights, -1 to 1.
    larger_tau: f64,
    /// The last quarter's gain as a share of the first quarter's.
    kept_ratio: f64,
    /// How many are many.
    many: f64,
    /// Whether the rule of few climbs is left out.
    is_few_off: bool,
}

impl Climbs {
    /// Summarises the blocks of a window and its points, whose last quarter gains `kept_ratio` of
    /// what the first does.
    pub(super) fn of(
        blocks: &[Block],
        points: &[(f64, f64)],
        kept_ratio: f64,
        without: Without,
    ) -> Self {
        Self {
            n_equal: n_equal(blocks, points),
            larger_tau: larger_tau(blocks),
            kept_ratio,
            many: without.value(Constant::ManyClimbs, CLIMBS_MANY),
            is_few_off: without.is_off(Rule::FewClimbs),
        }
    }

    /// Checks that few climbs do not become larger: a batch that grows takes larger segments each
    /// time, a leak takes the same ones again.
    pub(super) fn check(&self) -> Result<(), GateFailure> {
        let is_many = self.n_equal >= self.many;
        let is_passed = is_many || self.larger_tau <= LARGER_TAU_MAX;
        Gate::EverLarger.require(is_passed, self.larger_tau, LARGER_TAU_MAX)
    }

    /// Returns the share of growth and headroom that a creep needs, where `by_length` is what the length of its window
    /// asks for.
    pub(super) fn share_ratio(&self, by_length: f64) -> f64 {
        let lack = (self.many / self.n_equal).max(1.0);
        let by_climbs = (MANY_SHARE_RATIO * lack.sqrt()).min(FEW_SHARE_RATIO);
        let is_few = lack > 1.0 && !self.is_few_off;
        match (is_few, self.kept_ratio >= STEADY_RATIO) {
            (true, true) => by_climbs,
            (true, false) => by_length.max(FEW_SHARE_RATIO),
            (false, true) => by_length.min(by_climbs),
            (false, false) => by_length,
        }
    }
}

/// Returns how many equal climbs the growth is worth, by a bound from below: rise² over the sum of
/// the squared climbs, none of which is larger than the largest of its block. 0 when nothing rose.
fn n_equal(blocks: &[Block], points: &[(f64, f64)]) -> f64 {
    let Some(rise) = estimate::path(points).map(|path| path.rise) else { return 0.0 };
    let moves = points.iter().zip(points.iter().skip(1)).map(|((_, a), (_, b))| (b - a).abs());
    let squares: f64 = moves
        .zip(blocks.iter().skip(1).map(Block::climb_max))
        .map(|(height, climb)| climb * climb.max(height))
        .sum();
    if squares > 0.0 { rise * rise / squares } else { 0.0 }
}

/// Returns Kendall's tau of the largest climbs of the blocks; 0 for too few.
fn larger_tau(blocks: &[Block]) -> f64 {
    let largest = blocks.iter().map(Block::climb_max).fold(0.0, f64::max);
    let mut points = [(0.0, 0.0); BLOCKS_MAX];
    let compared = blocks
        .iter()
        .skip(1)
        .map(|block| (block.end.position, block.climb_max()))
        .filter(|(_, climb)| *climb > COMPARED_OF_LARGEST * largest);
    let mut n_compared = 0;
    for (slot, point) in points.iter_mut().zip(compared) {
        *slot = point;
        n_compared += 1;
    }
    if n_compared < COMPARED_MIN {
        return 0.0;
    }
    let fit = points.get(..n_compared).and_then(estimate::theil_sen);
    fit.map_or(0.0, |fit| fit.tau)
}

#[cfg(test)]
mod tests {
    use crate::analysis::creep::estimator::CreepEstimator;
    use crate::analysis::creep::gates::Gate;
    use crate::analysis::creep::record::DeviceReading;
    use crate::analysis::creep::rules::CreepSettings;
    use crate::analysis::creep::signal::Signal;
    use crate::analysis::creep::simulation::{CAPACITY, at};
    use crate::analysis::creep::trend::Stage;
    use crate::model::units::{GIBIBYTE, MEBIBYTE};

    /// Reads a process for so many hours, every so many seconds, until it creeps; returns the
    /// seconds until then, and the estimator.
    fn creep(
        hours: f64,
        every: f64,
        held: impl Fn(f64) -> f64,
    ) -> (Option<f64>, CreepEstimator) {
        let mut estimator = CreepEstimator::of_process(CreepSettings::default());
        let mut seconds = 0.0;
        while seconds < 3600.0 * hours {
            let used = held(seconds);
            let time = at(seconds, 1e9 + seconds).time;
            let reading = DeviceReading { time, device_used: used, process_used: Some(used) };
            estimator.process(&reading, CAPACITY);
            if estimator.trends().any(|trend| trend.stage == Stage::Creeping) {
                return (Some(seconds), estimator);
            }
            seconds += every;
        }
        (None, estimator)
    }

    /// 20 GiB, and the sum of climbs, one every ten minutes.
    fn climbing(seconds: f64, height: impl Fn(f64) -> f64) -> f64 {
        let mut held = 20.0 * GIBIBYTE;
        let mut n_climbed = 1.0;
        while 600.0 * n_climbed <= seconds {
            held += height(n_climbed) * GIBIBYTE;
            n_climbed += 1.0;
        }
        held
    }

    #[test]
    fn climbs_that_become_larger_are_batches() {
        let (longer, estimator) =
            creep(4.0, 15.0, |seconds| climbing(seconds, |n_climbed| 1.5 + 0.06 * n_climbed));
        assert_eq!(longer, None);
        let windows = estimator.windows(Signal::Process, CAPACITY);
        let mut stops = windows.filter_map(|window| window.outcome.err().map(|stop| stop.gate));
        assert!(stops.any(|gate| gate == Gate::EverLarger));

        let (equal, _) = creep(4.0, 15.0, |seconds| climbing(seconds, |_| 2.0));
        assert!(equal.is_some(), "the same climb again and again is a leak");
    }

    #[test]
    fn many_equal_climbs_creep_early() {
        for (hours, every) in [(1.0, 15.0), (1.0, 30.0), (3.0, 30.0), (10.0, 15.0)] {
            let life = 3600.0 * hours;
            let (found, _) = creep(hours + 0.4, every, |seconds| {
                let grown = 40.0 * GIBIBYTE * ((seconds - 1200.0) / life).max(0.0);
                40.0 * GIBIBYTE + (grown / (20.0 * MEBIBYTE)).floor() * 20.0 * MEBIBYTE
            });
            let share = (found.unwrap() - 1200.0) / life;
            assert!((0.1..0.31).contains(&share), "{share} of {hours} h");
        }
    }

    #[test]
    fn few_large_climbs_must_take_more() {
        // A climb of 1 GiB every half an hour, and 60 GiB were left.
        let climbs = |n_climbs: f64| {
            let grown = |seconds: f64| (seconds / 1800.0).floor().min(n_climbs);
            creep(24.0, 15.0, |seconds| GIBIBYTE * (20.0 + grown(seconds))).0
        };
        assert_eq!(climbs(12.0), None, "a curriculum that ends at a fifth");
        assert!(climbs(60.0).is_some_and(|seconds| seconds < 0.4 * 60.0 * 1800.0));
    }

    #[test]
    fn cache_of_two_fifths_of_the_room_does_not_creep_however_smoothly_it_fills() {
        for minutes in [20.0, 60.0, 180.0, 600.0] {
            let (found, _) = creep(20.0, 30.0, |seconds| {
                let filled = 1.0 - (-seconds / (60.0 * minutes)).exp();
                let cache = (24.0 * GIBIBYTE * filled / (2.0 * MEBIBYTE)).floor();
                20.0 * GIBIBYTE + 2.0 * MEBIBYTE * cache
            });
            assert_eq!(found, None, "a cache that fills in {minutes} minutes");
        }
    }

    #[test]
    fn few_bytes_on_a_full_device_are_no_creep() {
        // 1.2 GiB are left, and an epoch takes a quarter of them.
        let epoch = |seconds: f64| (seconds % 6000.0) / 6000.0 * 0.3 * GIBIBYTE;
        let (found, _) = creep(3.0, 15.0, |seconds| 78.8 * GIBIBYTE + epoch(seconds));
        assert_eq!(found, None);
        let leak = |seconds: f64| 60.0 * GIBIBYTE + seconds / 10_800.0 * 19.9 * GIBIBYTE;
        assert!(creep(3.0, 15.0, leak).0.is_some());
    }
}

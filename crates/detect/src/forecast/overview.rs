//! The movement of a signal as of now, also when nothing is wrong with it.

use std::sync::OnceLock;

use crate::config::Config;
use crate::forecast::slope_interval::slope_interval;
use crate::ladder::{BLOCKS_MAX, Block, Ladder, Level, count, points_of};
use crate::stats::quarters::deceleration_ratio;
use crate::stats::theil_sen::theil_sen;
use stepmem_types::units::{Interval, MEBIBYTE};

/// The increments of a window that rises in a straight line are worth this share of themselves
/// in equal ones.
const STRAIGHT_RATIO: f64 = 0.7;
/// The least gain of the last quarter of a straight line, as a share of what the first gains.
const STRAIGHT_GAIN_RATIO: f64 = 0.6;
/// Less growth in a window is not worth a word: a list of losses on the device takes 512 bytes
/// a step.
const STRAIGHT_BYTES_MIN: f64 = 4.0 * MEBIBYTE;

/// The movement of a signal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overview {
    pub(crate) slope: Interval,
    /// Set when it rises in a straight line.
    pub(crate) is_straight: bool,
}

/// The movement of a signal by its windows, which is kept until one of those gets a block: it
/// is asked for at each scrape, and the longest window changes once in many samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overviews {
    of_signal: OnceLock<Kept<Overview>>,
    of_reserved: OnceLock<Kept<Interval>>,
}

/// A figure, and what it was read from.
#[derive(Clone, Debug)]
struct Kept<T> {
    figure: Option<T>,
    /// The place where the last growth ended.
    ended: Option<f64>,
    /// The shortest window that was read.
    lowest_idx: usize,
}

impl Overviews {
    /// Forgets what was read from one of the lowest `n_levels` windows.
    pub(crate) fn forget(&mut self, n_levels: usize) {
        forget(&mut self.of_signal, n_levels);
        forget(&mut self.of_reserved, n_levels);
    }

    /// Returns the slope since `ended`, or else in the longest window, by every other block;
    /// where that is not straight, in a shorter one as long as the slope becomes surer: a bend
    /// makes it unsure, and so does shortness. `None` until there are enough blocks.
    pub(crate) fn of_signal(
        &self,
        ladder: &Ladder,
        ended: Option<f64>,
        config: &Config,
    ) -> Option<Overview> {
        let kept = self.of_signal.get_or_init(|| of(ladder, ended, config));
        if kept.ended == ended { kept.figure } else { of(ladder, ended, config).figure }
    }

    /// Returns the slope of reserved memory in the longest window of live memory, by every other
    /// block; `None` until there are enough blocks, and where reserved memory is not known.
    pub(crate) fn of_reserved(&self, ladder: &Ladder, config: &Config) -> Option<Interval> {
        self.of_reserved.get_or_init(|| of_reserved(ladder, config)).figure
    }
}

fn forget<T>(kept: &mut OnceLock<Kept<T>>, n_levels: usize) {
    if kept.get().is_some_and(|kept| kept.lowest_idx < n_levels) {
        kept.take();
    }
}

fn of(ladder: &Ladder, ended: Option<f64>, config: &Config) -> Kept<Overview> {
    let since = ended.and_then(|ended| {
        let (blocks, _, level_idx) = ladder.since(ended)?;
        Some((level_idx, blocks))
    });
    let longest_first = ladder.levels().iter().map(Level::blocks).enumerate().rev();
    let has_enough = |(_, blocks): &(usize, &[Block])| blocks.len() >= config.blocks_min;
    let mut surest: Option<Interval> = None;
    // A window that does not suffice yet, or that is the first of its length, changes it, too.
    let mut lowest_idx = since.map_or(ladder.levels().len(), |(level_idx, _)| level_idx);
    for (level_idx, blocks) in since.into_iter().chain(longest_first).filter(has_enough) {
        lowest_idx = lowest_idx.min(level_idx);
        let mut points = [(0.0, 0.0); BLOCKS_MAX];
        let points = points_of(blocks, &mut points);
        let Some(slope) = slope_of(points) else {
            return Kept { figure: None, ended, lowest_idx };
        };
        if surest.is_none() && is_straight(points, &slope) {
            let figure = Some(Overview { slope, is_straight: true });
            return Kept { figure, ended, lowest_idx };
        }
        let width = |slope: &Interval| slope.upper - slope.lower;
        if surest.is_some_and(|surest| width(&surest) <= width(&slope)) {
            break;
        }
        surest = Some(slope);
    }
    let figure = surest.map(|slope| Overview { slope, is_straight: false });
    Kept { figure, ended, lowest_idx: if figure.is_some() { lowest_idx } else { 0 } }
}

fn of_reserved(ladder: &Ladder, config: &Config) -> Kept<Interval> {
    let mut longest_first = ladder.levels().iter().map(Level::blocks).enumerate().rev();
    let longest = longest_first.find(|(_, blocks)| blocks.len() >= config.blocks_min);
    let Some((lowest_idx, blocks)) = longest else {
        return Kept { figure: None, ended: None, lowest_idx: 0 };
    };
    let mut points = [(0.0, 0.0); BLOCKS_MAX];
    for (slot, block) in points.iter_mut().zip(blocks) {
        *slot = (block.at.position, block.reserved.into());
    }
    let is_known = blocks.iter().any(|block| block.reserved > 0.0);
    let points = points.get(..blocks.len().min(BLOCKS_MAX)).filter(|_| is_known);
    Kept { figure: points.and_then(slope_of), ended: None, lowest_idx }
}

fn slope_of(points: &[(f64, f64)]) -> Option<Interval> {
    let mut thinned = [(0.0, 0.0); BLOCKS_MAX.div_ceil(2)];
    let with_newest = points.iter().skip(1 - points.len() % 2).step_by(2);
    for (to, from) in thinned.iter_mut().zip(with_newest) {
        *to = *from;
    }
    let thinned = thinned.get(..points.len().div_ceil(2))?;
    slope_interval(thinned, theil_sen(thinned)?.slope, false, None)
}

/// Returns whether a window rises in a straight line, surely, and to its end.
fn is_straight(points: &[(f64, f64)], slope: &Interval) -> bool {
    let [(_, first), .., (_, last)] = points else { return false };
    let growth = last - first;
    let pairs = points.iter().zip(points.iter().skip(1));
    let squares: f64 = pairs.map(|((_, y), (_, next))| (next - y) * (next - y)).sum();
    let is_line = growth * growth >= STRAIGHT_RATIO * (count(points.len()) - 1.0) * squares;
    let is_steady = deceleration_ratio(points).is_some_and(|kept| kept >= STRAIGHT_GAIN_RATIO);
    is_line && is_steady && slope.lower > 0.0 && growth >= STRAIGHT_BYTES_MIN
}

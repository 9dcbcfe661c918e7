//! The movement of a signal as of now, also when nothing is wrong with it.

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
pub(crate) struct Overview {
    pub(crate) slope: Interval,
    /// Set when it rises in a straight line.
    pub(crate) is_straight: bool,
}

/// Returns the slope since `ended`, or else in the longest window, by every other block; where
/// that is not straight, in a shorter one as long as the slope becomes surer: a bend makes it
/// unsure, and so does shortness. `None` until there are enough blocks.
pub(crate) fn of(ladder: &Ladder, ended: Option<f64>, config: &Config) -> Option<Overview> {
    let has_enough = |blocks: &&[Block]| blocks.len() >= config.blocks_min;
    let since = ended.and_then(|ended| ladder.since(ended)).map(|(blocks, _)| blocks);
    let longest_first = ladder.levels().iter().rev().map(Level::blocks);
    let mut surest: Option<Interval> = None;
    for blocks in since.into_iter().chain(longest_first).filter(has_enough) {
        let mut points = [(0.0, 0.0); BLOCKS_MAX];
        let points = points_of(blocks, &mut points);
        let slope = slope_of(points)?;
        if surest.is_none() && is_straight(points, &slope) {
            return Some(Overview { slope, is_straight: true });
        }
        let width = |slope: &Interval| slope.upper - slope.lower;
        if surest.is_some_and(|surest| width(&surest) <= width(&slope)) {
            break;
        }
        surest = Some(slope);
    }
    surest.map(|slope| Overview { slope, is_straight: false })
}

/// Returns the slope of reserved memory in the longest window of live memory, by every other
/// block; `None` until there are enough blocks, and where reserved memory is not known.
pub(crate) fn of_reserved(ladder: &Ladder, config: &Config) -> Option<Interval> {
    let mut longest_first = ladder.levels().iter().rev().map(Level::blocks);
    let blocks = longest_first.find(|blocks| blocks.len() >= config.blocks_min)?;
    if blocks.iter().all(|block| block.reserved <= 0.0) {
        return None;
    }
    let mut points = [(0.0, 0.0); BLOCKS_MAX];
    for (slot, block) in points.iter_mut().zip(blocks) {
        *slot = (block.at.position, block.reserved.into());
    }
    slope_of(points.get(..blocks.len().min(BLOCKS_MAX))?)
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

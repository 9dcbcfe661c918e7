//! The movement of a signal as of now, also when nothing is wrong with it.

use std::sync::OnceLock;

use crate::config::Config;
use crate::ladder::{BLOCKS_MAX, Block, Ladder, Level, points_of};
use stepmem_forecast::Overview;
use stepmem_types::units::Interval;

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
    let mut surest: Option<Overview> = None;
    // A window that does not suffice yet, or that is the first of its length, changes it, too.
    let mut lowest_idx = since.map_or(ladder.levels().len(), |(level_idx, _)| level_idx);
    for (level_idx, blocks) in since.into_iter().chain(longest_first).filter(has_enough) {
        lowest_idx = lowest_idx.min(level_idx);
        let mut points = [(0.0, 0.0); BLOCKS_MAX];
        let overview = Overview::of(points_of(blocks, &mut points));
        let Some(overview) = overview.filter(|one| surest.is_some() || !one.is_straight) else {
            return Kept { figure: overview, ended, lowest_idx };
        };
        let width = |one: &Overview| one.slope.upper - one.slope.lower;
        if surest.is_some_and(|surest| width(&surest) <= width(&overview)) {
            break;
        }
        surest = Some(Overview { is_straight: false, ..overview });
    }
    Kept { figure: surest, ended, lowest_idx: if surest.is_some() { lowest_idx } else { 0 } }
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
    let figure = points.and_then(Overview::of).map(|overview| overview.slope);
    Kept { figure, ended: None, lowest_idx }
}

//! The trend of one series: raised when a window shows it, level when its growth has ended,
//! cleared as long after that again.

use serde::{Deserialize, Serialize};

use crate::explanations::Shown;
use crate::headroom::{usage_as_of, usage_of_newer_half};
use crate::heights::{Heights, Plateau};
use crate::ladder::{BLOCKS_MAX, Block, LEVELS_MAX, Ladder, Level, Window, points_of};
use crate::surroundings::Surroundings;
use stepmem_forecast::stats::student;
use stepmem_forecast::{
    AxisPoint, EndedGrowth, Phase, SinceOnset, Spread, Stage, Trend, is_followed, slack_ratio,
    slope_of_test, slope_since_onset,
};
use stepmem_types::saved;

/// Scales the confidence of a trend that only rises: one in seven of those is a cache that
/// fills.
const RISING_CONFIDENCE_RATIO: f64 = 0.9;
/// Scales a confidence whose headroom is a guess.
const STAND_IN_CONFIDENCE_RATIO: f64 = 0.8;

/// The highest level of a ladder.
const LEVEL_IDX_MAX: u64 = 16;
const _: () = assert!(LEVELS_MAX == 17);

/// The windows that show a trend.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, PartialOrd, Serialize)]
pub enum ShownBy {
    /// The newest readings of memory outside the allocator, each by itself.
    Rapid,
    /// The intervals between level shifts that have no event marker.
    Shifts,
    /// The intervals between event markers.
    Intervals,
    /// The window of this level of the ladder.
    Window(#[serde(deserialize_with = "saved::at_most::<_, _, LEVEL_IDX_MAX>")] usize),
}

/// The trend of a series, if it has one.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Tracker {
    tracked: Option<Box<Tracked>>,
    /// The last growth that crept and ended.
    ended: Option<EndedGrowth>,
    /// The point where the last growth ended that did not go on, whether it crept or not.
    level_since: Option<AxisPoint>,
    /// Set when a trend was raised, changed its stage or phase, or was cleared.
    #[serde(skip)]
    is_changed: bool,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Tracked {
    trend: Trend,
    shown_by: ShownBy,
    heights: Heights,
    /// Set once growth has ended.
    plateau: Option<Plateau>,
    /// Set while the number of live blocks alone shows it.
    is_by_number: bool,
}

impl Tracker {
    /// Upper bound on its memory on the heap, in bytes.
    pub(super) const HEAP_BYTES_MAX: usize = size_of::<Tracked>() + Heights::HEAP_BYTES_MAX;
    /// The part of that which stays when the windows are freed.
    pub(super) const RELEASED_BYTES_MAX: usize = size_of::<Tracked>();

    /// Returns the trend, growing or level.
    pub(super) fn trend(&self) -> Option<&Trend> {
        self.tracked.as_ref().map(|tracked| &tracked.trend)
    }

    /// Returns the windows that show the trend.
    pub(super) fn shown_by(&self) -> Option<ShownBy> {
        self.tracked.as_ref().map(|tracked| tracked.shown_by)
    }

    /// Returns whether the newest readings alone show the trend.
    pub(super) fn is_rapid(&self) -> bool {
        self.shown_by() == Some(ShownBy::Rapid)
    }

    /// Returns whether growth that the number of live blocks shows can change anything.
    pub(super) fn asks_number(&self) -> bool {
        self.tracked.is_none() || self.is_by_number()
    }

    /// Returns whether the number of live blocks alone shows the trend.
    pub(super) fn is_by_number(&self) -> bool {
        self.tracked.as_ref().is_some_and(|tracked| tracked.is_by_number)
    }

    /// Returns the last growth that crept and ended, and did not go on.
    pub(super) fn ended(&self) -> Option<EndedGrowth> {
        self.ended
    }

    /// Returns the position where the last growth ended that did not go on, whether it crept or
    /// not.
    pub(super) fn level_since(&self) -> Option<f64> {
        self.level_since.map(|since| since.position)
    }

    /// Returns whether a window of this level can change anything.
    pub(super) fn asks(&self, by: ShownBy) -> bool {
        let Some(Tracked { trend, shown_by, .. }) = self.tracked.as_deref() else {
            return true;
        };
        trend.is_growing() && (trend.stage == Stage::Rising || by >= *shown_by)
    }

    /// Returns whether the trend was raised, changed its stage or phase, or was cleared since
    /// the last call.
    pub(super) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// Takes growth that a window shows. A longer window sees the end of growth later: what it
    /// shows counts only if that went on after the end.
    pub(super) fn take(&mut self, found: Option<Tracked>, around: &Surroundings<'_>) {
        let Some(found) = found else { return };
        let since_end = self.level_since().and_then(|since| found.heights.slope_since(since));
        let resumed = around.config.resumed_slope(found.trend.slope_bytes_per_unit.value);
        if since_end.is_some_and(|slope| slope < resumed) {
            return;
        }
        let stage = self.trend().map(|trend| trend.stage);
        self.is_changed |= stage.is_none_or(|stage| found.trend.stage > stage);
        match &mut self.tracked {
            None => self.tracked = Some(Box::new(found)),
            Some(tracked) => tracked.follow(found),
        }
    }

    /// Measures growth up to the newest sample.
    pub(super) fn extend(&mut self, sample: &Block) {
        let Some(Tracked { trend, heights, .. }) = self.tracked.as_deref_mut() else { return };
        trend.seen = sample.at;
        if trend.is_growing() {
            trend.growth_bytes = heights.growth_at(sample, trend.slope_bytes_per_unit.value);
        }
    }

    /// Takes a reading after which the memory that others use is known as of then.
    pub(super) fn read(&mut self, reading: &Block) {
        self.extend(reading);
        if let Some(Tracked { trend, .. }) = self.tracked.as_deref_mut() {
            trend.used_at = reading.at.position;
        }
    }

    /// Measures growth since its onset, in the shortest window that goes back to it. It does so
    /// when the window that shows it has got a block: when one of the lowest `n_grown` has.
    /// Growth that intervals between event markers show stays as it was shown.
    pub(super) fn measure(
        &mut self,
        ladder: &Ladder,
        n_grown: usize,
        around: &Surroundings<'_>,
    ) {
        let Some(Tracked { trend, shown_by, .. }) = self.tracked.as_deref_mut() else { return };
        let is_due = matches!(*shown_by, ShownBy::Window(level_idx) if level_idx < n_grown);
        if !is_due || !trend.is_growing() {
            return;
        }
        let Some((blocks, onset_idx, _)) = ladder.since(trend.onset.position) else { return };
        if trend.is_followed {
            trend.slack_ratio = slack_of(blocks);
        }
        let mut points = [(0.0, 0.0); BLOCKS_MAX];
        let points = points_of(blocks, &mut points);
        if let Some(found) = slope_since_onset(points, onset_idx > 0) {
            trend.measure(&found);
        }
        if let Some(free) = around.capacity.reachable(around.outside_bytes) {
            trend.foresee(points, free, around.config.power_law_within);
        }
    }

    /// Takes the newest block of the lowest level: growth ends, goes on again or is cleared.
    /// `sampled` units of the axis bring as many samples as an end takes.
    pub(super) fn advance(&mut self, block: &Block, sampled: f64, around: &Surroundings<'_>) {
        let Some(tracked) = self.tracked.as_deref_mut() else { return };
        let Tracked { trend, heights, plateau, is_by_number, .. } = tracked;
        let goes_on = *is_by_number && around.is_accumulating;
        let config = around.config;
        heights.advance(block.at, block.minimum);
        trend.growth_bytes = heights.growth();
        trend.seen = around.now;
        let position = block.at.position;
        let units = heights.ended_after(sampled, config);
        let ended = config.ended_ratio * trend.slope_bytes_per_unit.value;
        match trend.phase {
            Phase::Growing { .. } => {
                let recent = heights.recent_slope(position, units);
                if !goes_on && recent.is_some_and(|slope| slope < ended) {
                    let since = heights.rose.0;
                    let known_after = position - since.position;
                    self.is_changed = true;
                    *plateau = Some(heights.plateau());
                    trend.phase = Phase::Level { since, known_after };
                    self.level_since = Some(since);
                    if trend.stage == Stage::Creeping {
                        let (bytes, onset) = (trend.growth_bytes, trend.onset);
                        self.ended = Some(EndedGrowth { bytes, onset, until: since });
                    }
                }
            }
            Phase::Level { since, known_after } => {
                let is_left = plateau.as_mut().is_none_or(|plateau| {
                    plateau.advance(block.minimum);
                    plateau.is_left_by(heights)
                });
                let slope = heights.recent_slope(position, sampled);
                let resumed = config.resumed_slope(trend.slope_bytes_per_unit.value);
                if goes_on || is_left && slope.is_some_and(|slope| slope >= resumed) {
                    trend.phase = Phase::Growing { resumed: Some(around.now) };
                    (self.ended, self.level_since, self.is_changed) = (None, None, true);
                } else if position - since.position
                    >= config.cleared_after * known_after.max(sampled)
                {
                    (self.tracked, self.is_changed) = (None, true);
                }
            }
        }
    }

    /// Measures the memory in use in the window that shows the trend.
    pub(super) fn refresh(&mut self, ladder: &Ladder, at: AxisPoint) {
        let Some(Tracked { trend, shown_by, .. }) = self.tracked.as_deref_mut() else { return };
        let level_idx = if let ShownBy::Window(idx) = *shown_by { idx } else { 0 };
        let levels = ladder.levels().get(..=level_idx).and_then(<[Level]>::split_last);
        let Some((level, finer)) = levels else { return };
        let slope = if trend.is_growing() { trend.slope_bytes_per_unit.value } else { 0.0 };
        let finer = finer.iter().map(Level::blocks);
        trend.usage = usage_as_of(level.blocks(), finer, at.position, slope);
        trend.used_at = at.position;
    }

    /// Returns the growth between two places on the axis, as far as it is remembered.
    pub(super) fn growth_between(&self, from: f64, to: f64) -> Option<f64> {
        self.tracked.as_ref()?.heights.growth_between(from, to)
    }

    /// Frees how the growth went; the trend stays.
    pub(super) fn release(&mut self) {
        self.tracked.iter_mut().for_each(|tracked| tracked.heights.release());
    }

    /// Forgets the trend; returns whether there was one.
    pub(super) fn clear(&mut self) -> bool {
        std::mem::take(self).tracked.is_some()
    }
}

impl Tracked {
    pub(super) fn of(
        shown: &Shown,
        by: ShownBy,
        window: &Window<'_>,
        around: &Surroundings<'_>,
    ) -> Option<Self> {
        let blocks = window.blocks.get(shown.onset_idx..)?;
        let heights = Heights::of(blocks, window.creeping_min.is_some())?;
        let mut points = [(0.0, 0.0); BLOCKS_MAX];
        let points = points_of(blocks, &mut points);
        let chance = student::below(shown.t, shown.n_increments.saturating_sub(1).max(1));
        let stage_ratio =
            if shown.stage == Stage::Rising { RISING_CONFIDENCE_RATIO } else { 1.0 };
        let capacity_ratio =
            if around.capacity.is_known() { 1.0 } else { STAND_IN_CONFIDENCE_RATIO };
        let is_since_changepoint = shown.onset_idx > 0;
        let found = slope_since_onset(points, is_since_changepoint).or_else(|| {
            if shown.is_by_number {
                return Some(SinceOnset::unsure(shown.slope));
            }
            let spread = Spread::of_test(shown.t, shown.n_increments);
            slope_of_test(points, shown.slope, is_since_changepoint, spread)
        })?;
        let is_followed = is_followed(blocks.iter().map(Block::reserved));
        let trend = Trend {
            signal: around.signal,
            axis: around.axis,
            stage: shown.stage,
            phase: Phase::Growing { resumed: None },
            raised: around.now,
            seen: around.now,
            onset: blocks.first()?.at,
            slope_bytes_per_unit: found.slope,
            ahead_bytes_per_unit: found.ahead,
            bend: found.bend,
            gain: found.gain,
            growth_bytes: heights.growth(),
            usage: usage_of_newer_half(window.blocks),
            used_at: around.now.position,
            is_followed,
            slack_ratio: if is_followed { slack_of(blocks) } else { 0.0 },
            time_factor: Some(1.0),
            share_ratio: shown.share_ratio,
            confidence_ratio: (stage_ratio * capacity_ratio * chance).clamp(0.0, 1.0),
        };
        let Shown { is_by_number, .. } = *shown;
        Some(Self { trend, shown_by: by, heights, plateau: None, is_by_number })
    }

    /// Takes over what a later window shows; keeps the onset unless that raises the stage.
    fn follow(&mut self, found: Self) {
        let is_raised = found.trend.stage > self.trend.stage;
        let Trend { phase, onset, growth_bytes, time_factor, .. } = self.trend;
        let raised = if is_raised { found.trend.raised } else { self.trend.raised };
        if self.is_by_number && !found.is_by_number {
            // The bytes have shown it, too: onset and slope are theirs.
            *self = Self { trend: Trend { phase, raised, ..found.trend }, ..found };
            return;
        }
        if !is_raised
            && (found.trend.stage < self.trend.stage || found.shown_by < self.shown_by)
        {
            return;
        }
        let is_same = self.trend.is_growing() && onset.position <= found.trend.onset.position;
        if is_raised && !is_same {
            *self = Self { trend: Trend { phase, time_factor, ..found.trend }, ..found };
            return;
        }
        // It goes on from where it was first shown.
        self.trend = Trend { phase, raised, onset, growth_bytes, time_factor, ..found.trend };
        self.shown_by = found.shown_by;
    }
}

/// Returns the slack that grows with each byte of live memory.
fn slack_of(blocks: &[Block]) -> f64 {
    slack_ratio(blocks, |block| block.minimum, Block::reserved)
}

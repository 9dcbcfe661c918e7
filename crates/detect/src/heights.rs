//! The heights that block minima of growth reached, so that its end is noticed when it comes.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::ladder::Block;
use stepmem_forecast::AxisPoint;
use stepmem_types::saved;

/// The heights that are remembered.
const HEIGHTS_MAX: usize = 64;
/// The heights that stay when they are thinned.
const HEIGHTS_KEPT: u32 = 32;
/// A rise is a new height by at least this share of the growth.
const RISE_OF_GROWTH: f64 = 1.0 / 32.0;

/// The heights of growth since its onset.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Heights {
    /// The block minimum at the onset.
    #[serde(deserialize_with = "saved::figures")]
    base: f64,
    /// The highest block minimum since.
    #[serde(deserialize_with = "saved::figures")]
    top: f64,
    #[serde(deserialize_with = "saved::figures")]
    onset: f64,
    /// The point and the height of the last rise.
    #[serde(deserialize_with = "saved::figures")]
    pub(super) rose: (AxisPoint, f64),
    /// The lowest block minimum since then.
    #[serde(deserialize_with = "saved::figures")]
    lowest: f64,
    /// Units between two rises, at most, as far as the samples resolve them.
    #[serde(deserialize_with = "saved::amounts")]
    longest_gap: f64,
    /// The height reached at points along the axis, in order, at most [`HEIGHTS_MAX`].
    #[serde(deserialize_with = "saved::figure_list::<_, _, HEIGHTS_MAX>")]
    reached: Vec<(f64, f64)>,
    /// Units between those points, at least.
    #[serde(deserialize_with = "saved::amounts")]
    spacing: f64,
    /// The place before the newest.
    #[serde(deserialize_with = "saved::figures")]
    before: f64,
}

/// Memory that is level after growth.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Plateau {
    /// The height at which growth ended.
    #[serde(deserialize_with = "saved::figures")]
    top: f64,
    /// The lowest block minimum since.
    #[serde(deserialize_with = "saved::figures")]
    lowest: f64,
}

impl Plateau {
    /// Takes the minimum of the next block.
    pub(super) fn advance(&mut self, minimum: f64) {
        self.lowest = self.lowest.min(minimum);
    }

    /// Returns whether growth has left it: by at least as much as memory varied there.
    pub(super) fn is_left_by(&self, heights: &Heights) -> bool {
        heights.top - self.top >= self.top - self.lowest
    }
}

impl Heights {
    /// Upper bound on its memory on the heap, in bytes.
    pub(super) const HEAP_BYTES_MAX: usize = HEIGHTS_MAX * size_of::<(f64, f64)>();

    /// Returns the heights of growth that begins with the first block; `None` without any.
    /// `rises_at_begin` where each is an interval, which rises when it begins.
    pub(super) fn of(blocks: &[Block], rises_at_begin: bool) -> Option<Self> {
        let (Block { at: onset, minimum, .. }, rest) = blocks.split_first()?;
        let mut reached = Vec::with_capacity(HEIGHTS_MAX);
        reached.push((onset.position, *minimum));
        let mut heights = Self {
            base: *minimum,
            top: *minimum,
            onset: onset.position,
            rose: (*onset, *minimum),
            lowest: *minimum,
            longest_gap: 0.0,
            reached,
            spacing: 0.0,
            before: onset.position,
        };
        for block in rest {
            if rises_at_begin {
                heights.before = block.at.position;
            }
            heights.advance(block.at, block.minimum);
        }
        Some(heights)
    }

    /// Takes the minimum of the next block.
    pub(super) fn advance(&mut self, at: AxisPoint, minimum: f64) {
        self.top = self.top.max(minimum);
        self.lowest = self.lowest.min(minimum);
        if minimum >= self.rose.1 + RISE_OF_GROWTH * self.growth() {
            // The first rise ends no gap between two: memory may have been level before it.
            let gap = f64::from(self.rose.1 > self.base) * (self.before - self.rose.0.position);
            self.longest_gap = self.longest_gap.max(gap);
            self.rose = (at, minimum);
            self.lowest = minimum;
        }
        self.before = at.position;
        let last = self.reached.last().map_or(f64::NEG_INFINITY, |(position, _)| *position);
        if at.position - last < self.spacing || at.position <= last {
            return;
        }
        if self.reached.len() == HEIGHTS_MAX {
            self.reached = self.reached.iter().copied().step_by(2).collect();
            self.spacing = (at.position - self.onset) / f64::from(HEIGHTS_KEPT);
        }
        self.reached.push((at.position, self.top));
    }

    /// Frees the points; growth and its last rise stay known.
    pub(super) fn release(&mut self) {
        self.reached = Vec::new();
    }

    /// Returns the growth since the onset.
    pub(super) fn growth(&self) -> f64 {
        self.top - self.base
    }

    /// Returns the range in which memory varies at the height that it has reached.
    pub(super) fn plateau(&self) -> Plateau {
        Plateau { top: self.top, lowest: self.lowest }
    }

    /// Returns the growth since the onset up to `sample`. Since the newest block it goes on at
    /// most at `slope`.
    pub(super) fn growth_at(&self, sample: &Block, slope: f64) -> f64 {
        let expected = slope * (sample.at.position - self.before);
        let growth = self.growth();
        growth.max((sample.minimum - self.base).min(growth + expected))
    }

    /// Returns the growth between two places on the axis; `None` unless both are remembered.
    pub(super) fn growth_between(&self, from: f64, to: f64) -> Option<f64> {
        let newest = Some((self.before, self.top))
            .filter(|(at, _)| self.reached.last().is_some_and(|(last, _)| at > last));
        let points = || self.reached.iter().copied().chain(newest);
        let height_at = |place: f64| {
            let (at, height) = points().take_while(|(at, _)| *at <= place).last()?;
            let next = points().find(|(next, _)| *next > place);
            Some(next.map_or(height, |(next, higher)| {
                height + (higher - height) * (place - at) / (next - at)
            }))
        };
        Some(height_at(to)? - height_at(from)?)
    }

    /// Returns the slope of the growth from a place on the axis to the newest; `None` where that
    /// place is not remembered.
    pub(super) fn slope_since(&self, from: f64) -> Option<f64> {
        let units = Some(self.before - from).filter(|units| *units > 0.0)?;
        Some(self.growth_between(from, self.before)? / units)
    }

    /// Returns the units without a rise after which growth has ended; `sampled` of them bring
    /// as many samples as it takes.
    pub(super) fn ended_after(&self, sampled: f64, config: &Config) -> f64 {
        let length = self.rose.0.position - self.onset;
        sampled.max(config.ended_of_growth * length).max(config.ended_gaps * self.longest_gap)
    }

    /// Returns the new height gained since at least `units` before `position`, by the units
    /// that this took; `None` when the growth is younger.
    pub(super) fn recent_slope(&self, position: f64, units: f64) -> Option<f64> {
        let (from, height) =
            self.reached.iter().rev().find(|(at, _)| *at <= position - units)?;
        Some((self.top - height) / (position - from))
    }
}

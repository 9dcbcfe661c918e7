//! Watches one signal's windows over time: raises a trend, decides which window it follows, and
//! clears it.

use serde::{Deserialize, Serialize};

use crate::analysis::creep::context::{PeakUse, SeriesContext};
use crate::analysis::creep::pyramid::{Block, Level, Pyramid};
use crate::analysis::creep::signal::Signal;
use crate::analysis::creep::trend::{Stage, Trend};
use crate::analysis::creep::window::{WindowJudge, WindowVerdict, course};
use crate::analysis::creep::without::Rule;

/// A trend is stale when its last eight blocks grew less than this share of its rate.
const STALE_RATE_RATIO: f64 = 0.25;
/// Growth is compared with the rate over this many blocks.
const STALE_BLOCKS: usize = 8;
/// A trend is cleared after this many stale blocks in a row: with the eight that are compared,
/// half a full window.
const STALE_TIMES: u32 = 8;

/// One signal's windows under watch.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct SignalWatch {
    pub(super) signal: Signal,
    pub(super) trend: Option<Trend>,
    /// The level of the longest window that showed the trend.
    pub(super) level_idx: usize,
    /// Consecutive stale blocks of that level.
    n_stale: u32,
}

impl SignalWatch {
    pub(super) fn new(signal: Signal) -> Self {
        Self { signal, trend: None, level_idx: 0, n_stale: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.trend = None;
        self.n_stale = 0;
    }

    /// Returns whether a level's windows are judged: levels below the one that raised a creep
    /// are skipped while it holds.
    pub(super) fn asks(&self, level_idx: usize) -> bool {
        let is_creeping = self.trend.is_some_and(|trend| trend.stage == Stage::Creeping);
        level_idx >= self.level_idx || !is_creeping
    }

    /// Judges a level's window without effect; `None` if it is empty.
    pub(super) fn verdict(
        &self,
        level_idx: usize,
        level: &Level,
        context: &SeriesContext,
    ) -> Option<WindowVerdict> {
        let is_asked = self.asks(level_idx);
        WindowJudge::new(self.signal, context).verdict(level_idx, level, is_asked)
    }

    /// Judges a level that just received a block; levels come in rising order.
    pub(super) fn look(&mut self, level_idx: usize, level: &Level, context: &SeriesContext) {
        if self.asks(level_idx)
            && let Ok(found) = WindowJudge::new(self.signal, context).judge(level_idx, level)
        {
            self.n_stale = 0;
            self.take(level_idx, found.trend);
        }
        if level_idx == self.level_idx {
            self.age(&level.blocks);
        }
    }

    /// Raises a trend or a higher stage; updates the one that holds if the window is at least
    /// as long.
    fn take(&mut self, level_idx: usize, found: Trend) {
        match &mut self.trend {
            Some(held) if found.stage <= held.stage => {
                if level_idx >= self.level_idx {
                    held.follow(&found);
                    self.level_idx = level_idx;
                }
            }
            _ => {
                self.trend = Some(found);
                self.level_idx = level_idx;
            }
        }
    }

    /// Clears the trend when the window that showed it stops growing.
    fn age(&mut self, blocks: &[Block]) {
        let Some(trend) = &self.trend else { return };
        let Some([before, .., last]) = blocks.last_chunk::<{ STALE_BLOCKS + 1 }>() else {
            return;
        };
        let rate = trend.taken_per_unit() * (last.end.position - before.end.position);
        let is_stale = match (before.value(self.signal), last.value(self.signal)) {
            (Some(before), Some(last)) => last - before < STALE_RATE_RATIO * rate,
            // A value that has just gone missing does not age the trend; one that stays away
            // does.
            (Some(_), None) => false,
            (None, _) => true,
        };
        self.n_stale = if is_stale { self.n_stale + 1 } else { 0 };
        if self.n_stale >= STALE_TIMES {
            self.clear();
        }
    }

    /// Updates headroom and pace of the trend with the newest block.
    pub(super) fn refresh(&mut self, pyramid: &Pyramid, context: &SeriesContext) {
        let Some(trend) = &mut self.trend else { return };
        let longest = pyramid.levels.get(self.level_idx).map_or(&[][..], Level::newer_half);
        let newest = pyramid.levels.first().and_then(|level| level.blocks.last());
        trend.refresh(PeakUse::of(longest.iter().chain(newest)), context);
        let life = pyramid.levels.iter().find(|level| level.high(self.signal).is_none());
        let is_due = trend.raised == context.at
            || life.zip(newest).is_none_or(|(life, newest)| {
                life.blocks.last().is_some_and(|last| last.end == newest.end)
            });
        if is_due && !context.is_off(Rule::Bends) {
            trend.bend(life.and_then(|life| course(self.signal, &life.blocks)));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::analysis::creep::record::{DeviceReading, MemoryRecord};
    use crate::analysis::creep::signal::Signal;
    use crate::analysis::creep::simulation::{CAPACITY, Simulation, assert_within, at, record};
    use crate::analysis::creep::trend::Stage;
    use crate::model::units::{GIBIBYTE, MEBIBYTE};

    #[test]
    fn warmup_is_not_growth() {
        let mut rank = Simulation::new();
        rank.run(30_000, |step: f64| record(step, 40.0 * MEBIBYTE * step.min(90.0)));
        assert_eq!(rank.n_changes, 0);
        let slope = rank.estimator.slope(Signal::Allocated).unwrap();
        assert_within(slope.bytes_per_step.unwrap().value, 0.0, 1.0);
    }

    #[test]
    fn leak_that_stops_is_cleared_and_stays_cleared() {
        let mut rank = Simulation::new();
        rank.run(2000, |step| record(step, 4.0 * MEBIBYTE * step));
        assert_eq!(rank.stage(Signal::Allocated), Some(Stage::Creeping));
        let stopped = |step| record(step, 8000.0 * MEBIBYTE);
        assert!(rank.run_until_change(4000, stopped));
        assert_eq!(rank.trend(Signal::Allocated), None);
        let n_changes = rank.n_changes;
        rank.run(30_000, stopped);
        assert_eq!(rank.n_changes, n_changes);
    }

    #[test]
    fn trend_whose_figures_stop_to_come_is_cleared() {
        let mut rank = Simulation::new();
        rank.run(20_000, |step| MemoryRecord {
            reserved: Some(32.0 * GIBIBYTE + 0.5 * MEBIBYTE * step),
            ..record(step, 0.0)
        });
        assert_eq!(rank.stage(Signal::Reserved), Some(Stage::Creeping));
        assert!(rank.run_until_change(20_000, |step| MemoryRecord {
            reserved: None,
            ..record(step, 0.0)
        }));
        assert_eq!(rank.stage(Signal::Reserved), None);

        let mut rank = Simulation::new();
        for i in 0..400 {
            rank.run(10, |step| record(step, 0.0));
            let used = 34.0 * GIBIBYTE + 20.0 * MEBIBYTE * f64::from(i);
            let time = at(rank.step, 1e9 + rank.step).time;
            let reading = DeviceReading { time, device_used: used, process_used: Some(used) };
            rank.estimator.device(&reading, CAPACITY);
        }
        assert_eq!(rank.stage(Signal::OutsideAllocator), Some(Stage::Creeping));
        assert!(rank.run_until_change(700, |step| record(step, 0.0)));
        assert_eq!(rank.stage(Signal::OutsideAllocator), None);
    }

    /// Whether a trend of reserved memory ends when only some of 40 further stretches of 512
    /// steps know the reserved bytes.
    fn is_cleared_by(known: impl Fn(u32) -> bool) -> bool {
        let mut rank = Simulation::new();
        let fragmenting = |step: f64| 32.0 * GIBIBYTE + 0.5 * MEBIBYTE * step;
        rank.run(20_000, |step| MemoryRecord {
            reserved: Some(fragmenting(step)),
            ..record(step, 0.0)
        });
        assert_eq!(rank.stage(Signal::Reserved), Some(Stage::Creeping));
        for i in 0..40 {
            rank.run(512, |step| MemoryRecord {
                reserved: known(i).then(|| fragmenting(step)),
                ..record(step, 0.0)
            });
        }
        rank.stage(Signal::Reserved).is_none()
    }

    #[test]
    fn figures_that_are_missing_for_a_while_clear_nothing() {
        assert!(!is_cleared_by(|_| true));
        assert!(!is_cleared_by(|i| i != 3));
        assert!(is_cleared_by(|_| false));
    }
}

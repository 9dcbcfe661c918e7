//! Peaks over the recent past of one rank, in bounded memory.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::units::{Bytes, Uptime};

/// The parts that the recent window is made of; the oldest leaves when a new one begins.
pub const RECENT_PARTS: usize = 8;
/// A part of the recent window ends after this many pushes, so that the window holds at most 512.
pub const RECENT_PART_PUSHES: u32 = 64;
/// A part of the recent window also ends after this time, so that the window reaches at most ten minutes back.
pub const RECENT_PART_DURATION: Duration = Duration::from_secs(75);

/// The greatest figures of the last [`RECENT_PARTS`] parts.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct RecentPeaks {
    parts: [Option<(Bytes, Option<Bytes>)>; RECENT_PARTS],
    pushes: u32,
    began: Uptime,
}

impl RecentPeaks {
    /// Takes in the peaks of one record.
    pub fn add(&mut self, allocated: Bytes, reserved: Option<Bytes>, now: Uptime) {
        let is_full =
            self.pushes >= RECENT_PART_PUSHES || now.since(self.began) >= RECENT_PART_DURATION;
        if is_full {
            self.parts.rotate_right(1);
        }
        let [newest, ..] = &mut self.parts;
        match newest {
            Some((peak_allocated, peak_reserved)) if !is_full => {
                *peak_allocated = allocated.max(*peak_allocated);
                *peak_reserved = reserved.max(*peak_reserved);
            }
            _ => {
                *newest = Some((allocated, reserved));
                self.pushes = 0;
                self.began = now;
            }
        }
        self.pushes += 1;
    }

    /// Returns the greatest allocated and reserved.
    pub fn max(&self) -> (Option<Bytes>, Option<Bytes>) {
        let parts = self.parts.iter().flatten();
        (parts.clone().map(|part| part.0).max(), parts.filter_map(|part| part.1).max())
    }
}

/// The greatest allocated of the current and the last whole interval, so that a reader that comes at least once an
/// interval sees every spike, and reading changes nothing.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct IntervalPeak {
    interval: Duration,
    current: Option<(u128, Bytes)>,
    previous: Option<(u128, Bytes)>,
}

impl IntervalPeak {
    /// Starts without a peak; `interval` is the length of an interval.
    pub fn new(interval: Duration) -> Self {
        Self { interval, current: None, previous: None }
    }

    /// Goes on with intervals of another length, as after a restart of the exporter.
    pub fn configure(&mut self, interval: Duration) {
        self.interval = interval;
    }

    fn index(&self, now: Uptime) -> u128 {
        now.0.as_nanos() / self.interval.as_nanos().max(1)
    }

    /// Takes in the peak of one record.
    pub fn add(&mut self, peak: Bytes, now: Uptime) {
        let index = self.index(now);
        match &mut self.current {
            Some((current, value)) if *current == index => *value = peak.max(*value),
            _ => {
                self.previous = self.current;
                self.current = Some((index, peak));
            }
        }
    }

    /// Returns the greatest peak of the current and the last whole interval at `now`.
    pub fn at(&self, now: Uptime) -> Option<Bytes> {
        let index = self.index(now);
        [self.current, self.previous]
            .into_iter()
            .flatten()
            .filter(|(of, _)| *of + 1 >= index)
            .map(|(_, value)| value)
            .max()
    }
}

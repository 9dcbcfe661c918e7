//! Peaks over the recent past of one rank, in bounded memory.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use stepmem_types::end::EndReport;
use stepmem_types::step::{StepFigures, StepSample};
use stepmem_types::units::{Bytes, Uptime};

/// The parts that the recent window is made of; the oldest leaves when a new one begins.
pub(crate) const RECENT_PARTS: usize = 8;
/// A part of the recent window ends after this many pushes, so that the window holds at most
/// 512.
pub(crate) const RECENT_PART_PUSHES: u32 = 64;
/// A part of the recent window also ends after this time, so that the window reaches at most
/// ten minutes back.
pub(crate) const RECENT_PART_DURATION: Duration = Duration::from_secs(75);

/// The peaks of one record, as far as they are known, or the greatest of several records.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct StepPeaks {
    /// Maximum of allocated within the step.
    pub allocated: Option<Bytes>,
    /// Maximum of reserved within the step.
    pub reserved: Option<Bytes>,
    /// The most that is known to have been reserved: within the step, else at its end.
    pub reserved_known: Option<Bytes>,
}

/// The high-water marks of a record: the maxima since the client's process began.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct HighWater {
    pub allocated: Option<Bytes>,
    pub reserved: Option<Bytes>,
}

impl HighWater {
    /// Returns the high-water marks of a record. One below its current value is that value.
    pub fn of(sample: &StepSample) -> Self {
        Self {
            allocated: sample
                .high_water_allocated
                .map(|mark| mark.max(sample.figures.allocated)),
            reserved: sample
                .high_water_reserved
                .max(sample.figures.reserved.filter(|_| sample.high_water_reserved.is_some())),
        }
    }

    /// Takes in peaks that came after the record, where the high-water marks are known.
    pub fn raise(&mut self, peaks: StepPeaks) {
        let raised = |mark: Option<Bytes>, peak| mark.and(mark.max(peak));
        self.allocated = raised(self.allocated, peaks.allocated);
        self.reserved = raised(self.reserved, peaks.reserved);
    }
}

/// Returns a high-water mark that has risen since the record before, which is the peak since
/// then.
fn risen(mark: Option<Bytes>, before: Option<Bytes>) -> Option<Bytes> {
    mark.filter(|mark| before.is_some_and(|before| *mark > before))
}

impl StepPeaks {
    /// Returns the peaks of a record, by itself or by a high-water mark that has risen since
    /// the record `before`. One below its current value is that value: pluggable allocators do
    /// that.
    pub fn of(sample: &StepSample, before: HighWater) -> Self {
        let marks = HighWater::of(sample);
        let reserved = sample.figures.peak_reserved.or(risen(marks.reserved, before.reserved));
        let reserved = reserved.and_then(|peak| sample.figures.reserved.max(Some(peak)));
        let allocated =
            sample.figures.peak_allocated.or(risen(marks.allocated, before.allocated));
        Self {
            allocated: allocated.map(|peak| peak.max(sample.figures.allocated)),
            reserved,
            reserved_known: reserved.or(sample.figures.reserved),
        }
    }

    /// Returns the figures of a record with these peaks where it has none of its own.
    pub fn within(self, figures: StepFigures) -> StepFigures {
        StepFigures {
            peak_allocated: figures.peak_allocated.or(self.allocated),
            peak_reserved: figures.peak_reserved.or(self.reserved),
            ..figures
        }
    }

    /// Returns the peaks since the last record that an end reports.
    pub(crate) fn of_end(end: &EndReport) -> Self {
        let reserved = end.peak_reserved;
        Self { allocated: end.peak_allocated, reserved, reserved_known: reserved }
    }

    /// Returns the greater of each.
    fn max(self, other: Self) -> Self {
        Self {
            allocated: self.allocated.max(other.allocated),
            reserved: self.reserved.max(other.reserved),
            reserved_known: self.reserved_known.max(other.reserved_known),
        }
    }
}

/// The greatest figures of the last [`RECENT_PARTS`] parts.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct RecentPeaks {
    parts: [Option<StepPeaks>; RECENT_PARTS],
    pushes: u32,
    began: Uptime,
}

impl RecentPeaks {
    /// Takes in the peaks of one record.
    pub(crate) fn add(&mut self, peaks: StepPeaks, now: Uptime) {
        let is_full =
            self.pushes >= RECENT_PART_PUSHES || now.since(self.began) >= RECENT_PART_DURATION;
        if is_full {
            self.parts.rotate_right(1);
        }
        let [newest, ..] = &mut self.parts;
        match newest {
            Some(greatest) if !is_full => *greatest = greatest.max(peaks),
            _ => {
                *newest = Some(peaks);
                self.pushes = 0;
                self.began = now;
            }
        }
        self.pushes = self.pushes.saturating_add(1);
    }

    /// Takes in peaks that came after the last record.
    pub(crate) fn raise(&mut self, peaks: StepPeaks) {
        let [newest, ..] = &mut self.parts;
        *newest = Some(newest.unwrap_or_default().max(peaks));
    }

    /// Returns the greatest peaks; each is `None` where no record of the window knows its own.
    pub(crate) fn max(&self) -> StepPeaks {
        self.parts
            .iter()
            .flatten()
            .fold(StepPeaks::default(), |greatest, part| greatest.max(*part))
    }
}

/// The greatest allocated of the current and the last whole interval. A reader that comes at
/// least once an interval sees every spike, and reading changes nothing.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct IntervalPeak {
    /// The interval of the settings, also after a restart of the exporter.
    #[serde(skip)]
    interval: Duration,
    current: Option<(u64, Bytes)>,
    previous: Option<(u64, Bytes)>,
}

impl IntervalPeak {
    /// Starts without a peak; `interval` is the length of an interval.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, current: None, previous: None }
    }

    /// Goes on with intervals of another length, as after a restart of the exporter.
    pub(crate) fn configure(&mut self, interval: Duration) {
        self.interval = interval;
    }

    /// Forgets what another process of the rank had.
    pub(crate) fn restart(&mut self) {
        (self.current, self.previous) = (None, None);
    }

    fn index(&self, now: Uptime) -> u64 {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        nanos(now.0) / nanos(self.interval).max(1)
    }

    /// Takes in the peak of one record.
    pub(crate) fn add(&mut self, peak: Bytes, now: Uptime) {
        let index = self.index(now);
        match &mut self.current {
            Some((current, value)) if *current == index => *value = peak.max(*value),
            _ => {
                self.previous = self.current;
                self.current = Some((index, peak));
            }
        }
    }

    /// Returns the greatest peak of the current and the last whole interval at `now`; `None`
    /// where none is known.
    pub(crate) fn at(&self, now: Uptime) -> Option<Bytes> {
        let index = self.index(now);
        [self.current, self.previous]
            .into_iter()
            .flatten()
            .filter(|(of, _)| *of >= index.saturating_sub(1))
            .map(|(_, value)| value)
            .max()
    }
}

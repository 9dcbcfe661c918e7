//! The summary's figures of one incarnation of a rank. They are true maxima, means, last
//! values, and the series in as many parts as a chart can use. Bounded however long the
//! incarnation is; nothing is judged here.

use serde::{Deserialize, Deserializer, Serialize};

use crate::ranks::peaks::StepPeaks;
use stepmem_types::saved::{self, added};
use stepmem_types::step::{Phase, StepSample};
use stepmem_types::units::Bytes;

/// Number of parts that a series has at most. When it has more, neighbors are joined, so that
/// it has at least half as many.
pub(crate) const PARTS_MAX: usize = 128;

/// The share of a series that its three levels are means of: early, in the middle and late,
/// TraceML's bands.
const BANDS: [(f64, f64); 3] = [(0.15, 0.25), (0.45, 0.55), (0.90, 1.00)];

/// An incarnation of a rank, summed up.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct LifetimeStats {
    /// Number of incarnations before this one.
    pub n_restarts: u32,
    /// The first and the last train step.
    #[serde(deserialize_with = "span")]
    pub span: Option<(Moment, Moment)>,
    /// Live memory at the end of train steps.
    pub allocated: Figure,
    /// The peak within train steps, of those whose peak is known.
    pub peak_allocated: Figure,
    /// Bytes that the allocator held at the end of train steps.
    pub reserved: Figure,
    /// The most that it held within train steps, of those in which that is known.
    pub peak_reserved: Figure,
    /// Records and peaks by phase, in the order of [`Phase::ALL`].
    pub phases: [PhaseStats; Phase::ALL.len()],
    /// The times when the first and the last record by time were made, as Unix times.
    #[serde(deserialize_with = "saved::times")]
    pub by_time: Option<(f64, f64)>,
    #[serde(deserialize_with = "saved::counts")]
    n_steps: u64,
    /// The number of steps whose memory was not read.
    #[serde(deserialize_with = "saved::counts")]
    pub n_unread: u64,
    series: Series,
}

/// A step and when it ended, as a Unix time.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Moment {
    /// The train step.
    #[serde(deserialize_with = "saved::counts")]
    pub step: u64,
    /// The Unix time.
    #[serde(deserialize_with = "saved::times")]
    pub time: f64,
}

/// A figure over the train steps of an incarnation that have it. A record of several steps
/// counts as so many.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Figure {
    #[serde(deserialize_with = "saved::counts")]
    n_steps: u64,
    #[serde(deserialize_with = "saved::counts")]
    n_records: u64,
    #[serde(deserialize_with = "saved::amounts")]
    sum: f64,
    /// The sum of the squares of the moves between neighbors.
    #[serde(deserialize_with = "saved::amounts")]
    squared_moves: f64,
    /// The greatest value, and the first step that had it.
    #[serde(deserialize_with = "saved::counts")]
    pub max: Option<(Bytes, u64)>,
    /// The value of the last record that has it.
    pub last: Option<Bytes>,
}

/// The figures of one phase.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PhaseStats {
    /// Number of records.
    #[serde(deserialize_with = "saved::counts")]
    pub n_records: u64,
    /// The greatest known peak of allocated memory.
    pub peak: Option<Bytes>,
}

/// A figure that a series is kept of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Live memory at the end of train steps.
    Allocated,
    /// The peak within train steps.
    PeakAllocated,
    /// The most that the allocator held within train steps.
    PeakReserved,
}

/// The three levels of a series, in bytes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Bands {
    /// Early: from 15 % to 25 % of the steps.
    pub baseline_bytes: f64,
    /// The middle: from 45 % to 55 %.
    pub mid_bytes: f64,
    /// Late: from 90 % on.
    pub recent_bytes: f64,
}

impl LifetimeStats {
    /// The most heap memory that these figures hold in addition to their own size, in bytes.
    pub const BYTES_MAX: usize = PARTS_MAX * size_of::<Part>();

    /// Takes an accepted push that ended at the Unix time `time`.
    pub fn add(&mut self, sample: &StepSample, peaks: StepPeaks, time: f64) {
        let phase = self.phase_mut(sample.phase);
        phase.n_records = added(phase.n_records, 1);
        phase.peak = phase.peak.max(peaks.allocated);
        match sample.phase {
            Phase::Train if self.n_steps == 0 && self.by_time.is_some() => self.begin_steps(),
            Phase::Train => {}
            Phase::Sample | Phase::Idle => {
                self.by_time = Some((self.by_time.map_or(time, |span| span.0), time));
                if sample.phase == Phase::Sample && self.n_steps == 0 {
                    self.add_figures(sample, peaks);
                }
                return;
            }
            Phase::Eval | Phase::Checkpoint | Phase::Named => return,
        }
        self.n_steps = added(self.n_steps, 1);
        let step = sample.figures.step.get();
        let moment = Moment { step, time };
        self.span = Some((self.span.map_or(moment, |span| span.0), moment));
        self.add_figures(sample, peaks);
    }

    fn phase_mut(&mut self, phase: Phase) -> &mut PhaseStats {
        let [train, eval, checkpoint, sample, idle, named] = &mut self.phases;
        match phase {
            Phase::Train => train,
            Phase::Eval => eval,
            Phase::Checkpoint => checkpoint,
            Phase::Sample => sample,
            Phase::Idle => idle,
            Phase::Named => named,
        }
    }

    /// Adds the figures of a train step or, in an incarnation without any, of a sample by time.
    fn add_figures(&mut self, sample: &StepSample, peaks: StepPeaks) {
        let of = (sample.figures.step.get(), sample.n_steps);
        self.allocated.add(Some(sample.figures.allocated), of);
        self.peak_allocated.add(peaks.allocated, of);
        self.reserved.add(sample.figures.reserved, of);
        self.peak_reserved.add(peaks.reserved, of);
        let step = Part {
            allocated: sample.figures.allocated.as_f64(),
            peak_allocated: peaks.allocated.map_or(0.0, Bytes::as_f64),
            peak_reserved: peaks.reserved.map_or(0.0, Bytes::as_f64),
            n_peaks_allocated: u32::from(peaks.allocated.is_some()),
            n_peaks_reserved: u32::from(peaks.reserved.is_some()),
            n_steps: 1,
        };
        self.series.add(&step, sample.n_steps);
    }

    /// Forgets the figures of the samples or the calls before the first step.
    pub(crate) fn begin_steps(&mut self) {
        let Self { n_restarts, phases, by_time, .. } = *self;
        *self = Self { n_restarts, phases, by_time, ..Self::default() };
    }

    /// Returns the number of samples by time.
    pub fn n_samples(&self) -> u64 {
        let mut of_phase = Phase::ALL.into_iter().zip(&self.phases);
        let samples = of_phase.find(|(phase, _)| *phase == Phase::Sample);
        samples.map_or(0, |(_, stats)| stats.n_records)
    }

    /// Returns the seconds that the process has gone on after its last step without another.
    /// `None` of one that takes steps, or has taken none.
    pub fn seconds_without_steps(&self) -> Option<f64> {
        let ((_, last_step), (_, last)) = self.span.zip(self.by_time)?;
        Some(last - last_step.time).filter(|seconds| *seconds > 0.0)
    }

    /// Counts train steps whose memory was not read.
    pub(crate) fn add_unread(&mut self, n_steps: u32) {
        self.n_steps = added(self.n_steps, n_steps.into());
        self.n_unread = added(self.n_unread, n_steps.into());
    }

    /// Makes `step` the last one, if it is later. It was not read, so that its time is that of
    /// the last record.
    pub(crate) fn end_at(&mut self, step: u64) {
        if let Some((_, last)) = &mut self.span {
            last.step = last.step.max(step);
        }
    }

    /// Takes in peaks that came after the last record, as those of the last step.
    pub fn raise(&mut self, peaks: StepPeaks) {
        let Some((_, Moment { step, .. })) = self.span else { return };
        self.peak_allocated.raise(peaks.allocated, step);
        self.peak_reserved.raise(peaks.reserved, step);
        let [train, ..] = &mut self.phases;
        train.peak = train.peak.max(peaks.allocated);
    }

    /// Forgets the incarnation and begins the next.
    pub(crate) fn begin_incarnation(&mut self) {
        *self = Self { n_restarts: self.n_restarts.saturating_add(1), ..Self::default() };
    }

    /// Returns the number of train steps, read or not.
    pub fn n_steps(&self) -> u64 {
        self.n_steps
    }

    /// The mean of each part of the incarnation, in order; parts without a known figure are
    /// left out.
    pub fn means(&self, kept: Kept) -> impl Iterator<Item = f64> {
        self.series.parts.iter().filter_map(move |part| part.mean(kept))
    }

    /// The three levels of a series; `None` while it has no part.
    ///
    /// They are exact for `PARTS_MAX` steps; of more, a part on an edge counts by its share.
    pub fn bands(&self, kept: Kept) -> Option<Bands> {
        let [baseline, mid, recent] = BANDS.map(|band| self.series.level(kept, band));
        Some(Bands { baseline_bytes: baseline?, mid_bytes: mid?, recent_bytes: recent? })
    }
}

impl Figure {
    /// Takes the value of a record: its step, and how many steps it stands for.
    fn add(&mut self, value: Option<Bytes>, (step, n_steps): (u64, u32)) {
        let Some(value) = value else { return };
        self.n_steps = added(self.n_steps, n_steps.into());
        self.n_records = added(self.n_records, 1);
        self.sum += value.as_f64() * f64::from(n_steps);
        if let Some(last) = self.last {
            self.squared_moves += (value.as_f64() - last.as_f64()).powi(2);
        }
        self.last = Some(value);
        self.raise(Some(value), step);
    }

    /// Takes in a value for the greatest alone.
    fn raise(&mut self, value: Option<Bytes>, step: u64) {
        let Some(value) = value else { return };
        if self.max.is_none_or(|(max, _)| value > max) {
            self.max = Some((value, step));
        }
    }

    /// The mean, in bytes.
    pub fn mean(&self) -> Option<f64> {
        (self.n_steps > 0).then(|| self.sum / count(self.n_steps))
    }

    /// Returns the distance of a step from its neighbors, in bytes: the standard deviation that
    /// a trend does not raise. `None` for fewer than two records.
    ///
    /// Half the mean squared successive difference (von Neumann, "Distribution of the ratio of
    /// the mean square successive difference to the variance", Annals of Mathematical
    /// Statistics 12, 1941).
    pub fn noise(&self) -> Option<f64> {
        let n_moves = self.n_records.checked_sub(1).filter(|n_moves| *n_moves > 0)?;
        Some((self.squared_moves / (2.0 * count(n_moves))).sqrt())
    }
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "a mean is rounded")]
fn count(n: u64) -> f64 {
    n as f64
}

/// Two to the power of this is more steps a part than any run has.
const DOUBLINGS_MAX: u32 = 30;

// Same name as detect::series::Series: each summarizes records in its own way.
/// An incarnation in parts of as many steps each, the last one still filling.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(try_from = "SavedSeries")]
struct Series {
    // Invariant: at most PARTS_MAX.
    parts: Vec<Part>,
    /// A part holds 2 to this power of steps.
    doublings: u32,
}

/// Reads the first and the last train step: their difference is a number of steps.
fn span<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<(Moment, Moment)>, D::Error> {
    let span = Option::<(Moment, Moment)>::deserialize(deserializer)?;
    match span {
        Some((first, last)) if last.step < first.step => {
            Err(stepmem_types::refused::refused("a last step before the first"))
        }
        span => Ok(span),
    }
}

/// A series as it was saved.
#[derive(Deserialize)]
struct SavedSeries {
    parts: Vec<Part>,
    doublings: u32,
}

impl TryFrom<SavedSeries> for Series {
    type Error = &'static str;

    fn try_from(SavedSeries { parts, doublings }: SavedSeries) -> Result<Self, Self::Error> {
        let is_whole = |part: &Part| {
            let n_peaks = part.n_peaks_allocated.max(part.n_peaks_reserved);
            n_peaks <= part.n_steps && part.n_steps <= 1 << doublings
        };
        let is_right = parts.len() <= PARTS_MAX
            && doublings <= DOUBLINGS_MAX
            && parts.iter().all(is_whole);
        if is_right { Ok(Self { parts, doublings }) } else { Err("a series out of range") }
    }
}

/// Sums over the steps of a part, in bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct Part {
    #[serde(deserialize_with = "saved::amounts")]
    allocated: f64,
    #[serde(deserialize_with = "saved::amounts")]
    peak_allocated: f64,
    #[serde(deserialize_with = "saved::amounts")]
    peak_reserved: f64,
    n_peaks_allocated: u32,
    n_peaks_reserved: u32,
    n_steps: u32,
}

impl Part {
    /// Adds another part so many times.
    fn join(&mut self, other: &Self, times: u32) {
        self.allocated += other.allocated * f64::from(times);
        self.peak_allocated += other.peak_allocated * f64::from(times);
        self.peak_reserved += other.peak_reserved * f64::from(times);
        self.n_peaks_allocated += other.n_peaks_allocated * times;
        self.n_peaks_reserved += other.n_peaks_reserved * times;
        self.n_steps += other.n_steps * times;
    }

    fn mean(&self, kept: Kept) -> Option<f64> {
        let (sum, n_steps) = match kept {
            Kept::Allocated => (self.allocated, self.n_steps),
            Kept::PeakAllocated => (self.peak_allocated, self.n_peaks_allocated),
            Kept::PeakReserved => (self.peak_reserved, self.n_peaks_reserved),
        };
        (n_steps > 0).then(|| sum / f64::from(n_steps))
    }
}

impl Series {
    /// Adds a step so many times; nothing once all parts are full.
    fn add(&mut self, step: &Part, mut times: u32) {
        while times > 0 {
            let left = |part: &Part| (1 << self.doublings) - part.n_steps;
            let open = self.parts.last_mut().map(|part| (left(part), part));
            if let Some((left @ 1.., part)) = open {
                let fitting = times.min(left);
                part.join(step, fitting);
                times -= fitting;
            } else if self.parts.len() < PARTS_MAX {
                self.parts.reserve_exact(PARTS_MAX - self.parts.len());
                self.parts.push(Part::default());
            } else if self.doublings < DOUBLINGS_MAX {
                self.halve();
            } else {
                return;
            }
        }
    }

    /// Joins every two parts.
    fn halve(&mut self) {
        let joined = self.parts.chunks(2).map(|pair| {
            let mut sum = Part::default();
            for part in pair {
                sum.join(part, 1);
            }
            sum
        });
        let joined: Vec<Part> = joined.collect();
        self.parts.clear();
        self.parts.extend(joined);
        self.doublings += 1;
    }

    /// The mean of the steps between two shares of the series.
    fn level(&self, kept: Kept, (start, end): (f64, f64)) -> Option<f64> {
        let n_steps: f64 = self.parts.iter().map(|part| f64::from(part.n_steps)).sum();
        let (start, end) = ((n_steps * start).floor(), (n_steps * end).ceil());
        let (mut sum, mut weight, mut at) = (0.0, 0.0, 0.0);
        for part in &self.parts {
            let width = f64::from(part.n_steps);
            let within = (end.min(at + width) - start.max(at)).max(0.0);
            if let Some(mean) = part.mean(kept) {
                sum += mean * within;
                weight += within;
            }
            at += width;
        }
        (weight > 0.0).then(|| sum / weight)
    }
}

#[cfg(test)]
mod tests {
    use crate::ranks::lifetime::{Kept, LifetimeStats, PARTS_MAX};
    use crate::ranks::peaks::StepPeaks;
    use crate::wire::{Layout, decode_steps};
    use stepmem_types::step::StepSample;
    use stepmem_types::units::Bytes;

    fn sample(step: u64, allocated: u64) -> StepSample {
        let record = format!(r#"{{"rank":0,"step":{step},"allocated_bytes":{allocated}}}"#);
        decode_steps(record.as_bytes(), Layout::Json).unwrap().remove(0)
    }

    #[test]
    fn levels_of_a_ramp_are_those_of_the_whole_series_however_long() {
        for n_steps in [100_u32, 128, 129, 5000, 100_000] {
            let mut stats = LifetimeStats::default();
            for step in 0..n_steps {
                stats.add(
                    &sample(u64::from(step), u64::from(step)),
                    StepPeaks::default(),
                    f64::from(step),
                );
            }
            let n_parts = stats.means(Kept::Allocated).count();
            assert!((PARTS_MAX / 2..=PARTS_MAX).contains(&n_parts), "{n_parts}");
            let bands = stats.bands(Kept::Allocated).unwrap();
            let n_steps = f64::from(n_steps);
            for (level, share) in [
                (bands.baseline_bytes, 0.2),
                (bands.mid_bytes, 0.5),
                (bands.recent_bytes, 0.95),
            ] {
                assert!((level / n_steps - share).abs() < 0.01, "{level} of {n_steps}");
            }
            let mean = stats.allocated.mean().unwrap();
            assert!((mean - (n_steps - 1.0) / 2.0).abs() < 1e-6);
        }
    }

    #[test]
    fn records_of_many_steps_count_as_so_many() {
        let level = |step: u64| if step < 900 { 100 } else { 400 };
        let mut stats = LifetimeStats::default();
        let mut add = |step: u64, n_steps| {
            let record = StepSample { n_steps, ..sample(step, level(step)) };
            stats.add(&record, StepPeaks::default(), 0.0);
        };
        (0..256).for_each(|step| add(step, 1));
        (287..9000).step_by(32).for_each(|step| add(step, 32));
        let bands = stats.bands(Kept::Allocated).unwrap();
        assert_eq!((bands.baseline_bytes, bands.recent_bytes), (400.0, 400.0));
        let mean = stats.allocated.mean().unwrap();
        assert!((mean - 370.0).abs() < 2.0, "{mean}");
        assert_eq!(stats.means(Kept::Allocated).position(|mean| mean > 300.0), Some(7));
    }

    #[test]
    fn series_is_bounded_whatever_records_say() {
        let mut stats = LifetimeStats::default();
        for step in 0..200_000 {
            let record = StepSample { n_steps: 1_000_000, ..sample(step, 1) };
            stats.add(&record, StepPeaks::default(), 0.0);
        }
        assert!(stats.means(Kept::Allocated).count() <= PARTS_MAX);
        assert_eq!(stats.allocated.mean(), Some(1.0));
    }

    #[test]
    fn maxima_are_true_and_unknown_figures_are_absent() {
        let mut stats = LifetimeStats::default();
        for step in 0..1000 {
            let sample = sample(step, if step == 517 { 99 } else { 10 });
            stats.add(&sample, StepPeaks::default(), 0.0);
        }
        assert_eq!(stats.allocated.max, Some((Bytes::new(99).unwrap(), 517)));
        assert_eq!(stats.allocated.last, Bytes::new(10).ok());
        assert_eq!((stats.reserved.max, stats.reserved.mean()), (None, None));
        assert_eq!((stats.peak_allocated.max, stats.bands(Kept::PeakAllocated)), (None, None));
        assert_eq!(stats.bands(Kept::PeakReserved), None);
        stats.begin_incarnation();
        assert_eq!((stats.n_restarts, stats.n_steps(), stats.span), (1, 0, None));
    }
}

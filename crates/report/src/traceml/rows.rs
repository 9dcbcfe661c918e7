//! Steps as TraceML keeps them: of each rank the newest rows, each with both peaks.

use std::collections::{BTreeMap, VecDeque};

use crate::policy::PeakMetric;
use crate::traceml::metric::{CommonSteps, TraceMlMetric};
use crate::traceml::verdict::TraceMlVerdict;
use stepmem_types::device::GpuSample;
use stepmem_types::ids::{GpuUuid, Rank};
use stepmem_types::step::StepSample;
use stepmem_types::units::Bytes;

/// Number of rows of a rank that are kept for each step of the window: TraceML's own retention,
/// 1.5.
const ROWS_PER_STEP: (usize, usize) = (3, 2);
/// Number of rows of a rank that are kept at least, whatever the window.
const ROWS_MIN: usize = 15_000;
/// TraceML searches this many times the window of a rank's steps for common ones.
const CANDIDATES_PER_STEP: usize = 20;

/// The steps of a run.
///
/// It holds 24 bytes a row, at most 15,000 rows a rank or 1.5 times the window.
#[derive(Debug)]
pub struct PeakRows {
    window: usize,
    ranks: BTreeMap<Rank, VecDeque<PeakRow>>,
    capacity_bytes: Option<f64>,
    /// `None` while nothing shows that there is a GPU, or that there is none.
    has_gpu: Option<bool>,
}

/// A step of one rank, in bytes.
#[derive(Clone, Copy, Debug)]
struct PeakRow {
    step: u64,
    peak_allocated: f64,
    peak_reserved: f64,
}

impl PeakRow {
    fn value(&self, metric: PeakMetric) -> f64 {
        match metric {
            PeakMetric::Allocated => self.peak_allocated,
            PeakMetric::Reserved => self.peak_reserved,
        }
    }
}

impl PeakRows {
    /// Returns no steps yet, for a verdict on the last `window` common steps; 0 is taken as 1.
    pub fn new(window: usize) -> Self {
        Self {
            window: window.max(1),
            ranks: BTreeMap::new(),
            capacity_bytes: None,
            has_gpu: None,
        }
    }

    /// Takes a record. Like TraceML it ignores the attempt; a rank that lacks a peak is only
    /// seen.
    pub fn push(&mut self, sample: &StepSample) {
        let is_host = sample
            .identity
            .device
            .as_ref()
            .is_some_and(|device| device.as_str() == GpuUuid::CPU);
        if is_host {
            self.has_gpu.get_or_insert(false);
        } else if sample.identity.device.is_some() || sample.identity.total.is_some() {
            self.has_gpu = Some(true);
        }
        let rows = self.ranks.entry(sample.rank).or_default();
        if !is_host {
            self.capacity_bytes = greater(self.capacity_bytes, sample.identity.total);
        }
        let (Some(allocated), Some(reserved)) =
            (sample.figures.peak_allocated, sample.figures.peak_reserved)
        else {
            return;
        };
        let (more, less) = ROWS_PER_STEP;
        if rows.len() >= ROWS_MIN.max(self.window.saturating_mul(more) / less) {
            rows.pop_front();
        }
        rows.push_back(PeakRow {
            step: sample.figures.step.get(),
            peak_allocated: allocated.as_f64(),
            peak_reserved: reserved.as_f64(),
        });
    }

    /// Takes a reading of a device.
    pub fn gpu(&mut self, sample: &GpuSample) {
        self.has_gpu = Some(true);
        self.capacity_bytes =
            greater(self.capacity_bytes, sample.memory.map(|memory| memory.total));
    }

    /// Returns TraceML's verdict on these steps.
    pub fn verdict(&self) -> TraceMlVerdict {
        TraceMlVerdict::of(self.metrics(), self.has_gpu)
    }

    fn metrics(&self) -> Vec<TraceMlMetric> {
        let latest: Vec<(Rank, Vec<PeakRow>)> = self
            .ranks
            .iter()
            .filter(|(_, rows)| !rows.is_empty())
            .map(|(rank, rows)| (*rank, self.candidates(rows)))
            .collect();
        let steps = common_steps(&latest, self.window);
        let window: Vec<(Rank, Vec<PeakRow>)> =
            latest.into_iter().map(|(rank, rows)| (rank, only(rows, &steps))).collect();
        let metric = |metric: PeakMetric| {
            let values = |rows: &[PeakRow]| rows.iter().map(|row| row.value(metric)).collect();
            let common = CommonSteps {
                window_size: self.window,
                ranks_seen: self.ranks.len(),
                capacity_bytes: self.capacity_bytes,
                steps: &steps,
                ranks: window.iter().map(|(rank, rows)| (*rank, values(rows))).collect(),
            };
            TraceMlMetric::of(metric, &common)
        };
        PeakMetric::ALL.into_iter().filter_map(metric).collect()
    }

    /// Returns the latest row of each step, ascending, of as many of the highest steps as are
    /// analyzed.
    fn candidates(&self, rows: &VecDeque<PeakRow>) -> Vec<PeakRow> {
        let mut rows: Vec<PeakRow> = rows.iter().copied().collect();
        // Stable, so that of equal steps the newest comes last.
        rows.sort_by_key(|row| row.step);
        rows.reverse();
        rows.dedup_by_key(|row| row.step);
        rows.truncate(self.window.saturating_mul(CANDIDATES_PER_STEP));
        rows.reverse();
        rows
    }
}

fn greater(known: Option<f64>, total: Option<Bytes>) -> Option<f64> {
    let total = total.map(Bytes::as_f64);
    known.zip(total).map(|(a, b)| a.max(b)).or(known).or(total)
}

/// The last `window` steps that every rank has, ascending.
fn common_steps(ranks: &[(Rank, Vec<PeakRow>)], window: usize) -> Vec<u64> {
    let Some(((_, first), others)) = ranks.split_first() else { return Vec::new() };
    let mut common: Vec<u64> = first.iter().map(|row| row.step).collect();
    for (_, rows) in others {
        let mut rows = rows.iter().map(|row| row.step).peekable();
        common.retain(|step| {
            while rows.next_if(|of_rank| of_rank < step).is_some() {}
            rows.peek() == Some(step)
        });
    }
    common.split_off(common.len().saturating_sub(window))
}

/// The rows of these steps.
fn only(rows: Vec<PeakRow>, steps: &[u64]) -> Vec<PeakRow> {
    let mut wanted = steps.iter().peekable();
    let mut rows = rows;
    rows.retain(|row| wanted.next_if_eq(&&row.step).is_some());
    rows
}

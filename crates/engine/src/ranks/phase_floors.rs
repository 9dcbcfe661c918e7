//! The memory that a rank keeps after phases that its program names: rollouts that sleep,
//! weights that are synchronized. It swings from one end of a phase to the next, and grows when
//! each end is higher than all before it more often in a row than chance has it.
//!
//! Its numbers, below, are not the detector's, which has at least twelve blocks in a window. A phase
//! may end a few times in a run, so that chance is reckoned by the order of the ends.

use serde::{Deserialize, Serialize};

use stepmem_types::device::OwnProcessMemory;
use stepmem_types::saved::{self, added};
use stepmem_types::step::{PhaseName, StepSample};
use stepmem_types::units::{Bytes, MEBIBYTE};

/// The phases of a rank whose ends are compared.
pub(crate) const PHASES_MAX: usize = 16;

/// Ends in a row that are higher than all before them, from which they may show growth.
const RISES_MIN: u32 = 3;
/// Less growth over these is not worth a word.
const RISE_BYTES_MIN: f64 = 32.0 * MEBIBYTE;
/// The chance, up to which highs in a row are growth, that ends in any order make them.
const CHANCE_MAX: f64 = 5e-5;
/// Highs in a row by which the chance is reckoned: of so many it is below [`CHANCE_MAX`].
const HIGHS_WEIGHED_MAX: usize = 16;
/// Rises of which the largest is at most so many times the least are those of a leak: chance makes
/// them uneven.
const EVEN_WITHIN: f64 = 1.5;
/// A newest rise of less than this share of their mean is that of a cache that fills.
const STEADY_RATIO_MIN: f64 = 0.5;
/// Growth is over when a phase ends with less than this share of it, …
const KEPT_RATIO_MIN: f64 = 0.5;
/// … or when so many ends have brought no new high.
const ENDS_WITHOUT_HIGH_MAX: u64 = 5;

/// The memory that is compared.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FloorBasis {
    /// Memory that PyTorch's tensors use; on the host, the process's.
    #[default]
    Allocated,
    /// Memory that the caching allocator holds.
    Reserved,
    /// Memory that the process uses on its device.
    Process,
}

/// The floors of a rank's phases in this incarnation.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct PhaseFloors {
    // Invariant: at most PHASES_MAX.
    #[serde(deserialize_with = "saved::list::<_, _, PHASES_MAX>")]
    floors: Vec<PhaseFloor>,
    /// Ends of further phases, which are not compared.
    #[serde(deserialize_with = "saved::counts")]
    n_left_out: u64,
}

/// The ends of one phase.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct PhaseFloor {
    name: PhaseName,
    basis: FloorBasis,
    #[serde(deserialize_with = "saved::counts")]
    n_ends: u64,
    #[serde(deserialize_with = "saved::figures")]
    newest: f64,
    /// The highest end.
    #[serde(deserialize_with = "saved::figures")]
    highest: f64,
    highs: Highs,
    growth: Option<FloorGrowth>,
}

/// Ends in a row that are higher than all before them.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
struct Highs {
    n: u32,
    /// The end before the first of them, and when it was, as a Unix time.
    #[serde(deserialize_with = "saved::figures")]
    from: f64,
    #[serde(deserialize_with = "saved::figures")]
    from_time: f64,
    /// The range of the ends before them.
    #[serde(deserialize_with = "saved::figures")]
    least_before: f64,
    #[serde(deserialize_with = "saved::figures")]
    most_before: f64,
    /// The rises from each to the next.
    #[serde(deserialize_with = "saved::figures")]
    least_rise: f64,
    #[serde(deserialize_with = "saved::figures")]
    most_rise: f64,
    #[serde(deserialize_with = "saved::figures")]
    newest_rise: f64,
}

/// Growth of a floor.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
struct FloorGrowth {
    #[serde(deserialize_with = "saved::figures")]
    from: f64,
    #[serde(deserialize_with = "saved::figures")]
    from_time: f64,
    /// The number of the end that it rises from.
    #[serde(deserialize_with = "saved::counts")]
    from_end: u64,
    n_rises: u32,
    /// The number of the end with the last new high, and when that was, as a Unix time.
    #[serde(deserialize_with = "saved::counts")]
    high_end: u64,
    #[serde(deserialize_with = "saved::figures")]
    high_time: f64,
}

/// A floor that grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RisingFloor<'a> {
    pub name: &'a PhaseName,
    pub basis: FloorBasis,
    /// The bytes after its newest end.
    pub newest: f64,
    /// The bytes that they rise from.
    pub from: f64,
    /// Ends since then.
    pub n_ends: u64,
    /// Ends among them that were higher than all before.
    pub n_rises: u32,
    /// Bytes a second since then; 0 where the times do not advance.
    pub bytes_per_second: f64,
}

impl PhaseFloors {
    /// Upper bound on its memory on the heap, in bytes.
    pub const HEAP_BYTES_MAX: usize =
        PHASES_MAX * (size_of::<PhaseFloor>() + PhaseName::BYTES_MAX + 2 * size_of::<usize>());

    /// Takes a record; only one of a named phase has an end. `time` is the Unix time of that.
    pub fn take(&mut self, sample: &StepSample, time: f64) {
        let Some(name) = &sample.phase_name else { return };
        let (basis, bytes) = figure_of(sample);
        if let Some(floor) = self.floors.iter_mut().find(|floor| floor.name == *name) {
            floor.end(basis, bytes, time);
        } else if self.floors.len() < PHASES_MAX {
            self.floors.reserve_exact(1);
            self.floors.push(PhaseFloor::new(name.clone(), basis, bytes, time));
        } else {
            self.n_left_out = added(self.n_left_out, 1);
        }
    }

    /// Returns the floor that grows fastest.
    pub fn rising(&self) -> Option<RisingFloor<'_>> {
        let rising = self.floors.iter().filter_map(PhaseFloor::rising);
        rising.max_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second))
    }

    /// Returns the number of ends of phases beyond the first [`PHASES_MAX`].
    pub(crate) fn n_left_out(&self) -> u64 {
        self.n_left_out
    }
}

/// Returns the memory that a phase ends with: the process's, as far as that was read.
fn figure_of(sample: &StepSample) -> (FloorBasis, f64) {
    let process = sample.own_process.and_then(OwnProcessMemory::bytes);
    let reserved = sample.figures.reserved.filter(|_| !sample.identity.is_host());
    let known = [(FloorBasis::Process, process), (FloorBasis::Reserved, reserved)];
    let known = known.into_iter().find_map(|(basis, bytes)| Some((basis, bytes?)));
    let (basis, bytes) = known.unwrap_or((FloorBasis::Allocated, sample.figures.allocated));
    (basis, Bytes::as_f64(bytes))
}

impl PhaseFloor {
    fn new(name: PhaseName, basis: FloorBasis, bytes: f64, time: f64) -> Self {
        let highs = Highs::after(bytes, time, (bytes, bytes));
        Self { name, basis, n_ends: 1, newest: bytes, highest: bytes, highs, growth: None }
    }

    /// Takes the bytes that the phase ends with once more. Those of the process tell the most:
    /// once it has them, it waits for them.
    fn end(&mut self, basis: FloorBasis, bytes: f64, time: f64) {
        if basis != self.basis {
            if basis == FloorBasis::Process {
                *self = Self::new(self.name.clone(), basis, bytes, time);
            }
            return;
        }
        self.n_ends = added(self.n_ends, 1);
        let (before, is_high) = (self.newest, bytes > self.highest);
        self.newest = bytes;
        if is_high {
            self.highs.add(bytes - before);
            self.highest = bytes;
        } else {
            let least = self.highs.least_before.min(bytes);
            self.highs = Highs::after(bytes, time, (least, self.highest));
        }
        self.follow(is_high, time);
    }

    /// Judges the newest end: growth begins, goes on or is over.
    fn follow(&mut self, is_high: bool, time: f64) {
        let Some(growth) = &mut self.growth else {
            if self.highs.show_growth(self.highest, self.n_ends) {
                let Highs { from, from_time, n, .. } = self.highs;
                let from_end = self.n_ends.saturating_sub(n.into());
                let high = (self.n_ends, time);
                self.growth = Some(FloorGrowth {
                    from,
                    from_time,
                    from_end,
                    n_rises: n,
                    high_end: high.0,
                    high_time: high.1,
                });
            }
            return;
        };
        if is_high {
            growth.n_rises = growth.n_rises.saturating_add(1);
            (growth.high_end, growth.high_time) = (self.n_ends, time);
        }
        let kept = growth.from + KEPT_RATIO_MIN * (self.highest - growth.from);
        let is_level = self.n_ends.saturating_sub(growth.high_end) >= ENDS_WITHOUT_HIGH_MAX;
        if is_level || self.newest < kept {
            self.growth = None;
        }
    }

    fn rising(&self) -> Option<RisingFloor<'_>> {
        let growth = self.growth?;
        let seconds = growth.high_time - growth.from_time;
        let bytes_per_second = (self.highest - growth.from) / seconds;
        Some(RisingFloor {
            name: &self.name,
            basis: self.basis,
            newest: self.newest,
            from: growth.from,
            n_ends: self.n_ends.saturating_sub(growth.from_end),
            n_rises: growth.n_rises,
            bytes_per_second: if seconds > 0.0 { bytes_per_second } else { 0.0 },
        })
    }
}

impl Highs {
    /// None yet, after an end; `before` is the range of all ends up to it.
    fn after(end: f64, time: f64, before: (f64, f64)) -> Self {
        Self {
            from: end,
            from_time: time,
            least_before: before.0,
            most_before: before.1,
            ..Self::default()
        }
    }

    fn add(&mut self, rise: f64) {
        let is_first = self.n == 0;
        self.least_rise = if is_first { rise } else { self.least_rise.min(rise) };
        self.most_rise = if is_first { rise } else { self.most_rise.max(rise) };
        self.newest_rise = rise;
        self.n = self.n.saturating_add(1);
    }

    /// Returns whether no chance makes these highs, the last of which is at `highest`, after the
    /// other of `n_ends` ends.
    fn show_growth(&self, highest: f64, n_ends: u64) -> bool {
        let growth = highest - self.from;
        let is_steady =
            self.newest_rise >= STEADY_RATIO_MIN * growth / f64::from(self.n.max(1));
        if self.n < RISES_MIN || growth < RISE_BYTES_MIN || !is_steady {
            return false;
        }
        let is_even = self.most_rise <= EVEN_WITHIN * self.least_rise;
        let n_before = n_ends.saturating_sub(self.n.into());
        let is_beyond_swings =
            n_before > 1 && self.least_rise > self.most_before - self.least_before;
        // Of ends in any order, the last is the highest of n with a chance of 1/n. So many of the
        // newest highs are always less likely than what counts as chance.
        let newest = (n_before + 1..=n_ends).rev().take(HIGHS_WEIGHED_MAX);
        let chance: f64 =
            newest.map(|n| 1.0 / u32::try_from(n).map_or(f64::INFINITY, f64::from)).product();
        is_even || is_beyond_swings || chance <= CHANCE_MAX
    }
}

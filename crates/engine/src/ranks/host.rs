//! Host memory of a rank: shared memory, `DataLoader` workers and other child processes; that
//! of its own process where the rank's other figures are a device's.

use serde::{Deserialize, Serialize};

use crate::ranks::limits::{Limit, LimitOrigin};
use crate::ranks::malloc::MallocReadings;
use stepmem_detect::{AxisPoint, Sample};
use stepmem_types::host::{
    ContainerReading, HostFigures, HostParts, KernelLimit, ProcessGroup,
};
use stepmem_types::saved;
use stepmem_types::step::Identity;
use stepmem_types::units::{Bytes, Count, MEBIBYTE};

/// Readings of child processes that are kept; with more, every other one is given up.
const POINTS_MAX: usize = 32;
/// The numbers by which the status calls memory of child processes, or of `/dev/shm`, growing.
///
/// They are not the detector's, which judges the same memory as a series and raises findings. These
/// are for a rate and a word next to the figures, of readings that become sparser with time: a
/// few suffice, and nothing is weighed against what is left.
struct RiseLimits {
    /// Readings that a rate needs.
    points_min: usize,
    /// The first part of the steps, which a rate leaves out: new processes fill their memory then.
    filling_ratio: f64,
    /// Processes whose memory moved by less than this, in bytes, have no rate: pages come and go.
    moved_min: f64,
    /// Readings that a straight rise needs.
    straight_points_min: usize,
    /// A straight rise gains this much in all, in bytes.
    straight_gain_min: f64,
    /// The second half of the steps of a straight rise gains at least this share of what the
    /// first half gains.
    straight_kept_min: f64,
    /// A straight rise is worth at least so many equal increments. A jump is worth 1, n readings
    /// on a line up to n - 1.
    straight_increments_min: f64,
}

const RISE: RiseLimits = RiseLimits {
    points_min: 4,
    filling_ratio: 0.2,
    moved_min: MEBIBYTE,
    straight_points_min: 6,
    straight_gain_min: 4.0 * MEBIBYTE,
    straight_kept_min: 0.6,
    straight_increments_min: 4.0,
};

/// Processes that hold less than this share of what they held before have been replaced.
const REPLACED_RATIO: f64 = 0.75;

/// Shared memory and child processes of a rank, as far as they are known.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct HostMemory {
    allocated: Option<Bytes>,
    /// The most of that, and the first step that had it.
    peak: Option<(Bytes, Count)>,
    total: Option<Bytes>,
    /// The kernel's limits of the process's data and address space; and the bytes that they limit
    /// beyond the process's memory.
    data: Option<(Bytes, Figure)>,
    address_space: Option<(Bytes, Figure)>,
    figures: HostFigures,
    /// Bytes of the same memory that its device holds; `None` where that has memory of its own.
    on_device: Option<Bytes>,
    workers: ChildProcesses,
    others: ChildProcesses,
    /// Files in `/dev/shm`, read like one process.
    shm: ChildProcesses,
    malloc: MallocReadings,
}

/// Returns the bytes that child processes take from the memory that a rank's figures are about:
/// none of a GPU's. What they take of unified memory counts as in use on the device.
pub(crate) fn child_bytes(rank: &Identity, host: Option<&HostMemory>) -> f64 {
    host.filter(|_| rank.is_host()).map_or(0.0, HostMemory::child_bytes)
}

impl HostMemory {
    /// Takes a reading of step `step`. `held`: the process's memory of the host.
    pub fn take(&mut self, parts: &HostParts, held: Bytes, step: Count) {
        let beyond = |of: KernelLimit| {
            let limit = of.limit.filter(|limit| limit.get() > 0)?;
            Some((limit, Figure(of.used?.as_f64() - held.as_f64())))
        };
        self.data = beyond(parts.data).or(self.data);
        self.address_space = beyond(parts.address_space).or(self.address_space);
        self.allocated = parts.allocated.or(self.allocated);
        let higher = |held: &Bytes| self.peak.is_none_or(|(peak, _)| *held > peak);
        self.peak = parts.allocated.filter(higher).map(|held| (held, step)).or(self.peak);
        // A machine without a limit may report 0. That is not a capacity.
        self.total = parts.total.filter(|total| total.get() > 0).or(self.total);
        self.figures = parts.figures.or(self.figures);
        self.workers.take(parts.workers, step);
        self.others.take(parts.others, step);
        let shm = parts.figures.shm_used;
        self.shm.take(ProcessGroup { count: shm.map(|_| 1), bytes: shm, own: None }, step);
        self.malloc.take(parts.malloc, held, step);
    }

    /// Returns the bytes that child processes hold now, as they were last read; 0 where that is
    /// not known.
    pub(crate) fn child_bytes(&self) -> f64 {
        [&self.workers, &self.others].into_iter().filter_map(ChildProcesses::held).sum()
    }

    /// Returns the bytes that its process and child processes hold, as far as they are known.
    pub fn held(&self) -> u64 {
        let children = [&self.workers, &self.others].into_iter();
        let known = children.filter_map(|of| of.bytes.filter(|_| !of.is_over));
        known.chain(self.allocated).map(Bytes::get).sum()
    }

    /// Returns the host memory that its process may use; `None` where that is not known, and
    /// where the rank's other figures are about it.
    pub fn total(&self) -> Option<Bytes> {
        self.total.filter(|_| self.allocated.is_some())
    }

    /// Returns the capacity of its process's growth, in bytes: the total less what child
    /// processes and its device hold of it; or what it holds and its container has left,
    /// whichever is less.
    pub fn capacity(&self, container: Option<&ContainerReading>) -> Option<f64> {
        let on_device = self.on_device.map_or(0.0, Bytes::as_f64);
        let others = self.child_bytes() + on_device;
        let own = self.total().map(|total| (total.as_f64() - others).max(1.0));
        let left = container.and_then(ContainerReading::headroom_bytes);
        let shared = left.zip(self.allocated).map(|(left, held)| held.as_f64() + left);
        let kernel = self.kernel_limit().map(|limit| limit.reachable().max(1.0));
        own.into_iter().chain(shared).chain(kernel).reduce(f64::min)
    }

    /// Returns the bytes that child processes hold of their own; 0 once all have ended, `None`
    /// where they are not known.
    pub fn children_own(&self) -> Option<Bytes> {
        let groups = [&self.workers, &self.others].into_iter().filter(|of| of.count > 0);
        let sum = groups.map(ChildProcesses::own_now).sum::<Option<u64>>()?;
        Bytes::new(sum).ok()
    }

    /// Returns whether any child process is there now, as far as is known.
    pub fn has_children(&self) -> bool {
        [&self.workers, &self.others].into_iter().any(|of| of.count > 0 && !of.is_over)
    }

    /// Returns the capacity of the growth of what child processes hold of their own, in bytes:
    /// that, and what is left. `own` is the host memory that the rank's figures are about, with
    /// what its process holds of it, where that is not next to a device's.
    pub(crate) fn children_capacity(
        &self,
        own: Option<(f64, f64)>,
        container: Option<&ContainerReading>,
    ) -> Option<f64> {
        let left = self.left(own, container)?;
        Some((self.children_own()?.as_f64() + left).max(1.0))
    }

    /// Returns the capacity of the growth of files in `/dev/shm`, in bytes: what fits there, or
    /// what they take and what is left of memory, whichever is less; arguments likewise.
    pub(crate) fn shm_capacity(
        &self,
        own: Option<(f64, f64)>,
        container: Option<&ContainerReading>,
    ) -> Option<f64> {
        let used = self.figures.shm_used?.as_f64();
        let fits = self.figures.shm_limit.map(Bytes::as_f64);
        let left = self.left(own, container).map(|left| used + left);
        fits.into_iter().chain(left).reduce(f64::min).map(|capacity| capacity.max(1.0))
    }

    /// Returns the bytes of host memory that are left; arguments likewise.
    fn left(
        &self,
        own: Option<(f64, f64)>,
        container: Option<&ContainerReading>,
    ) -> Option<f64> {
        let beside = || Some((self.total()?.as_f64(), self.allocated?.as_f64()));
        let on_device = self.on_device.map_or(0.0, Bytes::as_f64);
        let left = own
            .or_else(beside)
            .map(|(total, held)| (total - held - self.child_bytes() - on_device).max(0.0));
        let of_container = container.and_then(ContainerReading::headroom_bytes);
        left.into_iter().chain(of_container).reduce(f64::min)
    }

    /// Returns the files in `/dev/shm` and what fits there, as they were last read.
    pub fn shm(&self) -> Option<(Bytes, Bytes)> {
        self.figures.shm_used.zip(self.figures.shm_limit)
    }

    /// Returns the limit of the kernel for the process that leaves the least.
    pub fn kernel_limit(&self) -> Option<Limit> {
        let known =
            [(LimitOrigin::Data, self.data), (LimitOrigin::AddressSpace, self.address_space)];
        let known = known.into_iter().filter_map(|(origin, limit)| {
            let (bytes, Figure(others)) = limit?;
            Some(Limit { origin, bytes, others })
        });
        known.reduce(Limit::tighter)
    }

    /// Returns the limit that binds its memory next to a device's: what it may use of the host
    /// less what child processes hold of that, or the kernel's for the process.
    pub fn binding(&self) -> Option<Limit> {
        let others = self.child_bytes();
        let shared =
            self.total().map(|bytes| Limit { origin: LimitOrigin::Device, bytes, others });
        shared.into_iter().chain(self.kernel_limit()).reduce(Limit::tighter)
    }

    /// Takes what a device holds that uses the same memory.
    pub fn share(&mut self, on_device: Option<Bytes>) {
        self.on_device = on_device.or(self.on_device);
    }

    /// Returns the figures that its process's allocator reported, as far as they were read.
    pub fn malloc(&self) -> &MallocReadings {
        &self.malloc
    }

    /// The anonymous and shared memory of its process; `None` where the rank's other figures
    /// are about it, or it was not read.
    pub fn allocated(&self) -> Option<Bytes> {
        self.allocated
    }

    /// The most of that since its process began, and the first step that had it.
    pub fn peak(&self) -> Option<(Bytes, Count)> {
        self.peak
    }

    /// Returns the view of it that others have, not in words yet.
    pub fn view(&self) -> HostView {
        HostView {
            container: None,
            allocated_bytes: self.allocated,
            total_bytes: self.total(),
            kernel_limit: self
                .kernel_limit()
                .filter(|_| self.allocated.is_some())
                .map(Into::into),
            figures: self.figures,
            workers: self.workers.view(),
            child_processes: self.others.view(),
            shm: self.shm.view().map(|of| ShmView {
                bytes_per_step: of.bytes_per_step,
                is_straight: of.is_straight,
            }),
            sentence: String::new(),
        }
    }
}

/// The last reading of child processes that were there, and the readings before.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct ChildProcesses {
    count: u32,
    bytes: Option<Bytes>,
    own: Option<Bytes>,
    step: Count,
    is_over: bool,
    #[serde(deserialize_with = "saved::figures")]
    bytes_per_step: Option<f64>,
    /// Step and bytes of readings since these processes were started.
    #[serde(deserialize_with = "saved::figure_list::<_, _, POINTS_MAX>")]
    points: Vec<(f64, f64)>,
}

impl ChildProcesses {
    fn take(&mut self, reading: ProcessGroup, step: Count) {
        let Some(count) = reading.count else { return };
        if count == 0 {
            self.is_over = true;
            return;
        }
        // A page that stops being shared is no growth of theirs.
        let now = reading.own.or(reading.bytes).map(Bytes::as_f64);
        let last = self.points.last().map(|(_, bytes)| *bytes);
        let is_less = now.zip(last).is_some_and(|(now, last)| now < REPLACED_RATIO * last);
        if self.is_over || count != self.count || is_less {
            self.points.clear();
            self.bytes_per_step = None;
        }
        (self.count, self.bytes, self.step, self.is_over) = (count, reading.bytes, step, false);
        self.own = reading.own;
        let Some(now) = now else { return };
        if self.points.len() >= POINTS_MAX {
            let mut is_kept = false;
            self.points.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        }
        self.points.push((step.as_f64(), now));
        self.bytes_per_step = self.slope();
    }

    /// Returns the bytes that they hold; `None` once they have ended, and where it cannot be
    /// read.
    fn held(&self) -> Option<f64> {
        self.bytes.filter(|_| !self.is_over).map(Bytes::as_f64)
    }

    /// Returns the bytes that they hold of their own; 0 once they have ended.
    fn own_now(&self) -> Option<u64> {
        if self.is_over { Some(0) } else { self.own.map(Bytes::get) }
    }

    /// Returns the rate at which they grow, in bytes per step. It is a line by least squares
    /// over the last four fifths of the steps since they were first read.
    ///
    /// A reading at step x with y bytes weighs w, the steps of that span that are nearer to it
    /// than to any other reading. The slope is Σ w (x - X) (y - Y) / Σ w (x - X)², with the
    /// weighted means X and Y. So it does not matter that readings get sparser with time.
    /// `None` for fewer than `points_min` readings, and if they moved by less than
    /// `moved_min`: that is no rate.
    fn slope(&self) -> Option<f64> {
        let ((first, at_first), (last, at_last)) =
            (*self.points.first()?, *self.points.last()?);
        if self.points.len() < RISE.points_min {
            return None;
        }
        if (at_last - at_first).abs() < RISE.moved_min {
            return None;
        }
        let from = first + RISE.filling_ratio * (last - first);
        let weighed = || {
            self.points.iter().enumerate().map(move |(idx, (x, y))| {
                let place = |idx: Option<usize>| Some(self.points.get(idx?)?.0);
                let half_way = |other: Option<f64>| other.map_or(*x, |other| 0.5 * (x + other));
                let begin = half_way(place(idx.checked_sub(1))).max(from);
                let end = half_way(place(idx.checked_add(1)));
                ((end - begin).max(0.0), *x, *y)
            })
        };
        let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
            weighed().map(|(weight, x, y)| weight * of(x, y)).sum()
        };
        let all = sum(&|_, _| 1.0);
        let (mean_x, mean_y) = (sum(&|x, _| x) / all, sum(&|_, y| y) / all);
        let rise = sum(&|x, y| (x - mean_x) * (y - mean_y));
        let run = sum(&|x, _| (x - mean_x).powi(2));
        Some(rise / run).filter(|slope| slope.is_finite())
    }

    /// Returns whether their memory is still rising in a straight line, as that of a leak does.
    /// Three conditions hold then. It rises by `straight_gain_min` or more. Its increments
    /// are alike (the square of the sum by the sum of the squares). The second half of the steps
    /// keeps `straight_kept_min` of the growth in the first. Pages that are copied once they
    /// are touched fade out instead.
    fn is_straight(&self) -> bool {
        let [first, .., last] = self.points.as_slice() else { return false };
        if self.points.len() < RISE.straight_points_min || self.is_over {
            return false;
        }
        let Some(middle) = self.bytes_at(0.5 * (first.0 + last.0)) else { return false };
        let pairs = self.points.iter().zip(self.points.iter().skip(1));
        let squares: f64 = pairs.map(|(from, to)| (to.1 - from.1).powi(2)).sum();
        let increments = (last.1 - first.1).powi(2) / squares;
        last.1 - first.1 >= RISE.straight_gain_min
            && last.1 - middle >= RISE.straight_kept_min * (middle - first.1)
            && increments >= RISE.straight_increments_min
    }

    /// Returns the bytes at a step between two readings, on the line between them.
    fn bytes_at(&self, step: f64) -> Option<f64> {
        let mut pairs = self.points.iter().zip(self.points.iter().skip(1));
        let (before, after) = pairs.find(|(_, after)| after.0 >= step)?;
        let share = (step - before.0) / (after.0 - before.0);
        Some(before.1 + share * (after.1 - before.1))
    }

    fn view(&self) -> Option<ChildView> {
        (self.count > 0).then_some(ChildView {
            count: self.count,
            bytes: self.bytes,
            own_bytes: self.own,
            bytes_per_step: self.bytes_per_step,
            is_straight: self.is_straight(),
            step: self.step,
            ended: self.is_over,
        })
    }
}

/// Host memory of a rank.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct HostView {
    /// The container that it is in, as one of its ranks read it last; absent where nothing
    /// limits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<ContainerReading>>,
    /// Anonymous and shared memory of its process; absent where the rank's own figures are
    /// about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_bytes: Option<Bytes>,
    /// The host memory that its process may use, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<Bytes>,
    /// The kernel's limit of its process that leaves the least, likewise; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_limit: Option<KernelLimitView>,
    /// The parts of it that the rank reported last.
    #[serde(flatten)]
    pub figures: HostFigures,
    /// `DataLoader` workers, and other processes that `multiprocessing` started; absent if
    /// there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<ChildView>,
    /// Other child processes that are not ranks; absent if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child_processes: Option<ChildView>,
    /// Growth of the files in `/dev/shm`; absent where these were not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm: Option<ShmView>,
    /// The host memory in words; empty if there is next to nothing.
    pub sentence: String,
}

impl HostView {
    /// Returns the bytes that are left of the host memory next to a device's, or of the
    /// container, whichever is less; `None` of a rank whose own figures are about it.
    pub fn headroom_bytes(&self) -> Option<f64> {
        let children = [self.workers, self.child_processes].into_iter().flatten();
        let held = children.filter(|of| !of.ended).filter_map(|of| of.bytes);
        let held: f64 = held.chain(self.allocated_bytes).map(Bytes::as_f64).sum();
        let own = (self.total_bytes?.as_f64() - held).max(0.0);
        let shared = self.container.as_ref().and_then(|of| of.headroom_bytes());
        let kernel = self.kernel_limit.zip(self.allocated_bytes);
        let kernel = kernel.map(|(limit, held)| limit.reachable_bytes - held.as_f64());
        Some(shared.into_iter().chain(kernel).fold(own, f64::min).max(0.0))
    }
}

/// Growth of the files in `/dev/shm`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct ShmView {
    /// `null` until there is an estimate.
    pub bytes_per_step: Option<f64>,
    /// Set when they are still rising in a straight line.
    pub is_straight: bool,
}

/// A limit of the kernel for a process.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct KernelLimitView {
    /// The figure that is limited: `data` (`ulimit -d`) or `address_space` (`ulimit -v`).
    pub origin: LimitOrigin,
    pub limit_bytes: Bytes,
    /// The most that the process's memory can be, before its figure reaches the limit.
    pub reachable_bytes: f64,
}

impl From<Limit> for KernelLimitView {
    fn from(limit: Limit) -> Self {
        let Limit { origin, bytes, .. } = limit;
        Self { origin, limit_bytes: bytes, reachable_bytes: limit.reachable() }
    }
}

/// A number of bytes that may be below 0.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct Figure(#[serde(deserialize_with = "saved::figures")] f64);

/// Processes below a rank's, as they were read last.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct ChildView {
    /// Number of the processes.
    pub count: u32,
    /// The memory that they share with no other process; `null` where it cannot be read.
    pub bytes: Option<Bytes>,
    /// The part of that without pages that only stopped being shared since they were first read;
    /// absent where it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_bytes: Option<Bytes>,
    /// Growth of the memory of their own, or where that is not known of all; `null` until there
    /// is an estimate.
    pub bytes_per_step: Option<f64>,
    /// Set when their memory is still rising in a straight line.
    #[serde(default)]
    pub is_straight: bool,
    /// The step at which they were read.
    pub step: Count,
    /// Set when they have ended since.
    pub ended: bool,
}

/// Returns host memory as the detector takes it: of that nothing but the level is known.
pub(crate) fn host_sample(at: AxisPoint, bytes: Bytes) -> Sample {
    Sample {
        at,
        allocated: bytes.as_f64(),
        requested: None,
        peak: None,
        peak_bound: None,
        reserved: None,
        peak_reserved: None,
        live_blocks: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const PAGE: u64 = 4096;

    /// A child process that was read at these steps, with these bytes more than 1,000 MiB.
    fn read(points: impl IntoIterator<Item = (u64, u64)>) -> ChildProcesses {
        let mut processes = ChildProcesses::default();
        for (step, more) in points {
            let bytes = Bytes::new(1000 * MIB + more).ok();
            let reading = ProcessGroup { count: Some(1), bytes, own: None };
            processes.take(reading, Count::new(step).unwrap());
        }
        processes
    }

    /// Returns whether memory of these increments, one a reading, is a straight rise.
    fn is_straight(increments: &[u64]) -> bool {
        let heights = increments.iter().scan(0, |height, increment| {
            *height += increment;
            Some(*height)
        });
        let heights = std::iter::once(0).chain(heights);
        read((0..).step_by(10).zip(heights)).is_straight()
    }

    #[test]
    fn rate_is_of_four_readings_that_rose_by_1_mib() {
        let has_rate = |n: u64, rise: u64| {
            let points = (0..n).map(|idx| (10 * idx, if idx + 1 == n { rise } else { 0 }));
            read(points).bytes_per_step.is_some()
        };
        assert_eq!((has_rate(4, MIB), has_rate(3, MIB)), (true, false));
        assert_eq!((has_rate(4, MIB), has_rate(4, MIB - PAGE)), (true, false));
    }

    #[test]
    fn rate_leaves_out_a_first_fifth() {
        // The first reading is out of line, and stands for the steps halfway to the next.
        let is_of_line = |next: u64| {
            let rest = [next, 60, 80, 100].map(|step| (step, 50 * MIB + step * MIB));
            let rate = read(std::iter::once((0, 0)).chain(rest)).bytes_per_step.unwrap();
            (rate / MEBIBYTE - 1.0).abs() < 1e-9
        };
        assert_eq!((is_of_line(40), is_of_line(41)), (true, false));
    }

    #[test]
    fn rise_is_straight_from_six_readings_on_that_gained_4_mib() {
        assert_eq!((is_straight(&[MIB; 5]), is_straight(&[MIB; 4])), (true, false));
        let of_all = |last: u64| is_straight(&[&[MIB / 2; 7][..], &[last]].concat());
        assert_eq!((of_all(MIB / 2), of_all(MIB / 2 - PAGE)), (true, false));
    }

    #[test]
    fn rise_is_straight_whose_later_half_keeps_three_fifths_of_the_earlier() {
        let kept =
            |last: u64| is_straight(&[&[10 * MIB; 4][..], &[6 * MIB; 3], &[last]].concat());
        assert_eq!((kept(6 * MIB + PAGE), kept(6 * MIB - PAGE)), (true, false));
    }

    #[test]
    fn rise_is_straight_that_is_worth_four_equal_increments() {
        let with =
            |last: u64| is_straight(&[10, 0, 10, 0, 10, 0, last, 0].map(|mib| mib * MIB));
        assert_eq!((with(10), with(11)), (true, false));
    }

    #[test]
    fn processes_that_hold_three_quarters_are_the_same() {
        let n_points = |held: u64| {
            let mut processes = read([(0, 0)]);
            let bytes = Bytes::new(held * MIB).ok();
            let reading = ProcessGroup { count: Some(1), bytes, own: None };
            processes.take(reading, Count::new(1).unwrap());
            processes.points.len()
        };
        assert_eq!((n_points(750), n_points(749)), (2, 1));
    }
}

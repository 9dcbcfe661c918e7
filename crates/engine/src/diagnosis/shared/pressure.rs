//! Pressure: peaks by capacity.

use crate::diagnosis::shared::input::{Subject, SubjectView};
use crate::processes::ProcessView;
use crate::ranks::basis::Basis;
use crate::ranks::container_view::ContainerView;
use crate::ranks::limits::{Limit, LimitOrigin};
use crate::ranks::view::RankView;
use stepmem_detect::Signal;
use stepmem_types::host::ContainerReading;
use stepmem_types::units::Bytes;

/// A way of measuring pressure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// The memory that it is about.
    pub basis: Basis,
    /// Peak by capacity; above 1 where the figures contradict each other.
    pub ratio: f64,
    pub capacity: Bytes,
    /// The origin of the capacity, where that is a limit of the process's own.
    pub set_by: Option<LimitOrigin>,
    /// Set when it is of all memory of the rank's container.
    pub is_of_container: bool,
}

impl Pressure {
    fn of(basis: Basis, peak: Option<Bytes>, capacity: Option<Bytes>) -> Option<Self> {
        let capacity = capacity?;
        let ratio = peak?.as_f64() / capacity.as_f64();
        Some(Self { basis, ratio, capacity, set_by: None, is_of_container: false })
    }

    fn of_limit(basis: Basis, peak: Bytes, limit: Limit) -> Self {
        Self {
            basis,
            ratio: limit.ratio(peak),
            capacity: limit.bytes,
            set_by: Some(limit.origin).filter(|origin| *origin != LimitOrigin::Device),
            is_of_container: false,
        }
    }
}

/// Returns every known pressure of a rank. That of allocated memory is by its recent peak, else
/// the high-water mark. That of reserved is by the most that it recently held. That of the
/// device is by NVML's last reading.
pub fn of_rank(rank: &RankView<'_>) -> impl Iterator<Item = Pressure> {
    all_of_rank(rank).into_iter().flatten()
}

fn all_of_rank(rank: &RankView<'_>) -> [Option<Pressure>; 4] {
    let device_total = rank.device.total.filter(|total| total.get() > 0);
    let high_water = rank.high_water_allocated.filter(|_| rank.recent_peak_allocated.is_none());
    let of = |basis, peak| Some(Pressure::of_limit(basis, peak?, rank.limits.binding()?));
    [
        of(Basis::Allocated, rank.recent_peak_allocated),
        of(Basis::HighWater, high_water),
        of(Basis::Reserved, rank.recent_reserved),
        Pressure::of(Basis::Device, rank.device.used, device_total),
    ]
}

/// Returns the pressure of the host memory next to a rank's device, by what its process holds:
/// the same as of a rank without a device. One rank of a container has that of the container.
/// `None` where it is the device's memory, too.
pub(crate) fn of_host(rank: &RankView<'_>) -> Option<Pressure> {
    let of_process = || {
        let host = rank.host.filter(|_| !rank.identity.is_unified())?;
        Some(Pressure::of_limit(Basis::Host, host.allocated()?, host.binding()?))
    };
    rank.container.filter(|of| of.is_lead).and_then(of_container).or_else(of_process)
}

fn of_container(container: ContainerView<'_>) -> Option<Pressure> {
    let ContainerReading { limit, used, .. } = container.reading;
    let pressure = Pressure::of(Basis::Host, *used, Some(*limit))?;
    Some(Pressure { is_of_container: true, ..pressure })
}

/// Returns the pressure of an unmanaged process, by its recent peak. The memory of others on
/// the device is reported by the ranks that use it.
pub(crate) fn of_process(process: &ProcessView<'_>) -> Option<Pressure> {
    Pressure::of(Basis::Process, process.recent_peak, process.capacity)
}

/// Returns every pressure that is known of a subject, except the host's next to a device.
pub(crate) fn of_subject(subject: &Subject<'_, '_>) -> impl Iterator<Item = Pressure> {
    let all = match subject.view {
        SubjectView::Rank(_, _, rank) => all_of_rank(rank),
        SubjectView::Process(_, process) => [of_process(process), None, None, None],
        SubjectView::Device(..) => [None; 4],
    };
    all.into_iter().flatten()
}

/// Returns the pressures of the memory that a signal is about.
pub(crate) fn of_signal(
    subject: &Subject<'_, '_>,
    signal: Signal,
) -> impl Iterator<Item = Pressure> {
    let is_on_host = subject.rank().is_some_and(|rank| rank.identity.is_host());
    let is_of = move |of: &Pressure| match (signal, of.basis) {
        (Signal::Allocated, Basis::Reserved) => is_on_host,
        (Signal::Allocated, Basis::Allocated | Basis::HighWater)
        | (Signal::Reserved | Signal::OutsideAllocator, Basis::Reserved | Basis::Device)
        | (Signal::Host | Signal::Children | Signal::Shm, Basis::Host)
        | (Signal::Process, Basis::Process) => true,
        _ => false,
    };
    let of_host = subject.rank().and_then(of_host);
    of_subject(subject).chain(of_host).filter(is_of)
}

/// Returns the pressure of a rank's live memory: of its recent peak, else of its high-water
/// mark. `None` for host memory, which has neither.
///
/// The memory that an allocator holds, and the memory in use on a device, include its cache.
/// That fills a device in good health.
pub(crate) fn of_live_memory(subject: &Subject<'_, '_>, signal: Signal) -> Option<Pressure> {
    let is_live = |of: &Pressure| matches!(of.basis, Basis::Allocated | Basis::HighWater);
    let rank = subject.rank().filter(|_| !signal.is_beside())?;
    of_rank(rank).find(is_live)
}

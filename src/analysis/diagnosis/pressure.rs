//! Pressure: peaks by capacity.

use crate::analysis::basis::Basis;
use crate::analysis::diagnosis::scene::{Subject, SubjectView};
use crate::analysis::processes::ProcessView;
use crate::analysis::rank::view::RankView;
use crate::model::units::Bytes;

/// One way of measuring pressure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// The memory that it is about.
    pub basis: Basis,
    /// Peak by capacity; above 1 where the figures contradict each other.
    pub ratio: f64,
    pub capacity: Bytes,
}

impl Pressure {
    fn of(basis: Basis, peak: Option<Bytes>, capacity: Option<Bytes>) -> Option<Self> {
        let capacity = capacity?;
        Some(Self { basis, ratio: peak?.as_f64() / capacity.as_f64(), capacity })
    }
}

/// Returns every pressure that is known of a rank: of allocated by its recent peak, of reserved by the most that it
/// recently held, of the device by NVML's last reading.
pub fn of_rank(rank: &RankView<'_>) -> impl Iterator<Item = Pressure> {
    let device_total = rank.device.total.filter(|total| total.get() > 0);
    [
        Pressure::of(Basis::Allocated, rank.recent_peak_allocated, rank.capacity),
        Pressure::of(Basis::Reserved, rank.recent_reserved, rank.capacity),
        Pressure::of(Basis::Device, rank.device.used, device_total),
    ]
    .into_iter()
    .flatten()
}

/// Returns the pressure of a process that does not push. What others hold on the device is reported by the ranks that
/// push.
pub fn of_process(process: &ProcessView<'_>) -> Option<Pressure> {
    Pressure::of(Basis::Process, Some(process.used), process.capacity)
}

/// Returns the highest pressure of a subject; the earlier basis wins a tie.
pub fn highest(subject: &Subject<'_, '_>) -> Option<Pressure> {
    match subject.view {
        SubjectView::Rank(_, _, rank) => {
            of_rank(rank).reduce(|best, next| if next.ratio > best.ratio { next } else { best })
        }
        SubjectView::Process(_, process) => of_process(process),
        SubjectView::Device(..) => None,
    }
}

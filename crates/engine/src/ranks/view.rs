//! The public view of one rank at one time.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ranks::basis::Basis;
use crate::ranks::container_view::ContainerView;
use crate::ranks::detectors::RankDetectors;
use crate::ranks::ended::{OomEvent, RankEnded};
use crate::ranks::floors::Floors;
use crate::ranks::host::{HostMemory, child_bytes};
use crate::ranks::lifetime::LifetimeStats;
use crate::ranks::limits::{LimitOrigin, Limits};
use crate::ranks::phase_floors::PhaseFloors;
use crate::ranks::planned_end::PlannedEnd;
use crate::ranks::totals::RankTotals;
use crate::requests::causes::SiteView;
use stepmem_detect::{Asked, Axis, Capacity, Outlook, Signal};
use stepmem_types::device::{DeviceMemoryKind, OwnProcessMemory};
use stepmem_types::host::ContainerReading;
use stepmem_types::step::{Identity, StepFigures, StepMark};
use stepmem_types::units::{Bytes, Uptime};

/// The activity of a rank: it pushes, or does not.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RankActivity {
    /// The rank pushes.
    Pushing,
    /// The rank has been silent for longer than a live process is.
    Silent,
    /// The rank ended, and stays for the answer.
    Ended,
}

/// NVML's figures of the rank's device, where there are any.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceView {
    /// The capacity of the device; of unified memory the machine's.
    pub total: Option<Bytes>,
    /// Bytes that everything on the device uses; of unified memory those that the rank's
    /// process uses on device and host.
    pub used: Option<Bytes>,
    /// Bytes that the rank's own process uses.
    pub process_used: Option<Bytes>,
    /// The estimate of the process's bytes, where they are unknown: what is in use on a device
    /// that only the rank's container has.
    pub process_estimated: Option<Bytes>,
    pub memory_kind: Option<DeviceMemoryKind>,
}

/// The state of one rank at one time, borrowed from its window: the input of diagnoses.
#[derive(Clone, Copy, Debug)]
pub struct RankView<'a> {
    /// The rank's own description.
    pub identity: &'a Identity,
    /// The last train step, if there was one.
    pub last_train: Option<&'a StepFigures>,
    /// The rank's host memory in addition to its own figures, if it has any.
    pub host: Option<&'a HostMemory>,
    /// The last reading of its container that its own client took.
    pub own_container: Option<&'a ContainerReading>,
    /// The rank's container, where that is judged.
    pub container: Option<ContainerView<'a>>,
    /// The kernel's kill of its process, where that is the reason of its silence.
    pub kill: Option<SilentKill>,
    /// The greatest known peak of allocated of the recent window, evaluation included; `None`
    /// where none is known.
    pub recent_peak_allocated: Option<Bytes>,
    /// The most that is known to have been reserved in the recent window, within steps or at
    /// their ends.
    pub recent_reserved: Option<Bytes>,
    /// The maximum of allocated since the rank's process began, which bounds the peaks that are
    /// not known.
    pub high_water_allocated: Option<Bytes>,
    /// Set when its allocator had to flush its cache in the last 15 minutes.
    pub has_retried: bool,
    /// The greatest known peak of allocated of this and the previous interval.
    pub interval_peak_allocated: Option<Bytes>,
    /// The rank's own capacity: the limit that binds, of [`Self::limits`].
    pub capacity: Option<Bytes>,
    /// The rank's limits: the device's, as pushed, else as NVML reports; and its own.
    pub limits: Limits,
    /// NVML's figures of its device.
    pub device: DeviceView,
    /// Model of its device, where NVML names it.
    pub device_model: Option<&'a str>,
    /// The detector, for its trends and slopes.
    pub detectors: &'a RankDetectors,
    /// The statistics of this incarnation.
    pub lifetime: &'a LifetimeStats,
    /// The counts since the exporter began.
    pub totals: RankTotals,
    /// Train steps of this incarnation.
    pub life_steps: u32,
    /// Events that may change what memory holds, in the order of [`StepMark::ALL`], since the
    /// exporter began.
    pub marks_total: [u64; StepMark::ALL.len()],
    /// The end of the rank, if it ended.
    pub ended: Option<&'a RankEnded>,
    /// The time that it has been silent, if that is longer than a live process is.
    pub silent: Option<Duration>,
    /// The last time that it ran out of memory, while that is news.
    pub oom: Option<&'a OomEvent>,
    /// The time of the last accepted record.
    pub last_seen: Uptime,
    /// Bytes that the process uses beyond its allocator, by the newest reading.
    pub outside_allocator_bytes: Option<f64>,
    /// The estimate of the bytes beyond its allocator, where they are unknown. No trend is
    /// judged by it.
    pub outside_estimated_bytes: Option<f64>,
    /// The median of either at the last readings, since a reading and a record are never of quite
    /// the same moment.
    pub outside_steady_bytes: Option<f64>,
    /// The memory of its process on its device as its client read it; `None` where the
    /// exporter's NVML lists the process.
    pub own_process: Option<OwnProcessMemory>,
    /// The known facts of the code behind its memory.
    pub site: SiteView<'a>,
    /// The facts with which its outlook is asked for: how long it has been silent, and whether
    /// it has ended.
    pub asked: Asked,
    /// The end of its training, as far as what its process names can be believed.
    pub planned_end: PlannedEnd,
    /// The memory that it keeps after phases that its program names.
    pub phase_floors: &'a PhaseFloors,
    /// The floors of its live memory.
    pub floors: &'a Floors,
}

/// The kernel's kill, for lack of memory, of a process that fell silent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SilentKill {
    /// Set when another process of its container reported it; else it is only likely.
    pub is_seen: bool,
    /// Processes of its container that the kernel killed then.
    pub n_kills: u64,
    /// The share of its limit that the container used when the rank last read it.
    pub used_ratio: Option<f64>,
}

/// The headroom of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Headroom {
    /// The size of the headroom, in bytes.
    pub bytes: f64,
    /// The memory of the rank that it rests on.
    pub basis: Basis,
}

impl RankView<'_> {
    /// Returns whether its memory is judged by time, as it takes no steps.
    pub fn is_by_time(&self) -> bool {
        self.detectors.own().axis() == Axis::Seconds
    }

    /// Returns the seconds that its process has gone on after its last step without another. A
    /// server that waits for calls has not.
    pub fn seconds_without_steps(&self) -> Option<f64> {
        let goes_on = !self.identity.unit.is_calls() || self.is_by_time();
        self.lifetime.seconds_without_steps().filter(|_| goes_on)
    }

    /// The event markers that it reported, by name; only those that came.
    pub fn marks(&self) -> BTreeMap<Cow<'static, str>, u64> {
        let by_mark = StepMark::ALL.into_iter().zip(self.marks_total);
        by_mark.filter(|(_, n)| *n > 0).map(|(mark, n)| (mark.as_label().into(), n)).collect()
    }

    /// Returns the capacity that growth of a signal is weighed against.
    pub fn capacity_of(&self, signal: Signal) -> Capacity {
        match signal {
            Signal::Host => self.host.and_then(|host| host.capacity(self.own_container)).into(),
            Signal::Children => self.children_capacity().into(),
            Signal::Shm => self.shm_capacity().into(),
            Signal::Allocated
            | Signal::Reserved
            | Signal::OutsideAllocator
            | Signal::Process => self.limits.capacity(child_bytes(self.identity, self.host)),
        }
    }

    /// Returns the capacity of the growth of its child processes, in bytes.
    fn children_capacity(&self) -> Option<f64> {
        self.host?.children_capacity(self.own_on_host(), self.own_container)
    }

    /// Returns the capacity of the growth of files in `/dev/shm`, in bytes.
    fn shm_capacity(&self) -> Option<f64> {
        self.host?.shm_capacity(self.own_on_host(), self.own_container)
    }

    /// Returns the host memory that the rank's figures are about, and what it holds of it.
    fn own_on_host(&self) -> Option<(f64, f64)> {
        let held = self.last_train.map(|last| last.allocated);
        let own = self.limits.shared.zip(held).filter(|_| self.identity.is_host());
        own.map(|(limit, held)| (limit.bytes.as_f64(), held.as_f64()))
    }

    /// Returns the origin of its capacity, where that is a limit of the process's own.
    pub fn capacity_set_by(&self) -> Option<LimitOrigin> {
        self.limits.own_binding().map(|limit| limit.origin)
    }

    /// Returns the outlook of the growth of a signal, as of now; `None` where it shows none.
    pub fn outlook(&self, signal: Signal) -> Option<Outlook> {
        let is_over = self.asked.is_over || self.has_ended(signal);
        let asked = Asked { is_over, ..self.asked };
        self.detectors.of(signal).outlook(signal, self.capacity_of(signal), &asked)
    }

    /// Returns whether a signal is of child processes that have ended: nothing counts down then.
    pub fn has_ended(&self, signal: Signal) -> bool {
        signal == Signal::Children && self.host.is_some_and(|host| !host.has_children())
    }

    /// Returns the outlook that shows when memory runs out, for growth of a signal. Host memory
    /// runs out with its container's, once for all its ranks: only one of them has that time.
    pub fn end(&self, signal: Signal) -> Option<Outlook> {
        match self.container_end(signal) {
            Some((of, creeping)) => Some(creeping).filter(|_| of.is_lead),
            None => self.outlook(signal),
        }
    }

    /// Returns the same for each rank of a container.
    pub(crate) fn memory_end(&self, signal: Signal) -> Option<Outlook> {
        let of_container = self.container_end(signal).map(|(_, creeping)| creeping);
        of_container.or_else(|| self.outlook(signal))
    }

    /// Returns the container that memory of a signal runs out with, and its outlook.
    fn container_end(&self, signal: Signal) -> Option<(ContainerView<'_>, Outlook)> {
        let is_on_host = signal.is_beside() || self.identity.is_host();
        // What is in `/dev/shm` has a limit of its own.
        let container = self.container.filter(|_| is_on_host && signal != Signal::Shm)?;
        Some((container, container.creeping()?))
    }

    /// The step from which on its growth will be judged; `None` once it is, and of one that
    /// takes no steps.
    pub fn judging_from_step(&self) -> Option<u64> {
        let until_judged = u64::from(self.detectors.own().samples_until_judged());
        let is_awaited = until_judged > 0 && self.ended.is_none() && !self.is_by_time();
        self.last_train.filter(|_| is_awaited).map(|last| last.step.get() + until_judged)
    }

    /// Returns whether it has ended or is silent, so that its figures no longer move.
    pub fn is_over(&self) -> bool {
        self.ended.is_some() || self.silent.is_some()
    }

    /// Returns the bytes that the rank can still take before its device is full or its own limit
    /// is reached. They are the capacity less what others hold of it less the recent peak of live memory, at least 0. Memory
    /// that the allocator holds but does not use counts as available. Where its memory is host
    /// memory, its child processes count as others.
    ///
    /// Where no peak is known it rests on the high-water mark, else on what the allocator
    /// holds, and is then the least that is left.
    pub fn headroom(&self) -> Option<Headroom> {
        let reachable = self.limits.binding()?.reachable();
        let (basis, used) = self
            .recent_peak_allocated
            .map(|peak| (Basis::Allocated, peak))
            .or(self.high_water_allocated.map(|mark| (Basis::HighWater, mark)))
            .or(self.recent_reserved.map(|reserved| (Basis::Reserved, reserved)))?;
        let left = reachable - used.as_f64();
        Some(Headroom { bytes: left.max(0.0), basis })
    }

    /// Returns the least headroom that growth of these signals leaves, as its findings have it:
    /// less a part of the cache, too. `None` where none grows, or the rank ended; growth of the
    /// host next to a device leaves another.
    pub fn growth_headroom_bytes(
        &self,
        signals: impl IntoIterator<Item = Signal>,
    ) -> Option<f64> {
        let is_own = |signal: &Signal| match signal {
            Signal::Host | Signal::Shm => false,
            Signal::Children => self.identity.is_host(),
            _ => true,
        };
        let own = signals.into_iter().filter(is_own);
        let growing = own.filter_map(|signal| self.outlook(signal)).filter(Outlook::is_growing);
        growing.filter_map(|outlook| outlook.headroom_bytes).reduce(f64::min)
    }

    /// Returns the share of the reserved memory that was not in use at the step's peak, 0 to 1.
    /// Reserved memory is that at the end of the last train step. Where the peak is unknown it
    /// is at least the share above the high-water mark, and `None` without one.
    pub fn fragmentation_ratio(&self) -> Option<f64> {
        let last = self.last_train?;
        let reserved = last.reserved?.as_f64();
        let peak = last.peak_allocated.or(self.high_water_allocated)?;
        let peak = peak.max(last.allocated).as_f64();
        (reserved > 0.0).then(|| ((reserved - peak) / reserved).max(0.0))
    }
}

impl RankActivity {
    /// Returns whether a rank pushes.
    pub fn of(view: &RankView<'_>) -> Self {
        match (view.ended, view.silent) {
            (Some(_), _) => Self::Ended,
            (None, Some(_)) => Self::Silent,
            (None, None) => Self::Pushing,
        }
    }
}

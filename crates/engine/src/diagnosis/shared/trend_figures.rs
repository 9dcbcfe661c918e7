//! The figures of a trend, as JSON, pages and metrics show them.

use std::ops::Not;

use serde::{Deserialize, Serialize, Serializer};

use crate::diagnosis::shared::children_figures::ChildrenFigures;
use crate::diagnosis::shared::filling::Filling;
use crate::diagnosis::shared::kept_blocks::KeptBlocks;
use crate::diagnosis::shared::malloc_figures::{MallocFigures, is_bystander};
use crate::diagnosis::shared::run_end::RunEndFigures;
use crate::diagnosis::shared::shm_figures::ShmFigures;
use crate::ranks::container_view::ContainerView;
use stepmem_detect::{Bend, Course, Outlook, Signal, Stage};
use stepmem_types::site::{EmptySearch, LeakSite, TensorHolder};
use stepmem_types::step::StepUnit;
use stepmem_types::units::{Bytes, Count, UnixTime};

/// Returns the outlook that is the first to use up its headroom: of growth that creeps, else of
/// growth that rises.
pub(crate) fn soonest(outlooks: impl Iterator<Item = Outlook>) -> Option<TrendFigures> {
    let urgency = |outlook: Outlook| {
        let left = outlook.steps.or(outlook.seconds)?.likely;
        Some((outlook.stage == Stage::Rising, left, outlook))
    };
    outlooks
        .filter_map(urgency)
        .min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)))
        .map(|(_, _, outlook)| TrendFigures::of(&outlook))
}

/// The figures of a trend, named as in JSON. Unknown figures are absent; so are steps of an
/// unmanaged process.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "keys of JSON that are absent unless they are set"
)]
pub struct TrendFigures {
    /// The series that grows.
    pub signal: Signal,
    /// Set when it is host memory.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_on_host: bool,
    /// Set when its process has ended: these are the last figures.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_over: bool,
    /// Set when it grows faster and faster; the slope is then the average since the onset.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_accelerating: bool,
    /// Seconds without a step, where it has been longer than ten usual ones: nothing counts
    /// down then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled_seconds: Option<f64>,
    /// The rate at which it grows since the onset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_bytes_per_step: Option<f64>,
    /// The lower end of the slope's 95 % interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_lower_bytes_per_step: Option<f64>,
    /// The upper end of the slope's 95 % interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_upper_bytes_per_step: Option<f64>,
    /// The slope in time; absent while the pace is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_bytes_per_second: Option<f64>,
    /// The lower end of its 95 % interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_lower_bytes_per_second: Option<f64>,
    /// The upper end of its 95 % interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_upper_bytes_per_second: Option<f64>,
    /// Growth since the onset, as measured.
    pub growth_bytes: f64,
    /// The step at which the growth began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub onset_step: Option<Count>,
    /// The Unix time at which the growth began, written with milliseconds.
    #[serde(serialize_with = "with_milliseconds")]
    pub onset_time: UnixTime,
    /// The step at which it last rose; absent while it grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level_since_step: Option<Count>,
    /// The Unix time of that, written with milliseconds.
    #[serde(
        default,
        serialize_with = "option_with_milliseconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub level_since_time: Option<UnixTime>,
    /// Set when it is level where the memory is full.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_full: bool,
    /// Bytes left to grow into; absent when the capacity is unknown, and after the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headroom_bytes: Option<f64>,
    /// Steps until the headroom is used up; absent when that is not known within a factor of three.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_steps: Option<f64>,
    /// The least of them: the lower end of their interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_lower_steps: Option<f64>,
    /// The most of them; absent when the lower end of the slope's interval is not growth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_upper_steps: Option<f64>,
    /// Seconds until the headroom is used up; absent when that is not known within a factor of three.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_seconds: Option<f64>,
    /// The least of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_lower_seconds: Option<f64>,
    /// The most of them; absent when the lower end of the slope's interval is not growth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_eta_upper_seconds: Option<f64>,
    /// The container that the memory runs out with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<ContainerFigures>>,
    /// The probability that a random walk does not grow like that, 0 to 1.
    pub confidence_ratio: f64,
    /// The result of a memory snapshot on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<Box<LeakSite>>,
    /// The fastest-growing live object of its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Box<TensorHolder>>,
    /// The rate over the steps in which its holder was measured; absent where growth is
    /// straight, which has one rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slope_while_held_bytes_per_step: Option<f64>,
    /// The end of its growth, where its holder has a bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filling: Option<Filling>,
    /// A search that named no holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub searched: Option<EmptySearch>,
    /// The testimony of the number of live blocks on the growth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_blocks: Option<KeptBlocks>,
    /// The run's own end, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_end: Option<RunEndFigures>,
    /// The figures of its process's allocator on the growth, of host memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub malloc: Option<MallocFigures>,
    /// The child processes whose memory grows, of their memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<Box<ChildrenFigures>>,
    /// The files in `/dev/shm`, where they grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm: Option<ShmFigures>,
    /// Steps from one evaluation, checkpoint or epoch to the next, on average; absent where they
    /// are unknown or none came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_per_event: Option<f64>,
    /// The unit that the rank counts, where that is not steps.
    #[serde(default, skip_serializing_if = "StepUnit::is_steps")]
    pub unit: StepUnit,
}

/// The container that memory runs out with.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerFigures {
    pub limit_bytes: Bytes,
    /// Memory that the kernel cannot reclaim, of all its processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<Bytes>,
    /// Number of its ranks that push.
    pub ranks: usize,
    /// Set when the growth is that of the whole container, as none of its ranks grows so.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_whole: bool,
}

impl ContainerFigures {
    fn of(container: &ContainerView<'_>, is_whole: bool) -> Self {
        Self {
            limit_bytes: container.reading.limit,
            used_bytes: container.reading.used,
            ranks: container.n_ranks,
            is_whole,
        }
    }
}

impl TrendFigures {
    /// Returns the figures of an outlook.
    pub fn of(outlook: &Outlook) -> Self {
        let (per_step, per_second) =
            (outlook.slope.bytes_per_step, outlook.slope.bytes_per_second);
        let (steps, seconds) = (outlook.steps, outlook.seconds);
        let level_since = outlook.level_since;
        let step_of = |position: f64| outlook.axis.step(position);
        Self {
            signal: outlook.signal,
            is_on_host: false,
            is_over: outlook.course == Course::Over,
            is_accelerating: outlook.bend == Bend::Faster,
            stalled_seconds: outlook.course.stalled_seconds(),
            slope_bytes_per_step: per_step.map(|slope| slope.value),
            slope_lower_bytes_per_step: per_step.map(|slope| slope.lower),
            slope_upper_bytes_per_step: per_step.map(|slope| slope.upper),
            slope_bytes_per_second: per_second.map(|slope| slope.value),
            slope_lower_bytes_per_second: per_second.map(|slope| slope.lower),
            slope_upper_bytes_per_second: per_second.map(|slope| slope.upper),
            growth_bytes: outlook.growth_bytes,
            onset_step: step_of(outlook.onset.position),
            onset_time: outlook.onset.time,
            level_since_step: level_since.and_then(|since| step_of(since.position)),
            level_since_time: level_since.map(|since| since.time),
            is_full: false,
            headroom_bytes: outlook.headroom_bytes,
            oom_eta_steps: steps.and_then(|eta| eta.known),
            oom_eta_lower_steps: steps.map(|eta| eta.lower),
            oom_eta_upper_steps: steps.and_then(|eta| eta.upper),
            oom_eta_seconds: seconds.and_then(|eta| eta.known),
            oom_eta_lower_seconds: seconds.map(|eta| eta.lower),
            oom_eta_upper_seconds: seconds.and_then(|eta| eta.upper),
            container: None,
            confidence_ratio: outlook.confidence_ratio,
            site: None,
            holder: None,
            slope_while_held_bytes_per_step: None,
            filling: None,
            searched: None,
            kept_blocks: None,
            run_end: None,
            malloc: None,
            children: None,
            shm: None,
            steps_per_event: None,
            unit: StepUnit::Steps,
        }
    }

    /// Returns the figures of a rank's growth with those of when its container is out of memory.
    #[must_use]
    pub(crate) fn in_container(
        self,
        container: &ContainerView<'_>,
        end: Option<&Outlook>,
    ) -> Self {
        Self {
            headroom_bytes: container.reading.headroom_bytes().filter(|_| !self.is_over),
            container: Some(Box::new(ContainerFigures::of(container, false))),
            ..self.ending(end)
        }
    }

    /// Returns the figures with the time left of another outlook; without one where that is none.
    #[must_use]
    pub(crate) fn ending(self, end: Option<&Outlook>) -> Self {
        let end = end.map(Self::of);
        let of_end = |read: fn(&Self) -> Option<f64>| end.as_ref().and_then(read);
        Self {
            oom_eta_steps: of_end(|end| end.oom_eta_steps),
            oom_eta_lower_steps: of_end(|end| end.oom_eta_lower_steps),
            oom_eta_upper_steps: of_end(|end| end.oom_eta_upper_steps),
            oom_eta_seconds: of_end(|end| end.oom_eta_seconds),
            oom_eta_lower_seconds: of_end(|end| end.oom_eta_lower_seconds),
            oom_eta_upper_seconds: of_end(|end| end.oom_eta_upper_seconds),
            ..self
        }
    }

    /// Returns the figures of growth of a container's memory that no rank of it explains.
    pub fn of_container(container: &ContainerView<'_>, outlook: &Outlook) -> Self {
        let figures = Self::of(outlook);
        Self {
            signal: Signal::Host,
            is_on_host: true,
            headroom_bytes: container.reading.headroom_bytes().filter(|_| !figures.is_over),
            container: Some(Box::new(ContainerFigures::of(container, true))),
            ..figures
        }
    }

    /// Returns the figures without an object that was seen to grow beside what grows, of host
    /// memory: it has next to nothing of that, which was freed or is held elsewhere.
    #[must_use]
    pub(crate) fn without_bystander(self) -> Self {
        let slope = self.slope_bytes_per_step.filter(|_| self.is_on_host);
        let is_bystander = self
            .holder
            .as_ref()
            .is_some_and(|holder| is_bystander(holder, slope, self.malloc.as_ref()));
        if !is_bystander {
            return self;
        }
        let seen = |holder: &TensorHolder| EmptySearch {
            step: holder.step,
            lines: holder.lines,
            ..EmptySearch::default()
        };
        let searched = self.holder.as_deref().map(seen);
        Self { holder: None, searched, slope_while_held_bytes_per_step: None, ..self }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a field by reference")]
fn with_milliseconds<S: Serializer>(time: &UnixTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((time.get() * 1000.0).round() / 1000.0)
}

#[expect(clippy::ref_option, reason = "serde passes a field by reference")]
fn option_with_milliseconds<S: Serializer>(
    time: &Option<UnixTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    time.map(|time| (time.get() * 1000.0).round() / 1000.0).serialize(serializer)
}

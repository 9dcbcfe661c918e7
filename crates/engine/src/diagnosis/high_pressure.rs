//! HIGH PRESSURE: a recent peak is near the rank's own capacity. Host memory next to a device is
//! judged apart.

use std::ops::Not;

use serde::{Deserialize, Serialize};

use crate::diagnosis::shared::figures::{Figures, Score};
use crate::diagnosis::shared::filling::Filling;
use crate::diagnosis::shared::input::{DiagnosisInput, RELEASE_MARGIN, Subject, graded};
use crate::diagnosis::shared::plan::Plan;
use crate::diagnosis::shared::pressure::{self, Pressure};
use crate::diagnosis::shared::site_words;
use crate::diagnosis::shared::taken_at_start::TakenAtStart;
use crate::kind::{About, DiagnosisKind, Place, Severity};
use crate::ranks::basis::Basis;
use crate::ranks::limits::LimitOrigin;
use crate::ranks::view::RankView;
use crate::thresholds::Thresholds;
use stepmem_detect::Signal;
use stepmem_types::claims::{Claim, Sentence, Statement};
use stepmem_types::format::units::{percent, whole_bytes};
use stepmem_types::site::TensorHolder;
use stepmem_types::step::StepUnit;
use stepmem_types::units::{Bytes, Count};

/// A peak is near the capacity.
pub(crate) const ABOUT: About = About {
    title: "HIGH PRESSURE",
    mark: 'P',
    help: "The recent peak of allocated or reserved memory, or what is in use on the device, is near the \
           capacity of the rank's own device, or the recent peak of an unmanaged process. Critical only \
           when that is live memory, or when the allocator had to flush its cache in the last 15 minutes: a \
           healthy cache fills the device. An info while it is of memory that was taken at the start and is level. Also a warning while a bounded buffer that will not fit fills up.",
    advice: "Reduce the memory load: batch or sequence length, activation checkpointing, sharding; see who \
             else uses the device.",
    signal: None,
    stage: None,
    family: DiagnosisKind::HighPressure,
    place: Place::Own,
};

/// Host memory is near its limit.
pub(crate) const HOST: About = About {
    title: "HIGH PRESSURE (host)",
    mark: 'Q',
    help: "What the process of a rank on a device holds of the host's memory is near the limit of its control \
           group, or else the machine's memory; also while a bounded buffer that will not fit fills up; or all memory of its container is near the limit of that. Never critical: a job may be sized to fit, and growth is MEMORY CREEP (host).",
    advice: HOST_ADVICE,
    signal: None,
    stage: None,
    family: DiagnosisKind::HostPressure,
    place: Place::Host { own: DiagnosisKind::HighPressure },
};

/// A peak near the capacity.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "keys of JSON that are absent unless they are set"
)]
pub struct PressureEvidence {
    /// The share of the capacity that the peak takes.
    pub pressure_ratio: f64,
    /// Set when it is host memory.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_on_host: bool,
    /// Set when device and host share the memory.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_unified: bool,
    /// Set when it is all memory of the rank's container.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_of_container: bool,
    /// The memory that the peak is of.
    pub basis: Basis,
    /// The limit that binds, in bytes.
    pub capacity_bytes: u64,
    /// The origin of the capacity, where that is a limit of the process's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_set_by: Option<LimitOrigin>,
    /// The share of the capacity that the rank's allocator held at its recent peak and that was
    /// never live at once. Absent where it is small.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub never_live_ratio: Option<f64>,
    /// The part of it that the allocator holds for private pools. Absent where it is small.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private_pools_bytes: Option<u64>,
    /// The holder that fills up and will take more than there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub too_large: Option<Box<TooLarge>>,
    /// Set while live memory itself is that full and known to be level: only a change helps.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_level: bool,
    /// Bytes that were taken at the start and are level since, where the pressure is of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_at_start_bytes: Option<u64>,
    /// The unit that the rank counts, where that is not steps.
    #[serde(default, skip_serializing_if = "StepUnit::is_steps")]
    pub unit: StepUnit,
}

/// A holder whose bound is more than the memory.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TooLarge {
    pub holder: TensorHolder,
    pub filling: Filling,
}

impl TooLarge {
    /// Returns the holder in a subject that grows toward a bound that does not fit: of live
    /// memory, or of the host's next to a device. `None` of one that is over.
    pub fn of(subject: &Subject<'_, '_>, signal: Signal) -> Option<Box<Self>> {
        let rank = subject.rank().filter(|rank| !rank.is_over())?;
        let outlook = rank.outlook(signal)?;
        let filling = Filling::of(rank, &outlook).filter(Filling::is_too_large)?;
        let holder = rank.site.held(signal).holder?.holder.clone();
        Some(Box::new(Self { holder, filling }))
    }
}

/// Memory that was never live at once, or is in private pools, is named from this share of the
/// capacity on. Without it, a full device is at 80 %, far below any pressure.
const SET_ASIDE_MIN: f64 = 0.20;

/// The advice where much of the memory is never live: the allocator should split less.
const FRAGMENTED_ADVICE: &str = "Much of what the allocator reserves is never live at the same time: try PYTORCH_ALLOC_CONF=expandable_segments:True (before \
     PyTorch 2.9: PYTORCH_CUDA_ALLOC_CONF), and pad or bucket varying shapes. That alone takes the pressure away, without a smaller batch.";

/// The advice where much of the memory is in private pools.
const PRIVATE_POOLS_ADVICE: &str = "Private pools serve nothing but their own CUDA graphs or MemPool: let graphs share one (torch.cuda.graph(…, pool=…)), or \
     capture fewer shapes.";

/// The advice for pressure on the host.
pub(crate) const HOST_ADVICE: &str = "Reduce the host's memory load: DataLoader workers and the batches that they prefetch, data sets and caches in memory, batch or \
     sequence length; or give the job more memory.";

/// The advice for pressure on a program that takes no steps.
const SERVER_ADVICE: &str = "Reduce the memory load: requests at a time, their length, caches by request, models that are loaded at once; or give it more \
     memory.";

/// The advice for pressure on memory that device and host share.
const UNIFIED_ADVICE: &str = "Reduce the load of either side, since device and host share this memory: batch or sequence length, activation checkpointing; \
     DataLoader workers, data sets and caches in memory.";

/// The advice for growth that has ended where the host's memory is full.
pub(crate) const HOST_FULL_ADVICE: &str = "The memory is full, so it is level because it cannot grow further. Look at what grew until then, or reduce the host's \
     memory load: DataLoader workers and the batches that they prefetch, data sets and caches in memory.";

/// The advice for memory that was taken at the start and is level.
const TAKEN_AT_START_ADVICE: &str = "Nothing, unless it grows: it was taken at the start, and what comes on top could be twice as much.";

/// The advice for a bound that is more than the memory.
const TOO_LARGE_ADVICE: &str = "Give it a lower bound, smaller items, or memory of the host.";

/// The advice for a bound that is more than the host's memory.
const HOST_TOO_LARGE_ADVICE: &str =
    "Give it a lower bound or smaller items, or give the job more memory.";

/// Returns the first thing to check on the host, or where an allocator held so much of the
/// capacity in private pools, or that was never live.
pub fn advice(
    is_on_host: bool,
    private_pools_bytes: Option<u64>,
    never_live_ratio: Option<f64>,
) -> Option<Statement> {
    let of_pools = private_pools_bytes.map(|_| PRIVATE_POOLS_ADVICE);
    let of_device = of_pools.or_else(|| never_live_ratio.map(|_| FRAGMENTED_ADVICE));
    let words = if is_on_host { Some(HOST_ADVICE) } else { of_device };
    words.map(|words| Statement::new(Claim::AdvicePressure, words))
}

/// Returns the share of the capacity that was reserved and never live at once, where that is
/// much.
pub fn never_live_ratio(reserved: Bytes, live: Bytes, capacity: Bytes) -> Option<f64> {
    let ratio = (reserved.as_f64() - live.as_f64()) / capacity.as_f64();
    Some(ratio).filter(|ratio| *ratio >= SET_ASIDE_MIN)
}

/// Judges the pressures of a subject: the severest counts, and of several the highest. What
/// fills up and will not fit is a warning ahead of time. What was taken at the start and is level
/// is told, and no more.
pub(crate) fn judge(
    input: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, PressureEvidence)> {
    let rank = subject.rank();
    let grade = grade(input.thresholds, subject);
    let worse = |a: (Severity, Pressure), b: (Severity, Pressure)| {
        if (b.0, b.1.ratio) > (a.0, a.1.ratio) { b } else { a }
    };
    let is_unified = rank.is_some_and(|rank| rank.identity.is_unified());
    let on_host = || TooLarge::of(subject, Signal::Host).filter(|_| is_unified);
    let too_large = TooLarge::of(subject, Signal::Allocated).or_else(on_host);
    let ahead = pressure::of_subject(subject).next().filter(|_| too_large.is_some());
    let graded = pressure::of_subject(subject).filter_map(&grade).reduce(worse);
    let (severity, Pressure { basis, ratio, capacity, set_by, .. }) =
        graded.or(ahead.map(|live| (Severity::Warning, live)))?;
    let taken = TakenAtStart::of(input, subject).filter(|taken| {
        let mut graded = pressure::of_subject(subject).filter_map(&grade);
        too_large.is_none() && graded.all(|(_, of)| taken.explains(&of))
    });
    let never_live_ratio = rank.filter(|_| !is_live(basis)).and_then(of_rank);
    let private_pools_bytes = rank.filter(|_| !is_live(basis)).and_then(private_pools_bytes);
    let is_set_aside =
        too_large.is_some() || never_live_ratio.is_some() || private_pools_bytes.is_some();
    let is_full = || pressure::of_live_memory(subject, Signal::Allocated).and_then(&grade);
    let is_level = !is_set_aside
        && taken.is_none()
        && is_full().is_some()
        && Plan::of_full(input, subject) == Some(Plan::Change);
    let evidence = PressureEvidence {
        pressure_ratio: ratio,
        is_on_host: rank.is_some_and(|rank| rank.identity.is_host()),
        is_unified,
        is_of_container: false,
        basis,
        capacity_bytes: capacity.get(),
        capacity_set_by: set_by,
        never_live_ratio,
        private_pools_bytes,
        too_large,
        is_level,
        taken_at_start_bytes: taken.and_then(TakenAtStart::bytes),
        unit: subject.unit(),
    };
    let severity = if taken.is_some() { Severity::Info } else { severity };
    Some((severity, evidence))
}

/// Returns the function that grades a pressure of a subject, with hysteresis.
fn grade(
    thresholds: &Thresholds,
    subject: &Subject<'_, '_>,
) -> impl Fn(Pressure) -> Option<(Severity, Pressure)> {
    let Thresholds { pressure_warning, pressure_critical, .. } = *thresholds;
    let has_retried = subject.rank().is_some_and(|rank| rank.has_retried);
    // An info is of memory that is as full as for a warning.
    let active = subject.active.map(|active| active.max(Severity::Warning));
    move |pressure| {
        if pressure.ratio < pressure_warning - RELEASE_MARGIN {
            return None;
        }
        let critical =
            if is_in_use(pressure.basis, has_retried) { pressure_critical } else { f64::MAX };
        let severity = graded(pressure.ratio, pressure_warning, critical, active)?;
        Some((severity, pressure))
    }
}

/// Judges host memory against its limit.
pub(crate) fn judge_host(
    input: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, PressureEvidence)> {
    let of = pressure::of_host(subject.rank()?)?;
    let warning = input.thresholds.pressure_warning;
    let too_large = TooLarge::of(subject, Signal::Host);
    let ahead = too_large.as_ref().map(|_| Severity::Warning);
    let severity = graded(of.ratio, warning, f64::MAX, subject.active).or(ahead)?;
    let evidence = PressureEvidence {
        pressure_ratio: of.ratio,
        is_on_host: true,
        is_unified: false,
        is_of_container: of.is_of_container,
        basis: of.basis,
        capacity_bytes: of.capacity.get(),
        capacity_set_by: of.set_by,
        never_live_ratio: None,
        private_pools_bytes: None,
        too_large,
        is_level: false,
        taken_at_start_bytes: None,
        unit: subject.unit(),
    };
    Some((severity, evidence))
}

/// Returns the share of a rank's capacity that its allocator recently held and that was never
/// live.
fn of_rank(rank: &RankView<'_>) -> Option<f64> {
    let live = rank.recent_peak_allocated.or(rank.high_water_allocated)?;
    never_live_ratio(rank.recent_reserved?, live, rank.capacity?)
}

/// Returns the bytes that a rank's allocator holds for private pools, where they are much of
/// the capacity.
pub fn private_pools_bytes(rank: &RankView<'_>) -> Option<u64> {
    let last = rank.last_train?;
    // They are a part of what is reserved: a larger figure is none.
    let pools =
        last.private_pools.filter(|pools| last.reserved.is_none_or(|of| *pools <= of))?;
    let is_notable = pools.as_f64() >= SET_ASIDE_MIN * rank.capacity?.as_f64();
    is_notable.then_some(pools.get())
}

/// States what is in private pools.
pub(crate) fn private_pools_statement(pools_bytes: u64) -> Statement {
    let pools = whole_bytes(pools_bytes);
    let words = format!("{pools} of it is in private pools (CUDA graphs, MemPools)");
    let bytes = Count::new(pools_bytes).ok().map(Count::as_f64);
    Statement::new(Claim::PrivatePools, words).of(bytes)
}

/// Returns whether memory of that basis is live.
fn is_live(basis: Basis) -> bool {
    matches!(basis, Basis::Allocated | Basis::HighWater | Basis::Host)
}

/// Returns whether memory of that basis is surely in use, so that it can be critical. The cache
/// of a healthy allocator is not, unless the allocator already had to give some of it up.
fn is_in_use(basis: Basis, has_retried: bool) -> bool {
    match basis {
        Basis::Allocated => true,
        Basis::HighWater | Basis::Reserved | Basis::Device => has_retried,
        Basis::Host | Basis::Process => false,
    }
}

impl Figures for PressureEvidence {
    fn sentence(&self) -> Sentence {
        let of = match self.basis {
            Basis::Host if self.is_of_container => "the memory of its container",
            Basis::Host => "host memory",
            _ if self.is_on_host => "the peak of host memory",
            Basis::Allocated => "the allocated peak",
            Basis::HighWater => "the high-water mark of allocated memory",
            Basis::Reserved => "the reserved peak",
            Basis::Device if self.is_unified => {
                "what the process holds of the memory that device and host share"
            }
            Basis::Device => "in use on the device",
            Basis::Process => "the recent peak of the process",
        };
        let (ratio, capacity) =
            (percent(self.pressure_ratio), whole_bytes(self.capacity_bytes));
        let never_live = self.never_live_ratio.map(|ratio| {
            let words = format!("{} of it was never live at the same time", percent(ratio));
            Statement::new(Claim::NeverLive, words).of(ratio)
        });
        let set_by =
            self.capacity_set_by.map_or_else(String::new, |of| format!(", {}", of.words()));
        let words = format!("{of} is at {ratio} of {capacity}{set_by}");
        let pressure = Statement::new(Claim::Pressure, words).of(self.pressure_ratio);
        let bytes = Count::new(self.capacity_bytes).ok().map(Count::as_f64);
        let capacity = Statement::new(Claim::Capacity, capacity).of(bytes);
        let private_pools = self.private_pools_bytes.map(private_pools_statement);
        let taken_at_start = self.taken_at_start_bytes.map(|bytes| {
            let words = format!(
                "{} of it was taken at the start, and next to nothing since",
                whole_bytes(bytes)
            );
            let bytes = Count::new(bytes).ok().map(Count::as_f64);
            Statement::new(Claim::TakenAtStart, words).of(bytes)
        });
        let pressure = Sentence::from(pressure)
            .with(capacity)
            .then_if("; ", taken_at_start)
            .then_if("; ", never_live)
            .then_if("; ", private_pools)
            .then_if("; ", self.is_level.then(|| Plan::Change.sentence()));
        let ahead = self.too_large.as_ref();
        let ahead =
            ahead.map(|of| site_words::of_too_large(&of.holder, &of.filling, self.unit));
        match ahead {
            Some(ahead) => Sentence::from(ahead).then("; ", pressure),
            None => pressure,
        }
    }

    fn advice(&self) -> Option<Statement> {
        if self.too_large.is_some() {
            let is_on_host = self.is_on_host || self.is_unified;
            let advice = if is_on_host { HOST_TOO_LARGE_ADVICE } else { TOO_LARGE_ADVICE };
            return Some(Statement::new(Claim::AdviceTooLarge, advice));
        }
        if self.taken_at_start_bytes.is_some() {
            return Some(Statement::new(Claim::AdviceTakenAtStart, TAKEN_AT_START_ADVICE));
        }
        if self.is_unified {
            return Some(Statement::new(Claim::AdvicePressure, UNIFIED_ADVICE));
        }
        let is_set_aside =
            self.private_pools_bytes.is_some() || self.never_live_ratio.is_some();
        if self.unit.is_calls() && !is_set_aside {
            return Some(Statement::new(Claim::AdvicePressure, SERVER_ADVICE));
        }
        advice(self.is_on_host, self.private_pools_bytes, self.never_live_ratio)
    }

    fn score(&self) -> Score {
        Score { metric: self.basis.as_metric(), value: self.pressure_ratio }
    }

    #[cfg(test)]
    fn examples() -> Vec<Self> {
        use crate::diagnosis::examples::{filling, holder};
        vec![Self {
            pressure_ratio: 0.95,
            is_on_host: true,
            is_unified: true,
            is_of_container: true,
            basis: Basis::Host,
            capacity_bytes: 80 << 30,
            capacity_set_by: Some(LimitOrigin::Program),
            never_live_ratio: Some(0.25),
            private_pools_bytes: Some(20 << 30),
            too_large: Some(Box::new(TooLarge { holder: holder(), filling: filling() })),
            is_level: true,
            taken_at_start_bytes: Some(70 << 30),
            unit: StepUnit::Calls,
        }]
    }
}

#[cfg(test)]
mod tests {
    use super::{Figures, HOST_ADVICE, PRIVATE_POOLS_ADVICE, PressureEvidence, SERVER_ADVICE};
    use stepmem_types::step::StepUnit;

    #[test]
    fn server_is_advised_as_one_on_the_host_too_unless_memory_is_set_aside() {
        let [example] = &PressureEvidence::examples()[..] else { panic!("one example") };
        let host = PressureEvidence {
            is_unified: false,
            never_live_ratio: None,
            private_pools_bytes: None,
            too_large: None,
            is_level: false,
            taken_at_start_bytes: None,
            ..example.clone()
        };
        let training = PressureEvidence { unit: StepUnit::Steps, ..host.clone() };
        let pools = PressureEvidence {
            is_on_host: false,
            private_pools_bytes: Some(20 << 30),
            ..host.clone()
        };
        for (evidence, expected) in
            [(host, SERVER_ADVICE), (training, HOST_ADVICE), (pools, PRIVATE_POOLS_ADVICE)]
        {
            assert_eq!(evidence.advice().unwrap().words(), expected);
        }
    }
}

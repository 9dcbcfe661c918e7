//! PHASE MEMORY RISING: a phase that the program names leaves more memory behind each time, such
//! as an inference engine that is put to sleep between rollouts.

use serde::{Deserialize, Serialize};

use crate::diagnosis::shared::figures::{Figures, Score};
use crate::diagnosis::shared::input::{DiagnosisInput, Subject, SubjectView};
use crate::kind::{About, DiagnosisKind, Place, Severity};
use crate::ranks::phase_floors::FloorBasis;
use stepmem_types::claims::{Claim, Sentence, Statement};
use stepmem_types::format::units::{bytes, counted, duration};
use stepmem_types::units::MEBIBYTE;

/// Rises from which it is a warning, …
pub(crate) const RISES_WARNING_MIN: u32 = 5;
/// … if they come to this many bytes.
pub(crate) const BYTES_WARNING_MIN: f64 = 256.0 * MEBIBYTE;
/// Rises are critical only from this share of the remaining bytes on: buffers that fill end
/// before.
pub(crate) const SHARE_CRITICAL_MIN: f64 = 0.25;

/// More stays after each end of a phase.
pub(crate) const ABOUT: About = About {
    title: "PHASE MEMORY RISING",
    mark: 'K',
    help: "A phase that the program names, such as `sleep`, has left more memory behind three times in a row than ever before, \
           and chance does not explain it. From the fifth rise and 256 MiB on it is a warning; critical where the device is full \
           within six hours and a quarter of what is left has been taken.",
    advice: "Find what the phase should free and keeps: a second reference to weights or to a KV cache, CUDA graphs that were \
             captured again, buffers of a communicator. Take a memory snapshot after each of two ends and compare them with \
             `stepmem snapshot diff`.",
    signal: None,
    stage: None,
    family: DiagnosisKind::PhaseRising,
    place: Place::Own,
};

/// Memory that stays after a phase.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseEvidence {
    /// The name of the phase.
    pub phase: String,
    /// The memory that is compared.
    pub floor_basis: FloorBasis,
    /// The bytes after its newest end.
    pub floor_bytes: f64,
    /// The bytes that they have risen from.
    pub floor_before_bytes: f64,
    /// The number of ends since then.
    pub floor_ends: u32,
    /// The seconds until the device is full, if it goes on like that; absent where that is not
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_in_seconds: Option<f64>,
}

/// Judges the phases of a rank.
pub(crate) fn judge(
    input: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, PhaseEvidence)> {
    let SubjectView::Rank(run, _, view) = subject.view else { return None };
    let floor = view.phase_floors.rising().filter(|_| !view.is_over())?;
    let left = view.headroom().map(|headroom| headroom.bytes);
    let full_in_seconds = left.map(|left| left / floor.bytes_per_second);
    let full_in_seconds = full_in_seconds.filter(|seconds| seconds.is_finite());
    let growth = floor.newest - floor.from;
    let is_large = growth >= BYTES_WARNING_MIN;
    let is_share = left.is_some_and(|left| growth >= SHARE_CRITICAL_MIN * left);
    let seconds_to_end = run.end.time_by(view).zip(view.detectors.own().newest());
    let ends_in = seconds_to_end.map(|(end, newest)| end - newest.time.get());
    let matters = full_in_seconds.is_none_or(|full| ends_in.is_none_or(|ends| full < ends));
    let horizon = input.thresholds.creep_critical_eta_seconds;
    let severity = match full_in_seconds {
        _ if floor.n_rises < RISES_WARNING_MIN || !is_large || !matters => Severity::Info,
        Some(seconds) if seconds <= horizon && is_share => Severity::Critical,
        _ => Severity::Warning,
    };
    let evidence = PhaseEvidence {
        phase: floor.name.as_str().to_owned(),
        floor_basis: floor.basis,
        floor_bytes: floor.newest,
        floor_before_bytes: floor.from,
        floor_ends: u32::try_from(floor.n_ends).unwrap_or(u32::MAX),
        full_in_seconds,
    };
    Some((severity, evidence))
}

impl Figures for PhaseEvidence {
    fn sentence(&self) -> Sentence {
        let kept = match self.floor_basis {
            FloorBasis::Process => "the process keeps",
            FloorBasis::Reserved => "the allocator keeps",
            FloorBasis::Allocated => "the program keeps",
        };
        let full = self.full_in_seconds.map(|seconds| {
            let words =
                format!("at this rate the device is full in about {}", duration(seconds));
            Statement::new(Claim::PhaseFull, words).of(seconds)
        });
        let words = format!(
            "after `{}` {kept} {}, {} ago it was {}",
            self.phase,
            bytes(self.floor_bytes),
            counted(self.floor_ends.into(), "end"),
            bytes(self.floor_before_bytes),
        );
        let keeps = Statement::new(Claim::PhaseKeeps, words).of(self.floor_bytes);
        Sentence::from(keeps).then_if("; ", full)
    }

    fn score(&self) -> Score {
        Score { metric: "phase", value: self.floor_bytes - self.floor_before_bytes }
    }

    #[cfg(test)]
    fn examples() -> Vec<Self> {
        vec![Self {
            phase: "sleep".into(),
            floor_basis: FloorBasis::Process,
            floor_bytes: 12_455_405_158.0,
            floor_before_bytes: 4_402_341_478.0,
            floor_ends: 3,
            full_in_seconds: Some(5_400.0),
        }]
    }
}

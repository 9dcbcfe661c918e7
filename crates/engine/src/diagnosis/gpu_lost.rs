//! GPU LOST: a device that was seen answers only that it is lost, gone, or must be reset.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::diagnosis::shared::figures::{Figures, Score};
use crate::diagnosis::shared::input::{DiagnosisInput, Subject, SubjectView};
use crate::kind::{About, DiagnosisKind, Place, Severity};
use stepmem_types::claims::{Claim, Sentence, Statement};

/// The errors of NVML with which a device cannot be used until someone repairs the node.
const LOST_CODES: [&str; 3] = ["gpu_is_lost", "gpu_not_found", "reset_required"];

/// A device no longer answers.
pub(crate) const ABOUT: About = About {
    title: "GPU LOST",
    mark: 'L',
    help: "A device that was seen answers NVML only that it is lost (it fell off the bus), gone, or must be reset.",
    advice: "Drain the node and look for Xid errors in the kernel's log: a run on this device cannot go on, and most such \
             devices need a reset or a reboot.",
    signal: None,
    stage: None,
    family: DiagnosisKind::GpuLost,
    place: Place::Own,
};

/// The device's answer.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct GpuLostEvidence {
    /// NVML's name of the error, in lower case.
    pub code: Cow<'static, str>,
}

/// Judges a device that answers with an error.
pub(crate) fn judge(
    _: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, GpuLostEvidence)> {
    let SubjectView::Device(_, failure) = subject.view else { return None };
    let code = LOST_CODES.into_iter().find(|code| *code == failure.code)?;
    Some((Severity::Critical, GpuLostEvidence { code: code.into() }))
}

impl Figures for GpuLostEvidence {
    fn sentence(&self) -> Sentence {
        let words = format!("the driver answers {}", self.code);
        Statement::new(Claim::GpuLost, words).into()
    }

    fn score(&self) -> Score {
        Score { metric: "device", value: 1.0 }
    }

    #[cfg(test)]
    fn examples() -> Vec<Self> {
        vec![Self { code: "gpu_is_lost".into() }]
    }
}

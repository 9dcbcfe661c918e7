//! Which verdict fails a command: `creep`, `pressure`, `imbalance` or `any`, with `:warning` also where it is no more than
//! that.

use crate::analysis::diagnosis::DiagnosisKind;
use crate::report::policy::IssueSeverity;
use crate::report::summary::model::{Issue, IssueKind, Summary};

/// The verdict that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailOn {
    subject: GateSubject,
    /// The least severity that fails.
    severity: IssueSeverity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GateSubject {
    Kind(DiagnosisKind),
    /// Whatever is wrong.
    Any,
}

/// The names of the subjects.
const SUBJECTS: [(&str, GateSubject); 4] = [
    ("creep", GateSubject::Kind(DiagnosisKind::CreepConfirmed)),
    ("pressure", GateSubject::Kind(DiagnosisKind::HighPressure)),
    ("imbalance", GateSubject::Kind(DiagnosisKind::Imbalance)),
    ("any", GateSubject::Any),
];

impl FailOn {
    /// Parses `SUBJECT[:SEVERITY]`; the severity is critical unless given.
    ///
    /// # Errors
    /// What is expected instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, severity) = text.split_once(':').unwrap_or((text, "critical"));
        let subject = SUBJECTS.iter().find(|(known, _)| *known == name);
        let severity = [IssueSeverity::Warn, IssueSeverity::Crit]
            .into_iter()
            .find(|known| known.in_words() == severity);
        match (subject, severity) {
            (Some((_, subject)), Some(severity)) => Ok(Self { subject: *subject, severity }),
            _ => Err("expected creep, pressure, imbalance or any, then nothing or :warning"
                .to_owned()),
        }
    }

    /// Returns whether a summary's verdict is that bad.
    pub fn fails(&self, summary: &Summary) -> bool {
        summary.issues.iter().any(|issue| {
            issue.is_wrong() && issue.severity >= self.severity && self.is_about(issue)
        })
    }

    fn is_about(self, issue: &Issue) -> bool {
        match self.subject {
            GateSubject::Any => true,
            GateSubject::Kind(kind) => {
                matches!(&issue.kind, IssueKind::Diagnosis(found) if *found == kind)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::report::gate::FailOn;

    #[test]
    fn severity_is_critical_unless_it_is_given() {
        assert_eq!(FailOn::parse("creep"), FailOn::parse("creep:critical"));
        assert_ne!(FailOn::parse("creep"), FailOn::parse("creep:warning"));
        for text in ["", "creep:", "creep:info", "memory", "any:warning:"] {
            assert!(FailOn::parse(text).is_err(), "{text}");
        }
    }
}

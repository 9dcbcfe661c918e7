//! The findings: what holds, since when, and what changed since they were last evaluated.

pub(crate) mod acks;
pub(crate) mod checkpoints;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::diagnosis::Evidence;
use crate::diagnosis::shared::input::{DiagnosisInput, Subject, SubjectView};
use crate::findings::acks::Acks;
use crate::kind::{DiagnosisKind, Severity};
use stepmem_types::claims::{Claim, Statement};
use stepmem_types::ids::{SubjectId, subject_fields};
use stepmem_types::units::Uptime;

/// One diagnosis that holds for one subject.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The rank, the unmanaged process or the device that it is about.
    pub subject: SubjectId,
    /// The diagnosis that holds.
    pub kind: DiagnosisKind,
    /// The severity of the finding.
    pub severity: Severity,
    /// The figures behind it.
    pub evidence: Evidence,
}

impl Finding {
    /// Returns the first thing to check.
    pub fn advice(&self) -> Statement {
        let of_kind = || Statement::new(Claim::Advice, self.kind.about().advice);
        self.evidence.advice().unwrap_or_else(of_kind)
    }
}

/// A finding, and since when it holds as a Unix time.
#[derive(Clone, Debug)]
pub struct ActiveFinding {
    pub finding: Finding,
    /// The time when it was first raised.
    pub since: f64,
}

/// A finding that was raised, changed its severity, or was cleared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transition {
    /// The time of the transition, as a Unix time with milliseconds.
    pub time: f64,
    /// The last train step of a rank.
    pub step: Option<u64>,
    /// The rank, the unmanaged process or the device that it is about.
    #[serde(flatten, with = "subject_fields")]
    pub subject: SubjectId,
    /// The diagnosis that was raised, changed or cleared.
    pub kind: DiagnosisKind,
    /// The state from now on: it holds, or does not.
    pub state: TransitionState,
    /// The severity of the finding; of a cleared one, the severity that it had.
    pub severity: Severity,
    /// The figures behind it; of a cleared one, the last that it had.
    pub evidence: Evidence,
}

/// The state of a finding: it holds, or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TransitionState {
    /// The finding holds from now on, at this severity.
    Raised,
    /// The finding no longer holds.
    Cleared,
}

/// The findings that hold, ascending by subject and label.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    // Invariant: no inner map is empty.
    by_subject: BTreeMap<SubjectId, BTreeMap<DiagnosisKind, ActiveFinding>>,
}

impl Findings {
    /// Returns every finding, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ActiveFinding> {
        self.by_subject.values().flat_map(BTreeMap::values)
    }

    /// Returns the findings of a subject.
    pub(crate) fn of(&self, subject: &SubjectId) -> impl Iterator<Item = &Finding> {
        let of_subject = self.by_subject.get(subject).into_iter();
        of_subject.flat_map(BTreeMap::values).map(|active| &active.finding)
    }

    /// Returns whether nothing holds.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_subject.is_empty()
    }

    /// Sets since when a finding that holds has held.
    pub(crate) fn set_since(&mut self, subject: &SubjectId, kind: DiagnosisKind, since: f64) {
        let of_subject = self.by_subject.get_mut(subject);
        if let Some(active) = of_subject.and_then(|of_subject| of_subject.get_mut(&kind)) {
            active.since = since;
        }
    }

    /// Returns whether the bound of what a subject holds withholds the page of its growth, of
    /// which `kind` is the finding.
    pub(crate) fn withholds_page(&self, subject: &SubjectId, kind: DiagnosisKind) -> bool {
        let of_subject = self.by_subject.get(subject);
        let active = of_subject.and_then(|held| held.get(&kind));
        active.is_some_and(|active| active.finding.evidence.ends())
    }

    /// Judges a diagnosis input by what held before; an acknowledged finding counts as info.
    /// The worst diagnosis comes first, and then the subjects in order.
    pub(crate) fn judge(
        &self,
        input: &DiagnosisInput<'_>,
        acks: &Acks,
        now: Uptime,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        let held = |view: SubjectView<'_, '_>| {
            // The name is cloned only when something holds.
            let id = (!self.is_empty()).then(|| view.id());
            id.and_then(|id| self.by_subject.get(&id))
        };
        let subjects: Vec<_> = input.subjects().map(|view| (view, held(view))).collect();
        for kind in DiagnosisKind::ALL {
            for (view, held) in &subjects {
                let active = held.and_then(|held| Some(held.get(kind)?.finding.severity));
                let judged = kind.judge(input, &Subject { view: *view, active });
                let Some((mut severity, evidence)) = judged else { continue };
                let subject = view.id();
                // The finding of an ended rank is an answer, and no longer a reason to act. An
                // out-of-memory error is one still.
                let is_answer = view.has_ended() && *kind != DiagnosisKind::OutOfMemory;
                if is_answer || acks.lowers(&subject, *kind, now) {
                    severity = Severity::Info;
                }
                findings.push(Finding { subject, kind: *kind, severity, evidence });
            }
        }
        findings
    }

    /// Replaces what held by what was found at the Unix time `time`: returns the findings that
    /// ceased, and those that began or changed their severity.
    pub(crate) fn replace(
        &mut self,
        found: Vec<Finding>,
        time: f64,
    ) -> (Vec<Finding>, Vec<Finding>) {
        let mut before = std::mem::take(&mut self.by_subject);
        let mut raised = Vec::new();
        for finding in found {
            let held = before.get_mut(&finding.subject);
            let active = held.and_then(|held| held.remove(&finding.kind));
            if active.as_ref().map(|active| active.finding.severity) != Some(finding.severity) {
                raised.push(finding.clone());
            }
            let since = active.map_or(time, |active| active.since);
            let of_subject = self.by_subject.entry(finding.subject.clone()).or_default();
            of_subject.insert(finding.kind, ActiveFinding { finding, since });
        }
        let ceased = before.into_values().flat_map(BTreeMap::into_values);
        (ceased.map(|active| active.finding).collect(), raised)
    }
}

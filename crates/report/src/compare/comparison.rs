//! The result of a comparison.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::compare::figures::RunFigures;
use crate::policy::PolicyName;
use stepmem_types::claims::Statement;
use stepmem_types::end::EndOutcome;

/// Two runs against each other.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The result in a word.
    pub verdict: ComparisonVerdict,
    /// The exit code of the command.
    pub exit_code: u8,
    /// Differences that make the runs not of the same job, a sentence each; then nothing is
    /// judged.
    pub incomparable: Vec<Worded>,
    /// The reasons of the verdict, what got worse first.
    pub reasons: Vec<Reason>,
    /// Limits of the comparison, and how to read it.
    pub notes: Vec<Worded>,
    /// The diagnosis of each run.
    pub diagnosis: OldNew<RunDiagnosis>,
    /// The figures by key.
    pub metrics: BTreeMap<&'static str, Change>,
    /// The train steps of each run, of the rank that came furthest.
    pub steps: OldNew<Option<f64>>,
    /// The end of each run, where its ranks announced that: the worst end of a rank.
    pub end: OldNew<Option<EndOutcome>>,
    /// The ranks of both runs whose diagnosis or peak differs, the most telling first.
    pub ranks: Vec<RankChange>,
    /// The reason that the exit code is 1, in a sentence.
    pub exit_reason: Option<Worded>,
    /// States that nothing differs, where there is no reason.
    #[serde(skip)]
    pub nothing: Option<Statement>,
    /// The statements of the text, in its order.
    pub statements: Vec<Statement>,
}

/// A statement of which JSON has the words; the whole stands in the list of statements.
#[derive(Clone, Debug, PartialEq)]
pub struct Worded(pub Statement);

impl Serialize for Worded {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.words())
    }
}

impl Comparison {
    /// Makes the exit code 0 where the runs are not of the same job.
    pub fn allow_incomparable(&mut self) {
        if !self.incomparable.is_empty() {
            self.exit_code = 0;
        }
    }
}

/// One rank of both runs.
#[derive(Clone, Debug, Serialize)]
pub struct RankChange {
    pub rank: u64,
    /// The issues of it, as pages name them, the worst first.
    pub issues: OldNew<Vec<String>>,
    /// The most that was allocated within a step, or held at the end of one where a run does
    /// not know the former.
    pub peak: Change,
}

impl RankChange {
    pub(crate) fn has_other_issues(&self) -> bool {
        self.issues.old != self.issues.new
    }

    /// Returns whether it differs by more than noise.
    pub(crate) fn is_any(&self) -> bool {
        let is_apart = matches!(self.peak.direction, Direction::Worse | Direction::Better);
        is_apart || self.has_other_issues()
    }
}

/// The result of a comparison in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ComparisonVerdict {
    /// Something got worse, and nothing better.
    Regression,
    /// Something got better, and nothing worse.
    Improvement,
    Mixed,
    Equivalent,
    /// The summaries leave it open.
    Inconclusive,
}

impl ComparisonVerdict {
    /// Returns the verdict's name in files.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Regression => "REGRESSION",
            Self::Improvement => "IMPROVEMENT",
            Self::Mixed => "MIXED",
            Self::Equivalent => "EQUIVALENT",
            Self::Inconclusive => "INCONCLUSIVE",
        }
    }

    /// Returns the exit code for a gate: 0 for no regression, 1 for one, 2 when that is open.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Improvement | Self::Equivalent => 0,
            Self::Regression | Self::Mixed => 1,
            Self::Inconclusive => 2,
        }
    }
}

/// A value of both runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OldNew<T> {
    /// The value of the old run.
    pub old: T,
    /// The value of the new run.
    pub new: T,
}

impl<T: Copy> OldNew<T> {
    /// Returns the same figure of both.
    pub fn map<U>(self, of: impl Fn(T) -> U) -> OldNew<U> {
        OldNew { old: of(self.old), new: of(self.new) }
    }
}

impl<T> OldNew<Option<T>> {
    /// Returns both where both are known.
    pub fn known(self) -> Option<OldNew<T>> {
        self.old.zip(self.new).map(|(old, new)| OldNew { old, new })
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct RunDiagnosis {
    /// The policy that judged it.
    pub policy: PolicyName,
    pub run: Option<String>,
    /// The diagnosis as pages name it.
    pub status: String,
    /// The labels of everything that was wrong.
    pub kinds: Vec<String>,
    /// The rank that it is about.
    pub worst_rank: Option<u64>,
}

impl RunDiagnosis {
    /// Returns the diagnosis of a run.
    pub fn of(run: &RunFigures) -> Self {
        Self {
            policy: run.policy,
            run: run.run.clone(),
            status: run.status.clone(),
            kinds: run.issues.iter().map(|issue| issue.kind.clone()).collect(),
            worst_rank: run.worst_rank,
        }
    }
}

/// A reason of a verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reason {
    /// The direction in which the difference points.
    pub direction: Direction,
    /// The difference in a sentence.
    pub sentence: Worded,
}

/// The direction in which a difference points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    Worse,
    Better,
    /// No more than noise, or of no consequence.
    Same,
    /// A run lacks the figure, or could not show the difference.
    Unknown,
}

/// A figure of both runs.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// The name of the figure for people.
    pub label: &'static str,
    pub unit: ChangeUnit,
    /// The figure of the old run.
    pub old: Option<f64>,
    /// The figure of the new run.
    pub new: Option<f64>,
    /// New less old.
    pub delta: Option<f64>,
    /// The difference by the old figure.
    pub delta_ratio: Option<f64>,
    /// The least difference that counts.
    pub significant_from: Option<f64>,
    /// The direction in which the difference points.
    pub direction: Direction,
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeUnit {
    Bytes,
    BytesPerStep,
    Ratio,
    Count,
}

/// The direction in which a figure gets worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorseWhen {
    More,
    Less,
}

impl Change {
    /// Returns the difference of a figure, which counts for nothing yet.
    pub fn new(label: &'static str, unit: ChangeUnit, values: OldNew<Option<f64>>) -> Self {
        let OldNew { old, new } = values;
        let delta = old.zip(new).map(|(old, new)| new - old);
        let delta_ratio =
            delta.zip(old).filter(|(_, old)| old.abs() > 0.0).map(|(delta, old)| delta / old);
        let direction = if delta.is_some() { Direction::Same } else { Direction::Unknown };
        Self { label, unit, old, new, delta, delta_ratio, significant_from: None, direction }
    }

    /// Returns the same figure, of which nothing is judged.
    #[must_use]
    pub fn unjudged(self) -> Self {
        Self { direction: Direction::Unknown, significant_from: None, ..self }
    }

    /// Returns the same figure, which counts when it differs by more than `limit`.
    #[must_use]
    pub fn judged(mut self, limit: Option<f64>, worse_when: WorseWhen) -> Self {
        self.significant_from = limit;
        if let (Some(delta), Some(limit)) = (self.delta, limit)
            && delta.abs() > limit
        {
            let is_worse = (delta > 0.0) == (worse_when == WorseWhen::More);
            self.direction = if is_worse { Direction::Worse } else { Direction::Better };
        }
        self
    }
}

//! One statement: what it claims, in words and as a figure.

use serde::{Deserialize, Serialize, Serializer};

use crate::claims::table::Claim;

/// A statement. JSON has its words next to what it claims, and its figure.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Statement {
    claim: Claim,
    words: String,
    #[serde(default)]
    value: Option<f64>,
    #[serde(default)]
    lower: Option<f64>,
    #[serde(default)]
    upper: Option<f64>,
}

impl Statement {
    /// Makes a statement without a figure.
    pub fn new(claim: Claim, words: impl Into<String>) -> Self {
        Self { claim, words: words.into(), value: None, lower: None, upper: None }
    }

    /// Adds its figure, in the unit of its row, as far as that is known.
    #[must_use]
    pub fn of(self, value: impl Into<Option<f64>>) -> Self {
        Self { value: value.into().filter(|value| value.is_finite()), ..self }
    }

    /// Adds the 95 % interval of its figure, as far as that is known.
    #[must_use]
    pub fn between(self, lower: Option<f64>, upper: Option<f64>) -> Self {
        let known = |end: Option<f64>| end.filter(|end| end.is_finite());
        Self { lower: known(lower), upper: known(upper), ..self }
    }

    /// Returns the claim that it makes.
    pub fn claim(&self) -> Claim {
        self.claim
    }

    /// Returns the claim in words.
    pub fn words(&self) -> &str {
        &self.words
    }

    /// Returns its figure, in the unit of its row.
    pub fn value(&self) -> Option<f64> {
        self.value
    }

    /// Replaces a part of its words by others.
    #[must_use]
    pub(super) fn reworded(self, from: &str, to: &str) -> Self {
        Self { words: self.words.replacen(from, to, 1), ..self }
    }
}

/// A statement as JSON has it: with what its row knows.
#[derive(Serialize)]
struct StatementTold<'a> {
    claim: Claim,
    words: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lower: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upper: Option<f64>,
    evidence: &'static [&'static str],
}

impl Serialize for Statement {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = self.claim.row();
        let unit = row.unit.filter(|_| self.value.is_some());
        StatementTold {
            claim: self.claim,
            words: &self.words,
            value: self.value,
            unit: unit.map(super::row::ClaimUnit::as_label),
            lower: self.lower,
            upper: self.upper,
            evidence: row.needs,
        }
        .serialize(serializer)
    }
}

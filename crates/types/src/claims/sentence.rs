//! Statements joined to a sentence.

use std::fmt;

use crate::claims::statement::Statement;
use crate::claims::table::Claim;

/// Statements in a row, with the words between them. Nothing but statements and constants gets
/// into one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sentence {
    words: String,
    statements: Vec<Statement>,
}

impl Sentence {
    /// Reads a sentence that another program or version wrote; one without statements is a
    /// statement of its own, of [`Claim::Recorded`].
    pub fn read(words: &str, statements: &[Statement]) -> Self {
        if statements.is_empty() {
            return Statement::new(Claim::Recorded, words).into();
        }
        Self { words: words.to_owned(), statements: statements.to_vec() }
    }

    /// Reads a sentence and an advice whose statements stand in one list.
    pub fn read_with_advice(
        words: &str,
        advice: &str,
        statements: &[Statement],
    ) -> (Self, Self) {
        let (of_advice, of_words): (Vec<&Statement>, Vec<&Statement>) =
            statements.iter().partition(|of| of.words() == advice);
        let owned = |of: Vec<&Statement>| of.into_iter().cloned().collect::<Vec<_>>();
        (Self::read(words, &owned(of_words)), Self::read(advice, &owned(of_advice)))
    }

    /// Appends a statement or a sentence, after `joint`.
    #[must_use]
    pub fn then(mut self, joint: &'static str, next: impl Into<Self>) -> Self {
        let next = next.into();
        self.words.push_str(joint);
        self.words.push_str(&next.words);
        self.statements.extend(next.statements);
        self
    }

    /// Appends a statement or a sentence after `joint`, if there is one.
    #[must_use]
    pub fn then_if(self, joint: &'static str, next: Option<impl Into<Self>>) -> Self {
        match next {
            Some(next) => self.then(joint, next),
            None => self,
        }
    }

    /// Adds a statement whose words stand within those before.
    #[must_use]
    pub fn with(mut self, inner: impl Into<Option<Statement>>) -> Self {
        self.statements.extend(inner.into());
        self
    }

    /// Appends words that state nothing, such as a full stop.
    #[must_use]
    pub fn end(mut self, end: &'static str) -> Self {
        self.words.push_str(end);
        self
    }

    /// Prepends words that state nothing, such as `Next: `.
    #[must_use]
    pub fn after(mut self, lead: &'static str) -> Self {
        self.words.insert_str(0, lead);
        self
    }

    /// Replaces the name of what its first statement is about.
    #[must_use]
    pub fn reworded(self, from: &'static str, to: &'static str) -> Self {
        let words = self.words.replacen(from, to, 1);
        let statements = self.statements.into_iter().map(|of| of.reworded(from, to));
        Self { words, statements: statements.collect() }
    }

    /// Returns the words, with those between its statements.
    pub fn words(&self) -> &str {
        &self.words
    }

    /// Returns the statements, in order of the words.
    pub fn statements(&self) -> &[Statement] {
        &self.statements
    }

    /// Returns its statements, and drops the words between them.
    pub fn into_statements(self) -> Vec<Statement> {
        self.statements
    }

    /// Returns whether it states nothing.
    pub fn is_empty(&self) -> bool {
        self.statements.is_empty()
    }
}

impl From<Statement> for Sentence {
    fn from(statement: Statement) -> Self {
        Self { words: statement.words().to_owned(), statements: vec![statement] }
    }
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentence_has_the_words_and_the_figures_of_its_statements() {
        let rate = Statement::new(Claim::RatePerStep, "live memory grows by 2.00 MiB/step");
        let rate = rate.of(2_097_152.0).between(Some(2e6), None);
        let left = Statement::new(Claim::Left, "5.00 GiB left").of(5_368_709_120.0);
        let sentence = Sentence::from(rate).then("; ", left).end(".");
        assert_eq!(sentence.words(), "live memory grows by 2.00 MiB/step; 5.00 GiB left.");
        let json = serde_json::to_value(sentence.statements()).unwrap();
        assert_eq!(
            json,
            serde_json::json!([
                {"claim": "rate_per_step", "words": "live memory grows by 2.00 MiB/step",
                    "value": 2_097_152.0, "unit": "B/step", "lower": 2e6,
                    "evidence": ["slope_bytes_per_step", "onset_step"]},
                {"claim": "left", "words": "5.00 GiB left", "value": 5_368_709_120.0,
                    "unit": "B", "evidence": ["headroom_bytes"]},
            ])
        );
        let read: Vec<Statement> = serde_json::from_value(json).unwrap();
        assert_eq!(Sentence::read(sentence.words(), &read), sentence);
    }

    #[test]
    fn sentence_of_an_earlier_version_is_told_as_recorded() {
        let read = Sentence::read("live memory grows", &[]);
        assert_eq!(read.words(), "live memory grows");
        assert_eq!(read.statements()[0].claim(), Claim::Recorded);
    }
}

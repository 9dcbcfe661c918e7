//! A page of statements in the making. It takes sentences, pictures and tables, and no other
//! text: whatever is said on it is in the list of its statements.

use crate::claims::sentence::Sentence;
use crate::claims::statement::Statement;
use crate::claims::table::Claim;
use crate::format::page::{Indent, Page, Table};
use crate::format::spark::sparkline;

/// A page, and what was said on it.
#[derive(Debug, Default)]
pub struct Telling {
    page: Page,
    said: Vec<Statement>,
}

impl Telling {
    /// Begins on a page.
    pub fn on(page: Page) -> Self {
        Self { page, said: Vec::new() }
    }

    /// Says a sentence, as a paragraph.
    pub fn say(&mut self, indent: Indent, sentence: impl Into<Sentence>) {
        let sentence = sentence.into();
        self.page.paragraph(indent, sentence.words());
        self.said.extend(sentence.into_statements());
    }

    /// Adds a heading, or the explanation of a word: a constant, which states nothing of a job.
    pub fn heading(&mut self, words: &'static str) {
        self.page.line(words);
    }

    /// Adds a heading of two constants.
    pub fn heading_of(&mut self, name: &'static str, rest: &'static str) {
        self.page.line(&format!("{name}{rest}"));
    }

    /// Adds the explanation of words, as a paragraph of constants.
    pub fn explain(&mut self, indent: Indent, words: &'static str) {
        self.page.paragraph(indent, words);
    }

    /// Adds a row of a glossary: a word, and its meaning.
    pub fn meaning(&mut self, name: &'static str, meaning: &'static str) {
        self.page.paragraph(Indent::hanging(2), &format!("{name:14}  {meaning}"));
    }

    /// Adds an empty line.
    pub fn blank(&mut self) {
        self.page.blank();
    }

    /// Adds a chart of figures, indented by two.
    pub fn chart(&mut self, points: &[f64]) {
        self.page.line(&format!("  {}", sparkline(points)));
    }

    /// Adds marks below a chart.
    pub fn marks(&mut self, marks: &[char]) {
        self.page.line(&format!("  {}", marks.iter().collect::<String>()));
    }

    /// Adds a table of figures.
    pub fn table(&mut self, table: &Table) {
        self.page.table(table);
    }

    /// Returns the statements so far.
    pub fn said(&self) -> &[Statement] {
        &self.said
    }

    /// Returns the text.
    pub fn into_text(self) -> String {
        self.page.into_text()
    }

    /// Returns the statements.
    pub fn into_said(self) -> Vec<Statement> {
        self.said
    }
}

/// Returns the statements that contradict each other, by what they claim.
pub fn contradictions(said: &[Statement]) -> Vec<(Claim, Claim)> {
    let is_said = |claim: &Claim| said.iter().any(|of| of.claim() == *claim);
    let of = |one: &Statement| {
        let one = one.claim();
        one.excludes().iter().copied().filter(is_said).map(move |other| (one, other))
    };
    said.iter().flat_map(of).collect()
}

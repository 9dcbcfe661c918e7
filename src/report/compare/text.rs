//! A comparison as text of at most 100 columns.

use crate::report::compare::comparison::{
    Change, ChangeUnit, Comparison, Direction, OldNew, Reason, RunDiagnosis,
};
use crate::report::policy::PolicyName;
use crate::text::page::{Column, Indent, Page, Table};
use crate::text::units::{bytes, or_unknown, percent, rate, signed_bytes};

/// Puts a comparison into words.
pub fn render(comparison: &Comparison) -> String {
    let mut page = Page::default();
    page.line(&format!("Verdict: {}", comparison.verdict.as_label()));
    for Reason { direction, sentence } in &comparison.reasons {
        let word = if *direction == Direction::Worse { "worse: " } else { "better:" };
        page.paragraph(Indent { first: 2, rest: 10 }, &format!("{word} {sentence}."));
    }
    if comparison.reasons.is_empty() {
        page.line("  Nothing differs by more than noise.");
    }
    if comparison.exit_code == 1 {
        let n_worse = comparison.reasons.iter().filter(|of| of.direction == Direction::Worse);
        let words = format!(
            "Exit code 1: something got worse, whatever got better (lines above: {}).",
            n_worse.count()
        );
        page.paragraph(Indent::hanging(2), &words);
    }
    for note in &comparison.notes {
        page.paragraph(Indent { first: 2, rest: 8 }, &format!("note: {note}."));
    }
    page.blank();
    page.table(&table(comparison));
    page.into_text()
}

/// Returns a figure in its unit.
pub fn value(unit: ChangeUnit, value: f64) -> String {
    match unit {
        ChangeUnit::Bytes => bytes(value),
        ChangeUnit::BytesPerStep => rate(value, "step"),
        ChangeUnit::Ratio => percent(value),
        ChangeUnit::Count => format!("{value:.0}"),
    }
}

fn table(comparison: &Comparison) -> Table {
    let mut table = Table::new([
        Column::left(0, "").at_least(24),
        Column::right(1, "OLD").at_least(20),
        Column::right(1, "NEW").at_least(20),
        Column::right(1, "CHANGE").at_least(26),
    ]);
    let OldNew { old, new } = &comparison.diagnosis;
    let status = |run: &RunDiagnosis| match run.policy {
        PolicyName::TraceMl => format!("{} (TraceML)", run.status),
        PolicyName::Stepmem => run.status.clone(),
    };
    let changed = if old.status == new.status { "" } else { "changed" };
    table.row(["diagnosis", &status(old), &status(new), changed]);
    let rank = |run: &RunDiagnosis| or_unknown(run.worst_rank.map(|rank| rank.to_string()));
    table.row(["worst rank", &rank(old), &rank(new)]);
    let is_known = |change: &&Change| change.old.is_some() || change.new.is_some();
    for change in comparison.metrics.values().filter(is_known) {
        let shown = |of: Option<f64>| or_unknown(of.map(|of| value(change.unit, of)));
        let (old, new) = (shown(change.old), shown(change.new));
        table.row([change.label, &old, &new, &difference(change)]);
    }
    table
}

fn difference(change: &Change) -> String {
    let Some(delta) = change.delta else { return "unknown".to_owned() };
    let word = match change.direction {
        Direction::Worse => "worse",
        Direction::Better => "better",
        Direction::Same | Direction::Unknown => "same",
    };
    let sign = if delta < 0.0 { '-' } else { '+' };
    let (amount, is_relative) = match change.unit {
        ChangeUnit::Bytes | ChangeUnit::BytesPerStep => (signed_bytes(delta), true),
        ChangeUnit::Ratio => (format!("{sign}{:.1} points", 100.0 * delta.abs()), false),
        ChangeUnit::Count => (format!("{sign}{:.0}", delta.abs()), false),
    };
    let ratio = change
        .delta_ratio
        .filter(|ratio| is_relative && ratio.abs() < 100.0)
        .map_or_else(String::new, |ratio| format!(" ({:+.1}%)", 100.0 * ratio));
    format!("{amount}{ratio} {word}")
}

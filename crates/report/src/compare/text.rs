//! A comparison as text of at most 100 columns.

use crate::compare::comparison::{
    Change, ChangeUnit, Comparison, Direction, OldNew, RankChange, Reason, RunDiagnosis, Worded,
};
use crate::policy::PolicyName;
use stepmem_types::claims::{Claim, Sentence, Statement, Telling};
use stepmem_types::end::EndOutcome;
use stepmem_types::format::page::{COLUMNS, Column, Indent, Page, Table};
use stepmem_types::format::units::{bytes, many, or_unknown, rate, share, signed_bytes, whole};

/// A rise by this share or more of the old figure is told as a factor, not in percent.
const PERCENT_BELOW: f64 = 9.0;

/// The ranks with rows of their own, at most; the rest is counted.
const RANKS_MAX: usize = 16;

/// Puts a comparison into words.
pub fn render(comparison: &Comparison) -> String {
    render_within(comparison, None)
}

/// Puts a comparison into words for a terminal of so many columns.
pub fn render_within(comparison: &Comparison, columns: Option<usize>) -> String {
    tell(comparison, columns).into_text()
}

/// Tells a comparison on a page of so many columns.
pub(super) fn tell(comparison: &Comparison, columns: Option<usize>) -> Telling {
    let mut page = Telling::on(Page::default().within(columns));
    let verdict = format!("Verdict: {}", comparison.verdict.as_label());
    page.say(Indent::hanging(0), Statement::new(Claim::Compared, verdict));
    let said = |of: &Worded| Sentence::from(of.0.clone()).end(".");
    for Reason { direction, sentence } in &comparison.reasons {
        let word = if *direction == Direction::Worse { "worse:  " } else { "better: " };
        page.say(Indent { first: 2, rest: 10 }, said(sentence).after(word));
    }
    for reason in &comparison.incomparable {
        page.say(Indent::hanging(2), said(reason).after("not comparable: "));
    }
    if let Some(nothing) = &comparison.nothing {
        page.say(Indent::hanging(2), nothing.clone());
    }
    if let Some(reason) = &comparison.exit_reason {
        page.say(Indent::hanging(2), said(reason));
    }
    for note in &comparison.notes {
        page.say(Indent { first: 2, rest: 8 }, said(note).after("note: "));
    }
    page.blank();
    page.table(&table(comparison, columns.is_none_or(|columns| columns >= COLUMNS)));
    if let n @ 1.. = comparison.ranks.len().saturating_sub(RANKS_MAX) {
        let n = u64::try_from(n).unwrap_or(u64::MAX);
        let ranks = many(n, "more rank");
        let differ = if n == 1 { "differs" } else { "differ" };
        let words = format!("… and {ranks} that {differ}");
        let more = Statement::new(Claim::MoreRanksDiffer, words).of(real(n));
        page.say(Indent::hanging(0), Sentence::from(more).end(" (--json has all)"));
    }
    page
}

fn real(n: u64) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}

/// Returns a figure in its unit.
pub(crate) fn value(unit: ChangeUnit, value: f64) -> String {
    match unit {
        ChangeUnit::Bytes => bytes(value),
        ChangeUnit::BytesPerStep => rate(value, "step"),
        ChangeUnit::Ratio => share(value),
        ChangeUnit::Count => format!("{value:.0}"),
    }
}

fn table(comparison: &Comparison, is_wide: bool) -> Table {
    let [about, figure, change] = if is_wide { [24, 20, 26] } else { [0; 3] };
    let mut table = Table::new([
        Column::left(0, "").at_least(about),
        Column::right(1, "OLD").at_least(figure),
        Column::right(1, "NEW").at_least(figure),
        Column::right(1, "CHANGE").at_least(change),
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
    let end = comparison.end;
    if end.old.or(end.new).is_some() {
        let named =
            |end: Option<EndOutcome>| or_unknown(end.map(|of| of.as_label().to_owned()));
        let changed = if end.old == end.new { "" } else { "changed" };
        table.row(["end", &named(end.old), &named(end.new), changed]);
    }
    let is_known = |change: &&Change| change.old.is_some() || change.new.is_some();
    for change in comparison.metrics.values().filter(is_known) {
        let shown = |of: Option<f64>| or_unknown(of.map(|of| value(change.unit, of)));
        let (old, new) = (shown(change.old), shown(change.new));
        table.row([change.label, &old, &new, &difference(change)]);
    }
    for rank in comparison.ranks.iter().take(RANKS_MAX) {
        rank_rows(&mut table, rank);
    }
    table
}

/// Adds what differs of one rank.
fn rank_rows(table: &mut Table, of: &RankChange) {
    let RankChange { rank, issues, peak } = of;
    if of.has_other_issues() {
        // The worst of several; a line holds one.
        let named = |issues: &[String]| match issues {
            [] => "none".to_owned(),
            [only] => only.clone(),
            [worst, others @ ..] => format!("{worst} +{}", others.len()),
        };
        let (old, new) = (named(&issues.old), named(&issues.new));
        table.row([&*format!("rank {rank}: diagnosis"), &old, &new, "changed"]);
    }
    if peak.delta.is_some() {
        let shown = |of: Option<f64>| or_unknown(of.map(|of| value(peak.unit, of)));
        let label = format!("rank {rank}: {}", peak.label);
        table.row([&*label, &shown(peak.old), &shown(peak.new), &difference(peak)]);
    }
}

fn difference(change: &Change) -> String {
    let Some(delta) = change.delta else { return "unknown".to_owned() };
    let word = match change.direction {
        Direction::Worse => " worse",
        Direction::Better => " better",
        Direction::Same => " same",
        Direction::Unknown => "",
    };
    let sign = if delta < 0.0 { '-' } else { '+' };
    let (amount, is_relative) = match change.unit {
        ChangeUnit::Bytes => (signed_bytes(delta), true),
        ChangeUnit::BytesPerStep => (format!("{}/step", signed_bytes(delta)), true),
        ChangeUnit::Ratio => {
            (format!("{sign}{} points", share(delta.abs()).replace('%', "")), false)
        }
        ChangeUnit::Count => (format!("{sign}{:.0}", delta.abs()), false),
    };
    // What shrinks has no share of its size.
    let is_relative = is_relative && change.old >= Some(0.0) && change.new >= Some(0.0);
    let ratio = match change.delta_ratio {
        Some(ratio) if is_relative && ratio < PERCENT_BELOW => {
            format!(" ({:+.1}%)", 100.0 * ratio)
        }
        Some(ratio) if is_relative => format!(" (×{})", whole(1.0 + ratio)),
        _ => String::new(),
    };
    format!("{amount}{ratio}{word}")
}

//! A summary as a card of at most 100 columns: the verdict first, then why and what to do next, then the ranks.

use std::cmp::Reverse;

use crate::model::units::Count;
use crate::report::summary::{Figures, Issue, RankSummary, Summary};
use crate::text::units::{bytes, duration, percent};

/// No line is longer.
pub const COLUMNS: usize = 100;
/// How many ranks the table has; the rest is summed up.
const RANKS_MAX: usize = 16;
/// How many ranks are named in a line.
const NAMED_MAX: usize = 8;
/// How many characters a picture has.
const SPARKS_MAX: usize = 24;
/// The levels of a picture, the lowest first.
const SPARKS: &str = "▁▂▃▄▅▆▇█";
/// What moves by less than this share of itself is shown as level.
const FLAT_RATIO: f64 = 0.01;
/// What stands for an unknown value.
const UNKNOWN: &str = "–";
/// The table's columns with their widths; the picture comes after them.
const TABLE: [(&str, usize); 8] = [
    ("RANK", 7),
    ("PEAK", 8),
    ("MEAN", 8),
    ("LAST", 8),
    ("RESERVED", 8),
    ("OF CAP", 6),
    ("HEADROOM", 8),
    ("PER STEP", 9),
];

/// Puts a summary into words.
pub fn render(summary: &Summary) -> String {
    let mut page = Page::default();
    for issue in &summary.issues {
        verdict(&mut page, issue);
    }
    scope(&mut page, summary);
    snapshots(&mut page, summary);
    table(&mut page, summary);
    page.text
}

/// Text in the making.
#[derive(Default)]
pub struct Page {
    /// The text so far, lines whole.
    pub text: String,
}

impl Page {
    /// Adds a line as it is, less the spaces at its end.
    pub fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// Adds a paragraph, broken between words, or within a word that has no room in a line, with `indent` before its
    /// first line and `hanging` before the others.
    pub fn paragraph(&mut self, (indent, hanging): (usize, usize), words: &str) {
        let mut line = " ".repeat(indent);
        let mut is_begun = false;
        for word in
            words.split(' ').flat_map(|word| pieces(word, COLUMNS - hanging.max(indent)))
        {
            if is_begun && line.chars().count() + 1 + word.chars().count() > COLUMNS {
                self.line(&line);
                line = " ".repeat(hanging);
                is_begun = false;
            }
            if is_begun {
                line.push(' ');
            }
            line.push_str(&word);
            is_begun = true;
        }
        self.line(&line);
    }
}

/// A word in pieces of at most so many characters.
fn pieces(word: &str, chars_max: usize) -> Vec<String> {
    let chars: Vec<char> = word.chars().collect();
    if chars.is_empty() {
        return vec![String::new()];
    }
    chars.chunks(chars_max).map(|piece| piece.iter().collect()).collect()
}

fn verdict(page: &mut Page, issue: &Issue) {
    let about = if issue.phase.is_some() {
        format!(" ({}) on {}", issue.severity.as_label(), named(issue))
    } else {
        String::new()
    };
    page.paragraph((0, 2), &format!("{}{about}", issue.status));
    // Of several ranks the sentence is about the worst.
    let of = match issue.ranks.as_slice() {
        [worst, _, ..] if issue.phase.is_some() => format!("rank {worst}: "),
        _ => String::new(),
    };
    page.paragraph((2, 7), &format!("Why: {of}{}.", issue.summary));
    page.paragraph((2, 8), &format!("Next: {}", issue.action));
    page.line("");
}

fn named(issue: &Issue) -> String {
    let shown: Vec<String> =
        issue.ranks.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let word = if issue.ranks.len() == 1 { "rank" } else { "ranks" };
    let more = match issue.ranks.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("{word} {}{more}", shown.join(", "))
}

fn scope(page: &mut Page, summary: &Summary) {
    let coverage = &summary.coverage;
    let of = coverage.ranks_expected.map_or(String::new(), |n| format!(" of {n}"));
    let steps = match coverage.first.zip(coverage.last) {
        Some((first, last)) => format!(
            ", steps {} to {}{}",
            first.step,
            last.step,
            summary.duration_s.map_or(String::new(), |took| format!(" in {}", duration(took)))
        ),
        None => String::new(),
    };
    let attempt = match summary.attempt.get() {
        0 => String::new(),
        attempt => format!(", attempt {attempt}"),
    };
    let restarts = match coverage.restarts {
        0 => String::new(),
        n => format!(", restarts of ranks: {n}"),
    };
    let seen = coverage.ranks_seen;
    let words =
        format!("Run {}{attempt}: {seen}{of} ranks{steps}{restarts}.", summary.run.as_str());
    page.paragraph((0, 2), &words);
    if coverage.n_ranks_missing > 0 {
        let named: Vec<String> =
            coverage.ranks_missing.iter().take(NAMED_MAX).map(ToString::to_string).collect();
        let more =
            usize::try_from(coverage.n_ranks_missing).unwrap_or(usize::MAX) - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        page.paragraph((0, 2), &format!("Never heard of: rank {}{more}.", named.join(", ")));
    }
    let lost: Vec<String> = coverage
        .ranks_lost
        .iter()
        .take(NAMED_MAX)
        .map(|lost| match lost.last {
            Some(last) => format!("rank {} after step {}", lost.rank, last.step),
            None => format!("rank {} before its first step", lost.rank),
        })
        .collect();
    if !lost.is_empty() {
        let more = match coverage.ranks_lost.len() - lost.len() {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        page.paragraph((0, 2), &format!("Lost: {}{more}.", lost.join(", ")));
    }
    let ooms: u64 = summary.ranks.iter().filter_map(|rank| rank.ooms).map(Count::get).sum();
    if ooms > 0 {
        page.paragraph((0, 2), &format!("Out-of-memory errors: {ooms}."));
    }
}

fn snapshots(page: &mut Page, summary: &Summary) {
    let written = summary.snapshots.iter().flatten().filter(|of| of.outcome == "written");
    for snapshot in written {
        let path = snapshot.path.as_deref().unwrap_or(UNKNOWN);
        let step = snapshot.step.map_or(String::new(), |step| format!(", step {}", step.get()));
        let words = format!(
            "Snapshot of rank {}{step} ({}): {path}",
            snapshot.rank.rank, snapshot.reason
        );
        page.paragraph((0, 2), &words);
    }
}

fn table(page: &mut Page, summary: &Summary) {
    if summary.ranks.is_empty() {
        return;
    }
    page.line("");
    let heads: Vec<String> =
        TABLE.iter().map(|(head, width)| format!("{head:>width$}")).collect();
    page.line(&format!("{}  LIVE MEMORY", heads.join(" ")));
    let ranks = worst_first(summary);
    // One line of rest would tell less than the rank itself.
    let n_shown = if ranks.len() <= RANKS_MAX + 1 { ranks.len() } else { RANKS_MAX };
    let (shown, rest) = ranks.split_at(n_shown);
    for rank in shown {
        row(page, rank);
    }
    let peaks = || rest.iter().filter_map(|rank| peak(rank));
    if let (Some(low), Some(high)) = (peaks().reduce(f64::min), peaks().reduce(f64::max)) {
        let words = format!(
            "… and {} more ranks, with peaks of {} to {}",
            rest.len(),
            bytes(low),
            bytes(high)
        );
        page.paragraph((2, 4), &words);
    }
}

/// The ranks, those with the worst issues first, then by what they use.
fn worst_first(summary: &Summary) -> Vec<&RankSummary> {
    let place = |rank: &RankSummary| {
        let of = |issue: &Issue| issue.phase.is_some() && issue.ranks.contains(&rank.rank);
        summary.issues.iter().position(of).unwrap_or(usize::MAX)
    };
    let within = |rank: &RankSummary| {
        let issue = summary.issues.get(place(rank))?;
        issue.ranks.iter().position(|of| *of == rank.rank)
    };
    let mut ranks: Vec<(usize, Option<usize>, &RankSummary)> =
        summary.ranks.iter().map(|rank| (place(rank), within(rank), rank)).collect();
    ranks.sort_by(|a, b| {
        let peaks = peak(b.2).unwrap_or(0.0).total_cmp(&peak(a.2).unwrap_or(0.0));
        (a.0, a.1).cmp(&(b.0, b.1)).then(peaks).then(Reverse(b.2.rank).cmp(&Reverse(a.2.rank)))
    });
    ranks.into_iter().map(|(_, _, rank)| rank).collect()
}

fn peak(rank: &RankSummary) -> Option<f64> {
    max_bytes(rank.peak_allocated.as_ref())
}

fn row(page: &mut Page, rank: &RankSummary) {
    let or_unknown = |value: Option<String>| value.unwrap_or_else(|| UNKNOWN.to_owned());
    let slope = rank.trend.as_ref().and_then(|trend| trend.slope_bytes_per_step);
    let cells = [
        rank.rank.to_string(),
        or_unknown(peak(rank).map(bytes)),
        or_unknown(rank.allocated.as_ref().map(|figures| bytes(figures.mean_bytes))),
        or_unknown(last_bytes(rank.allocated.as_ref()).map(bytes)),
        or_unknown(max_bytes(rank.peak_reserved.as_ref()).map(bytes)),
        or_unknown(rank.pressure_ratio.map(percent)),
        or_unknown(rank.headroom_bytes.map(bytes)),
        or_unknown(slope.map(bytes)),
    ];
    let cells: Vec<String> =
        cells.iter().zip(TABLE).map(|(cell, (_, width))| format!("{cell:>width$}")).collect();
    page.line(&format!("{}  {}", cells.join(" "), sparks(&rank.series_bytes)));
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "at most 2^53")]
fn max_bytes(figures: Option<&Figures>) -> Option<f64> {
    Some(figures?.max_bytes as f64)
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "at most 2^53")]
fn last_bytes(figures: Option<&Figures>) -> Option<f64> {
    Some(figures?.last_bytes as f64)
}

/// A series as a picture: from its lowest to its highest value, level where that is within one percent.
fn sparks(series: &[f64]) -> String {
    let per_spark = series.len().div_ceil(SPARKS_MAX).max(1);
    let means: Vec<f64> = series
        .chunks(per_spark)
        .map(|part| {
            part.iter().sum::<f64>() / f64::from(u32::try_from(part.len()).unwrap_or(1))
        })
        .collect();
    let lowest = means.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = means.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let range = (highest - lowest).max(FLAT_RATIO * highest);
    means
        .iter()
        .map(|mean| {
            let height = if range > 0.0 { (mean - lowest) / range } else { 0.0 };
            let mut levels = SPARKS.chars().zip(1_u32..);
            levels.find(|(_, i)| height * 8.0 < f64::from(*i)).map_or('█', |(spark, _)| spark)
        })
        .collect()
}

//! The rank of a job that is different, and the line in which it is. A rank is summed up as its
//! file is read, so that a thousand of them fit into memory.

use std::collections::HashMap;

use serde::Serialize;

use crate::analyze::categories::{self, Categories};
use crate::analyze::device_report::DeviceReport;
use crate::analyze::paths::{self, PathNormalizer};
use crate::analyze::sites::{Site, SiteRow, Sum};
use crate::integer::{at, count, difference, real};
use crate::model::Action;
use crate::render::json::{SiteAnswer, row_answer};
use stepmem_types::claims::Statement;

/// The version of this JSON.
pub(crate) const SCHEMA: &str = "stepmem.snapshot-ranks/1";
/// Ranks that a comparison needs.
pub(crate) const RANKS_MIN: usize = 3;
/// A rank that stands out is more than each of these above the median.
const ABOVE_BYTES_MIN: f64 = 1_048_576.0;
const ABOVE_MEDIAN_RATIO_MIN: f64 = 0.2;
const ABOVE_MAD_MIN: f64 = 6.0;

/// The ranks of a job, compared.
#[derive(Debug, Serialize)]
#[expect(clippy::struct_field_names, reason = "they are the keys of the JSON")]
pub struct Ranks {
    schema: &'static str,
    /// A row a file, in the order given.
    pub ranks: Vec<RankRow>,
    /// Lines in which a rank holds much more than the others, the largest excess first.
    pub stand_out: Vec<StandOut>,
    /// The rank of the first of them.
    pub worst_rank: Option<u64>,
    /// The lines in which exactly two ranks differ, the largest difference first.
    pub differences: Vec<LineDifference>,
    /// The categories in which exactly two ranks differ at the end.
    pub category_differences: Vec<CategoryDifference>,
    /// The statements of the text, in its order.
    pub(crate) statements: Vec<Statement>,
}

/// A line in which two ranks differ.
#[derive(Debug, Serialize)]
pub struct LineDifference {
    pub at: ComparedAt,
    /// The line, with what the rank holds there that holds more.
    pub site: SiteAnswer,
    /// Tensor bytes of the first rank and of the second.
    pub bytes: [u64; 2],
    /// Bytes of the second less those of the first.
    pub difference_bytes: i64,
}

/// A category in which two ranks differ.
#[derive(Debug, Serialize)]
pub struct CategoryDifference {
    pub category: &'static str,
    /// Block bytes of the first rank and of the second.
    pub bytes: [u64; 2],
    /// Bytes of the second less those of the first.
    pub difference_bytes: i64,
}

/// A rank by its file.
#[derive(Clone, Debug, Serialize)]
pub struct RankRow {
    /// The number in the file's name, else its position.
    pub rank: u64,
    /// The path as it was given.
    pub file: String,
    /// The most that was active.
    pub peak_bytes: Option<u64>,
    /// Active bytes at the end.
    pub end_bytes: Option<u64>,
    /// Bytes that are taken from the driver at the end.
    pub reserved_bytes: Option<u64>,
    /// The reason for which it could not be read.
    pub error: Option<String>,
}

impl RankRow {
    /// The row of a file that could not be read.
    pub fn unreadable(rank: u64, file: String, error: String) -> Self {
        Self {
            rank,
            file,
            peak_bytes: None,
            end_bytes: None,
            reserved_bytes: None,
            error: Some(error),
        }
    }
}

/// A line in which a rank differs.
#[derive(Debug, Serialize)]
pub struct StandOut {
    pub rank: u64,
    pub at: ComparedAt,
    /// The line, with what the rank holds there.
    pub site: SiteAnswer,
    /// Tensor bytes of the rank.
    pub bytes: u64,
    /// Median of all ranks.
    pub median_bytes: f64,
    /// Median distance from it.
    pub mad_bytes: f64,
    #[serde(skip)]
    excess: f64,
}

/// The moment at which a line's bytes are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparedAt {
    End,
    /// The moment at which the line held most.
    Most,
}

/// The parts of a rank's file that a comparison needs.
#[derive(Debug)]
pub struct RankSnapshot {
    places: PathNormalizer,
    sites: HashMap<Site, SiteSummary>,
    categories: Categories,
    peak: u64,
    end: u64,
    reserved: u64,
}

#[derive(Clone, Debug)]
struct SiteSummary {
    shown: SiteAnswer,
    end: Sum,
    most: Sum,
}

impl SiteSummary {
    fn sum(&self, when: ComparedAt) -> Sum {
        match when {
            ComparedAt::End => self.end,
            ComparedAt::Most => self.most,
        }
    }
}

impl RankSnapshot {
    /// Sums up the devices of a file.
    pub fn new(reports: &[DeviceReport<'_>]) -> Self {
        let mut summary = Self {
            places: PathNormalizer::default(),
            sites: HashMap::new(),
            categories: Categories::default(),
            peak: reports.iter().map(|report| report.scene.timeline.peak.active).sum(),
            end: reports.iter().map(|report| report.totals.active).sum(),
            reserved: reports.iter().map(|report| report.totals.reserved).sum(),
        };
        for report in reports {
            summary.places = PathNormalizer::new(report.scene.snapshot, report.scene.sites);
            summary.add(report);
            let mut here = report.categories_at_end;
            for category in categories::ALL {
                *summary.categories.of(category) += *here.of(category);
            }
        }
        summary
    }

    fn add(&mut self, report: &DeviceReport<'_>) {
        let scene = &report.scene;
        let ends: HashMap<u32, &SiteRow> =
            report.at_end.iter().map(|row| (row.site, row)).collect();
        for (site, (origin, most)) in most_at_once(report) {
            let Some(key) = scene.sites.site(site) else { continue };
            let end = ends.get(&site);
            let row = SiteRow { site, origin, sum: most };
            let entry = self.sites.entry(key.clone()).or_insert_with(|| SiteSummary {
                shown: row_answer(scene.snapshot, scene.sites, end.copied().unwrap_or(&row)),
                end: Sum::default(),
                most: Sum::default(),
            });
            entry.end.join(end.map(|row| row.sum).unwrap_or_default());
            entry.most.join(most);
        }
    }

    /// The rank's row in the answer.
    pub fn row(&self, rank: u64, file: String) -> RankRow {
        RankRow {
            rank,
            file,
            peak_bytes: Some(self.peak),
            end_bytes: Some(self.end),
            reserved_bytes: Some(self.reserved),
            error: None,
        }
    }
}

/// The state of the window in which each site holds most tensor bytes, with an origin.
fn most_at_once(report: &DeviceReport<'_>) -> HashMap<u32, (u32, Sum)> {
    let scene = &report.scene;
    let n_sites = scene.sites.sites.len();
    let mut now = vec![(0, Sum::default()); n_sites];
    for allocation in scene.timeline.allocations.iter().filter(|a| a.is_older()) {
        if let Some((origin, sum)) = now.get_mut(at(scene.sites.of(allocation))) {
            *origin = scene.sites.origin(allocation);
            sum.add(allocation);
        }
    }
    let mut most = now.clone();
    for (event, number) in scene.events.iter().zip(&scene.timeline.of_event) {
        let Some(allocation) = scene.timeline.allocations.get(at(*number)) else { continue };
        let site = at(scene.sites.of(allocation));
        let Some((origin, sum)) = now.get_mut(site) else { continue };
        match event.action {
            Action::Alloc => {
                *origin = scene.sites.origin(allocation);
                sum.add(allocation);
                let now = (*origin, *sum);
                if let Some(most) =
                    most.get_mut(site).filter(|most| now.1.requested > most.1.requested)
                {
                    *most = now;
                }
            }
            Action::FreeCompleted => sum.subtract(allocation),
            _ => {}
        }
    }
    (0..).zip(most).filter(|(_, (_, sum))| sum.blocks > 0).collect()
}

/// Compares the ranks of a job; `None` is a file that could not be read.
pub fn compare_ranks(rows: Vec<RankRow>, summaries: &[Option<RankSnapshot>]) -> Ranks {
    let read: Vec<(u64, &RankSnapshot)> = rows
        .iter()
        .zip(summaries)
        .filter_map(|(row, summary)| Some((row.rank, summary.as_ref()?)))
        .collect();
    let stand_out = if read.len() >= RANKS_MIN { stand_out(&read) } else { Vec::new() };
    let worst_rank = stand_out.first().map(|first| first.rank);
    let (differences, category_differences) = match *read.as_slice() {
        [(_, first), (_, second)] => {
            (line_differences(&read), by_category(first.categories, second.categories))
        }
        _ => (Vec::new(), Vec::new()),
    };
    Ranks {
        schema: SCHEMA,
        ranks: rows,
        stand_out,
        worst_rank,
        differences,
        category_differences,
        statements: Vec::new(),
    }
}

fn line_differences(ranks: &[(u64, &RankSnapshot)]) -> Vec<LineDifference> {
    let mut found = Vec::new();
    for (_, line) in &lines(ranks) {
        let [first, second] = *line.as_slice() else { continue };
        for at in [ComparedAt::End, ComparedAt::Most] {
            let sums =
                [first, second].map(|line| line.map(|line| line.sum(at)).unwrap_or_default());
            let bytes = sums.map(|sum| sum.requested);
            let [held, holds] = bytes;
            let (larger, sum) = if holds > held {
                (second.or(first), sums[1])
            } else {
                (first.or(second), sums[0])
            };
            let Some(larger) = larger.filter(|_| held != holds) else { continue };
            let site = larger.shown.clone().with(sum);
            let difference_bytes = difference(holds, held);
            found.push(LineDifference { at, site, bytes, difference_bytes });
        }
    }
    found.sort_by_key(|line| std::cmp::Reverse(line.difference_bytes.unsigned_abs()));
    found
}

fn by_category(mut first: Categories, mut second: Categories) -> Vec<CategoryDifference> {
    let mut found: Vec<CategoryDifference> = Vec::new();
    let names = Categories::<u64>::default().named().map(|(name, _)| name);
    for (category, name) in categories::ALL.into_iter().zip(names) {
        let bytes = [*first.of(category), *second.of(category)];
        let difference_bytes = difference(bytes[1], bytes[0]);
        if difference_bytes != 0 {
            found.push(CategoryDifference { category: name, bytes, difference_bytes });
        }
    }
    found.sort_by_key(|row| std::cmp::Reverse(row.difference_bytes.unsigned_abs()));
    found
}

/// A line with what each rank holds there.
type RankLines<'a> = (Site, Vec<Option<&'a SiteSummary>>);

/// The lines of all ranks, their paths cut to the folder that they share.
fn lines<'a>(ranks: &[(u64, &'a RankSnapshot)]) -> Vec<RankLines<'a>> {
    let places: Vec<PathNormalizer> =
        ranks.iter().map(|(_, summary)| summary.places.clone()).collect();
    let roots = paths::roots(&places);
    let mut lines: HashMap<Site, Vec<Option<&SiteSummary>>> = HashMap::new();
    for (position, ((_, summary), root)) in ranks.iter().zip(&roots).enumerate() {
        for (site, line) in &summary.sites {
            let all = lines
                .entry(paths::comparable(site, root))
                .or_insert_with(|| vec![None; ranks.len()]);
            if let Some(slot) = all.get_mut(position) {
                *slot = Some(line);
            }
        }
    }
    let mut lines: Vec<RankLines<'a>> = lines.into_iter().collect();
    lines.sort_by(|a, b| a.0.cmp(&b.0));
    lines
}

fn stand_out(ranks: &[(u64, &RankSnapshot)]) -> Vec<StandOut> {
    let lines = lines(ranks);
    let mut found = Vec::new();
    for (_, line) in &lines {
        for when in [ComparedAt::End, ComparedAt::Most] {
            found.extend(of_line(ranks, line, when));
        }
    }
    found.sort_by(|a, b| b.excess.total_cmp(&a.excess).then(a.rank.cmp(&b.rank)));
    found
}

fn of_line(
    ranks: &[(u64, &RankSnapshot)],
    line: &[Option<&SiteSummary>],
    when: ComparedAt,
) -> Vec<StandOut> {
    let values: Vec<f64> = line
        .iter()
        .map(|line| line.map_or(0.0, |line| real(line.sum(when).requested)))
        .collect();
    let middle = median(&values);
    let mad = median(&values.iter().map(|value| (value - middle).abs()).collect::<Vec<_>>());
    let limit = ABOVE_BYTES_MIN.max(ABOVE_MEDIAN_RATIO_MIN * middle).max(ABOVE_MAD_MIN * mad);
    ranks
        .iter()
        .zip(line)
        .zip(&values)
        .filter(|(_, value)| **value - middle > limit)
        .filter_map(|(((rank, _), line), value)| {
            let line = (*line)?;
            let sum = line.sum(when);
            Some(StandOut {
                rank: *rank,
                at: when,
                site: line.shown.clone().with(sum),
                bytes: sum.requested,
                median_bytes: middle,
                mad_bytes: mad,
                excess: value - middle,
            })
        })
        .collect()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let at = |number: usize| sorted.get(number).copied().unwrap_or(0.0);
    if count(sorted.len()) % 2 == 1 {
        at(half)
    } else {
        f64::midpoint(at(half.saturating_sub(1)), at(half))
    }
}

/// The rank in a file's name: the number after `rank`.
pub fn rank_of(name: &str) -> Option<u64> {
    name.match_indices("rank").find_map(|(start, word)| {
        let after = name.get(start + word.len()..)?;
        let after = after.strip_prefix(['_', '-', '=', '.']).unwrap_or(after);
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        after.get(..end)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_stands_in_the_name() {
        assert_eq!(rank_of("snapshot_rank12.pickle"), Some(12));
        assert_eq!(rank_of("ranks_skew.rank3.pickle"), Some(3));
        assert_eq!(rank_of("mem_rank_7.pkl"), Some(7));
        assert_eq!(rank_of("memory.pickle"), None);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert!((median(&[4.0, 1.0, 3.0, 2.0]) - 2.5).abs() < 1e-9);
        assert!(median(&[]).abs() < 1e-9);
    }
}

//! Which rank of a job is different, and in which line. A rank is summed up as its file is read, so that a thousand of
//! them fit into memory.

use std::collections::HashMap;

use serde::Serialize;

use crate::snapshot::answer::{SiteAnswer, row_answer};
use crate::snapshot::model::Action;
use crate::snapshot::num::{at, count, real};
use crate::snapshot::places::{self, Places};
use crate::snapshot::sites::{Site, SiteRow, Sum};
use crate::snapshot::study::Study;

/// The version of this JSON.
pub const SCHEMA: &str = "stepmem.snapshot-ranks/1";
/// Ranks that a comparison needs.
pub const RANKS_MIN: usize = 3;
/// What stands out is more than each of these above the median.
const ABOVE_BYTES_MIN: f64 = 1_048_576.0;
const ABOVE_MEDIAN_RATIO_MIN: f64 = 0.2;
const ABOVE_MAD_MIN: f64 = 6.0;

#[derive(Debug, Serialize)]
pub struct Ranks {
    schema: &'static str,
    /// A row a file, in the order given.
    pub ranks: Vec<RankRow>,
    /// Lines in which a rank holds much more than the others, the largest excess first.
    pub stand_out: Vec<StandOut>,
    /// The rank of the first of them.
    pub worst_rank: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct RankRow {
    /// From the file's name, else its position.
    pub rank: u64,
    /// As it was given.
    pub file: String,
    /// The most that was active.
    pub peak_bytes: Option<u64>,
    /// What is active at the end.
    pub end_bytes: Option<u64>,
    /// What is taken from the driver at the end.
    pub reserved_bytes: Option<u64>,
    /// Why it could not be read.
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

/// When a line's bytes are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparedAt {
    End,
    /// When the line held most.
    Most,
}

/// What a comparison needs of a rank's file.
#[derive(Debug)]
pub struct RankSnapshot {
    places: Places,
    sites: HashMap<Site, SiteSummary>,
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

impl RankSnapshot {
    /// Sums up the devices of a file.
    pub fn new(studies: &[Study<'_>]) -> Self {
        let mut summary = Self {
            places: Places::default(),
            sites: HashMap::new(),
            peak: studies.iter().map(|study| study.scene.timeline.peak.active).sum(),
            end: studies.iter().map(|study| study.totals.active).sum(),
            reserved: studies.iter().map(|study| study.totals.reserved).sum(),
        };
        for study in studies {
            summary.places = Places::new(study.scene.snapshot, study.scene.sites);
            summary.add(study);
        }
        summary
    }

    fn add(&mut self, study: &Study<'_>) {
        let scene = &study.scene;
        let ends: HashMap<u32, &SiteRow> =
            study.at_end.iter().map(|row| (row.site, row)).collect();
        for (site, (origin, most)) in most_at_once(study) {
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

    /// Its row in the answer.
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

/// Of each site the state of the window in which it holds most tensor bytes, with an origin.
fn most_at_once(study: &Study<'_>) -> HashMap<u32, (u32, Sum)> {
    let scene = &study.scene;
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
pub fn compare(rows: Vec<RankRow>, summaries: &[Option<RankSnapshot>]) -> Ranks {
    let read: Vec<(u64, &RankSnapshot)> = rows
        .iter()
        .zip(summaries)
        .filter_map(|(row, summary)| Some((row.rank, summary.as_ref()?)))
        .collect();
    let stand_out = if read.len() >= RANKS_MIN { stand_out(&read) } else { Vec::new() };
    let worst_rank = stand_out.first().map(|first| first.rank);
    Ranks { schema: SCHEMA, ranks: rows, stand_out, worst_rank }
}

fn stand_out(ranks: &[(u64, &RankSnapshot)]) -> Vec<StandOut> {
    let places: Vec<Places> = ranks.iter().map(|(_, summary)| summary.places.clone()).collect();
    let roots = places::roots(&places);
    let mut lines: HashMap<Site, Vec<Option<&SiteSummary>>> = HashMap::new();
    for (position, ((_, summary), root)) in ranks.iter().zip(&roots).enumerate() {
        for (site, line) in &summary.sites {
            let all = lines
                .entry(places::comparable(site, root))
                .or_insert_with(|| vec![None; ranks.len()]);
            if let Some(slot) = all.get_mut(position) {
                *slot = Some(line);
            }
        }
    }
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_by(|a, b| a.0.cmp(&b.0));
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
    let sum = |summary: &SiteSummary| match when {
        ComparedAt::End => summary.end,
        ComparedAt::Most => summary.most,
    };
    let values: Vec<f64> =
        line.iter().map(|line| line.map_or(0.0, |line| real(sum(line).requested))).collect();
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
            let sum = sum(line);
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

//! The launches of a run that an engine knows, by the descriptions of their ranks.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::job::answer::Series;
use crate::job::grid::{Grid, whole};

/// Ranks without the name of a launch that come back after so many seconds are of another one.
const GAP_SECONDS: f64 = 600.0;

/// A launch of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobLaunch {
    /// The label `cluster` of its series; absent without one.
    pub cluster: Option<String>,
    /// The label `namespace` of its series; absent without one.
    pub namespace: Option<String>,
    /// The name of the launch; absent where its clients do not report one.
    pub launch: Option<String>,
    /// The latest attempt.
    pub attempt: Option<u64>,
    /// The first time at which it is seen, to a step of the query, as a Unix time.
    pub begin: f64,
    /// The first time at which the latest attempt is seen, as a Unix time.
    pub attempt_begin: f64,
    /// The last time at which it is seen, as a Unix time, or that of the query.
    pub end: f64,
    /// The most ranks that were seen at one time.
    pub ranks_max: f64,
    /// Set when no rank is seen any more.
    pub is_over: bool,
    /// Set when another launch of the run was there at the same time in its namespace, so that
    /// what rules recorded of the run is of both.
    pub overlaps: bool,
    /// The first and the last time at which it is seen.
    #[serde(skip)]
    pub(super) seen: (f64, f64),
}

/// The launch that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The launch that was seen last.
    Latest,
    /// The one before the latest.
    Previous,
    /// The launch of this name.
    Named(String),
}

/// A launch, and the others of its run.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    pub launch: JobLaunch,
    pub others: Vec<JobLaunch>,
}

/// The reason that no launch is chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoLaunch {
    #[error("it has no series of this run in that time")]
    Run,
    #[error("it has only one launch of this run in that time")]
    Previous,
    #[error("it has no launch {wanted} of this run in that time, but {found}")]
    Name { wanted: String, found: String },
}

/// A time at which so many ranks of an attempt are seen.
struct Sighting {
    time: f64,
    attempt: Option<u64>,
    ranks: f64,
}

type Key = (Option<String>, Option<String>, Option<String>);

/// Returns the launches that an answer shows, by the time at which they began.
pub fn launches(series: &[Series], grid: Grid) -> Vec<JobLaunch> {
    let mut by_launch: BTreeMap<Key, Vec<Sighting>> = BTreeMap::new();
    for each in series {
        let text = |name: &str| each.label(name).map(str::to_owned);
        let attempt = each.label("attempt").and_then(|attempt| attempt.parse().ok());
        let key = (text("cluster"), text("namespace"), text("launch"));
        let points = each.points.iter();
        let seen = points.map(|of| Sighting { time: of.time, attempt, ranks: of.value });
        by_launch.entry(key).or_default().extend(seen);
    }
    let mut all: Vec<JobLaunch> = by_launch
        .iter_mut()
        .flat_map(|(key, seen)| {
            seen.sort_by(|a, b| a.time.total_cmp(&b.time));
            let has_name = key.2.is_some();
            let parts = seen.chunk_by(move |a, b| has_name || b.time - a.time <= GAP_SECONDS);
            parts.filter_map(move |part| JobLaunch::of(key, part, grid)).collect::<Vec<_>>()
        })
        .collect();
    mark_overlaps(&mut all);
    all.sort_by(|a, b| a.begin.total_cmp(&b.begin));
    all
}

/// Marks the launches that were there at the same time as another of their namespace. Leaves them
/// by namespace, and there by the time at which they were seen first.
fn mark_overlaps(all: &mut [JobLaunch]) {
    fn place(of: &JobLaunch) -> [Option<&str>; 2] {
        [of.cluster.as_deref(), of.namespace.as_deref()]
    }
    all.sort_by(|a, b| place(a).cmp(&place(b)).then(a.seen.0.total_cmp(&b.seen.0)));
    for near in all.chunk_by_mut(|a, b| place(a) == place(b)) {
        // The one so far that was seen last.
        let mut latest: Option<&mut JobLaunch> = None;
        for launch in near {
            latest = Some(match latest.take() {
                None => launch,
                Some(held) => {
                    let are_both = launch.seen.0 <= held.seen.1;
                    launch.overlaps |= are_both;
                    held.overlaps |= are_both;
                    if launch.seen.1 > held.seen.1 { launch } else { held }
                }
            });
        }
    }
}

impl JobLaunch {
    /// Sums up its sightings, ascending by time.
    fn of((cluster, namespace, launch): &Key, seen: &[Sighting], grid: Grid) -> Option<Self> {
        let (first, last) = (seen.first()?, seen.last()?);
        let attempt = seen.iter().filter_map(|of| of.attempt).max();
        let of_attempt = seen.iter().find(|of| of.attempt == attempt)?;
        let (step, now) = (float(grid.step), float(grid.end));
        let is_over = last.time < now - step / 2.0;
        let before = |time: f64| time - step;
        Some(Self {
            cluster: cluster.clone(),
            namespace: namespace.clone(),
            launch: launch.clone(),
            attempt,
            begin: before(first.time),
            attempt_begin: before(of_attempt.time),
            end: if is_over { (last.time + step).min(now) } else { now },
            ranks_max: seen.iter().map(|of| of.ranks).fold(0.0, f64::max),
            is_over,
            overlaps: false,
            seen: (first.time, last.time),
        })
    }

    /// Returns the first point at which it is seen, as a Unix time.
    pub fn first_point(&self) -> u64 {
        whole(self.seen.0)
    }

    /// Returns whether it may have begun before the first point of a grid.
    pub fn reaches_before(&self, grid: Grid) -> bool {
        self.seen.0 < float(grid.start + grid.step)
    }

    /// Takes over when it began from what another grid shows of it.
    pub fn begins(&mut self, shown: &[Self]) {
        if let Some(it) = self.shown_in(shown) {
            (self.begin, self.seen.0) = (it.begin, it.seen.0);
        }
    }

    /// Takes over when its latest attempt began from what another grid shows of it.
    pub fn attempt_begins(&mut self, shown: &[Self]) {
        if let Some(it) = self.shown_in(shown).filter(|it| it.attempt == self.attempt) {
            self.attempt_begin = it.attempt_begin;
        }
    }

    /// Returns this launch as another grid shows it, at times of which one is of both.
    fn shown_in<'a>(&self, shown: &'a [Self]) -> Option<&'a Self> {
        shown.iter().find(|of| of.seen.0 <= self.seen.1 && self.seen.0 <= of.seen.1)
    }

    /// Returns its name, or the time at which it began.
    pub fn name(&self) -> String {
        let unnamed = || format!("of {}", stepmem_types::format::units::date(self.begin));
        self.launch.clone().unwrap_or_else(unnamed)
    }
}

/// Chooses a launch of those that [`launches`] returns.
///
/// # Errors
/// There is none like that.
pub fn choose(mut all: Vec<JobLaunch>, choice: &Choice) -> Result<Chosen, NoLaunch> {
    let idx = match choice {
        Choice::Latest => all.len().checked_sub(1),
        Choice::Previous => all.len().checked_sub(2),
        Choice::Named(name) => all.iter().rposition(|of| of.launch.as_ref() == Some(name)),
    };
    if all.is_empty() {
        return Err(NoLaunch::Run);
    }
    let found: Vec<String> = all.iter().map(JobLaunch::name).collect();
    match (idx, choice) {
        (Some(idx), _) => {
            let launch = all.remove(idx);
            Ok(Chosen { launch, others: all })
        }
        (None, Choice::Named(wanted)) => {
            Err(NoLaunch::Name { wanted: wanted.clone(), found: found.join(", ") })
        }
        (None, Choice::Latest | Choice::Previous) => Err(NoLaunch::Previous),
    }
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "seconds")]
fn float(seconds: u64) -> f64 {
    seconds as f64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::job::answer::Answer;
    use crate::job::grid::Grid;
    use crate::job::launches::{Choice, JobLaunch, choose, launches};

    /// Returns the launches of sightings: name, attempt and times of each.
    fn seen(of: &[(&str, u64, &[u64])]) -> Vec<JobLaunch> {
        let series = of.iter().map(|(launch, attempt, times)| {
            let values: Vec<_> = times.iter().map(|time| json!([time, "8"])).collect();
            let metric = json!({"launch": launch, "attempt": attempt.to_string()});
            json!({"metric": metric, "values": values})
        });
        let result: Vec<_> = series.collect();
        let answer = json!({"status": "success", "data": {"result": result}});
        let answer = Answer::decode(answer.to_string().as_bytes()).unwrap();
        launches(&answer.series, Grid { start: 0, end: 10_000, step: 20 })
    }

    #[test]
    fn launches_have_their_times_and_are_over_when_no_rank_is_seen() {
        let all = seen(&[("b", 0, &[5000, 6000]), ("b", 1, &[7000, 10_000]), ("a", 0, &[100])]);
        let [a, b] = &all[..] else { panic!("{all:?}") };
        assert_eq!((a.begin, a.end, a.is_over), (80.0, 120.0, true));
        assert_eq!((b.begin, b.attempt_begin, b.end), (4980.0, 6980.0, 10_000.0));
        assert_eq!((b.attempt, b.is_over, b.overlaps), (Some(1), false, false));
    }

    #[test]
    fn beginning_of_a_launch_is_the_same_for_every_question() {
        let sightings = |grid: Grid, from: u64| {
            let first = from.max(grid.start).div_ceil(grid.step) * grid.step;
            (first..=grid.end)
                .step_by(usize::try_from(grid.step).unwrap())
                .collect::<Vec<u64>>()
        };
        let mut began = Vec::new();
        for (end, seconds) in
            [(100_000, 90_000), (100_007, 90_000), (100_000, 200_000), (100_000, 1_000)]
        {
            let mut grid = Grid::until(end, seconds);
            let shown = |grid: Grid, times: Vec<u64>| {
                let values: Vec<_> = times.iter().map(|time| json!([time, "8"])).collect();
                let metric = json!({"launch": "a", "attempt": "0"});
                let answer = json!({"status": "success", "data": {"result": [{"metric": metric, "values": values}]}});
                launches(&Answer::decode(answer.to_string().as_bytes()).unwrap().series, grid)
            };
            let mut launch = shown(grid, sightings(grid, 50_003)).remove(0);
            while launch.reaches_before(grid) {
                grid = grid.longer().unwrap();
                launch.begins(&shown(grid, sightings(grid, 50_003)));
            }
            let fine = grid.about(launch.first_point());
            launch.begins(&shown(fine, sightings(fine, 50_003)));
            began.push(launch.begin);
        }
        assert_eq!(began, [50_002.0; 4]);
    }

    #[test]
    fn overlapping_launches_are_known_and_any_of_them_can_be_chosen() {
        let all = seen(&[("a", 0, &[100, 300]), ("b", 0, &[200, 400]), ("c", 0, &[900])]);
        let overlaps: Vec<bool> = all.iter().map(|of| of.overlaps).collect();
        assert_eq!(overlaps, [true, true, false]);
        let name =
            |choice: &Choice| choose(all.clone(), choice).map(|chosen| chosen.launch.name());
        assert_eq!(name(&Choice::Latest).unwrap(), "c");
        assert_eq!(name(&Choice::Previous).unwrap(), "b");
        assert_eq!(name(&Choice::Named("a".to_owned())).unwrap(), "a");
        let error = name(&Choice::Named("d".to_owned())).unwrap_err().to_string();
        assert!(error.ends_with("but a, b, c"), "{error}");
    }

    #[test]
    fn launches_overlap_where_any_two_are_seen_at_one_time() {
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for n_launches in 1..40 {
            let times: Vec<[u64; 2]> = (0..n_launches)
                .map(|_| (20 * next(60), 20 * next(8)))
                .map(|(first, length)| [first, first + length])
                .collect();
            let names: Vec<String> = (0..times.len()).map(|n| format!("{n:02}")).collect();
            let of = names.iter().zip(&times).map(|(name, times)| (&**name, 0, &times[..]));
            for launch in seen(&of.collect::<Vec<_>>()) {
                let own: usize = launch.name().parse().unwrap();
                let [first, last] = times[own];
                let is_both = |(other, [from, to]): (usize, &[u64; 2])| {
                    other != own && *from <= last && first <= *to
                };
                let expected = times.iter().enumerate().any(is_both);
                assert_eq!(launch.overlaps, expected, "{own} of {times:?}");
            }
        }
    }

    #[test]
    fn ranks_without_a_launch_that_come_back_later_are_of_another() {
        assert_eq!(seen(&[("", 0, &[100, 120, 600, 2000, 2020])]).len(), 2);
    }
}

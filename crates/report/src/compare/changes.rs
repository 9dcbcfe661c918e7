//! The figures of two runs, and which of their differences count.

use crate::compare::comparison::{Change, ChangeUnit, OldNew, RankChange, WorseWhen};
use crate::compare::figures::{RankFigures, RunFigures, RunGrowth, RunPeak};
use crate::compare::text::value;
use stepmem_types::claims::{Claim, Statement};

/// A peak or a headroom that differs by less than this share of the old peak is the same; the
/// host's headroom by less than this share of its memory.
const PEAK_RATIO_MIN: f64 = 0.02;
/// Rates that differ by at most this share of the larger one are one rate: a program that is run
/// again gets other batches.
const RATE_RATIO_MIN: f64 = 0.02;
/// A peak differs when it does so by this many deviations of a step from its neighbors, of both
/// runs together.
const NOISE_DEVIATIONS: f64 = 3.0;
/// A pressure differs from this many points on.
const PRESSURE_MIN: f64 = 0.02;
/// A skew differs from this many points on…
const SKEW_MIN: f64 = 0.05;
/// …where the worse of the two is at least this: less is balanced.
const SKEW_OF_INTEREST: f64 = 0.10;

/// The key of the growth of the fastest rank.
pub(crate) const GROWTH: &str = "slope_bytes_per_step";

const LOST: (&str, Claim) = ("ranks_lost", Claim::LostChanged);
const OOMS: (&str, Claim) = ("ooms", Claim::OomsChanged);

/// The two runs.
pub(crate) type Runs<'a> = OldNew<&'a RunFigures>;

/// A change with its key and its statement.
#[derive(Clone, Debug)]
pub(crate) struct KeyedChange {
    /// The key in JSON.
    pub key: &'static str,
    pub change: Change,
    /// States the difference; `None` where a run lacks the figure.
    pub statement: Option<Statement>,
    /// Set when the verdict rests on it, rather than on the diagnosis that it belongs to.
    pub is_reason: bool,
}

impl KeyedChange {
    fn new((key, claim): (&'static str, Claim), subject: &str, change: Change) -> Self {
        let values = OldNew { old: change.old, new: change.new }.known();
        let statement = values.map(|OldNew { old, new }| {
            let verb = if new > old { "rose" } else { "fell" };
            let (was, is) = (value(change.unit, old), value(change.unit, new));
            Statement::new(claim, format!("{subject} {verb} from {was} to {is}")).of(new)
        });
        Self { key, change, statement, is_reason: true }
    }
}

/// Returns every figure of two runs.
pub(crate) fn changes(runs: Runs<'_>) -> Vec<KeyedChange> {
    let has_peaks = runs.old.peak_allocated.is_known() && runs.new.peak_allocated.is_known();
    // Live memory is what is left to compare where a run does not know its peaks.
    let live = (!has_peaks).then(|| peak(runs, &ALLOCATED));
    let others = [
        peak(runs, &PEAK_ALLOCATED),
        peak(runs, &PEAK_RESERVED),
        headroom(runs),
        growth(runs),
        skew(runs),
        pressure(runs),
        count(LOST, "ranks lost", runs.map(|run| run.n_lost)),
        count(OOMS, "out-of-memory errors", runs.map(|run| run.n_ooms)),
    ];
    live.into_iter().chain(others).chain(host_headroom(runs)).collect()
}

/// One of the two peaks, or live memory in their place.
struct PeakFigure {
    key: &'static str,
    claim: Claim,
    label: &'static str,
    mean_label: &'static str,
    of: fn(&RunFigures) -> &RunPeak,
}

const ALLOCATED: PeakFigure = PeakFigure {
    key: "allocated_bytes",
    claim: Claim::LiveChanged,
    label: "live memory",
    mean_label: "mean live memory",
    of: |run| &run.allocated,
};

const PEAK_ALLOCATED: PeakFigure = PeakFigure {
    key: "peak_allocated_bytes",
    claim: Claim::PeakAllocatedChanged,
    label: "peak allocated",
    mean_label: "mean peak allocated",
    of: |run| &run.peak_allocated,
};

const PEAK_RESERVED: PeakFigure = PeakFigure {
    key: "peak_reserved_bytes",
    claim: Claim::PeakReservedChanged,
    label: "peak reserved",
    mean_label: "mean peak reserved",
    of: |run| &run.peak_reserved,
};

/// Compares maxima where both runs have one, else means; never a mean with a maximum.
fn peak(runs: Runs<'_>, figure: &PeakFigure) -> KeyedChange {
    let maxima = runs.map(|run| (figure.of)(run).max).known();
    let means = runs.map(|run| (figure.of)(run).mean).known();
    let label =
        if maxima.is_none() && means.is_some() { figure.mean_label } else { figure.label };
    let both = maxima.or(means);
    let values = OldNew { old: both.map(|both| both.old), new: both.map(|both| both.new) };
    let limit = peak_limit(runs, figure, values.old);
    let change = Change::new(label, ChangeUnit::Bytes, values).judged(limit, WorseWhen::More);
    KeyedChange::new((figure.key, figure.claim), label, change)
}

/// Returns the least difference from the old `level` that is more than noise.
fn peak_limit(runs: Runs<'_>, figure: &PeakFigure, level: Option<f64>) -> Option<f64> {
    limit(runs.map(|run| *(figure.of)(run)), level)
}

fn limit(peaks: OldNew<RunPeak>, level: Option<f64>) -> Option<f64> {
    let OldNew { old, new } = peaks.map(|peak| peak.noise.unwrap_or(0.0));
    Some((PEAK_RATIO_MIN * level?).max(NOISE_DEVIATIONS * old.hypot(new)))
}

/// Returns the ranks of both runs whose diagnosis or peak differs: those whose diagnosis does
/// first, then by how much their peak does.
pub(crate) fn rank_changes(runs: Runs<'_>) -> Vec<RankChange> {
    let has_peaks = runs.old.peak_allocated.is_known() && runs.new.peak_allocated.is_known();
    let of_both = runs.old.ranks.iter().filter_map(|old| {
        let new = runs.new.ranks.iter().find(|new| new.rank == old.rank)?;
        Some(OldNew { old, new })
    });
    let change = |ranks: OldNew<&RankFigures>| {
        let (label, peaks) = if has_peaks {
            (PEAK_ALLOCATED.label, ranks.map(|rank| rank.peak_allocated))
        } else {
            (ALLOCATED.label, ranks.map(|rank| rank.allocated))
        };
        let values = peaks.map(|peak| peak.max);
        let change = Change::new(label, ChangeUnit::Bytes, values);
        let peak = change.judged(limit(peaks, values.old), WorseWhen::More);
        let issues = OldNew { old: ranks.old.issues.clone(), new: ranks.new.issues.clone() };
        RankChange { rank: ranks.old.rank, issues, peak }
    };
    let mut changes: Vec<RankChange> = of_both.map(change).filter(RankChange::is_any).collect();
    changes.sort_by(|a, b| {
        let size = |change: &RankChange| change.peak.delta.map_or(0.0, f64::abs);
        let by_issues = b.has_other_issues().cmp(&a.has_other_issues());
        by_issues.then(size(b).total_cmp(&size(a))).then(a.rank.cmp(&b.rank))
    });
    changes
}

fn headroom(runs: Runs<'_>) -> KeyedChange {
    let level = runs.old.peak_allocated.max.or(runs.old.allocated.max);
    let limit = peak_limit(runs, &PEAK_ALLOCATED, level);
    // Figures of different memory are not compared.
    let is_same_basis =
        runs.map(|run| run.headroom).known().is_none_or(|of| of.old.basis == of.new.basis);
    let OldNew { old, new } = runs.map(|run| Some(run.headroom?.bytes));
    let values = OldNew { old, new: new.filter(|_| is_same_basis) };
    let change =
        Change::new("least headroom", ChangeUnit::Bytes, values).judged(limit, WorseWhen::Less);
    KeyedChange::new(("headroom_bytes", Claim::HeadroomChanged), "least headroom", change)
}

/// Returns the change of the host memory that is left; `None` where neither run knows it.
fn host_headroom(runs: Runs<'_>) -> Option<KeyedChange> {
    let both = runs.map(|run| run.host_headroom);
    let limit = PEAK_RATIO_MIN * both.old.or(both.new)?.total_bytes;
    let values = both.map(|of| Some(of?.bytes));
    let change = Change::new("least host headroom", ChangeUnit::Bytes, values);
    let change = change.judged(Some(limit), WorseWhen::Less);
    let key = ("host_headroom_bytes", Claim::HostHeadroomChanged);
    Some(KeyedChange::new(key, "least host headroom", change))
}

/// Slopes differ where a run grows, their intervals do not overlap, and they differ by more than
/// [`RATE_RATIO_MIN`].
fn growth(runs: Runs<'_>) -> KeyedChange {
    let values = runs.map(|run| Some(run.growth?.slope));
    let is_apart =
        are_rates_apart(runs).map(|is_apart| is_apart && (rises(runs.old) || rises(runs.new)));
    let limit = is_apart.map(|is_apart| if is_apart { 0.0 } else { f64::MAX });
    let mut change =
        Change::new("growth", ChangeUnit::BytesPerStep, values).judged(limit, WorseWhen::More);
    change.significant_from = None;
    let key = (GROWTH, Claim::RateChanged);
    let changed = KeyedChange::new(key, "growth of the fastest rank", change);
    let interval = runs.new.growth.and_then(|growth| growth.interval);
    let [lower, upper] = [interval.map(|of| of.lower), interval.map(|of| of.upper)];
    let statement = changed.statement.map(|of| of.between(lower, upper));
    KeyedChange { statement, ..changed }
}

/// Returns whether both runs change at one rate, as far as their intervals show; `None` where
/// one is not known.
pub(crate) fn is_one_rate(runs: Runs<'_>) -> Option<bool> {
    are_rates_apart(runs).map(|is_apart| !is_apart)
}

fn are_rates_apart(runs: Runs<'_>) -> Option<bool> {
    let OldNew { old, new } =
        runs.map(|run| Some((run.growth?.slope, run.growth?.interval?))).known()?;
    let ((old, of_old), (new, of_new)) = (old, new);
    let is_notable = (new - old).abs() > RATE_RATIO_MIN * old.abs().max(new.abs());
    Some(is_notable && (of_new.lower > of_old.upper || of_new.upper < of_old.lower))
}

/// Returns whether a run grows, or rose for certain by what counts in a peak.
fn rises(run: &RunFigures) -> bool {
    let is_certain = |growth: RunGrowth| {
        let level = run.peak_allocated.max.or(run.allocated.max)?;
        let least = growth.interval?.lower * run.steps?;
        Some(least > PEAK_RATIO_MIN * level)
    };
    run.growth.is_some_and(|growth| growth.is_growing || is_certain(growth) == Some(true))
}

/// Skews of peaks and of means are not compared.
fn skew(runs: Runs<'_>) -> KeyedChange {
    let is_same_kind = runs
        .map(|run| run.skew)
        .known()
        .is_none_or(|skews| skews.old.is_of_means == skews.new.is_of_means);
    let OldNew { old, new } = runs.map(|run| Some(run.skew?.ratio));
    let values = OldNew { old, new: new.filter(|_| is_same_kind) };
    let is_of_interest =
        [values.old, values.new].into_iter().flatten().any(|skew| skew >= SKEW_OF_INTEREST);
    let limit = if is_of_interest { SKEW_MIN } else { f64::MAX };
    let mut change =
        Change::new("skew", ChangeUnit::Ratio, values).judged(Some(limit), WorseWhen::More);
    change.significant_from = Some(SKEW_MIN);
    KeyedChange::new(("skew_pct", Claim::SkewChanged), "skew between ranks", change)
}

/// Pressure gets worse or better; the verdict rests on its diagnosis alone.
fn pressure(runs: Runs<'_>) -> KeyedChange {
    let values = runs.map(|run| run.pressure_ratio);
    let change = Change::new("highest pressure", ChangeUnit::Ratio, values)
        .judged(Some(PRESSURE_MIN), WorseWhen::More);
    KeyedChange { key: "pressure_ratio", change, statement: None, is_reason: false }
}

fn count(
    (key, claim): (&'static str, Claim),
    label: &'static str,
    counts: OldNew<Option<u64>>,
) -> KeyedChange {
    let float = |n: Option<u64>| n.map(|n| f64::from(u32::try_from(n).unwrap_or(u32::MAX)));
    let change = Change::new(label, ChangeUnit::Count, counts.map(float))
        .judged(Some(0.5), WorseWhen::More);
    let statement = counts.known().map(|OldNew { old, new }| {
        Statement::new(claim, format!("{label}: {new} instead of {old}")).of(change.new)
    });
    KeyedChange { key, change, statement, is_reason: true }
}

#[cfg(test)]
mod tests {
    use crate::compare::changes::{KeyedChange, changes};
    use crate::compare::comparison::{Direction, OldNew};
    use crate::compare::figures::{
        RunFigures, RunGrowth, RunHeadroom, RunPeak, RunSkew, SlopeInterval,
    };
    use stepmem_engine::Basis;

    /// A run with a peak of 100 bytes and no other figure.
    fn run() -> RunFigures {
        RunFigures::of_peak(RunPeak { max: Some(100.0), mean: Some(90.0), noise: None })
    }

    fn change(key: &str, old: &RunFigures, new: &RunFigures) -> KeyedChange {
        let all = changes(OldNew { old, new });
        all.into_iter().find(|change| change.key == key).unwrap()
    }

    fn direction(key: &str, old: &RunFigures, new: &RunFigures) -> Direction {
        change(key, old, new).change.direction
    }

    #[test]
    fn peak_counts_beyond_two_percent_and_beyond_the_noise_of_both_runs() {
        let peak = |max, noise| RunFigures {
            peak_allocated: RunPeak { max: Some(max), mean: None, noise },
            ..run()
        };
        let of =
            |old: RunFigures, new: RunFigures| direction("peak_allocated_bytes", &old, &new);
        assert_eq!(of(peak(100.0, None), peak(102.0, None)), Direction::Same);
        assert_eq!(of(peak(100.0, None), peak(102.1, None)), Direction::Worse);
        assert_eq!(of(peak(100.0, None), peak(97.9, None)), Direction::Better);
        // 3 deviations of 3 and 4 together are 15.
        assert_eq!(of(peak(100.0, Some(3.0)), peak(115.0, Some(4.0))), Direction::Same);
        assert_eq!(of(peak(100.0, Some(3.0)), peak(115.1, Some(4.0))), Direction::Worse);
    }

    #[test]
    fn mean_is_never_compared_with_a_maximum() {
        let means = RunFigures {
            peak_allocated: RunPeak { mean: Some(80.0), ..RunPeak::default() },
            ..run()
        };
        let found = change("peak_allocated_bytes", &run(), &means);
        assert_eq!((found.change.label, found.change.old), ("mean peak allocated", Some(90.0)));
        assert_eq!(found.change.direction, Direction::Better);
        let only_maximum = RunPeak { max: Some(100.0), ..RunPeak::default() };
        let maxima = RunFigures { peak_allocated: only_maximum, ..run() };
        assert_eq!(direction("peak_allocated_bytes", &maxima, &means), Direction::Unknown);
    }

    #[test]
    fn headroom_that_falls_is_worse_by_the_measure_of_the_peak() {
        let of_basis =
            |bytes, basis| RunFigures { headroom: Some(RunHeadroom { bytes, basis }), ..run() };
        let headroom = |bytes| of_basis(bytes, Basis::Allocated);
        let of = |old, new| direction("headroom_bytes", &headroom(old), &headroom(new));
        assert_eq!((of(10.0, 8.1), of(10.0, 7.9)), (Direction::Same, Direction::Worse));
        assert_eq!(of(10.0, 12.1), Direction::Better);
        let reserved = of_basis(2.0, Basis::Reserved);
        let found = direction("headroom_bytes", &headroom(10.0), &reserved);
        assert_eq!(found, Direction::Unknown);
    }

    #[test]
    fn slopes_differ_where_a_run_grows_and_their_intervals_are_apart() {
        let growth = |is_growing, slope: f64| RunFigures {
            growth: Some(RunGrowth {
                is_growing,
                slope,
                interval: Some(SlopeInterval { lower: slope - 1.0, upper: slope + 1.0 }),
            }),
            ..run()
        };
        let of =
            |old: RunFigures, new: RunFigures| direction("slope_bytes_per_step", &old, &new);
        assert_eq!(of(growth(false, 0.0), growth(true, 3.0)), Direction::Worse);
        assert_eq!(of(growth(true, 3.0), growth(false, 0.0)), Direction::Better);
        assert_eq!(of(growth(false, 0.0), growth(false, 3.0)), Direction::Same);
        assert_eq!(of(growth(false, 0.0), growth(true, 1.5)), Direction::Same);
        assert_eq!(of(growth(true, 200.0), growth(true, 205.0)), Direction::Worse);
        assert_eq!(of(growth(true, 200.0), growth(true, 203.0)), Direction::Same);
        assert_eq!(of(run(), growth(true, 3.0)), Direction::Unknown);
    }

    #[test]
    fn skew_counts_from_five_points_where_one_is_at_least_a_tenth() {
        let skew =
            |ratio| RunFigures { skew: Some(RunSkew { ratio, is_of_means: false }), ..run() };
        let of = |old, new| direction("skew_pct", &skew(old), &skew(new));
        assert_eq!((of(0.02, 0.09), of(0.06, 0.10)), (Direction::Same, Direction::Same));
        assert_eq!((of(0.02, 0.10), of(0.30, 0.20)), (Direction::Worse, Direction::Better));
        let of_means = RunSkew { ratio: 0.5, is_of_means: true };
        let of_means = RunFigures { skew: Some(of_means), ..run() };
        assert_eq!(direction("skew_pct", &skew(0.02), &of_means), Direction::Unknown);
    }

    #[test]
    fn pressure_that_falls_is_better_and_no_reason() {
        let pressure = |ratio| RunFigures { pressure_ratio: Some(ratio), ..run() };
        let of = |old, new| change("pressure_ratio", &pressure(old), &pressure(new));
        let fallen = of(0.986, 0.38);
        assert_eq!((fallen.change.direction, fallen.is_reason), (Direction::Better, false));
        assert_eq!(of(0.38, 0.986).change.direction, Direction::Worse);
        assert_eq!(of(0.38, 0.39).change.direction, Direction::Same);
    }

    #[test]
    fn every_lost_rank_and_every_error_counts() {
        let lost = |n_lost| RunFigures { n_lost, n_ooms: n_lost, ..run() };
        let found = change("ranks_lost", &lost(Some(0)), &lost(Some(1)));
        assert_eq!(found.change.direction, Direction::Worse);
        assert_eq!(found.statement.unwrap().words(), "ranks lost: 1 instead of 0");
        assert_eq!(direction("ooms", &lost(Some(2)), &lost(Some(1))), Direction::Better);
        assert_eq!(direction("ooms", &lost(None), &lost(Some(1))), Direction::Unknown);
    }
}

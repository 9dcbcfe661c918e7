//! Two summaries against each other: what got worse, what got better, by how much and whether that is more than noise.
//! A status that got worse is never an improvement.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::report::card::Page;
use crate::report::side::{Peak, Side, Told};
use crate::text::units::{bytes, percent};

/// A peak or a headroom that differs by less than this share of the old peak is the same.
const PEAK_RATIO_MIN: f64 = 0.02;
/// A peak differs when it does so by this many deviations of a step from its neighbours, of both runs together.
const NOISE_DEVIATIONS: f64 = 3.0;
/// A skew differs from this many points on…
const SKEW_MIN: f64 = 0.05;
/// …where the worse of the two is at least this: less is no load out of balance.
const SKEW_TELLING: f64 = 0.10;

/// What a comparison comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Verdict {
    /// Something got worse, and nothing better.
    Regression,
    /// Something got better, and nothing worse.
    Improvement,
    /// Both.
    Mixed,
    /// Neither.
    Equivalent,
    /// The summaries do not tell.
    Inconclusive,
}

impl Verdict {
    /// The verdict as it is written.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Regression => "REGRESSION",
            Self::Improvement => "IMPROVEMENT",
            Self::Mixed => "MIXED",
            Self::Equivalent => "EQUIVALENT",
            Self::Inconclusive => "INCONCLUSIVE",
        }
    }

    /// What a command that gates on it exits with: 0 for no regression, 1 for one, 2 when there is no telling.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Improvement | Self::Equivalent => 0,
            Self::Regression | Self::Mixed => 1,
            Self::Inconclusive => 2,
        }
    }
}

/// Two summaries against each other.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// What it comes to.
    pub verdict: Verdict,
    /// What a command exits with.
    pub exit_code: u8,
    /// Why, what got worse first.
    pub reasons: Vec<Reason>,
    /// What should be known when reading it.
    pub notes: Vec<String>,
    /// Who said what.
    pub diagnosis: Sides<Diagnosis>,
    /// The figures by key.
    pub metrics: BTreeMap<&'static str, Change>,
}

/// The same of both sides.
#[derive(Clone, Debug, Serialize)]
pub struct Sides<T> {
    /// Of the old run.
    pub old: T,
    /// Of the new run.
    pub new: T,
}

/// A diagnosis and who said it.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// Whose words these are: `stepmem` or `traceml`.
    pub policy: &'static str,
    /// The run, if it is named.
    pub run: Option<String>,
    /// The diagnosis.
    pub status: String,
    /// Every kind that was found.
    pub kinds: Vec<String>,
    /// The rank that it is about.
    pub worst_rank: Option<u64>,
}

/// One reason of a verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// Which way it points.
    pub direction: Direction,
    /// What is different, in a sentence.
    pub sentence: String,
}

/// Which way a difference points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// It got worse.
    Worse,
    /// It got better.
    Better,
    /// No more than noise, or of no consequence.
    Same,
    /// One side does not say.
    Unknown,
}

/// One figure of both sides.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Its name for people.
    pub label: &'static str,
    /// `bytes`, `bytes_per_step`, `ratio` or `count`.
    pub unit: &'static str,
    /// Of the old run.
    pub old: Option<f64>,
    /// Of the new run.
    pub new: Option<f64>,
    /// New less old.
    pub delta: Option<f64>,
    /// That by the old one.
    pub delta_ratio: Option<f64>,
    /// How much must differ to count.
    pub significant_from: Option<f64>,
    /// Which way it points.
    pub direction: Direction,
}

impl Comparison {
    /// Compares two runs.
    pub fn of(old: &Side, new: &Side) -> Self {
        let mut reasons = statuses(old, new);
        let mut metrics = BTreeMap::new();
        for (key, change, sentence) in changes(old, new) {
            if matches!(change.direction, Direction::Worse | Direction::Better) {
                reasons.push(Reason { direction: change.direction, sentence });
            }
            metrics.insert(key, change);
        }
        let mut doubts = doubts(old, new);
        if !doubts.is_empty() {
            // What was not looked at for long enough did not get better.
            reasons.retain(|reason| reason.direction == Direction::Worse);
        }
        reasons.sort_by_key(|reason| reason.direction);
        let has = |direction| reasons.iter().any(|reason| reason.direction == direction);
        let verdict = match (has(Direction::Worse), has(Direction::Better)) {
            _ if !(old.has_data && new.has_data) => Verdict::Inconclusive,
            (true, true) => Verdict::Mixed,
            (true, false) => Verdict::Regression,
            _ if !doubts.is_empty() => Verdict::Inconclusive,
            (false, true) => Verdict::Improvement,
            (false, false) => Verdict::Equivalent,
        };
        doubts.extend(notes(old, new));
        Self {
            verdict,
            exit_code: verdict.exit_code(),
            reasons,
            notes: doubts,
            diagnosis: Sides { old: Diagnosis::of(old), new: Diagnosis::of(new) },
            metrics,
        }
    }

    /// The comparison as text of at most 100 columns.
    pub fn render(&self) -> String {
        let mut page = Page::default();
        page.line(&format!("Verdict: {}", self.verdict.as_label()));
        for Reason { direction, sentence } in &self.reasons {
            let word = if *direction == Direction::Worse { "worse: " } else { "better:" };
            page.paragraph((2, 10), &format!("{word} {sentence}."));
        }
        if self.reasons.is_empty() {
            page.line("  Nothing differs by more than noise.");
        }
        for note in &self.notes {
            page.paragraph((2, 8), &format!("note: {note}."));
        }
        page.line("");
        page.line(&format!("{:24} {:>20} {:>20} {:>26}", "", "OLD", "NEW", "CHANGE"));
        let Sides { old, new } = &self.diagnosis;
        let by = |side: &Diagnosis| match side.policy {
            "traceml" => format!("{} (TraceML)", side.status),
            _ => side.status.clone(),
        };
        let changed = if old.status == new.status { "" } else { "changed" };
        page.line(&format!("{:24} {:>20} {:>20} {changed:>26}", "diagnosis", by(old), by(new)));
        let rank =
            |side: &Diagnosis| side.worst_rank.map_or("–".to_owned(), |r| r.to_string());
        page.line(&format!("{:24} {:>20} {:>20}", "worst rank", rank(old), rank(new)));
        let known = |change: &&Change| change.old.is_some() || change.new.is_some();
        for change in self.metrics.values().filter(known) {
            let shown =
                |value: Option<f64>| value.map_or("–".to_owned(), |v| change.shown(v));
            let (label, old, new) = (change.label, shown(change.old), shown(change.new));
            page.line(&format!("{label:24} {old:>20} {new:>20} {:>26}", change.difference()));
        }
        page.text
    }
}

impl Diagnosis {
    fn of(side: &Side) -> Self {
        Self {
            policy: side.policy,
            run: side.run.clone(),
            status: side.status.clone(),
            kinds: side.issues.iter().map(|issue| issue.kind.clone()).collect(),
            worst_rank: side.worst_rank,
        }
    }
}

impl Change {
    fn shown(&self, value: f64) -> String {
        match self.unit {
            "bytes" => bytes(value),
            "bytes_per_step" => format!("{}/step", bytes(value)),
            "ratio" => percent(value),
            _ => format!("{value:.0}"),
        }
    }

    fn difference(&self) -> String {
        let Some(delta) = self.delta else { return "unknown".to_owned() };
        let sign = if delta < 0.0 { '-' } else { '+' };
        let word = match self.direction {
            Direction::Worse => "worse",
            Direction::Better => "better",
            Direction::Same | Direction::Unknown => "same",
        };
        let ratio = self
            .delta_ratio
            .filter(|ratio| self.unit.starts_with("bytes") && ratio.abs() < 100.0)
            .map_or_else(String::new, |ratio| format!(" ({:+.1}%)", 100.0 * ratio));
        let unit = if self.unit == "ratio" {
            format!("{:.1} points", 100.0 * delta.abs())
        } else if self.unit == "count" {
            format!("{:.0}", delta.abs())
        } else {
            bytes(delta.abs())
        };
        format!("{sign}{unit}{ratio} {word}")
    }
}

/// The kinds that are one trouble at different stages.
fn family(kind: &str) -> &str {
    if kind == "CREEP_EARLY" { "CREEP_CONFIRMED" } else { kind }
}

/// What is wrong in one run and not, or less, in the other.
fn statuses(old: &Side, new: &Side) -> Vec<Reason> {
    let level = |side: &Side, family_of: &str| -> Option<Told> {
        let own = side.issues.iter().filter(|told| family(&told.kind) == family_of);
        own.max_by_key(|told| (weight(told), told.severity)).cloned()
    };
    let all = old.issues.iter().chain(&new.issues).map(|told| family(&told.kind));
    let families: BTreeSet<&str> = all.collect();
    let reason = |family_of: &str| {
        let (before, after) = (level(old, family_of), level(new, family_of));
        let rank =
            |told: &Option<Told>| told.as_ref().map(|told| (weight(told), told.severity));
        let direction = match rank(&after).cmp(&rank(&before)) {
            Ordering::Greater => Direction::Worse,
            Ordering::Less => Direction::Better,
            Ordering::Equal => return None,
        };
        let sentence = match (before, after) {
            (None, Some(told)) => format!("{} is new", named(&told)),
            (Some(told), None) => format!("{} is gone", named(&told)),
            (Some(before), Some(after)) => {
                format!("{} became {}", named(&before), named(&after))
            }
            (None, None) => return None,
        };
        Some(Reason { direction, sentence })
    };
    families.into_iter().filter_map(reason).collect()
}

/// Of creep, what only rises weighs less than what is confirmed.
fn weight(told: &Told) -> u8 {
    u8::from(told.kind != "CREEP_EARLY")
}

fn named(told: &Told) -> String {
    let severity = told.severity.as_label();
    match told.ranks.as_slice() {
        [] => format!("{} ({severity})", told.status),
        [rank] => format!("{} ({severity}) on rank {rank}", told.status),
        ranks => format!("{} ({severity}) on {} ranks", told.status, ranks.len()),
    }
}

type Named = (&'static str, Change, String);

fn changes(old: &Side, new: &Side) -> Vec<Named> {
    let mut all = vec![
        peak("peak_allocated_bytes", "peak allocated", (old, new), |side| &side.peak_allocated),
        peak("peak_reserved_bytes", "peak reserved", (old, new), |side| &side.peak_reserved),
        headroom(old, new),
        trend(old, new),
        skew(old, new),
    ];
    let pressure =
        change("highest pressure", "ratio", (old.pressure_ratio, new.pressure_ratio));
    all.push(("pressure_ratio", pressure, String::new()));
    for (key, label, of) in [
        ("ranks_lost", "ranks lost", (old.n_lost, new.n_lost)),
        ("ooms", "out-of-memory errors", (old.n_ooms, new.n_ooms)),
    ] {
        let count = |n: Option<u64>| n.map(|n| f64::from(u32::try_from(n).unwrap_or(u32::MAX)));
        let counted =
            change(label, "count", (count(of.0), count(of.1))).judged(Some(0.5), true);
        let sentence = format!("{label}: {} instead of {}", or_none(of.1), or_none(of.0));
        all.push((key, counted, sentence));
    }
    all
}

fn or_none(n: Option<u64>) -> String {
    n.map_or("none".to_owned(), |n| n.to_string())
}

fn change(label: &'static str, unit: &'static str, of: (Option<f64>, Option<f64>)) -> Change {
    let (old, new) = of;
    let delta = old.zip(new).map(|(old, new)| new - old);
    let delta_ratio = delta.zip(old).filter(|(_, old)| old.abs() > 0.0).map(|(d, old)| d / old);
    let direction = if delta.is_some() { Direction::Same } else { Direction::Unknown };
    Change { label, unit, old, new, delta, delta_ratio, significant_from: None, direction }
}

impl Change {
    /// Says which way it points when it differs by more than `limit`.
    fn judged(mut self, limit: Option<f64>, is_more_worse: bool) -> Self {
        self.significant_from = limit;
        if let (Some(delta), Some(limit)) = (self.delta, limit)
            && delta.abs() > limit
        {
            let is_worse = (delta > 0.0) == is_more_worse;
            self.direction = if is_worse { Direction::Worse } else { Direction::Better };
        }
        self
    }
}

/// From which difference on a peak is another one.
fn peak_limit(
    old: &Side,
    new: &Side,
    of: fn(&Side) -> &Peak,
    level: Option<f64>,
) -> Option<f64> {
    let noise = |side| of(side).noise.unwrap_or(0.0);
    let noise = NOISE_DEVIATIONS * noise(old).hypot(noise(new));
    Some((PEAK_RATIO_MIN * level?).max(noise))
}

fn peak(
    key: &'static str,
    label: &'static str,
    (old, new): (&Side, &Side),
    of: fn(&Side) -> &Peak,
) -> Named {
    let maxima = of(old).max.zip(of(new).max);
    let means = of(old).mean.zip(of(new).mean);
    // A mean and a maximum are not compared.
    let (both, label) = match (maxima, means, label) {
        (None, Some(means), "peak allocated") => (Some(means), "mean peak allocated"),
        (None, Some(means), _) => (Some(means), "mean peak reserved"),
        (maxima, _, label) => (maxima, label),
    };
    let values = (both.map(|both| both.0), both.map(|both| both.1));
    let limit = peak_limit(old, new, of, values.0);
    let changed = change(label, "bytes", values).judged(limit, true);
    let sentence = sentence(label, &changed);
    (key, changed, sentence)
}

fn headroom(old: &Side, new: &Side) -> Named {
    let limit = peak_limit(old, new, |side| &side.peak_allocated, old.peak_allocated.max);
    let values = (old.headroom_bytes, new.headroom_bytes);
    let changed = change("least headroom", "bytes", values).judged(limit, false);
    let sentence = sentence("least headroom", &changed);
    ("headroom_bytes", changed, sentence)
}

/// Slopes differ where growth holds on a side and their intervals do not meet.
fn trend(old: &Side, new: &Side) -> Named {
    let slope = |side: &Side| side.trend.as_ref().map(|trend| trend.slope);
    let changed = change("growth", "bytes_per_step", (slope(old), slope(new)));
    let is_apart = || {
        let (old, new) = (old.trend.as_ref()?, new.trend.as_ref()?);
        let ((old_lower, old_upper), (new_lower, new_upper)) = (old.interval?, new.interval?);
        Some((old.is_held || new.is_held) && (new_lower > old_upper || new_upper < old_lower))
    };
    let limit = is_apart().map(|is_apart| if is_apart { 0.0 } else { f64::MAX });
    let mut changed = changed.judged(limit, true);
    changed.significant_from = None;
    let sentence = sentence("growth of the fastest rank", &changed);
    ("slope_bytes_per_step", changed, sentence)
}

fn skew(old: &Side, new: &Side) -> Named {
    let is_same_kind = old.is_skew_of_means == new.is_skew_of_means;
    let values = (old.skew_ratio, new.skew_ratio.filter(|_| is_same_kind));
    let is_telling =
        [values.0, values.1].into_iter().flatten().any(|skew| skew >= SKEW_TELLING);
    let limit = if is_telling { SKEW_MIN } else { f64::MAX };
    let mut changed = change("skew", "ratio", values).judged(Some(limit), true);
    changed.significant_from = Some(SKEW_MIN);
    let sentence = sentence("skew between ranks", &changed);
    ("skew_ratio", changed, sentence)
}

fn sentence(label: &str, change: &Change) -> String {
    match (change.old, change.new) {
        (Some(old), Some(new)) => {
            let verb = if new > old { "rose" } else { "fell" };
            format!("{label} {verb} from {} to {}", change.shown(old), change.shown(new))
        }
        _ => String::new(),
    }
}

/// Why nothing can be said to have got better.
fn doubts(old: &Side, new: &Side) -> Vec<String> {
    let mut doubts = Vec::new();
    for (name, side) in [("old", old), ("new", new)] {
        if !side.has_data {
            doubts.push(format!("the {name} summary says {}", side.status));
        }
    }
    if old.is_judged && !new.is_judged && new.has_data {
        doubts.push("the new run has too few steps to judge creep".to_owned());
    }
    let is_known = old.peak_allocated.max.or(old.peak_allocated.mean).is_some();
    if old.has_data && !is_known {
        doubts.push("the old summary has no peak".to_owned());
    }
    doubts
}

fn notes(old: &Side, new: &Side) -> Vec<String> {
    let mut notes = Vec::new();
    if old.policy != new.policy {
        notes.push(
            "one side is in TraceML's words and the other in ours; they judge by other rules"
                .to_owned(),
        );
    }
    let is_of_means = |side: &Side| side.peak_allocated.max.is_none();
    if is_of_means(old) || is_of_means(new) {
        notes.push("TraceML writes means over the steps, so means are compared".to_owned());
    }
    if !old.is_judged && !new.is_judged {
        notes.push("neither run has enough steps to judge creep".to_owned());
    }
    if let (Some(before), Some(after)) = (old.steps, new.steps)
        && (before > 2.0 * after || after > 2.0 * before)
    {
        notes.push(format!("the old run had {before:.0} steps, the new one {after:.0}"));
    }
    notes
}

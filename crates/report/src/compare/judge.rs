//! The verdict on two runs. A status that got worse is never an improvement.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::compare::changes::{GROWTH, KeyedChange, Runs, changes, is_one_rate, rank_changes};
use crate::compare::comparable::differences;
use crate::compare::comparison::{
    Change, Comparison, ComparisonVerdict, Direction, OldNew, RankChange, Reason, RunDiagnosis,
    Worded,
};
use crate::compare::figures::{RunEnd, RunFigures, RunIssue};
use crate::compare::text::tell;
use crate::policy::{IssueSeverity, PolicyName};
use stepmem_detect::{Signal, Stage};
use stepmem_engine::{About, DiagnosisKind};
use stepmem_types::claims::{Claim, Statement};
use stepmem_types::end::EndOutcome;
use stepmem_types::format::units::{counted, whole};

/// A run of less than this share of the other's steps is shorter.
const UNLIKE_LENGTHS_RATIO: f64 = 0.9;

/// Compares two runs. Those of different jobs are INCONCLUSIVE: their figures stand next to
/// each other and are not judged.
pub fn compare(runs: Runs<'_>) -> Comparison {
    let incomparable = differences(runs);
    let compared =
        if incomparable.is_empty() { judged(runs) } else { side_by_side(runs, incomparable) };
    let statements = tell(&compared, None).into_said();
    Comparison { statements, ..compared }
}

fn side_by_side(runs: Runs<'_>, incomparable: Vec<Statement>) -> Comparison {
    let unjudged = |KeyedChange { key, change, .. }| (key, change.unjudged());
    Comparison {
        incomparable: incomparable.into_iter().map(Worded).collect(),
        metrics: changes(runs).into_iter().map(unjudged).collect(),
        ..unlike(runs, ComparisonVerdict::Inconclusive)
    }
}

/// Returns the part that every comparison has, with this verdict.
fn unlike(runs: Runs<'_>, verdict: ComparisonVerdict) -> Comparison {
    Comparison {
        verdict,
        exit_code: verdict.exit_code(),
        incomparable: Vec::new(),
        reasons: Vec::new(),
        notes: Vec::new(),
        diagnosis: runs.map(RunDiagnosis::of),
        metrics: BTreeMap::new(),
        steps: runs.map(|run| run.steps),
        end: runs.map(|run| Some(run.end.as_ref()?.outcome)),
        ranks: Vec::new(),
        exit_reason: None,
        nothing: None,
        statements: Vec::new(),
    }
}

fn judged(runs: Runs<'_>) -> Comparison {
    let lengths = Lengths::of(runs);
    let mut notes = doubts(runs);
    let limits = Limits {
        has_data: runs.old.has_data && runs.new.has_data,
        is_doubtful: !notes.is_empty(),
        by_length: lengths.as_ref().map(Lengths::hidden),
    };
    let found = Found::of(runs, &limits);
    let (reasons, is_hidden) = (found.reasons, found.is_hidden);
    let has = |direction| reasons.iter().any(|reason| reason.direction == direction);
    let verdict = match (has(Direction::Worse), has(Direction::Better)) {
        _ if !limits.has_data => ComparisonVerdict::Inconclusive,
        (true, true) => ComparisonVerdict::Mixed,
        (true, false) => ComparisonVerdict::Regression,
        _ if limits.is_doubtful => ComparisonVerdict::Inconclusive,
        (false, true) => ComparisonVerdict::Improvement,
        (false, false) if is_hidden => ComparisonVerdict::Inconclusive,
        (false, false) => ComparisonVerdict::Equivalent,
    };
    notes.extend(lengths.as_ref().filter(|_| is_hidden).map(|of| of.statement(runs)));
    notes.extend(remarks(runs, lengths.as_ref()));
    let is_any = found.is_unjudged || !found.ranks.is_empty();
    let nothing = (reasons.is_empty() && limits.has_data).then(|| nothing_differs(is_any));
    Comparison {
        exit_reason: exit_reason(verdict, &reasons).map(Worded),
        reasons,
        notes: notes.into_iter().map(Worded).collect(),
        metrics: found.metrics,
        ranks: found.ranks,
        nothing,
        ..unlike(runs, verdict)
    }
}

/// States that nothing differs; `is_any`: whether a figure does that is no reason.
fn nothing_differs(is_any: bool) -> Statement {
    if is_any {
        let words = "Nothing that the verdict rests on differs by more than noise.";
        return Statement::new(Claim::NothingJudgedDiffers, words);
    }
    Statement::new(Claim::NothingDiffers, "Nothing differs by more than noise.")
}

/// The differences that are not judged, since a run could not show them.
struct Limits {
    /// Set when both runs have anything to compare.
    has_data: bool,
    /// Set when nothing can be called better.
    is_doubtful: bool,
    /// The direction of what the lengths of the runs alone may make.
    by_length: Option<Direction>,
}

impl Limits {
    /// Returns whether a difference is left unjudged; `is_of_steps`: whether it comes with the
    /// steps of the longer run.
    fn covers(&self, direction: Direction, is_of_steps: bool) -> bool {
        !self.has_data
            || (self.is_doubtful && direction == Direction::Better)
            || (is_of_steps && self.by_length == Some(direction))
    }
}

/// The differences of two runs.
struct Found {
    /// The reasons of the verdict, what got worse first.
    reasons: Vec<Reason>,
    metrics: BTreeMap<&'static str, Change>,
    ranks: Vec<RankChange>,
    /// Set when a reason is left unjudged because of the lengths of the runs.
    is_hidden: bool,
    /// Set when a difference is no reason.
    is_unjudged: bool,
}

impl Found {
    fn of(runs: Runs<'_>, limits: &Limits) -> Self {
        let mut found = Self {
            reasons: Vec::new(),
            metrics: BTreeMap::new(),
            ranks: rank_changes(runs),
            is_hidden: false,
            is_unjudged: false,
        };
        for (direction, statement) in statuses(runs) {
            found.add(limits, (direction, true), statement);
        }
        for KeyedChange { key, change, statement, is_reason } in changes(runs) {
            let is_of_steps = key != GROWTH;
            let is_apart = matches!(change.direction, Direction::Worse | Direction::Better);
            let statement = statement.filter(|_| is_apart && is_reason);
            let is_covered = is_apart && limits.covers(change.direction, is_of_steps);
            found.is_unjudged |= is_apart && (is_covered || !is_reason);
            if let Some(statement) = statement {
                found.add(limits, (change.direction, is_of_steps), statement);
            }
            found.metrics.insert(key, if is_covered { change.unjudged() } else { change });
        }
        if let Some((direction, statement)) = end(runs) {
            found.add(limits, (direction, false), statement);
        }
        for rank in &mut found.ranks {
            if limits.covers(rank.peak.direction, true) {
                rank.peak = rank.peak.clone().unjudged();
            }
        }
        found.reasons.sort_by_key(|reason| reason.direction);
        found
    }

    /// Adds a reason, if it is judged.
    fn add(
        &mut self,
        limits: &Limits,
        (direction, is_of_steps): (Direction, bool),
        statement: Statement,
    ) {
        self.is_hidden |= is_of_steps && limits.by_length == Some(direction);
        if limits.covers(direction, is_of_steps) {
            self.is_unjudged = true;
        } else {
            self.reasons.push(Reason { direction, sentence: Worded(statement) });
        }
    }
}

/// Two runs of unlike lengths, of which at least one grows. Findings, peaks and headroom come with
/// the steps of the longer one; rates do not.
enum Lengths {
    /// The new run ended before it could show what grew in the old one.
    NewIsShorter,
    /// Both grow at one rate, for longer in the new run.
    NewIsLonger,
    /// Both have growth of one kind, whose rate is not compared, for longer in the new run.
    NewGrowsOn,
    /// The new run grows, is longer, and the rate of the old one, which is too short to be
    /// judged, is not known.
    OldIsTooShort,
}

impl Lengths {
    fn of(runs: Runs<'_>) -> Option<Self> {
        // TraceML's steps are those of a window.
        let of_whole =
            |run: &RunFigures| run.steps.filter(|_| run.policy == PolicyName::Stepmem);
        let steps = runs.map(of_whole).known()?;
        if steps.new < UNLIKE_LENGTHS_RATIO * steps.old {
            return grows(runs.old).then_some(Self::NewIsShorter);
        }
        let is_longer = steps.old < UNLIKE_LENGTHS_RATIO * steps.new;
        if !is_longer || !grows(runs.new) {
            return None;
        }
        let is_of_live = runs.new.growth.is_some_and(|growth| growth.is_growing);
        match is_one_rate(runs) {
            Some(true) if is_of_live => Some(Self::NewIsLonger),
            Some(false) if is_of_live => None,
            _ if has_growth_in_common(runs) => Some(Self::NewGrowsOn),
            _ => (!runs.old.is_judged).then_some(Self::OldIsTooShort),
        }
    }

    /// Returns the changes that the lengths alone may make.
    fn hidden(&self) -> Direction {
        match self {
            Self::NewIsShorter => Direction::Better,
            Self::NewIsLonger | Self::NewGrowsOn | Self::OldIsTooShort => Direction::Worse,
        }
    }

    fn statement(&self, runs: Runs<'_>) -> Statement {
        let OldNew { old, new } = runs.map(|run| run.steps.map_or_else(String::new, whole));
        let (claim, why, what) = match self {
            Self::NewIsShorter => (
                Claim::MayStillCome,
                "what grew in the old one may still come in the new one",
                "better",
            ),
            Self::NewIsLonger => (
                Claim::GrowsLonger,
                "memory grows as fast in both, and for longer in the new one",
                "worse",
            ),
            Self::NewGrowsOn => (
                Claim::GrowsLonger,
                "the same memory grows in both, and for longer in the new one",
                "worse",
            ),
            Self::OldIsTooShort => {
                (Claim::OldTooShort, "the old one is too short to show what grows", "worse")
            }
        };
        let words = format!(
            "the new run had {new} steps, the old one {old}: {why}; of what got {what}, only rates are judged"
        );
        Statement::new(claim, words).of(runs.new.steps)
    }
}

/// Returns whether a run grows, by its rate or a diagnosis.
fn grows(run: &RunFigures) -> bool {
    run.growth.is_some_and(|growth| growth.is_growing) || growths(run).next().is_some()
}

/// Returns the families of the growth that a run was diagnosed with.
fn growths(run: &RunFigures) -> impl Iterator<Item = &str> {
    let of_growth =
        |issue: &&RunIssue| about(&issue.kind).is_some_and(|about| about.stage.is_some());
    run.issues.iter().filter(of_growth).map(|issue| family(&issue.kind))
}

fn has_growth_in_common(runs: Runs<'_>) -> bool {
    growths(runs.new).any(|new| growths(runs.old).any(|old| old == new))
}

/// States the reason of exit code 1.
fn exit_reason(verdict: ComparisonVerdict, reasons: &[Reason]) -> Option<Statement> {
    let mut worse = reasons.iter().filter(|reason| reason.direction == Direction::Worse);
    let first = worse.next().filter(|_| verdict.exit_code() == 1)?;
    let others = match worse.count() {
        0 => String::new(),
        n => format!(", and {n} more got worse"),
    };
    let though = match verdict {
        ComparisonVerdict::Mixed => "; what got better does not outweigh that",
        _ => "",
    };
    let first = first.sentence.0.words();
    let words = format!("exit code 1 because of this: {first}{others}{though}");
    Some(Statement::new(Claim::ExitBecause, words))
}

/// States that one run ended worse. Running out of memory is a diagnosis, which reports that
/// already.
fn end(runs: Runs<'_>) -> Option<(Direction, Statement)> {
    let OldNew { old, new } = runs;
    let (old, new) = old.end.as_ref().zip(new.end.as_ref())?;
    let (direction, words) = match (old.outcome, new.outcome) {
        (EndOutcome::Completed, EndOutcome::Failed) => {
            (Direction::Worse, format!("the run failed{} instead of completing", on_ranks(new)))
        }
        (EndOutcome::Failed, EndOutcome::Completed) => (
            Direction::Better,
            format!("the run completed instead of failing{}", on_ranks(old)),
        ),
        _ => return None,
    };
    Some((direction, Statement::new(Claim::EndChanged, words)))
}

fn on_ranks(end: &RunEnd) -> String {
    match end.ranks.as_slice() {
        [rank] => format!(" on rank {rank}"),
        ranks => format!(" on {} ranks", ranks.len()),
    }
}

/// States the issues that one run has, and the other has not or less.
fn statuses(runs: Runs<'_>) -> Vec<(Direction, Statement)> {
    let all = runs.old.issues.iter().chain(&runs.new.issues);
    let families: BTreeSet<&str> = all.map(|issue| family(&issue.kind)).collect();
    families.into_iter().filter_map(|family| status(runs, family)).collect()
}

fn status(runs: Runs<'_>, family_of: &str) -> Option<(Direction, Statement)> {
    let OldNew { old, new } = runs.map(|run| {
        let own = run.issues.iter().filter(|issue| family(&issue.kind) == family_of);
        own.max_by_key(|issue| weight(issue))
    });
    // Each policy has severities of its own for growth; the stages mean the same.
    let is_creep = about(family_of).is_some_and(|about| about.stage.is_some());
    let is_graded_alike = runs.old.policy == runs.new.policy || !is_creep;
    let comparable = |issue: &RunIssue| {
        let (is_confirmed, severity) = weight(issue);
        (is_confirmed, Some(severity).filter(|_| is_graded_alike))
    };
    let direction = match new.map(comparable).cmp(&old.map(comparable)) {
        Ordering::Greater => Direction::Worse,
        Ordering::Less => Direction::Better,
        Ordering::Equal => return None,
    };
    let (claim, words) = match (old, new) {
        (None, Some(new)) => (Claim::IssueNew, format!("{} is new", named(new))),
        (Some(old), None) => (Claim::IssueGone, format!("{} is gone", named(old))),
        (Some(old), Some(new)) => {
            (Claim::IssueChanged, format!("{} became {}", named(old), named(new)))
        }
        (None, None) => return None,
    };
    Some((direction, Statement::new(claim, words)))
}

/// Returns the facts about a diagnosis; `None` of a kind that another version or no diagnosis
/// has.
fn about(kind: &str) -> Option<&'static About> {
    DiagnosisKind::from_label(kind).map(DiagnosisKind::about)
}

/// The kinds that are one problem at different stages have one name.
fn family(kind: &str) -> &str {
    about(kind).map_or(kind, |about| about.family.label())
}

/// Orders the issues of a family: creep that only rises weighs less than what is confirmed.
fn weight(issue: &RunIssue) -> (bool, IssueSeverity) {
    let stage = about(&issue.kind).and_then(|about| about.stage);
    (stage != Some(Stage::Rising), issue.severity)
}

fn named(issue: &RunIssue) -> String {
    let severity = issue.severity.in_words();
    match issue.ranks.as_slice() {
        [] => format!("{} ({severity})", issue.status),
        [rank] => format!("{} ({severity}) on rank {rank}", issue.status),
        ranks => format!("{} ({severity}) on {} ranks", issue.status, ranks.len()),
    }
}

/// States why nothing can be called better.
fn doubts(runs: Runs<'_>) -> Vec<Statement> {
    let OldNew { old, new } = runs;
    let mut doubts = Vec::new();
    for (name, run) in [("old", old), ("new", new)] {
        if !run.has_data {
            let words = format!("the {name} summary says {}", run.status);
            doubts.push(Statement::new(Claim::NoData, words));
        }
    }
    if old.is_judged && !new.is_judged && new.has_data {
        let words = "the new run has too few steps to judge creep";
        doubts.push(Statement::new(Claim::TooShort, words));
    }
    let has_level = old.peak_allocated.is_known() || old.allocated.is_known();
    if old.has_data && !has_level {
        doubts.push(Statement::new(Claim::NoPeak, "the old summary has no peak"));
    }
    doubts
}

/// Returns the remarks that a reader of the comparison should know.
fn remarks(runs: Runs<'_>, lengths: Option<&Lengths>) -> Vec<Statement> {
    let OldNew { old, new } = runs;
    let mut remarks = Vec::new();
    if old.policy != new.policy {
        let words = "one summary is judged by TraceML's rules and the other by stepmem's";
        remarks.push(Statement::new(Claim::OtherPolicies, words));
    }
    let maxima = runs.map(|run| run.peak_allocated.max).known();
    if maxima.is_none() && runs.map(|run| run.peak_allocated.mean).known().is_some() {
        let words = "TraceML writes means over the steps, so means are compared";
        remarks.push(Statement::new(Claim::MeansCompared, words));
    }
    if !old.is_judged && !new.is_judged {
        let words = "neither run has enough steps to judge creep";
        remarks.push(Statement::new(Claim::NeitherJudged, words));
    }
    remarks.extend(without_peaks(runs));
    for (name, run) in [("old", old), ("new", new)] {
        if run.is_going_on {
            let words = format!("the {name} run was going on when its summary was written");
            remarks.push(Statement::new(Claim::GoingOn, words));
        }
    }
    remarks.extend(leaking_lines(runs, lengths));
    if let (Some(before), Some(after)) = (old.steps, new.steps)
        && (before > 2.0 * after || after > 2.0 * before)
    {
        let (had, has) = (counted(before, "step"), whole(after));
        let words = format!("the old run had {had}, the new one {has}");
        remarks.push(Statement::new(Claim::UnlikeSteps, words).of(after));
    }
    remarks
}

/// States that a run does not know its peaks, and what is compared instead.
fn without_peaks(runs: Runs<'_>) -> Option<Statement> {
    let who = match (runs.old.peak_allocated.is_known(), runs.new.peak_allocated.is_known()) {
        (true, true) => return None,
        (false, true) => "the old run does not know its peaks",
        (true, false) => "the new run does not know its peaks",
        (false, false) => "neither run knows its peaks",
    };
    let is_live_known = runs.old.allocated.is_known() && runs.new.allocated.is_known();
    let instead = if is_live_known { ", so live memory is compared" } else { "" };
    Some(Statement::new(Claim::PeaksUnknown, format!("{who}{instead}")))
}

/// States which line leaked. A run that still grows, or is too short, may lack a snapshot that
/// names it.
fn leaking_lines(runs: Runs<'_>, lengths: Option<&Lengths>) -> Option<Statement> {
    let is_of_host = |issue: &RunIssue| {
        about(&issue.kind).is_some_and(|about| about.signal == Some(Signal::Host))
    };
    let is_growing = runs.new.growth.is_some_and(|growth| growth.is_growing)
        || runs.new.issues.iter().any(is_of_host);
    let is_shorter = matches!(lengths, Some(Lengths::NewIsShorter));
    let (claim, words) = match (&runs.old.leaking_line, &runs.new.leaking_line) {
        (Some(old), Some(new)) if old.at == new.at => {
            let (subject, leaks) = new.subject();
            (Claim::LineInBoth, format!("{subject} {leaks} in both runs"))
        }
        (Some(old), Some(new)) if !is_shorter => {
            let ((new, leaks), (old, _)) = (new.subject(), old.subject());
            (Claim::LineOther, format!("{new} {leaks} now, and no longer {old}"))
        }
        (Some(old), None) if runs.new.is_judged && !is_growing && !is_shorter => {
            let (subject, leaks) = old.subject();
            (Claim::LineGone, format!("{subject} no longer {leaks}"))
        }
        (Some(_) | None, Some(new)) => {
            let (subject, leaks) = new.subject();
            (Claim::LineNew, format!("{subject} {leaks} in the new run"))
        }
        (Some(_) | None, None) => return None,
    };
    Some(Statement::new(claim, words))
}

#[cfg(test)]
mod tests {
    use crate::compare::comparison::{ComparisonVerdict, OldNew};
    use crate::compare::figures::{
        LeakingLine, RankFigures, RunFigures, RunGrowth, RunHostHeadroom, RunIssue, RunPeak,
        SlopeInterval,
    };
    use crate::compare::judge::compare;
    use crate::policy::{IssueSeverity, PolicyName};
    use stepmem_types::claims::Claim;

    fn run(peak: f64, issues: &[(&str, IssueSeverity)]) -> RunFigures {
        let issue = |(kind, severity): &(&str, IssueSeverity)| RunIssue {
            kind: (*kind).to_owned(),
            status: kind.replace('_', " "),
            severity: *severity,
            ranks: vec![1],
        };
        RunFigures {
            issues: issues.iter().map(issue).collect(),
            steps: Some(1000.0),
            ..RunFigures::of_peak(RunPeak { max: Some(peak), ..RunPeak::default() })
        }
    }

    fn verdict(old: &RunFigures, new: &RunFigures) -> (ComparisonVerdict, Vec<String>) {
        let comparison = compare(OldNew { old, new });
        assert_eq!(comparison.exit_code, comparison.verdict.exit_code());
        let sentences = comparison.reasons.into_iter().map(|reason| reason.sentence.0);
        (comparison.verdict, sentences.map(|of| of.words().to_owned()).collect())
    }

    /// The notes of a comparison, joined.
    fn notes(old: &RunFigures, new: &RunFigures) -> String {
        let notes = compare(OldNew { old, new }).notes;
        let words: Vec<&str> = notes.iter().map(|of| of.0.words()).collect();
        words.join("; ")
    }

    const LEAK: (&str, IssueSeverity) = ("CREEP_CONFIRMED", IssueSeverity::Crit);
    const RISE: (&str, IssueSeverity) = ("CREEP_EARLY", IssueSeverity::Info);

    #[test]
    fn new_issue_is_a_regression_and_one_that_is_gone_an_improvement() {
        let (clean, leaking) = (run(10.0, &[]), run(10.0, &[LEAK]));
        let found = verdict(&clean, &leaking);
        assert_eq!(found.0, ComparisonVerdict::Regression);
        assert_eq!(found.1, ["CREEP CONFIRMED (critical) on rank 1 is new"]);
        let found = verdict(&leaking, &clean);
        assert_eq!(found.0, ComparisonVerdict::Improvement);
        assert_eq!(found.1, ["CREEP CONFIRMED (critical) on rank 1 is gone"]);
        assert_eq!(verdict(&clean, &clean), (ComparisonVerdict::Equivalent, Vec::new()));
    }

    #[test]
    fn rise_that_becomes_a_creep_is_one_problem_that_got_worse() {
        let (rising, leaking) = (run(10.0, &[RISE]), run(10.0, &[LEAK]));
        let sentence =
            "CREEP EARLY (info) on rank 1 became CREEP CONFIRMED (critical) on rank 1";
        let expected = (ComparisonVerdict::Regression, vec![sentence.to_owned()]);
        assert_eq!(verdict(&rising, &leaking), expected);
        assert_eq!(verdict(&leaking, &rising).0, ComparisonVerdict::Improvement);
        // An acknowledged creep has the severity of a rise, and is worse.
        let acknowledged = run(10.0, &[("CREEP_CONFIRMED", IssueSeverity::Info)]);
        assert_eq!(verdict(&rising, &acknowledged).0, ComparisonVerdict::Regression);
    }

    #[test]
    fn smaller_peak_with_a_new_leak_is_mixed_and_names_the_leak_first() {
        let found = verdict(&run(10.0, &[]), &run(5.0, &[LEAK]));
        assert_eq!(found.0, ComparisonVerdict::Mixed);
        assert!(found.1[0].contains("is new") && found.1[1].contains("fell"), "{:?}", found.1);
    }

    #[test]
    fn run_too_short_to_judge_can_get_worse_but_not_better() {
        let short = |peak| RunFigures { is_judged: false, ..run(peak, &[]) };
        let found = verdict(&run(10.0, &[LEAK]), &short(5.0));
        assert_eq!(found, (ComparisonVerdict::Inconclusive, Vec::new()));
        assert_eq!(verdict(&run(10.0, &[]), &short(20.0)).0, ComparisonVerdict::Regression);
    }

    #[test]
    fn one_leak_in_runs_of_unlike_lengths_is_neither_better_nor_worse() {
        let grown = |steps: f64, slope: f64, issues: &[(&str, IssueSeverity)]| RunFigures {
            steps: Some(steps),
            growth: Some(RunGrowth {
                is_growing: !issues.is_empty(),
                slope,
                interval: Some(SlopeInterval { lower: 0.9 * slope, upper: 1.1 * slope }),
            }),
            ..run(100.0 + steps * slope, issues)
        };
        let (long, short) = (grown(1_500.0, 1.0, &[LEAK]), grown(150.0, 1.0, &[RISE]));
        for (old, new) in [(&long, &short), (&short, &long)] {
            assert_eq!(verdict(old, new), (ComparisonVerdict::Inconclusive, Vec::new()));
            let notes = notes(old, new);
            assert!(notes.contains("only rates are judged"), "{notes}");
        }
        // A short run that grows more slowly is better, and one that is above the long one worse.
        let mended = grown(150.0, 0.01, &[]);
        assert_eq!(verdict(&long, &mended).0, ComparisonVerdict::Improvement);
        let faster = grown(150.0, 20.0, &[LEAK]);
        assert_eq!(verdict(&long, &faster).0, ComparisonVerdict::Regression);
        // A leak that a shorter run had not is worse.
        let clean = grown(150.0, 0.001, &[]);
        assert_eq!(verdict(&clean, &long).0, ComparisonVerdict::Regression);
    }

    #[test]
    fn nothing_differs_only_where_no_figure_does_and_all_was_judged() {
        let nothing = |old: &RunFigures, new: &RunFigures| {
            let found = compare(OldNew { old, new });
            let all = ["metrics", "ranks"].map(|key| {
                let json = serde_json::to_value(&found).unwrap()[key].to_string();
                json.contains("worse") || json.contains("better")
            });
            (found.nothing.map(|of| of.claim()), all.contains(&true))
        };
        let same = run(100.0, &[]);
        assert_eq!(nothing(&same, &same), (Some(Claim::NothingDiffers), false));
        // The peak of a rank that is not the highest.
        let rank = |peak| RankFigures {
            rank: 1,
            issues: Vec::new(),
            allocated: RunPeak::default(),
            peak_allocated: RunPeak { max: Some(peak), ..RunPeak::default() },
        };
        let with_rank = |peak| RunFigures { ranks: vec![rank(peak)], ..run(100.0, &[]) };
        let found = nothing(&with_rank(50.0), &with_rank(80.0));
        assert_eq!(found, (Some(Claim::NothingJudgedDiffers), true));
        // Figures of a run that is too short to be better are not called better.
        let short = RunFigures { is_judged: false, ..run(50.0, &[]) };
        let found = nothing(&run(100.0, &[LEAK]), &short);
        assert_eq!(found, (Some(Claim::NothingJudgedDiffers), false));
        let empty = RunFigures { has_data: false, ..run(10.0, &[]) };
        assert_eq!(nothing(&empty, &run(20.0, &[LEAK])), (None, false));
        assert_eq!(verdict(&empty, &run(20.0, &[LEAK])).1, Vec::<String>::new());
    }

    #[test]
    fn growth_whose_rate_is_not_known_is_not_new_against_a_run_too_short_to_show_it() {
        let host = ("HOST_CREEP_CONFIRMED", IssueSeverity::Crit);
        let of = |steps, is_judged, issues: &[(&str, IssueSeverity)]| RunFigures {
            steps: Some(steps),
            is_judged,
            ..run(100.0, issues)
        };
        let (short, long) = (of(30.0, false, &[]), of(3_000.0, true, &[LEAK]));
        assert_eq!(verdict(&short, &long), (ComparisonVerdict::Inconclusive, Vec::new()));
        assert!(notes(&short, &long).contains("the old one is too short to show what grows"));
        // A run that was judged shows it.
        let judged = of(1_000.0, true, &[]);
        assert_eq!(verdict(&judged, &long).0, ComparisonVerdict::Regression);
        // Live memory is level in both, and what the host lost is that of the longer run.
        let level = RunGrowth {
            is_growing: false,
            slope: 0.0,
            interval: Some(SlopeInterval { lower: -1.0, upper: 1.0 }),
        };
        let left = |steps, bytes| RunFigures {
            growth: Some(level),
            host_headroom: Some(RunHostHeadroom { bytes, total_bytes: 1e3 }),
            ..of(steps, true, &[host])
        };
        let (early, late) = (left(1_000.0, 900.0), left(3_000.0, 700.0));
        assert_eq!(verdict(&early, &late), (ComparisonVerdict::Inconclusive, Vec::new()));
        let notes = notes(&early, &late);
        assert!(notes.contains("the same memory grows in both"), "{notes}");
        assert!(!notes.contains("as fast"), "{notes}");
    }

    #[test]
    fn leaking_line_is_not_gone_from_a_shorter_run() {
        let of = |steps, line: Option<&str>, issues: &[(&str, IssueSeverity)]| RunFigures {
            steps: Some(steps),
            leaking_line: line.map(|at| LeakingLine { at: at.to_owned(), holder: None }),
            ..run(100.0, issues)
        };
        let long = of(2_000.0, Some("a.py:1 in f"), &[LEAK]);
        let found = notes(&long, &of(500.0, None, &[]));
        assert!(found.contains("may still come") && !found.contains("is gone"), "{found}");
        let found = notes(&long, &of(500.0, Some("b.py:2 in g"), &[LEAK]));
        assert!(found.contains("the line b.py:2 in g leaks in the new run"), "{found}");
    }

    #[test]
    fn run_without_data_is_inconclusive_whatever_the_other_says() {
        let empty = RunFigures { has_data: false, ..run(10.0, &[]) };
        assert_eq!(verdict(&run(10.0, &[]), &empty).0, ComparisonVerdict::Inconclusive);
        assert_eq!(verdict(&empty, &run(10.0, &[LEAK])).0, ComparisonVerdict::Inconclusive);
    }

    #[test]
    fn runs_of_unlike_policy_or_length_are_remarked_on() {
        let theirs = RunFigures {
            policy: PolicyName::TraceMl,
            steps: Some(100.0),
            is_judged: false,
            ..run(10.0, &[])
        };
        let ours = RunFigures { is_judged: false, ..run(10.0, &[]) };
        let notes = notes(&ours, &theirs);
        for part in
            ["TraceML's rules", "neither run", "the old run had 1,000 steps, the new one 100"]
        {
            assert!(notes.contains(part), "{part}: {notes}");
        }
    }

    #[test]
    fn severity_of_creep_is_not_compared_across_policies() {
        let ours = run(100.0, &[("CREEP_CONFIRMED", IssueSeverity::Crit)]);
        let theirs = RunFigures {
            policy: PolicyName::TraceMl,
            ..run(100.0, &[("CREEP_CONFIRMED", IssueSeverity::Warn)])
        };
        let verdict = |old, new| compare(OldNew { old, new }).verdict;
        assert_eq!(verdict(&theirs, &ours), ComparisonVerdict::Equivalent);
        let milder = run(100.0, &[("CREEP_CONFIRMED", IssueSeverity::Warn)]);
        assert_eq!(verdict(&milder, &ours), ComparisonVerdict::Regression);
        let rising = RunFigures {
            policy: PolicyName::TraceMl,
            ..run(100.0, &[("CREEP_EARLY", IssueSeverity::Crit)])
        };
        assert_eq!(verdict(&rising, &ours), ComparisonVerdict::Regression);
    }

    #[test]
    fn leaking_line_that_is_gone_is_said() {
        let with = |line: Option<&str>| RunFigures {
            leaking_line: line.map(|at| LeakingLine { at: at.to_owned(), holder: None }),
            ..run(100.0, &[])
        };
        let notes = |old, new| notes(&with(old), &with(new));
        let gone = notes(Some("train.py:151 in evaluate"), None);
        assert!(gone.contains("the line train.py:151 in evaluate no longer leaks"), "{gone}");
        let other = notes(Some("a.py:1 in f"), Some("b.py:2 in g"));
        assert!(
            other
                .contains("the line b.py:2 in g leaks now, and no longer the line a.py:1 in f"),
            "{other}"
        );
        assert_eq!(notes(None, None), "");
    }
}

//! The verdict on two runs. A status that got worse is never an improvement.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::compare::changes::{GROWTH, KeyedChange, Runs, changes, is_one_rate, rank_changes};
use crate::compare::comparable::differences;
use crate::compare::comparison::{
    Change, Comparison, ComparisonVerdict, Direction, OldNew, Reason, RunDiagnosis,
};
use crate::compare::figures::{RunEnd, RunFigures, RunIssue};
use crate::policy::{IssueSeverity, PolicyName};
use stepmem_detect::{Signal, Stage};
use stepmem_engine::kind::{About, DiagnosisKind};
use stepmem_types::end::EndOutcome;
use stepmem_types::format::units::{counted, whole};

/// A run of less than this share of the other's steps is shorter.
const UNLIKE_LENGTHS_RATIO: f64 = 0.9;

/// Compares two runs. Those of different jobs are INCONCLUSIVE: their figures stand next to
/// each other and are not judged.
pub fn compare(runs: Runs<'_>) -> Comparison {
    let incomparable = differences(runs);
    if incomparable.is_empty() { judged(runs) } else { side_by_side(runs, incomparable) }
}

fn side_by_side(runs: Runs<'_>, incomparable: Vec<String>) -> Comparison {
    let unjudged = |KeyedChange { key, change, .. }| {
        (key, Change { direction: Direction::Unknown, significant_from: None, ..change })
    };
    let verdict = ComparisonVerdict::Inconclusive;
    Comparison {
        verdict,
        exit_code: verdict.exit_code(),
        incomparable,
        reasons: Vec::new(),
        notes: Vec::new(),
        diagnosis: runs.map(RunDiagnosis::of),
        metrics: changes(runs).into_iter().map(unjudged).collect(),
        end: runs.map(|run| Some(run.end.as_ref()?.outcome)),
        ranks: Vec::new(),
        exit_reason: None,
    }
}

fn judged(runs: Runs<'_>) -> Comparison {
    let mut reasons = statuses(runs);
    let mut metrics = BTreeMap::new();
    let mut of_rates = Vec::from_iter(end(runs));
    for KeyedChange { key, change, sentence, is_reason } in changes(runs) {
        if is_reason && matches!(change.direction, Direction::Worse | Direction::Better) {
            let reason = Reason { direction: change.direction, sentence };
            if key == GROWTH { &mut of_rates } else { &mut reasons }.push(reason);
        }
        metrics.insert(key, change);
    }
    let n_reasons = reasons.len();
    let lengths = Lengths::of(runs);
    if let Some(lengths) = &lengths {
        reasons.retain(|reason| reason.direction != lengths.hidden());
    }
    let is_hidden = reasons.len() < n_reasons;
    reasons.extend(of_rates);
    let mut notes = doubts(runs);
    let is_doubtful = !notes.is_empty();
    notes.extend(lengths.filter(|_| is_hidden).map(|lengths| lengths.sentence(runs)));
    if is_doubtful {
        // A run that is too short to judge did not get better.
        reasons.retain(|reason| reason.direction == Direction::Worse);
    }
    reasons.sort_by_key(|reason| reason.direction);
    let has = |direction| reasons.iter().any(|reason| reason.direction == direction);
    let verdict = match (has(Direction::Worse), has(Direction::Better)) {
        _ if !(runs.old.has_data && runs.new.has_data) => ComparisonVerdict::Inconclusive,
        (true, true) => ComparisonVerdict::Mixed,
        (true, false) => ComparisonVerdict::Regression,
        _ if is_doubtful => ComparisonVerdict::Inconclusive,
        (false, true) => ComparisonVerdict::Improvement,
        (false, false) if is_hidden => ComparisonVerdict::Inconclusive,
        (false, false) => ComparisonVerdict::Equivalent,
    };
    notes.extend(remarks(runs));
    let exit_reason = exit_reason(verdict, &reasons);
    Comparison {
        verdict,
        exit_code: verdict.exit_code(),
        incomparable: Vec::new(),
        reasons,
        notes,
        diagnosis: runs.map(RunDiagnosis::of),
        metrics,
        end: runs.map(|run| Some(run.end.as_ref()?.outcome)),
        ranks: rank_changes(runs),
        exit_reason,
    }
}

/// Two runs of unlike lengths, of which at least one grows. Findings, peaks and headroom come with
/// the steps of the longer one; rates do not.
enum Lengths {
    /// The new run ended before it could show what grew in the old one.
    NewIsShorter,
    /// Both grow at one rate, for longer in the new run.
    NewIsLonger,
}

impl Lengths {
    fn of(runs: Runs<'_>) -> Option<Self> {
        // TraceML's steps are those of a window.
        let of_whole =
            |run: &RunFigures| run.steps.filter(|_| run.policy == PolicyName::Stepmem);
        let steps = runs.map(of_whole).known()?;
        let grows = |run: &RunFigures| {
            let has_issue = |issue: &RunIssue| {
                about(&issue.kind).is_some_and(|about| about.stage.is_some())
            };
            run.growth.is_some_and(|growth| growth.is_growing)
                || run.issues.iter().any(has_issue)
        };
        if steps.new < UNLIKE_LENGTHS_RATIO * steps.old {
            return grows(runs.old).then_some(Self::NewIsShorter);
        }
        let is_longer = steps.old < UNLIKE_LENGTHS_RATIO * steps.new;
        (is_longer && grows(runs.new) && is_one_rate(runs)).then_some(Self::NewIsLonger)
    }

    /// Returns the changes that the lengths alone may make.
    fn hidden(&self) -> Direction {
        match self {
            Self::NewIsShorter => Direction::Better,
            Self::NewIsLonger => Direction::Worse,
        }
    }

    fn sentence(&self, runs: Runs<'_>) -> String {
        let OldNew { old, new } = runs.map(|run| run.steps.map_or_else(String::new, whole));
        let why = match self {
            Self::NewIsShorter => "what grew in the old one may still come in the new one",
            Self::NewIsLonger => "memory grows as fast in both, and for longer in the new one",
        };
        format!("the new run had {new} steps, the old one {old}: {why}; only rates are judged")
    }
}

/// Returns a sentence that explains exit code 1.
fn exit_reason(verdict: ComparisonVerdict, reasons: &[Reason]) -> Option<String> {
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
    Some(format!("exit code 1 because of this: {}{others}{though}", first.sentence))
}

/// Returns the reason that one run ended worse. Running out of memory is a diagnosis, which
/// reports that already.
fn end(runs: Runs<'_>) -> Option<Reason> {
    let OldNew { old, new } = runs;
    let (old, new) = old.end.as_ref().zip(new.end.as_ref())?;
    let (direction, sentence) = match (old.outcome, new.outcome) {
        (EndOutcome::Completed, EndOutcome::Failed) => {
            (Direction::Worse, format!("the run failed{} instead of completing", on_ranks(new)))
        }
        (EndOutcome::Failed, EndOutcome::Completed) => (
            Direction::Better,
            format!("the run completed instead of failing{}", on_ranks(old)),
        ),
        _ => return None,
    };
    Some(Reason { direction, sentence })
}

fn on_ranks(end: &RunEnd) -> String {
    match end.ranks.as_slice() {
        [rank] => format!(" on rank {rank}"),
        ranks => format!(" on {} ranks", ranks.len()),
    }
}

/// Returns the reasons about issues that one run has, and the other has not or less.
fn statuses(runs: Runs<'_>) -> Vec<Reason> {
    let all = runs.old.issues.iter().chain(&runs.new.issues);
    let families: BTreeSet<&str> = all.map(|issue| family(&issue.kind)).collect();
    families.into_iter().filter_map(|family| status(runs, family)).collect()
}

fn status(runs: Runs<'_>, family_of: &str) -> Option<Reason> {
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
    let sentence = match (old, new) {
        (None, Some(new)) => format!("{} is new", named(new)),
        (Some(old), None) => format!("{} is gone", named(old)),
        (Some(old), Some(new)) => format!("{} became {}", named(old), named(new)),
        (None, None) => return None,
    };
    Some(Reason { direction, sentence })
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

/// Returns the reasons that nothing can be called better.
fn doubts(runs: Runs<'_>) -> Vec<String> {
    let OldNew { old, new } = runs;
    let mut doubts = Vec::new();
    for (name, run) in [("old", old), ("new", new)] {
        if !run.has_data {
            doubts.push(format!("the {name} summary says {}", run.status));
        }
    }
    if old.is_judged && !new.is_judged && new.has_data {
        doubts.push("the new run has too few steps to judge creep".to_owned());
    }
    let has_level = old.peak_allocated.is_known() || old.allocated.is_known();
    if old.has_data && !has_level {
        doubts.push("the old summary has no peak".to_owned());
    }
    doubts
}

/// Returns the remarks that a reader of the comparison should know.
fn remarks(runs: Runs<'_>) -> Vec<String> {
    let OldNew { old, new } = runs;
    let mut remarks = Vec::new();
    if old.policy != new.policy {
        remarks.push(
            "one summary is judged by TraceML's rules and the other by stepmem's".to_owned(),
        );
    }
    let is_of_means = |run: &RunFigures| {
        run.peak_allocated.max.is_none() && run.peak_allocated.mean.is_some()
    };
    if is_of_means(old) || is_of_means(new) {
        remarks.push("TraceML writes means over the steps, so means are compared".to_owned());
    }
    if !old.is_judged && !new.is_judged {
        remarks.push("neither run has enough steps to judge creep".to_owned());
    }
    let without_peaks = match (old.peak_allocated.is_known(), new.peak_allocated.is_known()) {
        (true, true) => None,
        (false, true) => Some("the old run does not know its peaks"),
        (true, false) => Some("the new run does not know its peaks"),
        (false, false) => Some("neither run knows its peaks"),
    };
    remarks.extend(without_peaks.map(|who| format!("{who}, so live memory is compared")));
    for (name, run) in [("old", old), ("new", new)] {
        if run.is_going_on {
            remarks.push(format!("the {name} run was going on when its summary was written"));
        }
    }
    remarks.extend(leaking_lines(runs));
    if let (Some(before), Some(after)) = (old.steps, new.steps)
        && (before > 2.0 * after || after > 2.0 * before)
    {
        remarks.push(format!(
            "the old run had {}, the new one {}",
            counted(before, "step"),
            whole(after)
        ));
    }
    remarks
}

/// Returns a sentence on the line that leaked. A run that still grows may lack a snapshot that
/// names it.
fn leaking_lines(runs: Runs<'_>) -> Option<String> {
    let is_of_host = |issue: &RunIssue| {
        about(&issue.kind).is_some_and(|about| about.signal == Some(Signal::Host))
    };
    let is_growing = runs.new.growth.is_some_and(|growth| growth.is_growing)
        || runs.new.issues.iter().any(is_of_host);
    match (&runs.old.leaking_line, &runs.new.leaking_line) {
        (Some(old), Some(new)) if old == new => {
            Some(format!("the line {new} leaks in both runs"))
        }
        (Some(old), Some(new)) => {
            Some(format!("another line leaks: {new}, and no longer {old}"))
        }
        (Some(old), None) if runs.new.is_judged && !is_growing => {
            Some(format!("the leaking line {old} is gone"))
        }
        (None, Some(new)) => Some(format!("the line {new} leaks in the new run")),
        (Some(_) | None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::compare::comparison::{ComparisonVerdict, OldNew};
    use crate::compare::figures::{RunFigures, RunGrowth, RunIssue, RunPeak, SlopeInterval};
    use crate::compare::judge::compare;
    use crate::policy::{IssueSeverity, PolicyName};

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
        let sentences = comparison.reasons.into_iter().map(|reason| reason.sentence);
        (comparison.verdict, sentences.collect())
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
            let notes = compare(OldNew { old, new }).notes.join("; ");
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
        let notes = compare(OldNew { old: &ours, new: &theirs }).notes.join("; ");
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
            leaking_line: line.map(str::to_owned),
            ..run(100.0, &[])
        };
        let notes =
            |old, new| compare(OldNew { old: &with(old), new: &with(new) }).notes.join("; ");
        let gone = notes(Some("train.py:151 in evaluate"), None);
        assert!(gone.contains("the leaking line train.py:151 in evaluate is gone"), "{gone}");
        let other = notes(Some("a.py:1 in f"), Some("b.py:2 in g"));
        assert!(other.contains("another line leaks: b.py:2 in g"), "{other}");
        assert_eq!(notes(None, None), "");
    }
}

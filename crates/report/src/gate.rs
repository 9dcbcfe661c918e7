//! The conditions of `run --fail-on`. A condition is a verdict: `creep`, `pressure`,
//! `imbalance`, `any`; `:warning` takes also what is no more than that. `rising` is creep or
//! steady growth that is not yet creep. Or it is a budget for the peak of reserved memory
//! (`peak:20GiB`, `peak:+5%:SUMMARY`).

use serde::Serialize;

use crate::policy::IssueSeverity;
use crate::summary::model::{FigureSummary, Issue, IssueKind, RankSummary, Summary};
use stepmem_engine::DiagnosisKind;
use stepmem_types::claims::{Claim, Sentence, Statement};
use stepmem_types::format::units::bytes;
use stepmem_types::ids::Rank;
use stepmem_types::units::parse_size;

/// The exit code where a condition holds.
pub const FAILED_ON_CODE: u8 = 3;
/// The exit code where a condition could not be judged.
pub const UNJUDGED_CODE: u8 = 4;

/// The forms of an option, for errors.
const EXPECTED: &str = "expected creep, pressure, imbalance or any (each also with :warning or :critical, which is the default), rising, peak:SIZE, \
    peak:+PERCENT%:SUMMARY or unwatched-ok, several separated by commas";

/// The condition that growth fails before it is creep.
const RISING: &str = "rising";

/// The parts of a percent that a budget can tell apart.
const PERCENT_PARTS: f64 = 1e6;

/// The word that allows a run that was not watched or not judged.
const UNWATCHED_OK: &str = "unwatched-ok";

/// The parts of one option.
#[derive(Clone, Debug, PartialEq)]
pub struct FailOn(Vec<OptionPart>);

#[derive(Clone, Debug, PartialEq)]
enum OptionPart {
    Condition(Condition),
    UnwatchedOk,
}

/// A reason to fail.
#[derive(Clone, Debug, PartialEq)]
struct Condition {
    /// The condition as it was given.
    text: String,
    test: GateTest,
}

#[derive(Clone, Debug, PartialEq)]
enum GateTest {
    /// A verdict of at least this severity.
    Verdict(GateSubject, IssueSeverity),
    /// A peak of more than so many bytes.
    Peak(f64),
    /// A peak of more than this share above that of a baseline.
    Above { ratio: f64, path: String, baseline: Option<Baseline> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GateSubject {
    Kind(DiagnosisKind),
    /// Growth, be it creep or not yet.
    Rising,
    /// Whatever is wrong.
    Any,
}

/// The figures of a summary that a budget rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Baseline {
    peak: Peak,
    world_size: Option<u64>,
}

/// The most memory that a rank held.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Peak {
    bytes: f64,
    kind: PeakKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeakKind {
    /// Bytes that the allocator of a device had reserved.
    Reserved,
    /// Bytes that a process had resident on its host.
    Resident,
}

impl PeakKind {
    fn in_words(self) -> &'static str {
        match self {
            Self::Reserved => "reserved memory",
            Self::Resident => "resident host memory",
        }
    }
}

/// The names of the subjects.
const SUBJECTS: [(&str, GateSubject); 4] = [
    ("creep", GateSubject::Kind(DiagnosisKind::CreepConfirmed)),
    ("pressure", GateSubject::Kind(DiagnosisKind::HighPressure)),
    ("imbalance", GateSubject::Kind(DiagnosisKind::Imbalance)),
    ("any", GateSubject::Any),
];

impl FailOn {
    /// Parses an option.
    ///
    /// # Errors
    ///
    /// Names what is expected instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let option = |part: &str| {
            if part == UNWATCHED_OK {
                return Ok(OptionPart::UnwatchedOk);
            }
            let budget = part.strip_prefix("peak:");
            let known = budget.map_or_else(|| verdict(part), peak);
            let known = known.ok_or_else(|| match budget {
                Some(size) if !size.starts_with('+') => {
                    format!("{size:?} is not a size with its unit, such as 20GiB or 20GB")
                }
                _ => EXPECTED.to_owned(),
            })?;
            Ok(OptionPart::Condition(Condition { text: part.to_owned(), test: known }))
        };
        let parts: Result<Vec<OptionPart>, String> = text.split(',').map(option).collect();
        parts.map(Self)
    }
}

/// Parses `SUBJECT[:SEVERITY]`; the severity is critical unless given. Growth that is not yet
/// creep has one severity.
fn verdict(text: &str) -> Option<GateTest> {
    if text == RISING {
        return Some(GateTest::Verdict(GateSubject::Rising, IssueSeverity::Info));
    }
    let (name, severity) = text.split_once(':').unwrap_or((text, "critical"));
    let (_, subject) = SUBJECTS.iter().find(|(known, _)| *known == name)?;
    let severity = [IssueSeverity::Warn, IssueSeverity::Crit]
        .into_iter()
        .find(|known| known.in_words() == severity)?;
    Some(GateTest::Verdict(*subject, severity))
}

/// Parses `SIZE`, which has a unit so that 20 is not 20 bytes, or `+PERCENT%:SUMMARY`.
fn peak(text: &str) -> Option<GateTest> {
    let Some(relative) = text.strip_prefix('+') else {
        let has_unit = text.ends_with(|last: char| last.is_alphabetic());
        return parse_size(text).filter(|_| has_unit).map(GateTest::Peak);
    };
    let (percent, path) = relative.split_once("%:")?;
    let percent = percent.parse::<f64>().ok().filter(|it| (0.0..=1000.0).contains(it))?;
    let path = Some(path).filter(|path| !path.is_empty())?.to_owned();
    Some(GateTest::Above { ratio: percent / 100.0, path, baseline: None })
}

/// All conditions of a command line; the default has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExitGate {
    conditions: Vec<Condition>,
    allows_unwatched: bool,
}

/// The verdict of a gate. The sentences give the reasons, each with its option.
#[derive(Clone, Debug, PartialEq)]
pub enum GateVerdict {
    /// The gate passed; the sentences are about what grew, but was not yet judged to be what a
    /// condition is about.
    Passed(Vec<Sentence>),
    /// A condition holds; a sentence for each.
    Failed(Vec<Sentence>),
    /// A condition could not be judged.
    Unjudged(Vec<Sentence>),
}

/// The verdict of a gate in JSON.
#[derive(Clone, Debug, Serialize)]
pub struct GateAnswer<'a> {
    verdict: &'static str,
    /// The exit code of a command that succeeded.
    exit_code: u8,
    sentences: Vec<&'a str>,
    /// The statements of the sentences, in their order.
    statements: Vec<&'a Statement>,
}

impl GateVerdict {
    /// Returns the exit code of a command that succeeded.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Passed(_) => 0,
            Self::Failed(_) => FAILED_ON_CODE,
            Self::Unjudged(_) => UNJUDGED_CODE,
        }
    }

    /// Returns the reasons.
    pub fn sentences(&self) -> &[Sentence] {
        match self {
            Self::Passed(sentences) | Self::Failed(sentences) | Self::Unjudged(sentences) => {
                sentences
            }
        }
    }

    /// Returns the verdict for JSON.
    pub fn answer(&self) -> GateAnswer<'_> {
        let verdict = match self {
            Self::Passed(_) => "passed",
            Self::Failed(_) => "failed",
            Self::Unjudged(_) => "unjudged",
        };
        GateAnswer {
            verdict,
            exit_code: self.exit_code(),
            sentences: self.sentences().iter().map(Sentence::words).collect(),
            statements: self.sentences().iter().flat_map(Sentence::statements).collect(),
        }
    }
}

impl ExitGate {
    /// Returns the gate of these options, with its baselines read by `read`.
    ///
    /// # Errors
    ///
    /// A baseline cannot be read, has no peak, or is of another number of ranks than
    /// `world_size`. Or an option allows what no other one asks about.
    pub fn new<'a>(
        options: impl Iterator<Item = &'a FailOn>,
        world_size: Option<u64>,
        read: impl Fn(&str) -> Result<Summary, String>,
    ) -> Result<Self, String> {
        let mut gate = Self::default();
        for part in options.flat_map(|option| &option.0) {
            match part {
                OptionPart::Condition(condition) => gate.conditions.push(condition.clone()),
                OptionPart::UnwatchedOk => gate.allows_unwatched = true,
            }
        }
        if gate.conditions.is_empty() && gate.allows_unwatched {
            return Err(format!("--fail-on {UNWATCHED_OK} needs a condition, such as creep"));
        }
        for Condition { text, test } in &mut gate.conditions {
            let GateTest::Above { path, baseline, .. } = test else { continue };
            let summary = read(path).and_then(|summary| Baseline::of(&summary, world_size));
            let found = summary.map_err(|reason| format!("--fail-on {text}: {path}: {reason}"));
            *baseline = Some(found?);
        }
        Ok(gate)
    }

    /// Returns whether a command that was not watched fails.
    pub fn needs_watching(&self) -> bool {
        !self.conditions.is_empty() && !self.allows_unwatched
    }

    /// Returns whether there is any condition.
    pub fn is_any(&self) -> bool {
        !self.conditions.is_empty()
    }

    /// Judges the runs of a command.
    pub fn judge(&self, runs: &[&Summary]) -> GateVerdict {
        let (mut failed, mut unjudged) = (Vec::new(), Vec::new());
        for condition in &self.conditions {
            let found = runs.iter().map(|run| (run, condition.judge(run)));
            let found: Vec<(&&Summary, Judged)> = found.collect();
            let is_judged =
                found.iter().any(|(_, of)| matches!(of, Judged::Passed | Judged::Failed(_)));
            for (run, judged) in found {
                let of = |why| if runs.len() > 1 { of_run(run, why) } else { why };
                match judged {
                    Judged::Failed(why) => failed.push(condition.decides(of(why))),
                    Judged::Mismatch(why) if !is_judged => {
                        unjudged.push(condition.decides(of(why.into())));
                    }
                    Judged::Unknown(why) if !is_judged && !self.allows_unwatched => {
                        unjudged.push(condition.unwatched(of(why.into())));
                    }
                    Judged::Unknown(_) | Judged::Mismatch(_) | Judged::Passed => {}
                }
            }
            if runs.is_empty() && self.needs_watching() {
                let nothing = Statement::new(Claim::GateNothing, "nothing was watched");
                unjudged.push(condition.unwatched(nothing.into()));
            }
        }
        match (failed.is_empty(), unjudged.is_empty()) {
            (false, _) => GateVerdict::Failed(failed),
            (true, false) => GateVerdict::Unjudged(unjudged),
            (true, true) => GateVerdict::Passed(self.passed_over(runs)),
        }
    }

    /// Returns the growth that conditions about creep let pass, since it is not yet creep.
    fn passed_over(&self, runs: &[&Summary]) -> Vec<Sentence> {
        let asks_for_creep = |condition: &&Condition| {
            matches!(
                condition.test,
                GateTest::Verdict(
                    GateSubject::Any | GateSubject::Kind(DiagnosisKind::CreepConfirmed),
                    _
                )
            )
        };
        let Some(condition) = self.conditions.iter().find(asks_for_creep) else {
            return Vec::new();
        };
        let issues = runs.iter().flat_map(|run| &run.issues);
        let growing =
            issues.filter(|issue| issue.is_wrong() && GateSubject::Rising.covers(issue));
        let passed = |issue| {
            sentence(issue)
                .then(" (passes ", condition.statement())
                .end("; --fail-on rising fails)")
        };
        growing.map(passed).collect()
    }
}

/// Says of which of several runs a reason is.
fn of_run(run: &Summary, why: Sentence) -> Sentence {
    let named = Statement::new(Claim::GateRun, format!("run {}", run.run));
    Sentence::from(named).then(": ", why)
}

/// The verdict of one condition on one run, with its reason.
enum Judged {
    Passed,
    Failed(Sentence),
    /// The run has not what the condition is about.
    Unknown(Statement),
    /// The baseline is of another job.
    Mismatch(Statement),
}

impl Condition {
    fn statement(&self) -> Statement {
        Statement::new(Claim::GateCondition, format!("--fail-on {}", self.text))
    }

    /// Returns a reason with the condition that it decides.
    fn decides(&self, why: Sentence) -> Sentence {
        why.then(" (", self.statement()).end(")")
    }

    /// Returns a reason that an option allows.
    fn unwatched(&self, why: Sentence) -> Sentence {
        why.then(" (", self.statement()).end("; with ,unwatched-ok that is no failure)")
    }

    fn judge(&self, run: &Summary) -> Judged {
        match &self.test {
            GateTest::Verdict(subject, severity) => {
                let fails = |issue: &&Issue| {
                    issue.is_wrong() && issue.severity >= *severity && subject.covers(issue)
                };
                match run.issues.iter().find(fails) {
                    Some(issue) => Judged::Failed(sentence(issue)),
                    None => subject.unknown(run).map_or(Judged::Passed, Judged::Unknown),
                }
            }
            GateTest::Peak(limit) => judge_peak(run, *limit, ""),
            GateTest::Above { ratio, path, baseline } => {
                let Some(Baseline { peak, world_size }) = baseline else {
                    let words = format!("{path} was not read");
                    return Judged::Mismatch(Statement::new(Claim::GateUnread, words));
                };
                let other = other_size(*world_size, run.coverage.world_size());
                if let Some(why) = other.or_else(|| other_kind(peak.kind, run)) {
                    return Judged::Mismatch(Statement::new(Claim::GateOtherJob, why));
                }
                let (percent, of) = (percent(*ratio), bytes(peak.bytes));
                let limit = peak.bytes * (1.0 + ratio);
                judge_peak(run, limit, &format!(", {percent}% above the {of} of {path}"))
            }
        }
    }
}

/// Returns a share in percent, without the digits that its division by 100 made.
fn percent(ratio: f64) -> f64 {
    (ratio * 100.0 * PERCENT_PARTS).round() / PERCENT_PARTS
}

impl GateSubject {
    fn covers(self, issue: &Issue) -> bool {
        let IssueKind::Diagnosis(found) = &issue.kind else { return self == Self::Any };
        match self {
            Self::Any => true,
            Self::Kind(kind) => found.of_own() == kind,
            Self::Rising => {
                use DiagnosisKind::{CreepConfirmed, CreepEarly};
                [CreepConfirmed, CreepEarly].contains(&found.of_own())
            }
        }
    }

    /// Returns the reason that a run cannot be judged in this respect, if it cannot.
    fn unknown(self, run: &Summary) -> Option<Statement> {
        let is_watched = run.ranks.iter().any(|rank| rank.steps > 0 || rank.samples > 0);
        Some(match self {
            _ if !is_watched => no_steps(),
            Self::Any | Self::Rising | Self::Kind(DiagnosisKind::CreepConfirmed)
                if run.coverage.ranks_judged == 0 =>
            {
                Statement::new(Claim::GateFewSteps, "too few steps to judge creep")
            }
            Self::Kind(DiagnosisKind::HighPressure)
                if run.ranks.iter().all(|rank| rank.pressure_ratio.is_none()) =>
            {
                let words = "the capacity is not known, so pressure cannot be judged";
                Statement::new(Claim::GateNoCapacity, words)
            }
            Self::Any | Self::Rising | Self::Kind(_) => return None,
        })
    }
}

fn no_steps() -> Statement {
    Statement::new(Claim::GateNoSteps, "no train step was counted")
}

/// Returns an issue in a sentence.
fn sentence(issue: &Issue) -> Sentence {
    let ranks = match issue.ranks.as_slice() {
        [] => String::new(),
        [rank] => format!(" on rank {rank}"),
        ranks => format!(" on {} ranks", ranks.len()),
    };
    let (status, severity) = (&issue.status, issue.severity.in_words());
    let named = Statement::new(Claim::GateFinding, format!("{status} ({severity}){ranks}"));
    let (told, _) =
        Sentence::read_with_advice(&issue.summary, &issue.action, &issue.statements);
    Sentence::from(named).then(": ", told)
}

/// Judges the peak of the worst rank. `from` names the origin of the limit.
fn judge_peak(run: &Summary, limit: f64, from: &str) -> Judged {
    let peaks = || run.ranks.iter().map(|rank| (rank.rank, peak_of(rank)));
    let known = peaks().filter_map(|(rank, peak)| Some((rank, peak?)));
    let worst = known.reduce(|a, b| if b.1.bytes > a.1.bytes { b } else { a });
    match worst {
        Some((rank, peak)) if peak.bytes > limit => {
            let words = over(rank, peak, limit) + from;
            Judged::Failed(Statement::new(Claim::GatePeak, words).of(peak.bytes).into())
        }
        _ if run.ranks.is_empty() => Judged::Unknown(no_steps()),
        _ => match peaks().find(|(_, peak)| peak.is_none()) {
            Some((rank, _)) => {
                let words = format!("the peak of reserved memory of rank {rank} is not known");
                Judged::Unknown(Statement::new(Claim::GateNoPeak, words))
            }
            None => Judged::Passed,
        },
    }
}

fn over(rank: Rank, peak: Peak, limit: f64) -> String {
    let (mut peak_shown, mut limit_shown) = (bytes(peak.bytes), bytes(limit));
    if peak_shown == limit_shown {
        peak_shown = format!("{:.0} bytes", peak.bytes);
        limit_shown = format!("{limit:.0} bytes");
    }
    let kind = peak.kind.in_words();
    format!("the peak of {kind} of rank {rank} is {peak_shown}; the limit is {limit_shown}")
}

/// Returns the most that the allocator of a rank held; of a rank on the host, the most that was
/// resident.
fn peak_of(rank: &RankSummary) -> Option<Peak> {
    let most = |figures: [&Option<FigureSummary>; 2]| {
        let known = figures.into_iter().flatten().map(|figure| float(figure.max_bytes));
        known.reduce(f64::max)
    };
    let reserved = most([&rank.peak_reserved, &rank.reserved]);
    if rank.is_host() {
        let bytes = reserved.or_else(|| most([&rank.peak_allocated, &rank.allocated]))?;
        return Some(Peak { bytes, kind: PeakKind::Resident });
    }
    Some(Peak { bytes: reserved?, kind: PeakKind::Reserved })
}

/// Returns that a baseline is of another kind of memory than a run, if it is.
fn other_kind(baseline: PeakKind, run: &Summary) -> Option<String> {
    let kinds = run.ranks.iter().filter_map(peak_of).map(|peak| peak.kind);
    let kinds: Vec<PeakKind> = kinds.collect();
    let own = kinds.first().filter(|_| !kinds.contains(&baseline))?.in_words();
    let baseline = baseline.in_words();
    Some(format!("the baseline has a peak of {baseline}, this run of {own}"))
}

/// Returns that a baseline is of another number of ranks, if it is.
fn other_size(baseline: Option<u64>, run: Option<u64>) -> Option<String> {
    let (baseline, run) = baseline.zip(run)?;
    (baseline != run)
        .then(|| format!("the baseline has a world size of {baseline}, this run of {run}"))
}

impl Baseline {
    fn of(summary: &Summary, world_size: Option<u64>) -> Result<Self, String> {
        let own = summary.coverage.world_size();
        if let Some(why) = other_size(own, world_size) {
            return Err(why);
        }
        let peaks = summary.ranks.iter().filter_map(peak_of);
        let peak = peaks.reduce(|a, b| if b.bytes > a.bytes { b } else { a });
        let peak = peak.ok_or("it has no peak of reserved memory")?;
        Ok(Self { peak, world_size: own })
    }
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "at most 2^53")]
fn float(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use crate::gate::{FailOn, percent, verdict};

    #[test]
    fn percents_are_those_that_were_given() {
        for given in [0.0, 5.0, 7.0, 12.5, 14.0, 29.0, 57.0, 0.1, 1000.0] {
            assert_eq!(percent(given / 100.0).to_string(), given.to_string());
        }
    }

    #[test]
    fn severity_is_critical_unless_it_is_given() {
        assert_eq!(verdict("creep"), verdict("creep:critical"));
        assert_ne!(verdict("creep"), verdict("creep:warning"));
    }

    #[test]
    fn options_are_lists_of_conditions() {
        for text in [
            "creep,pressure:warning,unwatched-ok",
            "rising",
            "peak:20GiB",
            "peak:1.5 GB,any",
            "peak:+5%:baseline/final_summary.json",
            "peak:+0%:a:b",
        ] {
            assert!(FailOn::parse(text).is_ok(), "{text}");
        }
        for text in [
            "",
            "creep:",
            "creep:info",
            "rising:warning",
            "memory",
            "any:warning:",
            "creep,",
            "peak",
            "peak:",
            "peak:0",
            "peak:20",
            "peak:20000000000",
            "peak:lots",
            "peak:+5%",
            "peak:+5%:",
            "peak:+x%:file",
            "peak:-5%:file",
            "unwatched-ok:warning",
        ] {
            assert!(FailOn::parse(text).is_err(), "{text}");
        }
    }
}

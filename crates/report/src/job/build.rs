//! Makes a job of the answers of an engine.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use crate::job::answer::{Answer, Labels, Series};
use crate::job::launches::{Chosen, JobLaunch};
use crate::job::model::{
    Job, JobEnd, JobFinding, JobGrowth, JobHolder, JobLine, JobRank, JobSample, JobSlope,
};
use crate::job::text::{advice, nothing_wrong, sentence};
use crate::policy::IssueSeverity;
use crate::summary::build::unseen;
use crate::summary::model::{Issue, IssueEvidence, IssueKind};
use stepmem_detect::Signal;
use stepmem_engine::metrics::Figure;
use stepmem_engine::{DiagnosisKind, Severity};
use stepmem_types::end::EndOutcome;
use stepmem_types::ids::{GpuUuid, Rank, Run};
use stepmem_types::step::StepUnit;

/// A finding whose last scrape is so much earlier than its rank's no longer held then.
const LATER_SECONDS_MIN: f64 = 1.0;

/// The clocks of a rank and of its exporter differ by no more than so many seconds, as a rule.
const BEFORE_END: f64 = 10.0;

/// The answers to the queries of a launch. A job may have as many ranks as an answer has series,
/// so that of each series only the last value is kept, and of equal labels one copy.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    by_figure: BTreeMap<Figure, Answer>,
    labels: HashSet<Rc<Labels>>,
}

impl Answers {
    /// Adds the answer to the query for a figure.
    pub fn add(&mut self, figure: Figure, mut answer: Answer) {
        for series in &mut answer.series {
            series.shrink(&mut self.labels);
        }
        self.by_figure.insert(figure, answer);
    }

    fn series(&self, figure: Figure) -> &[Series] {
        self.by_figure.get(&figure).map_or(&[], |answer| answer.series.as_slice())
    }

    /// Returns the value of a series of the whole run.
    fn of_run(&self, figure: Figure) -> Option<f64> {
        self.series(figure).iter().find_map(Series::last)
    }

    /// Returns the series of each rank, of its own pod and device where they are labels.
    fn by_rank(&self, figure: Figure, own: &BTreeMap<Rank, Identity>) -> ByRank<'_> {
        let mut found = ByRank::new();
        for series in self.series(figure) {
            let Some(rank) = rank_of(series) else { continue };
            let is_own = own.get(&rank).is_some_and(|identity| identity.has(series));
            if is_own {
                found.entry(rank).or_default().push(series);
            }
        }
        found
    }

    fn warnings(&self) -> Vec<String> {
        let mut all: Vec<String> = self
            .by_figure
            .values()
            .flat_map(|answer| answer.warnings.iter().cloned())
            .collect();
        all.sort();
        all.dedup();
        all
    }
}

type ByRank<'a> = BTreeMap<Rank, Vec<&'a Series>>;

/// The description of a rank that was scraped last.
struct Identity {
    pod: Option<String>,
    device: Option<String>,
    local_rank: Option<Rank>,
    node_rank: Option<Rank>,
    world_size: Option<u64>,
    attempt: Option<u64>,
    unit: StepUnit,
    last_scrape: f64,
}

impl Identity {
    fn of(series: &Series) -> Option<Self> {
        Some(Self {
            pod: text(series, "pod"),
            device: text(series, "uuid"),
            local_rank: number(series, "local_rank").and_then(|rank| Rank::new(rank).ok()),
            node_rank: number(series, "node_rank").and_then(|rank| Rank::new(rank).ok()),
            world_size: number(series, "world_size"),
            attempt: number(series, "attempt"),
            unit: series.label("unit").and_then(StepUnit::from_label).unwrap_or_default(),
            last_scrape: series.last()?,
        })
    }

    /// Returns whether a series is of its pod and device, where it has these labels.
    fn has(&self, series: &Series) -> bool {
        let is_same = |label, own: &Option<String>| {
            series.label(label).is_none_or(|of| own.as_deref() == Some(of))
        };
        is_same("pod", &self.pod) && is_same("uuid", &self.device)
    }
}

fn rank_of(series: &Series) -> Option<Rank> {
    Rank::new(number(series, "rank")?).ok()
}

fn text(series: &Series, label: &str) -> Option<String> {
    series.label(label).map(str::to_owned)
}

fn number(series: &Series, label: &str) -> Option<u64> {
    series.label(label)?.parse().ok()
}

impl Job {
    /// Makes the job of a launch from the answers to its queries.
    pub fn of(run: Run, chosen: Chosen, answers: &Answers) -> Self {
        let Chosen { mut launch, others } = chosen;
        let identities = identities(answers);
        let mut ranks = ranks(answers, &identities, &launch);
        launch.is_over |= !ranks.is_empty() && ranks.iter().all(|rank| rank.end.is_some());
        if launch.is_over {
            let last = ranks.iter().map(|of| of.end.map_or(of.last_scrape, |end| end.time));
            launch.end = last.reduce(f64::max).unwrap_or(launch.end).max(launch.begin);
            for rank in &mut ranks {
                rank.oom_eta_seconds = None;
            }
        }
        let by_rule = answers.of_run(Figure::RanksExpected).and_then(whole);
        let by_ranks = identities.values().filter_map(|identity| identity.world_size).max();
        let ranks_expected = by_ranks.or(by_rule);
        let n_expected = ranks_expected.and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        let n_expected = n_expected.min(Rank::MAX);
        let is_seen = |rank| ranks.binary_search_by_key(&rank, |of| of.rank.get()).is_ok();
        let (ranks_missing, n_ranks_missing) = unseen(n_expected, is_seen);
        let mut issues = issues(&ranks, launch.is_over);
        let neutral = nothing_wrong(&ranks);
        if issues.is_empty() {
            issues.push(neutral.clone());
        }
        Self {
            run,
            diagnosis: issues.first().cloned().unwrap_or(neutral),
            issues,
            ranks_expected,
            ranks_missing,
            n_ranks_missing,
            imbalance_ratio: answers.of_run(Figure::Imbalance).filter(|_| !launch.overlaps),
            ranks,
            warnings: answers.warnings(),
            launch,
            other_launches: others,
        }
    }
}

fn identities(answers: &Answers) -> BTreeMap<Rank, Identity> {
    let mut newest: BTreeMap<Rank, Identity> = BTreeMap::new();
    for series in answers.series(Figure::Identity) {
        let Some((rank, identity)) = rank_of(series).zip(Identity::of(series)) else {
            continue;
        };
        let is_newer = |held: &Identity| held.last_scrape < identity.last_scrape;
        if newest.get(&rank).is_none_or(is_newer) {
            newest.insert(rank, identity);
        }
    }
    newest
}

fn ranks(
    answers: &Answers,
    identities: &BTreeMap<Rank, Identity>,
    launch: &JobLaunch,
) -> Vec<JobRank> {
    let by_rank = |figure| answers.by_rank(figure, identities);
    let value = |of: &ByRank<'_>, rank: Rank| of.get(&rank)?.first()?.last();
    let [step, allocated, reserved, peak, push, ended, eta] = [
        Figure::Step,
        Figure::Allocated,
        Figure::Reserved,
        Figure::Peak,
        Figure::LastPush,
        Figure::Ended,
        Figure::OomEta,
    ]
    .map(by_rank);
    let growths = Growths::of(answers, identities);
    let findings = Findings::of(answers, identities);
    let rank = |(rank, identity): (&Rank, &Identity)| {
        let rank = *rank;
        // What rules record of a run is of both launches.
        let recorded = |of: &ByRank<'_>| value(of, rank).filter(|_| !launch.overlaps);
        let findings = findings.of_rank(rank, identity, &growths);
        // A rank that pushed after an end began again.
        let last_push = recorded(&push);
        let end = newest(&ended, rank).and_then(end_of);
        let end = end.filter(|end| last_push.is_none_or(|push| push <= end.time + BEFORE_END));
        let is_ending = findings.iter().any(|of| of.until.is_none()) && end.is_none();
        JobRank {
            rank,
            pod: identity.pod.clone(),
            device: identity.device.as_deref().and_then(|uuid| GpuUuid::new(uuid).ok()),
            local_rank: identity.local_rank,
            node_rank: identity.node_rank,
            attempt: identity.attempt,
            unit: identity.unit,
            last_scrape: identity.last_scrape,
            last_push,
            peak_allocated_bytes: recorded(&peak),
            slope: growths.slope(rank, Signal::Allocated.as_label()),
            end,
            oom_eta_seconds: recorded(&eta).filter(|_| is_ending),
            sampled: JobSample {
                step: value(&step, rank).and_then(whole),
                allocated_bytes: value(&allocated, rank),
                reserved_bytes: value(&reserved, rank),
            },
            findings,
        }
    };
    identities.iter().map(rank).collect()
}

/// The series about growth.
struct Growths<'a> {
    /// The series by signal: the slope, its ends and the slope in time, growth, onset,
    /// confidence.
    by_signal: [ByRank<'a>; 7],
    site: ByRank<'a>,
    share: ByRank<'a>,
    holder: ByRank<'a>,
}

impl<'a> Growths<'a> {
    fn of(answers: &'a Answers, identities: &BTreeMap<Rank, Identity>) -> Self {
        let by_rank = |figure| answers.by_rank(figure, identities);
        Self {
            by_signal: [
                Figure::Slope,
                Figure::SlopeLower,
                Figure::SlopeUpper,
                Figure::SlopePerSecond,
                Figure::Growth,
                Figure::OnsetStep,
                Figure::Confidence,
            ]
            .map(by_rank),
            site: by_rank(Figure::Site),
            share: by_rank(Figure::SiteShare),
            holder: by_rank(Figure::Holder),
        }
    }

    /// Returns slope, lower, upper, slope in time, growth, onset and confidence of a signal.
    fn figures(&self, rank: Rank, signal: &str) -> [Option<f64>; 7] {
        let is_of = |series: &&&Series| series.label("signal") == Some(signal);
        self.by_signal.each_ref().map(|of| of.get(&rank)?.iter().find(is_of)?.last())
    }

    fn slope(&self, rank: Rank, signal: &str) -> Option<JobSlope> {
        let [per_step, lower, upper, per_second, ..] = self.figures(rank, signal);
        per_step.or(per_second)?;
        Some(JobSlope {
            bytes_per_step: per_step,
            lower_bytes_per_step: lower,
            upper_bytes_per_step: upper,
            bytes_per_second: per_second,
        })
    }

    fn growth(&self, rank: Rank, kind: DiagnosisKind) -> Option<JobGrowth> {
        let own = kind.about().signal?;
        // Child processes and `/dev/shm` are judged as host memory is.
        let beside = [Signal::Host, Signal::Children, Signal::Shm];
        let is_growing = |of: &Signal| {
            let [.., growth, _, _] = self.figures(rank, of.as_label());
            growth.is_some()
        };
        let of_host = || beside.into_iter().find(is_growing);
        let signal = if own == Signal::Host { of_host().unwrap_or(own) } else { own };
        let has_cause = matches!(signal, Signal::Allocated | Signal::Host);
        let signal = signal.as_label();
        let [.., growth_bytes, onset, confidence_ratio] = self.figures(rank, signal);
        let cause = |of| newest(of, rank).filter(|_| has_cause);
        let share = self.share.get(&rank).and_then(|of| of.first()?.last());
        Some(JobGrowth {
            signal,
            slope: self.slope(rank, signal).unwrap_or_default(),
            growth_bytes,
            onset_step: onset.and_then(whole),
            confidence_ratio,
            line: cause(&self.site).map(line),
            line_share_ratio: share.filter(|_| has_cause),
            holder: cause(&self.holder).and_then(|series| {
                let at = line_of(series);
                let name = text(series, "holder")?;
                Some(JobHolder { name, kind: text(series, "kind"), at })
            }),
        })
    }
}

fn end_of(series: &Series) -> Option<JobEnd> {
    let all = [EndOutcome::Completed, EndOutcome::Failed, EndOutcome::Oom];
    let label = series.label(EndOutcome::KEY)?;
    let outcome = all.into_iter().find(|outcome| outcome.as_label() == label)?;
    Some(JobEnd { time: series.last()?, outcome })
}

/// Returns the series of a rank that was scraped last.
fn newest<'a>(of: &ByRank<'a>, rank: Rank) -> Option<&'a Series> {
    let time = |series: &&&Series| series.last().unwrap_or(f64::NEG_INFINITY);
    of.get(&rank)?.iter().max_by(|a, b| time(a).total_cmp(&time(b))).copied()
}

fn line(series: &Series) -> JobLine {
    JobLine {
        file: text(series, "file"),
        line: number(series, "line"),
        function: text(series, "function"),
    }
}

fn line_of(series: &Series) -> Option<JobLine> {
    Some(line(series)).filter(|line| line.file.is_some() || line.function.is_some())
}

/// The series of findings.
struct Findings<'a> {
    severity: ByRank<'a>,
    held_until: ByRank<'a>,
    since: ByRank<'a>,
}

impl<'a> Findings<'a> {
    fn of(answers: &'a Answers, identities: &BTreeMap<Rank, Identity>) -> Self {
        let by_rank = |figure| answers.by_rank(figure, identities);
        Self {
            severity: by_rank(Figure::Severity),
            held_until: by_rank(Figure::HeldUntil),
            since: by_rank(Figure::Since),
        }
    }

    /// Returns the findings of a rank, the worst first.
    fn of_rank(
        &self,
        rank: Rank,
        identity: &Identity,
        growths: &Growths<'_>,
    ) -> Vec<JobFinding> {
        let of_kind = |of: &ByRank<'_>, label: &str| {
            let mut of_rank = of.get(&rank)?.iter();
            of_rank.find(|series| series.label("kind") == Some(label))?.last()
        };
        let finding = |series: &&Series| {
            let label = series.label("kind")?;
            let kind = DiagnosisKind::from_label(label)?;
            let until = of_kind(&self.held_until, label);
            let is_past = |until: &f64| until + LATER_SECONDS_MIN < identity.last_scrape;
            let until = until.filter(is_past);
            Some(JobFinding {
                kind,
                status: kind.about().title.into(),
                severity: severity(series.last()?)?,
                since: of_kind(&self.since, label),
                growth: growths.growth(rank, kind).filter(|_| until.is_none()),
                until,
            })
        };
        let all = self.severity.get(&rank).into_iter().flatten();
        let mut all: Vec<JobFinding> = all.filter_map(finding).collect();
        all.sort_by_key(|finding| (Reverse(finding.severity), place(finding.kind)));
        all
    }
}

/// Returns the place of a diagnosis among all, the worst first.
fn place(kind: DiagnosisKind) -> Option<usize> {
    DiagnosisKind::ALL.iter().position(|of| *of == kind)
}

fn severity(level: f64) -> Option<Severity> {
    let all = [Severity::Info, Severity::Warning, Severity::Critical];
    all.into_iter().find(|severity| (f64::from(severity.level()) - level).abs() < 0.5)
}

/// Returns the findings that hold as issues: one a kind, the worst first.
fn issues(ranks: &[JobRank], is_over: bool) -> Vec<Issue> {
    let issue = |kind: &DiagnosisKind| {
        let holding = |rank| {
            let rank: &JobRank = rank;
            Some((rank, rank.holding().find(|finding| finding.kind == *kind)?))
        };
        let mut found: Vec<(&JobRank, &JobFinding)> =
            ranks.iter().filter_map(holding).collect();
        found.sort_by(|a, b| {
            let by_severity = b.1.severity.cmp(&a.1.severity);
            by_severity.then(grown(b.1).total_cmp(&grown(a.1)))
        });
        let (worst, finding) = *found.first()?;
        let told = sentence(worst, finding, is_over);
        let advice = advice(worst, finding);
        Some(Issue {
            kind: IssueKind::Diagnosis(*kind),
            status: kind.about().title.into(),
            severity: match finding.severity {
                Severity::Info => IssueSeverity::Info,
                Severity::Warning => IssueSeverity::Warn,
                Severity::Critical => IssueSeverity::Crit,
            },
            summary: told.words().to_owned(),
            action: advice.words().to_owned().into(),
            metric: finding.growth.as_ref().map_or("diagnosis", |of| of.signal).into(),
            phase: Some("memory".into()),
            score: finding.growth.as_ref().and_then(|of| of.growth_bytes),
            skew_pct: None,
            ranks: found.iter().map(|(rank, _)| rank.rank).collect(),
            evidence: IssueEvidence::Other(
                serde_json::to_value(&finding.growth).unwrap_or_default(),
            ),
            statements: told.then(". ", advice).into_statements(),
        })
    };
    let mut issues: Vec<Issue> = DiagnosisKind::ALL.iter().filter_map(issue).collect();
    // Stable: of one severity, in the order of the diagnoses.
    issues.sort_by_key(|issue| Reverse(issue.severity));
    issues
}

fn grown(finding: &JobFinding) -> f64 {
    let growth = finding.growth.as_ref().and_then(|growth| growth.growth_bytes);
    growth.unwrap_or(f64::NEG_INFINITY)
}

/// Returns a whole number of 0 to 2^53.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "in range"
)]
fn whole(value: f64) -> Option<u64> {
    (0.0..=9_007_199_254_740_992.0).contains(&value).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use stepmem_engine::metrics::Figure;
    use stepmem_types::claims::{Claim, Statement};
    use stepmem_types::end::EndOutcome;
    use stepmem_types::ids::Run;

    use crate::compare::from_job;
    use crate::job::answer::Answer;
    use crate::job::build::Answers;
    use crate::job::launches::{Chosen, JobLaunch};
    use crate::job::model::Job;
    use crate::job::text::{self, Shown};

    /// Returns the job of these series: figure, labels, value.
    fn job(launch: JobLaunch, series: &[(Figure, Value, f64)]) -> Job {
        let mut answers = Answers::default();
        for (figure, ..) in series {
            let own = series.iter().filter(|(of, ..)| of == figure);
            let result: Vec<Value> = own
                .map(|(_, labels, value)| json!({"metric": labels, "value": [0, value.to_string()]}))
                .collect();
            let answer = json!({"status": "success", "data": {"result": result}});
            answers.add(*figure, Answer::decode(answer.to_string().as_bytes()).unwrap());
        }
        Job::of(Run::new("r").unwrap(), Chosen { launch, others: Vec::new() }, &answers)
    }

    fn creep() -> Vec<(Figure, Value, f64)> {
        let own = json!({"rank": "1", "pod": "b", "uuid": "GPU-1", "world_size": "3", "attempt": "2"});
        let finding = |kind: &str| json!({"rank": "1", "pod": "b", "kind": kind});
        let grows = json!({"rank": "1", "pod": "b", "uuid": "GPU-1", "signal": "allocated"});
        let line = json!({"rank": "1", "pod": "b", "file": "/x/job/t.py", "line": "7", "function": "f"});
        vec![
            (Figure::Identity, json!({"rank": "0", "pod": "a", "uuid": "GPU-0"}), 1000.0),
            (Figure::Identity, own, 1000.0),
            (Figure::Step, json!({"rank": "1", "pod": "b"}), 500.0),
            (Figure::Allocated, json!({"rank": "1", "pod": "elsewhere"}), 7.0),
            (Figure::Peak, json!({"rank": "1"}), 2048.0),
            (Figure::Severity, finding("CREEP_CONFIRMED"), 3.0),
            (Figure::HeldUntil, finding("CREEP_CONFIRMED"), 1000.0),
            (Figure::Severity, finding("HIGH_PRESSURE"), 2.0),
            (Figure::HeldUntil, finding("HIGH_PRESSURE"), 900.0),
            (Figure::Slope, grows.clone(), 1024.0),
            (Figure::Growth, grows.clone(), 1_048_576.0),
            (Figure::OnsetStep, grows, 192.0),
            (Figure::Site, line, 1000.0),
        ]
    }

    #[test]
    fn a_job_is_judged_by_the_findings_that_held_at_its_end() {
        let job = job(JobLaunch::default(), &creep());
        assert_eq!(job.diagnosis.status, "MEMORY CREEP");
        let expected = "live memory grows by 1.00 KiB/step, 1.00 MiB since step 192; allocated at job/t.py:7 in f";
        assert_eq!(job.diagnosis.summary, expected);
        assert_eq!((job.ranks_expected, job.ranks_missing.as_slice()), (Some(3), &[2][..]));
        let [first, second] = &job.ranks[..] else { panic!("{job:?}") };
        assert!(first.findings.is_empty() && first.peak_allocated_bytes.is_none());
        assert_eq!((second.attempt, second.sampled.step), (Some(2), Some(500)));
        // Another pod's figures are of another launch.
        assert_eq!(second.sampled.allocated_bytes, None);
        let past: Vec<_> =
            second.findings.iter().map(|of| (of.kind.label(), of.until)).collect();
        assert_eq!(past, [("CREEP_CONFIRMED", None), ("HIGH_PRESSURE", Some(900.0))]);
        let card = text::card(&job, Shown::default());
        assert!(card.contains("No longer held at the end: HIGH PRESSURE on rank 1"), "{card}");
        let line = from_job::figures(&job).leaking_line;
        assert_eq!(line.map(|line| line.at).as_deref(), Some("job/t.py:7 in f"));
    }

    #[test]
    fn a_server_is_told_in_the_unit_that_it_counts() {
        let counting = |unit: &str| {
            let mut series = creep();
            for (figure, labels, _) in &mut series {
                if *figure == Figure::Identity {
                    labels["unit"] = json!(unit);
                }
            }
            job(JobLaunch::default(), &series)
        };
        let server = counting("calls");
        let expected = "live memory grows by 0.98 MiB per 1,000 calls, 1.00 MiB since call 192";
        assert!(server.diagnosis.summary.starts_with(expected), "{}", server.diagnosis.summary);
        let card = text::card(&server, Shown::default());
        assert!(
            card.contains(", to call ~500;") && card.contains("SLOPE/1,000 CALLS"),
            "{card}"
        );
        let advice = "Look at what the program keeps from call to call: ";
        assert!(server.diagnosis.action.starts_with(advice), "{card}");
        assert!(!card.to_lowercase().contains("step"), "{card}");
        assert!(serde_json::to_string(&server).unwrap().contains(r#""unit":"calls""#));

        let graphs = counting("replays");
        assert!(graphs.diagnosis.summary.contains("/replay, "), "{}", graphs.diagnosis.summary);
        // The advice of a diagnosis is the same for steps and replays.
        let told =
            text::card(&graphs, Shown::default()).replace("tensors kept across steps", "");
        assert!(!told.to_lowercase().contains("step"), "{told}");
        let unjudged = creep()
            .into_iter()
            .take(1)
            .map(|(figure, _, value)| (figure, json!({"rank": "0", "unit": "calls"}), value));
        let unjudged = job(JobLaunch::default(), &unjudged.collect::<Vec<_>>());
        assert_eq!(unjudged.diagnosis.status, "TOO FEW CALLS");
    }

    #[test]
    fn a_server_is_told_by_the_hour_too_where_that_is_known() {
        let mut series = creep();
        let grows = json!({"rank": "1", "pod": "b", "uuid": "GPU-1", "signal": "allocated"});
        series.push((Figure::SlopePerSecond, grows, 2_048_000.0));
        series[1].1["unit"] = json!("calls");
        let told = job(JobLaunch::default(), &series).diagnosis.summary;
        let expected = "live memory grows by 0.98 MiB per 1,000 calls (6.87 GiB/h), 1.00 MiB since call 192";
        assert!(told.starts_with(expected), "{told}");
    }

    #[test]
    fn growth_beside_the_process_is_named() {
        let of = |signal: &str| {
            let mut series = creep();
            for (figure, labels, _) in &mut series {
                if labels.get("signal").is_some() {
                    labels["signal"] = json!(signal);
                }
                if labels["kind"] == json!("CREEP_CONFIRMED") {
                    labels["kind"] = json!("HOST_CREEP_CONFIRMED");
                }
                assert_ne!(*figure, Figure::Holder);
            }
            let found = job(JobLaunch::default(), &series).diagnosis;
            let claims = found.statements.iter().map(Statement::claim).collect::<Vec<_>>();
            (found.summary, claims)
        };
        let (told, claims) = of("shm");
        let expected = "what is in /dev/shm grows by 1.00 KiB/step, 1.00 MiB since step 192";
        assert_eq!(told, expected);
        assert!(claims.contains(&Claim::AdviceShm), "{claims:?}");
        let (told, claims) = of("children");
        let expected = "the memory of child processes grows by 1.00 KiB/step, ";
        assert!(told.starts_with(expected), "{told}");
        assert!(claims.contains(&Claim::Advice), "{claims:?}");
        assert!(of("host").0.starts_with("host memory grows by 1.00 KiB/step, "));
    }

    #[test]
    fn a_job_that_ended_is_told_in_the_past_tense_and_by_its_own_time() {
        let end = |rank: &str, outcome: &str| json!({"rank": rank, (EndOutcome::KEY): outcome});
        let mut series = creep();
        series.extend([
            (Figure::OomEta, json!({"rank": "1", "pod": "b"}), 10.0),
            (
                Figure::Holder,
                json!({"rank": "1", "pod": "b", "holder": "`Trainer.history`", "kind": "list"}),
                1000.0,
            ),
            (Figure::Ended, end("0", "completed"), 940.0),
            (Figure::Ended, end("1", "completed"), 950.0),
        ]);
        let launch = JobLaunch { begin: 350.0, end: 1500.0, ..JobLaunch::default() };
        let done = job(launch.clone(), &series);
        assert_eq!((done.launch.is_over, done.launch.end), (true, 950.0));
        assert!(done.ranks.iter().all(|rank| rank.oom_eta_seconds.is_none()));
        let summary = &done.diagnosis.summary;
        assert!(
            summary.starts_with("live memory grew by 1.00 KiB/step, 1.00 MiB"),
            "{summary}"
        );
        assert!(summary.ends_with("; held by `Trainer.history` (list)"), "{summary}");
        let card = text::card(&done, Shown::default());
        assert!(card.contains("(~10 min 0 s), completed."), "{card}");
        for wrong in ["goes on", "out of memory in", "grows", "``"] {
            assert!(!card.contains(wrong), "{wrong}: {card}");
        }

        series.retain(|(figure, labels, _)| *figure != Figure::Ended || labels["rank"] != "1");
        series.push((Figure::Ended, end("1", "oom"), 950.0));
        series.push((Figure::Severity, json!({"rank": "1", "kind": "OUT_OF_MEMORY"}), 3.0));
        series.push((Figure::HeldUntil, json!({"rank": "1", "kind": "OUT_OF_MEMORY"}), 1000.0));
        let died = job(launch.clone(), &series);
        let issue = died.issues.iter().find(|issue| issue.status == "OUT OF MEMORY").unwrap();
        assert!(issue.summary.starts_with("it ran out of memory and died at "), "{issue:?}");
        assert!(issue.summary.ends_with("after step ~500"), "{issue:?}");
        let card = text::card(&died, Shown::default());
        assert!(card.contains(", of which 1 completed, 1 died out of memory."), "{card}");

        // It pushed after that end: another process of the rank.
        series.push((Figure::LastPush, json!({"rank": "1"}), 1400.0));
        let again = job(launch, &series);
        assert_eq!((again.launch.is_over, again.ranks[1].end), (false, None));
    }

    #[test]
    fn what_rules_recorded_of_two_launches_is_of_neither() {
        let launch = JobLaunch { overlaps: true, ..JobLaunch::default() };
        let job = job(launch, &creep());
        assert!(job.ranks.iter().all(|rank| rank.peak_allocated_bytes.is_none()));
    }
}

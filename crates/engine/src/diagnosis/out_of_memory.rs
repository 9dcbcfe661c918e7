//! OUT OF MEMORY: a rank ran out of memory, and ended by it or went on.

use serde::{Deserialize, Serialize};

use crate::diagnosis::shared::figures::{Figures, Score};
use crate::diagnosis::shared::input::{DiagnosisInput, Subject};
use crate::kind::{About, DiagnosisKind, Place, Severity};
use crate::ranks::ended::OomEvent;
use crate::ranks::limits::LimitOrigin;
use crate::ranks::view::{RankView, SilentKill};
use stepmem_types::claims::{Claim, Sentence, Statement};
use stepmem_types::end::EndOutcome;
use stepmem_types::format::units::{bytes, grouped, percent};
use stepmem_types::site::OomSite;
use stepmem_types::step::StepUnit;
use stepmem_types::units::{Bytes, Count};

/// An allocation failed for lack of memory.
pub(crate) const ABOUT: About = About {
    title: "OUT OF MEMORY",
    mark: 'O',
    help: "The rank ended with an out-of-memory error, or the kernel killed it for lack of memory (critical; a warning where that is \
           only likely, as it fell silent while its container used 95 % of its limit or more); or it caught an out-of-memory error (a warning, for ten minutes if it continues, for example with half the batch; critical if it \
           ended with another error before the next step).",
    advice: "Look at the step's input shapes and at what grew before; a memory snapshot of the error names the lines. \
             Reduce batch or sequence length, or checkpoint activations.",
    signal: None,
    stage: None,
    family: DiagnosisKind::OutOfMemory,
    place: Place::Own,
};

/// The known facts of the error.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OutOfMemoryEvidence {
    /// Number of such errors in this incarnation.
    pub ooms: u64,
    /// Set when the incarnation ended with it.
    pub is_fatal: bool,
    /// The step that it was in. Of a process that went on, the step that it completed next; of
    /// one that ended without another step, its last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_step: Option<u64>,
    /// Set when the kernel killed the process.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_kill: bool,
    /// The signs of a kill that no other process reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub likely_kill: Option<LikelyKill>,
    /// Set when the process completed no step after it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_last: bool,
    /// End of the process since, if it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<EndOutcome>,
    /// Bytes that the failed allocation requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_bytes: Option<Bytes>,
    /// The limit of the process's own that it reached, where the device had more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<OwnLimit>,
    /// The rank's headroom by its figures before the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headroom_bytes: Option<f64>,
    /// Grown before, while live memory was rising or creeping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_bytes: Option<f64>,
    /// The result of a memory snapshot of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<Box<OomSite>>,
    /// The unit that the rank counts, where that is not steps.
    #[serde(default, skip_serializing_if = "StepUnit::is_steps")]
    pub unit: StepUnit,
}

/// A limit of a process's own.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OwnLimit {
    pub origin: LimitOrigin,
    pub bytes: Bytes,
}

/// The signs that the kernel killed a process that vanished from its container.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LikelyKill {
    /// The share of its limit that the container used when the rank last read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_used_ratio: Option<f64>,
    /// Processes of the container that the kernel killed then: fewer than vanished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_kills: Option<u64>,
}

/// Judges a rank that ran out of memory.
pub(crate) fn judge(
    _: &DiagnosisInput<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, OutOfMemoryEvidence)> {
    let OomEvent {
        step,
        requested,
        limit,
        headroom_bytes,
        growth_bytes,
        n_events,
        is_fatal,
        is_kill,
        is_last,
        ending,
        ..
    } = match subject.rank()?.oom {
        Some(event) => *event,
        None => return killed(subject.rank()?),
    };
    let site = subject.rank()?.site.oom.cloned().map(Box::new);
    let has_failed = is_last && ending != Some(EndOutcome::Completed);
    let severity = if is_fatal || has_failed { Severity::Critical } else { Severity::Warning };
    let evidence = OutOfMemoryEvidence {
        ooms: n_events,
        is_fatal,
        // None was completed before the first.
        oom_step: step.filter(|step| *step > 0),
        is_kill,
        likely_kill: None,
        is_last,
        ending,
        requested_bytes: requested,
        limit: limit.map(|(origin, bytes)| OwnLimit { origin, bytes }),
        headroom_bytes,
        growth_bytes,
        site,
        unit: subject.unit(),
    };
    Some((severity, evidence))
}

/// Judges a rank that vanished from its container: a warning, unless another process of it
/// reported the kill.
fn killed(rank: &RankView<'_>) -> Option<(Severity, OutOfMemoryEvidence)> {
    let SilentKill { is_seen, n_kills, used_ratio } = rank.kill?;
    let likely = LikelyKill {
        container_used_ratio: used_ratio,
        container_kills: Some(n_kills).filter(|n| *n > 0),
    };
    let evidence = OutOfMemoryEvidence {
        ooms: 1,
        is_fatal: true,
        oom_step: rank.last_train.map(|last| last.step.get()),
        is_kill: true,
        likely_kill: Some(likely).filter(|_| !is_seen),
        is_last: false,
        ending: None,
        requested_bytes: None,
        limit: None,
        headroom_bytes: None,
        growth_bytes: None,
        site: None,
        unit: rank.identity.unit,
    };
    Some((if is_seen { Severity::Critical } else { Severity::Warning }, evidence))
}

/// The first thing to check after a kill by the kernel, which is for lack of the host's memory.
const KILL_ADVICE: &str = "Look at host memory: DataLoader workers, pinned buffers, caches, and the limit of the job's control group; the \
                           kernel's log names the process. Use fewer workers or a smaller prefetch, or raise the limit.";

/// The advice where the allocation would have fit but for growth.
const GROWN_ADVICE: &str = "Without that growth it would have fit: look first at the line and the object that MEMORY CREEP or MEMORY RISING \
                            names. A smaller batch only delays the next error.";

/// The advice for a program that takes no steps.
const SERVER_ADVICE: &str = "Look at the inputs of the last calls and at what grew before; a memory snapshot of the error names the lines. Bound the \
                             length of inputs and the number of calls at a time.";

/// The advice where the device had more than the process may take.
const LIMIT_ADVICE: &str = "The process reached its own limit, and its device had more: use a smaller batch or sequence length, or raise the \
                            fraction (torch.cuda.set_per_process_memory_fraction, or per_process_memory_fraction in PYTORCH_ALLOC_CONF).";

impl OutOfMemoryEvidence {
    /// Returns whether the allocation would have fit but for growth.
    fn is_of_growth(&self) -> bool {
        let requested = self.requested_bytes.map_or(0.0, Bytes::as_f64);
        let left = self.headroom_bytes.map_or(0.0, |left| left.max(0.0));
        self.growth_bytes.is_some_and(|growth| requested <= left + growth)
    }

    /// States the error and its consequence.
    fn course(&self) -> Statement {
        let claim = match self {
            Self { likely_kill: Some(_), .. } => Claim::OomLikelyKilled,
            Self { is_kill: true, .. } => Claim::OomKilled,
            Self { is_fatal: true, .. } => Claim::OomEnded,
            Self { is_last: true, .. } => Claim::OomCaught,
            _ => Claim::OomWentOn,
        };
        let step = self.oom_step.and_then(|step| Count::new(step).ok());
        Statement::new(claim, self.course_words()).of(step.map(Count::as_f64))
    }

    fn course_words(&self) -> String {
        let at = |word: &str| {
            let noun = self.unit.noun();
            self.oom_step
                .map_or_else(String::new, |step| format!(" {word} {noun} {}", grouped(step)))
        };
        if let Some(likely) = self.likely_kill {
            let (silent, why) = (at("after"), likely.words());
            return format!(
                "the kernel likely killed its process for lack of memory: it fell silent{silent}{why}"
            );
        }
        if self.is_kill {
            return format!("the kernel killed its process for lack of memory{}", at("after"));
        }
        if self.is_fatal {
            // Of calls not each is read.
            let word = if self.unit.is_calls() { "after" } else { "at" };
            return format!("ended out of memory{}", at(word));
        }
        if self.is_last {
            let end = match self.ending {
                Some(EndOutcome::Failed) => "then ended with an error",
                Some(EndOutcome::Oom) => "then ended out of memory",
                Some(EndOutcome::Completed) | None => match self.unit {
                    StepUnit::Steps => "ended without another step",
                    StepUnit::Calls => "ended without another call",
                    StepUnit::Replays => "ended without another replay",
                },
            };
            let errors = errors(self.ooms);
            return format!("caught {errors}{} and {end}", at("after"));
        }
        let later = match self.ending {
            Some(EndOutcome::Failed) => "; it ended with another error later",
            Some(EndOutcome::Completed | EndOutcome::Oom) | None => "",
        };
        format!("ran out of memory{} and went on ({} so far){later}", at("before"), self.ooms)
    }
}

impl LikelyKill {
    fn words(self) -> String {
        match (self.container_kills, self.container_used_ratio) {
            (Some(1), _) => {
                ", as others did when the kernel killed a process of its container".to_owned()
            }
            (Some(n), _) => {
                format!(", as others did when the kernel killed {n} processes of its container")
            }
            (None, Some(ratio)) => {
                format!(", when its container used {} of its limit", percent(ratio))
            }
            (None, None) => String::new(),
        }
    }
}

fn errors(n: u64) -> String {
    if n == 1 {
        "an out-of-memory error".to_owned()
    } else {
        format!("{n} out-of-memory errors")
    }
}

/// States which line asked for the memory, and which lines held most of it.
fn of_site(site: &OomSite) -> Sentence {
    let requested = site.requested_bytes.as_f64();
    let words = format!("{} requested {}", site.at, bytes(requested));
    let line = Statement::new(Claim::OomLine, words).of(requested);
    let held = site.held.iter();
    let held = held.map(|of| format!("{} by {}", bytes(of.bytes.as_f64()), of.at));
    let held: Vec<String> = held.collect();
    let held = (!held.is_empty()).then(|| {
        let words = format!("while most memory was held: {}", held.join(", "));
        Statement::new(Claim::OomHeld, words)
    });
    Sentence::from(line).then_if(", ", held)
}

impl Figures for OutOfMemoryEvidence {
    fn sentence(&self) -> Sentence {
        let amount = |claim, value: Option<f64>, words: fn(String) -> String| {
            value.map(|value| Statement::new(claim, words(bytes(value))).of(value))
        };
        let limit = self.limit.map(|OwnLimit { origin, bytes: limit }| {
            let (limit, origin) = (limit.as_f64(), origin.words());
            let words = format!("at its own limit of {} {origin}", bytes(limit));
            Statement::new(Claim::OomLimit, words).of(limit)
        });
        let requested = self.requested_bytes.map(Bytes::as_f64);
        let requested =
            amount(Claim::OomRequested, requested, |of| format!("{of} were requested"));
        let headroom = amount(Claim::OomHeadroom, self.headroom_bytes, |of| {
            format!("the last headroom was {of}")
        });
        let growth = amount(Claim::OomGrowth, self.growth_bytes, |of| {
            format!("live memory had grown by {of}")
        });
        Sentence::from(self.course())
            .then_if(", ", limit)
            .then_if("; ", requested)
            .then_if("; ", headroom)
            .then_if("; ", growth)
            .then_if("; ", self.site.as_deref().map(of_site))
    }

    fn advice(&self) -> Option<Statement> {
        let (claim, words) = if self.is_kill {
            (Claim::AdviceKill, KILL_ADVICE)
        } else if self.is_of_growth() {
            (Claim::AdviceGrown, GROWN_ADVICE)
        } else if self.limit.is_some() {
            (Claim::AdviceLimit, LIMIT_ADVICE)
        } else if self.unit.is_calls() {
            (Claim::AdviceCallsOom, SERVER_ADVICE)
        } else {
            return None;
        };
        Some(Statement::new(claim, words))
    }

    fn names_cause(&self) -> bool {
        self.site.is_some()
    }

    fn score(&self) -> Score {
        let value = u32::try_from(self.ooms).unwrap_or(u32::MAX);
        Score { metric: "ooms", value: value.into() }
    }

    #[cfg(test)]
    fn examples() -> Vec<Self> {
        use crate::diagnosis::examples::{bytes, line};
        use stepmem_types::site::LineBytes;
        vec![Self {
            ooms: 2,
            is_fatal: true,
            oom_step: Some(400),
            is_kill: true,
            likely_kill: Some(LikelyKill {
                container_used_ratio: Some(0.97),
                container_kills: Some(1),
            }),
            is_last: true,
            ending: Some(EndOutcome::Failed),
            requested_bytes: Some(bytes(1 << 30)),
            limit: Some(OwnLimit { origin: LimitOrigin::Program, bytes: bytes(11 << 30) }),
            headroom_bytes: Some(-5.0),
            growth_bytes: Some(7.5),
            site: Some(Box::new(OomSite {
                at: line(),
                requested_bytes: bytes(1 << 30),
                held: vec![LineBytes { at: line(), bytes: bytes(3 << 30) }],
            })),
            unit: StepUnit::Calls,
        }]
    }
}

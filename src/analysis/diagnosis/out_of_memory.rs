//! OUT OF MEMORY: a rank ran out of memory, and ended by it or went on.

use serde::{Deserialize, Serialize};

use crate::analysis::diagnosis::kind::{About, Figures, Score, Severity};
use crate::analysis::diagnosis::scene::{Scene, Subject};
use crate::analysis::rank::ended::OomEvent;
use crate::model::site::OomSite;
use crate::model::units::Bytes;
use crate::text::units::bytes;

/// An allocation failed for lack of memory.
pub const ABOUT: About = About {
    label: "OUT_OF_MEMORY",
    title: "OUT OF MEMORY",
    mark: 'O',
    help: "The rank ended with an out-of-memory error (critical), or its count of them rose and its process goes on \
           (a warning for ten minutes), as a trainer does that halves its batch.",
    advice: "Look at the step's input shapes and at what grew before; a memory snapshot of the error names the lines. \
             Reduce batch or sequence length, or checkpoint activations.",
};

/// What is known of the error.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OutOfMemoryEvidence {
    /// How often it happened in this life.
    pub ooms: u64,
    /// Whether the life ended with it.
    pub is_fatal: bool,
    /// The step that it was in; of a process that went on, the step that it completed next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_step: Option<u64>,
    /// How much memory was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_bytes: Option<Bytes>,
    /// What the rank could still take by its figures before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headroom_bytes: Option<f64>,
    /// Grown before, while live memory was rising or creeping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_bytes: Option<f64>,
    /// What a memory snapshot of the error says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<Box<OomSite>>,
}

/// Judges a rank that ran out of memory.
pub fn judge(
    _: &Scene<'_>,
    subject: &Subject<'_, '_>,
) -> Option<(Severity, OutOfMemoryEvidence)> {
    let OomEvent { step, requested, headroom_bytes, growth_bytes, n_events, is_fatal, .. } =
        *subject.rank()?.oom?;
    let site = subject.rank()?.site.oom.cloned().map(Box::new);
    let severity = if is_fatal { Severity::Critical } else { Severity::Warning };
    let evidence = OutOfMemoryEvidence {
        ooms: n_events,
        is_fatal,
        oom_step: step,
        requested_bytes: requested,
        headroom_bytes,
        growth_bytes,
        site,
    };
    Some((severity, evidence))
}

impl Figures for OutOfMemoryEvidence {
    fn sentence(&self) -> String {
        let mut text = match (self.is_fatal, self.oom_step) {
            (true, Some(step)) => format!("ended out of memory at step {step}"),
            (true, None) => "ended out of memory".to_owned(),
            (false, Some(step)) => {
                format!(
                    "ran out of memory before step {step} and went on ({} so far)",
                    self.ooms
                )
            }
            (false, None) => format!("ran out of memory and went on ({} so far)", self.ooms),
        };
        if let Some(requested) = self.requested_bytes {
            text = format!("{text}; {} were asked for", bytes(requested.as_f64()));
        }
        if let Some(headroom) = self.headroom_bytes {
            text = format!("{text}; the last headroom was {}", bytes(headroom));
        }
        if let Some(growth) = self.growth_bytes {
            text = format!("{text}; live memory had grown by {}", bytes(growth));
        }
        if let Some(site) = &self.site {
            text = format!(
                "{text}; {} asked for {}",
                site.at,
                bytes(site.requested_bytes.as_f64())
            );
            let held = site.held.iter();
            let held = held.map(|of| format!("{} by {}", bytes(of.bytes.as_f64()), of.at));
            let held: Vec<String> = held.collect();
            if !held.is_empty() {
                text = format!("{text}, while most was held: {}", held.join(", "));
            }
        }
        text
    }

    fn score(&self) -> Score {
        let value = u32::try_from(self.ooms).unwrap_or(u32::MAX);
        Score { metric: "ooms", value: value.into() }
    }
}

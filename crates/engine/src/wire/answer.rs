//! The JSON responses of the push endpoint.

use serde::Serialize;

use crate::ranks::name_conflicts::{Claim, NameConflict};
use crate::requests::tracker::{RankRequest, RequestKind};
use crate::wire::json::to_vec;
use stepmem_types::ids::{Rank, Run};

/// Allocations and frees that a recording keeps at most.
pub(crate) const ENTRIES_MAX: u32 = 1_000_000;

/// A request to a rank.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Action<'a> {
    Snapshot {
        id: &'a str,
        run: &'a Run,
        rank: Rank,
        steps: u32,
        reason: &'static str,
        entries_max: u32,
    },
    Holders {
        id: &'a str,
        run: &'a Run,
        rank: Rank,
        steps: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        bytes_per_step: Option<f64>,
        is_on_host: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        lines: Option<bool>,
    },
    Malloc {
        run: &'a Run,
        rank: Rank,
    },
    Checkpoint {
        id: &'a str,
        run: &'a Run,
        rank: Rank,
        reason: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        seconds_left: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        steps_left: Option<f64>,
        every_seconds: f64,
    },
}

/// Encodes the response to an accepted push: the number of records, and requests to its ranks.
pub fn encode_accepted(accepted: usize, requests: &[RankRequest]) -> Vec<u8> {
    #[derive(Serialize)]
    struct AcceptedBody<'a> {
        accepted: usize,
        actions: Vec<Action<'a>>,
    }
    let actions = requests.iter().map(|RankRequest { id, rank, steps, kind }| {
        let (run, rank, steps) = (&rank.run, rank.rank, *steps);
        match kind {
            RequestKind::Snapshot { reason } => Action::Snapshot {
                id,
                run,
                rank,
                steps,
                reason: reason.as_label(),
                entries_max: ENTRIES_MAX,
            },
            RequestKind::Holders { bytes_per_step, is_on_host, wants_lines, .. } => {
                let (bytes_per_step, is_on_host) = (*bytes_per_step, *is_on_host);
                let lines = wants_lines.then_some(true);
                Action::Holders { id, run, rank, steps, bytes_per_step, is_on_host, lines }
            }
            RequestKind::Malloc => Action::Malloc { run, rank },
            RequestKind::Checkpoint(due) => Action::Checkpoint {
                id,
                run,
                rank,
                reason: &due.reason,
                seconds_left: due.seconds_left,
                steps_left: due.steps_left,
                every_seconds: due.every.as_secs_f64(),
            },
        }
    });
    to_vec(&AcceptedBody { accepted, actions: actions.collect() })
}

/// Encodes the response to an operator's request for a snapshot or for lines.
pub fn encode_requested(id: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct RequestedBody<'a> {
        accepted: usize,
        id: &'a str,
    }
    to_vec(&RequestedBody { accepted: 1, id })
}

/// Encodes the response to an acknowledgment: whether what it is of is found now.
pub fn encode_acknowledged(found: bool) -> Vec<u8> {
    #[derive(Serialize)]
    struct AcknowledgedBody {
        accepted: usize,
        found: bool,
    }
    to_vec(&AcknowledgedBody { accepted: 1, found })
}

/// Encodes the response to a refused request as problem+json (RFC 9457).
pub fn encode_problem(status: u16, title: &str, detail: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct ProblemJson<'a> {
        status: u16,
        title: &'a str,
        detail: &'a str,
    }
    to_vec(&ProblemJson { status, title, detail })
}

/// Encodes the response to a request that belongs to the page, with the page's address.
pub fn encode_elsewhere(status: u16, title: &str, detail: &str, page: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct ElsewhereJson<'a> {
        status: u16,
        title: &'a str,
        detail: &'a str,
        page: &'a str,
    }
    to_vec(&ElsewhereJson { status, title, detail, page })
}

/// Encodes the response to a push that is in a name conflict: another live process holds the
/// rank. The form is problem+json (RFC 9457).
pub fn encode_name_conflict(title: &str, detail: &str, conflict: &NameConflict) -> Vec<u8> {
    #[derive(Serialize)]
    struct ClaimJson {
        pid: Option<u32>,
        attempt: u64,
        started: f64,
    }
    #[derive(Serialize)]
    struct NameConflictJson<'a> {
        r#type: &'static str,
        title: &'a str,
        status: u16,
        detail: &'a str,
        run: &'a Run,
        rank: Rank,
        holder: ClaimJson,
        yours: ClaimJson,
        #[serde(skip_serializing_if = "Option::is_none")]
        offer: Option<&'a Run>,
    }
    let claim = |claim: Claim| ClaimJson {
        pid: claim.pid,
        attempt: claim.attempt,
        started: claim.started,
    };
    to_vec(&NameConflictJson {
        r#type: "about:blank",
        title,
        status: 409,
        detail,
        run: &conflict.rank.run,
        rank: conflict.rank.rank,
        holder: claim(conflict.holder),
        yours: claim(conflict.claimant),
        offer: conflict.offer.as_ref(),
    })
}

//! Requests other than steps: ends of runs, acknowledgments, releases and snapshots.

use std::time::Duration;

use serde::Deserialize;

use crate::findings::acks::{Ack, FOR_SECONDS_MAX};
use crate::kind::DiagnosisKind;
use crate::requests::schedule::STEPS_MAX;
use crate::requests::snapshot::{self, SnapshotOutcome, SnapshotReport};
use crate::requests::tracker::{REQUEST_ID_BYTES_MAX, SnapshotReason};
use crate::wire::error::{DecodeError, DecodeFault};
use crate::wire::field::{
    PID_MAX, bytes_of, count_of, in_field, instance_of, optional, rank_of, run_of, seconds_of,
    small_of,
};
use crate::wire::json::{Object, Text, parse};
use crate::wire::number::Number;
use crate::wire::step::RUN_DEFAULT;
use stepmem_types::end::{
    ERROR_MESSAGE_BYTES_MAX, ERROR_TYPE_BYTES_MAX, EndAuthority, EndOutcome, EndReport, RankEnd,
};
use stepmem_types::ids::{GpuUuid, ProcessId, RankId, Run, SubjectId};
use stepmem_types::step::STEPS_PER_RECORD_MAX;
use stepmem_types::units::{checked_name, checked_text};

/// The longest time that a request can release devices for, in seconds: a day.
pub const RELEASE_SECONDS_MAX: u32 = 86_400;

/// Decodes the body of `POST /v1/runs/RUN/end`, with the least authority.
///
/// # Errors
/// The body is not `{"rank": …, "outcome": …}` with what else is known of the end.
pub fn decode_end(body: &[u8]) -> Result<RankEnd, DecodeError> {
    let raw = parse::<Object<RawEnd<'_>>>(body)?.0;
    let text = |field, text: Option<Text<'_>>, max| {
        text.map(|text| in_field(field, checked_text(&text.0, max))).transpose()
    };
    let bytes = |field, n: Option<Number>| optional(n, |n| bytes_of(field, n));
    let report = EndReport {
        outcome: raw.outcome,
        time: optional(raw.time, |n| seconds_of("time", n))?,
        step: optional(raw.step, |n| count_of("step", n))?,
        unread_steps: optional(raw.unread_steps, |n| {
            small_of("unread_steps", n, 0, STEPS_PER_RECORD_MAX)
        })?,
        peak_allocated: bytes("peak_allocated_bytes", raw.peak_allocated_bytes)?,
        peak_reserved: bytes("peak_reserved_bytes", raw.peak_reserved_bytes)?,
        error_type: text("error_type", raw.error_type, ERROR_TYPE_BYTES_MAX)?,
        error_message: text("error_message", raw.error_message, ERROR_MESSAGE_BYTES_MAX)?,
        ooms: optional(raw.ooms, |n| count_of("ooms", n))?,
        requested: bytes("requested_bytes", raw.requested_bytes)?,
        reserved_limit: bytes("reserved_limit_bytes", raw.reserved_limit_bytes)?,
    };
    Ok(RankEnd {
        rank: optional(raw.rank, |n| rank_of("rank", n))?,
        instance: raw.instance.map(|text| instance_of(&text.0)).transpose()?,
        authority: EndAuthority::Own,
        report,
    })
}

/// Decodes the body of `POST /v1/runs/RUN/ack`.
///
/// # Errors
/// The body is not `{"rank": …, "kind": …, "for_seconds": …, "reason": …}`.
pub fn decode_ack(run: Run, body: &[u8]) -> Result<Ack, DecodeError> {
    let raw = parse::<Object<RawAck<'_>>>(body)?.0;
    let rank = rank_of("rank", raw.rank)?;
    let fields = AckFields { kind: raw.kind, for_seconds: raw.for_seconds, reason: raw.reason };
    fields.about(SubjectId::Rank(RankId { run, rank }))
}

/// Decodes the body of `POST /v1/devices/UUID/ack`.
///
/// # Errors
/// The body is not `{"kind": …, "for_seconds": …, "reason": …}`, with `"pid": …` for a process
/// on the device.
pub fn decode_device_ack(uuid: GpuUuid, body: &[u8]) -> Result<Ack, DecodeError> {
    let raw = parse::<Object<RawDeviceAck<'_>>>(body)?.0;
    let pid = optional(raw.pid, |pid| small_of("pid", pid, 1, PID_MAX))?;
    let subject = match pid {
        Some(pid) => SubjectId::Process(ProcessId { uuid, pid }),
        None => SubjectId::Device(uuid),
    };
    let fields = AckFields { kind: raw.kind, for_seconds: raw.for_seconds, reason: raw.reason };
    fields.about(subject)
}

/// Decodes the body of `POST /v1/runs/RUN/snapshot`: the rank, and the steps to record where
/// they are named.
///
/// # Errors
/// The body is not `{"rank": …}`, with `"steps": …` of 1 to `STEPS_MAX`.
pub fn decode_snapshot_request(
    run: Run,
    body: &[u8],
) -> Result<(RankId, Option<u32>), DecodeError> {
    let raw = parse::<Object<RawDemand>>(body)?.0;
    let steps = optional(raw.steps, |n| small_of("steps", n, 1, STEPS_MAX))?;
    Ok((RankId { run, rank: rank_of("rank", raw.rank)? }, steps))
}

/// Decodes the body of `POST /v1/runs/RUN/lines`: the rank.
///
/// # Errors
/// The body is not `{"rank": …}`.
pub fn decode_lines_request(run: Run, body: &[u8]) -> Result<RankId, DecodeError> {
    let raw = parse::<Object<RawRank>>(body)?.0;
    Ok(RankId { run, rank: rank_of("rank", raw.rank)? })
}

/// The part of an acknowledgment that is the same for every subject.
struct AckFields<'a> {
    kind: Text<'a>,
    for_seconds: Number,
    reason: Text<'a>,
}

impl AckFields<'_> {
    fn about(self, subject: SubjectId) -> Result<Ack, DecodeError> {
        let label = self.kind.0;
        let not_one =
            || DecodeFault::NotOneOf(label.clone().into_owned(), DiagnosisKind::labels());
        let kind = in_field("kind", DiagnosisKind::from_label(&label).ok_or_else(not_one))?;
        let for_seconds = small_of("for_seconds", self.for_seconds, 1, FOR_SECONDS_MAX)?;
        in_field("reason", Ack::new(subject, kind, for_seconds, &self.reason.0))
    }
}

/// Decodes the body of `POST /v1/nvml/release`.
///
/// # Errors
/// The body is not `{"for_seconds": …}` of 0 (read them again at once) to
/// `RELEASE_SECONDS_MAX`.
pub fn decode_release(body: &[u8]) -> Result<Duration, DecodeError> {
    let raw = parse::<Object<RawRelease>>(body)?.0;
    let seconds = small_of("for_seconds", raw.for_seconds, 0, RELEASE_SECONDS_MAX)?;
    Ok(Duration::from_secs(seconds.into()))
}

/// Decodes the body of `POST /v1/snapshots`.
///
/// # Errors
/// The body is not `{"rank": …, "outcome": "began"}`, `{…, "outcome": "written", "path": …}` or
/// `{…, "outcome": "failed", "error": …}`.
pub fn decode_snapshot(body: &[u8], owner: Option<u32>) -> Result<SnapshotReport, DecodeError> {
    let raw = parse::<Object<RawSnapshot<'_>>>(body)?.0;
    let text = |field, text: Option<Text<'_>>, max| {
        text.map(|text| in_field(field, checked_text(&text.0, max))).transpose()
    };
    let path = text("path", raw.path, snapshot::PATH_BYTES_MAX)?;
    let name = |field, text: Option<Text<'_>>, max| {
        text.map(|text| in_field(field, checked_name(&text.0, max))).transpose()
    };
    // It is opened by this name.
    let file = name("file", raw.file, snapshot::PATH_BYTES_MAX)?;
    let error = text("error", raw.error, snapshot::ERROR_BYTES_MAX)?;
    let bytes = optional(raw.bytes, |n| bytes_of("bytes", n))?;
    let events_per_step = optional(raw.events_per_step, |n| count_of("events_per_step", n))?;
    let outcome = match (raw.outcome, path, error) {
        (RawOutcome::Began, ..) => SnapshotOutcome::Recording { events_per_step },
        (RawOutcome::Written, Some(path), _) => SnapshotOutcome::Written { path, file, bytes },
        (RawOutcome::Failed, _, Some(error)) => SnapshotOutcome::Failed { error },
        (RawOutcome::Written, None, _) => return Err(missing("path")),
        (RawOutcome::Failed, _, None) => return Err(missing("error")),
    };
    let run = run_of(raw.run.as_ref().map_or(RUN_DEFAULT, |run| &run.0))?;
    Ok(SnapshotReport {
        rank: RankId { run, rank: rank_of("rank", raw.rank)? },
        instance: raw.instance.map(|text| instance_of(&text.0)).transpose()?,
        id: name("id", raw.id, REQUEST_ID_BYTES_MAX)?,
        reason: raw.reason.map_or(SnapshotReason::Manual, RawReason::checked),
        step: optional(raw.step, |n| count_of("step", n))?,
        outcome,
        owner,
    })
}

/// A field that an outcome needs and the report lacks.
pub(super) fn missing(field: &str) -> DecodeError {
    DecodeError {
        record: None,
        field: String::new(),
        problem: DecodeFault::Json(format!("missing field `{field}`")),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEnd<'a> {
    rank: Option<Number>,
    outcome: EndOutcome,
    #[serde(borrow)]
    instance: Option<Text<'a>>,
    time: Option<Number>,
    step: Option<Number>,
    unread_steps: Option<Number>,
    peak_allocated_bytes: Option<Number>,
    peak_reserved_bytes: Option<Number>,
    #[serde(borrow)]
    error_type: Option<Text<'a>>,
    #[serde(borrow)]
    error_message: Option<Text<'a>>,
    ooms: Option<Number>,
    requested_bytes: Option<Number>,
    reserved_limit_bytes: Option<Number>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAck<'a> {
    rank: Number,
    #[serde(borrow)]
    kind: Text<'a>,
    for_seconds: Number,
    #[serde(borrow)]
    reason: Text<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDeviceAck<'a> {
    pid: Option<Number>,
    #[serde(borrow)]
    kind: Text<'a>,
    for_seconds: Number,
    #[serde(borrow)]
    reason: Text<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRelease {
    for_seconds: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRank {
    rank: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDemand {
    rank: Number,
    steps: Option<Number>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSnapshot<'a> {
    #[serde(borrow)]
    run: Option<Text<'a>>,
    rank: Number,
    #[serde(borrow)]
    instance: Option<Text<'a>>,
    #[serde(borrow)]
    id: Option<Text<'a>>,
    reason: Option<RawReason>,
    step: Option<Number>,
    outcome: RawOutcome,
    #[serde(borrow)]
    path: Option<Text<'a>>,
    #[serde(borrow)]
    file: Option<Text<'a>>,
    bytes: Option<Number>,
    events_per_step: Option<Number>,
    #[serde(borrow)]
    error: Option<Text<'a>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawReason {
    Creep,
    Oom,
    Manual,
}

impl RawReason {
    fn checked(self) -> SnapshotReason {
        match self {
            Self::Creep => SnapshotReason::Creep,
            Self::Oom => SnapshotReason::Oom,
            Self::Manual => SnapshotReason::Manual,
        }
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawOutcome {
    Began,
    Written,
    Failed,
}

#[cfg(test)]
mod tests {
    use super::decode_end;

    #[test]
    fn the_end_of_a_rank_is_read() {
        assert!(decode_end(br#"{"rank":3,"outcome":"oom"}"#).is_ok());
        assert!(decode_end(br#"{"rank":3,"outcome":"bored"}"#).is_err());
    }
}

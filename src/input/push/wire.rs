//! The push format, version 1: bytes to samples and verdicts to bytes. The only file that knows its JSON; it does
//! no I/O and keeps nothing.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::analysis::acks::{Ack, FOR_SECONDS_MAX};
use crate::analysis::captures::{self, CaptureReason, CaptureReport, CaptureRequest};
use crate::analysis::diagnosis::DiagnosisKind;
use crate::model::device::{Attribution, DeviceInfo, DeviceMemory, GpuSample, ProcessMemory};
use crate::model::ids::{GpuUuid, Rank, RankId, Run, SubjectId};
use crate::model::step::{Phase, StepSample};
use crate::model::units::{Bytes, Count, INTEGER_MAX, OutOfRange, Seconds, checked_text};

/// The run of a record that names none.
pub const RUN_DEFAULT: &str = "default";

/// How many records one batch holds at most. A decoded record takes more than ten times the bytes that the shortest
/// one has in a body, so that the limit of bodies alone would not bound a batch.
pub const RECORDS_MAX: usize = 8192;

/// How the records of a body are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One object, or an array of objects.
    Json,
    /// One object a line; blank lines count as nothing.
    NdJson,
}

/// Why a body was refused, naming the record (from 0), the field, the value and the limit.
#[derive(Debug, thiserror::Error)]
#[error("{}{problem}", Place { record: *record, field })]
pub struct DecodeError {
    record: Option<usize>,
    field: String,
    problem: Problem,
}

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{0}")]
    Json(String),
    #[error("{0} is not an integer of 0..={INTEGER_MAX}")]
    NotInteger(f64),
    #[error("{0:?} is not one of {1}")]
    NotOneOf(String, String),
    #[error("the batch of {0} records exceeds {RECORDS_MAX}")]
    TooManyRecords(usize),
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
}

impl DecodeError {
    /// Whether the body was well formed and a value of it was not.
    pub fn is_out_of_range(&self) -> bool {
        !matches!(self.problem, Problem::Json(_) | Problem::TooManyRecords(_))
    }

    /// Whether there were more than [`RECORDS_MAX`] records.
    pub fn is_too_long(&self) -> bool {
        matches!(self.problem, Problem::TooManyRecords(_))
    }

    fn at(mut self, record: usize) -> Self {
        self.record.get_or_insert(record);
        self
    }

    fn json(error: &serde_path_to_error::Error<serde_json::Error>) -> Self {
        use serde_path_to_error::Segment;
        let mut record = None;
        let mut field = String::new();
        for segment in error.path() {
            match segment {
                Segment::Seq { index } if record.is_none() => record = Some(*index),
                Segment::Map { key } => field.clone_from(key),
                Segment::Seq { .. } | Segment::Enum { .. } | Segment::Unknown => {}
            }
        }
        // An unknown or missing field is named by the message itself.
        let problem = Problem::Json(error.inner().to_string());
        Self { record, field, problem }
    }
}

struct Place<'a> {
    record: Option<usize>,
    field: &'a str,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(record) = self.record {
            write!(f, "record {record}: ")?;
        }
        if self.field.is_empty() { Ok(()) } else { write!(f, "{}: ", self.field) }
    }
}

/// Decodes every record of a push body, in order.
///
/// # Errors
/// The first record that is not one of the push protocol; nothing of the body is taken then.
pub fn decode(body: &[u8], layout: Layout) -> Result<Vec<StepSample>, DecodeError> {
    match layout {
        Layout::NdJson => {
            let lines =
                body.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
            if memchr::memchr_iter(b'\n', body).count() >= RECORDS_MAX {
                check_count(lines.clone().count())?;
            }
            lines
                .enumerate()
                .map(|(index, line)| decode_step(line).map_err(|error| error.at(index)))
                .collect()
        }
        Layout::Json if body.trim_ascii_start().first() == Some(&b'[') => {
            let batch = parse::<Batch<'_>>(body)?;
            check_count(batch.n_records)?;
            batch
                .records
                .into_iter()
                .enumerate()
                .map(|(index, raw)| raw.0.checked().map_err(|error| error.at(index)))
                .collect()
        }
        Layout::Json => Ok(vec![decode_step(body).map_err(|error| error.at(0))?]),
    }
}

fn check_count(n_records: usize) -> Result<(), DecodeError> {
    if n_records <= RECORDS_MAX {
        return Ok(());
    }
    let problem = Problem::TooManyRecords(n_records);
    Err(DecodeError { record: None, field: String::new(), problem })
}

/// One line of a recording.
#[derive(Debug, PartialEq)]
pub enum Recorded {
    /// A push record.
    Step(StepSample),
    /// An NVML reading of one device, and its Unix time.
    Gpu(GpuSample, Seconds),
}

impl Recorded {
    /// Its Unix time, if it has one.
    pub fn time(&self) -> Option<Seconds> {
        match self {
            Self::Step(sample) => sample.time,
            Self::Gpu(_, time) => Some(*time),
        }
    }
}

/// Decodes one line of a recording: a push record or an NVML reading (an object with the key `nvml`).
///
/// # Errors
/// The line is neither.
pub fn decode_recorded(line: &[u8]) -> Result<Recorded, DecodeError> {
    if has_key_nvml(line) {
        let (sample, time) = parse::<Object<RawReading<'_>>>(line)?.0.checked()?;
        Ok(Recorded::Gpu(sample, time))
    } else {
        decode_step(line).map(Recorded::Step)
    }
}

/// What `POST /v1/runs/RUN/end` says.
#[derive(Debug, PartialEq, Eq)]
pub struct RunEnd {
    /// The rank that ended; `None` when the whole run did.
    pub rank: Option<Rank>,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It finished its work.
    Completed,
    /// It stopped with an error.
    Failed,
    /// It ran out of memory.
    Oom,
}

/// Decodes the body of `POST /v1/runs/RUN/end`.
///
/// # Errors
/// The body is not `{"rank": …, "outcome": …}`.
pub fn decode_end(body: &[u8]) -> Result<RunEnd, DecodeError> {
    let raw = parse::<Object<RawEnd>>(body)?.0;
    let rank = raw.rank.map(|rank| rank_of("rank", rank)).transpose()?;
    Ok(RunEnd { rank, outcome: raw.outcome })
}

/// Decodes the body of `POST /v1/runs/RUN/ack`.
///
/// # Errors
/// The body is not `{"rank": …, "kind": …, "for_seconds": …, "reason": …}`.
pub fn decode_ack(run: Run, body: &[u8]) -> Result<Ack, DecodeError> {
    let raw = parse::<Object<RawAck<'_>>>(body)?.0;
    let rank = rank_of("rank", raw.rank)?;
    let not_one =
        || Problem::NotOneOf(raw.kind.0.clone().into_owned(), DiagnosisKind::labels());
    let kind = in_field("kind", DiagnosisKind::from_label(&raw.kind.0).ok_or_else(not_one))?;
    let for_seconds = small_of("for_seconds", raw.for_seconds, 1, FOR_SECONDS_MAX)?;
    in_field(
        "reason",
        Ack::new(SubjectId::Rank(RankId { run, rank }), kind, for_seconds, &raw.reason.0),
    )
}

/// The longest time that devices are released for on request, in seconds: a day.
pub const RELEASE_SECONDS_MAX: u32 = 86_400;

/// Decodes the body of `POST /v1/nvml/release`.
///
/// # Errors
/// The body is not `{"for_seconds": …}` of 0 (read them again at once) to [`RELEASE_SECONDS_MAX`].
pub fn decode_release(body: &[u8]) -> Result<Duration, DecodeError> {
    let raw = parse::<Object<RawRelease>>(body)?.0;
    let seconds = small_of("for_seconds", raw.for_seconds, 0, RELEASE_SECONDS_MAX)?;
    Ok(Duration::from_secs(seconds.into()))
}

/// Decodes the body of `POST /v1/snapshots`.
///
/// # Errors
/// The body is not `{"rank": …, "outcome": "written", "path": …}` or `{…, "outcome": "failed", "error": …}`.
pub fn decode_snapshot(body: &[u8]) -> Result<CaptureReport, DecodeError> {
    let raw = parse::<Object<RawSnapshot<'_>>>(body)?.0;
    let text = |field, text: Option<Text<'_>>, max| {
        text.map(|text| in_field(field, checked_text(&text.0, max))).transpose()
    };
    let missing = |field: &str| DecodeError {
        record: None,
        field: String::new(),
        problem: Problem::Json(format!("missing field `{field}`")),
    };
    let path = text("path", raw.path, captures::PATH_BYTES_MAX)?;
    let error = text("error", raw.error, captures::ERROR_BYTES_MAX)?;
    let bytes = optional(raw.bytes, |n| bytes_of("bytes", n))?;
    let outcome = match (raw.outcome, path, error) {
        (RawOutcome::Written, Some(path), _) => {
            captures::CaptureOutcome::Written { path, bytes }
        }
        (RawOutcome::Failed, _, Some(error)) => captures::CaptureOutcome::Failed { error },
        (RawOutcome::Written, None, _) => return Err(missing("path")),
        (RawOutcome::Failed, _, None) => return Err(missing("error")),
    };
    let run = run_of(raw.run.as_ref().map_or(RUN_DEFAULT, |run| &run.0))?;
    Ok(CaptureReport {
        rank: RankId { run, rank: rank_of("rank", raw.rank)? },
        id: text("id", raw.id, SNAPSHOT_ID_BYTES_MAX)?,
        reason: raw.reason.map_or(CaptureReason::Manual, RawReason::checked),
        step: optional(raw.step, |n| count_of("step", n))?,
        outcome,
    })
}

/// The answer to a push that was taken: how many records, and what the ranks are asked for.
pub fn encode_accepted(accepted: usize, asks: &[CaptureRequest]) -> Vec<u8> {
    #[derive(Serialize)]
    struct Answer<'a> {
        accepted: usize,
        actions: Vec<Action<'a>>,
    }
    #[derive(Serialize)]
    #[serde(tag = "type", rename_all = "snake_case")]
    enum Action<'a> {
        Snapshot { id: &'a str, run: &'a Run, rank: Rank, steps: u32, directory: &'a str },
    }
    let actions = asks.iter().map(|ask| Action::Snapshot {
        id: &ask.id,
        run: &ask.rank.run,
        rank: ask.rank.rank,
        steps: ask.steps,
        directory: &ask.directory,
    });
    to_vec(&Answer { accepted, actions: actions.collect() })
}

/// The answer to a request that was refused, as problem+json (RFC 9457).
pub fn encode_problem(status: u16, title: &str, detail: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct ProblemJson<'a> {
        status: u16,
        title: &'a str,
        detail: &'a str,
    }
    to_vec(&ProblemJson { status, title, detail })
}

fn to_vec(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

fn decode_step(record: &[u8]) -> Result<StepSample, DecodeError> {
    parse::<Object<RawStep<'_>>>(record)?.0.checked()
}

/// Parses quickly; what fails is parsed once more to say where.
fn parse<'de, T: Deserialize<'de>>(json: &'de [u8]) -> Result<T, DecodeError> {
    // Checked once as a whole, the texts within need no check of their own.
    let text = std::str::from_utf8(json).ok();
    let parsed = text.and_then(|text| serde_json::from_str(text).ok());
    parsed.ok_or_else(|| explain::<T>(json))
}

/// Why `json` is no `T`.
fn explain<'de, T: Deserialize<'de>>(json: &'de [u8]) -> DecodeError {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    if let Err(error) = serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        return DecodeError::json(&error);
    }
    // The value was whole and something follows it.
    let rest = deserializer.end().err().map(|error| error.to_string());
    let problem = Problem::Json(rest.unwrap_or_default());
    DecodeError { record: None, field: String::new(), problem }
}

/// Whether `"nvml"` stands as a key: within a text its quotes would be escaped, and no colon follows a value.
fn has_key_nvml(line: &[u8]) -> bool {
    const KEY: &[u8] = b"\"nvml\"";
    memchr::memmem::find(line, KEY)
        .and_then(|at| line.get(at + KEY.len()..))
        .is_some_and(|rest| rest.trim_ascii_start().first() == Some(&b':'))
}

/// The records of a JSON array: the first [`RECORDS_MAX`], and how many there are.
struct Batch<'a> {
    records: Vec<Object<RawStep<'a>>>,
    n_records: usize,
}

impl<'de> Deserialize<'de> for Batch<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BatchVisitor;
        impl<'de> Visitor<'de> for BatchVisitor {
            type Value = Batch<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of objects")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Batch<'de>, A::Error> {
                let mut records = Vec::new();
                while records.len() < RECORDS_MAX
                    && let Some(record) = seq.next_element()?
                {
                    records.push(record);
                }
                let mut n_records = records.len();
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    n_records += 1;
                }
                Ok(Batch { records, n_records })
            }
        }
        deserializer.deserialize_seq(BatchVisitor)
    }
}

/// What must stand as a JSON object: a derived reader alone would take a list of its values in order as well.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A JSON number of any kind; ranges are checked where the field is known.
#[derive(Clone, Copy)]
enum Number {
    Unsigned(u64),
    Negative(i64),
    Float(f64),
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberVisitor;
        impl Visitor<'_> for NumberVisitor {
            type Value = Number;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }
            fn visit_u64<E>(self, value: u64) -> Result<Number, E> {
                Ok(Number::Unsigned(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Number, E> {
                Ok(Number::Negative(value))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Number, E> {
                Ok(Number::Float(value))
            }
        }
        deserializer.deserialize_any(NumberVisitor)
    }
}

impl Number {
    fn integer(self, min: u64, max: u64) -> Result<u64, Problem> {
        let outside = |value: String| {
            OutOfRange::Number { value, min: min.to_string(), max: max.to_string() }.into()
        };
        match self {
            Self::Unsigned(value) if (min..=max).contains(&value) => Ok(value),
            Self::Unsigned(value) => Err(outside(value.to_string())),
            Self::Negative(value) => Err(outside(value.to_string())),
            Self::Float(value) => Err(Problem::NotInteger(value)),
        }
    }

    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "a float is asked for"
    )]
    fn float(self) -> f64 {
        match self {
            Self::Unsigned(value) => value as f64,
            Self::Negative(value) => value as f64,
            Self::Float(value) => value,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStep<'a> {
    #[serde(borrow)]
    run: Option<Text<'a>>,
    attempt: Option<Number>,
    rank: Number,
    local_rank: Option<Number>,
    world_size: Option<Number>,
    node_rank: Option<Number>,
    step: Number,
    time: Option<Number>,
    step_seconds: Option<Number>,
    #[serde(borrow)]
    phase: Option<Text<'a>>,
    #[serde(borrow)]
    device: Option<Text<'a>>,
    pid: Option<Number>,
    allocated_bytes: Number,
    peak_allocated_bytes: Option<Number>,
    reserved_bytes: Option<Number>,
    peak_reserved_bytes: Option<Number>,
    inactive_split_bytes: Option<Number>,
    alloc_retries: Option<Number>,
    ooms: Option<Number>,
    dropped_records: Option<Number>,
    total_bytes: Option<Number>,
    free_bytes: Option<Number>,
}

impl RawStep<'_> {
    fn checked(self) -> Result<StepSample, DecodeError> {
        let optional_bytes = |field, raw: Option<Number>| optional(raw, |n| bytes_of(field, n));
        let optional_count = |field, raw: Option<Number>| optional(raw, |n| count_of(field, n));
        let optional_rank = |field, raw: Option<Number>| optional(raw, |n| rank_of(field, n));
        let optional_time =
            |field, raw: Option<Number>| optional(raw, |n| seconds_of(field, n));
        Ok(StepSample {
            run: run_of(self.run.as_ref().map_or(RUN_DEFAULT, |run| &run.0))?,
            attempt: optional_count("attempt", self.attempt)?.unwrap_or_default(),
            rank: rank_of("rank", self.rank)?,
            local_rank: optional_rank("local_rank", self.local_rank)?,
            world_size: optional(self.world_size, |n| {
                small_of("world_size", n, 1, Rank::MAX + 1)
            })?,
            node_rank: optional_rank("node_rank", self.node_rank)?,
            step: count_of("step", self.step)?,
            time: optional_time("time", self.time)?,
            step_seconds: optional_time("step_seconds", self.step_seconds)?,
            phase: self.phase.map_or(Ok(Phase::default()), |phase| phase_of(&phase.0))?,
            device: self.device.map(|device| device_of(&device.0)).transpose()?,
            pid: optional(self.pid, |n| small_of("pid", n, 0, PID_MAX))?,
            allocated: bytes_of("allocated_bytes", self.allocated_bytes)?,
            peak_allocated: optional_bytes("peak_allocated_bytes", self.peak_allocated_bytes)?,
            reserved: optional_bytes("reserved_bytes", self.reserved_bytes)?,
            peak_reserved: optional_bytes("peak_reserved_bytes", self.peak_reserved_bytes)?,
            inactive_split: optional_bytes("inactive_split_bytes", self.inactive_split_bytes)?,
            alloc_retries: optional_count("alloc_retries", self.alloc_retries)?,
            ooms: optional_count("ooms", self.ooms)?,
            dropped_records: optional_count("dropped_records", self.dropped_records)?,
            total: optional_bytes("total_bytes", self.total_bytes)?,
            free: optional_bytes("free_bytes", self.free_bytes)?,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawReading<'a> {
    #[serde(rename = "nvml")]
    _nvml: bool,
    time: Number,
    #[serde(borrow)]
    device: Text<'a>,
    used_bytes: Number,
    total_bytes: Number,
    free_bytes: Option<Number>,
    reserved_bytes: Option<Number>,
    #[serde(default)]
    processes: Vec<RawProcess>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProcess {
    pid: Number,
    used_bytes: Option<Number>,
}

impl RawReading<'_> {
    fn checked(self) -> Result<(GpuSample, Seconds), DecodeError> {
        let optional_bytes = |field, raw: Option<Number>| optional(raw, |n| bytes_of(field, n));
        let mut processes = self
            .processes
            .into_iter()
            .map(|process| {
                let pid = small_of("pid", process.pid, 0, PID_MAX)?;
                let used = optional_bytes("used_bytes", process.used_bytes)?;
                Ok(ProcessMemory::new(pid, used))
            })
            .collect::<Result<Vec<_>, DecodeError>>()?;
        processes.sort_unstable_by_key(|process| process.pid);
        let sample = GpuSample {
            device: device_of(&self.device.0)?,
            info: DeviceInfo::default(),
            memory: Some(DeviceMemory {
                total: bytes_of("total_bytes", self.total_bytes)?,
                used: bytes_of("used_bytes", self.used_bytes)?,
                free: optional_bytes("free_bytes", self.free_bytes)?,
                reserved: optional_bytes("reserved_bytes", self.reserved_bytes)?,
            }),
            processes,
            attribution: Attribution::SharedPidNamespace,
        };
        Ok((sample, seconds_of("time", self.time)?))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEnd {
    rank: Option<Number>,
    outcome: Outcome,
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
struct RawRelease {
    for_seconds: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSnapshot<'a> {
    #[serde(borrow)]
    run: Option<Text<'a>>,
    rank: Number,
    #[serde(borrow)]
    id: Option<Text<'a>>,
    reason: Option<RawReason>,
    step: Option<Number>,
    outcome: RawOutcome,
    #[serde(borrow)]
    path: Option<Text<'a>>,
    bytes: Option<Number>,
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
    fn checked(self) -> CaptureReason {
        match self {
            Self::Creep => CaptureReason::Creep,
            Self::Oom => CaptureReason::Oom,
            Self::Manual => CaptureReason::Manual,
        }
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawOutcome {
    Written,
    Failed,
}

/// The longest name of an ask that is taken, in bytes.
const SNAPSHOT_ID_BYTES_MAX: usize = 64;

/// The greatest process id that is taken: what a Linux kernel can be configured to (`PID_MAX_LIMIT`).
const PID_MAX: u32 = 1 << 22;

fn optional<T>(
    raw: Option<Number>,
    read: impl FnOnce(Number) -> Result<T, DecodeError>,
) -> Result<Option<T>, DecodeError> {
    raw.map(read).transpose()
}

fn in_field<T>(
    field: &'static str,
    value: Result<T, impl Into<Problem>>,
) -> Result<T, DecodeError> {
    value.map_err(|problem| DecodeError {
        record: None,
        field: field.to_owned(),
        problem: problem.into(),
    })
}

fn integer_of(field: &'static str, raw: Number, max: u64) -> Result<u64, DecodeError> {
    in_field(field, raw.integer(0, max))
}

fn bytes_of(field: &'static str, raw: Number) -> Result<Bytes, DecodeError> {
    in_field(field, Bytes::new(integer_of(field, raw, INTEGER_MAX)?))
}

fn count_of(field: &'static str, raw: Number) -> Result<Count, DecodeError> {
    in_field(field, Count::new(integer_of(field, raw, INTEGER_MAX)?))
}

fn rank_of(field: &'static str, raw: Number) -> Result<Rank, DecodeError> {
    in_field(field, Rank::new(integer_of(field, raw, Rank::MAX.into())?))
}

fn small_of(field: &'static str, raw: Number, min: u32, max: u32) -> Result<u32, DecodeError> {
    let value = in_field(field, raw.integer(min.into(), max.into()))?;
    Ok(u32::try_from(value).unwrap_or(max))
}

fn seconds_of(field: &'static str, raw: Number) -> Result<Seconds, DecodeError> {
    in_field(field, Seconds::new(raw.float()))
}

fn run_of(text: &str) -> Result<Run, DecodeError> {
    in_field("run", Run::new(text))
}

fn device_of(text: &str) -> Result<GpuUuid, DecodeError> {
    in_field("device", GpuUuid::new(text))
}

fn phase_of(text: &str) -> Result<Phase, DecodeError> {
    match text {
        "train" => Ok(Phase::Train),
        "eval" => Ok(Phase::Eval),
        "checkpoint" => Ok(Phase::Checkpoint),
        other => in_field(
            "phase",
            Err(Problem::NotOneOf(other.to_owned(), "train, eval, checkpoint".to_owned())),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{Layout, Recorded, decode, decode_end, decode_recorded};

    fn check(body: &[u8], expected: &str) {
        let error = decode(body, Layout::Json).expect_err("must be refused").to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }

    #[test]
    fn least_record_is_taken_with_defaults() {
        let samples =
            decode(br#"{"rank":0,"step":1,"allocated_bytes":1}"#, Layout::Json).unwrap();
        assert_eq!(samples[0].run.as_str(), "default");
        assert_eq!(samples[0].reserved, None);
    }

    #[test]
    fn null_is_the_same_as_absent() {
        let body = br#"[{"rank":0,"step":1,"allocated_bytes":1,"reserved_bytes":null}]"#;
        assert_eq!(decode(body, Layout::Json).unwrap()[0].reserved, None);
    }

    #[test]
    fn refusals_name_record_field_value_and_limit() {
        let ok = r#"{"rank":0,"step":1,"allocated_bytes":1}"#;
        check(
            format!(r#"[{ok},{{"rank":1048576,"step":1,"allocated_bytes":1}}]"#).as_bytes(),
            "record 1: rank: 1048576 is outside 0..=1048575",
        );
        check(
            br#"{"rank":0,"step":1,"allocated_bytes":-5}"#,
            "record 0: allocated_bytes: -5 is outside 0..=9007199254740992",
        );
        check(
            br#"{"rank":0,"step":1,"allocated_bytes":9007199254740993}"#,
            "allocated_bytes: 9007199254740993 is outside 0..=9007199254740992",
        );
        check(br#"{"rank":0,"step":1,"allocated_bytes":1.5}"#, "1.5 is not an integer");
        check(
            br#"{"rank":"a","step":1,"allocated_bytes":1}"#,
            "rank: invalid type: string \"a\", expected a number",
        );
        check(
            br#"[{"rank":0,"step":1,"allocated_bytes":1,"alocated":2}]"#,
            "unknown field `alocated`",
        );
        check(br#"{"rank":0,"allocated_bytes":1}"#, "missing field `step`");
        check(
            br#"{"rank":0,"step":1,"allocated_bytes":1,"phase":"x"}"#,
            "phase: \"x\" is not one of train",
        );
        check(
            br#"{"rank":0,"step":1,"allocated_bytes":1,"world_size":0}"#,
            "world_size: 0 is outside 1..=1048576",
        );
        check(
            br#"{"rank":0,"step":1,"allocated_bytes":1,"run":""}"#,
            "run: a text of 0 bytes is outside 1..=128 bytes",
        );
        check(
            br#"{"rank":0,"step":1,"allocated_bytes":1,"time":-1}"#,
            "time: -1 is outside 0..=253402300799",
        );
    }

    #[test]
    fn broken_json_is_refused() {
        for body in [
            &b""[..],
            b"{",
            b"[{\"rank\":0",
            b"nul",
            b"{\"rank\":NaN,\"step\":1,\"allocated_bytes\":1}",
            b"\xff\xfe",
            b"{\"run\":\"\xff\",\"rank\":0,\"step\":1,\"allocated_bytes\":1}",
            b"{\"rank\":0,\"step\":1,\"allocated_bytes\":1} x",
            b"{\"rank\":0,\"rank\":0,\"step\":1,\"allocated_bytes\":1}",
        ] {
            let error = decode(body, Layout::Json).expect_err("must be refused");
            assert!(!error.is_out_of_range(), "{error}");
        }
        let nested = "[".repeat(200_000);
        assert!(decode(nested.as_bytes(), Layout::Json).is_err());
    }

    #[test]
    fn lines_are_counted_without_the_blank_ones() {
        let ok = r#"{"rank":0,"step":1,"allocated_bytes":1}"#;
        let body = format!("{ok}\n\n{ok}\r\n");
        assert_eq!(decode(body.as_bytes(), Layout::NdJson).unwrap().len(), 2);
        let error = decode(format!("{ok}\n{{}}\n").as_bytes(), Layout::NdJson).unwrap_err();
        assert!(error.to_string().starts_with("record 1: "), "{error}");
    }

    #[test]
    fn recordings_mix_pushes_and_readings() {
        let reading = br#"{"nvml":true,"time":1.5,"device":"GPU-0","used_bytes":5,"total_bytes":9,"processes":[{"pid":7,"used_bytes":3}]}"#;
        let Recorded::Gpu(sample, time) = decode_recorded(reading).unwrap() else {
            panic!("a reading")
        };
        assert_eq!((sample.processes[0].pid, sample.device.as_str()), (7, "GPU-0"));
        assert!((time.get() - 1.5).abs() < f64::EPSILON);
        let push = br#"{"run":"nvml","rank":0,"step":1,"allocated_bytes":1}"#;
        assert!(matches!(decode_recorded(push).unwrap(), Recorded::Step(_)));
    }

    #[test]
    fn the_end_of_a_rank_is_read() {
        assert!(decode_end(br#"{"rank":3,"outcome":"oom"}"#).is_ok());
        assert!(decode_end(br#"{"rank":3,"outcome":"bored"}"#).is_err());
    }
}

//! The lines that an exporter records: what it accepted, in the order and at the time at which
//! the engine took it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::diagnosis::DiagnosisKind;
use crate::findings::acks::{Ack, FOR_SECONDS_MAX};
use crate::requests::causes::SnapshotAnalysis;
use crate::wire::control::missing;
use crate::wire::error::{DecodeError, DecodeFault};
use crate::wire::field::{in_field, seconds_of};
use crate::wire::json::{Object, parse};
use crate::wire::number::Number;
use crate::wire::step::RawStep;
use crate::wire::step_text::StepText;
use stepmem_types::device::GpuSample;
use stepmem_types::end::RankEnd;
use stepmem_types::ids::{GpuUuid, RankId, Run, SubjectId};
use stepmem_types::site::{EmptySearch, TensorHolder};
use stepmem_types::step::StepSample;
use stepmem_types::units::{OutOfRange, Seconds, Uptime};

/// The layout of these lines; higher ones are refused.
pub const RECORDING_VERSION: u32 = 1;
/// The beginning of the lines.
const HEAD: &[u8] = b"{\"recording\":";
const EVENT: &[u8] = b"{\"event\":";
/// The longest name of a session, in bytes.
const LIFE_BYTES_MAX: usize = 64;

/// The first line of a file: whose events follow.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RecordingHead {
    /// [`RECORDING_VERSION`].
    pub recording: u32,
    /// The exporter's session: the same in all files that it wrote between its start and its
    /// end.
    pub life: String,
    /// The run; `None` of what is about no run.
    pub run: Option<Run>,
    /// The number of the file of its run and session, from 1.
    pub part: u32,
    /// The Unix time at which the uptime was 0, as the session began.
    pub started: Seconds,
    /// The time that a reading of a device counts.
    pub device_ttl_seconds: Seconds,
}

/// One event of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct AcceptedEvent {
    /// Its number in its session, ascending; an event that stands in several files has one
    /// number.
    pub number: u64,
    pub at: Uptime,
    /// Number of events before it that could not be written to this file.
    pub n_lost: u64,
    pub what: Accepted,
}

/// An event that an exporter took.
#[derive(Clone, Debug, PartialEq)]
pub enum Accepted {
    Step(Box<StepSample>),
    End(Run, RankEnd),
    /// The holder of a rank's tensors, and when it was asked.
    Holder(RankId, Box<TensorHolder>, Uptime),
    /// A search of a rank that named no holder, and when it was asked.
    Searched(RankId, EmptySearch, Uptime),
    /// The result of a memory snapshot of a rank, and when it was asked for.
    Verdict(RankId, Box<SnapshotAnalysis>, Uptime),
    Ack(Ack),
    Reading(Box<GpuSample>),
    /// A device, or NVML as a whole, answered with this error.
    Unavailable(Option<GpuUuid>, String),
    /// NVML was released.
    Released,
    Xid(GpuUuid, u64),
    /// The system's clock was set: the Unix time now.
    Clock(Seconds),
    /// Time passed.
    Tick,
}

/// A line that an exporter recorded.
#[derive(Debug, PartialEq)]
pub enum AcceptedLine {
    Head(RecordingHead),
    Event(AcceptedEvent),
}

/// Decodes a line that an exporter recorded; `None` for lines of another layout.
///
/// # Errors
/// The line is of this layout and cannot be read.
pub fn decode_accepted(line: &[u8]) -> Option<Result<AcceptedLine, DecodeError>> {
    if line.starts_with(EVENT) {
        let raw = parse::<Object<RawEvent<'_>>>(line);
        return Some(raw.and_then(|raw| raw.0.checked()).map(AcceptedLine::Event));
    }
    line.starts_with(HEAD).then(|| head(line).map(AcceptedLine::Head))
}

fn head(line: &[u8]) -> Result<RecordingHead, DecodeError> {
    let head = parse::<Object<RecordingHead>>(line)?.0;
    let range = |value: &dyn ToString, max: &dyn ToString| OutOfRange::Number {
        value: value.to_string(),
        min: "1".to_owned(),
        max: max.to_string(),
    };
    if head.recording != RECORDING_VERSION {
        return in_field("recording", Err(range(&head.recording, &RECORDING_VERSION)));
    }
    let bytes = head.life.len();
    if !(1..=LIFE_BYTES_MAX).contains(&bytes) {
        return in_field("life", Err(OutOfRange::Length { bytes, max: LIFE_BYTES_MAX }));
    }
    Ok(head)
}

impl RecordingHead {
    /// Appends it as a line.
    pub fn write(&self, text: &mut Vec<u8>) {
        write_line(self, text);
    }
}

impl AcceptedEvent {
    /// Appends it as a line.
    pub fn write(&self, text: &mut Vec<u8>) {
        let Self { number, at, n_lost, what } = self;
        let mut line = EventText {
            event: *number,
            uptime: at.0.as_secs_f64(),
            lost: *n_lost,
            ..EventText::default()
        };
        match what {
            Accepted::Step(sample) => line.step = Some(StepText::of(sample)),
            Accepted::End(run, end) => {
                line.end = Some(RecordedEnd { run: run.clone(), of: end.clone() });
            }
            Accepted::Holder(rank, holder, since) => {
                line.holder = Some(site(rank, &**holder, *since));
            }
            Accepted::Searched(rank, search, since) => {
                line.searched = Some(site(rank, search, *since));
            }
            Accepted::Verdict(rank, analysis, since) => {
                line.verdict = Some(site(rank, &**analysis, *since));
            }
            Accepted::Ack(ack) => line.ack = Some(RecordedAck::of(ack)),
            Accepted::Reading(sample) => line.reading = Some(sample),
            Accepted::Unavailable(device, code) => {
                line.unavailable =
                    Some(RecordedFailure { device: device.clone(), code: code.clone() });
            }
            Accepted::Released => line.released = Some(true),
            Accepted::Xid(device, xid) => {
                line.xid = Some((device.clone(), *xid));
            }
            Accepted::Clock(unix) => line.clock = Some(*unix),
            Accepted::Tick => line.tick = Some(true),
        }
        write_line(&line, text);
    }
}

fn site<T: Clone>(rank: &RankId, of: &T, since: Uptime) -> SiteLine<T> {
    SiteLine { rank: rank.clone(), since_uptime: since.0.as_secs_f64(), of: of.clone() }
}

fn write_line(line: &impl Serialize, text: &mut Vec<u8>) {
    // Writing to memory does not fail, and every key is a text.
    serde_json::to_writer(&mut *text, line).ok();
    text.push(b'\n');
}

#[derive(Default, Serialize)]
struct EventText<'a> {
    event: u64,
    uptime: f64,
    #[serde(skip_serializing_if = "is_zero")]
    lost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<StepText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<RecordedEnd>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<SiteLine<TensorHolder>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    searched: Option<SiteLine<EmptySearch>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<SiteLine<SnapshotAnalysis>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ack: Option<RecordedAck>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reading: Option<&'a GpuSample>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unavailable: Option<RecordedFailure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    released: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    xid: Option<(GpuUuid, u64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clock: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tick: Option<bool>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEvent<'a> {
    event: u64,
    uptime: Number,
    #[serde(default)]
    lost: u64,
    #[serde(borrow)]
    step: Option<Object<RawStep<'a>>>,
    end: Option<RecordedEnd>,
    holder: Option<SiteLine<TensorHolder>>,
    searched: Option<SiteLine<EmptySearch>>,
    verdict: Option<SiteLine<SnapshotAnalysis>>,
    ack: Option<RecordedAck>,
    reading: Option<GpuSample>,
    unavailable: Option<RecordedFailure>,
    released: Option<bool>,
    xid: Option<(GpuUuid, u64)>,
    clock: Option<Number>,
    tick: Option<bool>,
}

impl RawEvent<'_> {
    fn checked(self) -> Result<AcceptedEvent, DecodeError> {
        let (number, n_lost) = (self.event, self.lost);
        let at = uptime_of("uptime", seconds_of("uptime", self.uptime)?.get())?;
        let what = if let Some(step) = self.step {
            Accepted::Step(Box::new(step.0.checked()?))
        } else if let Some(RecordedEnd { run, of }) = self.end {
            Accepted::End(run, of)
        } else if let Some(SiteLine { rank, since_uptime, of }) = self.holder {
            let since = uptime_of("since_uptime", since_uptime)?;
            Accepted::Holder(rank, Box::new(of), since)
        } else if let Some(SiteLine { rank, since_uptime, of }) = self.searched {
            Accepted::Searched(rank, of, uptime_of("since_uptime", since_uptime)?)
        } else if let Some(SiteLine { rank, since_uptime, of }) = self.verdict {
            let since = uptime_of("since_uptime", since_uptime)?;
            Accepted::Verdict(rank, Box::new(of), since)
        } else if let Some(ack) = self.ack {
            Accepted::Ack(ack.checked()?)
        } else if let Some(sample) = self.reading {
            Accepted::Reading(Box::new(sample))
        } else if let Some(RecordedFailure { device, code }) = self.unavailable {
            Accepted::Unavailable(device, code)
        } else if self.released.is_some() {
            Accepted::Released
        } else if let Some((device, xid)) = self.xid {
            Accepted::Xid(device, xid)
        } else if let Some(unix) = self.clock {
            Accepted::Clock(seconds_of("clock", unix)?)
        } else if self.tick.is_some() {
            Accepted::Tick
        } else {
            return Err(missing("step"));
        };
        Ok(AcceptedEvent { number, at, n_lost, what })
    }
}

fn uptime_of(field: &'static str, seconds: f64) -> Result<Uptime, DecodeError> {
    let uptime = Duration::try_from_secs_f64(seconds).map(Uptime).ok();
    let outside = || OutOfRange::Number {
        value: seconds.to_string(),
        min: "0".to_owned(),
        max: Uptime::MAX.0.as_secs().to_string(),
    };
    in_field(field, uptime.filter(|uptime| *uptime <= Uptime::MAX).ok_or_else(outside))
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct RecordedEnd {
    run: Run,
    of: RankEnd,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct SiteLine<T> {
    rank: RankId,
    since_uptime: f64,
    of: T,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct RecordedFailure {
    device: Option<GpuUuid>,
    code: String,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct RecordedAck {
    subject: SubjectId,
    kind: String,
    for_seconds: u64,
    reason: String,
}

impl RecordedAck {
    fn of(ack: &Ack) -> Self {
        Self {
            subject: ack.subject().clone(),
            kind: ack.kind().label().to_owned(),
            for_seconds: ack.seconds(),
            reason: ack.reason().to_owned(),
        }
    }

    fn checked(self) -> Result<Ack, DecodeError> {
        let Self { subject, kind, for_seconds, reason } = self;
        let known = DiagnosisKind::from_label(&kind);
        let not_one = || DecodeFault::NotOneOf(kind.clone(), DiagnosisKind::labels());
        let kind = in_field("kind", known.ok_or_else(not_one))?;
        let seconds = u32::try_from(for_seconds).ok().filter(|n| *n <= FOR_SECONDS_MAX);
        let outside = || OutOfRange::Number {
            value: for_seconds.to_string(),
            min: "1".to_owned(),
            max: FOR_SECONDS_MAX.to_string(),
        };
        let seconds = in_field("for_seconds", seconds.ok_or_else(outside))?;
        in_field("reason", Ack::new(subject, kind, seconds, &reason))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Accepted, AcceptedEvent, AcceptedLine, RecordingHead, decode_accepted};
    use crate::diagnosis::DiagnosisKind;
    use crate::findings::acks::Ack;
    use crate::wire::control::decode_end;
    use crate::wire::step::{Layout, decode};
    use stepmem_types::device::{
        Attribution, DeviceInfo, DeviceMemory, GpuSample, ProcessMemory,
    };
    use stepmem_types::ids::{GpuUuid, Rank, RankId, Run, SubjectId};
    use stepmem_types::site::{EmptySearch, Fill, SiteText, TensorHolder};
    use stepmem_types::units::{Bytes, Count, Seconds, Uptime};

    fn read_back(what: Accepted) {
        let at = Uptime(Duration::new(86_400, 123_456_789));
        let event = AcceptedEvent { number: 7, at, n_lost: 2, what };
        let mut text = Vec::new();
        event.write(&mut text);
        let line = text.trim_ascii_end();
        let shown = String::from_utf8_lossy(line);
        match decode_accepted(line) {
            Some(Ok(AcceptedLine::Event(read))) => assert_eq!(read, event, "{shown}"),
            other => panic!("{shown}: {other:?}"),
        }
    }

    #[test]
    fn step_with_every_field_is_read_as_it_was_accepted() {
        let record = br#"{"run":"llm \"7b\"","attempt":2,"rank":3,"local_rank":1,"world_size":8,"node_rank":1,"step":7,
            "time":1795347375.5,"step_seconds":0.25,"phase":"eval","device":"GPU-1","pid":71,
            "instance":"00c0ffee00c0ffee","launch":"job-1","allocated_bytes":1,"peak_allocated_bytes":2,
            "reserved_bytes":3,"peak_reserved_bytes":4,"high_water_allocated_bytes":5,
            "high_water_reserved_bytes":6,"inactive_split_bytes":7,"alloc_retries":8,"ooms":9,
            "dropped_records":10,"total_bytes":11,"free_bytes":12,"host_shared_bytes":13,"host_split_bytes":14,
            "workers":15,"workers_bytes":16,"child_processes":17,"child_processes_bytes":18,"requested_bytes":1}"#;
        for record in [&record[..], br#"{"rank":0,"step":1,"allocated_bytes":1}"#] {
            let sample = decode(record, Layout::Json).unwrap().remove(0);
            read_back(Accepted::Step(Box::new(sample)));
        }
    }

    #[test]
    fn every_other_event_is_read_as_it_was_accepted() {
        let (run, device) = (Run::new("r").unwrap(), GpuUuid::new("GPU-1").unwrap());
        let id = RankId { run: run.clone(), rank: Rank::new(3).unwrap() };
        let since = Uptime(Duration::from_millis(1500));
        let count = |n| Count::new(n).unwrap();
        let (items, items_max) = (count(412), count(1000));
        let fill = Fill { items, items_max, items_per_step: 1.5, is_own: true };
        let holder = TensorHolder {
            name: SiteText::new("`Trainer.history`").unwrap(),
            kind: SiteText::new("list").unwrap(),
            at: None,
            tensors: Count::new(3).unwrap(),
            bytes: Bytes::new(4096).unwrap(),
            tensors_per_step: 1.0,
            bytes_per_step: 4096.5,
            step: Some(Count::new(543).unwrap()),
            fill: Some(fill),
            since_step: Some(Count::new(500).unwrap()),
        };
        let analysis =
            br#"{"outcome":"analysed","reason":null,"leak":{"verdict":"leak","at":null,
            "share_ratio":0.5,"bytes_per_step":2.5,"steps":7,"stack":[]},"oom":null}"#;
        let end =
            br#"{"rank":3,"outcome":"failed","instance":"00c0ffee00c0ffee","error_type":"E"}"#;
        let bytes = |n| Bytes::new(n).unwrap();
        let reading = GpuSample {
            device: device.clone(),
            info: DeviceInfo { model: Some("H100".to_owned()), ..DeviceInfo::default() },
            memory: Some(DeviceMemory {
                total: bytes(80),
                used: bytes(30),
                free: Some(bytes(49)),
                reserved: Some(bytes(1)),
            }),
            processes: vec![ProcessMemory::new(71, Some(bytes(29)))],
            attribution: Attribution::Host,
        };
        let subject = SubjectId::Rank(id.clone());
        let ack = Ack::new(subject, DiagnosisKind::HighPressure, 3600, "a cache").unwrap();
        for what in [
            Accepted::End(run, decode_end(end).unwrap()),
            Accepted::Holder(id.clone(), Box::new(holder), since),
            Accepted::Searched(
                id.clone(),
                EmptySearch { step: None, is_complete: true },
                since,
            ),
            Accepted::Verdict(id, Box::new(serde_json::from_slice(analysis).unwrap()), since),
            Accepted::Ack(ack),
            Accepted::Reading(Box::new(reading)),
            Accepted::Unavailable(Some(device.clone()), "gpu_is_lost".to_owned()),
            Accepted::Unavailable(None, "timeout".to_owned()),
            Accepted::Released,
            Accepted::Xid(device, 79),
            Accepted::Clock(Seconds::new(1_795_347_375.5).unwrap()),
            Accepted::Tick,
        ] {
            read_back(what);
        }
    }

    #[test]
    fn head_is_read_back_and_a_later_layout_is_refused() {
        let head = RecordingHead {
            recording: 1,
            life: "c0ffee".to_owned(),
            run: None,
            part: 1,
            started: Seconds::new(1.5).unwrap(),
            device_ttl_seconds: Seconds::new(15.0).unwrap(),
        };
        let mut text = Vec::new();
        head.write(&mut text);
        let read = decode_accepted(text.trim_ascii_end()).unwrap().unwrap();
        assert_eq!(read, AcceptedLine::Head(head.clone()));
        text.clear();
        RecordingHead { recording: 2, ..head }.write(&mut text);
        let refused = decode_accepted(text.trim_ascii_end()).unwrap().unwrap_err();
        assert_eq!(refused.to_string(), "recording: 2 is outside 1..=1");
        let nothing = decode_accepted(br#"{"event":1,"uptime":2}"#).unwrap().unwrap_err();
        assert_eq!(nothing.to_string(), "missing field `step`");
        assert!(decode_accepted(br#"{"rank":0,"step":1,"allocated_bytes":1}"#).is_none());
    }
}

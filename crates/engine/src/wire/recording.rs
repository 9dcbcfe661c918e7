//! The lines that an exporter records: events in the order and at the time at which the engine
//! took them.

use std::ops::Not;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::findings::acks::{Ack, FOR_SECONDS_MAX};
use crate::kind::DiagnosisKind;
use crate::requests::causes::{Cause, FoundCause, SnapshotAnalysis};
use crate::wire::control::missing;
use crate::wire::error::{DecodeError, DecodeFault};
use crate::wire::field::{in_field, seconds_of};
use crate::wire::json::{Object, parse};
use crate::wire::number::Number;
use crate::wire::step::{RawStep, StepText};
use stepmem_detect::Signal;
use stepmem_types::device::{GpuSample, GpuUnavailable};
use stepmem_types::end::RankEnd;
use stepmem_types::ids::{GpuUuid, RankId, Run, SubjectId};
use stepmem_types::nvml_code::known_code;
use stepmem_types::site::{EmptySearch, TensorHolder};
use stepmem_types::units::{OutOfRange, Seconds, Uptime};

/// The layout of these lines; higher ones are refused.
pub const RECORDING_VERSION: u32 = 1;
/// The beginning of the lines.
const HEAD: &[u8] = b"{\"recording\":";
const EVENT: &[u8] = b"{\"event\":";
/// The longest name of a session, in bytes.
const SESSION_BYTES_MAX: usize = 64;

/// The first line of a file: whose events follow.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RecordingHead {
    /// [`RECORDING_VERSION`].
    pub recording: u32,
    /// The exporter's session: the same in all files that it wrote between its start and its
    /// end.
    #[serde(rename = "life")]
    pub session: String,
    /// The run; `None` of what is about no run.
    pub run: Option<Run>,
    /// The number of the file of its run and session, from 1.
    pub part: u32,
    /// The Unix time at which the uptime was 0, as the session began.
    pub started: Seconds,
    /// The time that a reading of a device counts.
    pub device_ttl_seconds: Seconds,
}

/// An event of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedEvent {
    /// The number in its session, ascending; an event that stands in several files has one
    /// number.
    pub number: u64,
    /// The uptime of the exporter at the event.
    pub at: Uptime,
    /// Number of events before it that could not be written to this file.
    pub n_lost: u64,
    /// The event as the engine took it.
    pub event: Event,
}

/// A line that an exporter recorded.
#[derive(Debug, PartialEq)]
pub enum RecordedLine {
    /// The first line of a file.
    Head(RecordingHead),
    /// Any other line.
    Event(RecordedEvent),
}

/// Decodes a line that an exporter recorded; `None` for lines of another layout.
///
/// # Errors
/// The line is of this layout and cannot be read.
pub fn decode_line(line: &[u8]) -> Option<Result<RecordedLine, DecodeError>> {
    if line.starts_with(EVENT) {
        let raw = parse::<Object<RawEvent<'_>>>(line);
        return Some(raw.and_then(|raw| raw.0.checked()).map(RecordedLine::Event));
    }
    line.starts_with(HEAD).then(|| head(line).map(RecordedLine::Head))
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
    let bytes = head.session.len();
    if !(1..=SESSION_BYTES_MAX).contains(&bytes) {
        return in_field("life", Err(OutOfRange::Length { bytes, max: SESSION_BYTES_MAX }));
    }
    Ok(head)
}

impl RecordingHead {
    /// Appends it as a line.
    pub fn write(&self, text: &mut Vec<u8>) {
        write_line(self, text);
    }
}

impl RecordedEvent {
    /// Appends it as a line; as one for each of its steps, which are numbered on. Of an event
    /// that recordings do not have it appends none.
    pub fn write(&self, text: &mut Vec<u8>) {
        let Self { number, at, n_lost, event } = self;
        let mut line = EventText {
            event: *number,
            uptime: at.0.as_secs_f64(),
            lost: *n_lost,
            ..EventText::default()
        };
        match event {
            Event::Steps(batch) => {
                for sample in batch {
                    line.step = Some(StepText(sample));
                    write_line(&line, text);
                    (line.event, line.lost) = (line.event + 1, 0);
                }
                return;
            }
            Event::End(run, end) => {
                line.end = Some(RecordedEnd { run: run.clone(), of: end.clone() });
            }
            Event::CauseFound(found) => match &found.cause {
                Cause::Holder(holder) => line.holder = Some(site(found, &**holder)),
                Cause::Searched(search) => line.searched = Some(site(found, search)),
                Cause::Snapshot(analysis) => line.verdict = Some(site(found, &**analysis)),
            },
            Event::Ack(ack) => line.ack = Some(RecordedAck::of(ack)),
            Event::Reading(sample) => line.reading = Some(sample),
            Event::DeviceLost(GpuUnavailable { device, code, .. }) => {
                let (device, code) = (device.clone(), (*code).to_owned());
                line.unavailable = Some(RecordedFailure { device, code });
            }
            Event::DevicesReleased => line.released = Some(true),
            Event::Xid(device, xid) => line.xid = Some((device.clone(), *xid)),
            Event::ClockSet(unix) => line.clock = Some(*unix),
            Event::Tick => line.tick = Some(true),
            Event::SnapshotReport(_)
            | Event::HoldersReport(_)
            | Event::SnapshotWanted(..)
            | Event::LinesWanted(_)
            | Event::SnapshotAnalyzed(..)
            | Event::Pods(_)
            | Event::PodMemory(_)
            | Event::Scraped => return,
        }
        write_line(&line, text);
    }
}

fn site<T: Clone>(found: &FoundCause, of: &T) -> SiteLine<T> {
    let FoundCause { rank, signal, since, .. } = found;
    let (is_of_host, since_uptime) = (*signal == Signal::Host, since.0.as_secs_f64());
    SiteLine { rank: rank.clone(), is_of_host, since_uptime, of: of.clone() }
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
    step: Option<RawStep<'a>>,
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
    fn checked(self) -> Result<RecordedEvent, DecodeError> {
        let (number, n_lost) = (self.event, self.lost);
        let at = uptime_of("uptime", seconds_of("uptime", self.uptime)?.get())?;
        let event = if let Some(step) = self.step {
            Event::Steps(vec![step.checked(None)?])
        } else if let Some(RecordedEnd { run, of }) = self.end {
            Event::End(run, of)
        } else if let Some(line) = self.holder {
            line.found(|holder| Cause::Holder(Box::new(holder)))?
        } else if let Some(line) = self.searched {
            line.found(Cause::Searched)?
        } else if let Some(line) = self.verdict {
            line.found(|analysis| Cause::Snapshot(Box::new(analysis)))?
        } else if let Some(ack) = self.ack {
            Event::Ack(ack.checked()?)
        } else if let Some(sample) = self.reading {
            Event::Reading(Box::new(sample))
        } else if let Some(RecordedFailure { device, code }) = self.unavailable {
            let (code, message) = (known_code(&code), String::new());
            Event::DeviceLost(GpuUnavailable { device, code, message })
        } else if self.released.is_some() {
            Event::DevicesReleased
        } else if let Some((device, xid)) = self.xid {
            Event::Xid(device, xid)
        } else if let Some(unix) = self.clock {
            Event::ClockSet(seconds_of("clock", unix)?)
        } else if self.tick.is_some() {
            Event::Tick
        } else {
            return Err(missing("step"));
        };
        Ok(RecordedEvent { number, at, n_lost, event })
    }
}

impl<T> SiteLine<T> {
    fn found(self, cause: impl FnOnce(T) -> Cause) -> Result<Event, DecodeError> {
        let Self { rank, is_of_host, since_uptime, of } = self;
        let signal = if is_of_host { Signal::Host } else { Signal::Allocated };
        let since = uptime_of("since_uptime", since_uptime)?;
        Ok(Event::CauseFound(FoundCause { rank, cause: cause(of), signal, since }))
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
    /// Set when it is about host memory next to a device's.
    #[serde(default, skip_serializing_if = "Not::not")]
    is_of_host: bool,
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

    use super::{RecordedEvent, RecordedLine, RecordingHead, decode_line};
    use crate::event::Event;
    use crate::findings::acks::Ack;
    use crate::kind::DiagnosisKind;
    use crate::requests::causes::{Cause, FoundCause};
    use crate::wire::control::decode_end;
    use crate::wire::step::{Layout, decode_steps};
    use stepmem_detect::Signal;
    use stepmem_types::device::{
        Attribution, DeviceInfo, DeviceMemory, GpuSample, GpuUnavailable, ProcessMemory,
    };
    use stepmem_types::ids::{GpuUuid, Rank, RankId, Run, SubjectId};
    use stepmem_types::site::{EmptySearch, Fill, LineSearch, SiteText, TensorHolder};
    use stepmem_types::units::{Bytes, Count, Seconds, Uptime};

    fn read_back(event: Event) {
        let at = Uptime(Duration::new(86_400, 123_456_789));
        let event = RecordedEvent { number: 7, at, n_lost: 2, event };
        let mut text = Vec::new();
        event.write(&mut text);
        let line = text.trim_ascii_end();
        let shown = String::from_utf8_lossy(line);
        match decode_line(line) {
            Some(Ok(RecordedLine::Event(read))) => assert_eq!(read, event, "{shown}"),
            other => panic!("{shown}: {other:?}"),
        }
    }

    #[test]
    fn step_with_every_field_is_read_as_it_was_accepted() {
        let record = br#"{"run":"llm \"7b\"","attempt":2,"rank":3,"local_rank":1,"world_size":8,"node_rank":1,"step":7,
            "time":1795347375.5,"step_seconds":0.25,"phase":"eval","device":"GPU-1","pid":71,
            "instance":"00c0ffee00c0ffee","launch":"job-1","allocated_bytes":1,"peak_allocated_bytes":2,
            "reserved_bytes":3,"peak_reserved_bytes":4,"high_water_allocated_bytes":5,
            "high_water_reserved_bytes":6,"inactive_split_bytes":7,"private_pools_bytes":29,"alloc_retries":8,"ooms":9,
            "dropped_records":10,"total_bytes":11,"free_bytes":12,"process_used_bytes":21,"host_shared_bytes":13,"host_split_bytes":14,"host_pinned_bytes":25,
            "workers":15,"workers_bytes":16,"child_processes":17,"child_processes_bytes":18,
            "workers_own_bytes":26,"child_processes_own_bytes":27,"host_children_shared_bytes":28,"requested_bytes":1,"live_blocks":2,
            "host_allocated_bytes":19,"host_total_bytes":20,"container":"c0ffee","container_limit_bytes":22,
            "container_used_bytes":23,"container_oom_kills":24}"#;
        let without =
            br#"{"rank":0,"step":1,"allocated_bytes":1,"process_used_state":"no_answer"}"#;
        for record in [&record[..], without, br#"{"rank":0,"step":1,"allocated_bytes":1}"#] {
            let sample = decode_steps(record, Layout::Json).unwrap().remove(0);
            read_back(Event::Steps(vec![sample]));
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
            lines: None,
            keeps_more: Some(false),
            added_per_step: Some(0.5),
            removal: None,
        };
        let lines = r#"{"outcome":"arenas","steps":40,"malloc_free_bytes_per_step":4096.5}"#;
        let lines = Some(serde_json::from_str::<LineSearch>(lines).unwrap());
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
            machine_total: Some(bytes(128)),
        };
        let subject = SubjectId::Rank(id.clone());
        let ack = Ack::new(subject, DiagnosisKind::HighPressure, 3600, "a cache").unwrap();
        let of = |signal, cause| {
            Event::CauseFound(FoundCause { rank: id.clone(), cause, signal, since })
        };
        let found = |cause| of(Signal::Allocated, cause);
        let lost = |device, code| {
            Event::DeviceLost(GpuUnavailable { device, code, message: String::new() })
        };
        for event in [
            Event::End(run, decode_end(end).unwrap()),
            found(Cause::Holder(Box::new(holder.clone()))),
            of(Signal::Host, Cause::Holder(Box::new(holder))),
            found(Cause::Searched(EmptySearch { is_complete: true, ..EmptySearch::default() })),
            found(Cause::Searched(EmptySearch { lines, ..EmptySearch::default() })),
            found(Cause::Snapshot(Box::new(serde_json::from_slice(analysis).unwrap()))),
            Event::Ack(ack),
            Event::Reading(Box::new(reading)),
            lost(Some(device.clone()), "gpu_is_lost"),
            lost(None, "timeout"),
            Event::DevicesReleased,
            Event::Xid(device, 79),
            Event::ClockSet(Seconds::new(1_795_347_375.5).unwrap()),
            Event::Tick,
        ] {
            read_back(event);
        }
    }

    #[test]
    fn head_is_read_back_and_a_later_layout_is_refused() {
        let head = RecordingHead {
            recording: 1,
            session: "c0ffee".to_owned(),
            run: None,
            part: 1,
            started: Seconds::new(1.5).unwrap(),
            device_ttl_seconds: Seconds::new(15.0).unwrap(),
        };
        let mut text = Vec::new();
        head.write(&mut text);
        let read = decode_line(text.trim_ascii_end()).unwrap().unwrap();
        assert_eq!(read, RecordedLine::Head(head.clone()));
        text.clear();
        RecordingHead { recording: 2, ..head }.write(&mut text);
        let refused = decode_line(text.trim_ascii_end()).unwrap().unwrap_err();
        assert_eq!(refused.to_string(), "recording: 2 is outside 1..=1");
        let nothing = decode_line(br#"{"event":1,"uptime":2}"#).unwrap().unwrap_err();
        assert_eq!(nothing.to_string(), "missing field `step`");
        assert!(decode_line(br#"{"rank":0,"step":1,"allocated_bytes":1}"#).is_none());
    }
}

//! The lines of recordings that anybody may write: push records and device readings.

use serde::Deserialize;

use crate::event::Event;
use crate::wire::error::DecodeError;
use crate::wire::field::{PID_MAX, bytes_of, device_of, optional, seconds_of, small_of};
use crate::wire::json::{Object, Text, parse};
use crate::wire::number::Number;
use crate::wire::step::{decode_plain_step, decode_step};
use stepmem_types::device::{Attribution, DeviceInfo, DeviceMemory, GpuSample, ProcessMemory};
use stepmem_types::units::Seconds;

/// Decodes one line of a recording: a push record or an NVML reading (an object with the key
/// `nvml`). Returns the event and its Unix time; `None` for a push record without one.
///
/// # Errors
/// The line is neither.
pub fn decode_recorded(line: &[u8]) -> Result<(Event, Option<Seconds>), DecodeError> {
    let step = match decode_plain_step(line) {
        Some(step) => step?,
        None if has_key_nvml(line) => {
            let (sample, time) = parse::<Object<RawReading<'_>>>(line)?.0.checked()?;
            return Ok((Event::Reading(Box::new(sample)), Some(time)));
        }
        None => decode_step(line)?,
    };
    let time = step.time;
    Ok((Event::Steps(vec![step]), time))
}

/// Returns whether the key `"nvml"` occurs: inside a text its quotes would be escaped, and a
/// value is not followed by a colon.
fn has_key_nvml(line: &[u8]) -> bool {
    const KEY: &[u8] = b"\"nvml\"";
    memchr::memmem::find(line, KEY)
        .and_then(|at| line.get(at + KEY.len()..))
        .is_some_and(|rest| rest.trim_ascii_start().first() == Some(&b':'))
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
            machine_total: None,
        };
        Ok((sample, seconds_of("time", self.time)?))
    }
}

#[cfg(test)]
mod tests {
    use super::decode_recorded;
    use crate::event::Event;

    #[test]
    fn recordings_mix_pushes_and_readings() {
        let reading = br#"{"nvml":true,"time":1.5,"device":"GPU-0","used_bytes":5,"total_bytes":9,"processes":[{"pid":7,"used_bytes":3}]}"#;
        let (Event::Reading(sample), Some(time)) = decode_recorded(reading).unwrap() else {
            panic!("a reading")
        };
        assert_eq!((sample.processes[0].pid, sample.device.as_str()), (7, "GPU-0"));
        assert!((time.get() - 1.5).abs() < f64::EPSILON);
        let push = br#"{"run":"nvml","rank":0,"step":1,"allocated_bytes":1}"#;
        let (push, time) = decode_recorded(push).unwrap();
        assert!(matches!(push, Event::Steps(batch) if batch.len() == 1) && time.is_none());
    }
}

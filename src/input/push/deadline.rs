//! The deadline of all runs of an exporter: a time, or a duration from its start.

use std::time::{Duration, UNIX_EPOCH};

use stepmem_engine::Event;
use stepmem_types::step::StepSample;
use stepmem_types::units::Seconds;

/// The time when every run of the exporter is ended from outside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Deadline {
    /// A Unix time.
    At(Seconds),
    /// The time from the exporter's start to the deadline.
    After(Duration),
}

impl Deadline {
    /// Parses a time as RFC 3339, in UTC or with an offset.
    pub fn at(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_uppercase();
        let (local, offset) = if let Some(local) = text.strip_suffix('Z') {
            (local, 0.0)
        } else {
            // A date has the same sign between its parts.
            let (at, _) = text.char_indices().rev().find(|(_, c)| matches!(c, '+' | '-'))?;
            let (local, offset) = text.split_at_checked(at)?;
            (local, offset_seconds(offset)?)
        };
        let time = humantime::parse_rfc3339(&format!("{local}Z")).ok()?;
        let time = time.duration_since(UNIX_EPOCH).ok()?.as_secs_f64() - offset;
        Seconds::new(time).ok().map(Self::At)
    }

    /// Returns the time, of an exporter that started at a Unix time.
    pub fn since(self, started: f64) -> Option<Seconds> {
        match self {
            Self::At(time) => Some(time),
            Self::After(duration) => Seconds::new(started + duration.as_secs_f64()).ok(),
        }
    }
}

/// Parses `+HH:MM` or `-HH:MM`.
fn offset_seconds(text: &str) -> Option<f64> {
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    let (hours, minutes) = text.get(1..)?.split_once(':')?;
    let part = |text: &str, max: u32| {
        let is_plain = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|number| is_plain && *number <= max)
    };
    Some(sign * f64::from(3600 * part(hours, 23)? + 60 * part(minutes, 59)?))
}

/// Gives records the exporter's deadline, unless their own is earlier. So recordings have it.
pub(super) fn steps_by(mut samples: Vec<StepSample>, deadline: Option<Seconds>) -> Event {
    if let Some(deadline) = deadline {
        for sample in &mut samples {
            let own = sample.identity.deadline.filter(|own| *own < deadline);
            sample.identity.deadline = own.or(Some(deadline));
        }
    }
    Event::Steps(samples)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::input::push::deadline::Deadline;
    use stepmem_types::units::Seconds;

    #[test]
    fn time_is_read_in_utc_and_with_an_offset() {
        let at = |text| {
            Deadline::at(text).and_then(|deadline| deadline.since(0.0)).map(Seconds::get)
        };
        let expected = Some(1_764_897_183.0);
        for text in [
            "2025-12-05T01:13:03Z",
            "2025-12-05t01:13:03z",
            "2025-12-05T02:13:03+01:00",
            "2025-12-04T19:43:03-05:30",
            " 2025-12-05T01:13:03.000Z ",
        ] {
            assert_eq!(at(text), expected, "{text}");
        }
        for text in [
            "",
            "Z",
            "+",
            "12h",
            "2025-12-05",
            "2025-12-05T01:13:03",
            "2025-12-05T01:13:03+1:00",
            "2025-12-05T01:13:03+24:00",
            "2025-12-05T01:13:03+0100",
            "2025-13-05T01:13:03Z",
            "1969-12-31T23:00:00Z",
            "\u{662}025-12-05T01:13:03Z",
        ] {
            assert_eq!(at(text), None, "{text}");
        }
    }

    #[test]
    fn duration_counts_from_the_start() {
        let after = |started| Deadline::After(Duration::from_hours(1)).since(started);
        assert_eq!(after(1000.0).map(Seconds::get), Some(4600.0));
        assert_eq!(after(Seconds::MAX), None);
    }
}

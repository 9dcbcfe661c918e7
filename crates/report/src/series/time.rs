//! Times, as programs write them.

use std::time::UNIX_EPOCH;

use stepmem_types::units::UnixTime;

/// Unix times above so many are of the next smaller unit: seconds, milliseconds, microseconds,
/// nanoseconds.
const NEXT_UNIT: f64 = 1e11;

/// Reads a Unix time, or a date and a time of day (`2026/11/29 07:48:38.123`, RFC 3339). One
/// without an offset counts as UTC.
pub(super) fn read(text: &str) -> Option<f64> {
    let text = text.trim();
    let time = match text.parse::<f64>() {
        Ok(number) => of_number(number),
        Err(_) => of_date(text)?,
    };
    UnixTime::new(time).ok().map(UnixTime::get)
}

/// Returns the seconds of a Unix time in any unit.
pub(super) fn of_number(number: f64) -> f64 {
    let mut seconds = number;
    for _ in 0..3 {
        if seconds >= NEXT_UNIT {
            seconds /= 1000.0;
        }
    }
    seconds
}

fn of_date(text: &str) -> Option<f64> {
    let (day, rest) = text.split_at_checked(10)?;
    let text_of_day =
        rest.get(1..)?.trim_end_matches("UTC").trim_end().trim_end_matches(['Z', 'z']);
    let (clock, offset) =
        match text_of_day.rfind(['+', '-']).and_then(|at| text_of_day.split_at_checked(at)) {
            Some((clock, offset)) => (clock.trim_end(), seconds_of(offset)?),
            None => (text_of_day, 0.0),
        };
    let clock = clock.replace(',', ".");
    let time =
        humantime::parse_rfc3339_weak(&format!("{}T{clock}", day.replace('/', "-"))).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs_f64() - offset)
}

/// Reads an offset (`+01:00`, `-0530`, `+01`), in seconds.
fn seconds_of(offset: &str) -> Option<f64> {
    let sign = if offset.starts_with('-') { -1.0 } else { 1.0 };
    let digits: String = offset.chars().skip(1).filter(|c| *c != ':').collect();
    let (hours, minutes) = digits.split_at_checked(2)?;
    let minutes = if minutes.is_empty() { 0 } else { minutes.parse::<u8>().ok()? };
    let hours: u8 = hours.parse().ok()?;
    (hours < 24 && minutes < 60)
        .then(|| sign * 60.0 * (60.0 * f64::from(hours) + f64::from(minutes)))
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn times_are_read_in_every_usual_form() {
        for text in [
            "1796024918.5",
            "1796024918500",
            "1796024918500000",
            "1796024918500000000",
            "2026/11/30 07:48:38.500",
            "2026-11-30 07:48:38,500",
            "2026-11-30T07:48:38.5Z",
            "2026-11-30T08:48:38.500000+01:00",
            "2026-11-30 02:18:38.5-0530",
            "2026-11-30 07:48:38.5 UTC",
        ] {
            let time = read(text).unwrap_or_else(|| panic!("{text}"));
            assert!((time - 1_796_024_918.5).abs() < 1e-3, "{text}: {time}");
        }
        for text in [
            "",
            "noon",
            "-5",
            "nan",
            "1e300",
            "2026-13-01 00:00:00",
            "2026-11-30",
            "2026-11-30 07:48:38+99:00",
            "äöüäöüäöüä",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}

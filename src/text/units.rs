//! Quantities as people read them.

use std::time::Duration;

/// A byte count with a binary unit and three figures (`1.25 GiB`).
pub fn bytes(value: f64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if value.abs() < 1024.0 {
        return format!("{value:.0} B");
    }
    let mut scaled = value / 1024.0;
    let mut unit = "KiB";
    for larger in UNITS.into_iter().skip(1) {
        if scaled.abs() < 1024.0 {
            break;
        }
        scaled /= 1024.0;
        unit = larger;
    }
    let digits = match scaled.abs() {
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{scaled:.digits$} {unit}")
}

/// As [`bytes`], of a whole count.
pub fn whole_bytes(value: u64) -> String {
    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "three figures are shown"
    )]
    bytes(value as f64)
}

/// A ratio in percent without decimals (`92%`).
pub fn percent(ratio: f64) -> String {
    format!("{:.0}%", 100.0 * ratio)
}

/// A duration in its two largest units (`3 h 20 min`).
pub fn duration(seconds: f64) -> String {
    let (minute, hour, day) = (60.0, 3600.0, 86_400.0);
    let split =
        |large: f64, small: f64| ((seconds / large).floor(), (seconds % large / small).floor());
    if seconds < minute {
        format!("{seconds:.0} s")
    } else if seconds < hour {
        let (minutes, rest) = split(minute, 1.0);
        format!("{minutes} min {rest} s")
    } else if seconds < day {
        let (hours, rest) = split(hour, minute);
        format!("{hours} h {rest} min")
    } else {
        let (days, rest) = split(day, hour);
        format!("{days} d {rest} h")
    }
}

/// A Unix time as RFC 3339 in UTC, to the second.
///
/// Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms": years begin in March, so that the leap day is the
/// last, and 400 of them have 146,097 days.
pub fn rfc3339(time: f64) -> String {
    let seconds = Duration::try_from_secs_f64(time).unwrap_or_default().as_secs();
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let leap_days = day_of_era / 1460 + day_of_era / 146_096 - day_of_era / 36_524;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::{bytes, duration, percent};

    #[test]
    fn figures_read_well() {
        let mib = 1_048_576.0;
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(1023.0), "1023 B");
        assert_eq!(bytes(12.0 * mib), "12.0 MiB");
        assert_eq!(bytes(1536.0 * mib), "1.50 GiB");
        assert_eq!(bytes(-2.0 * mib), "-2.00 MiB");
        assert_eq!(duration(59.0), "59 s");
        assert_eq!(duration(24.0 * 60.0), "24 min 0 s");
        assert_eq!(duration(90_061.0), "1 d 1 h");
        assert_eq!(percent(0.924), "92%");
    }
}

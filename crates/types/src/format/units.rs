//! Quantities as people read them: bytes, rates, shares, counts, durations, dates.

use std::time::{Duration, UNIX_EPOCH};

/// Stands for an unknown value.
pub const UNKNOWN: &str = "–";

/// Returns the text, or what stands for an unknown value.
pub fn or_unknown(text: Option<String>) -> String {
    text.unwrap_or_else(|| UNKNOWN.to_owned())
}

/// The value from which a unit would need four figures.
const FOUR_FIGURES: f64 = 999.5;

/// Writes a byte count with a binary unit and three figures at most (`1.25 GiB`, `0.98 GiB`).
pub fn bytes(value: f64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if value.abs() < FOUR_FIGURES {
        return format!("{value:.0} B");
    }
    let mut scaled = value / 1024.0;
    let mut unit = "KiB";
    for larger in UNITS.into_iter().skip(1) {
        if scaled.abs() < FOUR_FIGURES {
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

/// Writes a whole byte count as [`bytes`] does.
pub fn whole_bytes(value: u64) -> String {
    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "three figures are shown"
    )]
    bytes(value as f64)
}

/// Writes a byte count with its sign (`+1.25 GiB`, `-3 B`).
pub fn signed_bytes(value: f64) -> String {
    let sign = if value < 0.0 { '-' } else { '+' };
    format!("{sign}{}", bytes(value.abs()))
}

/// Writes bytes per something (`1.25 MiB/step`).
pub fn rate(bytes_per_unit: f64, unit: &str) -> String {
    format!("{}/{unit}", bytes(bytes_per_unit))
}

/// Writes bytes per second as bytes per hour, which growth is slow enough for (`1.25 GiB/h`).
pub fn hourly(bytes_per_second: f64) -> String {
    rate(3600.0 * bytes_per_second, "h")
}

/// Writes a ratio in percent without decimals (`92%`).
pub fn percent(ratio: f64) -> String {
    format!("{:.0}%", 100.0 * ratio)
}

/// Writes a ratio in percent, with a decimal where it is below a tenth (`9.2%`).
pub fn share(ratio: f64) -> String {
    if ratio.abs() < 0.1 { format!("{:.1}%", 100.0 * ratio) } else { percent(ratio) }
}

/// Writes a count with its thousands apart (`1,500,520`).
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Writes a figure without decimals, with its thousands apart.
pub fn whole(value: f64) -> String {
    let digits = format!("{value:.0}");
    digits.parse().map_or(digits, grouped)
}

/// Writes a figure without decimals and what it counts (`1 step`, `412,000 steps`).
pub fn counted(value: f64, noun: &str) -> String {
    named(&whole(value), noun)
}

/// Writes how many there are of something, as [`counted`] does.
pub fn many(count: u64, noun: &str) -> String {
    named(&grouped(count), noun)
}

fn named(count: &str, noun: &str) -> String {
    let plural = if count == "1" { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Writes a duration in its two largest units, the smaller one rounded down (`3 h 20 min`).
pub fn duration(seconds: f64) -> String {
    let (minute, hour, day) = (60.0, 3600.0, 86_400.0);
    let split =
        |large: f64, small: f64| ((seconds / large).floor(), (seconds % large / small).floor());
    if seconds < minute {
        format!("{} s", seconds.floor())
    } else if seconds < hour {
        let (minutes, rest) = split(minute, 1.0);
        format!("{minutes} min {rest} s")
    } else if seconds < day {
        let (hours, rest) = split(hour, minute);
        format!("{hours} h {rest} min")
    } else {
        let (days, rest) = split(day, hour);
        format!("{} d {rest} h", whole(days))
    }
}

/// Writes a duration that was chosen, in all the units that it takes (`1 d`, `1 h 30 min`, `500
/// ms`).
pub fn period(duration: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let mut rest = duration.as_secs();
    let mut parts = Vec::new();
    for (seconds, unit) in UNITS {
        if rest >= seconds {
            parts.push(format!("{} {unit}", grouped(rest / seconds)));
            rest %= seconds;
        }
    }
    match duration.subsec_millis() {
        0 if parts.is_empty() => parts.push("0 s".to_owned()),
        0 => {}
        milliseconds => parts.push(format!("{milliseconds} ms")),
    }
    parts.join(" ")
}

/// Writes a time that is left, for a sentence (`about 3 h 20 min`, `less than a second`).
pub fn time_left(seconds: f64) -> String {
    if seconds < 1.0 {
        "less than a second".to_owned()
    } else {
        format!("about {}", duration(seconds))
    }
}

/// Writes the least time that is left, for a sentence (`at least 3 h 20 min`).
pub fn least_time_left(seconds: f64) -> String {
    if seconds < 1.0 {
        "an unknown time, perhaps at once".to_owned()
    } else {
        format!("at least {}", duration(seconds))
    }
}

/// Writes a time to OOM in seconds, for a cell (`3 h 20 min`, `< 1 s`). Where it is not known,
/// writes the `least` (`≥ 3 h 20 min`), which says nothing below a second.
pub fn time_left_cell(seconds: Option<f64>, least: Option<f64>) -> Option<String> {
    match seconds {
        Some(seconds) if seconds < 1.0 => Some("< 1 s".to_owned()),
        Some(seconds) => Some(duration(seconds)),
        None => {
            least.filter(|least| *least >= 1.0).map(|least| format!("≥ {}", duration(least)))
        }
    }
}

/// Writes a Unix time as a date and time in UTC, to the second (`2025-12-05 01:13:03`).
pub fn date(time: f64) -> String {
    rfc3339(time).trim_end_matches('Z').replace('T', " ")
}

/// The last second of the year 9999, the last one that RFC 3339 knows.
const LAST_DATE: Duration = Duration::from_secs(253_402_300_799);

/// Writes a Unix time as RFC 3339 in UTC, to the second.
pub fn rfc3339(time: f64) -> String {
    let since = Duration::try_from_secs_f64(time).unwrap_or_default().min(LAST_DATE);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::format::units::{
        bytes, counted, date, duration, grouped, hourly, least_time_left, percent, period,
        rate, rfc3339, share, signed_bytes, time_left, time_left_cell, whole,
    };

    const MIB: f64 = 1_048_576.0;

    #[test]
    fn byte_counts_have_three_figures_and_a_unit() {
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(999.0), "999 B");
        assert_eq!(bytes(1023.0), "1.00 KiB");
        assert_eq!(bytes(999.4 * MIB), "999 MiB");
        assert_eq!(bytes(-1002.0 * MIB), "-0.98 GiB");
        assert_eq!(bytes(12.0 * MIB), "12.0 MiB");
        assert_eq!(bytes(1536.0 * MIB), "1.50 GiB");
        assert_eq!(bytes(-2.0 * MIB), "-2.00 MiB");
        assert_eq!([1536.0, -3.0, 0.0].map(signed_bytes), ["+1.50 KiB", "-3 B", "+0 B"]);
        assert_eq!(
            (rate(MIB, "step"), hourly(MIB)),
            ("1.00 MiB/step".into(), "3.52 GiB/h".into())
        );
    }

    #[test]
    fn time_left_under_a_second_is_not_zero_seconds() {
        assert_eq!([0.0, 0.99].map(time_left), ["less than a second"; 2]);
        let cell = |seconds| time_left_cell(Some(seconds), Some(0.5));
        assert_eq!([0.0, 0.99].map(cell), [Some("< 1 s".into()), Some("< 1 s".into())]);
        assert_eq!((time_left(1.0), cell(1.0)), ("about 1 s".into(), Some("1 s".into())));
        assert_eq!(
            (least_time_left(0.5), time_left_cell(None, Some(0.5))),
            ("an unknown time, perhaps at once".into(), None)
        );
        assert_eq!(
            (least_time_left(60.0), time_left_cell(None, Some(60.0))),
            ("at least 1 min 0 s".into(), Some("≥ 1 min 0 s".into()))
        );
        assert_eq!(time_left(12_000.0), "about 3 h 20 min");
    }

    #[test]
    fn durations_have_their_two_largest_units() {
        assert_eq!(duration(59.0), "59 s");
        assert_eq!(duration(24.0 * 60.0), "24 min 0 s");
        assert_eq!(duration(90_061.0), "1 d 1 h");
        // Rounded down like the larger ones.
        assert_eq!([59.9, 119.9].map(duration), ["59 s", "1 min 59 s"]);
    }

    #[test]
    fn chosen_durations_have_the_units_that_they_take() {
        let of = |seconds| period(Duration::from_secs(seconds));
        assert_eq!([86_400, 5400, 90, 0].map(of), ["1 d", "1 h 30 min", "1 min 30 s", "0 s"]);
        assert_eq!(period(Duration::from_millis(1500)), "1 s 500 ms");
    }

    #[test]
    fn one_of_something_is_singular() {
        assert_eq!([0.0, 1.0].map(|n| counted(n, "step")), ["0 steps", "1 step"]);
        assert_eq!([1.4, 412_000.0].map(|n| counted(n, "step")), ["1 step", "412,000 steps"]);
    }

    #[test]
    fn small_shares_have_a_decimal() {
        assert_eq!(
            (percent(0.924), share(0.924), share(0.0924)),
            ("92%".into(), "92%".into(), "9.2%".into())
        );
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!((whole(4096.4), whole(-3.0)), ("4,096".to_owned(), "-3".to_owned()));
    }

    #[test]
    fn times_are_dates() {
        assert_eq!(date(0.0), "1970-01-01 00:00:00");
        assert_eq!(date(951_782_400.0), "2000-02-29 00:00:00");
        assert_eq!(date(1_764_897_183.3), "2025-12-05 01:13:03");
        assert_eq!(date(4_107_542_399.0), "2100-02-28 23:59:59");
        assert_eq!(rfc3339(4_107_542_400.0), "2100-03-01T00:00:00Z");
        assert_eq!(rfc3339(f64::MAX), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(1e15), "9999-12-31T23:59:59Z");
    }
}

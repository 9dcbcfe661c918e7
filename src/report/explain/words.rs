//! Failures of gates and their figures in words.

use crate::analysis::creep::gates::{Bound, GateFailure, GateUnit};
use crate::text::units::{bytes, duration, percent};

/// Writes the value and the limit of a failure as short as it fits a table.
pub fn measure(failure: &GateFailure) -> String {
    let row = failure.gate.row();
    let sign = match row.bound {
        Bound::AtLeast => "<",
        Bound::AtMost => ">",
    };
    let (value, limit) = if row.unit == GateUnit::Count {
        (whole(failure.value), whole(failure.limit))
    } else {
        figures(failure)
    };
    format!("{value} {sign} {limit}")
}

/// Writes a failure as a clause.
pub fn reason(failure: &GateFailure) -> String {
    let (value, limit) = figures(failure);
    (failure.gate.row().reason)(&value, &limit)
}

/// The value and the limit of a failure.
fn figures(failure: &GateFailure) -> (String, String) {
    let (value, limit) = (failure.value, failure.limit);
    match failure.gate.row().unit {
        GateUnit::Bytes => (bytes(value), bytes(limit)),
        GateUnit::Count => (format!("{value:.0}"), format!("{limit:.0}")),
        GateUnit::Fraction => (format!("{value:.1}"), format!("{limit:.0}")),
        GateUnit::Share => (share(value), share(limit)),
        GateUnit::Seconds => (duration(value), duration(limit)),
    }
}

/// A share in percent, with a decimal where it is small.
pub fn share(ratio: f64) -> String {
    if ratio.abs() < 0.1 { format!("{:.1}%", 100.0 * ratio) } else { percent(ratio) }
}

/// A figure that is a whole number.
pub fn whole(value: f64) -> String {
    let digits = format!("{value:.0}");
    digits.parse().map_or(digits, grouped)
}

/// A number with its thousands apart.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{grouped, measure, reason, whole};
    use crate::analysis::creep::gates::{Gate, GateFailure};

    #[test]
    fn failures_are_in_the_unit_and_direction_of_their_gate() {
        let failure = |gate, value, limit| GateFailure { gate, value, limit };
        for (failure, short, long) in [
            (
                failure(Gate::Records, 1500.0, 2048.0),
                "1,500 < 2,048",
                "1500 records and needs 2048",
            ),
            (
                failure(Gate::Straight, 9.96, 10.0),
                "10.0 < 10",
                "worth 10.0 equal moves, and needs 10",
            ),
            (
                failure(Gate::StairHeights, 0.42, 0.3),
                "42% > 30%",
                "42% off the mean height, and may be 30%",
            ),
            (
                failure(Gate::Horizon, 345_600.0, 259_200.0),
                "4 d 0 h > 3 d 0 h",
                "lasts 4 d 0 h, and creep is what ends within 3 d 0 h",
            ),
        ] {
            assert_eq!(measure(&failure), short);
            assert!(reason(&failure).contains(long), "{}", reason(&failure));
        }
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!((whole(4096.4), whole(-3.0)), ("4,096".to_owned(), "-3".to_owned()));
    }
}

//! Failures of gates and their figures in words.

use crate::analysis::creep::gates::{Bound, GateFailure, GateUnit};
use crate::text::units::{bytes, duration, share, whole};

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
    let words = (failure.gate.row().reason)(&value, &limit);
    match value.as_str() {
        "1" => COUNTED.iter().fold(words, |words, (one, ones)| words.replace(ones, one)),
        _ => words,
    }
}

/// What gates count, one of it and as their reasons have it.
const COUNTED: [(&str, &str); 3] =
    [(" 1 block ", " 1 blocks "), (" 1 record ", " 1 records "), (" 1 step ", " 1 steps ")];

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

#[cfg(test)]
mod tests {
    use super::{measure, reason};
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
            (failure(Gate::Blocks, 1.0, 8.0), "1 < 8", "it had 1 block and needs 8"),
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
}

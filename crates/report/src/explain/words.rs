//! The explanation that stopped a window, in words.

use crate::explain::test_words::{TestUnit, words_of};
use stepmem_detect::{Bound, Stopped};
use stepmem_types::format::units::{bytes, duration, share, whole};

/// Writes the value and the limit of a failure as short as it fits a table.
pub(crate) fn measure(failure: &Stopped) -> String {
    let row = words_of(failure.explanation);
    let sign = match failure.explanation.bound() {
        Bound::AtLeast => "<",
        Bound::AtMost => ">",
    };
    let (value, limit) = if row.unit == TestUnit::Count {
        (whole(failure.value), format!("{} blocks", whole(failure.limit)))
    } else {
        figures(failure)
    };
    format!("{value} {sign} {limit}")
}

/// Writes a failure as a clause.
pub(crate) fn reason(failure: &Stopped) -> String {
    let (value, limit) = figures(failure);
    (words_of(failure.explanation).reason)(&value, &limit)
}

/// The value and the limit of a failure.
fn figures(failure: &Stopped) -> (String, String) {
    let (value, limit) = (failure.value, failure.limit);
    match words_of(failure.explanation).unit {
        TestUnit::Bytes => (bytes(value), bytes(limit)),
        TestUnit::Count => (format!("{value:.0}"), format!("{limit:.0}")),
        TestUnit::Number => (format!("{value:.1}"), format!("{limit:.1}")),
        TestUnit::Share => (share(value), share(limit)),
        TestUnit::Seconds => (duration(value), duration(limit)),
    }
}

#[cfg(test)]
mod tests {
    use super::{measure, reason};
    use stepmem_detect::{Explanation, Stopped};

    #[test]
    fn failures_are_in_the_unit_and_direction_of_their_gate() {
        let failure = |explanation, value, limit| Stopped { explanation, value, limit };
        for (failure, short, long) in [
            (
                failure(Explanation::TooShort, 11.0, 12.0),
                "11 < 12 blocks",
                "it has 11 of the 12 blocks that it needs",
            ),
            (
                failure(Explanation::RandomWalk, 4.96, 5.04),
                "5.0 < 5.0",
                "it grew by 5.0 standard deviations of a random walk, which reaches 5.0",
            ),
            (
                failure(Explanation::TooShort, 1.0, 8.0),
                "1 < 8 blocks",
                "it has 1 of the 8 blocks that it needs",
            ),
            (
                failure(Explanation::ComesAndGoes, 0.02, 0.1),
                "2.0% < 10%",
                "it has used 2.0% of what there was to grow into, and has to use 10% in so short",
            ),
            (
                failure(Explanation::FarOff, 345_600.0, 259_200.0),
                "4 d 0 h > 3 d 0 h",
                "lasts 4 d 0 h; only growth that ends within 3 d 0 h is creep",
            ),
        ] {
            assert_eq!(measure(&failure), short);
            assert!(reason(&failure).contains(long), "{}", reason(&failure));
        }
    }
}

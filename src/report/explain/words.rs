//! Gates and figures in words.

use crate::analysis::creep::gates::{Gate, Stop};
use crate::text::units::{bytes, duration, percent};

/// The gate in a word or two.
pub fn name(gate: Gate) -> &'static str {
    match gate {
        Gate::Blocks => "too short",
        Gate::Known => "unknown",
        Gate::Rise => "no rise",
        Gate::Straight => "zigzag",
        Gate::Steady => "slows down",
        Gate::SlackGain | Gate::SlackSlope => "not slack",
        Gate::Growth => "no growth",
        Gate::NewHigh => "been there",
        Gate::WorkingSet => "working set",
        Gate::BatchGrowth => "batch",
        Gate::Share => "small",
        Gate::Records => "short",
        Gate::Horizon => "far off",
        Gate::StairHeights => "unequal",
        Gate::StairDistances => "uneven",
        Gate::StairLandings | Gate::StairClimb => "not level",
        Gate::StairsApart => "ramp",
        Gate::StairsLeft => "many left",
    }
}

/// What a window showed and had to show, as short as it fits a table.
pub fn measure(stop: &Stop) -> String {
    let (value, limit) = (stop.value, stop.limit);
    let sign = if stop.is_at_most() { ">" } else { "<" };
    match stop.gate {
        Gate::Rise | Gate::Growth | Gate::BatchGrowth | Gate::NewHigh => {
            format!("{} {sign} {}", bytes(value), bytes(limit))
        }
        Gate::Straight | Gate::StairsLeft => format!("{value:.1} {sign} {limit:.0}"),
        Gate::Blocks | Gate::Known | Gate::Records | Gate::StairsApart => {
            format!("{} {sign} {}", whole(value), whole(limit))
        }
        Gate::Horizon => format!("{} {sign} {}", duration(value), duration(limit)),
        Gate::Share
        | Gate::Steady
        | Gate::SlackGain
        | Gate::SlackSlope
        | Gate::WorkingSet
        | Gate::StairHeights
        | Gate::StairDistances
        | Gate::StairLandings
        | Gate::StairClimb => format!("{} {sign} {}", share(value), share(limit)),
    }
}

/// What stopped a window, as a clause.
pub fn reason(stop: &Stop) -> String {
    let (value, limit) = (stop.value, stop.limit);
    match stop.gate {
        Gate::Blocks => format!("it had {value:.0} blocks and needs {limit:.0}"),
        Gate::Known => format!("{value:.0} of its {limit:.0} blocks know the figure"),
        Gate::Rise => format!("it rose by {} and needs {}", bytes(value), bytes(limit)),
        Gate::Straight => format!(
            "it went up and down: worth {value:.1} equal moves, and needs {limit:.0} to be no \
             random walk"
        ),
        Gate::Steady => format!(
            "it slows down: its last quarter gained {} of what the first did, and needs {}",
            share(value),
            share(limit)
        ),
        Gate::SlackGain | Gate::SlackSlope => format!(
            "unused memory carries {} of the growth, and needs {}: the rest is live",
            share(value),
            share(limit)
        ),
        Gate::Growth => {
            format!("the line through it climbs by {} and needs {}", bytes(value), bytes(limit))
        }
        Gate::NewHigh => format!(
            "it had been as high before: it ends at {} and needs {}",
            bytes(value),
            bytes(limit)
        ),
        Gate::WorkingSet => format!(
            "the peak grows along, by {} of the slope, and may by {}",
            share(value),
            share(limit)
        ),
        Gate::BatchGrowth => format!(
            "larger batches explain it: {} of growth are left, and it needs {}",
            bytes(value),
            bytes(limit)
        ),
        Gate::Share => format!(
            "it has eaten {} of what there was to grow into, and needs {}",
            share(value),
            share(limit)
        ),
        Gate::Records => format!("its window has {value:.0} records and needs {limit:.0}"),
        Gate::Horizon => format!(
            "what is left lasts {}, and creep is what ends within {}",
            duration(value),
            duration(limit)
        ),
        Gate::StairHeights => {
            format!("one is {} off the mean height, and may be {}", share(value), share(limit))
        }
        Gate::StairDistances => {
            format!(
                "one is {} off the mean distance, and may be {}",
                share(value),
                share(limit)
            )
        }
        Gate::StairLandings | Gate::StairClimb => {
            format!(
                "it is not level between them, {} off, and may be {}",
                share(value),
                share(limit)
            )
        }
        Gate::StairsApart => format!("they are {value:.0} steps apart and need {limit:.0}"),
        Gate::StairsLeft => {
            format!("{value:.1} more fit, and may be {limit:.0} after only three")
        }
    }
}

/// What it is to be stopped by a gate.
pub fn meaning(gate: Gate) -> &'static str {
    match gate {
        Gate::Blocks => "too few blocks",
        Gate::Known => "a figure is not known",
        Gate::Rise => "ends hardly above its beginning: by less than about 2% of what is left",
        Gate::Straight => "goes up and down: worth fewer equal moves than no random walk is",
        Gate::Steady => {
            "its last quarter gained less than 80% of what its first did: a cache fills"
        }
        Gate::SlackGain => "it is live memory that carries the growth of reserved memory",
        Gate::Growth => "climbs less than its ends suggest",
        Gate::NewHigh => "ends not far enough above what this life had before: a sawtooth",
        Gate::SlackSlope => "it is live memory that carries the slope of reserved memory",
        Gate::WorkingSet => "peaks grow along: larger steps, no fragmentation",
        Gate::BatchGrowth => "larger batches explain it",
        Gate::Share => "has eaten too little of what is left; short windows need more",
        Gate::Records => "grows steadily, but over too few records to be called creep",
        Gate::Horizon => "grows steadily, but leaves more than three days",
        Gate::StairHeights
        | Gate::StairDistances
        | Gate::StairLandings
        | Gate::StairClimb
        | Gate::StairsApart
        | Gate::StairsLeft => "said of stairs only",
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
    use super::{grouped, whole};

    #[test]
    fn thousands_are_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!((whole(4096.4), whole(-3.0)), ("4,096".to_owned(), "-3".to_owned()));
    }
}

//! Figures and units, as programs write them.

use std::str::FromStr;

use crate::series::words::words;
use stepmem_types::units::parse_size;

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// A unit of this many bytes.
    Bytes(f64),
    /// A hundredth of the capacity.
    Percent,
}

impl FromStr for Unit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim().to_ascii_lowercase();
        let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic());
        match text.as_str() {
            "%" | "percent" | "pct" => Ok(Self::Percent),
            "byte" | "bytes" => Ok(Self::Bytes(1.0)),
            _ => parse_size(&format!("1{text}"))
                .filter(|_| is_word)
                .map(Self::Bytes)
                .ok_or_else(|| {
                    "it is none of bytes, kB, KiB, MB, MiB, GB, GiB, TB, TiB and %".to_owned()
                }),
        }
    }
}

impl Unit {
    /// Returns the unit that a name has (`memory.used [MiB]`, `gpu_mem_gb`, `…Bytes`).
    pub(super) fn of_name(name: &str) -> Option<Self> {
        if name.trim_end().trim_end_matches([']', ')']).ends_with('%') {
            return Some(Self::Percent);
        }
        let words = words(name);
        let whole = name.split(|c: char| !c.is_ascii_alphanumeric());
        // A lone B may be anything.
        let mut units = whole
            .rev()
            .chain(words.iter().rev().map(String::as_str))
            .filter(|word| !word.eq_ignore_ascii_case("b"));
        let has = |of: &str| words.iter().any(|word| word == of);
        // Up to 4.8 dcgm-exporter names no unit: the framebuffer is in MiB.
        let of_dcgm = || "MiB".parse().ok().filter(|_| has("dcgm") && has("fb"));
        units.find_map(|word| word.parse().ok()).or_else(of_dcgm)
    }
}

/// A cell of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Figure {
    /// Nothing was known.
    Absent,
    /// A number of 0 or more, and its unit where the cell has it.
    Number(f64, Option<Unit>),
    /// Something else.
    Unreadable,
}

impl Figure {
    /// Reads a cell (`1234`, `1234 MiB`, `[N/A]`).
    pub(super) fn read(cell: &str) -> Self {
        let cell = cell.trim();
        if cell.is_empty()
            || cell.starts_with('[')
            || ABSENT.iter().any(|of| cell.eq_ignore_ascii_case(of))
        {
            return Self::Absent;
        }
        if let Ok(number) = cell.parse::<f64>() {
            return Self::of(number, None);
        }
        let is_of_unit = |c: char| c == '%' || c.is_alphabetic() || c.is_whitespace();
        let Some((number, unit)) =
            cell.find(is_of_unit).and_then(|at| cell.split_at_checked(at))
        else {
            return Self::Unreadable;
        };
        match (number.parse(), unit.parse()) {
            (Ok(number), Ok(unit)) => Self::of(number, Some(unit)),
            _ => Self::Unreadable,
        }
    }

    /// Returns a number as a figure.
    pub(super) fn of(number: f64, unit: Option<Unit>) -> Self {
        match number {
            _ if !number.is_finite() => Self::Absent,
            0.0.. => Self::Number(number, unit),
            _ => Self::Unreadable,
        }
    }
}

/// The words that programs write for a figure that they do not know.
const ABSENT: [&str; 6] = ["n/a", "null", "none", "nan", "-", "err!"];

#[cfg(test)]
mod tests {
    use super::{Figure, Unit};

    #[test]
    fn cells_are_numbers_with_or_without_a_unit_or_say_nothing() {
        let mib = Unit::Bytes(1_048_576.0);
        for (cell, expected) in [
            ("1234 MiB", Figure::Number(1234.0, Some(mib))),
            ("1234MiB", Figure::Number(1234.0, Some(mib))),
            ("1.5e9", Figure::Number(1.5e9, None)),
            ("80 %", Figure::Number(80.0, Some(Unit::Percent))),
            ("[N/A]", Figure::Absent),
            ("[Insufficient Permissions]", Figure::Absent),
            ("NaN", Figure::Absent),
            ("inf", Figure::Absent),
            ("", Figure::Absent),
            ("-5", Figure::Unreadable),
            ("1,234 MiB", Figure::Unreadable),
            ("12 W", Figure::Unreadable),
            ("MiB", Figure::Unreadable),
        ] {
            assert_eq!(Figure::read(cell), expected, "{cell}");
        }
    }

    #[test]
    fn names_have_units() {
        let mib = Some(Unit::Bytes(1_048_576.0));
        for (name, expected) in [
            ("memory.used [MiB]", mib),
            ("DCGM_FI_DEV_FB_USED", mib),
            ("DCGM_FI_DEV_FB_USED_BYTES", Some(Unit::Bytes(1.0))),
            ("system.gpu.0.memoryAllocatedBytes", Some(Unit::Bytes(1.0))),
            ("container_memory_working_set_bytes", Some(Unit::Bytes(1.0))),
            ("mem (GB)", Some(Unit::Bytes(1e9))),
            ("utilization.memory [%]", Some(Unit::Percent)),
            ("clocks.mem [MHz]", None),
            ("plan b", None),
            ("memory", None),
        ] {
            assert_eq!(Unit::of_name(name), expected, "{name}");
        }
        for text in ["", "0kb", "W", "1"] {
            assert!(text.parse::<Unit>().is_err(), "{text}");
        }
    }
}

//! The series, and which are wanted.

use crate::series::figure::Unit;
use stepmem_types::format::clean::shortened;

/// Series of a file or a query.
pub const SERIES_MAX: usize = 1_024;
/// Points of all series of a file or a query.
pub const POINTS_MAX: usize = 4_194_304;
/// The longest line of a table, and the longest record of an event file that is decoded, in
/// bytes.
pub(super) const ROW_BYTES_MAX: usize = 1 << 20;
/// Columns of a table, and names of an event file.
pub(super) const COLUMNS_MAX: usize = 4_096;
/// Objects of a JSON line that are within each other.
pub(super) const DEPTH_MAX: u8 = 8;
/// Characters of the name of a series that are shown.
pub(super) const NAME_CHARS_MAX: usize = 120;

/// The series that are wanted, and what is known of them.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Names of columns; those of memory where it is empty.
    pub columns: Vec<String>,
    /// Names of the columns or labels that tell series apart; the usual ones where it is empty.
    pub by: Vec<String>,
    /// The column of times; the usual one where it is unknown.
    pub time: Option<String>,
    /// The unit of all figures.
    pub unit: Option<Unit>,
    /// The capacity of all, in bytes.
    pub capacity: Option<f64>,
    /// Names of the columns of a table without a line of them.
    pub header: Vec<String>,
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Csv,
    JsonLines,
    TensorBoard,
    Prometheus,
}

impl Format {
    /// Returns the format in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Csv => "CSV",
            Self::JsonLines => "JSON lines",
            Self::TensorBoard => "TensorBoard events",
            Self::Prometheus => "Prometheus",
        }
    }
}

/// The series of a file or a query.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The format that the bytes have.
    pub format: Format,
    /// The series, by name.
    pub series: Vec<Series>,
    /// The counts of what could not be read.
    pub left_out: LeftOut,
}

/// Counts of what was left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LeftOut {
    /// Rows without a time that can be read.
    pub rows_without_time: u64,
    /// Figures that are no size.
    pub figures_unreadable: u64,
    /// Further points at a time that has one.
    pub points_repeated: u64,
    /// Records that are damaged.
    pub records_damaged: u64,
    /// Records longer than `ROW_BYTES_MAX`, such as those of images.
    pub records_too_long: u64,
    /// Set when the end is missing.
    pub is_cut: bool,
}

/// A series.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The column, name or query of the series; clean text.
    pub column: String,
    /// The labels that tell it from others of that column; clean text.
    pub labels: Vec<(String, String)>,
    /// Set when its unit was guessed by the size of its figures.
    pub is_unit_guessed: bool,
    /// The capacity, in bytes.
    pub capacity: Option<f64>,
    /// The points, ascending by time, one at a time; at least one.
    pub points: Vec<Point>,
}

/// Bytes at a Unix time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub time: f64,
    pub bytes: f64,
}

impl Series {
    /// Returns its name, in at most `NAME_CHARS_MAX` characters.
    pub fn name(&self) -> String {
        let mut name = self.column.clone();
        for (label, value) in &self.labels {
            name.extend([" ", label, "=", value]);
        }
        shortened(name.trim_start(), NAME_CHARS_MAX)
    }

    /// Returns the seconds between neighboring points, at the median; `None` of one point.
    pub fn interval_seconds(&self) -> Option<f64> {
        let gaps = gaps(self.points.iter().map(|point| point.time));
        gaps.get(gaps.len() / 2).copied()
    }
}

/// Returns the time between neighbors, the shortest first.
pub(super) fn gaps(times: impl Iterator<Item = f64> + Clone) -> Vec<f64> {
    let mut gaps: Vec<f64> = times.clone().zip(times.skip(1)).map(|(a, b)| b - a).collect();
    gaps.sort_by(f64::total_cmp);
    gaps
}

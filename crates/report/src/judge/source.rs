//! What series were read from.

use serde::Serialize;

use crate::series::LeftOut;
use stepmem_types::claims::{Claim, Statement};
use stepmem_types::format::units::{grouped, many};

/// The source of series.
#[derive(Clone, Debug, Serialize)]
pub struct SourceTold {
    /// The file, or the address without its secrets.
    pub name: String,
    /// The format in words, such as `JSON lines`.
    pub format: &'static str,
    /// Number of series that it has.
    pub series: usize,
    /// The counts of what could not be read.
    pub left_out: LeftOut,
}

impl SourceTold {
    /// States what the source has, and what was left out.
    pub(super) fn statement(&self) -> Statement {
        let n_all = u64::try_from(self.series).unwrap_or(u64::MAX);
        let n_series = grouped(n_all);
        let left_out = &self.left_out;
        let mut words = format!("{} ({}): {n_series} series", self.name, self.format);
        for (n, noun, what) in [
            (left_out.rows_without_time, "row", "without a time"),
            (left_out.figures_unreadable, "figure", "of no size"),
            (left_out.points_repeated, "further sample", "of the same time"),
            (left_out.records_damaged, "record", "with damage"),
            (left_out.records_too_long, "record", "too long for scalars"),
        ] {
            if n > 0 {
                words.extend(["; left out: ", &many(n, noun), " ", what]);
            }
        }
        if left_out.is_cut {
            words += "; its end is missing";
        }
        Statement::new(Claim::SourceRead, words).of(real(n_all))
    }
}

/// Returns a number of series.
pub(super) fn real(n: u64) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}

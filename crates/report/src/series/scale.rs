//! The bytes of a series' figures, by their unit and its capacity.

use crate::series::error::SeriesError;
use crate::series::figure::Unit;
use crate::series::model::{Series, Wanted};
use stepmem_types::format::units::bytes;

/// Sets the capacity of a series: what is wanted, else what was `found`, in bytes. Returns the
/// bytes that a figure of 1 has.
///
/// # Errors
/// The figures are shares of a capacity that is unknown.
pub(super) fn scale(
    series: &mut Series,
    unit: Unit,
    found: Option<f64>,
    wanted: &Wanted,
) -> Result<f64, SeriesError> {
    series.capacity = wanted.capacity.or(found);
    match unit {
        Unit::Bytes(each) => Ok(each),
        Unit::Percent => {
            let capacity = series.capacity;
            Ok(capacity.ok_or_else(|| SeriesError::NoCapacity(series.name()))? / 100.0)
        }
    }
}

/// Checks the greatest bytes of a series against the capacity that is wanted.
pub(super) fn check_below_capacity(
    series: &Series,
    greatest: f64,
    wanted: &Wanted,
) -> Result<(), SeriesError> {
    match wanted.capacity {
        Some(capacity) if capacity < greatest => {
            let (value, capacity) = (bytes(greatest), bytes(capacity));
            Err(SeriesError::AboveCapacity { name: series.name(), value, capacity })
        }
        _ => Ok(()),
    }
}

//! A capacity in words.

use stepmem_engine::LimitOrigin;
use stepmem_types::format::units::{bytes, or_unknown};
use stepmem_types::units::Bytes;

/// Returns a capacity, and who set it where that is a limit of the process's own.
pub(crate) fn limited_quantity(capacity: Option<Bytes>, set_by: Option<LimitOrigin>) -> String {
    let set_by = set_by.map_or_else(String::new, |origin| format!(" ({})", origin.as_label()));
    or_unknown(capacity.map(|capacity| format!("{}{set_by}", bytes(capacity.as_f64()))))
}

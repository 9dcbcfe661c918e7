//! Statistics on short slices of points: free functions without state, units or allocation.

pub mod changepoint;
pub mod least_squares;
pub mod median;
pub mod normal;
pub mod quarters;
pub mod slope_error;
pub mod student;
pub mod theil_sen;

/// Returns a number of points as a float.
pub fn count(n: usize) -> f64 {
    u32::try_from(n).map_or(f64::INFINITY, f64::from)
}

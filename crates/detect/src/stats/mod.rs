//! Statistics on short slices of points: free functions without state, units or allocation.

pub(crate) mod changepoint;
pub(crate) mod least_squares;
pub(crate) mod median;
pub(crate) mod normal;
pub(crate) mod quarters;
pub(crate) mod slope_error;
pub(crate) mod student;
pub(crate) mod theil_sen;

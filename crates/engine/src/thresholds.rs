//! The limits of findings that users may set.

/// The limits that findings are judged by.
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds {
    /// Peak by capacity from which pressure is a warning.
    pub pressure_warning: f64,
    /// Peak by capacity from which pressure is critical.
    pub pressure_critical: f64,
    /// Skew from which a run out of balance is a warning.
    pub imbalance_warning: f64,
    /// Skew from which a run out of balance is critical.
    pub imbalance_critical: f64,
    /// A confirmed creep whose time to out-of-memory is below this many seconds is critical.
    pub creep_critical_eta_seconds: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            pressure_warning: 0.92,
            pressure_critical: 0.97,
            imbalance_warning: 0.20,
            imbalance_critical: 0.30,
            creep_critical_eta_seconds: 6.0 * 3600.0,
        }
    }
}

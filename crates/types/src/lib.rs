//! The vocabulary: names, quantities, steps and devices. It depends on nothing; if a value
//! exists, it is in range.

pub mod characters;
pub mod device;
pub mod end;
pub mod format;
pub mod host;
pub mod ids;
pub mod launch;
pub mod nvml_code;
pub mod refused;
pub mod saved;
pub mod site;
pub mod step;
pub mod units;
pub mod url;

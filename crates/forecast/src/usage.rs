//! The memory in use where growth was measured.

use serde::{Deserialize, Serialize};

use stepmem_types::saved;

/// The most memory that was in use, in bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Usage {
    /// The highest peak of live memory.
    #[serde(deserialize_with = "saved::places")]
    pub peak: f64,
    /// The most reserved memory.
    #[serde(deserialize_with = "saved::places")]
    pub reserved: f64,
}

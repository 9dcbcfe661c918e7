//! The files in `/dev/shm` that grow: what they take, what fits, and what to do.

use serde::{Deserialize, Serialize};

use crate::ranks::view::RankView;
use stepmem_detect::{Outlook, Signal};
use stepmem_types::claims::{Claim, Statement};
use stepmem_types::format::units::bytes;
use stepmem_types::units::Bytes;

/// Files in `/dev/shm`, as they were last read.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ShmFigures {
    #[serde(rename = "used_bytes")]
    pub used: Bytes,
    /// The most that fits.
    #[serde(rename = "limit_bytes")]
    pub limit: Bytes,
}

impl ShmFigures {
    /// Returns the files that a rank sees, where they are what grows.
    pub fn of_rank(rank: &RankView<'_>, outlook: &Outlook) -> Option<Self> {
        let host = rank.host.filter(|_| outlook.signal == Signal::Shm)?;
        host.shm().map(|(used, limit)| Self { used, limit })
    }

    /// States what they take.
    pub fn held(self, is_over: bool) -> Statement {
        let (used, limit) = (self.used.as_f64(), self.limit.as_f64());
        let verb = if is_over { "held" } else { "holds" };
        let words = format!("it {verb} {} of {}", bytes(used), bytes(limit));
        Statement::new(Claim::ShmHolds, words).of(used)
    }

    #[cfg(test)]
    pub fn example() -> Self {
        use crate::diagnosis::examples::bytes;
        Self { used: bytes(768 << 20), limit: bytes(1 << 30) }
    }
}

/// The advice where files in `/dev/shm` grow.
pub const SHM_ADVICE: &str = "Look at shared memory that is closed but never unlinked (SharedMemory.unlink, ls -l /dev/shm): it stays when its process \
                              ends. A process that writes to a full /dev/shm dies of a bus error; docker run --shm-size sets its size.";

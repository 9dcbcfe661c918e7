//! The child processes whose memory grows: which they are, what they hold, and what to do.

use serde::{Deserialize, Serialize};

use crate::ranks::host::ChildView;
use crate::ranks::view::RankView;
use stepmem_detect::{Outlook, Signal};
use stepmem_types::claims::{Claim, Statement};
use stepmem_types::format::units::bytes;
use stepmem_types::units::Bytes;

/// Processes that grow by less than this share of what the others do are not named with them.
const NAMED_RATIO_MIN: f64 = 0.1;

/// The child processes of a rank whose memory grows.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ChildrenFigures {
    /// Processes that `multiprocessing` started; absent where they do not grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<GroupFigures>,
    /// The others; absent where they do not grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child_processes: Option<GroupFigures>,
}

/// Child processes of one kind.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct GroupFigures {
    pub count: u32,
    /// The memory that they share with no other process; absent where it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
}

impl ChildrenFigures {
    /// Returns the child processes of a rank behind the growth of their memory.
    pub fn of_rank(rank: &RankView<'_>, outlook: &Outlook) -> Option<Box<Self>> {
        let host = rank.host.filter(|_| outlook.signal == Signal::Children)?;
        let view = host.view();
        let has_ended = !host.has_children();
        let rate = |of: Option<ChildView>| of.and_then(|of| of.bytes_per_step).unwrap_or(0.0);
        let most = rate(view.workers).max(rate(view.child_processes));
        // Where no rate is known, as of a rank without steps, all are named.
        let named = |of: Option<ChildView>| {
            let is_growing = most <= 0.0 || rate(of) >= NAMED_RATIO_MIN * most;
            let present = of.filter(|of| is_growing && (has_ended || !of.ended));
            present.map(|of| GroupFigures { count: of.count, bytes: of.bytes })
        };
        Some(Box::new(Self {
            workers: named(view.workers),
            child_processes: named(view.child_processes),
        }))
    }

    fn names(&self) -> String {
        let named = |of: GroupFigures, one: &str, many: &str| {
            format!("{} {}", of.count, if of.count == 1 { one } else { many })
        };
        match (self.workers, self.child_processes) {
            (Some(workers), None) => named(workers, "worker", "workers"),
            (None, Some(others)) => named(others, "child process", "child processes"),
            (Some(workers), Some(others)) => format!(
                "{} and {}",
                named(workers, "worker", "workers"),
                named(others, "other child process", "other child processes")
            ),
            (None, None) => "child processes".to_owned(),
        }
    }

    /// Says that their memory grows.
    pub fn what(&self) -> String {
        format!("the memory of {} grows", self.names())
    }

    /// States what they hold; `None` where that cannot be read.
    pub fn held(&self, is_over: bool) -> Option<Statement> {
        let groups = || [self.workers, self.child_processes].into_iter().flatten();
        let held = groups().map(|of| of.bytes.map(Bytes::as_f64)).sum::<Option<f64>>()?;
        let n_processes: u32 = groups().map(|of| of.count).sum();
        let verb = match (n_processes, is_over) {
            (1, false) => "it holds",
            (1, true) => "it held",
            (_, false) => "they hold",
            (_, true) => "they held",
        };
        let words = format!("{verb} {}", bytes(held));
        Some(Statement::new(Claim::ChildrenHold, words).of(held))
    }

    /// Returns the first thing to check.
    pub fn advice(&self) -> &'static str {
        if self.workers.is_some() { WORKERS_ADVICE } else { OTHERS_ADVICE }
    }

    #[cfg(test)]
    pub fn example() -> Self {
        use crate::diagnosis::examples::bytes;
        let of = |count, held| Some(GroupFigures { count, bytes: Some(bytes(held)) });
        Self { workers: of(3, 1 << 30), child_processes: of(1, 1 << 20) }
    }
}

/// The advice where the memory of processes grows that `multiprocessing` started.
const WORKERS_ADVICE: &str = "Look at what each worker keeps: in a DataLoader's a list or cache that its dataset or collate function fills, in an \
                              environment's the episodes and infos of the past, in a pool's what its tasks leave in globals and caches. Bound \
                              it, or replace workers from time to time (persistent_workers=False, maxtasksperchild).";

/// The advice where the memory of other child processes grows.
const OTHERS_ADVICE: &str =
    "Look at what these processes keep, and whether they are ended or reused in time.";

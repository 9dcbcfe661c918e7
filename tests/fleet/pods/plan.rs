//! Which pods there are: their runs, and how each behaves.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Ranks of a pod, each on a device of its own.
pub(crate) const RANKS_OF_POD: u32 = 8;
/// Pods of a run that is neither the large one nor a special one.
const PODS_OF_RUN: u32 = 4;
/// Pods of the large run, at most: 1,024 ranks.
const PODS_OF_LARGE_RUN_MAX: u32 = 128;

/// The behavior of a pod's ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Behavior {
    Healthy,
    /// One rank leaks.
    Leaking,
    /// One rank ran out of memory, which ended the run.
    OutOfMemory,
    /// The kernel killed one rank for lack of host memory, which ended the run.
    Killed,
    /// No rank pushes any more.
    Silent,
    /// One rank does not push any more.
    RankSilent,
    /// A device is lost.
    GpuLost,
    /// The run ended, and the process of one rank goes on holding its device's memory.
    Residue,
}

/// The change of a pod's names in the course of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Churn {
    Stays,
    /// The processes are restarted: a new attempt each minute.
    Restarts,
    /// The run is over each minute, and another begins.
    NextRun,
}

#[derive(Debug, Serialize)]
pub(crate) struct Pod {
    pub name: String,
    pub run: String,
    /// The name of its launch.
    pub launch: &'static str,
    pub behavior: Behavior,
    #[serde(skip)]
    pub churn: Churn,
    /// The first rank of the pod.
    #[serde(skip)]
    pub first_rank: u32,
    /// Ranks of its run.
    #[serde(skip)]
    pub world_size: u32,
    /// The number of the pod, which its devices have in their names.
    #[serde(skip)]
    pub number: usize,
}

pub(crate) struct Plan {
    pub pods: Vec<Pod>,
}

impl Plan {
    /// Plans so many pods: one for each fault, some that change, a large run, and runs of four pods.
    pub(crate) fn new(n_pods: u32) -> Self {
        let mut plan = Self { pods: Vec::new() };
        for (run, behavior) in [
            ("leak", Behavior::Leaking),
            ("oom", Behavior::OutOfMemory),
            ("killed", Behavior::Killed),
            ("silent", Behavior::Silent),
            ("rank-silent", Behavior::RankSilent),
            ("gpu-lost", Behavior::GpuLost),
            ("residue", Behavior::Residue),
        ] {
            plan.add(run, 1, (behavior, Churn::Stays));
        }
        plan.add("restarts", 1, (Behavior::Healthy, Churn::Restarts));
        plan.add("next", 1, (Behavior::Healthy, Churn::NextRun));
        // The second pod of this run is missing.
        plan.add("missing", 2, (Behavior::Healthy, Churn::Stays));
        plan.pods.pop();
        // Two launches share this name.
        for (idx, launch) in ["first", "second"].into_iter().enumerate() {
            plan.add("twice", 1, (Behavior::Healthy, Churn::Stays));
            if let Some(pod) = plan.pods.last_mut() {
                (pod.name, pod.launch) = (format!("twice-{idx}"), launch);
            }
        }
        plan.add(
            "large",
            PODS_OF_LARGE_RUN_MAX.min(n_pods / 4),
            (Behavior::Healthy, Churn::Stays),
        );
        for number in 0.. {
            let left = n_pods.saturating_sub(u32::try_from(plan.pods.len()).unwrap());
            if left == 0 {
                break;
            }
            plan.add(
                &format!("run-{number}"),
                left.min(PODS_OF_RUN),
                (Behavior::Healthy, Churn::Stays),
            );
        }
        plan
    }

    fn add(&mut self, run: &str, n_pods: u32, (behavior, churn): (Behavior, Churn)) {
        for index in 0..n_pods {
            self.pods.push(Pod {
                name: format!("{run}-{index}"),
                run: run.to_owned(),
                launch: "first",
                behavior,
                churn,
                first_rank: index * RANKS_OF_POD,
                world_size: n_pods * RANKS_OF_POD,
                number: self.pods.len(),
            });
        }
    }
}

/// Returns the seconds since 1970.
pub(crate) fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

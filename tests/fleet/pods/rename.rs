//! A pod's own names for the status of the engine that it shares.

use stepmem_engine::status::Status;
use stepmem_types::ids::{GpuUuid, ProcessId, Rank, RankId, Run, SubjectId};
use stepmem_types::launch::Launch;
use stepmem_types::units::Count;

use crate::plan::{Churn, Pod};

/// Seconds from one restart, or from one run, to the next.
const CHURN_SECONDS: f64 = 60.0;

/// Returns the status as the exporter of this pod would have it at the Unix time `now`.
pub(crate) fn renamed(status: &Status, pod: &Pod, now: f64) -> Status {
    let generation = (now / CHURN_SECONDS) as u64;
    let run = match pod.churn {
        Churn::NextRun => Run::new(&format!("{}-{generation}", pod.run)).unwrap(),
        Churn::Stays | Churn::Restarts => Run::new(&pod.run).unwrap(),
    };
    let mut status = status.clone();
    for each in &mut status.runs {
        each.run = run.clone();
        each.ranks_expected = Some(pod.world_size);
        each.worst_rank = each.worst_rank.map(|rank| pod.rank(rank));
    }
    for rank in &mut status.ranks {
        rank.run = run.clone();
        rank.rank = pod.rank(rank.rank);
        rank.rank_label = rank.rank.to_string();
        rank.identity.world_size = Some(pod.world_size);
        rank.launch = Some(Launch::new(pod.launch).unwrap());
        rank.identity.device = rank.identity.device.as_ref().map(|device| pod.device(device));
        if pod.churn == Churn::Restarts {
            rank.identity.attempt = Count::new(generation).unwrap();
        }
    }
    for device in &mut status.devices {
        device.uuid = pod.device(&device.uuid);
        for process in &mut device.processes {
            process.owner = process
                .owner
                .as_ref()
                .map(|owner| RankId { run: run.clone(), rank: pod.rank(owner.rank) });
        }
    }
    for finding in &mut status.findings {
        finding.subject = match &finding.subject {
            SubjectId::Rank(id) => {
                SubjectId::Rank(RankId { run: run.clone(), rank: pod.rank(id.rank) })
            }
            SubjectId::Process(id) => {
                SubjectId::Process(ProcessId { uuid: pod.device(&id.uuid), pid: id.pid })
            }
            SubjectId::Device(uuid) => SubjectId::Device(pod.device(uuid)),
        };
    }
    status
}

impl Pod {
    fn rank(&self, rank: Rank) -> Rank {
        Rank::new(u64::from(self.first_rank + rank.get())).unwrap()
    }

    fn device(&self, device: &GpuUuid) -> GpuUuid {
        GpuUuid::new(&format!("{}-{}", device.as_str(), self.number)).unwrap()
    }
}

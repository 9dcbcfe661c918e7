//! A step as the record that it was pushed as.

use serde::Serialize;

use stepmem_types::device::{DeviceMemoryKind, OwnProcessMemory, OwnProcessState};
use stepmem_types::host::ContainerId;
use stepmem_types::ids::{GpuUuid, Rank, Run};
use stepmem_types::launch::{Instance, Launch};
use stepmem_types::step::{Phase, StepMark, StepSample};
use stepmem_types::units::{Bytes, Count, Seconds};

/// A step as JSON; what is unknown has no key.
#[derive(Serialize)]
pub(super) struct StepText<'a> {
    run: &'a Run,
    attempt: Count,
    rank: Rank,
    #[serde(skip_serializing_if = "Option::is_none")]
    local_rank: Option<Rank>,
    #[serde(skip_serializing_if = "Option::is_none")]
    world_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_rank: Option<Rank>,
    step: Count,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_seconds: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    marks: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a GpuUuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_memory: Option<DeviceMemoryKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    launch: Option<&'a Launch>,
    allocated_bytes: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    requested_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_allocated_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_reserved_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high_water_allocated_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high_water_reserved_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inactive_split_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    alloc_retries: Option<Count>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ooms: Option<Count>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped_records: Option<Count>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    free_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_used_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_used_state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_allocated_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_total_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_shared_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_split_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workers: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workers_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    child_processes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    child_processes_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<&'a ContainerId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_limit_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_used_bytes: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_oom_kills: Option<Count>,
}

impl<'a> StepText<'a> {
    pub(super) fn of(sample: &'a StepSample) -> Self {
        let host = sample.host.as_deref().copied().unwrap_or_default();
        let container = sample.container.as_deref();
        Self {
            run: &sample.run,
            attempt: sample.attempt,
            rank: sample.rank,
            local_rank: sample.local_rank,
            world_size: sample.world_size,
            node_rank: sample.node_rank,
            step: sample.step,
            steps: Some(sample.n_steps).filter(|n_steps| *n_steps > 1),
            time: sample.time,
            step_seconds: sample.step_seconds,
            phase: (sample.phase != Phase::default()).then(|| sample.phase.as_label()),
            marks: sample.marks.iter().map(StepMark::as_label).collect(),
            device: sample.device.as_ref(),
            device_memory: sample.memory_kind,
            pid: sample.pid,
            instance: sample.instance.map(Instance::digits),
            launch: sample.launch.as_ref(),
            allocated_bytes: sample.allocated,
            requested_bytes: sample.requested,
            peak_allocated_bytes: sample.peak_allocated,
            reserved_bytes: sample.reserved,
            peak_reserved_bytes: sample.peak_reserved,
            high_water_allocated_bytes: sample.high_water_allocated,
            high_water_reserved_bytes: sample.high_water_reserved,
            inactive_split_bytes: sample.inactive_split,
            alloc_retries: sample.alloc_retries,
            ooms: sample.ooms,
            dropped_records: sample.dropped_records,
            total_bytes: sample.total,
            free_bytes: sample.free,
            process_used_bytes: sample.own_process.and_then(OwnProcessMemory::bytes),
            process_used_state: sample
                .own_process
                .and_then(OwnProcessMemory::state)
                .map(OwnProcessState::as_label),
            host_allocated_bytes: host.allocated,
            host_total_bytes: host.total,
            host_shared_bytes: host.shared,
            host_split_bytes: host.split,
            workers: host.workers.count,
            workers_bytes: host.workers.bytes,
            child_processes: host.others.count,
            child_processes_bytes: host.others.bytes,
            container: container.map(|of| &of.id),
            container_limit_bytes: container.map(|of| of.limit),
            container_used_bytes: container.and_then(|of| of.used),
            container_oom_kills: container.and_then(|of| of.oom_kills),
        }
    }
}

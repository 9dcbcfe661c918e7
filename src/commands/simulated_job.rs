//! The demo's training job: eight ranks on simulated devices. One leaks until it is out of
//! memory, one holds more than the others, all are noisy.

use std::time::Duration;

use serde_json::{Value, json};

use crate::commands::simulated_snapshot::{LEAKING_LINE, SimulatedMemory};
use stepmem_types::device::{Attribution, DeviceInfo, DeviceMemory, GpuSample, ProcessMemory};
use stepmem_types::ids::GpuUuid;
use stepmem_types::units::{Bytes, OutOfRange};

pub(super) const N_RANKS: u32 = 8;
/// The rank that leaks, and the one that holds more than the others.
pub(super) const LEAKING: u32 = 3;
pub(super) const HEAVY: u32 = 5;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const CAPACITY: u64 = 80 * GIB;
/// The memory of a CUDA context and its libraries.
const OUTSIDE_ALLOCATOR: u64 = 1200 * MIB;
/// Faster than real jobs, whose steps take about a second.
pub(super) const STEP_EVERY: Duration = Duration::from_millis(20);
pub(super) const LEAK_FROM_STEP: u64 = 150;
/// Memory that the rank keeps of a step by default.
pub(super) const LEAK_BYTES_PER_STEP: u64 = 5 * MIB;
/// The steps of a memory snapshot: those since the leak began, of which PyTorch keeps the
/// newest events.
const RECORDED_STEPS_MIN: u64 = 20;
const RECORDED_STEPS_MAX: u64 = 400;
/// Number of steps for which the job is down before it restarts: 10 s.
const DOWN_STEPS: u32 = 500;

/// The state of the job, shared by its ranks and its devices.
pub(super) struct SimulatedJob {
    pub(super) leak_bytes_per_step: u64,
    pub(super) attempt: u64,
    pub(super) step: u64,
    ranks: Vec<RankMemory>,
    noise: Noise,
    /// Steps until it restarts, while it is down.
    n_down: u32,
}

/// Outcome of a step of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobProgress {
    Stepped,
    /// The rank that leaks did not fit, and died with all others.
    OutOfMemory,
    /// No step: it has not restarted yet.
    Down,
    /// The first step of the job's next attempt.
    Restarted,
}

#[derive(Clone, Copy, Default)]
struct RankMemory {
    allocated: u64,
    peak: u64,
    reserved: u64,
}

impl SimulatedJob {
    pub(super) fn new(leak_bytes_per_step: u64) -> Self {
        let n_ranks = usize::try_from(N_RANKS).unwrap_or_default();
        Self {
            leak_bytes_per_step,
            attempt: 0,
            step: 0,
            ranks: vec![RankMemory::default(); n_ranks],
            noise: Noise(1),
            n_down: 0,
        }
    }

    /// Runs one optimizer step of every rank. When a rank no longer fits, the job is down for a
    /// while and restarts.
    pub(super) fn advance(&mut self) -> JobProgress {
        if self.n_down > 0 {
            self.n_down -= 1;
            if self.n_down > 0 {
                return JobProgress::Down;
            }
            *self = Self { attempt: self.attempt + 1, ..Self::new(self.leak_bytes_per_step) };
            self.step();
            return JobProgress::Restarted;
        }
        self.step();
        let most = self.ranks.iter().map(|memory| memory.peak).max().unwrap_or_default();
        if most + OUTSIDE_ALLOCATOR <= CAPACITY {
            return JobProgress::Stepped;
        }
        self.n_down = DOWN_STEPS;
        JobProgress::OutOfMemory
    }

    fn step(&mut self) {
        self.step += 1;
        for (rank, memory) in (0..).zip(&mut self.ranks) {
            let weights = if rank == HEAVY { 41 * GIB } else { 30 * GIB };
            let leaked = if rank == LEAKING {
                self.leak_bytes_per_step * self.step.saturating_sub(LEAK_FROM_STEP)
            } else {
                0
            };
            memory.allocated = weights + leaked + self.noise.up_to(48 * MIB);
            memory.peak = memory.allocated + 10 * GIB + self.noise.up_to(2 * GIB);
            memory.reserved = memory.reserved.max(memory.peak + 512 * MIB);
        }
    }

    /// Returns the leaking rank's report of its death.
    pub(super) fn death(&self) -> Value {
        json!({
            "rank": LEAKING, "outcome": "oom", "step": self.step, "error_type": "OutOfMemoryError",
            "error_message": format!(
                "CUDA out of memory. Tried to allocate 1.00 GiB. GPU {LEAKING} has a total capacity of 80.00 GiB"
            ),
            "requested_bytes": GIB,
        })
    }

    /// Returns whether no rank leaks.
    pub(super) fn is_fixed(&self) -> bool {
        self.leak_bytes_per_step == 0
    }

    pub(super) fn records(&self) -> Vec<Value> {
        let common = |rank: u32, memory: &RankMemory| {
            json!({
                "run": "demo", "attempt": self.attempt, "rank": rank, "local_rank": rank,
                "world_size": N_RANKS, "step": self.step, "pid": pid(rank), "device": uuid(rank),
                "step_seconds": STEP_EVERY.as_secs_f64(), "total_bytes": CAPACITY,
                "allocated_bytes": memory.allocated, "peak_allocated_bytes": memory.peak,
                "reserved_bytes": memory.reserved.min(CAPACITY - OUTSIDE_ALLOCATOR),
                "peak_reserved_bytes": memory.reserved.min(CAPACITY - OUTSIDE_ALLOCATOR),
                "alloc_retries": 0, "ooms": 0,
            })
        };
        (0..).zip(&self.ranks).map(|(rank, memory)| common(rank, memory)).collect()
    }

    /// Returns the memory of a rank over its last steps.
    pub(super) fn memory(&self, rank: u32) -> SimulatedMemory {
        let leak_bytes_per_step = if rank == LEAKING { self.leak_bytes_per_step } else { 0 };
        let n_leaked = self.step.saturating_sub(LEAK_FROM_STEP);
        // Memory that leaked before the oldest step of the recording is there from its start.
        let n_steps = n_leaked.clamp(RECORDED_STEPS_MIN, RECORDED_STEPS_MAX);
        let n_before = n_leaked.saturating_sub(n_steps);
        SimulatedMemory {
            weights: if rank == HEAVY { 41 * GIB } else { 30 * GIB },
            leak_bytes_per_step,
            kept_before: leak_bytes_per_step * n_before,
            n_steps,
            ended_us: self.step * 20_000,
        }
    }

    /// Returns the object of a rank that keeps tensors, under the name that a real client gives
    /// it; `None` where none grows.
    pub(super) fn holder(&self, rank: u32) -> Option<Value> {
        let n_kept = self.step.saturating_sub(LEAK_FROM_STEP);
        let is_growing = rank == LEAKING && self.leak_bytes_per_step > 0;
        is_growing.then(|| {
            json!({
                "name": "`Trainer.history`", "kind": "list", "file": LEAKING_LINE.0, "line": 42,
                "function": "__init__", "tensors": n_kept,
                "bytes": n_kept * self.leak_bytes_per_step, "tensors_per_step": 1,
                "bytes_per_step": self.leak_bytes_per_step,
            })
        })
    }

    pub(super) fn devices(&self) -> Result<Vec<GpuSample>, OutOfRange> {
        let is_down = self.n_down > 0;
        let used = |memory: &RankMemory| {
            (!is_down).then(|| (memory.reserved + OUTSIDE_ALLOCATOR).min(CAPACITY))
        };
        (0..).zip(&self.ranks).map(|(rank, memory)| device(rank, used(memory))).collect()
    }
}

fn pid(rank: u32) -> u32 {
    1000 + rank
}

fn uuid(rank: u32) -> String {
    format!("GPU-00000000-0000-0000-0000-00000000000{rank}")
}

/// Returns a device, and the process that uses `by_process` bytes of it.
fn device(rank: u32, by_process: Option<u64>) -> Result<GpuSample, OutOfRange> {
    let used = by_process.unwrap_or_default();
    let process = |used| Ok(ProcessMemory::new(pid(rank), Some(Bytes::new(used)?)));
    Ok(GpuSample {
        device: GpuUuid::new(&uuid(rank))?,
        info: DeviceInfo {
            index: Some(rank.to_string()),
            model: Some("Simulated GPU 80GB".to_owned()),
            driver_version: Some("simulated".to_owned()),
            ..DeviceInfo::default()
        },
        memory: Some(DeviceMemory {
            total: Bytes::new(CAPACITY)?,
            used: Bytes::new(used)?,
            free: Some(Bytes::new(CAPACITY - used)?),
            reserved: None,
        }),
        processes: by_process.map(process).transpose()?.into_iter().collect(),
        attribution: Attribution::SharedPidNamespace,
        machine_total: None,
    })
}

/// A generator of uniform noise (`SplitMix64`, Steele, Lea and Flood 2014).
struct Noise(u64);

impl Noise {
    /// A uniformly distributed number below `limit`.
    fn up_to(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (bits ^ (bits >> 31)) % limit.max(1)
    }
}

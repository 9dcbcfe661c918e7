//! One engine for each behavior: it has trained for a while when the program begins, and goes on in real time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::json;
use stepmem::input::push::inbox::PushCounts;
use stepmem_engine::status::{CollectorStatus, ExporterStatus, Status};
use stepmem_engine::wire::{Layout, decode_steps};
use stepmem_engine::{Engine, EngineConfig, Event};
use stepmem_types::device::{
    Attribution, DeviceInfo, DeviceMemory, GpuSample, GpuUnavailable, ProcessMemory,
};
use stepmem_types::end::{EndAuthority, EndOutcome, EndReport, RankEnd};
use stepmem_types::ids::{GpuUuid, Rank, Run};
use stepmem_types::units::{Bytes, Uptime};

use crate::plan::{Behavior, RANKS_OF_POD, unix_time};

const STEPS_BEFORE: u64 = 700;
const STEP_SECONDS: u64 = 2;
/// The step of a failure: it is over when the program answers its first scrape.
const FAULT_STEP: u64 = STEPS_BEFORE - 10;
/// The steps from the first scrape to a kill by the kernel, whose counter then rises between two of them.
const STEPS_BEFORE_KILL: u64 = 5;
/// Silent ranks have been so for longer than an alert needs, and less long than a rank stays.
const SILENT_STEPS: u64 = 305 / STEP_SECONDS;
const RANKS: std::ops::Range<u64> = 0..RANKS_OF_POD as u64;
/// The rank that leaks, fails or is silent, and whose device is lost.
const SPECIAL: u64 = 3;
const FIRST_PID: u64 = 1000;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const CAPACITY: u64 = 80 * GIB;
const LEAK: u64 = 6 * MIB;
/// Memory that the driver keeps on a device.
const DRIVER: u64 = 500 * MIB;

/// The current status of each behavior.
pub(crate) struct Behaviors {
    statuses: Arc<Mutex<BTreeMap<Behavior, Arc<Status>>>>,
    scraped: Arc<Mutex<BTreeSet<Behavior>>>,
}

impl Behaviors {
    /// Trains each engine for a while, and then goes on in a thread.
    pub(crate) fn start(behaviors: BTreeSet<Behavior>) -> Self {
        let mut jobs: Vec<Job> = behaviors.into_iter().map(Job::new).collect();
        let statuses: BTreeMap<_, _> =
            jobs.iter_mut().map(|job| (job.behavior, job.status())).collect();
        let statuses = Arc::new(Mutex::new(statuses));
        let scraped = Arc::<Mutex<BTreeSet<_>>>::default();
        let shared = (Arc::clone(&statuses), Arc::clone(&scraped));
        thread::spawn(move || {
            let (statuses, scraped) = shared;
            loop {
                thread::sleep(Duration::from_secs(STEP_SECONDS));
                for job in &mut jobs {
                    let is_scraped = scraped.lock().unwrap().contains(&job.behavior);
                    job.plan_kill(is_scraped);
                    job.catch_up();
                    let status = job.status();
                    statuses.lock().unwrap().insert(job.behavior, status);
                }
            }
        });
        Self { statuses, scraped }
    }

    /// Returns whether a scrape has read it.
    pub(crate) fn is_scraped(&self, behavior: Behavior) -> bool {
        self.scraped.lock().unwrap().contains(&behavior)
    }

    /// Notes that a scrape has read it.
    pub(crate) fn was_scraped(&self, behavior: Behavior) {
        self.scraped.lock().unwrap().insert(behavior);
    }

    pub(crate) fn status(&self, behavior: Behavior) -> Arc<Status> {
        Arc::clone(&self.statuses.lock().unwrap()[&behavior])
    }
}

/// The ranks of one pod, which step together, and the exporter that watches them.
struct Job {
    behavior: Behavior,
    engine: Engine,
    /// The Unix time when the engine began, in whole seconds.
    began: u64,
    /// The next step.
    step: u64,
    /// The step at which the run ends.
    end_step: Option<u64>,
}

impl Job {
    fn new(behavior: Behavior) -> Self {
        let began = unix_time() as u64 - STEPS_BEFORE * STEP_SECONDS;
        let engine = Engine::new(EngineConfig::default(), began as f64);
        let ends = matches!(behavior, Behavior::OutOfMemory | Behavior::Residue);
        let end_step = ends.then_some(FAULT_STEP);
        let mut job = Self { behavior, engine, began, step: 1, end_step };
        job.catch_up();
        job
    }

    /// Lets the kernel kill a rank some steps after the first scrape.
    fn plan_kill(&mut self, is_scraped: bool) {
        if is_scraped && self.behavior == Behavior::Killed {
            self.end_step.get_or_insert(self.step + STEPS_BEFORE_KILL);
        }
    }

    /// Takes the steps up to now.
    fn catch_up(&mut self) {
        let now = unix_time() as u64;
        while self.began + self.step * STEP_SECONDS <= now {
            self.take_step();
            self.step += 1;
        }
    }

    fn take_step(&mut self) {
        let at = Uptime(Duration::from_secs(self.step * STEP_SECONDS));
        for rank in RANKS {
            let event = self.reading(rank);
            self.engine.handle(&event, at).unwrap();
        }
        let records: Vec<_> =
            RANKS.filter(|rank| self.pushes(*rank)).map(|rank| self.record(rank)).collect();
        if !records.is_empty() {
            let body = serde_json::to_vec(&records).unwrap();
            let samples = decode_steps(&body, Layout::Json).unwrap();
            self.engine.handle(&Event::Steps(samples), at).unwrap();
        }
        if self.end_step == Some(self.step) {
            self.end(at);
        }
        self.engine.handle(&Event::Tick, at).unwrap();
    }

    fn has_ended(&self) -> bool {
        self.end_step.is_some_and(|end| self.step >= end)
    }

    fn pushes(&self, rank: u64) -> bool {
        let is_silent = (self.step + SILENT_STEPS) > STEPS_BEFORE;
        match self.behavior {
            Behavior::Silent => !is_silent,
            Behavior::RankSilent => !(is_silent && rank == SPECIAL),
            _ => !self.has_ended(),
        }
    }

    fn end(&mut self, at: Uptime) {
        for rank in RANKS {
            let killed = EndReport::killed_out_of_memory(None);
            let plain = |outcome| EndReport {
                outcome,
                error_type: None,
                error_message: None,
                ..killed.clone()
            };
            let report = match self.behavior {
                Behavior::Residue => plain(EndOutcome::Completed),
                Behavior::Killed if rank == SPECIAL => killed,
                _ if rank == SPECIAL => EndReport {
                    error_type: Some("OutOfMemoryError".into()),
                    ..plain(EndOutcome::Oom)
                },
                _ => plain(EndOutcome::Failed),
            };
            let rank = Some(Rank::new(rank).unwrap());
            let end = RankEnd { rank, instance: None, authority: EndAuthority::Any, report };
            self.engine.handle(&Event::End(Run::new("job").unwrap(), end), at).unwrap();
        }
    }

    /// Returns some live memory at the end of a step.
    fn live(&self, rank: u64) -> u64 {
        let noise = (rank * 7_919 + self.step * 104_729) % (16 * MIB);
        let leaks = self.behavior == Behavior::Leaking && rank == SPECIAL;
        30 * GIB + noise + if leaks { LEAK * self.step } else { 0 }
    }

    fn record(&self, rank: u64) -> serde_json::Value {
        let live = self.live(rank);
        json!({
            "run": "job", "rank": rank, "local_rank": rank, "world_size": RANKS_OF_POD, "attempt": 0,
            "device": format!("GPU-{rank}"), "pid": FIRST_PID + rank,
            "step": self.step, "time": self.began + self.step * STEP_SECONDS, "step_seconds": STEP_SECONDS,
            "allocated_bytes": live, "requested_bytes": live - MIB, "peak_allocated_bytes": live + 15 * GIB,
            "reserved_bytes": live + 16 * GIB, "peak_reserved_bytes": live + 16 * GIB,
            "high_water_allocated_bytes": live + 15 * GIB, "high_water_reserved_bytes": live + 16 * GIB,
            "inactive_split_bytes": 100 * MIB, "alloc_retries": 0, "ooms": 0, "dropped_records": 0,
            "total_bytes": CAPACITY,
            "host_allocated_bytes": 6 * GIB + live % (8 * MIB), "host_total_bytes": 128 * GIB,
            "host_shared_bytes": GIB, "workers": 4, "workers_bytes": 2 * GIB, "workers_own_bytes": 2 * GIB,
        })
    }

    fn reading(&self, rank: u64) -> Event {
        let device = GpuUuid::new(&format!("GPU-{rank}")).unwrap();
        if self.behavior == Behavior::GpuLost && rank == SPECIAL && self.step >= FAULT_STEP {
            return Event::DeviceLost(GpuUnavailable {
                device: Some(device),
                code: "gpu_is_lost",
                message: "GPU is lost".to_owned(),
            });
        }
        let is_held =
            !self.has_ended() || (self.behavior == Behavior::Residue && rank == SPECIAL);
        let held = if is_held { self.live(rank) + 17 * GIB } else { 0 };
        let used = Bytes::new(held + DRIVER).unwrap();
        let process = ProcessMemory::new((FIRST_PID + rank) as u32, Bytes::new(held).ok());
        let of = |value| Bytes::new(value).unwrap();
        Event::Reading(Box::new(GpuSample {
            device,
            info: DeviceInfo {
                index: Some(rank.to_string()),
                model: Some("NVIDIA H100 80GB HBM3".to_owned()),
                driver_version: Some("570.86.15".to_owned()),
                addressing: Some("none".to_owned()),
                ..DeviceInfo::default()
            },
            memory: Some(DeviceMemory {
                total: of(CAPACITY),
                used,
                free: Some(of(CAPACITY - used.get())),
                reserved: Some(of(DRIVER)),
            }),
            processes: is_held.then_some(process).into_iter().collect(),
            attribution: Attribution::SharedPidNamespace,
            machine_total: None,
        }))
    }

    fn status(&self) -> Arc<Status> {
        let at = Uptime(Duration::from_secs((self.step - 1) * STEP_SECONDS));
        let mut status = self.engine.status(at, self.exporter());
        status.exporter.series = stepmem_engine::metrics::count_series(&status);
        Arc::new(status)
    }

    /// Returns the figures of an exporter that has accepted every push.
    fn exporter(&self) -> ExporterStatus {
        let counts = PushCounts::default();
        let pushes = counts.results().into_iter().map(|(result, _)| {
            (result.into(), if result == "accepted" { self.step } else { 0 })
        });
        let listeners = [("push".into(), 0), ("web".into(), 0)];
        let process = [
            ("process_cpu_seconds_total", 1.5),
            ("process_resident_memory_bytes", 2e7),
            ("process_virtual_memory_bytes", 1e8),
            ("process_open_fds", 30.0),
            ("process_max_fds", 1e6),
            ("process_start_time_seconds", self.began as f64),
            ("process_threads", 4.0),
        ];
        ExporterStatus {
            version: env!("CARGO_PKG_VERSION").into(),
            pushes: pushes.collect(),
            push_seconds: counts.durations(),
            collectors: vec![CollectorStatus {
                collector: "nvml".into(),
                duration_seconds: 0.001,
                is_success: true,
            }],
            connections_shed: listeners.into_iter().collect(),
            oom_kills: (self.behavior == Behavior::Killed).then_some(self.has_ended().into()),
            series_dropped: [
                ("devices".into(), 0),
                ("pods".into(), 0),
                ("processes".into(), 0),
            ]
            .into(),
            process: process
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            ..ExporterStatus::default()
        }
    }
}

//! `stepmem demo`: a simulated training job of eight ranks on simulated devices, which pushes through the real
//! socket of a real exporter. One rank leaks, one is out of balance, all are noisy.

use std::io::{Write, stdout};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches};
use serde_json::{Value, json};

use crate::app::collectors::nvml::GpuSource;
use crate::app::listen::Addresses;
use crate::app::notices::Notices;
use crate::app::{log, serve};
use crate::commands::args::{self, CommandError, CommandRow, Exit, with_settings};
use crate::config::settings::{NvmlSettings, Settings};
use crate::input::nvml::cycle::GpuPoll;
use crate::model::device::{Attribution, DeviceInfo, DeviceMemory, GpuSample, ProcessMemory};
use crate::model::ids::GpuUuid;
use crate::model::units::{Bytes, OutOfRange};

/// `stepmem demo`.
pub(super) const DEMO: CommandRow = CommandRow { name: "demo", arguments, run: command };

const N_RANKS: u32 = 8;
/// The rank that leaks, and the one that holds more than the others.
const LEAKING: u32 = 3;
const HEAVY: u32 = 5;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const CAPACITY: u64 = 80 * GIB;
/// The memory of a CUDA context and its libraries.
const OUTSIDE_ALLOCATOR: u64 = 1200 * MIB;
/// Faster than real jobs, whose steps take about a second.
const STEP_EVERY: Duration = Duration::from_millis(20);
const LEAK_FROM_STEP: u64 = 150;
const LEAK_BYTES_PER_STEP: u64 = 5 * MIB;
const DEVICES_EVERY: Duration = Duration::from_secs(1);

fn arguments() -> clap::Command {
    let command = clap::Command::new("demo")
        .about("Run the exporter with a simulated job of 8 ranks on simulated GPUs, one of which leaks memory")
        .arg(
            Arg::new("fixed")
                .long("fixed")
                .action(ArgAction::SetTrue)
                .help("Run the same job without the leak, for comparison"),
        );
    with_settings(command, |_| true)
}

fn command(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let settings = args::settings(matches, |_| true)?;
    log::to_stderr(&settings.log);
    run(settings, matches.get_flag("fixed"))?;
    Ok(Exit::Success)
}

/// Runs the exporter and the simulated job until a signal arrives. A fixed job does not leak.
///
/// # Errors
/// The exporter failed, or refused a push.
pub fn run(mut settings: Settings, is_fixed: bool) -> anyhow::Result<()> {
    settings.nvml = Some(NvmlSettings {
        interval: DEVICES_EVERY,
        timeout: DEVICES_EVERY,
        ..NvmlSettings::default()
    });
    let telemetry_path = settings.telemetry_path.clone();
    let leak_bytes_per_step = if is_fixed { 0 } else { LEAK_BYTES_PER_STEP };
    let job = Arc::new(Mutex::new(SimulatedJob::new(leak_bytes_per_step)));
    let devices = devices_of(Arc::clone(&job));
    serve::run(settings, Some(devices), Notices::default(), |addresses| {
        train(job, addresses, telemetry_path)
    })
}

/// The state of the job, shared by its ranks and its devices.
struct SimulatedJob {
    leak_bytes_per_step: u64,
    attempt: u64,
    step: u64,
    ranks: Vec<RankMemory>,
    noise: Noise,
}

#[derive(Clone, Copy, Default)]
struct RankMemory {
    allocated: u64,
    peak: u64,
    reserved: u64,
}

impl SimulatedJob {
    fn new(leak_bytes_per_step: u64) -> Self {
        let n_ranks = usize::try_from(N_RANKS).unwrap_or_default();
        Self {
            leak_bytes_per_step,
            attempt: 0,
            step: 0,
            ranks: vec![RankMemory::default(); n_ranks],
            noise: Noise(1),
        }
    }

    /// Runs one optimizer step of every rank. When a rank no longer fits, the job restarts.
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
        let most = self.ranks.iter().map(|memory| memory.peak).max().unwrap_or_default();
        if most + OUTSIDE_ALLOCATOR > CAPACITY {
            *self = Self { attempt: self.attempt + 1, ..Self::new(self.leak_bytes_per_step) };
            self.step();
        }
    }

    fn records(&self) -> Vec<Value> {
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

    fn devices(&self) -> Result<Vec<GpuSample>, OutOfRange> {
        (0..).zip(&self.ranks).map(|(rank, memory)| device(rank, memory)).collect()
    }
}

fn pid(rank: u32) -> u32 {
    1000 + rank
}

fn uuid(rank: u32) -> String {
    format!("GPU-00000000-0000-0000-0000-00000000000{rank}")
}

fn device(rank: u32, memory: &RankMemory) -> Result<GpuSample, OutOfRange> {
    let used = (memory.reserved + OUTSIDE_ALLOCATOR).min(CAPACITY);
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
        processes: vec![ProcessMemory::new(pid(rank), Some(Bytes::new(used)?))],
        attribution: Attribution::SharedPidNamespace,
    })
}

fn devices_of(job: Arc<Mutex<SimulatedJob>>) -> GpuSource {
    GpuSource::Simulated(Box::new(move || {
        let samples =
            job.lock().map(|job| job.devices().unwrap_or_default()).unwrap_or_default();
        GpuPoll { samples, ..GpuPoll::default() }
    }))
}

/// Steps the job, and pushes each rank's record separately, as real ranks do.
async fn train(
    job: Arc<Mutex<SimulatedJob>>,
    addresses: Addresses,
    telemetry_path: String,
) -> anyhow::Result<()> {
    let push = addresses.push.first().context("the demo needs --push.listen-address")?;
    let web = addresses.web.first().context("the demo needs --web.listen-address")?;
    let is_fixed = job.lock().is_ok_and(|job| job.leak_bytes_per_step == 0);
    let text = announcement(*web, &telemetry_path, is_fixed);
    stdout().lock().write_all(text.as_bytes())?;
    let url = format!("http://{}/v1/steps", reachable(*push));
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build()?;
    let mut tick = tokio::time::interval(STEP_EVERY);
    loop {
        tick.tick().await;
        let records = {
            let mut job = job.lock().map_err(|_| anyhow::anyhow!("the simulated job died"))?;
            job.step();
            job.records()
        };
        for record in records {
            let request = client.post(&url).header("content-type", "application/json");
            let response = request.body(record.to_string()).send().await?;
            let status = response.status();
            anyhow::ensure!(status.is_success(), "push: {status}: {}", response.text().await?);
        }
    }
}

/// The address at which a client on this machine reaches `address`.
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

fn announcement(web: SocketAddr, telemetry_path: &str, is_fixed: bool) -> String {
    let web = reachable(web);
    let leak = if is_fixed {
        "\x20  never     a leak, which is fixed\n".to_owned()
    } else {
        format!(
            "\x20  ~3 s      rank {LEAKING} starts to leak 5 MiB per step\n\
             \x20  ~10 s     MEMORY RISING on rank {LEAKING}\n\
             \x20  ~25 s     MEMORY CREEP on rank {LEAKING}, with its time to out-of-memory\n\
             \x20  ~2.5 min  rank {LEAKING} runs out of memory; the job restarts as its next attempt\n"
        )
    };
    format!(
        "A simulated job of {N_RANKS} ranks trains on simulated GPUs of 80 GiB and pushes to this exporter.\n\
         \n  page     http://{web}/\n  metrics  http://{web}{telemetry_path}\n  status   stepmem status --url http://{web}\n\
         \nTimeline, at 50 steps per second:\n\
         \x20  now       rank {HEAVY} holds more than the others: IMBALANCE\n\
         {leak}\nCtrl-C ends it.\n\n"
    )
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

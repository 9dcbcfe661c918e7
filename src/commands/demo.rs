//! `stepmem demo`: a simulated training job of eight ranks on simulated devices, which pushes through the real
//! socket of a real exporter. One rank leaks, one is out of balance, all are noisy.

use std::fs::DirBuilder;
use std::io::{ErrorKind, Write, stdout};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches};
use serde_json::{Value, json};

use crate::analysis::captures::CaptureSettings;
use crate::app::collectors::nvml::GpuSource;
use crate::app::listen::Addresses;
use crate::app::notices::Notices;
use crate::app::{log, serve};
use crate::commands::args::{self, CommandError, CommandRow, Exit, with_settings};
use crate::commands::simulated_snapshot::{LEAKING_LINE, SimulatedMemory};
use crate::config::keys;
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
/// Names of folders for snapshots that are tried.
const FOLDERS_MAX: u32 = 1000;
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
    anyhow::ensure!(
        settings.web_file.is_none(),
        "the simulated job knows neither TLS nor passwords: leave out --{}",
        keys::WEB_FILE
    );
    settings.nvml = Some(NvmlSettings {
        interval: DEVICES_EVERY,
        timeout: DEVICES_EVERY,
        ..NvmlSettings::default()
    });
    settings.snapshots.on_creep = true;
    settings.engine.looks_on_creep = true;
    let folder = SnapshotFolder::new(&mut settings.snapshots)?;
    let telemetry_path = settings.telemetry_path.clone();
    let leak_bytes_per_step = if is_fixed { 0 } else { LEAK_BYTES_PER_STEP };
    let job = Arc::new(Mutex::new(SimulatedJob::new(leak_bytes_per_step)));
    let devices = devices_of(Arc::clone(&job));
    serve::run(settings, Some(devices), Notices::default(), |addresses, _| {
        train(job, addresses, telemetry_path, &folder.snapshots)
    })
}

/// Where the simulated job writes snapshots; one that was made for the demo goes with it.
struct SnapshotFolder {
    snapshots: PathBuf,
    /// What is removed at the end.
    own: Option<PathBuf>,
}

impl SnapshotFolder {
    /// Uses the directories that are set, and makes the others.
    fn new(settings: &mut CaptureSettings) -> anyhow::Result<Self> {
        if let Some(snapshots) = settings.read_directory.clone() {
            return Ok(Self { snapshots, own: None });
        }
        let own = Self::make()?;
        let snapshots = own.join("snapshots");
        DirBuilder::new().mode(0o700).create(&snapshots)?;
        settings.read_directory = Some(snapshots.clone());
        settings.timeline_directory.get_or_insert_with(|| own.join("timelines"));
        Ok(Self { snapshots, own: Some(own) })
    }

    fn make() -> anyhow::Result<PathBuf> {
        let name = format!("stepmem-demo-{}", std::process::id());
        let mut path = std::env::temp_dir().join(&name);
        // A demo that was killed leaves its folder, and process ids come again.
        for n in 1..=FOLDERS_MAX {
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    path.set_file_name(format!("{name}-{n}"));
                }
                made => {
                    made.with_context(|| format!("no folder at {}", path.display()))?;
                    return Ok(path);
                }
            }
        }
        anyhow::bail!("no folder for snapshots: {} and others exist", path.display())
    }
}

impl Drop for SnapshotFolder {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            // What cannot be removed stays in the folder of temporary files.
            std::fs::remove_dir_all(own).ok();
        }
    }
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

    /// Returns the memory of a rank over its last steps.
    fn memory(&self, rank: u32, n_steps: u32) -> SimulatedMemory {
        let leak_bytes_per_step = if rank == LEAKING { self.leak_bytes_per_step } else { 0 };
        let n_leaked = self.step.saturating_sub(LEAK_FROM_STEP);
        let n_before = n_leaked.saturating_sub(u64::from(n_steps));
        SimulatedMemory {
            weights: if rank == HEAVY { 41 * GIB } else { 30 * GIB },
            leak_bytes_per_step,
            kept_before: leak_bytes_per_step * n_before,
            n_steps,
            ended_us: self.step * 20_000,
        }
    }

    /// Returns the object of a rank that keeps tensors, as a real client names it; `None` where none grows.
    fn holder(&self, rank: u32) -> Option<Value> {
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
    folder: &Path,
) -> anyhow::Result<()> {
    let push = addresses.push.first().context("the demo needs --push.listen-address")?;
    let web = addresses.web.first().context("the demo needs --web.listen-address")?;
    let is_fixed = job.lock().is_ok_and(|job| job.leak_bytes_per_step == 0);
    let text = announcement(*web, &telemetry_path, is_fixed);
    stdout().lock().write_all(text.as_bytes())?;
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]);
    let client = client.redirect(reqwest::redirect::Policy::none()).build()?;
    let pusher = Pusher { base: format!("http://{}", reachable(*push)), client };
    let mut requests = SimulatedRequests { folder, open: Vec::new(), last_id: String::new() };
    let mut tick = tokio::time::interval(STEP_EVERY);
    loop {
        tick.tick().await;
        let (records, reports) = {
            let mut job = job.lock().map_err(|_| anyhow::anyhow!("the simulated job died"))?;
            job.step();
            (job.records(), requests.due(&job)?)
        };
        for record in records {
            let answer = pusher.post("/v1/steps", &record).await?;
            for began in requests.take(&answer) {
                pusher.post(began.path, &began.body).await?;
            }
        }
        for report in reports {
            pusher.post(report.path, &report.body).await?;
        }
    }
}

/// Pushes to the exporter.
struct Pusher {
    base: String,
    client: reqwest::Client,
}

impl Pusher {
    async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let url = format!("{}{path}", self.base);
        let request = self.client.post(&url).header("content-type", "application/json");
        let response = request.body(body.to_string()).send().await?;
        let status = response.status();
        let text = response.text().await?;
        anyhow::ensure!(status.is_success(), "push: {status}: {text}");
        Ok(serde_json::from_str(&text)?)
    }
}

/// A report of the simulated job.
struct Report {
    path: &'static str,
    body: Value,
}

/// What the exporter asks of the simulated ranks.
struct SimulatedRequests<'a> {
    /// Where snapshots are written.
    folder: &'a Path,
    open: Vec<OpenRequest>,
    /// Answers repeat a request until they have heard that it is begun.
    last_id: String,
}

struct OpenRequest {
    id: String,
    rank: u32,
    is_snapshot: bool,
    n_steps: u32,
    /// Steps to go.
    n_left: u32,
}

impl SimulatedRequests<'_> {
    /// Takes the requests of an answer. Returns the reports that they are begun.
    fn take(&mut self, answer: &Value) -> Vec<Report> {
        let mut begun = Vec::new();
        for action in answer["actions"].as_array().into_iter().flatten() {
            let (Some(id), Some(rank)) = (action["id"].as_str(), action["rank"].as_u64())
            else {
                continue;
            };
            let n_steps = action["steps"].as_u64().and_then(|n| u32::try_from(n).ok());
            let is_known = self.last_id == id || self.open.iter().any(|open| open.id == id);
            let (false, Some(n_steps), Ok(rank)) = (is_known, n_steps, u32::try_from(rank))
            else {
                continue;
            };
            let is_snapshot = action["type"] == "snapshot";
            let (id, n_left) = (id.to_owned(), n_steps);
            let open = OpenRequest { id, rank, is_snapshot, n_steps, n_left };
            begun.push(open.report(&[("outcome", "began".into())]));
            self.open.push(open);
        }
        begun
    }

    /// Counts a step. Returns the reports that are due.
    fn due(&mut self, job: &SimulatedJob) -> anyhow::Result<Vec<Report>> {
        for open in &mut self.open {
            open.n_left = open.n_left.saturating_sub(1);
        }
        let mut reports = Vec::new();
        let due = self.open.extract_if(.., |open| open.n_left == 0);
        for open in due {
            reports.push(if open.is_snapshot {
                open.snapshot(job, self.folder)?
            } else {
                match job.holder(open.rank) {
                    Some(holder) => open.report(&[
                        ("outcome", "named".into()),
                        ("last_step", job.step.into()),
                        ("holders", json!([holder])),
                    ]),
                    None => open.report(&[("outcome", "none".into())]),
                }
            });
            self.last_id = open.id;
        }
        Ok(reports)
    }
}

impl OpenRequest {
    fn snapshot(&self, job: &SimulatedJob, folder: &Path) -> anyhow::Result<Report> {
        let file = format!("demo_creep_rank{}_step{}.pickle", self.rank, job.step);
        let path = folder.join(&file);
        let pickle = job.memory(self.rank, self.n_steps).pickle();
        std::fs::write(&path, &pickle).with_context(|| path.display().to_string())?;
        Ok(self.report(&[
            ("outcome", "written".into()),
            ("reason", "creep".into()),
            ("step", job.step.into()),
            ("file", file.into()),
            ("path", path.to_string_lossy().into()),
            ("bytes", pickle.len().into()),
        ]))
    }

    fn report(&self, of: &[(&str, Value)]) -> Report {
        let mut body = serde_json::Map::new();
        let named = [
            ("run", "demo".into()),
            ("rank", self.rank.into()),
            ("id", self.id.clone().into()),
        ];
        for (key, value) in named.iter().chain(of) {
            body.insert((*key).to_owned(), value.clone());
        }
        let path = if self.is_snapshot { "/v1/snapshots" } else { "/v1/holders" };
        Report { path, body: body.into() }
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
             \x20  ~12 s     a memory snapshot names the line, and a look at live objects what holds the memory\n\
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

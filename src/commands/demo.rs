//! `stepmem demo`: a simulated training job of eight ranks on simulated devices, which pushes
//! through the real socket of a real exporter. One rank leaks, one is out of balance, all are
//! noisy.

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
use tokio::time::MissedTickBehavior;

use crate::commands::args::{
    self, CommandError, CommandRow, Defaults, Exit, with_settings_by_default,
};
use crate::commands::demo_timeline::DemoTimeline;
use crate::commands::simulated_job::{
    HEAVY, JobProgress, LEAK_BYTES_PER_STEP, LEAKING, N_RANKS, STEP_EVERY, SimulatedJob,
};
use crate::config::keys;
use crate::config::settings::{NvmlSettings, Settings};
use crate::config::sources::Sources;
use crate::exporter::collectors::nvml::GpuSource;
use crate::exporter::listen::Addresses;
use crate::exporter::notices::Notices;
use crate::exporter::{log, start};
use crate::input::nvml::cycle::GpuPoll;
use stepmem_engine::SnapshotSettings;

/// `stepmem demo`.
pub(super) const DEMO: CommandRow = CommandRow { name: "demo", arguments, run: command };

/// Maximum number of names that are tried for a folder of snapshots.
const FOLDERS_MAX: u32 = 1000;
const DEVICES_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of requests for a creep's line and holder: enough for many attempts.
const ASKED_MAX: u32 = 64;
/// An attempt may be over in half a minute, and its successor's memory is examined again.
const LOOKED_EVERY: Duration = Duration::from_secs(15);
/// The timeline shows a person what happens; the log is for machines.
const DEFAULTS: Defaults = &[(keys::LOG_LEVEL, "off")];
const LEAK: &str = "leak-mib";
/// The most that leaks in a step, in MiB.
const LEAK_MIB_MAX: u64 = 1024;

fn arguments() -> clap::Command {
    let command = clap::Command::new("demo")
        .about("Run the exporter with a simulated job of 8 ranks on simulated GPUs, one of which leaks memory")
        .arg(
            Arg::new("fixed")
                .long("fixed")
                .action(ArgAction::SetTrue)
                .help("Run the same job without the leak, for comparison"),
        )
        .arg(
            Arg::new(LEAK)
                .long(LEAK)
                .value_name("MIB")
                .value_parser(clap::value_parser!(u64).range(1..=LEAK_MIB_MAX))
                .conflicts_with("fixed")
                .help("How much memory leaks in a step, in MiB [default: 5]"),
        );
    with_settings_by_default(command, |_| true, DEFAULTS)
}

fn command(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let sources = Sources { defaults: DEFAULTS, ..args::sources(matches, |_| true) };
    let settings = sources.read().map_err(anyhow::Error::from)?;
    log::to_stderr(&settings.log);
    let leak = matches.get_one::<u64>(LEAK).map_or(LEAK_BYTES_PER_STEP, |mib| mib << 20);
    run(settings, if matches.get_flag("fixed") { 0 } else { leak })?;
    Ok(Exit::Success)
}

/// Runs the exporter and the simulated job until a signal arrives. A job that leaks 0 bytes is
/// fixed.
///
/// # Errors
/// The exporter failed, or refused a push.
fn run(mut settings: Settings, leak_bytes_per_step: u64) -> anyhow::Result<()> {
    anyhow::ensure!(
        settings.web_file.is_none(),
        "the simulated job supports neither TLS nor passwords: leave out --{}",
        keys::WEB_FILE
    );
    settings.nvml = Some(NvmlSettings {
        interval: DEVICES_EVERY,
        timeout: DEVICES_EVERY,
        ..NvmlSettings::default()
    });
    settings.snapshots.on_creep = true;
    settings.snapshots.schedule.run_max = ASKED_MAX;
    settings.snapshots.schedule.cooldown = Duration::ZERO;
    settings.engine.heap_scans_on_creep = true;
    settings.engine.heap_scan_cooldown = LOOKED_EVERY;
    let folder = SnapshotFolder::new(&mut settings.snapshots)?;
    let telemetry_path = settings.telemetry_path.clone();
    let job = Arc::new(Mutex::new(SimulatedJob::new(leak_bytes_per_step)));
    let devices = devices_of(Arc::clone(&job));
    start::run(settings, Some(devices), Notices::default(), |addresses, latest| {
        let endpoints = Endpoints { addresses, telemetry_path, folder: &folder.snapshots };
        train(job, endpoints, DemoTimeline::new(latest))
    })
}

/// The directory to which the simulated job writes snapshots. One that was created for the demo
/// is removed with it.
struct SnapshotFolder {
    snapshots: PathBuf,
    /// The directory to remove at the end.
    own: Option<PathBuf>,
}

impl SnapshotFolder {
    /// Uses the configured directories, and creates the others.
    fn new(settings: &mut SnapshotSettings) -> anyhow::Result<Self> {
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
        // A demo that was killed leaves its folder, and process ids are reused.
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
            // A file that cannot be removed stays in the folder of temporary files.
            std::fs::remove_dir_all(own).ok();
        }
    }
}

fn devices_of(job: Arc<Mutex<SimulatedJob>>) -> GpuSource {
    GpuSource::Simulated(Box::new(move || {
        let samples =
            job.lock().map(|job| job.devices().unwrap_or_default()).unwrap_or_default();
        GpuPoll { samples, ..GpuPoll::default() }
    }))
}

/// The addresses to which the job pushes, and the directory to which it writes snapshots.
struct Endpoints<'a> {
    addresses: Addresses,
    telemetry_path: String,
    folder: &'a Path,
}

/// Steps the job, and pushes each rank's record separately, as real ranks do.
async fn train(
    job: Arc<Mutex<SimulatedJob>>,
    endpoints: Endpoints<'_>,
    mut timeline: DemoTimeline,
) -> anyhow::Result<()> {
    let Endpoints { addresses, telemetry_path, folder } = endpoints;
    let push = addresses.push.first().context("the demo needs --push.listen-address")?;
    let web = addresses.web.first().context("the demo needs --web.listen-address")?;
    let is_fixed = job.lock().is_ok_and(|job| job.is_fixed());
    say(&announcement(*web, &telemetry_path, is_fixed))?;
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]);
    let client = client.redirect(reqwest::redirect::Policy::none()).build()?;
    let pusher = Pusher { base: format!("http://{}", reachable(*push)), client };
    let mut requests = SimulatedRequests { folder, open: Vec::new(), last_id: String::new() };
    let mut tick = tokio::time::interval(STEP_EVERY);
    // A busy machine makes the job slower; it does not shorten the time between its steps.
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let (records, reports, told) = {
            let mut job = job.lock().map_err(|_| anyhow::anyhow!("the simulated job died"))?;
            let progress = job.advance();
            let (records, reports) = match progress {
                JobProgress::Stepped | JobProgress::Restarted => {
                    (job.records(), requests.due(&job)?)
                }
                JobProgress::Down => (Vec::new(), Vec::new()),
                JobProgress::OutOfMemory => (Vec::new(), vec![requests.die(&job)]),
            };
            (records, reports, timeline.of_job(&job, progress))
        };
        say(&told)?;
        for record in records {
            let answer = pusher.post("/v1/steps", &record).await?;
            for began in requests.take(&answer) {
                pusher.post(began.path, &began.body).await?;
            }
        }
        for report in reports {
            pusher.post(report.path, &report.body).await?;
        }
        say(&timeline.of_status())?;
    }
}

fn say(text: &str) -> std::io::Result<()> {
    stdout().lock().write_all(text.as_bytes())
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

/// The exporter's requests to the simulated ranks.
struct SimulatedRequests<'a> {
    /// The directory to which snapshots are written.
    folder: &'a Path,
    open: Vec<OpenRequest>,
    /// Answers repeat a request until the exporter has the report that it is begun.
    last_id: String,
}

struct OpenRequest {
    id: String,
    rank: u32,
    is_snapshot: bool,
    /// Steps to go.
    n_left: u32,
}

impl SimulatedRequests<'_> {
    /// Takes the requests of an answer. Returns the reports that they have begun.
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
            let open = OpenRequest { id: id.to_owned(), rank, is_snapshot, n_left: n_steps };
            begun.push(open.report(&[("outcome", "began".into())]));
            self.open.push(open);
        }
        begun
    }

    /// Forgets the requests to the ranks. Returns the report of the one that is out of memory.
    fn die(&mut self, job: &SimulatedJob) -> Report {
        self.open.clear();
        Report { path: "/v1/runs/demo/end", body: job.death() }
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
        let file = format!(
            "demo_creep_attempt{}_rank{}_step{}.pickle",
            job.attempt, self.rank, job.step
        );
        let path = folder.join(&file);
        let pickle = job.memory(self.rank).pickle();
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
    let plan = if is_fixed {
        "No rank leaks".to_owned()
    } else {
        format!(
            "Rank {LEAKING} leaks until it is out of memory, after about 2.5 minutes; then the job restarts"
        )
    };
    format!(
        "A simulated job of {N_RANKS} ranks trains on simulated GPUs of 80 GiB and pushes to this exporter.\n\
         \n  page     http://{web}/\n  metrics  http://{web}{telemetry_path}\n  status   stepmem status --url http://{web}\n\
         \nRank {HEAVY} uses more memory than the others. {plan}. Ctrl-C ends it.\n\n"
    )
}

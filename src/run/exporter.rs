//! The exporter's part of `run`. It has its own session, so that no signal of the terminal ends
//! it. It runs for as long as the command runs, also without a supervisor.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::bail;
use nix::sys::prctl;
use serde::Serialize;

use crate::config::settings::{PushSocket, Settings};
use crate::exporter::collectors::nvml::nvml_source;
use crate::exporter::listen::Addresses;
use crate::exporter::notices::{Notices, SummaryNotice};
use crate::exporter::start;
use crate::exporter::summaries::directory::WrittenFiles;
use crate::run::annotations;
use crate::run::client_archive::{self, Installed};
use crate::run::console::{Console, Control, Traces};
use crate::run::private_directory::PrivateFolder;
use crate::run::processes::Ready;
use crate::run::signals;
use crate::run::snapshots::SnapshotPlace;
use crate::run::terminal::say;
use crate::store::open;
use stepmem_report::summary::Summary;
use stepmem_report::{ExitGate, GateAnswer, GateVerdict, gate_lines};
use stepmem_types::format::clean::shortened;

/// Characters that are said of a summary which could not be written.
const PROBLEM_CHARS_MAX: usize = 1024;
/// Time limit for the copy of the summary: the reader of a pipe may not read.
pub const COPY_WITHIN: Duration = Duration::from_secs(5);

/// The use of the summary, in addition to showing it.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// A file for the summary's JSON.
    pub summary_json: Option<PathBuf>,
    /// The conditions of failure.
    pub gate: ExitGate,
    /// True if GitHub Actions is to show the findings.
    pub has_annotations: bool,
    /// The file of the token, for the clients.
    pub token_file: Option<String>,
    /// True if memory snapshots are written on growth and on out-of-memory errors.
    pub has_snapshots: bool,
    /// True if clients may trace the lines that allocate growing host memory.
    pub traces_lines: bool,
}

/// Runs the exporter while the command of the supervisor, on standard input, runs. Returns the
/// verdict of the gate.
///
/// # Errors
/// As of [`start::run`].
pub fn run(mut settings: Settings, options: &RunOptions) -> anyhow::Result<GateVerdict> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // An error means that this process already leads its session, which is good enough.
    rustix::process::setsid().ok();
    prctl::set_name(c"stepmem").ok();
    // Systems that stop all processes stop the command, too; the summary is written when the
    // command ends.
    let _blocked = signals::block(&[])?;

    let mut problems: Vec<String> =
        options.has_annotations.then(annotations::problem).flatten().into_iter().collect();
    let folder = PrivateFolder::create();
    if settings.push_socket.is_none() && settings.push_addresses.is_empty() {
        match &folder {
            Ok(folder) => {
                settings.push_socket = Some(PushSocket { path: folder.socket(), mode: 0o600 });
            }
            Err(error) => {
                problems.push(format!("pushes go over TCP: {error}"));
                settings.push_addresses = vec![([127, 0, 0, 1], 0).into()];
            }
        }
    }
    let client = client(folder.as_ref().ok(), &mut problems);
    let has_client = client.is_some();
    let snapshots = snapshots(&mut settings, options, &mut problems);
    let folder = folder.ok();
    let ready = Ready {
        snapshots: snapshots.as_ref().map(|folder| folder.path().display().to_string()),
        push_url: None,
        client: client
            .as_ref()
            .and_then(|installed| installed.path.to_str())
            .map(str::to_owned),
        folder: folder.as_ref().map(|folder| folder.path().display().to_string()),
        token_file: options.token_file.clone(),
        traces_lines: options.traces_lines,
    };
    let (notices, receiver) = Notices::channel();
    let mut console = Console::new(
        receiver,
        (Arc::clone(notices.command_code()), notices.restarts().clone()),
    )?;
    let gpu = nvml_source(&settings);
    start::run(settings, gpu, notices, |addresses, _| {
        let ready = Ready { push_url: push_url(&addresses), ..ready };
        problems.extend(addresses.problems.iter().cloned());
        let pages = addresses.web.iter().map(|address| addresses.url(*address)).collect();
        console.follow(Control { socket: control, ready }, pages, problems)
    })?;
    let traces = Traces::read(folder.as_ref().map(PrivateFolder::path), has_client);
    let left = snapshots.and_then(SnapshotPlace::close);
    let has_succeeded = console.has_succeeded();
    Ok(options.close(&console.finish(traces, left), has_succeeded))
}

impl RunOptions {
    /// Uses the summaries. Returns the verdict of the gate.
    fn close(&self, ends: &[SummaryNotice], has_succeeded: bool) -> GateVerdict {
        let runs: Vec<&Summary> = ends.iter().map(|end| &end.summary).collect();
        let verdict = self.gate.judge(&runs);
        if let (Some(file), Some(end)) = (&self.summary_json, ends.first()) {
            let file = own_name(file, end);
            let gate = self.gate.is_any().then(|| verdict.answer());
            if let Err(error) = write(&file, &SummaryCopy { summary: &end.summary, gate }) {
                // The verdict counts regardless.
                let problem = format!("{} is not written: {error:#}", file.display());
                let problem = shortened(&problem, PROBLEM_CHARS_MAX);
                say(&format!("stepmem: --summary-json: {problem}\n"));
            }
        }
        if self.has_annotations && annotations::problem().is_none() {
            annotations::write(&runs, has_succeeded.then_some(&verdict));
        }
        if has_succeeded {
            say(&gate_lines(&verdict));
        }
        verdict
    }
}

/// Writes the client to a place where processes of the command find it.
fn client(folder: Option<&PrivateFolder>, problems: &mut Vec<String>) -> Option<Installed> {
    match client_archive::install(folder.map(PrivateFolder::path)) {
        Ok(installed) => {
            problems.extend(installed.problem.clone());
            Some(installed)
        }
        Err(error) => {
            problems.push(format!("Python processes are not watched: {error}"));
            None
        }
    }
}

/// Gives snapshots a directory, if they are wanted.
fn snapshots(
    settings: &mut Settings,
    options: &RunOptions,
    problems: &mut Vec<String>,
) -> Option<SnapshotPlace> {
    if !options.has_snapshots {
        return None;
    }
    match SnapshotPlace::create(settings.summary_dir.as_deref()) {
        Ok(folder) => {
            folder.set(settings);
            Some(folder)
        }
        Err(error) => {
            problems.push(format!("no memory snapshots: {error}"));
            None
        }
    }
}

/// Returns the name of a copy of the summary: next to other exporters of the launch, each copy
/// has a different name.
fn own_name(file: &Path, end: &SummaryNotice) -> PathBuf {
    let suffix = end.files.as_ref().map(WrittenFiles::suffix).unwrap_or_default();
    if suffix.is_empty() {
        return file.to_owned();
    }
    let mut name = file.file_stem().unwrap_or_default().to_owned();
    name.push(suffix);
    if let Some(ending) = file.extension() {
        name.push(".");
        name.push(ending);
    }
    file.with_file_name(name)
}

/// A copy of the summary, with the verdict of the gate on all runs of the command.
#[derive(Serialize)]
struct SummaryCopy<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    gate: Option<GateAnswer<'a>>,
}

/// Writes a copy of the summary. A pipe holds up the end no longer than [`COPY_WITHIN`].
fn write(path: &Path, copy: &SummaryCopy<'_>) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(copy)? + "\n";
    let mut file = open::to_replace(path)?;
    let (done, written) = mpsc::channel();
    thread::Builder::new().spawn(move || done.send(file.write_all(json.as_bytes())).ok())?;
    match written.recv_timeout(COPY_WITHIN) {
        Ok(result) => Ok(result?),
        Err(_) => bail!("it was not taken within {} s", COPY_WITHIN.as_secs()),
    }
}

/// Returns the address to which a client on this machine pushes.
fn push_url(addresses: &Addresses) -> Option<String> {
    let of_socket = addresses.socket.as_ref().and_then(|path| path.to_str());
    let of_socket = of_socket.map(|path| format!("unix://{path}"));
    of_socket.or_else(|| {
        let mut address = *addresses.push.first()?;
        if address.ip().is_unspecified() {
            address.set_ip([127, 0, 0, 1].into());
        }
        Some(addresses.url(address))
    })
}

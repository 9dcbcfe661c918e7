//! `stepmem snapshot take`: asks a live rank for a memory snapshot, and waits for its file and its verdict.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Arg, ArgMatches, Command};
use serde::Deserialize;
use serde_json::json;

use crate::analysis::diagnosis::site_words;
use crate::analysis::snapshot_status::SnapshotStatus;
use crate::analysis::status::Status;
use crate::commands::args::{CommandError, Exit};
use crate::commands::live::{push_address, push_url_arg, token, token_arg};
use crate::model::ids::Run;
use crate::text::clean::clean;

/// The name of the subcommand.
pub(super) const NAME: &str = "take";
/// The default of `--url`.
const STATUS_URL: &str = "http://127.0.0.1:9477";
/// How long the exporter may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How often the status is read.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The arguments of the command.
pub(super) fn arguments() -> Command {
    let number = |name: &'static str| {
        Arg::new(name).long(name).value_name("N").value_parser(clap::value_parser!(u32))
    };
    let url = |name: &'static str, help: &'static str, default: &'static str| {
        Arg::new(name).long(name).value_name("URL").default_value(default).help(help)
    };
    Command::new(NAME)
        .about("Ask a live rank for a snapshot, and wait for its file and verdict")
        .arg(Arg::new("run").long("run").value_name("RUN").required(true).help("The run"))
        .arg(number("rank").required(true).help("The rank"))
        .arg(number("steps").help("Steps to record, 1 to 1000 [default: --snapshot.steps]"))
        .arg(url("url", "Address of the exporter's status page", STATUS_URL))
        .arg(push_url_arg("push-url"))
        .arg(token_arg())
}

/// Asks, and waits until the snapshot is written and, where the exporter reads snapshots, analysed.
pub(super) fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(anyhow::Error::from)?;
    Ok(runtime.block_on(take(matches))?)
}

/// What the exporter answers to a request for a snapshot.
#[derive(Deserialize)]
struct Asked {
    id: String,
}

async fn take(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let run = Run::new(&text("run")).context("--run")?;
    let rank = matches.get_one::<u32>("rank").copied().unwrap_or_default();
    let client = || reqwest::Client::builder().timeout(ANSWER_WITHIN).no_proxy();
    let address = push_address(matches.get_one("push-url"));
    let (pusher, base) = match address.strip_prefix("unix://") {
        Some(path) => (client().unix_socket(PathBuf::from(path)).build()?, "http://localhost"),
        None => (client().build()?, address.as_str()),
    };
    let client = client().build()?;
    let escaped: Vec<String> =
        run.as_str().bytes().map(|byte| format!("%{byte:02X}")).collect();
    let path = escaped.concat();
    let url = format!("{}/v1/runs/{path}/snapshot", base.trim_end_matches('/'));
    let mut request = pusher.post(&url).header("content-type", "application/json");
    if let Some(token) = token(matches)? {
        request = request.bearer_auth(token);
    }
    let steps = matches.get_one::<u32>("steps");
    let answer = request.body(json!({ "rank": rank, "steps": steps }).to_string()).send().await;
    let answer = answer.with_context(|| format!("no exporter answers at {address}"))?;
    let (status, body) = (answer.status(), answer.text().await?);
    anyhow::ensure!(status.is_success(), "refused ({status}): {}", clean(&body));
    let Asked { id } = serde_json::from_str(&body).with_context(|| format!("{url}: {body}"))?;
    writeln!(stdout().lock(), "rank {rank} of {run} is asked for a snapshot")?;
    let url = format!("{}/api/v1/status", text("url").trim_end_matches('/'));
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let answer = client.get(&url).send().await?.error_for_status()?.text().await?;
        let status: Status = serde_json::from_str(&answer)
            .with_context(|| format!("{url} is not the status of this version"))?;
        let mut snapshots = status.snapshots.iter();
        let snapshot = snapshots.find(|snapshot| snapshot.id.as_deref() == Some(&id));
        let snapshot = snapshot.context("the exporter no longer lists the snapshot")?;
        if let Some(exit) = finished(snapshot, &status)? {
            if let Some(id) = &snapshot.timeline {
                let base = text("url");
                let url = format!("{}/snapshots/{id}", base.trim_end_matches('/'));
                writeln!(stdout().lock(), "timeline: {}", clean(&url))?;
            }
            return Ok(exit);
        }
    }
}

/// Prints what became of a snapshot; `None` while that is open.
fn finished(snapshot: &SnapshotStatus, status: &Status) -> anyhow::Result<Option<Exit>> {
    let mut out = stdout().lock();
    match (&*snapshot.outcome, snapshot.analysis.as_deref()) {
        ("waiting" | "recording", _) | (_, Some("waiting")) => return Ok(None),
        ("written", analysis) => {
            let path = snapshot.path.as_deref().unwrap_or_default();
            writeln!(out, "written: {}", clean(path))?;
            if let Some(note) = snapshot.note().filter(|_| analysis.is_some()) {
                writeln!(out, "{}", clean(&note))?;
            }
        }
        _ => {
            writeln!(out, "{}", clean(&snapshot.note().unwrap_or_default()))?;
            return Ok(Some(Exit::Failure));
        }
    }
    let rank = status.ranks.iter().find(|rank| rank.id() == snapshot.rank);
    let site = rank.and_then(|rank| rank.site.as_ref());
    if let Some(site) = site.filter(|_| snapshot.verdict.is_some()) {
        writeln!(out, "verdict: {}", site_words::of(site))?;
    }
    Ok(Some(Exit::Success))
}

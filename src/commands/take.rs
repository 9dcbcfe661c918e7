//! `stepmem snapshot take`: asks a live rank for a memory snapshot, and waits for its file and
//! its verdict.

use std::io::{Write, stdout};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use serde::Deserialize;
use serde_json::json;

use crate::commands::args::{CommandError, Exit, rank_arg, rank_of, run_arg, run_of};
use crate::commands::credentials::credential_args;
use crate::commands::live::{
    LiveExporter, URL, is_named, push_url_arg, token, token_arg, told_push_address,
};
use stepmem_engine::status::{SnapshotStatus, Status};
use stepmem_engine::wire::ControlRequest;
use stepmem_engine::{SNAPSHOT_STEPS_MAX, words};
use stepmem_types::format::clean::clean;

/// The name of the subcommand.
pub(super) const NAME: &str = "take";
/// The default of `--url`.
const STATUS_URL: &str = "http://127.0.0.1:9477";
/// The help on the destination of the request without an address.
const PUSH_URL_HELP: &str = "Address of the push endpoint, http://HOST:PORT, https://HOST:PORT or unix:///PATH [env: \
     STEPMEM_PUSH_URL] [default: as the exporter at --url reports]";
/// Interval at which the status is read.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The arguments of the command.
pub(super) fn arguments() -> Command {
    let steps = Arg::new("steps").long("steps").value_name("N");
    let steps =
        steps.value_parser(clap::value_parser!(u32).range(1..=SNAPSHOT_STEPS_MAX.into()));
    let steps = steps.help("Steps to record, 1 to 1000 [default: --snapshot.steps]");
    let url = |name: &'static str, help: &'static str, default: &'static str| {
        Arg::new(name).long(name).value_name("URL").default_value(default).help(help)
    };
    Command::new(NAME)
        .about("Ask a live rank for a snapshot, and wait for its file and verdict")
        .arg(run_arg("The run").required(true))
        .arg(rank_arg("The rank").required(true))
        .arg(steps)
        .arg(url("url", "Address of the exporter's status page", STATUS_URL))
        .arg(push_url_arg("push-url").help(PUSH_URL_HELP))
        .arg(token_arg())
        .args(credential_args())
}

/// Asks, and waits until the snapshot is written and, where the exporter reads snapshots,
/// analyzed.
pub(super) fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    Ok(take(matches)?)
}

/// The exporter's answer to a request for a snapshot.
#[derive(Deserialize)]
struct Asked {
    id: String,
}

fn take(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let (Some(run), Some(rank)) = (run_of(matches), rank_of(matches)) else {
        return Ok(Exit::Usage);
    };
    let page = LiveExporter::at((URL, &text("url")), matches)?;
    let given = ("--push-url", matches.get_one("push-url"));
    let (source, push) = told_push_address(given, &text("url"), &page)?;
    let push = LiveExporter::at((source, &push), matches)?;
    let push = push.with_token(token(matches)?);
    let is_default = matches.value_source("url") == Some(ValueSource::DefaultValue);
    if is_default && !is_named(matches.get_one("push-url")) {
        push.keeps_secrets("--url, --push-url")?;
    }
    let steps = matches.get_one::<u32>("steps");
    let path = ["v1", "runs", run.as_str(), "snapshot"].map(str::to_owned);
    let body = json!({ "rank": rank.get(), "steps": steps });
    let answer = push.post(&ControlRequest { path: path.to_vec(), body })?;
    let Asked { id } = serde_json::from_str(&answer).context("the answer has no id")?;
    writeln!(stdout().lock(), "a snapshot is requested from rank {rank} of {run}")?;
    loop {
        thread::sleep(LOOK_EVERY);
        let status = page.status()?;
        let mut snapshots = status.snapshots.iter();
        let snapshot = snapshots.find(|snapshot| snapshot.id.as_deref() == Some(&id));
        let snapshot = snapshot.context("the exporter no longer lists the snapshot")?;
        if let Some(exit) = finished(snapshot, &status)? {
            if let Some(id) = &snapshot.timeline {
                let base = page.page_address()?;
                let url = format!("{}/snapshots/{id}", base.trim_end_matches('/'));
                writeln!(stdout().lock(), "timeline: {}", clean(&url))?;
            }
            return Ok(exit);
        }
    }
}

/// Prints the outcome of a snapshot; `None` while that is open.
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
        writeln!(out, "verdict: {}", words::verdict(site))?;
    }
    Ok(Some(Exit::Success))
}

//! `stepmem replay`: writes the transitions of recordings as JSON lines, then the final status.
//! The same input gives the same bytes.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::ArgMatches;
use serde::Serialize;

use crate::commands::args::{
    self, CommandError, CommandRow, Exit, is_replay_setting, recordings, with_settings,
};
use crate::commands::playback::{names, play};
use crate::commands::summary::{self, Policy, policy, policy_args};
use crate::store::open::Unread;
use stepmem_engine::status::{ExporterStatus, StatedStatus};
use stepmem_engine::{EngineConfig, Transition};
use stepmem_types::format::clean::plain_json;

/// `stepmem replay`.
pub(super) const REPLAY: CommandRow = CommandRow { name: "replay", arguments, run: command };

fn arguments() -> clap::Command {
    let command = clap::Command::new("replay")
        .about("Run recorded pushes through the engine; print a JSON line for every diagnosis raised or cleared")
        .arg(recordings())
        .args(policy_args());
    with_settings(command, is_replay_setting)
}

fn command(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let settings = args::settings(matches, is_replay_setting)?;
    let files = args::files(matches);
    args::say_launches(args::files(matches));
    let out = io::stdout().lock();
    match policy(matches)? {
        Policy::Stepmem => run(files, settings.engine, out),
        Policy::TraceMl(window) => summary::replay_traceml(files, window, out),
    }?;
    Ok(Exit::Success)
}

/// Replays the files one after the other as one recording (`-` reads standard input). Writes
/// raised and cleared findings, then the final status.
///
/// # Errors
/// As for [`play`], or the files have no record, or writing failed. Earlier lines have been
/// written then.
pub fn run<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    config: EngineConfig,
    out: impl Write,
) -> anyhow::Result<()> {
    let files: Vec<&PathBuf> = files.into_iter().collect();
    let mut out = BufWriter::new(out);
    let mut n_seen = 0_u64;
    let played = play(files.iter().copied(), config, |_, _, transitions| {
        n_seen += 1;
        for transition in transitions {
            write_line(&mut out, &Line::Transition(transition))?;
        }
        Ok(())
    });
    out.flush()?;
    let (engine, now) = played?;
    // The end is seen, too.
    anyhow::ensure!(
        n_seen > 1,
        Unread(format!("{}: the recording has no record", names(&files)))
    );
    let exporter = ExporterStatus {
        version: env!("CARGO_PKG_VERSION").into(),
        ..ExporterStatus::default()
    };
    write_line(&mut out, &Line::Status { status: engine.status(now, exporter).stated() })?;
    out.flush()?;
    Ok(())
}

#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Transition(&'a Transition),
    Status { status: StatedStatus<'a> },
}

fn write_line(out: &mut impl Write, line: &Line<'_>) -> io::Result<()> {
    let line = serde_json::to_string(line)?;
    writeln!(out, "{}", plain_json(&line))
}

//! `stepmem replay`: writes the transitions of recordings as JSON lines, then the final status.
//! The same input gives the same bytes.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::ArgMatches;
use serde::Serialize;

use crate::commands::args::{
    self, CommandError, CommandRow, Exit, is_replay_setting, recordings, with_settings,
};
use crate::commands::playback::play;
use crate::commands::summary::{self, Policy, policy, policy_args};
use stepmem_engine::config::EngineConfig;
use stepmem_engine::findings::Transition;
use stepmem_engine::output::status::{ExporterStatus, Status};
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
/// As for [`play`], or writing failed. Earlier lines have been written then.
pub fn run<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    config: EngineConfig,
    out: impl Write,
) -> anyhow::Result<()> {
    let mut out = BufWriter::new(out);
    let played = play(files, config, |_, _, transitions| {
        for transition in transitions {
            write_line(&mut out, &Line::Transition(transition))?;
        }
        Ok(())
    });
    out.flush()?;
    let (engine, now) = played?;
    let exporter = ExporterStatus {
        version: env!("CARGO_PKG_VERSION").into(),
        ..ExporterStatus::default()
    };
    write_line(&mut out, &Line::Status { status: &engine.status(now, exporter) })?;
    out.flush()?;
    Ok(())
}

#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Transition(&'a Transition),
    Status { status: &'a Status },
}

fn write_line(out: &mut impl Write, line: &Line<'_>) -> io::Result<()> {
    let line = serde_json::to_string(line)?;
    writeln!(out, "{}", plain_json(&line))
}

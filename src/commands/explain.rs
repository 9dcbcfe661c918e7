//! `stepmem explain`: recordings through the engine, and what it thought of one rank on the way, as text for whoever
//! asks why it paged or why it did not.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Arg, ArgMatches};

use crate::analysis::engine::EngineConfig;
use crate::commands::args::{
    self, CommandError, CommandRow, Exit, is_replay_setting, recordings, with_settings,
};
use crate::commands::playback;
use crate::model::ids::{Rank, Run};
use crate::report::explain::story::Story;
use crate::report::explain::text;

/// `stepmem explain`.
pub(super) const EXPLAIN: CommandRow = CommandRow { name: "explain", arguments, run: command };

/// Whose story is told.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The run; `None` when the recordings hold only one.
    pub run: Option<Run>,
    /// The rank.
    pub rank: Rank,
}

/// Replays the files one after the other as one recording (`-` is standard input) and tells the story of one rank.
///
/// # Errors
/// As of [`playback::play`], and when the recordings do not hold that rank, or more than one run and none is named.
pub fn run<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    config: &EngineConfig,
    subject: &Subject,
    mut out: impl Write,
) -> anyhow::Result<()> {
    let begin = |run: Run| Story::new(run, subject.rank, config);
    let mut story = subject.run.clone().map(begin);
    let (engine, _) = playback::play(files, config.clone(), |engine, now, transitions| {
        if story.is_none() {
            story = engine.runs().next().cloned().map(begin);
        }
        if let Some(story) = &mut story
            && let Some(report) = engine.rank(&story.run, subject.rank, now)
        {
            story.see(&report, (now, engine.unix_time(now)), transitions);
        }
        Ok(())
    })?;
    let runs: Vec<&str> = engine.runs().map(Run::as_str).collect();
    anyhow::ensure!(
        subject.run.is_some() || runs.len() < 2,
        "the recording holds {} runs, name one with --run: {}",
        runs.len(),
        runs.join(", ")
    );
    let story = story.filter(|story| story.n_steps > 0).with_context(|| {
        let rank = subject.rank;
        match &subject.run {
            Some(run) => format!("no train step of rank {rank} of run {}", run.as_str()),
            None => format!("no train step of rank {rank}"),
        }
    })?;
    out.write_all(text::render(&story).as_bytes())?;
    Ok(())
}

fn arguments() -> clap::Command {
    let command = clap::Command::new("explain")
        .about("Explain what stepmem found on a rank in recorded pushes, and which gates stopped other findings")
        .arg(recordings())
        .arg(
            Arg::new("run")
                .long("run")
                .value_name("RUN")
                .help("Run of the rank; optional when the recordings contain only one run"),
        )
        .arg(
            Arg::new("rank")
                .long("rank")
                .value_name("N")
                .value_parser(clap::value_parser!(u64))
                .required(true)
                .help("Global rank"),
        );
    with_settings(command, is_replay_setting)
}

fn command(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let settings = args::settings(matches, is_replay_setting)?;
    let (files, subject) = (args::files(matches), subject(matches)?);
    let out = io::stdout().lock();
    run(files, &settings.engine, &subject, out)?;
    Ok(Exit::Success)
}

/// Whose story is asked for.
fn subject(matches: &ArgMatches) -> anyhow::Result<Subject> {
    let run = matches.get_one::<String>("run").map(|run| Run::new(run)).transpose()?;
    let rank = matches.get_one::<u64>("rank").copied().unwrap_or_default();
    Ok(Subject { run, rank: Rank::new(rank)? })
}

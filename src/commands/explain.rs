//! `stepmem explain`: replays recordings through the engine and writes the story of one rank or
//! process: why it alerted, or why it did not.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Arg, ArgMatches};

use crate::commands::args::{
    self, CommandError, CommandRow, Exit, WrongArgument, is_replay_setting, json_arg, rank_arg,
    rank_of, recordings, run_arg, run_of, with_settings,
};
use crate::commands::credentials::credential_args;
use crate::commands::known::{ensure_known, listed, no_rank};
use crate::commands::live::{LiveExporter, URL, instead_of_recordings};
use crate::commands::playback;
use crate::commands::reader::Reader;
use stepmem_engine::{Engine, EngineConfig};
use stepmem_report::explain::{
    self, LookTime, RankTold, Story, StoryTold, SubjectFigures, WindowsRead,
};
use stepmem_types::format::page::{Indent, Page};
use stepmem_types::ids::{Rank, RankId, Run, SubjectId};
use stepmem_types::units::Uptime;
use stepmem_types::url::shown;

/// `stepmem explain`.
pub(super) const EXPLAIN: CommandRow = CommandRow { name: "explain", arguments, run: command };

/// The subject to explain.
#[derive(Clone, Debug)]
pub enum ExplainQuery {
    /// A rank; `None` for its run where there is one run, and for its number where the run has
    /// one rank.
    Rank(Option<Run>, Option<Rank>),
    /// An unmanaged process, on the first device that lists it.
    Process(u32),
}

impl ExplainQuery {
    /// Returns the subject, once the engine holds it.
    fn subject(&self, engine: &Engine) -> Option<SubjectId> {
        match self {
            Self::Rank(run, rank) => {
                let run = run.clone().or_else(|| engine.runs().next().cloned())?;
                let rank = rank.or_else(|| engine.ranks_of(&run).next())?;
                Some(SubjectId::Rank(RankId { run, rank }))
            }
            Self::Process(pid) => {
                let process = engine.processes().find(|id| id.pid == *pid)?;
                Some(SubjectId::Process(process.clone()))
            }
        }
    }

    /// Returns the reason that there is no story.
    fn absence(&self) -> String {
        match self {
            Self::Rank(run, rank) => {
                let rank = rank.map_or("any rank".to_owned(), |rank| format!("rank {rank}"));
                let run = run.as_ref().map_or(String::new(), |run| format!(" of run {run}"));
                format!("no train step of {rank}{run}, and no sample by time")
            }
            Self::Process(pid) => format!("no reading of an unmanaged process {pid}"),
        }
    }
}

/// Replays the files, one after the other, as one recording (`-` is standard input) and returns
/// the story of one subject.
///
/// # Errors
/// As of [`playback::play`], and when the recordings do not hold that subject, or more than one
/// run and none is named.
fn story_in<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    config: &EngineConfig,
    question: &ExplainQuery,
) -> anyhow::Result<Story> {
    let files: Vec<&PathBuf> = files.into_iter().collect();
    let mut story: Option<Story> = None;
    let (engine, _) =
        playback::play(files.iter().copied(), config.clone(), |engine, now, transitions| {
            if story.is_none() {
                story = question.subject(engine).map(|subject| Story::new(subject, config));
            }
            if let Some(story) = &mut story
                && let Some(figures) = figures(engine, &story.subject, now)
            {
                let at = LookTime { now, time: engine.unix_time(now) };
                story.see(&figures, at, transitions);
            }
            Ok(())
        })?;
    let runs: Vec<&str> = engine.runs().map(Run::as_str).collect();
    anyhow::ensure!(
        !matches!(question, ExplainQuery::Rank(None, _)) || runs.len() < 2,
        WrongArgument(format!(
            "{}: the recording has {} runs; name one with --run: {}",
            playback::names(&files),
            runs.len(),
            runs.join(", ")
        ))
    );
    if let ExplainQuery::Rank(run, None) = question
        && let Some(run) = run.as_ref().or_else(|| engine.runs().next())
    {
        let ranks: Vec<Rank> = engine.ranks_of(run).collect();
        anyhow::ensure!(ranks.len() < 2, WrongArgument(several_ranks(run, &ranks)));
    }
    story.filter(|story| story.n_steps > 0).with_context(|| {
        let others =
            others(&engine, question).map_or_else(String::new, |others| format!("; {others}"));
        let names = playback::names(&files);
        WrongArgument(format!("{names}: {}{others}", question.absence()))
    })
}

/// Returns the runs or ranks that the recordings have instead of a rank that they do not have.
fn others(engine: &Engine, question: &ExplainQuery) -> Option<String> {
    let ExplainQuery::Rank(run, rank) = question else { return None };
    let of_engine = |run: &Run| engine.runs().find(|of| *of == run);
    let run = match run {
        Some(run) => of_engine(run),
        None => engine.runs().next(),
    };
    let Some(run) = run else {
        let runs: Vec<&str> = engine.runs().map(Run::as_str).collect();
        return (!runs.is_empty()).then(|| format!("it has the runs {}", runs.join(", ")));
    };
    let ranks: Vec<Rank> = engine.ranks_of(run).collect();
    let is_other = rank.is_some_and(|rank| !ranks.contains(&rank));
    is_other.then(|| format!("run {run} has the ranks {}", listed(&ranks)))
}

/// Returns the sentence that a rank has to be named, with the ranks that exist.
fn several_ranks(run: &Run, ranks: &[Rank]) -> String {
    format!("run {run} has {} ranks; name one with --rank: {}", ranks.len(), listed(ranks))
}

/// Returns the information of the exporter at `url` about a rank, as text or as JSON.
fn of_exporter(
    url: &str,
    question: &ExplainQuery,
    matches: &ArgMatches,
) -> anyhow::Result<String> {
    let ExplainQuery::Rank(run, rank) = question else {
        anyhow::bail!("--url explains ranks, not processes");
    };
    let exporter = LiveExporter::at((URL, url), matches)?;
    let status = exporter.status()?;
    ensure_known(exporter.name(), &status, run.as_ref(), *rank)?;
    let run = match run {
        Some(run) => run.clone(),
        None => exporter.only_run(&status)?,
    };
    let mut ranks: Vec<Rank> =
        status.ranks.iter().filter(|known| known.run == run).map(|known| known.rank).collect();
    ranks.sort();
    let rank = match (rank, ranks.as_slice()) {
        (Some(rank), _) => *rank,
        (None, [only]) => *only,
        (None, []) => anyhow::bail!("{} has no rank of run {run}", shown(url)),
        (None, _) => anyhow::bail!(WrongArgument(several_ranks(&run, &ranks))),
    };
    let known = status.ranks.iter().find(|known| known.run == run && known.rank == rank);
    let known = known.with_context(|| {
        WrongArgument(format!("{} has {}", shown(url), no_rank(&run, rank, &ranks)))
    })?;
    let number = rank.to_string();
    let path = ["api", "v1", "runs", run.as_str(), "ranks", &number, "windows"];
    // A rank that ended no longer has windows.
    let has_windows = known.end.is_none();
    if matches.get_flag("json") {
        let windows =
            if has_windows { exporter.get_json(&path)? } else { WindowsRead::default() };
        return args::json(&RankTold::of(&status, known, windows));
    }
    let columns = Reader::of_stdout().columns;
    let mut text = explain::render_live(&status, known, columns);
    if has_windows {
        let windows = exporter.get(&path)?;
        let mut page = Page::default().within(columns);
        for line in windows.lines() {
            // The exporter does not know the terminal.
            if columns.is_some_and(|columns| line.chars().count() > columns) {
                let first = line.len() - line.trim_start().len();
                page.paragraph(Indent { first, rest: first + 2 }, line.trim_start());
            } else {
                page.line(line);
            }
        }
        text += &page.into_text();
    }
    Ok(text)
}

fn figures<'e>(
    engine: &'e Engine,
    subject: &SubjectId,
    now: Uptime,
) -> Option<SubjectFigures<'e>> {
    match subject {
        SubjectId::Rank(id) => engine.rank(&id.run, id.rank, now).map(SubjectFigures::Rank),
        SubjectId::Process(id) => engine.process(id, now).map(SubjectFigures::Process),
        SubjectId::Device(_) => None,
    }
}

fn arguments() -> clap::Command {
    let command = clap::Command::new("explain")
        .about("Explain what stepmem found on a rank in recorded pushes, and which tests stopped other findings; or what a running exporter knows of a rank")
        .arg(recordings().required(false).required_unless_present("url"))
        .arg(instead_of_recordings(is_replay_setting).conflicts_with("pid"))
        .args(credential_args())
        .arg(run_arg("Run of the rank; optional when the recordings or the exporter have only one run"))
        .arg(rank_arg("Global rank; optional when the run has only one").value_name("N"))
        .arg(
            Arg::new("pid")
                .long("pid")
                .value_name("PID")
                .value_parser(clap::value_parser!(u32))
                .conflicts_with_all(["rank", "run"])
                .help("Unmanaged process (nobody pushes for it), by the id that NVML reports"),
        )
        .arg(json_arg("Print JSON"));
    with_settings(command, is_replay_setting)
}

fn command(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let question = question(matches);
    let text = if let Some(url) = matches.get_one::<String>("url") {
        of_exporter(url, &question, matches)?
    } else {
        let settings = args::settings(matches, is_replay_setting)?;
        let run = if let ExplainQuery::Rank(run, _) = &question { run.as_ref() } else { None };
        let files = args::files_of(matches, run);
        args::say_launches(&files);
        let story = story_in(&files, &settings.engine, &question)?;
        let is_json = matches.get_flag("json");
        if is_json {
            args::json(&StoryTold::of(&story))?
        } else {
            explain::render(&story, Reader::of_stdout().columns)
        }
    };
    io::stdout().lock().write_all(text.as_bytes()).map_err(anyhow::Error::from)?;
    Ok(Exit::Success)
}

fn question(matches: &ArgMatches) -> ExplainQuery {
    match matches.get_one::<u32>("pid") {
        Some(pid) => ExplainQuery::Process(*pid),
        None => ExplainQuery::Rank(run_of(matches), rank_of(matches)),
    }
}

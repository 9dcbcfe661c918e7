//! `stepmem summary`: the summary of recorded pushes, by stepmem's policy or by TraceML's.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Arg, ArgMatches};

use crate::commands::args::{
    self, CommandError, CommandRow, Exit, WrongArgument, is_replay_setting, json, json_arg,
    recordings, run_arg, run_of, with_settings,
};
use crate::commands::credentials::credential_args;
use crate::commands::launch_summary;
use crate::commands::live::{LiveExporter, URL, VERSION, instead_of_recordings};
use crate::commands::playback::{self, Playback};
use crate::commands::prometheus::{self, PROMETHEUS, Prometheus, prometheus_args};
use crate::commands::reader::Reader;
use crate::commands::run_report;
use crate::input::recording;
use crate::input::unpacked::has_document;
use crate::store::open::Unread;
use stepmem_engine::{Engine, EngineConfig, Event};
use stepmem_report::job::{self, Choice};
use stepmem_report::summary::{self, Summary, TraceMlExport};
use stepmem_report::traceml::{self, PeakRows, WINDOW_STEPS};
use stepmem_types::format::clean::plain_json;
use stepmem_types::ids::Run;
use stepmem_types::units::Uptime;
use stepmem_types::url::shown;

/// `stepmem summary`.
pub(super) const SUMMARY: CommandRow = CommandRow { name: "summary", arguments, run: command };

/// The names of the policies.
const STEPMEM: &str = "stepmem";
const TRACEML: &str = "traceml";

/// The policy that judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Stepmem,
    /// TraceML 0.3.6, over this many of the last common steps.
    TraceMl(usize),
}

impl Policy {
    /// Reads `--policy` and `--window`.
    ///
    /// # Errors
    /// The policy takes no window.
    pub fn read(name: &str, window: Option<usize>) -> anyhow::Result<Self> {
        match (name, window) {
            (TRACEML, window) => Ok(Self::TraceMl(window.unwrap_or(WINDOW_STEPS))),
            (_, None) => Ok(Self::Stepmem),
            (_, Some(_)) => anyhow::bail!(WrongArgument(
                "--window needs --policy traceml: stepmem's covers the whole run".to_owned()
            )),
        }
    }
}

/// The run to summarize, and the form of the summary.
#[derive(Clone, Debug)]
pub struct SummaryQuestion {
    /// The policy that judges.
    pub policy: Policy,
    /// The run; `None` when the recordings hold only one.
    pub run: Option<Run>,
    pub form: SummaryForm,
}

/// The form of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummaryForm {
    Card,
    Json,
    /// JSON with the sections that TraceML's tools read.
    TraceMlJson,
}

impl SummaryForm {
    /// Returns the text of a summary; a card is as wide as the reader's terminal.
    fn text(self, summary: &Summary) -> anyhow::Result<String> {
        match self {
            Self::Card => Ok(summary::render_within(summary, Reader::of_stdout().columns)),
            Self::Json => json(summary),
            Self::TraceMlJson => json(&TraceMlExport::of(summary)),
        }
    }
}

/// Summarizes the files as one recording in order of time (`-` is standard input).
///
/// # Errors
/// As of [`recording::merged`]. Also: a bound on ranks or runs is exceeded; the recordings hold
/// no such run, or more than one and none is named.
pub fn run<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    config: EngineConfig,
    question: &SummaryQuestion,
    mut out: impl Write,
) -> anyhow::Result<()> {
    let text = match question.policy {
        Policy::TraceMl(window) => {
            let verdict = traceml_rows(files, window, question.run.as_ref())?.verdict();
            match question.form {
                SummaryForm::Card => traceml::render(&verdict),
                SummaryForm::Json | SummaryForm::TraceMlJson => json(&verdict)?,
            }
        }
        Policy::Stepmem => {
            question.form.text(&summarize(files, config, question.run.as_ref())?)?
        }
    };
    out.write_all(text.as_bytes())?;
    Ok(())
}

/// Writes TraceML's verdict on the files as one line of JSON, where `replay` has stepmem's
/// status.
///
/// # Errors
/// As of [`run`].
pub fn replay_traceml<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    window: usize,
    mut out: impl Write,
) -> anyhow::Result<()> {
    let verdict = traceml_rows(files, window, None)?.verdict();
    let line = serde_json::json!({ "status": verdict }).to_string();
    Ok(writeln!(out, "{}", plain_json(&line))?)
}

/// Returns the steps of one run that TraceML would have kept.
fn traceml_rows<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    window: usize,
    run: Option<&Run>,
) -> anyhow::Result<PeakRows> {
    let files: Vec<&PathBuf> = files.into_iter().collect();
    let mut rows = PeakRows::new(window);
    let mut found: Option<Run> = run.cloned();
    let gaps = recording::merged(files.iter().copied(), |line| {
        let event = line.into_event();
        if let Event::Reading(sample) = &event {
            rows.gpu(sample);
        }
        let Event::Steps(batch) = &event else { return Ok(()) };
        for sample in batch {
            let of = found.get_or_insert_with(|| sample.run.clone());
            if *of == sample.run {
                rows.push(sample);
            } else {
                anyhow::ensure!(
                    run.is_some(),
                    WrongArgument(format!(
                        "{}: the recording has more than one run; name one with --run: {of}, {}",
                        playback::names(&files),
                        sample.run
                    ))
                );
            }
        }
        Ok(())
    })?;
    playback::say(&gaps);
    Ok(rows)
}

/// Returns stepmem's summary of one run, or of the only one.
///
/// # Errors
/// As of [`run`].
pub(super) fn summarize<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    config: EngineConfig,
    run: Option<&Run>,
) -> anyhow::Result<Summary> {
    replayed(files, config, run).map(|(_, _, summary)| summary)
}

/// Replays the files. Returns the engine, the time of the last entry, and the summary of one
/// run.
fn replayed<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    config: EngineConfig,
    run: Option<&Run>,
) -> anyhow::Result<(Engine, Uptime, Summary)> {
    // No rank of a recording is forgotten before its end.
    let config = EngineConfig { rank_retention: Duration::MAX, ..config };
    let files: Vec<&PathBuf> = files.into_iter().collect();
    let mut replay = Playback::new(config, |_, _, _| Ok(()));
    let gaps = recording::merged(files.iter().copied(), |line| replay.take(line))?;
    playback::say(&gaps);
    let (engine, now) = replay.finish()?;
    let runs: Vec<&Run> = engine.runs().collect();
    let names = || runs.iter().map(|run| run.as_str()).collect::<Vec<_>>().join(", ");
    let recording = || format!("{}: the recording", playback::names(&files));
    let run = match (run, runs.as_slice()) {
        (Some(run), _) => run,
        (None, [run]) => run,
        (None, []) => anyhow::bail!(Unread(format!("{} has no step", recording()))),
        (None, _) => anyhow::bail!(WrongArgument(format!(
            "{} has {} runs; name one with --run: {}",
            recording(),
            runs.len(),
            names()
        ))),
    };
    let report = engine.run(run, now).with_context(|| {
        WrongArgument(format!("{} has no run {run}; it has: {}", recording(), names()))
    })?;
    let summary = Summary::of(&report, None);
    Ok((engine, now, summary))
}

/// Returns the summary of a run from the exporter at `url` as text.
fn live(
    exporter: &LiveExporter,
    url: &str,
    question: SummaryQuestion,
) -> anyhow::Result<String> {
    let summary = live_summary(exporter, url, question.run)?;
    question.form.text(&summary)
}

/// Returns the summary of a run, or of the only one, from the exporter at `url`.
fn live_summary(
    exporter: &LiveExporter,
    url: &str,
    run: Option<Run>,
) -> anyhow::Result<Summary> {
    let run = match run {
        Some(run) => run,
        None => exporter.only_run(&exporter.status()?)?,
    };
    let text = exporter.get(&["api", "v1", "runs", run.as_str(), "summary"])?;
    serde_json::from_str(&text).with_context(|| {
        format!("{} does not answer with a summary of stepmem {VERSION}", shown(url))
    })
}

/// Writes the document of a run.
fn write_html(matches: &ArgMatches, run: Option<Run>, to: &Path) -> anyhow::Result<()> {
    if let Some(url) = matches.get_one::<String>("url") {
        let exporter = LiveExporter::at((URL, url), matches)?;
        let summary = live_summary(&exporter, url, run)?;
        return run_report::of_exporter(&exporter, summary, to);
    }
    let files = args::files_of(matches, run.as_ref());
    if let Some(path) = files.iter().find(|path| has_document(path)) {
        anyhow::bail!(Unread(format!(
            "{}: it is a summary, and --html needs the recording, such as the steps.jsonl.zst beside it",
            path.display()
        )));
    }
    args::say_launches(&files);
    let settings = args::settings(matches, is_replay_setting)?;
    // No rank leaves the status before the end of the recording.
    let config = EngineConfig { rank_ttl: Duration::MAX, ..settings.engine };
    let (engine, now, summary) = replayed(&files, config, run.as_ref())?;
    run_report::of_replay((&engine, now), summary, to)
}

/// Returns the summary of a launch that Prometheus knows.
fn of_prometheus(
    url: &str,
    matches: &ArgMatches,
    question: &SummaryQuestion,
) -> anyhow::Result<String> {
    let choice = matches.get_one::<String>("launch").cloned();
    let choice = choice.map_or(Choice::Latest, Choice::Named);
    let run = prometheus::run(question.run.as_ref())?;
    let job = Prometheus::at((PROMETHEUS, url), matches)?.job(run, &choice)?;
    Ok(match question.form {
        SummaryForm::Card => job::card(&job, prometheus::shown()),
        SummaryForm::Json | SummaryForm::TraceMlJson => json(&job)?,
    })
}

fn arguments() -> clap::Command {
    let command = clap::Command::new("summary")
        .about("Summarize recorded pushes, a live run, the directory of a launch or a run that Prometheus knows: verdict, evidence, next steps, and every rank")
        .arg(recordings().required(false).required_unless_present_any(["url", "prometheus"]))
        .arg(instead_of_recordings(is_replay_setting).conflicts_with_all(["policy", "window"]))
        .args(credential_args())
        .arg(run_arg("Run to summarize; optional when the recordings or the exporter have only one run"))
        .args(policy_args())
        .args(prometheus_args(["FILE", "url", "config.file", "policy", "window", "format"]))
        .arg(json_arg("Print JSON"))
        .arg(
            Arg::new("html")
                .long("html")
                .value_name("OUT")
                .value_parser(clap::value_parser!(PathBuf))
                .conflicts_with_all(["json", "format", "policy", "window", "prometheus"])
                .help("Write one HTML document with memory over time to this file, of at most 8 MiB; needs recordings or --url"),
        )
        .arg(
            Arg::new("format")
                .long("format")
                .value_name("FORMAT")
                .value_parser(["traceml"])
                .conflicts_with_all(["json", "policy", "window"])
                .help("Print JSON with the sections of TraceML's final summary, for its tools"),
        );
    with_settings(command, is_replay_setting)
}

fn command(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let question = question(matches)?;
    if let Some(to) = matches.get_one::<PathBuf>("html") {
        write_html(matches, question.run, to)?;
        return Ok(Exit::Success);
    }
    let mut out = io::stdout().lock();
    if let Some(url) = matches.get_one::<String>("prometheus") {
        let text = of_prometheus(url, matches, &question)?;
        out.write_all(text.as_bytes()).map_err(anyhow::Error::from)?;
        return Ok(Exit::Success);
    }
    if let Some(url) = matches.get_one::<String>("url") {
        let text = live(&LiveExporter::at((URL, url), matches)?, url, question)?;
        out.write_all(text.as_bytes()).map_err(anyhow::Error::from)?;
        return Ok(Exit::Success);
    }
    let settings = args::settings(matches, is_replay_setting)?;
    let files = args::files_of(matches, question.run.as_ref());
    args::say_launches(&files);
    let of_launch = match files.as_slice() {
        [path] if question.policy == Policy::Stepmem => Some(path),
        _ => None,
    };
    if let Some(path) = of_launch.filter(|path| has_document(path)) {
        let text = question.form.text(&asked_for(launch_summary::at(path)?, &question)?)?;
        out.write_all(text.as_bytes()).map_err(anyhow::Error::from)?;
        return Ok(Exit::Success);
    }
    let Some(folder) = of_launch.filter(|path| path.is_dir()) else {
        run(&files, settings.engine, &question, out)?;
        return Ok(Exit::Success);
    };
    let Some(summary) = launch_summary::of_folder(folder)? else {
        let summed = run(&files, settings.engine, &question, out);
        summed.map_err(launch_summary::without_summary)?;
        return Ok(Exit::Success);
    };
    let text = question.form.text(&asked_for(summary, &question)?)?;
    out.write_all(text.as_bytes()).map_err(anyhow::Error::from)?;
    Ok(Exit::Success)
}

/// Returns a summary if it is of the run that is asked for, or none is named.
fn asked_for(summary: Summary, question: &SummaryQuestion) -> anyhow::Result<Summary> {
    if let Some(run) = question.run.as_ref().filter(|run| **run != summary.run) {
        let words = format!("there is no run {run}; the summary is of {}", summary.run);
        anyhow::bail!(WrongArgument(words));
    }
    Ok(summary)
}

/// The arguments that [`policy`] reads.
pub(super) fn policy_args() -> [Arg; 2] {
    [
        Arg::new("policy")
            .long("policy")
            .value_name("POLICY")
            .value_parser([STEPMEM, TRACEML])
            .default_value(STEPMEM)
            .help("Diagnose as stepmem does, or as TraceML 0.3.6 does (traceml)"),
        Arg::new("window")
            .long("window")
            .value_name("STEPS")
            .value_parser(clap::value_parser!(u32).range(1..))
            .help("Number of most recent common steps that TraceML considers [default: 10000]"),
    ]
}

pub(super) fn policy(matches: &ArgMatches) -> anyhow::Result<Policy> {
    let name = matches.get_one::<String>("policy").map_or("", String::as_str);
    let window = matches.get_one::<u32>("window").map(|steps| usize::try_from(*steps));
    Policy::read(name, window.transpose()?)
}

/// Returns the question that the arguments of `summary` ask.
fn question(matches: &ArgMatches) -> anyhow::Result<SummaryQuestion> {
    Ok(SummaryQuestion {
        policy: policy(matches)?,
        run: run_of(matches),
        form: match (matches.contains_id("format"), matches.get_flag("json")) {
            (true, _) => SummaryForm::TraceMlJson,
            (false, true) => SummaryForm::Json,
            (false, false) => SummaryForm::Card,
        },
    })
}

//! `stepmem compare`: compares two summaries, as text, as JSON and as an exit code.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches};

use crate::commands::args::{
    CommandError, CommandRow, Exit, json, json_arg, run_arg, say_launches,
};
use crate::commands::credentials::credential_args;
use crate::commands::launch_summary::{self, SUMMARY_BYTES_MAX};
use crate::commands::prometheus::{PROMETHEUS, Prometheus, prometheus_args};
use crate::commands::reader::Reader;
use crate::commands::summary;
use stepmem_engine::EngineConfig;
use stepmem_report::compare;
use stepmem_report::compare::{OldNew, RunFigures};
use stepmem_report::job::Choice;
use stepmem_types::ids::Run;

/// `stepmem compare`.
pub(super) const COMPARE: CommandRow = CommandRow { name: "compare", arguments, run };

const ALLOW_INCOMPARABLE: &str = "allow-incomparable";

fn arguments() -> clap::Command {
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name).help(help).value_parser(clap::value_parser!(PathBuf))
    };
    let two = |arg: Arg| arg.num_args(1).action(ArgAction::Append);
    clap::Command::new("compare")
        .about("Compare the summaries of two runs: what improved, what got worse?")
        .arg(file("OLD", "Summary of the earlier run: a final_summary.json of stepmem or TraceML, or the directory of the launch or run (logs/RUN) with summaries or recordings").required_unless_present("prometheus"))
        .arg(file("NEW", "Summary of the later run").required_unless_present("prometheus"))
        .arg(two(run_arg(
            "Run that Prometheus knows; given twice, the earlier and the later run; alone its last two launches, or with OLD its last one",
        ).requires("prometheus")))
        .args(prometheus_args(["NEW"]).map(|arg| if arg.get_id() == "launch" { two(arg) } else { arg }))
        .args(credential_args())
        .arg(json_arg("Print JSON"))
        .arg(
            Arg::new(ALLOW_INCOMPARABLE)
                .long(ALLOW_INCOMPARABLE)
                .action(ArgAction::SetTrue)
                .help("Exit with 0 if the runs differ in ranks, device, capacity or workload"),
        )
        .after_help(
            "Exits with 0 without a regression, 1 for REGRESSION or MIXED, and 2 for INCONCLUSIVE, runs that differ in ranks, device, \
             capacity or workload, or unreadable summaries.",
        )
}

fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let OldNew { old, new } = if let Some(url) = matches.get_one::<String>("prometheus") {
        of_prometheus(url, matches).map_err(cannot_compare)?
    } else {
        let file = |name| matches.get_one::<PathBuf>(name).cloned().unwrap_or_default();
        OldNew { old: figures(&file("OLD"))?, new: figures(&file("NEW"))? }
    };
    let mut comparison = compare::compare(OldNew { old: &old, new: &new });
    if matches.get_flag(ALLOW_INCOMPARABLE) {
        comparison.allow_incomparable();
    }
    let columns = Reader::of_stdout().columns;
    let text = if matches.get_flag("json") {
        json(&comparison)?
    } else {
        compare::render_within(&comparison, columns)
    };
    let exit = Exit::Compared(comparison.exit_code);
    match io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => Ok(exit),
        Err(error) => Err(CommandError { exit, error: error.into() }),
    }
}

fn figures(path: &PathBuf) -> Result<RunFigures, CommandError> {
    read_figures(path).map_err(cannot_compare)
}

fn cannot_compare(error: anyhow::Error) -> CommandError {
    CommandError { exit: Exit::Unread, error: error.context("cannot compare") }
}

/// Returns the figures of two launches that Prometheus knows, or of a summary and one of them.
fn of_prometheus(url: &str, matches: &ArgMatches) -> anyhow::Result<OldNew<RunFigures>> {
    let runs: Vec<Run> = matches.get_many("run").unwrap_or_default().cloned().collect();
    let launches: Vec<String> =
        matches.get_many("launch").unwrap_or_default().cloned().collect();
    let prometheus = Prometheus::at((PROMETHEUS, url), matches)?;
    let job =
        |run: &Run, choice: &Choice| anyhow::Ok(compare::of_job(&prometheus.job(run, choice)?));
    let named = |launch: &String| Choice::Named(launch.clone());
    let old = matches.get_one::<PathBuf>("OLD");
    match (old, runs.as_slice(), launches.as_slice()) {
        (Some(old), [run], []) => {
            Ok(OldNew { old: read_figures(old)?, new: job(run, &Choice::Latest)? })
        }
        (Some(old), [run], [launch]) => {
            Ok(OldNew { old: read_figures(old)?, new: job(run, &named(launch))? })
        }
        (None, [run], []) => {
            let old = job(run, &Choice::Previous)?;
            Ok(OldNew { old, new: job(run, &Choice::Latest)? })
        }
        (None, [run], [old, new]) => {
            Ok(OldNew { old: job(run, &named(old))?, new: job(run, &named(new))? })
        }
        (None, [old, new], []) => {
            Ok(OldNew { old: job(old, &Choice::Latest)?, new: job(new, &Choice::Latest)? })
        }
        (None, [old, new], [first, second]) => {
            Ok(OldNew { old: job(old, &named(first))?, new: job(new, &named(second))? })
        }
        _ => anyhow::bail!(
            "name what to compare: OLD --run RUN [--launch L], --run RUN [--launch OLD --launch NEW], or --run OLD --run NEW"
        ),
    }
}

/// Reads a summary from its file, or from the directory of its launch or run.
fn read_figures(path: &PathBuf) -> anyhow::Result<RunFigures> {
    let shown = || path.display().to_string();
    if path.is_dir() {
        say_launches([path]);
        // A launch's directory stands for the summaries in it, a run's for those of its latest
        // launch. Recordings alone are summarized.
        let summary = match launch_summary::of_folder(path)? {
            Some(summary) => summary,
            None => summary::summarize([path], EngineConfig::default(), None)
                .map_err(launch_summary::without_summary)?,
        };
        return compare::of_summary(&summary).with_context(shown);
    }
    let is_recording =
        path.file_name().is_some_and(|name| name.to_string_lossy().contains(".jsonl"));
    if is_recording {
        let summary = summary::summarize([path], EngineConfig::default(), None)?;
        return compare::of_summary(&summary).with_context(shown);
    }
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(shown)?;
    file.take(SUMMARY_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(shown)?;
    anyhow::ensure!(
        u64::try_from(bytes.len())? <= SUMMARY_BYTES_MAX,
        "{} exceeds {SUMMARY_BYTES_MAX} bytes",
        shown()
    );
    let value = serde_json::from_slice(&bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let place = format!("no JSON at line {line}, column {column}");
        anyhow::anyhow!("{}: not a summary (final_summary.json): {place}", shown())
    })?;
    compare::read(value).with_context(shown)
}

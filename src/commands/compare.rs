//! `stepmem compare`: compares two summaries, as text, as JSON and as an exit code.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches};

use crate::commands::args::{CommandError, CommandRow, Exit, json, json_arg};
use crate::commands::launch_summary::{self, SUMMARY_BYTES_MAX};
use crate::commands::reader::Reader;
use stepmem_report::compare::comparison::OldNew;
use stepmem_report::compare::figures::RunFigures;
use stepmem_report::compare::{from_stepmem, judge, read, text};

/// `stepmem compare`.
pub(super) const COMPARE: CommandRow = CommandRow { name: "compare", arguments, run };

const ALLOW_INCOMPARABLE: &str = "allow-incomparable";

fn arguments() -> clap::Command {
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name).help(help).value_parser(clap::value_parser!(PathBuf)).required(true)
    };
    clap::Command::new("compare")
        .about("Compare the summaries of two runs: what improved, what got worse?")
        .arg(file("OLD", "Summary of the earlier run: a final_summary.json of stepmem or TraceML, or the directory of the launch or run (logs/RUN)"))
        .arg(file("NEW", "Summary of the later run"))
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
    let file = |name| matches.get_one::<PathBuf>(name).cloned().unwrap_or_default();
    let (old, new) = (figures(&file("OLD"))?, figures(&file("NEW"))?);
    let mut comparison = judge::compare(OldNew { old: &old, new: &new });
    if matches.get_flag(ALLOW_INCOMPARABLE) {
        comparison.allow_incomparable();
    }
    let columns = Reader::of_stdout().columns;
    let text = if matches.get_flag("json") {
        json(&comparison)?
    } else {
        text::render_within(&comparison, columns)
    };
    let exit = Exit::Compared(comparison.exit_code);
    match io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => Ok(exit),
        Err(error) => Err(CommandError { exit, error: error.into() }),
    }
}

fn figures(path: &Path) -> Result<RunFigures, CommandError> {
    read_figures(path).map_err(|error| CommandError {
        exit: Exit::CannotCompare,
        error: error.context("cannot compare"),
    })
}

/// Reads a summary from its file, or from the directory of its launch or run.
fn read_figures(path: &Path) -> anyhow::Result<RunFigures> {
    let shown = || path.display().to_string();
    if path.is_dir() {
        // A launch's directory stands for the summaries in it, a run's for those of its latest
        // launch.
        return from_stepmem::figures(&launch_summary::at(path)?).with_context(shown);
    }
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(shown)?;
    file.take(SUMMARY_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(shown)?;
    anyhow::ensure!(
        u64::try_from(bytes.len())? <= SUMMARY_BYTES_MAX,
        "{} exceeds {SUMMARY_BYTES_MAX} bytes",
        shown()
    );
    let value = serde_json::from_slice(&bytes).with_context(shown)?;
    read::read(value).with_context(shown)
}

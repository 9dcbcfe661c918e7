//! `stepmem compare`: compares two summaries, as text, as JSON and as an exit code.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Arg, ArgMatches};

use crate::commands::args::{CommandError, CommandRow, Exit, json, json_arg};
use crate::report::compare::comparison::OldNew;
use crate::report::compare::figures::RunFigures;
use crate::report::compare::{judge, read, text};

/// `stepmem compare`.
pub(super) const COMPARE: CommandRow = CommandRow { name: "compare", arguments, run };

/// The largest summary, in bytes: 65,536 ranks of 2 KiB.
pub(super) const SUMMARY_BYTES_MAX: u64 = 128 * 1024 * 1024;

fn arguments() -> clap::Command {
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name).help(help).value_parser(clap::value_parser!(PathBuf)).required(true)
    };
    clap::Command::new("compare")
        .about("Compare the summaries of two runs: what improved, what got worse?")
        .arg(file("OLD", "Summary of the earlier run: a final_summary.json of stepmem or TraceML, or the directory that it is in"))
        .arg(file("NEW", "Summary of the later run"))
        .arg(json_arg("Print JSON"))
        .after_help(
            "Exits with 0 without a regression, 1 for REGRESSION or MIXED, and 2 for INCONCLUSIVE or unreadable summaries.",
        )
}

fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let file = |name| matches.get_one::<PathBuf>(name).cloned().unwrap_or_default();
    let (old, new) = (figures(&file("OLD"))?, figures(&file("NEW"))?);
    let comparison = judge::compare(OldNew { old: &old, new: &new });
    let text =
        if matches.get_flag("json") { json(&comparison)? } else { text::render(&comparison) };
    let exit = Exit::Compared(comparison.verdict);
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

fn read_figures(path: &Path) -> anyhow::Result<RunFigures> {
    // A launch's directory stands for the summary in it.
    let in_folder = path.is_dir().then(|| path.join("final_summary.json"));
    let path = in_folder.as_deref().unwrap_or(path);
    let shown = || path.display().to_string();
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

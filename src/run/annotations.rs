//! `run --annotations`: what GitHub Actions reads of a command. Annotations go to standard
//! error, where the runner finds them, and the summary into the job's file.

use std::io::{self, Write};
use std::path::Path;

use crate::config::environment;
use crate::run::terminal::{say, say_commands};
use crate::store::open;
use stepmem_report::GateVerdict;
use stepmem_report::annotations::{Directories, markdown, workflow_commands};
use stepmem_report::summary::Summary;
use stepmem_types::format::clean::shortened;

/// The copy of the repository.
const WORKSPACE: &str = "GITHUB_WORKSPACE";
/// The file of the job's summary.
const STEP_SUMMARY: &str = "GITHUB_STEP_SUMMARY";
/// The longest summary of a job that GitHub shows; of a longer one it shows nothing.
pub const STEP_SUMMARY_BYTES_MAX: u64 = 1_048_576;
/// Characters that are said of a summary which could not be written.
const PROBLEM_CHARS_MAX: usize = 1024;

/// Returns the reason that there will be no annotations, if nothing would read them.
pub(super) fn problem() -> Option<String> {
    let problem =
        "--annotations does nothing outside GitHub Actions: GITHUB_ACTIONS is not true";
    (!environment::is_github_actions()).then(|| problem.to_owned())
}

/// Writes the findings of the runs, the worst first, and the reasons of an exit code that
/// `--fail-on` decided.
pub(super) fn write(runs: &[&Summary], verdict: Option<&GateVerdict>) {
    let workspace = environment::path(WORKSPACE);
    let current = std::env::current_dir().ok();
    let directories =
        Directories { workspace: workspace.as_deref(), current: current.as_deref() };
    let commands = workflow_commands(runs, directories);
    if !commands.is_empty() {
        say_commands(&commands);
    }
    let file = environment::path(STEP_SUMMARY);
    let written = file.as_deref().map_or_else(
        || Err(io::Error::other("it names no absolute path")),
        |file| append(file, &markdown(runs, verdict)),
    );
    if let Err(error) = written {
        let of = file.map_or_else(String::new, |file| format!("{}: ", file.display()));
        let problem = shortened(&format!("{of}{error}"), PROBLEM_CHARS_MAX);
        say(&format!("stepmem: the job has no summary: {STEP_SUMMARY}: {problem}\n"));
    }
}

/// Adds a text to the summary of the job, of which nothing is shown if it is too long.
fn append(file: &Path, text: &str) -> io::Result<()> {
    let (mut file, n_before) = open::for_appending(file)?;
    let n_added = u64::try_from(text.len()).unwrap_or(u64::MAX);
    if n_before.saturating_add(n_added) > STEP_SUMMARY_BYTES_MAX {
        let reason = format!(
            "it has {n_before} bytes, and GitHub shows none of more than {STEP_SUMMARY_BYTES_MAX}"
        );
        return Err(io::Error::other(reason));
    }
    file.write_all(text.as_bytes())
}

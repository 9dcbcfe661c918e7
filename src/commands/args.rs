//! Parts that commands share: the shape of a command, exit codes, and common arguments.

use std::fmt::{self, Display, Formatter};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::commands::snapshot_file::NotASnapshot;
use crate::config::keys::FILE_VARIABLE;
use crate::config::settings::{ConfigError, Settings};
use crate::config::sources::{Leniency, Sources};
use crate::config::table::{SETTINGS, Setting};
use crate::exporter::summaries::directory::folder_name;
use crate::input::recording::NoRecording;
use crate::store::atomic;
use crate::store::launches::LATEST;
use crate::store::open::{self, IS_DIRECTORY, Unread};
use stepmem_report::{FAILED_ON_CODE, UNJUDGED_CODE};
use stepmem_types::format::clean::{clean, plain_json};
use stepmem_types::ids::{Rank, Run};

/// The prefixes of settings that `replay` takes.
const REPLAY_PREFIXES: [&str; 5] = ["rank.", "run.", "creep.", "pressure.", "imbalance."];

/// Defaults of a command that differ from those of the table, by key.
pub(super) type Defaults = &'static [(&'static str, &'static str)];

/// A command of the program.
#[derive(Debug)]
pub struct CommandRow {
    pub(super) name: &'static str,
    pub(super) arguments: fn() -> Command,
    /// Runs it with these arguments.
    pub(super) run: fn(&ArgMatches) -> Result<Exit, CommandError>,
}

/// A command of the program that writes something about all of its commands.
#[derive(Debug)]
pub struct GeneratorRow {
    pub(super) name: &'static str,
    pub(super) arguments: fn() -> Command,
    /// Runs it with these arguments, about the program.
    pub(super) run: fn(&ArgMatches, Command) -> Result<Exit, CommandError>,
}

/// The exit codes of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Success,
    Failure,
    /// The arguments are invalid.
    Usage,
    /// A file that an argument names cannot be read or written, or is something else. Also: what
    /// cannot be compared.
    Unread,
    /// The exit code of a comparison.
    Compared(u8),
    /// The exit code of a command that was run, in a shell's form.
    Command(u8),
    /// The verdict is as bad as `--fail-on` requires.
    FailedOn,
    /// A condition of `--fail-on` could not be judged.
    Unjudged,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Success => Self::SUCCESS,
            Exit::Failure => Self::FAILURE,
            Exit::Usage | Exit::Unread => Self::from(2),
            Exit::Compared(code) | Exit::Command(code) => Self::from(code),
            Exit::FailedOn => Self::from(FAILED_ON_CODE),
            Exit::Unjudged => Self::from(UNJUDGED_CODE),
        }
    }
}

/// The error about an argument that is wrong next to another one or next to what it names, such
/// as a run that a recording does not have. The parser refuses those that are wrong by
/// themselves.
#[derive(Debug)]
pub(super) struct WrongArgument(pub(super) String);

impl Display for WrongArgument {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An error of a command, with its exit code.
#[derive(Debug)]
pub struct CommandError {
    pub exit: Exit,
    pub error: anyhow::Error,
}

impl From<anyhow::Error> for CommandError {
    fn from(error: anyhow::Error) -> Self {
        Self { exit: exit_of(&error), error }
    }
}

/// Returns the exit code of every command that fails: whether an argument, or what it names, is
/// to blame.
fn exit_of(error: &anyhow::Error) -> Exit {
    if error.is::<WrongArgument>() {
        Exit::Usage
    } else if error.is::<Unread>() || error.is::<NotASnapshot>() || error.is::<NoRecording>() {
        Exit::Unread
    } else {
        Exit::Failure
    }
}

pub(super) fn recordings() -> Arg {
    Arg::new("FILE")
        .help(
            "Recordings as JSON lines (push records and NVML readings), plain or compressed with gzip or zstd, or the directory of a launch or run (logs/RUN); - reads standard input",
        )
        .value_parser(clap::value_parser!(PathBuf))
        .num_args(1..)
        .required(true)
}

pub(super) fn is_replay_setting(setting: &Setting) -> bool {
    REPLAY_PREFIXES.iter().any(|prefix| setting.key.starts_with(prefix))
}

/// Adds the arguments of settings, which `-h` leaves to `--help` and `stepmem help settings`.
pub(super) fn with_settings(command: Command, takes: impl Fn(&Setting) -> bool) -> Command {
    with_settings_by_default(command, takes, &[])
}

/// Adds arguments like [`with_settings`], where the command has separate defaults.
pub(super) fn with_settings_by_default(
    command: Command,
    takes: impl Fn(&Setting) -> bool,
    defaults: Defaults,
) -> Command {
    let file = Arg::new("config.file")
        .long("config.file")
        .value_name("PATH")
        .hide_short_help(true)
        .value_parser(clap::value_parser!(PathBuf))
        .help(format!("TOML or YAML file with settings [env: {FILE_VARIABLE}]"));
    let has_words = command.get_after_help().is_some();
    let command = if has_words { command } else { command.after_help(SETTINGS_HINT) };
    SETTINGS.iter().filter(|setting| takes(setting)).fold(
        command.arg(file),
        |command, setting| {
            let arg = Arg::new(setting.key).long(setting.key).hide_short_help(true);
            let arg = arg.help(setting_help(setting, defaults));
            command.arg(if setting.is_switch() {
                arg.action(ArgAction::SetTrue)
            } else {
                arg.action(ArgAction::Append).value_name(setting.value_name)
            })
        },
    )
}

/// Returns the help of a setting with its default and its variable.
pub(super) fn setting_help(setting: &Setting, defaults: Defaults) -> String {
    let own = defaults.iter().find(|(key, _)| *key == setting.key);
    let default = match own.map_or(setting.default, |(_, default)| default) {
        "" | "false" => String::new(),
        default => format!(" [default: {default}]"),
    };
    format!("{}{default} [env: {}]", setting.help, setting.variable())
}

/// The last line of `-h` of a command that takes settings.
pub(super) const SETTINGS_HINT: &str = "Settings: stepmem help settings";

/// Writes a document to a file, and says on standard error that it is there. A pipe or a device
/// is written to, not replaced.
pub(super) fn write_document(to: &Path, document: &str) -> anyhow::Result<()> {
    let shown = clean(&to.display().to_string()).into_owned();
    let written = match to.metadata() {
        Ok(of) if of.is_dir() => Err(io::Error::other(IS_DIRECTORY)),
        Ok(of) if !of.is_file() => {
            open::to_replace(to).and_then(|mut out| out.write_all(document.as_bytes()))
        }
        Ok(_) | Err(_) => atomic::replace(to, &[document.as_bytes()]),
    };
    written.with_context(|| Unread(shown.clone()))?;
    writeln!(io::stderr(), "Written to {shown}").ok();
    Ok(())
}

/// The files given for [`recordings`].
pub(super) fn files(matches: &ArgMatches) -> impl Iterator<Item = &PathBuf> {
    matches.get_many::<PathBuf>("FILE").into_iter().flatten()
}

/// The files given for [`recordings`]; of a directory with several runs that of the one that is
/// asked for.
pub(super) fn files_of(matches: &ArgMatches, run: Option<&Run>) -> Vec<PathBuf> {
    let of_run = |path: &PathBuf| {
        let own = path.join(folder_name(run?));
        (path.is_dir() && own.is_dir()).then_some(own)
    };
    files(matches).map(|path| of_run(path).unwrap_or_else(|| path.clone())).collect()
}

/// Reports on standard error which launch a directory of several runs stands for: that of
/// whichever run wrote last.
pub(super) fn say_launches<'p>(paths: impl IntoIterator<Item = &'p PathBuf>) {
    for path in paths {
        if let Some(launch) = launch_of_runs(path) {
            let [path, launch] =
                [path.as_path(), &launch].map(|path| path.display().to_string());
            let (path, launch) = (clean(&path), clean(&launch));
            writeln!(
                io::stderr(),
                "stepmem: {path}: reading the launch that wrote last, {launch}"
            )
            .ok();
        }
    }
}

/// Returns `RUN/LAUNCH` of the launch that a directory of several runs stands for.
fn launch_of_runs(path: &Path) -> Option<PathBuf> {
    let root = path.canonicalize().ok()?;
    let launch = path.join(LATEST).canonicalize().ok()?;
    let below = launch.strip_prefix(&root).ok()?.to_owned();
    (below.components().count() > 1).then_some(below)
}

pub(super) fn json_arg(help: &'static str) -> Arg {
    Arg::new("json").long("json").action(ArgAction::SetTrue).help(help)
}

/// The argument that [`run_of`] reads.
pub(super) fn run_arg(help: &'static str) -> Arg {
    let arg = Arg::new("run").long("run").value_name("RUN");
    arg.value_parser(|name: &str| Run::new(name)).help(help)
}

/// Returns the run of [`run_arg`].
pub(super) fn run_of(matches: &ArgMatches) -> Option<Run> {
    matches.get_one::<Run>("run").cloned()
}

/// The argument that [`rank_of`] reads.
pub(super) fn rank_arg(help: &'static str) -> Arg {
    let arg = Arg::new("rank").long("rank").value_name("RANK");
    let range = 0..=i64::from(Rank::MAX);
    arg.value_parser(clap::value_parser!(u32).range(range)).help(help)
}

/// Returns the global rank of [`rank_arg`].
pub(super) fn rank_of(matches: &ArgMatches) -> Option<Rank> {
    matches.get_one::<u32>("rank").and_then(|rank| Rank::new(u64::from(*rank)).ok())
}

/// Returns a value in the form that `--json` prints: no text in it steers a terminal.
pub(super) fn json(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(plain_json(&(serde_json::to_string_pretty(value)? + "\n")).into_owned())
}

/// Reads the settings of [`with_settings`].
///
/// # Errors
/// Every mistake in any source.
pub(super) fn settings(
    matches: &ArgMatches,
    takes: impl Fn(&Setting) -> bool,
) -> anyhow::Result<Settings> {
    Ok(sources(matches, takes).read()?)
}

/// The hidden argument by which the program passes on the arguments that a sidecar does not
/// understand.
pub(super) const UNKNOWN_ARGUMENT: &str = "unknown-argument";

/// Reads the settings of [`with_settings`]; a sidecar's leave out those that are wrong.
///
/// # Errors
/// Every mistake in any source, unless the exporter is a sidecar.
pub(super) fn lenient_settings(matches: &ArgMatches) -> Result<Settings, ConfigError> {
    let unknown = matches.get_many::<String>(UNKNOWN_ARGUMENT).into_iter().flatten();
    let sources = Sources {
        unknown_arguments: unknown.cloned().collect(),
        leniency: Leniency::Sidecar,
        ..sources(matches, |_| true)
    };
    sources.read()
}

/// The flags of [`with_settings`].
pub(super) fn sources(matches: &ArgMatches, takes: impl Fn(&Setting) -> bool) -> Sources {
    let mut sources = Sources {
        file: matches.get_one::<PathBuf>("config.file").cloned(),
        ..Sources::default()
    };
    for setting in SETTINGS.iter().filter(|setting| takes(setting)) {
        if setting.is_switch() {
            if matches.get_flag(setting.key) {
                sources.flags.insert(setting.key, vec!["true".to_owned()]);
            }
        } else if let Some(values) = matches.get_many::<String>(setting.key) {
            sources.flags.insert(setting.key, values.cloned().collect());
        }
    }
    sources
}

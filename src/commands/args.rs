//! What the commands share: the shape of a command, its exit, and the arguments that several take.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::config::settings::{FILE_VARIABLE, SETTINGS, Setting, Settings, Sources};
use crate::report::compare::Verdict;

/// The settings that `replay` takes, by the beginning of their keys.
const REPLAY_PREFIXES: [&str; 5] = ["rank.", "run.", "creep.", "pressure.", "imbalance."];

/// A command of the program.
#[derive(Debug)]
pub struct CommandRow {
    /// Its name.
    pub(super) name: &'static str,
    /// What it takes.
    pub(super) arguments: fn() -> Command,
    /// Does what the arguments say.
    pub(super) run: fn(&ArgMatches) -> Result<Exit, CommandError>,
}

/// What the program exits with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command did what was asked of it.
    Success,
    /// The command failed.
    Failure,
    /// The arguments are wrong.
    Usage,
    /// Two files cannot be compared.
    CannotCompare,
    /// A file is not a memory snapshot.
    NotASnapshot,
    /// What a comparison came to.
    Compared(Verdict),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Success => Self::SUCCESS,
            Exit::Failure => Self::FAILURE,
            Exit::Usage | Exit::CannotCompare | Exit::NotASnapshot => Self::from(2),
            Exit::Compared(verdict) => Self::from(verdict.exit_code()),
        }
    }
}

/// What stopped a command, and what the program exits with then.
#[derive(Debug)]
pub struct CommandError {
    /// The exit.
    pub exit: Exit,
    /// The error.
    pub error: anyhow::Error,
}

impl From<anyhow::Error> for CommandError {
    fn from(error: anyhow::Error) -> Self {
        Self { exit: Exit::Failure, error }
    }
}

pub(super) fn recordings() -> Arg {
    Arg::new("FILE")
        .help("Recordings as JSON lines (push records and NVML readings); - is standard input")
        .value_parser(clap::value_parser!(PathBuf))
        .num_args(1..)
        .required(true)
}

pub(super) fn is_replay_setting(setting: &Setting) -> bool {
    REPLAY_PREFIXES.iter().any(|prefix| setting.key.starts_with(prefix))
}

pub(super) fn with_settings(command: Command, takes: impl Fn(&Setting) -> bool) -> Command {
    let file = Arg::new("config.file")
        .long("config.file")
        .value_name("PATH")
        .value_parser(clap::value_parser!(PathBuf))
        .help(format!("A TOML or YAML file with settings [env: {FILE_VARIABLE}]"));
    SETTINGS.iter().filter(|setting| takes(setting)).fold(
        command.arg(file),
        |command, setting| {
            let default = match setting.default {
                "" | "false" => String::new(),
                default => format!(" [default: {default}]"),
            };
            let help = format!("{}{default} [env: {}]", setting.help, setting.variable());
            let arg = Arg::new(setting.key).long(setting.key).help(help);
            command.arg(if setting.is_switch() {
                arg.action(ArgAction::SetTrue)
            } else {
                arg.action(ArgAction::Append).value_name(setting.value_name)
            })
        },
    )
}

/// The files that [`recordings`] names.
pub(super) fn files(matches: &ArgMatches) -> impl Iterator<Item = &PathBuf> {
    matches.get_many::<PathBuf>("FILE").into_iter().flatten()
}

/// The switch `--json`.
pub(super) fn json_arg(help: &'static str) -> Arg {
    Arg::new("json").long("json").action(ArgAction::SetTrue).help(help)
}

/// A value as `--json` prints it.
pub(super) fn json(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// The settings that [`with_settings`] takes, checked.
///
/// # Errors
/// Every mistake in any source of them.
pub(super) fn settings(
    matches: &ArgMatches,
    takes: impl Fn(&Setting) -> bool,
) -> anyhow::Result<Settings> {
    Ok(Settings::read(&sources(matches, takes))?)
}

fn sources(matches: &ArgMatches, takes: impl Fn(&Setting) -> bool) -> Sources {
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

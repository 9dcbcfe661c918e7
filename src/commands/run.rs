//! `stepmem run`: runs a training command and watches its memory.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context;
use clap::builder::UnknownArgumentValueParser;
use clap::{Arg, ArgAction, ArgMatches};

use crate::commands::args::{
    self, CommandError, CommandRow, Defaults, Exit, SETTINGS_HINT, with_settings_by_default,
};
use crate::commands::launch_summary;
use crate::config::settings::Settings;
use crate::config::sources::{Leniency, Sources};
use crate::config::{keys, table};
use crate::exporter::log;
use crate::run::exporter::{self, RunOptions};
use crate::run::processes::RunPart;
use crate::run::restarts::{RESTARTS_MAX, RestartOptions};
use crate::run::signal_monitor;
use crate::run::supervisor::{self, CommandLaunch, GateCodes};
use crate::run::world;
use crate::store::open::Unread;
use crate::store::writable;
use stepmem_report::{ExitGate, FAILED_ON_CODE, FailOn, GateVerdict, UNJUDGED_CODE};

/// `stepmem run`.
pub(super) const RUN: CommandRow = CommandRow { name: "run", arguments, run };

/// Defaults in which `run` differs from `serve`: it serves the person who started it, and
/// writes files that remain.
const DEFAULTS: Defaults = &[
    (keys::WEB_ADDRESS, WEB_ADDRESS_DEFAULT),
    (keys::PUSH_ADDRESS, ""),
    (keys::HOLDERS_ON_CREEP, "true"),
    (keys::SUMMARY_DIR, SUMMARY_DIR_DEFAULT),
    (keys::LOG_LEVEL, "off"),
];

const WEB_ADDRESS_DEFAULT: &str = "127.0.0.1:9477";
const SUMMARY_DIR_DEFAULT: &str = "logs";

const COMMAND: &str = "COMMAND";
const SUMMARY_JSON: &str = "summary-json";
const FAIL_ON: &str = "fail-on";
const SNAPSHOTS: &str = "snapshots";
const HOST_LINES: &str = "host-lines";
const ANNOTATIONS: &str = "annotations";
const NO_RECORD: &str = "no-record";
const LIVE: &str = "live";
const RESTART: &str = "restart-on-deadline";
const MAX_RESTARTS: &str = "max-restarts";
const ATTEMPTS: &str = "attempts";

fn arguments() -> clap::Command {
    let defaults = DEFAULTS.iter().filter(|(_, default)| !default.is_empty());
    let defaults: Vec<String> =
        defaults.map(|(key, default)| shown_default(key, default)).collect();
    let command = restart_arguments(clap::Command::new("run"))
        .about("Run a training command and watch its memory: findings while it runs, a summary at its end")
        .override_usage("stepmem run [OPTIONS] [--] COMMAND…")
        .after_help(format!(
            "Defaults: the page at http://{WEB_ADDRESS_DEFAULT}/ (a free port if that is taken), summaries and recordings in \
             {SUMMARY_DIR_DEFAULT}/, pushes over a private Unix socket, no log.\n{SETTINGS_HINT}\n\n{}",
            more_help()
        ))
        .after_long_help(format!(
            "Defaults that differ from serve's: {}; pushes go to a private Unix socket.\n\n{}",
            defaults.join(" "),
            more_help()
        ))
        .arg(
            Arg::new(SUMMARY_JSON)
                .long(SUMMARY_JSON)
                .value_name("FILE")
                .value_parser(clap::value_parser!(PathBuf))
                .help("Also write the summary to this file; of several runs, that of the worst"),
        )
        .arg(
            Arg::new(FAIL_ON)
                .long(FAIL_ON)
                .value_name("CONDITION,…")
                .action(ArgAction::Append)
                .value_parser(FailOn::parse)
                .help(format!(
                    "Exit with {FAILED_ON_CODE} if the command succeeds and the summary has a critical finding of creep, pressure, imbalance \
                     or any kind (with :warning, also a warning), rising memory that is not yet creep (rising), or a peak of reserved memory above peak:SIZE or \
                     peak:+PERCENT%:SUMMARY; with {UNJUDGED_CODE} if that cannot be judged, unless unwatched-ok is given"
                )),
        )
        .arg(switch(SNAPSHOTS, "On MEMORY CREEP and out-of-memory errors, have PyTorch memory snapshots written next to the summary, and read them"))
        .arg(switch(HOST_LINES, "Trace the lines that allocate host memory, for some steps, where it grows and no object explains that"))
        .arg(switch(ANNOTATIONS, "In GitHub Actions, annotate the findings at their lines, and add a summary to that of the job"))
        .arg(switch(NO_RECORD, "Write no recording (steps.jsonl.zst) next to the summary"))
        .arg(
            Arg::new(LIVE)
                .long(LIVE)
                .action(ArgAction::SetTrue)
                .value_parser(UnknownArgumentValueParser::suggest(
                    "in another terminal, `stepmem status --watch` shows the ranks",
                ))
                .hide(true),
        )
        .arg(Arg::new(RunPart::OPTION).long(RunPart::OPTION).value_name("PART").hide(true))
        .arg(
            Arg::new(COMMAND)
                .value_parser(clap::value_parser!(OsString))
                .num_args(1..)
                .trailing_var_arg(true)
                .required_unless_present(RunPart::OPTION)
                .help("The command and its arguments"),
        );
    with_settings_by_default(command, |_| true, DEFAULTS)
}

fn restart_arguments(command: clap::Command) -> clap::Command {
    command
        .arg(switch(RESTART, "Start the command again after it has checkpointed because its memory may soon run out, if its program opted in"))
        .arg(
            Arg::new(MAX_RESTARTS)
                .long(MAX_RESTARTS)
                .hide_short_help(true)
                .value_name("N")
                .value_parser(clap::value_parser!(u32))
                .requires(RESTART)
                .help(format!("With --{RESTART}: start it again at most so many times [default: {RESTARTS_MAX}]")),
        )
        .arg(
            Arg::new(ATTEMPTS)
                .long(ATTEMPTS)
                .hide_short_help(true)
                .value_name("FILE")
                .value_parser(clap::value_parser!(PathBuf))
                .requires(RESTART)
                .help(format!("With --{RESTART}: keep the attempts in this file, next to the checkpoint, and go on with those that it has")),
        )
}

fn restarts(matches: &ArgMatches) -> Option<RestartOptions> {
    matches.get_flag(RESTART).then(|| RestartOptions {
        max: matches.get_one::<u32>(MAX_RESTARTS).copied().unwrap_or(RESTARTS_MAX),
        kept: matches.get_one::<PathBuf>(ATTEMPTS).cloned(),
    })
}

fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

fn shown_default(key: &str, default: &str) -> String {
    if default == "true" { format!("--{key}") } else { format!("--{key}={default}") }
}

/// Returns the end of both kinds of help.
fn more_help() -> String {
    format!(
        "Exit code: the command's; 128 plus the signal's number if a signal killed it; 127 if not found, 126 if it cannot \
         be run; {FAILED_ON_CODE} by --fail-on, {UNJUDGED_CODE} if that could not be judged.\n\n\
         Try it:\n  stepmem run -- python train.py\n  stepmem run -- torchrun --nproc-per-node 8 train.py"
    )
}

fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let part = matches.get_one::<String>(RunPart::OPTION).map(|name| RunPart::named(name));
    match part {
        None => start(matches),
        Some(Some(RunPart::Exporter)) => export(matches),
        Some(Some(RunPart::SignalMonitor)) => {
            signal_monitor::run()?;
            Ok(Exit::Success)
        }
        Some(None) => Err(anyhow::anyhow!("--{} is internal", RunPart::OPTION).into()),
    }
}

/// Starts all processes, as the process that a person starts.
fn start(matches: &ArgMatches) -> Result<Exit, CommandError> {
    // A mistake on the command line shows before anything runs.
    settings(matches)?;
    let command: Vec<OsString> =
        matches.get_many::<OsString>(COMMAND).into_iter().flatten().cloned().collect();
    let gate = gate(matches, world::size(&command))
        .context("the command was not started")
        .map_err(|error| CommandError { exit: Exit::Unread, error })?;
    for name in [SUMMARY_JSON, ATTEMPTS] {
        let Some(path) = matches.get_one::<PathBuf>(name) else { continue };
        let what =
            || Unread(format!("the command was not started: --{name}: {}", path.display()));
        writable::file(path).with_context(what)?;
    }
    let launch = CommandLaunch {
        command,
        options: options(matches),
        gate: GateCodes {
            failed: FAILED_ON_CODE,
            unjudged: UNJUDGED_CODE,
            needs_watching: gate.needs_watching(),
        },
        restarts: restarts(matches),
    };
    match supervisor::run(&launch) {
        Ok(code) => Ok(Exit::Command(code)),
        Err(error) => {
            let exit = Exit::Command(error.code);
            let is_script = launch.command.first().is_some_and(|program| {
                PathBuf::from(program).extension().is_some_and(|ending| ending == "py")
            });
            let error = anyhow::Error::from(error);
            let hint = "to run a Python script: stepmem run -- python SCRIPT";
            Err(CommandError {
                exit,
                error: if is_script { error.context(hint) } else { error },
            })
        }
    }
}

/// Returns the conditions of the command line, with the current content of their baselines.
fn gate(matches: &ArgMatches, world_size: Option<u64>) -> anyhow::Result<ExitGate> {
    let options = matches.get_many::<FailOn>(FAIL_ON).into_iter().flatten();
    let read = |path: &str| {
        launch_summary::at(&PathBuf::from(path)).map_err(|error| {
            // The path is already named.
            let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
            causes.iter().filter(|cause| *cause != path).cloned().collect::<Vec<_>>().join(": ")
        })
    };
    ExitGate::new(options, world_size, read).map_err(anyhow::Error::msg)
}

/// Runs the exporter, as the process that the supervisor starts.
fn export(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let sources = sources(matches);
    let token_file = sources.flags.get(keys::PUSH_TOKEN_FILE).and_then(|values| values.first());
    let options = RunOptions {
        summary_json: matches.get_one::<PathBuf>(SUMMARY_JSON).cloned(),
        gate: gate(matches, None)?,
        has_annotations: matches.get_flag(ANNOTATIONS),
        token_file: token_file.cloned(),
        has_snapshots: matches.get_flag(SNAPSHOTS),
        traces_lines: matches.get_flag(HOST_LINES),
    };
    let mut settings = settings(matches)?;
    settings.record.is_by_launch = !matches.get_flag(NO_RECORD);
    log::to_stderr(&settings.log);
    Ok(match exporter::run(settings, &options)? {
        GateVerdict::Passed(_) => Exit::Success,
        GateVerdict::Failed(_) => Exit::FailedOn,
        GateVerdict::Unjudged(_) => Exit::Unjudged,
    })
}

fn settings(matches: &ArgMatches) -> anyhow::Result<Settings> {
    sources(matches).read().context("the command was not started")
}

fn sources(matches: &ArgMatches) -> Sources {
    Sources {
        leniency: Leniency::Command,
        defaults: DEFAULTS,
        ..args::sources(matches, |_| true)
    }
}

/// Returns the options of this command line, for the exporter's.
fn options(matches: &ArgMatches) -> Vec<OsString> {
    let Sources { flags, file, .. } = args::sources(matches, |_| true);
    let option = |name: &str, value: &OsString| {
        let mut option = OsString::from(format!("--{name}="));
        option.push(value);
        option
    };
    let mut options = Vec::new();
    for setting in table::SETTINGS {
        for value in flags.get(setting.key).into_iter().flatten() {
            options.push(if setting.is_switch() {
                OsString::from(format!("--{}", setting.key))
            } else {
                option(setting.key, &value.into())
            });
        }
    }
    options.extend(file.map(|file| option("config.file", &file.into_os_string())));
    for flag in [SNAPSHOTS, HOST_LINES, ANNOTATIONS, NO_RECORD] {
        if matches.get_flag(flag) {
            options.push(format!("--{flag}").into());
        }
    }
    for name in [SUMMARY_JSON, FAIL_ON] {
        let given = matches.get_raw(name).into_iter().flatten();
        options.extend(given.map(|value| option(name, &value.to_owned())));
    }
    options
}

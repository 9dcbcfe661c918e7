//! The commands: what each takes and what it calls. What they do is done elsewhere.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Arg, ArgAction, ArgMatches, Command};
use tracing_subscriber::EnvFilter;

use crate::app;
use crate::commands::explain::{self, ExplainQuery};
use crate::commands::summary::{self, CannotCompare, Policy, Question};
use crate::commands::{demo, replay, status};
use crate::config::settings::{
    FILE_VARIABLE, LogSettings, SETTINGS, Setting, Settings, Sources,
};
use crate::model::ids::{Rank, Run};

/// The settings that `replay` takes, by the beginning of their keys.
const REPLAY_PREFIXES: [&str; 5] = ["rank.", "run.", "creep.", "pressure.", "imbalance."];
/// Where `status` looks when no `--url` is given.
const STATUS_URL: &str = "http://127.0.0.1:9477";

/// Parses the arguments, the program's name first, and does what they say.
///
/// # Errors
/// What stopped the command. Help and mistakes in the arguments are printed, not returned.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    let matches = match command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => {
            error.print()?;
            return Ok(if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS });
        }
    };
    // Whoever installed one before us decides.
    rustls::crypto::ring::default_provider().install_default().ok();
    match matches.subcommand() {
        Some(("serve", matches)) => {
            let settings = Settings::read(&sources(matches, |_| true))?;
            log_to_stderr(&settings.log);
            let gpu = app::collectors::nvml_source(&settings);
            app::run(settings, gpu, |_| std::future::pending())?;
        }
        Some(("demo", matches)) => {
            let settings = Settings::read(&sources(matches, |_| true))?;
            log_to_stderr(&settings.log);
            demo::run(settings, matches.get_flag("fixed"))?;
        }
        Some(("replay", matches)) => {
            let settings = Settings::read(&sources(matches, is_replay_setting))?;
            let files = matches.get_many::<PathBuf>("FILE").into_iter().flatten();
            let out = io::stdout().lock();
            whole_or_hung_up(match policy(matches)? {
                Policy::Stepmem => replay::run(files, settings.engine, out),
                Policy::TraceMl(window) => summary::replay_traceml(files, window, out),
            })?;
        }
        Some(("explain", matches)) => {
            let settings = Settings::read(&sources(matches, is_replay_setting))?;
            let files = matches.get_many::<PathBuf>("FILE").into_iter().flatten();
            let question = explained(matches)?;
            let out = io::stdout().lock();
            whole_or_hung_up(explain::run(files, &settings.engine, &question, out))?;
        }
        Some(("summary", matches)) => {
            let settings = Settings::read(&sources(matches, is_replay_setting))?;
            let files = matches.get_many::<PathBuf>("FILE").into_iter().flatten();
            let question = question(matches)?;
            let out = io::stdout().lock();
            whole_or_hung_up(summary::run(files, settings.engine, &question, out))?;
        }
        Some(("compare", matches)) => {
            let file = |name| matches.get_one::<PathBuf>(name).cloned().unwrap_or_default();
            let (old, new, is_json) = (file("OLD"), file("NEW"), matches.get_flag("json"));
            let verdict = summary::compare(&old, &new, is_json, io::stdout().lock())?;
            return Ok(ExitCode::from(verdict.exit_code()));
        }
        Some(("status", matches)) => {
            let url = matches.get_one::<String>("url").map_or(STATUS_URL, String::as_str);
            let text = status::fetch(url, matches.get_flag("json"))?;
            whole_or_hung_up(
                io::stdout().lock().write_all(text.as_bytes()).map_err(Into::into),
            )?;
        }
        Some(("check", matches)) => {
            let settings = Settings::read(&sources(matches, |_| true))?;
            whole_or_hung_up(check(&settings, io::stdout().lock()))?;
        }
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// What the program exits with after an error.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.is::<CannotCompare>() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// The command line.
fn command() -> Command {
    let styles = Styles::styled()
        .header(AnsiColor::Green.on_default().bold())
        .literal(AnsiColor::Cyan.on_default().bold())
        .placeholder(AnsiColor::Cyan.on_default());
    Command::new("stepmem")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Is this run's GPU memory creeping, on which rank, and when does it die?")
        .styles(styles)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(with_settings(
            Command::new("serve").about("Run the exporter: take pushes, ask NVML, expose metrics").after_help(
                "Try it:\n  stepmem serve &\n  curl -d '{\"rank\":0,\"step\":1,\"allocated_bytes\":1}' \
                 -H 'content-type: application/json' localhost:9478/v1/steps\n  curl localhost:9477/metrics",
            ),
            |_| true,
        ))
        .subcommand(with_settings(
            Command::new("demo")
                .about("Run the exporter with a simulated job of 8 ranks on simulated GPUs; one leaks")
                .arg(
                    Arg::new("fixed")
                        .long("fixed")
                        .action(ArgAction::SetTrue)
                        .help("The same job with the leak fixed, to compare"),
                ),
            |_| true,
        ))
        .subcommand(with_settings(
            Command::new("replay")
                .about("Run recorded pushes through the detector: one JSON line per diagnosis that is raised or cleared")
                .arg(recordings())
                .args(policy_args()),
            is_replay_setting,
        ))
        .subcommand(with_settings(explain_command(), is_replay_setting))
        .subcommand(with_settings(summary_command(), is_replay_setting))
        .subcommand(compare_command())
        .subcommand(
            Command::new("status")
                .about("Show the runs and ranks of a running exporter")
                .arg(
                    Arg::new("url")
                        .long("url")
                        .value_name("URL")
                        .help(format!("Where it serves its page [default: {STATUS_URL}]")),
                )
                .arg(
                    Arg::new("json")
                        .long("json")
                        .action(ArgAction::SetTrue)
                        .help("Print the status as JSON"),
                ),
        )
        .subcommand(with_settings(
            Command::new("check").about(
                "Check the settings, say what would be listened on and whether NVML is there",
            ),
            |_| true,
        ))
}

fn explain_command() -> Command {
    Command::new("explain")
        .about("Tell the story of a rank in recorded pushes: what was said of it, and what stopped the rest")
        .arg(recordings())
        .arg(
            Arg::new("run")
                .long("run")
                .value_name("RUN")
                .help("Whose; may be left out when the recordings hold one run"),
        )
        .arg(
            Arg::new("rank")
                .long("rank")
                .value_name("N")
                .value_parser(clap::value_parser!(u64))
                .required_unless_present("pid")
                .help("The global rank"),
        )
        .arg(
            Arg::new("pid")
                .long("pid")
                .value_name("PID")
                .value_parser(clap::value_parser!(u32))
                .conflicts_with_all(["rank", "run"])
                .help("A process that does not push, by the id that NVML lists it under"),
        )
}

fn summary_command() -> Command {
    Command::new("summary")
        .about("Sum up recorded pushes: the verdict, why, what to do next, and every rank")
        .arg(recordings())
        .arg(
            Arg::new("run")
                .long("run")
                .value_name("RUN")
                .help("Which; may be left out when the recordings hold one run"),
        )
        .args(policy_args())
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON"))
}

fn compare_command() -> Command {
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name).help(help).value_parser(clap::value_parser!(PathBuf)).required(true)
    };
    Command::new("compare")
        .about("Compare two summaries: did the fix work, did anything get worse?")
        .arg(file("OLD", "A final_summary.json of ours or of TraceML, before"))
        .arg(file("NEW", "The same, after"))
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON"))
        .after_help(
            "Exits with 0 for no regression, 1 for REGRESSION or MIXED, 2 when there is no telling.",
        )
}

fn policy_args() -> [Arg; 2] {
    [
        Arg::new("policy")
            .long("policy")
            .value_name("POLICY")
            .default_value("stepmem")
            .help("Whose words: stepmem, or traceml for what TraceML 0.3.6 would have said"),
        Arg::new("window")
            .long("window")
            .value_name("STEPS")
            .value_parser(clap::value_parser!(u32).range(1..))
            .help("How many of the last common steps TraceML looks at [default: 10000]"),
    ]
}

/// Who judges.
fn policy(matches: &ArgMatches) -> anyhow::Result<Policy> {
    let name = matches.get_one::<String>("policy").map_or("", String::as_str);
    let window = matches.get_one::<u32>("window").map(|steps| usize::try_from(*steps));
    Policy::read(name, window.transpose()?)
}

/// What `summary` is asked for.
fn question(matches: &ArgMatches) -> anyhow::Result<Question> {
    Ok(Question {
        policy: policy(matches)?,
        run: matches.get_one::<String>("run").map(|run| Run::new(run)).transpose()?,
        is_json: matches.get_flag("json"),
    })
}

fn recordings() -> Arg {
    Arg::new("FILE")
        .help("Recordings as JSON lines (push records and NVML readings); - is standard input")
        .value_parser(clap::value_parser!(PathBuf))
        .num_args(1..)
        .required(true)
}

/// The subject that `explain` is asked about.
fn explained(matches: &ArgMatches) -> anyhow::Result<ExplainQuery> {
    if let Some(pid) = matches.get_one::<u32>("pid") {
        return Ok(ExplainQuery::Process(*pid));
    }
    let run = matches.get_one::<String>("run").map(|run| Run::new(run)).transpose()?;
    let rank = matches.get_one::<u64>("rank").copied().unwrap_or_default();
    Ok(ExplainQuery::Rank(run, Rank::new(rank)?))
}

fn is_replay_setting(setting: &Setting) -> bool {
    REPLAY_PREFIXES.iter().any(|prefix| setting.key.starts_with(prefix))
}

fn with_settings(command: Command, takes: impl Fn(&Setting) -> bool) -> Command {
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

fn log_to_stderr(log: &LogSettings) {
    let builder = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .with_target(false)
        .with_env_filter(EnvFilter::new(format!("{},opentelemetry_sdk=warn", log.level)));
    if log.is_json { builder.json().init() } else { builder.init() }
}

/// A reader of our output that has seen enough (`| head`) is no error.
fn whole_or_hung_up(result: anyhow::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error)
            if error
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) =>
        {
            Ok(())
        }
        other => other,
    }
}

fn check(settings: &Settings, mut out: impl Write) -> anyhow::Result<()> {
    for address in &settings.web_addresses {
        writeln!(out, "page and metrics: http://{address}{}", settings.telemetry_path)?;
    }
    for address in &settings.push_addresses {
        writeln!(out, "pushes:           http://{address}/v1/steps")?;
    }
    if let Some((path, mode)) = &settings.push_socket {
        writeln!(out, "pushes:           {} (mode {mode:o})", path.display())?;
    }
    writeln!(
        out,
        "push token:       {}",
        if settings.push.token.is_some() { "required" } else { "none" }
    )?;
    match &settings.otlp {
        Some(otlp) => writeln!(
            out,
            "OTLP:             {} every {}",
            otlp.endpoint.as_deref().unwrap_or("as OTEL_EXPORTER_OTLP_… says"),
            humantime::format_duration(otlp.interval)
        )?,
        None => writeln!(out, "OTLP:             off")?,
    }
    let Some(mut source) = app::collectors::nvml_source(settings) else {
        writeln!(out, "NVML:             off")?;
        return Ok(());
    };
    let poll = source.read();
    for sample in &poll.samples {
        let model = sample.info.model.as_deref().unwrap_or("unknown model");
        writeln!(out, "NVML:             {} {model}", sample.device)?;
    }
    for gone in &poll.unavailable {
        writeln!(out, "NVML:             not there ({}): {}", gone.code, gone.message)?;
    }
    if poll.is_released {
        writeln!(out, "NVML:             not asked, no device is wanted so far")?;
    } else if poll.samples.is_empty() && poll.unavailable.is_empty() {
        writeln!(out, "NVML:             no device")?;
    }
    Ok(())
}

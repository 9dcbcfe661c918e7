//! `stepmem check`: checks the settings, and shows what they configure and whether NVML is
//! available.

use std::io::{self, Write};
use std::net::SocketAddr;

use anyhow::anyhow;
use clap::{Arg, ArgMatches};

use crate::commands::args::{self, CommandError, CommandRow, Exit, with_settings};
use crate::commands::credentials::credential_args;
use crate::commands::failure::ERROR_CHARS_MAX;
use crate::commands::live::{LiveExporter, URL};
use crate::config::keys;
use crate::config::settings::{ConfigError, PushSocket, Settings};
use crate::config::web_file::WebFile;
use crate::exporter::collectors::nvml;
use crate::exporter::listen::opened;
use crate::exporter::reload::token_warnings;
use crate::exporter::start::{problems, warned};
use crate::input::push::http::PushConfig;
use stepmem_types::format::clean::lines;
use stepmem_types::format::units::period;
use stepmem_types::nvml_code::LIBRARY_MISSING;

/// The path at which an exporter reports that it runs.
const HEALTH_PATH: [&str; 2] = ["-", "healthy"];

/// `stepmem check`.
pub(super) const CHECK: CommandRow = CommandRow { name: "check", arguments, run };

fn arguments() -> clap::Command {
    let command = clap::Command::new("check").about(
        "Check the settings; show the addresses to listen on and whether NVML is available",
    );
    with_settings(command, |_| true)
        .arg(Arg::new("url").long("url").value_name("URL").help(
            "Only ask whether the exporter at http://HOST:PORT, https://HOST:PORT or unix:///PATH (its push socket) is healthy, and \
             check no settings; for a probe",
        ))
        .args(credential_args())
}

fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    if let Some(url) = matches.get_one::<String>("url") {
        let answer = LiveExporter::at((URL, url), matches)?.get(&HEALTH_PATH)?;
        let answer = lines(&answer, ERROR_CHARS_MAX);
        io::stdout().lock().write_all(answer.as_bytes()).map_err(anyhow::Error::from)?;
        return Ok(Exit::Success);
    }
    let settings = args::sources(matches, |_| true).read();
    let settings =
        settings.map_err(|error| with_problems(error, LiveExporter::is_healthy_at))?;
    let settings = warned(settings);
    check(&settings, io::stdout().lock())?;
    let problems = problems(settings, LiveExporter::is_healthy_at)?;
    if problems.is_empty() {
        Ok(Exit::Success)
    } else {
        Err(anyhow!(problems.join("\n")).into())
    }
}

/// Adds to the mistakes in the settings what else would keep an exporter from starting.
pub(super) fn with_problems(
    error: ConfigError,
    serves: impl Fn(&str) -> bool,
) -> anyhow::Error {
    let ConfigError { mistakes, usable } = error;
    let problems = problems(*usable, serves).unwrap_or_else(|error| vec![format!("{error:#}")]);
    let mistakes = mistakes.iter().map(ToString::to_string);
    anyhow!(mistakes.chain(problems).collect::<Vec<_>>().join("\n"))
}

/// Returns an address that can be opened, and what else is meant where that stands for all.
fn shown(address: SocketAddr) -> (SocketAddr, &'static str) {
    let opened = opened(address);
    (opened, if opened == address { "" } else { " (and every address of this host)" })
}

/// Returns the words on an address of a running exporter; none on any other.
fn use_of(address: &str) -> &'static str {
    let is_used = LiveExporter::is_healthy_at(address);
    if is_used {
        "; in use by a stepmem that runs: stop that before you start another"
    } else {
        ""
    }
}

fn check(settings: &Settings, mut out: impl Write) -> anyhow::Result<()> {
    let PushConfig { token_file, admin_token_file, .. } = &settings.push;
    let token_files =
        [(keys::PUSH_TOKEN_FILE, token_file), (keys::ADMIN_TOKEN_FILE, admin_token_file)];
    let of_tokens = token_files
        .into_iter()
        .filter_map(|(setting, file)| Some((setting, file.as_ref()?)))
        .flat_map(|(setting, file)| token_warnings(setting, file));
    for warning in settings.warnings.iter().cloned().chain(of_tokens) {
        writeln!(out, "warning:          {}", lines(&warning, ERROR_CHARS_MAX))?;
    }
    let is_tls = settings.web_file.as_ref().is_some_and(WebFile::speaks_tls);
    let scheme = if is_tls { "https" } else { "http" };
    for address in &settings.web_addresses {
        let (page, of) = shown(*address);
        let used = use_of(&format!("{scheme}://{page}"));
        writeln!(
            out,
            "page and metrics: {scheme}://{page}{}{of}{used}",
            settings.telemetry_path
        )?;
    }
    for address in &settings.push_addresses {
        let (pushed, of) = shown(*address);
        let used = use_of(&format!("{scheme}://{pushed}"));
        writeln!(out, "pushes:           {scheme}://{pushed}/v1/steps{of}{used}")?;
    }
    if let Some(PushSocket { path, mode }) = &settings.push_socket {
        let used = use_of(&format!("unix://{}", path.display()));
        writeln!(out, "pushes:           {} (mode {mode:o}){used}", path.display())?;
    }
    writeln!(
        out,
        "push token:       {}",
        if settings.push.token_file.is_some() { "required" } else { "none" }
    )?;
    writeln!(
        out,
        "admin token:      {}",
        match (&settings.push.admin_token_file, settings.push.trusts_machine) {
            (Some(_), _) => "required",
            (None, true) => "none: root and loopback are admins",
            (None, false) =>
                "none: only the exporter's own user is an admin, over the Unix socket",
        }
    )?;
    match &settings.otlp {
        Some(otlp) => {
            let (url, interval) = (otlp.shown_url(), period(otlp.interval));
            writeln!(out, "OTLP:             {url} every {interval}")?;
        }
        None => writeln!(out, "OTLP:             off")?,
    }
    check_nvml(settings, out)
}

/// Shows the devices, or why there is none.
fn check_nvml(settings: &Settings, mut out: impl Write) -> anyhow::Result<()> {
    let Some(mut source) = nvml::nvml_source(settings) else {
        writeln!(out, "NVML:             off")?;
        return Ok(());
    };
    let poll = source.read();
    for sample in &poll.samples {
        let model = sample.info.model.as_deref().unwrap_or("unknown model");
        writeln!(out, "NVML:             {} {model}", sample.device)?;
    }
    for gone in &poll.unavailable {
        let state = if gone.code == LIBRARY_MISSING {
            "no NVIDIA driver here"
        } else {
            "not available"
        };
        writeln!(out, "NVML:             {state} ({}): {}", gone.code, gone.message)?;
    }
    if poll.is_released {
        writeln!(out, "NVML:             not polled, because no device is needed yet")?;
    } else if poll.samples.is_empty() && poll.unavailable.is_empty() {
        writeln!(out, "NVML:             no device")?;
    }
    Ok(())
}

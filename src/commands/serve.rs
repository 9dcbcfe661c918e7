//! `stepmem serve`: the exporter.

use clap::{Arg, ArgAction, ArgMatches};

use crate::commands::args::{
    self, CommandError, CommandRow, Exit, SETTINGS_HINT, UNKNOWN_ARGUMENT, with_settings,
};
use crate::commands::check::with_problems;
use crate::exporter::collectors::nvml;
use crate::exporter::notices::Notices;
use crate::exporter::{log, start};

/// `stepmem serve`.
pub(super) const SERVE: CommandRow = CommandRow { name: "serve", arguments, run };

fn arguments() -> clap::Command {
    let command = clap::Command::new("serve")
        .about("Run the exporter: receive pushes, poll NVML, expose metrics")
        .after_help(format!(
            "{SETTINGS_HINT}\n\nTry it:\n  stepmem serve &\n  curl -d '{{\"rank\":0,\"step\":1,\"allocated_bytes\":1}}' \
             -H 'content-type: application/json' localhost:9478/v1/steps\n  curl localhost:9477/metrics",
        ));
    let unknown = Arg::new(UNKNOWN_ARGUMENT).long(UNKNOWN_ARGUMENT).hide(true);
    with_settings(command, |_| true).arg(unknown.action(ArgAction::Append))
}

fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let settings = args::lenient_settings(matches);
    let settings = settings.map_err(|error| with_problems(error, |_| false))?;
    log::to_stderr(&settings.log);
    let gpu = nvml::nvml_source(&settings);
    start::run(settings, gpu, Notices::default(), |_, _| std::future::pending())?;
    Ok(Exit::Success)
}

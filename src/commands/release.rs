//! `stepmem release`: has a running exporter close the devices, for a reset of one of them.

use clap::{Arg, ArgMatches};

use crate::commands::args::{CommandError, CommandRow, Exit};
use crate::commands::live::{push_args, seconds_within, send};
use stepmem_engine::wire::{ControlRequest, RELEASE_SECONDS_MAX};
use stepmem_types::format::units::period;

/// `stepmem release`.
pub(super) const RELEASE: CommandRow = CommandRow { name: "release", arguments, run };

fn arguments() -> clap::Command {
    clap::Command::new("release")
        .about("Have a running exporter close all devices for a time, for example for nvidia-smi --gpu-reset")
        .arg(
            Arg::new("for")
                .long("for")
                .value_name("DURATION")
                .default_value("10m")
                .value_parser(|text: &str| seconds_within(text, 0, RELEASE_SECONDS_MAX))
                .help("How long, up to 1d; 0s opens them again at once"),
        )
        .args(push_args())
}

fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let seconds = matches.get_one::<u32>("for").copied().unwrap_or_default();
    let seconds = u64::from(seconds);
    let done = match seconds {
        0 => "The devices are opened again.".to_owned(),
        seconds => {
            let time = std::time::Duration::from_secs(seconds);
            format!("The devices are closed for {}.", period(time))
        }
    };
    send(matches, &ControlRequest::release(seconds), &done)?;
    Ok(Exit::Success)
}

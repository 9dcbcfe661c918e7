//! `stepmem ack`: lowers a finding that a person has examined to info, for a time.

use std::io::{Write, stdout};

use anyhow::Context;
use clap::{Arg, ArgGroup, ArgMatches};
use serde::Deserialize;

use crate::commands::args::{
    CommandError, CommandRow, Exit, WrongArgument, rank_arg, rank_of, run_arg, run_of,
};
use crate::commands::live::{push_args, seconds_within, send};
use stepmem_engine::DiagnosisKind;
use stepmem_engine::acks::{Ack, FOR_SECONDS_MAX};
use stepmem_engine::wire::ControlRequest;
use stepmem_types::format::units::period;
use stepmem_types::ids::{GpuUuid, ProcessId, RankId, SubjectId};

/// `stepmem ack`.
pub(super) const ACK: CommandRow = CommandRow { name: "ack", arguments, run };

fn arguments() -> clap::Command {
    let value = |name: &'static str, placeholder: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(placeholder).help(help)
    };
    clap::Command::new("ack")
        .override_usage(
            "stepmem ack --run <RUN> --rank <RANK> --kind <KIND> --reason <TEXT>\n       \
             stepmem ack --device <UUID> [--pid <PID>] --kind <KIND> --reason <TEXT>",
        )
        .about("Acknowledge a finding of a running exporter: lower it to info for a time, with a reason")
        .arg(run_arg("Run of the rank").requires("rank"))
        .arg(rank_arg("Rank that has the finding").requires("run"))
        .arg(
            value("device", "UUID", "Device that has the finding, or that the process is on")
                .value_parser(|uuid: &str| GpuUuid::new(uuid)),
        )
        .arg(
            value("pid", "PID", "Process on the device that has the finding")
                .value_parser(clap::value_parser!(u32).range(1..))
                .requires("device"),
        )
        .group(ArgGroup::new("subject").args(["rank", "device"]).required(true))
        .arg(
            value("kind", "KIND", "Diagnosis, such as \"MEMORY CREEP\" or CREEP_CONFIRMED")
                .required(true)
                .value_parser(|name: &str| {
                    let kind = DiagnosisKind::named(name);
                    kind.ok_or_else(|| format!("expected one of {}", DiagnosisKind::names()))
                }),
        )
        .arg(
            value("for", "DURATION", "How long, up to 30d")
                .default_value("1d")
                .value_parser(|text: &str| seconds_within(text, 1, FOR_SECONDS_MAX)),
        )
        .arg(value("reason", "TEXT", "Reason, for those who read it later").required(true))
        .args(push_args())
}

/// The exporter's answer.
#[derive(Default, Deserialize)]
struct Answer {
    /// Set when the diagnosis is found on the subject; `None` of an exporter that does not say.
    found: Option<bool>,
}

fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let ack = ack(matches)?;
    let done = format!(
        "Acknowledged for {}: {} of {}. Until then it is info and pages nobody.",
        period(std::time::Duration::from_secs(ack.seconds())),
        ack.kind().about().title,
        ack.subject()
    );
    let answer = send(matches, &ControlRequest::ack(&ack), &done)?;
    let answer: Answer = serde_json::from_str(&answer).unwrap_or_default();
    if answer.found == Some(false) {
        writeln!(stdout().lock(), "It is not found there now: is that the right one?")
            .map_err(anyhow::Error::from)?;
    }
    Ok(Exit::Success)
}

fn ack(matches: &ArgMatches) -> anyhow::Result<Ack> {
    let rank = run_of(matches).zip(rank_of(matches));
    let device = matches.get_one::<GpuUuid>("device").cloned();
    let subject = match (rank, device, matches.get_one::<u32>("pid")) {
        (Some((run, rank)), _, _) => SubjectId::Rank(RankId { run, rank }),
        (None, Some(uuid), Some(pid)) => SubjectId::Process(ProcessId { uuid, pid: *pid }),
        (None, Some(uuid), None) => SubjectId::Device(uuid),
        (None, None, _) => {
            anyhow::bail!(WrongArgument("neither --rank nor --device".to_owned()))
        }
    };
    let kind = matches.get_one::<DiagnosisKind>("kind").copied();
    let kind = kind.unwrap_or(DiagnosisKind::CreepConfirmed);
    let for_seconds = matches.get_one::<u32>("for").copied().unwrap_or_default();
    let reason = matches.get_one::<String>("reason").map_or("", String::as_str);
    Ack::new(subject, kind, for_seconds, reason)
        .with_context(|| WrongArgument("--reason".to_owned()))
}

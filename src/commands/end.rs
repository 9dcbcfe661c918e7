//! `stepmem end`: reports that a run, or one of its ranks, has ended, for a process that could
//! not.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches};

use crate::commands::args::{CommandError, CommandRow, Exit};
use crate::commands::live::{push_args, rank, rank_arg, send};
use stepmem_engine::wire::request::ControlRequest;
use stepmem_types::end::EndOutcome;
use stepmem_types::ids::Run;

/// `stepmem end`.
pub(super) const END: CommandRow = CommandRow { name: "end", arguments, run };

const OUTCOMES: [EndOutcome; 3] = [EndOutcome::Completed, EndOutcome::Failed, EndOutcome::Oom];

fn arguments() -> clap::Command {
    clap::Command::new("end")
        .about("Tell a running exporter that a run or a rank has ended")
        .arg(
            Arg::new("run").long("run").value_name("RUN").required(true).help("Run that ended"),
        )
        .arg(rank_arg("Rank that ended; all of the run's unless given"))
        .arg(
            Arg::new("outcome")
                .long("outcome")
                .value_name("OUTCOME")
                .value_parser(PossibleValuesParser::new(OUTCOMES.map(EndOutcome::as_label)))
                .default_value(EndOutcome::Completed.as_label())
                .help("How it ended"),
        )
        .args(push_args())
}

fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let text = |name: &str| matches.get_one::<String>(name).map_or("", String::as_str);
    let run = Run::new(text("run")).map_err(anyhow::Error::from)?;
    let rank = rank(matches)?;
    let named = OUTCOMES.into_iter().find(|outcome| outcome.as_label() == text("outcome"));
    let outcome = named.unwrap_or(EndOutcome::Completed);
    let subject = rank.map_or_else(|| run.to_string(), |rank| format!("rank {rank} of {run}"));
    let done = format!("Ended ({}): {subject}.", outcome.as_label());
    send(matches, &ControlRequest::end(&run, rank, outcome), &done)?;
    Ok(Exit::Success)
}

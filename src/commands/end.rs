//! `stepmem end`: reports that a run, or one of its ranks, has ended, for a process that could
//! not.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches};

use crate::commands::args::{
    CommandError, CommandRow, Exit, rank_arg, rank_of, run_arg, run_of,
};
use crate::commands::live::{push_args, send};
use stepmem_engine::wire::ControlRequest;
use stepmem_types::end::EndOutcome;

/// `stepmem end`.
pub(super) const END: CommandRow = CommandRow { name: "end", arguments, run };

const OUTCOMES: [EndOutcome; 3] = [EndOutcome::Completed, EndOutcome::Failed, EndOutcome::Oom];

fn arguments() -> clap::Command {
    clap::Command::new("end")
        .about("Tell a running exporter that a run or a rank has ended")
        .arg(run_arg("Run that ended").required(true))
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
    let Some(run) = run_of(matches) else { return Ok(Exit::Usage) };
    let rank = rank_of(matches);
    let named = OUTCOMES.into_iter().find(|outcome| outcome.as_label() == text("outcome"));
    let outcome = named.unwrap_or(EndOutcome::Completed);
    let subject = rank.map_or_else(|| run.to_string(), |rank| format!("rank {rank} of {run}"));
    let done = format!("Ended ({}): {subject}.", outcome.as_label());
    send(matches, &ControlRequest::end(&run, rank, outcome), &done)?;
    Ok(Exit::Success)
}

//! Whether what a command asks about is there: the run and the rank that it names.

use std::fmt::Display;

use crate::commands::args::WrongArgument;
use stepmem_engine::status::Status;
use stepmem_types::ids::{Rank, Run};

/// Maximum number of runs or ranks that an error names.
const NAMED_MAX: usize = 16;

/// Ensures that an exporter, by its name in errors, has the run and the rank that are named.
///
/// # Errors
/// Names those that it has.
pub(super) fn ensure_known(
    exporter: &str,
    status: &Status,
    run: Option<&Run>,
    rank: Option<Rank>,
) -> anyhow::Result<()> {
    let has_run = run.is_none_or(|run| status.runs.iter().any(|of| of.run == *run));
    let mut ranks = status.ranks.iter().filter(|of| run.is_none_or(|run| of.run == *run));
    let has_rank = rank.is_none_or(|rank| ranks.any(|of| of.rank == rank));
    if has_run && has_rank {
        return Ok(());
    }
    let runs: Vec<&Run> = status.runs.iter().map(|of| &of.run).collect();
    let absence = match (run.or_else(|| single(&runs)), rank) {
        (Some(run), Some(rank)) if has_run => {
            let mut ranks: Vec<Rank> =
                status.ranks.iter().filter(|of| of.run == *run).map(|of| of.rank).collect();
            ranks.sort();
            no_rank(run, rank, &ranks)
        }
        (_, rank) => {
            let rank = rank.map_or_else(|| "rank".to_owned(), |rank| format!("rank {rank}"));
            let run = run.map_or_else(String::new, |run| format!(" of run {run}"));
            let runs =
                if runs.is_empty() { "; none pushes".to_owned() } else { of_runs(&runs) };
            format!("no {rank}{run}{runs}")
        }
    };
    anyhow::bail!(WrongArgument(format!("{exporter} has {absence}")))
}

/// Returns that a run does not have a rank, and which it has.
pub(super) fn no_rank(run: &Run, rank: Rank, ranks: &[Rank]) -> String {
    format!("no rank {rank} of run {run}, but {}", listed(ranks))
}

/// Returns the first of these, for a sentence.
pub(super) fn listed(all: &[impl Display]) -> String {
    let shown: Vec<String> = all.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let more = if all.len() > shown.len() { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

fn of_runs(runs: &[&Run]) -> String {
    format!("; it has the runs {}", listed(runs))
}

fn single<'r>(runs: &[&'r Run]) -> Option<&'r Run> {
    if let [only] = runs { Some(only) } else { None }
}

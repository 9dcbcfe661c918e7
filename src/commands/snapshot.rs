//! `stepmem snapshot`: reads files of PyTorch memory snapshots in pieces, and prints their
//! content.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};

use crate::commands::args::{CommandError, CommandRow, Exit, write_document};
use crate::commands::snapshot_columns;
use crate::commands::snapshot_common::{
    Common, ensure_moment, file, json, named_moment, path, with_common, with_html,
};
use crate::commands::snapshot_events::{self, EVENTS};
use crate::commands::snapshot_file::{NotASnapshot, shown};
use crate::commands::take;
use stepmem_snapshot::html::{self, DocumentHead};
use stepmem_snapshot::text::{self, Question, RowKind, ShownMoment};
use stepmem_snapshot::{
    FitQuestion, RankRow, RankSnapshot, StateSeries, compare_files, compare_ranks, json,
    pinned, rank_of,
};
use stepmem_types::format::units::whole_bytes;
use stepmem_types::units::parse_whole_size;

/// `stepmem snapshot`.
pub(super) const SNAPSHOT: CommandRow = CommandRow { name: "snapshot", arguments, run };

const SUBCOMMANDS: [CommandRow; 3] = [
    CommandRow { name: "show", arguments: show_arguments, run: show },
    CommandRow { name: "diff", arguments: diff_arguments, run: compare },
    CommandRow { name: "ranks", arguments: ranks_arguments, run: ranks },
];

fn arguments() -> Command {
    Command::new("snapshot")
        .about(
            "Read PyTorch memory snapshots: who holds the memory, which line leaks, why it ran out",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(
            SUBCOMMANDS.iter().map(|row| with_html(with_common((row.arguments)().name(row.name)))),
        )
        .subcommand(snapshot_events::adapted(with_common((EVENTS.arguments)().name(EVENTS.name))))
        .subcommand(take::arguments())
        .after_help("Exits with 2 for a file that is not a snapshot; ranks gives such a file a row.")
}

fn show_arguments() -> Command {
    Command::default()
        .after_help(snapshot_columns::SHOW)
        .about("Show one snapshot: who holds the memory, leak, out of memory, fragmentation, steps")
        .arg(file("FILE", "A snapshot, plain or compressed with gzip or zstd"))
        .arg(
            Arg::new("at")
                .long("at")
                .value_name("MOMENT")
                .value_parser(moment)
                .default_value("end")
                .help(
                    "Moment of the table: end, peak, oom, a step N or step:N (at its peak; in events --at, N alone is an event), N.P (after its backward pass P, from 1) or N.zero_grad (when it calls zero_grad)",
                ),
        )
        .arg(
            Arg::new("by")
                .long("by")
                .value_name("ROWS")
                .value_parser(["line", "function", "stack", "category", "block"])
                .default_value("line")
                .help("Rows of the table"),
        )
        .arg(
            Arg::new("batch-size")
                .long("batch-size")
                .value_name("N")
                .value_parser(clap::value_parser!(u64).range(1..))
                .help("Samples of the recorded batch: shows what the peak needs per sample"),
        )
        .arg(
            Arg::new("capacity")
                .long("capacity")
                .value_name("SIZE")
                .value_parser(capacity)
                .help("Memory of the device, such as 80GiB: shows what others had when memory ran out, and with --batch-size the largest batch that fits"),
        )
}

fn capacity(text: &str) -> Result<u64, String> {
    parse_whole_size(text).ok_or_else(|| "it is not a size such as 80GiB".to_owned())
}

/// The help of the later files of `diff`.
const AFTER: &str = "The later one, or several of one process, each written at the end of a step, in that order: the last is compared, and five files or more show by their blocks which line leaks";

fn diff_arguments() -> Command {
    Command::default()
        .after_help(snapshot_columns::DIFF)
        .about("Compare two snapshots line by line: what grew? Of five states or more also: which line leaks?")
        .arg(file("BEFORE", "The earlier snapshot"))
        .arg(file("AFTER", AFTER).num_args(1..))
}

fn ranks_arguments() -> Command {
    let help = "One file per rank; the rank is the number after \"rank\" in its name";
    Command::default()
        .after_help(snapshot_columns::RANKS)
        .about("Compare the snapshots of a job's ranks: which rank differs, in which line?")
        .arg(file("FILE", help).num_args(1..))
}

fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(Exit::Success) };
    if name == take::NAME {
        return take::run(matches);
    }
    let row = SUBCOMMANDS.iter().chain([&EVENTS]).find(|row| row.name == name);
    row.map_or(Ok(Exit::Success), |row| (row.run)(matches))
}

fn show(matches: &ArgMatches) -> Result<Exit, CommandError> {
    print_show(matches, io::stdout().lock())?;
    Ok(Exit::Success)
}

fn print_show(matches: &ArgMatches, mut out: impl Write) -> anyhow::Result<()> {
    let common = Common::new(matches);
    let path = path(matches, "FILE");
    let opened = common.open(&path)?;
    let reports = opened.reports(&common);
    let host = pinned(&opened.snapshot, &opened.sites);
    let fit = FitQuestion {
        batch_size: matches.get_one("batch-size").copied(),
        capacity: matches.get_one("capacity").copied(),
    };
    if common.is_json {
        let file = json::File {
            path: path.to_string_lossy().into_owned(),
            bytes: opened.bytes,
            protocol: opened.snapshot.protocol,
        };
        return json(&json::show(file, &reports, host.as_ref(), fit), out);
    }
    let moment = matches.get_one("at").copied().unwrap_or_default();
    ensure_moment(moment, &reports)?;
    let about =
        format!("{}, pickle protocol {}", whole_bytes(opened.bytes), opened.snapshot.protocol);
    if let Some(to) = common.html.as_deref() {
        let head = DocumentHead { name: &name_of(&path), about: &about, moment };
        let document = html::write(head, &reports, host.as_ref())?;
        return write_document(to, &document);
    }
    let question = Question {
        moment,
        rows: match matches.get_one::<String>("by").map(String::as_str) {
            Some("function") => RowKind::Function,
            Some("stack") => RowKind::Stack,
            Some("category") => RowKind::Category,
            Some("block") => RowKind::Block,
            _ => RowKind::Line,
        },
        top: common.top,
        fit,
    };
    writeln!(out, "{}: {about}", shown(&path))?;
    if reports.is_empty() {
        writeln!(out, "{}", opened.nothing(&common))?;
    }
    for report in &reports {
        writeln!(out, "\n{}", text::device(report, &question).trim_end())?;
    }
    if let Some(host) = &host {
        writeln!(out, "\n{}", text::pinned(host, common.top).trim_end())?;
    }
    Ok(())
}

fn compare(matches: &ArgMatches) -> Result<Exit, CommandError> {
    print_compare(matches, io::stdout().lock())?;
    Ok(Exit::Success)
}

fn print_compare(matches: &ArgMatches, mut out: impl Write) -> anyhow::Result<()> {
    let common = Common::new(matches);
    let mut later: Vec<&PathBuf> = matches.get_many("AFTER").into_iter().flatten().collect();
    let last = later.pop().cloned().unwrap_or_default();
    let paths = [path(matches, "BEFORE"), last];
    let before = common.open(&paths[0])?;
    let before = before.reports(&common);
    let mut series = StateSeries::default();
    if !later.is_empty() {
        series.add(rank_in(&paths[0]), &before);
    }
    for path in &later {
        series.add(rank_in(path), &common.open(path)?.reports(&common));
    }
    let after = common.open(&paths[1])?;
    let after = after.reports(&common);
    let mut diff = compare_files(&before, &after);
    if !later.is_empty() {
        series.add(rank_in(&paths[1]), &after);
        diff.judge(&series, &after);
    }
    if let Some(to) = common.html.as_deref() {
        return write_document(
            to,
            &html::diff(paths.each_ref().map(|path| name_of(path)), &diff),
        );
    }
    if common.is_json {
        return json(&json::diff(diff), out);
    }
    write!(out, "{}", text::diff(&diff, common.top))?;
    Ok(())
}

fn ranks(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let is_read = print_ranks(matches, io::stdout().lock())?;
    Ok(if is_read { Exit::Success } else { Exit::Unread })
}

/// Returns whether a file was read.
fn print_ranks(matches: &ArgMatches, mut out: impl Write) -> anyhow::Result<bool> {
    let common = Common::new(matches);
    let mut rows = Vec::new();
    let mut summaries = Vec::new();
    for (position, path) in (0..).zip(matches.get_many::<PathBuf>("FILE").into_iter().flatten())
    {
        let file = path.to_string_lossy().into_owned();
        let rank = rank_in(path).unwrap_or(position);
        match common.open(path) {
            Ok(opened) => {
                let summary = RankSnapshot::new(&opened.reports(&common));
                rows.push(summary.row(rank, file));
                summaries.push(Some(summary));
            }
            Err(error) => {
                let error = match error.downcast_ref::<NotASnapshot>() {
                    Some(not) => not.reason.clone(),
                    None => format!("{:#}", error.root_cause()),
                };
                rows.push(RankRow::unreadable(rank, file, error));
                summaries.push(None);
            }
        }
    }
    let is_read = summaries.iter().any(Option::is_some);
    let ranks = compare_ranks(rows, &summaries);
    if let Some(to) = common.html.as_deref() {
        write_document(to, &html::ranks(&ranks))?;
    } else if common.is_json {
        json(&json::ranks(ranks), out)?;
    } else {
        write!(out, "{}", text::ranks(&ranks, common.top))?;
    }
    Ok(is_read)
}

/// The rank in a file's name.
fn rank_in(path: &Path) -> Option<u64> {
    path.file_name().and_then(|name| rank_of(&name.to_string_lossy()))
}

/// The name of a file without its folder.
fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn moment(text: &str) -> Result<ShownMoment, String> {
    let step = || text.parse().ok().map(ShownMoment::Step);
    named_moment(text)
        .or_else(step)
        .ok_or_else(|| "expected end, peak, oom, a step N, N.P or N.zero_grad".to_owned())
}

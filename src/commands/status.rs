//! `stepmem status`: the status of a running exporter as a table for a terminal.

use std::cmp::Reverse;
use std::io::{IsTerminal, Write, stdout};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches};
use serde::de::IgnoredAny;

use crate::commands::args::{
    CommandError, CommandRow, Exit, WrongArgument, json, json_arg, rank_arg, rank_of, run_arg,
    run_of,
};
use crate::commands::credentials::credential_args;
use crate::commands::failure;
use crate::commands::known::{ensure_known, no_rank};
use crate::commands::live::{LiveExporter, STATUS_PATH, URL};
use crate::commands::prometheus::{self, PROMETHEUS, Prometheus, prometheus_args};
use crate::commands::reader::Reader;
use stepmem_detect::Signal;
use stepmem_engine::status::{FindingStatus, ProcessStatus, Status};
use stepmem_engine::words;
use stepmem_report::job::{self, Choice};
use stepmem_report::{RankOrder, diagnoses, quantity, rank_table, slope, sort_ranks};
use stepmem_types::format::clean::plain_json;
use stepmem_types::format::page::{Cell, Column, Indent, Page, Table};
use stepmem_types::format::units::{many, or_unknown, percent, time_left_cell};
use stepmem_types::ids::{ProcessId, Rank, Run, SubjectId};
use stepmem_types::step::StepUnit;

/// `stepmem status`.
pub(super) const STATUS: CommandRow = CommandRow { name: "status", arguments, run };

/// The default of `--url`.
const STATUS_URL: &str = "http://127.0.0.1:9477";
/// Maximum number of ranks that have a line each, unless all are requested.
const ROWS_MAX: usize = 32;
/// Moves to the upper left corner and clears the screen.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// The ranks that are shown, and their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusView {
    pub run: Option<Run>,
    /// Global rank.
    pub rank: Option<Rank>,
    /// The order of the ranks; by run and rank unless it is given.
    pub order: Option<RankOrder>,
    /// Set to show a line for every rank, regardless of their number.
    pub is_all: bool,
}

/// Fetches the status from the exporter, as a table of the ranks that `view` shows, or all of
/// it as its JSON.
///
/// # Errors
/// No exporter answers there, or the answer is not a status of this version.
fn fetch(exporter: &LiveExporter, view: &StatusView, is_json: bool) -> anyhow::Result<String> {
    if is_json {
        let text = exporter.get(&STATUS_PATH)?;
        serde_json::from_str::<IgnoredAny>(&text).context("the answer is not JSON")?;
        return Ok(format!("{}\n", plain_json(text.trim_end())));
    }
    let status = exporter.status()?;
    ensure_known(exporter.name(), &status, view.run.as_ref(), view.rank)?;
    let (status, n_hidden) = selected(status, view);
    Ok(render(&status, n_hidden, Reader::of_stdout()))
}

/// Asks Prometheus for the latest or the named launch of the run, as a table or as JSON.
fn of_prometheus(url: &str, matches: &ArgMatches, view: &StatusView) -> anyhow::Result<String> {
    let choice = matches.get_one::<String>("launch").cloned();
    let choice = choice.map_or(Choice::Latest, Choice::Named);
    let run = prometheus::run(view.run.as_ref())?;
    let prometheus = Prometheus::at((PROMETHEUS, url), matches)?;
    let mut job = prometheus.job(run, &choice)?;
    if matches.get_flag("json") {
        return Ok(plain_json(&json(&job)?).into_owned());
    }
    let ranks: Vec<Rank> = job.ranks.iter().map(|rank| rank.rank).collect();
    if let Some(rank) = view.rank {
        let absence = || {
            WrongArgument(format!("{} has {}", prometheus.name(), no_rank(run, rank, &ranks)))
        };
        anyhow::ensure!(ranks.contains(&rank), absence());
    }
    job.ranks.retain(|rank| view.rank.is_none_or(|shown| rank.rank == shown));
    let n_rows_max = if view.is_all { usize::MAX } else { ROWS_MAX };
    Ok(job::status(&job, n_rows_max, prometheus::shown()))
}

/// Returns the part of the status that the view shows, and the number of ranks that are left
/// out because there are too many.
fn selected(mut status: Status, view: &StatusView) -> (Status, usize) {
    let is_shown = |run: &Run, rank: Option<Rank>| {
        view.run.as_ref().is_none_or(|shown| run == shown)
            && view.rank.is_none_or(|shown| rank.is_none_or(|rank| rank == shown))
    };
    status.ranks.retain(|rank| is_shown(&rank.run, Some(rank.rank)));
    status.runs.retain(|run| is_shown(&run.run, None));
    let is_narrow = view.run.is_some() || view.rank.is_some();
    let has_subject = |subject: &SubjectId| match subject {
        SubjectId::Rank(id) => is_shown(&id.run, Some(id.rank)),
        SubjectId::Process(_) | SubjectId::Device(_) => !is_narrow,
    };
    status.findings.retain(|finding| has_subject(&finding.subject));
    status.acks.retain(|ack| has_subject(&ack.subject));
    if is_narrow {
        status.processes.clear();
        status.devices.clear();
    }
    let mut ranks = std::mem::take(&mut status.ranks);
    let n_hidden = if view.is_all { 0 } else { ranks.len().saturating_sub(ROWS_MAX) };
    if n_hidden > 0 {
        sort_ranks(&mut ranks, &status.findings, RankOrder::Severity);
        ranks.truncate(ROWS_MAX);
    }
    let by_default = if n_hidden > 0 { RankOrder::Severity } else { RankOrder::Rank };
    sort_ranks(&mut ranks, &status.findings, view.order.unwrap_or(by_default));
    status.ranks = ranks;
    (status, n_hidden)
}

/// Puts a status into words: the ranks, or the sentence that there is none, the unmanaged
/// processes, then the findings, the worst first.
fn render(status: &Status, n_hidden: usize, reader: Reader) -> String {
    let mut page = Page::new(reader.is_terminal).within(reader.columns);
    if status.ranks.is_empty() {
        page.line("No rank pushes.");
    } else {
        page.table(&rank_table(status));
    }
    if n_hidden > 0 {
        let ranks = many(u64::try_from(n_hidden).unwrap_or(u64::MAX), "more rank");
        page.line(&format!("… and {ranks}, less severe; --all shows them"));
    }
    for note in words::notes(status) {
        page.paragraph(Indent::hanging(2), note.words());
    }
    for shared in words::shared_names(status) {
        page.blank();
        page.paragraph(Indent::hanging(2), shared.words());
    }
    if !status.processes.is_empty() {
        page.blank();
        page.table(&processes(status));
    }
    if !status.devices.is_empty() {
        page.blank();
        page.table(&devices(status));
    }
    let mut findings: Vec<&FindingStatus> = status.findings.iter().collect();
    findings.sort_by_key(|finding| Reverse(finding.severity));
    for FindingStatus { title, severity, subject, sentence, advice, evidence, .. } in findings {
        let words = format!("{title} ({}), {subject}: {sentence}", severity.as_label());
        page.blank();
        page.paragraph(Indent::hanging(0), &words);
        let is_growth = evidence.signal() == Some(Signal::Allocated);
        if let Some(note) = subject.rank().filter(|_| is_growth).and_then(|rank| {
            let mut snapshots = status.snapshots.iter().rev();
            snapshots.find(|snapshot| snapshot.rank == *rank)?.note()
        }) {
            page.paragraph(Indent { first: 2, rest: 2 }, &note);
        }
        page.paragraph(Indent { first: 2, rest: 2 }, advice);
    }
    for acknowledged in words::acknowledged(status) {
        page.blank();
        page.paragraph(Indent::hanging(0), acknowledged.words());
    }
    page.into_text()
}

fn devices(status: &Status) -> Table {
    let mut table = Table::new([
        Column::left(1, "DEVICE").shortenable(),
        Column::left(2, "MODEL").droppable(2),
        Column::right(2, "USED"),
        Column::right(2, "CAPACITY"),
        Column::right(2, "PROCESSES").droppable(1),
    ]);
    for device in &status.devices {
        table.row([
            Cell::from(device.uuid.as_str()),
            or_unknown(device.info.model.clone()).into(),
            quantity(device.memory.as_ref().map(|memory| memory.used)),
            quantity(device.memory.as_ref().map(|memory| memory.total)),
            device.processes.len().to_string().into(),
        ]);
    }
    table
}

fn processes(status: &Status) -> Table {
    let mut table = Table::new([
        Column::left(1, "DEVICE").shortenable(),
        Column::right(2, "PID"),
        Column::left(2, "NAME").droppable(3),
        Column::right(2, "USED"),
        Column::right(2, "CAPACITY").droppable(1),
        Column::right(2, "PRESSURE").droppable(2),
        Column::right(2, "SLOPE"),
        Column::right(2, "OOM IN"),
        Column::left(2, "DIAGNOSIS"),
    ]);
    for process in &status.processes {
        let diagnoses = diagnoses(status, &SubjectId::Process(process.id.clone()));
        let name = name(status, &process.id);
        table.row(process_row(process, name, diagnoses));
    }
    table
}

/// Returns a process's name, where it is visible.
fn name<'s>(status: &'s Status, id: &ProcessId) -> Option<&'s str> {
    let device = status.devices.iter().find(|device| device.uuid == id.uuid)?;
    let process = device.processes.iter().find(|process| process.pid == id.pid)?;
    if process.is_gone { Some("(gone)") } else { process.name.as_deref() }
}

fn process_row(process: &ProcessStatus, name: Option<&str>, diagnoses: Cell) -> [Cell; 9] {
    [
        process.id.uuid.as_str().into(),
        process.id.pid.to_string().into(),
        or_unknown(name.map(str::to_owned)).into(),
        quantity(Some(process.used)),
        quantity(process.capacity),
        or_unknown(process.pressure_ratio.map(percent)).into(),
        or_unknown(process.creep.as_ref().and_then(|of| slope(of, StepUnit::Steps))).into(),
        or_unknown(time_left_cell(process.oom_eta_seconds, process.oom_eta_lower_seconds))
            .into(),
        diagnoses,
    ]
}

fn arguments() -> clap::Command {
    clap::Command::new("status")
        .about("Show the ranks, findings, devices and acknowledgments of a running exporter, or a run that Prometheus knows")
        .arg(
            Arg::new("url")
                .long("url")
                .value_name("URL")
                .help(format!("Address of the exporter's status page [default: {STATUS_URL}]")),
        )
        .args(credential_args())
        .arg(run_arg("Show this run only"))
        .arg(rank_arg("Show this rank only"))
        .arg(
            Arg::new("sort")
                .long("sort")
                .value_name("ORDER")
                .value_parser(PossibleValuesParser::new(RankOrder::ALL.map(RankOrder::name)))
                .help("Order of the ranks [default: rank, or severity if not all are shown]"),
        )
        .arg(
            Arg::new("all")
                .long("all")
                .action(ArgAction::SetTrue)
                .help(format!("Show every rank; otherwise the worst {ROWS_MAX}")),
        )
        .arg(
            Arg::new("watch")
                .long("watch")
                .value_name("SECONDS")
                .value_parser(clap::value_parser!(u32).range(1..))
                .num_args(0..=1)
                .default_missing_value("2")
                .help("Show it again after this many seconds, repeatedly (2 unless given)"),
        )
        .arg(json_arg("Print the whole status as JSON"))
        .args(prometheus_args(["url", "sort"]))
}

fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let url = matches.get_one::<String>("url").map_or(STATUS_URL, String::as_str);
    let order = matches.get_one::<String>("sort");
    let view = StatusView {
        run: run_of(matches),
        rank: rank_of(matches),
        order: order
            .and_then(|name| RankOrder::ALL.into_iter().find(|order| order.name() == name)),
        is_all: matches.get_flag("all"),
    };
    let is_json = matches.get_flag("json");
    // The files are read again each time: they may have been renewed.
    let look = || match matches.get_one::<String>("prometheus") {
        Some(url) => of_prometheus(url, matches, &view),
        None => fetch(&LiveExporter::at((URL, url), matches)?, &view, is_json),
    };
    let every =
        matches.get_one::<u32>("watch").map(|every| Duration::from_secs((*every).into()));
    let Some(every) = every else {
        print(&look()?)?;
        return Ok(Exit::Success);
    };
    let clear = if stdout().is_terminal() && !is_json { CLEAR } else { "" };
    loop {
        // An exporter that is restarted appears again.
        let text = look().unwrap_or_else(|error| format!("{}\n", failure::shown(&error)));
        print(&format!("{clear}{text}"))?;
        thread::sleep(every);
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::commands::reader::Reader;
    use crate::commands::status::render;

    const GIB: u64 = 1 << 30;

    /// Returns a status in the form of the exporter's answer.
    fn status(parts: &Value) -> String {
        let mut status =
            serde_json::to_value(stepmem_engine::status::Status::default()).unwrap();
        for (key, part) in parts.as_object().unwrap() {
            status[key] = part.clone();
        }
        render(&serde_json::from_value(status).unwrap(), 0, Reader::default())
    }

    fn finding(kind: &str, severity: &str, subject: &Value) -> Value {
        let mut finding = json!({
            "kind": kind, "status": kind.replace('_', " "), "severity": severity, "since": 1.0,
            "evidence": { "pressure_ratio": 0.9, "basis": "device", "capacity_bytes": GIB },
            "sentence": "it is full", "advice": "Free some.",
        });
        for (key, value) in subject.as_object().unwrap() {
            finding[key] = value.clone();
        }
        finding
    }

    #[test]
    fn memory_of_processes_that_are_gone_is_told() {
        let process = |pid: u32, is_gone: bool| json!({"pid": pid, "used_bytes": 16 * GIB, "owner": null, "container": null, "is_gone": is_gone});
        let with = |processes: &[Value]| {
            status(&json!({"devices": [{
                "uuid": "GPU-7", "attribution": "host", "other_processes_bytes": null,
                "memory": null, "attributed_bytes": null, "unattributed_bytes": null,
                "processes": processes,
            }]}))
        };
        let (here, gone) = (process(3, false), process(4711, true));
        assert!(!with(std::slice::from_ref(&here)).contains("exist"));
        let one = "GPU-7 still holds 16.0 GiB for process 4711, which no longer exists.";
        let text = with(&[here, gone.clone()]);
        assert!(text.contains(one), "{text}");
        let two = "GPU-7 still holds 32.0 GiB for 2 processes, 4711 and others, which no longer exist.";
        let text = with(&[gone, process(4712, true)]);
        assert!(text.contains(two), "{text}");
    }

    #[test]
    fn processes_that_do_not_push_have_a_table_of_their_own() {
        let text = status(&json!({
            "processes": [{
                "uuid": "GPU-7", "pid": 4711, "used_bytes": 60 * GIB, "capacity_bytes": 80 * GIB,
                "headroom_bytes": null, "pressure_ratio": 0.75, "oom_eta_seconds": 7200.0,
                "creep": {
                    "signal": "process", "slope_bytes_per_step": null,
                    "slope_lower_bytes_per_step": null, "slope_upper_bytes_per_step": null,
                    "slope_bytes_per_second": 1_048_576.0, "trend": null,
                },
            }],
            "devices": [{
                "uuid": "GPU-7", "attribution": "host", "other_processes_bytes": null,
                "memory": null, "attributed_bytes": null, "unattributed_bytes": null,
                "processes": [
                    { "pid": 3, "used_bytes": GIB, "name": "sshd", "owner": null, "container": null },
                    { "pid": 4711, "used_bytes": GIB, "name": "python", "owner": null, "container": null },
                ],
            }],
            "findings": [finding("HIGH_PRESSURE", "warning", &json!({ "uuid": "GPU-7", "pid": 4711 }))],
        }));
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0].join(" "), "No rank pushes.");
        assert_eq!(
            lines[2].join(" "),
            "DEVICE PID NAME USED CAPACITY PRESSURE SLOPE OOM IN DIAGNOSIS"
        );
        let row = "GPU-7 4711 python 60.0 GiB 80.0 GiB 75% 3.52 GiB/h 2 h 0 min HIGH PRESSURE";
        assert_eq!(lines[3].join(" "), row);
        assert!(
            text.contains(
                "\nHIGH PRESSURE (warning), process 4711 on GPU-7: it is full\n  Free some.\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn worst_finding_comes_first_whatever_its_subject() {
        let text = status(&json!({
            "findings": [
                finding("HIGH_PRESSURE", "info", &json!({ "run": "llm", "rank": 3 })),
                finding("HIGH_PRESSURE", "critical", &json!({ "uuid": "GPU-9" })),
            ],
        }));
        let (worst, other) =
            (text.find("device GPU-9").unwrap(), text.find("rank 3 of llm").unwrap());
        assert!(worst < other, "{text}");
    }
}

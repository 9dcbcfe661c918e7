//! `stepmem status`: the status of a running exporter as a table for a terminal.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io::{IsTerminal, Write, stdout};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches};
use serde::de::IgnoredAny;

use crate::commands::args::{CommandError, CommandRow, Exit, json, json_arg};
use crate::commands::credentials::credential_args;
use crate::commands::failure;
use crate::commands::live::{LiveExporter, STATUS_PATH};
use crate::commands::prometheus::{self, Prometheus, prometheus_args};
use crate::commands::reader::Reader;
use stepmem_detect::signal::Signal;
use stepmem_engine::devices::FailingDevice;
use stepmem_engine::output::status::{
    FindingStatus, ProcessStatus, RankStatus, RunStatus, Status,
};
use stepmem_report::job::launches::Choice;
use stepmem_report::job::text;
use stepmem_report::rank_table::{
    RankOrder, diagnoses, quantity, rank_table, slope, sort_ranks,
};
use stepmem_types::format::clean::plain_json;
use stepmem_types::format::page::{Cell, Column, Indent, Page, Table};
use stepmem_types::format::units::{
    bytes, duration, many, or_unknown, percent, time_left_cell,
};
use stepmem_types::ids::{GpuUuid, ProcessId, Run, SubjectId};
use stepmem_types::nvml_code::LIBRARY_MISSING;
use stepmem_types::step::StepUnit;
use stepmem_types::units::Bytes;

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
    pub run: Option<String>,
    /// Global rank.
    pub rank: Option<u32>,
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
    let (status, n_hidden) = selected(exporter.status()?, view);
    Ok(render(&status, n_hidden, &nobody(view), Reader::of_stdout()))
}

/// Asks Prometheus for the latest or the named launch of the run, as a table or as JSON.
fn of_prometheus(url: &str, matches: &ArgMatches, view: &StatusView) -> anyhow::Result<String> {
    let choice = matches.get_one::<String>("launch").cloned();
    let choice = choice.map_or(Choice::Latest, Choice::Named);
    let run = prometheus::run(view.run.as_ref())?;
    let mut job = Prometheus::at(url, matches)?.job(&run, &choice)?;
    if matches.get_flag("json") {
        return Ok(plain_json(&json(&job)?).into_owned());
    }
    job.ranks.retain(|rank| view.rank.is_none_or(|shown| rank.rank.get() == shown));
    let n_rows_max = if view.is_all { usize::MAX } else { ROWS_MAX };
    Ok(text::status(&job, n_rows_max, prometheus::shown()))
}

/// Returns the part of the status that the view shows, and the number of ranks that are left
/// out because there are too many.
fn selected(mut status: Status, view: &StatusView) -> (Status, usize) {
    let is_shown = |run: &Run, rank: Option<u32>| {
        view.run.as_ref().is_none_or(|shown| run.as_str() == shown)
            && view.rank.is_none_or(|shown| rank.is_none_or(|rank| rank == shown))
    };
    status.ranks.retain(|rank| is_shown(&rank.run, Some(rank.rank.get())));
    status.runs.retain(|run| is_shown(&run.run, None));
    let is_narrow = view.run.is_some() || view.rank.is_some();
    let has_subject = |subject: &SubjectId| match subject {
        SubjectId::Rank(id) => is_shown(&id.run, Some(id.rank.get())),
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

/// Returns the sentence for a view that has no rank: others may push.
fn nobody(view: &StatusView) -> String {
    let rank = view.rank.map_or("rank".to_owned(), |rank| format!("rank {rank}"));
    let run = view.run.as_ref().map_or(String::new(), |run| format!(" of run {run}"));
    format!("No {rank}{run} pushes.")
}

/// Puts a status into words: the ranks, or the sentence that there is `nobody`, the unmanaged
/// processes, then the findings, the worst first.
fn render(status: &Status, n_hidden: usize, nobody: &str, reader: Reader) -> String {
    let mut page = Page::new(reader.is_terminal).within(reader.columns);
    if status.ranks.is_empty() {
        page.line(nobody);
    } else {
        page.table(&rank_table(status));
    }
    if n_hidden > 0 {
        let ranks = many(u64::try_from(n_hidden).unwrap_or(u64::MAX), "more rank");
        page.line(&format!("… and {ranks}, less severe; --all shows them"));
    }
    let notes = host_memory(status).into_iter().chain(unknown_memory(status));
    for words in status.runs.iter().filter_map(|run| ending(run, status.time)) {
        page.paragraph(Indent::hanging(2), &words);
    }
    for words in notes.chain(nvml_failures(status)).chain(gone_processes(status)) {
        page.paragraph(Indent::hanging(2), &words);
    }
    for words in status.runs.iter().flat_map(shared_name) {
        page.blank();
        page.paragraph(Indent::hanging(2), &words);
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
    for ack in &status.acks {
        let (title, left) =
            (ack.kind.about().title, duration((ack.until - status.time).max(0.0)));
        let words =
            format!("Acknowledged for {left} more: {title}, {}: {}", ack.subject, ack.reason);
        page.blank();
        page.paragraph(Indent::hanging(0), &words);
    }
    page.into_text()
}

/// Returns sentences about memory that the ranks hold beyond that of their processes.
fn host_memory(status: &Status) -> Vec<String> {
    let has_runs = status.runs.len() > 1;
    let with_words = status.ranks.iter().filter_map(|rank| {
        let words = rank.host.as_deref()?.sentence.as_str();
        let run = if has_runs { format!("Run {}, rank", rank.run) } else { "Rank".to_owned() };
        (!words.is_empty()).then(|| format!("{run} {}: {words}.", rank.rank))
    });
    with_words.collect()
}

/// Returns a sentence for each reason for which the device memory of a rank's process is
/// unknown.
fn unknown_memory(status: &Status) -> impl Iterator<Item = String> {
    let is_known = |rank: &&RankStatus| rank.process_estimated_bytes.is_some();
    let unknown = status.ranks.iter().filter(|rank| !is_known(rank));
    let reasons: BTreeSet<_> = unknown.filter_map(|rank| rank.process_used_state).collect();
    reasons.into_iter().map(|state| {
        let (words, name) = (state.words(), state.as_label());
        format!("Device memory of a rank's process is unknown: NVML {words} ({name}).")
    })
}

/// Returns sentences about NVML and devices that do not answer. A finding tells of a device that
/// is lost.
fn nvml_failures(status: &Status) -> impl Iterator<Item = String> {
    let gpu = &status.gpu;
    let whole = gpu.failure.as_deref().map(|code| {
        if code == LIBRARY_MISSING {
            return "No NVIDIA driver here: the memory of devices is not read.".to_owned();
        }
        let last = gpu.last_success_time.map_or_else(
            || "; it has not since the exporter began".to_owned(),
            |time| format!("; it last did {} ago", duration((status.time - time).max(0.0))),
        );
        format!("NVML does not answer ({code}){last}: what devices hold now is unknown.")
    });
    let has_finding = |uuid: &GpuUuid| {
        status.findings.iter().any(|finding| finding.subject == SubjectId::Device(uuid.clone()))
    };
    let failing = gpu.failing.iter().filter(move |failing| !has_finding(&failing.uuid));
    let of_device = failing.map(|FailingDevice { uuid, code }| {
        format!("Device {uuid} answers only with an error ({code}): what it holds is unknown.")
    });
    whole.into_iter().chain(of_device)
}

/// Returns a sentence for each device that holds memory for processes that no longer exist.
fn gone_processes(status: &Status) -> impl Iterator<Item = String> {
    status.devices.iter().filter_map(|device| {
        let gone: Vec<_> = device.processes.iter().filter(|process| process.is_gone).collect();
        let first = gone.first()?;
        let used = gone.iter().filter_map(|process| process.used).map(Bytes::as_f64).sum();
        let pid = first.pid;
        let (of, them) = match gone.len() {
            1 => (format!("process {pid}"), "no longer exists"),
            n => (format!("{n} processes, {pid} and others"), "no longer exist"),
        };
        Some(format!("{} still holds {} for {of}, which {them}.", device.uuid, bytes(used)))
    })
}

/// Returns a sentence about when a run ends, where that is known.
fn ending(run: &RunStatus, now: f64) -> Option<String> {
    Some(format!("Run {} ends {}.", run.run, run.end_words(now)?))
}

/// Returns sentences about the consequences for this run of two programs under one run name.
fn shared_name(run: &RunStatus) -> impl Iterator<Item = String> {
    let refused = (run.challengers > 0).then(|| {
        format!(
            "Two programs push under the name {}; refused lately: {}. Give one of them another name (STEPMEM_RUN).",
            run.run, run.challengers
        )
    });
    let renamed = run.asked_for.as_ref().map(|name| {
        format!(
            "{} requested the name {name}, under which another program pushes. Give one of them another name (STEPMEM_RUN).",
            run.run
        )
    });
    refused.into_iter().chain(renamed)
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
        .about("Show the ranks, findings, devices and acknowledgements of a running exporter, or a run that Prometheus knows")
        .arg(
            Arg::new("url")
                .long("url")
                .value_name("URL")
                .help(format!("Address of the exporter's status page [default: {STATUS_URL}]")),
        )
        .args(credential_args())
        .arg(Arg::new("run").long("run").value_name("RUN").help("Show this run only"))
        .arg(
            Arg::new("rank")
                .long("rank")
                .value_name("RANK")
                .value_parser(clap::value_parser!(u32))
                .help("Show this rank only"),
        )
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
        run: matches.get_one::<String>("run").cloned(),
        rank: matches.get_one::<u32>("rank").copied(),
        order: order
            .and_then(|name| RankOrder::ALL.into_iter().find(|order| order.name() == name)),
        is_all: matches.get_flag("all"),
    };
    let is_json = matches.get_flag("json");
    // The files are read again each time: they may have been renewed.
    let look = || match matches.get_one::<String>("prometheus") {
        Some(url) => of_prometheus(url, matches, &view),
        None => fetch(&LiveExporter::at(url, matches)?, &view, is_json),
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
            serde_json::to_value(stepmem_engine::output::status::Status::default()).unwrap();
        for (key, part) in parts.as_object().unwrap() {
            status[key] = part.clone();
        }
        render(
            &serde_json::from_value(status).unwrap(),
            0,
            "No rank pushes.",
            Reader::default(),
        )
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

//! `stepmem status`: the status of a running exporter as a table for a terminal.

use std::cmp::Reverse;
use std::io::{IsTerminal, Write, stdout};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches};
use serde::de::IgnoredAny;

use crate::analysis::creep::signal::Signal;
use crate::analysis::status::{
    FindingStatus, ProcessStatus, RankStatus, RunStatus, SignalStatus, Status,
};
use crate::commands::args::{CommandError, CommandRow, Exit, json_arg};
use crate::commands::credentials::credential_args;
use crate::commands::live::{LiveExporter, STATUS_PATH, plain_json};
use crate::model::ids::{ProcessId, Run, SubjectId};
use crate::model::units::Bytes;
use crate::report::closing::colour_of;
use crate::text::page::{Cell, Column, Indent, Page, Table};
use crate::text::units::{bytes, duration, hourly, or_unknown, percent};

/// `stepmem status`.
pub(super) const STATUS: CommandRow = CommandRow { name: "status", arguments, run };

/// The default of `--url`.
const STATUS_URL: &str = "http://127.0.0.1:9477";
/// Ranks that have a line each, unless all are asked for.
const ROWS_MAX: usize = 32;
/// Moves to the upper left corner and clears the screen.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Which ranks are shown, and in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusView {
    pub run: Option<String>,
    /// Global rank.
    pub rank: Option<u32>,
    /// By run and rank unless it is given.
    pub order: Option<StatusOrder>,
    /// Whether every rank has a line, however many there are.
    pub is_all: bool,
}

/// An order of ranks, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusOrder {
    Severity,
    Pressure,
    /// The time until out-of-memory.
    Eta,
    Rank,
}

impl StatusOrder {
    const ALL: [Self; 4] = [Self::Severity, Self::Pressure, Self::Eta, Self::Rank];

    fn name(self) -> &'static str {
        match self {
            Self::Severity => "severity",
            Self::Pressure => "pressure",
            Self::Eta => "eta",
            Self::Rank => "rank",
        }
    }
}

/// Fetches the status from the exporter, as a table of what `view` shows, or all of it as its JSON.
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
    Ok(render(&status, n_hidden, stdout().is_terminal()))
}

/// Leaves what the view shows, and says how many ranks have no line for want of room.
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
        sort(&mut ranks, &status.findings, StatusOrder::Severity);
        ranks.truncate(ROWS_MAX);
    }
    let by_default = if n_hidden > 0 { StatusOrder::Severity } else { StatusOrder::Rank };
    sort(&mut ranks, &status.findings, view.order.unwrap_or(by_default));
    status.ranks = ranks;
    (status, n_hidden)
}

/// Sorts ranks, the most urgent first; equally urgent ones by run and rank, and those of which it is unknown last.
fn sort(ranks: &mut [RankStatus], findings: &[FindingStatus], order: StatusOrder) {
    let severity = |rank: &RankStatus| {
        let id = SubjectId::Rank(rank.id());
        let own = findings.iter().filter(|finding| finding.subject == id);
        own.map(|finding| finding.severity).max()
    };
    let eta = |rank: &RankStatus| rank.oom_eta_seconds.unwrap_or(f64::INFINITY);
    let pressure = |rank: &RankStatus| -highest_pressure(rank).unwrap_or(-1.0);
    ranks.sort_by(|a, b| (&a.run, a.rank).cmp(&(&b.run, b.rank)));
    match order {
        StatusOrder::Rank => {}
        StatusOrder::Severity => ranks.sort_by_cached_key(|rank| Reverse(severity(rank))),
        StatusOrder::Pressure => ranks.sort_by(|a, b| pressure(a).total_cmp(&pressure(b))),
        StatusOrder::Eta => ranks.sort_by(|a, b| eta(a).total_cmp(&eta(b))),
    }
}

fn highest_pressure(rank: &RankStatus) -> Option<f64> {
    rank.pressures.values().copied().reduce(f64::max)
}

/// Puts a status into words: the ranks, the processes that do not push, then the findings, the worst first.
fn render(status: &Status, n_hidden: usize, is_coloured: bool) -> String {
    let mut page = Page::new(is_coloured);
    if status.ranks.is_empty() {
        page.line("No rank pushes.");
    } else {
        page.table(&ranks(status));
    }
    if n_hidden > 0 {
        page.line(&format!("… and {n_hidden} more ranks with less to say; --all shows them"));
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

/// Returns what two programs under one run name mean for this run, in words.
fn shared_name(run: &RunStatus) -> impl Iterator<Item = String> {
    let refused = (run.challengers > 0).then(|| {
        format!(
            "Two programs push under the name {}; refused lately: {}. Give one of them another (STEPMEM_RUN).",
            run.run, run.challengers
        )
    });
    let renamed = run.asked_for.as_ref().map(|name| {
        format!(
            "{} asked for the name {name}, under which another program pushes. Give one of them another (STEPMEM_RUN).",
            run.run
        )
    });
    refused.into_iter().chain(renamed)
}

fn devices(status: &Status) -> Table {
    let mut table = Table::new([
        Column::left(1, "DEVICE"),
        Column::left(2, "MODEL"),
        Column::right(2, "USED"),
        Column::right(2, "CAPACITY"),
        Column::right(2, "PROCESSES"),
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

fn ranks(status: &Status) -> Table {
    let mut table = Table::new([
        Column::left(1, "RUN"),
        Column::right(2, "RANK"),
        Column::right(2, "ATTEMPT"),
        Column::right(2, "STEP"),
        Column::right(2, "PUSHED"),
        Column::right(2, "ALLOCATED"),
        Column::right(2, "PEAK"),
        Column::right(2, "RESERVED"),
        Column::right(2, "CAPACITY"),
        Column::right(2, "PRESSURE"),
        Column::right(2, "SLOPE/STEP"),
        Column::right(2, "OOM IN"),
        Column::left(2, "DIAGNOSIS"),
    ]);
    for rank in &status.ranks {
        let diagnoses = diagnoses(status, &SubjectId::Rank(rank.id()));
        let verdict = match (activity(rank), rank.judging_from_step) {
            (Some(activity), _) if diagnoses.is_empty() && !rank.is_judged => {
                format!("TOO FEW STEPS; {activity}").into()
            }
            (Some(activity), _) if diagnoses.is_empty() => activity.into(),
            (Some(activity), _) => diagnoses.with(&format!("; {activity}")),
            (None, Some(step)) if diagnoses.is_empty() => {
                format!("judging from step {step}").into()
            }
            _ => diagnoses,
        };
        table.row(rank_row(rank, status.time, verdict));
    }
    table
}

/// Returns that a rank ended or is silent, in words; `None` of one that pushes.
fn activity(rank: &RankStatus) -> Option<String> {
    if let Some(end) = &rank.end {
        return Some(format!("ended ({})", end.outcome.as_label()));
    }
    Some(format!("silent for {}", duration(rank.silent_seconds?)))
}

fn rank_row(rank: &RankStatus, now: f64, diagnoses: Cell) -> [Cell; 13] {
    let last = rank.last_train.as_ref();
    let allocated = rank.creep.iter().find(|signal| signal.signal == Signal::Allocated);
    [
        rank.run.as_str().into(),
        rank.rank.to_string().into(),
        rank.identity.attempt.get().to_string().into(),
        or_unknown(last.map(|last| last.step.get().to_string())).into(),
        duration((now - rank.last_push_time).max(0.0)).into(),
        quantity(last.map(|last| last.allocated)),
        quantity(rank.recent_peak_allocated),
        quantity(last.and_then(|last| last.reserved)),
        quantity(rank.capacity),
        or_unknown(highest_pressure(rank).map(percent)).into(),
        or_unknown(allocated.and_then(slope)).into(),
        or_unknown(rank.oom_eta_seconds.map(duration)).into(),
        diagnoses,
    ]
}

fn processes(status: &Status) -> Table {
    let mut table = Table::new([
        Column::left(1, "DEVICE"),
        Column::right(2, "PID"),
        Column::left(2, "NAME"),
        Column::right(2, "USED"),
        Column::right(2, "CAPACITY"),
        Column::right(2, "PRESSURE"),
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

/// Returns a process's name, where it can be seen.
fn name<'s>(status: &'s Status, id: &ProcessId) -> Option<&'s str> {
    let device = status.devices.iter().find(|device| device.uuid == id.uuid)?;
    device.processes.iter().find(|process| process.pid == id.pid)?.name.as_deref()
}

fn process_row(process: &ProcessStatus, name: Option<&str>, diagnoses: Cell) -> [Cell; 9] {
    [
        process.id.uuid.as_str().into(),
        process.id.pid.to_string().into(),
        or_unknown(name.map(str::to_owned)).into(),
        quantity(Some(process.used)),
        quantity(process.capacity),
        or_unknown(process.pressure_ratio.map(percent)).into(),
        or_unknown(process.creep.as_ref().and_then(slope)).into(),
        or_unknown(process.oom_eta_seconds.map(duration)).into(),
        diagnoses,
    ]
}

fn quantity(value: Option<Bytes>) -> Cell {
    or_unknown(value.map(|value| bytes(value.as_f64()))).into()
}

/// Returns how fast a signal grows: per step, or per hour where no steps are known.
fn slope(signal: &SignalStatus) -> Option<String> {
    let per_step = signal.slope_bytes_per_step.map(bytes);
    per_step.or_else(|| signal.slope_bytes_per_second.map(hourly))
}

/// Returns the diagnoses of a subject, in the colour of the worst.
fn diagnoses(status: &Status, subject: &SubjectId) -> Cell {
    let own = || status.findings.iter().filter(|finding| finding.subject == *subject);
    let titles: Vec<&str> = own().map(|finding| finding.title.as_ref()).collect();
    let worst = own().map(|finding| finding.severity).max();
    Cell::from(titles.join(", ")).in_colour(worst.map(colour_of))
}

fn arguments() -> clap::Command {
    clap::Command::new("status")
        .about("Show the ranks, findings, devices and acknowledgements of a running exporter")
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
                .value_parser(PossibleValuesParser::new(
                    StatusOrder::ALL.map(StatusOrder::name),
                ))
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
                .help("Show it again every so many seconds (2 unless given)"),
        )
        .arg(json_arg("Print the whole status as JSON"))
}

fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let url = matches.get_one::<String>("url").map_or(STATUS_URL, String::as_str);
    let order = matches.get_one::<String>("sort");
    let view = StatusView {
        run: matches.get_one::<String>("run").cloned(),
        rank: matches.get_one::<u32>("rank").copied(),
        order: order
            .and_then(|name| StatusOrder::ALL.into_iter().find(|order| order.name() == name)),
        is_all: matches.get_flag("all"),
    };
    let is_json = matches.get_flag("json");
    // The files are read anew each time: they may have been renewed.
    let look = || fetch(&LiveExporter::at(url, matches)?, &view, is_json);
    let every =
        matches.get_one::<u32>("watch").map(|every| Duration::from_secs((*every).into()));
    let Some(every) = every else {
        print(&look()?)?;
        return Ok(Exit::Success);
    };
    let clear = if stdout().is_terminal() && !is_json { CLEAR } else { "" };
    loop {
        // An exporter that is restarted is seen again.
        let text = look().unwrap_or_else(|error| format!("{error:#}\n"));
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

    use crate::commands::status::render;

    const GIB: u64 = 1 << 30;

    /// A status as the exporter answers it.
    fn status(parts: &Value) -> String {
        let mut status =
            serde_json::to_value(crate::analysis::status::Status::default()).unwrap();
        for (key, part) in parts.as_object().unwrap() {
            status[key] = part.clone();
        }
        render(&serde_json::from_value(status).unwrap(), 0, false)
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
                finding("IMBALANCE", "info", &json!({ "run": "llm", "rank": 3 })),
                finding("HIGH_PRESSURE", "critical", &json!({ "uuid": "GPU-9" })),
            ],
        }));
        let (worst, other) =
            (text.find("device GPU-9").unwrap(), text.find("rank 3 of llm").unwrap());
        assert!(worst < other, "{text}");
    }
}

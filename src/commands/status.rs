//! `stepmem status`: the status of a running exporter as a table for a terminal.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::io::{IsTerminal, Read, Write, stdout};
use std::time::Duration;

use anyhow::Context;
use clap::{Arg, ArgMatches};
use serde::de::IgnoredAny;

use crate::analysis::creep::signal::Signal;
use crate::analysis::diagnosis::kind::Severity;
use crate::analysis::status::{FindingStatus, ProcessStatus, RankStatus, SignalStatus, Status};
use crate::commands::args::{CommandError, CommandRow, Exit, json_arg};
use crate::model::ids::SubjectId;
use crate::model::units::Bytes;
use crate::text::clean::is_raw;
use crate::text::page::{Cell, Colour, Column, Indent, Page, Table};
use crate::text::units::{bytes, duration, hourly, or_unknown, percent};

/// `stepmem status`.
pub(super) const STATUS: CommandRow = CommandRow { name: "status", arguments, run };

/// The default of `--url`.
const STATUS_URL: &str = "http://127.0.0.1:9477";
/// The version of this program, and of the statuses that it reads.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// How long the exporter may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The longest answer that is read: ten times the status of 1024 ranks.
pub const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Fetches the status from the exporter at `url`, as a table or as its JSON.
///
/// # Errors
/// No exporter answers there, or the answer is not a status of this version.
pub fn fetch(url: &str, is_json: bool) -> anyhow::Result<String> {
    let client = client(url)?;
    let url = format!("{}/api/v1/status", url.trim_end_matches('/'));
    let answer = client
        .get(&url)
        .send()
        .and_then(reqwest::blocking::Response::error_for_status)
        .with_context(|| format!("no exporter answers at {url}"))?;
    let mut text = String::new();
    answer
        .take(ANSWER_BYTES_MAX.saturating_add(1))
        .read_to_string(&mut text)
        .with_context(|| format!("the answer of {url} cannot be read"))?;
    anyhow::ensure!(
        u64::try_from(text.len()).is_ok_and(|n_bytes| n_bytes <= ANSWER_BYTES_MAX),
        "the answer of {url} exceeds {ANSWER_BYTES_MAX} bytes"
    );
    if is_json {
        serde_json::from_str::<IgnoredAny>(&text)
            .with_context(|| format!("the answer of {url} is not JSON"))?;
        return Ok(format!("{}\n", plain_json(text.trim_end())));
    }
    let status = serde_json::from_str(&text).with_context(|| {
        format!("{url} is not the status of a stepmem exporter of version {VERSION}")
    })?;
    Ok(render(&status, stdout().is_terminal()))
}

/// Returns a JSON text in which no character steers a terminal: such ones stand in strings only, where they are escaped.
fn plain_json(json: &str) -> Cow<'_, str> {
    use std::fmt::Write;

    let is_steering = |c: char| is_raw(c) && !['\n', '\r', '\t'].contains(&c);
    if !json.chars().any(is_steering) {
        return Cow::Borrowed(json);
    }
    let mut plain = String::with_capacity(json.len());
    for c in json.chars() {
        if is_steering(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(plain, "\\u{unit:04x}").ok();
            }
        } else {
            plain.push(c);
        }
    }
    Cow::Owned(plain)
}

fn client(url: &str) -> reqwest::Result<reqwest::blocking::Client> {
    let builder = reqwest::blocking::Client::builder().timeout(ANSWER_WITHIN).no_proxy();
    // Without TLS it does not need the system's certificates, which a small image lacks.
    if url.starts_with("https://") { builder } else { builder.tls_certs_only([]) }.build()
}

/// Puts a status into words: the ranks, the processes that do not push, then the findings, the worst first.
fn render(status: &Status, is_coloured: bool) -> String {
    let mut page = Page::new(is_coloured);
    if status.ranks.is_empty() {
        page.line("No rank pushes.");
    } else {
        page.table(&ranks(status));
    }
    for run in status.runs.iter().filter(|run| run.challengers > 0) {
        let words = format!(
            "Two programs push under the name {}; refused lately: {}. Give one of them another (STEPMEM_RUN).",
            run.run, run.challengers
        );
        page.blank();
        page.paragraph(Indent::hanging(2), &words);
    }
    if !status.processes.is_empty() {
        page.blank();
        page.table(&processes(status));
    }
    let mut findings: Vec<&FindingStatus> = status.findings.iter().collect();
    findings.sort_by_key(|finding| Reverse(finding.severity));
    for FindingStatus { title, severity, subject, sentence, advice, .. } in findings {
        let words = format!("{title} ({}), {subject}: {sentence}", severity.as_label());
        page.blank();
        page.paragraph(Indent::hanging(0), &words);
        page.paragraph(Indent { first: 2, rest: 2 }, advice);
    }
    page.into_text()
}

fn ranks(status: &Status) -> Table {
    let mut table = Table::new([
        Column::left(1, "RUN"),
        Column::right(2, "RANK"),
        Column::right(2, "STEP"),
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
            (Some(activity), _) if diagnoses.is_empty() => activity.into(),
            (Some(activity), _) => diagnoses.with(&format!("; {activity}")),
            (None, Some(step)) if diagnoses.is_empty() => {
                format!("judging from step {step}").into()
            }
            _ => diagnoses,
        };
        table.row(rank_row(rank, verdict));
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

fn rank_row(rank: &RankStatus, diagnoses: Cell) -> [Cell; 11] {
    let last = rank.last_train.as_ref();
    let allocated = rank.creep.iter().find(|signal| signal.signal == Signal::Allocated);
    let highest = rank.pressures.iter().map(|(_, ratio)| *ratio).reduce(f64::max);
    [
        rank.run.as_str().into(),
        rank.rank.to_string().into(),
        or_unknown(last.map(|last| last.step.get().to_string())).into(),
        quantity(last.map(|last| last.allocated)),
        quantity(rank.recent_peak_allocated),
        quantity(last.and_then(|last| last.reserved)),
        quantity(rank.capacity),
        or_unknown(highest.map(percent)).into(),
        or_unknown(allocated.and_then(slope)).into(),
        or_unknown(rank.oom_eta_seconds.map(duration)).into(),
        diagnoses,
    ]
}

fn processes(status: &Status) -> Table {
    let mut table = Table::new([
        Column::left(1, "DEVICE"),
        Column::right(2, "PID"),
        Column::right(2, "USED"),
        Column::right(2, "CAPACITY"),
        Column::right(2, "PRESSURE"),
        Column::right(2, "SLOPE"),
        Column::right(2, "OOM IN"),
        Column::left(2, "DIAGNOSIS"),
    ]);
    for process in &status.processes {
        let diagnoses = diagnoses(status, &SubjectId::Process(process.id.clone()));
        table.row(process_row(process, diagnoses));
    }
    table
}

fn process_row(process: &ProcessStatus, diagnoses: Cell) -> [Cell; 8] {
    [
        process.id.uuid.as_str().into(),
        process.id.pid.to_string().into(),
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
    Cell::from(titles.join(", ")).in_colour(worst.map(|severity| match severity {
        Severity::Critical => Colour::Red,
        Severity::Warning => Colour::Yellow,
        Severity::Info => Colour::Cyan,
    }))
}

fn arguments() -> clap::Command {
    clap::Command::new("status")
        .about("Show the runs and ranks of a running exporter")
        .arg(
            Arg::new("url")
                .long("url")
                .value_name("URL")
                .help(format!("Address of the exporter's status page [default: {STATUS_URL}]")),
        )
        .arg(json_arg("Print the status as JSON"))
}

fn run(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let url = matches.get_one::<String>("url").map_or(STATUS_URL, String::as_str);
    let text = fetch(url, matches.get_flag("json"))?;
    stdout().lock().write_all(text.as_bytes()).map_err(anyhow::Error::from)?;
    Ok(Exit::Success)
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
        render(&serde_json::from_value(status).unwrap(), false)
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
            "findings": [finding("HIGH_PRESSURE", "warning", &json!({ "uuid": "GPU-7", "pid": 4711 }))],
        }));
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0].join(" "), "No rank pushes.");
        assert_eq!(
            lines[2].join(" "),
            "DEVICE PID USED CAPACITY PRESSURE SLOPE OOM IN DIAGNOSIS"
        );
        let row = "GPU-7 4711 60.0 GiB 80.0 GiB 75% 3.52 GiB/h 2 h 0 min HIGH PRESSURE";
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

//! `stepmem status`: the status of a running exporter as a table for a terminal.

use std::io::{IsTerminal, Write, stdout};
use std::time::Duration;

use anyhow::Context;
use clap::{Arg, ArgMatches};
use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table, TableStyle};
use serde_json::Value;

use crate::commands::args::{CommandError, CommandRow, Exit, json_arg};
use crate::text::units;

/// `stepmem status`.
pub(super) const STATUS: CommandRow = CommandRow { name: "status", arguments, run };

/// The default of `--url`.
const STATUS_URL: &str = "http://127.0.0.1:9477";
/// How long the exporter may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// What stands for an unknown value.
const UNKNOWN: &str = "–";

/// Fetches the status from the exporter at `url`, as a table or as its JSON.
///
/// # Errors
/// The URL does not answer, or is not a stepmem exporter.
pub fn fetch(url: &str, is_json: bool) -> anyhow::Result<String> {
    let client = client(url)?;
    let url = format!("{}/api/v1/status", url.trim_end_matches('/'));
    let text = client
        .get(&url)
        .send()
        .and_then(reqwest::blocking::Response::error_for_status)
        .and_then(reqwest::blocking::Response::text)
        .with_context(|| format!("no exporter answers at {url}"))?;
    if is_json {
        return Ok(format!("{}\n", text.trim_end()));
    }
    let status = serde_json::from_str(&text)
        .with_context(|| format!("{url} is not a stepmem exporter"))?;
    let is_coloured = stdout().is_terminal();
    Ok(table(&status, is_coloured))
}

fn client(url: &str) -> reqwest::Result<reqwest::blocking::Client> {
    let builder = reqwest::blocking::Client::builder().timeout(ANSWER_WITHIN).no_proxy();
    // Without TLS it does not need the system's certificates, which a small image lacks.
    if url.starts_with("https://") { builder } else { builder.tls_certs_only([]) }.build()
}

/// The status as a table, the worst finding first.
fn table(status: &Value, is_coloured: bool) -> String {
    let findings = items(status, "findings");
    let mut table = Table::new();
    table.load_style(TableStyle::new()).set_content_arrangement(ContentArrangement::Disabled);
    if is_coloured {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    table.set_header([
        "RUN",
        "RANK",
        "STEP",
        "ALLOCATED",
        "PEAK",
        "RESERVED",
        "CAPACITY",
        "PRESSURE",
        "SLOPE/STEP",
        "OOM IN",
        "DIAGNOSIS",
    ]);
    for rank in items(status, "ranks") {
        let of_rank = |finding: &&&Value| {
            finding.get("run") == rank.get("run") && finding.get("rank") == rank.get("rank")
        };
        let own: Vec<&Value> = findings.iter().filter(of_rank).copied().collect();
        table.add_row(row(rank, &own));
    }
    for idx in 1..=9 {
        if let Some(column) = table.column_mut(idx) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut page = String::new();
    if items(status, "ranks").is_empty() {
        page.push_str("No rank pushes.\n");
    } else {
        for line in table.lines() {
            page.push_str(line.trim_end());
            page.push('\n');
        }
    }
    for finding in findings {
        let paragraph = format!(
            "\n{} ({}), rank {} of {}: {}\n  {}\n",
            text(finding, "status"),
            text(finding, "severity"),
            text(finding, "rank"),
            text(finding, "run"),
            text(finding, "sentence"),
            text(finding, "advice"),
        );
        page.push_str(&paragraph);
    }
    page
}

fn row(rank: &Value, findings: &[&Value]) -> Vec<Cell> {
    let bytes = |key| number(rank, key).map(units::bytes);
    let pressure = items(rank, "pressures")
        .iter()
        .filter_map(|pressure| pressure.get(1)?.as_f64())
        .reduce(f64::max);
    let slope = items(rank, "creep")
        .iter()
        .find(|signal| {
            let of = signal.get("signal").and_then(Value::as_str);
            of == Some("allocated") || of == Some("process")
        })
        .and_then(|signal| slope(signal));
    let diagnoses: Vec<String> =
        findings.iter().map(|finding| text(finding, "status")).collect();
    let colour = findings.iter().filter_map(|finding| finding.get("severity")?.as_str()).fold(
        None,
        |worst, severity| match (severity, worst) {
            ("critical", _) => Some(Color::Red),
            ("warning", None | Some(Color::Cyan)) => Some(Color::Yellow),
            ("info", None) => Some(Color::Cyan),
            (_, worst) => worst,
        },
    );
    let named = Cell::new(diagnoses.join(", "));
    let or_unknown =
        |value: Option<String>| Cell::new(value.unwrap_or_else(|| UNKNOWN.to_owned()));
    vec![
        Cell::new(text(rank, "run")),
        Cell::new(text(rank, "rank")),
        or_unknown(rank.get("step").map(Value::to_string)),
        or_unknown(bytes("allocated_bytes")),
        or_unknown(bytes("recent_peak_allocated_bytes")),
        or_unknown(bytes("reserved_bytes")),
        or_unknown(bytes("capacity_bytes")),
        or_unknown(pressure.map(units::percent)),
        or_unknown(slope),
        or_unknown(number(rank, "oom_eta_seconds").map(units::duration)),
        match colour {
            Some(colour) => named.fg(colour),
            None => named,
        },
    ]
}

/// How fast a signal grows: by step, or by hour for want of steps.
fn slope(signal: &Value) -> Option<String> {
    let of_step = number(signal, "slope_bytes_per_step").map(units::bytes);
    of_step.or_else(|| {
        let of_second = number(signal, "slope_bytes_per_second")?;
        Some(format!("{}/h", units::bytes(3600.0 * of_second)))
    })
}

fn items<'v>(value: &'v Value, key: &str) -> Vec<&'v Value> {
    value
        .get(key)
        .and_then(Value::as_array)
        .map(|items| items.iter().collect())
        .unwrap_or_default()
}

fn number(value: &Value, key: &str) -> Option<f64> {
    value.get(key)?.as_f64()
}

fn text(value: &Value, key: &str) -> String {
    match value.get(key) {
        Some(Value::String(text)) => text.chars().filter(|c| !c.is_control()).collect(),
        Some(Value::Null) | None => UNKNOWN.to_owned(),
        Some(other) => other.to_string(),
    }
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

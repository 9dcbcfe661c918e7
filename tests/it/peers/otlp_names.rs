//! OpenTelemetry's names through the translation that Prometheus' receiver and the Collector's exporters share: rules and
//! dashboards know the outcome.

use std::io::Write;
use std::process::{Command, Stdio};

use stepmem_engine::metrics::{Kind, METRICS};

use crate::rig::folder::root;

#[test]
fn every_name_over_otlp_is_the_scraped_one_after_the_standard_translation() {
    let rows: Vec<_> =
        METRICS.iter().filter_map(|metric| Some((metric, metric.otel?))).collect();
    let exported: Vec<String> = rows
        .iter()
        .map(|(metric, otel)| {
            let kind = match metric.kind {
                Kind::Gauge | Kind::Info => "gauge",
                Kind::Counter => "counter",
                Kind::Histogram => "histogram",
            };
            format!("{otel}\t{}\t{kind}\n", metric.unit.as_ucum())
        })
        .collect();
    let translated = translated(&exported.concat());
    assert_eq!(translated.lines().count(), rows.len());
    let different: Vec<_> = rows
        .iter()
        .zip(translated.lines())
        .filter(|((metric, _), received)| metric.name != *received)
        .map(|((metric, otel), received)| format!("{otel}: {received}, not {}", metric.name))
        .collect();
    assert!(different.is_empty(), "{different:#?}");
}

/// The names in Prometheus of lines of name, unit and kind.
fn translated(exported: &str) -> String {
    let program = root().join("target/tools/bin/otlp-translate");
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}: run make tools", program.display()));
    child.stdin.take().unwrap().write_all(exported.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

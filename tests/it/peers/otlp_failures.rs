//! What the log says of exports that fail: the URL, the protocol and the cause, once.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::rig::exporter::Exporter;
use crate::rig::json::has;
use crate::rig::otlp::{Otlp, protocol};
use crate::rig::wait::DEADLINE;

#[test]
fn a_refused_connection_is_named_once_with_url_and_protocol() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = format!("http://{closed}");
    check(&endpoint, "http", &format!("{endpoint}/v1/metrics"), "Connection refused");
    check(&endpoint, "grpc", &endpoint, "Connection refused");
}

#[test]
fn a_path_that_takes_no_metrics_is_named() {
    let otlp = Otlp::start("decode");
    let endpoint = format!("{}/api/v1", otlp.endpoint("http"));
    check(&endpoint, "http", &format!("{endpoint}/v1/metrics"), "404 Not Found");
}

#[test]
fn a_collector_that_never_answers_is_named() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let variables = [("OTEL_EXPORTER_OTLP_TIMEOUT", "300")];
    let url = format!("{endpoint}/v1/metrics");
    check_with(&variables, (&endpoint, "http"), &url, "did not answer in time");
}

#[test]
fn http_to_a_port_of_grpc_is_named() {
    let otlp = Otlp::start("decode");
    let endpoint = otlp.endpoint("grpc");
    check(&endpoint, "http", &format!("{endpoint}/v1/metrics"), "is it a gRPC port?");
}

#[test]
fn grpc_to_a_port_of_http_is_named() {
    let otlp = Otlp::start("decode");
    let endpoint = otlp.endpoint("http");
    check(&endpoint, "grpc", &endpoint, "is it an HTTP port?");
}

fn check(endpoint: &str, transport: &str, url: &str, cause: &str) {
    check_with(&[], (endpoint, transport), url, cause);
}

/// Exports until several have failed, and looks for the one line.
fn check_with(
    variables: &[(&str, &str)],
    (endpoint, transport): (&str, &str),
    url: &str,
    cause: &str,
) {
    let arguments = ["--otlp.endpoint", endpoint, "--otlp.protocol", protocol(transport)];
    let arguments = [&["--no-nvml"], &arguments[..], &["--otlp.interval", "100ms"]].concat();
    let exporter = Exporter::start_command("serve", &arguments, variables);
    exporter.await_metrics("failures", |metrics| {
        let failed = metrics.get(r#"stepmem_otlp_exports_total{result="failure"}"#);
        failed.is_some_and(|n_failures| *n_failures >= 3.0)
    });
    let is_failure = |entry: &Value| {
        entry["fields"]["message"]
            .as_str()
            .is_some_and(|text| text.starts_with("OTLP export failed"))
    };
    let line = exporter.await_log("the failure", DEADLINE, is_failure);
    let fields = &line["fields"];
    has(fields, &json!({"url": url, "protocol": protocol(transport)}));
    assert!(fields["cause"].as_str().unwrap().contains(cause), "{cause}: {fields}");
    let log = exporter.stop();
    let lines = log.iter().filter(|entry| entry["fields"].to_string().contains("OTLP"));
    assert_eq!(lines.count(), 1, "{log:#?}");
}

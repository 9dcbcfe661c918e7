//! The outputs: formats, encodings, escapes and health.

use std::collections::BTreeSet;
use std::io::Read;

use flate2::read::GzDecoder;
use serde_json::{Value, json};

use crate::rig::answers::Answering;
use crate::rig::exporter::Exporter;
use crate::rig::http::{head, request};
use crate::rig::job::{Job, record};
use crate::rig::json::has;
use crate::rig::nvml::{FakeNvml, driver, gpu, process};
use crate::rig::refusals::check_problem;
use crate::rig::series::{has_family, samples};
use crate::rig::units::{GIB, MIB};
use crate::rig::wait::DEADLINE;

/// Exports that a collector took.
const SUCCESSES: &str = r#"stepmem_otlp_exports_total{result="success"}"#;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn accepting(accept: &str, exporter: &Exporter) -> (String, String) {
    let answer = exporter.get("/metrics", &[("accept", accept)]);
    assert_eq!(answer.status, 200, "{accept}");
    (answer.header("content-type").to_owned(), answer.body)
}

#[test]
fn format_is_what_the_reader_prefers() {
    let exporter = Exporter::start(&[]);
    for (accept, expected) in [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html,*/*;q=0.8", TEXT),
        ("application/openmetrics-text", OPEN_METRICS),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.9", TEXT),
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            OPEN_METRICS,
        ),
        ("application/openmetrics-text;version=9.0.0,text/plain;q=0.1", TEXT),
        ("application/openmetrics-text; version=1.0.0", OPEN_METRICS),
        ("application/openmetrics-text;version=2.0.0,text/plain", TEXT),
        ("application/openmetrics-text;q=0", TEXT),
        (
            "application/vnd.google.protobuf;q=0.7,application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            OPEN_METRICS,
        ),
    ] {
        let (content_type, body) = accepting(accept, &exporter);
        assert_eq!(content_type, expected, "{accept}");
        assert_eq!(body.ends_with("# EOF\n"), expected == OPEN_METRICS, "{accept}");
    }
}

#[test]
fn metrics_are_compressed_on_request() {
    let exporter = Exporter::start(&[]);
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
    let plain = exporter.get("/metrics", &[]);
    assert_eq!(plain.header("content-encoding"), "");
    let packed = exporter.get("/metrics", &[("accept-encoding", "gzip")]);
    assert_eq!(packed.header("content-encoding"), "gzip");
    assert_eq!(packed.header("content-type"), TEXT);
    assert!(packed.bytes.len() < plain.bytes.len() / 2);
    let mut text = String::new();
    GzDecoder::new(&packed.bytes[..]).read_to_string(&mut text).unwrap();
    let names = |text: &str| samples(text).into_keys().collect::<Vec<_>>();
    assert_eq!(names(&text), names(&plain.body));
    for (accepted, coding) in [
        ("br, GZIP;q=0.5", "gzip"),
        ("*", "gzip"),
        ("gzip;q=0, identity", ""),
        ("deflate", ""),
        ("", ""),
    ] {
        let answer = exporter.get("/metrics", &[("accept-encoding", accepted)]);
        assert_eq!(answer.header("content-encoding"), coding, "{accepted}");
    }
}

/// Checks that every family says HELP and TYPE once, before its samples, and that these stand together.
fn check_families(text: &str) {
    let mut seen = BTreeSet::new();
    let mut typed = BTreeSet::new();
    let mut current = String::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(family)) => {
                assert!(seen.insert(family.to_owned()), "{family} stands twice");
                assert!(words.next().is_some_and(|help| !help.is_empty()), "{line}");
                family.clone_into(&mut current);
            }
            (Some("#"), Some("TYPE"), Some(family)) => {
                assert_eq!(family, current);
                assert!(typed.insert(family.to_owned()), "{family} has two types");
            }
            (Some("#"), Some("UNIT"), Some(family)) => assert_eq!(family, current),
            _ => {
                let name = line.split(['{', ' ']).next().unwrap();
                let suffix = name.strip_prefix(&current).unwrap_or("?");
                let suffixes = ["", "_total", "_info", "_bucket", "_sum", "_count"];
                assert!(suffixes.contains(&suffix), "{line} stands under {current}");
                assert!(typed.contains(&current), "{line} has no type");
            }
        }
    }
    assert_eq!(typed, seen);
    assert!(typed.len() > 15, "{text}");
}

#[test]
fn families_are_described_once_and_stand_together() {
    let exporter = Exporter::start(&[]);
    let batch: Vec<String> = (0..3).map(|rank| record(rank, 1, 1)).collect();
    assert_eq!(exporter.post(format!("[{}]", batch.join(","))).status, 200);
    check_families(&accepting("", &exporter).1);
    check_families(&accepting("application/openmetrics-text", &exporter).1);
}

#[test]
fn run_of_any_letters_is_escaped_in_every_output() {
    let exporter = Exporter::start(&[]);
    let run = "a\"b\\c {x=\"1\"} ü🚂 \\n";
    let record = json!({ "run": run, "rank": 0, "step": 1, "allocated_bytes": 5 });
    assert_eq!(exporter.post(record.to_string()).status, 200);
    let line = r#"stepmem_rank_memory_allocated_bytes{run="a\"b\\c {x=\"1\"} ü🚂 \\n",rank="0",uuid=""} 5"#;
    for accept in ["", "application/openmetrics-text"] {
        let body = accepting(accept, &exporter).1;
        assert!(body.lines().any(|each| each == line), "{body}");
    }
    assert_eq!(exporter.status()["ranks"][0]["run"], run);
}

#[test]
fn health_and_readiness_are_reported() {
    let exporter = Exporter::start(&[]);
    for path in ["/-/healthy", "/-/ready"] {
        let answer = exporter.get(path, &[]);
        assert_eq!((answer.status, answer.body.is_empty()), (200, false), "{path}");
    }
}

#[test]
fn page_is_served_under_a_strict_policy_and_its_links_work() {
    let exporter = Exporter::start(&["--web.telemetry-path", "/prom/metrics"]);
    let page = exporter.get("/", &[]);
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    let policy = page.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    for (link, path) in [
        ("/prom/metrics", "/prom/metrics"),
        ("api/v1/status", "/api/v1/status"),
        ("-/healthy", "/-/healthy"),
        ("-/ready", "/-/ready"),
        ("page/style.css", "/page/style.css"),
        ("page/main.js", "/page/main.js"),
    ] {
        assert!(page.body.contains(&format!("=\"{link}\"")), "the page does not link {link}");
        assert_eq!(exporter.get(path, &[]).status, 200, "{path}");
    }
    assert!(!page.body.contains("{{"), "a place was not filled in");
    assert_eq!(exporter.get("/metrics", &[]).status, 404);
}

#[test]
fn unknown_path_is_404_and_wrong_method_405() {
    let exporter = Exporter::start(&[]);
    let pushes = format!("/ links to all pages; pushes go to http://{}", exporter.push);
    for path in ["/metricz", "/v1/steps", "/page/none.js", "/snapshots/1-1"] {
        let answer = exporter.get(path, &[]);
        check_problem(&answer, 404, &format!("no such path; {pushes}"));
    }
    for path in ["/metrics", "/", "/api/v1/status"] {
        let answer = request(exporter.web, &head("POST", path, &[], 0), b"");
        let text = format!("pages are only read, by GET; {pushes}");
        assert_eq!((answer.status, answer.header("allow")), (405, "GET,HEAD"), "{path}");
        check_problem(&answer, 405, &text);
        let answer = request(exporter.web, &head("HEAD", path, &[], 0), b"");
        assert_eq!((answer.status, answer.body.as_str()), (200, ""), "{path}");
    }
}

#[test]
fn refusal_of_the_page_names_the_value_as_one_of_a_push_does() {
    let exporter = Exporter::start(&[]);
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
    let rank = "is not an integer of 0..=1048575";
    let (abc, large) =
        (format!("rank: \"abc\" {rank}"), format!("rank: \"99999999999\" {rank}"));
    let long = "x".repeat(200);
    let shortened = format!("no rank of run {}… has pushed", "x".repeat(64));
    let of_long = format!("/api/v1/runs/{long}/history");
    for (path, status, detail) in [
        ("/api/v1/runs/default/ranks/abc/history", 400, &*abc),
        ("/api/v1/runs/default/ranks/abc/windows", 400, &abc),
        ("/api/v1/runs/default/ranks/99999999999/windows", 400, &large),
        ("/api/v1/runs/default/ranks/-1/windows", 400, "rank: \"-1\" is not an integer"),
        ("/api/v1/runs/%ff/summary", 400, "the name in the path is not UTF-8"),
        ("/api/v1/runs/%ff/ranks/0/history", 400, "the name in the path is not UTF-8"),
        ("/api/v1/runs/default/summary?format=xml", 400, "the query \"format=xml\" is neither"),
        ("/api/v1/runs/default/ranks/9/history", 404, "rank 9 of run default has not pushed"),
        ("/api/v1/runs/none/history", 404, "no rank of run none has pushed"),
        ("/api/v1/runs/none/summary", 404, "no rank of run none has pushed"),
        (&of_long, 404, &shortened),
    ] {
        check_problem(&exporter.get(path, &[]), status, detail);
    }
    // A request that is refused by its head.
    let foreign = "GET /api/v1/status HTTP/1.1\r\nhost: attacker.example\r\n\r\n";
    let foreign = request(exporter.web, foreign, b"");
    check_problem(&foreign, 403, "add it to web.allowed-hosts");
}

#[test]
fn exporter_reports_on_itself_and_leaves_out_unknown_figures() {
    let exporter = Exporter::start(&[]);
    exporter.await_metrics("its own figures", |metrics| {
        metrics.contains_key("process_resident_memory_bytes")
    });
    let metrics = exporter.scrape();
    assert_eq!(metrics["stepmem_up"], 1.0);
    assert_eq!(metrics["stepmem_inbox_depth"], 0.0);
    let version = format!("stepmem_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    assert_eq!(metrics[&version], 1.0);
    assert_eq!(metrics["stepmem_push_duration_seconds_count"], 0.0);
    for absent in
        ["stepmem_nvml", "stepmem_device", "stepmem_rank", "stepmem_run", "stepmem_otlp"]
    {
        let found = metrics.keys().find(|series| series.starts_with(absent));
        assert_eq!(found, None);
    }
    assert!(metrics.values().all(|value| value.is_finite() && *value >= 0.0));
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
    let metrics = exporter.scrape();
    assert_eq!(metrics["stepmem_push_duration_seconds_count"], 1.0);
    assert_eq!(metrics[r#"stepmem_push_duration_seconds_bucket{le="+Inf"}"#], 1.0);
}

/// The place where a value has a list in a list, whose items have no names.
fn nameless(value: &Value, at: &str) -> Option<String> {
    match value {
        Value::Array(items) if items.iter().any(Value::is_array) => Some(at.to_owned()),
        Value::Array(items) => items.iter().find_map(|item| nameless(item, at)),
        Value::Object(fields) => {
            fields.iter().find_map(|(key, value)| nameless(value, &format!("{at}/{key}")))
        }
        _ => None,
    }
}

#[test]
fn every_figure_of_the_status_has_a_name_and_stands_in_its_schema() {
    let busy = gpu("GPU-a").memory(80 * GIB, GIB, 78 * GIB).compute(&[process(4711, GIB)]);
    let healthy = driver([busy.clone(), gpu("GPU-b")]);
    let fake = FakeNvml::new("it-status", &healthy);
    let exporter = fake.serve(&["--nvml.interval", "50ms"]);
    exporter.await_metrics("the devices", |metrics| {
        has_family(metrics, "stepmem_process_memory_used_bytes")
    });
    let lost = healthy.replace(1, gpu("GPU-b").code(15));
    fake.set(&lost.events(&[(0, 31), (0, 31)]));
    let job = Job::leaking("llm", 0..900, 24 * MIB).device("GPU-a");
    exporter.push(&job.records());
    let acked = exporter.post_to(
        "/v1/runs/llm/ack",
        r#"{"rank":2,"kind":"CREEP_CONFIRMED","for_seconds":60,"reason":"known"}"#,
    );
    assert_eq!(acked.status, 200, "{}", acked.body);
    let errors = r#"stepmem_device_xid_errors_total{uuid="GPU-a",xid="31"}"#;
    exporter.await_metrics("both errors and the loss", |metrics| {
        let losses = metrics.get(r#"stepmem_nvml_errors_total{code="gpu_is_lost"}"#);
        metrics.get(errors) == Some(&2.0) && losses.is_some_and(|losses| *losses > 0.0)
    });
    let status = exporter.status();
    assert_eq!(nameless(&status, ""), None);
    assert!(status["exporter"]["pushes"]["accepted"].as_u64() > Some(0), "{status}");
    has(&status, &json!({"gpu": {"xids": [{ "uuid": "GPU-a", "xid": 31, "count": 2 }]}}));
    assert!(status["gpu"]["errors"]["gpu_is_lost"].as_u64() > Some(0), "{status}");
    assert!(status["ranks"][0]["pressures"]["device"].as_f64() > Some(0.9), "{status}");
    assert_eq!(status["acks"][0]["reason"], "known");
}

#[test]
fn points_that_a_collector_refuses_of_an_export_are_counted_and_told_once() {
    let collector = Answering::start();
    // ExportMetricsServiceResponse with five refused points, and a reason.
    collector.set(200, "\n\u{b}\u{8}\u{5}\u{12}\u{7}too old");
    let url = collector.url();
    let arguments = ["--no-nvml", "--otlp.endpoint", &url, "--otlp.interval", "50ms"];
    let exporter = Exporter::start_command("serve", &arguments, &[]);
    let rejected = "stepmem_otlp_rejected_points_total";
    exporter.await_metrics("refused points", |metrics| {
        metrics.get(rejected).is_some_and(|n_points| *n_points >= 15.0)
    });
    assert_eq!(exporter.logged("WARN", "OTLP export taken in part"), 1);
    assert_eq!(exporter.logged("WARN", "too old"), 1);
    assert_eq!(exporter.metric(r#"stepmem_otlp_exports_total{result="failure"}"#), Some(0.0));
    // Answers that are none, or refuse nothing, count nothing; then it is told again.
    let mut n_exports = exporter.metric(SUCCESSES).unwrap();
    for answer in ["", "\n\u{0}", "{\"partialSuccess\":{}}", "\n\u{b}\u{8}\u{7f}"] {
        collector.set(200, answer);
        exporter.await_metrics("exports", |metrics| metrics[SUCCESSES] >= n_exports + 3.0);
        n_exports = exporter.metric(SUCCESSES).unwrap();
    }
    let before = exporter.metric(rejected).unwrap();
    exporter.await_metrics("exports", |metrics| metrics[SUCCESSES] >= n_exports + 3.0);
    assert_eq!(exporter.metric(rejected), Some(before));
    assert!(before % 5.0 == 0.0, "{before}");
    collector.set(200, "\n\u{9}\u{12}\u{7}ignored");
    exporter.await_log("the warning", DEADLINE, |entry| {
        entry["fields"].to_string().contains("ignored")
    });
    // Over gRPC the answer does not show them.
    let arguments = [&arguments[..], &["--otlp.protocol", "grpc"]].concat();
    let exporter = Exporter::start_command("serve", &arguments, &[]);
    assert_eq!(exporter.metric(rejected), None);
}

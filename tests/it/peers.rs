//! The exporter against programs that others wrote: Prometheus and promtool, the reference parsers, the official
//! OTLP classes, Rotel and Chromium. `tests/peers/install.sh` installs them, `make test` calls it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{self, Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use serde_json::{Value, json};
use stepmem::metrics::table::METRICS;
use stepmem::metrics::types::{Kind, Metric};

use super::nvml::Fake;
use super::rig::{self, DEADLINE, Exporter};

/// How long after its start the demo shows MEMORY CREEP at the latest.
const CREEP_WITHIN: Duration = Duration::from_mins(1);
/// The rank of the demo that leaks.
const LEAKING: u64 = 3;
const GIB: u64 = 1 << 30;

/// What moves although nobody pushes: only its being there is compared.
const MOVING: [&str; 6] = [
    "stepmem.oom.eta",
    "stepmem.otlp.exports",
    "stepmem.nvml.last_success",
    "stepmem.collector.duration",
    "stepmem.inbox.depth",
    "stepmem.series",
];

/// Labels with values that a writer of exposition or a reader of it may stumble over.
const HOSTILE: [&str; 6] = [
    r#"a "quoted" \back\slash\n"#,
    r#"{le="1"} 5"#,
    "# HELP not a comment",
    "ünïcode 🔥 \u{2028} \u{202e}",
    " spaces , and = commas ",
    "a}b{c",
];

#[test]
fn demo_shows_memory_creep_for_the_leaking_rank_and_only_for_it() {
    let demo = Exporter::start_command("demo", &[], &[]);
    await_creep(&demo);

    let confirmed: Vec<String> = demo
        .metrics()
        .into_keys()
        .filter(|series| series.starts_with("stepmem_diagnosis{"))
        .filter(|series| series.contains("CREEP"))
        .collect();
    let expected = r#"stepmem_diagnosis{run="demo",rank="3",kind="CREEP_CONFIRMED"}"#;
    assert_eq!(confirmed, [expected]);

    let status = demo.status();
    let creeping: Vec<&Value> = items(&status["findings"])
        .filter(|finding| finding["kind"].as_str().unwrap().starts_with("CREEP"))
        .collect();
    assert_eq!(creeping.len(), 1, "{creeping:#?}");
    assert_eq!(
        (&creeping[0]["rank"], &creeping[0]["status"]),
        (&json!(3), &json!("MEMORY CREEP"))
    );

    let url = format!("http://{}", demo.web);
    let table = rig::stepmem(&["status", "--url", &url], &[], b"").out;
    let creeping: Vec<&str> = table.lines().filter(|line| line.contains("MEMORY")).collect();
    let [row, sentence] = creeping[..] else { panic!("{table}") };
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert!(cells.contains(&"demo") && cells.contains(&"3"), "{row}");
    assert!(
        sentence.starts_with("MEMORY CREEP") && sentence.contains("rank 3 of demo"),
        "{table}"
    );

    let page = rendered(&format!("http://{}/", demo.web));
    let verdict = element(&page, "id=\"verdict-text\"");
    assert!(verdict.starts_with("MEMORY CREEP on rank 3 of run demo"), "{verdict}");
    // The finding, the rank's row and the run's row say it; no other rank's row does.
    let rows = element(&page, "id=\"ranks-rows\"");
    let creeping: Vec<&str> =
        rows.split("<tr").filter(|row| row.contains("MEMORY CREEP")).collect();
    assert_eq!(creeping.len(), 1, "{rows}");

    // Nor did it say so of another rank on the way.
    for entry in demo.log() {
        let fields = &entry["fields"];
        if fields["kind"].as_str().is_some_and(|kind| kind.starts_with("CREEP")) {
            assert_eq!(fields["rank"], LEAKING, "{entry}");
        }
    }
}

#[test]
fn prometheus_finds_every_family_that_the_demo_shows() {
    let demo = Exporter::start_command("demo", &[], &[]);
    await_creep(&demo);
    let shown: BTreeSet<&str> = METRICS
        .iter()
        .map(|metric| metric.name)
        .filter(|name| is_shown(&demo.metrics(), name))
        .collect();
    for needed in ["creep_growth_bytes", "oom_eta_seconds", "diagnosis", "device_info"] {
        assert!(
            shown.contains(format!("stepmem_{needed}").as_str()),
            "the demo lacks {needed}"
        );
    }

    let folder = Folder::new("prometheus");
    let families = folder.0.join("families");
    let names: Vec<&str> = shown.iter().copied().collect();
    fs::write(
        &families,
        names.join(
            "
",
        ),
    )
    .unwrap();
    let target = demo.web.to_string();
    let arguments = ["--targets", &target, "--work-dir", folder.text(), "--families"];
    let arguments = [&arguments[..], &[families.to_str().unwrap()]].concat();
    let found = run_peer("prometheus.py", &arguments);
    for name in shown {
        assert!(found[name].as_u64().is_some_and(|n_series| n_series > 0), "{name}: {found}");
    }

    let url = format!("http://{target}/metrics");
    let scraped = run_peer("scrape.py", &[&url, "--live"]);
    assert_eq!(items(&scraped["families"]["stepmem_rank_step"]["samples"]).count(), 8);
}

#[test]
fn reference_parsers_read_hostile_labels_in_both_formats() {
    let exporter = Exporter::start(&["--rank.peak-interval", "1h"]);
    for (rank, text) in (0..).zip(HOSTILE) {
        push_one(&exporter, &json!({ "run": text, "device": text, "rank": rank }), 1, GIB);
    }
    let scraped = scrape(&exporter);
    let runs: BTreeSet<&str> = items(&scraped["families"]["stepmem_rank_step"]["samples"])
        .map(|sample| sample[1]["run"].as_str().unwrap())
        .collect();
    assert_eq!(runs, BTreeSet::from(HOSTILE));
    let devices: BTreeSet<&str> = items(&scraped["families"]["stepmem_rank_step"]["samples"])
        .map(|sample| sample[1]["uuid"].as_str().unwrap())
        .collect();
    assert_eq!(devices, BTreeSet::from(HOSTILE));
}

#[test]
fn otlp_over_http_says_what_the_scrape_says() {
    says_what_the_scrape_says("decode", "http");
}

#[test]
fn otlp_over_grpc_says_what_the_scrape_says() {
    says_what_the_scrape_says("decode", "grpc");
}

#[test]
fn rotel_receives_over_http_what_the_scrape_says() {
    says_what_the_scrape_says("rotel", "http");
}

#[test]
fn rotel_receives_over_grpc_what_the_scrape_says() {
    says_what_the_scrape_says("rotel", "grpc");
}

#[test]
fn otlp_counters_are_cumulative_and_never_fall() {
    let mut otlp = Otlp::start("decode");
    let exporter = otlp.exporter("http", &[], &[]);
    let mut last = 0.0;
    let mut start = None;
    for step in 1..=5_u64 {
        push_one(&exporter, &json!({ "rank": 0 }), step, GIB);
        let mut n_steps = 0.0;
        while n_steps < as_f64(step) {
            otlp.next_export();
            let Some(metric) = otlp.metric("stepmem.rank.steps") else { continue };
            let point = &metric["points"][0];
            n_steps = point["value"].as_f64().unwrap();
            assert!(n_steps >= last, "{n_steps} after {last}");
            let began = point["start_time_unix_nano"].as_u64().unwrap();
            assert_eq!(*start.get_or_insert(began), began, "a cumulative series began anew");
            assert!(began < point["time_unix_nano"].as_u64().unwrap());
            last = n_steps;
        }
    }
}

#[test]
fn a_silent_rank_leaves_otlp_and_the_scrape() {
    for transport in ["http", "grpc"] {
        let mut otlp = Otlp::start("decode");
        let exporter = otlp.exporter(transport, &["--rank.ttl", "2s"], &[]);
        let mut step = 1;
        push_one(&exporter, &json!({ "rank": 0 }), 1, GIB);
        push_one(&exporter, &json!({ "rank": 1 }), 1, GIB);
        otlp.await_that("both ranks", |otlp| otlp.ranks() == BTreeSet::from([0, 1]));
        let silent = |series: &str| series.contains("rank=\"0\"");
        assert!(exporter.metrics().keys().any(|series| silent(series)));

        // An export a while is what paces this.
        let began = Instant::now();
        while exporter.metrics().keys().any(|series| silent(series)) {
            step += 1;
            push_one(&exporter, &json!({ "rank": 1 }), step, GIB);
            otlp.next_export();
            assert!(began.elapsed() < DEADLINE, "the silent rank stays");
        }
        otlp.forget();
        otlp.await_that("rank 1 alone", |otlp| otlp.ranks() == BTreeSet::from([1]));
        // It does not come back with a later export.
        for _ in 0..6 {
            otlp.next_export();
            step += 1;
            push_one(&exporter, &json!({ "rank": 1 }), step, GIB);
            assert!(!otlp.ranks().contains(&0), "{transport}: the silent rank came back");
        }
    }
}

#[test]
fn a_lost_device_leaves_otlp_and_the_scrape() {
    let fake = Fake::new("otlp-lost", &driver(&json!([gpu("GPU-a"), gpu("GPU-b")])));
    let mut otlp = Otlp::start("decode");
    let library = fake.library();
    let arguments = ["--nvml.library", library.to_str().unwrap(), "--nvml.interval", "200ms"];
    let exporter = otlp.exporter("http", &arguments, &[]);
    otlp.await_that("both devices", |otlp| otlp.devices().len() == 2);
    fake.set(&driver(&json!([gpu("GPU-a"), { "uuid": "GPU-b", "code": 15 }])));
    exporter.await_metrics("the loss", |metrics| {
        !metrics.contains_key(r#"stepmem_device_memory_used_bytes{uuid="GPU-b"}"#)
    });
    otlp.forget();
    otlp.await_that("one device", |otlp| {
        otlp.devices() == BTreeSet::from(["GPU-a".to_owned()])
    });
}

#[test]
fn otlp_resource_is_named_and_takes_the_environments_attributes() {
    let mut otlp = Otlp::start("decode");
    let variables = [("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=trainer-0,host.name=node-1")];
    let exporter = otlp.exporter("http", &[], &variables);
    otlp.next_export();
    assert_eq!(otlp.resource["service.name"], "stepmem");
    assert_eq!(otlp.resource["service.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(otlp.resource["k8s.pod.name"], "trainer-0");
    drop(exporter);
}

#[test]
fn a_service_name_of_the_environment_is_taken() {
    for variable in
        [("OTEL_SERVICE_NAME", "memory"), ("OTEL_RESOURCE_ATTRIBUTES", "service.name=memory")]
    {
        let mut otlp = Otlp::start("decode");
        let exporter = otlp.exporter("http", &[], &[variable]);
        otlp.next_export();
        assert_eq!(otlp.resource["service.name"], "memory", "{variable:?}");
        drop(exporter);
    }
}

#[test]
fn otlp_is_on_by_its_own_variables_alone() {
    for transport in ["http", "grpc"] {
        let mut otlp = Otlp::start("decode");
        let endpoint = otlp.endpoint(transport);
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
            ("OTEL_METRIC_EXPORT_INTERVAL", "200"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", if transport == "grpc" { "grpc" } else { "" }),
        ];
        let exporter = Exporter::start_command("serve", &["--no-nvml"], &variables);
        push_one(&exporter, &json!({ "rank": 7 }), 1, GIB);
        otlp.await_that("the rank", |otlp| otlp.ranks() == BTreeSet::from([7]));
        assert_eq!(otlp.transport, transport);
    }
}

#[test]
fn hardware_conventions_are_exported_when_asked_for() {
    let fake = Fake::new("otlp-semconv", &driver(&json!([gpu("GPU-a")])));
    let library = fake.library();
    let library = ["--nvml.library", library.to_str().unwrap()];
    let mut plain = Otlp::start("decode");
    let exporter = plain.exporter("http", &library, &[]);
    plain.await_that("the device", |otlp| !otlp.devices().is_empty());
    assert!(!plain.names().iter().any(|name| name.starts_with("hw.")));
    drop(exporter);

    let mut otlp = Otlp::start("decode");
    let arguments = [&library[..], &["--otlp.semconv"]].concat();
    let exporter = otlp.exporter("http", &arguments, &[]);
    otlp.await_that("hw.gpu", |otlp| otlp.metric("hw.gpu.memory.usage").is_some());
    let names: BTreeSet<String> =
        otlp.names().into_iter().filter(|name| name.starts_with("hw.")).collect();
    let expected = ["hw.gpu.memory.limit", "hw.gpu.memory.usage", "hw.gpu.memory.utilization"];
    assert_eq!(names, expected.map(str::to_owned).into());
    for (name, unit, kind, expected) in [
        ("hw.gpu.memory.limit", "By", "sum", as_f64(80 * GIB)),
        ("hw.gpu.memory.usage", "By", "sum", as_f64(30 * GIB)),
        ("hw.gpu.memory.utilization", "1", "gauge", 0.375),
    ] {
        let metric = otlp.metric(name).unwrap();
        assert_eq!((&metric["unit"], &metric["kind"]), (&unit.into(), &kind.into()), "{name}");
        // What goes up and down and may be summed up.
        assert_ne!(metric["monotonic"], true, "{name}");
        assert_ne!(metric["temporality"], "delta", "{name}");
        let [point] = &metric["points"].as_array().unwrap()[..] else { panic!("{metric}") };
        assert_eq!(point["value"].as_f64(), Some(expected), "{name}");
        assert_eq!(point["attributes"]["hw.id"], "GPU-a");
        assert_eq!(point["attributes"]["hw.model"], "NVIDIA H100 80GB HBM3");
        assert_eq!(point["attributes"]["hw.driver_version"], "570.86.15");
    }
    assert!(otlp.metric("stepmem.device.memory.used").is_some(), "ours stay beside them");
    drop(exporter);
}

#[test]
fn a_dead_collector_is_counted_and_disturbs_nothing() {
    for protocol in ["http/protobuf", "grpc"] {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        disturbs_nothing(protocol, &format!("http://{closed}"));
    }
}

#[test]
fn a_collector_that_never_answers_is_counted_and_disturbs_nothing() {
    for protocol in ["http/protobuf", "grpc"] {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        disturbs_nothing(protocol, &format!("http://{}", silent.local_addr().unwrap()));
    }
}

#[test]
fn sigterm_flushes_the_last_status() {
    for transport in ["http", "grpc"] {
        let mut otlp = Otlp::start("decode");
        let endpoint = otlp.endpoint(transport);
        let arguments = ["--otlp.endpoint", &endpoint, "--otlp.protocol", protocol(transport)];
        let exporter = Exporter::start(&[&arguments[..], &["--otlp.interval", "1h"]].concat());
        push_one(&exporter, &json!({ "rank": 5 }), 9, GIB);
        exporter.signal("TERM");
        let (status, log) = exporter.wait();
        assert!(status.success(), "{status}: {log:#?}");
        otlp.await_that("the last step", |otlp| {
            otlp.metric("stepmem.rank.steps").is_some()
                && otlp
                    .metric("stepmem.rank.step")
                    .is_some_and(|metric| metric["points"][0]["value"].as_f64() == Some(9.0))
        });
    }
}

/// The exporter counts failures, answers as ever and ends in time.
fn disturbs_nothing(protocol: &str, endpoint: &str) {
    let arguments = ["--otlp.endpoint", endpoint, "--otlp.protocol", protocol];
    let arguments = [&["--no-nvml"], &arguments[..], &["--otlp.interval", "200ms"]].concat();
    let variables = [("OTEL_EXPORTER_OTLP_TIMEOUT", "500")];
    let exporter = Exporter::start_command("serve", &arguments, &variables);
    let failed = r#"stepmem_otlp_exports_total{result="failure"}"#;
    let mut step = 0;
    let began = Instant::now();
    while exporter.metric(failed).is_none_or(|n_failures| n_failures < 3.0) {
        step += 1;
        push_one(&exporter, &json!({ "rank": 0 }), step, GIB);
        let asked = Instant::now();
        assert_eq!(exporter.get("/-/ready", &[]).status, 200);
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        assert!(began.elapsed() < DEADLINE, "{protocol}: no failure is counted");
    }
    assert_eq!(exporter.metric(r#"stepmem_otlp_exports_total{result="success"}"#), Some(0.0));
    let taken = exporter.metric(r#"stepmem_rank_steps_total{run="default",rank="0",uuid=""}"#);
    assert_eq!(taken, Some(as_f64(step)));
    exporter.signal("TERM");
    let (status, log) = exporter.wait();
    assert!(status.success(), "{protocol}: {status}: {log:#?}");
}

/// Pushes a job with everything that a rank can say, a leak and hostile labels beside two devices, and compares every
/// series of the scrape with what the receiver got.
fn says_what_the_scrape_says(receiver: &str, transport: &str) {
    let devices = json!([gpu("GPU-a"), gpu("GPU-b")]);
    let fake = Fake::new(&format!("otlp-{receiver}-{transport}"), &driver(&devices));
    let library = fake.library();
    let mut otlp = Otlp::start(receiver);
    let arguments = ["--nvml.library", library.to_str().unwrap(), "--rank.peak-interval", "1h"];
    let exporter = otlp.exporter(transport, &arguments, &[]);
    push_job(&exporter);
    for (rank, text) in (0..).zip(HOSTILE) {
        push_one(&exporter, &json!({ "run": text, "rank": rank }), 1, GIB);
    }
    exporter.await_metrics("devices and creep", |metrics| {
        let has = |name: &str| is_shown(metrics, name);
        has("stepmem_device_memory_used_bytes") && has("stepmem_oom_eta_seconds")
    });

    let scraped = scrape(&exporter);
    let expected = expected_points(&scraped);
    otlp.forget();
    let mut difference = String::new();
    otlp.await_because("what the scrape says", |otlp| {
        difference = differences(&expected, &otlp.points());
        if difference.is_empty() { Ok(()) } else { Err(difference.clone()) }
    });
    if receiver == "decode" {
        assert_eq!(otlp.transport, transport);
        assert_eq!(otlp.resource["service.name"], "stepmem");
    }
    for name in otlp.names() {
        described_as_in_the_table(&otlp.metric(&name).unwrap());
    }
}

/// Two ranks, one of which leaks; nothing moves afterwards.
fn push_job(exporter: &Exporter) {
    for batch in 0..30 {
        let mut lines = String::new();
        for step in batch * 50..(batch + 1) * 50_u64 {
            for rank in 0..2_u64 {
                let allocated = 30 * GIB + (step % 7) * 1024 + rank * step * (8 << 20);
                let record = json!({
                    "run": "job", "rank": rank, "step": step, "world_size": 4, "local_rank": rank,
                    "device": format!("GPU-{}", if rank == 0 { "a" } else { "b" }),
                    "pid": 100 + rank, "step_seconds": 0.25, "total_bytes": 80 * GIB,
                    "allocated_bytes": allocated, "peak_allocated_bytes": allocated + GIB,
                    "reserved_bytes": allocated + 2 * GIB, "inactive_split_bytes": 4096,
                    "peak_reserved_bytes": allocated + 2 * GIB, "alloc_retries": 2, "ooms": 1,
                });
                writeln!(lines, "{record}").unwrap();
            }
        }
        let ndjson = [("content-type", "application/x-ndjson")];
        let answer = exporter.request("POST", "/v1/steps", &ndjson, lines.as_bytes());
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

fn push_one(exporter: &Exporter, record: &Value, step: u64, allocated: u64) {
    let mut record = record.clone();
    record["step"] = step.into();
    record["allocated_bytes"] = allocated.into();
    let answer = exporter.post(record.to_string());
    assert_eq!(answer.status, 200, "{answer:?}");
}

fn driver(devices: &Value) -> Value {
    json!({ "driver_version": "570.86.15", "devices": devices })
}

fn gpu(uuid: &str) -> Value {
    json!({
        "uuid": uuid, "name": "NVIDIA H100 80GB HBM3", "addressing": 1,
        "memory": { "total": 80 * GIB, "reserved": GIB, "used": 30 * GIB },
        "compute": [], "graphics": [], "mps": [],
    })
}

/// Waits until the exporter confirms that the leaking rank of the demo creeps; no other rank may.
fn await_creep(demo: &Exporter) {
    let is_creep = |entry: &Value| {
        let fields = &entry["fields"];
        fields["message"] == "raised" && fields["kind"] == "CREEP_CONFIRMED"
    };
    let confirmed = demo.await_log("CREEP_CONFIRMED", CREEP_WITHIN, is_creep);
    assert_eq!(confirmed["fields"]["rank"], LEAKING, "{confirmed}");
}

fn is_shown(metrics: &BTreeMap<String, f64>, name: &str) -> bool {
    metrics.keys().any(|series| {
        let of = series.split('{').next().unwrap();
        of == name || of.strip_prefix(name) == Some("_count")
    })
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}")).iter()
}

#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "numbers of tests are small"
)]
fn as_f64(value: u64) -> f64 {
    value as f64
}

/// What OTLP must hold for a scrape: a value for each name and labels; `None` for what moves by itself.
type Points = BTreeMap<(String, BTreeMap<String, String>), f64>;

fn expected_points(scraped: &Value) -> Points {
    let samples = scraped["families"].as_object().unwrap().values();
    samples
        .flat_map(|family| items(&family["samples"]))
        .filter_map(|sample| {
            let name = sample[0].as_str().unwrap();
            let otel = if name.starts_with("process_") { return None } else { otel_name(name) };
            let labels = sample[1].as_object().unwrap().iter();
            let labels = labels.map(|(label, value)| (label, value.as_str().unwrap()));
            Some((point(otel, labels), sample[2].as_f64().unwrap()))
        })
        .collect()
}

/// A point's key: labels without value are not there, and bounds are numbers.
fn point<'l>(
    name: String,
    labels: impl Iterator<Item = (&'l String, &'l str)>,
) -> (String, BTreeMap<String, String>) {
    let labels = labels.filter(|(_, value)| !value.is_empty());
    let labels = labels.map(|(label, value)| match label.as_str() {
        "le" => (label.clone(), value.parse::<f64>().unwrap().to_string()),
        _ => (label.clone(), value.to_owned()),
    });
    (name, labels.collect())
}

/// What a sample of the scrape is called in OpenTelemetry.
fn otel_name(sample: &str) -> String {
    for metric in METRICS {
        let rest = sample.strip_prefix(metric.name);
        let suffix = match (metric.kind, rest) {
            (Kind::Histogram, Some("_bucket")) => ".bucket",
            (Kind::Histogram, Some("_count")) => ".count",
            (Kind::Histogram, Some("_sum")) => ".sum",
            (_, Some("")) => "",
            _ => continue,
        };
        let otel = metric.otel.unwrap_or_else(|| panic!("{sample} is not in OpenTelemetry"));
        return format!("{otel}{suffix}");
    }
    panic!("{sample} is not in the table")
}

/// What two sets of points do not agree on, as text.
fn differences(expected: &Points, got: &Points) -> String {
    let mut lines = String::new();
    for key in expected.keys().chain(got.keys()).collect::<BTreeSet<_>>() {
        let (left, right) = (expected.get(key), got.get(key));
        let is_moving = MOVING.contains(&key.0.as_str());
        let is_same = left == right || (is_moving && left.is_some() == right.is_some());
        if !is_same {
            writeln!(lines, "{key:?}: scraped {left:?}, exported {right:?}").unwrap();
        }
    }
    lines
}

/// Unit, help, kind, temporality and monotonicity of an exported metric.
fn described_as_in_the_table(exported: &Value) {
    let name = exported["name"].as_str().unwrap();
    let is_row = |metric: &&Metric| {
        let rest = metric.otel.and_then(|otel| name.strip_prefix(otel));
        match metric.kind {
            Kind::Histogram => {
                rest.is_some_and(|rest| [".bucket", ".count", ".sum"].contains(&rest))
            }
            _ => rest == Some(""),
        }
    };
    let row = METRICS.iter().find(is_row).unwrap_or_else(|| panic!("{name} is in no row"));
    assert_eq!(exported["description"], row.help, "{name}");
    // Of a histogram only the sum is in its unit.
    let is_count = row.kind == Kind::Histogram
        && row.otel.map(|otel| format!("{otel}.sum")).as_deref() != Some(name);
    let unit = if is_count { "" } else { row.unit.as_ucum() };
    assert_eq!(exported["unit"].as_str().unwrap_or_default(), unit, "{name}");
    match row.kind {
        Kind::Gauge | Kind::Info => {
            assert_eq!(exported["kind"], "gauge", "{name}");
        }
        Kind::Counter | Kind::Histogram => {
            assert_eq!(exported["kind"], "sum", "{name}");
            assert_eq!(exported["monotonic"], true, "{name}");
            assert_eq!(exported["temporality"], "cumulative", "{name}");
        }
    }
}

/// Both formats through the reference parsers, which must agree; OpenMetrics' families.
fn scrape(exporter: &Exporter) -> Value {
    run_peer("scrape.py", &[&format!("http://{}/metrics", exporter.web)])
}

pub fn python() -> PathBuf {
    let python = rig::root().join("target/tools/venv/bin/python");
    assert!(python.exists(), "{} is not there: run make test", python.display());
    python
}

/// Runs a script of tests/peers to its end and returns what it prints.
fn run_peer(script: &str, arguments: &[&str]) -> Value {
    let mut command = Command::new(python());
    command.arg(rig::root().join("tests/peers").join(script)).args(arguments);
    let output = command.output().unwrap();
    serde_json::from_str(&stdout(&output)).unwrap()
}

fn stdout(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{} (a program that is not there? run make test): {said}",
        output.status
    );
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A page after its scripts ran, as text.
fn rendered(url: &str) -> String {
    let profile = Folder::new("chromium");
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"])
        .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
        .args(["--disable-component-update", "--virtual-time-budget=8000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.text()))
        .arg(url)
        .output()
        .expect("no chromium: run make test");
    stdout(&output)
}

/// What stands between the tag that has an attribute and its end tag.
fn element<'p>(page: &'p str, attribute: &str) -> &'p str {
    let (before, after) =
        page.split_once(attribute).unwrap_or_else(|| panic!("no {attribute}: {page}"));
    let name = before.rsplit('<').next().unwrap().split_whitespace().next().unwrap();
    let inner = after.split_once('>').unwrap().1;
    inner.split_once(&format!("</{name}>")).unwrap().0
}

/// A folder that goes with its owner.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("stepmem-{name}-{}", process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// A receiver of OTLP: the official classes or Rotel. It ends when this goes.
struct Otlp {
    child: Child,
    // It ends when its stdin does.
    stdin: Option<ChildStdin>,
    exports: Receiver<Value>,
    ports: Value,
    /// The metrics of the last export.
    latest: Vec<Value>,
    resource: Value,
    transport: String,
}

impl Otlp {
    fn start(receiver: &str) -> Self {
        let mut child = Command::new(python())
            .arg(rig::root().join("tests/peers/otlp.py"))
            .arg(receiver)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, exports) = channel();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    break;
                }
            }
        });
        let stdin = child.stdin.take();
        let (latest, resource) = (Vec::new(), Value::Null);
        let transport = String::new();
        let mut otlp =
            Self { child, stdin, exports, ports: Value::Null, latest, resource, transport };
        otlp.ports = otlp.receive();
        otlp
    }

    fn receive(&mut self) -> Value {
        match self.exports.recv_timeout(DEADLINE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("no export in {DEADLINE:?}"),
            Err(RecvTimeoutError::Disconnected) => {
                let mut said = String::new();
                self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                panic!("the receiver ended (run make test?): {said}")
            }
        }
    }

    fn endpoint(&self, transport: &str) -> String {
        format!("http://127.0.0.1:{}", self.ports[transport])
    }

    /// An exporter that exports to it five times a second.
    fn exporter(
        &self,
        transport: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Exporter {
        let endpoint = self.endpoint(transport);
        let own = ["--otlp.endpoint", &endpoint, "--otlp.protocol", protocol(transport)];
        let mut arguments = [&own[..], &["--otlp.interval", "200ms"], arguments].concat();
        if !arguments.contains(&"--nvml.library") {
            arguments.push("--no-nvml");
        }
        Exporter::start_command("serve", &arguments, variables)
    }

    /// Takes the next export; it replaces the last one.
    fn next_export(&mut self) {
        let export = self.receive();
        self.resource = export["resource"].clone();
        export["transport"].as_str().unwrap().clone_into(&mut self.transport);
        self.latest.clone_from(export["metrics"].as_array().unwrap());
    }

    /// Forgets what came so far, also what has come and was not looked at.
    fn forget(&mut self) {
        while self.exports.try_recv().is_ok() {}
        self.latest.clear();
    }

    fn await_that(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        self.await_because(what, |otlp| {
            if is_so(otlp) { Ok(()) } else { Err(format!("{:?}", otlp.points())) }
        });
    }

    /// Takes exports until `is_so` has no objection.
    fn await_because(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&Self) -> Result<(), String>,
    ) {
        let began = Instant::now();
        loop {
            self.next_export();
            let objection =
                if self.latest.len() < 2 { Err(String::new()) } else { is_so(self) };
            let Err(objection) = objection else { return };
            assert!(began.elapsed() < DEADLINE, "{what} did not come: {objection}");
        }
    }

    fn metrics(&self) -> impl Iterator<Item = &Value> {
        self.latest.iter()
    }

    fn names(&self) -> Vec<String> {
        self.metrics().map(|metric| metric["name"].as_str().unwrap().to_owned()).collect()
    }

    fn metric(&self, name: &str) -> Option<Value> {
        self.metrics().find(|metric| metric["name"] == name).cloned()
    }

    fn points(&self) -> Points {
        let mut points = Points::new();
        for metric in self.metrics() {
            let name = metric["name"].as_str().unwrap();
            for of_metric in items(&metric["points"]) {
                let attributes = of_metric["attributes"].as_object().unwrap().iter();
                let labels = attributes.map(|(label, value)| (label, value.as_str().unwrap()));
                let key = point(name.to_owned(), labels);
                let earlier = points.insert(key.clone(), of_metric["value"].as_f64().unwrap());
                assert_eq!(earlier, None, "{key:?} is there twice");
            }
        }
        points
    }

    fn labels(&self, label: &str) -> BTreeSet<String> {
        self.points().into_keys().filter_map(|(_, labels)| labels.get(label).cloned()).collect()
    }

    fn ranks(&self) -> BTreeSet<u32> {
        self.labels("rank").iter().map(|rank| rank.parse().unwrap()).collect()
    }

    fn devices(&self) -> BTreeSet<String> {
        self.labels("uuid")
    }
}

impl Drop for Otlp {
    fn drop(&mut self) {
        drop(self.stdin.take());
        self.child.wait().ok();
    }
}

/// OTLP's transports by the names of the setting.
fn protocol(transport: &str) -> &'static str {
    if transport == "grpc" { "grpc" } else { "http/protobuf" }
}

//! OTLP to the official classes and to Rotel: the same figures as the scrape's, and nothing that a dead collector disturbs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::time::Instant;

use serde_json::{Value, json};
use stepmem_engine::metrics::{Kind, METRICS};

use crate::rig::exporter::Exporter;
use crate::rig::folder::text;
use crate::rig::job::{HOSTILE_NAMES, Job};
use crate::rig::json::items;
use crate::rig::nvml::{FakeNvml, driver, gpu};
use crate::rig::otlp::{Otlp, Points, point, protocol};
use crate::rig::peers::reference_scrape;
use crate::rig::series::has_family;
use crate::rig::units::{GIB, float};
use crate::rig::wait::DEADLINE;

/// Metrics that move without a push: only their presence is compared.
const MOVING: [&str; 6] = [
    "stepmem.oom.eta",
    "stepmem.otlp.exports",
    "stepmem.nvml.last_success_timestamp",
    "stepmem.collector.duration",
    "stepmem.inbox.depth",
    "stepmem.series",
];

#[test]
fn otlp_over_http_equals_the_scrape() {
    exports_equal_the_scrape("decode", "http");
}

#[test]
fn otlp_over_grpc_equals_the_scrape() {
    exports_equal_the_scrape("decode", "grpc");
}

#[test]
fn rotel_receives_the_scrape_over_http() {
    exports_equal_the_scrape("rotel", "http");
}

#[test]
fn rotel_receives_the_scrape_over_grpc() {
    exports_equal_the_scrape("rotel", "grpc");
}

#[test]
fn otlp_counters_are_cumulative_and_never_fall() {
    let mut otlp = Otlp::start("decode");
    let exporter = otlp.exporter("http", &[], &[]);
    let mut last = 0.0;
    let mut start = None;
    for step in 1..=5_u64 {
        exporter.push_step(&json!({ "rank": 0 }), step, GIB);
        let mut n_steps = 0.0;
        while n_steps < float(step) {
            otlp.next_export();
            let Some(metric) = otlp.metric("stepmem.rank.steps") else { continue };
            let point = &metric["points"][0];
            n_steps = point["value"].as_f64().unwrap();
            assert!(n_steps >= last, "{n_steps} after {last}");
            let began = point["start_time_unix_nano"].as_u64().unwrap();
            assert_eq!(*start.get_or_insert(began), began, "a cumulative series started over");
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
        exporter.push_step(&json!({ "rank": 0 }), 1, GIB);
        exporter.push_step(&json!({ "rank": 1 }), 1, GIB);
        otlp.await_that("both ranks", |otlp| otlp.ranks() == BTreeSet::from([0, 1]));
        let silent = |series: &str| series.contains("rank=\"0\"");
        assert!(exporter.scrape().keys().any(|series| silent(series)));

        // An export a while is what paces this.
        let began = Instant::now();
        while exporter.scrape().keys().any(|series| silent(series)) {
            step += 1;
            exporter.push_step(&json!({ "rank": 1 }), step, GIB);
            otlp.next_export();
            assert!(began.elapsed() < DEADLINE, "the silent rank stays");
        }
        otlp.forget();
        otlp.await_that("rank 1 alone", |otlp| otlp.ranks() == BTreeSet::from([1]));
        // It does not come back with a later export.
        for _ in 0..6 {
            otlp.next_export();
            step += 1;
            exporter.push_step(&json!({ "rank": 1 }), step, GIB);
            assert!(!otlp.ranks().contains(&0), "{transport}: the silent rank came back");
        }
    }
}

#[test]
fn a_lost_device_leaves_otlp_and_the_scrape() {
    let fake = FakeNvml::new("otlp-lost", &driver([gpu("GPU-a"), gpu("GPU-b")]));
    let mut otlp = Otlp::start("decode");
    let library = text(&fake.library());
    let arguments = ["--nvml.library", &library, "--nvml.interval", "200ms"];
    let exporter = otlp.exporter("http", &arguments, &[]);
    otlp.await_that("both devices", |otlp| otlp.devices().len() == 2);
    fake.set(&driver([gpu("GPU-a"), gpu("GPU-b").code(15)]));
    exporter.await_metrics("the loss", |metrics| {
        !metrics.contains_key(r#"stepmem_device_memory_used_bytes{uuid="GPU-b"}"#)
    });
    otlp.forget();
    otlp.await_that("one device", |otlp| {
        otlp.devices() == BTreeSet::from(["GPU-a".to_owned()])
    });
    otlp.await_that("the finding", |otlp| {
        let points = otlp.points();
        points.keys().any(|(name, labels)| {
            name == "stepmem.diagnosis.severity"
                && labels.get("kind").is_some_and(|kind| kind == "GPU_LOST")
        })
    });
}

#[test]
fn otlp_resource_is_named_and_has_the_environments_attributes() {
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
fn a_pod_is_named_as_opentelemetry_does_and_as_the_rules_do() {
    let mut otlp = Otlp::start("decode");
    let attributes = "k8s.namespace.name=ml,k8s.pod.name=trainer-0,cluster=east";
    let exporter = otlp.exporter("http", &[], &[("OTEL_RESOURCE_ATTRIBUTES", attributes)]);
    otlp.next_export();
    for (attribute, value) in [
        ("k8s.namespace.name", "ml"),
        ("namespace", "ml"),
        ("k8s.pod.name", "trainer-0"),
        ("pod", "trainer-0"),
        ("cluster", "east"),
    ] {
        assert_eq!(otlp.resource[attribute], value, "{attribute}");
    }
    drop(exporter);
}

#[test]
fn service_name_of_the_environment_is_used() {
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
        exporter.push_step(&json!({ "rank": 7 }), 1, GIB);
        otlp.await_that("the rank", |otlp| otlp.ranks() == BTreeSet::from([7]));
        assert_eq!(otlp.transport, transport);
    }
}

#[test]
fn hardware_conventions_are_exported_when_asked_for() {
    let fake = FakeNvml::new("otlp-semconv", &driver([gpu("GPU-a")]));
    let library = text(&fake.library());
    let library = ["--nvml.library", library.as_str()];
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
        ("hw.gpu.memory.limit", "By", "sum", float(80 * GIB)),
        ("hw.gpu.memory.usage", "By", "sum", float(30 * GIB)),
        ("hw.gpu.memory.utilization", "1", "gauge", 0.375),
    ] {
        let metric = otlp.metric(name).unwrap();
        assert_eq!((&metric["unit"], &metric["kind"]), (&unit.into(), &kind.into()), "{name}");
        // A sum that may go down is an UpDownCounter.
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
        exporter.push_step(&json!({ "rank": 5 }), 9, GIB);
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
        exporter.push_step(&json!({ "rank": 0 }), step, GIB);
        assert_eq!(exporter.get("/-/ready", &[]).status, 200);
        assert!(began.elapsed() < DEADLINE, "{protocol}: no failure is counted");
    }
    assert_eq!(exporter.metric(r#"stepmem_otlp_exports_total{result="success"}"#), Some(0.0));
    let taken = exporter.metric(r#"stepmem_rank_steps_total{run="default",rank="0",uuid=""}"#);
    assert_eq!(taken, Some(float(step)));
    exporter.signal("TERM");
    let (status, log) = exporter.wait();
    assert!(status.success(), "{protocol}: {status}: {log:#?}");
}

/// Pushes a job with everything that a rank can say, a leak and hostile labels beside two devices, and compares every
/// series of the scrape with what the receiver got.
fn exports_equal_the_scrape(receiver: &str, transport: &str) {
    let devices = driver([gpu("GPU-a"), gpu("GPU-b")]);
    let fake = FakeNvml::new(&format!("otlp-{receiver}-{transport}"), &devices);
    let library = text(&fake.library());
    let mut otlp = Otlp::start(receiver);
    // A second reading of the devices would move the headroom.
    let still = ["--nvml.interval", "1h", "--rank.peak-interval", "1h"];
    let arguments = [&["--nvml.library", &library], &still[..]].concat();
    let exporter = otlp.exporter(transport, &arguments, &[]);
    push_job(&exporter);
    for (rank, text) in (0..).zip(HOSTILE_NAMES) {
        exporter.push_step(&json!({ "run": text, "rank": rank }), 1, GIB);
    }
    exporter.await_metrics("devices and creep", |metrics| {
        let has = |name: &str| has_family(metrics, name);
        has("stepmem_device_memory_used_bytes") && has("stepmem_oom_eta_seconds")
    });

    otlp.forget();
    // A rank that is silent by now has no time left, in either.
    otlp.await_because("what the scrape says", |otlp| {
        let expected = expected_points(&reference_scrape(&exporter));
        let difference = differences(&expected, &otlp.points());
        if difference.is_empty() { Ok(()) } else { Err(difference) }
    });
    if receiver == "decode" {
        assert_eq!(otlp.transport, transport);
        assert_eq!(otlp.resource["service.name"], "stepmem");
    }
    for name in otlp.names() {
        described_as_in_the_table(&otlp.metric(&name).unwrap());
    }
}

/// Two ranks that say all that there is to say, one of which leaks; nothing moves afterwards.
fn push_job(exporter: &Exporter) {
    let live = |rank, step| 30 * GIB + (step % 7) * 1024 + rank * step * (8 << 20);
    let job = Job::new(2, 0).steps(0..1500).world(4).untimed();
    let job = job.live(live).peak(move |rank, step| live(rank, step) + GIB);
    let job = job.reserved(move |rank, step| live(rank, step) + 2 * GIB).more(move |rank, step| {
        json!({
            "local_rank": rank, "device": format!("GPU-{}", if rank == 0 { "a" } else { "b" }),
            "pid": 100 + rank, "step_seconds": 0.25, "inactive_split_bytes": 4096,
            "peak_reserved_bytes": live(rank, step) + 2 * GIB, "alloc_retries": 2, "ooms": 1,
        })
    });
    exporter.push(&job.records());
}

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

/// The OpenTelemetry name of a sample of the scrape.
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

/// The differences between two sets of points, as text.
fn differences(expected: &Points, got: &Points) -> String {
    let mut lines = String::new();
    for key in expected.keys().chain(got.keys()).collect::<BTreeSet<_>>() {
        let (left, right) = (expected.get(key), got.get(key));
        let is_moving = MOVING.contains(&key.0.as_str());
        // The SDK adds seconds up, the exporter nanoseconds.
        let is_same_sum = key.0 == "stepmem.push.duration.sum"
            && left.zip(right).is_some_and(|(left, right)| (left - right).abs() < 1e-9);
        let is_same =
            left == right || is_same_sum || (is_moving && left.is_some() == right.is_some());
        if !is_same {
            writeln!(lines, "{key:?}: scraped {left:?}, exported {right:?}").unwrap();
        }
    }
    lines
}

/// Unit, help, kind, temporality and monotonicity of an exported metric.
fn described_as_in_the_table(exported: &Value) {
    let name = exported["name"].as_str().unwrap();
    let row = METRICS.iter().find(|metric| metric.otel == Some(name));
    let row = row.unwrap_or_else(|| panic!("{name} is in no row"));
    assert_eq!(exported["description"], row.help, "{name}");
    assert_eq!(exported["unit"].as_str().unwrap_or_default(), row.unit.as_ucum(), "{name}");
    match row.kind {
        Kind::Gauge | Kind::Info => {
            assert_eq!(exported["kind"], "gauge", "{name}");
        }
        Kind::Histogram => {
            assert_eq!(exported["kind"], "histogram", "{name}");
            assert_eq!(exported["temporality"], "cumulative", "{name}");
        }
        Kind::Counter => {
            assert_eq!(exported["kind"], "sum", "{name}");
            assert_eq!(exported["monotonic"], true, "{name}");
            assert_eq!(exported["temporality"], "cumulative", "{name}");
        }
    }
}

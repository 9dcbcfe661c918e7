//! The container of ranks: its limit, its growth, which is that of all its processes, and the kernel's kills in it.

use serde_json::{Value, json};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::Folder;
use crate::rig::job::{Job, recording};
use crate::rig::json::without_clock;
use crate::rig::noise::noise;
use crate::rig::summary::summary;
use crate::rig::units::{GIB, MIB, float};

const LIMIT: u64 = 64 * GIB;

/// Ranks on a GPU in one container, whose host memory grows by so many bytes a step of ten seconds. The container has `rest` more.
fn ranks(n_ranks: u64, growth: u64, rest: fn(u64) -> u64) -> Job {
    let of_host = move |rank, step| 4 * GIB + noise(rank, step + 7, 16 * MIB) + growth * step;
    Job::new(n_ranks, 800).device("GPU-1").seconds_per_step(10.0).more(move |rank, step| {
        let used: u64 = (0..n_ranks).map(|rank| of_host(rank, step)).sum();
        let more = rest(step);
        json!({"host_allocated_bytes": of_host(rank, step), "host_total_bytes": LIMIT,
            "container": "c0ffee", "container_limit_bytes": LIMIT,
            "container_used_bytes": used + more, "container_oom_kills": 0})
    })
}

/// The findings that begin or change, in order.
fn raised(records: &[Value]) -> Vec<Value> {
    let ended = stepmem(&["replay", "-"], &[], recording(records).as_bytes());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let lines = ended.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["state"] == "raised").collect()
}

/// Kind, rank and severity of the findings that hold.
fn held(status: &Value) -> Vec<(String, u64, String)> {
    let findings = status["findings"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    findings
        .map(|of| (text(&of["kind"]), of["rank"].as_u64().unwrap(), text(&of["severity"])))
        .collect()
}

fn creep(rank: u64, severity: &str) -> (String, u64, String) {
    ("HOST_CREEP_CONFIRMED".to_owned(), rank, severity.to_owned())
}

#[test]
fn container_is_in_every_output() {
    let exporter = Exporter::start(&[]);
    exporter.push(&ranks(2, 0, |_| 12 * GIB).steps(1..3).records());
    let status = exporter.status();
    let container = &status["containers"][0];
    let used = container["used_bytes"].as_u64().unwrap();
    assert!(used > 20 * GIB && used < 21 * GIB, "{container}");
    assert_eq!(container["headroom_bytes"], json!(float(LIMIT - used)));
    assert_eq!(container["ranks"].as_array().unwrap().len(), 2);
    let sentence = status["ranks"][1]["host"]["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("its container uses 20.0 GiB of 64.0 GiB"), "{sentence}");
    let metrics = exporter.scrape();
    let of = |name: &str| metrics.get(&format!("{name}{{cgroup=\"c0ffee\"}}")).copied();
    assert_eq!(of("stepmem_container_memory_limit_bytes"), Some(float(LIMIT)));
    assert_eq!(of("stepmem_container_memory_used_bytes"), Some(float(used)));
    assert_eq!(of("stepmem_container_oom_kills_total"), Some(0.0));
    assert_eq!(of("stepmem_container_oom_eta_seconds"), None);
    let is_named = |series: &&String| {
        series.starts_with("stepmem_rank_info{") && series.contains(r#"cgroup="c0ffee""#)
    };
    assert_eq!(metrics.keys().filter(is_named).count(), 2);
    let plain = Exporter::start(&[]);
    plain.push(&Job::new(1, 3).records());
    let status = plain.status();
    assert_eq!(status["containers"], Value::Null);
    assert_eq!(status["ranks"][0]["host"], Value::Null);
    assert!(!plain.scrape().keys().any(|series| series.starts_with("stepmem_container")));
}

#[test]
fn ranks_that_grow_together_run_out_of_memory_with_their_container_and_one_says_when() {
    let exporter = Exporter::start(&[]);
    exporter.push(&ranks(4, 10 * MIB, |_| 0).records());
    let status = exporter.status();
    let [first, second] = ["critical", "warning"];
    let expected = [creep(0, first), creep(1, second), creep(2, second), creep(3, second)];
    assert_eq!(held(&status), expected);
    // 16.75 GiB are left, and the four take 40 MiB in ten seconds.
    let left = float(LIMIT - 4 * (4 * GIB + 8000 * MIB));
    let eta = status["ranks"][0]["host_oom_eta_seconds"].as_f64().unwrap();
    assert!((eta / (left / float(4 * MIB)) - 1.0).abs() < 0.1, "{eta}");
    assert_eq!(status["containers"][0]["oom_eta_seconds"], json!(eta));
    assert_eq!(status["findings"][1]["evidence"]["oom_eta_seconds"], Value::Null);
    let words = status["findings"][0]["sentence"].as_str().unwrap();
    assert!(
        words.contains(" of its container's 64.0 GiB with 4 ranks left, out of"),
        "{words}"
    );
    let metrics = exporter.scrape();
    let etas = |name: &str| metrics.keys().filter(|of| of.starts_with(name)).count();
    assert_eq!(etas("stepmem_host_oom_eta_seconds{"), 1);
    assert_eq!(etas("stepmem_container_oom_eta_seconds{"), 1);
    // The one that says it ends; the next one does.
    exporter.post_to("/v1/runs/job/end", r#"{"rank":0,"outcome":"completed"}"#);
    let status = exporter.status();
    assert_eq!(held(&status)[1], creep(1, first));
}

#[test]
fn container_that_grows_while_none_of_its_ranks_does_is_told_once() {
    let found = raised(&ranks(4, 0, |step| step * 40 * MIB).records());
    let [found] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!((&found["kind"], &found["rank"]), (&json!("HOST_CREEP_CONFIRMED"), &json!(0)));
    assert_eq!(found["evidence"]["container"]["is_whole"], true);
    let job = ranks(4, 0, |step| step * 40 * MIB);
    let summary = summary(&job.recording());
    let words = summary["diagnosis"]["summary"].as_str().unwrap();
    assert!(words.contains("the memory of its container grows by 14."), "{words}");
    assert!(words.contains("/h, "), "{words}");
    assert!(summary["diagnosis"]["action"].as_str().unwrap().contains("tmpfs"), "{summary}");
    assert_eq!(raised(&ranks(4, 0, |_| 8 * GIB).records()), Vec::<Value>::new());
}

#[test]
fn full_container_is_high_pressure_of_one_rank() {
    let found = raised(&ranks(4, 0, |_| 45 * GIB).steps(1..20).records());
    let [found] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!((&found["kind"], &found["rank"]), (&json!("HOST_HIGH_PRESSURE"), &json!(0)));
    assert_eq!(found["evidence"]["is_of_container"], true);
}

#[test]
fn host_memory_that_is_left_is_what_the_container_leaves() {
    let exporter = Exporter::start(&[]);
    exporter.push(&ranks(1, 0, |_| 40 * GIB).steps(1..60).records());
    let url = format!("http://{}", exporter.web);
    let explained =
        stepmem(&["explain", "--url", &url, "--run", "job", "--rank", "0"], &[], b"").out;
    assert!(explained.contains("Headroom on the host: 20.0 GiB"), "{explained}");
}

#[test]
fn rank_without_a_device_has_the_time_of_its_container() {
    let job = Job::new(2, 800).device("cpu").seconds_per_step(10.0).capacity(LIMIT);
    let live = |rank, step| 4 * GIB + noise(rank, step + 7, 16 * MIB) + 20 * MIB * step;
    let job = job.live(live).more(move |_, step| {
        json!({"container": "c0ffee", "container_limit_bytes": LIMIT,
            "container_used_bytes": live(0, step) + live(1, step)})
    });
    let exporter = Exporter::start(&[]);
    exporter.push(&job.records());
    let status = exporter.status();
    let left = float(LIMIT - 2 * (4 * GIB + 16_000 * MIB));
    let eta = status["ranks"][0]["oom_eta_seconds"].as_f64().unwrap();
    assert!((eta / (left / float(4 * MIB)) - 1.0).abs() < 0.1, "{eta}");
    assert_eq!(status["ranks"][1]["oom_eta_seconds"], Value::Null);
}

#[test]
fn limit_of_a_container_is_that_of_the_newest_reading_whichever_rank_read_it() {
    let exporter = Exporter::start(&[]);
    let at = |rank: u64, seconds: f64, limit: u64| {
        let job = Job::new(1, 1).first_rank(rank).starting_at(seconds).device("GPU-1");
        let fields = json!({"container": "c0ffee", "container_limit_bytes": limit,
            "container_used_bytes": 20 * GIB});
        job.more(move |_, _| fields.clone()).records()
    };
    for (rank, seconds, limit, expected) in
        [(0, 0.0, 64, 64), (1, 10.0, 32, 32), (2, 5.0, 48, 32), (3, 20.0, 64, 64)]
    {
        exporter.push(&at(rank, seconds, limit * GIB));
        let status = exporter.status();
        let [container] = status["containers"].as_array().unwrap().as_slice() else {
            panic!("{status:#}")
        };
        assert_eq!(container["limit_bytes"], json!(expected * GIB), "{rank}");
        assert_eq!(container["headroom_bytes"], json!(float((expected - 20) * GIB)), "{rank}");
    }
}

#[test]
fn growth_of_a_container_outlasts_a_restart_of_the_exporter() {
    let folder = Folder::new("container-restart");
    let path = folder.path("state");
    let arguments = ["--state.file", path.to_str().unwrap()];
    let first = Exporter::start(&arguments);
    first.push(&ranks(2, 0, |step| step * 40 * MIB).records());
    let before = first.status();
    first.stop();
    let second = Exporter::start(&arguments);
    let after = second.status();
    assert_eq!(held(&after), [creep(0, "critical")]);
    let onset = |status: &Value| status["findings"][0]["evidence"]["onset_time"].clone();
    assert_eq!(onset(&after), onset(&before));
    let containers = |status: &Value| without_clock(&status["containers"]);
    assert_eq!(containers(&after), containers(&before));
}

#[test]
fn process_that_joins_a_container_begins_its_series_again() {
    let mut records = ranks(1, 0, |step| step * 40 * MIB).steps(1..400).records();
    let mut joining = ranks(1, 0, |step| step * 40 * MIB).steps(400..440).run("second");
    records.append(&mut joining.records());
    let found = raised(&records);
    let clears = found.iter().filter(|of| of["kind"] == "HOST_CREEP_CONFIRMED").count();
    assert_eq!(clears, 1, "{found:#?}");
    joining = ranks(1, 0, |step| step * 40 * MIB).steps(400..800).run("second");
    let status = {
        let exporter = Exporter::start(&[]);
        exporter.push(&joining.records());
        exporter.status()
    };
    assert_eq!(held(&status), [creep(0, "critical")]);
}

/// Two ranks in one container until `last`, and from then on the second one alone with another rank elsewhere.
fn vanishing(used: u64, n_kills: u64) -> Vec<Value> {
    let fields = move |step: u64, kills: u64| {
        let used = if step > 60 { 20 * GIB } else { used };
        json!({"container": "c0ffee", "container_limit_bytes": LIMIT, "container_used_bytes": used,
            "container_oom_kills": kills})
    };
    let job = Job::new(2, 60).device("GPU-1").more(move |_, step| fields(step, 3));
    let mut records = job.records();
    let rest = Job::new(1, 0).first_rank(1).steps(61..200).device("GPU-1");
    records.append(&mut rest.more(move |_, step| fields(step, 3 + n_kills)).records());
    records
}

#[test]
fn kill_that_another_rank_of_the_container_reports_is_seen() {
    let found = raised(&vanishing(40 * GIB, 1));
    let [found] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!(
        (&found["kind"], &found["rank"], &found["severity"]),
        (&json!("OUT_OF_MEMORY"), &json!(0), &json!("critical"))
    );
    let words = stepmem(&["summary", "-"], &[], recording(&vanishing(40 * GIB, 1)).as_bytes());
    let expected = "the kernel killed its process for lack of memory after step 60";
    assert!(words.out.contains(expected), "{}", words.out);
}

#[test]
fn kill_that_nobody_saw_is_likely_in_a_full_container_alone() {
    let found = raised(&vanishing(62 * GIB, 0));
    let of = found.iter().find(|of| of["kind"] == "OUT_OF_MEMORY").unwrap();
    assert_eq!((&of["rank"], &of["severity"]), (&json!(0), &json!("warning")));
    assert_eq!(of["evidence"]["likely_kill"]["container_used_ratio"], 62.0 / 64.0);
    let words = stepmem(&["summary", "-"], &[], recording(&vanishing(62 * GIB, 0)).as_bytes());
    let expected = "the kernel likely killed its process for lack of memory: it fell silent after step 60, when its container used 97% of its limit";
    let joined = words.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(joined.contains(expected), "{}", words.out);
    assert_eq!(raised(&vanishing(40 * GIB, 0)), Vec::<Value>::new());
}

#[test]
fn kill_of_one_of_several_that_vanished_is_likely_for_each() {
    let fields = |kills: u64| {
        json!({"container": "c0ffee", "container_limit_bytes": LIMIT, "container_used_bytes": GIB,
            "container_oom_kills": kills})
    };
    let mut records = Job::new(3, 60).device("GPU-1").more(move |_, _| fields(0)).records();
    let rest = Job::new(1, 0).first_rank(2).steps(61..200).device("GPU-1");
    records.append(&mut rest.more(move |_, _| fields(1)).records());
    let found = raised(&records);
    let likely =
        found.iter().filter(|of| of["evidence"]["likely_kill"]["container_kills"] == 1);
    assert_eq!(likely.map(|of| of["rank"].clone()).collect::<Vec<_>>(), [json!(0), json!(1)]);
}

#[test]
fn ranks_of_more_containers_than_are_judged_are_counted_and_judged_alone() {
    let exporter = Exporter::start(&[]);
    let job = Job::new(33, 1).device("GPU-1").more(
        |rank, _| json!({"container": format!("c{rank}"), "container_limit_bytes": LIMIT}),
    );
    exporter.push(&job.records());
    let status = exporter.status();
    assert_eq!(status["containers"].as_array().unwrap().len(), 32);
    assert_eq!(status["ranks"].as_array().unwrap().len(), 33);
    let dropped = r#"stepmem_series_dropped_total{reason="containers"}"#;
    exporter.await_metrics("it is counted", |metrics| metrics.get(dropped) == Some(&1.0));
}

#[test]
fn container_out_of_range_is_refused_and_one_without_a_limit_is_none() {
    let exporter = Exporter::start(&[]);
    for (fields, expected) in [
        (r#""container":"""#, "container: "),
        (r#""container":"a\u0007b""#, "container: "),
        (r#""container":7"#, "container"),
        (
            r#""container":"a","container_limit_bytes":0"#,
            "container_limit_bytes: 0 is outside 1..=",
        ),
        (r#""container_used_bytes":-1"#, "container_used_bytes: -1 is outside 0..="),
        (r#""container_oom_kills":0.5"#, "container_oom_kills: 0.5"),
    ] {
        let body = format!(r#"{{"rank":0,"step":1,"allocated_bytes":1,{fields}}}"#);
        let answer = exporter.post(body);
        assert_eq!(answer.status, 400, "{fields}");
        assert!(answer.body.contains(expected), "{fields}: {}", answer.body);
    }
    exporter.push(&[json!({"rank": 0, "step": 1, "allocated_bytes": 1, "container": "a"})]);
    exporter.push(&[
        json!({"rank": 1, "step": 1, "allocated_bytes": 1, "container_limit_bytes": 5}),
    ]);
    assert_eq!(exporter.status()["containers"], Value::Null);
}

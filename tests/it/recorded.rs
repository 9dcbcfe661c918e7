//! What an exporter records gives, replayed, what was found live; and recording never disturbs pushes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::rig::command::{ANY_PORTS, Ended, stepmem};
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, root, text};
use crate::rig::job::{Job, record};
use crate::rig::json::without_clock;
use crate::rig::nvml::{FakeNvml, driver, gpu, process};
use crate::rig::snapshot::data;
use crate::rig::units::{GIB, MIB, float};
use crate::rig::wait::await_true;
use stepmem_engine::wire::{RecordedLine, decode_line};

const LIFE_1: &str = "leaky.life1.jsonl.zst";
/// A snapshot with one line that leaks.
const LEAK: &str = "leak_loss_scalar_var_seq.pickle.gz";

/// The last line of `replay`.
fn replayed(arguments: &[&str]) -> Value {
    let out = stepmem(&[&["replay"], arguments].concat(), &[], b"").quiet();
    serde_json::from_str::<Value>(out.lines().last().unwrap()).unwrap()["status"].take()
}

/// Four ranks, rank 2 of which leaks, and what is said of them: a holder, an acknowledgment, and the end of rank 0.
fn push_leak(exporter: &Exporter, run: &str) {
    let records = Job::leaking(run, 1..500, 8 * MIB).records();
    for batch in records.chunks(100) {
        exporter.push(batch);
    }
    let holder = json!({"name": "`Trainer.history`", "kind": "list", "file": "train.py", "line": 42,
        "function": "step", "tensors": 3, "bytes": 4096, "tensors_per_step": 1, "bytes_per_step": 8e6});
    let report = json!({"run": run, "rank": 2, "outcome": "named", "holders": [holder]});
    exporter.take("/v1/holders", &report);
    let ack = json!({"rank": 2, "kind": "CREEP_EARLY", "for_seconds": 3600, "reason": "a cache fills"});
    exporter.take(&format!("/v1/runs/{run}/ack"), &ack);
    let end = json!({"rank": 0, "outcome": "failed", "error_type": "ValueError"});
    exporter.take(&format!("/v1/runs/{run}/end"), &end);
}

/// A finding without its age.
fn findings(status: &Value) -> Vec<Value> {
    let findings = status["findings"].as_array().unwrap().iter().cloned();
    findings
        .map(|mut finding| {
            let fields = finding.as_object_mut().unwrap();
            fields.retain(|name, _| !name.ends_with("_time") && name != "since");
            without_clock(&finding)
        })
        .collect()
}

/// The summary that was written live, but for what a recording does not have.
fn summary_in(folder: &Path) -> Option<Value> {
    let path = folder.join("leaky/latest/final_summary.json");
    Some(comparable(serde_json::from_slice(&fs::read(path).ok()?).unwrap()))
}

/// The summary of run `leaky` by recordings.
fn replayed_summary(files: &[&str]) -> Value {
    let ended = stepmem(&[&["summary", "--json", "--run", "leaky"], files].concat(), &[], b"");
    comparable(serde_json::from_str(&ended.quiet()).unwrap())
}

/// A summary without when it was made and which snapshots ranks were asked for: no recording has those.
fn comparable(mut summary: Value) -> Value {
    remove(&mut summary, "snapshots");
    remove(&mut summary, "generated_at");
    let text = summary["text"].as_str().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with("Snapshot of rank "));
    summary["text"] = lines.collect::<Vec<_>>().join("\n").into();
    let statements = summary["statements"].as_array_mut().unwrap();
    statements.retain(|statement| statement["claim"] != "snapshot_written");
    summary
}

#[test]
fn recording_gives_the_findings_and_the_summary_of_the_live_exporter() {
    let folder = Folder::new("recorded");
    let [recorded, summaries] = ["recorded", "summaries"].map(|name| folder.path(name));
    let (directory, summary_dir) = (text(&recorded), text(&summaries));
    let dirs = ["--record.directory", &directory, "--summary.dir", &summary_dir];
    let exporter = Exporter::start(&[&dirs[..], &["--holders.on-creep"]].concat());
    push_leak(&exporter, "leaky");
    // Another run and another directory of it do not matter.
    exporter.push(&Job::new(2, 20).run("../other run").records());
    let live = exporter.status();
    assert!(!findings(&live).is_empty(), "{live:#}");
    exporter.take("/v1/runs/leaky/end", &json!({"outcome": "completed"}));
    await_true("the summary", || summary_in(&summaries).is_some());
    exporter.stop();

    let expected = summary_in(&summaries).unwrap();
    let whole = [directory.as_str()];
    let alone = [text(&recorded.join(LIFE_1))];
    for files in [&whole[..], &[alone[0].as_str()]] {
        assert_eq!(differences(&replayed_summary(files), &expected), [""; 0]);
    }
    let holder = &expected.to_string();
    assert!(holder.contains("Trainer.history"), "{expected:#}");
    let explained =
        stepmem(&["explain", "--run", "leaky", "--rank", "2", &directory], &[], b"");
    assert!(explained.out.contains("499 train steps, from step 1 "), "{}", explained.out);
    assert!(explained.out.contains("MEMORY RISING, info: "), "{}", explained.out);
    let mut names: Vec<String> = fs::read_dir(&recorded)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["%2E.%2Fother%20run.life1.jsonl.zst", ".life1", LIFE_1]);
    let mode = fs::metadata(recorded.join(LIFE_1)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// An exporter of that version wrote the file, but for the last lines, which are as it writes them.
#[test]
fn recording_of_version_1_is_read_and_written_again_as_the_same_events() {
    let path = root().join("tests/data/recordings/version-1.jsonl");
    for line in fs::read_to_string(&path).unwrap().lines() {
        let mut written = Vec::new();
        let read = decode_line(line.as_bytes()).unwrap().unwrap();
        match &read {
            RecordedLine::Head(head) => head.write(&mut written),
            RecordedLine::Event(event) => event.write(&mut written),
        }
        let again = decode_line(&written).unwrap().unwrap();
        assert_eq!(format!("{again:?}"), format!("{read:?}"));
    }
    let ended = stepmem(&["replay", &text(&path)], &[], b"");
    assert!(ended.err.contains("3 events of run demo could not be written"), "{}", ended.err);
    let status: Value = serde_json::from_str(ended.out.lines().last().unwrap()).unwrap();
    let status = &status["status"];
    let figure = |pointer: &str| status.pointer(pointer).unwrap_or(&Value::Null).clone();
    assert_eq!((figure("/ranks/0/rank"), figure("/ranks/1/rank")), (json!(3), json!(5)));
    assert_eq!(figure("/ranks/1/end/error_type"), "ValueError");
    assert_eq!(figure("/acks/0/kind"), "CREEP_CONFIRMED");
    assert_eq!(figure("/gpu/xids/0/xid"), 79);
    assert_eq!(
        figure("/gpu/errors"),
        json!({"gpu_is_lost": 1, "gpu_not_found": 0, "reset_required": 0, "timeout": 1})
    );
}

/// A client that reads each eighth step only, because steps are short: what is per step is not per record.
#[test]
fn steps_that_were_not_read_count_live_and_recorded() {
    let folder = Folder::new("recorded-unread");
    let directory = text(&folder.path("recorded"));
    let exporter = Exporter::start(&["--record.directory", &directory]);
    let more = |_, _| json!({"steps": 8, "peak_reserved_bytes": 48_u64 << 30});
    let job = Job::leaking("leaky", 1..2001, MIB).every(8).more(more);
    let records = job.records();
    let n_steps =
        8 * records.iter().filter(|record| record["rank"] == 2).map(|_| 1_u64).sum::<u64>();
    for batch in records.chunks(100) {
        exporter.push(batch);
    }
    let of_leak = |name: &str| {
        let series = format!("stepmem_{name}{{run=\"leaky\",rank=\"2\",uuid=\"\"}}");
        exporter.metric(&series).unwrap_or_else(|| panic!("{series} is absent"))
    };
    assert_eq!(of_leak("rank_steps_total"), float(n_steps));
    assert_eq!(of_leak("rank_unread_steps_total"), float(n_steps / 8 * 7));
    let live = exporter.status();
    let of_rank_2 = |status: &Value| status["ranks"][2].clone();
    let is_slope = |series: &str| {
        series.starts_with("stepmem_creep_slope_bytes_per_step{")
            && series.contains("rank=\"2\"")
    };
    let slopes = exporter.scrape().into_iter().filter(|(series, _)| is_slope(series));
    let slopes: Vec<f64> = slopes.map(|(_, slope)| slope / float(MIB)).collect();
    assert!(slopes.iter().any(|slope| (slope - 1.0).abs() < 0.05), "{slopes:?} MiB a step");
    let last = of_rank_2(&live)["step"].as_u64().unwrap();
    let end = json!({"rank": 2, "outcome": "completed", "step": last + 5, "unread_steps": 5,
        "peak_allocated_bytes": 60_u64 << 30, "peak_reserved_bytes": 61_u64 << 30});
    exporter.take("/v1/runs/leaky/end", &end);
    assert_eq!(of_leak("rank_steps_total"), float(n_steps + 5));
    assert_eq!(of_leak("rank_unread_steps_total"), float(n_steps / 8 * 7 + 5));
    let live = exporter.status();
    let recent = "recent_peak_allocated_bytes";
    assert_eq!(of_rank_2(&live)[recent], 60_u64 << 30, "what came after the last record");
    exporter.stop();

    let again = replayed(&[&directory]);
    assert_eq!(findings(&again), findings(&live));
    assert_eq!(of_rank_2(&again)["unread_steps_total"], n_steps / 8 * 7 + 5);
    assert_eq!(of_rank_2(&again)[recent], 60_u64 << 30);
    let rank = &replayed_summary(&[&directory])["ranks"][2];
    assert_eq!(rank["peak_allocated"]["max_bytes"], 60_u64 << 30);
    assert_eq!(rank["peak_reserved"]["max_bytes"], 61_u64 << 30);
    assert_eq!(
        (&rank["steps"], &rank["last"]["step"]),
        (&json!(n_steps + 5), &json!(last + 5))
    );
    let explained =
        stepmem(&["explain", "--rank", "2", &directory], &[], b"").out.replace(',', "");
    let words = format!("{} train steps from step ", n_steps + 5);
    assert!(explained.contains(&words), "{explained}");
    assert!(explained.contains(&format!(" to step {} ", last + 5)), "{explained}");
}

/// The lines of one document that differ from those of the other, but for what falls with the clock.
fn differences(a: &Value, b: &Value) -> Vec<String> {
    let [a, b] = [a, b].map(|value| format!("{:#}", without_clock(value)));
    assert_eq!(a.lines().count(), b.lines().count(), "{a}\n{b}");
    let lines = a.lines().zip(b.lines()).filter(|(a, b)| a != b);
    lines.map(|(a, b)| format!("{a} | {b}")).collect()
}

fn remove(value: &mut Value, key: &str) {
    match value {
        Value::Object(fields) => {
            fields.remove(key);
            fields.values_mut().for_each(|value| remove(value, key));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| remove(value, key)),
        _ => {}
    }
}

#[test]
fn recording_gives_the_findings_that_were_raised_before_it_ended() {
    let folder = Folder::new("recorded-findings");
    let directory = text(&folder.path("recorded"));
    let exporter = Exporter::start(&["--record.directory", &directory]);
    push_leak(&exporter, "leaky");
    let live = findings(&exporter.status());
    exporter.stop();
    assert!(live.iter().any(|finding| finding["kind"] == "CREEP_EARLY"), "{live:#?}");
    assert_eq!(findings(&replayed(&[&directory])), live);
}

/// The outcomes of the windows of live memory that `explain` lists, by their lengths, as they are at last.
fn last_outcomes(explained: &str) -> BTreeSet<(u64, String)> {
    let of_live = explained.lines().skip_while(|line| !line.starts_with("Live memory: "));
    let rows = of_live.skip(2).map_while(|line| {
        let line = line.trim_start();
        let (length, outcomes) = line.split_once("  ")?;
        let last = outcomes.trim().rsplit("  ").next().unwrap_or_default();
        Some((length.parse().ok()?, last.to_owned()))
    });
    rows.collect()
}

#[test]
fn release_and_verdict_of_a_snapshot_give_what_was_live_again() {
    let full = gpu("GPU-a").compute(&[process(71, 78 * GIB)]).memory(80 * GIB, GIB, 79 * GIB);
    let fake = FakeNvml::new("recorded-release", &driver([full]));
    let folder = Folder::new("recorded-release");
    let [recorded, summaries, snapshots] =
        ["recorded", "summaries", "snapshots"].map(|name| folder.path(name));
    fs::create_dir(&snapshots).unwrap();
    fs::copy(data(&format!("vectors/{LEAK}")), snapshots.join(LEAK)).unwrap();
    let [directory, summary_dir, snapshot_dir] =
        [&recorded, &summaries, &snapshots].map(|path| text(path));
    let dirs = ["--record.directory", &directory, "--summary.dir", &summary_dir];
    let read = ["--snapshot.read-directory", &snapshot_dir];
    let exporter = fake.serve(&[&dirs[..], &read].concat());
    let has = |kind: &str| exporter.finding(kind).is_some();
    await_true("the finding of the device's process", || has("HIGH_PRESSURE"));
    push_leak(&exporter, "leaky");
    let written = json!({"run": "leaky", "rank": 2, "outcome": "written", "file": LEAK,
        "path": format!("/elsewhere/{LEAK}")});
    exporter.take("/v1/snapshots", &written);
    await_true("the verdict", || exporter.status()["snapshots"][0]["analysis"] == "analysed");
    exporter.take("/v1/nvml/release", &json!({"for_seconds": 3600}));
    await_true("the end of what the device showed", || !has("HIGH_PRESSURE"));

    let live = exporter.status();
    let explain = ["explain", "--run", "leaky", "--rank", "2"];
    let explained_live = exporter.asked(&explain).quiet();
    exporter.stop();

    let site = &findings(&live)[0]["evidence"]["site"];
    assert_eq!(site["verdict"], "leak", "{live:#}");
    let status = replayed(&[&directory]);
    assert_eq!(status["devices"], json!([]));
    assert_eq!(findings(&status), findings(&live));
    let expected = summary_in(&summaries).unwrap();
    assert!(expected.to_string().contains(site["at"]["file"].as_str().unwrap()));
    assert_eq!(differences(&replayed_summary(&[&directory]), &expected), [""; 0]);
    let explained = stepmem(&[&explain[..], &[&directory]].concat(), &[], b"").quiet();
    let tested = last_outcomes(&explained);
    assert!(!tested.is_empty());
    assert!(tested.is_subset(&last_outcomes(&explained_live)), "{tested:?}\n{explained_live}");
}

#[test]
fn readings_stand_with_the_run_of_their_device_and_else_in_a_file_of_their_own() {
    let gpus = |used: u64| {
        driver([
            gpu("GPU-a").compute(&[process(71, used)]).memory(80 * GIB, GIB, 79 * GIB),
            gpu("GPU-b").compute(&[process(72, 78 * GIB)]).memory(80 * GIB, GIB, 79 * GIB),
        ])
    };
    let fake = FakeNvml::new("recorded", &gpus(30 * GIB));
    let folder = Folder::new("recorded-nvml");
    let recorded = folder.path("recorded");
    let directory = text(&recorded);
    let exporter = fake.serve(&["--record.directory", &directory]);
    let fields =
        json!({"run": "llm", "rank": 0, "device": "GPU-a", "pid": 71, "total_bytes": 80 * GIB});
    (1..40).for_each(|step| exporter.push_step(&fields, step, 20 * GIB));
    let pushed = exporter.status()["time"].as_f64();
    await_true("both findings, and a reading of the run's device", || {
        let status = exporter.status();
        findings(&status).len() == 2 && status["gpu"]["last_success_time"].as_f64() > pushed
    });
    let live = exporter.status();
    exporter.stop();
    let status = replayed(&[&directory]);
    assert_eq!(findings(&status), findings(&live));
    let of_devices = |status: &Value| -> Vec<Value> {
        let devices = status["devices"].as_array().unwrap().iter();
        devices.map(|device| json!([device["uuid"], device["memory"]])).collect()
    };
    assert_eq!(of_devices(&status), of_devices(&live));
    let unpacked = |name: &str| unpacked(&recorded.join(name));
    let (run, rest) = (unpacked("llm.life1.jsonl.zst"), unpacked("+devices.life1.jsonl.zst"));
    assert!(run.contains(r#""reading":{"device":"GPU-a""#) && !run.contains("GPU-b"), "{run}");
    assert!(
        rest.contains(r#""reading":{"device":"GPU-b""#) && !rest.contains("\"step\""),
        "{rest}"
    );
}

fn unpacked(path: &Path) -> String {
    let mut text = String::new();
    let bytes = fs::read(path).unwrap();
    let mut frames = stepmem::store::zstd::ZstdFrames::new(bytes.as_slice());
    std::io::Read::read_to_string(&mut frames, &mut text).unwrap();
    text
}

/// Records 300 steps of one rank, and kills the exporter once they are on the disk.
fn killed(folder: &Folder) -> PathBuf {
    let directory = folder.path("recorded");
    let exporter = Exporter::start(&["--record.directory", &text(&directory)]);
    exporter.push(&Job::new(1, 300).run("leaky").records());
    await_written(&exporter, 300.0);
    exporter.signal("KILL");
    exporter.wait();
    directory
}

fn await_written(exporter: &Exporter, n_lines: f64) {
    exporter.await_metrics("lines on the disk", |metrics| {
        let written = metrics.get(r#"stepmem_recording_lines_total{result="written"}"#);
        written.is_some_and(|written| *written >= n_lines)
    });
}

fn summary(arguments: &[&str]) -> Ended {
    stepmem(&[&["summary", "--json"], arguments].concat(), &[], b"")
}

fn last_step(ended: &Ended) -> Value {
    let summary: Value = serde_json::from_str(&ended.out).unwrap();
    summary["ranks"][0]["last"]["step"].clone()
}

#[test]
fn recording_of_an_exporter_that_was_killed_is_read_to_its_last_whole_frame() {
    let folder = Folder::new("recorded-killed");
    let directory = killed(&folder);
    let whole = summary(&[&text(&directory)]);
    assert_eq!((whole.code, whole.err.as_str(), last_step(&whole)), (Some(0), "", json!(300)));
    // The system went down while the last frame was written.
    let path = directory.join(LIFE_1);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, [&bytes[..], &bytes[..bytes.len() / 2]].concat()).unwrap();
    let cut = summary(&[&text(&path)]);
    assert_eq!((cut.code, last_step(&cut)), (Some(0), json!(300)), "{}", cut.err);
    assert!(
        cut.err.contains("of run leaky is cut short; all complete lines were read"),
        "{}",
        cut.err
    );
}

#[test]
fn restart_on_the_same_directory_begins_files_of_its_own() {
    let folder = Folder::new("recorded-lives");
    let directory = killed(&folder);
    let before = fs::read(directory.join(LIFE_1)).unwrap();
    let exporter = Exporter::start(&["--record.directory", &text(&directory)]);
    exporter.push(&Job::new(1, 0).steps(301..600).run("leaky").records());
    exporter.stop();
    assert_eq!(fs::read(directory.join(LIFE_1)).unwrap(), before);
    let both = summary(&[&text(&directory)]);
    assert_eq!((both.code, both.err.as_str(), last_step(&both)), (Some(0), "", json!(599)));
    let second = summary(&[&text(&directory.join("leaky.life2.jsonl.zst"))]);
    assert_eq!((second.code, last_step(&second)), (Some(0), json!(599)), "{}", second.err);
}

#[test]
fn disk_without_room_is_counted_and_disturbs_no_push() {
    let folder = Folder::new("recorded-full");
    let directory = folder.path("recorded");
    // No file may be longer than 4 KiB.
    let limit = ["sh", "-c", "trap '' 25; ulimit -f 8; exec \"$@\"", "sh"];
    let exporter =
        Exporter::start_within(&limit, &["--no-nvml", "--record.directory", &text(&directory)]);
    exporter.push(&[serde_json::from_str(&record(0, 1, GIB)).unwrap()]);
    await_true("the step on the disk", || summary(&[&text(&directory)]).code == Some(0));
    exporter.push(&Job::leaking("default", 2..600, MIB).records());
    exporter.await_metrics("a failure", |metrics| {
        metrics[r#"stepmem_recording_lines_total{result="failed"}"#] > 0.0
    });
    exporter.push(&[serde_json::from_str(&record(0, 3000, GIB)).unwrap()]);
    let log = exporter.stop();
    let is_warning = |entry: &&Value| {
        entry["level"] == "WARN"
            && entry["fields"].to_string().contains("recording not written")
    };
    assert_eq!(log.iter().filter(is_warning).count(), 1, "{log:#?}");
    // What fits is whole.
    let kept = summary(&[&text(&directory)]);
    assert_eq!(kept.code, Some(0), "{}", kept.err);
}

#[test]
fn directory_that_cannot_be_written_ends_serve_and_not_a_sidecar() {
    let folder = Folder::new("recorded-no-directory");
    let file = folder.write("file", "");
    let arguments = ["serve", "--no-nvml", "--record.directory", &file];
    let refused = stepmem(&arguments, &ANY_PORTS, b"");
    refused.fails(1, &file);
    let sidecar = Exporter::start_sidecar(&["--record.directory", &file], &[]);
    exporter_records_nothing(&sidecar);
    sidecar.stop();
}

fn exporter_records_nothing(exporter: &Exporter) {
    exporter.push(&Job::new(1, 10).records());
    let metrics = exporter.scrape();
    assert!(!metrics.keys().any(|name| name.starts_with("stepmem_recording")), "{metrics:#?}");
}

#[test]
fn nothing_is_recorded_unless_it_is_asked_for() {
    let exporter = Exporter::start(&[]);
    exporter_records_nothing(&exporter);
}

#[test]
fn directory_without_a_recording_is_named() {
    let folder = Folder::new("recorded-none");
    folder.write("notes.txt", "");
    let directory = text(&folder.path("."));
    let ended = stepmem(&["replay", &directory], &[], b"");
    ended.fails(2, "the directory has no recording");
}

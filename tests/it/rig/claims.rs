//! What commands, findings and cards state, held to the texts that say it.

use serde_json::{Value, json};
use stepmem_report::summary::Summary;
use stepmem_report::{ExitGate, FailOn, GateVerdict, gate_lines};
use stepmem_types::claims::{Statement, contradictions};

use crate::rig::command::stepmem;
use crate::rig::folder::Folder;
use crate::rig::job::Job;
use crate::rig::noise::noise;
use crate::rig::schema::holds_definition;
use crate::rig::snapshot::{data, guide};
use crate::rig::snapshot_job::{files, list, states};
use crate::rig::summary::summary;
use crate::rig::units::{GIB, MIB};

const KIB: u64 = 1 << 10;

/// The JSON with a patch on it: `null` removes.
pub fn patched(of: &Value, patch: &Value) -> Value {
    let (Some(old), Some(new)) = (of.as_object(), patch.as_object()) else {
        return patch.clone();
    };
    let mut all = old.clone();
    for (key, value) in new {
        if value.is_null() {
            all.remove(key);
        } else {
            all.insert(key.clone(), patched(old.get(key).unwrap_or(&Value::Null), value));
        }
    }
    Value::Object(all)
}

/// A line of a program.
pub fn line() -> Value {
    json!({"kind": "python", "file": "/app/train.py", "line": 42, "function": "step"})
}

/// Holds statements to the text that says them, to the schema, and to each other.
pub fn told(json: &Value, text: &str) -> Vec<Statement> {
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for statement in json.as_array().unwrap() {
        holds_definition("status", "statement", statement);
        let words = statement["words"].as_str().unwrap();
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(&words), "{words:?}: {text}");
    }
    let said: Vec<Statement> = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(contradictions(&said), [], "{text}");
    said
}

/// A rank on a device, whose memory does more than be level.
pub fn on_device(n_steps: u64, more: impl Fn(u64, u64) -> u64 + 'static) -> Job {
    let live = move |rank, step| 4 * GIB + noise(rank, step, 64 * KIB) + more(rank, step);
    Job::new(1, n_steps).capacity(80 * GIB).live(live)
}

/// Holds what a command states with `--json` to its text.
pub fn answered(asked: &[&str], codes: &[i32]) -> (Value, Vec<Statement>) {
    let ended = |more: &[&str]| {
        let ended = stepmem(&[asked, more].concat(), &[], b"");
        let is_answered = codes.contains(&ended.code.unwrap()) && !ended.out.is_empty();
        assert!(is_answered, "{asked:?}: {}{}", ended.out, ended.err);
        ended.out
    };
    let json: Value = serde_json::from_str(&ended(&["--json"])).unwrap();
    let said = told(&json["statements"], &ended(&[]));
    (json, said)
}

/// The same of a command about snapshots, whose JSON has the statements of each device apart.
pub fn snapshots_answered(asked: &[&str]) -> Vec<Statement> {
    let ended = |more: &[&str]| stepmem(&[&["snapshot"], asked, more].concat(), &[], b"");
    let json: Value = serde_json::from_str(&ended(&["--json"]).done()).unwrap();
    let text = ended(&[]).done();
    let devices = json["devices"].as_array().cloned().unwrap_or_default();
    let lists = devices.iter().map(|device| &device["statements"]).chain([&json["statements"]]);
    let mut all = Vec::new();
    for list in lists.filter(|list| !list.is_null()) {
        // The text cuts the name of a line.
        let is_whole = |of: &&Value| of["claim"] != "born_leak";
        let whole = list.as_array().unwrap().iter().filter(is_whole).cloned().collect();
        told(&whole, &text);
        all.extend(serde_json::from_value::<Vec<Statement>>(list.clone()).unwrap());
    }
    all
}

pub fn of_pair(folder: &Folder, old: &Value, new: &Value) -> Vec<Statement> {
    let (old, new) =
        (folder.write("old", &old.to_string()), folder.write("new", &new.to_string()));
    let (json, said) = answered(&["compare", &old, &new], &[0, 1, 2]);
    let reasons = json["reasons"].as_array().unwrap().iter().map(|of| &of["sentence"]);
    let lists = ["notes", "incomparable"].map(|key| json[key].as_array().unwrap());
    let words: Vec<&Value> = reasons.chain(lists.into_iter().flatten()).collect();
    for words in words {
        assert!(
            said.iter().any(|of| of.words() == words.as_str().unwrap()),
            "{words}: {said:?}"
        );
    }
    // The figure in words is the new one of the metric.
    for of in &said {
        let key = of.claim().row().needs[0];
        if let Some(metric) = json["metrics"].get(key).filter(|_| of.value().is_some()) {
            assert_eq!(metric["new"].as_f64(), of.value(), "{of:?}");
        }
    }
    said
}

/// A job of some ranks, rank 1 of which leaks.
pub fn job(n_ranks: u64, steps: u64, (gib, leak): (u64, u64)) -> Value {
    let live = move |rank: u64, step| {
        let leaked = if rank == 1 { leak * step } else { 0 };
        gib * GIB + leaked + noise(rank, step + leak, 16 * MIB)
    };
    let reserved = move |rank, step| live(rank, step) + 2 * GIB;
    summary(&Job::new(n_ranks, steps).world(n_ranks).live(live).reserved(reserved).recording())
}

/// The same with a first issue that is patched.
pub fn with_issue(of: &Value, patch: &Value) -> Value {
    let mut of = of.clone();
    of["issues"][0] = patched(&of["issues"][0], patch);
    of
}

/// The same with a rank that is patched.
pub fn with_rank(of: &Value, rank: usize, patch: &Value) -> Value {
    let mut of = of.clone();
    of["ranks"][rank] = patched(&of["ranks"][rank], patch);
    of
}

pub fn leaking_at(of: &Value, number: u64) -> Value {
    let at = patched(&line(), &json!({"line": number}));
    let site = json!({"verdict": "leak", "at": at, "share_ratio": 0.9, "bytes_per_step": 7e6,
        "steps": 20, "stack": []});
    with_issue(of, &json!({"evidence": {"site": site}}))
}

/// A summary of TraceML's.
pub fn of_traceml(global: &Value) -> Value {
    let issue = json!({"kind": "BALANCED", "status": "BALANCED", "severity": "info"});
    json!({"schema_version": 1.7, "step_memory": {"diagnosis": issue, "issues": [issue],
        "global": global}})
}

pub fn compared() -> Vec<Statement> {
    let folder = Folder::new("claims-compared");
    let level = job(2, 900, (30, 0));
    let (leak, faster) = (job(2, 900, (30, 8 * MIB)), job(2, 900, (30, 16 * MIB)));
    let (short, long) = (job(2, 300, (30, 8 * MIB)), job(2, 1_800, (30, 8 * MIB)));
    let ended = |outcome: &str| {
        let end = json!({"outcome": outcome, "time": null, "step": null, "error_type": null,
            "error_message": null, "requested_bytes": null});
        with_rank(&level, 0, &json!({"state": "ended", "end": end}))
    };
    let host = |used: u64| {
        let host = json!({"sentence": "", "total_bytes": 64 * GIB, "available_bytes": 64 * GIB - used});
        with_rank(&level, 0, &json!({"host": host}))
    };
    let without_peak = |of: &Value| {
        let of = with_rank(of, 0, &json!({"peak_allocated": null}));
        with_rank(&of, 1, &json!({"peak_allocated": null}))
    };
    let nothing = summary(r#"{"rank":0,"step":1,"phase":"eval","allocated_bytes":1}"#);
    let mean = json!({"worst": {"peak_allocated_bytes": {"value": 3e10, "idx": "0"}}});
    let many = |gib| job(20, 60, (gib, 0));
    let pairs = [
        (&level, &level),
        (&level, &leak),
        (&leak, &level),
        (&leak, &with_issue(&leak, &json!({"severity": "warn"}))),
        (&leak, &faster),
        (&long, &short),
        (&leak, &long),
        (&job(2, 16, (30, 0)), &leak),
        (&ended("completed"), &ended("failed")),
        (&host(GIB), &host(32 * GIB)),
        (&without_peak(&level), &without_peak(&job(2, 900, (40, 0)))),
        (&job(4, 900, (30, 0)), &job(4, 900, (60, 0))),
        (&level, &job(3, 900, (30, 0))),
        (&level, &with_rank(&level, 0, &json!({"ooms": 2}))),
        (
            &with_rank(&level, 0, &json!({"ooms": 0})),
            &with_rank(&level, 0, &json!({"ooms": 2})),
        ),
        (&level, &nothing),
        (&level, &job(2, 16, (30, 0))),
        (&job(2, 16, (30, 0)), &job(2, 16, (30, 0))),
        (&of_traceml(&json!({})), &level),
        (&level, &of_traceml(&mean)),
        (&level, &with_rank(&level, 1, &json!({"peak_allocated": {"max_bytes": 20 * GIB}}))),
        (&level, &with_rank(&level, 1, &json!({"state": "pushing"}))),
        (&leaking_at(&leak, 1), &leaking_at(&leak, 1)),
        (&leaking_at(&leak, 1), &leaking_at(&leak, 2)),
        (&leaking_at(&leak, 1), &level),
        (&level, &leaking_at(&leak, 1)),
        (&many(30), &many(40)),
    ];
    let mut said: Vec<Statement> =
        pairs.iter().flat_map(|(old, new)| of_pair(&folder, old, new)).collect();
    let skewed = |gib| {
        let live = move |rank: u64, _| if rank == 0 { gib * GIB } else { 20 * GIB };
        summary(&Job::new(4, 400).live(live).recording())
    };
    said.extend(of_pair(&folder, &skewed(21), &skewed(40)));
    let mut lost = level.clone();
    lost["coverage"]["n_ranks_missing"] = json!(1);
    said.extend(of_pair(&folder, &level, &lost));
    said
}

/// The statements of a gate on runs, in the lines of its text.
pub fn gated(option: &str, runs: &[&Value]) -> (GateVerdict, Vec<Statement>) {
    let runs: Vec<Summary> =
        runs.iter().map(|of| serde_json::from_value((*of).clone()).unwrap()).collect();
    let option = FailOn::parse(option).unwrap();
    let read = |_: &str| {
        let baseline = job(2, 400, (30, 0));
        serde_json::from_value(baseline).map_err(|error| error.to_string())
    };
    let gate = ExitGate::new([&option].into_iter(), None, read).unwrap();
    let verdict = gate.judge(&runs.iter().collect::<Vec<_>>());
    let answer = serde_json::to_value(verdict.answer()).unwrap();
    let lines = gate_lines(&verdict);
    for sentence in answer["sentences"].as_array().unwrap() {
        assert!(lines.contains(sentence.as_str().unwrap()), "{sentence}: {lines}");
    }
    let said = told(&answer["statements"], &lines);
    (verdict, said)
}

pub fn gates() -> Vec<Statement> {
    let (leak, level) = (job(2, 900, (30, 8 * MIB)), job(2, 900, (30, 0)));
    let rising = summary(&on_device(150, |_, step| 4 * MIB * step).recording());
    let short = job(2, 16, (30, 0));
    let nothing = summary(r#"{"rank":0,"step":1,"phase":"eval","allocated_bytes":1}"#);
    let mut unlimited = with_rank(&level, 0, &json!({"pressure_ratio": null}));
    unlimited = with_rank(&unlimited, 1, &json!({"pressure_ratio": null}));
    let no_peak = json!({"peak_reserved": null, "reserved": null});
    let baseline = "peak:+7%:baseline.json";
    let all = [
        (gated("creep", &[&leak, &level]), 3),
        (gated("creep", &[&rising]), 0),
        (gated("peak:1GiB", &[&level]), 3),
        (gated(baseline, &[&job(2, 400, (60, 0))]), 3),
        (gated(baseline, &[&job(3, 400, (60, 0))]), 4),
        (gated("creep", &[&short]), 4),
        (gated("creep", &[&nothing]), 4),
        (gated("pressure", &[&unlimited]), 4),
        (gated("peak:90GiB", &[&with_rank(&level, 0, &no_peak)]), 4),
        (gated("creep", &[]), 4),
        (gated("creep", &[&level]), 0),
    ];
    let mut said = Vec::new();
    for ((verdict, of), code) in all {
        assert_eq!(verdict.exit_code(), code, "{verdict:?}");
        said.extend(of);
    }
    said
}

/// The statements on several snapshots.
pub fn several_snapshots() -> Vec<Statement> {
    let folder = Folder::new("claims-snapshots");
    let vector = |name: &str| data(&format!("vectors/{name}.pickle.gz"));
    let (before, after) = (vector("before_after.step10"), vector("before_after"));
    let diff = |files: &[&str]| snapshots_answered(&[&["diff"], files].concat());
    let mut said = diff(&[&before, &after]);
    said.extend(diff(&[&after, &before]));
    said.extend(diff(&[&before, &before]));
    let all = list(6, 0, 1);
    let series = [
        all.clone(),
        list(5, 1, 2),
        states(8, |_, _| {}),
        [0, 1, 1, 2].map(|state| all[state].clone()).to_vec(),
    ];
    for states in series {
        let files = files(&folder, &states);
        said.extend(diff(&files.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    let ranks = |files: &[&str]| snapshots_answered(&[&["ranks"], files].concat());
    let of = |rank: u8| vector(&format!("ranks_leak.rank{rank}"));
    let (first, second, third, fourth) = (of(0), of(1), of(2), of(3));
    said.extend(ranks(&[&first, &second, &third, &fourth]));
    said.extend(ranks(&[&first, &first, &first]));
    said.extend(ranks(&[&first, "/nowhere/at/all"]));
    said.extend(ranks(&[&first, &first]));
    said.extend(ranks(&[&guide("ddp_rank0"), &guide("ddp_rank2")]));
    said
}

/// The statements on the events of snapshots.
pub fn traces() -> Vec<Statement> {
    let vector = |name: &str| data(&format!("vectors/{name}.pickle.gz"));
    let (python, python_2) = (vector("leak_python_stacks"), vector("style_py2"));
    let events = |asked: &[&str]| snapshots_answered(&[&["events"], asked].concat());
    let mut said = events(&[&python]);
    for file in [&python, &python_2] {
        said.extend(events(&[file, "--reuse"]));
        said.extend(events(&[file, "--at", "peak"]));
        said.extend(events(&[file, "--line", "nowhere.py:1"]));
        said.extend(events(&[file, "--address", "0x1"]));
        said.extend(events(&[file, "--reuse", "--address", "0x1"]));
    }
    said
}

/// The statements of `judge` on series.
pub fn series() -> Vec<Statement> {
    let folder = Folder::new("claims-series");
    let row = |n: u32, bytes: u64| format!("{},{bytes}\n", 1_795_158_000 + 30 * n);
    let of = |n_rows: u32| {
        let rows = (0..n_rows).map(|n| row(n, 20 * GIB + u64::from(n % 7) * MIB));
        format!("time,memory\n{}", rows.collect::<String>())
    };
    let (long, short) =
        (folder.write("long.csv", &of(400)), folder.write("short.csv", &of(12)));
    let judged = |asked: &[&str]| answered(&[&["judge"], asked].concat(), &[0, 1]).1;
    let mut said = judged(&[&long]);
    said.extend(judged(&[&long, &short, "--capacity", "80GiB", "--unit", "B"]));
    said
}

//! `stepmem snapshot` on the programs of the two guides that users have read: every question that they answer by hand has
//! its answer by name, with or without annotations in the file.

use std::collections::BTreeMap;
use std::fs::read_to_string;

use serde_json::{Value, json};

use crate::rig::command::{stepmem_in, words};
use crate::rig::folder::root;
use crate::rig::json::has;
use crate::rig::snapshot::{answer, data, guide};

/// The only device of a guide's file.
fn device(name: &str) -> Value {
    answer(&["show", &guide(name), "--json"])["devices"][0].clone()
}

/// The page of a guide's file, its lines joined.
fn page(name: &str) -> String {
    words(&stepmem_in(&root(), &["snapshot", "show", &guide(name)]).done())
}

/// The programs with mixed precision: ten steps, or five; the optimizer's first is skipped.
const AMP: [(&str, u64); 6] = [
    ("amp1", 5),
    ("amp1_10", 10),
    ("amp1_all", 5),
    ("amp1_nomarks", 5),
    ("amp24", 10),
    ("amp2", 5),
];

#[test]
fn a_step_is_an_iteration_of_the_loop_with_marks_or_without() {
    for (name, n_steps) in AMP {
        let device = device(name);
        assert_eq!(device["history"]["steps"], n_steps, "{name}");
        let steps = device["steps"].as_array().unwrap();
        let numbers: Vec<u64> =
            steps.iter().map(|step| step["step"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (0..n_steps).collect::<Vec<u64>>(), "{name}");
        assert_eq!(
            device["peak"]["step"], 2,
            "{name}: the first step with the optimizer's state"
        );
    }
}

#[test]
fn micro_batches_are_passes_of_one_step() {
    let device = device("accum");
    let steps = device["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 10);
    assert!(steps.iter().all(|step| step["backward_passes"] == 4), "{steps:?}");
}

/// The notes of a kind.
fn notes(device: &Value, kind: &str) -> Vec<Value> {
    let notes = device["notes"].as_array().unwrap().iter();
    notes.filter(|note| note["kind"] == kind).cloned().collect()
}

/// A note's bytes in MiB, its steps and its line.
fn figures(note: &Value) -> (Option<u64>, Vec<u64>, Option<u64>) {
    let steps = serde_json::from_value(note["in_steps"].clone()).unwrap_or_default();
    (note["bytes"].as_u64().map(|bytes| bytes >> 20), steps, note["location"]["line"].as_u64())
}

#[test]
fn notes_name_the_step_the_line_and_the_bytes() {
    for (name, n_steps) in AMP {
        let device = device(name);
        let of = |kind: &str| -> Vec<_> { notes(&device, kind).iter().map(figures).collect() };
        let before_last: Vec<u64> = (0..n_steps - 1).collect();
        let weights = if name == "amp2" { 2 } else { 1 };
        assert_eq!(of("optimizer_skipped"), [(None, vec![0], Some(37))], "{name}");
        let state = (Some(128 * weights), vec![1], Some(37));
        assert_eq!(of("lazy_optimizer_state"), [state], "{name}");
        let [data, output] = [(64, 31), (32, 12)]
            .map(|(bytes, line)| (Some(bytes), before_last.clone(), Some(line)));
        assert_eq!(of("lingering_output"), [data, output], "{name}");
        let gradients = 64 * weights;
        assert_eq!(
            of("gradients_through_forward"),
            [(Some(gradients), before_last, Some(35))],
            "{name}"
        );
        assert_eq!(of("stale_gradient"), [(Some(gradients), vec![0], Some(35))], "{name}");
        let all: Vec<u64> = (0..n_steps).collect();
        let casts = [(32, Some(12)), (32 * weights, Some(12)), (gradients, None)]
            .map(|(bytes, line)| (Some(bytes), all.clone(), line));
        assert_eq!(of("casts"), casts, "{name}");
    }
}

#[test]
fn notes_are_sentences_with_the_step_and_the_line() {
    let page = page("amp24");
    for part in [
        "10 steps without marks, each begun at amp_demo.py:31",
        "optimizer.step() was not called in step 0",
        "made its state in step 1 at amp_demo.py:37",
        "What amp_demo.py:12 makes in a step lives in the next until amp_demo.py:33 replaces it",
        "The gradients of steps 0 to 8 live through the forward pass of the next step, until amp_demo.py:35 frees them",
        "are freed by amp_demo.py:35 in step 1 (event 47), after its forward pass",
        "copies inputs to half precision at amp_demo.py:12",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn a_loop_without_mixed_precision_or_skipped_steps_has_no_note_of_them() {
    for name in ["accum", "ba_leak.after", "ddp_rank0", "oomloop.oom", "zero1_rank0"] {
        let device = device(name);
        for kind in
            ["optimizer_skipped", "gradients_through_forward", "stale_gradient", "casts"]
        {
            assert_eq!(notes(&device, kind), Vec::<Value>::new(), "{name}");
        }
    }
}

#[test]
fn what_is_copied_in_a_step_is_input() {
    for name in ["amp1", "amp1_nomarks", "accum"] {
        let device = device(name);
        let input = device["categories_at_end"]["input"].as_u64().unwrap();
        assert_eq!(input, if name == "accum" { 1 << 20 } else { 64 << 20 }, "{name}");
    }
}

#[test]
fn a_leak_is_the_cause_and_pieces_its_consequence() {
    let failure = device("oomloop.oom")["oom"][0].clone();
    let why = &failure["root_cause"];
    has(why, &json!({"cause": "leak", "location": {"line": 12}}));
    let (absent, free) = (why["bytes"].as_u64().unwrap(), why["free_bytes"].as_u64().unwrap());
    assert!(absent > 1 << 30, "{absent}");
    let pieces = failure["eligible_free_bytes"].as_u64().unwrap();
    assert_eq!(free, absent + pieces + failure["device_free_bytes"].as_u64().unwrap());
    let place = &failure["place"];
    assert_eq!((&place["step"], &place["phase"]), (&139.into(), &"backward".into()));
    assert_eq!(place["mirrors"]["line"], 6, "the weight, by its size");
    let page = page("oomloop.oom");
    let (_, page) = page.split_once("Out of memory").unwrap();
    let (page, _) = page.split_once('%').unwrap();
    assert!(page.contains("in the backward pass of step 139"), "{page}");
    assert!(page.contains("Leak: without the 1.07 GiB that workspace/train.py:12 <module> leaked, 1.14 GiB would have been free."), "{page}");
    assert!(!page.contains("no stack recorded"), "{page}");
}

#[test]
fn what_is_alive_between_two_passes_is_one_command() {
    let at = |moment: &str| {
        let file = guide("accum");
        let ended = stepmem_in(&root(), &["snapshot", "show", &file, "--at", moment]);
        (ended.code, ended.out, ended.err)
    };
    let (_, out, _) = at("1.1");
    assert!(
        out.contains("Who holds the memory after backward pass 1 of step 1 (257 MiB)"),
        "{out}"
    );
    assert!(out.contains("    328 MiB       4\n"), "{out}");
    let (_, out, _) = at("3.zero_grad");
    assert!(
        out.contains("Who holds the memory when step 3 calls zero_grad (257 MiB)"),
        "{out}"
    );
    let (code, _, error) = at("1.5");
    assert_eq!(code, Some(2));
    assert!(error.contains("--at: no backward pass 5 in step 1, it has 4"), "{error}");
    let (code, _, error) = at("1.x");
    assert_eq!(code, Some(2));
    assert!(error.contains("N.zero_grad"), "{error}");
}

#[test]
fn two_ranks_are_compared_by_line_and_category() {
    let ranks = |a: &str, b: &str| answer(&["ranks", &guide(a), &guide(b), "--json"]);
    let leaking = ranks("ddp_rank0", "ddp_rank2");
    let first = &leaking["differences"][0];
    has(first, &json!({"site": {"line": 12}, "bytes": serde_json::json!([0, 120 << 20])}));
    let categories = leaking["category_differences"].as_array().unwrap().iter();
    let sum: i64 = categories.map(|row| row["difference_bytes"].as_i64().unwrap()).sum();
    assert_eq!(sum, 120 << 20, "{leaking}");
    assert_eq!(leaking["worst_rank"], Value::Null, "two do not tell which is odd");
    let equal = ranks("zero1_rank0", "zero1_rank1");
    assert_eq!(equal["differences"], serde_json::json!([]));
    assert_eq!(equal["category_differences"], serde_json::json!([]));
}

#[test]
fn equal_files_are_said_to_be_equal() {
    let diff = |a: &str, b: &str| answer(&["diff", &guide(a), &guide(b), "--json"]);
    let kinds = |diff: &Value| -> Vec<String> {
        let notes = diff["devices"][0]["notes"].as_array().unwrap().iter();
        notes.map(|note| note["kind"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&diff("amp1", "amp1")), ["equal"]);
    let grown = diff("ba_leak.before", "ba_leak.after");
    assert_eq!(kinds(&grown), Vec::<String>::new());
    assert_eq!(grown["devices"][0]["new_blocks"], 20);
    assert_eq!(grown["devices"][0]["sites"][0]["line"], 20);
}

#[test]
fn skipped_steps_are_found_in_other_programs_too() {
    let programs: [(&str, u64, &[u64], u64); 4] = [
        ("accum4_skip1", 8, &[1], 4),
        ("plain_skip1", 7, &[1], 1),
        ("sgd_skip0_3", 8, &[0, 3], 1),
        ("alloc_skip0_1", 9, &[0, 1], 1),
    ];
    for (name, n_steps, skipped, n_passes) in programs {
        let device = device(name);
        assert_eq!(device["history"]["steps"], n_steps, "{name}");
        let steps = device["steps"].as_array().unwrap();
        assert_eq!(u64::try_from(steps.len()).unwrap(), n_steps, "{name}");
        assert!(
            steps.iter().all(|step| step["backward_passes"] == n_passes),
            "{name}: {steps:?}"
        );
        let (_, found, _) = figures(&notes(&device, "optimizer_skipped")[0]);
        assert_eq!(found, skipped, "{name}");
    }
}

#[test]
fn a_leak_in_the_shadow_of_what_turns_over_is_found() {
    let folder = std::fs::read_dir(data("shadows")).unwrap();
    let mut names: Vec<String> =
        folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names.len(), 18);
    for name in names {
        let file = data(&format!("shadows/{name}"));
        let leak = answer(&["show", &file, "--json"])["devices"][0]["leak"].clone();
        let lines: Vec<u64> = leak["sites"]
            .as_array()
            .unwrap()
            .iter()
            .map(|site| site["line"].as_u64().unwrap())
            .collect();
        if name.contains(".leak.") {
            assert_eq!(leak["verdict"], "leak", "{name}");
            assert_eq!(lines, [19], "{name}: trace.py:19 alone");
        } else {
            assert_eq!((&leak["verdict"], lines), (&"none".into(), vec![]), "{name}");
        }
    }
}

#[test]
fn all_blocks_that_stay_are_counted() {
    let leak = device("ring_buffer_4")["leak"].clone();
    assert_eq!(leak["verdict"], "leak");
    let site = &leak["sites"][0];
    has(site, &json!({"line": 19, "survivors": 36, "allocations": 36}));
}

#[test]
fn a_larger_batch_is_judged_by_what_scales() {
    let show = |file: &str, more: &[&str]| {
        answer(&[&["show", file, "--json"], more].concat())["devices"][0]["fit"].clone()
    };
    let fit = show(&guide("amp1"), &["--batch-size", "4096", "--capacity", "2GiB"]);
    let mib = |value: &Value| value.as_u64().unwrap() >> 20;
    assert_eq!((fit["step"].as_u64(), mib(&fit["peak_bytes"])), (Some(2), 480), "{fit}");
    // The weight, its copy in half precision, its gradient, Adam's state: not of the batch.
    assert_eq!(mib(&fit["fixed_bytes"]), 288, "{fit}");
    assert_eq!(mib(&fit["scaling_bytes"]["low"]), 192, "{fit}");
    let largest = &fit["largest_batch_size"];
    assert!(largest["low"].as_u64() > Some(4096), "{fit}");
    assert!(largest["low"].as_u64() < largest["high"].as_u64(), "{fit}");
    // Without the gradients of the step before, backward reaches the same peak.
    assert_eq!(fit["savings"], json!([]));
    let fit = show(&data("vectors/style_py4.pickle.gz"), &[]);
    assert_eq!(fit["bytes_per_sample"], Value::Null);
    assert_eq!(fit["savings"][0]["location"]["function"], "Block.forward");
    // Nothing is known of what a file without stacks is for.
    assert_eq!(show(&data("vectors/no_stacks.pickle.gz"), &[]), Value::Null);
}

/// Recordings of a real device, with what PyTorch counted at the same moment.
#[test]
fn recordings_of_a_real_device_add_up_to_what_pytorch_counts() {
    let text = read_to_string(root().join("tests/data/snapshots/h100/memory_stats.json"));
    let stats: BTreeMap<String, Value> = serde_json::from_str(&text.unwrap()).unwrap();
    assert_eq!(stats.len(), 9);
    for (name, stats) in stats {
        let device = of_h100(&name);
        for figure in ["reserved", "active", "allocated", "requested"] {
            let figure = format!("{figure}_bytes");
            assert_eq!(device["totals"][&figure], stats[&figure], "{name} {figure}");
        }
        if name != "ba.before" {
            assert_eq!(device["peak"]["active_bytes"], stats["peak_active_bytes"], "{name}");
        }
    }
}

#[test]
fn recordings_of_a_real_device_are_answered_as_the_guides_answer_them() {
    let line = |note: &Value| note["location"]["line"].as_u64();
    for (name, n_steps) in [("amp1", 5), ("amp1_10", 10), ("amp1_all", 5), ("amp2", 4)] {
        let device = of_h100(name);
        assert_eq!(device["history"]["steps"], n_steps, "{name}");
        let notes = |kind: &str| {
            let notes = device["notes"].as_array().unwrap().iter();
            notes.filter(|note| note["kind"] == kind).cloned().collect::<Vec<_>>()
        };
        assert_eq!(notes("optimizer_skipped")[0]["in_steps"], json!([0]), "{name}");
        let state = &notes("lazy_optimizer_state")[0];
        assert_eq!((&state["in_steps"], line(state)), (&json!([1]), Some(55)), "{name}");
        assert_eq!(notes("stale_gradient")[0]["in_steps"], json!([0]), "{name}");
        assert!(notes("lingering_output").iter().any(|note| line(note) == Some(49)), "{name}");
        assert!(!notes("casts").is_empty(), "{name}");
        // What stays is the workspace of cuBLAS.
        assert_eq!(notes("gradients_kept"), [""; 0], "{name}");
    }
    let out_of_memory = of_h100("oomloop");
    let failed = &out_of_memory["oom"][0];
    has(failed, &json!({"root_cause": {"cause": "leak", "location": {"line": 84}}}));
    for (name, blamed) in [("oomloop", 84), ("ring", 130), ("ba.after", 107)] {
        assert_eq!(of_h100(name)["leak"]["blame"]["line"], blamed, "{name}");
    }
}

fn of_h100(name: &str) -> Value {
    answer(&["show", &data(&format!("h100/{name}.pickle.gz")), "--json"])["devices"][0].clone()
}

//! `stepmem snapshot` on files whose truth is known: simulated jobs in `tests/data/snapshots/vectors`, and real ones.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::rig::folder::{Folder, text};
use crate::rig::json::has;
use crate::rig::snapshot::{answer, data};

/// Bytes, tensor bytes and blocks by site.
type Table = BTreeMap<String, [u64; 3]>;

fn vector(name: &str) -> String {
    data(&format!("vectors/{name}.pickle.gz"))
}

fn truths() -> BTreeMap<String, Value> {
    serde_json::from_str(&std::fs::read_to_string(data("truth.json")).unwrap()).unwrap()
}

fn show(name: &str) -> Value {
    answer(&["show", &vector(name), "--json"])
}

/// A site as the truth names it.
fn key(site: &Value) -> String {
    match site["kind"].as_str().unwrap() {
        "python" => {
            let file = site["file"].as_str().unwrap().rsplit(['/', '\\']).next().unwrap();
            format!("{file}:{}:{}", site["line"], site["function"].as_str().unwrap())
        }
        "backward" => format!("<autograd>:{}", site["node"].as_str().unwrap()),
        "cpp" => "<cpp>".to_owned(),
        "no_frames" => "<no frames>".to_owned(),
        "before_recording" => "<before recording>".to_owned(),
        kind => panic!("kind {kind}"),
    }
}

fn table(sites: &Value) -> Table {
    let mut table = Table::new();
    for site in sites.as_array().unwrap() {
        let row = table.entry(key(site)).or_default();
        for (sum, field) in row.iter_mut().zip(["bytes", "requested_bytes", "blocks"]) {
            *sum += site[field].as_u64().unwrap();
        }
    }
    table
}

fn is_near(expected: &Value, got: &Value, part: f64) -> bool {
    let (expected, got) = (expected.as_f64().unwrap(), got.as_f64().unwrap());
    (got - expected).abs() <= part * expected.abs() + 1.0
}

#[test]
fn every_total_and_line_is_as_the_allocator_knows_it() {
    for (name, truth) in truths() {
        for (want, got) in pairs(&name, &truth) {
            for (field, value) in want["totals"].as_object().unwrap() {
                assert_eq!(&got["totals"][field], value, "{name}: {field}");
            }
            for field in ["events", "unmatched_frees"] {
                assert_eq!(got["history"][field], want["history"][field], "{name}: {field}");
            }
            assert_eq!(got["history"]["violations"], 0, "{name}");
            let expected: Table = serde_json::from_value(want["sites_at_end"].clone()).unwrap();
            assert_eq!(table(&got["sites_at_end"]), expected, "{name}");
        }
    }
}

#[test]
fn peaks_are_found_and_their_lines_add_up() {
    for (name, truth) in truths() {
        for (want, got) in pairs(&name, &truth) {
            let (want, peak) = (&want["peak"], &got["peak"]);
            assert!(
                is_near(&want["active_bytes"], &peak["active_bytes"], 0.01),
                "{name}: {peak}"
            );
            let sum: u64 = table(&got["sites_at_peak"]).values().map(|row| row[0]).sum();
            assert_eq!(peak["active_bytes"], sum, "{name}");
            if got["history"]["unmatched_frees"] == 0 {
                let is_equal = peak["event"] == want["event"]
                    || want["near"].as_array().unwrap().contains(&peak["event"]);
                assert!(is_equal, "{name}: {peak}");
            }
        }
    }
}

#[test]
fn leaks_are_found_and_nothing_else_is() {
    for (name, truth) in truths() {
        for (want, got) in pairs(&name, &truth) {
            let (want, got) = (&want["leak"], &got["leak"]);
            let is_unsure = want["firm"] == false && got["verdict"] == "insufficient_history";
            assert!(is_unsure || got["verdict"] == want["verdict"], "{name}: {got}");
            if got["verdict"] != "leak" {
                continue;
            }
            assert_eq!(key(&got["blame"]), want["blame"], "{name}");
            let range = want["bytes_per_step_range"].as_array().unwrap();
            let rate = got["bytes_per_step"].as_f64().unwrap();
            let (low, high) = (range[0].as_f64().unwrap(), range[1].as_f64().unwrap());
            assert!((0.95 * low..=1.05 * high).contains(&rate), "{name}: {rate}");
            for site in got["sites"].as_array().unwrap() {
                assert!(!want["sites"][key(site)].is_null(), "{name}: {site}");
            }
        }
    }
}

#[test]
fn fragmentation_and_failed_allocations_are_exact() {
    for (name, truth) in truths() {
        let part = if truth["unwound"] == true { 0.01 } else { 0.0 };
        for (want, got) in pairs(&name, &truth) {
            for field in
                ["internal_bytes", "releasable_bytes", "stranded_bytes", "largest_free_bytes"]
            {
                assert_eq!(got["fragmentation"][field], want["fragmentation"][field], "{name}");
            }
            let (want, got) = (want["oom"].as_array().unwrap(), got["oom"].as_array().unwrap());
            assert_eq!(want.len(), got.len(), "{name}");
            for (want, got) in want.iter().zip(got) {
                assert_eq!(got["cause"], want["cause"], "{name}");
                assert_eq!(key(&got["site"]), want["site"], "{name}");
                for field in ["event", "requested_bytes", "reserved_bytes", "device_free_bytes"]
                {
                    assert_eq!(got[field], want[field], "{name}: {field}");
                }
                for field in ["active_bytes", "largest_free_bytes", "eligible_free_bytes"] {
                    let slack = part * want["reserved_bytes"].as_f64().unwrap();
                    let gap =
                        (got[field].as_f64().unwrap() - want[field].as_f64().unwrap()).abs();
                    assert!(gap <= slack, "{name}: {field} {gap}");
                }
            }
        }
    }
}

#[test]
fn notes_answer_what_the_job_did() {
    for (name, truth) in truths() {
        for (want, got) in pairs(&name, &truth) {
            let kinds = |kind: &str| -> Vec<&Value> {
                let notes = got["notes"].as_array().unwrap().iter();
                notes.filter(|note| note["kind"] == kind).collect()
            };
            for (kind, expected) in want["notes"]["expect"].as_object().unwrap() {
                assert!(!kinds(kind).is_empty(), "{name}: {kind}");
                if !expected["bytes"].is_null() {
                    let sum: u64 = kinds(kind).iter().filter_map(|n| n["bytes"].as_u64()).sum();
                    assert!(
                        is_near(&expected["bytes"], &sum.into(), 0.05),
                        "{name}: {kind} {sum}"
                    );
                }
            }
            for kind in want["notes"]["absent"].as_array().unwrap() {
                assert!(kinds(kind.as_str().unwrap()).is_empty(), "{name}: {kind}");
            }
        }
    }
}

#[test]
fn categories_follow_lifetimes() {
    for (name, truth) in truths() {
        for (want, got) in pairs(&name, &truth) {
            let Some(categories) = want["categories_at_end"].as_object() else { continue };
            let active = want["totals"]["active_bytes"].as_f64().unwrap();
            let other = want["uncategorised_bytes"].as_f64().unwrap();
            for (category, size) in categories {
                let (size, got) = (
                    size.as_f64().unwrap(),
                    got["categories_at_end"][category].as_f64().unwrap(),
                );
                let range = 0.95 * size - 0.01 * active..=1.05 * size + other + 0.01 * active;
                assert!(range.contains(&got), "{name}: {category} {got} is not near {size}");
            }
        }
    }
}

/// The devices of a truth with those of the answer.
fn pairs(name: &str, truth: &Value) -> Vec<(Value, Value)> {
    let answer = show(name);
    let devices = |value: &Value| value["devices"].as_array().unwrap().clone();
    let (want, got) = (devices(truth), devices(&answer));
    assert_eq!(want.len(), got.len(), "{name}");
    want.into_iter().zip(got).collect()
}

#[test]
fn byte_styles_of_one_job_have_one_answer() {
    let answers =
        ["style_py2", "style_py4", "style_cpp"].map(|name| show(name)["devices"].clone());
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}

#[test]
fn growth_between_two_files_is_told_by_line_and_block() {
    let truths = truths();
    let (before, after) = (&truths["before_after.step10"], &truths["before_after"]);
    let diff =
        answer(&["diff", &vector("before_after.step10"), &vector("before_after"), "--json"]);
    let got = &diff["devices"][0];
    let end = |truth: &Value| truth["devices"][0]["totals"]["active_bytes"].as_i64().unwrap();
    has(got, &json!({"growth_bytes": end(after) - end(before), "same_process": true}));
    let sites = got["sites"].as_array().unwrap();
    let sum: i64 = sites.iter().map(|site| site["growth_bytes"].as_i64().unwrap()).sum();
    assert_eq!(got["growth_bytes"], sum);
    assert_eq!(key(&sites[0]), "train.py:126:train_step");
    let serials = |truth: &Value| -> Vec<u64> {
        serde_json::from_value(truth["devices"][0]["live_serials"].clone()).unwrap()
    };
    let (old, new) = (serials(before), serials(after));
    assert_eq!(got["new_blocks"], new.iter().filter(|serial| !old.contains(serial)).count());
    assert_eq!(got["gone_blocks"], old.iter().filter(|serial| !new.contains(serial)).count());
}

#[test]
fn leaking_rank_stands_out_and_unreadable_files_are_rows() {
    let folder = Folder::new("snapshot-ranks");
    let missing = text(&folder.path("ranks_leak.rank9.pickle"));
    let empty = folder.write("ranks_leak.rank7.pickle", "");
    let files: Vec<String> = (0..4)
        .map(|rank| vector(&format!("ranks_leak.rank{rank}")))
        .chain([empty, missing])
        .collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let answer = answer(&[&["ranks", "--json"][..], &files].concat());
    assert_eq!(answer["worst_rank"], 2);
    for entry in answer["stand_out"].as_array().unwrap() {
        assert_eq!(
            (&entry["rank"], key(&entry["site"]).as_str()),
            (&2.into(), "train.py:126:train_step")
        );
    }
    let rows = answer["ranks"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    assert!(rows[4]["error"].as_str().unwrap().contains("empty"), "{}", rows[4]);
    assert!(rows[5]["error"].as_str().unwrap().contains("No such file"), "{}", rows[5]);
    assert_eq!(rows[3]["error"], Value::Null);
}

#[test]
fn growth_of_a_short_window_leaves_out_its_first_step() {
    for name in ["short_6_steps", "short_7_steps"] {
        let answer = show(name);
        let leak = &answer["devices"][0]["leak"];
        let ratio = leak["explained_ratio"].as_f64().unwrap();
        // A handful of steps: what blocks happen to keep beyond their requests is noise.
        assert!((0.7..1.4).contains(&ratio), "{name}: {leak}");
    }
}

#[test]
fn real_files_add_up() {
    let cases = [
        ("LfieLike__SketchKV2__my_snapshot", 1, true),
        ("silmont2000__assignment2-systems__mem_snapshot", 97, false),
        ("silmont2000__assignment2-systems__memory_forward_bf16_128", 2811, false),
    ];
    for (name, n_events, is_overflowed) in cases {
        let answer = answer(&["show", &data(&format!("real/{name}.pickle")), "--json"]);
        let device = &answer["devices"][0];
        let sum: u64 = table(&device["sites_at_end"]).values().map(|row| row[0]).sum();
        assert_eq!(device["totals"]["active_bytes"], sum, "{name}");
        assert_eq!(device["history"]["violations"], 0, "{name}");
        assert_eq!(device["history"]["events"], n_events, "{name}");
        assert_eq!(device["history"]["overflowed"] == true, is_overflowed, "{name}");
        assert_ne!(device["leak"]["verdict"], "leak", "{name}");
    }
}

#[test]
fn nothing_is_a_gradient_where_nothing_has_a_stack() {
    let device = &show("no_stacks")["devices"][0];
    let categories = &device["categories_at_end"];
    has(categories, &json!({"gradient": 0, "unknown": device["totals"]["active_bytes"]}));
}

#[test]
fn a_buffer_made_anew_and_larger_is_a_leak_and_not_an_output_that_lingers() {
    let device = &show("cat0")["devices"][0];
    let blame = &device["leak"]["blame"];
    let name = format!("{}:{}", blame["file"].as_str().unwrap(), blame["line"]);
    let name = name.rsplit('/').next().unwrap();
    let notes = device["notes"].as_array().unwrap().iter();
    let lingering: Vec<&str> = notes
        .filter(|note| note["kind"] == "lingering_output")
        .map(|note| note["text"].as_str().unwrap())
        .collect();
    assert!(lingering.iter().all(|text| !text.contains(name)), "{name}: {lingering:?}");
    assert_eq!(lingering.len(), 1, "the step's output");
}

//! `stepmem snapshot events`: every allocation and free in order, what ended it, whose memory it took, what is alive.

use std::fs;

use serde_json::{Value, json};
use stepmem_snapshot::{Action, Device, Event, Snapshot, write};

use crate::rig::command::{Ended, stepmem};
use crate::rig::folder::{Folder, root, text};
use crate::rig::json::has;
use crate::rig::schema::{holds, schema};
use crate::rig::snapshot::{answer, data, guide};

/// The limit of a page, in columns.
const COLUMNS: usize = 80;

/// Every snapshot of the tests.
fn files() -> Vec<String> {
    let folders = ["guides", "vectors", "real"];
    let mut files: Vec<String> = folders
        .iter()
        .flat_map(|folder| {
            fs::read_dir(root().join("tests/data/snapshots").join(folder)).unwrap()
        })
        .map(|entry| text(&entry.unwrap().path()))
        .filter(|path| path.contains(".pickle"))
        .collect();
    files.sort();
    assert!(files.len() >= 50, "{files:?}");
    files
}

fn devices(path: &str, arguments: &[&str]) -> Vec<Value> {
    let answer = answer(&[&["events", path, "--json"], arguments].concat());
    answer["devices"].as_array().unwrap().clone()
}

/// The events of the only device of a file.
fn events(path: &str, arguments: &[&str]) -> Vec<Value> {
    let devices = devices(path, arguments);
    assert_eq!(devices.len(), 1);
    devices[0]["events"].as_array().unwrap().clone()
}

fn numbers(events: &[Value]) -> Vec<u64> {
    events.iter().map(|event| event["event"].as_u64().unwrap()).collect()
}

fn sum(values: &[Value], figure: &str) -> u64 {
    values.iter().map(|value| value[figure].as_u64().unwrap()).sum()
}

fn page(path: &str, arguments: &[&str]) -> Ended {
    stepmem(&[&["snapshot", "events", path], arguments].concat(), &[], b"")
}

#[test]
fn an_output_is_followed_from_its_allocation_to_its_free() {
    // The guide's question: why is `output` of step 0 not freed until step 1?
    let path = guide("amp1");
    let device = devices(&path, &["--from", "9", "--to", "9"]).remove(0);
    let event = &device["events"][0];
    assert_eq!((&event["event"], &event["action"]), (&json!(9), &json!("alloc")));
    let block = &event["block"];
    assert_eq!(block["requested_bytes"], 32 << 20);
    assert_eq!(block["allocated"]["step"], 0);
    assert_eq!((&block["freed"]["event"], &block["freed"]["step"]), (&json!(42), &json!(1)));
    assert_eq!((&block["lifetime_events"], &block["lifetime_steps"]), (&json!(33), &json!(1)));
    assert_eq!(block["freed_by"]["kind"], "python");
    assert_eq!(block["freed_by"]["location"]["line"], 33, "the loop's variable is assigned");
    let stack = |name: &str| {
        let place = usize::try_from(block[name]["stack"].as_u64().unwrap()).unwrap();
        let frames = device["stacks"][place].as_array().unwrap();
        frames.iter().map(|frame| frame["line"].as_u64().unwrap()).collect::<Vec<u64>>()
    };
    assert_eq!((stack("allocated"), stack("freed")), (vec![12, 33, 70], vec![33, 70]));
}

#[test]
fn what_autograd_frees_and_what_stays_is_named() {
    let kinds = |path: &str, event: usize| {
        let events = events(path, &["--from", &event.to_string(), "--to", &event.to_string()]);
        let ending = events[0]["block"]["freed_by"].clone();
        (ending["kind"].as_str().unwrap().to_owned(), ending["node"].clone())
    };
    // The loss's input, given back in the backward pass: by name where there are C++ frames.
    assert_eq!(kinds(&guide("amp1"), 11), ("backward".to_owned(), Value::Null));
    let (kind, node) = kinds(&guide("amp1_all"), 11);
    assert_eq!(kind, "backward");
    assert!(node.as_str().unwrap().ends_with("Backward0"), "{node}");
    assert_eq!(kinds(&guide("amp1"), 1).0, "end_of_window");
}

#[test]
fn a_free_without_a_stack_lies_between_lines_that_have_one() {
    let folder = Folder::new("snapshot-events-alloc");
    let mut snapshot = Snapshot::empty();
    let lines = [12, 31].map(|line| snapshot.stack(&[("/srv/train.py", line, "main")]));
    for (action, stack, place) in [
        (Action::Alloc, lines[0], 1),
        (Action::Alloc, lines[1], 2),
        (Action::FreeRequested, 0, 1),
        (Action::FreeCompleted, 0, 1),
        (Action::Alloc, lines[1], 3),
        (Action::FreeCompleted, 0, 2),
        (Action::Alloc, lines[0], 1),
    ] {
        let address = place << 40;
        let event = Event { address, size: 512, time_us: 5, stack, action, ..Event::default() };
        snapshot.events.push(event);
    }
    snapshot.devices.push(Device { index: 0, events: (0, 7), ..Device::default() });
    let path = folder.path("alloc.pickle");
    fs::write(&path, write(&snapshot)).unwrap();
    let path = text(&path);
    assert_eq!(devices(&path, &[])[0]["frees_have_stacks"], false);
    let events = events(&path, &[]);
    assert_eq!(numbers(&events), [0, 1, 2, 4, 5, 6], "a completed free is part of its request");
    let ending = |event: usize| {
        let ending = &events[event]["block"]["freed_by"];
        (ending["kind"].as_str().unwrap(), ending["text"].as_str().unwrap())
    };
    let between = "freed after srv/train.py:31 main, before srv/train.py:31 main";
    assert_eq!(ending(0), ("between", between));
    assert_eq!(ending(1), ("replaced", "freed once its line had made the next"));
    assert_eq!(ending(3), ("lost", "its end is not in the trace"), "no segment shows it");
    assert!(page(&path, &[]).out.contains("record with context=\"all\" for the lines"));
}

#[test]
fn autograd_frees_nothing_outside_the_backward_pass() {
    // The input and the loss of step 0, whose names are bound again in step 1.
    for event in events(&guide("accum"), &["--from", "73", "--to", "77"]) {
        if event["action"] == "free" {
            assert_eq!((&event["step"], &event["phase"]), (&json!(1), &json!("forward")));
            let ending = &event["block"]["freed_by"];
            assert_eq!(ending["text"], "freed once its line had made the next");
        }
    }
    for path in files() {
        for device in devices(&path, &[]) {
            let frees = device["events"].as_array().unwrap().iter();
            let wrong = frees.filter(|event| event["action"] == "free").find(|event| {
                event["phase"] != "backward"
                    && event["block"]["freed_by"]["kind"] == "backward"
                    && event["block"]["freed"]["stack"].is_null()
            });
            assert_eq!(wrong, None, "{path}");
        }
    }
}

#[test]
fn an_allocation_takes_the_memory_of_an_earlier_block() {
    let chains = devices(&guide("amp2"), &["--reuse"]).remove(0)["chains"].clone();
    let chain =
        chains.as_array().unwrap().iter().find(|chain| chain["address"] == "0x7e0016000000");
    let tensors = chain.unwrap()["tensors"].as_array().unwrap();
    let moment = |tensor: &Value, name: &str| tensor[name]["event"].as_u64();
    let lives: Vec<_> = tensors
        .iter()
        .filter(|tensor| tensor["address"] == "0x7e0016000000")
        .take(3)
        .map(|tensor| (moment(tensor, "allocated"), moment(tensor, "freed")))
        .collect();
    assert_eq!(lives, [(Some(17), Some(22)), (Some(24), Some(29)), (Some(42), Some(67))]);
    // 32 MiB at the start of the 64 MiB that were there; then 64 MiB that two blocks of 32 MiB had.
    assert_eq!(tensors[1]["reuses"]["event"], 17);
    // The second of those begins within the chain's memory: it is part of the chain.
    assert_eq!(tensors[2]["address"], "0x7e0018000000");
    has(&tensors[3], &json!({"reuses": {"event": 24, "blocks": 2}}));
    assert_eq!(tensors[0]["reuses"], Value::Null, "it came from the driver");
}

#[test]
fn every_answer_keeps_to_the_published_schema() {
    let schema = schema("snapshot-events");
    for path in files() {
        for form in [&["--to", "200"][..], &["--reuse", "--to", "50"], &["--at", "peak"]] {
            holds(&schema, &answer(&[&["events", &path, "--json"], form].concat()));
        }
    }
}

#[test]
fn the_list_is_complete_and_adds_up_to_the_totals() {
    for path in
        files().iter().filter(|path| !path.contains("vectors/") || path.contains("style"))
    {
        let totals = answer(&["show", path, "--json"])["devices"].clone();
        for (device, shown) in devices(path, &[]).iter().zip(totals.as_array().unwrap()) {
            let events = device["events"].as_array().unwrap();
            let others = device["events_of_other_kinds"].as_u64().unwrap();
            let n_events = u64::try_from(events.len()).unwrap() + others;
            assert_eq!(n_events, shown["history"]["events"], "{path}");
            let numbers = numbers(events);
            assert!(numbers.is_sorted_by(|a, b| a < b), "{path}: in order");
            if shown["history"]["violations"] != 0 {
                continue;
            }
            // What was made in the window and stays is what the segments show, less what is older.
            let kept: u64 = events
                .iter()
                .filter(|event| event["action"] == "alloc" && event["block"]["freed"].is_null())
                .map(|event| event["block"]["block_bytes"].as_u64().unwrap())
                .sum();
            assert!(kept <= shown["totals"]["active_bytes"].as_u64().unwrap(), "{path}");
        }
    }
}

#[test]
fn what_is_alive_adds_up_at_every_moment() {
    for name in ["guides/amp1", "vectors/graph_and_pins", "vectors/oom_fragmentation.oom"] {
        let path = data(&format!("{name}.pickle.gz"));
        let shown = answer(&["show", &path, "--json"])["devices"][0].clone();
        let alive = |moment: &str| devices(&path, &["--at", moment]).remove(0)["alive"].clone();
        let peak = shown["peak"]["event"].as_u64().unwrap().to_string();
        for (moment, bytes) in [
            ("end", &shown["totals"]["active_bytes"]),
            ("peak", &shown["peak"]["active_bytes"]),
            (&*peak, &shown["peak"]["active_bytes"]),
            ("step:2", &shown["steps"][2]["peak_bytes"]),
        ] {
            let alive = alive(moment);
            assert_eq!(&alive["bytes"], bytes, "{name} at {moment}");
            let tree = alive["tree"].as_array().unwrap();
            let tops: Vec<Value> =
                tree.iter().filter(|node| node["depth"] == 0).cloned().collect();
            assert_eq!(json!(sum(&tops, "bytes")), alive["bytes"]);
            assert_eq!(json!(sum(&tops, "blocks")), alive["blocks"]);
            let deepens = tree.windows(2).all(|pair| {
                pair[1]["depth"].as_u64().unwrap() <= pair[0]["depth"].as_u64().unwrap() + 1
            });
            assert!(deepens, "{name}: each node stands below the one that it is of");
        }
    }
    let failed = devices(&data("vectors/oom_fragmentation.oom.pickle.gz"), &["--at", "oom"]);
    let shown = answer(&["show", &data("vectors/oom_fragmentation.oom.pickle.gz"), "--json"]);
    assert_eq!(failed[0]["alive"]["bytes"], shown["devices"][0]["oom"][0]["active_bytes"]);
}

#[test]
fn the_state_after_an_event_has_its_free_as_the_list_does() {
    for name in ["amp1", "zero1_rank0", "accum"] {
        let path = guide(name);
        let bytes = |event: u64| {
            let alive =
                devices(&path, &["--at", &event.to_string()]).remove(0)["alive"].clone();
            assert_eq!(alive["after_event"], event, "{name}");
            alive["bytes"].as_u64().unwrap()
        };
        let listed = events(&path, &["--to", "100"]);
        let mut before = None;
        for row in listed.iter().filter(|row| row["event"].as_u64() >= Some(60)) {
            let event = row["event"].as_u64().unwrap();
            let size = row["block"]["block_bytes"].as_u64().unwrap();
            let after = bytes(event);
            assert_eq!(row["active_bytes"], after, "{name} after event {event}");
            if let Some(before) = before {
                let expected =
                    if row["action"] == "alloc" { before + size } else { before - size };
                assert_eq!(after, expected, "{name} after event {event}");
            }
            before = Some(after);
        }
    }
}

#[test]
fn a_list_has_the_peak_of_each_phase() {
    let path = guide("amp1");
    let shown = answer(&["show", &path, "--json"])["devices"][0].clone();
    let peaks = |arguments: &[&str]| devices(&path, arguments).remove(0)["peaks"].clone();
    let all = peaks(&[]);
    assert_eq!(all[0]["active_bytes"], shown["peak"]["active_bytes"]);
    assert_eq!(all[0]["event"], shown["peak"]["event"]);
    let phases: Vec<&str> =
        all.as_array().unwrap().iter().map(|peak| peak["phase"].as_str().unwrap()).collect();
    for phase in ["forward", "backward", "optimizer", "zero_grad"] {
        assert!(phases.contains(&phase), "{phases:?}");
    }
    let of_step = peaks(&["--step", "2"]);
    assert_eq!(of_step[0]["active_bytes"], shown["steps"][2]["peak_bytes"]);
    assert_eq!(of_step[0]["phase"], shown["steps"][2]["peak_phase"]);
    let page = page(&path, &["--step", "2"]).out;
    assert!(page.contains("peak    480 MiB active in forward     after event"), "{page}");
}

#[test]
fn a_copy_in_another_precision_is_told_at_its_event() {
    for name in ["amp1", "amp24", "amp1_all"] {
        let path = guide(name);
        let rows = events(&path, &["--step", "1"]);
        let copies = |of: &str| -> Vec<u64> {
            let made = rows.iter().filter(|row| row["action"] == "alloc");
            let copies = made.filter(|row| row["block"]["cast"] == of);
            copies.map(|row| row["requested_bytes"].as_u64().unwrap() >> 20).collect()
        };
        assert_eq!(copies("input"), [32], "{name}");
        assert_eq!(copies("weight"), [32], "{name}");
        assert_eq!(copies("gradient"), [64], "{name}");
        let out = page(&path, &["--step", "1"]).out;
        for text in ["a weight in half precision", "an input in half precision"] {
            assert!(out.split_whitespace().collect::<Vec<_>>().join(" ").contains(text));
        }
    }
    for name in ["accum", "zero1_rank0", "ddp_rank0"] {
        assert!(events(&guide(name), &[]).iter().all(|row| row["block"]["cast"].is_null()));
    }
}

#[test]
fn a_gradient_without_a_stack_names_the_line_that_it_is_as_large_as() {
    let rows = events(&guide("accum"), &["--phase", "backward", "--min-size", "60MiB"]);
    let made: Vec<&Value> = rows.iter().filter(|row| row["action"] == "alloc").collect();
    assert!(made.len() >= 10, "{}", made.len());
    for row in made {
        let block = &row["block"];
        assert_eq!(block["line"], "autograd, in backward (no stack)", "{row}");
        assert_eq!(block["mirrors"]["line"], 6, "{row}");
    }
    let told = page(&guide("accum"), &["--phase", "backward", "--min-size", "60MiB"]).out;
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("as large as what workspace/train.py:6 <module> made"), "{told}");
    // A line of Python is its own name.
    let rows = events(&guide("accum"), &["--phase", "forward"]);
    assert!(rows.iter().all(|row| row["block"]["mirrors"].is_null()));
}

#[test]
fn zero_grad_is_a_phase_with_marks_or_without() {
    for name in ["amp1", "amp1_nomarks", "amp24", "amp2"] {
        let dropped = events(&guide(name), &["--phase", "zero_grad"]);
        assert!(!dropped.is_empty(), "{name}");
        for row in dropped {
            assert_eq!(
                (&row["action"], &row["block"]["category"]),
                (&json!("free"), &json!("gradient")),
                "{name}"
            );
        }
    }
}

#[test]
fn what_ranks_exchange_is_a_phase_and_what_it_reduces_are_gradients() {
    for name in ["zero1_rank0", "zero1_rank1"] {
        let path = guide(name);
        let rows = events(&path, &["--step", "1"]);
        let of = |phase: &str| -> Vec<&Value> {
            rows.iter()
                .filter(|row| row["phase"] == phase && row["action"] == "alloc")
                .collect()
        };
        // Reduce-scatter before the update, all-gather after it.
        let exchanged = of("collective");
        assert_eq!(exchanged.len(), 3, "{name}");
        assert!(exchanged.iter().all(|row| row["block"]["category"] == "communication"));
        let gradients: Vec<u64> = of("backward")
            .iter()
            .filter(|row| row["block"]["category"] == "gradient")
            .map(|row| row["requested_bytes"].as_u64().unwrap() >> 20)
            .collect();
        assert_eq!(gradients, [8, 8], "{name}: those of the two weights");
        // Freed where the stack has the call of the function alone.
        let freed = of("backward")[1]["block"]["freed_by"].clone();
        assert_eq!(
            freed["text"],
            "freed in the call at workspace/zero1.py:90 <module>, between zero1.py:36 and zero1.py:37"
        );
        let device = answer(&["show", &path, "--json"])["devices"][0].clone();
        assert_eq!(device["steps"][1]["peak_phase"], "collective");
        let mut notes = device["notes"].as_array().unwrap().iter();
        let note = notes.find(|note| note["kind"] == "optimizer_buffers").unwrap();
        assert_eq!(note["bytes"], 24 << 20, "{name}: {note}");
        for line in ["zero1.py:36", "zero1.py:37", "zero1.py:38"] {
            assert!(note["text"].as_str().unwrap().contains(line), "{note}");
        }
    }
}

#[test]
fn a_chain_has_what_begins_within_its_memory() {
    let path = guide("amp2");
    let chains = devices(&path, &["--reuse"]).remove(0)["chains"].clone();
    let mut seen = std::collections::BTreeSet::new();
    let mut n_within = 0;
    for chain in chains.as_array().unwrap() {
        let start = &chain["address"];
        for tensor in chain["tensors"].as_array().unwrap() {
            let event = tensor["allocated"]["event"].as_u64();
            assert!(seen.insert((event, tensor["address"].to_string())), "in one chain only");
            n_within += usize::from(tensor["address"] != *start);
        }
    }
    assert!(n_within > 0, "two halves that used one block's memory");
    let out = page(&path, &["--reuse", "--address", "0x7e0018000000"]).out;
    assert!(out.contains(" +32.0 MiB "), "{out}");
}

#[test]
fn nothing_found_is_explained_for_chains_and_in_json_too() {
    let path = guide("amp1");
    let out = page(&path, &["--reuse", "--line", "amp_demo.py:999"]).out;
    assert!(out.contains("No stack passes through line 999"), "{out}");
    for form in [&["--reuse"][..], &[]] {
        let lines = |line: &str| {
            devices(&path, &[form, &["--line", line]].concat()).remove(0)["lines_instead"]
                .clone()
        };
        assert_eq!(lines("amp_demo.py:999")[0], 12);
        assert_eq!(lines("other.py:1"), json!([]));
        assert_eq!(lines("amp_demo.py:12"), Value::Null);
    }
}

#[test]
fn moments_within_a_step_are_those_of_show() {
    let path = guide("accum");
    for moment in ["1.1", "step:1.1", "3.zero_grad"] {
        let alive = devices(&path, &["--at", moment]).remove(0)["alive"].clone();
        assert_eq!(alive["bytes"].as_u64().unwrap() >> 20, 257, "{moment}");
    }
    let ended = page(&path, &["--at", "1.5"]);
    ended.fails(2, "no backward pass 5 in step 1, it has 4");
}

#[test]
fn filters_choose_what_they_say_and_all_of_it() {
    let path = guide("amp1");
    let all = events(&path, &[]);
    let check = |arguments: &[&str], fits: &dyn Fn(&Value) -> bool| {
        let wanted: Vec<Value> = all.iter().filter(|event| fits(event)).cloned().collect();
        assert!(!wanted.is_empty() && wanted.len() < all.len(), "{arguments:?}");
        assert_eq!(numbers(&events(&path, arguments)), numbers(&wanted), "{arguments:?}");
    };
    check(&["--step", "2"], &|event| event["step"] == 2);
    check(&["--phase", "backward"], &|event| event["phase"] == "backward");
    check(&["--step", "1", "--phase", "optimizer"], &|event| {
        event["step"] == 1 && event["phase"] == "optimizer"
    });
    check(&["--from", "20", "--to", "40"], &|event| {
        (20..=40).contains(&event["event"].as_u64().unwrap())
    });
    check(&["--min-size", "64MiB"], &|event| {
        event["block"]["block_bytes"].as_u64().unwrap() >= 64 << 20
    });
    // A byte in the middle of blocks of 32 and of 64 MiB that used the same memory.
    let byte = 0x7e00_0500_0000_u64;
    check(&["--address", "0x7e0005000000"], &|event| {
        let block = &event["block"];
        let start = u64::from_str_radix(&block["address"].as_str().unwrap()[2..], 16).unwrap();
        (start..start + block["block_bytes"].as_u64().unwrap()).contains(&byte)
    });
    // Line 33 calls the model, and lets go of the last output.
    let of_line = events(&path, &["--line", "amp_demo.py:33"]);
    let lines = |key: &str| {
        let lines = of_line.iter().map(|event| event["block"][key].clone());
        lines.map(|line| line.to_string()).collect::<Vec<_>>().join(" ")
    };
    assert!(lines("line").contains("amp_demo.py:12") && !lines("line").contains(":31"));
    assert!(lines("freed_by").contains("amp_demo.py:33"));
}

#[test]
fn a_moment_or_step_that_is_not_there_is_an_error_that_says_so() {
    let path = guide("amp1");
    for (arguments, reason) in [
        (["--step", "99"], "no step 99"),
        (["--at", "oom"], "no such moment"),
        (["--at", "185"], "no event 185, the window has events 0 to 184"),
        (["--at", "step:99"], "no step 99, the snapshot has steps 0 to 4"),
    ] {
        let ended = page(&path, &arguments);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(ended.err.contains(reason), "{}", ended.err);
    }
    for arguments in [
        ["--at", "now"],
        ["--line", "train.py"],
        ["--address", "0xg"],
        ["--min-size", "much"],
        ["--phase", "sideways"],
    ] {
        assert_eq!(page(&path, &arguments).code, Some(2), "{arguments:?}");
    }
}

#[test]
fn a_step_that_did_not_end_is_told_from_one_that_never_was() {
    let path = guide("oomloop.oom");
    let said =
        "step 139 did not end in the window: --at oom shows it, whole steps are 0 to 138";
    for (command, moment) in
        [("show", "139"), ("show", "step:139"), ("show", "139.1"), ("events", "step:139")]
    {
        let ended = stepmem(&["snapshot", command, &path, "--at", moment], &[], b"");
        assert_eq!(ended.code, Some(2), "{command} {moment}");
        assert!(ended.err.contains(said), "{command} {moment}: {}", ended.err);
    }
}

#[test]
fn a_step_is_named_alike_for_the_table_and_for_the_tree() {
    let path = guide("oomloop.oom");
    let shown = |moment: &str| {
        let ended = stepmem(&["snapshot", "show", &path, "--at", moment], &[], b"");
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended.out
    };
    assert_eq!(shown("step:138"), shown("138"));
    let help = |command: &str| {
        let out = stepmem(&["snapshot", command, "--help"], &[], b"").out;
        out.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(help("show").contains("in events --at"), "N alone is an event there");
    assert!(help("events").contains("in show --at"), "N alone is a step there");
}

#[test]
fn a_line_that_nothing_passes_through_is_told_with_those_that_are() {
    let words = |line: &str| {
        let ended = page(&guide("amp1"), &["--line", line]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended.out.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let out = words("amp_demo.py:999");
    let said =
        "No stack passes through line 999 of amp_demo.py; stacks pass through its lines 12, ";
    assert!(out.contains(said), "{out}");
    assert!(words("other.py:12").contains("No stack passes through a file other.py"));
    assert!(!words("amp_demo.py:12").contains("No stack"));
}

#[test]
fn pages_fit_80_columns_and_say_what_they_leave_out() {
    for path in files() {
        for form in [&["--stacks", "4"][..], &["--reuse"], &["--at", "peak"]] {
            let page = page(&path, form);
            assert_eq!(page.code, Some(0), "{path}: {}", page.err);
            let wide = page.out.lines().skip(1).find(|line| line.chars().count() > COLUMNS);
            assert_eq!(wide, None, "{path} {form:?}");
        }
    }
    let path = data("vectors/leak_eval_graph_every_10.pickle.gz");
    let few = page(&path, &["--top", "3"]).out;
    let n_listed = events(&path, &[]).len();
    let n_left = (n_listed - 3).to_string();
    assert!(
        few.replace(',', "")
            .contains(&format!("\n{n_left} more events are not shown: --top 0 shows all"))
    );
    let all = page(&path, &["--top", "0"]).out;
    assert!(!all.contains("not shown") && all.lines().count() > 2 * n_listed);
    assert!(page(&path, &["--reuse", "--top", "2"]).out.contains("more are not shown"));
    assert!(page(&path, &["--at", "peak", "--min-size", "40MiB"]).out.contains(" others\n"));
}

#[test]
fn hostile_histories_are_told_without_harm() {
    let folder = Folder::new("snapshot-events-hostile");
    let long = "<\u{1b}[2J".repeat(300);
    let mut snapshot = Snapshot::empty();
    let stack = snapshot.stack(&vec![(&*long, u64::MAX, &*long); 400]);
    let address = u64::MAX - 511;
    // An address that is allocated again and again, overlaps itself, ends beyond the last byte, and is freed twice.
    for (number, action) in [
        Action::FreeCompleted,
        Action::Alloc,
        Action::Alloc,
        Action::FreeRequested,
        Action::FreeCompleted,
        Action::FreeCompleted,
        Action::OutOfMemory,
        Action::SegmentFree,
        Action::Alloc,
    ]
    .into_iter()
    .enumerate()
    {
        let size = [0, 512, 1 << 40, 7][number % 4];
        let address = address - 256 * u64::try_from(number % 3).unwrap();
        let event = Event { address, size, time_us: 5, stack, action, ..Event::default() };
        snapshot.events.push(event);
    }
    let n_events = snapshot.events.len();
    snapshot.devices.push(Device { index: 0, events: (0, n_events), ..Device::default() });
    let path = folder.path("hostile.pickle");
    fs::write(&path, write(&snapshot)).unwrap();
    let path = text(&path);
    for form in [&["--stacks", "500"][..], &["--reuse"], &["--at", "peak"], &["--at", "4"]] {
        let ended = page(&path, form);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert!(!ended.out.contains('\u{1b}'));
        assert!(ended.out.lines().skip(1).all(|line| line.chars().count() <= COLUMNS));
        holds(
            &schema("snapshot-events"),
            &answer(&[&["events", &path, "--json"], form].concat()),
        );
    }
    let lost = events(&path, &[]);
    assert!(lost.iter().any(|event| event["block"]["freed_by"]["kind"] == "lost"));
    assert!(lost.iter().any(|event| event["action"] == "oom" && event["block"].is_null()));
}

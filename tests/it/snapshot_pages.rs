//! The pages of `stepmem snapshot show`, `diff` and `ranks`: they fit a terminal, their figures add up, and nothing that is
//! known stays unnamed.

use std::fs;

use serde_json::{Value, json};
use stepmem_snapshot::{Action, Device, Event, Snapshot, write};

use crate::rig::command::words;
use crate::rig::folder::{Folder, root, text};
use crate::rig::snapshot::{answer, data, guide, page};
use crate::rig::units::GIB;

/// The limit of a page, in columns.
const COLUMNS: usize = 80;

fn assert_fits(page: &str, about: &str) {
    // The first line of `show` has the path as it was given.
    let wide = page.lines().skip(1).find(|line| line.chars().count() > COLUMNS);
    assert_eq!(wide, None, "{about}");
}

#[test]
fn pages_fit_80_columns() {
    let mut rows = ["line", "stack", "category", "block", "function"].into_iter().cycle();
    for folder in ["guides", "vectors", "real", "h100", "h200"] {
        let entries = fs::read_dir(root().join("tests/data/snapshots").join(folder)).unwrap();
        let paths = entries.map(|entry| text(&entry.unwrap().path()));
        for path in paths.filter(|path| path.contains(".pickle")) {
            let (rows, moment) = (rows.next().unwrap(), "--at=peak");
            assert_fits(&page(&["show", &path, "--by", rows, "--capacity", "80GiB"]), &path);
            assert_fits(&page(&["show", &path, moment]), &path);
        }
    }
    let vector = |name: &str| data(&format!("vectors/{name}.pickle.gz"));
    let (before, after) = (vector("before_after.step10"), vector("before_after"));
    assert_fits(&page(&["diff", &before, &after]), "diff");
    let ranks = [0, 1, 2, 3].map(|rank| vector(&format!("ranks_leak.rank{rank}")));
    let ranks: Vec<&str> = ranks.iter().map(String::as_str).collect();
    assert_fits(&page(&[&["ranks"], &*ranks].concat()), "ranks");
    assert_fits(&page(&["ranks", ranks[0], ranks[2], "/nowhere/at/all"]), "a missing rank");
    assert_fits(&page(&["ranks", &guide("ddp_rank0"), &guide("ddp_rank2")]), "two ranks");
}

#[test]
fn the_figures_of_a_failure_add_up_to_the_device() {
    for name in
        ["guides/oomloop.oom", "vectors/oom_fragmentation.oom", "vectors/oom_pending_free.oom"]
    {
        let path = data(&format!("{name}.pickle.gz"));
        let failed = |arguments: &[&str]| {
            let answer = answer(&[&["show", &path, "--json"], arguments].concat());
            answer["devices"][0]["oom"][0].clone()
        };
        let bytes = |failed: &Value, figure: &str| failed[figure].as_u64().unwrap();
        let known = failed(&["--capacity", "80GiB"]);
        assert_eq!(
            bytes(&known, "active_bytes")
                + bytes(&known, "unused_bytes")
                + bytes(&known, "device_free_bytes")
                + bytes(&known, "others_bytes"),
            80 * GIB,
            "{name}"
        );
        assert_eq!(
            bytes(&known, "within_reach_bytes"),
            bytes(&known, "reserved_bytes") + bytes(&known, "device_free_bytes")
        );
        assert_eq!(failed(&[])["others_bytes"], Value::Null, "a file has no capacity");
        let shown = page(&["show", &path, "--capacity", "80GiB"]);
        for part in [
            "left at the driver",
            "the sum: all that this process could have",
            "with them 80.0 GiB",
        ] {
            assert!(shown.contains(part), "{name}: {shown}");
        }
    }
}

#[test]
fn memory_that_others_took_is_the_cause() {
    let folder = Folder::new("snapshot-others");
    let mut snapshot = Snapshot::empty();
    let stack = snapshot.stack(&[("/srv/train.py", 12, "main")]);
    // 40 GiB were reserved and given back; then 32 GiB are requested, and 6 GiB are left.
    let (segment, address) = (40 * GIB, 1_u64 << 40);
    for (action, size, place) in [
        (Action::SegmentAlloc, segment, address),
        (Action::Alloc, segment, address),
        (Action::FreeRequested, segment, address),
        (Action::FreeCompleted, segment, address),
        (Action::SegmentFree, segment, address),
        (Action::OutOfMemory, 32 * GIB, 6 * GIB),
    ] {
        let event =
            Event { address: place, size, time_us: 5, stack, action, ..Event::default() };
        snapshot.events.push(event);
    }
    let n_events = snapshot.events.len();
    snapshot.devices.push(Device { index: 0, events: (0, n_events), ..Device::default() });
    let path = folder.path("others.pickle");
    fs::write(&path, write(&snapshot)).unwrap();
    let path = text(&path);
    let why = answer(&["show", &path, "--json"])["devices"][0]["oom"][0]["root_cause"].clone();
    assert_eq!((&why["cause"], &why["bytes"]), (&json!("others"), &json!(34 * GIB)), "{why}");
    let shown = words(&page(&["show", &path]));
    let said = "Others: 34.0 GiB that this process had, or could have had, before are taken by someone else";
    assert!(shown.contains(said), "{shown}");
}

#[test]
fn gradients_without_a_stack_are_named_by_step_phase_and_size() {
    let shown = words(&page(&["show", &guide("accum"), "--at", "1.1"]));
    assert!(shown.contains("autograd, in backward of step 1 (no stack)"), "{shown}");
    assert!(shown.contains("as large as what train.py:6 <module> made"), "{shown}");
    assert!(!shown.contains("(no stack recorded)"), "{shown}");
    // Nothing is known where no allocation has a stack.
    let shown = page(&["show", &data("vectors/no_stacks.pickle.gz")]);
    assert!(shown.contains("(no stack recorded)"), "{shown}");
}

#[test]
fn memory_without_a_stack_is_named_alike_wherever_it_is_shown() {
    let folder = Folder::new("snapshot-unnamed");
    let file = guide("oomloop.oom");
    let name = "autograd, in backward of step 0 (no stack)";
    let device = answer(&["show", &file, "--json"])["devices"][0].clone();
    let pinners: Vec<Value> = device["fragmentation"]["pinners"].as_array().unwrap().clone();
    let rows = [device["sites_at_end"].as_array().unwrap().clone(), pinners].concat();
    let unnamed: Vec<&Value> = rows.iter().filter(|row| row["kind"] == "no_frames").collect();
    assert_eq!(unnamed.len(), 2);
    for row in unnamed {
        let of = &row["autograd"];
        assert_eq!((&of["text"], &of["first_step"]), (&json!(name), &json!(0)), "{row}");
        assert_eq!(of["mirrors"][0]["location"]["line"], 6, "{row}");
    }
    let named: Vec<&Value> = rows.iter().filter(|row| row["kind"] == "python").collect();
    assert!(named.iter().all(|row| row["autograd"].is_null()));
    let html = text(&folder.path("oom.html"));
    page(&["show", &file, "--html", &html]);
    let shown = [
        page(&["show", &file, "--by", "line"]),
        page(&["show", &file, "--by", "category"]),
        page(&["events", &file, "--at", "end"]),
        fs::read_to_string(&html).unwrap(),
    ];
    for shown in &shown {
        let is_named = shown.contains("autograd, in backward of step 0");
        assert!(is_named && !shown.contains("no stack recorded"), "{shown}");
    }
    let [_, by_category, ..] = &shown;
    let fragmentation = by_category.split_once("Fragmentation").unwrap().1;
    assert!(fragmentation.contains(": autograd, in backward of step 0\n"), "{fragmentation}");
    let blocks = page(&["show", &file, "--by", "block", "--top", "1000"]);
    assert!(blocks.contains("autograd, like train.py:6\n"), "{blocks}");
}

#[test]
fn a_line_stands_below_each_of_its_categories() {
    let shown = page(&["show", &guide("amp1"), "--by", "category", "--at", "step:2"]);
    assert!(
        shown
            .contains("input\n                        64.0 MiB  workspace/amp_demo.py:31 main"),
        "{shown}"
    );
    let of_rank = page(&["show", &guide("zero1_rank0"), "--by", "category", "--at", "peak"]);
    assert!(
        words(&of_rank).contains("communication 24.0 MiB workspace/zero1.py:36 train"),
        "{of_rank}"
    );
}

#[test]
fn growth_between_two_files_is_told_for_each_step() {
    let files = [guide("ba_leak.before"), guide("ba_leak.after")];
    let diff = answer(&["diff", &files[0], &files[1], "--json"])["devices"][0].clone();
    let n_steps = diff["steps_between"].as_f64().unwrap();
    let site = &diff["sites"][0];
    let rate = site["growth_bytes_per_step"].as_f64().unwrap();
    assert!((rate * n_steps - site["growth_bytes"].as_f64().unwrap()).abs() < 1.0, "{diff}");
    assert_eq!((n_steps, rate), (10.0, f64::from(513 << 9)));
    let shown = page(&["diff", &files[0], &files[1]]);
    assert!(shown.contains("+256 KiB a step, over 10 steps"), "{shown}");
    let files = ["before_after.step10", "before_after"]
        .map(|name| data(&format!("vectors/{name}.pickle.gz")));
    let shown = page(&["diff", &files[0], &files[1]]);
    assert!(shown.contains("+4.00 MiB a step, over 20 steps"), "{shown}");
    // Two processes have no steps in between.
    let ranks = [0, 2].map(|rank| data(&format!("vectors/ranks_leak.rank{rank}.pickle.gz")));
    let diff = answer(&["diff", &ranks[0], &ranks[1], "--json"])["devices"][0].clone();
    assert_eq!(diff["steps_between"], Value::Null);
}

//! What a page of a snapshot advises or promises is so: a change saves what the page says, a batch that is said to fit fits,
//! memory of CUDA's libraries is nobody's line, and layers are no steps.

use std::fs;

use serde_json::{Value, json};

use crate::rig::command::words;
use crate::rig::folder::{Folder, text};
use crate::rig::snapshot::{answer, data, page};
use crate::rig::snapshot_job::{Job, MIB};

fn show(path: &str) -> Value {
    answer(&["show", path, "--json"])["devices"][0].clone()
}

fn notes<'a>(device: &'a Value, kind: &str) -> Vec<&'a Value> {
    let notes = device["notes"].as_array().unwrap().iter();
    notes.filter(|note| note["kind"] == kind).collect()
}

/// The file of a job of some steps.
fn file(folder: &Folder, mut job: Job, n_steps: u64) -> String {
    for _ in 0..n_steps {
        job.step(|_| {});
    }
    let path = folder.path("job.pickle");
    fs::write(&path, job.pickle()).unwrap();
    text(&path)
}

#[test]
fn workspaces_are_a_category_and_no_line_of_the_user() {
    let files = [
        ("h200/snap_default", 65),
        ("h200/snap_expandable", 65),
        ("h200/snap_python", 65),
        ("h100/amp1", 64),
        ("h100/amp1_10", 64),
        ("h100/amp1_all", 64),
        ("h100/accum", 65),
        ("h100/oomloop", 65),
        ("h100/ring", 65),
    ];
    for (name, mib) in files {
        let path = data(&format!("{name}.pickle.gz"));
        let device = show(&path);
        assert_eq!(device["categories_at_end"]["workspace"], mib * MIB, "{name}");
        let sites = device["sites_at_end"].as_array().unwrap();
        let is_of_library = |site: &&Value| {
            site["function"].as_str().is_some_and(|name| name.ends_with(" workspace"))
        };
        let of_library = sites.iter().filter(is_of_library);
        let bytes: u64 = of_library.map(|site| site["bytes"].as_u64().unwrap()).sum();
        assert_eq!(bytes, mib * MIB, "{name}");
        assert!(page(&["show", &path]).contains("  cuBLAS workspace\n"), "{name}");
        assert_eq!(notes(&device, "gradients_kept"), Vec::<&Value>::new(), "{name}");
        let text = words(&page(&["show", &path]));
        assert!(!text.contains("cuBLAS's own memory"), "{name}: it is in this file");
    }
    // With C++ frames or without, by stack or by size: the same.
    let categories = |name: &str| {
        show(&data(&format!("h100/{name}.pickle.gz")))["categories_at_end"].clone()
    };
    assert_eq!(categories("amp1"), categories("amp1_all"));
    for name in ["snap_default", "snap_expandable", "snap_python"] {
        let device = show(&data(&format!("h200/{name}.pickle.gz")));
        assert_eq!(device["categories_at_end"]["gradient"], 0, "{name}");
        let savings = device["fit"]["savings"].as_array().unwrap();
        let of_gradients = |saving: &&Value| saving["kind"] == "zero_grad_before_forward";
        assert_eq!(savings.iter().find(of_gradients), None, "{name}");
    }
}

#[test]
fn weights_and_outputs_of_the_size_of_a_workspace_are_none() {
    // 32 MiB activations, made and freed in every step, and kept by one line.
    let folder = Folder::new("claims-sizes");
    let mut job = Job::new(128, true);
    let (build, keep) = (job.lines.build, job.lines.keep);
    job.make(32 * MIB, build);
    for _ in 0..8 {
        job.step(|job| {
            job.make(32 * MIB, keep);
        });
    }
    let path = folder.path("sizes.pickle");
    fs::write(&path, job.pickle()).unwrap();
    let device = show(&text(&path));
    assert_eq!(device["categories_at_end"]["workspace"], 0, "{device}");
    assert_eq!(device["leak"]["blame"]["line"], 5);
}

/// The peak with a change and without it, and what the note of a kind says that it saves.
fn saving(kind: &str, job: impl Fn(bool) -> Job) -> (u64, Option<u64>) {
    let folder = Folder::new(&format!("claims-{kind}"));
    let peak = |device: &Value| device["peak"]["active_bytes"].as_u64().unwrap();
    let changed = peak(&show(&file(&folder, job(true), 8)));
    let path = file(&folder, job(false), 8);
    let device = show(&path);
    let notes = notes(&device, kind);
    assert_eq!(notes.len(), 1, "{kind}: {:#}", device["notes"]);
    let saved = notes[0]["saved_bytes"].as_u64();
    let text = words(&page(&["show", &path]));
    assert_eq!(saved.is_some(), text.contains("the peak would be"), "{text}");
    (peak(&device) - changed, saved)
}

#[test]
fn deleting_an_output_saves_what_the_note_says_or_the_note_does_not_advise_it() {
    let of_factor = |output_factor: u64| {
        saving("lingering_output", |deletes_output| {
            let mut job = Job::new(8, true);
            (job.output_factor, job.deletes_output) = (output_factor, deletes_output);
            job
        })
    };
    // The peak is in backward: two outputs at once do not reach it.
    assert_eq!(of_factor(1), (0, None));
    let (saved, said) = of_factor(6);
    assert!(saved >= MIB, "{saved}");
    assert_eq!(said, Some(saved));
}

#[test]
fn dropping_gradients_earlier_saves_what_the_note_says_or_the_note_does_not_advise_it() {
    let of_samples = |n_samples: u64| {
        saving("gradients_through_forward", |is_early| {
            let mut job = Job::new(n_samples, true);
            (job.deletes_output, job.drops_gradients_late) = (true, !is_early);
            job
        })
    };
    assert_eq!(of_samples(64), (0, None), "backward needs more");
    let (saved, said) = of_samples(16);
    assert!(saved >= MIB, "{saved}");
    assert_eq!(said, Some(saved));
}

#[test]
fn no_note_promises_what_no_replay_shows() {
    for folder in ["guides", "vectors", "h100", "h200"] {
        for entry in fs::read_dir(data(folder)).unwrap() {
            let path = text(&entry.unwrap().path());
            if !path.ends_with(".pickle.gz") {
                continue;
            }
            for device in answer(&["show", &path, "--json"])["devices"].as_array().unwrap() {
                for note in device["notes"].as_array().unwrap() {
                    let said = note["text"].as_str().unwrap();
                    let promises = ["lower", "save", "`del`", "set_to_none=True"];
                    let is_promise = promises.iter().any(|word| said.contains(word));
                    assert_eq!(is_promise, note["saved_bytes"].is_u64(), "{path}: {said}");
                }
                let savings = device["fit"]["savings"].as_array().into_iter().flatten();
                assert!(savings.clone().all(|saving| saving["bytes"].as_u64() >= Some(MIB)));
            }
        }
    }
}

#[test]
fn a_batch_that_is_said_to_fit_fits_and_a_larger_one_than_the_most_does_not() {
    let folder = Folder::new("claims-fit");
    let reserved = |n_samples: u64| {
        let device = show(&file(&folder, Job::new(n_samples, true), 6));
        let peak = &device["peak"];
        (
            peak["active_bytes"].as_u64().unwrap(),
            device["totals"]["reserved_bytes"].as_u64().unwrap(),
        )
    };
    for (recorded, capacity) in
        [(4, 64 * MIB), (4, 400 * MIB), (32, 100 * MIB), (32, 1024 * MIB)]
    {
        let path = file(&folder, Job::new(recorded, true), 6);
        let (size, bytes) = (recorded.to_string(), format!("{}MiB", capacity / MIB));
        let question = ["--batch-size", &size, "--capacity", &bytes];
        let fit =
            answer(&[&["show", &path, "--json"][..], &question].concat())["devices"][0]["fit"]
                ["largest_batch_size"]
                .clone();
        let bound = |name: &str| fit[name].as_u64().unwrap();
        assert!(bound("low") > 0 && bound("low") < bound("high"), "{recorded} {fit}");
        let (_, at_least) = reserved(bound("low"));
        assert!(at_least <= capacity, "{recorded}: {fit}, {at_least} of {capacity}");
        let (active, _) = reserved(bound("high") + 1);
        assert!(active > capacity, "{recorded}: {fit}, {active} of {capacity}");
    }
}

#[test]
fn nothing_is_known_to_scale_in_a_trainer_without_backward() {
    // Weights and perturbations of a zeroth-order trainer: no batch would be a tenth of them.
    let path = data("real/ZidongLiu__DeComFL__memory.pickle.gz");
    assert_eq!(show(&path)["fit"], Value::Null);
    assert!(!page(&["show", &path, "--batch-size", "8", "--capacity", "8GiB"]).contains("fit"));
}

#[test]
fn layers_of_one_pass_are_no_steps() {
    for name in [
        "MAGMA27__assignment2-systems__memory_snapshot.pickle.gz",
        "notHanmin__assignment2-systems__memory_snapshot_forward.pickle.gz",
        "silmont2000__assignment2-systems__memory_forward_bf16_128.pickle",
    ] {
        let path = data(&format!("real/{name}"));
        let device = show(&path);
        assert_eq!(device["history"]["step_marker"], "none", "{name}");
        assert_eq!(device["steps"], json!([]), "{name}");
        assert_eq!(device["leak"]["verdict"], "insufficient_history", "{name}");
        assert_eq!(device["leak"]["floor_bytes_per_step"], Value::Null, "{name}");
        let shown = page(&["show", &path]);
        assert!(shown.contains("\n  Cannot be told: no step"), "{name}: {shown}");
        assert!(!shown.contains("\nSteps\n"), "{name}: {shown}");
    }
}

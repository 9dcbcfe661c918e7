//! `stepmem snapshot` on the programs of the two guides that users have read: every question that they answer by hand has
//! its answer by name, with or without annotations in the file.

use serde_json::Value;

use crate::rig::snapshot::{answer, data};

fn guide(name: &str) -> String {
    data(&format!("guides/{name}.pickle.gz"))
}

/// The only device of a guide's file.
fn device(name: &str) -> Value {
    answer(&["show", &guide(name), "--json"])["devices"][0].clone()
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

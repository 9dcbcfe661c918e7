//! Whether a rank is judged: a rank whose life is too short for a verdict is not shown as a healthy one.

use serde_json::{Value, json};

use crate::rig::exporter::Exporter;
use crate::rig::job::Job;
use crate::rig::units::GIB;

/// The first step that creep detection judges: 23 of warm-up, and 12 blocks of 2.
const FIRST_JUDGED: u64 = 47;

fn rank(exporter: &Exporter) -> Value {
    exporter.status()["ranks"][0].clone()
}

#[test]
fn rank_is_judged_from_the_step_that_its_status_names() {
    let exporter = Exporter::start(&[]);
    let job = |steps| Job::new(1, 0).steps(steps).live(|_, _| 30 * GIB);
    exporter.push(&job(1..2).records());
    let young = rank(&exporter);
    assert_eq!(
        (&young["is_judged"], &young["judging_from_step"]),
        (&json!(false), &json!(FIRST_JUDGED))
    );
    exporter.push(&job(2..FIRST_JUDGED).records());
    let almost = rank(&exporter);
    assert_eq!(
        (&almost["is_judged"], &almost["judging_from_step"]),
        (&json!(false), &json!(FIRST_JUDGED)),
        "the step stays as it was announced"
    );
    exporter.push(&job(FIRST_JUDGED..FIRST_JUDGED + 1).records());
    let judged = rank(&exporter);
    assert_eq!(judged["is_judged"], json!(true));
    assert_eq!(judged.get("judging_from_step"), None);
}

#[test]
fn new_life_of_a_rank_is_judged_anew() {
    let exporter = Exporter::start(&["--creep.warmup-steps", "0"]);
    let job = |steps| Job::new(1, 0).steps(steps).live(|_, _| 30 * GIB);
    exporter.push(&job(1..400).records());
    assert_eq!(rank(&exporter)["is_judged"], json!(true));
    exporter.push(&job(1..2).attempt(1).records());
    let again = rank(&exporter);
    assert_eq!((&again["is_judged"], &again["judging_from_step"]), (&json!(false), &json!(24)));
}

//! Whether a rank is judged, and by which figures: a rank whose life is too short for a verdict is not shown as a healthy one.

use serde_json::{Value, json};

use crate::rig::exporter::Exporter;
use crate::rig::job::Job;
use crate::rig::json::has;
use crate::rig::units::{GIB, MIB};

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
    has(&young, &json!({"is_judged": false, "judging_from_step": FIRST_JUDGED}));
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

/// Blocks that tensors share with free memory come and go by hundreds of MiB; what was asked for grows in a straight line.
#[test]
fn growth_is_judged_by_what_was_asked_for_where_that_is_known() {
    let leak = 4 * MIB;
    let asked = move |step: u64| 8 * GIB + leak * step;
    let blurred = move |step: u64| asked(step) + (step * 7919 % 13) * 64 * MIB;
    let exporter = Exporter::start(&[]);
    let job = Job::new(1, 800).run("asked").live(move |_, step| blurred(step));
    let told = job.more(move |_, step| json!({"requested_bytes": asked(step)}));
    exporter.push(&told.records());
    let job = Job::new(1, 800).run("blocks").live(move |_, step| blurred(step));
    exporter.push(&job.records());
    let status = exporter.status();
    let slope = |run: &str| {
        let findings = status["findings"].as_array().unwrap();
        let found = findings.iter().find(|each| each["run"] == run).unwrap();
        let of = |key: &str| found["evidence"][key].as_f64().unwrap();
        let interval = of("slope_upper_bytes_per_step") - of("slope_lower_bytes_per_step");
        (of("slope_bytes_per_step"), interval)
    };
    let (rate, wide) = (4.0 * 1_048_576.0, slope("blocks").1);
    let (asked, narrow) = slope("asked");
    assert!((asked / rate - 1.0).abs() < 0.005, "{asked}");
    assert!(narrow < wide, "{narrow} of {wide}");
    let rank = &status["ranks"][0];
    assert!(rank["requested_bytes"].as_f64() < rank["allocated_bytes"].as_f64(), "{rank}");
}

#[test]
fn straight_growth_of_a_run_with_a_slow_start_is_not_said_to_accelerate() {
    // Slower at first, as while libraries load; then 160 KiB a step of 21 GiB.
    let live = |_, step: u64| GIB + ((160 * step - 60 * step.min(80)) << 10);
    let job = Job::new(1, 400).capacity(22 * GIB).device("cpu").live(live).peak(live);
    let records = job.reserved(live).records();
    let exporter = Exporter::start(&[]);
    let mut n_said = 0;
    for record in records {
        exporter.push(&[record]);
        let Some(rising) = exporter.finding("CREEP_EARLY") else { continue };
        let figure = |name: &str| rising["evidence"][name].as_f64();
        let figures = ["headroom_bytes", "slope_bytes_per_step", "oom_eta_steps"].map(figure);
        let [Some(left), Some(slope), Some(steps)] = figures else { continue };
        n_said += 1;
        assert!((steps * slope / left - 1.0).abs() < 0.05, "{rising:#}");
    }
    assert!(n_said > 0);
}

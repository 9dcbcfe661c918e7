//! Leaks that leave little time: found from the first steps of a life, or by time in a process that does not push;
//! and growth that looks like one and is none.

use serde_json::{Value, json};

use crate::rig::command::stepmem;

const GIBIBYTE: f64 = 1_073_741_824.0;
const MEGABYTE: f64 = 1e6;

/// The output of a command that reads a recording from its standard input.
fn answer(arguments: &[&str], lines: &[Value]) -> String {
    let text: Vec<String> = lines.iter().map(Value::to_string).collect();
    stepmem(arguments, &[], text.join("\n").as_bytes()).done()
}

/// The creep findings of a recording: (kind, state, step or seconds since the first record).
fn findings(arguments: &[&str], lines: &[Value]) -> Vec<(String, String, f64)> {
    let first = lines.iter().find_map(|line| line["time"].as_f64()).unwrap();
    let output = answer(&[&["replay"], arguments, &["-"]].concat(), lines);
    let found = output.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    found
        .filter(|event| event["kind"].as_str().is_some_and(|kind| kind.starts_with("CREEP")))
        .map(|event| {
            let at = event["step"].as_f64().or(event["time"].as_f64().map(|time| time - first));
            let text = |key: &str| event[key].as_str().unwrap().to_owned();
            (text("kind"), text("state"), at.unwrap())
        })
        .collect()
}

/// The time when a kind was first raised.
fn raised(found: &[(String, String, f64)], kind: &str) -> Option<f64> {
    found.iter().find(|(of, state, _)| of == kind && state == "raised").map(|(_, _, at)| *at)
}

/// Bytes as JSON has them: whole.
fn whole(bytes: f64) -> u64 {
    format!("{bytes:.0}").parse().unwrap()
}

/// A job on one card of 24 GiB: `live` bytes after each step, and `transient` more within it.
fn job(n_steps: u32, live: impl Fn(f64) -> f64, transient: impl Fn(f64) -> f64) -> Vec<Value> {
    let total = 24.0 * GIBIBYTE;
    let steps = (0..n_steps).map(|step| (step, f64::from(step)));
    steps
        .map(|(step, at)| (step, at, live(at), live(at) + transient(at)))
        .take_while(|(.., peak)| *peak < total)
        .map(|(step, at, live, peak)| {
            json!({
                "run": "job", "rank": 0, "world_size": 1, "pid": 7, "device": "GPU-1", "step": step,
                "time": 1.76e9 + 0.3 * at, "total_bytes": whole(total), "allocated_bytes": whole(live),
                "peak_allocated_bytes": whole(peak), "reserved_bytes": whole(peak),
            })
        })
        .collect()
}

/// A process on a card of 80 GiB, read every five seconds.
fn process(n_readings: u32, used: impl Fn(f64) -> f64) -> Vec<Value> {
    let seconds = (0..n_readings).map(|i| 5.0 * f64::from(i));
    seconds
        .map(|second| {
            let used = used(second);
            json!({
                "nvml": true, "time": 1.76e9 + second, "device": "GPU-1",
                "used_bytes": whole(used + 400.0 * MEGABYTE), "total_bytes": whole(80.0 * GIBIBYTE),
                "processes": [{"pid": 5, "used_bytes": whole(used)}],
            })
        })
        .collect()
}

fn level(_: f64) -> f64 {
    1200.0 * MEGABYTE
}

#[test]
fn guides_own_loop_rises_by_step_60_and_creeps_by_step_110() {
    for base in [0.2e9, 1.3e9, 6e9] {
        let found = findings(&[], &job(250, |step| base + 80.0 * MEGABYTE * step, level));
        let (rising, creep) =
            (raised(&found, "CREEP_EARLY"), raised(&found, "CREEP_CONFIRMED"));
        assert!(rising.is_some_and(|step| (24.0..=60.0).contains(&step)), "{found:?}");
        assert!(creep.is_some_and(|step| (60.0..=110.0).contains(&step)), "{found:?}");
    }
}

#[test]
fn leak_that_lasts_for_a_few_thousand_steps_creeps_within_a_quarter_of_them() {
    let left = 24.0 * GIBIBYTE - 1.3e9 - level(0.0);
    for steps in [1200.0, 2400.0, 4000.0] {
        let found = findings(&[], &job(1100, |step| 1.3e9 + left / steps * step, level));
        let creep = raised(&found, "CREEP_CONFIRMED");
        assert!(creep.is_some_and(|step| step <= steps / 4.0), "{steps} steps: {found:?}");
    }
}

#[test]
fn garbage_that_waits_for_its_collection_does_not_page() {
    let left = 24.0 * GIBIBYTE - 2e9 - level(0.0);
    for period in [120.0, 250.0, 500.0] {
        let sawtooth = |step: f64| 2e9 + 0.12 * left / period * (step % period);
        let found = findings(&[], &job(1100, sawtooth, level));
        assert_eq!(raised(&found, "CREEP_CONFIRMED"), None, "{period} steps: {found:?}");
    }
}

#[test]
fn window_takes_over_without_another_transition() {
    let found = findings(&[], &job(290, |step| 1.3e9 + 70.0 * MEGABYTE * step, level));
    let creep: Vec<_> = found.iter().filter(|(kind, ..)| kind == "CREEP_CONFIRMED").collect();
    assert_eq!(creep.len(), 1, "{found:?}");
}

#[test]
fn growth_of_the_first_steps_that_bends_or_ends_does_not_page() {
    let filling = |step: f64| 2e9 + 5e9 * (1.0 - (-step / 80.0).exp());
    let lazy = |step: f64| if step < 30.0 { 2e9 } else { 10e9 };
    let layers = |step: f64| 2e9 + 0.8e9 * (step / 5.0).floor().min(10.0);
    let sawtooth = |step: f64| 2e9 + 60.0 * MEGABYTE * (step % 40.0);
    let jobs: [(&str, &dyn Fn(f64) -> f64); 4] =
        [("filling", &filling), ("lazy", &lazy), ("layers", &layers), ("sawtooth", &sawtooth)];
    for (name, live) in jobs {
        let found = findings(&[], &job(600, live, level));
        assert_eq!(raised(&found, "CREEP_CONFIRMED"), None, "{name}: {found:?}");
    }
}

#[test]
fn cache_that_fits_does_not_page_however_fast_it_fills() {
    let left = 20e9;
    for steps in [15.0, 40.0, 100.0, 160.0] {
        for share in [0.1, 0.2, 0.3] {
            let exponential =
                move |step: f64| 2e9 + share * left * (1.0 - (-step / steps).exp());
            let hyperbolic = move |step: f64| 2e9 + share * left * step / (step + steps);
            let caches: [&dyn Fn(f64) -> f64; 2] = [&exponential, &hyperbolic];
            for live in caches {
                let found = findings(&[], &job(500, live, level));
                let page = raised(&found, "CREEP_CONFIRMED");
                assert_eq!(page, None, "{share} within {steps}: {found:?}");
            }
        }
    }
}

#[test]
fn slow_cache_that_fits_does_not_page_in_the_first_steps() {
    let left = 24.0 * GIBIBYTE - 2e9 - level(0.0);
    for steps in [300.0, 600.0, 1000.0, 2000.0] {
        let filling = |step: f64| 2e9 + 0.3 * left * (1.0 - (-step / steps).exp());
        let found = findings(&[], &job(286, filling, level));
        assert_eq!(raised(&found, "CREEP_CONFIRMED"), None, "{steps} steps: {found:?}");
    }
}

#[test]
fn leak_behind_a_late_optimizer_is_counted_from_its_top() {
    let live =
        |step: f64| 1e9 + if step < 30.0 { 0.0 } else { 6e9 + 60.0 * MEGABYTE * (step - 30.0) };
    let found = findings(&[], &job(250, live, level));
    assert!(raised(&found, "CREEP_EARLY").is_some_and(|step| step <= 100.0), "{found:?}");
    assert!(raised(&found, "CREEP_CONFIRMED").is_some_and(|step| step <= 150.0), "{found:?}");
    let level_after = |step: f64| if step < 30.0 { 1e9 } else { 15e9 };
    let found = findings(&[], &job(500, level_after, level));
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn larger_batches_of_the_first_steps_are_not_a_leak() {
    let live = |step: f64| 2e9 + 20.0 * MEGABYTE * step.min(400.0);
    let transient = |step: f64| 2e9 + 30.0 * MEGABYTE * step.min(400.0);
    let found = findings(&[], &job(600, live, transient));
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn surge_that_stops_is_cleared() {
    let found =
        findings(&[], &job(400, |step| 1.3e9 + 60.0 * MEGABYTE * step.min(130.0), level));
    assert!(raised(&found, "CREEP_CONFIRMED").is_some(), "{found:?}");
    let (kind, state, at) = found.last().unwrap();
    assert_eq!((kind.as_str(), state.as_str()), ("CREEP_CONFIRMED", "cleared"), "{found:?}");
    assert!(*at < 300.0, "{found:?}");
}

#[test]
fn explain_shows_what_the_first_steps_are_stopped_by() {
    let leak = job(120, |step| 1.3e9 + 80.0 * MEGABYTE * step, level);
    let story = answer(&["explain", "-", "--rank", "0"], &leak);
    assert!(story.contains("MEMORY CREEP, critical: "), "{story}");
    let cache = job(140, |step| 2e9 + 5e9 * (1.0 - (-step / 60.0).exp()), level);
    let story = answer(&["explain", "-", "--rank", "0"], &cache);
    assert!(story.contains("not yet creep: it has used "), "{story}");
}

/// 3,000 steps whose batches leave 0 to 600 MB, and from then on the growth of as many steps.
fn later(n_steps: u32, growth: impl Fn(f64) -> f64) -> Vec<Value> {
    let batch = |step: f64| 100.0 * MEGABYTE * (step * 5.0 % 7.0);
    let live = |step: f64| 2e9 + batch(step) + growth((step - 3000.0).max(0.0));
    job(3000 + n_steps, live, |step| 1e9 + 2.0 * batch(step))
}

#[test]
fn fast_leak_that_sets_in_later_creeps_as_soon_as_one_of_the_first_steps() {
    let leak = later(250, |step| 60.0 * MEGABYTE * step);
    let found = findings(&[], &leak);
    let creep = raised(&found, "CREEP_CONFIRMED");
    assert!(creep.is_some_and(|step| step <= 3100.0), "{found:?}");
    assert_eq!(found.iter().filter(|(kind, ..)| kind == "CREEP_CONFIRMED").count(), 1);
}

#[test]
fn growth_that_sets_in_later_and_ends_or_goes_back_does_not_page() {
    let jump = |step: f64| if step < 1.0 { 0.0 } else { 12e9 };
    let layers = |step: f64| 0.8e9 * (step / 5.0).floor().min(10.0);
    let back = |step: f64| 10.0 * MEGABYTE * (150.0 - (step - 150.0).abs()).max(0.0);
    let shapes: [(&str, &dyn Fn(f64) -> f64); 3] =
        [("jump", &jump), ("layers", &layers), ("back", &back)];
    for (name, growth) in shapes {
        let found = findings(&[], &later(1200, growth));
        assert_eq!(raised(&found, "CREEP_CONFIRMED"), None, "{name}: {found:?}");
    }
}

#[test]
fn larger_batches_that_set_in_later_are_not_a_leak() {
    let more = |step: f64| (step - 3000.0).clamp(0.0, 300.0);
    let live = |step: f64| 2e9 + 20.0 * MEGABYTE * (step * 5.0 % 7.0 + more(step));
    let transient = |step: f64| 2e9 + 40.0 * MEGABYTE * (step * 5.0 % 7.0 + more(step));
    let found = findings(&[], &job(3600, live, transient));
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn growth_within_a_declared_warmup_is_expected_after_the_first_steps() {
    let found = findings(
        &["--creep.warmup-steps", "5000"],
        &later(1500, |step| 60.0 * MEGABYTE * step.min(150.0)),
    );
    assert!(found.is_empty(), "{found:?}");
    let leak = later(2250, |step| 60.0 * MEGABYTE * (step - 2100.0).max(0.0));
    let found = findings(&["--creep.warmup-steps", "5000"], &leak);
    let creep = raised(&found, "CREEP_CONFIRMED");
    assert!(creep.is_some_and(|step| step <= 5200.0), "{found:?}");
}

#[test]
fn process_that_grows_from_its_start_creeps_once_it_could_have_loaded() {
    let leak = |seconds: f64| 20.0 * GIBIBYTE + 60.0 * 1_048_576.0 * seconds;
    let found = findings(&[], &process(200, leak));
    assert!(raised(&found, "CREEP_CONFIRMED").is_some_and(|at| at <= 820.0), "{found:?}");
}

#[test]
fn fast_leak_behind_a_model_that_is_there_at_once_is_counted_from_its_top() {
    // A context of 2 GiB, then a model that leaves 4 of 80.
    let held = |seconds: f64| if seconds < 15.0 { 2.0 } else { 75.5 } * GIBIBYTE;
    let leak = |seconds: f64| held(seconds) + 7.0 * 1_048_576.0 * (seconds - 90.0).max(0.0);
    let found = findings(&[], &process(120, leak));
    assert!(raised(&found, "CREEP_CONFIRMED").is_some_and(|at| at <= 450.0), "{found:?}");
    let found = findings(&[], &process(240, held));
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn model_that_is_loaded_is_not_a_fast_leak() {
    let loading = |seconds: f64| GIBIBYTE + 150.0 * MEGABYTE * seconds.min(300.0);
    let found = findings(&[], &process(240, loading));
    assert!(found.is_empty(), "{found:?}");
}

/// A job on the CPU of a machine of 24 GiB, as the client pushes it: no allocator, no device.
fn host_job(n_steps: u32, live: impl Fn(f64) -> f64) -> Vec<Value> {
    let mut lines = job(n_steps, live, |_| 0.0);
    for line in &mut lines {
        line["device"] = json!("cpu");
        line.as_object_mut().unwrap().remove("reserved_bytes");
    }
    lines
}

#[test]
fn small_leak_of_host_memory_rises_whatever_the_machines_size() {
    let leak = host_job(700, |step| 1.3e9 + 300e3 * step);
    let found = findings(&[], &leak);
    assert!(raised(&found, "CREEP_EARLY").is_some(), "{found:?}");
    assert_eq!(raised(&found, "CREEP_CONFIRMED"), None, "{found:?}");
    let output = answer(&["replay", "-"], &leak);
    let rising = output.lines().find(|line| line.contains("CREEP_EARLY")).unwrap();
    let rising: Value = serde_json::from_str(rising).unwrap();
    let slope = rising["evidence"]["slope_bytes_per_step"].as_f64().unwrap();
    assert!((slope - 300e3).abs() < 1e3, "{rising}");
    assert_eq!(rising["severity"], "info");
}

#[test]
fn small_growth_that_zigzags_does_not_page() {
    let zigzag = |step: f64| 1.3e9 + 300e3 * step + 60e6 * (step / 90.0).sin();
    let found = findings(&[], &host_job(700, zigzag));
    assert_eq!(raised(&found, "CREEP_CONFIRMED"), None, "{found:?}");
}

#[test]
fn budget_is_what_growth_is_judged_against() {
    let leak = host_job(600, |step| 0.3e9 + 2e6 * step);
    let found = findings(&[], &leak);
    assert_eq!(raised(&found, "CREEP_CONFIRMED"), None, "{found:?}");
    let found = findings(&["--creep.capacity", "2GiB"], &leak);
    assert!(raised(&found, "CREEP_CONFIRMED").is_some_and(|step| step <= 300.0), "{found:?}");
    // A budget above the capacity changes nothing.
    let found = findings(&["--creep.capacity", "900GiB"], &leak);
    assert_eq!(raised(&found, "CREEP_CONFIRMED"), None, "{found:?}");
}

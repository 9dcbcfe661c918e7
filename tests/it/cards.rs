//! The figures and words of the card: they agree with each other and with what the program did, and the advice fits.

use serde_json::{Value, json};

use crate::rig::command::{replayed, stepmem, words};
use crate::rig::exporter::Exporter;
use crate::rig::job::Job;
use crate::rig::json::has;
use crate::rig::noise::noise;
use crate::rig::summary::{issue, summary};
use crate::rig::units::{GIB, MIB, float};

const KIB: u64 = 1 << 10;

/// The words of a recording's card.
fn card(recording: &str) -> String {
    words(&stepmem(&["summary", "-"], &[], recording.as_bytes()).done())
}

/// A program on the CPU of a machine with 18.5 GiB: 400 MiB, and so many bytes more at each of 400 steps of 10 ms.
fn on_cpu(more: impl Fn(u64) -> u64 + 'static) -> Job {
    let live = move |rank, step| 400 * MIB + noise(rank, step, 64 * KIB) + more(step);
    let job = Job::new(1, 400).capacity(18 * GIB + 512 * MIB).seconds_per_step(0.01);
    job.device("cpu").live(live)
}

#[test]
fn small_straight_leak_has_its_rate_and_its_end_and_is_never_nothing_to_do() {
    for rate in [100, 126, 180, 220, 250].map(|kib| kib * KIB) {
        let card = card(&on_cpu(move |step| rate * step).recording());
        assert!(!card.contains("Nothing to do"), "{card}");
        let (before, after) = card.split_once(" steps)").unwrap_or_else(|| panic!("{card}"));
        let steps = before.rsplit('(').next().unwrap().replace(',', "");
        let steps: f64 = steps.parse().unwrap_or_else(|_| panic!("{card}"));
        let left = float(18 * GIB + 112 * MIB - 400 * rate) / float(rate);
        assert!((steps / left - 1.0).abs() < 0.05, "{steps} of {left}: {card}");
        assert!(before.contains("out of memory in about"), "{card}");
        assert!(after.contains("known stable run"), "{card}");
    }
}

#[test]
fn healthy_run_is_balanced_and_nothing_is_to_do() {
    let level = |_| 0;
    let settles = |step: u64| 40 * MIB * step.min(60) / 60;
    let sawtooth = |step: u64| 300 * KIB * (step % 40);
    let losses = |step: u64| 512 * step;
    let healthy: [Job; 4] = [on_cpu(level), on_cpu(settles), on_cpu(sawtooth), on_cpu(losses)];
    for job in healthy {
        let card = card(&job.recording());
        assert!(card.starts_with("BALANCED Why: no creep"), "{card}");
        assert!(card.contains("Next: Nothing to do."), "{card}");
    }
}

#[test]
fn memory_that_rises_by_jumps_is_never_nothing_to_do() {
    // 1 to 12 MiB more at every 3rd to 10th step.
    let jumps = |step: u64| {
        (0..step / 3)
            .filter(|n| noise(1, *n, 3) == 0)
            .map(|n| (1 + noise(2, n, 12)) * MIB)
            .sum()
    };
    let card = card(&on_cpu(jumps).recording());
    assert!(!card.contains("Nothing to do"), "{card}");
    assert!(card.contains("host memory ro") || card.contains("MEMORY "), "{card}");
}

#[test]
fn reserved_memory_that_rises_beside_level_live_memory_is_never_nothing_to_do() {
    // 9.4 GiB, and 4 MiB more at each step: too little of 141 GiB to be called fragmentation.
    let reserved = |_, step: u64| 9 * GIB + 400 * MIB + 4 * MIB * step;
    let job = || {
        Job::new(1, 1_850)
            .capacity(141 * GIB)
            .live(|rank, step| 4 * GIB + noise(rank, step, 64 * KIB))
            .peak(|_, _| 8 * GIB)
    };
    let level = card(&job().reserved(|_, _| 9 * GIB).recording());
    assert!(level.contains("Nothing to do."), "{level}");
    let rising = card(&job().reserved(reserved).recording());
    assert!(!rising.contains("Nothing to do"), "{rising}");
    let words =
        "reserved memory that no larger batch explains rises steadily, by 4.00 MiB/step";
    assert!(rising.contains(words) || rising.contains("FRAGMENTATION"), "{rising}");
}

#[test]
fn card_of_one_pod_says_what_is_not_known_of_the_others() {
    let job = Job::new(4, 400).world(8).live(|_, _| 30 * GIB);
    let card = card(&job.recording());
    assert!(card.starts_with("BALANCED HERE"), "{card}");
    assert!(card.contains("of the 4 of 8 ranks that push here: no creep"), "{card}");
    assert!(
        card.contains("Not known here: ranks 4–7, which push elsewhere or not at all."),
        "{card}"
    );
    assert!(!card.contains("Never pushed") && !card.contains("Nothing to do."), "{card}");
}

#[test]
fn straight_rise_is_in_the_status_and_its_explanation() {
    let exporter = Exporter::start(&[]);
    // Less than the 32 MiB from which it is MEMORY RISING.
    exporter.push(&on_cpu(|step| 70 * KIB * step).records());
    let status = exporter.status();
    assert_eq!(status["findings"], json!([]));
    assert_eq!(status["ranks"][0]["creep"][0]["is_straight"], json!(true));
    let url = format!("http://{}", exporter.web);
    let shown = stepmem(&["status", "--url", &url], &[], b"");
    assert!(shown.out.contains("rises straight"), "{}", shown.out);
}

#[test]
fn small_straight_leak_is_rising() {
    let exporter = Exporter::start(&[]);
    exporter.push(&on_cpu(|step| 126 * KIB * step).records());
    let finding = &exporter.status()["findings"][0];
    has(finding, &json!({"kind": "CREEP_EARLY", "severity": "info"}));
}

/// The evidence of growth of a rank, and the last step of its run.
fn growth(job: &Job) -> Option<Value> {
    let summary = summary(&job.recording());
    let found =
        issue(&summary, "CREEP_CONFIRMED").or_else(|| issue(&summary, "CREEP_EARLY"))?;
    Some(found["evidence"].clone())
}

#[test]
fn growth_on_a_straight_line_is_the_rate_times_the_steps() {
    let mut n_found = 0;
    for rate in [2, 6, 16, 30].map(|mib| mib * MIB) {
        for n_steps in [60, 100, 155, 333, 700, 1201, 1999] {
            let live = move |rank, step| 4 * GIB + noise(rank, step, MIB / 4) + rate * step;
            let job = Job::new(1, n_steps).capacity(80 * GIB).live(live);
            let Some(found) = growth(&job) else { continue };
            n_found += 1;
            let of = |key: &str| found[key].as_f64().unwrap();
            let (grown, onset) = (of("growth_bytes"), of("onset_step"));
            let n_since = float(n_steps) - onset;
            for truth in [of("slope_bytes_per_step") * n_since, float(rate) * n_since] {
                let ratio = grown / truth;
                assert!((0.97..1.03).contains(&ratio), "{rate} {n_steps}: {ratio} {found}");
            }
        }
    }
    assert!(n_found >= 12, "{n_found}");
}

#[test]
fn growth_since_an_onset_never_shrinks_while_it_goes_on() {
    let live = |rank, step: u64| {
        10 * GIB + noise(rank, step, MIB) + 4 * MIB * step.saturating_sub(900)
    };
    let mut before = (0.0, 0.0);
    let mut n_found = 0;
    for n_steps in (1200..4000).step_by(150) {
        let Some(found) = growth(&Job::new(1, n_steps).live(live)) else { continue };
        let (onset, grown) =
            (found["onset_step"].as_f64().unwrap(), found["growth_bytes"].as_f64().unwrap());
        assert!(before.0 != onset || grown >= before.1, "{n_steps}: {before:?} {found}");
        let truth = float(live(0, n_steps) - live(0, 900));
        assert!((0.95..1.05).contains(&(grown / truth)), "{n_steps}: {grown} of {truth}");
        before = (onset, grown);
        n_found += 1;
    }
    assert!(n_found >= 12, "{n_found}");
}

#[test]
fn card_has_one_headroom() {
    // The allocator holds the whole device, of which steps use a part.
    let live = |_, step: u64| 20 * GIB + 8 * MIB * step;
    let job = Job::new(1, 1500).capacity(48 * GIB).live(live).reserved(|_, _| 47 * GIB);
    let card = card(&job.peak(move |rank, step| live(rank, step) + 4 * GIB).recording());
    let left = card.split(" left, ").next().unwrap();
    let left = left.rsplit("; ").next().unwrap().trim_start_matches("likely ");
    assert!(left.ends_with("GiB"), "{card}");
    let heads = "CAPACITY HEADROOM PER STEP";
    let (_, table) = card.split_once(heads).unwrap_or_else(|| panic!("{card}"));
    assert!(table.contains(&format!(" 48.0 GiB {left} ")), "{left}: {card}");
    assert!(table.contains("HEADROOM: capacity less what others hold"), "{card}");
}

#[test]
fn card_explains_of_capacity_and_headroom_what_its_ranks_have() {
    const GROWTH: &str = "Of memory that grows, it is also less the cache";
    let live = |_, _| 20 * GIB;
    let job = || Job::new(2, 400).capacity(48 * GIB).live(live).reserved(|_, _| 30 * GIB);
    let with_peak = card(&job().peak(|_, _| 21 * GIB).recording());
    assert!(with_peak.contains("HEADROOM: capacity less what others hold and less the peak."));
    for absent in [GROWTH, "no peak is known", "CAPACITY ("] {
        assert!(!with_peak.contains(absent), "{absent}: {with_peak}");
    }
    let without = job().more(|_, _| json!({"peak_allocated_bytes": null}));
    let without = card(&without.recording());
    assert!(without.contains("less what the rank holds; no peak is known."), "{without}");
    let of_one =
        |rank, _| if rank == 0 { json!({}) } else { json!({"peak_allocated_bytes": null}) };
    let mixed = card(&job().peak(|_, _| 21 * GIB).more(of_one).recording());
    assert!(
        mixed.contains("the peak, or what the rank holds where no peak is known."),
        "{mixed}"
    );
    for (limit, capacity, headroom) in [
        (
            json!({"data_limit_bytes": GIB, "data_used_bytes": 402 * MIB}),
            "CAPACITY (data): set by ulimit -d.",
            "HEADROOM (data): capacity less the process's private writable memory.",
        ),
        (
            json!({"address_space_limit_bytes": GIB, "address_space_used_bytes": 402 * MIB}),
            "CAPACITY (address_space): set by ulimit -v.",
            "HEADROOM (address_space): capacity less all addresses that the process has mapped",
        ),
    ] {
        let more = move |_, _| limit.clone();
        let limited = words(&card(&on_cpu(|step| 126 * KIB * step).more(more).recording()));
        for part in [capacity, headroom, GROWTH] {
            assert!(limited.contains(part), "{part}: {limited}");
        }
        // The memory of others does not count against a limit of the process.
        assert!(!limited.contains("others hold"), "{limited}");
    }
}

#[test]
fn rank_without_a_gpu_has_reserved_nothing_on_any_surface() {
    // As the client says it: what the process holds, and no peak.
    let pushed = || {
        on_cpu(|_| 0)
            .more(|_, _| json!({"reserved_bytes": 400 * MIB, "peak_allocated_bytes": null}))
    };
    let card = card(&pushed().recording());
    let columns = card.split_once("LIVE MEMORY ").unwrap().1.split(' ').collect::<Vec<_>>();
    assert_eq!(columns[..6], ["0", "–", "400", "MiB", "400", "MiB"], "{card}");
    assert_eq!(columns[6], "–", "{card}");
    let exporter = Exporter::start(&[]);
    exporter.push(&pushed().records());
    let status = exporter.status();
    assert_eq!(status["ranks"][0].get("reserved_bytes").unwrap_or(&Value::Null), &Value::Null);
    let history = exporter.get("/api/v1/runs/job/ranks/0/history", &[]).json();
    let reserved = history["reserved_bytes"].as_array().unwrap();
    assert!(!reserved.is_empty() && reserved.iter().all(Value::is_null), "{history}");
    let series = "stepmem_rank_memory_reserved_bytes";
    assert!(exporter.scrape().keys().all(|key| !key.starts_with(series)));
}

#[test]
fn crashed_run_is_not_called_balanced_with_nothing_to_do() {
    for (n_steps, status) in [(400, "BALANCED UNTIL IT FAILED"), (20, "TOO FEW STEPS")] {
        let exporter = Exporter::start(&[]);
        exporter.push(&Job::new(1, n_steps).live(|_, _| 30 * GIB).records());
        let end = json!({ "rank": 0, "outcome": "failed", "error_type": "ValueError", "step": n_steps });
        let answer = exporter.post_to("/v1/runs/job/end", end.to_string());
        assert_eq!(answer.status, 200, "{}", answer.body);
        let summary = exporter.get("/api/v1/runs/job/summary", &[]).json();
        let card = summary["text"].as_str().unwrap();
        assert_eq!(card.lines().next(), Some(status), "{card}");
        assert!(card.contains(&format!("failed at step {n_steps} (ValueError)")), "{card}");
        assert!(!card.contains("Nothing to do") && !card.contains("ook again"), "{card}");
    }
}

#[test]
fn advice_of_a_rise_is_to_compare_with_a_known_stable_run() {
    let live = |_, step: u64| 20 * GIB + 2 * MIB * step;
    let summary = summary(&Job::new(1, 700).live(live).recording());
    let rising = issue(&summary, "CREEP_EARLY").unwrap_or_else(|| panic!("{summary}"));
    let action = rising["action"].as_str().unwrap();
    assert!(action.contains("ompare with a known stable run"), "{action}");
    assert!(!action.contains("Watch it"), "{action}");
}

#[test]
fn log_of_numbers_that_outlasts_any_run_is_balanced() {
    let live = |rank, step| 378 * MIB + 1700 * step + noise(rank, step, MIB / 16);
    let job = Job::new(1, 1800).device("cpu").capacity(2 * GIB).seconds_per_step(0.02);
    let recording = job.live(live).recording();
    let (transitions, _) = replayed(&recording);
    assert_eq!(transitions, Vec::<Value>::new());
    let card = summary(&recording)["text"].as_str().unwrap().to_owned();
    assert!(card.starts_with("BALANCED\n"), "{card}");
}

#[test]
fn pressure_of_memory_that_is_never_live_asks_for_expandable_segments() {
    let advice = |live: u64| {
        let exporter = Exporter::start(&[]);
        let job = Job::new(1, 40).capacity(24 * GIB).live(move |_, _| live);
        exporter.push(&job.reserved(|_, _| 23 * GIB + 512 * MIB).records());
        exporter.await_metrics("the pressure", |metrics| {
            metrics.keys().any(|series| series.contains("kind=\"HIGH_PRESSURE\""))
        });
        let status = exporter.status();
        let findings = status["findings"].as_array().unwrap().clone();
        let found = findings.iter().find(|found| found["kind"] == "HIGH_PRESSURE");
        let live_advice = found.unwrap_or_else(|| panic!("{status}"))["advice"].clone();
        let summary = exporter.get("/api/v1/runs/job/summary", &[]).json();
        let of_card = issue(&summary, "HIGH_PRESSURE").unwrap()["action"].clone();
        assert_eq!(live_advice, of_card);
        live_advice.as_str().unwrap().to_owned()
    };
    let fragmented = advice(9 * GIB);
    assert!(fragmented.contains("PYTORCH_ALLOC_CONF=expandable_segments:True"), "{fragmented}");
    assert!(!fragmented.contains("Reduce"), "{fragmented}");
    // 27 % of the capacity was never live: without that memory there would be no pressure.
    let less = advice(17 * GIB);
    assert!(less.contains("PYTORCH_ALLOC_CONF=expandable_segments:True"), "{less}");
    let pools = |bytes: u64| {
        let exporter = Exporter::start(&[]);
        let job = Job::new(1, 40).capacity(24 * GIB).live(|_, _| 9 * GIB);
        let job = job.more(move |_, _| json!({"private_pools_bytes": bytes}));
        exporter.push(&job.reserved(|_, _| 23 * GIB + 512 * MIB).records());
        let summary = exporter.get("/api/v1/runs/job/summary", &[]).json();
        let issue = issue(&summary, "HIGH_PRESSURE").unwrap().clone();
        (
            issue["summary"].as_str().unwrap().to_owned(),
            issue["action"].as_str().unwrap().to_owned(),
        )
    };
    let (told, advice_of_pools) = pools(10 * GIB);
    assert!(
        told.ends_with("; 10.0 GiB of it is in private pools (CUDA graphs, MemPools)"),
        "{told}"
    );
    assert!(advice_of_pools.contains("let graphs share one"), "{advice_of_pools}");
    let (told, advice_of_pools) = pools(GIB);
    assert!(!told.contains("private pools"), "{told}");
    assert!(advice_of_pools.contains("expandable_segments"), "{advice_of_pools}");
    let (told, _) = pools(24 * GIB);
    assert!(!told.contains("private pools"), "more than is reserved: {told}");
    let full = advice(22 * GIB);
    assert!(full.starts_with("Reduce the memory load"), "{full}");
}

#[test]
fn capacity_that_is_pushed_as_0_is_unknown() {
    let exporter = Exporter::start(&[]);
    exporter.push(&Job::new(1, 3).capacity(0).live(|_, _| GIB).records());
    let rank = exporter.status()["ranks"][0].clone();
    for key in ["capacity_bytes", "headroom_bytes", "total_bytes"] {
        assert_eq!(rank[key], Value::Null, "{key}: {rank}");
    }
    let shown = stepmem(&["status", "--url", &format!("http://{}", exporter.web)], &[], b"");
    assert!(!shown.out.contains(" 0 B"), "{}", shown.out);
}

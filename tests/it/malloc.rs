//! What glibc's allocator reports of host memory that grows, and the words about what holds that memory.

use serde_json::{Value, json};

use crate::rig::exporter::Exporter;
use crate::rig::job::Job;
use crate::rig::units::{GIB, MIB};

/// The steps of a rank without a GPU that grows by 1 MiB a step from step 100 on.
const STEPS: u64 = 700;

/// Such a rank, of which some records have `(used, free)` of the allocator, in MiB.
fn growing(readings: &'static [(u64, u64, u64)]) -> Job {
    let job = Job::new(1, STEPS).device("cpu").capacity(4 * GIB).seconds_per_step(0.2);
    let live = |_, step: u64| GIB / 2 + step.saturating_sub(100) * MIB;
    job.live(live).more(move |_, step| {
        let reading = readings.iter().find(|(at, _, _)| *at == step);
        reading.map_or_else(
            || json!({}),
            |(_, used, free)| json!({"malloc_used_bytes": used * MIB, "malloc_free_bytes": free * MIB}),
        )
    })
}

/// Freed by the way: half of what grows between the two readings stays in use.
const FREED: &[(u64, u64, u64)] = &[(300, 500, 200), (650, 500, 548)];
const IN_USE: &[(u64, u64, u64)] = &[(300, 600, 50), (650, 940, 52)];
const ONE: &[(u64, u64, u64)] = &[(600, 500, 498)];
const LEVEL: &[(u64, u64, u64)] = &[(300, 400, 30), (650, 400, 30)];

/// The finding of a rank after its records, and the exporter.
fn finding(job: &Job) -> (Exporter, Value) {
    let exporter = Exporter::start(&["--holders.on-creep"]);
    exporter.push(&job.records());
    let finding = exporter.findings().remove(0);
    (exporter, finding)
}

fn text_of<'a>(finding: &'a Value, key: &str) -> &'a str {
    finding[key].as_str().unwrap()
}

/// Reports a holder of `(bytes a step, whether it keeps more)`, with more fields.
fn holder(exporter: &Exporter, bytes_per_step: u64, keeps_more: &Value, more: &Value) -> Value {
    let mut holder = json!({"name": "`Report.examples`", "kind": "list", "file": "/app/train.py", "line": 20,
        "tensors": 1200, "bytes": 600 * bytes_per_step, "tensors_per_step": 2.0,
        "bytes_per_step": bytes_per_step, "keeps_more": keeps_more});
    holder.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let named = json!({"run": "job", "rank": 0, "outcome": "named", "first_step": 560, "last_step": 600,
        "holders": [holder]});
    exporter.take("/v1/holders", &named);
    exporter.findings().remove(0)
}

#[test]
fn allocator_is_asked_for_only_once_a_finding_says_that_host_memory_grows() {
    let exporter = Exporter::start(&["--holders.on-creep"]);
    let records = growing(&[]).records();
    let asks = |records: &[Value]| {
        let actions = exporter.actions(records);
        actions.into_iter().any(|of| of == json!({"type": "malloc", "run": "job", "rank": 0}))
    };
    let mut has_found = false;
    for batch in records.chunks(20) {
        let has_asked = asks(batch);
        has_found = exporter.status()["findings"] != json!([]);
        assert_eq!(has_asked, has_found);
    }
    assert!(has_found);
    // It is asked for again in each answer: the client decides when it may read it.
    assert!(asks(&Job::new(1, 0).steps(701..703).device("cpu").live(|_, _| GIB).records()));
    let (level, _) = finding(&growing(&[]));
    drop(level.actions(
        &Job::new(1, 0).steps(701..4000).device("cpu").live(|_, _| GIB + 88 * MIB).records(),
    ));
    let after =
        Job::new(1, 0).steps(4000..4001).device("cpu").live(|_, _| GIB + 88 * MIB).records();
    assert!(
        level.actions(&after).iter().all(|of| of["type"] != "malloc"),
        "its growth is over"
    );
    let off = Exporter::start(&[]);
    assert_eq!(
        off.actions(&growing(&[]).records()).iter().find(|of| of["type"] == "malloc"),
        None
    );
    let gpu = Exporter::start(&["--holders.on-creep"]);
    let of_device = Job::new(1, STEPS).live(|_, step| GIB + step * 16 * MIB).records();
    assert!(gpu.actions(&of_device).iter().all(|of| of["type"] != "malloc"));
}

#[test]
fn memory_that_was_freed_and_stays_is_told_as_such_and_no_list_is_blamed() {
    let (exporter, found) = finding(&growing(FREED));
    let said = "; 99% of the last 350 MiB were freed and stayed with glibc: nobody holds them";
    assert!(text_of(&found, "sentence").contains(said), "{found}");
    let advice = text_of(&found, "advice");
    assert!(
        advice.contains("MALLOC_MMAP_THRESHOLD_=131072") && !advice.contains("clone()"),
        "{advice}"
    );
    let found = holder(&exporter, 900, &json!(false), &json!({}));
    let nobody =
        "no object that holds it was found among the objects scanned by step 600; 99% of";
    assert!(text_of(&found, "sentence").contains(nobody), "{found}");
    assert!(!found.to_string().contains("Report.examples"), "{found}");
    assert!(text_of(&found, "advice").contains("MALLOC_MMAP_THRESHOLD_"), "{found}");
    assert!(exporter.scrape().keys().all(|series| !series.contains("Report.examples")));
}

#[test]
fn list_with_next_to_nothing_of_the_growth_is_no_holder_unless_it_may_keep_more() {
    let (exporter, _) = finding(&growing(&[]));
    let held = |bytes, keeps_more: Value| {
        let found = holder(&exporter, bytes, &keeps_more, &json!({}));
        text_of(&found, "sentence").contains("held by `Report.examples`")
    };
    let told = [held(900, json!(false)), held(900, json!(true)), held(0, json!(false))];
    assert_eq!(told, [false, true, true]);
    assert!(held(MIB / 10, json!(false)));
}

#[test]
fn one_reading_tells_what_is_free_and_two_what_grows() {
    let (exporter, found) = finding(&growing(ONE));
    let level = "; 498 MiB of the process were freed and stayed with glibc at step 600";
    assert!(text_of(&found, "sentence").contains(level), "{found}");
    // Next to a holder that explains the growth, one reading says nothing.
    let found = holder(&exporter, MIB, &json!(false), &json!({}));
    let sentence = text_of(&found, "sentence");
    assert!(
        sentence.contains("held by `Report.examples`") && !sentence.contains("glibc"),
        "{found}"
    );
    assert!(text_of(&found, "advice").contains("Report.examples"), "{found}");
    let (_, found) = finding(&growing(IN_USE));
    let said = "; 97% of the last 350 MiB are in use: something holds them";
    assert!(text_of(&found, "sentence").contains(said), "{found}");
}

#[test]
fn what_the_allocator_says_changes_no_severity() {
    let severity = |readings| finding(&growing(readings)).1["severity"].clone();
    let without = severity(&[]);
    for readings in [FREED, IN_USE, ONE, LEVEL] {
        assert_eq!(severity(readings), without);
    }
    let (_, found) = finding(&growing(LEVEL));
    assert!(!found["sentence"].to_string().contains("glibc"), "{found}");
}

#[test]
fn growth_that_comes_seldom_is_not_said_to_come_at_every_step() {
    let stairs = |marks: Value| {
        let job = Job::new(1, STEPS).device("cpu").capacity(4 * GIB).seconds_per_step(0.2);
        let live = |_, step: u64| GIB / 2 + step / 30 * 16 * MIB;
        let marks =
            move |_, step: u64| if step.is_multiple_of(30) { marks.clone() } else { json!({}) };
        finding(&job.live(live).more(marks)).0
    };
    let often = |exporter: &Exporter, rate: f64| {
        let more = json!({"added_per_step": rate});
        text_of(&holder(exporter, MIB / 2, &json!(false), &more), "advice").to_owned()
    };
    let unmarked = stairs(json!({}));
    let advice = often(&unmarked, 1.0 / 32.0);
    assert!(
        advice.contains("it keeps more about every 32 steps, not at every step"),
        "{advice}"
    );
    assert!(often(&unmarked, 1.0).contains("it keeps more and more"));
    let marked = stairs(json!({"marks": ["eval"]}));
    let advice = often(&marked, 1.0 / 32.0);
    let said = "it keeps more at evaluations, checkpoints or epochs, about every 30 steps, not at every step";
    assert!(advice.contains(said), "{advice}");
    // The summary after its end says the same.
    marked.end("job", &json!({"rank": 0, "outcome": "completed"}));
    let advice = text_of(&marked.findings()[0], "advice").to_owned();
    assert!(advice.contains(said), "{advice}");
}

#[test]
fn what_the_code_does_to_a_holder_is_told_in_words() {
    let (exporter, _) = finding(&growing(&[]));
    let said = |removal: Value| {
        let found = holder(&exporter, MIB, &json!(false), &json!({"removal": removal}));
        text_of(&found, "sentence").to_owned()
    };
    for (removal, words) in [
        (
            json!({"outcome": "nothing", "file": "/app/train.py"}),
            "; no line found in app/train.py removes from it;",
        ),
        (
            json!({"outcome": "emptied", "file": "/app/evaluate.py", "line": 40}),
            "; app/evaluate.py:40 can empty it; it has not shrunk since step 560;",
        ),
        (
            json!({"outcome": "handed_on", "file": "/app/train.py", "line": 90}),
            "; whether app/train.py:90 removes from it is not known;",
        ),
    ] {
        let sentence = said(removal);
        assert!(sentence.contains(words), "{sentence}");
    }
    for (removal, error) in [
        (json!({"outcome": "nothing"}), "removal.file"),
        (json!({"outcome": "other", "file": "a"}), "other"),
        (json!({"outcome": "nothing", "file": "a\u{202e}"}), "file: "),
        (json!({"outcome": "nothing", "file": "a", "value": 1}), "unknown field `value`"),
    ] {
        let body = json!({"run": "job", "rank": 0, "outcome": "named", "holders": [{"name": "a", "kind": "list",
            "tensors": 0, "bytes": 0, "tensors_per_step": 0, "bytes_per_step": 0, "removal": removal}]});
        let refused = exporter.post_to("/v1/holders", body.to_string());
        assert!(refused.status == 400 && refused.body.contains(error), "{}", refused.body);
    }
}

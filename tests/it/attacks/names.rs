//! Names and reports that mislead.

use serde_json::json;

use crate::rig::refusals::check_problem;
use crate::rig::victim::Victim;

#[test]
fn names_with_hidden_characters_are_refused() {
    let victim = Victim::start(&[]);
    for hidden in ["\u{202e}", "\u{200b}", "\u{2066}", "\u{feff}", "\u{e0041}", "\u{2028}"] {
        let name = format!("a{hidden}b");
        let body = json!({"run": name, "rank": 7, "step": 1, "allocated_bytes": 1});
        let answer = victim.exporter.post(body.to_string());
        check_problem(&answer, 400, "contains an invisible character");
        let body = json!({"device": name, "rank": 7, "step": 1, "allocated_bytes": 1});
        check_problem(&victim.exporter.post(body.to_string()), 400, "invisible character");
    }
    let plain = json!({"run": "größe 变量 🔥", "rank": 7, "step": 1, "allocated_bytes": 1});
    assert_eq!(victim.exporter.post(plain.to_string()).status, 200);
    victim.survives("hidden characters");
}

#[test]
fn snapshot_of_a_rank_that_is_not_held_is_refused() {
    let victim = Victim::start(&[]);
    let report = |run: &str| {
        let body = json!({"run": run, "rank": 0, "outcome": "written", "path": "/s/x.pickle"});
        victim.exporter.post_to("/v1/snapshots", body.to_string())
    };
    check_problem(&report("other"), 404, "no rank 0 of that run");
    assert_eq!(report("good").status, 200);
    assert_eq!(victim.exporter.status()["snapshots"].as_array().unwrap().len(), 1);
    victim.survives("foreign snapshots");
}

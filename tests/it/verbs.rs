//! What an operator tells a running exporter, and what it shows of many ranks.

use serde_json::{Value, json};

use crate::rig::command::{Ended, stepmem};
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::units::GIB;

fn run(arguments: &[&str], url: &str) -> Ended {
    stepmem(&[arguments, &["--url", url]].concat(), &[], b"")
}

fn done(ended: &Ended) -> &str {
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    ended.out.trim_end()
}

/// A rank near its capacity.
fn pressed(rank: u64, percent: u64) -> Value {
    json!({
        "run": "llm/7b", "rank": rank, "step": 7, "allocated_bytes": percent * GIB / 100,
        "peak_allocated_bytes": percent * GIB / 100, "total_bytes": GIB,
    })
}

#[test]
fn finding_is_acknowledged_and_a_run_ended_over_tcp_and_the_unix_socket() {
    let folder = Folder::new("verbs");
    let socket = folder.path("push.sock");
    let token = folder.write("token", "secret\n");
    let exporter =
        Exporter::start(&["--push.unix-socket", &text(&socket), "--push.token-file", &token]);
    let (tcp, unix) =
        (format!("http://{}", exporter.push), format!("unix://{}", socket.display()));
    let headers = [("content-type", "application/json"), ("authorization", "Bearer secret")];
    let batch = json!([pressed(3, 99)]).to_string();
    let pushed = exporter.request("POST", "/v1/steps", &headers, batch.as_bytes());
    assert_eq!(pushed.status, 200);

    let ack = ["ack", "--run", "llm/7b", "--rank", "3", "--kind", "high_pressure"];
    let why = ["--for", "2h", "--reason", "fixed shapes"];
    let ack = [&ack[..], &why].concat();
    let refused = run(&ack, &tcp);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("answers 401"), "{}", refused.err);
    for url in [&tcp, &unix] {
        let with_token = [&ack[..], &["--token-file", &token]].concat();
        let sentence = "Acknowledged: HIGH PRESSURE of rank 3 of llm/7b is info for 2h.";
        assert_eq!(done(&run(&with_token, url)), sentence);
    }
    let status = exporter.status();
    assert_eq!(status["acks"][0]["reason"], "fixed shapes");
    let shown = run(&["status"], &format!("http://{}", exporter.web));
    assert!(shown.out.contains("more: HIGH PRESSURE, rank 3 of llm/7b: fixed shapes"));

    let release = run(&["release", "--for", "10m", "--token-file", &token], &unix);
    assert_eq!(done(&release), "The devices are closed for 10m.");
    let end = ["end", "--run", "llm/7b", "--outcome", "failed", "--token-file", &token];
    assert_eq!(done(&run(&end, &unix)), "Ended (failed): llm/7b.");
    assert_eq!(exporter.status()["ranks"][0]["end"]["outcome"], "failed");
}

#[test]
fn verb_without_an_exporter_or_with_a_wrong_word_is_an_error() {
    let nowhere = run(&["release"], "unix:///nowhere/push.sock");
    assert_eq!(nowhere.code, Some(1));
    assert!(nowhere.err.contains("no exporter answers at unix:///nowhere/push.sock"));
    for arguments in [
        &["ack", "--kind", "CREEP_CONFIRMED", "--reason", "r"][..],
        &["ack", "--run", "r", "--rank", "1", "--kind", "NONE", "--reason", "r"],
        &["end"],
        &["end", "--run", "r", "--outcome", "bored"],
        &["status", "--sort", "name"],
    ] {
        assert_eq!(stepmem(arguments, &[], b"").code, Some(2), "{arguments:?}");
    }
}

#[test]
fn status_of_many_ranks_shows_the_worst_unless_all_are_asked_for() {
    let exporter = Exporter::start(&[]);
    let of = |rank: u64| pressed(rank, if rank == 77 { 99 } else { 20 + rank % 50 });
    exporter.push(&(0..100).map(of).collect::<Vec<_>>());
    exporter.await_metrics("pressure", |metrics| {
        metrics
            .contains_key(r#"stepmem_diagnosis{run="llm/7b",rank="77",kind="HIGH_PRESSURE"}"#)
    });
    let url = format!("http://{}", exporter.web);
    let ranks = |arguments: &[&str]| -> Vec<String> {
        let shown = run(&[&["status"], arguments].concat(), &url);
        let lines = done(&shown).lines().filter(|line| line.starts_with(" llm/7b"));
        lines.map(|line| line.split_whitespace().nth(1).unwrap().to_owned()).collect()
    };
    let worst = ranks(&[]);
    assert_eq!((worst.len(), worst[0].as_str()), (32, "77"));
    assert!(run(&["status"], &url).out.contains("and 68 more ranks"));
    assert_eq!(ranks(&["--all"]).len(), 100);
    assert_eq!(ranks(&["--all", "--sort", "pressure"])[..2], ["77", "49"]);
    assert_eq!(ranks(&["--rank", "12"]), ["12"]);
    assert_eq!(ranks(&["--run", "other"]), [""; 0]);
}

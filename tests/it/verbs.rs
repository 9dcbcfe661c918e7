//! What an operator tells a running exporter, and what it shows of many ranks.

use std::io;
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;

use serde_json::{Value, json};

use crate::rig::command::{Ended, stepmem};
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::refusals::check_problem;
use crate::rig::units::{GIB, MIB};

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
    refused.fails(1, "answers 401");
    for url in [&tcp, &unix] {
        let with_token = [&ack[..], &["--token-file", &token]].concat();
        let sentence = "Acknowledged for 2 h: HIGH PRESSURE of rank 3 of llm/7b. Until then it is info and pages nobody.";
        assert_eq!(done(&run(&with_token, url)), sentence);
    }
    let status = exporter.status();
    assert_eq!(status["acks"][0]["reason"], "fixed shapes");
    let shown = run(&["status"], &format!("http://{}", exporter.web));
    assert!(shown.out.contains("more: HIGH PRESSURE, rank 3 of llm/7b: fixed shapes"));

    let release = run(&["release", "--for", "10m", "--token-file", &token], &unix);
    assert_eq!(done(&release), "The devices are closed for 10 min.");
    let end = ["end", "--run", "llm/7b", "--outcome", "failed", "--token-file", &token];
    assert_eq!(done(&run(&end, &unix)), "Ended (failed): llm/7b.");
    assert_eq!(exporter.status()["ranks"][0]["end"]["outcome"], "failed");
}

#[test]
fn live_summary_and_explanation_say_what_the_recording_says() {
    let folder = Folder::new("live");
    let exporter = Exporter::start(&[]);
    let job = Job::leaking("llm/7b", 0..900, 24 * MIB);
    for batch in job.records().chunks(300) {
        exporter.push(batch);
    }
    let file = folder.write("steps.jsonl", &job.recording());
    let replayed = stepmem(&["summary", &file], &[], b"");
    let verdict = |text: &str| text.lines().take(4).map(str::to_owned).collect::<Vec<_>>();
    let socket = folder.path("web.sock");
    forward(&socket, exporter.web.to_string());
    for url in [format!("http://{}/", exporter.web), format!("unix://{}", socket.display())] {
        let card = run(&["summary"], &url);
        assert!(done(&card).starts_with("MEMORY CREEP"), "{}", card.out);
        assert_eq!(verdict(&card.out), verdict(&replayed.out));
        let named = run(&["summary", "--run", "llm/7b", "--json"], &url);
        let named: Value = serde_json::from_str(done(&named)).unwrap();
        assert_eq!(named["diagnosis"]["kind"], "CREEP_CONFIRMED");

        let explained = run(&["explain", "--rank", "2"], &url);
        let text = done(&explained);
        for part in [
            "Run llm/7b, rank 2",
            "MEMORY CREEP (",
            "Next: ",
            "Live memory: ",
            "Headroom: ",
            "Out of memory in ",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let steady = run(&["explain", "--rank", "1"], &url);
        let (_, windows) = done(&steady).split_once("Live memory: its windows\n").unwrap();
        assert!(done(&steady).contains("\n  None.\n"), "{}", steady.out);
        let outcome = windows.lines().nth(1).unwrap();
        assert!(outcome.contains(" < "), "a gate with its value and limit: {outcome}");
    }
}

#[test]
fn live_question_without_an_answer_is_an_error() {
    let exporter = Exporter::start(&[]);
    let url = format!("http://{}", exporter.web);
    let fails = |code: i32, arguments: &[&str]| {
        let ended = run(arguments, &url);
        assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""));
        ended.err
    };
    assert_eq!(fails(1, &["summary"]), format!("error: no rank pushes to {url}\n"));
    let none = format!("error: {url} has no rank 7; none pushes\n");
    assert_eq!(fails(2, &["status", "--rank", "7"]), none);
    assert_eq!(fails(2, &["explain", "--rank", "7"]), none);
    let steady = json!({"run": "a", "rank": 0, "step": 1, "allocated_bytes": GIB});
    exporter.push(std::slice::from_ref(&steady));
    let windows = exporter.get("/api/v1/runs/a/ranks/1/windows", &[]);
    check_problem(&windows, 404, "rank 1 of run a has not pushed");
    let young = run(&["explain", "--rank", "0"], &url);
    assert!(done(&young).contains("None; judged from step 47 on"), "{}", young.out);
    // What is named and is not there is a wrong argument, as of a file.
    for (arguments, said) in [
        (&["explain", "--rank", "1"][..], "has no rank 1 of run a, but 0"),
        (&["status", "--rank", "1"], "has no rank 1 of run a, but 0"),
        (&["status", "--run", "a", "--rank", "1"], "has no rank 1 of run a, but 0"),
        (&["status", "--run", "z"], "has no rank of run z; it has the runs a"),
        (
            &["explain", "--run", "z", "--rank", "1"],
            "has no rank 1 of run z; it has the runs a",
        ),
        (&["summary", "--run", "z"], "answers 404 Not Found: no rank of run z has pushed"),
    ] {
        let error = fails(2, arguments);
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
    let mut other = steady;
    other["run"] = "b".into();
    exporter.push(&[other]);
    for question in [&["summary"][..], &["explain", "--rank", "0"]] {
        assert!(fails(2, question).contains("has 2 runs; name one with --run: a, b"));
    }
    for arguments in [
        &["summary", "steps.jsonl"][..],
        &["summary", "--policy", "traceml"],
        &["summary", "--creep.warmup-steps", "9"],
        &["explain", "--pid", "7"],
    ] {
        assert_eq!(run(arguments, &url).code, Some(2), "{arguments:?}");
    }
}

#[test]
fn question_to_the_push_endpoint_is_answered_by_the_page() {
    let folder = Folder::new("other-port");
    let socket = folder.path("push.sock");
    let exporter = Exporter::start(&["--push.unix-socket", &text(&socket)]);
    for batch in Job::leaking("llm/7b", 0..900, 24 * MIB).records().chunks(300) {
        exporter.push(batch);
    }
    let [push, page] = [exporter.push, exporter.web].map(|address| format!("http://{address}"));
    for question in [&["status"][..], &["summary"], &["explain", "--rank", "2"]] {
        let answer = run(question, &push).quiet();
        let first = |text: &str| text.lines().next().map(str::to_owned);
        assert_eq!(first(&answer), first(&run(question, &page).quiet()), "{question:?}");
    }
    // An order goes where it was sent, as does everything with credentials and over a socket.
    run(&["end", "--run", "llm/7b"], &page).fails(
        1,
        &format!(
            "answers 404 Not Found: no such path; / links to all pages; pushes go to {push}"
        ),
    );
    let password = folder.write("password", "word\n");
    let as_user = ["status", "--user", "reader", "--password-file", &password];
    let named = format!("answers 404 Not Found: the page, /metrics and /api are at {page}; ");
    run(&as_user, &push).fails(1, &named);
    run(&["status"], &push.replace("//", "//reader:word@")).fails(1, &named);
    run(&["status"], &format!("unix://{}", socket.display())).fails(1, &named);
}

/// Has a Unix socket lead to a TCP address, for as long as the test runs.
fn forward(socket: &Path, address: String) {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        for inside in listener.incoming() {
            let (inside, outside) = (inside.unwrap(), TcpStream::connect(&address).unwrap());
            let (mut from, mut to) =
                (inside.try_clone().unwrap(), outside.try_clone().unwrap());
            thread::spawn(move || io::copy(&mut from, &mut to));
            thread::spawn(move || io::copy(&mut &outside, &mut &inside));
        }
    });
}

#[test]
fn verb_without_an_exporter_or_with_a_wrong_word_is_an_error() {
    let nowhere = run(&["release"], "unix:///nowhere/push.sock");
    nowhere.fails(1, "no exporter answers at unix:///nowhere/push.sock");
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
fn operator_who_names_what_never_pushed_is_told_so() {
    let exporter = Exporter::start(&[]);
    exporter.push(&[pressed(3, 99)]);
    let push = format!("http://{}", exporter.push);
    let refused = |arguments: &[&str]| {
        let ended = run(arguments, &push);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""));
        ended.err
    };
    let nope = refused(&["end", "--run", "nope"]);
    assert!(nope.contains("404") && nope.contains("no run nope has pushed here"), "{nope}");
    let rank = refused(&["end", "--run", "llm/7b", "--rank", "4"]);
    assert!(rank.contains("no rank 4 of that run pushes here now"), "{rank}");
    // A client may end before its first step.
    let end =
        json!({"outcome": "failed", "rank": 0, "instance": "00000000000000aa"}).to_string();
    assert_eq!(exporter.post_to("/v1/runs/young/end", end).status, 200);
    assert_eq!(done(&run(&["end", "--run", "llm/7b"], &push)), "Ended (completed): llm/7b.");
}

#[test]
fn diagnosis_is_acknowledged_by_the_name_that_pages_show() {
    let exporter = Exporter::start(&[]);
    exporter.push(&[pressed(3, 99)]);
    let push = format!("http://{}", exporter.push);
    for kind in ["HIGH PRESSURE", "high pressure", "High_Pressure", "high-pressure"] {
        let of = ["ack", "--run", "llm/7b", "--rank", "3", "--reason", "r", "--kind", kind];
        assert!(done(&run(&of, &push)).contains(": HIGH PRESSURE of rank 3 of"), "{kind}");
    }
    let creep = ["ack", "--run", "llm/7b", "--rank", "3", "--reason", "r", "--kind"];
    let creep = [&creep[..], &["Memory Creep"]].concat();
    assert!(done(&run(&creep, &push)).contains(": MEMORY CREEP of rank 3 of"));
    let unknown = stepmem(&[&creep[..8], &["MEMORY LOSS"]].concat(), &[], b"");
    unknown.fails(2, "CREEP_CONFIRMED (MEMORY CREEP), ");
    let absent = "It is not found there now: is that the right one?";
    assert!(done(&run(&creep, &push)).ends_with(absent));
    let found =
        ["ack", "--run", "llm/7b", "--rank", "3", "--reason", "r", "--kind", "HIGH PRESSURE"];
    assert!(!done(&run(&found, &push)).contains(absent));
}

#[test]
fn only_rank_needs_no_number_and_the_host_has_no_reserved_memory() {
    let folder = Folder::new("only-rank");
    let record = |rank: u64, step: u64| {
        json!({
            "run": "job", "rank": rank, "step": step, "device": "cpu", "time": 1000 + step,
            "allocated_bytes": step * 8 * MIB, "total_bytes": 16 * GIB,
        })
    };
    let lines = |ranks: u64| -> String {
        let records = (1..=900).flat_map(|step| (0..ranks).map(move |rank| record(rank, step)));
        records.map(|record| record.to_string()).collect::<Vec<_>>().join("\n")
    };
    let one = stepmem(&["explain", &folder.write("one.jsonl", &lines(1))], &[], b"");
    let text = done(&one);
    assert!(text.starts_with("Run job, rank 0 on cpu"), "{text}");
    assert!(text.contains("At the end: MEMORY CREEP"), "{text}");
    for absent in ["CREEP_", "Reserved", "outside the allocator"] {
        assert!(!text.contains(absent), "{absent} in {text}");
    }
    let two = stepmem(&["explain", &folder.write("two.jsonl", &lines(2))], &[], b"");
    two.fails(2, "run job has 2 ranks; name one with --rank: 0, 1");
    let path = folder.path("two.jsonl").display().to_string();
    for (arguments, said) in [
        (
            &["--rank", "3"][..],
            "no train step of rank 3, and no sample by time; run job has the ranks 0, 1",
        ),
        (
            &["--run", "nope"],
            "no train step of any rank of run nope, and no sample by time; it has the runs job",
        ),
    ] {
        stepmem(&[&["explain"], arguments, &[&path]].concat(), &[], b"").fails(2, said);
    }
    let exporter = Exporter::start(&[]);
    exporter.push(&[record(5, 1)]);
    let url = format!("http://{}", exporter.web);
    assert!(done(&run(&["explain"], &url)).starts_with("Run job, rank 5"));
    for steps in [1..450, 450..900] {
        exporter.push(&steps.map(|step| record(5, step)).collect::<Vec<_>>());
    }
    let live = run(&["explain"], &url);
    assert!(
        done(&live).contains("MEMORY CREEP") && !done(&live).contains("eserved"),
        "{}",
        live.out
    );
    exporter.push(&[record(6, 1)]);
    assert!(run(&["explain"], &url).err.contains("name one with --rank: 5, 6"));
}

#[test]
fn tables_fit_the_terminal_and_name_the_columns_that_have_no_room() {
    let folder = Folder::new("narrow");
    let exporter = Exporter::start(&[]);
    let job = Job::leaking("llm/7b", 0..900, 24 * MIB);
    for batch in job.records().chunks(300) {
        exporter.push(batch);
    }
    let url = format!("http://{}", exporter.web);
    let file = folder.write("steps.jsonl", &job.recording());
    let json =
        folder.write("summary.json", &stepmem(&["summary", &file, "--json"], &[], b"").out);
    for arguments in [
        &["status", "--url", &url][..],
        &["summary", &file],
        &["summary", "--url", &url],
        &["compare", &json, &json],
        &["run", "-h"],
        &["ack", "-h"],
        &["settings"],
    ] {
        let text = stepmem(arguments, &[("COLUMNS", "80")], b"").out;
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 80, "{widest} columns: {text}");
    }
    let narrow = stepmem(&["status", "--url", &url], &[("COLUMNS", "80")], b"").out;
    assert!(
        narrow.contains("MEMORY CREEP") && narrow.contains("\n No space for: "),
        "{narrow}"
    );
    let piped = stepmem(&["status", "--url", &url], &[], b"").out;
    assert!(piped.lines().next().unwrap().contains("RESERVED"), "{piped}");
    // Ranks that nothing is wrong with stand in the order of their numbers.
    let card = stepmem(&["summary", &file], &[], b"").out;
    let (_, table) = card.split_once("  RANK ").unwrap();
    let ranks =
        table.lines().skip(1).map_while(|line| line.split_whitespace().next()?.parse().ok());
    let ranks: Vec<u64> = ranks.collect();
    assert!(ranks.len() > 2 && ranks[1..].is_sorted(), "{card}");
}

#[test]
fn short_help_of_run_has_its_own_options_and_names_the_place_of_the_settings() {
    let short = stepmem(&["run", "-h"], &[], b"").out;
    assert!(short.lines().count() < 40, "{short}");
    assert!(short.contains("Settings: stepmem help settings") && short.contains("--fail-on"));
    assert!(!short.contains("--rank.max") && !short.contains("0.0.0.0"), "{short}");
    let long = stepmem(&["run", "--help"], &[], b"").out;
    assert!(long.contains("--rank.max") && long.contains("[default: logs]"), "{long}");
    for arguments in [&["help", "settings"][..], &["settings"]] {
        let listed = stepmem(arguments, &[], b"").out;
        for setting in stepmem::config::table::SETTINGS {
            assert!(listed.contains(&format!("\n--{}", setting.key)), "{}", setting.key);
            assert!(listed.contains(&setting.variable()), "{}", setting.key);
        }
    }
}

#[test]
fn what_to_do_is_said_of_a_taken_port_a_missing_exporter_and_a_mistyped_variable() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for command in ["serve", "demo"] {
        let push = ["--push.listen-address", "127.0.0.1:0"];
        let of = [&[command, "--web.listen-address", &address][..], &push].concat();
        let ended = stepmem(&of, &[], b"");
        assert_eq!(ended.code, Some(1), "{}", ended.err);
        for part in [&address[..], "another stepmem", "--web.listen-address (127.0.0.1:0 takes"]
        {
            assert!(ended.err.contains(part), "no {part}: {}", ended.err);
        }
    }
    drop(taken);
    let nobody = run(&["status"], &format!("http://{address}"));
    for part in ["no exporter answers at", "stepmem serve", "--url"] {
        assert!(nobody.err.contains(part), "no {part}: {}", nobody.err);
    }
    let slips =
        [("STEPMEM_PUSH_ADRESS", ":1"), ("STEPMEM_LIMIT", "1"), ("STEPMEM_SERVICE_HOST", "a")];
    let checked = stepmem(&["check", "--no-nvml"], &slips, b"");
    for words in [
        "STEPMEM_PUSH_ADRESS: no setting has this name; did you mean STEPMEM_PUSH_LISTEN_ADDRESS?\n",
        "STEPMEM_LIMIT: no setting has this name\n",
    ] {
        assert!(checked.out.contains(words), "{}", checked.out);
    }
    assert!(!checked.out.contains("STEPMEM_SERVICE_HOST"), "{}", checked.out);
    let snapshot = text(
        &crate::rig::folder::root()
            .join("tests/data/snapshots/vectors/before_after.step10.pickle.gz"),
    );
    let moment = stepmem(&["snapshot", "show", &snapshot, "--at", "9999"], &[], b"");
    moment.fails(2, "no step 9999, the snapshot has steps ");
}

#[test]
fn status_of_many_ranks_shows_the_worst_unless_all_are_asked_for() {
    let exporter = Exporter::start(&[]);
    let of = |rank: u64| pressed(rank, if rank == 77 { 99 } else { 20 + rank % 50 });
    exporter.push(&(0..100).map(of).collect::<Vec<_>>());
    exporter.await_metrics("pressure", |metrics| {
        metrics.contains_key(
            r#"stepmem_diagnosis_severity{run="llm/7b",rank="77",kind="HIGH_PRESSURE"}"#,
        )
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
}

#[test]
fn end_that_changes_nothing_is_refused_and_not_confirmed() {
    let exporter = Exporter::start(&[]);
    let url = format!("http://{}", exporter.push);
    exporter.push(&[pressed(0, 50)]);
    let end = |outcome: &str, more: &[&str]| {
        run(&[&["end", "--run", "llm/7b", "--outcome", outcome], more].concat(), &url)
    };
    assert_eq!(done(&end("completed", &[])), "Ended (completed): llm/7b.");
    assert_eq!(done(&end("completed", &[])), "Ended (completed): llm/7b.");
    let known = "rank 0 of llm/7b ended before (completed), and the first end counts";
    end("failed", &["--rank", "0"]).fails(1, known);
    end("failed", &[]).fails(1, "llm/7b ended before (completed), and the first end counts");
    assert_eq!(exporter.status()["ranks"][0]["end"]["outcome"], "completed");
}

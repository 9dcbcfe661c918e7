//! Who may do what: a pusher its own ranks, an admin everything; and what wrong tokens come to.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use rustix::process::geteuid;
use serde_json::{Value, json};

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::http::{Answer, JSON, connect, converse, head, request};
use crate::rig::refusals::check_problem;
use crate::rig::units::GIB;
use crate::rig::wait::{DEADLINE, await_true};

const FIRST: &str = "00000000000000aa";
const SECOND: &str = "00000000000000bb";
const PUSH: &str = "Bearer the push token";
const ADMIN: &str = "Bearer the admin token";

/// An exporter with a token for each role.
struct Guarded {
    exporter: Exporter,
    folder: Folder,
}

impl Guarded {
    fn start(name: &str) -> Self {
        let folder = Folder::new(name);
        let (push, admin) = (
            folder.write("push", "the push token\n"),
            folder.write("admin", "the admin token"),
        );
        let arguments = ["--push.token-file", &push, "--admin.token-file", &admin];
        let exporter = Exporter::start(&arguments);
        Self { exporter, folder }
    }

    fn post(&self, token: &str, path: &str, body: &Value) -> Answer {
        let headers = [JSON, ("authorization", token)];
        self.exporter.request("POST", path, &headers, body.to_string().as_bytes())
    }

    fn push(&self, rank: u64, instance: Option<&str>) {
        let record = record(rank, 1, instance);
        assert_eq!(self.post(PUSH, "/v1/steps", &record).status, 200);
    }

    fn outcome(&self, rank: u64) -> Option<Value> {
        let status = self.exporter.status();
        let ranks = status["ranks"].as_array().unwrap();
        let found = ranks.iter().find(|row| row["rank"] == rank).unwrap();
        found["end"].get("outcome").cloned()
    }
}

fn record(rank: u64, step: u64, instance: Option<&str>) -> Value {
    let mut record = json!({"run": "llm", "rank": rank, "step": step, "allocated_bytes": GIB});
    if let Some(instance) = instance {
        record["instance"] = instance.into();
    }
    record
}

fn end(rank: Option<u64>, instance: Option<&str>) -> Value {
    json!({"rank": rank, "instance": instance, "outcome": "completed"})
}

/// The requests that only an admin may make: path and body.
fn admin_requests() -> Vec<(&'static str, Value)> {
    let ack = json!({"rank": 0, "kind": "HIGH_PRESSURE", "for_seconds": 60, "reason": "known"});
    vec![
        ("/v1/runs/llm/ack", ack),
        ("/v1/runs/llm/snapshot", json!({"rank": 0})),
        ("/v1/runs/llm/lines", json!({"rank": 0})),
        ("/v1/nvml/release", json!({"for_seconds": 0})),
        ("/v1/runs/llm/end", end(None, None)),
    ]
}

const END: &str = "/v1/runs/llm/end";

#[test]
fn pusher_ends_the_ranks_of_its_own_process_only() {
    let guarded = Guarded::start("roles-own");
    guarded.push(0, Some(FIRST));
    guarded.push(1, Some(SECOND));
    guarded.push(2, None);
    let refused = guarded.post(PUSH, END, &end(Some(1), Some(FIRST)));
    check_problem(&refused, 409, "rank 1 of llm is held by another process");
    let unnamed = guarded.post(PUSH, END, &end(Some(1), None));
    check_problem(&unnamed, 403, "rank 1 of llm was pushed with an instance");
    let whole = guarded.post(PUSH, END, &end(None, None));
    check_problem(&whole, 403, "the role of an admin");
    assert_eq!([0, 1, 2].map(|rank| guarded.outcome(rank)), [None, None, None]);

    assert_eq!(guarded.post(PUSH, END, &end(Some(0), Some(FIRST))).status, 200);
    assert_eq!(guarded.post(PUSH, END, &end(Some(2), None)).status, 200);
    let completed = Some(json!("completed"));
    let ended = [0, 1, 2].map(|rank| guarded.outcome(rank));
    assert_eq!(ended, [completed.clone(), None, completed.clone()]);
    assert_eq!(guarded.post(ADMIN, END, &end(Some(1), None)).status, 200);
    assert_eq!(guarded.outcome(1), completed);
    let forbidden = r#"stepmem_pushes_total{result="forbidden"}"#;
    assert_eq!(guarded.exporter.metric(forbidden), Some(2.0));
}

#[test]
fn reports_of_a_rank_come_from_its_own_process() {
    let guarded = Guarded::start("roles-reports");
    guarded.push(0, Some(FIRST));
    let report = |instance: Option<&str>| {
        let of = |outcome| json!({"run": "llm", "rank": 0, "instance": instance, "outcome": outcome});
        let holders = guarded.post(PUSH, "/v1/holders", &of("none"));
        let mut written = of("written");
        written["path"] = "/app/a.pickle".into();
        [guarded.post(PUSH, "/v1/snapshots", &written), holders].map(|answer| answer.status)
    };
    assert_eq!(report(None), [403, 403]);
    assert_eq!(report(Some(SECOND)), [409, 409]);
    assert_eq!(guarded.exporter.status()["snapshots"], json!([]));
    assert_eq!(report(Some(FIRST)), [200, 200]);
}

#[test]
fn only_an_admin_acknowledges_releases_asks_and_ends_a_run_which_the_log_names() {
    let guarded = Guarded::start("roles-admin");
    guarded.push(0, Some(FIRST));
    for (path, body) in admin_requests() {
        check_problem(&guarded.post(PUSH, path, &body), 403, "--admin.token-file");
        let without = guarded.exporter.request("POST", path, &[JSON], b"{}");
        assert_eq!(without.status, 401, "{path}");
    }
    for (path, body) in admin_requests() {
        let answer = guarded.post(ADMIN, path, &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    // The one who may do more may also push.
    assert_eq!(guarded.post(ADMIN, "/v1/steps", &record(1, 1, None)).status, 200);
    for message in ["acknowledged", "snapshot requested", "release requested", "ended"] {
        guarded.exporter.await_log(message, DEADLINE, |entry| {
            let fields = &entry["fields"];
            fields["message"] == message && fields["peer"] == "127.0.0.1"
        });
    }
}

#[test]
fn rotated_token_of_admins_is_taken_and_a_public_or_short_one_is_warned_of() {
    let guarded = Guarded::start("roles-rotated");
    let release =
        |token| guarded.post(token, "/v1/nvml/release", &json!({"for_seconds": 0})).status;
    assert_eq!(release(ADMIN), 200);
    assert_eq!(guarded.exporter.logged("WARN", "every user can read the token"), 2);
    assert_eq!(guarded.exporter.logged("WARN", "the token is short"), 2);
    guarded.folder.write("admin", "another");
    guarded.exporter.signal("HUP");
    await_true("the new token", || release("Bearer another") == 200);
    assert_eq!(release(ADMIN), 401);
}

#[test]
fn commands_send_the_token_of_admins_from_the_environment() {
    let guarded = Guarded::start("roles-commands");
    guarded.push(0, Some(FIRST));
    let url = format!("http://{}", guarded.exporter.push);
    let [push, admin] = ["push", "admin"].map(|name| text(&guarded.folder.path(name)));
    let end = ["end", "--run", "llm", "--url", &url];
    let of_pusher = stepmem(&end, &[("STEPMEM_PUSH_TOKEN_FILE", &push)], b"");
    of_pusher.fails(1, "answers 403");
    let both = [("STEPMEM_PUSH_TOKEN_FILE", &*push), ("STEPMEM_ADMIN_TOKEN_FILE", &*admin)];
    let of_admin = stepmem(&end, &both, b"");
    assert_eq!((of_admin.code, of_admin.err.as_str()), (Some(0), ""));
}

fn over_socket(socket: &Path, path: &str, body: &Value) -> Answer {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let body = body.to_string();
    converse(&mut stream, &head("POST", path, &[JSON], body.len()), body.as_bytes())
}

#[test]
fn loopback_and_root_are_admins_of_an_exporter_of_their_own_and_not_of_a_sidecar() {
    let folder = Folder::new("roles-peers");
    for is_sidecar in [false, true] {
        let socket = folder.path(&format!("{is_sidecar}.sock"));
        let argument = text(&socket);
        let arguments = ["--push.unix-socket", argument.as_str()];
        let exporter = if is_sidecar {
            Exporter::start_sidecar(&arguments, &[])
        } else {
            Exporter::start(&arguments)
        };
        await_true("the socket", || exporter.logged("INFO", &argument) == 1);
        exporter.push(&[record(0, 1, Some(FIRST))]);
        let is_root = geteuid().is_root();
        for (path, body) in admin_requests() {
            let by_socket = over_socket(&socket, path, &body).status;
            let by_loopback = exporter.post_to(path, body.to_string()).status;
            let expected = |is_admin| if is_admin { 200 } else { 403 };
            assert_eq!(by_loopback, expected(!is_sidecar), "{path}");
            assert_eq!(by_socket, expected(!is_sidecar || !is_root), "{path}");
        }
        // Its own ranks are any pusher's to end.
        assert_eq!(over_socket(&socket, "/v1/steps", &record(1, 1, None)).status, 200);
        assert_eq!(over_socket(&socket, END, &end(Some(1), None)).status, 200);
    }
}

/// The status of the answer to a push with this token; `None` where there is none.
fn guess(exporter: &Exporter, token: &str) -> Option<u16> {
    let body = record(7, 1, None).to_string();
    let head = head("POST", "/v1/steps", &[JSON, ("authorization", token)], body.len());
    let mut stream = connect(exporter.push);
    std::io::Write::write_all(&mut stream, format!("{head}{body}").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok();
    answer.split(' ').nth(1)?.parse().ok()
}

#[test]
fn guesses_are_slowed_and_keep_nobody_with_the_right_token_out() {
    let guarded = Guarded::start("roles-guesses");
    let exporter = &guarded.exporter;
    for _ in 0..60 {
        assert_eq!(guess(exporter, "Bearer wrong"), Some(401));
    }
    let answers = thread::scope(|scope| {
        let guesses: Vec<_> =
            (0..40).map(|_| scope.spawn(|| guess(exporter, "Bearer wrong"))).collect();
        for _ in 0..20 {
            guarded.push(0, None);
            assert_eq!(guarded.post(ADMIN, END, &end(Some(0), None)).status, 200);
        }
        guesses.into_iter().map(|guess| guess.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(answers.iter().all(|answer| matches!(answer, None | Some(429))), "{answers:?}");
    let metrics = exporter.scrape();
    assert_eq!(metrics[r#"stepmem_pushes_total{result="unauthorized"}"#], 60.0);
    assert_eq!(metrics[r#"stepmem_pushes_total{result="guessed"}"#], 40.0);
    assert_eq!(metrics.get(r#"stepmem_run_ranks{run="default"}"#), None);
}

#[test]
fn pushes_from_the_network_need_a_token_or_a_word_for_it() {
    let folder = Folder::new("roles-network");
    let token = folder.write("token", "the push token");
    let refused = stepmem(
        &["serve", "--no-nvml", "--push.listen-address", ":0", "--web.listen-address", ""],
        &[],
        b"",
    );
    assert_eq!(refused.code, Some(1));
    for part in ["push.listen-address: 0.0.0.0:0", "--push.token-file", "--push.insecure"] {
        assert!(refused.err.contains(part), "{part} in {}", refused.err);
    }
    let network = ["--push.listen-address", "0.0.0.0:0"];
    let sidecar = Exporter::start_sidecar(&network, &[]);
    let problem = r#"stepmem_startup_problem{setting="push.listen-address"}"#;
    assert_eq!(sidecar.metric(problem), Some(1.0));
    assert_eq!(sidecar.logged("INFO", "0.0.0.0"), 0);
    sidecar.push(&[record(0, 1, None)]);
    for allowed in [&["--push.token-file", token.as_str()][..], &["--push.insecure"]] {
        let exporter = Exporter::start(&[&network[..], allowed].concat());
        await_true("the listener", || exporter.logged("INFO", "0.0.0.0") == 1);
    }
}

#[test]
fn probe_over_the_socket_needs_no_token_and_fails_without_an_exporter() {
    let folder = Folder::new("roles-probe");
    let (token, socket) = (folder.write("token", "secret"), text(&folder.path("push.sock")));
    let exporter =
        Exporter::start(&["--push.unix-socket", &socket, "--push.token-file", &token]);
    await_true("the socket", || exporter.logged("INFO", &socket) == 1);
    let url = format!("--url=unix://{socket}");
    let probe = || stepmem(&["check", &url], &[], b"");
    assert_eq!((probe().code, probe().out.as_str()), (Some(0), "stepmem is healthy.\n"));
    exporter.stop();
    assert_eq!(probe().code, Some(1));
}

#[test]
fn answer_without_a_token_needs_no_body() {
    let guarded = Guarded::start("roles-body");
    let head = head("POST", "/v1/steps", &[JSON, ("expect", "100-continue")], 1 << 19);
    assert_eq!(request(guarded.exporter.push, &head, b"").status, 401);
}

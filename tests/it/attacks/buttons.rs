//! The page's buttons (`--web.admin`): what others send to the paths behind them.

use std::io::{Read, Write};
use std::thread;

use serde_json::{Value, json};

use crate::rig::access::{basic, users, web_config};
use crate::rig::certificates::Authority;
use crate::rig::command::stepmem;
use crate::rig::curl::curl;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, root, text};
use crate::rig::http::{Answer, JSON, connect, head, request};
use crate::rig::refusals::check_problem;
use crate::rig::units::GIB;
use crate::rig::wait::await_true;

const TOKEN: (&str, &str) = ("stepmem-admin-token", "the admin token");
/// The origin of the page: the rig's Host is `test`.
const OWN: (&str, &str) = ("origin", "http://test");
const END: &str = "/api/v1/runs/default/end";

/// An exporter with buttons, and rank 0 that fills its device.
struct Buttons {
    exporter: Exporter,
    _folder: Folder,
}

impl Buttons {
    fn start(name: &str) -> Self {
        Self::start_with(Folder::new(name), &[])
    }

    fn start_with(folder: Folder, arguments: &[&str]) -> Self {
        let token = folder.write("admin", "the admin token\n");
        let buttons = ["--web.admin", "--admin.token-file", &token];
        let exporter = Exporter::start(&[&buttons[..], arguments].concat());
        let record = json!({ "rank": 0, "step": 1, "device": "GPU-a", "total_bytes": 80 * GIB,
            "allocated_bytes": 79 * GIB, "peak_allocated_bytes": 79 * GIB });
        exporter.push(&[record]);
        Self { exporter, _folder: folder }
    }

    fn post(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        request(self.exporter.web, &head("POST", path, headers, body.len()), body)
    }

    /// Returns the number of acknowledgments, requests for snapshots and ends.
    fn done(&self) -> [usize; 3] {
        let status = self.exporter.status();
        let n = |key: &str| status[key].as_array().unwrap().len();
        let ranks = status["ranks"].as_array().unwrap();
        [n("acks"), n("snapshots"), ranks.iter().filter(|rank| !rank["end"].is_null()).count()]
    }
}

/// The requests of the buttons: path and body.
fn requests() -> [(&'static str, Value); 4] {
    let ack = json!({ "kind": "HIGH_PRESSURE", "for_seconds": 60, "reason": "known" });
    let mut of_rank = ack.clone();
    of_rank["rank"] = 0.into();
    [
        ("/api/v1/runs/default/ack", of_rank),
        ("/api/v1/devices/GPU-a/ack", ack),
        ("/api/v1/runs/default/snapshot", json!({ "rank": 0 })),
        (END, json!({ "outcome": "failed" })),
    ]
}

#[test]
fn page_without_the_switch_has_no_button_and_no_path_behind_one() {
    let folder = Folder::new("buttons-off");
    let token = folder.write("admin", "the admin token");
    let exporter = Exporter::start(&["--admin.token-file", &token]);
    assert!(exporter.get("/", &[]).body.contains(r#"name="has-buttons" content="false""#));
    for (path, body) in requests() {
        let body = body.to_string();
        let head = head("POST", path, &[JSON, OWN, TOKEN], body.len());
        assert_eq!(request(exporter.web, &head, body.as_bytes()).status, 404, "{path}");
    }
}

#[test]
fn page_itself_acknowledges_requests_a_snapshot_and_ends_with_the_token_of_admins() {
    let buttons = Buttons::start("buttons-own");
    for (path, body) in requests() {
        let answer = buttons.post(path, &[JSON, OWN, TOKEN], body.to_string().as_bytes());
        if path.contains("/devices/") {
            check_problem(&answer, 404, "neither read nor failing here");
        } else {
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        }
    }
    assert_eq!(buttons.done(), [1, 1, 1]);
}

#[test]
fn what_several_admins_press_at_once_is_done_once() {
    let buttons = Buttons::start("buttons-crowd");
    for (path, body) in requests().into_iter().filter(|(path, _)| !path.contains("/devices/")) {
        let body = body.to_string();
        let press = || buttons.post(path, &[JSON, OWN, TOKEN], body.as_bytes()).status;
        let statuses = thread::scope(|scope| {
            let presses: Vec<_> = (0..8).map(|_| scope.spawn(press)).collect();
            presses.into_iter().map(|press| press.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(statuses.contains(&200), "{path}: {statuses:?}");
        assert!(
            statuses.iter().all(|status| [200, 409].contains(status)),
            "{path}: {statuses:?}"
        );
    }
    assert_eq!(buttons.done(), [1, 1, 1]);
}

#[test]
fn nobody_but_the_page_with_the_token_of_admins_gets_through() {
    let buttons = Buttons::start("buttons-others");
    let wrong = ("stepmem-admin-token", "the admin toke");
    let bearer = ("authorization", "Bearer the admin token");
    let form = ("content-type", "application/x-www-form-urlencoded");
    let cases: [(&[(&str, &str)], u16); 16] = [
        (&[JSON, TOKEN], 403),
        (&[JSON, TOKEN, ("origin", "null")], 403),
        (&[JSON, TOKEN, ("origin", "http://evil.example")], 403),
        (&[JSON, TOKEN, ("origin", "http://test:1")], 403),
        (&[JSON, TOKEN, ("origin", "https://test")], 403),
        (&[JSON, TOKEN, ("origin", "http://test/")], 403),
        (&[JSON, TOKEN, ("origin", "http://a@test")], 403),
        (&[JSON, TOKEN, OWN, ("origin", "http://evil.example")], 400),
        (&[JSON, TOKEN, OWN, ("sec-fetch-site", "cross-site")], 403),
        (&[JSON, OWN], 401),
        (&[JSON, OWN, bearer], 401),
        (&[JSON, OWN, wrong], 401),
        (&[JSON, OWN, ("stepmem-admin-token", "")], 401),
        (&[OWN, TOKEN], 415),
        (&[OWN, TOKEN, form], 415),
        (&[OWN, TOKEN, ("content-type", "application/x-ndjson")], 415),
    ];
    for (path, body) in requests() {
        for (headers, status) in cases {
            let answer = buttons.post(path, headers, body.to_string().as_bytes());
            assert_eq!(answer.status, status, "{path} {headers:?}: {}", answer.body);
            let (is_open, shown) = (answer.header("access-control-allow-origin"), &answer.body);
            assert_eq!((is_open, shown.contains("the admin token")), ("", false), "{shown}");
        }
        let got = buttons.exporter.get(path, &[OWN, TOKEN, ("sec-fetch-site", "same-origin")]);
        assert_eq!(got.status, 405, "{path}");
        let asked = head("OPTIONS", path, &[("origin", "http://evil.example")], 0);
        let allowed = request(buttons.exporter.web, &asked, b"");
        assert_eq!(allowed.status, 403, "{path}");
    }
    assert_eq!(buttons.done(), [0, 0, 0]);
}

#[test]
fn huge_body_and_a_token_with_a_line_break_are_refused() {
    let buttons = Buttons::start("buttons-bytes");
    let huge = format!("{{\"outcome\":\"failed\",\"error_type\":\"{}\"}}", "x".repeat(2 << 20));
    let answer = buttons.post(END, &[JSON, OWN, TOKEN], huge.as_bytes());
    check_problem(&answer, 413, "exceeds 1048576 bytes");
    // Without the token it is not even read.
    let head_alone = head("POST", END, &[JSON, OWN], huge.len());
    assert_eq!(request(buttons.exporter.web, &head_alone, b"").status, 401);
    for broken in
        ["the admin token\r\n x", "x\r\n the admin token", "the admin\n token", "a\rb"]
    {
        let headers = [JSON, OWN, ("stepmem-admin-token", broken)];
        let refused = buttons.post(END, &headers, b"{\"outcome\":\"failed\"}").status;
        assert!([400, 401].contains(&refused), "{broken:?}: {refused}");
    }
    assert_eq!(buttons.done(), [0, 0, 0]);
}

/// The status of the answer to a wrong token; `None` where there is none.
fn guess(exporter: &Exporter) -> Option<u16> {
    let head = head("POST", END, &[JSON, OWN, ("stepmem-admin-token", "wrong")], 2);
    let mut stream = connect(exporter.web);
    stream.write_all(format!("{head}{{}}").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok();
    answer.split(' ').nth(1)?.parse().ok()
}

#[test]
fn guesses_are_slowed_with_those_of_pushes_and_the_right_token_gets_through() {
    let buttons = Buttons::start("buttons-guesses");
    let exporter = &buttons.exporter;
    for _ in 0..60 {
        assert_eq!(guess(exporter), Some(401));
    }
    let answers = thread::scope(|scope| {
        let guesses: Vec<_> = (0..40).map(|_| scope.spawn(|| guess(exporter))).collect();
        let (path, body) = &requests()[0];
        let answer = buttons.post(path, &[JSON, OWN, TOKEN], body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.body);
        guesses.into_iter().map(|guess| guess.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(answers.iter().all(|answer| matches!(answer, None | Some(429))), "{answers:?}");
    let metrics = exporter.scrape();
    assert_eq!(metrics[r#"stepmem_pushes_total{result="unauthorized"}"#], 60.0);
    assert_eq!(metrics[r#"stepmem_pushes_total{result="guessed"}"#], 40.0);
}

#[test]
fn exporter_that_stops_writes_its_state_before_it_lingers_and_takes_no_press() {
    let folder = Folder::new("buttons-stop");
    let state = folder.path("state");
    let arguments = ["--stop.linger", "1h", "--state.file", &text(&state)];
    let buttons = Buttons::start_with(folder, &arguments);
    buttons.exporter.signal("TERM");
    await_true("the state", || state.exists());
    let (path, body) = &requests()[0];
    let press = || buttons.post(path, &[JSON, OWN, TOKEN], body.to_string().as_bytes()).status;
    // Until it has heard of its end it takes them.
    await_true("the refusal", || press() == 503);
    let done = buttons.done();
    assert_eq!((press(), buttons.done()), (503, done));
}

#[test]
fn users_and_the_token_are_both_needed() {
    let folder = Folder::new("buttons-users");
    let file = users(&folder, "horse");
    let token = folder.write("admin", "the admin token");
    let arguments = ["--web.admin", "--admin.token-file", &token, "--web.config.file", &file];
    let exporter = Exporter::start(&arguments);
    let body = b"{\"outcome\":\"failed\"}";
    let user = basic("scraper:horse");
    let shown = ("authorization", user.as_str());
    let status = |headers: &[(&str, &str)]| {
        request(exporter.web, &head("POST", END, headers, body.len()), body).status
    };
    assert_eq!(status(&[JSON, OWN, TOKEN]), 401);
    assert_eq!(status(&[JSON, OWN, shown]), 401);
    // Nobody has pushed for the run.
    assert_eq!(status(&[JSON, OWN, shown, TOKEN]), 404);
}

#[test]
fn page_over_tls_sends_https_as_its_origin() {
    let folder = Folder::new("buttons-tls");
    let authority = Authority::new(&folder, "ca");
    let file = web_config(&folder, &authority.server(&folder), "");
    let token = folder.write("admin", "the admin token");
    // With TLS, the page may also be read over the network.
    let arguments = ["--web.admin", "--admin.token-file", &token, "--web.config.file", &file];
    let everywhere = ["--web.listen-address", "0.0.0.0:0"];
    let exporter = Exporter::start(&[&arguments[..], &everywhere].concat());
    let url = format!("https://{}{END}", exporter.web);
    for (origin, expected) in [("https", 404), ("http", 403)] {
        let origin = format!("origin: {origin}://{}", exporter.web);
        let token = format!("{}: {}", TOKEN.0, TOKEN.1);
        let json = "content-type: application/json";
        let sent = ["--header", &origin, "--header", &token, "--header", json];
        let body = ["--cacert", &authority.file, "--data", "{\"outcome\":\"failed\"}", &url];
        let curled = curl(&[&sent[..], &body].concat());
        assert_eq!((curled.code, curled.status), (0, expected), "{}", curled.body);
    }
}

#[test]
fn buttons_without_a_token_or_in_plain_text_over_the_network_are_refused_at_the_start() {
    let folder = Folder::new("buttons-start");
    let token = folder.write("admin", "the admin token");
    let plain = text(&root().join("tests/data/web-config.yml"));
    let network = "--web.listen-address=0.0.0.0:0";
    let (local, of_six) = ("--web.listen-address=127.0.0.1:0", "--web.listen-address=[::]:0");
    let with_token = ["--admin.token-file", token.as_str()];
    let cases: [(&[&str], &[&str]); 5] = [
        (&[local], &["web.admin: ", "--admin.token-file"]),
        (&[network, with_token[0], with_token[1]], &["0.0.0.0:0", "--web.config.file"]),
        (&[local, of_six, with_token[0], with_token[1]], &["[::]:0", "127.0.0.1:9477"]),
        (
            &[network, with_token[0], with_token[1], "--web.config.file", &plain],
            &["0.0.0.0:0", "tls_server_config"],
        ),
        (&[network], &["--admin.token-file", "0.0.0.0:0"]),
    ];
    for (arguments, expected) in cases {
        let refused =
            stepmem(&[&["serve", "--no-nvml", "--web.admin"], arguments].concat(), &[], b"");
        assert_eq!(refused.code, Some(1), "{arguments:?}");
        for part in [&["web.admin: "], expected].concat() {
            assert!(refused.err.contains(part), "{part} in {}", refused.err);
        }
    }
    // A sidecar runs without them.
    let sidecar = Exporter::start_sidecar(&["--web.admin"], &[]);
    let problem = r#"stepmem_startup_problem{setting="web.admin"}"#;
    assert_eq!(sidecar.metric(problem), Some(1.0));
    assert!(sidecar.get("/", &[]).body.contains(r#"name="has-buttons" content="false""#));
}

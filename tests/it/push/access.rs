//! Where pushes are taken, and from whom: paths, the token, the Unix socket.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::http::{Answer, JSON, converse, head};
use crate::rig::job::record;
use crate::rig::refusals::{check_problem, send};
use crate::rig::wait::{DEADLINE, await_true};

#[test]
fn token_is_required_and_no_other_header_opens() {
    let folder = Folder::new("token");
    let file = folder.write("token", "correct horse\n");
    let exporter = Exporter::start(&["--push.token-file", &file]);
    let with = |token: &str| {
        let headers = [JSON, ("authorization", token)];
        send(record(0, 1, 1).as_bytes(), &headers, &exporter)
    };
    let unauthorized = r#"stepmem_pushes_total{result="unauthorized"}"#;
    check_problem(
        &exporter.post(record(7, 1, 1)),
        401,
        "Authorization: Bearer TOKEN is missing: send the token of the exporter's --push.token-file",
    );
    let wrong = "the token is not one of this exporter: send that of its --push.token-file";
    check_problem(&with("Bearer correct hors"), 401, wrong);
    assert_eq!(exporter.post(record(7, 1, 1)).header("www-authenticate"), "Bearer");
    let refused = [
        "Basic correct horse",
        "Bearer",
        "Bearer correct hors",
        "Bearer correct horse battery",
        "Bearer CORRECT HORSE",
    ];
    for token in refused {
        let answer = with(token);
        assert_eq!(answer.status, 401, "{token}");
        assert_eq!(answer.header("www-authenticate"), "Bearer", "{token}");
    }
    let end =
        exporter.request("POST", "/v1/runs/default/end", &[JSON], b"{\"outcome\":\"oom\"}");
    assert_eq!(end.status, 401);
    assert_eq!(exporter.metric(unauthorized), Some(9.0));
    assert_eq!(with("Bearer correct horse").status, 200);
    assert_eq!(with("bearer correct horse").status, 200);
    assert_eq!(exporter.metric(r#"stepmem_run_ranks{run="default"}"#), Some(1.0));
}

#[test]
fn other_paths_and_methods_are_answered_with_the_ones_that_exist() {
    let exporter = Exporter::start(&[]);
    let get = |path| exporter.request("GET", path, &[], b"");
    check_problem(&get("/v1/stepz"), 404, "POST /v1/steps, /v1/snapshots, /v1/runs/RUN/end");
    check_problem(&get("/metrics"), 404, "POST /v1/steps, /v1/snapshots, /v1/runs/RUN/end");
    for path in ["/v1/steps", "/v1/runs/default/end"] {
        let answer = get(path);
        check_problem(&answer, 405, "POST /v1/steps, /v1/snapshots, /v1/runs/RUN/end");
        assert_eq!(answer.header("allow"), "POST", "{path}");
    }
    for (method, path, status) in [("GET", "/metrics", 404), ("PUT", "/v1/steps", 405)] {
        let answer = exporter.request(method, path, &[], b"");
        let page = format!("http://{}", exporter.web);
        check_problem(&answer, status, &format!("the page, /metrics and /api are at {page}; "));
        assert_eq!(answer.json()["page"], page, "{path}");
    }
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
}

/// An exporter that listens on a Unix socket as well, which it does last of all.
fn start_with_socket(path: &Path, mode: &str) -> Exporter {
    let exporter =
        Exporter::start(&["--push.unix-socket", &format!("{}{mode}", path.display())]);
    await_true("the socket", || exporter.logged("INFO", &text(path)) == 1);
    exporter
}

fn unix_push(socket: &Path, body: &str) -> Answer {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    converse(&mut stream, &head("POST", "/v1/steps", &[JSON], body.len()), body.as_bytes())
}

#[test]
fn unix_socket_takes_pushes_has_its_mode_and_goes_at_the_stop() {
    let folder = Folder::new("socket");
    let (path, plain) = (folder.path("push.sock"), folder.path("plain.sock"));
    let exporter = start_with_socket(&path, ":640");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&path), 0o640);
    assert_eq!(unix_push(&path, &record(0, 1, 1)).status, 200);
    check_problem(&unix_push(&path, &record(0, 1, 1)[1..]), 400, "expected");
    assert_eq!(exporter.metric(r#"stepmem_run_ranks{run="default"}"#), Some(1.0));
    let other = start_with_socket(&plain, "");
    assert_eq!(mode(&plain), 0o666);
    drop(other);
    exporter.signal("TERM");
    assert!(exporter.wait().0.success());
    assert!(!path.exists());
}

#[test]
fn abandoned_unix_socket_is_replaced_and_any_other_file_is_not() {
    let folder = Folder::new("stale");
    let path = folder.path("push.sock");
    drop(UnixListener::bind(&path).unwrap());
    let exporter = start_with_socket(&path, "");
    assert_eq!(unix_push(&path, &record(0, 1, 1)).status, 200);
    let refused = |path: &Path| {
        let arguments = ["serve", "--no-nvml", "--web.listen-address", "127.0.0.1:0"];
        let socket = text(path);
        let push = ["--push.listen-address", "", "--push.unix-socket", &socket];
        stepmem(&[&arguments[..], &push[..]].concat(), &[], b"")
    };
    let second = refused(&path);
    second.fails(1, "another process listens on");
    assert_eq!(unix_push(&path, &record(0, 2, 1)).status, 200);
    let file = folder.write("file", "precious");
    let third = refused(Path::new(&file));
    third.fails(1, "exists and is not a socket");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    drop(exporter);
}

#[test]
fn lock_of_the_socket_that_another_process_holds_stops_no_exporter() {
    let folder = Folder::new("locked-socket");
    let path = folder.path("push.sock");
    drop(UnixListener::bind(&path).unwrap());
    // A training container reaches it through a mount that is read-only.
    let lock = folder.write("push.sock.lock", "");
    let lock = std::fs::File::open(lock).unwrap();
    lock.lock().unwrap();
    let exporter = start_with_socket(&path, "");
    assert_eq!(unix_push(&path, &record(0, 1, 1)).status, 200);
    assert_eq!(exporter.logged("WARN", "another process holds the lock"), 1);
}

#[test]
fn removed_socket_does_not_spoil_the_stop() {
    let folder = Folder::new("removed");
    let path = folder.path("push.sock");
    let exporter = start_with_socket(&path, "");
    std::fs::remove_file(&path).unwrap();
    exporter.signal("TERM");
    let (status, log) = exporter.wait();
    assert!(status.success(), "{status}: {log:?}");
}

#[test]
fn rotated_token_is_taken_after_a_hangup_and_a_broken_file_changes_nothing() {
    let folder = Folder::new("rotated");
    let file = folder.write("token", "first");
    let exporter = Exporter::start(&["--push.token-file", &file]);
    let status = |token: &str| {
        let token = format!("Bearer {token}");
        let headers = [JSON, ("authorization", &token)];
        send(record(0, 1, 1).as_bytes(), &headers, &exporter).status
    };
    assert_eq!((status("first"), status("second")), (200, 401));
    assert_eq!(exporter.logged("WARN", "every user can read the token"), 1);
    folder.write("token", "second");
    exporter.signal("HUP");
    await_true("the new token", || status("second") == 200);
    assert_eq!(status("first"), 401);
    folder.write("token", "");
    for signal in ["HUP", "USR1", "USR2", "ALRM"] {
        exporter.signal(signal);
    }
    await_true("the warning", || exporter.logged("WARN", "token not reloaded") == 1);
    assert_eq!(status("second"), 200);
}

#[test]
fn busy_exporter_keeps_its_socket() {
    let folder = Folder::new("busy-socket");
    let path = folder.path("push.sock");
    let first = start_with_socket(&path, "");
    first.signal("STOP");
    let arguments = ["serve", "--no-nvml", "--web.listen-address", "127.0.0.1:0"];
    let socket = text(&path);
    let push = ["--push.listen-address", "", "--push.unix-socket", &socket];
    let second = stepmem(&[&arguments[..], &push[..]].concat(), &[], b"");
    second.fails(1, "another process listens on");
    first.signal("CONT");
    assert_eq!(unix_push(&path, &record(0, 1, 1)).status, 200);
    // One that took its place stays at the stop.
    std::fs::remove_file(&path).unwrap();
    let foreign = UnixListener::bind(&path).unwrap();
    first.stop();
    assert!(path.exists());
    drop(foreign);
}

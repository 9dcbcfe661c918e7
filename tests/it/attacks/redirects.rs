//! Receivers and exporters that point elsewhere, and URLs that hold a password.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::{Value, json};

use crate::rig::answers::Answering;
use crate::rig::command::{Ended, stepmem};
use crate::rig::exporter::Exporter;
use crate::rig::folder::Folder;
use crate::rig::wait::DEADLINE;

/// A word that is in no log, page or answer.
const SECRET: &str = "hid-den";

/// A host to which nobody may be led.
struct Elsewhere(TcpListener);

impl Elsewhere {
    fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    fn has_no_visitor(&self) -> bool {
        self.0.accept().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}

/// Answers each request with the next of these heads, and hands on the heads of requests.
fn answering(heads: Vec<String>) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = channel();
    thread::spawn(move || {
        for head in heads.iter().cycle() {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut request = Vec::new();
            let mut chunk = [0; 4096];
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read(&mut chunk) {
                    Ok(1..) => {}
                    _ => break,
                }
                request.extend_from_slice(&chunk);
            }
            let answer = format!("{head}Content-Length: 0\r\nConnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).ok();
            if sender.send(String::from_utf8_lossy(&request).to_lowercase()).is_err() {
                return;
            }
        }
    });
    (address, requests)
}

/// Heads of every kind of redirect to an address.
fn redirects(to: SocketAddr) -> Vec<String> {
    [301, 302, 303, 307, 308]
        .map(|status| format!("HTTP/1.1 {status} Elsewhere\r\nLocation: http://{to}/v1\r\n"))
        .to_vec()
}

/// Exports until so many have failed. Returns why the first one did, and all that was logged.
fn failed(endpoint: &str, transport: &str, n_failures: f64) -> (String, String) {
    let arguments = ["--no-nvml", "--otlp.endpoint", endpoint, "--otlp.protocol", transport];
    let arguments = [&arguments[..], &["--otlp.interval", "50ms"]].concat();
    let key = format!("api-key={SECRET}");
    let variables = [("OTEL_EXPORTER_OTLP_HEADERS", &*key)];
    let exporter = Exporter::start_command("serve", &arguments, &variables);
    exporter.await_metrics("failures", |metrics| {
        let failed = metrics.get(r#"stepmem_otlp_exports_total{result="failure"}"#);
        failed.is_some_and(|failed| *failed >= n_failures)
    });
    assert_eq!(exporter.metric(r#"stepmem_otlp_exports_total{result="success"}"#), Some(0.0));
    let is_failure = |entry: &Value| entry["fields"].to_string().contains("OTLP export failed");
    let line = exporter.await_log("the failure", DEADLINE, is_failure);
    for path in ["/", "/metrics", "/api/v1/status"] {
        assert!(!exporter.get(path, &[]).body.contains(SECRET), "{path}");
    }
    let cause = line["fields"]["cause"].as_str().unwrap().to_owned();
    (cause, format!("{:?}", exporter.stop()))
}

#[test]
fn export_is_redirected_nowhere_and_its_secrets_are_sent_to_its_receiver_alone() {
    let elsewhere = Elsewhere::listen();
    let (address, requests) = answering(redirects(elsewhere.address()));
    let endpoint = format!("http://user:{SECRET}@{address}");
    let (cause, log) = failed(&endpoint, "http/protobuf", 6.0);
    assert_eq!(
        cause, "the collector answered 301 Moved Permanently: redirects are not followed",
        "{log}"
    );
    assert!(!log.contains(SECRET), "{log}");
    let request = requests.recv_timeout(DEADLINE).unwrap();
    assert!(request.contains(&format!("api-key: {SECRET}")), "{request}");
    // user:hid-den
    assert!(
        request.contains(&"Authorization: Basic dXNlcjpoaWQtZGVu".to_lowercase()),
        "{request}"
    );
    assert!(elsewhere.has_no_visitor());
}

#[test]
fn web_page_in_front_of_a_receiver_is_no_success() {
    let page = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n".to_owned();
    let (address, _requests) = answering(vec![page]);
    let (cause, _) = failed(&format!("http://{address}"), "http/protobuf", 2.0);
    assert!(cause.contains("the answer is a web page (text/html)"), "{cause}");
}

#[test]
fn grpc_is_redirected_nowhere_and_shows_no_password() {
    let elsewhere = Elsewhere::listen();
    let (address, _requests) = answering(redirects(elsewhere.address()));
    let (_, log) = failed(&format!("http://user:{SECRET}@{address}"), "grpc", 3.0);
    assert!(log.contains(&address.to_string()) && !log.contains(SECRET), "{log}");
    assert!(elsewhere.has_no_visitor());
}

#[test]
fn command_takes_its_token_to_no_other_exporter() {
    let elsewhere = Elsewhere::listen();
    let (address, requests) = answering(redirects(elsewhere.address()));
    let folder = Folder::new("redirected-token");
    let token = folder.write("token", SECRET);
    let url = format!("http://{address}");
    for status in [301, 302, 303, 307, 308] {
        let arguments = ["end", "--run", "r", "--url", &url, "--token-file", &token];
        let ended = stepmem(&arguments, &[], b"");
        ended.fails(1, &format!("answers {status}"));
        let request = requests.recv_timeout(DEADLINE).unwrap();
        assert!(request.contains(&format!("authorization: bearer {SECRET}")), "{request}");
    }
    for command in ["status", "check"] {
        assert_eq!(stepmem(&[command, "--url", &url], &[], b"").code, Some(1), "{command}");
    }
    assert!(elsewhere.has_no_visitor());
}

#[test]
fn reader_of_a_push_endpoint_is_led_to_no_other_host_and_not_further() {
    let (elsewhere, other) = (Elsewhere::listen(), Answering::start());
    let asked = Answering::start();
    let port = elsewhere.address().port();
    for page in [
        format!("https://{}", elsewhere.address()),
        format!("unix:///run/{port}.sock"),
        format!("ftp://127.0.0.1:{port}"),
        "http://".to_owned(),
        "/".repeat(4096),
    ] {
        asked.set(404, &json!({"detail": "not here", "page": page}).to_string());
        let ended = stepmem(&["status", "--url", &asked.url()], &[], b"");
        ended.fails(1, &format!("{}/api/v1/status answers 404 ", asked.url()));
        ended.fails(1, "not here");
    }
    // Only the port counts; and who is led there is led no further.
    other.set(404, &json!({"page": format!("http://{}", elsewhere.address())}).to_string());
    let page = format!("http://user:hid-den@192.0.2.1:{}", other.address.port());
    asked.set(404, &json!({"page": page}).to_string());
    let ended = stepmem(&["status", "--url", &asked.url()], &[], b"");
    check(&ended, &format!("{}/api/v1/status answers 404", other.url()));
    assert!(elsewhere.has_no_visitor());
}

#[test]
fn token_goes_to_no_default_port_that_nobody_named() {
    let folder = Folder::new("default-port");
    let [token, password] = ["token", "password"].map(|name| folder.write(name, SECRET));
    let of_token = ["--token-file", &token];
    let of_user = ["--user", "ops", "--password-file", &password];
    let ack = ["ack", "--run", "r", "--rank", "0", "--kind", "high_pressure", "--reason", "x"];
    for command in [&ack[..], &["end", "--run", "r"], &["release"]] {
        for secret in [&of_token[..], &of_user] {
            let ended = stepmem(&[command, secret].concat(), &[], b"");
            let reason = "http://127.0.0.1:9478 is only a default address, which gets no token and no password: \
                 name it with --url or STEPMEM_PUSH_URL";
            ended.fails(1, reason);
        }
        let of_environment = [("STEPMEM_ADMIN_TOKEN_FILE", &*token)];
        stepmem(command, &of_environment, b"").fails(1, "is only a default address");
    }
    // One that is named, in either way, gets it.
    let (address, requests) = answering(vec!["HTTP/1.1 200 OK\r\n".to_owned()]);
    let url = format!("http://{address}");
    let end = ["end", "--run", "r", "--token-file", &token];
    stepmem(&[&end[..], &["--url", &url]].concat(), &[], b"").quiet();
    stepmem(&end, &[("STEPMEM_PUSH_URL", &url)], b"").quiet();
    for _ in 0..2 {
        let request = requests.recv_timeout(DEADLINE).unwrap();
        assert!(request.contains(&format!("authorization: bearer {SECRET}")), "{request}");
    }
}

/// Checks that what a command says names `shown`, and nothing secret.
fn check(ended: &Ended, shown: &str) {
    let said = format!("{}{}", ended.out, ended.err);
    assert!(said.contains(shown) && !said.contains("hid") && !said.contains("den"), "{said}");
}

#[test]
fn password_of_a_url_is_shown_by_no_command() {
    let folder = Folder::new("secret-urls");
    let of_check = |arguments: &[&str], variables: &[(&str, &str)]| {
        stepmem(&[&["check", "--no-nvml"], arguments].concat(), variables, b"")
    };
    let url = "http://user:hid-den@collector:4318";
    let shown = "http://collector:4318/v1/metrics every";
    check(&of_check(&["--otlp.endpoint", url], &[]), shown);
    check(&of_check(&[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", url)]), shown);
    let key = "https://collector/x?key=hid-den";
    let variables = [("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", key)];
    check(&of_check(&[], &variables), "https://collector/x?… every");
    for wrong in [
        "user:hid-den@collector:4318",
        "ftp://user:hid-den@collector:4318",
        "http://user:hid-den@collector:4318/v1/metrics",
        "http://user:hid den@collector:4318",
        "http://user:hid/den@collector:4318",
    ] {
        check(&of_check(&["--otlp.endpoint", wrong], &[]), "collector");
        check(&of_check(&[], &[("STEPMEM_OTLP_ENDPOINT", wrong)]), "collector");
    }
    let file = folder.write("settings.toml", &format!("a = 1\notlp.endpoint = {url}\n"));
    check(
        &of_check(&["--config.file", &file], &[]),
        "settings.toml: TOML parse error at line 2: ",
    );
    check(&of_check(&[&format!("--otlp.endpont={url}")], &[]), "otlp.endpont");
    check(&of_check(&[url], &[]), "http://…@collector");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (url, shown) = (format!("http://user:hid-den@{closed}"), format!("http://…@{closed}"));
    for arguments in [
        &["status", "--url", &url][..],
        &["check", "--url", &url],
        &["summary", "--url", &url],
        &["explain", "--rank", "0", "--run", "r", "--url", &url],
        &["end", "--run", "r", "--url", &url],
        &["snapshot", "take", "--run", "r", "--rank", "0", "--push-url", &url],
    ] {
        check(&stepmem(arguments, &[], b""), &shown);
    }
    let variables = [("STEPMEM_PUSH_URL", &*url)];
    check(&stepmem(&["end", "--run", "r"], &variables, b""), &shown);
    check(&stepmem(&["status", "--url", "user:hid-den@node"], &[], b""), "…@node");
}

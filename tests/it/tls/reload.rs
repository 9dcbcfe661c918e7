//! Files that change while the exporter runs.

use std::io::{Read, Write};

use serde_json::json;

use crate::rig::access::{basic, hash, users, web_config};
use crate::rig::certificates::{Authority, TlsClient, Validity};
use crate::rig::exporter::Exporter;
use crate::rig::folder::Folder;
use crate::rig::json::has;
use crate::rig::peers::run_peer;
use crate::rig::wait::{DEADLINE, await_true};

/// The number of times that the file was read again with this result.
fn reloads(client: &TlsClient, exporter: &Exporter, result: &str) -> u64 {
    let text = client.get(exporter.web, "/metrics", &[]).body;
    let series = format!("stepmem_web_config_reloads_total{{result=\"{result}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&series));
    line.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

/// Asks for the health on a connection that stays.
fn ask(stream: &mut (impl Read + Write)) {
    stream.write_all(b"GET /-/healthy HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"stepmem is healthy.\n") {
        let mut part = [0; 1024];
        let n_bytes = stream.read(&mut part).unwrap();
        assert!(n_bytes > 0, "it was closed: {}", String::from_utf8_lossy(&answer));
        answer.extend(&part[..n_bytes]);
    }
}

#[test]
fn renewed_certificate_is_shown_and_a_broken_one_changes_nothing() {
    let folder = Folder::new("tls-renewed");
    let first = Authority::new(&folder, "first");
    let second = Authority::new(&folder, "second");
    let file = web_config(&folder, &first.server(&folder), "");
    let exporter = Exporter::start(&["--web.config.file", &file]);
    let (old, new) = (first.client(None), second.client(None));
    assert_eq!(old.get(exporter.web, "/-/healthy", &[]).status, 200);
    // A connection that stays.
    let mut kept = old.connect(exporter.web);
    ask(&mut kept);
    let server = second.server(&folder);
    // Without a signal: it is looked at now and then.
    exporter.await_log("the new certificate", DEADLINE, |entry| {
        entry["fields"]["message"] == "TLS and users reloaded"
    });
    assert_eq!(new.get(exporter.web, "/-/healthy", &[]).status, 200);
    assert_eq!(reloads(&new, &exporter, "ok"), 1);
    ask(&mut kept);
    // Half of a pair, and an empty file: what was before stays, with one warning. A look may have met the new pair half
    // written before.
    let n_warnings = || exporter.logged("WARN", "TLS and users not reloaded");
    let n_before = n_warnings();
    let n_failed = reloads(&new, &exporter, "failed");
    std::fs::write(&server.cert, "").unwrap();
    exporter.signal("HUP");
    await_true("a failure", || reloads(&new, &exporter, "failed") > n_failed);
    exporter.signal("HUP");
    await_true("another", || reloads(&new, &exporter, "failed") > n_failed + 1);
    folder.write("web.yml", "");
    exporter.signal("HUP");
    await_true("a third", || reloads(&new, &exporter, "failed") > n_failed + 2);
    assert_eq!(n_warnings(), n_before + 1);
    assert_eq!(reloads(&new, &exporter, "ok"), 1);
}

#[test]
fn changed_password_counts_at_once_and_users_do_not_vanish() {
    let folder = Folder::new("users-renewed");
    let file = users(&folder, "first");
    let exporter = Exporter::start(&["--web.config.file", &file]);
    let status = |password: &str| {
        let shown = basic(&format!("scraper:{password}"));
        exporter.get("/metrics", &[("authorization", &shown)]).status
    };
    assert_eq!((status("first"), status("second")), (200, 401));
    let both = format!("basic_auth_users:\n  scraper: {}\n", hash("second"));
    folder.write("web.yml", &both);
    exporter.signal("HUP");
    await_true("the new password", || status("second") == 200);
    assert_eq!(status("first"), 401);
    folder.write("web.yml", "http_server_config: {}\n");
    exporter.signal("HUP");
    exporter.await_log("the refusal", DEADLINE, |entry| {
        entry["fields"]["error"]
            .as_str()
            .is_some_and(|error| error.contains("only a restart can remove basic_auth_users"))
    });
    assert_eq!((status("second"), exporter.get("/metrics", &[]).status), (200, 401));
}

#[test]
fn prometheus_misses_no_scrape_while_certificates_are_rotated() {
    const ROTATIONS: usize = 6;
    let folder = Folder::new("tls-rotated");
    let authority = Authority::new(&folder, "ca");
    let further = format!(
        "  client_ca_file: {}\n  client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: [prometheus]\n\
         basic_auth_users:\n  scraper: {}\n",
        authority.file,
        hash("horse"),
    );
    let server = authority.server(&folder);
    let client = authority.issue(&folder, "client", &["prometheus"], Validity::Now);
    let file = web_config(&folder, &server, &further);
    let exporter = Exporter::start(&["--web.config.file", &file]);
    let next = Folder::new("tls-next");
    let work = folder.path("prometheus").to_str().unwrap().to_owned();
    let mut pairs = Vec::new();
    for n in 0..ROTATIONS {
        let subjects = ["127.0.0.1", "localhost"];
        let now = Validity::Now;
        let fresh = authority.issue(&next, &format!("server{n}"), &subjects, now);
        pairs.extend([fresh.cert, fresh.key]);
    }
    let (target, pid) = (exporter.web.to_string(), exporter.pid().to_string());
    let mut arguments = vec!["--target", &target, "--pid", &pid, "--work-dir", &work];
    arguments.extend(["--ca", &authority.file, "--cert", &client.cert, "--key", &client.key]);
    arguments.extend(["--user", "scraper:horse", "--server-cert", &server.cert]);
    arguments.extend(["--server-key", &server.key, "--pairs"]);
    arguments.extend(pairs.iter().map(String::as_str));
    let found = run_peer("rotation.py", &arguments);
    has(&found, &json!({"failed_scrapes": 0, "failed_connections": 0}));
    assert!(found["scrapes"].as_u64().is_some_and(|n| n >= 7), "{found}");
    // Each new certificate was seen by a new connection.
    assert_eq!(found["certificates"], ROTATIONS, "{found}");
}

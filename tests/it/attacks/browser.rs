//! Pages of others in the operator's browser.

use crate::rig::exporter::Exporter;
use crate::rig::http::{Answer, JSON, request};
use crate::rig::job::record;

fn get(exporter: &Exporter, host: &str, path: &str, more: &str) -> Answer {
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{more}connection: close\r\n\r\n");
    request(exporter.web, &head, b"")
}

#[test]
fn rebound_name_shows_neither_page_nor_status_and_scrapes_have_any_host() {
    let exporter = Exporter::start(&["--web.allowed-hosts", "stepmem.example.com"]);
    for path in
        ["/", "/api/v1/status", "/api/v1/runs/r/summary", "/page/main.js", "/snapshots/1-1"]
    {
        assert_eq!(get(&exporter, "evil.example", path, "").status, 403, "{path}");
    }
    let address = exporter.web.to_string();
    for host in [&*address, "localhost:1", "stepmem.monitoring.svc:9477", "stepmem.example.com"]
    {
        assert_eq!(get(&exporter, host, "/api/v1/status", "").status, 200, "{host}");
    }
    for host in ["evil.example", "10.244.0.7:9477", "stepmem.monitoring.svc:9477"] {
        for path in ["/metrics", "/-/healthy", "/-/ready"] {
            assert_eq!(get(&exporter, host, path, "").status, 200, "{host}{path}");
        }
    }
    let of_page = get(&exporter, "evil.example", "/metrics", "sec-fetch-site: same-origin\r\n");
    assert_eq!(of_page.status, 403);
}

#[test]
fn page_of_others_pushes_nothing_and_every_answer_is_closed_to_it() {
    let exporter = Exporter::start(&[]);
    let body = record(0, 1, 1);
    let push = |headers: &[(&str, &str)]| {
        let headers = [&[JSON], headers].concat();
        exporter.request("POST", "/v1/steps", &headers, body.as_bytes())
    };
    assert_eq!(push(&[("origin", "https://evil.example")]).status, 403);
    assert_eq!(push(&[("origin", "null")]).status, 403);
    assert_eq!(push(&[("sec-fetch-site", "cross-site")]).status, 403);
    let taken = push(&[("origin", "http://test")]);
    assert_eq!(taken.status, 200);
    let page = exporter.get("/", &[]);
    assert!(page.header("content-security-policy").contains("script-src 'self'"));
    for answer in [taken, exporter.get("/metrics", &[]), exporter.get("/nowhere", &[]), page] {
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert!(answer.header("content-security-policy").contains("default-src 'none'"));
    }
}

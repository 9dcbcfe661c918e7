//! Pages of others in the operator's browser.

use crate::rig::curl::curl;
use crate::rig::exporter::Exporter;
use crate::rig::http::{Answer, JSON, request};
use crate::rig::job::record;

fn get(exporter: &Exporter, host: &str, path: &str, more: &str) -> Answer {
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{more}connection: close\r\n\r\n");
    request(exporter.web, &head, b"")
}

/// Hosts that no name of others leads to: addresses, private names, and one that is set.
const OWN_HOSTS: [&str; 14] = [
    "10.1.2.3:9477",
    "[::1]:9477",
    "[::ffff:10.1.2.3]",
    "localhost:1",
    "localhost.",
    "localhost:",
    "a.localhost:1",
    "stepmem.monitoring.svc:9477",
    "stepmem.monitoring.svc.cluster.local.",
    "node-7",
    "node_7:9477",
    "stepmem.example.com",
    "STEPMEM.example.com:443",
    "stepmem.example.com.",
];

const FOREIGN_HOSTS: [&str; 26] = [
    "evil.example",
    "rebound.example.com:9477",
    "127.0.0.1.evil.com",
    "a b.c",
    "localhost:9477.evil",
    "localhost:9477:9477",
    "user@localhost",
    "localhost@evil.example",
    "localhost, evil.example",
    "localhost evil",
    "evil.example..",
    ".localhost",
    "localhost..",
    "[::1",
    "::1]",
    "[localhost]",
    "[127.0.0.1]",
    "[::1]evil.example",
    "[::1]:9477.evil",
    "::1",
    "%6cocalhost",
    "localhost/evil",
    "evil。example",
    "svc.evil.example",
    "127.0.0.1:9477#.svc",
    "[::1].evil.example",
];

#[test]
fn rebound_name_shows_neither_page_nor_status_and_scrapes_have_any_host() {
    let exporter = Exporter::start(&["--web.allowed-hosts", "stepmem.example.com"]);
    for path in
        ["/", "/api/v1/status", "/api/v1/runs/r/summary", "/page/main.js", "/snapshots/1-1"]
    {
        assert_eq!(get(&exporter, "evil.example", path, "").status, 403, "{path}");
    }
    let address = exporter.web.to_string();
    for (hosts, expected) in [(&OWN_HOSTS[..], 200), (&FOREIGN_HOSTS, 403), (&[&*address], 200)]
    {
        for host in hosts {
            let found = get(&exporter, host, "/api/v1/status", "").status;
            assert_eq!(found, expected, "{host}");
        }
    }
    for host in ["evil.example", "10.244.0.7:9477", "stepmem.monitoring.svc:9477"] {
        for path in ["/metrics", "/-/healthy", "/-/ready"] {
            assert_eq!(get(&exporter, host, path, "").status, 200, "{host}{path}");
        }
    }
}

/// Headers that browsers send to a page of a plain HTTP host: without Sec-Fetch, which needs
/// TLS or loopback.
const CHROME: &str = "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) \
     Chrome/142.0.0.0 Safari/537.36\r\nAccept: */*\r\nReferer: http://evil.example:9477/\r\n\
     Accept-Encoding: gzip, deflate\r\nAccept-Language: en-US,en;q=0.9\r\n";

#[test]
fn rebound_page_reads_no_metrics_by_any_head_that_only_browsers_send() {
    let exporter = Exporter::start(&[]);
    let of_fetch = "user-agent: mine\r\naccept-language: \r\n";
    for head in [
        CHROME,
        of_fetch,
        "accept-language: en\r\n",
        "sec-fetch-site: same-origin\r\n",
        "Sec-Fetch-Mode: navigate\r\n",
        "sec-ch-ua: x\r\n",
        "sec-gpc: 1\r\n",
        "ORIGIN: http://evil.example\r\n",
        "referer: http://evil.example/\r\n",
        "upgrade-insecure-requests: 1\r\n",
        "user-agent: Mozilla/5.0 (Windows NT 10.0) Firefox/145.0\r\n",
        "user-agent:\tmozilla/5.0\r\n",
        "user-agent: curl/8\r\nuser-agent: Mozilla/5.0\r\n",
    ] {
        for path in ["/metrics", "/-/healthy", "/-/ready", "/", "/api/v1/status"] {
            let refused = get(&exporter, "evil.example:9477", path, head);
            assert_eq!(refused.status, 403, "{path}: {head}");
            assert!(!refused.body.contains("stepmem_"), "{}", refused.body);
            assert_eq!(
                get(&exporter, "node-7.local", path, head).status,
                200,
                "{path}: {head}"
            );
        }
    }
    for agent in [
        "Prometheus/3.12.0",
        "curl/8.14.1",
        "Wget/1.25.0",
        "python-requests/2.32.5",
        "Python-urllib/3.13",
        "Go-http-client/1.1",
        "kube-probe/1.36",
    ] {
        let head = format!("user-agent: {agent}\r\naccept: text/plain;version=0.0.4\r\n");
        assert_eq!(get(&exporter, "gpu-7.example.com:9477", "/metrics", &head).status, 200);
    }
    assert_eq!(
        curl(&["-H", "Host: gpu-7.example.com", &format!("http://{}/metrics", exporter.web)])
            .status,
        200
    );
}

#[test]
fn heads_that_name_no_host_or_two_are_malformed_and_odd_ones_are_of_others() {
    let exporter = Exporter::start(&[]);
    for (head, expected) in [
        ("GET /metrics HTTP/1.1\r\n", 400),
        ("GET http://127.0.0.1/metrics HTTP/1.1\r\n", 400),
        ("GET /metrics HTTP/1.0\r\n", 200),
        ("GET /metrics HTTP/1.1\r\nHost: a\r\nHost: a\r\n", 400),
        ("GET /metrics HTTP/1.1\r\nHost: a\r\nhOsT: evil.example\r\n", 400),
        ("GET /metrics HTTP/1.1\r\nHost : a\r\n", 400),
        ("GET /metrics HTTP/1.1\r\nHost: a\r\n Host: b\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nOrigin: http://a\r\nOrigin: http://a\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nSec-Fetch-Site: none\r\nsec-fetch-site: none\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: evil.example.\r\n", 403),
        ("GET / HTTP/1.1\r\nHost:\r\n", 403),
        ("GET /metrics HTTP/1.1\r\nHost:\r\n", 200),
        ("GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: a\r\nAccept: b\r\n", 200),
        ("GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n", 403),
        ("GET http://localhost/ HTTP/1.1\r\nHost: evil.example\r\n", 403),
        ("GET http://u@localhost/ HTTP/1.1\r\nHost: localhost\r\n", 403),
        ("GET http://evil.example/metrics HTTP/1.1\r\nHost: evil.example\r\n", 200),
        ("GET http://evil.example/metrics HTTP/1.1\r\nHost: a\r\nAccept-Language: en\r\n", 403),
        ("GET / HTTP/1.1\r\nHost: LOCALHOST.:9477\r\n", 200),
        ("GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n", 200),
    ] {
        let answer = request(exporter.web, &format!("{head}connection: close\r\n\r\n"), b"");
        assert_eq!(answer.status, expected, "{head}");
    }
    let push = |head: &str| {
        let head = format!("POST /v1/steps HTTP/1.1\r\n{head}content-length: 0\r\n\r\n");
        request(exporter.push, &head, b"").status
    };
    assert_eq!(push(""), 400);
    // It is let in, and has no content type.
    assert_eq!(push("host: evil.example\r\nuser-agent: curl/8.1\r\naccept: */*\r\n"), 415);
    assert_eq!(push("host: a\r\norigin: null\r\norigin: http://a\r\n"), 400);
    assert_eq!(push(&format!("host: evil.example\r\n{CHROME}")), 403);
}

#[test]
fn page_of_others_pushes_nothing_and_every_answer_is_closed_to_it() {
    let exporter = Exporter::start(&[]);
    let body = record(0, 1, 1);
    let push = |headers: &[(&str, &str)]| {
        let headers = [&[JSON], headers].concat();
        exporter.request("POST", "/v1/steps", &headers, body.as_bytes())
    };
    for foreign in [
        ("origin", "https://evil.example"),
        ("origin", "http://test:2"),
        ("origin", "null"),
        ("origin", "http://user@test"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "Same-Origin"),
    ] {
        assert_eq!(push(&[foreign]).status, 403, "{foreign:?}");
    }
    assert_eq!(push(&[("sec-fetch-site", "same-origin")]).status, 200);
    let taken = push(&[("origin", "http://test")]);
    assert_eq!(taken.status, 200);
    let page = exporter.get("/", &[]);
    assert!(page.header("content-security-policy").contains("script-src 'self'"));
    for answer in [taken, exporter.get("/metrics", &[]), exporter.get("/nowhere", &[]), page] {
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert!(answer.header("content-security-policy").contains("default-src 'none'"));
    }
}

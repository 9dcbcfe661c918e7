//! Users with passwords, what needs none, headers and rates.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::net::TcpSocket;

use crate::rig::access::{basic, users};
use crate::rig::curl::curl;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::http::{JSON, head, request};
use crate::rig::job::record;
use crate::rig::refusals::check_problem;
use crate::rig::wait::{DEADLINE, await_true};

#[test]
fn page_and_pushes_need_a_user_and_probes_do_not() {
    let folder = Folder::new("users");
    let file = users(&folder, "correct: horse");
    let exporter = Exporter::start(&["--web.config.file", &file]);
    let get = |path: &str, shown: &str| {
        let shown = basic(shown);
        exporter.get(path, &[("authorization", &shown)]).status
    };
    let refused = exporter.get("/metrics", &[]);
    check_problem(&refused, 401, "send those of a user of --web.config.file");
    assert_eq!(refused.header("www-authenticate"), "Basic realm=\"stepmem\"");
    for shown in ["scraper:wrong", "scraper:", "other:correct: horse", ":", "scraper"] {
        assert_eq!(get("/metrics", shown), 401, "{shown}");
    }
    for header in ["Basic !", "Basic", "Bearer c2NyYXBlcjpjb3JyZWN0OiBob3JzZQ=="] {
        assert_eq!(exporter.get("/metrics", &[("authorization", header)]).status, 401);
    }
    for path in ["/metrics", "/", "/api/v1/status"] {
        assert_eq!(get(path, "scraper:correct: horse"), 200, "{path}");
    }
    let url = format!("http://{}/metrics", exporter.web);
    assert_eq!(curl(&["--user", "scraper:correct: horse", &url]).status, 200);
    for path in ["/-/healthy", "/-/ready"] {
        assert_eq!(exporter.get(path, &[]).status, 200, "{path}");
    }
    assert_eq!(exporter.get("/-/healthy/../../metrics", &[]).status, 401);
    // Pushes: the same user, as there is no token.
    assert_eq!(exporter.post(record(0, 1, 1)).status, 401);
    let shown = basic("scraper:correct: horse");
    let headers = [JSON, ("authorization", shown.as_str())];
    let body = record(0, 1, 1);
    let answer = exporter.request("POST", "/v1/steps", &headers, body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.body);
    let metrics = exporter.get("/metrics", &[("authorization", &shown)]).body;
    let series = "stepmem_access_refused_total{reason=\"password\"} 11\n";
    assert!(metrics.contains(series), "{metrics}");
}

#[test]
fn token_of_pushes_counts_for_a_user() {
    let folder = Folder::new("users-token");
    let token = folder.write("token", "secret");
    let file = users(&folder, "horse");
    let exporter = Exporter::start(&["--web.config.file", &file, "--push.token-file", &token]);
    let push = |authorization: &str| {
        let headers = [JSON, ("authorization", authorization)];
        exporter.request("POST", "/v1/steps", &headers, record(0, 1, 1).as_bytes()).status
    };
    assert_eq!(push("Bearer secret"), 200);
    assert_eq!(push("Bearer wrong"), 401);
    assert_eq!(push(&basic("scraper:horse")), 401);
}

#[test]
fn flood_of_wrong_passwords_stops_neither_pushes_nor_known_scrapers() {
    let folder = Folder::new("users-flood");
    let web = format!("basic_auth_users:\n  scraper: {}\n", bcrypt::hash("horse", 12).unwrap());
    let file = folder.write("web.yml", &web);
    let token = folder.write("token", "secret");
    let exporter = Exporter::start(&["--web.config.file", &file, "--push.token-file", &token]);
    let right = basic("scraper:horse");
    assert_eq!(exporter.get("/metrics", &[("authorization", &right)]).status, 200);
    let (address, is_over) = (exporter.web, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let flood = |n: usize| {
            let is_over = &is_over;
            move || {
                let mut statuses = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let wrong = basic(&format!("scraper:{n}-{}", statuses.len()));
                    let head = head("GET", "/metrics", &[("authorization", &wrong)], 0);
                    statuses.push(request(address, &head, b"").status);
                }
                statuses
            }
        };
        let floods: Vec<_> = (0..8).map(|n| scope.spawn(flood(n))).collect();
        await_true("a full queue", || {
            let metrics = exporter.get("/metrics", &[("authorization", &right)]);
            assert_eq!(metrics.status, 200, "{}", metrics.body);
            !metrics
                .body
                .contains("stepmem_access_refused_total{reason=\"password_queue\"} 0\n")
        });
        for step in 1..=100 {
            let headers = [JSON, ("authorization", "Bearer secret")];
            let body = record(0, step, 1);
            let answer = exporter.request("POST", "/v1/steps", &headers, body.as_bytes());
            assert_eq!(answer.status, 200, "{}", answer.body);
            assert_eq!(exporter.get("/metrics", &[("authorization", &right)]).status, 200);
        }
        is_over.store(true, Ordering::Relaxed);
        let statuses = floods.into_iter().flat_map(|flood| flood.join().unwrap());
        assert!(statuses.into_iter().all(|status| status == 401 || status == 429));
    });
}

/// Asks for the metrics from this address of loopback; `None` if there is no answer.
fn asked_from(source: Ipv4Addr, address: SocketAddr, shown: &str) -> Option<u16> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let connection = runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((source, 0).into()).unwrap();
        socket.connect(address).await?.into_std()
    });
    let mut connection = connection.ok()?;
    connection.set_nonblocking(false).unwrap();
    connection.set_read_timeout(Some(DEADLINE)).unwrap();
    let shown = basic(shown);
    let head = head("GET", "/metrics", &[("authorization", &shown)], 0);
    connection.write_all(head.as_bytes()).ok()?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).ok();
    let status = answer.strip_prefix(b"HTTP/1.1 ")?.first_chunk::<3>()?;
    std::str::from_utf8(status).ok()?.parse().ok()
}

#[test]
fn right_user_of_a_quiet_address_is_served_at_once_while_24_others_guess() {
    let folder = Folder::new("users-turns");
    let web = format!("basic_auth_users:\n  scraper: {}\n", bcrypt::hash("horse", 9).unwrap());
    let exporter = Exporter::start(&["--web.config.file", &folder.write("web.yml", &web)]);
    let (address, is_over) = (exporter.web, AtomicBool::new(false));
    let (n_wrong, n_busy) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for n in 0..48_u8 {
            let (is_over, n_wrong, n_busy) = (&is_over, &n_wrong, &n_busy);
            scope.spawn(move || {
                let source = Ipv4Addr::new(127, 0, 1, 1 + n % 24);
                let user = if n % 2 == 0 { "scraper" } else { "nobody" };
                while !is_over.load(Ordering::Relaxed) {
                    match asked_from(source, address, &format!("{user}:wrong")) {
                        Some(401) => n_wrong.fetch_add(1, Ordering::Relaxed),
                        Some(429) => n_busy.fetch_add(1, Ordering::Relaxed),
                        // Its connection made way for others.
                        None => 0,
                        other => panic!("{other:?}"),
                    };
                }
            });
        }
        await_true("a full queue", || {
            n_wrong.load(Ordering::Relaxed) > 0 && n_busy.load(Ordering::Relaxed) > 24
        });
        // By its first request, without a second one.
        let status = asked_from(Ipv4Addr::new(127, 0, 2, 1), address, "scraper:horse");
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(status, Some(200));
    });
}

#[test]
fn headers_are_added_and_do_not_loosen_the_pages_own() {
    let folder = Folder::new("web-headers");
    let text = "http_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: deny\n    \
                Strict-Transport-Security: max-age=60\n    Content-Security-Policy: default-src *\n    \
                X-XSS-Protection: ''\n";
    let file = folder.write("web.yml", text);
    let exporter = Exporter::start(&["--web.config.file", &file]);
    let metrics = exporter.get("/metrics", &[]);
    assert_eq!(metrics.header("x-frame-options"), "deny");
    assert_eq!(metrics.header("strict-transport-security"), "max-age=60");
    assert_eq!(metrics.header("content-security-policy"), "default-src *");
    assert!(!metrics.headers.contains_key("x-xss-protection"));
    let page = exporter.get("/", &[]);
    assert!(page.header("content-security-policy").starts_with("default-src 'none'"));
    assert_eq!(exporter.post(record(0, 1, 1)).header("x-frame-options"), "deny");
}

#[test]
fn requests_beyond_the_rate_are_refused_and_probes_are_not() {
    let folder = Folder::new("web-rate");
    let file = folder.write("web.yml", "rate_limit:\n  interval: 1h\n  burst: 3\n");
    let socket = text(&folder.path("push.sock"));
    let arguments = ["--web.config.file", &file, "--push.unix-socket", &socket];
    let exporter = Exporter::start(&arguments);
    let statuses: Vec<u16> = (0..5).map(|_| exporter.get("/metrics", &[]).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(exporter.get("/metrics", &[]).header("retry-after"), "1");
    assert_eq!(exporter.get("/-/ready", &[]).status, 200);
    // Each server has its own.
    let statuses: Vec<u16> = (1..6).map(|n| exporter.post(record(0, n, 1)).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
}

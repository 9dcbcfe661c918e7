//! Serves the exposition of many exporters from one process: `fleet-pods N` prints one line of JSON, the port and the pods
//! with their labels, and then answers `GET /POD/metrics` until it is killed. tests/fleet/run.py points Prometheus at it.
//!
//! The pods' figures are statuses of real engines, which train, leak and fail in real time. Pods that do the same share an
//! engine: each has the status with names of its own, rendered at each scrape by the table of metrics.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a tool of this repository, which ends at the first surprise"
)]

mod behavior;
mod plan;
mod rename;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use serde_json::json;
use stepmem::output::prometheus::{Format, render};

use behavior::Behaviors;
use plan::{Plan, unix_time};

fn main() {
    let n_pods =
        std::env::args().nth(1).and_then(|n| n.parse().ok()).expect("usage: fleet-pods N");
    let fleet = Arc::new(Fleet { plan: Plan::new(n_pods), behaviors: Behaviors::start() });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    println!("{}", json!({"port": port, "pods": fleet.plan.pods}));
    for connection in listener.incoming() {
        let fleet = Arc::clone(&fleet);
        thread::spawn(move || fleet.answer(&connection.unwrap()));
    }
}

struct Fleet {
    plan: Plan,
    behaviors: Behaviors,
}

impl Fleet {
    /// Answers the requests of one connection, one after the other.
    fn answer(&self, connection: &TcpStream) {
        let mut lines = BufReader::new(connection).lines();
        loop {
            let head: Vec<String> = lines
                .by_ref()
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty())
                .collect();
            let Some(path) = head.first().and_then(|line| line.split(' ').nth(1)) else {
                return;
            };
            let page = self.page(path);
            let status = if page.is_some() { "200 OK" } else { "404 Not Found" };
            let body = page.unwrap_or_default();
            let kind = Format::Text.content_type();
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            if (&*connection).write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn page(&self, path: &str) -> Option<String> {
        let name = path.strip_prefix('/')?.strip_suffix("/metrics")?;
        let pod = self.plan.pods.iter().find(|pod| pod.name == name)?;
        let status = self.behaviors.status(pod.behavior);
        Some(render(&rename::renamed(&status, pod, unix_time()), Format::Text))
    }
}

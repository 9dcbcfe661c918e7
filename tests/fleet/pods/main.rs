//! Serves the exposition of many exporters from one process: `fleet-pods N` prints one line of JSON, the port and the pods
//! with their labels, and then answers `GET /POD/metrics` until it is killed. `fleet-pods N POD URL` serves only this pod, and
//! exports the same over OTLP to URL, with the resource of the environment. tests/fleet/ points Prometheus at them.
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
mod export;
mod plan;
mod rename;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use serde_json::json;
use stepmem::output::prometheus::{Format, render};
use stepmem_engine::status::Status;

use behavior::Behaviors;
use plan::{Plan, Pod, unix_time};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (n_pods, exported) = match words[..] {
        [n_pods] => (n_pods, None),
        [n_pods, pod, url] => (n_pods, Some((pod, url))),
        _ => panic!("usage: fleet-pods N [POD URL]"),
    };
    let mut plan = Plan::new(n_pods.parse().expect("a number of pods"));
    if let Some((name, _)) = exported {
        plan.pods.retain(|pod| pod.name == name);
    }
    let behaviors = Behaviors::start(plan.pods.iter().map(|pod| pod.behavior).collect());
    let fleet = Arc::new(Fleet { plan, behaviors });
    if let Some((_, url)) = exported {
        export::start(&fleet, url);
    }
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
        let page = render(&self.status(pod), Format::Text);
        self.behaviors.was_scraped(pod.behavior);
        Some(page)
    }

    fn status(&self, pod: &Pod) -> Status {
        rename::renamed(&self.behaviors.status(pod.behavior), pod, unix_time())
    }
}

//! An exporter under attack: eight ranks that push and a scraper go on meanwhile.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::rig::exporter::Exporter;
use crate::rig::http::{JSON, head, request};
use crate::rig::wait::{LOOK, keep_pace};

/// The most memory that an attack may take, in bytes: what `make attack` leaves it beyond an idle exporter. In a debug build, whose futures are
/// larger, more.
pub const GROWTH_MAX: u64 = if cfg!(debug_assertions) { 28 } else { 22 } * 1024 * 1024;
const PACE: Duration = Duration::from_millis(20);

/// An exporter, and eight ranks that push to it.
pub struct Victim {
    pub exporter: Arc<Exporter>,
    is_over: Arc<AtomicBool>,
    pushed: JoinHandle<Pushes>,
    before_bytes: u64,
}

/// The fate of legitimate pushes.
#[derive(Debug, Default)]
pub struct Pushes {
    pub n_pushes: u64,
    pub lost: Vec<String>,
}

impl Pushes {
    /// Pushes a step of each of the eight ranks.
    fn push_ranks(&mut self, address: SocketAddr, step: u64) {
        for rank in 0..8 {
            let body =
                format!(r#"{{"run":"good","rank":{rank},"step":{step},"allocated_bytes":1}}"#);
            let head = head("POST", "/v1/steps", &[JSON], body.len());
            let answer = request(address, &head, body.as_bytes());
            self.n_pushes += 1;
            if answer.status != 200 {
                self.lost.push(answer.body);
            }
        }
    }
}

/// The result of an attack.
#[derive(Debug)]
pub struct Outcome {
    pub grown_bytes: u64,
    pub pushes: Pushes,
}

impl Victim {
    /// Starts the exporter and the ranks, and waits until each has pushed.
    pub fn start(arguments: &[&str]) -> Self {
        let exporter = Arc::new(Exporter::start(arguments));
        let (is_over, n_rounds) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let address = exporter.push;
        let (stop, rounds) = (Arc::clone(&is_over), Arc::clone(&n_rounds));
        let pushed = std::thread::spawn(move || {
            let mut pushes = Pushes::default();
            for step in 1.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let began = Instant::now();
                pushes.push_ranks(address, step);
                rounds.store(step, Ordering::Relaxed);
                keep_pace(began, PACE);
            }
            pushes
        });
        while n_rounds.load(Ordering::Relaxed) < 5 {
            std::thread::park_timeout(LOOK);
        }
        for _ in 0..10 {
            exporter.scrape();
            exporter.get("/api/v1/status", &[("accept-encoding", "gzip")]);
        }
        let before_bytes = exporter.resident_bytes_max();
        Self { exporter, is_over, pushed, before_bytes }
    }

    /// Scrapes so often while the attack goes on: each is answered. `make attack` measures how soon.
    pub fn scrape(&self, n_scrapes: u32) {
        for _ in 0..n_scrapes {
            self.exporter.scrape();
        }
    }

    /// Ends the ranks, and checks that none of their pushes was lost and that the memory stayed within its bound.
    pub fn survives(self, attack: &str) -> Outcome {
        self.is_over.store(true, Ordering::Relaxed);
        let pushes = self.pushed.join().unwrap();
        let grown_bytes = self.exporter.resident_bytes_max().saturating_sub(self.before_bytes);
        let outcome = Outcome { grown_bytes, pushes };
        assert!(outcome.pushes.lost.is_empty(), "{attack}: {outcome:?}");
        assert!(outcome.grown_bytes <= GROWTH_MAX, "{attack}: {outcome:?}");
        outcome
    }
}

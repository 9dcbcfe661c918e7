//! What TCP listeners ask of their clients: TLS, a user and its password, a rate; and what they add to answers. All of it
//! comes from a file that is read anew while the server runs. Connections over a Unix socket are asked for nothing here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::header::{AUTHORIZATION, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::ServerConfig;
use tokio::sync::watch;

use crate::net::half_records::HalfRecords;
use crate::net::passwords::{PasswordVerdict, Passwords, ShownPassword};
use crate::net::peer::Peer;
use stepmem_types::units::Uptime;

/// Paths that answer whether the exporter runs, to whoever asks: the probes of an orchestrator know no password.
const PROBED: [&str; 2] = ["/-/healthy", "/-/ready"];

/// What clients over TCP are asked for.
#[derive(Clone, Debug, Default)]
pub struct AccessPolicy {
    /// What TLS is spoken with; `None` speaks plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// Hashes of passwords by user; without any, no password is asked for.
    pub users: BTreeMap<String, String>,
    /// Headers of every answer that does not bring its own.
    pub headers: HeaderMap,
    pub rate: Option<RateLimit>,
}

/// How many requests a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The time after which one more is answered, above 0.
    pub interval: Duration,
    /// How many are answered at once.
    pub burst: u32,
}

/// How often clients were refused.
#[derive(Debug, Default)]
pub struct AccessCounts {
    handshakes: AtomicU64,
    passwords: AtomicU64,
    busy: AtomicU64,
    rate: AtomicU64,
    records: AtomicU64,
}

impl AccessCounts {
    /// The counts by reason, ascending.
    pub fn reasons(&self) -> [(&'static str, u64); 5] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("handshake", read(&self.handshakes)),
            ("password", read(&self.passwords)),
            ("password_queue", read(&self.busy)),
            ("rate_limit", read(&self.rate)),
            ("record", read(&self.records)),
        ]
    }

    pub(super) fn add_handshake(&self) {
        self.handshakes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_records(&self, n: u64) {
        self.records.fetch_add(n, Ordering::Relaxed);
    }
}

/// Lets requests in, for the listeners of one server.
pub struct Gate {
    pub policy: watch::Receiver<Arc<AccessPolicy>>,
    /// Whether users are asked for their passwords; not where requests show a token.
    pub asks_users: bool,
    pub passwords: Arc<Passwords>,
    pub counts: Arc<AccessCounts>,
    pub clock: Arc<dyn Fn() -> Uptime + Send + Sync>,
    pub bucket: Mutex<Bucket>,
    pub half_records: Arc<HalfRecords>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("asks_users", &self.asks_users).finish_non_exhaustive()
    }
}

/// The requests that a rate leaves.
#[derive(Debug, Default)]
pub struct Bucket {
    /// The rate that the rest belongs to.
    rate: Option<RateLimit>,
    /// Until when the requests so far take the rate.
    taken_until: Duration,
}

/// Why a request is not let in, and what its answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GateRefusal {
    pub(super) status: StatusCode,
    pub(super) reason: &'static str,
    pub(super) header: (HeaderName, HeaderValue),
}

impl Gate {
    /// Returns what TLS is spoken with now.
    pub(super) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.policy.borrow().tls.clone()
    }

    /// Lets a request in, by its head.
    ///
    /// # Errors
    /// It exceeds the rate, or shows no user and password, or wrong ones.
    pub(super) async fn admit(
        &self,
        peer: Peer,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(), GateRefusal> {
        if !matches!(peer, Peer::Address(_)) || PROBED.contains(&path) {
            return Ok(());
        }
        let policy = Arc::clone(&self.policy.borrow());
        self.take(policy.rate)?;
        if policy.users.is_empty() || !self.asks_users {
            return Ok(());
        }
        let shown = headers.get(AUTHORIZATION).and_then(user_and_password);
        let verdict = match &shown {
            None => PasswordVerdict::Wrong,
            Some((user, password)) => {
                let shown = ShownPassword { user, password };
                self.passwords.check(peer, &policy.users, shown).await
            }
        };
        match verdict {
            PasswordVerdict::Right => Ok(()),
            PasswordVerdict::Wrong => {
                self.counts.passwords.fetch_add(1, Ordering::Relaxed);
                Err(GateRefusal {
                    status: StatusCode::UNAUTHORIZED,
                    reason: "user and password are missing or wrong",
                    header: (
                        WWW_AUTHENTICATE,
                        HeaderValue::from_static("Basic realm=\"stepmem\""),
                    ),
                })
            }
            PasswordVerdict::Busy => {
                self.counts.busy.fetch_add(1, Ordering::Relaxed);
                Err(too_many("too many passwords wait to be compared"))
            }
        }
    }

    /// Takes one request from the rate.
    fn take(&self, rate: Option<RateLimit>) -> Result<(), GateRefusal> {
        let Some(rate) = rate else { return Ok(()) };
        let now = (self.clock)().0;
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        if bucket.rate != Some(rate) {
            *bucket = Bucket { rate: Some(rate), taken_until: now };
        }
        let taken = bucket.taken_until.max(now).saturating_add(rate.interval);
        if taken > now.saturating_add(rate.interval.saturating_mul(rate.burst)) {
            self.counts.rate.fetch_add(1, Ordering::Relaxed);
            return Err(too_many("the rate of requests exceeds rate_limit"));
        }
        bucket.taken_until = taken;
        Ok(())
    }

    /// Adds the headers of every answer over TCP.
    pub(super) fn complete(&self, peer: Peer, headers: &mut HeaderMap) {
        if matches!(peer, Peer::Address(_)) {
            for (name, value) in &self.policy.borrow().headers {
                headers.entry(name).or_insert_with(|| value.clone());
            }
        }
    }
}

fn too_many(reason: &'static str) -> GateRefusal {
    let header = (RETRY_AFTER, HeaderValue::from_static("1"));
    GateRefusal { status: StatusCode::TOO_MANY_REQUESTS, reason, header }
}

/// Returns user and password of a header.
fn user_and_password(header: &HeaderValue) -> Option<(String, Vec<u8>)> {
    let (scheme, encoded) = header.as_bytes().split_at_checked(b"Basic ".len())?;
    if !scheme.eq_ignore_ascii_case(b"Basic ") {
        return None;
    }
    let text = STANDARD.decode(encoded.trim_ascii()).ok()?;
    let colon = text.iter().position(|byte| *byte == b':')?;
    let (user, password) = text.split_at_checked(colon)?;
    Some((String::from_utf8(user.to_vec()).ok()?, password.get(1..)?.to_vec()))
}

//! The access rules of TCP listeners: TLS, users and passwords, a rate, and headers of answers.
//! They come from a file that is read again while the server runs. The rules do not apply to
//! connections over a Unix socket.

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

use crate::net::passwords::{PasswordVerdict, Passwords, ShownPassword};
use crate::net::peer::Peer;
use stepmem_types::units::Uptime;

/// The answer at the first of the paths below.
pub const HEALTHY: &str = "stepmem is healthy.\n";
/// Paths that answer anyone whether the exporter runs: the probes of an orchestrator know no
/// password.
const PROBED: [&str; 2] = ["/-/healthy", "/-/ready"];

/// The access rules for clients over TCP.
#[derive(Clone, Debug, Default)]
pub struct AccessPolicy {
    /// The configuration of TLS; `None` speaks plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// Hashes of passwords by user; if empty, no password is needed.
    pub users: BTreeMap<String, String>,
    /// Headers of every answer that does not set its own.
    pub headers: HeaderMap,
    pub rate: Option<RateLimit>,
}

/// The limit on the number of requests that a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The time after which one more is answered, above 0.
    pub interval: Duration,
    /// Number of requests that are answered at once.
    pub burst: u32,
}

/// Counts of refused clients, by reason.
#[derive(Debug, Default)]
pub struct AccessCounts {
    handshakes: AtomicU64,
    passwords: AtomicU64,
    busy: AtomicU64,
    rate: AtomicU64,
}

impl AccessCounts {
    /// The counts by reason, ascending.
    pub fn reasons(&self) -> [(&'static str, u64); 4] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("handshake", read(&self.handshakes)),
            ("password", read(&self.passwords)),
            ("password_queue", read(&self.busy)),
            ("rate_limit", read(&self.rate)),
        ]
    }

    pub(super) fn add_handshake(&self) {
        self.handshakes.fetch_add(1, Ordering::Relaxed);
    }
}

/// The gate that admits requests, for the listeners of one server.
pub struct Gate {
    pub policy: watch::Receiver<Arc<AccessPolicy>>,
    /// True if users need their passwords; not where requests show a token.
    pub asks_users: bool,
    pub passwords: Arc<Passwords>,
    pub counts: Arc<AccessCounts>,
    pub clock: Arc<dyn Fn() -> Uptime + Send + Sync>,
    pub bucket: Mutex<Bucket>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("asks_users", &self.asks_users).finish_non_exhaustive()
    }
}

/// The requests that the rate still allows.
#[derive(Debug, Default)]
pub struct Bucket {
    /// The rate to which the rest applies.
    rate: Option<RateLimit>,
    /// The time until which the requests so far use up the rate.
    taken_until: Duration,
}

/// The reason that a request is not admitted, and the content of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GateRefusal {
    pub(super) status: StatusCode,
    pub(super) reason: &'static str,
    pub(super) header: (HeaderName, HeaderValue),
}

impl Gate {
    /// Returns the current configuration of TLS.
    pub(super) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.policy.borrow().tls.clone()
    }

    /// Admits a request, by its head.
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
                    reason: "user and password are missing or wrong: send those of a user of --web.config.file by Authorization: Basic",
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

    /// Takes one request from the rate's allowance.
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
            return Err(too_many(
                "the rate of requests exceeds rate_limit of --web.config.file",
            ));
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

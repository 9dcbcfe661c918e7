//! The rights of a client, by its token or by its identity: push, or also administer. Wrong
//! tokens are limited.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request};
use rustix::process::geteuid;
use subtle::ConstantTimeEq;
use tokio::sync::{Semaphore, watch};

use crate::net::peer::Peer;
use crate::net::server::Connection;
use stepmem_types::units::Uptime;

/// Number of wrong tokens within [`GUESSES_WITHIN`] that are answered at once, of all clients.
/// A right token is always taken, so that no client keeps another out.
pub const GUESSES_MAX: u32 = 60;
/// See [`GUESSES_MAX`].
pub const GUESSES_WITHIN: Duration = Duration::from_mins(1);
/// Number of wrong tokens beyond that which are answered after [`GUESS_PAUSE`] at a time. The
/// connections of others are closed without an answer.
pub const GUESSES_PAUSED_MAX: usize = 16;
/// See [`GUESSES_PAUSED_MAX`].
pub const GUESS_PAUSE: Duration = Duration::from_secs(1);
/// The header in which the page shows the token of admins: `Authorization` may have user and
/// password.
const PAGE_TOKEN: HeaderName = HeaderName::from_static("stepmem-admin-token");
/// The user that stands for all those that a user namespace does not know.
const UID_OVERFLOW: u32 = 65_534;

/// A token that clients send.
#[derive(Clone, Default)]
pub struct Token(pub Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The tokens of both roles as they are now; `None` where none is set.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    pub push: Option<watch::Receiver<Token>>,
    pub admin: Option<watch::Receiver<Token>>,
}

/// The rights of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Push steps, end its own ranks and report about them.
    Push,
    /// Also acknowledge, release, ask for snapshots, and end any rank.
    Admin,
}

/// Reasons that a client may not do what it requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AccessRefusal {
    #[error(
        "the header Authorization: Bearer TOKEN is missing: send the token of the exporter's --push.token-file (the client reads it from the file of STEPMEM_PUSH_TOKEN_FILE)"
    )]
    NoToken,
    #[error(
        "the header {PAGE_TOKEN} is missing: send the token of the exporter's --admin.token-file"
    )]
    NoPageToken,
    #[error(
        "the header Origin is not the address of this page: only the page itself may send this"
    )]
    NotOfPage,
    #[error(
        "the token is not one of this exporter: send that of its --push.token-file, or for admins of --admin.token-file"
    )]
    WrongToken,
    #[error(
        "more than {GUESSES_MAX} wrong tokens within {GUESSES_WITHIN:?}, and this one is wrong, too"
    )]
    Guessed,
    #[error(
        "this needs the role of an admin: send the token of --admin.token-file, or connect over the Unix socket as the exporter's own user"
    )]
    NeedsAdmin,
}

/// A client that was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) peer: Peer,
    pub(super) role: Role,
    /// True if the connection identifies the client: by the system, by a token, or as one of a
    /// trusted machine.
    pub(super) is_known: bool,
}

impl Caller {
    /// # Errors
    /// It may push only.
    pub(super) fn administering(self) -> Result<Self, AccessRefusal> {
        if self.role == Role::Admin { Ok(self) } else { Err(AccessRefusal::NeedsAdmin) }
    }
}

/// Returns the time since the start.
pub(super) type ReadClock = Arc<dyn Fn() -> Uptime + Send + Sync>;

/// The rules by which clients get their roles.
pub(super) struct Roles {
    tokens: Tokens,
    /// Set when root over the Unix socket and any client over loopback administer where no
    /// token of admins is set.
    trusts_machine: bool,
    own_uid: u32,
    guesses: Guesses,
}

impl Roles {
    pub(super) fn new(tokens: Tokens, trusts_machine: bool, clock: ReadClock) -> Self {
        let guesses = Guesses {
            clock,
            window: Mutex::default(),
            paused: Semaphore::new(GUESSES_PAUSED_MAX),
        };
        Self { tokens, trusts_machine, own_uid: geteuid().as_raw(), guesses }
    }

    /// Returns the sender of a request, and its role.
    ///
    /// # Errors
    /// It has no token although one is needed, or a wrong one.
    pub(super) fn caller(&self, request: &Request<Body>) -> Result<Caller, AccessRefusal> {
        if let Some(caller) = request.extensions().get::<Caller>() {
            return Ok(*caller);
        }
        let peer = peer_of(request);
        let role = self.role(peer, bearer(request.headers()))?;
        // A client that was let in by a token has shown it.
        let is_known = self.tokens.push.is_some()
            || role == Role::Admin
            || matches!(peer, Peer::Process { .. });
        Ok(Caller { peer, role, is_known })
    }

    /// Returns the admin who sent a request from the page, which was loaded over `scheme`.
    ///
    /// # Errors
    /// Another page sent it, or none; or it has no token, or a wrong one.
    pub(super) fn caller_of_page(
        &self,
        request: &Request<Body>,
        scheme: &str,
    ) -> Result<Caller, AccessRefusal> {
        if !is_of_own_origin(request.headers(), scheme) {
            return Err(AccessRefusal::NotOfPage);
        }
        let shown = request.headers().get(PAGE_TOKEN).ok_or(AccessRefusal::NoPageToken)?;
        if !is_right(shown.as_bytes(), self.tokens.admin.as_ref()) {
            return Err(AccessRefusal::WrongToken);
        }
        Ok(Caller { peer: peer_of(request), role: Role::Admin, is_known: true })
    }

    fn role(&self, peer: Peer, shown: Option<&[u8]>) -> Result<Role, AccessRefusal> {
        if self.is_own(peer) {
            return Ok(Role::Admin);
        }
        let Tokens { push, admin } = &self.tokens;
        let by_peer = if self.is_trusted(peer) { Role::Admin } else { Role::Push };
        match shown {
            _ if push.is_none() && admin.is_none() => Ok(by_peer),
            None if push.is_none() => Ok(by_peer),
            None => Err(AccessRefusal::NoToken),
            Some(shown) => {
                // Both are compared, even if the first is right.
                let [is_admin, is_push] =
                    [admin, push].map(|token| is_right(shown, token.as_ref()));
                match (is_admin, is_push) {
                    (true, _) => Ok(Role::Admin),
                    (false, true) => Ok(by_peer),
                    (false, false) => Err(AccessRefusal::WrongToken),
                }
            }
        }
    }

    /// Returns whether the peer is this process's own user, who can read its files and signal
    /// it anyway.
    fn is_own(&self, peer: Peer) -> bool {
        let is_known = ![0, UID_OVERFLOW].contains(&self.own_uid);
        matches!(peer, Peer::Process { uid, .. } if is_known && uid == self.own_uid)
    }

    fn is_trusted(&self, peer: Peer) -> bool {
        let is_of_machine = match peer {
            Peer::Process { uid, .. } => uid == 0,
            Peer::Address(address) => address.is_loopback(),
            Peer::Unknown => false,
        };
        self.trusts_machine && self.tokens.admin.is_none() && is_of_machine
    }

    /// Waits before the answer to a wrong token, once there were too many. Returns `None` for
    /// one that gets no answer.
    pub(super) async fn paced(&self) -> Option<AccessRefusal> {
        self.guesses.paced().await
    }
}

fn peer_of(request: &Request<Body>) -> Peer {
    request.extensions().get::<Connection>().map_or(Peer::Unknown, Connection::peer)
}

/// Returns whether the page that sent a request has scheme, host and port of this server.
fn is_of_own_origin(headers: &HeaderMap, scheme: &str) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(ORIGIN).and_then(|origin| origin.strip_prefix(scheme)?.strip_prefix("://"));
    host.zip(text(HOST)).is_some_and(|(of_origin, host)| of_origin.eq_ignore_ascii_case(host))
}

/// Compares in a time that depends only on the lengths.
fn is_right(shown: &[u8], token: Option<&watch::Receiver<Token>>) -> bool {
    token.is_some_and(|token| bool::from(shown.ct_eq(&token.borrow().0)))
}

/// Returns the token that a request shows; `None` also for another scheme than `Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes)?;
    let bearer = value.split_at_checked(b"Bearer ".len());
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "));
    bearer.map(|(_, token)| token)
}

/// The wrong tokens of an interval.
struct Guesses {
    clock: ReadClock,
    /// The start of the interval, and the number of wrong tokens in it.
    window: Mutex<(Uptime, u32)>,
    paused: Semaphore,
}

impl Guesses {
    async fn paced(&self) -> Option<AccessRefusal> {
        if self.count() <= GUESSES_MAX {
            return Some(AccessRefusal::WrongToken);
        }
        let _place = self.paused.try_acquire().ok()?;
        tokio::time::sleep(GUESS_PAUSE).await;
        Some(AccessRefusal::Guessed)
    }

    /// Counts one more wrong token.
    fn count(&self) -> u32 {
        let now = (self.clock)();
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let (began, n_guesses) = &mut *window;
        if now.since(*began) > GUESSES_WITHIN {
            (*began, *n_guesses) = (now, 0);
        }
        *n_guesses = n_guesses.saturating_add(1);
        *n_guesses
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use tokio::sync::watch;

    use crate::input::push::roles::{Role, Roles, Token, Tokens};
    use crate::net::peer::Peer;
    use stepmem_types::units::Uptime;

    fn roles(tokens: [Option<&str>; 2], trusts_machine: bool, own_uid: u32) -> Roles {
        let [push, admin] = tokens
            .map(|token| token.map(|token| watch::channel(Token(token.as_bytes().to_vec())).1));
        let roles =
            Roles::new(Tokens { push, admin }, trusts_machine, Arc::new(Uptime::default));
        Roles { own_uid, ..roles }
    }

    fn peer(uid: u32) -> Peer {
        Peer::Process { uid, pid: 7 }
    }

    fn address(text: &str) -> Peer {
        Peer::Address(text.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn own_user_is_an_admin_without_a_token_unless_it_is_root_or_unknown() {
        let role =
            |own, peer| roles([Some("push"), Some("admin")], false, own).role(peer, None).ok();
        assert_eq!(role(65_532, peer(65_532)), Some(Role::Admin));
        assert_eq!(role(65_532, peer(1000)), None);
        for uid in [0, 65_534] {
            assert_eq!(role(uid, peer(uid)), None);
        }
        assert_eq!(role(65_532, address("127.0.0.1")), None);
    }

    #[test]
    fn root_and_loopback_are_admins_only_where_the_machine_is_trusted_and_no_token_is_set() {
        let role = |token, trusts, peer| roles([None, token], trusts, 1).role(peer, None).ok();
        for of_machine in [peer(0), address("127.0.0.1"), address("::1")] {
            assert_eq!(role(None, true, of_machine), Some(Role::Admin), "{of_machine}");
            assert_eq!(role(None, false, of_machine), Some(Role::Push), "{of_machine}");
            assert_eq!(role(Some("admin"), true, of_machine), Some(Role::Push), "{of_machine}");
        }
        for other in [peer(1000), address("10.0.0.1"), Peer::Unknown] {
            assert_eq!(role(None, true, other), Some(Role::Push), "{other}");
        }
    }

    #[test]
    fn each_token_opens_its_role_and_a_wrong_one_opens_none() {
        let both = roles([Some("push"), Some("admin")], true, 1);
        let role = |shown: &str| both.role(address("::1"), Some(shown.as_bytes())).ok();
        assert_eq!(role("push"), Some(Role::Push));
        assert_eq!(role("admin"), Some(Role::Admin));
        for wrong in ["", "pus", "pushh", "PUSH"] {
            assert_eq!(role(wrong), None, "{wrong:?}");
        }
        let alone = roles([None, Some("admin")], true, 1);
        assert_eq!(alone.role(peer(0), Some(b"push")).ok(), None);
        let without = roles([None, None], false, 1);
        assert_eq!(without.role(peer(0), Some(b"push")).ok(), Some(Role::Push));
    }
}

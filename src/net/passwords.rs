//! Passwords of clients and their hashes. A comparison takes long by design. Therefore one runs
//! at a time and on another thread, few wait, and right passwords are remembered.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::{Notify, oneshot};

use crate::net::password_turns::{PasswordTurns, Turn};
use crate::net::peer::Peer;

/// Maximum number of passwords that are known to be right.
pub const KNOWN_PASSWORDS_MAX: usize = 64;
/// The longest password that bcrypt distinguishes from others, in bytes.
pub const PASSWORD_BYTES_MAX: usize = 72;
/// The highest cost of a hash: a comparison takes about four seconds.
pub const HASH_COST_MAX: u32 = 16;

/// A password that is compared with a hash.
#[derive(Debug)]
pub struct PasswordCheck {
    password: Vec<u8>,
    hash: String,
    is_user: bool,
    answer: oneshot::Sender<bool>,
}

impl PasswordCheck {
    /// Compares, which takes a tenth of a second and more.
    pub fn run(self) -> ComparedPassword {
        let is_equal = bcrypt::verify(&self.password, &self.hash).unwrap_or(false);
        ComparedPassword { is_right: is_equal && self.is_user, answer: self.answer }
    }
}

/// A password that was compared, and whose client waits for the answer.
#[derive(Debug)]
pub struct ComparedPassword {
    is_right: bool,
    answer: oneshot::Sender<bool>,
}

impl Turn for PasswordCheck {
    fn is_over(&self) -> bool {
        self.answer.is_closed()
    }
}

/// User and password of a request.
#[derive(Clone, Copy)]
pub(super) struct ShownPassword<'s> {
    pub(super) user: &'s str,
    pub(super) password: &'s [u8],
}

/// The result of a password check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PasswordVerdict {
    Right,
    Wrong,
    /// Too many passwords wait for their comparison.
    Busy,
}

/// The comparison of passwords, for all listeners.
#[derive(Debug, Default)]
pub struct Passwords {
    turns: Mutex<PasswordTurns<PasswordCheck>>,
    arrived: Notify,
    key: Option<hmac::Key>,
    /// Fingerprints of users, hashes and passwords that belong together, the newest last.
    known: Mutex<VecDeque<[u8; 32]>>,
}

impl Passwords {
    pub fn new() -> Self {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok();
        Self { key, ..Self::default() }
    }

    /// Waits for the password whose turn it is. The caller must run it, and then call
    /// [`Self::compared`].
    pub async fn next(&self) -> PasswordCheck {
        loop {
            let next = self.turns().next();
            if let Some(check) = next {
                return check;
            }
            self.arrived.notified().await;
        }
    }

    /// Answers the client of the password whose turn it was.
    pub fn compared(&self, compared: ComparedPassword) {
        self.turns().end(compared.is_right);
        // The client may have left.
        compared.answer.send(compared.is_right).ok();
    }

    /// Compares a password with the hash of its user. For an unknown user, compares it with
    /// another user's hash, so that the answer takes as long.
    pub(super) async fn check(
        &self,
        peer: Peer,
        users: &BTreeMap<String, String>,
        shown: ShownPassword<'_>,
    ) -> PasswordVerdict {
        let ShownPassword { user, password } = shown;
        let own = users.get(user);
        let Some(hash) = own.or_else(|| self.another(users, user)) else {
            return PasswordVerdict::Wrong;
        };
        let mark = self.mark(hash, password);
        let is_user = own.is_some();
        if is_user && mark.is_some_and(|mark| self.known().contains(&mark)) {
            return PasswordVerdict::Right;
        }
        if password.len() > PASSWORD_BYTES_MAX {
            return PasswordVerdict::Wrong;
        }
        let (answer, answered) = oneshot::channel();
        let (password, hash) = (password.to_vec(), hash.clone());
        let check = PasswordCheck { password, hash, is_user, answer };
        if !self.turns().wait(peer, check) {
            return PasswordVerdict::Busy;
        }
        self.arrived.notify_one();
        // A password that was evicted for that of a quieter peer is dropped.
        let Ok(is_right) = answered.await else { return PasswordVerdict::Busy };
        if let (true, Some(mark)) = (is_right, mark) {
            let mut known = self.known();
            if known.len() >= KNOWN_PASSWORDS_MAX {
                known.pop_front();
            }
            known.push_back(mark);
        }
        if is_right { PasswordVerdict::Right } else { PasswordVerdict::Wrong }
    }

    /// Returns the hash of one of the users, always the same one for an unknown name: costs of
    /// hashes differ.
    fn another<'u>(
        &self,
        users: &'u BTreeMap<String, String>,
        name: &str,
    ) -> Option<&'u String> {
        let mark = self.mark("", name.as_bytes()).unwrap_or_default();
        let number = mark.first_chunk().copied().map_or(0, u32::from_le_bytes);
        let idx = usize::try_from(number).unwrap_or_default().checked_rem(users.len())?;
        users.values().nth(idx)
    }

    /// Returns a fingerprint of a hash, which is different for every user, and a password. Its
    /// key makes sure that neither can be derived from memory.
    fn mark(&self, hash: &str, password: &[u8]) -> Option<[u8; 32]> {
        let mut context = hmac::Context::with_key(self.key.as_ref()?);
        context.update(hash.as_bytes());
        context.update(&[0]);
        context.update(password);
        context.sign().as_ref().try_into().ok()
    }

    fn known(&self) -> MutexGuard<'_, VecDeque<[u8; 32]>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turns(&self) -> MutexGuard<'_, PasswordTurns<PasswordCheck>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::IpAddr;
    use std::sync::Arc;

    use futures_util::FutureExt;

    use crate::net::passwords::{PasswordVerdict, Passwords, ShownPassword};
    use crate::net::peer::Peer;

    #[test]
    fn unknown_user_is_compared_with_a_hash_of_the_file_and_is_never_right() {
        let hash = bcrypt::hash("horse", 4).unwrap();
        let users = BTreeMap::from([("scraper".to_owned(), hash.clone())]);
        let passwords = Arc::new(Passwords::new());
        let peer = Peer::Address(IpAddr::from([127, 0, 0, 1]));
        let compared = |user: &str, password: &str| {
            let shown = ShownPassword { user, password: password.as_bytes() };
            let mut verdict = Box::pin(passwords.check(peer, &users, shown));
            let first = verdict.as_mut().now_or_never();
            let check = passwords.next().now_or_never();
            let is_compared = check.as_ref().map(|check| check.hash == hash);
            if let Some(check) = check {
                passwords.compared(check.run());
            }
            (is_compared, first.or_else(|| verdict.now_or_never()))
        };
        let (right, wrong) = (Some(PasswordVerdict::Right), Some(PasswordVerdict::Wrong));
        assert_eq!(compared("scraper", "wrong"), (Some(true), wrong));
        assert_eq!(compared("nobody", "wrong"), (Some(true), wrong));
        assert_eq!(compared("nobody", "horse"), (Some(true), wrong));
        assert_eq!(compared("scraper", "horse"), (Some(true), right));
        // A password that is known to be right is right only for its user.
        assert_eq!(compared("scraper", "horse"), (None, right));
        assert_eq!(compared("nobody", "horse"), (Some(true), wrong));
        assert_eq!(compared("", "horse"), (Some(true), wrong));
    }
}

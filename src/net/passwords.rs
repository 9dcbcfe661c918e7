//! Passwords of clients and their hashes. A comparison takes long by design: one runs at a time, elsewhere, few wait, and what
//! was right once is remembered.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::{mpsc, oneshot};

use crate::net::peer::Peer;

/// Comparisons that wait, at most. Further requests are answered with 429.
pub const WAITING_CHECKS_MAX: usize = 16;
/// Comparisons of one peer that wait, at most, so that others have a place.
pub const WAITING_OF_PEER_MAX: usize = 2;
/// Passwords that are known to be right, at most.
pub const KNOWN_PASSWORDS_MAX: usize = 64;
/// The longest password that bcrypt tells from others, in bytes.
pub const PASSWORD_BYTES_MAX: usize = 72;
/// The highest cost of a hash: a comparison takes about four seconds.
pub const HASH_COST_MAX: u32 = 16;
/// The hash of no known password, with which a user is compared that does not exist.
const NONE: &str = "$2b$10$DMNAa8xVS/IpkUi8F2KxIOMg5jCd4VvZnRgf5vgyzYrQaMcUSK9EO";

/// A password that is compared with a hash.
#[derive(Debug)]
pub struct PasswordCheck {
    password: Vec<u8>,
    hash: String,
    answer: oneshot::Sender<bool>,
}

impl PasswordCheck {
    /// Compares, which takes a tenth of a second and more, and answers.
    pub fn run(self) {
        let is_right = bcrypt::verify(&self.password, &self.hash).unwrap_or(false);
        // The client may have left.
        self.answer.send(is_right).ok();
    }
}

/// Whether a password is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PasswordVerdict {
    Right,
    Wrong,
    /// Too many wait for theirs to be compared.
    Busy,
}

/// Compares passwords, for all listeners.
#[derive(Debug)]
pub struct Passwords {
    checks: mpsc::Sender<PasswordCheck>,
    /// The peers whose passwords are being compared.
    waiting: Mutex<Vec<Peer>>,
    key: Option<hmac::Key>,
    /// Marks of users, hashes and passwords that belong together, the newest last.
    known: Mutex<VecDeque<[u8; 32]>>,
}

impl Passwords {
    /// Returns it with the receiver of the comparisons to run.
    pub fn new() -> (Self, mpsc::Receiver<PasswordCheck>) {
        let (checks, receiver) = mpsc::channel(WAITING_CHECKS_MAX);
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok();
        let (waiting, known) = (Mutex::default(), Mutex::default());
        (Self { checks, waiting, key, known }, receiver)
    }

    /// Compares a password with the hash of its user, if there is such a user.
    pub(super) async fn check(
        &self,
        peer: Peer,
        hash: Option<&str>,
        password: &[u8],
    ) -> PasswordVerdict {
        let mark = hash.and_then(|hash| self.mark(hash, password));
        if mark.is_some_and(|mark| self.known().contains(&mark)) {
            return PasswordVerdict::Right;
        }
        if password.len() > PASSWORD_BYTES_MAX {
            return PasswordVerdict::Wrong;
        }
        let Some(_place) = self.place(peer) else { return PasswordVerdict::Busy };
        let (answer, answered) = oneshot::channel();
        let (password, is_user) = (password.to_vec(), hash.is_some());
        let hash = hash.unwrap_or(NONE).to_owned();
        if self.checks.try_send(PasswordCheck { password, hash, answer }).is_err() {
            return PasswordVerdict::Busy;
        }
        let is_right = answered.await.unwrap_or(false) && is_user;
        if let (true, Some(mark)) = (is_right, mark) {
            let mut known = self.known();
            if known.len() >= KNOWN_PASSWORDS_MAX {
                known.pop_front();
            }
            known.push_back(mark);
        }
        if is_right { PasswordVerdict::Right } else { PasswordVerdict::Wrong }
    }

    /// A peer's place among those that wait; `None` if it has enough.
    fn place(&self, peer: Peer) -> Option<WaitingPlace<'_>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let n_own = waiting.iter().filter(|other| **other == peer).count();
        if n_own >= WAITING_OF_PEER_MAX {
            return None;
        }
        waiting.push(peer);
        Some(WaitingPlace { passwords: self, peer })
    }

    /// Marks a hash, which is another for every user, and a password by a key that leaves no memory of theirs.
    fn mark(&self, hash: &str, password: &[u8]) -> Option<[u8; 32]> {
        let mut context = hmac::Context::with_key(self.key.as_ref()?);
        context.update(hash.as_bytes());
        context.update(&[0]);
        context.update(password);
        context.sign().as_ref().try_into().ok()
    }

    fn known(&self) -> std::sync::MutexGuard<'_, VecDeque<[u8; 32]>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among those that wait, until it is dropped.
struct WaitingPlace<'p> {
    passwords: &'p Passwords,
    peer: Peer,
}

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        let mut waiting = self.passwords.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(idx) = waiting.iter().position(|other| *other == self.peer) {
            waiting.swap_remove(idx);
        }
    }
}

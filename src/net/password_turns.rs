//! Turns by address: they decide which password is compared next. A peer that guesses waits for
//! those that do not, regardless of its number of connections. Several addresses of one network
//! count as one.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};

use crate::net::peer::Peer;

/// Maximum number of passwords that wait. Beyond that, the newest or one of a noisier peer is
/// answered with 429.
pub const WAITING_CHECKS_MAX: usize = 16;
/// Maximum number of passwords of one peer that wait or are compared.
pub const WAITING_OF_PEER_MAX: usize = 2;
/// Maximum number of peers whose wrong passwords are remembered.
pub const NOISY_PEERS_MAX: usize = 1024;
/// Maximum number of wrong or refused passwords of a peer that count. A client with a wrong
/// password for days is no worse off than one that has guessed for a minute.
pub const NOISE_MAX: u8 = 16;

/// Something that waits for its turn.
pub(super) trait Turn {
    /// Returns whether nobody waits for its answer any more.
    fn is_over(&self) -> bool;
}

/// The waiting passwords by peer: the quietest peer is next. Of equally quiet ones, the newest
/// and the oldest take turns. Earlier peers thus do not keep out the newest, and a flood of new
/// peers does not keep out the oldest.
#[derive(Debug)]
pub(super) struct PasswordTurns<T> {
    /// The waiting passwords, the oldest first.
    waiting: Vec<Waiting<T>>,
    /// The peer whose turn it is.
    current: Option<IpAddr>,
    /// Peers with wrong or refused passwords, and their numbers of these; the peer that was
    /// quiet for longest is first.
    noisy: VecDeque<(IpAddr, u8)>,
    is_turn_of_oldest: bool,
}

#[derive(Debug)]
struct Waiting<T> {
    network: IpAddr,
    turn: T,
}

impl<T> Default for PasswordTurns<T> {
    fn default() -> Self {
        let (waiting, noisy) = (Vec::new(), VecDeque::new());
        Self { waiting, current: None, noisy, is_turn_of_oldest: false }
    }
}

impl<T: Turn> PasswordTurns<T> {
    /// Queues a password. Returns false, and drops it, if its peer has enough or all waiting
    /// ones are of quieter peers. One of the noisiest peer may be evicted for it.
    pub(super) fn wait(&mut self, peer: Peer, turn: T) -> bool {
        let network = network(peer);
        self.waiting.retain(|waiting| !waiting.turn.is_over());
        if self.n_of(network) >= WAITING_OF_PEER_MAX {
            self.add_noise(network);
            return false;
        }
        if self.waiting.len() >= WAITING_CHECKS_MAX && !self.evict_noisiest(network) {
            self.add_noise(network);
            return false;
        }
        self.waiting.push(Waiting { network, turn });
        true
    }

    /// Takes the next password; until [`Self::end`] it is its peer's turn.
    pub(super) fn next(&mut self) -> Option<T> {
        self.waiting.retain(|waiting| !waiting.turn.is_over());
        let keys: Vec<_> =
            self.waiting.iter().enumerate().map(|(idx, of)| self.key(idx, of)).collect();
        let least = keys.iter().min()?;
        let idx = if self.is_turn_of_oldest {
            keys.iter().position(|key| key == least)?
        } else {
            keys.iter().rposition(|key| key == least)?
        };
        self.is_turn_of_oldest = !self.is_turn_of_oldest;
        let Waiting { network, turn } = self.waiting.remove(idx);
        self.current = Some(network);
        Some(turn)
    }

    /// Ends the turn. A right password makes its peer quiet.
    pub(super) fn end(&mut self, is_right: bool) {
        let Some(network) = self.current.take() else { return };
        if is_right {
            self.noisy.retain(|(noisy, _)| *noisy != network);
        } else {
            self.add_noise(network);
        }
    }

    /// Drops the password of the noisiest peer. Of equally noisy ones, drops that of the peer
    /// with more of them, then the oldest. Returns whether there is one that is no quieter than
    /// one more of this peer.
    fn evict_noisiest(&mut self, network: IpAddr) -> bool {
        let rank = |network: IpAddr, n_more: usize| {
            (self.noise(network), self.n_of(network).saturating_add(n_more))
        };
        let own = rank(network, 1);
        let others = self.waiting.iter().enumerate().rev();
        let noisiest = others.map(|(idx, waiting)| (rank(waiting.network, 0), idx));
        let noisiest = noisiest.filter(|(of, _)| *of >= own).max_by_key(|(of, _)| *of);
        let Some((_, idx)) = noisiest else { return false };
        let Waiting { network, .. } = self.waiting.remove(idx);
        self.add_noise(network);
        true
    }

    /// Returns the key of the choice of the next one: the noise of its peer, and the number of
    /// the same peer's passwords before it.
    fn key(&self, idx: usize, waiting: &Waiting<T>) -> (u8, usize) {
        let older = self.waiting.iter().take(idx);
        let n_before = older.filter(|other| other.network == waiting.network).count();
        (self.noise(waiting.network), n_before)
    }

    fn n_of(&self, network: IpAddr) -> usize {
        let n_waiting = self.waiting.iter().filter(|other| other.network == network).count();
        n_waiting + usize::from(self.current == Some(network))
    }

    fn noise(&self, network: IpAddr) -> u8 {
        let known = self.noisy.iter().find(|(noisy, _)| *noisy == network);
        known.map_or(0, |(_, noise)| *noise)
    }

    fn add_noise(&mut self, network: IpAddr) {
        let noise = self.noise(network).saturating_add(1).min(NOISE_MAX);
        self.noisy.retain(|(noisy, _)| *noisy != network);
        if self.noisy.len() >= NOISY_PEERS_MAX {
            self.noisy.pop_front();
        }
        self.noisy.push_back((network, noise));
    }
}

/// Returns the address that identifies a peer: an IPv4 address, or the 64 bits of an IPv6
/// address that its owner does not choose.
fn network(peer: Peer) -> IpAddr {
    match peer {
        Peer::Address(IpAddr::V6(address)) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        Peer::Address(address) => address,
        // No password is needed there.
        Peer::Process { .. } | Peer::Unknown => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use crate::net::password_turns::{
        NOISY_PEERS_MAX, PasswordTurns, Turn, WAITING_CHECKS_MAX, WAITING_OF_PEER_MAX,
    };
    use crate::net::peer::Peer;

    /// A password by its name; it is over once it is canceled.
    struct Named(String, Rc<Cell<bool>>);

    impl Turn for Named {
        fn is_over(&self) -> bool {
            self.1.get()
        }
    }

    fn named(name: &str) -> Named {
        Named(name.to_owned(), Rc::default())
    }

    fn peer(address: &str) -> Peer {
        Peer::Address(address.parse().unwrap())
    }

    fn attacker(n: usize) -> Peer {
        peer(&format!("10.0.0.{n}"))
    }

    /// 24 addresses that fill all places with wrong passwords, and do so again after each
    /// comparison.
    struct Flood {
        turns: PasswordTurns<Named>,
    }

    impl Flood {
        fn send(&mut self) {
            for n in (0..24).chain(0..24) {
                self.turns.wait(attacker(n), named("wrong"));
            }
        }

        /// Compares until the password of this name was compared. Returns the number of earlier
        /// comparisons.
        fn n_before(&mut self, name: &str) -> usize {
            for n_before in 0..1000 {
                let next = self.turns.next().expect("one waits");
                if next.0 == name {
                    self.turns.end(true);
                    return n_before;
                }
                self.turns.end(false);
                self.send();
            }
            panic!("{name} is kept out");
        }
    }

    #[test]
    fn right_user_of_a_quiet_address_waits_for_two_comparisons_at_most() {
        for n_compared in [0, 1, 2, 5, 23, 24, 25, 60, 500] {
            let mut flood = Flood { turns: PasswordTurns::default() };
            flood.send();
            for _ in 0..n_compared {
                drop(flood.turns.next().unwrap());
                flood.turns.end(false);
                flood.send();
            }
            // One is being compared when the user arrives.
            drop(flood.turns.next().unwrap());
            assert!(flood.turns.wait(peer("192.0.2.1"), named("right")), "{n_compared}");
            flood.send();
            flood.turns.end(false);
            flood.send();
            let n_before = flood.n_before("right");
            assert!(n_before <= 1, "{n_before} after {n_compared}");
        }
    }

    #[test]
    fn user_who_mistyped_is_before_those_who_guess_on() {
        let mut flood = Flood { turns: PasswordTurns::default() };
        let user = peer("192.0.2.1");
        for _ in 0..3 {
            assert!(flood.turns.wait(user, named("mistyped")));
            drop(flood.turns.next().unwrap());
            flood.turns.end(false);
        }
        flood.send();
        for _ in 0..200 {
            drop(flood.turns.next().unwrap());
            flood.turns.end(false);
            flood.send();
        }
        assert!(flood.turns.wait(user, named("right")));
        assert!(flood.n_before("right") <= 1);
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_peer() {
        let mut turns = PasswordTurns::default();
        for n in 0..20 {
            let is_taken = turns.wait(peer(&format!("2001:db8::{n}")), named("wrong"));
            assert_eq!(is_taken, n < WAITING_OF_PEER_MAX);
        }
        assert!(turns.wait(peer("2001:db8:0:1::1"), named("other")));
        assert_eq!(turns.next().unwrap().0, "other");
    }

    #[test]
    fn new_addresses_without_end_do_not_keep_out_the_oldest() {
        let mut turns = PasswordTurns::default();
        assert!(turns.wait(peer("192.0.2.1"), named("right")));
        let mut n_new = 0_u16;
        for _ in 0..4 {
            // Fewer per turn than there are places.
            for _ in 0..5 {
                n_new += 1;
                turns.wait(peer(&format!("2001:db8:0:{n_new:x}::1")), named("wrong"));
            }
            if turns.next().unwrap().0 == "right" {
                return;
            }
            turns.end(false);
        }
        panic!("the oldest is kept out");
    }

    #[test]
    fn who_left_takes_no_place_and_bounds_hold() {
        let mut turns = PasswordTurns::default();
        let gone = named("gone");
        let has_left = Rc::clone(&gone.1);
        assert!(turns.wait(attacker(0), gone));
        has_left.set(true);
        assert!(turns.next().is_none());
        for n in 0..200 {
            turns.wait(attacker(n), named("wrong"));
            turns.wait(attacker(n), named("wrong"));
            assert!(turns.waiting.len() <= WAITING_CHECKS_MAX);
        }
        for n in 0..2 * NOISY_PEERS_MAX {
            let address = format!("10.1.{}.{}", n / 256, n % 256);
            turns.wait(peer(&address), named("wrong"));
        }
        assert!(turns.noisy.len() <= NOISY_PEERS_MAX);
    }
}

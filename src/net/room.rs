//! Room for bytes that are held on behalf of peers: bounded in sum, shared among peers, given up by the slowest. It knows
//! neither bodies nor answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::model::units::Uptime;
use crate::net::peer::Peer;
use crate::net::server::Connection;

/// Room for so many bytes.
#[derive(Debug)]
pub struct Room {
    bytes_max: usize,
    /// Whether a peer may take more than its share only while no other peer needs it.
    is_shared: bool,
    n_entered: AtomicU64,
    holders: Mutex<Vec<RoomHolder>>,
}

/// What one request holds.
#[derive(Debug)]
struct RoomHolder {
    id: u64,
    peer: Peer,
    bytes: usize,
    speed: Speed,
    evict: Arc<Notify>,
}

/// By what a holder counts as slow, the same for all of a room.
#[derive(Clone, Debug)]
pub enum Speed {
    /// By the time since it began: what is whole soon was never slow.
    Since(Uptime),
    /// By when its connection was written to.
    Written(Connection),
}

/// A place in a room; what it holds counts until it goes.
#[derive(Debug)]
pub struct RoomPlace {
    room: Arc<Room>,
    id: u64,
    evict: Arc<Notify>,
}

/// No other holder can give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomFull;

impl Room {
    /// Room for `bytes_max` bytes. In a shared one, a peer keeps its share against all others.
    pub fn new(bytes_max: usize, is_shared: bool) -> Arc<Self> {
        let (n_entered, holders) = (AtomicU64::new(0), Mutex::default());
        Arc::new(Self { bytes_max, is_shared, n_entered, holders })
    }

    /// Enters without a byte. `evict` is notified when the holder has to give way.
    pub fn enter(self: &Arc<Self>, peer: Peer, speed: Speed, evict: Arc<Notify>) -> RoomPlace {
        let id = self.n_entered.fetch_add(1, Ordering::Relaxed);
        let holder = RoomHolder { id, peer, bytes: 0, speed, evict: Arc::clone(&evict) };
        self.holders().push(holder);
        RoomPlace { room: Arc::clone(self), id, evict }
    }

    fn holders(&self) -> MutexGuard<'_, Vec<RoomHolder>> {
        // A panic elsewhere leaves the list as it was.
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RoomPlace {
    /// Takes room for `n_bytes` more. The slowest holders give way for it: those of peers above their share first, and only
    /// of these or of the same peer where this one would be above it.
    ///
    /// # Errors
    /// No other can give way, or this one already had to.
    pub fn grow(&self, n_bytes: usize, now: Uptime) -> Result<(), RoomFull> {
        let mut holders = self.room.holders();
        let own = holders.iter().find(|holder| holder.id == self.id).ok_or(RoomFull)?;
        let peer = own.peer;
        loop {
            let total: usize = holders.iter().map(|holder| holder.bytes).sum();
            let is_alone =
                holders.iter().all(|holder| holder.id == self.id || holder.bytes == 0);
            if total.saturating_add(n_bytes) <= self.room.bytes_max || is_alone {
                break;
            }
            let claim = RoomClaim { id: self.id, peer, n_bytes, now };
            let idx = self.room.slowest(&holders, claim).ok_or(RoomFull)?;
            holders.swap_remove(idx).evict.notify_one();
        }
        if let Some(own) = holders.iter_mut().find(|holder| holder.id == self.id) {
            own.bytes += n_bytes;
        }
        Ok(())
    }

    /// Resolves when this holder has to give way.
    pub async fn evicted(&self) {
        self.evict.notified().await;
    }
}

impl Drop for RoomPlace {
    fn drop(&mut self) {
        self.room.holders().retain(|holder| holder.id != self.id);
    }
}

/// Who needs how much room.
#[derive(Clone, Copy)]
struct RoomClaim {
    id: u64,
    peer: Peer,
    n_bytes: usize,
    now: Uptime,
}

impl Room {
    /// Returns which holder gives way to a claim.
    fn slowest(&self, holders: &[RoomHolder], claim: RoomClaim) -> Option<usize> {
        let mut peers: Vec<(Peer, usize)> = vec![(claim.peer, claim.n_bytes)];
        for holder in holders.iter().filter(|holder| holder.bytes > 0) {
            match peers.iter_mut().find(|(peer, _)| *peer == holder.peer) {
                Some((_, bytes)) => *bytes += holder.bytes,
                None => peers.push((holder.peer, holder.bytes)),
            }
        }
        let share = self.bytes_max.checked_div(peers.len()).unwrap_or(self.bytes_max);
        let gives_way = |holder: &RoomHolder| {
            let above =
                peers.iter().any(|(peer, bytes)| *peer == holder.peer && *bytes > share);
            !self.is_shared || peers.len() < 2 || holder.peer == claim.peer || above
        };
        let mut slowest: Option<(usize, f64)> = None;
        for (idx, holder) in holders.iter().enumerate() {
            if holder.id == claim.id || holder.bytes == 0 || !gives_way(holder) {
                continue;
            }
            let speed = holder.speed(claim.now);
            if slowest.is_none_or(|(_, least)| speed < least) {
                slowest = Some((idx, speed));
            }
        }
        slowest.map(|(idx, _)| idx)
    }
}

impl RoomHolder {
    /// Returns a number that is greater for a faster one.
    fn speed(&self, now: Uptime) -> f64 {
        match &self.speed {
            Speed::Since(since) => -now.since(*since).as_secs_f64(),
            Speed::Written(connection) => connection.written_at(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::sync::Notify;

    use crate::model::units::Uptime;
    use crate::net::peer::Peer;
    use crate::net::room::{Room, RoomFull, RoomPlace, Speed};

    fn at(millis: u64) -> Uptime {
        Uptime(Duration::from_millis(millis))
    }

    fn peer(last: u8) -> Peer {
        Peer::Address(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)))
    }

    fn enter(room: &Arc<Room>, last: u8, now: Uptime) -> RoomPlace {
        room.enter(peer(last), Speed::Since(now), Arc::new(Notify::new()))
    }

    #[test]
    fn slowest_holder_gives_way_to_a_newcomer() {
        let room = Room::new(100, true);
        let (slow, fast) = (enter(&room, 1, at(0)), enter(&room, 1, at(900)));
        assert_eq!((slow.grow(50, at(900)), fast.grow(50, at(900))), (Ok(()), Ok(())));
        let new = enter(&room, 1, at(1000));
        assert_eq!(new.grow(20, at(1000)), Ok(()));
        assert_eq!(slow.grow(1, at(1000)), Err(RoomFull));
        assert_eq!(fast.grow(1, at(1000)), Ok(()));
    }

    #[test]
    fn peer_above_its_share_gives_way_before_a_slower_one_within_its_own() {
        let room = Room::new(100, true);
        let modest = enter(&room, 1, at(0));
        assert_eq!(modest.grow(10, at(0)), Ok(()));
        let greedy: Vec<RoomPlace> = (0..9).map(|_| enter(&room, 2, at(5000))).collect();
        assert!(greedy.iter().all(|place| place.grow(10, at(5000)).is_ok()));
        let more = enter(&room, 2, at(5001));
        assert_eq!(more.grow(10, at(5001)), Ok(()));
        assert_eq!(modest.grow(10, at(5002)), Ok(()));
        assert_eq!(modest.grow(30, at(5002)), Ok(()));
    }

    #[test]
    fn one_alone_may_have_more_than_the_room() {
        let room = Room::new(100, false);
        let large = enter(&room, 1, at(0));
        assert_eq!(large.grow(300, at(0)), Ok(()));
        let other = enter(&room, 1, at(1));
        assert_eq!(other.grow(300, at(1)), Ok(()));
        assert_eq!(large.grow(1, at(1)), Err(RoomFull));
        drop(other);
        assert_eq!(enter(&room, 1, at(2)).grow(300, at(2)), Ok(()));
    }
}

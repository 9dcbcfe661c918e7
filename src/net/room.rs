//! Byte budgets for bytes that are held on behalf of peers: bounded in sum and shared among
//! peers; the slowest holder is evicted. This module knows neither bodies nor answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::net::peer::Peer;
use crate::net::server::Connection;
use stepmem_types::units::Uptime;

/// A byte budget.
#[derive(Debug)]
pub struct Room {
    bytes_max: usize,
    /// Set when a peer may take more than its share only while no other peer needs it.
    is_shared: bool,
    n_entered: AtomicU64,
    holders: Mutex<Vec<RoomHolder>>,
}

/// The bytes that one request holds, or several requests for the same bytes.
#[derive(Debug)]
struct RoomHolder {
    id: u64,
    /// The peer of the first request.
    peer: Peer,
    bytes: usize,
    requests: Vec<RoomRequest>,
}

/// One request of a holder.
#[derive(Debug)]
struct RoomRequest {
    id: u64,
    speed: Speed,
    evict: Arc<Notify>,
}

/// The criterion by which a holder counts as slow, the same for all of a byte budget.
#[derive(Clone, Debug)]
pub enum Speed {
    /// The time since it began: bytes that are soon complete were never slow.
    Since(Uptime),
    /// The time when its connection was last written to.
    Written(Connection),
}

/// The place of one request in a byte budget. The bytes of its holder count until the last of
/// its requests is gone.
#[derive(Debug)]
pub struct RoomPlace {
    room: Arc<Room>,
    /// The holder, by the id of its first request.
    id: u64,
    request: u64,
    evict: Arc<Notify>,
}

/// No other holder can be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomFull;

impl Room {
    /// Returns a budget of `bytes_max` bytes. In a shared one, a peer keeps its share against
    /// all others.
    pub fn new(bytes_max: usize, is_shared: bool) -> Arc<Self> {
        let (n_entered, holders) = (AtomicU64::new(0), Mutex::default());
        Arc::new(Self { bytes_max, is_shared, n_entered, holders })
    }

    /// Enters without a byte. `evict` is notified when the holder is evicted.
    pub fn enter(self: &Arc<Self>, peer: Peer, speed: Speed, evict: Arc<Notify>) -> RoomPlace {
        let id = self.n_entered.fetch_add(1, Ordering::Relaxed);
        let requests = vec![RoomRequest { id, speed, evict: Arc::clone(&evict) }];
        self.holders().push(RoomHolder { id, peer, bytes: 0, requests });
        RoomPlace { room: Arc::clone(self), id, request: id, evict }
    }

    /// Joins the other requests for the bytes of a holder: they are evicted together, and the
    /// fastest of them counts. Returns `None` if the holder is gone.
    pub fn join(
        self: &Arc<Self>,
        holder: u64,
        speed: Speed,
        evict: Arc<Notify>,
    ) -> Option<RoomPlace> {
        let mut holders = self.holders();
        let joined = holders.iter_mut().find(|other| other.id == holder)?;
        let id = self.n_entered.fetch_add(1, Ordering::Relaxed);
        joined.requests.push(RoomRequest { id, speed, evict: Arc::clone(&evict) });
        Some(RoomPlace { room: Arc::clone(self), id: holder, request: id, evict })
    }

    fn holders(&self) -> MutexGuard<'_, Vec<RoomHolder>> {
        // A panic elsewhere leaves the list as it was.
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RoomPlace {
    /// Takes `n_bytes` more of the budget. The slowest holders are evicted for it. If several
    /// peers share the budget, only holders of this peer and of peers above their share are.
    ///
    /// # Errors
    /// No other can be evicted, or this one already was.
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
            for request in holders.swap_remove(idx).requests {
                request.evict.notify_one();
            }
        }
        if let Some(own) = holders.iter_mut().find(|holder| holder.id == self.id) {
            own.bytes += n_bytes;
        }
        Ok(())
    }

    /// The holder, which requests for the same bytes can join.
    pub fn holder(&self) -> u64 {
        self.id
    }

    /// Resolves when this holder is evicted.
    pub async fn evicted(&self) {
        self.evict.notified().await;
    }
}

impl Drop for RoomPlace {
    fn drop(&mut self) {
        self.room.holders().retain_mut(|holder| {
            if holder.id == self.id {
                holder.requests.retain(|request| request.id != self.request);
            }
            !holder.requests.is_empty()
        });
    }
}

/// A request for bytes of the budget.
#[derive(Clone, Copy)]
struct RoomClaim {
    id: u64,
    peer: Peer,
    n_bytes: usize,
    now: Uptime,
}

impl Room {
    /// Returns the holder to evict for a claim.
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
        let speeds = self.requests.iter().map(|request| match &request.speed {
            Speed::Since(since) => -now.since(*since).as_secs_f64(),
            Speed::Written(connection) => connection.written_at(),
        });
        speeds.fold(f64::NEG_INFINITY, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::sync::Notify;

    use crate::net::peer::Peer;
    use crate::net::room::{Room, RoomFull, RoomPlace, Speed};
    use stepmem_types::units::Uptime;

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
    fn requests_for_the_same_bytes_count_once_and_give_way_together() {
        let room = Room::new(100, true);
        let (first, second) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let shared = room.enter(peer(1), Speed::Since(at(0)), Arc::clone(&first));
        assert_eq!(shared.grow(60, at(0)), Ok(()));
        let join = |evict: &Arc<Notify>| {
            room.join(shared.holder(), Speed::Since(at(5)), Arc::clone(evict))
        };
        let gone = Arc::new(Notify::new());
        drop(join(&gone));
        let joined = join(&second);
        assert!(joined.is_some());
        let slow = enter(&room, 1, at(3));
        assert_eq!(slow.grow(40, at(6)), Ok(()));
        let third = enter(&room, 1, at(7));
        assert_eq!(
            third.grow(40, at(7)),
            Ok(()),
            "the one from 3 is slower than the one from 5"
        );
        assert_eq!(slow.grow(1, at(7)), Err(RoomFull));
        assert_eq!(third.grow(40, at(8)), Ok(()));
        assert!(first.notified().now_or_never().is_some());
        assert!(second.notified().now_or_never().is_some());
        assert!(gone.notified().now_or_never().is_none(), "it had left before");
        assert!(join(&gone).is_none());
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

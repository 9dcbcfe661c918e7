//! A bound on the bytes that are held for peers, such as bodies that are not whole and answers
//! that are not read. The oldest holder is evicted for a new one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A bound on bytes that are held.
#[derive(Debug)]
pub struct ByteBudget {
    bytes_max: usize,
    holders: Mutex<Holders>,
}

#[derive(Debug, Default)]
struct Holders {
    n_entered: u64,
    /// The holders by the order in which they came.
    by_order: BTreeMap<u64, Holder>,
}

#[derive(Debug)]
struct Holder {
    n_bytes: usize,
    evict: Arc<Notify>,
}

/// Bytes that count until this is dropped.
#[derive(Debug)]
pub struct HeldBytes {
    budget: Arc<ByteBudget>,
    order: u64,
    evict: Arc<Notify>,
}

impl ByteBudget {
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, holders: Mutex::default() })
    }

    /// Holds `n_bytes`, and evicts the oldest holders beyond the bound; one alone may hold
    /// more. `evict` is notified when this one is evicted.
    pub fn hold(self: &Arc<Self>, n_bytes: usize, evict: Arc<Notify>) -> HeldBytes {
        let mut holders = self.holders();
        let order = holders.n_entered;
        holders.n_entered += 1;
        holders.by_order.insert(order, Holder { n_bytes: 0, evict: Arc::clone(&evict) });
        drop(holders);
        let held = HeldBytes { budget: Arc::clone(self), order, evict };
        held.grow(n_bytes);
        held
    }

    fn holders(&self) -> MutexGuard<'_, Holders> {
        // A panic elsewhere leaves the list as it was.
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldBytes {
    /// Holds `n_bytes` more, and evicts the oldest other holders beyond the bound.
    pub fn grow(&self, n_bytes: usize) {
        let mut holders = self.budget.holders();
        // One that was evicted is about to go.
        let Some(own) = holders.by_order.get_mut(&self.order) else { return };
        own.n_bytes += n_bytes;
        let mut total: usize = holders.by_order.values().map(|holder| holder.n_bytes).sum();
        while total > self.budget.bytes_max {
            let is_other =
                |order: u64, holder: &Holder| order != self.order && holder.n_bytes > 0;
            let mut by_age = holders.by_order.iter();
            let oldest = by_age.find(|(order, holder)| is_other(**order, holder));
            let oldest = oldest.map(|(order, _)| *order);
            let Some(evicted) = oldest.and_then(|order| holders.by_order.remove(&order)) else {
                return;
            };
            total -= evicted.n_bytes;
            evicted.evict.notify_one();
        }
    }

    /// Resolves when this holder is evicted.
    pub async fn evicted(&self) {
        self.evict.notified().await;
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.budget.holders().by_order.remove(&self.order);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;

    use crate::net::byte_budget::{ByteBudget, HeldBytes};

    fn hold(budget: &Arc<ByteBudget>, n_bytes: usize) -> HeldBytes {
        budget.hold(n_bytes, Arc::default())
    }

    fn is_evicted(held: &HeldBytes) -> bool {
        held.evicted().now_or_never().is_some()
    }

    #[test]
    fn oldest_holders_are_evicted_for_what_exceeds_the_bound() {
        let budget = ByteBudget::new(100);
        let [first, second, third] = [40, 40, 20].map(|n_bytes| hold(&budget, n_bytes));
        let fourth = hold(&budget, 30);
        assert!(is_evicted(&first) && !is_evicted(&second));
        fourth.grow(20);
        assert!(is_evicted(&second) && !is_evicted(&third) && !is_evicted(&fourth));
        // One that was evicted takes nothing from others any more.
        first.grow(100);
        drop((first, second));
        hold(&budget, 30);
        assert!(!is_evicted(&third) && !is_evicted(&fourth));
    }

    #[test]
    fn bytes_count_until_they_are_dropped_and_one_alone_may_hold_more() {
        let budget = ByteBudget::new(100);
        let large = hold(&budget, 300);
        assert!(!is_evicted(&large));
        let other = hold(&budget, 300);
        assert!(is_evicted(&large) && !is_evicted(&other));
        drop(other);
        let small = hold(&budget, 60);
        drop(hold(&budget, 40));
        assert!(!is_evicted(&small));
    }
}

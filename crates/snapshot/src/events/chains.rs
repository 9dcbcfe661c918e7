//! The tensors that used one address after the other.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::events::list::EventList;
use crate::integer::{at, count};

/// The tensors of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReuseChain {
    pub address: u64,
    /// Allocations that begin there and are asked for, in order.
    pub allocations: Vec<u32>,
    /// Number that begin there in the whole window.
    pub n_all: u64,
    /// Bytes of the largest of them.
    pub bytes: u64,
}

/// Every address that more than one of the allocations begins at: those with the most bytes
/// that changed hands first.
pub fn find(list: &EventList<'_>) -> Vec<ReuseChain> {
    let mut by_address: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for (number, allocation) in (0..).zip(&list.study.scene.timeline.allocations) {
        by_address.entry(allocation.address).or_default().push(number);
    }
    let allocation = |number: &u32| list.study.scene.timeline.allocations.get(at(*number));
    let mut chains: Vec<(u128, ReuseChain)> = Vec::new();
    for (address, mut numbers) in by_address {
        if numbers.len() < 2 {
            continue;
        }
        numbers
            .sort_by_key(|number| allocation(number).map_or(0, |allocation| allocation.from));
        let sizes = || numbers.iter().filter_map(allocation).map(|allocation| allocation.size);
        let turned: u128 = sizes().skip(1).map(u128::from).sum();
        let (n_all, bytes) = (count(numbers.len()), sizes().max().unwrap_or(0));
        numbers.retain(|number| list.is_block_wanted(*number));
        if !numbers.is_empty() {
            chains.push((turned, ReuseChain { address, allocations: numbers, n_all, bytes }));
        }
    }
    chains.sort_by_key(|(turned, chain)| (Reverse(*turned), chain.address));
    chains.into_iter().map(|(_, chain)| chain).collect()
}

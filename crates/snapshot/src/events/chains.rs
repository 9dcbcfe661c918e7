//! The tensors that used one piece of memory after the other.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::events::list::EventList;
use crate::integer::{at, count};
use crate::replay::Allocation;

/// The tensors of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReuseChain {
    pub address: u64,
    /// Allocations that begin there, or within the largest of those, and are selected; in
    /// order.
    pub allocations: Vec<u32>,
    /// Number of such allocations in the whole window.
    pub n_all: u64,
    /// Bytes of the largest of them.
    pub bytes: u64,
}

/// The allocations that begin at an address.
#[derive(Default)]
struct Start {
    numbers: Vec<u32>,
    largest: u64,
    all: u128,
}

/// Every piece of memory that more than one of the allocations uses: those with the most bytes
/// that changed hands first. An allocation is in one chain.
pub(crate) fn find(list: &EventList<'_>) -> Vec<ReuseChain> {
    let allocations = &list.report.scene.timeline.allocations;
    let mut starts: BTreeMap<u64, Start> = BTreeMap::new();
    for (number, allocation) in (0..).zip(allocations) {
        let start = starts.entry(allocation.address).or_default();
        start.numbers.push(number);
        start.largest = start.largest.max(allocation.size);
        start.all += u128::from(allocation.size);
    }
    let turned = |start: &Start| start.all - u128::from(start.largest);
    let mut heads: Vec<(Reverse<u128>, u64)> =
        starts.iter().map(|(address, start)| (Reverse(turned(start)), *address)).collect();
    heads.sort_unstable();
    let mut chains: Vec<(u128, ReuseChain)> = Vec::new();
    for (_, address) in heads {
        let Some(largest) = starts.get(&address).map(|start| start.largest) else { continue };
        let end = address.saturating_add(largest.max(1));
        let within: Vec<u64> = starts.range(address..end).map(|(start, _)| *start).collect();
        let members = within.iter().filter_map(|start| starts.remove(start));
        let numbers: Vec<u32> = members.flat_map(|start| start.numbers).collect();
        chains.extend(chain(list, address, numbers));
    }
    chains.sort_by_key(|(turned, chain)| (Reverse(*turned), chain.address));
    chains.into_iter().map(|(_, chain)| chain).collect()
}

/// A chain and the bytes that changed hands in it; `None` where nothing did, or nothing is asked
/// for.
fn chain(
    list: &EventList<'_>,
    address: u64,
    mut numbers: Vec<u32>,
) -> Option<(u128, ReuseChain)> {
    if numbers.len() < 2 {
        return None;
    }
    let allocation = |number: &u32| list.report.scene.timeline.allocations.get(at(*number));
    let from = |number: &u32| allocation(number).map_or(0, |allocation| allocation.from);
    numbers.sort_by_key(from);
    let sizes =
        || numbers.iter().filter_map(allocation).map(|allocation: &Allocation| allocation.size);
    let turned: u128 = sizes().skip(1).map(u128::from).sum();
    let (n_all, bytes) = (count(numbers.len()), sizes().max().unwrap_or(0));
    numbers.retain(|number| list.is_block_wanted(*number));
    let chain = ReuseChain { address, allocations: numbers, n_all, bytes };
    (!chain.allocations.is_empty()).then_some((turned, chain))
}

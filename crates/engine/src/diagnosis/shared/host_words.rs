//! The words about host memory in addition to a rank's own figures.

use crate::ranks::host::{ChildView, HostMemory, HostView};
use crate::ranks::view::RankView;
use stepmem_types::format::units::{bytes, grouped, signed_bytes};
use stepmem_types::units::{Bytes, MEBIBYTE};

/// The process's own memory next to a device's is named from this share of its limit on.
const NOTABLE_RATIO: f64 = 0.25;
/// Shared and pinned memory are named from so many bytes on: every PyTorch has some.
const PART_NOTABLE_BYTES: f64 = 256.0 * MEBIBYTE;
/// Shared and pinned memory are named from this share of the host's limit on, if that is less.
const PART_NOTABLE_RATIO: f64 = 0.05;

/// Pages that stopped being shared are told from so many bytes on: less is no growth either.
const UNSHARED_NOTABLE_BYTES: f64 = 32.0 * MEBIBYTE;

/// Returns the host memory of a rank, with its sentence; `None` where nothing is known beyond
/// its own figures.
pub fn described(rank: &RankView<'_>) -> Option<Box<HostView>> {
    let container = rank.container.map(|of| of.reading.clone());
    if rank.host.is_none() && container.is_none() {
        return None;
    }
    let mut view = rank.host.map(HostMemory::view).unwrap_or_default();
    view.container = container.map(Box::new);
    view.sentence = sentence(&view);
    Some(Box::new(view))
}

fn sentence(host: &HostView) -> String {
    let notable = |value: Option<Bytes>| {
        value.map(Bytes::as_f64).filter(|value| *value >= MEBIBYTE).map(bytes)
    };
    let limit = host.total_bytes.map_or(f64::INFINITY, Bytes::as_f64);
    let is_notable =
        |part: &Bytes| part.as_f64() >= PART_NOTABLE_BYTES.min(PART_NOTABLE_RATIO * limit);
    let shared = notable(host.figures.shared.filter(is_notable)).map(|shared| {
        let split = notable(host.figures.split).map_or(String::new(), |split| {
            format!(", {split} of it its share of segments that several ranks use")
        });
        format!("{shared} is shared memory{split}")
    });
    let pinned = notable(host.figures.pinned.filter(is_notable))
        .map(|pinned| format!("PyTorch holds {pinned} of pinned memory"));
    let workers = host.workers.as_ref().map(|of| children(of, "worker", "workers"));
    let other = if workers.is_some() { "other " } else { "" };
    let names = (format!("{other}child process"), format!("{other}child processes"));
    let others = host.child_processes.as_ref().map(|of| children(of, &names.0, &names.1));
    let of_limit = host.allocated_bytes.zip(host.total_bytes);
    let own = of_limit
        .map(|(held, limit)| (held.as_f64(), limit.as_f64()))
        .filter(|(held, limit)| *held >= NOTABLE_RATIO * limit)
        .map(|(held, limit)| {
            format!("the process holds {} of {} of host memory", bytes(held), bytes(limit))
        });
    let container = host.container.as_ref().and_then(|of| Some((of, of.used?)));
    let container = container
        .filter(|(of, used)| used.as_f64() >= NOTABLE_RATIO * of.limit.as_f64())
        .map(|(of, used)| {
            let limit = bytes(of.limit.as_f64());
            format!("its container uses {} of {limit}", bytes(used.as_f64()))
        });
    let parts = [container, own, workers, others, unshared(host), shm(host), shared, pinned];
    let words: Vec<String> = parts.into_iter().flatten().collect();
    words.join("; ")
}

/// States what is in `/dev/shm` where that rises or is a notable share of what fits.
fn shm(host: &HostView) -> Option<String> {
    let known = host.figures.shm_used.zip(host.figures.shm_limit);
    let (used, limit) = known.map(|(used, limit)| (used.as_f64(), limit.as_f64()))?;
    let rate = host.shm.filter(|of| of.is_straight).and_then(|of| of.bytes_per_step);
    let is_notable = used >= NOTABLE_RATIO * limit || rate.is_some();
    let rate = rate.map_or_else(String::new, |rate| format!(", {}/step", signed_bytes(rate)));
    is_notable.then(|| format!("/dev/shm holds {} of {}{rate}", bytes(used), bytes(limit)))
}

/// States how much of what child processes hold stopped being shared, and how much more can.
fn unshared(host: &HostView) -> Option<String> {
    let groups = || [host.workers, host.child_processes].into_iter().flatten();
    let known =
        groups().filter(|of| !of.ended).filter_map(|of| Some((of.bytes?, of.own_bytes?)));
    let took: f64 = known.map(|(held, own)| held.as_f64() - own.as_f64()).sum();
    let more = host.figures.children_shared.map_or(0.0, Bytes::as_f64);
    (took >= UNSHARED_NOTABLE_BYTES).then(|| {
        let took = bytes(took);
        format!(
            "{took} of that are pages that stopped being shared, at most {} more",
            bytes(more)
        )
    })
}

fn children(of: &ChildView, one: &str, many: &str) -> String {
    let (name, holds) = match (of.count, of.ended) {
        (1, false) => (one, "holds"),
        (1, true) => (one, "held"),
        (_, false) => (many, "hold"),
        (_, true) => (many, "held"),
    };
    let Some(held) = of.bytes.map(Bytes::as_f64) else {
        return format!("the memory of {} {name} cannot be read", of.count);
    };
    let rate = of.bytes_per_step.filter(|rate| rate.abs() >= 1.0);
    let rate = rate.map_or(String::new(), |rate| format!(", {}/step", signed_bytes(rate)));
    let at =
        if of.ended { format!(" at step {}", grouped(of.step.get())) } else { String::new() };
    format!("{} {name} {holds} {}{at}{rate}", of.count, bytes(held))
}

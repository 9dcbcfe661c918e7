//! The relation of two files, by the events that both have: of one process or not.

use crate::integer::id;
use crate::model::Event;

/// The position of two files' windows to each other.
pub(super) enum Meeting {
    /// Windows that overlap and agree; the first state of AFTER that BEFORE does not know.
    Same(u32),
    /// Windows that overlap and differ.
    Different,
    /// Windows that do not overlap; AFTER's begins later.
    Later,
    /// Times or events are missing.
    Unknown,
}

/// Compares the windows of two files.
pub(super) fn meeting(before: &[Event], after: &[Event]) -> Meeting {
    let (Some(before_first), Some(before_last)) = (before.first(), before.last()) else {
        return Meeting::Unknown;
    };
    let (Some(after_first), Some(after_last)) = (after.first(), after.last()) else {
        return Meeting::Unknown;
    };
    if before_last.time_us == 0 || after_last.time_us == 0 {
        return Meeting::Unknown;
    }
    let from = before_first.time_us.max(after_first.time_us);
    let to = before_last.time_us.min(after_last.time_us);
    if from > to {
        return Meeting::Later;
    }
    // A window may begin or end between two events of one microsecond.
    let inner = |events: &[Event]| -> Vec<(u64, u64, _)> {
        let start = events.partition_point(|event| event.time_us <= from);
        let end = events.partition_point(|event| event.time_us < to).max(start);
        let inner = events.get(start..end).unwrap_or(&[]);
        inner.iter().map(|event| (event.time_us, event.address, event.action)).collect()
    };
    let is_last = |event: &&Event| {
        (event.time_us, event.address, event.action)
            == (before_last.time_us, before_last.address, before_last.action)
    };
    let known = after.iter().rposition(|event| is_last(&event));
    match known {
        Some(known) if inner(before) == inner(after) => Meeting::Same(id(known + 1)),
        None if before_last.time_us > after_last.time_us && inner(before) == inner(after) => {
            Meeting::Same(u32::MAX)
        }
        _ => Meeting::Different,
    }
}

//! Waiting: for a change, never for a time.

use std::time::{Duration, Instant};

/// Time after which something that is awaited counts as hanging: far beyond what a busy machine needs.
pub const DEADLINE: Duration = Duration::from_mins(5);

/// The time from one look for what is awaited to the next.
pub const LOOK: Duration = Duration::from_millis(2);

/// Looks again and again until `is_so`.
pub fn await_true(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < DEADLINE, "{what} did not come");
        std::thread::park_timeout(LOOK);
    }
}

/// Looks again and again until `is_so` has no objection: for programs that others wrote.
pub fn await_agreement(what: &str, is_so: impl Fn() -> Result<(), String>) {
    let began = Instant::now();
    while let Err(objection) = is_so() {
        assert!(began.elapsed() < DEADLINE, "{what}: {objection}");
        std::thread::park_timeout(10 * LOOK);
    }
}

/// Lets the rest of a period go by that began then: for a scraper that asks at a pace, not for a change.
pub fn keep_pace(began: Instant, period: Duration) {
    std::thread::park_timeout(period.saturating_sub(began.elapsed()));
}

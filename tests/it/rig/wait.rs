//! Waiting: for a change, never for a time.

use std::time::{Duration, Instant};

/// How long anything may take that is awaited.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// How often it is looked whether what is awaited has come.
pub const LOOK: Duration = Duration::from_millis(2);

/// Looks again and again until `is_so`.
pub fn await_true(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < DEADLINE, "{what} did not come");
        std::thread::park_timeout(LOOK);
    }
}

/// Looks again and again until `is_so` has no objection: for programs that others wrote, which have twice the time.
pub fn await_agreement(what: &str, is_so: impl Fn() -> Result<(), String>) {
    let began = Instant::now();
    while let Err(objection) = is_so() {
        assert!(began.elapsed() < 2 * DEADLINE, "{what}: {objection}");
        std::thread::park_timeout(10 * LOOK);
    }
}

/// Lets the rest of a period go by that began then: for a scraper that asks at a pace, not for a change.
pub fn keep_pace(began: Instant, period: Duration) {
    std::thread::park_timeout(period.saturating_sub(began.elapsed()));
}

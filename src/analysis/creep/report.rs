//! What the estimator tells of its windows to whoever asks why there is or is no trend: the same tests that pushes
//! make, once more and without effect.

use crate::analysis::creep::gates::{Passed, Stop};
use crate::analysis::creep::{CreepEstimator, Signal};

/// One window of a signal, and what the gates say of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowReport {
    /// The series.
    pub signal: Signal,
    /// The level: each one's blocks are twice as long as those of the one below.
    pub level_idx: usize,
    /// How many records lie between its first and its last block.
    pub n_records: f64,
    /// The step at the end of its first block.
    pub first_step: f64,
    /// The step at the end of its last block.
    pub last_step: f64,
    /// What is left to grow into as this window sees it, in bytes; of a stand-in when no
    /// capacity is known.
    pub headroom_bytes: f64,
    /// Whether pushes test it: windows below the one that called a creep are not while it
    /// holds.
    pub is_asked: bool,
    /// What it shows, or the gate that stopped it.
    pub verdict: Result<Passed, Stop>,
}

/// The steps of live memory that may be leaks once per evaluation or checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StairsReport {
    /// How many are remembered, at most eight.
    pub n_stairs: usize,
    /// Their mean height in bytes and distance in steps; `None` for fewer than two.
    pub mean: Option<(f64, f64)>,
    /// What kept the newest of them from being a trend, when it came.
    pub stop: Option<Stop>,
}

impl CreepEstimator {
    /// Returns what every window of a signal shows now, the shortest first; `capacity` in
    /// bytes, if known.
    ///
    /// Costs as much as the longest cascade of a push.
    pub fn windows(
        &self,
        signal: Signal,
        capacity: Option<f64>,
    ) -> impl Iterator<Item = WindowReport> {
        let room = self.newest.map(|push| match signal {
            Signal::Allocated | Signal::Reserved => self.room(&push, capacity),
            Signal::OutsideAllocator | Signal::Process => self.reading_room(&push, capacity),
        });
        let levels = self.series(signal).into_iter().flat_map(|(watch, pyramid, _)| {
            pyramid.levels.iter().enumerate().map(move |(idx, level)| (watch, idx, level))
        });
        levels.zip(room.into_iter().cycle()).filter_map(
            move |((watch, level_idx, level), room)| {
                let (first, last) = (level.blocks.first()?, level.blocks.last()?);
                Some(WindowReport {
                    signal,
                    level_idx,
                    n_records: watch.gates.n_records(level_idx, level.blocks.len()),
                    first_step: first.step,
                    last_step: last.step,
                    headroom_bytes: watch.gates.headroom(level, &room),
                    is_asked: watch.asks(level_idx),
                    verdict: watch.gates.judge(level_idx, level, &room),
                })
            },
        )
    }

    /// Returns what is remembered of stairs.
    pub fn stairs(&self) -> StairsReport {
        self.stairs.report()
    }
}

#[cfg(test)]
mod tests {
    use crate::analysis::creep::gates::Gate;
    use crate::analysis::creep::job::{CAPACITY, Job, noise, push};
    use crate::analysis::creep::{GIBIBYTE, MEBIBYTE, Push, Signal, Stage};

    /// The gates that stopped the windows of live memory, the shortest window first.
    fn stops(n_pushes: u32, of_step: impl Fn(f64) -> Push) -> Vec<Option<Gate>> {
        let mut job = Job::new();
        job.run(n_pushes, of_step);
        let windows = job.estimator.windows(Signal::Allocated, CAPACITY);
        windows.map(|window| window.verdict.err().map(|stop| stop.gate)).collect()
    }

    #[test]
    fn every_window_says_what_stopped_it() {
        let flat = stops(96 + 16 * 24, |step| push(step, 0.0));
        assert_eq!(
            flat,
            [Gate::Rise, Gate::Rise, Gate::Blocks, Gate::Blocks, Gate::Blocks].map(Some)
        );
        let noisy = |step: f64| push(step, 8.0 * GIBIBYTE * noise(step) * (step / 2000.0));
        assert!(!stops(3000, noisy).contains(&None));
        let filling = |step: f64| push(step, 8.0 * GIBIBYTE * (1.0 - (-step / 900.0).exp()));
        assert!(stops(3000, filling).contains(&Some(Gate::Steady)));
        let leak = stops(3000, |step| push(step, 3.0 * MEBIBYTE * step));
        assert!(leak.contains(&None));
    }

    #[test]
    fn trend_that_only_rises_says_what_it_lacks() {
        let mut job = Job::new();
        let leak = |step| push(step, 2.0 * MEBIBYTE * step);
        while job.stage(Signal::Allocated) != Some(Stage::Rising) {
            assert!(job.run_until_change(4000, leak));
        }
        let windows = job.estimator.windows(Signal::Allocated, CAPACITY);
        let passed: Vec<_> = windows.filter_map(|window| window.verdict.ok()).collect();
        assert!(!passed.is_empty());
        for passed in passed {
            assert_eq!(passed.trend.stage, Stage::Rising);
            assert_eq!(passed.held_back.map(|stop| stop.gate), Some(Gate::Share));
        }
    }

    #[test]
    fn asking_before_the_first_push_tells_nothing() {
        let job = Job::new();
        for signal in Signal::ALL {
            assert_eq!(job.estimator.windows(signal, CAPACITY).count(), 0);
        }
        assert_eq!((job.estimator.stairs().n_stairs, job.estimator.stairs().stop), (0, None));
    }

    #[test]
    fn uneven_stairs_say_what_they_lack() {
        let mut job = Job::new();
        job.run(16_000, |step: f64| {
            let n_stairs =
                [3000.0, 4500.0, 9000.0, 9900.0, 14_000.0].iter().filter(|at| step >= **at);
            push(step, GIBIBYTE * (34.0 + 2.0 * n_stairs.map(|_| 1.0).sum::<f64>()))
        });
        let stairs = job.estimator.stairs();
        assert_eq!(stairs.n_stairs, 5);
        assert!(stairs.stop.is_some(), "{stairs:?}");
    }
}

//! The newest readings of memory outside the allocator, each a block of its own. They show growth
//! that fills the device within an hour before the ladder, whose readings come less often, has a
//! window.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::ladder::{Block, ROW_CAPACITY, Row, Window};
use stepmem_types::units::UnixTime;

/// The numbers of readings that are judged, beyond the fewest.
const MORE_READINGS: [usize; 6] = [6, 8, 12, 16, 24, 32];

/// The newest readings of an incarnation.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Rapid {
    row: Row,
    /// The time of the first reading of the incarnation.
    began: Option<UnixTime>,
}

impl Rapid {
    /// Upper bound on its memory on the heap, in bytes.
    pub(super) const HEAP_BYTES_MAX: usize = ROW_CAPACITY * size_of::<Block>();

    /// Takes a reading. Returns whether it counts: it is of a later step than the last, whose
    /// reserved memory it is compared with, and late enough after it.
    pub(super) fn add(&mut self, reading: Block, config: &Config) -> bool {
        self.began.get_or_insert(reading.at.time);
        if let Some(last) = self.row.blocks().last() {
            let seconds = reading.at.time.since(last.at.time);
            // A clock that was set back makes a reading due.
            let is_soon = (0.0..config.rapid_seconds).contains(&seconds);
            if is_soon || reading.at.position <= last.at.position {
                return false;
            }
        }
        self.row.push(reading.into());
        true
    }

    /// Returns the newest readings as windows: the fewest that count, then more and more.
    pub(super) fn windows(&self, config: &Config) -> impl Iterator<Item = Window<'_>> {
        let fewest = config.rapid_readings_min;
        let more = MORE_READINGS.into_iter().filter(move |n| *n > fewest);
        let pages_within = self.pages_within(config);
        let n_all = self.row.blocks().len();
        let numbers = std::iter::once(fewest).chain(more).take_while(move |n| *n <= n_all);
        numbers.filter_map(move |n_readings| {
            let newest = self.row.newest(n_readings)?;
            let (creeping_min, pages_within) = (Some(fewest), Some(pages_within));
            Some(Window { creeping_min, pages_within, ..newest })
        })
    }

    /// Returns the newest reading.
    pub(super) fn newest(&self) -> Option<&Block> {
        self.row.blocks().last()
    }

    /// Returns the units of the axis that the fewest readings that count span.
    pub(super) fn sampled(&self, config: &Config) -> f64 {
        let fewest = self.row.newest(config.rapid_readings_min);
        fewest.map_or(0.0, |window| window.span())
    }

    /// Frees the readings.
    pub(super) fn release(&mut self) {
        self.row = Row::default();
    }

    /// Returns the seconds within which memory must run out for growth to page. Libraries load
    /// and settle while a process starts: once the fewest readings that count are all later than
    /// that, any growth may page; before, only growth that ends before the start does.
    fn pages_within(&self, config: &Config) -> f64 {
        let fewest = self.row.newest(config.rapid_readings_min);
        let full = fewest.filter(|window| window.blocks.len() == config.rapid_readings_min);
        let Some(((oldest, newest), began)) = full.and_then(|it| it.ends()).zip(self.began)
        else {
            return 0.0;
        };
        let elapsed = newest.at.time.since(began);
        if oldest.at.time.since(began) >= config.start_seconds {
            f64::INFINITY
        } else if elapsed >= config.start_quiet_seconds {
            (config.start_seconds - elapsed).max(0.0)
        } else {
            0.0
        }
    }
}

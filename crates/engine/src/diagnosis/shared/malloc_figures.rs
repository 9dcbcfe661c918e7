//! What the allocator of a process says of host memory that grows: how much was freed and stays
//! with it. A level figure acquits nobody.

use serde::{Deserialize, Serialize};

use crate::ranks::malloc::{MallocPoint, MallocReadings};
use crate::ranks::view::RankView;
use stepmem_detect::{Axis, Outlook, Signal};
use stepmem_types::claims::{Claim, Statement};
use stepmem_types::format::units::{bytes, grouped, percent};
use stepmem_types::site::TensorHolder;
use stepmem_types::units::{Bytes, Count, MEBIBYTE};

/// The share of the growth from which on freed bytes are told as what grows.
const FREED_MIN: f64 = 0.5;
/// The share of freed bytes from which on a holder of less than [`TELLING_MIN`] is not told.
const NEARLY_ALL_MIN: f64 = 0.75;
/// A holder has a telling share of the growth from this one on.
const TELLING_MIN: f64 = 0.1;
/// The least part of the growth of host memory that an object must have which keeps nothing alive
/// but what was measured.
const NEXT_TO_NOTHING: f64 = 0.02;
/// Growth of less between two readings says nothing.
const GROWN_MIN: f64 = 4.0 * MEBIBYTE;

/// The figures of the allocator, named as in JSON.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MallocFigures {
    /// The step of its newest reading.
    pub step: Count,
    /// The bytes that it has given out, at its newest reading.
    pub used_bytes: Bytes,
    /// The bytes that were freed and stay with it.
    pub free_bytes: Bytes,
    /// The part of both in arenas other than the first; absent where that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads_bytes: Option<Bytes>,
    /// Growth of the process's memory from the onset to that reading; absent where that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grown_bytes: Option<f64>,
    /// Growth of the process's memory from the first reading since the onset to the newest; absent
    /// without two, as are the next two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_bytes: Option<f64>,
    /// Growth of what it has given out between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_growth_bytes: Option<f64>,
    /// Growth of what is free between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_growth_bytes: Option<f64>,
}

impl MallocFigures {
    /// Returns the figures of the allocator of a rank's process on growth of its host memory
    /// that goes on.
    pub fn of_rank(rank: &RankView<'_>, outlook: &Outlook) -> Option<Self> {
        let host = rank.host.filter(|_| outlook.level_since.is_none())?;
        let held = match outlook.signal {
            Signal::Host => host.allocated(),
            Signal::Allocated if rank.identity.is_host() => {
                rank.last_train.map(|last| last.allocated)
            }
            _ => return None,
        };
        let onset = (outlook.axis == Axis::Steps).then_some(outlook.onset.position);
        Self::of(host.malloc(), onset, outlook.growth_bytes, held)
    }

    /// Returns the figures of the readings on growth by `growth_bytes` since its onset, at a
    /// step where its axis is steps; `held` is what the process has now.
    fn of(
        readings: &MallocReadings,
        onset_step: Option<f64>,
        growth_bytes: f64,
        held: Option<Bytes>,
    ) -> Option<Self> {
        let newest = readings.newest()?;
        let oldest = readings.oldest_from(onset_step).filter(|oldest| *oldest != newest);
        let gained = |of: fn(&MallocPoint) -> Bytes| {
            oldest.map(|oldest| of(newest).as_f64() - of(oldest).as_f64())
        };
        let later = held.map(|held| held.as_f64() - newest.held.as_f64());
        let grown_bytes = later.map(|later| growth_bytes - later).filter(|grown| *grown > 0.0);
        Some(Self {
            step: newest.step,
            used_bytes: newest.used,
            free_bytes: newest.free,
            threads_bytes: newest.of_threads,
            grown_bytes,
            between_bytes: gained(|of| of.held),
            used_growth_bytes: gained(|of| of.used),
            free_growth_bytes: gained(|of| of.free),
        })
    }

    /// Returns the part of the growth between two readings that was freed, 0 to 1; `None` without
    /// two that are far enough apart.
    pub(crate) fn freed_ratio(&self) -> Option<f64> {
        self.ratio_between(self.free_growth_bytes)
    }

    /// Returns the part of the growth between two readings that the allocator has given out.
    fn used_ratio(&self) -> Option<f64> {
        self.ratio_between(self.used_growth_bytes)
    }

    fn ratio_between(&self, growth: Option<f64>) -> Option<f64> {
        let between = self.between_bytes.filter(|between| *between >= GROWN_MIN)?;
        Some((growth? / between).clamp(0.0, 1.0))
    }

    /// Returns whether most of the growth was freed, as two readings show; or may have been, as
    /// far as one can show that.
    pub fn is_freed(&self) -> bool {
        self.freed_ratio().map_or_else(|| self.may_be_freed(), |ratio| ratio >= FREED_MIN)
    }

    /// Returns whether as much is free as would explain most of the growth.
    fn may_be_freed(&self) -> bool {
        let free = self.free_bytes.as_f64();
        self.grown_bytes.is_some_and(|grown| free >= FREED_MIN * grown)
    }

    /// Returns whether an object that holds `share` of the growth is none of its holders: nearly
    /// all of it was freed.
    fn acquits(&self, share: f64) -> bool {
        share < TELLING_MIN && self.freed_ratio().is_some_and(|ratio| ratio >= NEARLY_ALL_MIN)
    }

    /// Returns the figures in words, of growth that no object explains; `None` where they show
    /// nothing.
    pub fn statement(&self) -> Option<Statement> {
        let between = self.between_bytes.map(bytes);
        match (self.freed_ratio(), self.used_ratio()) {
            (Some(ratio), _) if ratio >= FREED_MIN => {
                let of = between.map_or_else(String::new, |of| format!(" of the last {of}"));
                let freed = percent(ratio);
                let words =
                    format!("{freed}{of} were freed and stayed with glibc: nobody holds them");
                Some(Statement::new(Claim::Freed, words).of(ratio))
            }
            (_, Some(ratio)) if ratio >= FREED_MIN => {
                let of = between.map_or_else(String::new, |of| format!(" of the last {of}"));
                let words = format!("{}{of} are in use: something holds them", percent(ratio));
                Some(Statement::new(Claim::InUse, words).of(ratio))
            }
            (None, _) if self.may_be_freed() => {
                let free = bytes(self.free_bytes.as_f64());
                let step = grouped(self.step.get());
                let words = format!(
                    "{free} of the process were freed and stayed with glibc at step {step}"
                );
                Some(Statement::new(Claim::Freed, words))
            }
            _ => None,
        }
    }

    /// Returns the figures in words beside an object that holds a part of the growth.
    pub fn beside(&self) -> Option<Statement> {
        let ratio = self.freed_ratio().filter(|ratio| *ratio >= TELLING_MIN)?;
        let words = format!("{} of the growth was freed and stayed with glibc", percent(ratio));
        Some(Statement::new(Claim::Freed, words).of(ratio))
    }

    /// Returns the advice for memory that was freed and stays.
    pub fn advice(&self) -> Statement {
        let all = self.used_bytes.as_f64() + self.free_bytes.as_f64();
        let is_of_threads =
            self.threads_bytes.is_some_and(|threads| threads.as_f64() >= FREED_MIN * all);
        let words = if is_of_threads { ADVICE_OF_THREADS } else { ADVICE };
        Statement::new(Claim::AdviceFreed, words)
    }
}

/// Returns whether an object was only seen to grow beside growth of host memory by `slope` bytes a
/// step: it has next to nothing of that, and the rest was freed or is held elsewhere.
pub(crate) fn is_bystander(
    holder: &TensorHolder,
    slope: Option<f64>,
    malloc: Option<&MallocFigures>,
) -> bool {
    let Some(slope) = slope.filter(|slope| *slope > 0.0) else { return false };
    let (own, share) = (holder.bytes_per_step, holder.bytes_per_step / slope);
    let is_measured = holder.keeps_more == Some(false) && own > 0.0;
    holder.fill.is_none()
        && (is_measured && share < NEXT_TO_NOTHING
            || malloc.is_some_and(|malloc| malloc.acquits(share)))
}

/// The advice for a heap with many small pieces that stay.
pub(crate) const ADVICE: &str = "The program frees it, and small pieces that stay keep glibc from giving it back. Set MALLOC_MMAP_THRESHOLD_=131072 in its environment, or 32768 if its \
                      blocks are smaller, or preload jemalloc or tcmalloc.";

/// The advice where most of it is in the arenas of threads.
const ADVICE_OF_THREADS: &str = "The program frees it, and glibc keeps it in the arenas of its threads. Set MALLOC_ARENA_MAX=2 in its environment, or preload jemalloc or tcmalloc.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::examples::holder;

    fn figures(free: u64, grown: f64, growths: Option<(f64, f64, f64)>) -> MallocFigures {
        let of = |n: u64| Bytes::new(n << 20).unwrap();
        MallocFigures {
            step: Count::new(1_204).unwrap(),
            used_bytes: of(200),
            free_bytes: of(free),
            threads_bytes: None,
            grown_bytes: Some(grown * MEBIBYTE),
            between_bytes: growths.map(|of| of.0 * MEBIBYTE),
            used_growth_bytes: growths.map(|of| of.1 * MEBIBYTE),
            free_growth_bytes: growths.map(|of| of.2 * MEBIBYTE),
        }
    }

    #[test]
    fn what_was_freed_is_told_by_two_readings_or_as_a_level_by_one() {
        let words = |free, grown, growths| {
            let told = figures(free, grown, growths).statement();
            told.map(|of| of.words().to_owned())
        };
        let freed =
            "97% of the last 40.0 MiB were freed and stayed with glibc: nobody holds them";
        assert_eq!(words(160, 170.0, Some((40.0, 1.0, 38.8))).as_deref(), Some(freed));
        let live = "95% of the last 40.0 MiB are in use: something holds them";
        assert_eq!(words(160, 170.0, Some((40.0, 38.0, 1.0))).as_deref(), Some(live));
        let level = "160 MiB of the process were freed and stayed with glibc at step 1,204";
        assert_eq!(words(160, 170.0, None).as_deref(), Some(level));
        // Readings with next to no growth between them say no more than one does.
        assert_eq!(words(160, 170.0, Some((1.0, 1.0, 0.0))).as_deref(), Some(level));
        assert_eq!(words(80, 170.0, None), None);
        assert_eq!(words(160, 170.0, Some((40.0, 10.0, 12.0))), None);
    }

    #[test]
    fn growth_is_freed_from_a_half_on_of_4_mib_or_more() {
        let between = |all, freed| figures(160, 400.0, Some((all, 0.0, freed)));
        let is_freed = |freed| between(40.0, freed).is_freed();
        assert_eq!((is_freed(20.0), is_freed(19.9)), (true, false));
        let may_be = |free| figures(free, 170.0, None).is_freed();
        assert_eq!((may_be(85), may_be(84)), (true, false));
        let is_known = |all| between(all, 3.0).freed_ratio().is_some();
        assert_eq!((is_known(4.0), is_known(3.99)), (true, false));
        let is_told = |freed| between(40.0, freed).beside().is_some();
        assert_eq!((is_told(4.0), is_told(3.99)), (true, false));
        let is_of_threads = |threads: u64| {
            let threads_bytes = Bytes::new(threads << 20).ok();
            let of = MallocFigures { threads_bytes, ..figures(160, 170.0, None) };
            of.advice().words().contains("MALLOC_ARENA_MAX")
        };
        assert_eq!((is_of_threads(180), is_of_threads(179)), (true, false));
    }

    #[test]
    fn holder_of_next_to_nothing_is_a_bystander() {
        let holder = |share: f64, keeps_more| TensorHolder {
            bytes_per_step: share * 1000.0,
            keeps_more,
            fill: None,
            ..holder()
        };
        let measured = |share| is_bystander(&holder(share, Some(false)), Some(1000.0), None);
        assert_eq!((measured(0.0199), measured(0.0201)), (true, false));
        let beside = |share, freed| {
            let malloc = figures(160, 170.0, Some((40.0, 0.0, freed)));
            is_bystander(&holder(share, None), Some(1000.0), Some(&malloc))
        };
        assert_eq!((beside(0.0999, 30.0), beside(0.1001, 30.0)), (true, false));
        assert!(!beside(0.0999, 29.9));
    }

    #[test]
    fn only_what_two_readings_show_acquits_what_holds_next_to_nothing() {
        assert!(figures(160, 170.0, Some((40.0, 1.0, 38.0))).acquits(0.001));
        assert!(!figures(160, 170.0, Some((40.0, 1.0, 38.0))).acquits(0.15));
        assert!(!figures(160, 170.0, Some((40.0, 15.0, 24.0))).acquits(0.001));
        assert!(!figures(160, 170.0, None).acquits(0.001));
    }

    #[test]
    fn advice_is_for_the_arena_that_has_the_memory() {
        let figures = figures(160, 170.0, None);
        assert!(figures.advice().words().contains("MALLOC_MMAP_THRESHOLD_=131072"));
        let of_threads = MallocFigures { threads_bytes: Bytes::new(300 << 20).ok(), ..figures };
        assert!(of_threads.advice().words().contains("MALLOC_ARENA_MAX=2"));
    }
}

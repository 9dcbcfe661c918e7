//! The containers that ranks run in: control groups with a limit, as their clients read them.
//! Their memory is that of all their processes, so that it grows and runs out once for all.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ranks::container_view::ContainerView;
use crate::ranks::host::host_sample;
use crate::ranks::state::RankState;
use stepmem_detect::{Asked, AxisPoint, Config as DetectConfig, Detector};

use stepmem_types::host::{ContainerId, ContainerReading};
use stepmem_types::ids::RankId;
use stepmem_types::saved::{self, added};
use stepmem_types::units::{Count, UnixTime, Uptime};

/// Number of containers that are judged: more than a node has with GPUs.
pub(crate) const CONTAINERS_MAX: usize = 32;
/// Readings of a container reach its detector at most this often, in seconds: those of several
/// ranks come within one interval.
const READING_EVERY: f64 = 5.0;
/// A reading that is older than the last one counts from this time on: the clock was set back.
const OLDER_AFTER: Duration = Duration::from_mins(1);
/// A container that is read reports a kill within this time.
const KILL_READ_WITHIN: Duration = Duration::from_secs(15);
/// The share of its limit from which a container was full where a process vanished.
pub(crate) const FULL_RATIO: f64 = 0.95;

/// The containers.
#[derive(Debug, Default)]
pub(crate) struct ContainerTable {
    // Invariant: at most CONTAINERS_MAX.
    containers: BTreeMap<ContainerId, ContainerState>,
    n_refused: u64,
}

/// A container.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ContainerState {
    creep: Detector,
    reading: ContainerReading,
    /// The time when the reading was taken, as a Unix time of its machine.
    #[serde(deserialize_with = "saved::times")]
    time: f64,
    last_seen: Uptime,
    /// The time when it was read, as a Unix time that never falls.
    #[serde(deserialize_with = "saved::amounts")]
    at: f64,
    /// The time of the last reading that its detector took, as a Unix time that never falls.
    #[serde(deserialize_with = "saved::amounts")]
    judged_at: Option<f64>,
    kills: Option<Kills>,
}

/// Processes of a container that the kernel killed for lack of memory, as another one reported.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Kills {
    at: Uptime,
    #[serde(deserialize_with = "saved::counts")]
    count: u64,
}

/// The time when a reading arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadingTime {
    pub now: Uptime,
    /// The time when the record's step ended, as a Unix time.
    pub time: f64,
}

/// The present ranks of a container.
#[derive(Clone, Debug)]
pub struct Members {
    /// The rank that has what is found of the container: the first whose host memory creeps,
    /// else the first.
    pub lead: RankId,
    /// The number of ranks that push.
    pub n_ranks: usize,
    /// Set when host memory of one of them creeps.
    pub has_creep: bool,
    is_lead_over: bool,
}

impl ContainerTable {
    /// Adds a container of an earlier exporter.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn insert(&mut self, state: ContainerState) -> Result<(), String> {
        if self.containers.len() >= CONTAINERS_MAX {
            return Err(format!("its containers exceed {CONTAINERS_MAX}"));
        }
        self.containers.insert(state.reading.id.clone(), state);
        Ok(())
    }

    /// Returns the first container, or the first after another.
    pub(crate) fn first_after(
        &self,
        after: Option<&ContainerId>,
    ) -> Option<(&ContainerId, &ContainerState)> {
        self.containers.range((after.map_or(Unbounded, Excluded), Unbounded)).next()
    }

    /// Goes on with other settings, as after a restart of the exporter.
    pub(crate) fn configure(&mut self, creep: &DetectConfig) {
        for container in self.containers.values_mut() {
            container.creep.configure(of_container(creep));
        }
    }

    /// Takes a reading by a rank. Returns whether a trend changed, or processes were killed.
    pub(crate) fn take(
        &mut self,
        reading: &ContainerReading,
        at: ReadingTime,
        creep: &DetectConfig,
    ) -> bool {
        if let Some(state) = self.containers.get_mut(&reading.id) {
            return state.take(reading, at);
        }
        if self.containers.len() >= CONTAINERS_MAX {
            self.n_refused += 1;
            return false;
        }
        let state = ContainerState {
            creep: Detector::by_time(of_container(creep)),
            reading: reading.clone(),
            time: at.time,
            last_seen: at.now,
            at: at.time,
            judged_at: None,
            kills: None,
        };
        self.containers.entry(reading.id.clone()).or_insert(state).take(reading, at)
    }

    /// Begins the series of a container again: a process joined it, which fills its memory
    /// first.
    pub(crate) fn begin_again(&mut self, id: &ContainerId) {
        if let Some(container) = self.containers.get_mut(id) {
            container.creep = Detector::by_time(**container.creep.config());
        }
    }

    /// Forgets the containers that were not read for longer than `silence`.
    pub(crate) fn forget(&mut self, now: Uptime, silence: Duration) {
        self.containers.retain(|_, container| now.since(container.last_seen) <= silence);
    }

    /// Returns a container that was read within `ttl` of a time.
    pub(crate) fn get(
        &self,
        id: &ContainerId,
        at: Uptime,
        ttl: Duration,
    ) -> Option<&ContainerState> {
        self.containers.get(id).filter(|container| at.since(container.last_seen) <= ttl)
    }

    /// Returns the number of its processes that the kernel killed around the time at which a
    /// rank fell silent; 0 where no other rank reported any.
    pub(crate) fn kills_of(&self, id: &ContainerId, silent: &RankState) -> u64 {
        let kills = self.containers.get(id).and_then(|container| container.kills);
        let is_of = |kills: &Kills| {
            let killed_by = Uptime(kills.at.0.saturating_sub(KILL_READ_WITHIN));
            silent.last_seen() <= kills.at && silent.lifecycle().is_live(killed_by)
        };
        kills.filter(is_of).map_or(0, |kills| kills.count)
    }

    /// Returns the number of readings that were refused to keep a bound.
    pub(crate) fn n_refused(&self) -> u64 {
        self.n_refused
    }
}

/// Returns the configuration without the budget, which is of a device.
fn of_container(creep: &DetectConfig) -> DetectConfig {
    DetectConfig { budget: None, ..*creep }
}

impl ContainerState {
    fn take(&mut self, reading: &ContainerReading, at: ReadingTime) -> bool {
        if at.time < self.time && at.now.since(self.last_seen) < OLDER_AFTER {
            return false;
        }
        let counted = |of: &ContainerReading| of.oom_kills.map(Count::get);
        let known = counted(reading).zip(counted(&self.reading));
        let n_kills = known.map_or(0, |(now, before)| now.saturating_sub(before));
        if n_kills > 0 {
            let recent = self.kills.filter(|of| at.now.since(of.at) <= KILL_READ_WITHIN);
            let count = added(recent.map_or(0, |of| of.count), n_kills);
            self.kills = Some(Kills { at: at.now, count });
        }
        let oom_kills = reading.oom_kills.or(self.reading.oom_kills);
        self.reading = ContainerReading { oom_kills, ..reading.clone() };
        let silence = at.now.since(self.last_seen).as_secs_f64();
        self.at += if at.time < self.time { silence } else { at.time - self.time };
        (self.time, self.last_seen) = (at.time, at.now);
        self.judge() || n_kills > 0
    }

    /// Has the detector take the reading, if that is due.
    fn judge(&mut self) -> bool {
        let is_due = self.judged_at.is_none_or(|at| self.at - at >= READING_EVERY);
        let (Some(used), Ok(time), true) = (self.reading.used, UnixTime::new(self.at), is_due)
        else {
            return false;
        };
        self.judged_at = Some(self.at);
        let sample = host_sample(AxisPoint { position: 0.0, time }, used);
        self.creep.train(&sample, Some(self.reading.limit.as_f64()))
    }

    /// Returns the container as one of its ranks sees it.
    pub fn view(&self, members: &Members, is_lead: bool, asked: Asked) -> ContainerView<'_> {
        ContainerView {
            reading: &self.reading,
            creep: &self.creep,
            n_ranks: members.n_ranks,
            is_lead,
            has_creep: members.has_creep,
            // Nothing counts down where no rank pushes.
            asked: Asked { is_over: members.n_ranks == 0, ..asked },
        }
    }
}

impl Members {
    /// Adds a rank to those of its container, in ascending order.
    pub fn add<'a>(
        by_container: &mut BTreeMap<&'a ContainerId, Self>,
        rank: &RankId,
        state: &'a RankState,
        is_over: bool,
    ) {
        let Some(own) = state.container() else { return };
        let has_creep = !is_over && state.host_creeps();
        let members = by_container.entry(&own.id).or_insert_with(|| Self {
            lead: rank.clone(),
            n_ranks: 0,
            has_creep,
            is_lead_over: is_over,
        });
        if (has_creep && !members.has_creep) || (members.is_lead_over && !is_over) {
            members.lead = rank.clone();
            members.is_lead_over = is_over;
        }
        members.has_creep |= has_creep;
        members.n_ranks += usize::from(!is_over);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::containers::{ContainerTable, ReadingTime};
    use stepmem_detect::{Asked, Config, Signal};
    use stepmem_types::host::{ContainerId, ContainerReading};
    use stepmem_types::units::{Bytes, MEBIBYTE, Uptime};

    const MIB: u64 = 1 << 20;

    #[test]
    fn clock_that_is_set_back_ends_no_growth_and_readings_that_overtook_each_other_do_not_count()
     {
        let mut table = ContainerTable::default();
        let id = ContainerId::new("c").unwrap();
        let mut take = |n: u64, used: u64, time: f64| {
            let limit = Bytes::new(65_536 * MIB).unwrap();
            let used = Bytes::new(used).ok();
            let reading = ContainerReading { id: id.clone(), limit, used, oom_kills: None };
            let now = Uptime(Duration::from_secs(10 * n));
            table.take(&reading, ReadingTime { now, time }, &Config::default());
            let container = table.get(&id, now, Duration::from_mins(1)).unwrap();
            let asked = Asked::default();
            (container.reading.used, container.creep.outlook(Signal::Allocated, None, &asked))
        };
        let unix = |n: u64| 1e9 + 10.0 * f64::from(u32::try_from(n).unwrap());
        let mut last = None;
        for n in 0..400 {
            let back = if n < 300 { 0.0 } else { 3600.0 };
            let (used, trend) = take(n, (10_000 + 40 * n) * MIB, unix(n) - back);
            let (newer, _) = take(n, 0, unix(n) - back - 1.0);
            assert_eq!(newer, used);
            last = trend;
        }
        let slope = last.unwrap().slope.bytes_per_second.unwrap();
        let per_second = slope.value / MEBIBYTE;
        assert!((per_second - 4.0).abs() < 0.4, "{per_second}");
    }
}

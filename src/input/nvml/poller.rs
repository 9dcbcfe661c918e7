//! Polls NVML: chooses the devices, skips those that keep failing, and initializes NVML again
//! when that may help. A call may hang as long as the driver does: the caller provides the
//! thread, the interval and the timeout.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::input::attribution::procfs::Procfs;
use crate::input::nvml::config::{DeviceName, Devices, PollerConfig};
use crate::input::nvml::cycle::{Cycle, DeviceEntry, FailureStreak, GpuPoll, RELEASED};
use crate::input::nvml::error::{GpuError, refused};
use crate::input::nvml::process_list::View;
use crate::input::nvml::reader::DeviceReader;
use crate::input::nvml::session::Session;
use stepmem_types::device::GpuUnavailable;
use stepmem_types::ids::GpuUuid;
use stepmem_types::nvml_code::nvml_code;

/// Maximum number of GPUs that are read, and of devices that are requested by name. No machine
/// has more.
pub const DEVICES_MAX: u32 = 256;

/// Maximum number of polls that a new initialization is delayed while some devices answer.
const RESTART_WAIT_POLLS_MAX: u32 = 64;

/// Consecutive failures after which a device is closed and skipped until NVML is initialized
/// again: an open device file prevents a reset of the device.
pub const FAILURES_MAX: u32 = 5;

/// Polls NVML and initializes it when needed.
#[derive(Debug)]
pub struct Poller {
    config: PollerConfig,
    view: View,
    session: Option<Session>,
    /// The devices that ranks push from, ascending; `None` for every device that NVML counts.
    pushed: Option<Vec<DeviceName>>,
    known: BTreeMap<GpuUuid, DeviceEntry>,
    /// Devices that fail in consecutive polls.
    failing: BTreeMap<DeviceName, FailureStreak>,
    /// The number of GPUs that NVML counted last; `None` before the first count.
    n_gpus: Option<u32>,
    restart: RestartWait,
}

impl Poller {
    /// Creates a poller. The first poll is the first call of NVML.
    pub fn new(config: PollerConfig) -> Self {
        let view = View::new(Procfs::new(&config.procfs), config.reads_names);
        Self {
            config,
            view,
            session: None,
            pushed: Some(Vec::new()),
            known: BTreeMap::new(),
            failing: BTreeMap::new(),
            n_gpus: None,
            restart: RestartWait::default(),
        }
    }

    /// Sets the devices that ranks push from, for [`Devices::Pushed`]. Ignores names that are
    /// not the UUID of a GPU or MIG device.
    pub fn look_for(&mut self, pushed: &BTreeSet<GpuUuid>) {
        let is_gpu = |uuid: &&GpuUuid| uuid.as_str() != GpuUuid::CPU && !uuid.is_unknown_gpu();
        let names = pushed.iter().filter(is_gpu).cloned().map(DeviceName::Uuid);
        self.pushed = Some(names.collect());
    }

    /// Opens every device that NVML counts, for [`Devices::Pushed`], until [`Self::look_for`]
    /// names some.
    pub fn look_for_every(&mut self) {
        self.pushed = None;
    }

    /// Reads every device once. Blocks as long as the driver does.
    pub fn poll(&mut self) -> GpuPoll {
        let wanted = match &self.config.devices {
            Devices::All => None,
            Devices::Listed(names) => Some(names.clone()),
            Devices::Pushed => self.pushed.clone(),
        };
        let has_unwanted = wanted.as_ref().is_some_and(|wanted| self.forget_unwanted(wanted));
        if wanted.as_ref().is_some_and(Vec::is_empty) {
            self.release();
            return RELEASED;
        }
        let started = self.session.take().map_or_else(|| Session::start(self.library()), Ok);
        let session = match started {
            Ok(session) => session,
            Err(error) => {
                return GpuPoll { is_shut_down: true, ..nothing_answers(&error) };
            }
        };
        let mut cycle = Cycle::default();
        let counted = self.read_all(&mut cycle, &session, wanted);
        self.view.end_cycle();
        let (poll, wants_restart) = match counted {
            Ok(0) if !self.known.is_empty() => {
                let error = GpuError::NoDevices { before: self.known.len() };
                (nothing_answers(&error), true)
            }
            Ok(_) => {
                self.account_for_missing(&mut cycle);
                self.count_failures(&mut cycle);
                cycle.end()
            }
            Err(error) => (nothing_answers(&error), error.wants_restart()),
        };
        let is_due = self.restart.is_due(wants_restart, poll.samples.is_empty());
        let is_shut_down = is_due || has_unwanted;
        if !is_shut_down {
            self.session = Some(session);
        }
        GpuPoll { is_shut_down, ..poll }
    }

    /// Shuts NVML down, so that no device file stays open. The next poll initializes it again.
    pub fn release(&mut self) {
        self.session = None;
    }

    fn library(&self) -> Option<&Path> {
        self.config.library.as_deref()
    }

    /// Drops the devices that are no longer wanted; returns whether there were any. They stay
    /// open until NVML is shut down.
    fn forget_unwanted(&mut self, wanted: &[DeviceName]) -> bool {
        let n_known = self.known.len();
        self.known.retain(|_, known| wanted.contains(&known.name));
        self.failing.retain(|name, _| wanted.contains(name));
        self.known.len() < n_known
    }

    /// Reads every wanted device; returns the number of wanted devices, including skipped ones.
    fn read_all(
        &mut self,
        cycle: &mut Cycle,
        session: &Session,
        wanted: Option<Vec<DeviceName>>,
    ) -> Result<usize, GpuError> {
        let n_max = usize::try_from(DEVICES_MAX).unwrap_or(usize::MAX);
        let (mut names, n_known) = if let Some(names) = wanted {
            let n_known = names.len();
            (names, n_known)
        } else {
            let count =
                session.nvml.device_count().map_err(refused("nvmlDeviceGetCount_v2"))?;
            // Indices shift when a GPU disappears, so failures by index no longer apply.
            if self.n_gpus.replace(count).is_some_and(|before| before != count) {
                self.failing.clear();
            }
            let names = (0..count.min(DEVICES_MAX)).map(DeviceName::Index).collect();
            (names, usize::try_from(count).unwrap_or(usize::MAX))
        };
        let dropped = n_known.saturating_sub(n_max);
        cycle.poll.devices_dropped = u64::try_from(dropped).unwrap_or(u64::MAX);
        names.truncate(n_max);
        for name in &names {
            if self.restart.is_waiting()
                && let Some(failing) = self.failing.get(name)
                && failing.polls >= FAILURES_MAX
            {
                cycle.skip(name, failing);
                continue;
            }
            let processes_max = self.config.processes_max;
            let view = &mut self.view;
            let mut reader = DeviceReader { session, view, processes_max, cycle, name };
            if let Err(error) = reader.read_named() {
                cycle.unnamed.push((name.clone(), error));
            }
        }
        cycle.wants_restart |= cycle.unnamed.iter().any(|(_, error)| error.wants_restart());
        Ok(names.len())
    }

    /// Reports devices of earlier polls that this poll did not find, and remembers those that
    /// it did.
    fn account_for_missing(&mut self, cycle: &mut Cycle) {
        let mut unnamed = std::mem::take(&mut cycle.unnamed);
        let mut claimed = BTreeSet::new();
        for (uuid, known) in &mut self.known {
            if cycle.found.contains_key(uuid) || cycle.skipped.contains(&known.name) {
                continue;
            }
            let own = unnamed.iter().find(|(name, _)| *name == known.name);
            known.is_reconfigured = own.is_none() && cycle.has_answered(uuid, known);
            let (code, message) = match own {
                Some((name, error)) => {
                    claimed.insert(name.clone());
                    (error.as_label(), error.to_string())
                }
                None if known.is_reconfigured => {
                    (nvml_code(6), "the device was removed by a change of mig mode".to_owned())
                }
                None => (known.code.unwrap_or(nvml_code(28)), "the device is gone".to_owned()),
            };
            cycle.wants_restart |= !known.is_reconfigured;
            known.code = Some(code);
            let device = Some(uuid.clone());
            cycle.report(&known.name, GpuUnavailable { device, code, message });
        }
        unnamed.retain(|(name, _)| !claimed.contains(name));
        cycle.report_unnamed(&unnamed);
        self.known.retain(|_, known| !known.is_reconfigured);
        self.known.append(&mut cycle.found);
    }

    /// Counts consecutive failures. A device with too many is closed by a new initialization.
    fn count_failures(&mut self, cycle: &mut Cycle) {
        let mut failing = BTreeMap::new();
        for (name, reports) in &cycle.reports {
            if cycle.answered.contains(name) {
                continue;
            }
            let before = self.failing.get(name).map_or(0, |failing| failing.polls);
            let is_skipped = cycle.skipped.contains(name);
            let polls = if is_skipped { before } else { before.saturating_add(1) };
            cycle.wants_restart |= polls >= FAILURES_MAX;
            failing.insert(name.clone(), FailureStreak { polls, reports: reports.clone() });
        }
        self.failing = failing;
    }
}

/// Polls until the next initialization, doubled after each that changed nothing.
///
/// Counts only while some devices answer: without them, a new initialization disturbs nothing.
#[derive(Debug, Default)]
struct RestartWait {
    polls_left: u32,
    polls_next: u32,
}

impl RestartWait {
    fn is_waiting(&self) -> bool {
        self.polls_left > 0
    }

    fn is_due(&mut self, is_wanted: bool, is_all_down: bool) -> bool {
        if !is_wanted {
            *self = Self::default();
            return false;
        }
        if !is_all_down && self.polls_left > 0 {
            self.polls_left -= 1;
            return false;
        }
        if !is_all_down {
            self.polls_next = (self.polls_next * 2).clamp(1, RESTART_WAIT_POLLS_MAX);
            self.polls_left = self.polls_next;
        }
        true
    }
}

fn nothing_answers(error: &GpuError) -> GpuPoll {
    GpuPoll { unavailable: vec![error.report(None)], ..GpuPoll::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_waits_only_while_some_devices_answer() {
        let mut wait = RestartWait::default();
        assert!(wait.is_due(true, false));
        assert!(!wait.is_due(true, false));
        assert!(wait.is_due(true, true));
        assert!(wait.is_due(true, false));
        assert!(!wait.is_due(false, false));
        assert!(wait.is_due(true, false));
    }
}

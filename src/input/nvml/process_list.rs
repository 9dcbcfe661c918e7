//! The processes of a device: merges the lists of all kinds, rejects implausible ones, and
//! determines the namespace of their process ids.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use nvml_wrapper::Device;
use rustix::io::Errno;

use crate::input::attribution::procfs::{PidNamespace, Procfs};
use crate::input::nvml::error::{GpuError, refused};
use crate::input::nvml::raw::{self, ProcessKind, ProcessRow};
use stepmem_types::device::{Attribution, Container, ProcessMemory};
use stepmem_types::units::Bytes;

/// The greatest process id of a Linux kernel (`PID_MAX_LIMIT`, 2^22). A greater one was read
/// from a wrong offset.
const PID_MAX: u32 = 1 << 22;

/// The first driver (major, minor) that reports process ids of the container's own namespace;
/// older ones report the host's.
const TRANSLATING_DRIVER: (u32, u32) = (535, 113);

/// The drivers that report processes to a container with zero memory.
const MEMORY_HIDDEN_DRIVERS: RangeInclusive<(u32, u32)> = TRANSLATING_DRIVER..=(560, 35);

/// The exporter's view of processes.
#[derive(Debug)]
pub(super) struct View {
    procfs: Procfs,
    /// Becomes `Shared` once a listed process is found in procfs.
    namespace: PidNamespace,
    /// The processes listed in this or the previous cycle.
    identities: BTreeMap<u32, ProcessIdentity>,
    reads_names: bool,
}

/// The identity of a process, kept while the process is listed.
#[derive(Clone, Debug)]
struct ProcessIdentity {
    own_pid: Option<u32>,
    name: Option<Box<str>>,
    container: Option<Container>,
    /// True if it was listed in this cycle.
    is_listed: bool,
}

impl View {
    pub(super) fn new(procfs: Procfs, reads_names: bool) -> Self {
        let namespace = procfs.pid_namespace();
        Self { namespace, procfs, identities: BTreeMap::new(), reads_names }
    }

    /// Drops processes that were not listed since the last call.
    pub(super) fn end_cycle(&mut self) {
        self.identities.retain(|_, identity| std::mem::take(&mut identity.is_listed));
    }

    /// Returns whether the machine has no process with this id. Only the host's namespace shows
    /// that.
    fn is_gone(&self, pid: u32) -> bool {
        self.namespace == PidNamespace::Host && is_free(pid) && !self.procfs.has_process(pid)
    }

    fn identity(&mut self, pid: u32) -> &mut ProcessIdentity {
        let Self { procfs, namespace, identities, reads_names } = self;
        identities.entry(pid).or_insert_with(|| {
            // In a shared namespace, a missing NSpid (old kernel) means that the id is the
            // process's own.
            let same = Some(pid).filter(|_| *namespace == PidNamespace::Shared);
            ProcessIdentity {
                own_pid: procfs.innermost_pid(pid).or(same),
                name: reads_names.then(|| procfs.name(pid)).flatten(),
                container: procfs.container(pid),
                is_listed: true,
            }
        })
    }
}

/// Returns whether no process of this namespace has this id: `/proc` may hide those of others,
/// and is the slower one to ask.
fn is_free(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH))
}

/// Parses `560.35.03` to (major, minor); `None` for anything else.
pub(super) fn driver_of(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse::<u32>);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// Every process of the device; `None` if the list of compute processes fails or is invalid.
///
/// # Errors
/// Only errors that mean that the device itself is unusable.
pub(super) fn list(device: &Device<'_>) -> Result<Option<Vec<ProcessRow>>, GpuError> {
    let mut rows = Vec::new();
    for kind in [ProcessKind::Compute, ProcessKind::Graphics, ProcessKind::Mps] {
        match raw::processes(device, kind) {
            Ok(list) => match list.rows() {
                Some(more) => rows.extend(more),
                None => return Ok(None),
            },
            Err(error) => {
                let error = refused(kind.symbol())(error);
                if error.is_device_out() {
                    return Err(error);
                }
                if kind == ProcessKind::Compute {
                    return Ok(None);
                }
            }
        }
    }
    Ok(Some(rows))
}

/// The processes of a device, and the namespace of their ids.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DeviceProcesses {
    pub(super) processes: Vec<ProcessMemory>,
    pub(super) attribution: Attribution,
    /// True if procfs can resolve the ids.
    is_resolvable: bool,
}

impl DeviceProcesses {
    fn nothing(attribution: Attribution) -> Self {
        Self { processes: Vec::new(), attribution, is_resolvable: false }
    }
}

/// Interprets a process list. `total`: the device's capacity; `driver`: the driver's version,
/// if known.
pub(super) fn attribute(
    rows: Option<Vec<ProcessRow>>,
    total: Option<Bytes>,
    driver: Option<(u32, u32)>,
    view: &mut View,
) -> DeviceProcesses {
    let Some(rows) = rows.filter(|rows| rows.iter().all(|row| is_plausible(row, total))) else {
        return DeviceProcesses::nothing(Attribution::Unsupported);
    };
    let mut processes = merge(&rows);
    if processes.is_empty() {
        return DeviceProcesses::nothing(match view.namespace {
            PidNamespace::Host => Attribution::Host,
            PidNamespace::Shared => Attribution::SharedPidNamespace,
            PidNamespace::Own => Attribution::OwnPidNamespace,
        });
    }
    if view.namespace != PidNamespace::Host {
        let is_zero = |used: Option<Bytes>| used.is_some_and(|used| used.get() == 0);
        let hides_memory = driver.is_some_and(|it| MEMORY_HIDDEN_DRIVERS.contains(&it));
        if hides_memory || processes.iter().all(|process| is_zero(process.used)) {
            for process in &mut processes {
                process.used = process.used.filter(|_| !is_zero(process.used));
            }
        }
    }
    let listed_from = listed_from(&processes, driver, view);
    let is_hidden = processes.iter().all(|process| process.used.is_none());
    DeviceProcesses {
        processes,
        attribution: if is_hidden { Attribution::MemoryHidden } else { listed_from },
        is_resolvable: listed_from != Attribution::ForeignPidNamespace,
    }
}

/// The namespace of the listed ids.
fn listed_from(
    processes: &[ProcessMemory],
    driver: Option<(u32, u32)>,
    view: &mut View,
) -> Attribution {
    if view.namespace == PidNamespace::Host {
        return Attribution::Host;
    }
    // An id of the host may exist in this namespace by chance.
    let is_translated = driver.is_none_or(|driver| driver >= TRANSLATING_DRIVER);
    if is_translated && processes.iter().any(|process| view.procfs.has_process(process.pid)) {
        view.namespace = PidNamespace::Shared;
        return Attribution::SharedPidNamespace;
    }
    Attribution::ForeignPidNamespace
}

/// Finds each process's id in its own namespace, and its container.
pub(super) fn identify(listed: &mut DeviceProcesses, view: &mut View) {
    if !listed.is_resolvable {
        return;
    }
    for process in &mut listed.processes {
        let identity = view.identity(process.pid);
        identity.is_listed = true;
        process.own_pid = identity.own_pid;
        process.name.clone_from(&identity.name);
        process.container.clone_from(&identity.container);
        process.is_gone = view.is_gone(process.pid);
    }
}

/// Returns whether a row is possible: rows read at the wrong stride have impossible ids or
/// sizes.
fn is_plausible(row: &ProcessRow, total: Option<Bytes>) -> bool {
    let fits = |used| total.is_none_or(|total| used <= total.get());
    (1..=PID_MAX).contains(&row.pid) && row.used_bytes.is_none_or(fits)
}

/// One entry per process, ascending. Contexts and lists that repeat a process count once, by
/// the maximum.
fn merge(rows: &[ProcessRow]) -> Vec<ProcessMemory> {
    let mut used_by_pid: BTreeMap<u32, Option<Bytes>> = BTreeMap::new();
    for row in rows {
        let used = row.used_bytes.and_then(|used| Bytes::new(used).ok());
        let entry = used_by_pid.entry(row.pid).or_default();
        *entry = used.max(*entry);
    }
    let unidentified =
        |(pid, used)| ProcessMemory { own_pid: None, ..ProcessMemory::new(pid, used) };
    used_by_pid.into_iter().map(unidentified).collect()
}

/// Keeps the `processes_max` largest, in ascending order of their ids; returns the number of
/// the others.
pub(super) fn keep_largest(processes: &mut Vec<ProcessMemory>, processes_max: usize) -> u64 {
    let dropped = processes.len().saturating_sub(processes_max);
    if dropped > 0 {
        processes.sort_by_key(|process| std::cmp::Reverse(process.used));
        processes.truncate(processes_max);
        processes.sort_by_key(|process| process.pid);
    }
    u64::try_from(dropped).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    fn row(pid: u32, used_bytes: impl Into<Option<u64>>) -> ProcessRow {
        ProcessRow { pid, used_bytes: used_bytes.into() }
    }

    fn process(pid: u32, used: impl Into<Option<u64>>) -> ProcessMemory {
        let used = used.into().map(|used| Bytes::new(used).unwrap());
        ProcessMemory { own_pid: None, ..ProcessMemory::new(pid, used) }
    }

    #[test]
    fn merge_takes_the_maximum_of_a_process_and_orders_by_id() {
        let check = |rows: &[ProcessRow], expected: &[ProcessMemory]| {
            assert_eq!(merge(rows), expected, "{rows:?}");
        };
        check(&[], &[]);
        check(&[row(9, 1), row(3, 2)], &[process(3, 2), process(9, 1)]);
        check(&[row(9, 5), row(9, 7), row(9, 6)], &[process(9, 7)]);
        check(&[row(9, None), row(9, 0)], &[process(9, 0)]);
        check(&[row(9, 4), row(9, None)], &[process(9, 4)]);
        check(&[row(9, None), row(9, None)], &[process(9, None)]);
    }

    #[test]
    fn row_is_plausible_within_the_ids_of_linux_and_the_capacity() {
        let check = |row, total: Option<u64>, expected| {
            let total = total.map(|total| Bytes::new(total).unwrap());
            assert_eq!(is_plausible(&row, total), expected, "{row:?} {total:?}");
        };
        check(row(1, 100), Some(100), true);
        check(row(1, 101), Some(100), false);
        check(row(1, u64::MAX - 1), None, true);
        check(row(0, 1), Some(100), false);
        check(row(PID_MAX, None), Some(100), true);
        check(row(PID_MAX + 1, None), Some(100), false);
    }

    #[test]
    fn largest_are_kept_in_the_order_of_their_ids() {
        let check = |processes_max, expected: &[ProcessMemory], expected_dropped| {
            let mut processes =
                vec![process(1, 10), process(2, 30), process(3, None), process(4, 20)];
            assert_eq!(keep_largest(&mut processes, processes_max), expected_dropped);
            assert_eq!(processes, expected);
        };
        check(2, &[process(2, 30), process(4, 20)], 2);
        check(3, &[process(1, 10), process(2, 30), process(4, 20)], 1);
        check(4, &[process(1, 10), process(2, 30), process(3, None), process(4, 20)], 0);
        check(0, &[], 4);
    }

    #[test]
    fn false_zero_is_expected_of_drivers_from_535_113_to_560_35() {
        let check = |version, expected| {
            let hides = driver_of(version).map(|it| MEMORY_HIDDEN_DRIVERS.contains(&it));
            assert_eq!(hides, expected, "{version}");
        };
        check("535.113.01", Some(true));
        check("535.112", Some(false));
        check("550.9.01", Some(true));
        check("560.35.05", Some(true));
        check("560.36", Some(false));
        check("565.57.01", Some(false));
        check("525.147.05", Some(false));
        check("", None);
        check("545", None);
        check("five.six", None);
    }
}

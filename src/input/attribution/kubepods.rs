//! The memory of pods and their containers, from the control groups of a whole node. They are
//! found by the UIDs and ids in their paths; only those of pods that use a device are read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stepmem_types::device::Container;
use stepmem_types::host::{ContainerId, PodMemory};
use stepmem_types::units::{Bytes, Count};

use crate::input::attribution::cgroup::{id_of, pod_uid_of};

/// Maximum number of pods and classes of pods in the tree; further ones are not found.
pub const TREE_PODS_MAX: usize = 4096;
/// Maximum number of pods that are read, more than a node has with GPUs; further ones are not.
pub const PODS_READ_MAX: usize = 64;
/// Maximum number of containers of a pod that are read; further ones are not.
pub const POD_CONTAINERS_MAX: usize = 16;
/// Maximum size of a file, in bytes; a longer one counts as unreadable.
pub const FILE_BYTES_MAX: u64 = 64 << 10;

/// The kubelet's group, with each of its drivers of control groups.
const TOP: [&str; 2] = ["kubepods", "kubepods.slice"];
/// The groups between that and those of pods.
const CLASSES: [&str; 4] =
    ["burstable", "besteffort", "kubepods-burstable.slice", "kubepods-besteffort.slice"];
/// A limit as large as this means that there is none.
const UNLIMITED: u64 = 1 << 53;
/// Lines of `memory.stat` that are the kernel's own memory where Linux, before 5.18, has no
/// line `kernel`.
const KERNEL: [&str; 6] =
    ["slab_unreclaimable", "kernel_stack", "pagetables", "sec_pagetables", "percpu", "vmalloc"];

/// Reads the groups of pods. Waits for nothing but the kernel.
#[derive(Debug)]
pub struct Kubepods {
    root: PathBuf,
    boot_id: PathBuf,
    /// The ids of the containers that used a device, by the UID of their pod. A pod is kept as
    /// long as it has a group: its kills outlast its containers.
    watched: BTreeMap<Box<str>, BTreeSet<Box<str>>>,
}

/// The result of one round.
#[derive(Debug, Default)]
pub struct PodsRead {
    /// A row for each pod and each container, by pod.
    pub rows: Vec<PodMemory>,
    /// Pods and containers that were left out to keep a bound.
    pub n_dropped: u64,
}

/// The version of a tree of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Kubepods {
    /// The control groups with the controller `memory` that are mounted at `root`; `boot_id` is
    /// the kernel's file.
    pub fn new(root: impl Into<PathBuf>, boot_id: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), boot_id: boot_id.into(), watched: BTreeMap::new() }
    }

    /// Reads the pods in which a container uses a device (`users`), or did before.
    ///
    /// # Errors
    /// The root has no groups of pods.
    pub fn read(&mut self, users: &BTreeSet<Container>) -> io::Result<PodsRead> {
        let (top, version) = self.top()?;
        let mut read = PodsRead::default();
        let pods = pods(&top, &mut read.n_dropped)?;
        self.watch(users, &pods, &mut read.n_dropped);
        let boot = fs::read_to_string(&self.boot_id).unwrap_or_default();
        for (uid, ids) in &mut self.watched {
            let Some(pod) = pods.get(uid) else { continue };
            let containers = containers(pod, ids);
            ids.retain(|id| containers.contains_key(id));
            let groups = std::iter::once((None, pod.clone()))
                .chain(containers.into_iter().map(|(id, directory)| (Some(id), directory)));
            read.rows.extend(groups.map(|(container_id, directory)| {
                let group = Group { directory, version };
                PodMemory { pod_uid: uid.clone(), ..group.memory(container_id, &boot) }
            }));
        }
        Ok(read)
    }

    /// Returns the kubelet's group, and its version.
    fn top(&self) -> io::Result<(PathBuf, Version)> {
        let is_second = self.root.join("cgroup.controllers").exists();
        let version = if is_second { Version::Two } else { Version::One };
        let missing = || {
            let root = self.root.display();
            io::Error::new(io::ErrorKind::NotFound, format!("no kubepods in {root}"))
        };
        let mut tops = TOP.iter().map(|name| self.root.join(name));
        tops.find(|top| top.is_dir()).map(|top| (top, version)).ok_or_else(missing)
    }

    /// Adds the pods and containers that use a device, and forgets those that are gone.
    fn watch(
        &mut self,
        users: &BTreeSet<Container>,
        pods: &BTreeMap<Box<str>, PathBuf>,
        n_dropped: &mut u64,
    ) {
        self.watched.retain(|uid, _| pods.contains_key(uid));
        for user in users {
            let Some(uid) = user.pod_uid.as_ref().filter(|uid| pods.contains_key(*uid)) else {
                continue;
            };
            let is_full = self.watched.len() >= PODS_READ_MAX;
            if is_full && !self.watched.contains_key(uid) {
                *n_dropped += 1;
                continue;
            }
            let ids = self.watched.entry(uid.clone()).or_default();
            if ids.len() < POD_CONTAINERS_MAX || ids.contains(&user.id) {
                ids.insert(user.id.clone());
            } else {
                *n_dropped += 1;
            }
        }
    }
}

/// Returns the groups of pods below the kubelet's, by the UID of the pod.
fn pods(top: &Path, n_dropped: &mut u64) -> io::Result<BTreeMap<Box<str>, PathBuf>> {
    let classes = CLASSES.iter().map(|class| top.join(class)).filter(|class| class.is_dir());
    let mut pods = BTreeMap::new();
    for class in [top.to_owned()].into_iter().chain(classes) {
        for entry in fs::read_dir(&class)? {
            let entry = entry?;
            let Some(uid) = entry.file_name().to_str().and_then(pod_uid_of) else { continue };
            if pods.len() < TREE_PODS_MAX {
                pods.insert(uid.into(), entry.path());
            } else {
                *n_dropped += 1;
            }
        }
    }
    Ok(pods)
}

/// Returns the groups of the containers of a pod that have these ids.
fn containers(pod: &Path, ids: &BTreeSet<Box<str>>) -> BTreeMap<Box<str>, PathBuf> {
    let entries = fs::read_dir(pod).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let name = entry.file_name();
        Some((ids.get(id_of(name.to_str()?)?)?.clone(), entry.path()))
    });
    named.collect()
}

/// A control group.
struct Group {
    directory: PathBuf,
    version: Version,
}

impl Group {
    /// Returns its memory. In version 2 the kills of a pod contain those of its containers, so
    /// that only the pod has them; in version 1 only a container does.
    fn memory(&self, container_id: Option<Box<str>>, boot: &str) -> PodMemory {
        let counts_kills = container_id.is_none() == (self.version == Version::Two);
        let limit = self.limit();
        PodMemory {
            group: self.id(boot),
            container_id,
            limit,
            used: limit.and_then(|_| self.used()),
            oom_kills: counts_kills.then(|| self.oom_kills()).flatten(),
            ..PodMemory::default()
        }
    }

    /// Returns its limit; `None` without one.
    fn limit(&self) -> Option<Bytes> {
        let name = match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        let limit = read(&self.directory.join(name))?.trim().parse().ok()?;
        Bytes::new(limit).ok().filter(|_| (1..UNLIMITED).contains(&limit))
    }

    /// Returns the memory of the group that the kernel cannot reclaim, as the client counts it.
    fn used(&self) -> Option<Bytes> {
        let stat = read(&self.directory.join("memory.stat"))?;
        let of = |name| figure(&stat, name);
        let (anonymous, shared) = match self.version {
            Version::One => ("total_rss", "total_shmem"),
            Version::Two => ("anon", "shmem"),
        };
        let kernel = match of("kernel") {
            Some(all) => all.saturating_sub(of("slab_reclaimable").unwrap_or(0)),
            None => KERNEL.iter().filter_map(|name| of(name)).fold(0, u64::saturating_add),
        };
        let parts = [of(anonymous)?, of(shared).unwrap_or(0), of("sock").unwrap_or(0), kernel];
        Bytes::new(parts.into_iter().fold(0, u64::saturating_add)).ok()
    }

    fn oom_kills(&self) -> Option<Count> {
        let name = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        Count::new(figure(&read(&self.directory.join(name))?, "oom_kill")?).ok()
    }

    /// Returns the name that clients in the group give it: its number in the kernel and the
    /// boot's, as 16 hexadecimal digits.
    fn id(&self, boot: &str) -> Option<ContainerId> {
        let digits: String = boot.chars().filter(char::is_ascii_hexdigit).take(15).collect();
        let boot = u64::from_str_radix(&digits, 16).unwrap_or(0);
        let number = fs::metadata(&self.directory).ok()?.ino() ^ boot;
        ContainerId::new(&format!("{:016x}", number & (u64::MAX >> 1))).ok()
    }
}

/// Returns the text of a file; `None` where it cannot be read or is too large.
fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    let n_bytes = File::open(path).ok()?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    let is_whole = u64::try_from(n_bytes.ok()?).is_ok_and(|n_bytes| n_bytes <= FILE_BYTES_MAX);
    is_whole.then_some(text)
}

/// Returns the number in the line `NAME NUMBER` of a file.
fn figure(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

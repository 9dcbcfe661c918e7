//! Processes of a command that the kernel killed for lack of memory: the counters `oom_kill` of
//! their control groups, and the ranks whose processes are gone since such a counter rose.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

use crate::exporter::process_state::has_exited;
use stepmem_types::ids::RankId;

/// Time within which a killed process is gone: the kernel takes back its memory first.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of control groups that are watched; further ones are not.
pub(super) const GROUPS_MAX: usize = 64;
/// Maximum number of processes that are watched; further ones are not. Anyone who may push can
/// name any process.
pub(super) const PROCESSES_MAX: usize = 1024;
/// Maximum number of ended processes that wait to be evaluated; later ones are noticed a second
/// later.
const EXITS_MAX: usize = 256;
/// Index of the exit code among the fields of `/proc/PID/stat` that follow the name.
const EXIT_CODE_FIELD: usize = 49;
/// The signal that the kernel kills with, as it stands in the exit code of a process.
const SIGKILL: i32 = 9;
/// The directory where control groups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Watches the control group of the command, and those that its ranks moved to.
#[derive(Debug)]
pub(super) struct OomKills {
    groups: BTreeMap<PathBuf, CountedGroup>,
    /// The processes of ranks.
    processes: BTreeMap<u32, WatchedProcess>,
    /// Processes that were gone at the last evaluation, which found no open kill for them.
    gone: BTreeSet<u32>,
    /// Processes that ended, in order of their ends.
    exits: Vec<u32>,
    report_exit: mpsc::Sender<u32>,
    reported_exits: mpsc::Receiver<u32>,
    n_kills: u64,
}

/// A process of a rank.
#[derive(Debug)]
struct WatchedProcess {
    /// The file of the counter of its control group.
    counter: Option<PathBuf>,
    /// The sender that ends, when dropped, the task that waits for the end of the process.
    _wait: Option<oneshot::Sender<()>>,
}

/// A counter.
#[derive(Debug, Default)]
struct CountedGroup {
    seen: u64,
    /// Number of kills that are not yet assigned to a process.
    n_open: u64,
    rose_at: Option<Instant>,
}

/// The result of an evaluation.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KillLook {
    /// The ranks that were killed.
    pub(super) ranks: Vec<RankId>,
    /// Number of kills of other processes, or of ones that cannot be told apart.
    pub(super) n_others: u64,
}

impl OomKills {
    /// Watches the control group of this process, which the command shares.
    pub(super) fn new() -> Self {
        let (report_exit, reported_exits) = mpsc::channel(EXITS_MAX);
        let mut kills = Self {
            groups: BTreeMap::new(),
            processes: BTreeMap::new(),
            gone: BTreeSet::new(),
            exits: Vec::new(),
            report_exit,
            reported_exits,
            n_kills: 0,
        };
        kills.watch(std::process::id());
        kills
    }

    /// Returns the number of processes that were killed so far; `None` where no counter can be
    /// read.
    pub(super) fn n_kills(&self) -> Option<u64> {
        (!self.groups.is_empty()).then_some(self.n_kills)
    }

    /// Resolves when a process of a rank ends. May be dropped and called again.
    pub(super) async fn next_exit(kills: Option<&mut Self>) {
        let Some(kills) = kills else { return std::future::pending().await };
        // One sender stays here.
        let exit = kills.reported_exits.recv().await;
        kills.exits.extend(exit);
    }

    /// Evaluates the counters and the processes of `ranks`; at the command's end for the last
    /// time.
    pub(super) fn look(
        &mut self,
        ranks: &[(RankId, u32)],
        now: Instant,
        is_last: bool,
    ) -> KillLook {
        self.read(now);
        while let Ok(exit) = self.reported_exits.try_recv() {
            self.exits.push(exit);
        }
        let of_ranks: BTreeSet<u32> = ranks.iter().map(|(_, pid)| *pid).collect();
        self.processes.retain(|pid, _| of_ranks.contains(pid));
        self.exits.retain(|pid| of_ranks.contains(pid));
        for pid in of_ranks {
            self.watch(pid);
        }
        let has_exited = |pid: &u32| has_exited(*pid);
        let gone: BTreeSet<u32> = self.processes.keys().copied().filter(has_exited).collect();
        let order = |pid: &u32| self.exits.iter().position(|exit| exit == pid);
        let is_new = |pid: &u32| gone.contains(pid) && !self.gone.contains(pid);
        let mut new: Vec<(Option<usize>, &RankId, u32)> = ranks
            .iter()
            .filter(|(_, pid)| is_new(pid) && is_killed(*pid) != Some(false))
            .map(|(rank, pid)| (order(pid), rank, *pid))
            .collect();
        // Processes whose end was not reported come last.
        new.sort_by_key(|(order, ..)| order.unwrap_or(usize::MAX));
        let mut look = KillLook::default();
        for (file, group) in self.groups.iter_mut().filter(|(_, group)| group.n_open > 0) {
            let of_group = |pid: &u32| self.processes.get(pid)?.counter.as_ref();
            let mut gone: Vec<&(Option<usize>, &RankId, u32)> = new
                .iter()
                .filter(|(_, rank, pid)| {
                    of_group(pid).is_some_and(|own| is_within(own, file))
                        && !look.ranks.contains(rank)
                })
                .collect();
            // A launcher ends the others after the first. Where the order is not known, any of
            // them may be the first.
            let n_open = usize::try_from(group.n_open).unwrap_or(usize::MAX);
            let is_ordered = gone.iter().take(n_open).all(|(order, ..)| order.is_some());
            if gone.len() <= n_open || is_ordered {
                gone.truncate(n_open);
            } else {
                gone.clear();
            }
            group.n_open -= u64::try_from(gone.len()).unwrap_or(group.n_open);
            look.ranks.extend(gone.into_iter().map(|(_, rank, _)| (*rank).clone()));
            let is_over = group.rose_at.is_none_or(|at| now.duration_since(at) >= GONE_WITHIN);
            if is_over || is_last {
                look.n_others += std::mem::take(&mut group.n_open);
            }
        }
        if self.groups.values().all(|group| group.n_open == 0) {
            self.gone = gone;
        }
        look
    }

    /// Reads all counters. Where groups have one tree (version 2), a group's kills count in the
    /// groups above it, too.
    fn read(&mut self, now: Instant) {
        let mut rises: Vec<(PathBuf, u64)> = Vec::new();
        for (file, group) in &mut self.groups {
            let Some(count) = oom_kills(file) else { continue };
            let rise = count.saturating_sub(group.seen);
            group.seen = count;
            if rise > 0 {
                rises.push((file.clone(), rise));
            }
        }
        for (file, rise) in &rises {
            let within = |(inner, _): &&(PathBuf, u64)| {
                inner != file && is_tree(file) && is_within(inner, file)
            };
            let of_inner: u64 = rises.iter().filter(within).map(|(_, rise)| rise).sum();
            let own = rise.saturating_sub(of_inner);
            self.n_kills += own;
            if let Some(group) = self.groups.get_mut(file).filter(|_| own > 0) {
                group.n_open += own;
                group.rose_at = Some(now);
            }
        }
    }

    /// Watches a process, and its control group, from now on until no rank has it.
    pub(super) fn watch(&mut self, pid: u32) {
        if self.processes.contains_key(&pid) || self.processes.len() >= PROCESSES_MAX {
            return;
        }
        let wait = process(pid).map(|process| {
            let (wait, is_left) = oneshot::channel();
            let exit = report_exit(process, pid, self.report_exit.clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = exit => {}
                    _ = is_left => {}
                }
            });
            wait
        });
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let found = counter_files(&groups).into_iter().find_map(|file| {
            let seen = oom_kills(&file)?;
            Some((file, seen))
        });
        let counter = found.map(|(file, seen)| {
            if self.groups.len() < GROUPS_MAX {
                let group = CountedGroup { seen, ..CountedGroup::default() };
                self.groups.entry(file.clone()).or_insert(group);
            }
            file
        });
        self.processes.insert(pid, WatchedProcess { counter, _wait: wait });
    }
}

/// Returns a process whose end can be waited for; `None` where it is gone, or is this process.
#[expect(deprecated, reason = "an OwnedFd keeps its descriptor, and the other way is unsafe")]
fn process(pid: u32) -> Option<AsyncFd<OwnedFd>> {
    let other = Some(pid).filter(|pid| *pid != std::process::id())?;
    let pid = Pid::from_raw(i32::try_from(other).ok()?)?;
    let file = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
    AsyncFd::with_interest(file, Interest::READABLE).ok()
}

/// Reports the end of a process.
async fn report_exit(process: AsyncFd<OwnedFd>, pid: u32, reports: mpsc::Sender<u32>) {
    if process.readable().await.is_ok() {
        reports.try_send(pid).ok();
    }
}

/// Returns whether SIGKILL ended a process; `None` where that is no longer known.
fn is_killed(pid: u32) -> Option<bool> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let code = stat.rsplit(") ").next()?.split(' ').nth(EXIT_CODE_FIELD)?;
    Some(code.trim().parse::<i32>().ok()? & 0x7f == SIGKILL)
}

/// Returns the files that may have the counter of a process, from its `/proc/PID/cgroup`, the
/// best first.
fn counter_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, name) = match controllers {
            "" => (PathBuf::from(CGROUPS), "memory.events"),
            of if of.split(',').any(|name| name == "memory") => {
                (Path::new(CGROUPS).join("memory"), "memory.oom_control")
            }
            _ => continue,
        };
        files.push(root.join(path.trim_start_matches('/')).join(name));
        // A container sees its own group as the root, under any path.
        files.push(root.join(name));
    }
    files
}

/// Returns the counter of a file; `None` where it has none.
fn oom_kills(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Returns whether a counter counts for groups below its own, too.
fn is_tree(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name == "memory.events")
}

/// Returns whether the group of the inner counter is the outer one's or, in a tree, below it.
fn is_within(inner: &Path, outer: &Path) -> bool {
    let group = |file: &Path| file.parent().map(Path::to_owned).unwrap_or_default();
    inner == outer || (is_tree(outer) && group(inner).starts_with(group(outer)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{
        CountedGroup, OomKills, PROCESSES_MAX, WatchedProcess, counter_files, is_within,
        oom_kills,
    };
    use stepmem_types::ids::{Rank, RankId, Run};

    /// A tree of control groups of version 2: the job's, and one for each rank below it. The
    /// files are as Linux 6.8 writes them, where a kill counts in all groups above, too.
    struct Tree {
        root: PathBuf,
        kills: OomKills,
        ranks: Vec<(RankId, u32)>,
    }

    /// Processes that are gone; that of the job itself comes first.
    const PIDS: [u32; 3] = [4_000_000, 4_000_001, 4_000_002];
    const GROUPS: [&str; 3] = ["job", "job/rank0", "job/rank1"];

    fn events(n_kills: u64) -> String {
        format!(
            "low 0\nhigh 0\nmax {}\noom {n_kills}\noom_kill {n_kills}\noom_group_kill 0\n",
            31 * n_kills
        )
    }

    impl Tree {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir()
                .join(format!("stepmem-cgroup-{}-{name}", std::process::id()));
            let mut tree = Self { root, kills: OomKills::new(), ranks: Vec::new() };
            tree.kills.groups = BTreeMap::new();
            for (group, pid) in GROUPS.into_iter().zip(PIDS) {
                let file = tree.file(group);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(&file, events(1)).unwrap();
                let counted =
                    CountedGroup { seen: oom_kills(&file).unwrap(), ..CountedGroup::default() };
                tree.kills.groups.insert(file.clone(), counted);
                tree.kills
                    .processes
                    .insert(pid, WatchedProcess { counter: Some(file), _wait: None });
            }
            let id =
                |rank| RankId { run: Run::new("job").unwrap(), rank: Rank::new(rank).unwrap() };
            tree.ranks = (0..).map(id).zip(PIDS.into_iter().skip(1)).collect();
            tree
        }

        fn file(&self, group: &str) -> PathBuf {
            self.root.join(group).join("memory.events")
        }

        /// Returns the ranks that are reported as killed, and the number of other kills, after
        /// these counts of kills of each group.
        fn look(&mut self, n_kills: [u64; 3]) -> (Vec<u64>, u64) {
            for (group, n_kills) in GROUPS.into_iter().zip(n_kills) {
                fs::write(self.file(group), events(n_kills)).unwrap();
            }
            let look = self.kills.look(&self.ranks, tokio::time::Instant::now().into(), true);
            (look.ranks.iter().map(|id| id.rank.get().into()).collect(), look.n_others)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.root).ok();
        }
    }

    #[tokio::test]
    async fn kill_in_a_tree_of_groups_is_of_the_group_that_it_was_in_alone() {
        // Each counter began at one earlier kill. The kill of rank 1 counts in its group and in
        // the job's.
        assert_eq!(Tree::new("inner").look([2, 1, 2]), (vec![1], 0));
        assert_eq!(Tree::new("both").look([3, 2, 2]), (vec![0, 1], 0));
        // The kill is of one of the job's own processes: both ranks are gone, and neither is
        // surely the killed one.
        assert_eq!(Tree::new("outer").look([2, 1, 1]), (vec![], 1));
        assert_eq!(Tree::new("outer-and-inner").look([3, 2, 1]), (vec![0], 1));
        assert_eq!(Tree::new("none").look([1, 1, 1]), (vec![], 0));
        let mut tree = Tree::new("counted");
        tree.look([3, 2, 1]);
        assert_eq!(tree.kills.n_kills(), Some(2), "each once");
    }

    #[tokio::test]
    async fn processes_are_watched_as_long_as_ranks_have_them_and_up_to_a_bound() {
        let mut kills = OomKills::new();
        // Process 1 is always there, and the others are not.
        for pid in [1].into_iter().chain(1_000_000..1_002_000) {
            kills.watch(pid);
        }
        assert_eq!(kills.processes.len(), PROCESSES_MAX);
        assert_eq!(kills.report_exit.strong_count(), 2, "a task waits");
        kills.look(&[], tokio::time::Instant::now().into(), false);
        tokio::task::yield_now().await;
        assert!(kills.processes.is_empty());
        assert_eq!(kills.report_exit.strong_count(), 1);
    }

    #[test]
    fn counter_is_that_of_the_processs_own_group() {
        let files = |groups: &str| counter_files(groups);
        assert_eq!(
            files("0::/user.slice/job\n"),
            ["/sys/fs/cgroup/user.slice/job/memory.events", "/sys/fs/cgroup/memory.events"]
                .map(PathBuf::from)
        );
        assert_eq!(
            files("9:cpu:/a\n4:memory:/job\n"),
            [
                "/sys/fs/cgroup/memory/job/memory.oom_control",
                "/sys/fs/cgroup/memory/memory.oom_control"
            ]
            .map(PathBuf::from)
        );
    }

    #[test]
    fn only_counters_of_one_tree_count_for_groups_below() {
        let inner = |a: &str, b: &str| is_within(Path::new(a), Path::new(b));
        assert!(inner("/c/a/b/memory.events", "/c/a/memory.events"));
        assert!(!inner("/c/a/memory.events", "/c/a/b/memory.events"));
        assert!(!inner("/m/a/b/memory.oom_control", "/m/a/memory.oom_control"));
        assert!(inner("/m/a/memory.oom_control", "/m/a/memory.oom_control"));
    }
}

//! Processes and PID namespaces from `/proc`. Reads everything on each call, and keeps nothing.

use std::fs;
use std::path::{Path, PathBuf};

use crate::input::attribution::cgroup::container_of;
use stepmem_types::device::Container;
use stepmem_types::format::clean::is_raw;

/// The target of `/proc/self/ns/pid` in the host's PID namespace, which has a fixed number.
const HOST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Maximum number of parents followed upwards; a deeper tree counts as unknown.
const ANCESTORS_MAX: usize = 64;

/// Maximum length of a process's name, in bytes: the kernel keeps no more.
pub const NAME_BYTES_MAX: usize = 15;

/// The PID namespace of the exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidNamespace {
    /// The host's.
    Host,
    /// A namespace that the exporter joined: that of another container or of the pod.
    Shared,
    /// A namespace that was created for the exporter or one of its parents, or an unknown one.
    Own,
}

/// The mount point of a procfs.
#[derive(Clone, Debug)]
pub struct Procfs {
    root: PathBuf,
}

impl Procfs {
    /// The procfs mounted at `root`, normally `/proc`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the PID namespace of this process.
    ///
    /// A process that joined a namespace has no parent there and is not process 1. In a
    /// namespace that was created for the exporter, every process descends from process 1.
    pub fn pid_namespace(&self) -> PidNamespace {
        match fs::read_link(self.root.join("self/ns/pid")) {
            Ok(link) if link == Path::new(HOST_PID_NAMESPACE) => PidNamespace::Host,
            _ if self.topmost_ancestor().is_some_and(|pid| pid != 1) => PidNamespace::Shared,
            _ => PidNamespace::Own,
        }
    }

    /// Returns whether a process has this id in the namespace of this procfs.
    pub fn has_process(&self, pid: u32) -> bool {
        self.root.join(pid.to_string()).is_dir()
    }

    /// Returns the id of process `pid` in its innermost namespace. `None` when the process is
    /// gone or the kernel does not report it. Differs from `pid` only for processes of inner
    /// namespaces, as seen from the host.
    pub fn innermost_pid(&self, pid: u32) -> Option<u32> {
        innermost_pid(&self.status(&pid.to_string())?)
    }

    /// Returns the name of process `pid` (`comm`), at most [`NAME_BYTES_MAX`] bytes of text;
    /// `None` when the process is gone. A process chooses its name itself, so control
    /// characters are left out.
    pub fn name(&self, pid: u32) -> Option<Box<str>> {
        let comm = fs::read(self.root.join(pid.to_string()).join("comm")).ok()?;
        name_of(&comm)
    }

    /// Returns the container of process `pid`; `None` without one, or when it is not visible
    /// from here.
    pub fn container(&self, pid: u32) -> Option<Container> {
        let cgroup = fs::read_to_string(self.root.join(pid.to_string()).join("cgroup")).ok()?;
        container_of(&cgroup)
    }

    /// The ancestor of this process that has no parent in this namespace.
    fn topmost_ancestor(&self) -> Option<u32> {
        let mut status = self.status("self")?;
        for _ in 0..ANCESTORS_MAX {
            match parent_pid(&status)? {
                0 => return field(&status, "Pid")?.parse().ok(),
                parent => status = self.status(&parent.to_string())?,
            }
        }
        None
    }

    fn status(&self, process: &str) -> Option<String> {
        fs::read_to_string(self.root.join(process).join("status")).ok()
    }
}

fn innermost_pid(status: &str) -> Option<u32> {
    field(status, "NSpid")?.split_whitespace().next_back()?.parse().ok()
}

fn name_of(comm: &[u8]) -> Option<Box<str>> {
    let text = String::from_utf8_lossy(comm.get(..NAME_BYTES_MAX).unwrap_or(comm));
    let name: String = text.chars().filter(|c| !is_raw(*c)).collect();
    let name = name.trim();
    (!name.is_empty()).then(|| name.into())
}

fn parent_pid(status: &str) -> Option<u32> {
    field(status, "PPid")?.parse().ok()
}

/// The value of the line `name:` of a `status` file, trimmed.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::{env, process};

    use super::*;

    /// A fake procfs, removed on drop.
    struct Tree(PathBuf);

    impl Tree {
        /// `processes`: (directory, content of its `status`).
        fn new(name: &str, namespace: &str, processes: &[(&str, &str)]) -> Self {
            let root = env::temp_dir().join(format!("stepmem-proc-{name}-{}", process::id()));
            fs::create_dir_all(root.join("self/ns")).unwrap();
            symlink(namespace, root.join("self/ns/pid")).unwrap();
            for (process, status) in processes {
                fs::create_dir_all(root.join(process)).unwrap();
                fs::write(root.join(process).join("status"), status).unwrap();
            }
            Self(root)
        }

        fn procfs(&self) -> Procfs {
            Procfs::new(&self.0)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    const OTHER: &str = "pid:[4026532998]";

    #[test]
    fn pid_namespace_follows_from_its_number_and_the_topmost_ancestor() {
        let check = |name, namespace, processes: &[(&str, &str)], expected| {
            let tree = Tree::new(name, namespace, processes);
            assert_eq!(tree.procfs().pid_namespace(), expected, "{name}");
        };
        check("host", HOST_PID_NAMESPACE, &[], PidNamespace::Host);
        check("first", OTHER, &[("self", "Pid:\t1\nPPid:\t0\n")], PidNamespace::Own);
        check(
            "below_init",
            OTHER,
            &[("self", "Pid:\t7\nPPid:\t1\n"), ("1", "Pid:\t1\nPPid:\t0\n")],
            PidNamespace::Own,
        );
        check("joined", OTHER, &[("self", "Pid:\t22\nPPid:\t0\n")], PidNamespace::Shared);
        check(
            "below_joined",
            OTHER,
            &[("self", "Pid:\t30\nPPid:\t22\n"), ("22", "Pid:\t22\nPPid:\t0\n")],
            PidNamespace::Shared,
        );
        check("no_status", OTHER, &[], PidNamespace::Own);
        check("circle", OTHER, &[("self", "Pid:\t5\nPPid:\t5\n")], PidNamespace::Own);
        check("parent_gone", OTHER, &[("self", "Pid:\t5\nPPid:\t4\n")], PidNamespace::Own);
    }

    #[test]
    fn unreadable_procfs_counts_as_an_own_namespace() {
        assert_eq!(Procfs::new("/nonexistent").pid_namespace(), PidNamespace::Own);
    }

    #[test]
    fn process_exists_where_it_has_a_directory() {
        let tree = Tree::new("exists", OTHER, &[("41", "Pid:\t41\n")]);
        assert!(tree.procfs().has_process(41));
        assert!(!tree.procfs().has_process(4));
    }

    #[test]
    fn innermost_pid_is_the_last_number_of_nspid() {
        let check = |status, expected| assert_eq!(innermost_pid(status), expected, "{status}");
        check("Name:\tpython\nNSpid:\t48211\t9\t1\nVmPeak:\t1 kB\n", Some(1));
        check("NSpid:\t48211\n", Some(48211));
        check("NSpid:\t\n", None);
        check("NSpid:\tx\n", None);
        check("NStgid:\t48211\t1\n", None);
        check("", None);
    }

    #[test]
    fn names_are_short_and_without_control_characters() {
        let check = |comm: &[u8], expected: Option<&str>| {
            assert_eq!(name_of(comm).as_deref(), expected, "{comm:?}");
        };
        check(b"python3\n", Some("python3"));
        check(b"pt_main_thread\n", Some("pt_main_thread"));
        check(b"a\x1b[31m\tb\n", Some("a[31mb"));
        check(b"much-too-long-for-a-name\n", Some("much-too-long-f"));
        check(b"\xff\xfe\n", Some("\u{fffd}\u{fffd}"));
        check(b"\n", None);
        check(b"", None);
        assert_eq!(Procfs::new("/nonexistent").name(1), None);
    }

    #[test]
    fn innermost_pid_of_a_process_that_is_gone_is_unknown() {
        let tree = Tree::new("innermost", OTHER, &[("41", "Pid:\t41\nNSpid:\t41\t7\n")]);
        assert_eq!(tree.procfs().innermost_pid(41), Some(7));
        assert_eq!(tree.procfs().innermost_pid(42), None);
    }

    #[test]
    fn own_process_is_seen_in_the_real_procfs() {
        let procfs = Procfs::new("/proc");
        assert!(procfs.has_process(process::id()));
        assert!(procfs.innermost_pid(process::id()).is_some());
    }
}

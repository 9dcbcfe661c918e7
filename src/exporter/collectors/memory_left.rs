//! Memory that this process's control groups and the machine have left.

use std::fs;
use std::path::{Path, PathBuf};

/// The directory where control groups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Returns the memory that is left, in bytes: the least of the machine's and of each control
/// group's above this process. `None` where nothing reports it.
pub(super) fn memory_left() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let machine = fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|text| figure(&text, "MemAvailable:")).map(|kib| kib * 1024);
    let groups = groups_of(&own).into_iter().filter_map(|group| left_in(&group));
    groups.chain(machine).min()
}

/// Returns the directories of the control groups of a process and of those above, from its
/// `/proc/PID/cgroup`.
fn groups_of(own: &str) -> Vec<PathBuf> {
    let mut groups = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let root = match controllers {
            "" => PathBuf::from(CGROUPS),
            of if of.split(',').any(|name| name == "memory") => {
                Path::new(CGROUPS).join("memory")
            }
            _ => continue,
        };
        let within = root.join(path.trim_start_matches('/'));
        // A container sees its own group as the root, under any path.
        groups.extend(
            within.ancestors().take_while(|group| group.starts_with(&root)).map(PathBuf::from),
        );
    }
    groups
}

/// Returns the bytes that a control group has left: its limit less what it uses, without files
/// that it could drop.
fn left_in(group: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let stat = read("memory.stat").unwrap_or_default();
    let (limit, used, files) = match number("memory.max") {
        Some(limit) => (limit, number("memory.current")?, figure(&stat, "inactive_file")),
        None => (
            number("memory.limit_in_bytes")?,
            number("memory.usage_in_bytes")?,
            figure(&stat, "total_inactive_file"),
        ),
    };
    Some(limit.saturating_sub(used.saturating_sub(files.unwrap_or(0))))
}

/// Returns the number after a word at the beginning of a line.
fn figure(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines
        .find_map(|mut words| (words.next() == Some(name)).then(|| words.next())??.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{figure, groups_of, left_in};

    #[test]
    fn every_group_above_counts() {
        let paths = |own: &str| -> Vec<PathBuf> { groups_of(own) };
        assert_eq!(
            paths("0::/kubepods/pod1\n"),
            ["/sys/fs/cgroup/kubepods/pod1", "/sys/fs/cgroup/kubepods", "/sys/fs/cgroup"]
                .map(PathBuf::from)
        );
        let version_1 = "9:cpu,cpuacct:/a\n4:memory:/a\n";
        assert_eq!(
            paths(version_1),
            ["/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"].map(PathBuf::from)
        );
    }

    #[test]
    fn files_that_can_be_dropped_are_left_too() {
        let folder =
            std::env::temp_dir().join(format!("stepmem-cgroup-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        write("memory.max", "max\n");
        assert_eq!(left_in(&folder), None);
        write("memory.max", "1000\n");
        write("memory.current", "800\n");
        write("memory.stat", "anon 100\ninactive_file 300\n");
        assert_eq!(left_in(&folder), Some(500));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(figure("MemTotal: 5 kB\nMemAvailable:   7 kB\n", "MemAvailable:"), Some(7));
    }
}

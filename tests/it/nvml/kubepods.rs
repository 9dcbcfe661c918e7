//! The memory of pods, which an exporter of a whole node reads in trees of control groups as Linux 6.8 (version 2) and
//! 5.15 (version 1) write them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;
use stepmem::input::attribution::kubepods::{
    Kubepods, POD_CONTAINERS_MAX, PODS_READ_MAX, PodsRead,
};
use stepmem_types::device::Container;
use stepmem_types::units::{Bytes, Count};

use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::nvml::{FakeNvml, driver, gpu, process};
use crate::rig::skipped::skipped;
use crate::rig::units::{GIB, MIB, float, gib};

const UID: &str = "8dbc5577-d0e2-4706-8787-57d52c03ddf2";
const SLICED: &str = "8dbc5577_d0e2_4706_8787_57d52c03ddf2";
const BOOT: &str = "8d5f6a1e-1111-4222-8333-444455556666\n";

/// The id of a container, of one repeated digit.
fn id(digit: char) -> String {
    digit.to_string().repeat(64)
}

/// A tree of control groups.
struct Tree(Folder);

impl Tree {
    /// A tree of version 2, as yet without pods.
    fn new(name: &str) -> Self {
        let tree = Self(Folder::new(&format!("kubepods-{name}")));
        tree.files("", &[("cgroup.controllers", "cpuset cpu io memory pids\n")]);
        tree
    }

    fn root(&self) -> PathBuf {
        self.0.path("cgroup")
    }

    fn files(&self, group: &str, files: &[(&str, &str)]) {
        fs::create_dir_all(self.root().join(group)).unwrap();
        for (name, content) in files {
            fs::write(self.root().join(group).join(name), content).unwrap();
        }
    }

    /// A group of version 2 that uses 100 MiB of kernel memory that cannot be reclaimed, a page of sockets, and `anon`.
    fn group(&self, group: &str, limit: &str, anon: u64, n_kills: u64) {
        let kernel = 209_715_200 + 100 * MIB;
        let stat = format!(
            "anon {anon}\nfile 8388608000\nkernel {kernel}\nkernel_stack 3145728\nsock 4096\nshmem 0\n\
             slab_reclaimable 209715200\nslab_unreclaimable 52428800\n"
        );
        let events = format!("low 0\nhigh 0\nmax 31\noom {n_kills}\noom_kill {n_kills}\n");
        let limit = format!("{limit}\n");
        self.files(
            group,
            &[("memory.max", &limit), ("memory.stat", &stat), ("memory.events", &events)],
        );
    }

    /// Reads it while these containers, by pod, use a device.
    fn read(&self, users: &[(&str, String)]) -> std::io::Result<PodsRead> {
        let user = |(uid, id): &(&str, String)| Container {
            id: id.as_str().into(),
            pod_uid: Some((*uid).into()),
        };
        let boot = self.0.write("boot_id", BOOT);
        Kubepods::new(self.root(), boot).read(&users.iter().map(user).collect::<BTreeSet<_>>())
    }

    /// The limit, use and kills of the pod and of its container `c`.
    fn figures(&self) -> Vec<[Option<u64>; 3]> {
        let read = self.read(&[(UID, id('c'))]).unwrap();
        assert_eq!(read.n_dropped, 0);
        let rows = read.rows.iter();
        rows.map(|row| {
            [row.limit.map(Bytes::get), row.used.map(Bytes::get), row.oom_kills.map(Count::get)]
        })
        .collect()
    }
}

#[test]
fn pod_whose_process_uses_a_device_is_in_every_output() {
    let tree = Tree::new("outputs");
    let slices = "kubepods.slice/kubepods-burstable.slice";
    let pod = format!("{slices}/kubepods-burstable-pod{SLICED}.slice");
    let container = format!("{pod}/cri-containerd-{}.scope", id('c'));
    tree.group(&pod, &(65 * GIB).to_string(), 41 * GIB, 2);
    tree.group(&container, &(64 * GIB).to_string(), 40 * GIB, 2);
    tree.group(&format!("{pod}/cri-containerd-{}.scope", id('d')), "1048576", 4096, 0);
    tree.group(&format!("{slices}/kubepods-burstable-pod{}.slice", "0".repeat(32)), "9", 1, 0);
    // The test's own process, in that container as the exporter sees it.
    let pid = std::process::id();
    let own = tree.0.write("own", &format!("0::/../../{container}\n"));
    let script = format!("mount --bind {own} /proc/{pid}/cgroup && exec \"$@\"");
    let wrapper = ["unshare", "--mount", "sh", "-c", &script, "sh"];
    let tried = Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").output();
    if !tried.as_ref().is_ok_and(|tried| tried.status.success()) {
        return skipped(format_args!("this machine does not let us mount: {tried:?}"));
    }
    let fake = FakeNvml::new("kubepods", &driver([gpu("GPU-a").compute(&[process(pid, GIB)])]));
    let (library, root) = (text(&fake.library()), text(&tree.root()));
    let arguments =
        ["--nvml.library", &library, "--nvml.interval", "20ms", "--kubelet.cgroups", &root];
    let exporter = Exporter::start_within(&wrapper, &arguments);
    let info = |group: &str, container: &str| {
        format!(
            "stepmem_container_info{{cgroup=\"{group}\",pod_uid=\"{UID}\",container_id=\"{container}\"}}"
        )
    };
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let boot = u64::from_str_radix(&boot.replace('-', "")[..15], 16).unwrap();
    let name = |group: &str| {
        let number = fs::metadata(tree.root().join(group)).unwrap().ino() ^ boot;
        format!("{:016x}", number & (u64::MAX >> 1))
    };
    let (of_pod, of_container) = (name(&pod), name(&container));
    exporter.await_metrics("the pod", |metrics| metrics.contains_key(&info(&of_pod, "")));
    let metrics = exporter.scrape();
    assert_eq!(metrics[&info(&of_container, &id('c'))], 1.0);
    let of = |name: &str, group: &str| {
        metrics.get(&format!("stepmem_container_{name}{{cgroup=\"{group}\"}}")).copied()
    };
    assert_eq!(of("memory_limit_bytes", &of_container), Some(gib(64.0)));
    let used = float(40 * GIB + 100 * MIB + 4096);
    assert_eq!(of("memory_used_bytes", &of_container), Some(used));
    assert_eq!(of("oom_kills_total", &of_container), None, "they are the pod's");
    assert_eq!(of("memory_limit_bytes", &of_pod), Some(gib(65.0)));
    assert_eq!(of("oom_kills_total", &of_pod), Some(2.0));
    let is_of_groups = |series: &&String| series.starts_with("stepmem_container_info{");
    assert_eq!(metrics.keys().filter(is_of_groups).count(), 2, "no other pod, no sidecar");
    let status = exporter.status();
    let expected = json!({"cgroup": of_container, "pod_uid": UID, "container_id": id('c'),
        "limit_bytes": 64 * GIB, "used_bytes": 40 * GIB + 100 * MIB + 4096, "oom_kills": null});
    assert_eq!(status["pod_memory"][1], expected);

    // A rank that pushes reads its container itself: it is one, as the rank reads it.
    let step = json!({"run": "llm", "rank": 0, "step": 1, "device": "GPU-a", "allocated_bytes": GIB,
        "reserved_bytes": GIB, "container": of_container, "container_limit_bytes": 63 * GIB});
    assert_eq!(exporter.post(step.to_string()).status, 200);
    let limit = format!("stepmem_container_memory_limit_bytes{{cgroup=\"{of_container}\"}}");
    assert_eq!(exporter.metric(&limit), Some(gib(63.0)));

    // The kernel kills all of the container: its group goes, and the pod's stays with the count.
    fs::remove_dir_all(tree.root().join(&container)).unwrap();
    tree.group(&pod, &(65 * GIB).to_string(), GIB, 5);
    let kills = format!("stepmem_container_oom_kills_total{{cgroup=\"{of_pod}\"}}");
    exporter.await_metrics("the kill", |metrics| metrics.get(&kills) == Some(&5.0));
    exporter.await_metrics("the end", |metrics| {
        !metrics.contains_key(&info(&of_container, &id('c')))
    });
    fs::remove_dir_all(tree.root()).unwrap();
    let success = r#"stepmem_collector_success{collector="kubepods"}"#;
    exporter.await_metrics("the loss", |metrics| metrics[success] == 0.0);
    assert_eq!(exporter.logged("WARN", "no kubepods"), 1);
    assert!(!exporter.scrape().keys().any(|series| series == &kills));
}

#[test]
fn version_1_is_read_and_the_kills_are_the_containers() {
    let tree = Tree(Folder::new("kubepods-v1"));
    let pod = format!("kubepods/burstable/pod{UID}");
    let unlimited = ("memory.limit_in_bytes", "9223372036854771712\n");
    tree.files(&pod, &[unlimited, ("memory.stat", "total_rss 1\n")]);
    let control = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
    let stat = "cache 900\nrss 7\nshmem 2\ntotal_cache 900\ntotal_rss 700\ntotal_shmem 20\n";
    tree.files(
        &format!("{pod}/{}", id('c')),
        &[
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.stat", stat),
            ("memory.oom_control", control),
        ],
    );
    assert_eq!(tree.figures(), [[None; 3], [Some(1000), Some(720), Some(3)]]);
}

#[test]
fn what_cannot_be_read_is_absent() {
    let tree = Tree::new("garbage");
    let pod = format!("kubepods/pod{UID}");
    let container = format!("{pod}/crio-{}", id('c'));
    tree.group(&pod, "max", GIB, 1);
    tree.files(&container, &[]);
    assert_eq!(tree.figures(), [[None, None, Some(1)], [None; 3]]);
    for limit in ["max", "0", "-1", "", "9999999999999999999999", "1e9"] {
        tree.group(&container, limit, GIB, 1);
        assert_eq!(tree.figures()[1], [None; 3], "{limit:?}");
    }
    let long = format!("{}anon 5\n", "x 1\n".repeat(20_000));
    for stat in ["", "anon\n", "anon x\n", "shmem 5\n", &long] {
        tree.files(&container, &[("memory.max", "1000\n"), ("memory.stat", stat)]);
        assert_eq!(tree.figures()[1], [Some(1000), None, None]);
    }
    tree.files(&container, &[("memory.stat", "anon 18446744073709551615\nshmem 9\n")]);
    assert_eq!(tree.figures()[1], [Some(1000), None, None]);
    // Linux before 5.18 has no sum of the kernel's memory.
    tree.files(
        &container,
        &[("memory.stat", "anon 5\nkernel_stack 3\nslab_unreclaimable 2\n")],
    );
    assert_eq!(tree.figures()[1], [Some(1000), Some(10), None]);
}

#[test]
fn group_that_vanishes_while_it_is_read_is_whole_or_absent() {
    let tree = Tree::new("vanishing");
    let pod = format!("kubepods/pod{UID}");
    let container = format!("{pod}/crio-{}", id('c'));
    let used = GIB + 100 * MIB + 4096;
    tree.group(&pod, "2147483648", GIB, 1);
    tree.group(&container, "2147483648", GIB, 1);
    let (here, gone) = (tree.root().join(&pod), tree.root().join("kubepods/gone"));
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2000 {
                fs::rename(&here, &gone).unwrap();
                fs::rename(&gone, &here).unwrap();
            }
            is_done.store(true, Ordering::Release);
        });
        while !is_done.load(Ordering::Acquire) {
            for [limit, was_used, kills] in tree.figures() {
                assert!([None, Some(2_147_483_648)].contains(&limit), "{limit:?}");
                assert!([None, Some(used)].contains(&was_used), "{was_used:?}");
                assert!([None, Some(1)].contains(&kills), "{kills:?}");
            }
        }
    });
    assert_eq!(tree.figures()[1], [Some(2_147_483_648), Some(used), None]);
}

#[test]
fn only_so_many_pods_and_containers_are_read() {
    let tree = Tree::new("bounds");
    let uid = |n: usize| format!("{n:032x}");
    for n in 0..PODS_READ_MAX + 3 {
        tree.files(&format!("kubepods/besteffort/pod{}", uid(n)), &[]);
    }
    let uids: Vec<String> = (0..PODS_READ_MAX + 3).map(uid).collect();
    let many: Vec<(&str, String)> = uids.iter().map(|uid| (uid.as_str(), id('c'))).collect();
    let read = tree.read(&many).unwrap();
    assert_eq!((read.rows.len(), read.n_dropped), (PODS_READ_MAX, 3));
    let crowd: Vec<(&str, String)> =
        (0..POD_CONTAINERS_MAX + 2).map(|n| (uids[0].as_str(), format!("{n:064x}"))).collect();
    for (_, id) in &crowd {
        tree.files(&format!("kubepods/besteffort/pod{}/{id}", uids[0]), &[]);
    }
    let read = tree.read(&crowd).unwrap();
    assert_eq!((read.rows.len(), read.n_dropped), (1 + POD_CONTAINERS_MAX, 2));
    // A container that is gone, and a pod that is not in the tree.
    let read = tree.read(&[(&uids[1], id('e')), (UID, id('c'))]).unwrap();
    assert_eq!((read.rows.len(), read.n_dropped), (1, 0));
}

//! The texts of a process in `/proc`: its status, name and cgroup, any bytes of which a process may have chosen.

use std::path::PathBuf;

use stepmem::input::attribution::cgroup::container_of;
use stepmem::input::attribution::procfs::{NAME_BYTES_MAX, Procfs};

use crate::scratch;

thread_local! {
    /// A `/proc` with one process, which is the reader too.
    static ROOT: PathBuf = {
        let root = scratch::file("proc");
        std::fs::create_dir_all(root.join("7")).expect("a directory");
        std::os::unix::fs::symlink("7", root.join("self")).expect("a link");
        root
    };
}

/// The files come one after another, with a byte 0 between them: status, name, cgroup.
pub fn run(data: &[u8]) {
    let mut files = data.splitn(3, |byte| *byte == 0);
    let root = ROOT.with(PathBuf::clone);
    let (status, comm) = (files.next().unwrap_or_default(), files.next().unwrap_or_default());
    let cgroup = files.next().unwrap_or_default();
    std::fs::write(root.join("7/status"), status).expect("a file");
    std::fs::write(root.join("7/comm"), comm).expect("a file");
    std::fs::write(root.join("7/cgroup"), cgroup).expect("a file");
    let procfs = Procfs::new(&root);
    procfs.pid_namespace();
    procfs.innermost_pid(7);
    procfs.container(7);
    if let Some(name) = procfs.name(7) {
        // A byte that is not UTF-8 becomes a character of three.
        assert!(name.len() <= 3 * NAME_BYTES_MAX && !name.chars().any(char::is_control));
    }
    container_of(&String::from_utf8_lossy(data));
}

//! A kubelet that speaks gRPC.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::rig::folder::{Folder, root};
use crate::rig::peers::python;

/// A kubelet that answers from a file; it ends with this.
pub struct Kubelet {
    child: Child,
    folder: Folder,
}

impl Kubelet {
    pub fn start(name: &str) -> Self {
        let folder = Folder::new(name);
        let mut child = Command::new(python())
            .arg(root().join("tests/peers/kubelet.py"))
            .args([folder.path("kubelet.sock"), folder.path("answer.json")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, folder }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path("kubelet.sock")
    }

    /// Changes what it answers.
    pub fn answer(&self, content: &str) {
        let fresh = self.folder.path("fresh");
        fs::write(&fresh, content).unwrap();
        fs::rename(fresh, self.folder.path("answer.json")).unwrap();
    }

    /// Has it answer nothing but that it is starting.
    pub fn fall_silent(&self) {
        fs::remove_file(self.folder.path("answer.json")).unwrap();
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

//! Files that a neighbour puts where the state is.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use stepmem::store::state::MAGIC;

use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::record;

/// Starts an exporter on this state; it takes a push and stops within its grace.
fn lives_with(state: &Path) -> Vec<serde_json::Value> {
    let exporter = Exporter::start(&["--state.file", &text(state)]);
    assert_eq!(exporter.post(record(0, 1, 1)).status, 200);
    exporter.stop()
}

/// A checksum as the state file has it.
fn sealed(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut content = Vec::new();
    for part in parts {
        content.extend(u32::try_from(part.len()).unwrap().to_le_bytes());
        content.extend(part);
    }
    content.extend([0; 4]);
    let checksum = crc32fast::hash(&content).to_le_bytes();
    [MAGIC.as_bytes(), &content, &checksum].concat()
}

#[test]
fn pipe_or_link_where_the_state_is_hangs_neither_start_nor_stop() {
    let folder = Folder::new("hostile-state");
    let state = folder.path("state");
    for name in ["state", "state.new", "state.resuming"] {
        let pipe = folder.path(name);
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        lives_with(&state);
        for leftover in ["state", "state.new", "state.resuming", "state.set-aside"] {
            fs::remove_file(folder.path(leftover)).ok();
        }
    }
    let precious = folder.write("precious", "precious");
    for name in ["state", "state.new"] {
        symlink(&precious, folder.path(name)).unwrap();
        lives_with(&state);
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        assert!(fs::symlink_metadata(&state).unwrap().is_file());
        assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_file(&state).ok();
    }
    fs::create_dir(folder.path("state.new")).unwrap();
    lives_with(&state);
}

#[test]
fn forged_state_with_a_right_checksum_ends_nothing() {
    let folder = Folder::new("forged-state");
    let state = folder.path("state");
    // The last part: when the exporter began, its uptime, no finding, no acknowledgement.
    let rest = |started: f64, seconds: u64| {
        let mut part = vec![2];
        part.extend(started.to_le_bytes());
        let mut rest = seconds;
        while rest >= 0x80 {
            part.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
            rest >>= 7;
        }
        part.push(u8::try_from(rest).unwrap());
        part.extend([0, 0, 0]);
        part
    };
    lives_with_forged(&state, &sealed(&[rest(1e9, 60)]), false);
    for forged in [
        sealed(&[rest(1e9, u64::MAX)]),
        sealed(&[rest(1e9, u64::MAX / 2)]),
        sealed(&[rest(f64::NAN, 60)]),
        sealed(&[rest(-1e300, 60)]),
        sealed(&[rest(f64::INFINITY, 60)]),
        sealed(&[]),
        sealed(&[rest(1e9, 60), rest(1e9, 60)]),
        sealed(&[vec![0, 1, b'r', 0], rest(1e9, 60)]),
        sealed(&[vec![9; 1000]]),
    ] {
        lives_with_forged(&state, &forged, true);
    }
}

fn lives_with_forged(state: &Path, bytes: &[u8], is_refused: bool) {
    fs::write(state, bytes).unwrap();
    let log = lives_with(state);
    let warnings: Vec<_> = log.iter().filter(|entry| entry["level"] == "WARN").collect();
    assert_eq!(warnings.len(), usize::from(is_refused), "{warnings:#?}");
    fs::remove_file(state).unwrap();
}

#[test]
fn sidecar_holds_64_ranks_unless_it_is_told() {
    let batch = |n: u32| {
        let records: Vec<String> = (0..n).map(|rank| record(rank, 1, 1)).collect();
        format!("[{}]", records.join(","))
    };
    let sidecar = Exporter::start_sidecar(&[], &[]);
    assert_eq!((sidecar.post(batch(64)).status, sidecar.post(batch(65)).status), (200, 429));
    let large = Exporter::start_sidecar(&["--rank.max", "65"], &[]);
    assert_eq!((large.post(batch(65)).status, large.post(batch(66)).status), (200, 429));
    let of_node = Exporter::start(&[]);
    assert_eq!(of_node.post(batch(1024)).status, 200);
}

#[test]
fn state_of_1024_ranks_is_written_part_by_part() {
    use crate::rig::job::Job;
    use crate::rig::wait::await_true;

    let folder = Folder::new("wide-state");
    let state = folder.path("state");
    let exporter = Exporter::start(&["--state.file", &text(&state)]);
    // The first write is due when these come.
    exporter.push(&Job::new(1024, 60).records());
    let before = exporter.resident_bytes_max();
    await_true("the state", || state.exists());
    exporter.push(&Job::new(1024, 2).steps(61..62).records());
    exporter.signal("TERM");
    let written = fs::metadata(&state).unwrap().len();
    let grown = exporter.resident_bytes_max().saturating_sub(before);
    assert!(grown < 4 * 1024 * 1024, "{grown} bytes for a state of {written}");
}

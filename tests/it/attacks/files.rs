//! Files that a neighbor puts where the state is.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::json;
use stepmem::store::state::{MAGIC, StateError, StateLimits, read_from};
use stepmem_engine::saved::SavedState;

use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::{Job, record};
use crate::rig::units::MIB;

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
    // The last part: when the exporter began, its uptime, no finding, no acknowledgment.
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

/// The parts of a state file.
fn parts(file: &[u8]) -> Vec<Vec<u8>> {
    let (mut rest, mut parts) = (&file[MAGIC.len()..], Vec::new());
    loop {
        let (length, after) = rest.split_first_chunk::<4>().unwrap();
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap();
        if length == 0 {
            return parts;
        }
        let (part, after) = after.split_at(length);
        parts.push(part.to_vec());
        rest = after;
    }
}

/// The exporter's verdict on this file.
fn refusal(file: &[u8]) -> Result<(), StateError> {
    let limits =
        StateLimits { file_bytes_max: u64::MAX, part_bytes_max: SavedState::PART_BYTES_MAX };
    let mut saved = SavedState::default();
    read_from(file, Path::new("state"), limits, |part| saved.add(part, 1024)).map(|_| ())
}

#[test]
fn forged_number_of_a_rank_is_refused_with_its_limit_or_does_no_harm() {
    // Files that are tried of each kind, of so many places.
    const TRIED: usize = 12;
    const PLACES: usize = 800;
    let folder = Folder::new("forged-rank");
    let state = folder.path("state");
    let push = |exporter: &Exporter, first: u64| {
        let records = Job::leaking("leaky", first..first + 50, 4 * MIB).records();
        exporter.post(json!(records).to_string()).status
    };
    let exporter = Exporter::start(&["--state.file", &text(&state)]);
    (0..4).for_each(|n| assert_eq!(push(&exporter, 50 * n), 200));
    exporter.stop();
    let good = parts(&fs::read(&state).unwrap());
    assert!(refusal(&sealed(&good)).is_ok());
    let (mut refused, mut taken) = (BTreeMap::new(), Vec::new());
    for at in (0..good[0].len() - 8).step_by(good[0].len() / PLACES + 1) {
        for float in [0.0, f64::NAN, 1e300, -1e300] {
            let mut forged = good.clone();
            forged[0][at..at + 8].copy_from_slice(&f64::to_le_bytes(float));
            // Read alone, it is read sooner.
            match refusal(&sealed(&[forged[0].clone(), good[good.len() - 1].clone()])) {
                Ok(()) => taken.push(forged),
                Err(StateError::Invalid { reason, .. }) => drop(refused.insert(reason, forged)),
                Err(_) => {}
            }
        }
    }
    let of_floats: Vec<_> =
        refused.iter().filter(|(reason, _)| reason.contains("outside")).collect();
    assert!(
        of_floats.len() >= TRIED && taken.len() >= TRIED,
        "{} {}",
        refused.len(),
        taken.len()
    );
    for (reason, forged) in of_floats.iter().step_by(of_floats.len() / TRIED) {
        fs::write(&state, sealed(forged)).unwrap();
        let exporter = Exporter::start(&["--state.file", &text(&state)]);
        assert_eq!(push(&exporter, 200), 200);
        let log = exporter.stop();
        let aside: Vec<_> = log
            .iter()
            .filter(|entry| entry["fields"]["message"] == "state set aside")
            .map(|entry| entry["fields"]["error"].as_str().unwrap_or_default())
            .collect();
        assert!(aside.len() == 1 && aside[0].contains(reason.as_str()), "{reason}: {aside:?}");
    }
    for forged in taken.iter().step_by(taken.len() / TRIED) {
        fs::write(&state, sealed(forged)).unwrap();
        let exporter = Exporter::start(&["--state.file", &text(&state)]);
        // The rank may be held for another process now.
        assert!([200, 409].contains(&push(&exporter, 200)));
        assert!(!exporter.scrape().is_empty());
        exporter.stop();
    }
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

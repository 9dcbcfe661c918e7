//! Recordings without end, and bombs.

use std::fs;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use stepmem::input::recording::BLANK_BYTES_MAX;

use crate::rig::command::stepmem;
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::refusals::gzipped;
use crate::rig::units::GIB;

/// More than a recording may have without a record.
const BLANK_BYTES: usize = 3 * 512 * 1024;

#[test]
fn bytes_without_a_record_are_bounded_plain_and_packed() {
    let folder = Folder::new("blank-recordings");
    let records = Job::new(2, 40).live(|_, _| 30 * GIB).recording();
    let blank = |line: &str| line.repeat(BLANK_BYTES / line.len());
    let lines = blank("\n");
    let after = [records.as_bytes(), lines.as_bytes()].concat();
    for (name, bytes) in [
        ("lines", lines.clone().into_bytes()),
        ("spaces", blank(&format!("{}\r\n", " ".repeat(1000))).into_bytes()),
        ("after", after.clone()),
        ("gzip", gzipped(lines.as_bytes())),
        ("members", gzipped(&[b'\n'; 1000]).repeat(1500)),
        ("zstd", compress_to_vec(lines.as_bytes(), CompressionLevel::Fastest)),
        ("packed", gzipped(&after)),
    ] {
        fs::write(folder.path(name), bytes).unwrap();
        for command in ["replay", "summary"] {
            let ended = stepmem(&[command, &text(&folder.path(name))], &[], b"");
            assert_eq!(ended.code, Some(2), "{command} {name}");
            let expected = format!("bytes without a record exceed {BLANK_BYTES_MAX}");
            let is_named = ended.err.contains(name) && ended.err.contains(": line ");
            assert!(is_named && ended.err.contains(&expected), "{command}: {}", ended.err);
        }
    }
    // What is between records, however much altogether, is not too much.
    let spread = records.replace('\n', &"\n".repeat(20_000));
    let (spread, plain) = (folder.write("spread", &spread), folder.write("plain", &records));
    let summary = |path: &str| stepmem(&["summary", path], &[], b"").out;
    assert!(!summary(&plain).is_empty());
    assert_eq!(summary(&spread), summary(&plain));
}

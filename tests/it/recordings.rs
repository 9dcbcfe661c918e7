//! Recordings are read as they are found: plain, compressed, or from standard input. Other files are named as what they
//! are.

use std::fs;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::rig::command::stepmem;
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::refusals::gzipped;
use crate::rig::units::GIB;

fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

#[test]
fn compressed_recordings_give_the_answers_of_plain_ones() {
    let records = Job::new(2, 400).live(|rank, step| 30 * GIB + step * (1 - rank) * (8 << 20));
    let records = records.recording();
    let (head, tail) = records.split_at(records.match_indices('\n').nth(300).unwrap().0 + 1);
    let (head, tail) = (head.as_bytes(), tail.as_bytes());
    let folder = Folder::new("recordings");
    let plain = folder.write("job.jsonl", &records);
    let packed = [
        ("job.jsonl.gz", gzipped(records.as_bytes())),
        ("job.jsonl.zst", zstd(records.as_bytes())),
        ("members.gz", [gzipped(head), gzipped(tail)].concat()),
        ("frames.zst", [zstd(head), zstd(tail)].concat()),
        // The name does not matter.
        ("plain.zst", records.clone().into_bytes()),
    ];
    for command in [&["replay"][..], &["summary"], &["explain", "--rank", "0"]] {
        let answer = |path: &str, input: &[u8]| {
            stepmem(&[command, &[path]].concat(), &[], input).quiet()
        };
        let expected = answer(&plain, b"");
        let is_found = ["CREEP", "MEMORY RISING"].iter().any(|name| expected.contains(name));
        assert!(is_found, "{expected}");
        for (name, bytes) in &packed {
            let path = folder.path(name);
            fs::write(&path, bytes).unwrap();
            assert_eq!(answer(&text(&path), b""), expected, "{command:?} {name}");
        }
        assert_eq!(answer("-", &zstd(records.as_bytes())), expected, "{command:?} from stdin");
    }
}

#[test]
fn file_that_is_not_a_recording_is_named_as_what_it_is() {
    let folder = Folder::new("no-recordings");
    for (name, bytes, reason) in [
        ("a.pickle", &b"\x80\x04\x95"[..], "a PyTorch memory snapshot"),
        ("b.zip", b"PK\x03\x04", "a zip archive"),
        (
            "final_summary.json",
            b"{\n  \"schema_version\": 1.7\n}\n",
            "stepmem summary and compare read",
        ),
        ("traceml.sqlite", b"SQLite format 3\0", "an SQLite database"),
        ("page.html", b"<!doctype html>\n", "an HTML or XML page"),
    ] {
        let path = folder.path(name);
        fs::write(&path, bytes).unwrap();
        for command in [&["replay"][..], &["summary"], &["explain", "--rank", "0"]] {
            let path = text(&path);
            let ended = stepmem(&[command, &[path.as_str()]].concat(), &[], b"");
            assert_eq!(ended.code, Some(2), "{name}");
            if name == "final_summary.json" && command[0] == "summary" {
                ended.fails(2, &format!("{path}: not a summary of this version of stepmem"));
                continue;
            }
            let begin = format!("error: {path}: it is ");
            assert!(
                ended.err.starts_with(&begin) && ended.err.contains(reason),
                "{}",
                ended.err
            );
        }
    }
}

#[test]
fn damaged_recording_is_an_error() {
    let folder = Folder::new("damaged-recordings");
    let whole = zstd(Job::new(1, 300).recording().as_bytes());
    let path = folder.path("cut.zst");
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let ended = stepmem(&["replay", &text(&path)], &[], b"");
    ended.fails(2, "cut.zst: line ");
}

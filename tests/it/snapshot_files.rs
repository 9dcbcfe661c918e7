//! `stepmem snapshot` on files that are hostile, broken, compressed or odd.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use stepmem::snapshot::load;
use stepmem::snapshot::model::{Action, Block, Device, Event, Segment, Snapshot, State};
use stepmem::snapshot::pickle::{Machine, PIECE_BYTES_MIN};
use stepmem::snapshot::writer::write;

use crate::rig::command::{Ended, stepmem};
use crate::rig::folder::{Folder, text};
use crate::rig::snapshot::{answer, data};

fn run(folder: &Folder, bytes: &[u8], arguments: &[&str]) -> Ended {
    let path = folder.path("snapshot.pickle");
    std::fs::write(&path, bytes).unwrap();
    stepmem(&[&["snapshot", "show", &text(&path)], arguments].concat(), &[], b"")
}

/// Refused with 2 and one line that names the reason.
fn check(bytes: &[u8], reason: &str) {
    let folder = Folder::new(&format!("snapshot-{}", reason.replace(' ', "-")));
    for arguments in [&["--json"][..], &[]] {
        let ended = run(&folder, bytes, arguments);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{reason}: {}", ended.err);
        assert_eq!(ended.err.trim().lines().count(), 1, "{}", ended.err);
        assert!(ended.err.contains(reason), "{reason}: {}", ended.err);
    }
}

/// A snapshot with one live block of one stack.
fn small(stack: &[(&str, u64, &str)]) -> Snapshot {
    let mut snapshot = Snapshot::empty();
    let stack = snapshot.stack(stack);
    let event = Event {
        address: 1 << 40,
        size: 600,
        time_us: 5,
        stack,
        action: Action::Alloc,
        ..Event::default()
    };
    let block = |address, size, state| Block { address, size, requested: 600, state, stack };
    snapshot.events.push(event);
    snapshot.devices.push(Device {
        index: 0,
        events: (0, 1),
        segments: vec![Segment {
            address: 1 << 40,
            size: 2 << 20,
            active_size: 1024,
            is_small: true,
            blocks: vec![
                block(1 << 40, 1024, State::Allocated),
                Block {
                    stack: 0,
                    ..block((1 << 40) + 1024, (2 << 20) - 1024, State::Inactive)
                },
            ],
            ..Segment::default()
        }],
    });
    snapshot
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

#[test]
fn what_wants_to_run_code_is_refused_with_its_opcode() {
    check(b"\x80\x02cos\nsystem\n(X\x02\0\0\0lstR.", "GLOBAL at byte 2");
    check(b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL at byte 14");
    check(b"\x80\x04N)R.", "REDUCE");
    check(b"\x80\x04}(\x8c\x03zzz\x8c\x02os\x8c\x02ls\x93u.", "STACK_GLOBAL");
}

#[test]
fn what_is_not_a_snapshot_is_named() {
    check(b"", "empty");
    check(b"PK\x03\x04rest", "zip");
    check(b"version https://git-lfs.github.com/spec/v1\noid x\n", "git-lfs");
    check(b"{\"segments\": []}", "JSON");
    check(b"\x80\x04\x8c\x05hello.", "root is neither");
    check(b"\x80\x04}(\x8c\x05epochK\x03u.", "no segments");
    check(b"\x80\x04}\x8c\x08segmentsK\x07s.", "segments is not a list");
}

#[test]
fn a_file_that_was_cut_short_says_where_it_ends() {
    let bytes = write(&small(&[("train.py", 3, "main")]));
    check(&bytes[..bytes.len() - 9], &format!("ends at byte {}", bytes.len() - 9));
    check(b"\x80\x04X\xff\xff\xff\x7fabc", "truncated: the file ends at byte 10");
    let packed = gzip(&bytes);
    check(&packed[..packed.len() - 20], "gzip");
}

#[test]
fn what_asks_for_memory_is_refused() {
    check(&[b"\x80\x02}r".as_slice(), &[0xff; 4], b"."].concat(), "memo entry");
    let lists = "]".repeat(3_000_000) + &"a".repeat(2_999_999);
    let nested = [b"\x80\x04", lists.as_bytes(), b"."].concat();
    check(&nested, "more memory");
    check(&[&b"\x80\x04"[..], &[b'('; 1000], b"."].concat(), "64 deep");
}

#[test]
fn compressed_files_are_read_and_bounded() {
    let plain = answer(&["show", &data("vectors/before_after.step10.pickle.gz"), "--json"]);
    let zstd = answer(&["show", &data("vectors/before_after.step10.pickle.zst"), "--json"]);
    assert_eq!(plain["devices"], zstd["devices"]);
    assert_ne!(plain["file"]["bytes"], zstd["file"]["bytes"]);
    let folder = Folder::new("snapshot-bounded");
    let packed = gzip(&write(&small(&[("train.py", 3, "main")])));
    assert_eq!(run(&folder, &packed, &["--unpacked-max", "4096"]).code, Some(0));
    let refused = run(&folder, &packed, &["--unpacked-max", "100"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("more than 100 bytes"), "{}", refused.err);
}

#[test]
fn nothing_of_the_file_reaches_the_terminal_raw() {
    let name = "\u{1b}]0;owned\u{7}\u{1b}[2J\n</script>\u{9b}2K\u{202e}";
    let folder = Folder::new("snapshot-raw");
    let bytes = write(&small(&[(&format!("/x/{name}.py"), 3, name)]));
    for arguments in [&[][..], &["--by", "stack"], &["--by", "function"], &["--json"]] {
        let ended = run(&folder, &bytes, arguments);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        let raw = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!ended.out.chars().any(raw), "{}", ended.out.escape_debug());
        assert!(ended.out.contains("owned"), "{}", ended.out);
    }
}

#[test]
fn lines_beyond_a_signed_number_and_paths_of_windows_are_ordinary() {
    let folder = Folder::new("snapshot-odd");
    let stack = [("C:\\job\\train.py", u64::MAX, "main")];
    let ended = run(&folder, &write(&small(&stack)), &["--json"]);
    let answer: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let site = &answer["devices"][0]["sites_at_end"][0];
    assert_eq!((&site["line"], &site["kind"]), (&u64::MAX.into(), &"python".into()));
    assert_eq!(site["file"], "C:\\job\\train.py");
}

#[test]
fn a_project_folder_decides_whose_line_it_is() {
    let stack = [("/v/site-packages/mine/a.py", 7, "inner"), ("/srv/train.py", 3, "main")];
    let folder = Folder::new("snapshot-project");
    let bytes = write(&small(&stack));
    let line = |arguments: &[&str]| {
        let ended = run(&folder, &bytes, &[&["--json"], arguments].concat());
        let answer: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
        answer["devices"][0]["sites_at_end"][0]["line"].as_u64()
    };
    assert_eq!(line(&[]), Some(3));
    assert_eq!(line(&["--project", "/v/site-packages/mine"]), Some(7));
}

#[test]
fn pages_fit_a_terminal_and_end_with_what_to_do() {
    let file = data("vectors/leak_eval_graph_every_10.pickle.gz");
    for moment in ["end", "peak", "20"] {
        for rows in ["line", "function", "stack", "category"] {
            let arguments = ["snapshot", "show", &file, "--at", moment, "--by", rows];
            let ended = stepmem(&arguments, &[], b"");
            assert_eq!(ended.code, Some(0), "{}", ended.err);
            assert!(
                ended.out.contains("LEAK  3.24 MiB a step, at train/train.py:151 evaluate")
            );
            assert!(ended.out.contains("\nNext\n"), "{}", ended.out);
            let is_narrow = |line: &str| line.chars().count() <= 100;
            assert!(ended.out.lines().skip(1).all(is_narrow), "{}", ended.out);
        }
    }
}

#[test]
fn how_the_bytes_arrive_makes_no_difference() {
    let stack: Vec<String> =
        (0..40).map(|i| format!("/srv/{i}/{}.py", "x".repeat(1000))).collect();
    let stack: Vec<(&str, u64, &str)> =
        stack.iter().map(|file| (file.as_str(), 1, "f")).collect();
    let bytes = write(&small(&stack));
    let whole = load::read(&bytes).unwrap();
    for piece in [1, 7, PIECE_BYTES_MIN] {
        let mut machine = Machine::default();
        let (mut held, mut fed) = (Vec::new(), 0);
        while fed < bytes.len() {
            let next = bytes.len().min(fed + piece);
            held.extend_from_slice(&bytes[fed..next]);
            fed = next;
            let used = machine.feed(&held).unwrap();
            held.drain(..used);
        }
        let pieces = load::finish(machine, held.len()).unwrap();
        assert_eq!(write(&pieces), write(&whole), "pieces of {piece}");
    }
}

#[test]
fn what_is_written_reads_back_the_same() {
    let real =
        std::fs::read(data("real/silmont2000__assignment2-systems__mem_snapshot.pickle"));
    let first = load::read(&real.unwrap()).unwrap();
    let written = write(&first);
    let second = load::read(&written).unwrap();
    assert_eq!(write(&second), written);
    assert_eq!(first.events.len(), second.events.len());
    assert_eq!(first.stacks.len(), second.stacks.len());
}

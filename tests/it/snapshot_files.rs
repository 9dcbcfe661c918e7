//! `stepmem snapshot` on files that are hostile, broken, compressed or odd.

use std::io::Read;
use std::process::{Command, Stdio};

use flate2::read::GzDecoder;
use serde_json::json;
use stepmem_snapshot::{
    Action, Block, Device, Event, Machine, PIECE_BYTES_MIN, Segment, Snapshot, State, finish,
    read, write,
};

use crate::rig::command::{Ended, stepmem};
use crate::rig::folder::{Folder, text};
use crate::rig::json::has;
use crate::rig::refusals::gzipped;
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
    check(b"<!DOCTYPE html>", "HTML");
    check(b"{\"segments\": []}", "JSON");
    check(b"\x80\x09", "protocol");
    check(b"hello", "pickle");
    check(b"\x80\x04\x8c\x05hello.", "root is neither");
    check(b"\x80\x04}(\x8c\x05epochK\x03u.", "no segments");
    check(b"\x80\x04}\x8c\x08segmentsK\x07s.", "segments is not a list");
}

#[test]
fn a_file_that_was_cut_short_says_where_it_ends() {
    let bytes = write(&small(&[("train.py", 3, "main")]));
    check(&bytes[..bytes.len() - 9], &format!("ends at byte {}", bytes.len() - 9));
    check(b"\x80\x04X\xff\xff\xff\x7fabc", "truncated: the file ends at byte 10");
    let packed = gzipped(&bytes);
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
    let packed = gzipped(&write(&small(&[("train.py", 3, "main")])));
    assert_eq!(run(&folder, &packed, &["--unpacked-max", "4096"]).code, Some(0));
    let refused = run(&folder, &packed, &["--unpacked-max", "100"]);
    refused.fails(2, "more than 100 bytes");
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
        assert!(ended.out.contains("script>"), "{}", ended.out);
    }
}

#[test]
fn lines_beyond_a_signed_number_and_paths_of_windows_are_ordinary() {
    let folder = Folder::new("snapshot-odd");
    let stack = [("C:\\job\\train.py", u64::MAX, "main")];
    let ended = run(&folder, &write(&small(&stack)), &["--json"]);
    let answer: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let site = &answer["devices"][0]["sites_at_end"][0];
    has(site, &json!({"line": u64::MAX, "kind": "python", "file": "C:\\job\\train.py"}));
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

fn read_in_pieces(bytes: &[u8], piece: usize) -> Snapshot {
    let mut machine = Machine::default();
    let (mut held, mut fed) = (Vec::new(), 0);
    while fed < bytes.len() {
        let next = bytes.len().min(fed + piece);
        held.extend_from_slice(&bytes[fed..next]);
        fed = next;
        let used = machine.feed(&held).unwrap();
        held.drain(..used);
    }
    finish(machine, held.len()).unwrap()
}

#[test]
fn how_the_bytes_arrive_makes_no_difference() {
    let stack: Vec<String> =
        (0..40).map(|i| format!("/srv/{i}/{}.py", "x".repeat(1000))).collect();
    let stack: Vec<(&str, u64, &str)> =
        stack.iter().map(|file| (file.as_str(), 1, "f")).collect();
    let bytes = write(&small(&stack));
    let whole = read(&bytes).unwrap();
    for piece in [1, 7, PIECE_BYTES_MIN] {
        let pieces = read_in_pieces(&bytes, piece);
        assert_eq!(write(&pieces), write(&whole), "pieces of {piece}");
    }
}

#[test]
fn an_event_reads_the_same_whole_and_in_pieces() {
    for file in ["h100/amp1_all", "h100/accum", "vectors/style_cpp", "vectors/marks_metadata"] {
        let packed = std::fs::File::open(data(&format!("{file}.pickle.gz"))).unwrap();
        let mut bytes = Vec::new();
        GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
        let whole = read(&bytes).unwrap();
        assert!(whole.events.len() > 100, "{file}");
        // No event fits into a piece.
        assert_eq!(write(&read_in_pieces(&bytes, 17)), write(&whole), "{file}");
    }
}

#[test]
fn what_is_written_reads_back_the_same() {
    let real =
        std::fs::read(data("real/silmont2000__assignment2-systems__mem_snapshot.pickle"));
    let first = read(&real.unwrap()).unwrap();
    let written = write(&first);
    let second = read(&written).unwrap();
    assert_eq!(write(&second), written);
    assert_eq!(first.events.len(), second.events.len());
    assert_eq!(first.stacks.len(), second.stacks.len());
}

#[test]
fn progress_is_shown_for_large_files_and_on_a_terminal_alone() {
    let folder = Folder::new("snapshot-progress");
    let length = 66_u32 << 20;
    let mut bytes = b"\x80\x04}(\x8c\x08segments]\x8c\x05otherX".to_vec();
    bytes.extend(length.to_le_bytes());
    bytes.resize(bytes.len() + usize::try_from(length).unwrap(), b'x');
    bytes.extend(*b"u.");
    let quiet = run(&folder, &bytes, &["--json"]);
    assert_eq!((quiet.code, quiet.err.as_str()), (Some(0), ""));
    // The command's errors go to the terminal, its answer to a file.
    let on_a_terminal = |length: usize| {
        let path = folder.path("shown.pickle");
        std::fs::write(&path, &bytes[..length]).unwrap();
        let answer = folder.path("answer.json");
        let command = format!(
            "{} snapshot show {} --json > {}",
            env!("CARGO_BIN_EXE_stepmem"),
            text(&path),
            text(&answer)
        );
        let output = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .stdin(Stdio::null())
            .output()
            .expect("script, of bsdutils");
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = on_a_terminal(bytes.len());
    assert!(shown.contains("\rreading 24% of 66.0 MiB "), "{}", shown.escape_debug());
    assert!(shown.ends_with(&format!("\r{:40}\r", "")), "{}", shown.escape_debug());
    let answer = std::fs::read_to_string(folder.path("answer.json")).unwrap();
    assert!(answer.contains("\"devices\":[]"), "{answer}");
    assert!(!on_a_terminal(1 << 20).contains("reading"), "a small file is read at once");
}

#[test]
fn long_names_and_deep_stacks_are_ordinary() {
    let folder = Folder::new("snapshot-deep");
    let name = format!("at::native::{}", "x".repeat(1098));
    assert_eq!(name.len(), 1110);
    let file = format!("/srv/{}.py", "y".repeat(1000));
    let inner: Vec<(&str, u64, &str)> = vec![("", 0, name.as_str()); 50];
    let outer: Vec<(&str, u64, &str)> =
        (1..=250).map(|line| (file.as_str(), line, name.as_str())).collect();
    let bytes = write(&small(&[inner, outer].concat()));
    let ended = run(&folder, &bytes, &["--json"]);
    let answer: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let site = &answer["devices"][0]["sites_at_end"][0];
    has(site, &json!({"line": 1, "function": name.as_str(), "file": file.as_str()}));
    let stack = site["stack"].as_array().unwrap();
    assert_eq!((stack.len(), &stack[15]["line"]), (16, &16.into()));
    let page = run(&folder, &bytes, &["--by", "stack"]);
    assert!(page.out.lines().skip(1).all(|line| line.chars().count() <= 100), "{}", page.out);
}

#[test]
fn empty_snapshots_are_ordinary() {
    let folder = Folder::new("snapshot-empty");
    let empty = write(&Snapshot::empty());
    for bytes in [&empty[..], b"\x80\x04]."] {
        let page = run(&folder, bytes, &[]);
        assert_eq!(page.code, Some(0), "{}", page.err);
        assert!(page.out.contains("no device has segments or events"), "{}", page.out);
        assert!(run(&folder, bytes, &["--json"]).out.contains("\"devices\":[]"));
        let out = text(&folder.path("empty.html"));
        assert_eq!(run(&folder, bytes, &["--html", &out]).code, Some(0));
        let path = text(&folder.path("snapshot.pickle"));
        for command in ["diff", "ranks"] {
            let ended = stepmem(&["snapshot", command, &path, &path], &[], b"");
            assert_eq!(ended.code, Some(0), "{command}: {}", ended.err);
        }
    }
}

#[test]
fn blocks_are_listed_by_themselves() {
    let folder = Folder::new("snapshot-blocks");
    let page =
        run(&folder, &write(&small(&[("/srv/train.py", 3, "main")])), &["--by", "block"]);
    let row = "  100.0%   1.00 KiB  0x10000000000  srv/train.py:3 main\n";
    assert!(page.out.contains(row), "{}", page.out);
}

#[test]
fn freed_blocks_are_rounded_as_the_file_says() {
    let folder = Folder::new("snapshot-rounding");
    let peak = |divisions: u64| {
        let mut snapshot = Snapshot::empty();
        snapshot.rounding.divisions = [divisions; 16];
        for action in [Action::Alloc, Action::FreeRequested, Action::FreeCompleted] {
            let event = Event {
                address: 1 << 40,
                size: (5 << 20) + 1,
                time_us: 5,
                action,
                ..Event::default()
            };
            snapshot.events.push(event);
        }
        let free = Block { address: 1 << 40, size: 20 << 20, ..Block::default() };
        snapshot.devices.push(Device {
            index: 0,
            events: (0, 3),
            segments: vec![Segment {
                address: 1 << 40,
                size: 20 << 20,
                blocks: vec![free],
                ..Segment::default()
            }],
        });
        let ended = run(&folder, &write(&snapshot), &["--json"]);
        let answer: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
        answer["devices"][0]["peak"]["active_bytes"].as_u64().unwrap()
    };
    assert_eq!(peak(0), (5 << 20) + 512);
    assert_eq!(peak(4), 6 << 20);
    assert_eq!(peak(8), (5 << 20) + (512 << 10));
}

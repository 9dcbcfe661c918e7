//! Names and reports that mislead.

use serde_json::json;

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::refusals::check_problem;
use crate::rig::victim::Victim;

#[test]
fn names_with_hidden_characters_are_refused() {
    let victim = Victim::start(&[]);
    for hidden in ["\u{202e}", "\u{200b}", "\u{2066}", "\u{feff}", "\u{e0041}", "\u{2028}"] {
        let name = format!("a{hidden}b");
        let body = json!({"run": name, "rank": 7, "step": 1, "allocated_bytes": 1});
        let answer = victim.exporter.post(body.to_string());
        check_problem(&answer, 400, "contains an invisible character");
        let body = json!({"device": name, "rank": 7, "step": 1, "allocated_bytes": 1});
        check_problem(&victim.exporter.post(body.to_string()), 400, "invisible character");
    }
    let plain = json!({"run": "größe 变量 🔥", "rank": 7, "step": 1, "allocated_bytes": 1});
    assert_eq!(victim.exporter.post(plain.to_string()).status, 200);
    victim.survives("hidden characters");
}

/// Everything that is default-ignorable, as ranges, and signs without ink.
const INVISIBLE: [(u32, u32); 20] = [
    (0xAD, 0xAD),
    (0x34F, 0x34F),
    (0x61C, 0x61C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D159, 0x1D159),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0002),
    (0xE0100, 0xE01EF),
];

#[test]
fn name_that_nobody_sees_is_refused_everywhere_it_comes_in() {
    let exporter = Exporter::start(&[]);
    let push = |run: &str| {
        let body = json!({"run": run, "rank": 7, "step": 1, "allocated_bytes": 1});
        exporter.post(body.to_string())
    };
    for c in INVISIBLE.iter().flat_map(|(first, last)| *first..=*last) {
        let c = char::from_u32(c).unwrap();
        for name in [format!("{c}"), format!("run{c}"), format!("{c}{c} ")] {
            let answer = push(&name);
            check_problem(&answer, 400, "contains an invisible character");
        }
    }
    for blank in [
        " ",
        "   ",
        "\u{a0}",
        "\u{1680}",
        "\u{2000}\u{2003}",
        "\u{202f}",
        "\u{205f}",
        "\u{3000}",
    ] {
        check_problem(&push(blank), 400, "run: \"");
        check_problem(&push(blank), 400, "has no visible character");
    }
    for combining in ["\u{301}", "\u{301}\u{302}", "\u{20dd}", "\u{489}run", "\u{fe20}"] {
        check_problem(&push(combining), 400, "begins with a combining character");
    }
    for bidi in ["\u{202e}nur", "run\u{2067}", "\u{200f}run"] {
        check_problem(&push(bidi), 400, "contains an invisible character");
    }
    for seen in
        ["größe", "a b", "é", "e\u{301}", "変数\u{3000}学習", "한국어", "🔥", "...", "_"]
    {
        assert_eq!(push(seen).status, 200, "{seen}");
    }
    // By commands and by settings too.
    for name in ["\u{3164}", " "] {
        let push = format!("http://{}", exporter.push);
        let end = stepmem(&["end", "--run", name, "--url", &push], &[], b"");
        assert_ne!(end.code, Some(0), "{end:?}");
        let web = format!("http://{}", exporter.web);
        let summary = stepmem(&["summary", "--run", name, "--url", &web], &[], b"");
        assert_ne!(summary.code, Some(0), "{summary:?}");
        let recording = json!({"run": name, "rank": 7, "step": 1, "allocated_bytes": 1});
        let replayed = stepmem(&["replay", "-"], &[], recording.to_string().as_bytes());
        assert!(replayed.code == Some(2) && replayed.err.contains("line 1"), "{replayed:?}");
    }
}

#[test]
fn launch_that_is_a_directory_of_every_file_system_is_refused() {
    let exporter = Exporter::start(&[]);
    for (launch, status) in [(".", 400), ("..", 400), ("...", 200), (".a", 200)] {
        let body = json!({
            "run": launch, "rank": 7, "step": 1, "allocated_bytes": 1, "launch": launch,
            "instance": "00c0ffee00c0ffee",
        });
        let answer = exporter.post(body.to_string());
        assert_eq!(answer.status, status, "{launch}: {}", answer.body);
        assert!(status == 200 || answer.body.contains("launch: "), "{}", answer.body);
    }
}

#[test]
fn snapshot_of_a_rank_that_is_not_held_is_refused() {
    let victim = Victim::start(&[]);
    let report = |run: &str| {
        let body = json!({"run": run, "rank": 0, "outcome": "written", "path": "/s/x.pickle"});
        victim.exporter.post_to("/v1/snapshots", body.to_string())
    };
    check_problem(&report("other"), 404, "no rank 0 of that run");
    assert_eq!(report("good").status, 200);
    assert_eq!(victim.exporter.status()["snapshots"].as_array().unwrap().len(), 1);
    victim.survives("foreign snapshots");
}

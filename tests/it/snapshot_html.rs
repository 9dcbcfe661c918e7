//! `stepmem snapshot … --html`: one document with pictures, the same figures as everywhere, and nothing that runs or loads.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use stepmem_snapshot::{
    Action, Block, Device, Event, RankRow, Segment, Snapshot, State, compare_ranks, html, write,
};

use crate::rig::command::stepmem;
use crate::rig::folder::{Folder, root, text};
use crate::rig::snapshot::{answer, data};

/// The limit of the documentation, in bytes.
const BYTES_MAX: usize = 5_000_000;
const MIB: u64 = 1 << 20;

/// Writes the document of a snapshot; returns its path and its text.
fn document(folder: &Folder, snapshot: &str, arguments: &[&str]) -> (String, String) {
    let name = Path::new(snapshot).file_name().unwrap().to_str().unwrap();
    let out = text(&folder.path(&format!("{name}.html")));
    let ended = stepmem(
        &[&["snapshot", "show", snapshot, "--html", &out], arguments].concat(),
        &[],
        b"",
    );
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{}", ended.err);
    let html = std::fs::read_to_string(&out).unwrap();
    (out, html)
}

/// The data of the pictures.
fn pictures(html: &str) -> Value {
    let (_, rest) = html.split_once("id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// A snapshot of so many devices, each with a live block of every stack, allocated one after the other.
fn wide(n_devices: u64, stacks: &[Vec<(&str, u64, &str)>]) -> Vec<u8> {
    let mut snapshot = Snapshot::empty();
    let stacks: Vec<u32> = stacks.iter().map(|stack| snapshot.stack(stack)).collect();
    for index in 0..n_devices {
        let first = snapshot.events.len();
        let start = (index + 1) << 40;
        let address = |number: usize| start + u64::try_from(number).unwrap() * MIB;
        for (number, stack) in stacks.iter().enumerate() {
            snapshot.events.push(Event {
                address: address(number),
                size: MIB,
                time_us: 1 + u64::try_from(number).unwrap(),
                stack: *stack,
                action: Action::Alloc,
                ..Event::default()
            });
        }
        let block = |(number, stack): (usize, &u32)| Block {
            address: address(number),
            size: MIB,
            requested: MIB,
            state: State::Allocated,
            stack: *stack,
        };
        let blocks: Vec<Block> = stacks.iter().enumerate().map(block).collect();
        let size = MIB * u64::try_from(blocks.len()).unwrap();
        snapshot.devices.push(Device {
            index,
            events: (first, snapshot.events.len()),
            segments: vec![Segment {
                address: start,
                size,
                active_size: size,
                blocks,
                ..Segment::default()
            }],
        });
    }
    write(&snapshot)
}

#[test]
fn pictures_show_the_figures_of_the_answer() {
    let folder = Folder::new("snapshot-pictures");
    for name in [
        "graph_and_pins",
        "oom_fragmentation.oom",
        "expandable_unmapped",
        "no_stacks",
        "style_cpp",
    ] {
        let path = data(&format!("vectors/{name}.pickle.gz"));
        let (_, html) = document(&folder, &path, &[]);
        let answer = answer(&["show", &path, "--json"]);
        for (picture, device) in pictures(&html)
            .as_array()
            .unwrap()
            .iter()
            .zip(answer["devices"].as_array().unwrap())
        {
            let end = picture["maps"]
                .as_array()
                .unwrap()
                .iter()
                .find(|map| map["moment"] == "at the end")
                .unwrap();
            for (got, want) in [
                (&end["live"], &device["totals"]["active_bytes"]),
                (&end["pending"], &device["totals"]["pending_free_bytes"]),
                (&end["stranded"], &device["fragmentation"]["stranded_bytes"]),
                (&end["releasable"], &device["fragmentation"]["releasable_bytes"]),
            ] {
                assert_eq!(got, want, "{name}");
            }
            let states: Vec<u64> = serde_json::from_value(picture["states"].clone()).unwrap();
            let peak = states.iter().position(|state| *state == picture["peak"]).unwrap();
            for by in ["lines", "categories"] {
                let sum = |sample: usize| {
                    let bands = picture[by].as_array().unwrap().iter();
                    512 * bands.map(|band| band["held"][sample].as_u64().unwrap()).sum::<u64>()
                };
                assert_eq!(device["peak"]["active_bytes"], sum(peak), "{name}: {by}");
                assert_eq!(
                    device["totals"]["active_bytes"],
                    sum(states.len() - 1),
                    "{name}: {by}"
                );
            }
        }
    }
}

#[test]
fn an_event_has_one_number_in_the_document_and_in_the_answers() {
    let folder = Folder::new("snapshot-numbers");
    for name in ["guides/amp1", "guides/oomloop.oom"] {
        let path = data(&format!("{name}.pickle.gz"));
        let (_, html) = document(&folder, &path, &[]);
        let peak = answer(&["show", &path, "--json"])["devices"][0]["peak"]["event"].clone();
        let number = stepmem_types::format::units::grouped(peak.as_u64().unwrap());
        let said = format!("reserved, at event {number}, in step ");
        let page = stepmem(&["snapshot", "show", &path], &[], b"").out;
        assert!(page.contains(&said) && html.contains(&said), "{name}: {said}");
        // The script's positions count the events before them.
        assert_eq!(pictures(&html)[0]["peak"].as_u64(), peak.as_u64().map(|n| n + 1));
    }
}

#[test]
fn a_free_in_the_document_holds_no_more_than_in_the_list() {
    let folder = Folder::new("snapshot-cursor");
    let path = data("guides/amp1.pickle.gz");
    let picture = pictures(&document(&folder, &path, &[]).1)[0].clone();
    let states: Vec<u64> = serde_json::from_value(picture["states"].clone()).unwrap();
    let rows = answer(&["events", &path, "--json"])["devices"][0]["events"].clone();
    for row in rows.as_array().unwrap() {
        let state = row["event"].as_u64().unwrap() + 1;
        let sample = states.iter().position(|of| *of == state).unwrap();
        let bands = picture["lines"].as_array().unwrap().iter();
        let held = 512 * bands.map(|band| band["held"][sample].as_u64().unwrap()).sum::<u64>();
        assert_eq!(row["active_bytes"], held, "at event {}", state - 1);
    }
}

/// The lists of events in a document.
fn lists(html: &str) -> Value {
    let (_, rest) = html.split_once("id=\"blocks\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// The events of a list with the bytes that are active after each, as the script adds them up.
fn totals(list: &Value) -> Vec<(u64, i64)> {
    let column = |name: &str| {
        serde_json::from_value::<Vec<i64>>(list[name].clone()).unwrap().into_iter()
    };
    let (mut from, mut active) = (0, 0);
    let mut events: Vec<(i64, i64)> = Vec::new();
    let columns = column("from").zip(column("lifetime"));
    for ((since, lifetime), (requested, extra)) in
        columns.zip(column("requested").zip(column("extra")))
    {
        from += since;
        let units = ((requested + 511) / 512).max(1) + extra;
        if from > 0 {
            events.push((from - 1, units));
        } else {
            active += units;
        }
        if lifetime > 0 {
            events.push((from + lifetime - 1, -units));
        }
    }
    events.sort_by_key(|(event, _)| *event);
    let unlisted: Vec<i64> = column("unlisted").collect();
    let changes = unlisted.into_iter().chain(std::iter::repeat(0));
    let total = |((event, units), change)| {
        active += units + change;
        (u64::try_from(event).unwrap(), 512 * active)
    };
    events.into_iter().zip(changes).map(total).collect()
}

#[test]
fn the_list_of_a_document_has_the_running_total_and_copies_as_events_has() {
    let folder = Folder::new("snapshot-totals");
    let mut notes = String::new();
    for name in ["guides/amp1", "vectors/oom_pending_free.oom", "h100/oomloop"] {
        let path = data(&format!("{name}.pickle.gz"));
        let lists = lists(&document(&folder, &path, &[]).1);
        notes += &lists[0]["notes"].to_string();
        let rows = answer(&["events", &path, "--json"])["devices"][0]["events"].clone();
        let expected = rows.as_array().unwrap().iter().filter(|row| row["action"] != "oom");
        let expected: Vec<(u64, i64)> = expected
            .map(|row| (row["event"].as_u64().unwrap(), row["active_bytes"].as_i64().unwrap()))
            .collect();
        assert_eq!(totals(&lists[0]), expected, "{name}");
    }
    assert!(notes.contains("a weight in half precision"), "{notes}");
}

#[test]
fn blocks_that_a_list_leaves_out_count_in_its_running_total() {
    let folder = Folder::new("snapshot-left-out");
    let path = folder.path("wide.pickle");
    let stack = vec![("/srv/train.py", 3, "main")];
    std::fs::write(&path, wide(2, &vec![stack; 36_000])).unwrap();
    let lists = lists(&document(&folder, &text(&path), &[]).1);
    assert_eq!(lists[0]["left_out"], 1000);
    let totals = totals(&lists[0]);
    assert_eq!(totals.len(), 35_000);
    for (event, active) in totals {
        assert_eq!(u64::try_from(active).unwrap(), (event + 1) * MIB, "after event {event}");
    }
}

#[test]
fn near_a_step_that_is_asked_for_every_event_is_drawn() {
    let folder = Folder::new("snapshot-focus");
    let path = data("vectors/leak_loss_scalar_var_seq.pickle.gz");
    let answer = answer(&["show", &path, "--json"]);
    let event = answer["devices"][0]["steps"][20]["peak_event"].as_u64().unwrap();
    let near = |arguments: &[&str]| {
        let pictures = pictures(&document(&folder, &path, arguments).1);
        let states: Vec<u64> = serde_json::from_value(pictures[0]["states"].clone()).unwrap();
        (event - 40..event + 40).filter(|state| states.contains(state)).count()
    };
    assert_eq!(near(&["--at", "20"]), 80);
    assert!(near(&[]) < 60);
}

#[test]
fn documents_stay_small_whatever_the_snapshot() {
    let folder = Folder::new("snapshot-wide");
    let names: Vec<String> =
        (0..300).map(|number| format!("/srv/{number}/{}.py", "<&>".repeat(330))).collect();
    let stacks: Vec<Vec<(&str, u64, &str)>> =
        names.iter().map(|name| vec![(name.as_str(), 1, "<f>"); 16]).collect();
    let path = folder.path("wide.pickle");
    std::fs::write(&path, wide(64, &stacks)).unwrap();
    let (_, html) = document(&folder, &text(&path), &[]);
    assert!(html.len() <= BYTES_MAX, "{} bytes", html.len());
    assert_eq!(pictures(&html).as_array().unwrap().len(), 64);
}

#[test]
fn nothing_is_loaded_and_only_our_script_runs() {
    let folder = Folder::new("snapshot-policy");
    let (_, html) = document(&folder, &data("vectors/style_py4.pickle.gz"), &[]);
    assert!(html.contains("default-src 'none'; img-src data:; style-src 'sha256-"));
    for outside in
        ["http:", "https:", "//cdn", " src=", "url(", "@import", "unsafe-", " style="]
    {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn what_is_not_a_snapshot_leaves_no_document() {
    let folder = Folder::new("snapshot-none");
    let (from, to) = (folder.write("no.pickle", "{}"), text(&folder.path("no.html")));
    let ended = stepmem(&["snapshot", "show", &from, "--html", &to], &[], b"");
    assert_eq!((ended.code, Path::new(&to).exists()), (Some(2), false), "{}", ended.err);
    let good = data("vectors/style_py4.pickle.gz");
    let nowhere = text(&folder.path("none/x.html"));
    let ended = stepmem(&["snapshot", "show", &good, "--html", &nowhere], &[], b"");
    ended.fails(2, "x.html");
}

#[test]
fn browser_draws_documents_and_takes_names_for_text() {
    let folder = Folder::new("snapshot-browser");
    let of = |name: &str| document(&folder, &data(&format!("vectors/{name}.pickle.gz")), &[]).0;
    let markup = "</script><script>window.taken=1</script><img src=x onerror=window.taken=1>";
    let path = folder.path("<b>'\"&.pickle");
    let file = format!("/srv/{markup}.py");
    std::fs::write(&path, wide(1, &[vec![(&file, 3, markup)], vec![(markup, 0, markup)]]))
        .unwrap();
    let (hostile, html) = document(&folder, &text(&path), &[]);
    assert!(!html.contains("<img") && !html.contains("</script><script>"));
    let output = Command::new("node")
        .arg(root().join("tests/ops/snapshot_page.mjs"))
        .args([of("leak_loss_scalar_var_seq"), of("oom_fragmentation.oom"), hostile])
        .output()
        .expect("no node: run make tools");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "snapshot_page.mjs (run make tools?): {said}");
}

/// Writes the document of a comparison; returns its path and its text.
fn comparison(folder: &Folder, command: &str, snapshots: &[String]) -> (String, String) {
    let out = text(&folder.path(&format!("{command}.html")));
    let files: Vec<&str> = snapshots.iter().map(String::as_str).collect();
    let arguments = [&["snapshot", command, "--html", &out], files.as_slice()].concat();
    let ended = stepmem(&arguments, &[], b"");
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{}", ended.err);
    let html = std::fs::read_to_string(&out).unwrap();
    (out, html)
}

fn vectors(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| data(&format!("vectors/{name}.pickle.gz"))).collect()
}

fn job_with_a_broken_rank(folder: &Folder) -> Vec<String> {
    let mut files = vectors(&[
        "ranks_leak.rank0",
        "ranks_leak.rank1",
        "ranks_leak.rank2",
        "ranks_leak.rank3",
    ]);
    files.push(folder.write("x.rank4.<img src=x>.pickle", "{}"));
    files
}

#[test]
fn documents_of_comparisons_have_the_figures_of_the_pages() {
    let folder = Folder::new("snapshot-compared");
    let files = vectors(&["before_after.step10", "before_after"]);
    let (_, diff) = comparison(&folder, "diff", &files);
    for figure in [
        "before_after.step10.pickle.gz → before_after.pickle.gz",
        "<h3>+80.0 MiB at train/train.py:126 train_step</h3>",
        "<p>45 new blocks, 25 gone.</p>",
        "<td class=\"num\">+80.0 MiB</td><td class=\"num\">40.0 MiB</td><td class=\"num\">120 MiB</td>",
        "/srv/train/train.py:210 main",
    ] {
        assert!(diff.contains(figure), "{figure}");
    }
    let (_, ranks) = comparison(&folder, "ranks", &job_with_a_broken_rank(&folder));
    for figure in [
        "<h3>Rank 2 stands out</h3><p>24.0 MiB at the end, where the median is 0 B: train/train.py:126 train_step.</p>",
        "<tr class=\"is-worst\"><td class=\"num\">2</td><td class=\"num\">1.23 GiB</td>",
        "1 could not be read",
        "x.rank4.&lt;img src=x&gt;.pickle",
    ] {
        assert!(ranks.contains(figure), "{figure}");
    }
    for html in [diff, ranks] {
        assert!(html.contains("script-src 'none'") && !html.contains("<script"));
        for outside in ["http:", "https:", " src=x>", "url(", "@import", "unsafe-", " style="] {
            assert!(!html.contains(outside), "{outside}");
        }
    }
}

#[test]
fn documents_of_comparisons_stay_small_whatever_the_job() {
    let error = "&".repeat(2000);
    let rows = (0..20_000).map(|rank| {
        RankRow::unreadable(rank, format!("/{}/{rank}", "<".repeat(4000)), error.clone())
    });
    let html = html::ranks(&compare_ranks(rows.collect(), &[]));
    assert!(html.len() <= BYTES_MAX, "{} bytes", html.len());
    assert!(html.contains("20,000 ranks") && html.contains(" others</td>"));

    let folder = Folder::new("snapshot-compared-wide");
    let names: Vec<String> = (0..300).map(|number| format!("/srv/{number}/<&>.py")).collect();
    let stacks: Vec<Vec<(&str, u64, &str)>> =
        names.iter().map(|name| vec![(name.as_str(), 1, "<f>"); 16]).collect();
    let paths = [wide(64, &stacks), wide(64, &stacks[..7])].map(|bytes| {
        let path = folder.path(&format!("{}.pickle", bytes.len()));
        std::fs::write(&path, bytes).unwrap();
        text(&path)
    });
    let (_, html) = comparison(&folder, "diff", &paths);
    assert!(html.len() <= BYTES_MAX, "{} bytes", html.len());
    assert!(html.matches("<h2>Device").count() == 64, "every device");
}

#[test]
fn browser_shows_comparisons_in_light_and_dark_and_by_keyboard() {
    let folder = Folder::new("snapshot-compared-browser");
    let files = vectors(&["before_after.step10", "before_after"]);
    let (diff, _) = comparison(&folder, "diff", &files);
    let (ranks, _) = comparison(&folder, "ranks", &job_with_a_broken_rank(&folder));
    let output = Command::new("node")
        .arg(root().join("tests/ops/snapshot_compared.mjs"))
        .args([diff, ranks])
        .output()
        .expect("no node: run make tools");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "snapshot_compared.mjs (run make tools?): {said}");
}

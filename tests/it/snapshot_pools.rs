//! Private pools by PyTorch's names, and pinned memory of the host, of files that PyTorch 2.15 wrote and of ones built like them.

use std::fs;

use serde_json::{Value, json};
use stepmem_snapshot::{
    Action, Block, Device, Event, HostMemory, Place, Segment, Snapshot, State, write,
};

use crate::rig::command::{stepmem, words};
use crate::rig::folder::{Folder, text};
use crate::rig::schema::{holds, schema};
use crate::rig::snapshot::{answer, data, page};

const MIB: u64 = 1 << 20;

/// A graph with a pool of its own, one with a handle's, a `MemPool`, and batches in pinned memory.
fn real() -> String {
    data("torch215/pools.pickle.gz")
}

/// A segment of one block.
fn segment(address: u64, size: u64, (pool, state, stack): (u32, State, u32)) -> Segment {
    let block = Block { address, size, requested: size, state, stack };
    let active_size = if state == State::Inactive { 0 } else { size };
    Segment { address, size, active_size, pool, blocks: vec![block], ..Segment::default() }
}

/// A file of a device whose graphs each have a pool of their own.
fn graphs(n_graphs: u64) -> Vec<u8> {
    let mut snapshot = Snapshot::empty();
    let stack = snapshot.stack(&[("/job/train.py", 5, "forward")]);
    let mut segments = vec![segment(1 << 40, 64 * MIB, (0, State::Allocated, stack))];
    for number in 1..=n_graphs {
        snapshot.pools.push((number, 0));
        let pool = u32::try_from(number).unwrap();
        segments.push(segment(
            (1 << 40) + (number << 30),
            12 * MIB,
            (pool, State::Inactive, 0),
        ));
    }
    snapshot.devices.push(Device { index: 0, segments, events: (0, 0) });
    write(&snapshot)
}

#[test]
fn private_pools_have_the_names_that_pytorch_gives_them() {
    let pools = answer(&["show", &real(), "--json"])["devices"][0]["pools"].clone();
    let named: Vec<(&Value, &Value, &Value, &Value)> = pools
        .as_array()
        .unwrap()
        .iter()
        .map(|pool| {
            (&pool["id"], &pool["kind"], &pool["reserved_bytes"], &pool["active_bytes"])
        })
        .collect();
    let reserved = json!(20 * MIB);
    for (id, kind, active) in [
        (json!([0, 0]), "default", 15 * MIB),
        (json!([0, 1]), "shared", 6 * MIB),
        (json!([0, 2]), "shared", 2 * MIB),
        (json!([1, 0]), "cuda_graph", 2 * MIB),
    ] {
        let row = (&id, &json!(kind), &reserved, &json!(active));
        assert!(named.contains(&row), "{row:?}: {named:?}");
    }
    let shown = page(&["show", &real()]);
    for line in [
        "Private pools",
        "   20.0 MiB   6.00 MiB         1  (0, 1), of a MemPool or graph_pool_handle()",
        "   20.0 MiB   2.00 MiB         1  (1, 0), of a CUDA graph",
        "   55.0 MiB  stranded: free, in segments that a block or a private pool holds",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(!page(&["show", &data("guides/amp1.pickle.gz")]).contains("rivate pool"));
}

#[test]
fn pools_add_up_to_the_device_and_nothing_of_them_is_to_be_given_back() {
    let folder = Folder::new("pools-graphs");
    let path = text(&folder.path("graphs.pickle"));
    fs::write(&path, graphs(30)).unwrap();
    let answer = answer(&["show", &path, "--json"]);
    holds(&schema("snapshot"), &answer);
    let device = &answer["devices"][0];
    let pools = device["pools"].as_array().unwrap();
    for figure in ["reserved_bytes", "active_bytes", "segments", "live_blocks"] {
        let sum: u64 = pools.iter().map(|pool| pool[figure].as_u64().unwrap()).sum();
        assert_eq!(device["totals"][figure], sum, "{figure}");
    }
    assert_eq!((pools.len(), &pools[0]["kind"]), (31, &json!("default")));
    let unused = &device["fragmentation"];
    assert_eq!(
        (&unused["releasable_bytes"], &unused["stranded_bytes"]),
        (&json!(0), &json!(360 * MIB))
    );
    let shown = page(&["show", &path, "--top", "3"]);
    let other = "    324 MiB        0 B        27  27 others (--top N shows more)";
    assert!(shown.contains(other), "{shown}");
    let said = "30 CUDA graphs have a pool of their own, 360 MiB together: one that is captured for each new shape adds one.";
    assert!(words(&shown).contains(said), "{shown}");
}

#[test]
fn a_comparison_tells_what_private_pools_took() {
    let folder = Folder::new("pools-diff");
    let paths = [2, 30].map(|n_graphs| {
        let path = text(&folder.path(&format!("graphs{n_graphs}.pickle")));
        fs::write(&path, graphs(n_graphs)).unwrap();
        path
    });
    let [before, after] = &paths;
    let shown = words(&page(&["diff", before, after]));
    let said = "Private pools of CUDA graphs and MemPools took 336 MiB more of the device: 30 pools now hold 360 MiB, 2 did 24.0 MiB.";
    assert!(shown.contains(said), "{shown}");
    let answer = answer(&["diff", before, after, "--json"]);
    holds(&schema("snapshot-diff"), &answer);
    assert_eq!(answer["devices"][0]["notes"][0]["kind"], "private_pools");
    assert!(!page(&["diff", after, before]).contains("Private pools"));
}

#[test]
fn pinned_memory_has_a_section_with_its_sums_and_lines() {
    let answer = answer(&["show", &real(), "--json"]);
    holds(&schema("snapshot"), &answer);
    let pinned = &answer["pinned"];
    let totals = &pinned["totals"];
    assert_eq!(
        [&totals["reserved_bytes"], &totals["active_bytes"], &pinned["peak_bytes"]],
        [&json!(16 * MIB), &json!(8 * MIB), &json!(16 * MIB)]
    );
    assert_eq!([&totals["segments"], &totals["live_blocks"]], [&json!(5), &json!(4)]);
    let line = &pinned["sites"][0];
    assert_eq!((&line["function"], &line["bytes"]), (&json!("batch"), &json!(8 * MIB)));
    assert_eq!(line["stack"][1]["function"], "history");
    let shown = page(&["show", &real()]);
    for said in [
        "pinned memory of the host\n  8.00 MiB in use of 16.0 MiB pinned, 4 of 5 blocks\n",
        "  21 events, at most 16.0 MiB in use at one moment\n",
        "  8.00 MiB free: PyTorch keeps it pinned for the next\n",
        "  100.0%   8.00 MiB        4  job/pools.py:",
    ] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
    // Whatever device is asked for: it is of none.
    let of_another = page(&["show", &real(), "--device", "7"]);
    assert!(of_another.contains("pinned memory of the host"), "{of_another}");
    assert!(of_another.contains("\nno device 7: the snapshot has device 0\n"), "{of_another}");
    let older = data("guides/amp1.pickle.gz");
    assert!(!page(&["show", &older]).contains("pinned memory of the host"));
    assert!(self::answer(&["show", &older, "--json"])["pinned"].is_null());
}

#[test]
fn documents_have_both() {
    let folder = Folder::new("pools-html");
    let to = text(&folder.path("out.html"));
    page(&["show", &real(), "--html", &to]);
    let document = fs::read_to_string(&to).unwrap();
    for said in [
        "<h3>Private pools</h3>",
        "(1, 0), of a CUDA graph",
        "<h2>Pinned memory of the host</h2>",
        "8.00 MiB in use of 16.0 MiB pinned, 4 of 5 blocks.",
        "Who holds it at the end (8.00 MiB)",
    ] {
        assert!(document.contains(said), "{said}");
    }
}

/// A file with nothing but pinned memory: some blocks, one of which a copy still reads.
fn host_alone(n_blocks: u64) -> Vec<u8> {
    let mut snapshot = Snapshot::empty();
    let stack = snapshot.stack(&[("/job/data.py", 7, "pin")]);
    let mut host = HostMemory::default();
    for number in 0..n_blocks {
        let (address, size) = ((1 << 44) + (number << 24), 4 * MIB);
        let state = if number == 0 { State::Pending } else { State::Allocated };
        host.segments.push(segment(address, size, (0, state, stack)));
        snapshot.events.push(Event {
            address,
            size,
            stack,
            action: Action::Alloc,
            place: Place::default(),
            ..Event::default()
        });
    }
    host.events = (0, snapshot.events.len());
    snapshot.host = Some(host);
    write(&snapshot)
}

#[test]
fn a_file_of_pinned_memory_alone_is_answered() {
    let folder = Folder::new("pools-host");
    let path = text(&folder.path("host.pickle"));
    fs::write(&path, host_alone(6)).unwrap();
    let answer = answer(&["show", &path, "--json"]);
    holds(&schema("snapshot"), &answer);
    assert_eq!(answer["devices"], json!([]));
    let totals = &answer["pinned"]["totals"];
    assert_eq!(
        (&totals["active_bytes"], &totals["pending_free_bytes"]),
        (&json!(24 * MIB), &json!(4 * MIB))
    );
    let shown = page(&["show", &path]);
    assert!(shown.contains("4.00 MiB of it wait for a copy to end"), "{shown}");
    assert!(shown.contains("  100.0%   24.0 MiB        6  job/data.py:7 pin"), "{shown}");
}

#[test]
fn host_memory_of_another_shape_is_refused_with_a_reason() {
    let folder = Folder::new("pools-shape");
    let path = text(&folder.path("host.pickle"));
    // No segments, and one key more.
    let root = |key: &str, value: &[u8]| {
        let mut bytes = b"\x80\x04}(\x8c\x08segments]".to_vec();
        bytes.extend([0x8c, u8::try_from(key.len()).unwrap()]);
        bytes.extend(key.as_bytes());
        bytes.extend(value);
        bytes.extend(b"u.");
        bytes
    };
    for (key, value, reason) in [
        ("host_segments", &b"K\x07"[..], "host_segments is not a list of segments"),
        ("host_segments", b"](K\x07e", "host_segments is not a list of segments"),
        ("host_traces", b"](]e", "host_traces is not a list of events"),
    ] {
        fs::write(&path, root(key, value)).unwrap();
        let ended = stepmem(&["snapshot", "show", &path], &[], b"");
        assert_eq!(ended.code, Some(2), "{key}: {}", ended.out);
        assert!(ended.err.contains(reason), "{key}: {}", ended.err);
    }
}

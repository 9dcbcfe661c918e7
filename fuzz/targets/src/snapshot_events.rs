//! Well-formed snapshots of random histories: four bytes an event over a few addresses, segments, stacks, streams, pools
//! and numbers of steps. What is written reads back the same, and what is answered adds up.

use stepmem_snapshot::{
    Action, Annotation, Block, Device, DeviceReport, DeviceScene, Event, MetadataRun, Place,
    Segment, Sites, Snapshot, State, read, write,
};

const ACTIONS: [Action; 10] = [
    Action::Alloc,
    Action::Alloc,
    Action::FreeRequested,
    Action::FreeCompleted,
    Action::FreeCompleted,
    Action::SegmentAlloc,
    Action::SegmentFree,
    Action::SegmentMap,
    Action::SegmentUnmap,
    Action::OutOfMemory,
];

pub fn run(data: &[u8]) {
    let mut snapshot = Snapshot::empty();
    let step = snapshot.strings.intern(b"Optimizer.step#AdamW.step");
    let stacks = [
        0,
        snapshot.stack(&[("train.py", 1, "main")]),
        snapshot.stack(&[("torch/optim/adamw.py", 2, "step"), ("train.py", 9, "main")]),
        snapshot.stack(&[("", 0, "torch::autograd::AccumulateGrad::apply(x)")]),
    ];
    let texts = [0, snapshot.strings.intern(b"step=1"), snapshot.strings.intern(b"step=2")];
    snapshot.streams.push(7);
    snapshot.pools.push((0, 1));
    snapshot.rounding.divisions = [u64::from(data.first().copied().unwrap_or(0) % 9); 16];
    let (events, blocks) = data.split_at(data.len() - data.len() % 16);
    for (number, [action, place, size, stack]) in (0..).zip(events.as_chunks::<4>().0) {
        let time_us = 1_000_000 + 10 * number;
        if action & 0x80 != 0 {
            let mark = Annotation { name: step, is_start: true, device: Some(0), time_us };
            snapshot.annotations.push(mark);
        }
        let text = texts[usize::from(*size >> 6) % texts.len()];
        if text != 0 {
            let first = u32::try_from(snapshot.events.len()).expect("at most 64 KiB of input");
            snapshot.metadata.push(MetadataRun { first, end: first + 1, text });
        }
        let pool = [None, Some(0), Some(1)][usize::from(*stack >> 3) % 3];
        snapshot.events.push(Event {
            action: ACTIONS[usize::from(*action & 0x7f) % ACTIONS.len()],
            address: u64::from(*place) << 19,
            size: u64::from(*size) << 14,
            time_us,
            stack: stacks[usize::from(*stack) % stacks.len()],
            place: Place::new(u32::from(*stack >> 7), pool),
        });
    }
    let is_expandable = data.last().is_some_and(|last| *last & 1 != 0);
    let mut segment = Segment { size: 64 << 20, is_expandable, ..Segment::default() };
    for (number, byte) in (0..).zip(blocks) {
        let states = [State::Allocated, State::Pending, State::Inactive];
        segment.blocks.push(Block {
            address: number << 21,
            size: 2 << 20,
            requested: u64::from(*byte) << 13,
            state: states[usize::from(*byte) % states.len()],
            stack: stacks[usize::from(*byte / 3) % stacks.len()],
        });
    }
    let n_events = snapshot.events.len();
    snapshot.devices.push(Device { index: 0, segments: vec![segment], events: (0, n_events) });
    let read = read(&write(&snapshot)).expect("we read what we write");
    assert_eq!(read.events.len(), n_events);
    assert_eq!(read.rounding, snapshot.rounding);
    for number in 0..u32::try_from(n_events).expect("at most 64 KiB of input") {
        let text = |of: &Snapshot| of.strings.get(of.metadata_of(number)).to_vec();
        assert_eq!(text(&read), text(&snapshot));
    }
    let sites = Sites::new(&read, None);
    for device in &read.devices {
        let report = DeviceReport::new(DeviceScene::new(&read, device, &sites));
        let sum = |rows: &[stepmem_snapshot::SiteRow]| {
            rows.iter().map(|row| row.sum.bytes).sum::<u64>()
        };
        assert_eq!(sum(&report.at_end), report.totals.active);
        assert_eq!(sum(&report.at_peak), report.scene.timeline.peak.active);
        for failure in &report.oom {
            assert_eq!(sum(&failure.rows), failure.active);
        }
    }
}

//! A memory snapshot of the demo's simulated training job, as PyTorch writes it where the
//! script records the history of memory from its start. It has weights, a forward and a
//! backward pass in every step, and one line that keeps its allocations.

use stepmem_snapshot::{
    Action, Annotation, Block, Device, Event, NO_STACK, Segment, Snapshot, State, write,
};

const MIB: u64 = 1 << 20;
/// Number of a step's activations, and the memory of each.
const N_ACTIVATIONS: u64 = 8;
const ACTIVATION: u64 = 1024 * MIB;
/// The addresses of weights, activations and kept memory.
const WEIGHTS_AT: u64 = 1 << 40;
const ACTIVATIONS_AT: u64 = 2 << 40;
const KEPT_AT: u64 = 3 << 40;
/// The simulated time between two events, and between two steps, in µs.
const EVENT_US: u64 = 10;
const STEP_US: u64 = 20_000;

/// The line of the simulated job that leaks.
pub(super) const LEAKING_LINE: (&str, u64, &str) = ("train.py", 151, "training_step");

/// The content of the snapshot.
pub(super) struct SimulatedMemory {
    /// Memory of weights and optimizer state, in bytes.
    pub(super) weights: u64,
    /// Memory that a step keeps, in bytes.
    pub(super) leak_bytes_per_step: u64,
    /// Memory that was kept before the recording, in bytes.
    pub(super) kept_before: u64,
    /// Steps of the recording.
    pub(super) n_steps: u64,
    /// The end of the recording, as a Unix time in µs.
    pub(super) ended_us: u64,
}

impl SimulatedMemory {
    /// Returns the bytes of the snapshot's file.
    pub(super) fn pickle(&self) -> Vec<u8> {
        let mut snapshot = Snapshot::empty();
        let step = snapshot.strings.intern(b"Optimizer.step#AdamW.step");
        let train = ("train.py", 120, "train");
        let forward = snapshot.stack(&[("model.py", 88, "forward"), LEAKING_LINE, train]);
        let keep = snapshot.stack(&[LEAKING_LINE, train]);
        let build = snapshot.stack(&[("model.py", 31, "__init__"), ("train.py", 77, "main")]);
        let mut blocks = Vec::new();
        let mut kept_end = KEPT_AT;
        if self.kept_before > 0 {
            blocks.push(block(kept_end, self.kept_before, keep));
            kept_end += self.kept_before;
        }
        let began_us = self.ended_us.saturating_sub(STEP_US * (self.n_steps + 1));
        for n in 0..=self.n_steps {
            let time_us = began_us + n * STEP_US;
            let mark = Annotation { name: step, is_start: true, device: Some(0), time_us };
            snapshot.annotations.push(mark);
            if n == self.n_steps {
                break;
            }
            let mut events = StepEvents { time_us, events: &mut snapshot.events };
            events.pass(forward);
            if self.leak_bytes_per_step > 0 {
                let kept = block(kept_end, self.leak_bytes_per_step, keep);
                events.add(Action::Alloc, &kept);
                kept_end += kept.size;
                blocks.push(kept);
            }
        }
        let activations = N_ACTIVATIONS * ACTIVATION;
        let free = Block { address: ACTIVATIONS_AT, size: activations, ..Block::default() };
        let weights = block(WEIGHTS_AT, self.weights, build);
        let mut segments = vec![segment(vec![weights]), segment(vec![free])];
        if !blocks.is_empty() {
            segments.push(segment(blocks));
        }
        let n_events = snapshot.events.len();
        snapshot.devices.push(Device { index: 0, segments, events: (0, n_events) });
        write(&snapshot)
    }
}

struct StepEvents<'a> {
    /// The time of the last event.
    time_us: u64,
    events: &'a mut Vec<Event>,
}

impl StepEvents<'_> {
    fn add(&mut self, action: Action, of: &Block) {
        self.time_us += EVENT_US;
        let Block { address, size, stack, .. } = *of;
        let time_us = self.time_us;
        self.events.push(Event { address, size, time_us, stack, action, ..Event::default() });
    }

    /// Allocates activations forwards, and frees them backwards.
    fn pass(&mut self, forward: u32) {
        let places = (0..N_ACTIVATIONS).map(|n| ACTIVATIONS_AT + n * ACTIVATION);
        for address in places.clone() {
            self.add(Action::Alloc, &block(address, ACTIVATION, forward));
        }
        for address in places.rev() {
            self.add(Action::FreeRequested, &block(address, ACTIVATION, NO_STACK));
            self.add(Action::FreeCompleted, &block(address, ACTIVATION, NO_STACK));
        }
    }
}

fn block(address: u64, size: u64, stack: u32) -> Block {
    Block { address, size, requested: size, state: State::Allocated, stack }
}

/// Returns a range of adjacent blocks.
fn segment(blocks: Vec<Block>) -> Segment {
    let is_active = |block: &&Block| block.state != State::Inactive;
    Segment {
        address: blocks.first().map_or(0, |block| block.address),
        size: blocks.iter().map(|block| block.size).sum(),
        active_size: blocks.iter().filter(is_active).map(|block| block.size).sum(),
        is_expandable: true,
        blocks,
        ..Segment::default()
    }
}

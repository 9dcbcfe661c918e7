//! A simulated training job and its memory snapshot, as PyTorch writes it: weights, batches, activations, gradients, the
//! optimizer's state, and whatever a test adds to a step.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use stepmem_snapshot::{
    Action, Annotation, Block, Device, Event, NO_STACK, Segment, Snapshot, State, write,
};

use crate::rig::folder::{Folder, text};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
/// Weights and activations of a layer, and their number.
const WEIGHT: u64 = 4 * MIB;
const ACTIVATION_A_SAMPLE: u64 = 256 * KIB;
const N_LAYERS: usize = 2;
const OPTIMIZER: (&str, u64, &str) =
    ("/venv/site-packages/torch/optim/adam.py", 178, "_init_group");

/// The lines at which the job allocates.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    /// The line that makes weights.
    pub build: u32,
    batch: u32,
    layers: [u32; N_LAYERS],
    output: u32,
    update: u32,
    /// The line that a test makes its own memory at, and one that calls it from elsewhere.
    pub keep: u32,
    pub other: u32,
}

/// The job while it runs.
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub struct Job {
    pub snapshot: Snapshot,
    pub lines: Lines,
    /// Samples of a batch.
    pub n_samples: u64,
    /// The output's size, in parts of an activation.
    pub output_factor: u64,
    /// Set when the step deletes its output at its end.
    pub deletes_output: bool,
    /// Set when gradients are dropped after the forward pass, not after the update.
    pub drops_gradients_late: bool,
    /// Set when the file has marks of the optimizer's updates.
    is_marked: bool,
    live: BTreeMap<u64, Block>,
    /// Addresses that are free, by size.
    free: HashMap<u64, Vec<u64>>,
    next: u64,
    time_us: u64,
    gradients: Vec<u64>,
    has_state: bool,
    output: Option<u64>,
}

impl Job {
    pub fn new(n_samples: u64, is_marked: bool) -> Self {
        let mut snapshot = Snapshot::empty();
        let script = ("/job/train.py", 90, "<module>");
        let call = ("/venv/site-packages/torch/nn/modules/module.py", 1784, "_call_impl");
        let at = |line: u64| ("/job/train.py", line, "main");
        let lines = Lines {
            build: snapshot.stack(&[("/job/model.py", 11, "__init__"), at(20), script]),
            batch: snapshot.stack(&[("/job/data.py", 7, "load"), at(30), script]),
            layers: [21, 22].map(|line| {
                snapshot.stack(&[("/job/model.py", line, "forward"), call, at(31), script])
            }),
            output: snapshot.stack(&[("/job/model.py", 25, "forward"), call, at(31), script]),
            update: snapshot.stack(&[OPTIMIZER, at(36), script]),
            keep: snapshot.stack(&[("/job/keep.py", 5, "keep"), at(33), script]),
            other: snapshot.stack(&[("/job/other.py", 9, "other"), at(34), script]),
        };
        let mut job = Self {
            snapshot,
            lines,
            n_samples,
            output_factor: 1,
            deletes_output: false,
            drops_gradients_late: false,
            is_marked,
            live: BTreeMap::new(),
            free: HashMap::new(),
            next: 1 << 40,
            time_us: 1_760_000_000_000_000,
            gradients: Vec::new(),
            has_state: false,
            output: None,
        };
        for _ in 0..N_LAYERS {
            job.make(WEIGHT, lines.build);
        }
        job
    }

    fn add(&mut self, action: Action, address: u64, size: u64, stack: u32) {
        self.time_us += 10;
        let time_us = self.time_us;
        let event = Event { address, size, time_us, stack, action, ..Event::default() };
        self.snapshot.events.push(event);
    }

    /// Forgets what happened so far, as a recording that begins now, or as a ring of events that has overwritten it: then what is
    /// alive keeps its stack.
    pub fn begin_recording(&mut self, is_overwritten: bool) {
        self.snapshot.events.clear();
        self.snapshot.annotations.clear();
        if !is_overwritten {
            self.live.values_mut().for_each(|block| block.stack = NO_STACK);
        }
    }

    /// Allocates, from what is free first; returns the address.
    pub fn make(&mut self, size: u64, stack: u32) -> u64 {
        let address = self.free.get_mut(&size).and_then(Vec::pop).unwrap_or_else(|| {
            self.next += size.next_multiple_of(2 * MIB);
            self.next - size.next_multiple_of(2 * MIB)
        });
        let block = Block { address, size, requested: size, state: State::Allocated, stack };
        self.live.insert(address, block);
        self.add(Action::Alloc, address, size, stack);
        address
    }

    /// Frees.
    pub fn drop(&mut self, address: u64) {
        let block = self.live.remove(&address).unwrap();
        self.add(Action::FreeRequested, address, block.size, NO_STACK);
        self.add(Action::FreeCompleted, address, block.size, NO_STACK);
        self.free.entry(block.size).or_default().push(address);
    }

    /// Fails to allocate; the driver has so many bytes left.
    pub fn fail(&mut self, size: u64, device_free: u64, stack: u32) {
        self.add(Action::OutOfMemory, device_free, size, stack);
    }

    /// Makes a step; `keep` acts between the forward and the backward pass.
    pub fn step(&mut self, keep: impl FnOnce(&mut Self)) {
        let activation = self.n_samples * ACTIVATION_A_SAMPLE;
        let batch = self.make(self.n_samples * 64 * KIB, self.lines.batch);
        let layers = self.lines.layers;
        let activations = layers.map(|stack| self.make(activation, stack));
        let output = self.make(activation * self.output_factor, self.lines.output);
        if let Some(before) = self.output.replace(output) {
            self.drop(before);
        }
        keep(self);
        self.drop_gradients();
        for activation in activations.into_iter().rev() {
            let scratch = self.make(self.n_samples * ACTIVATION_A_SAMPLE / 2, NO_STACK);
            let gradient = self.make(WEIGHT, NO_STACK);
            self.gradients.push(gradient);
            self.drop(scratch);
            self.drop(activation);
        }
        if self.is_marked {
            let name = self.snapshot.strings.intern(b"Optimizer.step#Adam.step");
            let time_us = self.time_us + 5;
            let mark = Annotation { name, is_start: true, device: Some(0), time_us };
            self.snapshot.annotations.push(mark);
        }
        if !std::mem::replace(&mut self.has_state, true) {
            for _ in 0..2 * N_LAYERS {
                self.make(WEIGHT, self.lines.update);
            }
        }
        let scratch = self.make(WEIGHT, self.lines.update);
        self.drop(scratch);
        if !self.drops_gradients_late {
            self.drop_gradients();
        }
        if self.deletes_output {
            let output = self.output.take().unwrap();
            self.drop(output);
        }
        self.drop(batch);
    }

    fn drop_gradients(&mut self) {
        for gradient in std::mem::take(&mut self.gradients) {
            self.drop(gradient);
        }
    }

    /// The file of what is alive now, as a recording of the state alone writes it: without a trace.
    pub fn state(&mut self) -> Vec<u8> {
        self.snapshot.events.clear();
        self.snapshot.annotations.clear();
        let device = self.device();
        self.snapshot.devices.push(device);
        let bytes = write(&self.snapshot);
        self.snapshot.devices.clear();
        bytes
    }

    /// The snapshot's file. What is free stays reserved.
    pub fn pickle(mut self) -> Vec<u8> {
        let device = self.device();
        self.snapshot.devices.push(device);
        write(&self.snapshot)
    }

    fn device(&self) -> Device {
        let inactive = self.free.iter().flat_map(|(size, addresses)| {
            addresses.iter().map(|address| Block {
                address: *address,
                size: *size,
                ..Block::default()
            })
        });
        let mut blocks: Vec<Block> = self.live.values().copied().chain(inactive).collect();
        blocks.sort_by_key(|block| block.address);
        let segments = blocks.into_iter().map(|block| Segment {
            address: block.address,
            size: block.size,
            active_size: if block.state == State::Allocated { block.size } else { 0 },
            is_small: block.size <= MIB,
            blocks: vec![block],
            ..Segment::default()
        });
        let n_events = self.snapshot.events.len();
        Device { index: 0, segments: segments.collect(), events: (0, n_events) }
    }
}

/// The states of a job at the end of each of its steps; `keep` does what a test adds to a step.
pub fn states(n_steps: u64, mut keep: impl FnMut(&mut Job, u64)) -> Vec<Vec<u8>> {
    let mut job = Job::new(4, false);
    let mut states = Vec::new();
    for step in 0..n_steps {
        job.step(|job| keep(job, step));
        states.push(job.state());
    }
    states
}

/// A list that grows in each so-many-th step from one on.
pub fn list(n_steps: u64, from: u64, every: u64) -> Vec<Vec<u8>> {
    states(n_steps, |job, step| {
        if step >= from && (step - from).is_multiple_of(every) {
            job.make(768 * KIB, job.lines.keep);
        }
    })
}

/// Writes files; returns their paths.
pub fn files(folder: &Folder, states: &[Vec<u8>]) -> Vec<String> {
    (0..)
        .zip(states)
        .map(|(number, bytes)| {
            let path = text(&folder.path(&format!("state{number}.pickle")));
            fs::write(&path, bytes).unwrap();
            path
        })
        .collect()
}

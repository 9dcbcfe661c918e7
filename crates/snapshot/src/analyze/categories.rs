//! The categories of memory: parameters, gradients, optimizer state, activations … by lifetime
//! and phase first, by names in the stack second.

use std::collections::HashMap;

use serde::Serialize;

use crate::analyze::device::{DeviceScene, Lifetime};
use crate::analyze::phases::StepPhase;
use crate::analyze::roles::StackRole;
use crate::analyze::sites::SiteKind;
use crate::analyze::steps::spans_of;
use crate::integer::{at, id, real};
use crate::model::{Action, NO_STACK, Snapshot};
use crate::replay::Allocation;

/// A site's blocks are activations if this much of its bytes is freed while backward runs.
const IN_BACKWARD_RATIO_MIN: f64 = 0.5;
/// Steps after which a block is neither in flight nor a gradient.
const LONG_STEPS: u32 = 2;

/// The use of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Category {
    Parameter,
    /// The gradient of a weight.
    Gradient,
    /// State of the optimizer.
    Optimizer,
    /// Made in forward, given back in backward.
    Activation,
    /// A buffer of a collective.
    Communication,
    /// A batch.
    Input,
    /// A library's workspace.
    Workspace,
    /// Given back at once.
    Temporary,
    /// No rule applies.
    #[default]
    Unknown,
}

pub(crate) const ALL: [Category; 9] = [
    Category::Parameter,
    Category::Gradient,
    Category::Optimizer,
    Category::Activation,
    Category::Communication,
    Category::Input,
    Category::Workspace,
    Category::Temporary,
    Category::Unknown,
];

/// Bytes by category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Categories<T = u64> {
    pub parameter: T,
    pub gradient: T,
    /// State of the optimizer.
    pub optimizer: T,
    /// Made in forward, given back in backward.
    pub activation: T,
    /// Buffers of collectives.
    pub communication: T,
    pub input: T,
    /// Workspaces of cuBLAS, cuDNN and the like.
    pub workspace: T,
    /// Given back at once.
    pub temporary: T,
    /// No rule applies.
    pub unknown: T,
}

impl<T> Categories<T> {
    /// The place of a category.
    pub fn of(&mut self, category: Category) -> &mut T {
        match category {
            Category::Parameter => &mut self.parameter,
            Category::Gradient => &mut self.gradient,
            Category::Optimizer => &mut self.optimizer,
            Category::Activation => &mut self.activation,
            Category::Communication => &mut self.communication,
            Category::Input => &mut self.input,
            Category::Workspace => &mut self.workspace,
            Category::Temporary => &mut self.temporary,
            Category::Unknown => &mut self.unknown,
        }
    }

    /// Every category with its name.
    pub fn named(&self) -> [(&'static str, &T); 9] {
        [
            ("parameter", &self.parameter),
            ("gradient", &self.gradient),
            ("optimizer", &self.optimizer),
            ("activation", &self.activation),
            ("communication", &self.communication),
            ("input", &self.input),
            ("workspace", &self.workspace),
            ("temporary", &self.temporary),
            ("unknown", &self.unknown),
        ]
    }
}

/// Bytes of what is alive in a state (at the end if `None`), by category.
pub(crate) fn sums(
    scene: &DeviceScene<'_>,
    categories: &[Category],
    state: Option<u32>,
) -> Categories {
    let mut sums = Categories::default();
    for (allocation, category) in scene.timeline.allocations.iter().zip(categories) {
        if allocation.is_alive_in(state) {
            *sums.of(*category) += allocation.size;
        }
    }
    sums
}

/// The phase that an allocation's stack belongs to.
pub(crate) fn phase(scene: &DeviceScene<'_>, stack: u32) -> StepPhase {
    if scene.sites.is_optimizer(stack) {
        return StepPhase::Optimizer;
    }
    match scene.sites.site(scene.sites.of_origin(stack)).map(|site| site.kind) {
        Some(SiteKind::Backward) => StepPhase::Backward,
        Some(SiteKind::NoFrames) if scene.sites.has_stacks => StepPhase::Backward,
        _ => StepPhase::Forward,
    }
}

/// The category of every allocation.
pub(crate) fn categorize(scene: &DeviceScene<'_>) -> Vec<Category> {
    let facts = Facts::new(scene);
    scene.lifetimes().map(|lifetime| facts.category(scene, lifetime)).collect()
}

/// The behavior of a site's blocks.
#[derive(Clone, Copy, Debug, Default)]
struct Habits {
    freed: u64,
    freed_in_backward: u64,
    freed_at_once: u64,
    allocates_after_setup: bool,
}

/// The facts that the rules use.
struct Facts {
    habits: Vec<Habits>,
    /// Stacks of collectives, of data loading and of modules that are called.
    is_communication: Vec<bool>,
    is_loading: Vec<bool>,
    is_call: Vec<bool>,
    /// Sites that fill a batch: at the beginning of an iteration, before the model is called.
    is_input: Vec<bool>,
    /// Events between which the data loader ran: the first, and the one after the last.
    loaded: Vec<(u32, u32)>,
    /// The first state after the first backward allocation.
    setup_end: u32,
    /// Set when optimizer state that stays is made in the window.
    makes_state: bool,
    main_stream: u32,
}

impl Facts {
    fn new(scene: &DeviceScene<'_>) -> Self {
        let setup_end = (1..)
            .zip(scene.events)
            .find(|(_, event)| {
                event.action == Action::Alloc
                    && phase(scene, event.stack) == StepPhase::Backward
            })
            .map(|(state, _)| state)
            .or(scene.steps.marks.first().map(|mark| mark + 1));
        let setup_end = setup_end.unwrap_or(0);
        let makes_state = scene.timeline.allocations.iter().any(|allocation| {
            !allocation.is_older()
                && allocation.is_at_end()
                && scene.sites.is_optimizer(allocation.stack)
        });
        let habits = habits(scene, setup_end);
        Self {
            is_input: inputs(scene, &habits),
            habits,
            is_communication: stacks_with(scene.snapshot, &COMMUNICATION),
            is_loading: stacks_with(scene.snapshot, &["torch/utils/data/"]),
            is_call: stacks_with(scene.snapshot, &["_call_impl"]),
            loaded: spans_of(scene.snapshot, scene.device, "enumerate(DataLoader)#"),
            setup_end,
            makes_state,
            main_stream: main_stream(scene),
        }
    }

    fn category(&self, scene: &DeviceScene<'_>, lifetime: Lifetime<'_>) -> Category {
        let Lifetime { allocation, from, until } = lifetime;
        let has = |stacks: &[bool]| stacks.get(at(allocation.stack)).copied().unwrap_or(false);
        let is_kept = allocation.is_at_end() || until > from;
        let kind = scene.sites.kind(allocation);
        if kind == SiteKind::Workspace || allocation.is_workspace {
            return Category::Workspace;
        }
        if has(&self.is_communication)
            || (allocation.place.stream() != self.main_stream && waits(allocation))
        {
            return Category::Communication;
        }
        if scene.sites.is_optimizer(allocation.stack) {
            return if is_kept { Category::Optimizer } else { Category::Temporary };
        }
        if kind == SiteKind::BeforeRecording
            || (allocation.is_older() && kind == SiteKind::NoFrames)
        {
            let is_weight = allocation.is_at_end() && self.makes_state;
            return if is_weight { Category::Parameter } else { Category::Unknown };
        }
        if kind == SiteKind::Backward
            || (allocation.stack == NO_STACK && scene.sites.has_stacks)
        {
            let event = allocation.from.saturating_sub(1);
            let outlives_pass =
                scene.phases.after_pass(event).is_some_and(|state| allocation.is_alive(state));
            let is_gradient = is_kept || outlives_pass;
            return if is_gradient { Category::Gradient } else { Category::Temporary };
        }
        let is_batch = self.is_input.get(at(scene.sites.of(allocation))) == Some(&true);
        if has(&self.is_loading)
            || self.is_loaded(allocation)
            || is_batch && from > 0 && until - from <= LONG_STEPS
        {
            return Category::Input;
        }
        self.of_forward(scene, lifetime, has(&self.is_call))
    }

    fn is_loaded(&self, allocation: &Allocation) -> bool {
        let before = self.loaded.partition_point(|(start, _)| *start < allocation.from);
        let last = before.checked_sub(1).and_then(|last| self.loaded.get(last));
        !allocation.is_older() && last.is_some_and(|(_, end)| allocation.from <= *end)
    }

    /// Python outside the optimizer and backward.
    fn of_forward(
        &self,
        scene: &DeviceScene<'_>,
        Lifetime { allocation, from, until }: Lifetime<'_>,
        is_call: bool,
    ) -> Category {
        let site = scene.sites.of(allocation);
        let habits = self.habits.get(at(site)).copied().unwrap_or_default();
        let is_setup = allocation.from < self.setup_end && allocation.is_at_end();
        if is_setup && !habits.allocates_after_setup && !is_call {
            return Category::Parameter;
        }
        if allocation.stack == NO_STACK || scene.events.is_empty() {
            return Category::Unknown;
        }
        if allocation.is_at_end() {
            let is_long = until - from > LONG_STEPS;
            return if is_long { Category::Unknown } else { Category::Activation };
        }
        let in_backward =
            real(habits.freed_in_backward) >= IN_BACKWARD_RATIO_MIN * real(habits.freed);
        if in_backward || until > from {
            Category::Activation
        } else if habits.freed_at_once * 2 >= habits.freed {
            Category::Temporary
        } else {
            Category::Activation
        }
    }
}

/// Names in stacks of collectives.
const COMMUNICATION: [&str; 7] = [
    "c10d::",
    "nccl",
    "Reducer",
    "distributed/fsdp/_fully_shard/_fsdp_collectives.py",
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
    "distributed/fsdp/_flat_param.py",
];

/// Returns whether its free waited for another stream.
fn waits(allocation: &Allocation) -> bool {
    allocation.is_pending
        || (!allocation.is_at_end() && allocation.until.saturating_sub(allocation.freed) > 1)
}

/// Stacks with a frame whose file or function contains one of the names.
fn stacks_with(snapshot: &Snapshot, names: &[&str]) -> Vec<bool> {
    let mut known: HashMap<u32, bool> = HashMap::new();
    let mut contains = |string: u32| {
        *known.entry(string).or_insert_with(|| {
            let text = snapshot.text(string).replace('\\', "/");
            names.iter().any(|name| text.contains(name))
        })
    };
    let frames: Vec<bool> = snapshot
        .frames
        .iter()
        .map(|frame| contains(frame.file) || contains(frame.name))
        .collect();
    (0..id(snapshot.stacks.len()))
        .map(|stack| {
            let mut numbers = snapshot.stacks.get(stack).iter();
            numbers.any(|frame| frames.get(at(*frame)) == Some(&true))
        })
        .collect()
}

/// Returns the behavior of each site's blocks, as far as they end in the window.
fn habits(scene: &DeviceScene<'_>, setup_end: u32) -> Vec<Habits> {
    let mut habits = vec![Habits::default(); scene.sites.sites.len()];
    let mut now = StepPhase::Forward;
    let mut n_allocated = 0_u32;
    let mut allocated_at = vec![0; scene.timeline.allocations.len()];
    let phases: Vec<StepPhase> =
        (0..id(scene.snapshot.stacks.len())).map(|stack| phase(scene, stack)).collect();
    let phase_of = |stack: u32| phases.get(at(stack)).copied().unwrap_or_default();
    for (event, number) in scene.events.iter().zip(&scene.timeline.of_event) {
        let Some(allocation) = scene.timeline.allocations.get(at(*number)) else { continue };
        let site = at(scene.sites.of(allocation));
        let Some(habit) = habits.get_mut(site) else { continue };
        match event.action {
            Action::Alloc => {
                now = phase_of(event.stack);
                n_allocated += 1;
                if let Some(slot) = allocated_at.get_mut(at(*number)) {
                    *slot = n_allocated;
                }
                habit.allocates_after_setup |= allocation.from > setup_end;
            }
            Action::FreeRequested => {
                let freed_by =
                    if event.stack == NO_STACK { now } else { phase_of(event.stack) };
                habit.freed += allocation.size;
                if now == StepPhase::Backward || freed_by == StepPhase::Backward {
                    habit.freed_in_backward += allocation.size;
                }
                if allocated_at.get(at(*number)) == Some(&n_allocated) {
                    habit.freed_at_once += allocation.size;
                }
            }
            _ => {}
        }
    }
    habits
}

/// Finds the sites of batches. Their blocks are made where the training loop comes to its first
/// line, before any module is called. They are not given back in backward. Where no module is
/// seen, only the first line itself makes them.
fn inputs(scene: &DeviceScene<'_>, habits: &[Habits]) -> Vec<bool> {
    let mut counts = vec![[0_u64; 2]; scene.sites.sites.len()];
    let Some(found) = &scene.steps.training_loop else { return vec![false; counts.len()] };
    let is_module = stacks_with(scene.snapshot, &["_call_impl", "torch/nn/"]);
    let has_modules = is_module.contains(&true);
    let mut arrivals = found.arrivals.iter().peekable();
    let first_step = scene.steps.marks.first().copied();
    let mut is_open = false;
    for (number, event) in (0..).zip(scene.events) {
        is_open |= arrivals.next_if(|arrival| **arrival == number).is_some();
        if event.action != Action::Alloc {
            continue;
        }
        let is_own = || {
            let innermost = scene.sites.user_frames(scene.snapshot, event.stack).next();
            innermost == Some(found.line)
        };
        is_open &= scene.roles.of(event.stack) == StackRole::Forward
            && is_module.get(at(event.stack)) != Some(&true)
            && (has_modules || is_own());
        if let Some([leading, all]) = counts
            .get_mut(at(scene.sites.of_origin(event.stack)))
            .filter(|_| first_step.is_some_and(|first| first <= number))
        {
            *leading += u64::from(is_open);
            *all += 1;
        }
    }
    let is_input = |([leading, all], habits): (&[u64; 2], &Habits)| {
        let in_backward =
            real(habits.freed_in_backward) >= IN_BACKWARD_RATIO_MIN * real(habits.freed);
        *all > 0 && *leading * 10 >= *all * 9 && (habits.freed == 0 || !in_backward)
    };
    counts.iter().zip(habits).map(is_input).collect()
}

/// The stream that most is allocated on.
fn main_stream(scene: &DeviceScene<'_>) -> u32 {
    let mut bytes = vec![0_u64; scene.snapshot.streams.len()];
    for allocation in &scene.timeline.allocations {
        if let Some(sum) = bytes.get_mut(at(allocation.place.stream())) {
            *sum += allocation.size;
        }
    }
    let most = bytes
        .iter()
        .enumerate()
        .max_by_key(|(number, sum)| (**sum, std::cmp::Reverse(*number)));
    most.map_or(0, |(number, _)| id(number))
}

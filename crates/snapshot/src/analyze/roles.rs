//! The role of a stack in the step: forward, backward, the optimizer's update, `zero_grad`.

use std::collections::HashMap;

use crate::analyze::sites::{FrameKind, SiteKind, Sites};
use crate::integer::{at, id};
use crate::model::{NO_STACK, Snapshot};

/// The program's activity where a stack was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackRole {
    /// Code that computes, or anything else: no rule below applies.
    #[default]
    Forward,
    /// Autograd makes gradients, or runs a part of the forward pass again for them.
    Backward,
    /// A `GradScaler` checks the gradients; the optimizer may still be skipped.
    Scaling,
    /// The optimizer updates weights.
    Update,
    /// Gradients are dropped.
    ZeroGrad,
    /// Ranks exchange data: a part of what came before.
    Collective,
    /// The program itself exchanges data, outside of the model and of autograd.
    Exchange,
}

/// The roles of a file's stacks.
#[derive(Debug, Default)]
pub struct StackRoles {
    of_stack: Vec<StackRole>,
}

/// The role of a single frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FrameRole {
    #[default]
    Silent,
    ZeroGrad,
    Optimizer,
    /// A closure that the optimizer calls: the forward pass, not the update.
    Closure,
    Scaler,
    Collective,
    /// A module is called.
    Module,
    /// Python's side of autograd.
    Autograd,
    /// `autograd.Function`, which calls the user's backward: outermost on autograd's thread.
    Function,
}

impl StackRoles {
    /// Finds the role of every stack.
    pub fn new(snapshot: &Snapshot, sites: &Sites) -> Self {
        let frames = frame_roles(snapshot);
        let stacks = 0..id(snapshot.stacks.len());
        let of_stack = stacks.map(|stack| role(snapshot, sites, &frames, stack));
        Self { of_stack: of_stack.collect() }
    }

    /// The role of a stack.
    #[inline]
    pub fn of(&self, stack: u32) -> StackRole {
        self.of_stack.get(at(stack)).copied().unwrap_or_default()
    }
}

fn role(snapshot: &Snapshot, sites: &Sites, frames: &[FrameRole], stack: u32) -> StackRole {
    if stack == NO_STACK {
        return if sites.has_stacks { StackRole::Backward } else { StackRole::Forward };
    }
    let numbers = snapshot.stacks.get(stack);
    let of = |frame: &u32| frames.get(at(*frame)).copied().unwrap_or_default();
    let first = numbers.iter().map(of).find(|role| {
        !matches!(
            role,
            FrameRole::Silent | FrameRole::Function | FrameRole::Autograd | FrameRole::Module
        )
    });
    let kind = |frame: &u32| sites.frame_kinds.get(at(*frame)).copied();
    let outermost = numbers
        .iter()
        .rfind(|frame| matches!(kind(frame), Some(FrameKind::User | FrameKind::Library)));
    match first {
        Some(FrameRole::ZeroGrad) => return StackRole::ZeroGrad,
        Some(FrameRole::Optimizer) => return StackRole::Update,
        Some(FrameRole::Scaler) => return StackRole::Scaling,
        Some(FrameRole::Collective) => {
            // A hook is outermost on autograd's thread; on the program's, the script is.
            let is_own = numbers.iter().all(|frame| {
                let is_inside = matches!(
                    of(frame),
                    FrameRole::Autograd | FrameRole::Function | FrameRole::Module
                );
                !is_inside && kind(frame) != Some(FrameKind::Engine)
            }) && outermost.is_some_and(|frame| {
                kind(frame) == Some(FrameKind::Library)
                    || snapshot.strings.get(snapshot.frame(*frame).name) == b"<module>"
            }) && numbers.iter().any(|frame| kind(frame) == Some(FrameKind::User));
            return if is_own { StackRole::Exchange } else { StackRole::Collective };
        }
        _ => {}
    }
    let site = sites.site(sites.of_origin(stack)).map(|site| site.kind);
    let is_backward = site == Some(SiteKind::Backward)
        || numbers.iter().any(|frame| {
            of(frame) == FrameRole::Autograd
                || matches!(kind(frame), Some(FrameKind::Engine | FrameKind::Node(..)))
        })
        || outermost.is_some_and(|frame| of(frame) == FrameRole::Function);
    if is_backward { StackRole::Backward } else { StackRole::Forward }
}

/// Functions of torch/utils/checkpoint.py that run the forward pass again, during backward.
const RECOMPUTING: [&[u8]; 3] = [b"backward", b"unpack_hook", b"recompute_fn"];
/// Functions of a `GradScaler` after backward.
const SCALING: [&[u8]; 4] = [b"step", b"unscale_", b"_unscale_grads_", b"update"];
/// Files whose functions exchange data between ranks, and call nothing of the model.
const COLLECTIVES: [&str; 4] = [
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
    "distributed/fsdp/_fully_shard/_fsdp_collectives.py",
    "distributed/fsdp/_flat_param.py",
];
/// Functions by which a module is called.
pub(crate) const MODULE_CALLS: [&[u8]; 2] = [b"_call_impl", b"_wrapped_call_impl"];
/// Functions by which Python enters autograd.
const ENTERING: [&[u8]; 3] = [b"backward", b"_make_grads", b"_engine_run_backward"];

fn frame_roles(snapshot: &Snapshot) -> Vec<FrameRole> {
    let mut files: HashMap<u32, FileRole> = HashMap::new();
    let frames = snapshot.frames.iter();
    frames
        .map(|frame| {
            let name = snapshot.strings.get(frame.name);
            if name == b"zero_grad" {
                return FrameRole::ZeroGrad;
            }
            if name == b"_init_group" {
                return FrameRole::Optimizer;
            }
            if MODULE_CALLS.contains(&name) {
                return FrameRole::Module;
            }
            if name.windows(7).any(|part| part == b"closure") {
                return FrameRole::Closure;
            }
            let file = files
                .entry(frame.file)
                .or_insert_with(|| FileRole::of(&snapshot.text(frame.file).replace('\\', "/")));
            match file {
                FileRole::Optimizer => FrameRole::Optimizer,
                FileRole::Collective => FrameRole::Collective,
                FileRole::Scaler if SCALING.contains(&name) => FrameRole::Scaler,
                FileRole::Checkpoint if RECOMPUTING.contains(&name) => FrameRole::Autograd,
                FileRole::Autograd if ENTERING.contains(&name) => FrameRole::Autograd,
                FileRole::Function if name == b"apply" => FrameRole::Function,
                _ => FrameRole::Silent,
            }
        })
        .collect()
}

/// The purpose of a file of PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileRole {
    Optimizer,
    Scaler,
    Collective,
    Checkpoint,
    Autograd,
    Function,
    Other,
}

impl FileRole {
    fn of(path: &str) -> Self {
        let is_autograd = path.ends_with("torch/autograd/graph.py")
            || path.ends_with("torch/autograd/__init__.py")
            || path.ends_with("torch/_tensor.py");
        match path {
            _ if path.contains("torch/optim/") => Self::Optimizer,
            _ if COLLECTIVES.iter().any(|file| path.ends_with(file)) => Self::Collective,
            _ if path.ends_with("/grad_scaler.py") => Self::Scaler,
            _ if path.ends_with("/checkpoint.py") => Self::Checkpoint,
            _ if path.ends_with("torch/autograd/function.py") => Self::Function,
            _ if is_autograd => Self::Autograd,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Frame;
    use crate::model::arena::Arena;

    /// A snapshot with one stack of these frames, innermost first: file and function.
    fn role_of(frames: &[(&str, &str)]) -> StackRole {
        let mut snapshot = Snapshot { strings: Arena::default(), ..Snapshot::default() };
        snapshot.strings.intern(b"");
        snapshot.stacks.intern(&[]);
        let mut numbers = Vec::new();
        for (file, name) in frames {
            let [file, name] =
                [file, name].map(|text| snapshot.strings.intern(text.as_bytes()));
            numbers.push(id(snapshot.frames.len()));
            snapshot.frames.push(Frame { name, file, line: 1 });
        }
        let stack = snapshot.stacks.intern(&numbers);
        StackRoles::new(&snapshot, &Sites::new(&snapshot, None)).of(stack)
    }

    #[test]
    fn the_innermost_frame_that_says_something_decides() {
        let adam = ("/v/torch/optim/adam.py", "step");
        let main = ("/job/train.py", "main");
        assert_eq!(role_of(&[adam, main]), StackRole::Update);
        assert_eq!(
            role_of(&[("/v/torch/optim/optimizer.py", "zero_grad"), main]),
            StackRole::ZeroGrad
        );
        let scaler = ("/v/torch/amp/grad_scaler.py", "step");
        assert_eq!(role_of(&[scaler, main]), StackRole::Scaling);
        assert_eq!(role_of(&[adam, scaler, main]), StackRole::Update);
        let scale = ("/v/torch/amp/grad_scaler.py", "scale");
        assert_eq!(role_of(&[scale, main]), StackRole::Forward);
        let reduce = ("/v/torch/distributed/distributed_c10d.py", "all_reduce");
        assert_eq!(
            role_of(&[reduce, main]),
            StackRole::Collective,
            "a hook of autograd's thread"
        );
        let script = ("/job/train.py", "<module>");
        assert_eq!(role_of(&[reduce, main, script]), StackRole::Exchange);
        let module = ("/v/torch/nn/modules/module.py", "_call_impl");
        assert_eq!(role_of(&[reduce, module, main, script]), StackRole::Collective);
        let entry = ("/v/torch/autograd/graph.py", "_engine_run_backward");
        assert_eq!(role_of(&[reduce, entry, main, script]), StackRole::Collective);
        let closure = ("/v/site-packages/lightning/automatic.py", "closure");
        assert_eq!(role_of(&[main, closure, adam]), StackRole::Forward);
    }

    #[test]
    fn backward_is_told_by_its_entry_or_its_thread() {
        let main = ("/job/train.py", "main");
        let entry = ("/v/torch/autograd/graph.py", "_engine_run_backward");
        assert_eq!(role_of(&[entry, main]), StackRole::Backward);
        let apply = ("/v/torch/autograd/function.py", "apply");
        let own = ("/job/ops.py", "backward");
        assert_eq!(role_of(&[own, apply]), StackRole::Backward);
        assert_eq!(role_of(&[("/job/ops.py", "forward"), apply, main]), StackRole::Forward);
        let again = ("/v/torch/utils/checkpoint.py", "recompute_fn");
        assert_eq!(role_of(&[("/job/model.py", "forward"), again]), StackRole::Backward);
    }
}

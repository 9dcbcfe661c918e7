//! The owner of memory: the line that a stack is counted under, and the tables by line.

use std::cmp::Ordering;
use std::collections::HashMap;

use serde::Serialize;

use crate::integer::{at, id};
use crate::model::{Frame, NO_STACK, Snapshot};
use crate::replay::{Allocation, Timeline};

/// User frames that a row shows of its stack.
pub(crate) const STACK_FRAMES_MAX: usize = 16;
/// Autograd nodes that stand for code of the user.
const USER_NODES: [&str; 2] = ["PyNode", "CppNode"];

/// The kind of line that a site is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SiteKind {
    /// A line of Python.
    Python,
    /// A node of autograd's backward pass.
    Backward,
    /// A C++ function.
    Cpp,
    /// A library of CUDA that works in memory of PyTorch's allocator.
    Workspace,
    /// Allocated in the window, without a stack.
    NoFrames,
    /// Allocated before the recording, without a stack.
    BeforeRecording,
}

// Same name as output::web::Site: where memory is allocated, as allocation profilers call it.
/// A line that memory is counted under.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// The kind of line.
    pub kind: SiteKind,
    /// Path, of Python.
    pub file: Option<String>,
    /// Line, of Python.
    pub line: Option<u64>,
    /// Function, of Python and C++.
    pub function: Option<String>,
    /// Autograd node, of backward.
    pub node: Option<String>,
}

impl Site {
    /// A site that is not known.
    pub const NOWHERE: Self =
        Self { kind: SiteKind::NoFrames, file: None, line: None, function: None, node: None };

    /// Returns the line as part of a sentence.
    pub fn short(&self) -> String {
        match (&self.file, self.line, &self.node) {
            (Some(file), Some(line), _) => {
                let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
                format!("{name}:{line}")
            }
            (_, _, Some(node)) => format!("backward of {node}"),
            _ => self.function.clone().unwrap_or_else(|| "a line without a stack".to_owned()),
        }
    }

    /// The site's place in the source, of Python.
    pub fn location(&self) -> Option<CodeLocation> {
        let (file, line) = (self.file.clone()?, self.line?);
        Some(CodeLocation { file, line, function: self.function.clone() })
    }

    /// A line of Python.
    pub fn of_frame(snapshot: &Snapshot, frame: u32) -> Self {
        let frame = snapshot.frame(frame);
        Self {
            kind: SiteKind::Python,
            file: Some(snapshot.text(frame.file)),
            line: Some(frame.line),
            function: Some(snapshot.text(frame.name)),
            node: None,
        }
    }
}

/// A place in the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CodeLocation {
    /// Path.
    pub file: String,
    pub line: u64,
    pub function: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Python of the user.
    User,
    /// Other Python.
    Library,
    /// An autograd node; its name is the string of that range in the frame's function.
    Node(usize, usize),
    /// Autograd's engine.
    Engine,
    /// C++ that allocates only the workspace of a library.
    Workspace(WorkspaceLibrary),
    /// C++ that names its purpose.
    Cpp,
    /// C++ of the recording, the allocator and the dispatcher.
    Plumbing,
}

/// A library that PyTorch allocates workspaces for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::enum_variant_names, reason = "their names begin so")]
pub enum WorkspaceLibrary {
    CuBlas,
    CuBlasLt,
    CuDnn,
    CuSolver,
}

impl WorkspaceLibrary {
    /// The functions of PyTorch that allocate its workspaces and nothing else, by what their
    /// names contain. Those of `at::cuda::blas` and `at::cuda::solver` are given the memory of
    /// all tensors.
    const FUNCTIONS: [(&str, Self); 10] = [
        ("BlasLtWorkspace", Self::CuBlasLt),
        ("gemm_internal_cublaslt", Self::CuBlasLt),
        ("at::cuda::blas::", Self::CuBlas),
        ("setWorkspaceForHandle", Self::CuBlas),
        ("at::cuda::getNewWorkspace", Self::CuBlas),
        ("getCurrentCUDABlasHandle", Self::CuBlas),
        ("at::cuda::solver::", Self::CuSolver),
        ("run_conv_plan", Self::CuDnn),
        ("generate_and_filter_plans", Self::CuDnn),
        ("::Workspace::Workspace", Self::CuDnn),
    ];

    /// The library whose workspace a C++ function allocates.
    fn of(function: &str) -> Option<Self> {
        let found = Self::FUNCTIONS.iter().find(|(part, _)| function.contains(part));
        found.map(|(_, library)| *library)
    }

    /// The name of the library's workspace, for a page.
    fn name(self) -> &'static str {
        match self {
            Self::CuBlas => "cuBLAS workspace",
            Self::CuBlasLt => "cuBLASLt workspace",
            Self::CuDnn => "cuDNN workspace",
            Self::CuSolver => "cuSOLVER workspace",
        }
    }
}

/// Sites of all stacks of a snapshot. An *origin* is a stack number, 0 for allocations without
/// frames, [`Sites::before`] or [`Sites::workspace`].
#[derive(Debug)]
pub struct Sites {
    /// Sites by number.
    pub sites: Vec<Site>,
    /// Kinds of the frames by frame number.
    pub frame_kinds: Vec<FrameKind>,
    of_origin: Vec<u32>,
    /// Set when any block or event has a stack.
    pub has_stacks: bool,
    /// Set when stacks have C++ frames.
    pub has_cpp: bool,
    /// Set for each stack that passes through torch/optim or makes optimizer state.
    is_optimizer: Vec<bool>,
}

/// Bytes and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Bytes of blocks.
    pub bytes: u64,
    /// Bytes of tensors.
    pub requested: u64,
    pub blocks: u64,
}

impl Sum {
    /// Adds an allocation.
    #[inline]
    pub fn add(&mut self, allocation: &Allocation) {
        self.bytes += allocation.size;
        self.requested += allocation.requested;
        self.blocks += 1;
    }

    /// Takes an allocation away that was added.
    #[inline]
    pub fn subtract(&mut self, allocation: &Allocation) {
        self.bytes = self.bytes.saturating_sub(allocation.size);
        self.requested = self.requested.saturating_sub(allocation.requested);
        self.blocks = self.blocks.saturating_sub(1);
    }

    /// Adds another sum.
    pub fn join(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.requested += other.requested;
        self.blocks += other.blocks;
    }
}

/// A row of a table by line.
#[derive(Clone, Debug)]
pub struct SiteRow {
    /// The number of the site.
    pub site: u32,
    /// The origin with the most bytes.
    pub origin: u32,
    /// The bytes that it holds.
    pub sum: Sum,
}

impl Sites {
    /// Finds the site of every stack. `project` is the folder that the user's code is in, if it
    /// was given.
    pub fn new(snapshot: &Snapshot, project: Option<&str>) -> Self {
        let mut frame_kinds = Classifier::new(snapshot, project);
        let frame_kinds: Vec<FrameKind> =
            snapshot.frames.iter().map(|frame| frame_kinds.kind(frame)).collect();
        let is_cpp = |kind: &FrameKind| !matches!(kind, FrameKind::User | FrameKind::Library);
        let mut sites = Self {
            sites: Vec::new(),
            has_cpp: frame_kinds.iter().any(is_cpp),
            frame_kinds,
            of_origin: Vec::with_capacity(snapshot.stacks.len() + 2),
            is_optimizer: optimizer_stacks(snapshot),
            has_stacks: snapshot.has_stacks(),
        };
        let mut known: HashMap<Key, u32> = HashMap::new();
        let n_stacks = id(snapshot.stacks.len());
        for stack in 0..=n_stacks + 1 {
            let key = match stack {
                NO_STACK => Key::NoFrames,
                stack if stack == n_stacks => Key::BeforeRecording,
                stack if stack > n_stacks => Key::Workspace(WorkspaceLibrary::CuBlas),
                stack => sites.key(snapshot, stack),
            };
            let number = *known.entry(key.clone()).or_insert_with(|| {
                sites.sites.push(key.site(snapshot));
                id(sites.sites.len() - 1)
            });
            sites.of_origin.push(number);
        }
        sites
    }

    /// The origin of blocks without frames that are older than the window.
    pub fn before(&self) -> u32 {
        id(self.of_origin.len().saturating_sub(2))
    }

    /// The origin of workspaces that are known by their size.
    pub fn workspace(&self) -> u32 {
        id(self.of_origin.len().saturating_sub(1))
    }

    /// Returns the number of origins.
    pub fn n_origins(&self) -> usize {
        self.of_origin.len()
    }

    /// The origin of an allocation.
    #[inline]
    pub fn origin(&self, allocation: &Allocation) -> u32 {
        if allocation.is_workspace && !allocation.is_older() {
            self.workspace()
        } else if allocation.stack == NO_STACK && allocation.is_older() {
            self.before()
        } else {
            allocation.stack
        }
    }

    /// The site of an origin.
    #[inline]
    pub fn of_origin(&self, origin: u32) -> u32 {
        self.of_origin.get(at(origin)).copied().unwrap_or(0)
    }

    /// The site of an allocation.
    #[inline]
    pub fn of(&self, allocation: &Allocation) -> u32 {
        self.of_origin(self.origin(allocation))
    }

    /// A site by number.
    pub fn site(&self, number: u32) -> Option<&Site> {
        self.sites.get(at(number))
    }

    /// Returns the kind of line that an allocation is from.
    pub fn kind(&self, allocation: &Allocation) -> SiteKind {
        self.site(self.of(allocation)).map_or(SiteKind::NoFrames, |site| site.kind)
    }

    /// Returns whether the allocation was made under torch/optim.
    #[inline]
    pub fn is_optimizer(&self, stack: u32) -> bool {
        self.is_optimizer.get(at(stack)).copied().unwrap_or(false)
    }

    /// The allocations that are alive in a state, by site; the largest first.
    pub fn at_state(
        &self,
        snapshot: &Snapshot,
        timeline: &Timeline,
        state: u32,
    ) -> Vec<SiteRow> {
        self.table(snapshot, timeline.allocations.iter().filter(|a| a.is_alive(state)))
    }

    /// The blocks that the segments show, by site; the largest first.
    pub fn at_end(&self, snapshot: &Snapshot, timeline: &Timeline) -> Vec<SiteRow> {
        self.table(snapshot, timeline.allocations.iter().filter(|a| a.is_at_end()))
    }

    /// Some allocations by site; the largest first.
    pub fn table<'a>(
        &self,
        snapshot: &Snapshot,
        allocations: impl Iterator<Item = &'a Allocation>,
    ) -> Vec<SiteRow> {
        let mut of_origin = vec![Sum::default(); self.of_origin.len()];
        for allocation in allocations {
            if let Some(sum) = of_origin.get_mut(at(self.origin(allocation))) {
                sum.add(allocation);
            }
        }
        self.rows(snapshot, (0..).zip(of_origin))
    }

    /// Rows of sums by origin; the largest first.
    pub fn rows(
        &self,
        snapshot: &Snapshot,
        of_origin: impl Iterator<Item = (u32, Sum)>,
    ) -> Vec<SiteRow> {
        let mut rows: HashMap<u32, (SiteRow, u64)> = HashMap::new();
        for (origin, sum) in of_origin.filter(|(_, sum)| sum.blocks > 0) {
            let site = self.of_origin(origin);
            let (row, most) = rows
                .entry(site)
                .or_insert_with(|| (SiteRow { site, origin, sum: Sum::default() }, sum.bytes));
            let is_larger = match sum.bytes.cmp(most) {
                Ordering::Greater => true,
                Ordering::Equal if origin != row.origin => {
                    stack_text(snapshot, origin) < stack_text(snapshot, row.origin)
                }
                _ => false,
            };
            if is_larger {
                (row.origin, *most) = (origin, sum.bytes);
            }
            row.sum.join(sum);
        }
        let mut rows: Vec<SiteRow> = rows.into_values().map(|(row, _)| row).collect();
        rows.sort_by(|a, b| {
            b.sum
                .bytes
                .cmp(&a.sum.bytes)
                .then_with(|| self.site(a.site).cmp(&self.site(b.site)))
        });
        rows
    }

    /// The user's frames of a stack, innermost first.
    pub fn user_frames<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        stack: u32,
    ) -> impl Iterator<Item = u32> + 'a {
        let frames = snapshot.stacks.get(stack).iter().copied();
        frames.filter(|frame| self.frame_kinds.get(at(*frame)) == Some(&FrameKind::User))
    }

    fn key(&self, snapshot: &Snapshot, stack: u32) -> Key {
        let frames = snapshot.stacks.get(stack);
        let kinds = || {
            frames.iter().filter_map(|frame| Some((*frame, *self.frame_kinds.get(at(*frame))?)))
        };
        let first =
            |wanted: &dyn Fn(FrameKind) -> bool| kinds().find(|(_, kind)| wanted(*kind));
        if let Some((_, FrameKind::Workspace(library))) =
            first(&|kind| matches!(kind, FrameKind::Workspace(_)))
        {
            return Key::Workspace(library);
        }
        if let Some((frame, _)) = first(&|kind| kind == FrameKind::User) {
            return Key::Python(snapshot.frame(frame));
        }
        if let Some((frame, FrameKind::Node(from, to))) =
            first(&|kind| matches!(kind, FrameKind::Node(..)))
        {
            let name = snapshot.strings.get(snapshot.frame(frame).name);
            return Key::Node(text(name.get(from..to).unwrap_or(&[])));
        }
        if let Some((frame, _)) = first(&|kind| kind == FrameKind::Library) {
            return Key::Python(snapshot.frame(frame));
        }
        if first(&|kind| kind == FrameKind::Engine).is_some() {
            return Key::Node("Engine".to_owned());
        }
        let telling = first(&|kind| kind == FrameKind::Cpp);
        Key::Cpp(telling.map(|(frame, _)| snapshot.frame(frame).name))
    }
}

/// A stack's text, to put equal rows into one order whatever numbers the file's style led to.
fn stack_text(snapshot: &Snapshot, stack: u32) -> Vec<(&[u8], u64, &[u8])> {
    snapshot
        .stacks
        .get(stack)
        .iter()
        .map(|frame| {
            let frame = snapshot.frame(*frame);
            (snapshot.strings.get(frame.file), frame.line, snapshot.strings.get(frame.name))
        })
        .collect()
}

/// A site whose strings are not resolved yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Python(Frame),
    Node(String),
    Cpp(Option<u32>),
    Workspace(WorkspaceLibrary),
    NoFrames,
    BeforeRecording,
}

impl Key {
    fn site(&self, snapshot: &Snapshot) -> Site {
        let kind = match self {
            Self::Python(_) => SiteKind::Python,
            Self::Node(_) => SiteKind::Backward,
            Self::Cpp(_) => SiteKind::Cpp,
            Self::Workspace(_) => SiteKind::Workspace,
            Self::NoFrames => SiteKind::NoFrames,
            Self::BeforeRecording => SiteKind::BeforeRecording,
        };
        let mut site = Site { kind, file: None, line: None, function: None, node: None };
        match self {
            Self::Python(frame) => {
                site.file = Some(snapshot.text(frame.file));
                site.line = Some(frame.line);
                site.function = Some(snapshot.text(frame.name));
            }
            Self::Node(node) => site.node = Some(node.clone()),
            Self::Cpp(function) => site.function = function.map(|name| snapshot.text(name)),
            Self::Workspace(library) => site.function = Some(library.name().to_owned()),
            Self::NoFrames | Self::BeforeRecording => {}
        }
        site
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn optimizer_stacks(snapshot: &Snapshot) -> Vec<bool> {
    let mut files: HashMap<u32, bool> = HashMap::new();
    let mut names: HashMap<u32, bool> = HashMap::new();
    let is_optimizer: Vec<bool> = snapshot
        .frames
        .iter()
        .map(|frame| {
            *files.entry(frame.file).or_insert_with(|| {
                snapshot.text(frame.file).replace('\\', "/").contains("torch/optim/")
            }) || *names
                .entry(frame.name)
                .or_insert_with(|| snapshot.strings.get(frame.name) == b"_init_group")
        })
        .collect();
    (0..id(snapshot.stacks.len()))
        .map(|stack| {
            let mut frames = snapshot.stacks.get(stack).iter();
            frames.any(|frame| is_optimizer.get(at(*frame)).copied().unwrap_or(false))
        })
        .collect()
}

/// Classifies frames; each file and each function once, however many frames have it.
struct Classifier<'a> {
    snapshot: &'a Snapshot,
    project: Option<String>,
    files: HashMap<u32, Option<FrameKind>>,
    names: HashMap<u32, FrameKind>,
}

impl<'a> Classifier<'a> {
    fn new(snapshot: &'a Snapshot, project: Option<&str>) -> Self {
        let project = project.map(|folder| folder.replace('\\', "/"));
        let project = project.map(|folder| folder.trim_end_matches('/').to_owned());
        Self { snapshot, project, files: HashMap::new(), names: HashMap::new() }
    }

    fn kind(&mut self, frame: &Frame) -> FrameKind {
        let (snapshot, project) = (self.snapshot, self.project.as_deref());
        let of_file = *self
            .files
            .entry(frame.file)
            .or_insert_with(|| python_kind(&snapshot.text(frame.file), project));
        of_file.unwrap_or_else(|| {
            *self
                .names
                .entry(frame.name)
                .or_insert_with(|| cpp_kind(&snapshot.text(frame.name)))
        })
    }
}

/// Returns the kind of a Python file, by its owner; `None` if it is not Python.
fn python_kind(file: &str, project: Option<&str>) -> Option<FrameKind> {
    // As Python itself writes it, also on Windows.
    let is_python = file.as_bytes().ends_with(b".py");
    if !is_python && !file.starts_with('<') {
        return None;
    }
    let is_user = if file.starts_with('<') {
        file.starts_with("<stdin") || file.starts_with("<ipython-input")
    } else {
        let path = file.replace('\\', "/");
        project.map_or_else(|| !is_library(&path), |folder| is_beneath(&path, folder))
    };
    Some(if is_user { FrameKind::User } else { FrameKind::Library })
}

/// Returns whether a path is in a folder; a relative folder may be anywhere.
fn is_beneath(path: &str, folder: &str) -> bool {
    let folder = folder.trim_start_matches("./");
    let is_prefix = |path: &str| {
        path.strip_prefix(folder).is_some_and(|rest| folder.is_empty() || rest.starts_with('/'))
    };
    is_prefix(path)
        || (!folder.starts_with('/')
            && path
                .match_indices('/')
                .any(|(slash, _)| path.get(slash + 1..).is_some_and(is_prefix)))
}

/// Returns whether a path (with `/`) is of an installed package or of Python itself.
fn is_library(path: &str) -> bool {
    let Some((folders, _)) = path.rsplit_once('/') else { return false };
    let is_on_drive = path.chars().nth(1) == Some(':');
    let mut before = "";
    folders.split('/').any(|folder| {
        let after_lib = matches!(before, "lib" | "lib64") && folder.starts_with("python");
        before = folder;
        after_lib
            || matches!(folder, "site-packages" | "dist-packages" | "torch")
            || folder.starts_with("torchinductor_")
            || is_on_drive && folder.eq_ignore_ascii_case("lib")
    })
}

/// Returns the kind of a C++ function.
fn cpp_kind(name: &str) -> FrameKind {
    if let Some(library) = WorkspaceLibrary::of(name) {
        return FrameKind::Workspace(library);
    }
    if let Some((from, to)) = node(name) {
        return FrameKind::Node(from, to);
    }
    if name.contains("torch::autograd::Engine::") {
        return FrameKind::Engine;
    }
    let plumbing = ["torch::unwind", "torch::CapturedTraceback", "at::", "c10::", "??"];
    let is_plumbing = name.is_empty()
        || plumbing.iter().any(|prefix| name.starts_with(prefix))
        || name.contains("gather_with_cpp")
        || name.contains("CachingAllocator");
    if is_plumbing { FrameKind::Plumbing } else { FrameKind::Cpp }
}

/// The place of the node in `torch::autograd::[generated::]NODE::apply`.
fn node(name: &str) -> Option<(usize, usize)> {
    const SPACE: &str = "torch::autograd::";
    for (start, _) in name.match_indices(SPACE) {
        let mut from = start + SPACE.len();
        let mut rest = name.get(from..)?;
        if let Some(generated) = rest.strip_prefix("generated::") {
            from += rest.len() - generated.len();
            rest = generated;
        }
        let length =
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (node, after) = rest.split_at_checked(length)?;
        let is_apply = after
            .strip_prefix("::apply")
            .is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric() || c == '_'));
        if length > 0 && is_apply && !USER_NODES.contains(&node) {
            return Some((from, from + length));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &str, expected: Option<FrameKind>) {
        assert_eq!(python_kind(file, None), expected, "{file}");
    }

    #[test]
    fn the_users_code_is_what_is_not_installed() {
        check("/srv/train/train.py", Some(FrameKind::User));
        check("train.py", Some(FrameKind::User));
        check("C:\\job\\lib.py", Some(FrameKind::User));
        check("<stdin>", Some(FrameKind::User));
        check("<ipython-input-3-abc>", Some(FrameKind::User));
        check("<frozen importlib._bootstrap>", Some(FrameKind::Library));
        check("/usr/lib/python3.11/threading.py", Some(FrameKind::Library));
        check("/opt/lib64/python3/x.py", Some(FrameKind::Library));
        check("/v/lib/site-packages/torch/nn/modules/module.py", Some(FrameKind::Library));
        check("/tmp/torchinductor_me/ab/cab.py", Some(FrameKind::Library));
        check("C:\\Python311\\Lib\\threading.py", Some(FrameKind::Library));
        check("CUDACachingAllocator.cpp", None);
    }

    #[test]
    fn a_project_folder_says_whose_code_it_is() {
        let kind = |folder| python_kind("/v/site-packages/mine/a.py", Some(folder));
        assert_eq!(kind("/v/site-packages/mine"), Some(FrameKind::User));
        assert_eq!(kind("mine"), Some(FrameKind::User));
        assert_eq!(kind("/v/site-packages/min"), Some(FrameKind::Library));
    }

    #[test]
    fn nodes_are_named_as_written() {
        let name = |text: &'static str| node(text).and_then(|(from, to)| text.get(from..to));
        let apply =
            "torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)";
        assert_eq!(name(apply), Some("AddmmBackward0"));
        assert_eq!(name("torch::autograd::AccumulateGrad::apply(x)"), Some("AccumulateGrad"));
        assert_eq!(name("torch::autograd::PyNode::apply(x)"), None);
        assert_eq!(name("torch::autograd::VariableType::(anonymous namespace)::mm()"), None);
        assert_eq!(name("torch::autograd::Node::applyx()"), None);
    }
}

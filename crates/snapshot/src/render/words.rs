//! The sentences that pages share, for a terminal and for a browser.

use crate::analyze::causes;
use crate::analyze::device::DeviceScene;
use crate::analyze::device_report::DeviceReport;
use crate::analyze::fit::{Bounds, Fit, Saving, SavingKind};
use crate::analyze::leak::{Blame, LeakVerdict};
use crate::analyze::mirrors::{self, Mirrored};
use crate::analyze::note::Note;
use crate::analyze::oom::{OomCause, OutOfMemory, OwnLimit, RootCause};
use crate::analyze::phases::StepPhase;
use crate::analyze::pinned::Pinned;
use crate::analyze::pools::{PoolKind, PoolSums};
use crate::analyze::sites::{Site, SiteKind};
use crate::analyze::steps::Marker;
use crate::integer::{at, count, real};
use crate::model::{Action, NO_STACK};
use crate::replay::Allocation;
use stepmem_types::claims::{Claim, Statement};
use stepmem_types::format::clean::shortened;
use stepmem_types::format::units::{bytes, grouped, many, whole_bytes};

/// Characters of a file's or function's name: two of them and the columns before fit a page.
pub(crate) const NAME_CHARS: usize = 30;
/// Lines that explain more of the growth than this are not compared with it.
const EXPLAINED_PERCENT_MAX: f64 = 200.0;
/// Lines that a sentence names.
const NAMED_MAX: usize = 3;
/// A most that is so many times the least says nothing.
const UNKNOWN_FACTOR: u64 = 10;
/// The maker of what backward allocates.
pub(crate) const AUTOGRAD: &str = "autograd";
/// The end of the name of memory without a stack.
const NO_STACK_NOTED: &str = " (no stack)";
/// Characters of a frame in a document.
const FRAME_CHARS: usize = 160;

/// A site by number, for a page, over the whole window.
pub(crate) fn name_of(scene: &DeviceScene<'_>, site: u32) -> String {
    name_of_within(scene, site, usize::MAX)
}

/// The same in so many characters.
pub(crate) fn name_of_within(scene: &DeviceScene<'_>, site: u32, n_max: usize) -> String {
    named(scene, site, mirrored(scene, site, |_| true), n_max)
}

/// A site by number in a state, or at the end. Memory without a stack is named by the steps
/// whose backward made it.
pub(crate) fn name_in(scene: &DeviceScene<'_>, site: u32, state: Option<u32>) -> String {
    name_in_within(scene, (site, state), usize::MAX)
}

/// The same in so many characters.
pub(crate) fn name_in_within(
    scene: &DeviceScene<'_>,
    (site, state): (u32, Option<u32>),
    n_max: usize,
) -> String {
    named(scene, site, mirrored(scene, site, |other| other.is_alive_in(state)), n_max)
}

/// Facts about the allocations of a site without stacks, if backward made those that are meant;
/// `None` for any other site.
pub(crate) fn mirrored(
    scene: &DeviceScene<'_>,
    site: u32,
    is_meant: impl Fn(&Allocation) -> bool,
) -> Option<Mirrored> {
    let kind = scene.sites.site(site).map(|site| site.kind);
    let is_unnamed = kind == Some(SiteKind::NoFrames) && scene.sites.has_stacks;
    is_unnamed.then(|| mirrors::find(scene, is_meant)).flatten()
}

fn named(scene: &DeviceScene<'_>, site: u32, found: Option<Mirrored>, n_max: usize) -> String {
    let Some(found) = found else {
        return name_within(scene.sites.site(site).unwrap_or(&Site::NOWHERE), n_max);
    };
    let whole = name_of_mirrored(&found);
    let short = whole.trim_end_matches(NO_STACK_NOTED);
    let fits = |name: &&str| name.chars().count() <= n_max;
    [&whole, short].into_iter().find(fits).unwrap_or(AUTOGRAD).to_owned()
}

/// A site for a page: the folder that a file is in is shown, the path to it is not.
pub(crate) fn name(site: &Site) -> String {
    let function =
        site.function.as_deref().map(|name| shortened(name, NAME_CHARS)).unwrap_or_default();
    match site.kind {
        SiteKind::Python => {
            let file = tail(site.file.as_deref().unwrap_or("?"));
            match site.line {
                Some(line) => format!("{file}:{line} {function}"),
                None => format!("{file} {function}"),
            }
        }
        SiteKind::Backward => {
            format!(
                "backward of {}",
                shortened(site.node.as_deref().unwrap_or("?"), NAME_CHARS)
            )
        }
        SiteKind::Cpp if function.is_empty() => "C++ without a telling frame".to_owned(),
        SiteKind::Cpp => format!("C++ {function}"),
        SiteKind::Workspace => function,
        SiteKind::NoFrames => "(no stack recorded)".to_owned(),
        SiteKind::BeforeRecording => "(allocated before the recording)".to_owned(),
    }
}

/// A site in so many characters: without the folder, then without the function, at last the end
/// of its name.
pub(crate) fn name_within(site: &Site, n_max: usize) -> String {
    let whole = name(site);
    let file = site.file.as_deref().and_then(|file| file.rsplit(['/', '\\']).next());
    let short = |site: &Site| {
        file.map(|file| name(&Site { file: Some(file.to_owned()), ..site.clone() }))
    };
    let fits = |text: &String| text.chars().count() <= n_max;
    let bare = site.file.as_ref().map(|_| shortened(&site.short(), NAME_CHARS));
    let candidates = [Some(whole.clone()), short(site), bare];
    candidates.into_iter().flatten().find(fits).unwrap_or_else(|| ending_of(&whole, n_max))
}

/// The end of a text that is too long: of a path the file and the line count.
pub(crate) fn ending_of(text: &str, n_max: usize) -> String {
    let n_chars = text.chars().count();
    if n_chars <= n_max {
        return text.to_owned();
    }
    std::iter::once('…').chain(text.chars().skip(n_chars + 1 - n_max)).collect()
}

/// A frame with its whole path.
pub(crate) fn frame(file: &str, line: u64, function: &str) -> String {
    shortened(&format!("{file}:{line} {function}"), FRAME_CHARS)
}

/// The last two parts of a path.
pub(crate) fn tail(file: &str) -> String {
    let path = file.replace('\\', "/");
    let start = path.rmatch_indices('/').nth(1).map_or(0, |(slash, _)| slash + 1);
    shortened(path.get(start..).unwrap_or(&path), NAME_CHARS)
}

/// The line that is blamed for a leak.
#[derive(Clone, Debug)]
pub(crate) struct Blamed {
    pub name: String,
    /// A stack through it.
    pub origin: u32,
    /// Frames of the user in that stack up to it, itself included.
    pub skipped: usize,
}

/// Returns the line to blame for a leak.
pub(crate) fn blamed(report: &DeviceReport<'_>) -> Blamed {
    let scene = &report.scene;
    match &report.leak.blame {
        Some(Blame::Frame { frame, origin, .. }) => {
            let frames = scene.sites.user_frames(scene.snapshot, *origin);
            Blamed {
                name: name(&Site::of_frame(scene.snapshot, *frame)),
                origin: *origin,
                skipped: frames.take_while(|other| other != frame).count() + 1,
            }
        }
        Some(Blame::Site(row)) => {
            Blamed { name: name_of(&report.scene, row.site), origin: row.origin, skipped: 1 }
        }
        None => Blamed { name: "an unknown line".to_owned(), origin: NO_STACK, skipped: 0 },
    }
}

/// States why no leak is reported.
pub(crate) fn no_leak(report: &DeviceReport<'_>) -> Statement {
    if report.leak.verdict == LeakVerdict::InsufficientHistory {
        let marks = report.scene.steps.marks.len();
        let seen = match marks {
            _ if report.scene.events.is_empty() => "the snapshot has no events".to_owned(),
            0 => "no step is seen to begin in the window".to_owned(),
            1 => "1 step begins in the window".to_owned(),
            marks => format!("{marks} steps begin in the window"),
        };
        let words = format!(
            "Cannot be told: {seen}, and a verdict needs six marks, five whole steps. Record at least 20 \
             steps."
        );
        return Statement::new(Claim::CannotBeTold, words);
    }
    let floor = report.leak.floor.map_or_else(String::new, |[first, last]| {
        let (without, the) = match turning(report) {
            None => (String::new(), "The"),
            Some(lines) => (format!("Without {lines}, "), "the"),
        };
        let label = |slot| report.scene.steps.label(slot).unwrap_or(0);
        format!(
            " {without}{the} least that is active in a step is {} in step {} and {} in step {}.",
            bytes(first.bytes),
            label(first.slot),
            bytes(last.bytes),
            label(last.slot)
        )
    });
    let is_open = !report.leak.possible.is_empty();
    let claim = if is_open { Claim::MayGrow } else { Claim::NoLineGrows };
    Statement::new(claim, format!("{}{floor}", growing(report)))
}

/// States the leak and the line that is blamed for it.
pub(crate) fn leaks(report: &DeviceReport<'_>) -> Statement {
    let rate = report.leak.rate.unwrap_or(0.0);
    let words = format!("LEAK  {} a step, at {}", bytes(rate), blamed(report).name);
    Statement::new(Claim::SiteLeaks, words).of(rate)
}

/// States that no line is known to go on growing, and which may.
fn growing(report: &DeviceReport<'_>) -> String {
    let sites = report.leak.possible.iter().map(|suspect| suspect.row.site);
    match first_names(report, sites) {
        None => "No line goes on growing.".to_owned(),
        Some(lines) => format!(
            "It is not known yet whether {lines} will go on growing: too few steps, or too irregular. No \
             other line goes on growing."
        ),
    }
}

/// States how much of the growth the suspects explain.
pub(crate) fn explained(report: &DeviceReport<'_>) -> Option<Statement> {
    let leak = &report.leak;
    let floor = leak.floor_rate.filter(|floor| *floor > 0.0)?;
    let ratio = 100.0 * leak.rate.unwrap_or(0.0) / floor;
    // What others give back hides what these lines add.
    if ratio > EXPLAINED_PERCENT_MAX {
        return None;
    }
    let turning =
        turning(report).map_or_else(String::new, |lines| format!("Without {lines}, "));
    let the = if turning.is_empty() { "The" } else { "the" };
    let words = format!(
        "{turning}{the} least active memory of a step grows by {} a step; the lines below explain \
         {ratio:.0}% of it.",
        bytes(floor)
    );
    Some(Statement::new(Claim::Explained, words).of(ratio / 100.0))
}

/// States what would look like the leak and is none.
pub(crate) fn unfilled(report: &DeviceReport<'_>) -> Option<Statement> {
    let suspects = report.leak.suspects.iter().filter(|suspect| !suspect.is_remade);
    let n_steps = suspects.map(|suspect| suspect.n_steps).max()?;
    let words = format!(
        "A queue or cache of more than {n_steps} steps that is not full yet would look the same."
    );
    Some(Statement::new(Claim::MayFill, words).of(real(n_steps.into())))
}

/// Names the lines that free in the window what they made before it.
fn turning(report: &DeviceReport<'_>) -> Option<String> {
    let lines = first_names(report, report.leak.turning.iter().copied())?;
    let turn = if report.leak.turning.len() == 1 { "which turns" } else { "which turn" };
    Some(format!("{lines}, {turn} over what is older"))
}

/// Names the first of some lines; `None` if there is none.
fn first_names(report: &DeviceReport<'_>, sites: impl Iterator<Item = u32>) -> Option<String> {
    let mut names = sites.filter_map(|site| report.scene.sites.site(site)).map(Site::short);
    let first: Vec<String> = names.by_ref().take(NAMED_MAX).collect();
    let others = if names.next().is_some() { " and others" } else { "" };
    (!first.is_empty()).then(|| format!("{}{others}", first.join(", ")))
}

/// States why an allocation failed: what would have had to be absent, and what the allocator
/// had.
pub(crate) fn reason(report: &DeviceReport<'_>, failure: &OutOfMemory) -> Statement {
    let cause = cause(report, failure);
    let words = match &failure.own_limit {
        Some(own) if failure.why.cause != RootCause::OwnLimit => {
            format!("{cause} The limit is the process's own: it may reserve {}.", limit(own))
        }
        _ => cause,
    };
    let absent = Some(real(failure.why.bytes)).filter(|bytes| *bytes > 0.0);
    Statement::new(Claim::OomCause, words).of(absent)
}

fn cause(report: &DeviceReport<'_>, failure: &OutOfMemory) -> String {
    let why = &failure.why;
    let (absent, free) = (whole_bytes(why.bytes), whole_bytes(why.free_bytes));
    let line = why.row.as_ref().map(|row| name_of(&report.scene, row.site)).unwrap_or_default();
    let had = consequence(failure);
    match why.cause {
        RootCause::Leak => format!(
            "Leak: without the {absent} that {line} leaked, {free} would have been free.{had}"
        ),
        RootCause::Others => format!(
            "Others: {absent} that this process had, or could have had, before are taken by someone else; \
             with them {free} would have been free.{had}"
        ),
        RootCause::Peak => {
            let step = report.scene.steps.of_event(at(failure.event));
            let who = step.map_or_else(
                || "is alive".to_owned(),
                |step| format!("step {step} has allocated itself"),
            );
            let most = if line.is_empty() { line } else { format!(", most of it at {line}") };
            format!(
                "Peak: without the {absent} that {who}{most}, {free} would have been free.{had}"
            )
        }
        RootCause::OwnLimit => format!(
            "Own limit: this process may reserve {}, and {} were requested; the driver had {} left. Use a smaller batch, or \
             raise the memory fraction (torch.cuda.set_per_process_memory_fraction).{had}",
            failure.own_limit.as_ref().map(limit).unwrap_or_default(),
            whole_bytes(failure.requested),
            whole_bytes(failure.device_free)
        ),
        RootCause::Fragmentation => format!(
            "Fragmentation: {} were free in the pool, but the largest piece was {}; {}. {}",
            whole_bytes(failure.eligible_free),
            whole_bytes(failure.largest_free),
            if report.leak.verdict == LeakVerdict::InsufficientHistory
                || !report.leak.possible.is_empty()
            {
                "there are too few steps to tell whether a leak explains it"
            } else {
                "no line goes on growing that would explain it"
            },
            if is_expandable(report) {
                "Segments are expandable already: free the blocks that lie between, or make fewer sizes."
            } else {
                "Try PYTORCH_ALLOC_CONF=expandable_segments:True."
            }
        ),
        RootCause::PendingFrees => format!(
            "Pending frees: {} had been freed, but another stream still used them; with them {free} would \
             have been free.",
            whole_bytes(failure.pending)
        ),
    }
}

/// States the limit of what a process may reserve.
fn limit(of: &OwnLimit) -> String {
    let (least, most) = (whole_bytes(of.at_least_bytes), whole_bytes(of.less_than_bytes));
    if least == most {
        format!("{least} at most")
    } else {
        format!("between {least} and {most} at most")
    }
}

/// States what the allocator had besides, as a consequence of the cause.
fn consequence(failure: &OutOfMemory) -> String {
    match failure.cause {
        OomCause::Fragmentation => format!(
            " {} were free in the pool, in pieces of at most {}: a consequence.",
            whole_bytes(failure.eligible_free),
            whole_bytes(failure.largest_free)
        ),
        OomCause::PendingFree => {
            format!(" {} waited for another stream.", whole_bytes(failure.pending))
        }
        OomCause::Shortage => String::new(),
    }
}

/// Returns the figures of a failed allocation, which add up. `capacity`: bytes of the device,
/// where they are known.
pub(crate) fn device_figures(
    failure: &OutOfMemory,
    capacity: Option<u64>,
) -> Vec<(u64, String)> {
    let reach = failure.reserved.saturating_add(failure.device_free);
    let is_limited = failure.own_limit.is_some();
    let sum = (
        failure.within_reach(),
        if is_limited {
            "the sum: its own limit leaves no segment more"
        } else {
            "the sum: all that this process could have"
        }
        .to_owned(),
    );
    let left = (
        failure.device_free,
        if is_limited { "left at the driver, beyond that limit" } else { "left at the driver" }
            .to_owned(),
    );
    let mut figures = vec![
        (failure.active, "active".to_owned()),
        (
            failure.reserved.saturating_sub(failure.active),
            format!(
                "reserved and free; of its pool {}, the largest piece {}",
                whole_bytes(failure.eligible_free),
                whole_bytes(failure.largest_free)
            ),
        ),
    ];
    figures.extend(if is_limited { [sum, left] } else { [left, sum] });
    if let Some(capacity) = capacity {
        figures.push((
            capacity.saturating_sub(reach),
            format!(
                "others: CUDA, its libraries, other processes; with them {}",
                whole_bytes(capacity)
            ),
        ));
    }
    figures
}

/// Names what backward made without stacks.
pub(crate) fn name_of_mirrored(found: &Mirrored) -> String {
    let steps = match found.steps {
        None => String::new(),
        Some((first, last)) if first == last => format!(" of step {first}"),
        Some((first, last)) => format!(" of steps {first} to {last}"),
    };
    format!("{AUTOGRAD}, in backward{steps}{NO_STACK_NOTED}")
}

/// Names where an allocation failed: its line, else its phase and what it is as large as, never
/// nothing.
pub(crate) fn failure_place(report: &DeviceReport<'_>, failure: &OutOfMemory) -> String {
    let scene = &report.scene;
    let site = scene.sites.site(scene.sites.of_origin(failure.stack)).unwrap_or(&Site::NOWHERE);
    let place = causes::place(scene, failure);
    let step = place.step.map(|step| format!("of step {step}"));
    match (site.kind, place.phase) {
        (SiteKind::NoFrames | SiteKind::BeforeRecording, Some(StepPhase::Backward)) => {
            let step = step.unwrap_or_else(|| "of the last step".to_owned());
            let mirrors = place.mirrors.map_or_else(String::new, |site| {
                format!(": a gradient as large as what {} made", name(&site))
            });
            format!("in the backward pass {step}{mirrors}")
        }
        (SiteKind::NoFrames | SiteKind::BeforeRecording, _) => {
            let step = step.map_or_else(String::new, |step| format!(" {step}"));
            format!("in an allocation{step} whose stack was not recorded")
        }
        _ => format!("at {}", name(site)),
    }
}

fn is_expandable(report: &DeviceReport<'_>) -> bool {
    report.scene.device.segments.iter().any(|segment| segment.is_expandable)
}

/// Writes a number of blocks.
pub(crate) fn blocks(count: u64) -> String {
    format!("{} block{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// Returns the bytes that are reserved and not used, each with its meaning.
pub(crate) fn unused(report: &DeviceReport<'_>) -> [(u64, &'static str); 4] {
    let found = &report.fragmentation;
    let stranded = if report.pools.iter().any(PoolSums::is_private) {
        "stranded: free, in segments that a block or a private pool holds"
    } else {
        "stranded: free, in segments that a live block holds"
    };
    [
        (found.stranded, stranded),
        (found.releasable, "releasable: torch.cuda.empty_cache() would give it back"),
        (found.internal, "inside blocks, beyond what tensors requested"),
        (found.largest_free, "the largest free block"),
    ]
}

/// A sentence about all private pools.
pub(crate) const PRIVATE_POOLS: &str = "What is free in them only the graphs and MemPools that name them use; torch.cuda.empty_cache() gives it back once these are gone.";

/// States that each of several graphs has a pool to itself.
pub(crate) fn pools_of_graphs(pools: &[PoolSums]) -> Option<String> {
    let of_graphs = || pools.iter().filter(|pool| pool.kind() == PoolKind::CudaGraph);
    let n_pools = count(of_graphs().count());
    let reserved = of_graphs().map(|pool| pool.totals.reserved).fold(0, u64::saturating_add);
    (n_pools > 1).then(|| {
        format!(
            "{} CUDA graphs have a pool of their own, {} together: one that is captured for each new shape adds one. Graphs that never run at once can share a pool (torch.cuda.graph_pool_handle()).",
            grouped(n_pools),
            whole_bytes(reserved),
        )
    })
}

/// A private pool by PyTorch's name and what made it.
pub(crate) fn pool(pool: &PoolSums) -> String {
    let (a, b) = pool.id;
    let of = match pool.kind() {
        PoolKind::Default => "the default pool",
        PoolKind::CudaGraph => "of a CUDA graph",
        PoolKind::Shared => "of a MemPool or graph_pool_handle()",
    };
    format!("({a}, {b}), {of}")
}

/// States what pinned memory is in use, and what is kept.
pub(crate) fn pinned(host: &Pinned<'_>) -> Vec<String> {
    let totals = host.totals;
    let mut texts = vec![format!(
        "{} in use of {} pinned, {} of {}",
        whole_bytes(totals.active),
        whole_bytes(totals.reserved),
        grouped(totals.live_blocks),
        many(totals.segments, "block"),
    )];
    if totals.active > totals.allocated {
        let pending = whole_bytes(totals.active - totals.allocated);
        texts.push(format!("{pending} of it wait for a copy to end"));
    }
    if let Some(peak) = host.peak {
        let events = many(host.n_events, "event");
        texts.push(format!("{events}, at most {} in use at one moment", whole_bytes(peak)));
    }
    if totals.reserved > totals.active {
        let free = whole_bytes(totals.reserved - totals.active);
        texts.push(format!("{free} free: PyTorch keeps it pinned for the next"));
    }
    texts
}

/// States what of a step scales with the batch, what fits, and what would save memory.
pub(crate) fn fit(fit: &Fit) -> Vec<Statement> {
    let needs = format!(
        "Step {} needs {} at its peak: {} do not depend on the batch, {}.",
        fit.step,
        whole_bytes(fit.peak_bytes),
        whole_bytes(fit.fixed_bytes),
        scaling(fit.scaling_bytes)
    );
    let mut told = vec![Statement::new(Claim::StepNeeds, needs).of(real(fit.peak_bytes))];
    if let (Some(size), Some(sample)) = (fit.batch_size, fit.bytes_per_sample) {
        let sample_words = between(sample, whole_bytes);
        let words = format!("With a batch of {}: {sample_words} a sample.", grouped(size));
        told.push(bounded(Statement::new(Claim::PerSample, words), sample));
    }
    if let (Some(capacity), Some(largest)) = (fit.capacity_bytes, fit.largest_batch_size) {
        let words = format!(
            "In {} fit {}, if all else stays as it is.",
            whole_bytes(capacity),
            samples(largest)
        );
        told.push(bounded(Statement::new(Claim::BatchFits, words), largest));
    }
    told.extend(fit.savings.iter().map(saves));
    told
}

/// Gives a statement the lower of two bounds as its figure, and both; one that nothing limits has
/// none.
fn bounded(statement: Statement, Bounds { low, high }: Bounds) -> Statement {
    let known = |bound: u64| Some(real(bound)).filter(|_| bound != u64::MAX);
    statement.of(known(low)).between(known(low), known(high))
}

/// States what would save memory.
fn saves(saving: &Saving) -> Statement {
    let bytes = whole_bytes(saving.bytes);
    let function = saving.location.as_ref().map(|location| {
        let function = location.function.as_deref().unwrap_or_default();
        format!("{} in {}", shortened(function, NAME_CHARS), tail(&location.file))
    });
    let words = match saving.kind {
        SavingKind::ZeroGradBeforeForward => format!(
            "zero_grad(set_to_none=True) before the forward pass would save {bytes} of that peak."
        ),
        SavingKind::Checkpoint => format!(
            "Activation checkpointing of {} would save about {bytes} of that peak.",
            function.unwrap_or_default()
        ),
    };
    Statement::new(Claim::WouldSave, words).of(real(saving.bytes))
}

/// States what scales with the batch, and of how much that is not known.
fn scaling(Bounds { low, high }: Bounds) -> String {
    let known = format!("{} scale with it", whole_bytes(low));
    match high - low {
        0 => known,
        unsure => format!("{known}, and another {} may", whole_bytes(unsure)),
    }
}

/// Writes how many samples fit. A batch that nothing limits has no most.
fn samples(Bounds { low, high }: Bounds) -> String {
    match (low, high) {
        (u64::MAX, _) => "any number of samples".to_owned(),
        (low, u64::MAX) => format!("{} samples or more", grouped(low)),
        (low, high) if low == high => many(low, "sample"),
        (low, high) if high / UNKNOWN_FACTOR >= low.max(1) => {
            format!("at least {}; how many at most is not known", many(low, "sample"))
        }
        (low, high) => {
            format!("at least {} and at most {} samples", grouped(low), grouped(high))
        }
    }
}

/// Writes a figure with its bounds.
fn between(bounds: Bounds, shown: impl Fn(u64) -> String) -> String {
    let (low, high) = (shown(bounds.low), shown(bounds.high));
    if low == high { low } else { format!("{low} to {high}") }
}

/// Names a phase of a step.
pub(crate) fn phase(phase: StepPhase) -> &'static str {
    match phase {
        StepPhase::Forward => "forward",
        StepPhase::Backward => "backward",
        StepPhase::Collective => "collective",
        StepPhase::Optimizer => "optimizer",
        StepPhase::ZeroGrad => "zero_grad",
    }
}

/// Writes a note with its figures.
pub(crate) fn note(note: &Note) -> Statement {
    let size = note.bytes.map(|size| format!(" ({})", whole_bytes(size))).unwrap_or_default();
    let words = format!("{}{size}", note.text);
    Statement::new(Claim::Noted, words).of(note.bytes.map(real))
}

/// Returns the advice for a reader.
pub(crate) fn advice(report: &DeviceReport<'_>) -> Statement {
    let failures =
        report.scene.events.iter().filter(|event| event.action == Action::OutOfMemory);
    let words = if report.leak.verdict == LeakVerdict::Leak {
        "Look at the line named under Leak: something keeps what it makes. After the fix, record again \
         and compare with `stepmem snapshot diff BEFORE AFTER`."
    } else if failures.count() > 0 {
        "Look at what holds most under Out of memory; `--at oom --by category` sums it up."
    } else if report.leak.verdict == LeakVerdict::InsufficientHistory {
        "To tell a leak, record 20 steps or more: torch.cuda.memory._record_memory_history(\
         max_entries=1000000, context=\"alloc\", stacks=\"python\"), then _dump_snapshot()."
    } else {
        "`--at peak` shows who holds the peak, `--by category` what it is for."
    };
    Statement::new(Claim::AdviceSnapshot, words)
}

/// Returns all that is stated of a device: leak, failed allocations, what fits, notes and advice.
pub(crate) fn statements(report: &DeviceReport<'_>, fit: Option<&Fit>) -> Vec<Statement> {
    let mut told = if report.leak.verdict == LeakVerdict::Leak {
        let more = [explained(report), unfilled(report)].into_iter().flatten();
        std::iter::once(leaks(report)).chain(more).collect()
    } else {
        vec![no_leak(report)]
    };
    told.extend(report.oom.iter().map(|failure| reason(report, failure)));
    told.extend(fit.into_iter().flat_map(self::fit));
    told.extend(report.notes.iter().map(note));
    told.push(advice(report));
    told
}

/// States how many steps there are, and what they are known by.
pub(crate) fn steps(scene: &DeviceScene<'_>) -> String {
    let by = match scene.steps.marker {
        Marker::Profiler => "ProfilerStep",
        Marker::Optimizer => "Optimizer.step",
        Marker::ZeroGrad => "Optimizer.zero_grad",
        Marker::Dataloader => "the DataLoader",
        Marker::Metadata => "user_metadata",
        Marker::Phases => "guesses from the phases of training",
        Marker::Recurrence => "guesses from what recurs",
        Marker::None => {
            return "no steps to be seen: no marks, and no training loop that comes round again"
                .to_owned();
        }
    };
    let n_steps = many(count(scene.steps.marks.len()), "step");
    match &scene.steps.training_loop {
        Some(found) if !scene.steps.marker.is_marked() => {
            let line = Site::of_frame(scene.snapshot, found.line);
            format!(
                "{n_steps} without marks, each begun at {}",
                shortened(&line.short(), NAME_CHARS)
            )
        }
        _ => format!("{n_steps} marked by {by}"),
    }
}

/// Returns whether tensor bytes and block bytes differ enough to give both.
pub(crate) fn differs(requested: u64, active: u64) -> bool {
    real(active) > 1.1 * real(requested)
}

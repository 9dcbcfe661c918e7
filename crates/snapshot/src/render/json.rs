//! The JSON of `stepmem snapshot show`. Lists are complete, and sorted by bytes.

use serde::Serialize;

use crate::analyze::categories::Categories;
use crate::analyze::causes;
use crate::analyze::device::DeviceScene;
use crate::analyze::device_report::DeviceReport;
use crate::analyze::fit::{self, Fit, FitQuestion};
use crate::analyze::leak::{Blame, Leak, LeakVerdict, Suspect};
use crate::analyze::note::Note;
use crate::analyze::oom::{OomCause, OutOfMemory, OwnLimit, RootCause};
use crate::analyze::phases::StepPhase;
use crate::analyze::pinned::Pinned;
use crate::analyze::pools::{PoolKind, PoolSums, Totals};
use crate::analyze::sites::{
    CodeLocation, STACK_FRAMES_MAX, Site, SiteKind, SiteRow, Sites, Sum,
};
use crate::analyze::step_figures::StepReport;
use crate::analyze::steps::Marker;
use crate::integer::count;
use crate::model::Snapshot;
use crate::render::words::{self, name};
use stepmem_types::claims::Statement;

/// The version of this JSON.
pub(crate) const SCHEMA: &str = "stepmem.snapshot/1";

#[derive(Debug, Serialize)]
pub struct ShowAnswer {
    schema: &'static str,
    file: File,
    devices: Vec<DeviceAnswer>,
    pinned: Option<PinnedAnswer>,
}

/// A file that was read.
#[derive(Clone, Debug, Serialize)]
pub struct File {
    /// The path as it was given.
    pub path: String,
    /// The size as it lies on the disk.
    pub bytes: u64,
    /// Protocol of the pickle.
    pub protocol: u8,
}

#[derive(Debug, Serialize)]
struct DeviceAnswer {
    device: u64,
    totals: TotalsAnswer,
    pools: Vec<PoolAnswer>,
    history: History,
    peak: PeakAnswer,
    sites_at_end: Vec<SiteAnswer>,
    sites_at_peak: Vec<SiteAnswer>,
    categories_at_end: Categories,
    leak: LeakAnswer,
    fragmentation: FragmentationAnswer,
    oom: Vec<OomAnswer>,
    steps: Vec<StepReport>,
    fit: Option<Fit>,
    notes: Vec<Note>,
    /// The statements of the text on leak, failed allocations, what fits, notes and advice.
    statements: Vec<Statement>,
}

#[derive(Debug, Serialize)]
struct TotalsAnswer {
    reserved_bytes: u64,
    active_bytes: u64,
    allocated_bytes: u64,
    requested_bytes: u64,
    pending_free_bytes: u64,
    segments: u64,
    live_blocks: u64,
}

/// A pool with what it holds.
#[derive(Debug, Serialize)]
struct PoolAnswer {
    id: (u64, u64),
    kind: PoolKind,
    #[serde(flatten)]
    totals: TotalsAnswer,
}

/// Pinned memory of the host.
#[derive(Debug, Serialize)]
struct PinnedAnswer {
    totals: TotalsAnswer,
    pools: Vec<PoolAnswer>,
    sites: Vec<SiteAnswer>,
    events: u64,
    peak_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct History {
    events: u64,
    overflowed: Option<bool>,
    steps: u64,
    step_marker: Marker,
    unmatched_frees: u64,
    violations: u64,
}

#[derive(Debug, Serialize)]
struct PeakAnswer {
    active_bytes: u64,
    reserved_bytes: u64,
    event: Option<u32>,
    time_us: Option<u64>,
    step: Option<u64>,
}

/// A line with what it holds.
#[derive(Clone, Debug, Serialize)]
pub struct SiteAnswer {
    kind: &'static str,
    file: Option<String>,
    line: Option<u64>,
    function: Option<String>,
    node: Option<String>,
    bytes: u64,
    requested_bytes: u64,
    pub blocks: u64,
    stack: Vec<FrameAnswer>,
    /// `None` where a stack tells the line, or nothing does.
    autograd: Option<AutogradAnswer>,
    #[serde(skip)]
    line_of: Site,
}

/// Memory without a stack that backward made.
#[derive(Clone, Debug, Serialize)]
struct AutogradAnswer {
    text: String,
    first_step: Option<u64>,
    last_step: Option<u64>,
    mirrors: Vec<MirrorAnswer>,
}

/// A line whose tensors have the size of such memory.
#[derive(Clone, Debug, Serialize)]
struct MirrorAnswer {
    location: Option<CodeLocation>,
    bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
struct FrameAnswer {
    file: String,
    line: u64,
    function: String,
}

#[derive(Debug, Serialize)]
struct LeakAnswer {
    verdict: LeakVerdict,
    bytes_per_step: Option<f64>,
    floor_bytes_per_step: Option<f64>,
    explained_ratio: Option<f64>,
    blame: Option<SiteAnswer>,
    sites: Vec<SuspectAnswer>,
}

#[derive(Debug, Serialize)]
struct SuspectAnswer {
    #[serde(flatten)]
    site: SiteAnswer,
    bytes_per_step: f64,
    survivors: u64,
    allocations: u64,
    first_step: Option<u64>,
    last_step: Option<u64>,
    /// Steps from the first allocation that stays to the end: a queue of more is not excluded.
    generations: u32,
}

#[derive(Debug, Serialize)]
struct FragmentationAnswer {
    internal_bytes: u64,
    releasable_bytes: u64,
    stranded_bytes: u64,
    largest_free_bytes: u64,
    pinners: Vec<PinnerAnswer>,
}

#[derive(Debug, Serialize)]
struct PinnerAnswer {
    #[serde(flatten)]
    site: SiteAnswer,
    stranded_bytes: u64,
}

#[derive(Debug, Serialize)]
struct OomAnswer {
    event: u32,
    time_us: Option<u64>,
    requested_bytes: u64,
    device_free_bytes: u64,
    reserved_bytes: u64,
    active_bytes: u64,
    unused_bytes: u64,
    within_reach_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    own_limit: Option<OwnLimit>,
    others_bytes: Option<u64>,
    largest_free_bytes: u64,
    eligible_free_bytes: u64,
    cause: OomCause,
    root_cause: RootCauseAnswer,
    place: PlaceAnswer,
    site: SiteAnswer,
    sites: Vec<SiteAnswer>,
}

/// The memory without which the allocation would not have failed.
#[derive(Debug, Serialize)]
struct RootCauseAnswer {
    cause: RootCause,
    bytes: u64,
    free_bytes: u64,
    location: Option<CodeLocation>,
    text: String,
}

/// The place where an allocation failed.
#[derive(Debug, Serialize)]
struct PlaceAnswer {
    text: String,
    step: Option<u64>,
    phase: Option<StepPhase>,
    mirrors: Option<CodeLocation>,
}

/// The answer to `show`.
pub fn show(
    file: File,
    reports: &[DeviceReport<'_>],
    host: Option<&Pinned<'_>>,
    question: FitQuestion,
) -> ShowAnswer {
    let devices = reports.iter().map(|report| device(report, question)).collect();
    ShowAnswer { schema: SCHEMA, file, devices, pinned: host.map(pinned) }
}

fn totals(totals: Totals) -> TotalsAnswer {
    TotalsAnswer {
        reserved_bytes: totals.reserved,
        active_bytes: totals.active,
        allocated_bytes: totals.allocated,
        requested_bytes: totals.requested,
        pending_free_bytes: totals.active - totals.allocated,
        segments: totals.segments,
        live_blocks: totals.live_blocks,
    }
}

fn pools(pools: &[PoolSums]) -> Vec<PoolAnswer> {
    let answer = |pool: &PoolSums| PoolAnswer {
        id: pool.id,
        kind: pool.kind(),
        totals: totals(pool.totals),
    };
    pools.iter().map(answer).collect()
}

fn pinned(host: &Pinned<'_>) -> PinnedAnswer {
    let site = |row| row_answer(host.snapshot, host.sites, row);
    PinnedAnswer {
        totals: totals(host.totals),
        pools: pools(&host.pools),
        sites: host.rows.iter().map(site).collect(),
        events: host.n_events,
        peak_bytes: host.peak,
    }
}

fn device(report: &DeviceReport<'_>, question: FitQuestion) -> DeviceAnswer {
    let scene = &report.scene;
    let fragmentation = &report.fragmentation;
    let fit = fit::measure(scene, &report.categories, &report.step_reports, question);
    DeviceAnswer {
        device: scene.device.index,
        totals: totals(report.totals),
        pools: pools(&report.pools),
        history: History {
            events: count(scene.events.len()),
            overflowed: report.overflowed,
            steps: count(scene.steps.marks.len()),
            step_marker: scene.steps.marker,
            unmatched_frees: scene.timeline.unmatched_frees,
            violations: scene.timeline.violations,
        },
        peak: peak(report),
        sites_at_end: rows(scene, &report.at_end, None),
        sites_at_peak: rows(scene, &report.at_peak, Some(scene.timeline.peak.state)),
        categories_at_end: report.categories_at_end,
        leak: leak(scene, &report.leak),
        fragmentation: FragmentationAnswer {
            internal_bytes: fragmentation.internal,
            releasable_bytes: fragmentation.releasable,
            stranded_bytes: fragmentation.stranded,
            largest_free_bytes: fragmentation.largest_free,
            pinners: fragmentation
                .pinners
                .iter()
                .map(|(row, share)| PinnerAnswer {
                    site: row_in(scene, row, None),
                    stranded_bytes: *share,
                })
                .collect(),
        },
        oom: report.oom.iter().map(|failure| oom(report, failure, question.capacity)).collect(),
        steps: report.step_reports.clone(),
        statements: words::statements(report, fit.as_ref()),
        fit,
        notes: report.notes.clone(),
    }
}

fn peak(report: &DeviceReport<'_>) -> PeakAnswer {
    let peak = report.scene.timeline.peak;
    let moment = report.moment(peak.state);
    PeakAnswer {
        active_bytes: peak.active,
        reserved_bytes: peak.reserved,
        event: moment.event,
        time_us: moment.time_us,
        step: moment.step,
    }
}

fn leak(scene: &DeviceScene<'_>, leak: &Leak) -> LeakAnswer {
    let ratio = leak.rate.zip(leak.floor_rate).map(|(rate, floor)| rate / floor);
    LeakAnswer {
        verdict: leak.verdict,
        bytes_per_step: leak.rate,
        floor_bytes_per_step: leak.floor_rate,
        explained_ratio: ratio.filter(|ratio| ratio.is_finite()),
        blame: leak.blame.as_ref().map(|blame| blamed(scene, blame)),
        sites: leak.suspects.iter().map(|suspect| suspected(scene, suspect)).collect(),
    }
}

fn suspected(scene: &DeviceScene<'_>, suspect: &Suspect) -> SuspectAnswer {
    SuspectAnswer {
        site: row_answer(scene.snapshot, scene.sites, &suspect.row),
        bytes_per_step: suspect.rise.rate,
        survivors: suspect.n_survivors,
        allocations: suspect.n_allocations,
        first_step: scene.steps.label(suspect.rise.first),
        last_step: scene.steps.label(suspect.rise.last),
        generations: suspect.n_steps,
    }
}

/// The frame or site to blame, with the leaked bytes.
pub(crate) fn blamed(scene: &DeviceScene<'_>, blame: &Blame) -> SiteAnswer {
    match blame {
        Blame::Site(row) => row_answer(scene.snapshot, scene.sites, row),
        Blame::Frame { frame, origin, sum } => {
            let number = *frame;
            let frames = scene
                .sites
                .user_frames(scene.snapshot, *origin)
                .skip_while(|outer| *outer != number);
            let line = Site::of_frame(scene.snapshot, number);
            site_answer(&line, *sum, stack(scene.snapshot, frames))
        }
    }
}

fn oom(report: &DeviceReport<'_>, failure: &OutOfMemory, capacity: Option<u64>) -> OomAnswer {
    let scene = &report.scene;
    let (within_reach, device_free) = (failure.within_reach(), failure.device_free);
    let known = failure.reserved.saturating_add(device_free);
    let (why, place) = (&failure.why, causes::place(scene, failure));
    let line = why.row.as_ref().and_then(|row| scene.sites.site(row.site));
    let sum = Sum { bytes: failure.requested, requested: failure.requested, blocks: 0 };
    let row =
        SiteRow { site: scene.sites.of_origin(failure.stack), origin: failure.stack, sum };
    OomAnswer {
        event: failure.event,
        time_us: Some(failure.time_us).filter(|time| *time > 0),
        requested_bytes: failure.requested,
        device_free_bytes: failure.device_free,
        reserved_bytes: failure.reserved,
        active_bytes: failure.active,
        unused_bytes: failure.reserved.saturating_sub(failure.active),
        within_reach_bytes: within_reach,
        own_limit: failure.own_limit,
        others_bytes: capacity.map(|capacity| capacity.saturating_sub(known)),
        largest_free_bytes: failure.largest_free,
        eligible_free_bytes: failure.eligible_free,
        cause: failure.cause,
        root_cause: RootCauseAnswer {
            cause: why.cause,
            bytes: why.bytes,
            free_bytes: why.free_bytes,
            location: line.and_then(Site::location),
            text: words::reason(report, failure).words().to_owned(),
        },
        place: PlaceAnswer {
            text: words::failure_place(report, failure),
            step: place.step,
            phase: place.phase,
            mirrors: place.mirrors.as_ref().and_then(Site::location),
        },
        site: row_answer(scene.snapshot, scene.sites, &row),
        sites: rows(scene, &failure.rows, Some(failure.event)),
    }
}

fn rows(scene: &DeviceScene<'_>, rows: &[SiteRow], state: Option<u32>) -> Vec<SiteAnswer> {
    rows.iter().map(|row| row_in(scene, row, state)).collect()
}

/// A row of what is alive in a state, or at the end.
fn row_in(scene: &DeviceScene<'_>, row: &SiteRow, state: Option<u32>) -> SiteAnswer {
    let found = words::mirrored(scene, row.site, |other| other.is_alive_in(state));
    let autograd = found.map(|found| AutogradAnswer {
        text: words::name_of_mirrored(&found),
        first_step: found.steps.map(|(first, _)| first),
        last_step: found.steps.map(|(_, last)| last),
        mirrors: found.lines.iter().map(|mirrored| mirror(scene, *mirrored)).collect(),
    });
    SiteAnswer { autograd, ..row_answer(scene.snapshot, scene.sites, row) }
}

fn mirror(scene: &DeviceScene<'_>, (line, sum): (u32, Sum)) -> MirrorAnswer {
    let location = scene.sites.site(line).and_then(Site::location);
    MirrorAnswer { location, bytes: sum.bytes }
}

/// A row as JSON.
pub(crate) fn row_answer(snapshot: &Snapshot, sites: &Sites, row: &SiteRow) -> SiteAnswer {
    let frames = sites.user_frames(snapshot, row.origin);
    let stack = stack(snapshot, frames);
    match sites.site(row.site) {
        Some(site) => site_answer(site, row.sum, stack),
        None => site_answer(&Site::NOWHERE, row.sum, stack),
    }
}

fn site_answer(site: &Site, sum: Sum, stack: Vec<FrameAnswer>) -> SiteAnswer {
    SiteAnswer {
        kind: kind(site.kind),
        file: site.file.clone(),
        line: site.line,
        function: site.function.clone(),
        node: site.node.clone(),
        bytes: sum.bytes,
        requested_bytes: sum.requested,
        blocks: sum.blocks,
        stack,
        autograd: None,
        line_of: site.clone(),
    }
}

fn stack(snapshot: &Snapshot, frames: impl Iterator<Item = u32>) -> Vec<FrameAnswer> {
    frames
        .take(STACK_FRAMES_MAX)
        .map(|frame| {
            let frame = snapshot.frame(frame);
            FrameAnswer {
                file: snapshot.text(frame.file),
                line: frame.line,
                function: snapshot.text(frame.name),
            }
        })
        .collect()
}

impl SiteAnswer {
    /// The line for a page.
    pub fn name(&self) -> String {
        name(&self.line_of)
    }

    /// The line in so many characters.
    pub fn name_within(&self, n_max: usize) -> String {
        words::name_within(&self.line_of, n_max)
    }

    /// The site's frames for a page, innermost first.
    pub fn frames(&self, n_max: usize) -> Vec<String> {
        let shown =
            |frame: &FrameAnswer| words::frame(&frame.file, frame.line, &frame.function);
        self.stack.iter().take(n_max).map(shown).collect()
    }

    /// The same line with other bytes.
    #[must_use]
    pub fn with(mut self, sum: Sum) -> Self {
        (self.bytes, self.requested_bytes, self.blocks) =
            (sum.bytes, sum.requested, sum.blocks);
        self
    }
}

/// A kind in JSON.
pub(crate) fn kind(kind: SiteKind) -> &'static str {
    match kind {
        SiteKind::Python => "python",
        SiteKind::Backward => "backward",
        SiteKind::Cpp | SiteKind::Workspace => "cpp",
        SiteKind::NoFrames => "no_frames",
        SiteKind::BeforeRecording => "before_recording",
    }
}

//! The bands of a timeline: who holds how much at each sample, the lines that hold most by
//! name, the rest in one.

use std::cmp::Reverse;
use std::collections::HashSet;

use serde::Serialize;

use crate::analyze::categories::ALL;
use crate::analyze::device::DeviceScene;
use crate::analyze::device_report::DeviceReport;
use crate::analyze::sites::{Site, SiteKind, SiteRow};
use crate::integer::{at, count, id};
use crate::model::Action;
use crate::render::html::detail::Detail;
use crate::render::words;
use crate::replay::Allocation;
use stepmem_types::format::units::grouped;

/// The unit of bands, in bytes: the allocator rounds up to it.
pub(crate) const UNIT_BYTES: u64 = 512;
/// Lines of the largest leaks that always have a band.
const SUSPECTS: usize = 5;

/// Something that holds memory.
#[derive(Debug, Serialize)]
pub(crate) struct MemoryBand {
    /// The band's name.
    pub name: String,
    /// The band's kind, which gives its color.
    pub kind: BandKind,
    /// The user's frames of its largest stack, innermost first.
    pub stack: Vec<String>,
    /// Memory that it holds at each sample, in units of [`UNIT_BYTES`].
    pub held: Vec<u64>,
}

/// The subject of a band.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BandKind {
    /// A line that leaks.
    Leak,
    Line,
    /// Allocations without a stack.
    Unknown,
    Category,
    /// All lines without a band of their own.
    Rest,
}

/// The lines of a device: some by name and one for the rest, the steadiest lowest.
pub(crate) fn lines(
    report: &DeviceReport<'_>,
    states: &[u32],
    detail: Detail,
) -> Vec<MemoryBand> {
    let scene = &report.scene;
    let chosen = largest(report, detail.bands);
    let rest = chosen.len();
    let mut band_of = vec![rest; scene.sites.sites.len()];
    for (band, row) in chosen.iter().enumerate() {
        if let Some(slot) = band_of.get_mut(at(row.site)) {
            *slot = band;
        }
    }
    let of = |number: u32| {
        let allocation = scene.timeline.allocations.get(at(number));
        let site = allocation.map_or(0, |allocation| scene.sites.of(allocation));
        band_of.get(at(site)).copied().unwrap_or(rest)
    };
    let mut held = held(scene, states, rest + 1, of);
    let others = held.pop().unwrap_or_default();
    let leaking: HashSet<u32> =
        report.leak.suspects.iter().map(|suspect| suspect.row.site).collect();
    let mut bands: Vec<MemoryBand> = chosen
        .iter()
        .zip(held)
        .map(|(row, held)| {
            let site = scene.sites.site(row.site).unwrap_or(&Site::NOWHERE);
            let kind = match site.kind {
                _ if leaking.contains(&row.site) => BandKind::Leak,
                SiteKind::NoFrames | SiteKind::BeforeRecording => BandKind::Unknown,
                SiteKind::Python | SiteKind::Backward | SiteKind::Cpp | SiteKind::Workspace => {
                    BandKind::Line
                }
            };
            MemoryBand {
                name: words::name_of(scene, row.site),
                kind,
                stack: frames(report, row.origin, detail.frames),
                held,
            }
        })
        .collect();
    bands.sort_by_key(|band| (band.kind != BandKind::Leak, Reverse(steadiness(&band.held))));
    if others.iter().any(|held| *held > 0) {
        let n_others = grouped(count(scene.sites.sites.len() - chosen.len()));
        let name = format!("{n_others} other lines");
        bands.push(MemoryBand { name, kind: BandKind::Rest, stack: Vec::new(), held: others });
    }
    bands
}

/// The categories of a device that hold anything.
pub(crate) fn categories(report: &DeviceReport<'_>, states: &[u32]) -> Vec<MemoryBand> {
    let of = |number: u32| {
        let category = report.categories.get(at(number)).copied().unwrap_or_default();
        ALL.iter().position(|other| *other == category).unwrap_or(0)
    };
    let held = held(&report.scene, states, ALL.len(), of);
    report
        .categories_at_end
        .named()
        .into_iter()
        .zip(held)
        .filter(|(_, held)| held.iter().any(|held| *held > 0))
        .map(|((name, _), held)| {
            let kind = if name == "unknown" { BandKind::Unknown } else { BandKind::Category };
            MemoryBand { name: name.to_owned(), kind, stack: Vec::new(), held }
        })
        .collect()
}

/// The innermost of the user's frames of a stack, for a reader.
pub(crate) fn frames(report: &DeviceReport<'_>, origin: u32, n_max: usize) -> Vec<String> {
    let snapshot = report.scene.snapshot;
    let frames = report.scene.sites.user_frames(snapshot, origin).take(n_max);
    frames
        .map(|number| {
            let frame = snapshot.frame(number);
            let (file, function) = (snapshot.text(frame.file), snapshot.text(frame.name));
            words::frame(&file, frame.line, &function)
        })
        .collect()
}

/// The lines with the most bytes over the window, and the ones that leak most.
fn largest(report: &DeviceReport<'_>, n_max: usize) -> Vec<SiteRow> {
    let scene = &report.scene;
    let mut areas = vec![0_u128; scene.sites.sites.len()];
    let end = scene.timeline.end();
    for allocation in scene.timeline.allocations.iter().filter(|a| !a.is_vanished) {
        // A window without events is its end.
        let states = allocation.until.min(end) - allocation.from.min(end);
        if let Some(area) = areas.get_mut(at(scene.sites.of(allocation))) {
            *area += u128::from(allocation.size) * (u128::from(states) + 1);
        }
    }
    let mut sites: Vec<u32> = (0..id(areas.len())).collect();
    sites.retain(|site| areas.get(at(*site)).is_some_and(|area| *area > 0));
    sites.sort_by_key(|site| Reverse(areas.get(at(*site)).copied()));
    let mut chosen: Vec<SiteRow> =
        report.leak.suspects.iter().take(SUSPECTS.min(n_max)).map(|s| s.row.clone()).collect();
    let known: HashSet<u32> = chosen.iter().map(|row| row.site).collect();
    let rows = scene.sites.table(scene.snapshot, scene.timeline.allocations.iter());
    let row_of = |site| rows.iter().find(|row| row.site == site).cloned();
    let more = sites.into_iter().filter(|site| !known.contains(site)).filter_map(row_of);
    chosen.extend(more.take(n_max.saturating_sub(known.len())));
    chosen
}

/// The least of the later samples in parts of 1,000 of their mean.
fn steadiness(held: &[u64]) -> u128 {
    // Memory that is made in the first steps stays afterwards.
    let later = held.get(held.len() / 2..).unwrap_or(held);
    let least = u128::from(later.iter().min().copied().unwrap_or(0));
    let sum: u128 = later.iter().map(|held| u128::from(*held)).sum();
    (1000 * least * u128::from(count(later.len()))).checked_div(sum).unwrap_or(0)
}

/// Returns the memory that each band holds at each of some states (rising), in units.
fn held(
    scene: &DeviceScene<'_>,
    states: &[u32],
    n_bands: usize,
    band_of: impl Fn(u32) -> usize,
) -> Vec<Vec<u64>> {
    let mut now = vec![0_u64; n_bands];
    let mut held = vec![Vec::with_capacity(states.len()); n_bands];
    let mut states = states.iter().copied().peekable();
    for (number, allocation) in (0..).zip(&scene.timeline.allocations) {
        if let Some(sum) = now.get_mut(band_of(number)).filter(|_| allocation.is_older()) {
            *sum += allocation.size;
        }
    }
    let mut note = |now: &[u64], state: u32| {
        while states.next_if(|wanted| *wanted <= state).is_some() {
            for (band, sum) in held.iter_mut().zip(now) {
                band.push(sum.div_ceil(UNIT_BYTES));
            }
        }
    };
    note(&now, 0);
    let size = |number: u32| scene.timeline.allocations.get(at(number)).map_or(0, |a| a.size);
    // As in the answers, a free that is completed at once ends its block.
    let ends = |action, number: u32| {
        let allocation = scene.timeline.allocations.get(at(number));
        let is_at_once = || allocation.is_some_and(Allocation::is_freed_at_once);
        match action {
            Action::FreeRequested => is_at_once(),
            Action::FreeCompleted => !is_at_once(),
            _ => false,
        }
    };
    let events = scene.events.iter().zip(&scene.timeline.of_event);
    for (state, (event, number)) in (1..).zip(events) {
        if event.action == Action::Alloc {
            if let Some(displaced) = scene.timeline.displaced_by(state - 1)
                && let Some(sum) = now.get_mut(band_of(displaced))
            {
                *sum = sum.saturating_sub(size(displaced));
            }
            if let Some(sum) = now.get_mut(band_of(*number)) {
                *sum += size(*number);
            }
        } else if ends(event.action, *number)
            && let Some(sum) = now.get_mut(band_of(*number))
        {
            *sum = sum.saturating_sub(size(*number));
        }
        note(&now, state);
    }
    held
}

//! The growth between two snapshots, line by line; of one process also which blocks are new and
//! which are gone.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use crate::analyze::births::{Births, StateSeries};
use crate::analyze::categories::Categories;
use crate::analyze::device_report::DeviceReport;
use crate::analyze::meeting::{Meeting, meeting};
use crate::analyze::paths::{self, PathNormalizer};
use crate::analyze::pools::Totals;
use crate::analyze::sites::{Site, Sum};
use crate::integer::{count, difference, id, real, signed_real};
use crate::render::json::{SiteAnswer, row_answer};
use crate::replay::Allocation;
use stepmem_types::claims::Statement;
use stepmem_types::format::units::{grouped, many, whole_bytes};

/// The version of this JSON.
pub(crate) const SCHEMA: &str = "stepmem.snapshot-diff/1";

#[derive(Debug, Serialize)]
pub struct Diff {
    schema: &'static str,
    /// Devices of either file.
    pub devices: Vec<DeviceDiff>,
    /// The statements of the text on both files together: its advice.
    pub(crate) statements: Vec<Statement>,
}

/// The changes on a device.
#[derive(Debug, Default, Serialize)]
pub struct DeviceDiff {
    /// CUDA index.
    pub device: u64,
    /// True if both files are of one process; `None` if their windows do not meet.
    pub same_process: Option<bool>,
    /// Growth of the blocks that are not inactive.
    pub growth_bytes: i64,
    /// Steps that begin between the ends of both windows; `None` where that is not known.
    pub steps_between: Option<u64>,
    /// Growth for each of them.
    pub growth_bytes_per_step: Option<f64>,
    /// Growth of what is taken from the driver.
    pub reserved_growth_bytes: i64,
    /// Blocks born after the first snapshot; `None` for two processes.
    pub new_blocks: Option<u64>,
    /// Blocks of the first snapshot that are not in the second; `None` for two processes.
    pub gone_blocks: Option<u64>,
    /// Lines, the one that grew most first.
    pub sites: Vec<SiteDiff>,
    /// Growth by category.
    pub categories: Categories<i64>,
    /// Notes on what is not certain.
    pub notes: Vec<DiffNote>,
    /// The lines that leak by the births between states; `None` of two files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub births: Option<Births>,
    /// The statements of the text on it, in its order.
    pub(crate) statements: Vec<Statement>,
    /// The sums before and after.
    #[serde(skip)]
    pub totals: [Totals; 2],
}

impl Diff {
    /// Fills in which lines leak by the states of all files. `after`: the last file.
    pub fn judge(&mut self, series: &StateSeries, after: &[DeviceReport<'_>]) {
        for device in &mut self.devices {
            let last = after.iter().find(|report| report.scene.device.index == device.device);
            device.births = Some(series.births(device.device, last));
        }
    }
}

impl DeviceDiff {
    /// Returns whether both files show the same: no line, category or block differs.
    pub fn is_equal(&self) -> bool {
        self.notes.iter().any(|note| note.kind == EQUAL)
    }
}

/// The change at a line.
#[derive(Debug, Serialize)]
pub struct SiteDiff {
    /// The line, with what it holds after.
    #[serde(flatten)]
    pub site: SiteAnswer,
    /// Block bytes before.
    pub before_bytes: u64,
    /// Block bytes after.
    pub after_bytes: u64,
    pub growth_bytes: i64,
    /// Growth for each step between.
    pub growth_bytes_per_step: Option<f64>,
    /// The difference in blocks.
    pub growth_blocks: i64,
}

/// A sentence about a comparison.
#[derive(Debug, Serialize)]
pub struct DiffNote {
    /// The subject of the note.
    pub kind: &'static str,
    pub text: String,
}

/// The kind of the note that both files show the same.
const EQUAL: &str = "equal";

/// Compares two files.
pub fn compare_files(before: &[DeviceReport<'_>], after: &[DeviceReport<'_>]) -> Diff {
    let roots = paths::roots(&[normalizer_of(before), normalizer_of(after)]);
    let root = |number: usize| roots.get(number).map_or("", String::as_str);
    let mut devices: BTreeMap<u64, [Option<&DeviceReport<'_>>; 2]> = BTreeMap::new();
    for report in before {
        devices.entry(report.scene.device.index).or_default()[0] = Some(report);
    }
    for report in after {
        devices.entry(report.scene.device.index).or_default()[1] = Some(report);
    }
    let sides = |report: Option<&DeviceReport<'_>>, root| {
        report.map(|report| DiffSide::new(report, root))
    };
    let of_device = |(index, [old, new]): (u64, [Option<&DeviceReport<'_>>; 2])| {
        let both = [sides(old, root(0)), sides(new, root(1))];
        device(index, both[0].as_ref(), both[1].as_ref(), [old, new])
    };
    let devices = devices.into_iter().map(of_device).collect();
    Diff { schema: SCHEMA, devices, statements: Vec::new() }
}

fn normalizer_of(reports: &[DeviceReport<'_>]) -> PathNormalizer {
    reports
        .first()
        .map(|report| PathNormalizer::new(report.scene.snapshot, report.scene.sites))
        .unwrap_or_default()
}

/// One file's lines of a device.
struct DiffSide {
    rows: HashMap<Site, (Sum, SiteAnswer)>,
}

impl DiffSide {
    fn new(report: &DeviceReport<'_>, root: &str) -> Self {
        let comparable = paths::all_comparable(report.scene.sites, root);
        let mut rows: HashMap<Site, (Sum, SiteAnswer)> = HashMap::new();
        for row in &report.at_end {
            let site = paths::of(&comparable, row.site).clone();
            let answer = row_answer(report.scene.snapshot, report.scene.sites, row);
            let (sum, _) = rows.entry(site).or_insert((Sum::default(), answer));
            sum.join(row.sum);
        }
        Self { rows }
    }
}

fn device(
    index: u64,
    before: Option<&DiffSide>,
    after: Option<&DiffSide>,
    reports: [Option<&DeviceReport<'_>>; 2],
) -> DeviceDiff {
    let totals = reports.map(|report| report.map(|report| report.totals).unwrap_or_default());
    let [old, new] = totals;
    let mut diff = DeviceDiff {
        device: index,
        growth_bytes: difference(new.active, old.active),
        reserved_growth_bytes: difference(new.reserved, old.reserved),
        sites: sites(before, after),
        totals,
        ..DeviceDiff::default()
    };
    let mut categories =
        reports.map(|report| report.map(|report| report.categories_at_end).unwrap_or_default());
    for category in crate::analyze::categories::ALL {
        let [old, new] = &mut categories;
        *diff.categories.of(category) = difference(*new.of(category), *old.of(category));
    }
    diff.notes.extend(private_pools(reports));
    if let [Some(old), Some(new)] = reports {
        let first_new = blocks(&mut diff, old, new);
        diff.notes.extend(equality(&diff));
        diff.steps_between = steps_between(old, new, first_new);
        rates(&mut diff);
    }
    diff
}

/// Returns a note that private pools have taken more, if they have: no line shows what is free in
/// them.
fn private_pools(reports: [Option<&DeviceReport<'_>>; 2]) -> Option<DiffNote> {
    let [old, new] = reports.map(|report| {
        let pools = report.into_iter().flat_map(|report| &report.pools);
        let reserved = pools.filter(|pool| pool.is_private()).map(|pool| pool.totals.reserved);
        reserved.fold((0, 0_u64), |(n, sum), size| (n + 1, sum.saturating_add(size)))
    });
    let ((n_old, old), (n_new, new)) = (old, new);
    (new > old).then(|| DiffNote {
        kind: "private_pools",
        text: format!(
            "Private pools of CUDA graphs and MemPools took {} more of the device: {} now hold {}, {} did {}.",
            whole_bytes(new - old),
            many(n_new, "pool"),
            whole_bytes(new),
            grouped(n_old),
            whole_bytes(old),
        ),
    })
}

/// Steps of AFTER that begin after the last one of BEFORE. `first_new`: AFTER's first state that
/// BEFORE does not know, where the windows overlap. Without that, the program's own numbers tell.
fn steps_between(
    before: &DeviceReport<'_>,
    after: &DeviceReport<'_>,
    first_new: Option<u32>,
) -> Option<u64> {
    let [old, new] = [&before.scene.steps, &after.scene.steps];
    if !old.is_known() || !new.is_known() {
        return None;
    }
    let n_steps = match first_new {
        Some(state) => {
            // The last step of BEFORE, by its place in AFTER.
            let back = id(before.scene.events.len()).checked_sub(*old.marks.last()?)?;
            let last = state.checked_sub(back)?;
            count(new.marks.iter().filter(|mark| **mark > last).count())
        }
        None => new.labels.last()?.checked_sub(*old.labels.last()?)?,
    };
    Some(n_steps).filter(|n_steps| *n_steps > 0)
}

/// Fills in the growth for each step.
fn rates(diff: &mut DeviceDiff) {
    let Some(n_steps) = diff.steps_between else { return };
    let rate = |growth: i64| Some(signed_real(growth) / real(n_steps));
    diff.growth_bytes_per_step = rate(diff.growth_bytes);
    for site in &mut diff.sites {
        site.growth_bytes_per_step = rate(site.growth_bytes);
    }
}

/// Returns a note that both files show the same, if they do.
fn equality(diff: &DeviceDiff) -> Option<DiffNote> {
    let [old, new] = diff.totals;
    let is_same = old == new
        && diff.sites.iter().all(|site| site.growth_bytes == 0 && site.growth_blocks == 0)
        && diff.categories.named().iter().all(|(_, growth)| **growth == 0)
        && [diff.new_blocks, diff.gone_blocks].into_iter().flatten().all(|n| n == 0);
    is_same.then(|| DiffNote {
        kind: EQUAL,
        text: "The files are equal: every line and every category holds what it held."
            .to_owned(),
    })
}

fn sites(before: Option<&DiffSide>, after: Option<&DiffSide>) -> Vec<SiteDiff> {
    let nothing = HashMap::new();
    let old = before.map_or(&nothing, |side| &side.rows);
    let new = after.map_or(&nothing, |side| &side.rows);
    let mut all: Vec<&Site> =
        new.keys().chain(old.keys().filter(|site| !new.contains_key(*site))).collect();
    all.sort();
    let mut sites: Vec<SiteDiff> = all
        .into_iter()
        .filter_map(|site| {
            let (was, shown_before) =
                old.get(site).map(|(sum, shown)| (*sum, Some(shown))).unwrap_or_default();
            let (now, shown_after) =
                new.get(site).map(|(sum, shown)| (*sum, Some(shown))).unwrap_or_default();
            Some(SiteDiff {
                site: shown_after.or(shown_before)?.clone().with(now),
                before_bytes: was.bytes,
                after_bytes: now.bytes,
                growth_bytes: difference(now.bytes, was.bytes),
                growth_bytes_per_step: None,
                growth_blocks: difference(now.blocks, was.blocks),
            })
        })
        .collect();
    sites.sort_by_key(|site| std::cmp::Reverse(site.growth_bytes));
    sites
}

/// Compares blocks. Returns the first state of AFTER that BEFORE does not know, where the windows
/// overlap.
fn blocks(
    diff: &mut DeviceDiff,
    before: &DeviceReport<'_>,
    after: &DeviceReport<'_>,
) -> Option<u32> {
    let meeting = meeting(before.scene.events, after.scene.events);
    let note = |kind, text: &str| DiffNote { kind, text: text.to_owned() };
    let first_new = match meeting {
        Meeting::Same(state) => {
            diff.same_process = Some(true);
            state
        }
        Meeting::Different => {
            diff.same_process = Some(false);
            diff.notes.push(note(
                "two_processes",
                "The files are of two processes: lines are compared, blocks cannot be.",
            ));
            return None;
        }
        Meeting::Later => {
            diff.notes.push(note(
                "windows_do_not_meet",
                "The windows do not overlap: if both files are of one process, blocks that changed \
                 between them and kept their address and size count as old.",
            ));
            0
        }
        Meeting::Unknown => {
            diff.notes.push(note(
                "no_times",
                "The files have no times: blocks are compared by address and size.",
            ));
            u32::MAX
        }
    };
    let live = |report: &DeviceReport<'_>| -> HashMap<u64, u64> {
        let live = report.scene.timeline.allocations.iter().filter(|a| a.is_at_end());
        live.map(|allocation| (allocation.address, allocation.requested)).collect()
    };
    let old = live(before);
    let is_new = |allocation: &Allocation| match meeting {
        Meeting::Same(_) => allocation.from > first_new,
        Meeting::Later if !allocation.is_older() => true,
        _ => old.get(&allocation.address) != Some(&allocation.requested),
    };
    let now = after.scene.timeline.allocations.iter().filter(|a| a.is_at_end());
    let (new, kept): (Vec<&Allocation>, Vec<&Allocation>) = now.partition(|a| is_new(a));
    let kept: HashSet<u64> = kept.into_iter().map(|a| a.address).collect();
    let n_gone = old.keys().filter(|address| !kept.contains(address)).count();
    diff.new_blocks = Some(count(new.len()));
    diff.gone_blocks = Some(count(n_gone));
    matches!(meeting, Meeting::Same(_)).then_some(first_new)
}

//! The line that leaks: the lines whose minimum goes on rising, what they explain of the growth,
//! and the frame to blame. docs/detector/meaning.md defines a leak; a few steps of a snapshot
//! show less of it than a run does.

use std::cell::LazyCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;

use serde::Serialize;

use crate::analyze::device::{DeviceScene, Lifetime};
use crate::analyze::generations::{Generations, Kept, KeptBlocks, is_long};
use crate::analyze::leak_limits::{
    FREEING_RISES_MIN, IN_FLIGHT_STEPS, LIKEWISE_RATIO_MIN, OVER_RATIO_MIN, REMADE_RISES_MIN,
    RISES_MIN, SLOPE_RATIO_MIN, STEPS_FEW, STEPS_MIN, SURVIVAL_RATIO_MIN,
};
use crate::analyze::queues::Queues;
use crate::analyze::sites::{SiteKind, SiteRow, Sum};
use crate::analyze::step_minima::{
    Judgment, Rise, SiteChange, SiteMinima, Span, Survivors, minima,
};
use crate::integer::{at, count, id, real};
use crate::model::Action;
use crate::model::rounding::rounded;
use crate::replay::Allocation;

/// The verdict on a device: it leaks, or does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeakVerdict {
    /// A line goes on rising.
    Leak,
    /// No line does.
    None,
    /// There are too few steps to decide.
    #[default]
    InsufficientHistory,
}

#[derive(Clone, Debug, Default)]
pub struct Leak {
    /// The verdict: the device leaks, or does not.
    pub verdict: LeakVerdict,
    /// Bytes of blocks a step, all suspects together.
    pub rate: Option<f64>,
    /// Growth of the least that is active in a step.
    pub floor_rate: Option<f64>,
    /// The least that is active in the first and in the last step that are compared.
    pub floor: Option<[Floor; 2]>,
    /// The frame or site to blame.
    pub blame: Option<Blame>,
    /// Lines that leak, the fastest first.
    pub suspects: Vec<Suspect>,
    /// Lines that rise up to the end, in too few steps or too irregularly to say that they leak.
    pub possible: Vec<Suspect>,
    /// Sites that rose, and slowed or stopped.
    pub cached: Vec<u32>,
    /// Sites that turn over what is older than the window: the growth of the rest is without
    /// them.
    pub turning: Vec<u32>,
}

/// The least that is active in a step.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    pub slot: u32,
    pub bytes: f64,
}

impl Leak {
    /// Returns the allocations that suspects leaked and that are alive at the end.
    pub fn leaked<'a>(
        &self,
        scene: &'a DeviceScene<'_>,
    ) -> impl Iterator<Item = &'a Allocation> {
        let found = found_of(&self.suspects);
        scene
            .lifetimes()
            .filter(move |lifetime| is_leaked(scene, &found, *lifetime))
            .map(|lifetime| lifetime.allocation)
    }
}

fn found_of(suspects: &[Suspect]) -> HashMap<u32, (Rise, bool)> {
    suspects
        .iter()
        .map(|suspect| (suspect.row.site, (suspect.rise, suspect.is_remade)))
        .collect()
}

/// A line that leaks.
#[derive(Clone, Debug)]
pub struct Suspect {
    /// The allocations that it leaked and that are alive at the end.
    pub row: SiteRow,
    /// The line's rise, in slots.
    pub rise: Rise,
    /// Steps from its first allocation that stays to the end of the window.
    pub n_steps: u32,
    /// The line's allocations in the window.
    pub n_allocations: u64,
    /// The number of them that are there at the end, in flight or not.
    pub n_survivors: u64,
    /// Set when it is one buffer that is made again and larger each time.
    pub is_remade: bool,
}

/// The code that is to blame.
#[derive(Clone, Debug)]
pub enum Blame {
    /// A frame over most of the leaked bytes.
    Frame {
        /// The number of the frame.
        frame: u32,
        /// The origin of a stack through it.
        origin: u32,
        /// The leaked bytes beneath it.
        sum: Sum,
    },
    /// The largest site: no frame of the user is over it.
    Site(SiteRow),
}

/// Searches for leaks.
pub(crate) fn find(scene: &DeviceScene<'_>) -> Leak {
    let n_whole = scene.steps.n_whole();
    if n_whole < STEPS_MIN {
        return Leak::default();
    }
    // The first step makes lazy state; blocks of the last two may be in flight.
    let span = if n_whole < STEPS_FEW {
        Span { first: 1, last: id(n_whole) - 1 }
    } else {
        Span { first: 2, last: id(n_whole) - 2 }
    };
    let queues = Queues::new(scene, is_long, span.first);
    let mut leak = Leak { verdict: LeakVerdict::None, ..Leak::default() };
    let judged = Judged::new(scene, span, &queues);
    leak.cached = judged.cached;
    let mut suspects = build(scene, &judged.rising);
    let found: BTreeSet<u32> = suspects.iter().map(|suspect| suspect.row.site).collect();
    leak.turning = queues.sites.difference(&found).copied().collect();
    let minima = active_minima(scene, |number, allocation| {
        // Allocations that are made and freed in the window do not grow; their sizes would be
        // noise.
        if !allocation.is_older() && !scene.is_kept(allocation) {
            return true;
        }
        let site = queues.of_older(number).unwrap_or_else(|| scene.sites.of(allocation));
        !found.contains(&site) && queues.holds(scene, number, allocation)
    });
    // In a short window the first step counts for lines, but not for the whole: its lazy state
    // would be growth. Growth that begins later is compared with that of the same steps.
    let last = if n_whole < STEPS_FEW { scene.last_whole_slot() - 1 } else { span.last };
    let begun = suspects.iter().map(|suspect| suspect.rise.first - 1).min().unwrap_or(0);
    let compared = Span { first: span.first.max(2).max(begun), last: last.max(span.last) };
    leak.floor_rate = slope(&minima, compared).map(|slope| slope.rate);
    let floor = |slot: u32| {
        let bytes = minima.get(at(slot)).copied().filter(|bytes| bytes.is_finite())?;
        Some(Floor { slot, bytes })
    };
    leak.floor = floor(compared.first).zip(floor(compared.last)).map(|(a, b)| [a, b]);
    let whole = Whole { minima, freed: freed_unknown(scene, &queues) };
    if !whole.covers(&suspects) {
        // The growth that one line alone keeps cannot be more than that of the whole: others
        // give it back.
        suspects.retain(|suspect| whole.covers(std::slice::from_ref(suspect)));
    }
    leak.possible = build(scene, &judged.possible);
    leak.possible.retain(|suspect| whole.covers(std::slice::from_ref(suspect)));
    let rate: f64 = suspects.iter().map(|suspect| suspect.rise.rate).sum();
    if suspects.is_empty() || !whole.covers(&suspects) {
        return leak;
    }
    leak.verdict = LeakVerdict::Leak;
    leak.rate = Some(rate);
    leak.blame = blame(scene, &suspects);
    leak.suspects = suspects;
    leak
}

/// The growth of the whole window, to compare suspects with.
struct Whole {
    /// The least that is active in each slot.
    minima: Vec<f64>,
    /// Bytes of each slot that are freed, older than the window, and of no line that is known.
    freed: Vec<u64>,
}

impl Whole {
    /// Returns whether it grows as fast as suspects do: its minimum rises with them, or nothing
    /// that goes on being freed outweighs them.
    fn covers(&self, suspects: &[Suspect]) -> bool {
        let Some(first) = suspects.iter().map(|suspect| suspect.rise.first).min() else {
            return false;
        };
        let last = suspects.iter().map(|suspect| suspect.rise.last).max().unwrap_or(first);
        let rises: Vec<Rise> = suspects.iter().map(|suspect| suspect.rise).collect();
        let rate: f64 = rises.iter().map(|rise| rise.rate).sum();
        let middle = first.midpoint(last);
        let freed = |slots: RangeInclusive<u32>| -> u64 {
            self.freed.get(at(*slots.start())..=at(*slots.end())).unwrap_or(&[]).iter().sum()
        };
        let lasting = 2 * freed(first..=middle).min(freed(middle + 1..=last));
        rises_with(&self.minima, &rises)
            || real(lasting) <= SLOPE_RATIO_MIN * rate * f64::from(last - first)
    }
}

/// Returns whether the whole, by slot or state, rises about as fast as some lines together.
pub(super) fn rises_with(whole: &[f64], rises: &[Rise]) -> bool {
    let Some(first) = rises.iter().map(|rise| rise.first).min() else { return false };
    let last = rises.iter().map(|rise| rise.last).max().unwrap_or(first);
    let rate: f64 = rises.iter().map(|rise| rise.rate).sum();
    slope(whole, Span { first: first.saturating_sub(1), last })
        .is_some_and(|slope| slope.rate + 2.0 * slope.error >= SLOPE_RATIO_MIN * rate)
}

/// Bytes of each slot that are freed, older than the window, and of no line that is known.
fn freed_unknown(scene: &DeviceScene<'_>, queues: &Queues) -> Vec<u64> {
    let mut freed = vec![0_u64; scene.steps.marks.len() + 1];
    for (number, Lifetime { allocation, until, .. }) in (0..).zip(scene.lifetimes()) {
        if allocation.is_older()
            && !scene.is_kept(allocation)
            && queues.of_older(number).is_none()
            && let Some(freed) = freed.get_mut(at(until))
        {
            *freed += allocation.size;
        }
    }
    freed
}

/// The lines of a window, judged by themselves. A rise is with whether it is of one buffer that
/// is made again.
#[derive(Default)]
struct Judged {
    rising: HashMap<u32, (Rise, bool)>,
    possible: HashMap<u32, (Rise, bool)>,
    cached: Vec<u32>,
}

impl Judged {
    fn new(scene: &DeviceScene<'_>, span: Span, queues: &Queues) -> Self {
        // Blocks that a queue made before the window and frees in it count against those that
        // it makes.
        let change = |number: u32, is_counted: bool| {
            let allocation = scene.timeline.allocations.get(at(number))?;
            let bytes = if is_counted { 1 } else { rounded(allocation.requested) };
            Some(if allocation.is_older() {
                SiteChange { site: queues.of_older(number)?, bytes, is_long: true }
            } else {
                let is_long = is_long(scene.slots_of(number));
                SiteChange { site: scene.sites.of(allocation), bytes, is_long }
            })
        };
        let [long, all] = minima(scene, |number| change(number, false));
        let counts = LazyCell::new(|| {
            let [long, _] = minima(scene, |number| change(number, true));
            long
        });
        let kept = KeptBlocks::new(scene, queues);
        let end = scene.last_whole_slot();
        let mut judged = Self::default();
        for (site, (long, all)) in (0..).zip(long.iter().zip(&all)) {
            if scene.sites.site(site).is_some_and(|line| line.kind == SiteKind::Workspace) {
                continue;
            }
            let Kept { long_bytes, bytes, generations } = kept.of(site);
            let silence = end.saturating_sub(generations.last_birth);
            let survivors =
                Survivors { bytes: long_bytes, generations: Some(generations), silence };
            let blocks = || counts.get(at(site)).cloned();
            match judge(long, blocks, span, survivors) {
                Judgment::Rising(rise) | Judgment::Possible(rise)
                    if queues.is_noise(site, rise.bytes()) => {}
                Judgment::Rising(rise) => drop(judged.rising.insert(site, (rise, false))),
                Judgment::Possible(rise) => drop(judged.possible.insert(site, (rise, false))),
                Judgment::Stopped => judged.cached.push(site),
                Judgment::Nothing if generations.are_of_one() => {
                    let survivors = Survivors::of_one(bytes);
                    let judgment = all.trend(span).judge(span, REMADE_RISES_MIN, survivors);
                    if let Judgment::Rising(rise) = judgment
                        && !queues.is_noise(site, rise.bytes())
                        && !grows_with_others(scene, site, rise)
                    {
                        judged.rising.insert(site, (rise, true));
                    }
                }
                Judgment::Nothing => {}
            }
        }
        judged
    }
}

/// Judges a line by what it kept. What frees as it goes has to keep more and more bytes and
/// blocks since it does; else what it frees has to be younger than what it keeps.
fn judge(
    bytes: &SiteMinima,
    blocks: impl Fn() -> Option<SiteMinima>,
    span: Span,
    survivors: Survivors,
) -> Judgment {
    freeing_rise(bytes, blocks, span, survivors)
        .map_or_else(|| bytes.trend(span).judge(span, RISES_MIN, survivors), Judgment::Rising)
}

/// The rise of a line that frees as it goes, in bytes and in blocks, since it does.
pub(super) fn freeing_rise(
    bytes: &SiteMinima,
    blocks: impl Fn() -> Option<SiteMinima>,
    span: Span,
    survivors: Survivors,
) -> Option<Rise> {
    let since = survivors.generations.and_then(Generations::freeing_since)?;
    let span = Span { first: span.first.max(since), ..span };
    let beside = |minima: &SiteMinima, bytes: u64| {
        let survivors = Survivors { bytes, generations: None, ..survivors };
        minima.trend(span).judge(span, FREEING_RISES_MIN, survivors).rising()
    };
    let rise = beside(bytes, survivors.bytes)?;
    beside(&blocks()?, u64::MAX).map(|_| rise)
}

/// Returns whether most other lines allocate more and more a step, as this one does: longer
/// sequences.
fn grows_with_others(scene: &DeviceScene<'_>, suspect: u32, rise: Rise) -> bool {
    let middle = rise.first.midpoint(rise.last);
    let mut halves = vec![[0_u64; 2]; scene.sites.sites.len()];
    for Lifetime { allocation, from, .. } in
        scene.lifetimes().filter(|lifetime| !lifetime.allocation.is_older())
    {
        if from < rise.first || from > rise.last || scene.sites.is_optimizer(allocation.stack) {
            continue;
        }
        let half = usize::from(from > middle);
        if let Some(bytes) = halves
            .get_mut(at(scene.sites.of(allocation)))
            .and_then(|halves| halves.get_mut(half))
        {
            *bytes += allocation.requested;
        }
    }
    let lengths = [middle - rise.first + 1, rise.last - middle].map(f64::from);
    let growth = |[early, late]: [u64; 2]| {
        let (early, late) = (real(early) / lengths[0], real(late) / lengths[1]);
        (early > 0.0 && late > 0.0).then(|| late / early - 1.0)
    };
    let Some(own) = halves.get(at(suspect)).copied().and_then(growth) else { return false };
    let others: Vec<f64> = (0..)
        .zip(&halves)
        .filter(|(site, _)| {
            let kind = scene.sites.site(*site).map(|site| site.kind);
            *site != suspect && kind == Some(SiteKind::Python)
        })
        .filter_map(|(_, halves)| growth(*halves))
        .collect();
    let n_likewise = others.iter().filter(|other| **other >= LIKEWISE_RATIO_MIN * own).count();
    2 * n_likewise > others.len()
}

/// Returns whether an allocation is one that a suspect leaked.
#[inline]
fn is_leaked(
    scene: &DeviceScene<'_>,
    found: &HashMap<u32, (Rise, bool)>,
    Lifetime { allocation, from, until }: Lifetime<'_>,
) -> bool {
    !allocation.is_older()
        && scene.is_kept(allocation)
        && found
            .get(&scene.sites.of(allocation))
            .is_some_and(|(_, is_remade)| *is_remade || is_long([from, until]))
}

fn build(scene: &DeviceScene<'_>, found: &HashMap<u32, (Rise, bool)>) -> Vec<Suspect> {
    if found.is_empty() {
        return Vec::new();
    }
    let mut counts = vec![[0_u64; 2]; scene.sites.sites.len()];
    for Lifetime { allocation, .. } in
        scene.lifetimes().filter(|lifetime| !lifetime.allocation.is_older())
    {
        if let Some([made, kept]) = counts.get_mut(at(scene.sites.of(allocation))) {
            *made += 1;
            *kept += u64::from(scene.is_kept(allocation));
        }
    }
    let leaked = || scene.lifetimes().filter(|lifetime| is_leaked(scene, found, *lifetime));
    // Minima are of rounded requests: a remainder that a block happens to keep would be noise
    // in a short window.
    let mut requested: HashMap<u32, u64> = HashMap::new();
    for Lifetime { allocation, .. } in leaked() {
        *requested.entry(scene.sites.of(allocation)).or_default() +=
            rounded(allocation.requested);
    }
    let leaked = leaked();
    let rows = scene.sites.table(scene.snapshot, leaked.map(|lifetime| lifetime.allocation));
    let mut suspects: Vec<Suspect> = rows
        .into_iter()
        .filter_map(|row| {
            let (mut rise, is_remade) = *found.get(&row.site)?;
            let [n_allocations, n_survivors] =
                counts.get(at(row.site)).copied().unwrap_or_default();
            let requested = requested.get(&row.site).copied().unwrap_or(0);
            if !is_remade && requested > 0 {
                rise.rate *= real(row.sum.bytes) / real(requested);
            }
            // The minimum rises in the step after it.
            let n_steps = scene.last_slot() + 2 - rise.first;
            Some(Suspect { row, rise, n_steps, n_allocations, n_survivors, is_remade })
        })
        .collect();
    suspects.sort_by(|a, b| b.rise.rate.total_cmp(&a.rise.rate));
    suspects
}

/// The least that is active in each slot, without some allocations.
fn active_minima(
    scene: &DeviceScene<'_>,
    is_left_out: impl Fn(u32, &Allocation) -> bool,
) -> Vec<f64> {
    let allocations = &scene.timeline.allocations;
    let left_out: Vec<u64> = (0..)
        .zip(allocations)
        .map(|(number, own)| if is_left_out(number, own) { own.size } else { 0 })
        .collect();
    let size = |number: u32| left_out.get(at(number)).copied().unwrap_or(0);
    let older = (0..).zip(allocations).filter(|(_, own)| own.is_older());
    let mut out: u64 = older.map(|(number, _)| size(number)).sum();
    let mut marks = scene.steps.marks.iter().peekable();
    let mut minima = vec![f64::INFINITY; scene.steps.marks.len() + 1];
    let mut slot = 0;
    let mut before = scene.timeline.at_start.active.saturating_sub(out);
    let levels = scene.timeline.levels(scene.events);
    let events = scene.events.iter().zip(&scene.timeline.of_event);
    for ((number, level), (event, own)) in (0..).zip(levels).zip(events) {
        while marks.next_if(|mark| **mark <= number).is_some() {
            slot += 1;
            if let Some(minimum) = minima.get_mut(slot) {
                *minimum = real(before);
            }
        }
        match event.action {
            Action::Alloc => out += size(*own),
            Action::FreeCompleted => out = out.saturating_sub(size(*own)),
            _ => {}
        }
        let active = level.active.saturating_sub(out);
        if let Some(minimum) = minima.get_mut(slot) {
            *minimum = minimum.min(real(active));
        }
        before = active;
    }
    minima
}

/// A line through points, by least squares.
struct MinimaSlope {
    rate: f64,
    error: f64,
}

fn slope(minima: &[f64], span: Span) -> Option<MinimaSlope> {
    let values = minima.get(at(span.first)..=at(span.last))?;
    let n = real(count(values.len()));
    if values.len() < 2 || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let points = || (0..).map(f64::from).zip(values.iter().copied());
    let mean_x = (n - 1.0) / 2.0;
    let mean_y = values.iter().sum::<f64>() / n;
    let xx: f64 = points().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let xy: f64 = points().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let rate = xy / xx;
    let rest: f64 = points().map(|(x, y)| (y - mean_y - rate * (x - mean_x)).powi(2)).sum();
    let error = if values.len() > 2 { (rest / (n - 2.0) / xx).sqrt() } else { 0.0 };
    Some(MinimaSlope { rate, error })
}

/// The frame to blame. Each suspect has one, of the user's frames over most of its bytes. It is
/// the deepest beneath which about as much of what is allocated stays as beneath any. A frame
/// further out is taken only for a clear gain. Suspects with one frame are one leak, and the
/// fastest leak is blamed.
fn blame(scene: &DeviceScene<'_>, suspects: &[Suspect]) -> Option<Blame> {
    let beneath = Beneath::new(scene, suspects);
    let mut leaks: Vec<(Option<u32>, f64, &Suspect)> = Vec::new();
    for suspect in suspects {
        let frame = beneath.blamed_frame(suspect);
        match leaks.iter_mut().find(|(of, ..)| frame.is_some() && *of == frame) {
            Some((_, rate, _)) => *rate += suspect.rise.rate,
            None => leaks.push((frame, suspect.rise.rate, suspect)),
        }
    }
    // The first of equals: suspects are sorted.
    let (frame, _, suspect) = leaks.into_iter().rev().max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(match frame {
        Some(frame) => {
            let (_, sum) = beneath.survival(frame);
            Blame::Frame { frame, origin: suspect.row.origin, sum }
        }
        None => Blame::Site(suspect.row.clone()),
    })
}

/// The memory of each stack: what was allocated, and what of it leaked.
struct Beneath<'a> {
    scene: &'a DeviceScene<'a>,
    leaked: Vec<Sum>,
    /// Bytes of what was allocated in whole steps, and of what leaked of it.
    allocated: Vec<[u64; 2]>,
    frames: HashMap<u32, (u64, u64, Sum)>,
}

impl<'a> Beneath<'a> {
    fn new(scene: &'a DeviceScene<'a>, suspects: &[Suspect]) -> Self {
        let found = found_of(suspects);
        let last = scene.last_slot().saturating_sub(IN_FLIGHT_STEPS);
        let n_stacks = scene.snapshot.stacks.len();
        let mut beneath = Self {
            scene,
            leaked: vec![Sum::default(); n_stacks],
            allocated: vec![[0; 2]; n_stacks],
            frames: HashMap::new(),
        };
        for lifetime in scene.lifetimes().filter(|lifetime| !lifetime.allocation.is_older()) {
            let Lifetime { allocation, from, .. } = lifetime;
            let stack = at(allocation.stack);
            let is_leaked = is_leaked(scene, &found, lifetime);
            if let Some(sum) = beneath.leaked.get_mut(stack).filter(|_| is_leaked) {
                sum.add(allocation);
            }
            if let Some([all, kept]) =
                beneath.allocated.get_mut(stack).filter(|_| from >= 1 && from < last)
            {
                *all += allocation.size;
                *kept += if is_leaked { allocation.size } else { 0 };
            }
        }
        beneath.sum_up();
        beneath
    }

    fn blamed_frame(&self, suspect: &Suspect) -> Option<u32> {
        let (scene, row) = (self.scene, &suspect.row);
        let mut over: HashMap<u32, u64> = HashMap::new();
        for (stack, sum) in (0..).zip(&self.leaked) {
            if sum.blocks == 0 || scene.sites.of_origin(stack) != row.site {
                continue;
            }
            let mut frames: Vec<u32> = scene.sites.user_frames(scene.snapshot, stack).collect();
            frames.sort_unstable();
            frames.dedup();
            for frame in frames {
                *over.entry(frame).or_default() += sum.bytes;
            }
        }
        let enough = OVER_RATIO_MIN * real(row.sum.bytes);
        let candidates: Vec<(u32, f64)> = scene
            .sites
            .user_frames(scene.snapshot, row.origin)
            .filter(|frame| over.get(frame).is_some_and(|bytes| real(*bytes) >= enough))
            .map(|frame| (frame, self.survival(frame).0))
            .collect();
        let best = candidates.iter().map(|(_, survival)| *survival).fold(0.0, f64::max);
        let frame = candidates.into_iter().find(|(_, each)| *each >= SURVIVAL_RATIO_MIN * best);
        frame.map(|(frame, _)| frame)
    }

    /// Returns the share of the bytes allocated beneath a frame that is leaked, and all leaked
    /// bytes.
    fn survival(&self, frame: u32) -> (f64, Sum) {
        let Some((all, kept, sum)) = self.frames.get(&frame) else {
            return (0.0, Sum::default());
        };
        (if *all > 0 { real(*kept) / real(*all) } else { 0.0 }, *sum)
    }

    /// Sums by frame of the user: what was allocated beneath it and what of that leaked, and
    /// all that leaked.
    fn sum_up(&mut self) {
        let mut frames = Vec::new();
        for (stack, (allocated, leaked)) in (0..).zip(self.allocated.iter().zip(&self.leaked)) {
            if allocated[0] == 0 && leaked.blocks == 0 {
                continue;
            }
            frames.clear();
            frames.extend(self.scene.sites.user_frames(self.scene.snapshot, stack));
            frames.sort_unstable();
            frames.dedup();
            for frame in &frames {
                let (all, kept, sum) = self.frames.entry(*frame).or_default();
                *all += allocated[0];
                *kept += allocated[1];
                sum.join(*leaked);
            }
        }
    }
}

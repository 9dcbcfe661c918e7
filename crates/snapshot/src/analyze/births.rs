//! The line that leaks by several states of one process, where no trace has the births. A block
//! that a state shows and the one before does not, by address, size and line, was born between
//! them. What was freed and allocated again as it was counts as old; what came and went between
//! two states is not seen; when the first state's blocks were born is not known.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{Hash, Hasher};

use serde::Serialize;

use crate::analyze::device_report::DeviceReport;
use crate::analyze::generations::{Frees, Generations};
use crate::analyze::leak::{LeakVerdict, freeing_rise, rises_with};
use crate::analyze::leak_limits::{
    IN_FLIGHT_STEPS, POSSIBLE_STRETCHES_MIN, RARER_RATIO, STATES_MIN, STRETCHES_MIN,
};
use crate::analyze::meeting::{Meeting, meeting};
use crate::analyze::sites::{Site, SiteKind, Sum};
use crate::analyze::step_minima::{self, Judgment, Rise, SiteMinima, Span, Survivors};
use crate::integer::{at, difference, id, real};
use crate::model::Event;
use crate::model::arena::AddressHash;
use crate::render::json::{SiteAnswer, row_answer};

/// The lines that leak by the births between states.
#[derive(Debug, Default, Serialize)]
pub struct Births {
    /// The number of states.
    pub states: u32,
    /// The number of them that differ: a file given twice tells nothing more.
    pub different_states: u32,
    pub verdict: LeakVerdict,
    /// The reason for which it cannot be told.
    pub doubt: Option<Doubt>,
    /// Growth from a state to the next, all lines that leak together.
    pub bytes_per_state: Option<f64>,
    /// Lines that leak, the fastest first.
    pub sites: Vec<BornSite>,
    /// Lines that grew up to the end, too irregularly to say that they leak.
    pub possible: Vec<BornSite>,
}

/// A line by what it keeps of what it made after the first state.
#[derive(Debug, Serialize)]
pub struct BornSite {
    /// The line, with what was born after the first state and is there in the last.
    #[serde(flatten)]
    pub site: SiteAnswer,
    pub bytes_per_state: f64,
    /// Stretches between two states in which some of it was born.
    pub generations: u32,
    /// States from the first of them to the end.
    pub states: u32,
    /// The line's blocks in the last state: one with a bound above that would look the same.
    pub held_blocks: u64,
}

/// The reason for which births cannot tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    FewStates,
    /// The files are of different ranks or processes, or share no block.
    OtherProcess,
    /// A file is older than the one before.
    NotInOrder,
    /// No line is known of what grows.
    NoStacks,
}

/// The states of a process, each added after the one before. It keeps the blocks of the newest.
#[derive(Debug, Default)]
pub struct StateSeries {
    devices: BTreeMap<u64, DeviceStates>,
    /// States so far.
    n_states: u32,
    /// Digests of all states.
    known: HashSet<u64>,
    rank: Option<u64>,
    doubt: Option<Doubt>,
}

/// A device's states.
#[derive(Debug, Default)]
struct DeviceStates {
    lines: HashMap<Site, u32>,
    histories: Vec<LineHistory>,
    living: HashMap<u64, Living, AddressHash>,
    /// The trace of the newest state.
    events: Vec<Event>,
    /// Active bytes in each state.
    active: Vec<f64>,
}

/// A block of the newest state.
#[derive(Clone, Copy, Debug)]
struct Living {
    line: u32,
    requested: u64,
    size: u64,
    /// The first state that shows it.
    born: u32,
}

/// The changes of a line from state to state.
#[derive(Clone, Debug, Default)]
struct LineHistory {
    /// The bytes that it holds in each state, and the number of blocks.
    held: [SiteMinima; 2],
    /// The blocks that it freed.
    frees: Frees,
    /// The newest state in which it freed one that was not in flight.
    freed_in: u32,
}

impl LineHistory {
    /// Notes that a state shows a block freed, so many states after the first that showed it.
    fn free(&mut self, state: u32, lived: u32) {
        self.frees.note_life(lived);
        if lived > IN_FLIGHT_STEPS && self.freed_in != state {
            self.frees.add(state);
            self.freed_in = state;
        }
    }

    /// Notes what it holds in a state.
    fn settle(&mut self, state: u32, now: [u64; 2]) {
        for (held, now) in self.held.iter_mut().zip(now) {
            held.push(state, difference(now, 0));
        }
    }
}

impl StateSeries {
    /// Adds the next state; `rank`: that of the file's name.
    pub fn add(&mut self, rank: Option<u64>, reports: &[DeviceReport<'_>]) {
        self.known.insert(digest(reports));
        if self.rank.is_some() && rank.is_some() && self.rank != rank {
            self.doubt = Some(Doubt::OtherProcess);
        }
        self.rank = self.rank.or(rank);
        let of: HashMap<u64, &DeviceReport<'_>> =
            reports.iter().map(|report| (report.scene.device.index, report)).collect();
        for index in of.keys() {
            self.devices.entry(*index).or_insert_with(|| DeviceStates::new(self.n_states));
        }
        for (index, states) in &mut self.devices {
            let doubt = states.add(self.n_states, of.get(index).copied());
            self.doubt = self.doubt.or(doubt);
        }
        self.n_states += 1;
    }

    /// Judges a device. `last`: its report in the last file.
    pub fn births(&self, device: u64, last: Option<&DeviceReport<'_>>) -> Births {
        let births = Births {
            states: self.n_states,
            different_states: id(self.known.len()),
            doubt: self.doubt,
            ..Births::default()
        };
        let (Some(states), Some(report)) = (self.devices.get(&device), last) else {
            return births;
        };
        match births.doubt {
            Some(_) => births,
            None if self.n_states < STATES_MIN
                || (births.different_states < STATES_MIN && states.has_grown()) =>
            {
                Births { doubt: Some(Doubt::FewStates), ..births }
            }
            None => states.judge(births, report),
        }
    }
}

/// A number for all that the files of a state show.
fn digest(reports: &[DeviceReport<'_>]) -> u64 {
    let mut digest = 0_u64;
    let mut add = |part: &dyn Fn(&mut DefaultHasher)| {
        let mut hasher = DefaultHasher::new();
        part(&mut hasher);
        // In no order: blocks come as their file has them.
        digest = digest.wrapping_add(hasher.finish());
    };
    for report in reports {
        let (scene, index) = (&report.scene, report.scene.device.index);
        let last = scene.events.last().map(|event| (event.time_us, event.address));
        add(&|hasher| (index, scene.events.len(), last).hash(hasher));
        for block in scene.timeline.allocations.iter().filter(|block| block.is_at_end()) {
            add(&|hasher| (index, block.address, block.requested, block.size).hash(hasher));
        }
    }
    digest
}

impl DeviceStates {
    /// A device of which `n_states` states show nothing.
    fn new(n_states: u32) -> Self {
        Self { active: vec![0.0; at(n_states)], ..Self::default() }
    }

    /// Adds its part of a state.
    fn add(&mut self, state: u32, report: Option<&DeviceReport<'_>>) -> Option<Doubt> {
        let mut living = HashMap::with_hasher(AddressHash::default());
        let mut n_shared = 0_u32;
        let sites = report.map_or(0, |report| report.scene.sites.sites.len());
        let mut lines = vec![None; sites];
        let blocks = report.into_iter().flat_map(|report| {
            let blocks = report.scene.timeline.allocations.iter();
            blocks.filter(|block| block.is_at_end()).map(move |block| (report, block))
        });
        for (report, block) in blocks {
            let site = report.scene.sites.of(block);
            let line = match lines.get(at(site)).copied().flatten() {
                Some(line) => line,
                None => self.line(report.scene.sites.site(site).unwrap_or(&Site::NOWHERE)),
            };
            if let Some(known) = lines.get_mut(at(site)) {
                *known = Some(line);
            }
            let same = self
                .living
                .get(&block.address)
                .filter(|old| old.line == line && old.requested == block.requested);
            n_shared += u32::from(same.is_some());
            let born = same.map_or(state, |old| old.born);
            let new = Living { line, requested: block.requested, size: block.size, born };
            living.insert(block.address, new);
        }
        let events = report.map_or(&[][..], |report| report.scene.events);
        let is_other = n_shared == 0 && !self.living.is_empty() && !living.is_empty();
        let doubt =
            if is_other { Some(Doubt::OtherProcess) } else { position(&self.events, events) };
        self.events = events.to_vec();
        self.active.push(report.map_or(0.0, |report| real(report.totals.active)));
        self.change(state, &living);
        self.living = living;
        doubt
    }

    /// Notes what each line freed, and by how much it changed.
    fn change(&mut self, state: u32, living: &HashMap<u64, Living, AddressHash>) {
        for (address, old) in &self.living {
            let is_there = living.get(address).is_some_and(|new| new.born < state);
            if is_there {
                continue;
            }
            if let Some(line) = self.histories.get_mut(at(old.line)) {
                line.free(state, state - old.born);
            }
        }
        let mut held = vec![[0_u64; 2]; self.histories.len()];
        for block in living.values() {
            if let Some([bytes, blocks]) = held.get_mut(at(block.line)) {
                *bytes = bytes.saturating_add(block.size);
                *blocks += 1;
            }
        }
        for (line, now) in self.histories.iter_mut().zip(held) {
            line.settle(state, now);
        }
    }

    /// The number of a line.
    fn line(&mut self, site: &Site) -> u32 {
        if let Some(line) = self.lines.get(site) {
            return *line;
        }
        let line = id(self.histories.len());
        self.lines.insert(site.clone(), line);
        self.histories.push(LineHistory::default());
        line
    }

    fn judge(&self, mut births: Births, report: &DeviceReport<'_>) -> Births {
        let n_states = births.states;
        // What is there of each line in the last state, by the state that shows it first.
        let mut born: BTreeMap<(u32, u32), Sum> = BTreeMap::new();
        for block in self.living.values().filter(|block| block.born > 0) {
            let sum = born.entry((block.line, block.born)).or_default();
            sum.bytes = sum.bytes.saturating_add(block.size);
            sum.requested = sum.requested.saturating_add(block.requested);
            sum.blocks += 1;
        }
        let mut suspects = Vec::new();
        let mut is_unnamed = false;
        births.verdict = LeakVerdict::None;
        for row in &report.at_end {
            let site = report.scene.sites.site(row.site).unwrap_or(&Site::NOWHERE);
            let Some(line) = self.lines.get(site).copied() else { continue };
            let of_line = || born.range((line, 0)..=(line, n_states));
            let of_state: BTreeMap<u32, Sum> =
                of_line().map(|((_, state), sum)| (*state, *sum)).collect();
            let judgment = self.judge_line(line, &of_state, n_states);
            let (Judgment::Rising(rise) | Judgment::Possible(rise)) = judgment else {
                continue;
            };
            let mut sum = Sum::default();
            for each in of_state.values() {
                sum.join(*each);
            }
            let answer = row_answer(report.scene.snapshot, report.scene.sites, row).with(sum);
            let found = BornSite {
                site: answer,
                bytes_per_state: rise.rate,
                generations: id(of_state.len()),
                states: n_states - rise.first,
                held_blocks: row.sum.blocks,
            };
            match (site.kind, judgment) {
                (SiteKind::Workspace, _) => {}
                (SiteKind::NoFrames | SiteKind::BeforeRecording, _) => is_unnamed = true,
                (_, Judgment::Possible(_)) => births.possible.push(found),
                _ => suspects.push((found, rise)),
            }
        }
        births.possible.extend(self.keep_covered(&mut suspects));
        let rate: f64 = suspects.iter().map(|(_, rise)| rise.rate).sum();
        births.sites = suspects.into_iter().map(|(found, _)| found).collect();
        births.sites.sort_by(|a, b| b.bytes_per_state.total_cmp(&a.bytes_per_state));
        if !births.sites.is_empty() {
            (births.verdict, births.bytes_per_state) = (LeakVerdict::Leak, Some(rate));
        } else if is_unnamed {
            births.verdict = LeakVerdict::InsufficientHistory;
            births.doubt = Some(Doubt::NoStacks);
        }
        births
    }

    /// Judges a line as `leak` does: by the stretches in which it grew and of which it keeps
    /// some; of one that frees as it goes by its bytes and blocks since it does.
    fn judge_line(&self, line: u32, born: &BTreeMap<u32, Sum>, n_states: u32) -> Judgment {
        let Some(history) = self.histories.get(at(line)) else { return Judgment::Nothing };
        let last = n_states - 1;
        let generations = Generations::of_kept(born.keys().copied(), n_states, history.frees);
        let kept = Survivors {
            bytes: born.values().map(|sum| sum.bytes).fold(0, u64::saturating_add),
            silence: last.saturating_sub(generations.last_birth),
            generations: Some(generations),
        };
        let span = Span { first: 0, last };
        let [bytes, blocks] = &history.held;
        if let Some(rise) = freeing_rise(bytes, || Some(blocks.clone()), span, kept) {
            return Judgment::Rising(rise);
        }
        let mut trend = bytes.trend(span);
        trend.rises = trend
            .rises
            .iter()
            .filter_map(|(state, rise)| {
                let kept = difference(born.get(state)?.bytes, 0);
                Some((*state, kept.min(*rise)))
            })
            .collect();
        match trend.judge(span, STRETCHES_MIN, kept) {
            Judgment::Nothing => match trend.judge(span, POSSIBLE_STRETCHES_MIN, kept) {
                Judgment::Rising(rise) => Judgment::Possible(rise),
                judgment => judgment,
            },
            Judgment::Rising(rise) if become_rarer(born, rise.first, last) => {
                Judgment::Possible(rise)
            }
            judgment => judgment,
        }
    }

    /// Leaves the lines whose growth is no more than that of the whole, and returns the others:
    /// what else changes hides theirs, or gives it back.
    fn keep_covered(&self, suspects: &mut Vec<(BornSite, Rise)>) -> Vec<BornSite> {
        let are_covered = |suspects: &[(BornSite, Rise)]| {
            let rises: Vec<Rise> = suspects.iter().map(|(_, rise)| *rise).collect();
            rises_with(&self.active, &rises)
        };
        let mut others = Vec::new();
        if !are_covered(suspects) {
            let is_other = |suspect: &mut _| !are_covered(std::slice::from_ref(suspect));
            others.extend(suspects.extract_if(.., is_other));
        }
        if !are_covered(suspects) {
            others.append(suspects);
        }
        others.into_iter().map(|(found, _)| found).collect()
    }

    /// Returns whether a line holds more than in the first state.
    fn has_grown(&self) -> bool {
        self.histories.iter().any(|line| line.held[0].has_grown())
    }
}

/// Returns whether ever fewer of the blocks that are there were born from a state to the next,
/// by more than chance: keys of a cache come rarely once most of them are there.
fn become_rarer(born: &BTreeMap<u32, Sum>, first: u32, last: u32) -> bool {
    let length = last - first + 1;
    let in_states = |from: u32, to: u32| -> u64 {
        born.range(from..to).map(|(_, sum)| sum.blocks).fold(0, u64::saturating_add)
    };
    let early = in_states(first, first + length / 2);
    let late = in_states(last + 1 - length / 2, last + 1);
    real(late) <= RARER_RATIO * real(early) && step_minima::become_rarer([early, late])
}

/// Doubts that the trace of a state follows that of the one before.
fn position(before: &[Event], after: &[Event]) -> Option<Doubt> {
    let time = |events: &[Event]| events.last().map(|event| event.time_us);
    let (before_end, after_end) = (time(before)?, time(after)?);
    if before_end > after_end && after_end > 0 {
        return Some(Doubt::NotInOrder);
    }
    matches!(meeting(before, after), Meeting::Different).then_some(Doubt::OtherProcess)
}

//! The diagnosis input: the subjects present at one time, the limits, and what held the last
//! time.

use crate::devices::DeviceFailure;
use crate::diagnosis::shared::balance::{Balance, COMPARABLE_STEPS_MIN, balance};
use crate::diagnosis::shared::children_figures::ChildrenFigures;
use crate::diagnosis::shared::filling::Filling;
use crate::diagnosis::shared::kept_blocks::KeptBlocks;
use crate::diagnosis::shared::malloc_figures::MallocFigures;
use crate::diagnosis::shared::run_end::{RunEnd, RunEndFigures};
use crate::diagnosis::shared::shm_figures::ShmFigures;
use crate::diagnosis::shared::trend_figures::TrendFigures;
use crate::kind::Severity;
use crate::processes::ProcessView;
use crate::ranks::view::RankView;
use crate::thresholds::Thresholds;
use stepmem_detect::{Bend, Outlook, Signal, Stage, Trend};
use stepmem_types::ids::{GpuUuid, ProcessId, Rank, RankId, Run, SubjectId};
use stepmem_types::step::StepUnit;

/// Every present subject at one time, and the limits.
#[derive(Debug)]
pub struct DiagnosisInput<'a> {
    /// The runs that have a present rank, ascending.
    pub runs: Vec<RunInput<'a>>,
    /// The present unmanaged processes, ascending.
    pub processes: Vec<(&'a ProcessId, ProcessView<'a>)>,
    /// The devices that answer with an error, ascending.
    pub failing_devices: Vec<(&'a GpuUuid, &'a DeviceFailure)>,
    pub thresholds: &'a Thresholds,
}

/// The present ranks of one run.
#[derive(Debug)]
pub struct RunInput<'a> {
    pub run: &'a Run,
    /// The ranks, ascending.
    pub ranks: Vec<(Rank, RankView<'a>)>,
    /// The ranks that have come far enough in their incarnations, against each other.
    pub comparable: Option<Balance>,
    /// The end of the run itself.
    pub end: RunEnd,
    /// Set while memory of any kind grows on one of its ranks.
    pub is_growing: bool,
}

impl<'a> RunInput<'a> {
    /// A run by its present ranks, ascending.
    pub fn new(run: &'a Run, ranks: Vec<(Rank, RankView<'a>)>) -> Self {
        let is_comparable =
            |(_, view): &&(Rank, RankView<'a>)| view.life_steps >= COMPARABLE_STEPS_MIN;
        let comparable = balance(&ranks.iter().filter(is_comparable));
        let is_growing =
            ranks.iter().any(|(_, view)| view.detectors.trends().any(Trend::is_growing));
        Self { run, comparable, end: RunEnd::of(&ranks), is_growing, ranks }
    }
}

/// A subject of the diagnosis input, and how one diagnosis held for it the last time.
/// Findings are released later than they are raised.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a, 's> {
    pub view: SubjectView<'a, 's>,
    /// The severity with which the diagnosis held when last evaluated.
    pub active: Option<Severity>,
}

/// The figures of one subject.
#[derive(Clone, Copy, Debug)]
pub enum SubjectView<'a, 's> {
    /// A rank, with the ranks of its run.
    Rank(&'s RunInput<'a>, Rank, &'s RankView<'a>),
    /// An unmanaged process.
    Process(&'a ProcessId, &'s ProcessView<'a>),
    /// A device that answers with an error.
    Device(&'a GpuUuid, &'a DeviceFailure),
}

impl<'a> DiagnosisInput<'a> {
    /// Returns every subject: ranks, processes, devices, each ascending.
    pub fn subjects(&self) -> impl Iterator<Item = SubjectView<'a, '_>> {
        let ranks = self.runs.iter().flat_map(|run| {
            run.ranks.iter().map(move |(rank, view)| SubjectView::Rank(run, *rank, view))
        });
        let processes = self.processes.iter().map(|(id, view)| SubjectView::Process(id, view));
        let devices = self
            .failing_devices
            .iter()
            .map(|(uuid, failure)| SubjectView::Device(uuid, failure));
        ranks.chain(processes).chain(devices)
    }
}

impl<'a> SubjectView<'a, '_> {
    /// Returns the subject's name.
    pub fn id(&self) -> SubjectId {
        match self {
            Self::Rank(input, rank, _) => {
                SubjectId::Rank(RankId { run: input.run.clone(), rank: *rank })
            }
            Self::Process(id, _) => SubjectId::Process((*id).clone()),
            Self::Device(uuid, _) => SubjectId::Device((*uuid).clone()),
        }
    }

    /// Returns whether it is a rank that has ended.
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Rank(_, _, view) if view.ended.is_some())
    }

    /// Returns the trend of a signal, if there is one.
    pub fn trend(&self, signal: Signal) -> Option<&'a Trend> {
        match self {
            Self::Rank(_, _, view) => view.detectors.trend(signal),
            Self::Process(_, view) => view.creep.trend(signal),
            Self::Device(..) => None,
        }
    }

    /// Returns the outlook of the growth of a signal, as of now.
    fn outlook(&self, signal: Signal) -> Option<Outlook> {
        match self {
            Self::Rank(_, _, view) => view.outlook(signal),
            Self::Process(_, view) => view.outlook().filter(|of| of.signal == signal),
            Self::Device(..) => None,
        }
    }
}

impl<'a> Subject<'a, '_> {
    /// Returns the trend of one signal at one stage, if there is one.
    pub fn trend(&self, signal: Signal, stage: Stage) -> Option<&'a Trend> {
        self.view.trend(signal).filter(|trend| trend.stage == stage)
    }

    /// Returns the outlook of the growth of one signal that is at one stage.
    pub fn outlook(&self, signal: Signal, stage: Stage) -> Option<Outlook> {
        self.view.outlook(signal).filter(|outlook| outlook.stage == stage)
    }

    /// Returns the figures of an outlook of the subject.
    pub fn figures(&self, outlook: &Outlook) -> Box<TrendFigures> {
        let device = self.rank().and_then(|rank| rank.identity.device.as_ref());
        let site = self.rank().map(|rank| rank.site).unwrap_or_default();
        let held = site.held(outlook.signal);
        // A line of a snapshot explains no growth outside of live memory.
        let leak = site.leak.filter(|_| outlook.signal == Signal::Allocated);
        let is_on_host = outlook.signal.is_beside() || device.is_some_and(GpuUuid::is_host);
        let figures = TrendFigures {
            is_on_host,
            unit: self.unit(),
            site: leak.cloned().map(Box::new),
            holder: held.holder.map(|known| Box::new(known.holder.clone())),
            slope_while_held_bytes_per_step: self.slope_while_held(outlook),
            filling: self.rank().and_then(|rank| Filling::of(rank, outlook)),
            searched: held.searched,
            kept_blocks: self.kept_blocks(outlook),
            run_end: self
                .rank()
                .and_then(|rank| self.run_end(&rank.memory_end(outlook.signal)?)),
            malloc: self.rank().and_then(|rank| MallocFigures::of_rank(rank, outlook)),
            steps_per_event: self
                .rank()
                .and_then(|rank| rank.detectors.of(outlook.signal).steps_per_event()),
            children: self.rank().and_then(|rank| ChildrenFigures::of_rank(rank, outlook)),
            shm: self.rank().and_then(|rank| ShmFigures::of_rank(rank, outlook)),
            ..TrendFigures::of(outlook)
        };
        let figures = figures.without_bystander();
        let is_in_memory = is_on_host && outlook.signal != Signal::Shm;
        let rank = self.rank().filter(|_| is_in_memory && !figures.is_level());
        let figures = match rank.and_then(|rank| Some((rank, rank.container?))) {
            Some((rank, container)) => {
                figures.in_container(&container, rank.end(outlook.signal).as_ref())
            }
            None => figures,
        };
        // What fills up, and fits, never runs out of memory.
        Box::new(if figures.ends() { figures.ending(None) } else { figures })
    }

    /// Returns the unit of the subject's steps.
    pub fn unit(&self) -> StepUnit {
        self.rank().map_or(StepUnit::Steps, |rank| rank.identity.unit)
    }

    /// Returns the end of the run, next to that of memory that runs out as this outlook has it.
    pub fn run_end(&self, memory: &Outlook) -> Option<RunEndFigures> {
        let SubjectView::Rank(input, _, rank) = self.view else { return None };
        let was_first = self.active == Some(Severity::Info);
        RunEndFigures::of(&input.end, rank, memory, was_first)
    }

    /// Returns the testimony of the number of live blocks on growth that goes on.
    fn kept_blocks(&self, outlook: &Outlook) -> Option<KeptBlocks> {
        let is_asked = outlook.signal == Signal::Allocated && outlook.level_since.is_none();
        let rank = self.rank().filter(|_| is_asked)?;
        KeptBlocks::of(rank.detectors.of(Signal::Allocated))
    }

    /// Returns the rate of growth that is not straight over the steps in which its holder was
    /// measured.
    fn slope_while_held(&self, outlook: &Outlook) -> Option<f64> {
        let rank = self.rank().filter(|_| outlook.bend != Bend::Straight)?;
        let holder = &rank.site.held(outlook.signal).holder?.holder;
        let (from, to) = (holder.since_step?.as_f64(), holder.step?.as_f64());
        let detector = rank.detectors.of(outlook.signal);
        let growth = detector.growth_between(outlook.signal, from, to)?;
        Some(growth / (to - from)).filter(|slope| slope.is_finite() && *slope > 0.0)
    }

    /// Returns the outlook that shows when memory runs out, for growth of a signal.
    pub fn end(&self, signal: Signal) -> Option<Outlook> {
        self.rank().map_or_else(|| self.view.outlook(signal), |rank| rank.end(signal))
    }

    /// Returns the rank's figures, if the subject is a rank.
    pub fn rank(&self) -> Option<&RankView<'a>> {
        match self.view {
            SubjectView::Rank(_, _, view) => Some(view),
            SubjectView::Process(..) | SubjectView::Device(..) => None,
        }
    }
}

/// The margin by which a ratio must fall below its limit before a finding that held is
/// released: no flapping around a limit.
pub(crate) const RELEASE_MARGIN: f64 = 0.02;

/// The severity of `value` against two limits; a severity that is active stays until `value` is
/// [`RELEASE_MARGIN`] below its limit.
pub(crate) fn graded(
    value: f64,
    warning: f64,
    critical: f64,
    active: Option<Severity>,
) -> Option<Severity> {
    let reaches = |limit: f64, severity| {
        let margin = if active >= Some(severity) { RELEASE_MARGIN } else { 0.0 };
        value >= limit - margin
    };
    if reaches(critical, Severity::Critical) {
        Some(Severity::Critical)
    } else if reaches(warning, Severity::Warning) {
        Some(Severity::Warning)
    } else {
        None
    }
}

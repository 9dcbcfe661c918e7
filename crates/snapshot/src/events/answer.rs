//! The JSON of `stepmem snapshot events`: written as it is made, since a window has millions of
//! events.

use std::collections::HashMap;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::analyze::casts::{self, CastSource};
use crate::analyze::phases::StepPhase;
use crate::analyze::sites::{STACK_FRAMES_MAX, Site, Sum};
use crate::events::chains::{self, ReuseChain};
use crate::events::ending::Ending;
use crate::events::list::{EventList, EventRow, RowAction};
use crate::events::told::{self, EventSums};
use crate::events::totals::RunningTotal;
use crate::events::tree::{self, TreeRow};
use crate::events::words;
use crate::integer::{at, count, id};
use crate::model::NO_STACK;
use crate::render::json::{File, kind};
use stepmem_types::claims::Statement;

/// The version of this JSON.
pub(crate) const SCHEMA: &str = "stepmem.snapshot-events/1";

/// The answer about a file.
#[derive(Debug, Serialize)]
pub struct EventsAnswer<'a> {
    schema: &'static str,
    file: File,
    devices: Vec<DeviceEvents<'a>>,
}

/// The choice of what to report of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventsForm<'a> {
    /// Events in order.
    List,
    /// The tensors of each address.
    Reuse,
    /// The allocations that are alive at a moment, with the moment in words.
    Alive(AliveMoment, &'a str),
}

/// A moment of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AliveMoment {
    /// The end if `None`.
    pub state: Option<u32>,
    /// The event that it follows; `None` at the end, and before the first one.
    pub after_event: Option<u32>,
}

/// A device's part of the answer.
#[derive(Debug)]
struct DeviceEvents<'a> {
    list: &'a EventList<'a>,
    form: EventsForm<'a>,
    stacks: StackNumbers,
    /// Copies in another precision.
    casts: HashMap<u32, CastSource>,
    frames_max: usize,
}

/// Answers for some devices; `frames_max`: frames of a stack, by default as many as in every
/// other answer.
pub fn events<'a>(
    file: File,
    devices: &'a [(EventList<'a>, EventsForm<'a>)],
    frames_max: Option<usize>,
) -> EventsAnswer<'a> {
    let device = |(list, form): &'a (EventList<'a>, EventsForm<'a>)| DeviceEvents {
        list,
        form: *form,
        stacks: StackNumbers::new(list, *form),
        casts: casts::copies(&list.report.scene, &list.report.categories),
        frames_max: frames_max.unwrap_or(STACK_FRAMES_MAX),
    };
    EventsAnswer { schema: SCHEMA, file, devices: devices.iter().map(device).collect() }
}

impl DeviceEvents<'_> {
    /// The statements of the text next to its rows, in its order.
    fn told(&self) -> Vec<Statement> {
        let list = self.list;
        let mut told = vec![told::head(list)];
        told.extend(told::frees(list));
        let nothing = || list.rows().next().is_none().then(|| told::nothing(list));
        match self.form {
            EventsForm::List => {
                told.extend(nothing());
                told.push(EventSums::of(list).told());
                let peaks = RunningTotal::new(&list.report.scene).peaks(list);
                told.extend(peaks.iter().map(told::peak));
            }
            EventsForm::Reuse => {
                let chains = chains::find(list);
                told.extend(chains.is_empty().then(nothing).flatten());
                told.push(told::reused(&chains));
            }
            EventsForm::Alive(moment, name) => {
                let rows = tree::alive(list.report, moment.state);
                let mut all = Sum::default();
                rows.iter().filter(|row| row.depth == 0).for_each(|row| all.join(row.sum));
                told.push(told::alive(name, all));
            }
        }
        told
    }
}

impl Serialize for DeviceEvents<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let scene = &self.list.report.scene;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("device", &scene.device.index)?;
        map.serialize_entry("events_in_trace", &count(scene.events.len()))?;
        map.serialize_entry("events_of_other_kinds", &count(self.list.n_others()))?;
        map.serialize_entry("frees_have_stacks", &self.list.order.frees_have_stacks)?;
        map.serialize_entry("statements", &self.told())?;
        match self.form {
            EventsForm::List => {
                map.serialize_entry("lines_instead", &self.list.lines_instead())?;
                map.serialize_entry("stacks", &self.stacks.frames(self))?;
                let total = RunningTotal::new(scene);
                map.serialize_entry("peaks", &total.peaks(self.list))?;
                let rows =
                    || self.list.rows().map(|row| self.row(row, total.after(scene, row.event)));
                map.serialize_entry("events", &Streamed(rows))?;
            }
            EventsForm::Reuse => {
                map.serialize_entry("lines_instead", &self.list.lines_instead())?;
                map.serialize_entry("stacks", &self.stacks.frames(self))?;
                let chains = chains::find(self.list);
                let chains = || chains.iter().map(|chain| self.chain(chain));
                map.serialize_entry("chains", &Streamed(chains))?;
            }
            EventsForm::Alive(moment, _) => {
                let rows = tree::alive(self.list.report, moment.state);
                map.serialize_entry("alive", &alive(moment, &rows))?;
            }
        }
        map.end()
    }
}

/// A list that is made while it is written.
struct Streamed<F>(F);

impl<F, I> Serialize for Streamed<F>
where
    F: Fn() -> I,
    I: Iterator,
    I::Item: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

#[derive(Serialize)]
struct RowAnswer {
    event: u32,
    action: &'static str,
    time_us: Option<u64>,
    step: Option<u64>,
    phase: StepPhase,
    requested_bytes: u64,
    active_bytes: u64,
    stack: Option<u32>,
    block: Option<BlockAnswer>,
}

#[derive(Serialize)]
struct BlockAnswer {
    address: String,
    requested_bytes: u64,
    block_bytes: u64,
    category: &'static str,
    cast: Option<CastSource>,
    line: String,
    mirrors: Option<LocationAnswer>,
    allocated: Option<MomentAnswer>,
    freed: Option<MomentAnswer>,
    lifetime_events: Option<u32>,
    lifetime_steps: Option<u32>,
    freed_by: EndingAnswer,
    reuses: Option<ReuseAnswer>,
}

#[derive(Serialize)]
struct MomentAnswer {
    event: u32,
    step: Option<u64>,
    phase: StepPhase,
    stack: Option<u32>,
}

#[derive(Serialize)]
struct EndingAnswer {
    kind: &'static str,
    text: String,
    location: Option<LocationAnswer>,
    node: Option<String>,
}

#[derive(Serialize)]
struct LocationAnswer {
    file: String,
    line: u64,
    function: String,
}

#[derive(Serialize)]
struct ReuseAnswer {
    event: Option<u32>,
    address: String,
    block_bytes: u64,
    line: String,
    blocks: u32,
}

#[derive(Serialize)]
struct ChainAnswer {
    address: String,
    tensors_in_window: u64,
    largest_block_bytes: u64,
    tensors: Vec<BlockAnswer>,
}

#[derive(Serialize)]
struct AliveAnswer<'a> {
    after_event: Option<u32>,
    bytes: u64,
    requested_bytes: u64,
    blocks: u64,
    tree: Vec<NodeAnswer<'a>>,
}

#[derive(Serialize)]
struct NodeAnswer<'a> {
    depth: u64,
    kind: &'static str,
    file: Option<&'a str>,
    line: Option<u64>,
    function: Option<&'a str>,
    node: Option<&'a str>,
    bytes: u64,
    requested_bytes: u64,
    blocks: u64,
}

fn alive(moment: AliveMoment, rows: &[TreeRow]) -> AliveAnswer<'_> {
    let top = || rows.iter().filter(|row| row.depth == 0).map(|row| row.sum);
    AliveAnswer {
        after_event: moment.after_event,
        bytes: top().map(|sum| sum.bytes).sum(),
        requested_bytes: top().map(|sum| sum.requested).sum(),
        blocks: top().map(|sum| sum.blocks).sum(),
        tree: rows.iter().map(node).collect(),
    }
}

fn node(row: &TreeRow) -> NodeAnswer<'_> {
    NodeAnswer {
        depth: count(row.depth),
        kind: kind(row.site.kind),
        file: row.site.file.as_deref(),
        line: row.site.line,
        function: row.site.function.as_deref(),
        node: row.site.node.as_deref(),
        bytes: row.sum.bytes,
        requested_bytes: row.sum.requested,
        blocks: row.sum.blocks,
    }
}

impl DeviceEvents<'_> {
    fn row(&self, row: EventRow, active_bytes: u64) -> RowAnswer {
        let event =
            self.list.report.scene.events.get(at(row.event)).copied().unwrap_or_default();
        RowAnswer {
            event: row.event,
            action: match row.action {
                RowAction::Alloc => "alloc",
                RowAction::Free => "free",
                RowAction::OutOfMemory => "oom",
            },
            time_us: Some(event.time_us).filter(|time| *time > 0),
            step: self.list.step(row.event),
            phase: self.list.phase(row.event),
            requested_bytes: event.size,
            active_bytes,
            stack: self.stacks.number(event.stack),
            block: self.block(row.allocation),
        }
    }

    fn block(&self, number: u32) -> Option<BlockAnswer> {
        let list = self.list;
        let allocation = list.allocation(number)?;
        let (from, until) = (list.alloc_event(allocation), list.free_event(allocation));
        let lifetime = from.zip(until).and_then(|(from, until)| until.checked_sub(from));
        Some(BlockAnswer {
            address: format!("{:#x}", allocation.address),
            requested_bytes: allocation.requested,
            block_bytes: allocation.size,
            category: words::category_of(list.report, number),
            cast: self.casts.get(&number).copied(),
            line: words::line_of(&list.report.scene, allocation),
            mirrors: self.mirrors(number),
            allocated: from.map(|event| self.moment(event, allocation.stack)),
            freed: until.map(|event| self.moment(event, list.free_stack(allocation))),
            lifetime_events: lifetime,
            lifetime_steps: list.lifetime_steps(allocation),
            freed_by: self.ending(number)?,
            reuses: self.reuse(number),
        })
    }

    /// The line that a block without a stack mirrors.
    fn mirrors(&self, number: u32) -> Option<LocationAnswer> {
        let scene = &self.list.report.scene;
        scene.sites.site(scene.mirrored_line(number)?).and_then(location)
    }

    fn moment(&self, event: u32, stack: u32) -> MomentAnswer {
        MomentAnswer {
            event,
            step: self.list.step(event),
            phase: self.list.phase(event),
            stack: self.stacks.number(stack),
        }
    }

    fn ending(&self, number: u32) -> Option<EndingAnswer> {
        let allocation = self.list.allocation(number)?;
        let text = words::ending(self.list, allocation);
        let (kind, site) = match self.list.ending(allocation) {
            Ending::EndOfWindow => ("end_of_window", None),
            Ending::Stack(stack) | Ending::Call(stack, ..) => {
                let site = words::site_of_stack(self.list.report, stack);
                (kind(site.kind), Some(site))
            }
            Ending::Backward => ("backward", None),
            Ending::Replaced => (
                "replaced",
                self.list.report.scene.sites.site(self.list.report.scene.sites.of(allocation)),
            ),
            Ending::Between(..) => ("between", None),
            Ending::Lost => ("lost", None),
        };
        Some(EndingAnswer {
            kind,
            text,
            location: site.and_then(location),
            node: site.and_then(|site| site.node.clone()),
        })
    }

    fn reuse(&self, number: u32) -> Option<ReuseAnswer> {
        let (earlier, blocks) = self.list.reuse(number)?;
        let allocation = self.list.allocation(earlier)?;
        Some(ReuseAnswer {
            event: self.list.alloc_event(allocation),
            address: format!("{:#x}", allocation.address),
            block_bytes: allocation.size,
            line: words::line_of(&self.list.report.scene, allocation),
            blocks,
        })
    }

    fn chain(&self, chain: &ReuseChain) -> ChainAnswer {
        ChainAnswer {
            address: format!("{:#x}", chain.address),
            tensors_in_window: chain.n_all,
            largest_block_bytes: chain.bytes,
            tensors: chain
                .allocations
                .iter()
                .filter_map(|number| self.block(*number))
                .collect(),
        }
    }
}

fn location(site: &Site) -> Option<LocationAnswer> {
    Some(LocationAnswer {
        file: site.file.clone()?,
        line: site.line?,
        function: site.function.clone().unwrap_or_default(),
    })
}

/// Stacks that an answer has, numbered from 0 in the order of the snapshot.
#[derive(Debug)]
struct StackNumbers {
    /// Numbers of the snapshot, rising.
    stacks: Vec<u32>,
}

impl StackNumbers {
    fn new(list: &EventList<'_>, form: EventsForm<'_>) -> Self {
        let scene = &list.report.scene;
        let mut is_used = vec![false; scene.snapshot.stacks.len()];
        let mut add = |stack: u32| {
            if let Some(is_used) = is_used.get_mut(at(stack)) {
                *is_used = stack != NO_STACK;
            }
        };
        let mut add_block = |number: u32| {
            if let Some(allocation) = list.allocation(number) {
                add(allocation.stack);
                add(list.free_stack(allocation));
            }
        };
        match form {
            EventsForm::List => {
                for row in list.rows() {
                    add_block(row.allocation);
                }
                for row in list.rows().filter(|row| row.action == RowAction::OutOfMemory) {
                    add(scene.events.get(at(row.event)).map_or(NO_STACK, |event| event.stack));
                }
            }
            EventsForm::Reuse => chains::find(list)
                .iter()
                .flat_map(|chain| &chain.allocations)
                .for_each(|number| add_block(*number)),
            EventsForm::Alive(..) => {}
        }
        let used = (0..).zip(is_used).filter(|(_, is_used)| *is_used);
        Self { stacks: used.map(|(stack, _)| stack).collect() }
    }

    /// The number of a stack in the answer; `None` for one without frames.
    fn number(&self, stack: u32) -> Option<u32> {
        self.stacks.binary_search(&stack).ok().map(id)
    }

    /// The frames of each stack, innermost first.
    fn frames(&self, device: &DeviceEvents<'_>) -> Vec<Vec<LocationAnswer>> {
        let report = device.list.report;
        let snapshot = report.scene.snapshot;
        let frame = |number: u32| {
            let frame = snapshot.frame(number);
            LocationAnswer {
                file: snapshot.text(frame.file),
                line: frame.line,
                function: snapshot.text(frame.name),
            }
        };
        let frames = |stack: &u32| {
            let frames = words::frames(report, *stack).into_iter().take(device.frames_max);
            frames.map(frame).collect()
        };
        self.stacks.iter().map(frames).collect()
    }
}

//! The way from the records of a pickle to a snapshot: what the root names, device by device.

use std::collections::BTreeMap;

use crate::error::{Fault, Unreadable};
use crate::integer::{at, id};
use crate::model::{Block, Device, Frame, HostMemory, MetadataRun, Segment, Snapshot};
use crate::read::pickle::Machine;
use crate::read::raw::{List, RawBlock, RawRoot, RawSegment, Record, RecordKind};
use crate::read::schema::Records;
use crate::read::sniff;
use crate::read::value::Value;

/// Devices of one process.
pub(crate) const DEVICES_MAX: usize = 256;

/// Ends a file whose bytes were all fed.
///
/// # Errors
/// It is not a snapshot, or not whole. `left` is how many bytes the machine did not use up.
pub fn finish(machine: Machine, left: usize) -> Result<Snapshot, Unreadable> {
    let offset = machine.offset();
    let (records, root, protocol) = machine.finish(left)?;
    build(records, root, protocol).map_err(|fault| Unreadable { fault, offset })
}

/// Reads a snapshot that is in memory.
///
/// # Errors
/// It is not a snapshot, or not whole.
pub fn read(bytes: &[u8]) -> Result<Snapshot, Unreadable> {
    sniff::check_pickle(bytes)?;
    let mut machine = Machine::default();
    let used = machine.feed(bytes)?;
    finish(machine, bytes.len() - used)
}

fn build(mut records: Records, root: Value, protocol: u8) -> Result<Snapshot, Fault> {
    let root = match root {
        Value::Dict(dict) => match records.record(dict) {
            Record::Of(RecordKind::Root, number) => {
                records.roots.get(at(number)).copied().unwrap_or_default()
            }
            _ => return Err("its dict has no segments".into()),
        },
        Value::List(_) => RawRoot { segments: Some(root), ..RawRoot::default() },
        _ => return Err("its root is neither a dict nor a list of segments".into()),
    };
    put_in_order(&mut records.metadata);
    let mut devices = BTreeMap::new();
    collect_segments(&records, root.segments, &mut devices)?;
    let mut n_left = records.events.len();
    if let Some(traces) = root.traces {
        collect_traces(&mut records, (traces, &mut n_left), &mut devices)?;
    }
    if devices.len() > DEVICES_MAX {
        return Err("it has more than 256 devices".into());
    }
    let host = host(&mut records, root, &mut n_left)?;
    let settings = number(&records, root.settings, RecordKind::Settings);
    let settings = settings.and_then(|number| records.settings.get(number)).copied();
    let settings = settings.unwrap_or_default();
    let rounding = number(&records, settings.rounding, RecordKind::Rounding);
    let rounding = rounding.and_then(|number| records.roundings.get(number)).copied();
    Ok(Snapshot {
        protocol,
        frames: frames(&records),
        annotations: collect_annotations(&records, root.annotations),
        strings: records.strings,
        stacks: records.stacks,
        streams: records.streams,
        pools: records.pools,
        events: records.events,
        metadata: records.metadata,
        devices: devices.into_values().collect(),
        host,
        ring: settings.ring,
        rounding: rounding.unwrap_or_default(),
    })
}

/// The position of a record of a kind, if a value is one.
fn number(records: &Records, value: Option<Value>, of: RecordKind) -> Option<usize> {
    let Value::Dict(dict) = value? else { return None };
    match records.record(dict) {
        Record::Of(kind, number) if kind == of => Some(at(number)),
        _ => None,
    }
}

fn frames(records: &Records) -> Vec<Frame> {
    (0..records.frames.len())
        .map(|number| match records.frames.get(id(number)) {
            [name, file, low, high] => Frame {
                name: *name,
                file: *file,
                line: u64::from(*low) | u64::from(*high) << 32,
            },
            _ => Frame::default(),
        })
        .collect()
}

/// The runs of records that a list is made of.
fn runs(records: &Records, value: Value, of: RecordKind) -> Option<Vec<(u32, u32)>> {
    let Value::List(list) = value else { return None };
    match records.lists.get(list) {
        List::Empty => Some(Vec::new()),
        List::Run(kind, start, end) if *kind == of => Some(vec![(*start, *end)]),
        List::Runs(kind, runs) if *kind == of => Some(runs.to_vec()),
        _ => None,
    }
}

fn device(devices: &mut BTreeMap<u64, Device>, index: u64) -> &mut Device {
    devices.entry(index).or_insert_with(|| Device { index, ..Device::default() })
}

fn collect_segments(
    records: &Records,
    value: Option<Value>,
    devices: &mut BTreeMap<u64, Device>,
) -> Result<(), Fault> {
    let segments = segments(records, value, "segments is not a list of segments")?;
    for (index, segment) in segments {
        device(devices, index).segments.push(segment);
    }
    for device in devices.values_mut() {
        device.segments.sort_by_key(|segment| segment.address);
    }
    Ok(())
}

/// The segments that a list is made of, each with its device.
fn segments(
    records: &Records,
    value: Option<Value>,
    fault: &'static str,
) -> Result<Vec<(u64, Segment)>, Fault> {
    let runs =
        value.and_then(|value| runs(records, value, RecordKind::Segment)).ok_or(fault)?;
    let mut n_blocks = 0;
    let mut segments = Vec::new();
    for number in runs.into_iter().flat_map(|(start, end)| start..end) {
        let raw = records.segments.get(at(number)).copied().unwrap_or_default();
        let segment = segment(records, &raw)?;
        n_blocks += segment.blocks.len();
        segments.push((raw.device, segment));
        if n_blocks > records.blocks.len() || segments.len() > records.segments.len() {
            return Err("a block or segment occurs twice".into());
        }
    }
    Ok(segments)
}

/// Pinned memory of the host, if any is recorded.
fn host(
    records: &mut Records,
    root: RawRoot,
    n_left: &mut usize,
) -> Result<Option<HostMemory>, Fault> {
    let mut host = HostMemory::default();
    if root.host_segments.is_some() {
        let fault = "host_segments is not a list of segments";
        let segments = segments(records, root.host_segments, fault)?;
        host.segments = segments.into_iter().map(|(_, segment)| segment).collect();
        host.segments.sort_by_key(|segment| segment.address);
    }
    if let Some(value) = root.host_traces {
        host.events = trace(records, value, n_left, "host_traces is not a list of events")?;
    }
    let is_recorded = !host.segments.is_empty() || host.events.0 < host.events.1;
    Ok(is_recorded.then_some(host))
}

fn segment(records: &Records, raw: &RawSegment) -> Result<Segment, Fault> {
    let runs = match raw.blocks {
        Some(value) => runs(records, value, RecordKind::Block)
            .ok_or("a segment's blocks is not a list of blocks")?,
        None => Vec::new(),
    };
    let mut address = raw.address;
    let mut blocks = Vec::new();
    for number in runs.into_iter().flat_map(|(start, end)| start..end) {
        if blocks.len() > records.blocks.len() {
            return Err("a block occurs twice".into());
        }
        let raw = records.blocks.get(at(number)).copied().unwrap_or_default();
        let block = block(records, &raw, address);
        address = block.address.saturating_add(block.size);
        blocks.push(block);
    }
    blocks.sort_by_key(|block| block.address);
    Ok(Segment {
        address: raw.address,
        size: raw.size,
        active_size: raw.active_size,
        stream: raw.stream,
        pool: raw.pool,
        is_small: raw.is_small,
        is_expandable: raw.is_expandable,
        blocks,
    })
}

/// A block; in old files it has no address and its history holds what was requested.
fn block(records: &Records, raw: &RawBlock, address: u64) -> Block {
    let past = raw.history.and_then(|number| records.histories.get(at(number)));
    Block {
        address: raw.address.unwrap_or(address),
        size: raw.size,
        requested: raw.requested.or(past.map(|past| past.requested)).unwrap_or(raw.size),
        state: raw.state,
        stack: if raw.stack == 0 { past.map_or(0, |past| past.stack) } else { raw.stack },
    }
}

fn collect_traces(
    records: &mut Records,
    (value, n_left): (Value, &mut usize),
    devices: &mut BTreeMap<u64, Device>,
) -> Result<(), Fault> {
    let Value::List(list) = value else { return Err("device_traces is not a list".into()) };
    let lists = match records.lists.get(list) {
        List::Empty => return Ok(()),
        List::Lists(lists) => lists.clone(),
        _ => return Err("device_traces is not a list of lists".into()),
    };
    for (index, list) in (0..).zip(*lists) {
        let fault = "a trace in device_traces is not a list of events";
        let events = trace(records, Value::List(list), n_left, fault)?;
        if events.0 < events.1 {
            device(devices, index).events = events;
        }
    }
    Ok(())
}

/// The events that a list is made of, side by side. `n_left`: events that are in no trace yet.
fn trace(
    records: &mut Records,
    value: Value,
    n_left: &mut usize,
    fault: &'static str,
) -> Result<(usize, usize), Fault> {
    let runs = runs(records, value, RecordKind::Event).ok_or(fault)?;
    let n_events: usize = runs.iter().map(|(start, end)| at(*end) - at(*start)).sum();
    *n_left = n_left.checked_sub(n_events).ok_or("an event occurs in two traces")?;
    Ok(match runs.as_slice() {
        [] => (0, 0),
        [(start, end)] => (at(*start), at(*end)),
        runs => {
            let start = records.events.len();
            for (from, to) in runs {
                copy_metadata(records, (*from, *to));
                records.events.extend_from_within(at(*from)..at(*to));
            }
            (start, records.events.len())
        }
    })
}

/// Sorts runs by their first events; of two that share an event, the first keeps it.
fn put_in_order(runs: &mut Vec<MetadataRun>) {
    runs.sort_by_key(|run| run.first);
    let mut end = 0;
    runs.retain_mut(|run| {
        run.first = run.first.max(end);
        end = end.max(run.end);
        run.first < run.end
    });
}

/// Copies the metadata of events that are about to be copied to the end.
fn copy_metadata(records: &mut Records, (from, to): (u32, u32)) {
    let start = id(records.events.len());
    let first = records.metadata.partition_point(|run| run.end <= from);
    let last = records.metadata.partition_point(|run| run.first < to);
    for number in first..last {
        if let Some(run) = records.metadata.get(number).copied() {
            records.metadata.push(MetadataRun {
                first: start + (run.first.max(from) - from),
                end: start + (run.end.min(to) - from),
                text: run.text,
            });
        }
    }
}

fn collect_annotations(
    records: &Records,
    value: Option<Value>,
) -> Vec<crate::model::Annotation> {
    let runs = value
        .and_then(|value| runs(records, value, RecordKind::Annotation))
        .unwrap_or_default();
    let mut annotations: Vec<_> = runs
        .into_iter()
        .flat_map(|(start, end)| at(start)..at(end))
        .take(records.annotations.len())
        .filter_map(|number| records.annotations.get(number).copied())
        .collect();
    annotations.sort_by_key(|annotation| annotation.time_us);
    annotations
}

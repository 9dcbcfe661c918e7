//! The pictures of one device as data: the timeline's samples and bands, its steps and marks,
//! the segment maps.

use serde::Serialize;

use crate::analyze::device_report::DeviceReport;
use crate::analyze::history::History;
use crate::integer::{at, id};
use crate::render::html::bands::{self, MemoryBand, UNIT_BYTES};
use crate::render::html::detail::Detail;
use crate::render::html::map::{self, SegmentMap};
use crate::render::html::samples;
use crate::render::text::ShownMoment;

#[derive(Debug, Serialize)]
pub(crate) struct DevicePicture {
    device: u64,
    /// Bytes that `held` and `reserved` are counted in.
    unit: u64,
    /// States that are shown: the number of events before each.
    states: Vec<u32>,
    /// Time of each state since the first event, in µs; `None` where the file has no times.
    micros: Option<Vec<u64>>,
    reserved: Vec<u64>,
    lines: Vec<MemoryBand>,
    categories: Vec<MemoryBand>,
    /// The beginnings of steps, with their numbers: every so many of them.
    steps: Vec<(u32, u64)>,
    every: usize,
    peak: u32,
    /// Failed allocations.
    failures: Vec<u32>,
    maps: Vec<SegmentMap>,
}

impl DevicePicture {
    /// Draws a device. Near `moment` everything is shown.
    pub(crate) fn new(report: &DeviceReport<'_>, detail: Detail, moment: ShownMoment) -> Self {
        let scene = &report.scene;
        let failures: Vec<u32> = report.oom.iter().map(|failure| failure.event).collect();
        let mut moments = vec![scene.timeline.peak.state];
        moments.extend(failures.first());
        if let ShownMoment::Step(step) = moment {
            let step_report =
                report.step_reports.iter().find(|step_report| step_report.step == step);
            moments.extend(step_report.map(|step_report| step_report.peak_event + 1));
        }
        let states = samples::choose(scene, detail.samples, &moments);
        let every = scene.steps.marks.len().div_ceil(detail.marks.max(1)).max(1);
        let steps = (1..).zip(&scene.steps.marks).step_by(every);
        Self {
            device: scene.device.index,
            unit: UNIT_BYTES,
            micros: micros(report, &states),
            reserved: reserved(report, &states),
            lines: bands::lines(report, &states, detail),
            categories: bands::categories(report, &states),
            steps: steps
                .map(|(slot, mark)| (*mark, scene.steps.label(slot).unwrap_or(0)))
                .collect(),
            every,
            peak: scene.timeline.peak.state,
            failures: failures.into_iter().take(detail.marks).collect(),
            maps: maps(report, detail.spans),
            states,
        }
    }
}

fn micros(report: &DeviceReport<'_>, states: &[u32]) -> Option<Vec<u64>> {
    let events = report.scene.events;
    let first = events.first().filter(|event| event.time_us > 0)?.time_us;
    let time = |state: &u32| {
        let event = state.checked_sub(1).and_then(|event| events.get(at(event)));
        event.map_or(0, |event| event.time_us.saturating_sub(first))
    };
    Some(states.iter().map(time).collect())
}

fn reserved(report: &DeviceReport<'_>, states: &[u32]) -> Vec<u64> {
    let timeline = &report.scene.timeline;
    let mut states = states.iter().copied().peekable();
    let mut reserved = Vec::with_capacity(states.len());
    let mut note = |state: u32, bytes: u64| {
        while states.next_if(|wanted| *wanted <= state).is_some() {
            reserved.push(bytes / UNIT_BYTES);
        }
    };
    note(0, timeline.at_start.reserved);
    for (state, level) in (1..).zip(timeline.levels(report.scene.events)) {
        note(state, level.reserved);
    }
    reserved
}

/// The end, the peak, and the first failed allocation.
fn maps(report: &DeviceReport<'_>, n_spans: usize) -> Vec<SegmentMap> {
    let scene = &report.scene;
    let end = id(scene.events.len());
    let mut moments = vec![(end, "at the end"), (scene.timeline.peak.state, "at the peak")];
    moments.extend(report.oom.first().map(|failure| (failure.event, "when memory ran out")));
    let mut backwards = moments.clone();
    backwards.sort_by_key(|(state, _)| std::cmp::Reverse(*state));
    let mut history = History::at_end(scene);
    let mut maps: Vec<(u32, SegmentMap)> = Vec::new();
    for (state, name) in backwards {
        if maps.iter().any(|(other, _)| *other == state) {
            continue;
        }
        history.rewind(scene, at(state));
        maps.push((state, map::draw(scene, &history, (name, n_spans))));
    }
    maps.into_iter().map(|(_, map)| map).filter(|map| !map.groups.is_empty()).collect()
}

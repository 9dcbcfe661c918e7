//! The pictures of one device as data: the timeline's samples and bands, its steps and marks,
//! the segment maps.

use serde::Serialize;

use crate::analyze::device_report::Study;
use crate::analyze::history::Past;
use crate::integer::{at, id};
use crate::render::html::bands::{self, MemoryBand, UNIT_BYTES};
use crate::render::html::detail::Detail;
use crate::render::html::map::{self, SegmentMap};
use crate::render::html::samples;
use crate::render::text::ShownMoment;

#[derive(Debug, Serialize)]
pub struct DevicePicture {
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
    /// Where steps begin, with their numbers: every so many of them.
    steps: Vec<(u32, u64)>,
    every: usize,
    peak: u32,
    /// Failed allocations.
    failures: Vec<u32>,
    maps: Vec<SegmentMap>,
}

impl DevicePicture {
    /// Draws a device. Near `moment` everything is shown.
    pub fn new(study: &Study<'_>, detail: Detail, moment: ShownMoment) -> Self {
        let scene = &study.scene;
        let failures: Vec<u32> = study.oom.iter().map(|failure| failure.event).collect();
        let mut moments = vec![scene.timeline.peak.state];
        moments.extend(failures.first());
        if let ShownMoment::Step(step) = moment {
            let stage = study.stages.iter().find(|stage| stage.step == step);
            moments.extend(stage.map(|stage| stage.peak_event + 1));
        }
        let states = samples::choose(scene, detail.samples, &moments);
        let every = scene.steps.marks.len().div_ceil(detail.marks.max(1)).max(1);
        let steps = (1..).zip(&scene.steps.marks).step_by(every);
        Self {
            device: scene.device.index,
            unit: UNIT_BYTES,
            micros: micros(study, &states),
            reserved: reserved(study, &states),
            lines: bands::lines(study, &states, detail),
            categories: bands::categories(study, &states),
            steps: steps
                .map(|(slot, mark)| (*mark, scene.steps.label(slot).unwrap_or(0)))
                .collect(),
            every,
            peak: scene.timeline.peak.state,
            failures: failures.into_iter().take(detail.marks).collect(),
            maps: maps(study, detail.spans),
            states,
        }
    }
}

fn micros(study: &Study<'_>, states: &[u32]) -> Option<Vec<u64>> {
    let events = study.scene.events;
    let first = events.first().filter(|event| event.time_us > 0)?.time_us;
    let time = |state: &u32| {
        let event = state.checked_sub(1).and_then(|event| events.get(at(event)));
        event.map_or(0, |event| event.time_us.saturating_sub(first))
    };
    Some(states.iter().map(time).collect())
}

fn reserved(study: &Study<'_>, states: &[u32]) -> Vec<u64> {
    let timeline = &study.scene.timeline;
    let mut states = states.iter().copied().peekable();
    let mut reserved = Vec::with_capacity(states.len());
    let mut note = |state: u32, bytes: u64| {
        while states.next_if(|wanted| *wanted <= state).is_some() {
            reserved.push(bytes / UNIT_BYTES);
        }
    };
    note(0, timeline.reserved_at_start);
    for (state, level) in (1..).zip(timeline.levels(study.scene.events)) {
        note(state, level.reserved);
    }
    reserved
}

/// The end, the peak, and the first failed allocation.
fn maps(study: &Study<'_>, n_spans: usize) -> Vec<SegmentMap> {
    let scene = &study.scene;
    let end = id(scene.events.len());
    let mut moments = vec![(end, "at the end"), (scene.timeline.peak.state, "at the peak")];
    moments.extend(study.oom.first().map(|failure| (failure.event, "when memory ran out")));
    let mut backwards = moments.clone();
    backwards.sort_by_key(|(state, _)| std::cmp::Reverse(*state));
    let mut past = Past::at_end(scene);
    let mut maps: Vec<(u32, SegmentMap)> = Vec::new();
    for (state, name) in backwards {
        if maps.iter().any(|(other, _)| *other == state) {
            continue;
        }
        past.rewind(scene, at(state));
        maps.push((state, map::draw(scene, &past, (name, n_spans))));
    }
    maps.into_iter().map(|(_, map)| map).filter(|map| !map.groups.is_empty()).collect()
}

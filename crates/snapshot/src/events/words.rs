//! Events in words, for a terminal and for a document.

use crate::analyze::casts::CastSource;
use crate::analyze::categories::{Categories, Category};
use crate::analyze::device::DeviceScene;
use crate::analyze::device_report::DeviceReport;
use crate::analyze::mirrors::{self, Mirrored};
use crate::analyze::phases::StepPhase;
use crate::analyze::sites::{FrameKind, Site};
use crate::events::ending::Ending;
use crate::events::list::EventList;
use crate::integer::at;
use crate::render::words;
use crate::replay::Allocation;
use stepmem_types::format::clean::shortened;
use stepmem_types::format::units::{grouped, many, whole_bytes};

/// The name of a category.
pub(crate) fn category(category: Category) -> &'static str {
    let mut chosen = Categories::<bool>::default();
    *chosen.of(category) = true;
    let named = chosen.named().into_iter().find(|(_, is_chosen)| **is_chosen);
    named.map_or("unknown", |(name, _)| name)
}

/// The name of the category of an allocation by number.
pub(crate) fn category_of(report: &DeviceReport<'_>, number: u32) -> &'static str {
    category(report.categories.get(at(number)).copied().unwrap_or_default())
}

/// A phase by the name that `--phase` takes.
pub fn phase_of(name: &str) -> Option<StepPhase> {
    StepPhase::ALL.into_iter().find(|phase| words::phase(*phase) == name)
}

/// The line of an allocation; of one that was made in backward and has no stack, those words.
pub(crate) fn line_of(scene: &DeviceScene<'_>, allocation: &Allocation) -> String {
    if mirrors::is_of_backward(scene, allocation) {
        words::name_of_mirrored(&Mirrored::default())
    } else {
        words::name(scene.sites.site(scene.sites.of(allocation)).unwrap_or(&Site::NOWHERE))
    }
}

/// The line of an allocation by number in so many characters: without its folder, then without
/// its function, at last the end of its name. Without a stack, the line that it mirrors.
pub(crate) fn line_within(report: &DeviceReport<'_>, number: u32, n_max: usize) -> String {
    let scene = &report.scene;
    let Some(allocation) = scene.timeline.allocations.get(at(number)) else {
        return words::name_within(&Site::NOWHERE, n_max);
    };
    if !mirrors::is_of_backward(scene, allocation) {
        return words::name_of_within(scene, scene.sites.of(allocation), n_max);
    }
    let mirrored = scene.mirrored_line(number).and_then(|line| scene.sites.site(line));
    let whole = match mirrored {
        Some(line) => format!("{}, like {}", words::AUTOGRAD, line.short()),
        None => line_of(scene, allocation),
    };
    if whole.chars().count() <= n_max { whole } else { words::AUTOGRAD.to_owned() }
}

/// The text about the tensor that an allocation by number mirrors, if it has no stack.
pub(crate) fn mirrors(report: &DeviceReport<'_>, number: u32) -> Option<String> {
    let line = report.scene.mirrored_line(number)?;
    Some(format!("as large as what {} made", words::name_of(&report.scene, line)))
}

/// The text about a copy in another precision.
pub(crate) fn cast(source: CastSource) -> &'static str {
    match source {
        CastSource::Input => "an input in half precision",
        CastSource::Weight => "a weight in half precision",
        CastSource::Gradient => "a half-precision gradient in its weight's precision",
    }
}

/// Returns the line that a stack is counted under.
pub(crate) fn site_of_stack<'a>(report: &'a DeviceReport<'_>, stack: u32) -> &'a Site {
    let sites = report.scene.sites;
    sites.site(sites.of_origin(stack)).unwrap_or(&Site::NOWHERE)
}

/// Names the end of an allocation, after "freed by" where something freed it.
pub(crate) fn ending(list: &EventList<'_>, allocation: &Allocation) -> String {
    let line = |event: Option<u32>| {
        let other = event.and_then(|event| list.report.scene.timeline.allocation_of(at(event)));
        other.map(|other| line_of(&list.report.scene, other))
    };
    match list.ending(allocation) {
        Ending::EndOfWindow => "alive at the end of the window".to_owned(),
        Ending::Stack(stack) => {
            format!("freed by {}", words::name(site_of_stack(list.report, stack)))
        }
        Ending::Call(stack, before, after) => {
            let call = words::name(site_of_stack(list.report, stack));
            let [before, after] = [before, after].map(|event| {
                let stack =
                    list.report.scene.events.get(at(event)).map_or(0, |event| event.stack);
                shortened(&site_of_stack(list.report, stack).short(), words::NAME_CHARS)
            });
            format!("freed in the call at {call}, between {before} and {after}")
        }
        Ending::Backward => "freed by autograd, in the backward pass".to_owned(),
        Ending::Replaced => "freed once its line had made the next".to_owned(),
        Ending::Between(before, after) => match (line(before), line(after)) {
            (Some(before), Some(after)) => format!("freed after {before}, before {after}"),
            (Some(before), None) => format!("freed after {before}"),
            (None, Some(after)) => format!("freed before {after}"),
            (None, None) => "freed, by what cannot be told".to_owned(),
        },
        Ending::Lost => "its end is not in the trace".to_owned(),
    }
}

/// Gives the lifetime of an allocation, where both ends are in the window.
pub(crate) fn lifetime(list: &EventList<'_>, allocation: &Allocation) -> Option<String> {
    let (from, until) = (list.alloc_event(allocation)?, list.free_event(allocation)?);
    let events = many(u64::from(until.checked_sub(from)?), "event");
    Some(match (list.lifetime_steps(allocation), list.step(until)) {
        (Some(0), _) => format!("lives {events}, in one step"),
        (Some(_), Some(step)) => format!("lives {events}, until step {step}"),
        _ => format!("lives {events}"),
    })
}

/// Names the allocation whose memory an allocation takes.
pub(crate) fn reuse(list: &EventList<'_>, number: u32) -> Option<String> {
    let (earlier, n_blocks) = list.reuse(number)?;
    let allocation = list.allocation(earlier)?;
    let made = match list.alloc_event(allocation) {
        Some(event) => format!("event {event}"),
        None => "a block that is older than the window".to_owned(),
    };
    let others = match n_blocks.saturating_sub(1) {
        0 => String::new(),
        others => format!(", and of {} more", grouped(u64::from(others))),
    };
    Some(format!(
        "in the memory of {made} ({}, {}){others}",
        whole_bytes(allocation.size),
        line_of(&list.report.scene, allocation),
    ))
}

/// The useful frames of a stack: the program's, else all but those of the recording and the
/// allocator.
pub(crate) fn frames(report: &DeviceReport<'_>, stack: u32) -> Vec<u32> {
    let (snapshot, sites) = (report.scene.snapshot, report.scene.sites);
    let own: Vec<u32> = sites.user_frames(snapshot, stack).collect();
    if !own.is_empty() {
        return own;
    }
    let tells = |frame: &u32| sites.frame_kinds.get(at(*frame)) != Some(&FrameKind::Plumbing);
    snapshot.stacks.get(stack).iter().copied().filter(tells).collect()
}

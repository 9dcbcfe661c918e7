//! The sentences that pages share, for a terminal and for a browser.

use crate::snapshot::fragmentation::Fragmentation;
use crate::snapshot::leak::{Blame, Leak, LeakVerdict};
use crate::snapshot::model::{Action, NO_STACK};
use crate::snapshot::note::Note;
use crate::snapshot::num::{count, real};
use crate::snapshot::oom::{OomCause, OutOfMemory};
use crate::snapshot::phases::StepPhase;
use crate::snapshot::scene::DeviceScene;
use crate::snapshot::sites::{Site, SiteKind};
use crate::snapshot::steps::Marker;
use crate::snapshot::study::Study;
use crate::text::clean::shortened;
use crate::text::units::{bytes, grouped, many, whole_bytes};

/// Characters of a file's or function's name: two of them and the columns before fit a page.
pub const NAME_CHARS: usize = 30;
/// Characters of a frame in a document.
const FRAME_CHARS: usize = 160;

/// A site by number, for a page.
pub fn name_of(study: &Study<'_>, site: u32) -> String {
    name(study.scene.sites.site(site).unwrap_or(&Site::NOWHERE))
}

/// A site for a page: the folder that a file is in is shown, the path to it is not.
pub fn name(site: &Site) -> String {
    let function =
        site.function.as_deref().map(|name| shortened(name, NAME_CHARS)).unwrap_or_default();
    match site.kind {
        SiteKind::Python => {
            let file = tail(site.file.as_deref().unwrap_or("?"));
            match site.line {
                Some(line) => format!("{file}:{line} {function}"),
                None => format!("{file} {function}"),
            }
        }
        SiteKind::Backward => {
            format!(
                "backward of {}",
                shortened(site.node.as_deref().unwrap_or("?"), NAME_CHARS)
            )
        }
        SiteKind::Cpp if function.is_empty() => "C++ without a telling frame".to_owned(),
        SiteKind::Cpp => format!("C++ {function}"),
        SiteKind::NoFrames => "(no stack recorded)".to_owned(),
        SiteKind::BeforeRecording => "(allocated before the recording)".to_owned(),
    }
}

/// A frame with its whole path.
pub fn frame(file: &str, line: u64, function: &str) -> String {
    shortened(&format!("{file}:{line} {function}"), FRAME_CHARS)
}

/// The last two parts of a path.
pub fn tail(file: &str) -> String {
    let path = file.replace('\\', "/");
    let start = path.rmatch_indices('/').nth(1).map_or(0, |(slash, _)| slash + 1);
    shortened(path.get(start..).unwrap_or(&path), NAME_CHARS)
}

/// The line that is blamed for a leak.
#[derive(Clone, Debug)]
pub struct Blamed {
    pub name: String,
    /// A stack through it.
    pub origin: u32,
    /// Frames of the user in that stack up to it, itself included.
    pub skipped: usize,
}

/// Returns the line to blame for a leak.
pub fn blamed(study: &Study<'_>) -> Blamed {
    let scene = &study.scene;
    match &study.leak.blame {
        Some(Blame::Frame { frame, origin, .. }) => {
            let frames = scene.sites.user_frames(scene.snapshot, *origin);
            Blamed {
                name: name(&Site::of_frame(scene.snapshot, *frame)),
                origin: *origin,
                skipped: frames.take_while(|other| other != frame).count() + 1,
            }
        }
        Some(Blame::Site(row)) => {
            Blamed { name: name_of(study, row.site), origin: row.origin, skipped: 1 }
        }
        None => Blamed { name: "an unknown line".to_owned(), origin: NO_STACK, skipped: 0 },
    }
}

/// Says why no leak is reported.
pub fn no_leak(study: &Study<'_>) -> String {
    if study.leak.verdict == LeakVerdict::InsufficientHistory {
        let marks = study.scene.steps.marks.len();
        let seen = if study.scene.events.is_empty() {
            "the snapshot has no events".to_owned()
        } else {
            let begin = if marks == 1 { "step begins" } else { "steps begin" };
            format!("{marks} {begin} in the window")
        };
        return format!(
            "Cannot be told: {seen}, and a verdict needs six marks, five whole steps. Record at least 20 \
             steps."
        );
    }
    let floor = study.leak.floor_rate.map_or_else(String::new, |rate| {
        format!(" The least active memory of a step changes by {} a step.", bytes(rate))
    });
    format!("No line goes on growing.{floor}")
}

/// Says how much of the growth the suspects explain.
pub fn explained(leak: &Leak) -> Option<String> {
    let floor = leak.floor_rate.filter(|floor| *floor > 0.0)?;
    let ratio = 100.0 * leak.rate.unwrap_or(0.0) / floor;
    Some(format!(
        "The least active memory of a step grows by {} a step; the lines below explain {ratio:.0}% of it.",
        bytes(floor)
    ))
}

/// Says why an allocation failed.
pub fn reason(study: &Study<'_>, failure: &OutOfMemory) -> String {
    match failure.cause {
        OomCause::Shortage => format!(
            "Shortage: {} were active of {} reserved, and the driver had {} left. Even without gaps it \
             would not have fitted.",
            whole_bytes(failure.active),
            whole_bytes(failure.reserved),
            whole_bytes(failure.device_free)
        ),
        OomCause::Fragmentation => format!(
            "Fragmentation: {} were free in the pool, but the largest piece was {}. {}",
            whole_bytes(failure.eligible_free),
            whole_bytes(failure.largest_free),
            if is_expandable(study) {
                "Segments are expandable already: free the blocks that lie between, or make fewer sizes."
            } else {
                "Try PYTORCH_ALLOC_CONF=expandable_segments:True."
            }
        ),
        OomCause::PendingFree => format!(
            "Pending frees: {} had been freed, but another stream still used them.",
            whole_bytes(failure.pending)
        ),
    }
}

fn is_expandable(study: &Study<'_>) -> bool {
    study.scene.device.segments.iter().any(|segment| segment.is_expandable)
}

/// Writes a number of blocks.
pub fn blocks(count: u64) -> String {
    format!("{} block{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// Returns the bytes that are reserved and not used, each with its meaning.
pub fn unused(found: &Fragmentation) -> [(u64, &'static str); 4] {
    [
        (found.stranded, "stranded: free, in segments that a live block holds"),
        (found.releasable, "releasable: torch.cuda.empty_cache() would give it back"),
        (found.internal, "inside blocks, beyond what tensors asked for"),
        (found.largest_free, "the largest free block"),
    ]
}

/// Names a phase of a step.
pub fn phase(phase: StepPhase) -> &'static str {
    match phase {
        StepPhase::Forward => "forward",
        StepPhase::Backward => "backward",
        StepPhase::Optimizer => "optimizer",
    }
}

/// Writes a note with its figures.
pub fn note(note: &Note) -> String {
    let size = note.bytes.map(|size| format!(" ({})", whole_bytes(size))).unwrap_or_default();
    format!("{}{size}", note.text)
}

/// Returns what to do next.
pub fn advice(study: &Study<'_>) -> &'static str {
    let failures =
        study.scene.events.iter().filter(|event| event.action == Action::OutOfMemory);
    if study.leak.verdict == LeakVerdict::Leak {
        "Look at the line named under Leak: something keeps what it makes. After the fix, record again \
         and compare with `stepmem snapshot diff BEFORE AFTER`."
    } else if failures.count() > 0 {
        "Look at what holds most under Out of memory; `--at oom --by category` sums it up."
    } else if study.leak.verdict == LeakVerdict::InsufficientHistory {
        "To tell a leak, record 20 steps or more: torch.cuda.memory._record_memory_history(\
         max_entries=1000000, context=\"alloc\", stacks=\"python\"), then _dump_snapshot()."
    } else {
        "`--at peak` shows who holds the peak, `--by category` what it is for."
    }
}

/// Says why no rank stands out. `is_known`: whether there are enough ranks to say.
pub fn no_odd_rank(is_known: bool) -> &'static str {
    if is_known {
        "No rank stands out in any line."
    } else {
        "Cannot be told: three readable ranks are needed to say which differs."
    }
}

/// Says how many steps there are, and what they are known by.
pub fn steps(scene: &DeviceScene<'_>) -> String {
    let by = match scene.steps.marker {
        Marker::Profiler => "ProfilerStep",
        Marker::Optimizer => "Optimizer.step",
        Marker::ZeroGrad => "Optimizer.zero_grad",
        Marker::Dataloader => "the DataLoader",
        Marker::Metadata => "user_metadata",
        Marker::Phases => "guesses from the phases of training",
        Marker::Recurrence => "guesses from what recurs",
        Marker::None => {
            return "no steps to be seen: no marks, and no line that comes round again"
                .to_owned();
        }
    };
    let n_steps = many(count(scene.steps.marks.len()), "step");
    match &scene.steps.training_loop {
        Some(found) if !scene.steps.marker.is_marked() => {
            let line = Site::of_frame(scene.snapshot, found.line);
            format!(
                "{n_steps} without marks, each begun at {}",
                shortened(&line.short(), NAME_CHARS)
            )
        }
        _ => format!("{n_steps} marked by {by}"),
    }
}

/// Whether tensor bytes and block bytes differ enough to say both.
pub fn differs(requested: u64, active: u64) -> bool {
    real(active) > 1.1 * real(requested)
}

//! PyTorch memory snapshots: from the bytes of a pickle to the line that leaks.
//!
//! ```
//! use stepmem_snapshot::{DeviceReport, Sites, read};
//!
//! # use stepmem_snapshot::{Action, Annotation, Block, Device, Event, Segment, Snapshot, State, write};
//! # // A list that keeps 1 MiB of each of 20 steps.
//! # fn recorded() -> Vec<u8> {
//! #     let mut snapshot = Snapshot::empty();
//! #     let name = snapshot.strings.intern(b"Optimizer.step#SGD.step");
//! #     let stack = snapshot.stack(&[("/job/train.py", 12, "keep"), ("/job/train.py", 30, "main")]);
//! #     let mut segment = Segment { address: 1 << 40, size: 20 << 20, ..Segment::default() };
//! #     for step in 0..20_u64 {
//! #         let (address, size, time_us) = ((1 << 40) + (step << 20), 1 << 20, 1 + 10 * step);
//! #         let action = Action::Alloc;
//! #         snapshot.events.push(Event { address, size, time_us, stack, action, ..Event::default() });
//! #         segment.blocks.push(Block { address, size, requested: size, state: State::Allocated, stack });
//! #         snapshot.annotations.push(Annotation { name, is_start: true, device: Some(0), time_us: time_us + 5 });
//! #     }
//! #     let n_events = snapshot.events.len();
//! #     snapshot.devices.push(Device { index: 0, segments: vec![segment], events: (0, n_events) });
//! #     write(&snapshot)
//! # }
//! let bytes = recorded();
//! let snapshot = read(&bytes).unwrap();
//! let sites = Sites::new(&snapshot, None);
//! for report in DeviceReport::of_devices(&snapshot, &sites) {
//!     let line = report.leak.suspects.first().and_then(|suspect| sites.site(suspect.row.site));
//!     assert_eq!(line.unwrap().short(), "train.py:12");
//! }
//! ```

#![warn(missing_docs)]

mod analyze;
mod error;
mod events;
mod integer;
mod model;
mod read;
mod render;
mod replay;
mod write;

pub use analyze::births::StateSeries;
pub use analyze::device::DeviceScene;
pub use analyze::device_report::DeviceReport;
pub use analyze::diff::compare_files;
pub use analyze::fit::FitQuestion;
pub use analyze::leak::{Blame, LeakVerdict};
pub use analyze::passes::before_zero_grad;
pub use analyze::pinned::{Pinned, pinned};
pub use analyze::ranks::{RankRow, RankSnapshot, compare_ranks, rank_of};
pub use analyze::sites::{Site, SiteKind, SiteRow, Sites};
pub use error::Unreadable;
pub use events::answer::{AliveMoment, EventsForm};
pub use events::filter::{EventFilter, LineFilter};
pub use events::list::EventList;
pub use events::page::EventsExtent;
pub use events::words::phase_of;
pub use integer::{at, id, real};
pub use model::{
    Action, Annotation, Block, Device, Event, HostMemory, MetadataRun, NO_STACK, Place,
    Segment, Snapshot, State,
};
pub use read::load::{finish, read};
pub use read::pickle::{Machine, PIECE_BYTES_MIN};
pub use read::sniff::{SNIFF_BYTES, Wrapping, check_pickle, wrapping};
pub use write::write;

/// Pages for a terminal.
pub mod text {
    pub use crate::events::page::{alive, list, reuse};
    pub use crate::render::text::{Question, RowKind, ShownMoment, device, pinned, state};
    pub use crate::render::text_of_many::{diff, ranks};
}

/// Answers as JSON.
pub mod json {
    pub use crate::events::answer::events;
    pub use crate::events::tree::alive;
    pub use crate::render::compared::{diff_for_json as diff, ranks_for_json as ranks};
    pub use crate::render::json::{File, show};
}

/// Documents, and the pieces of them that others write.
pub mod html {
    pub use crate::render::html::compared::{diff, ranks};
    pub use crate::render::html::document::{DocumentHead, hash, write};
    pub use crate::render::html::escape::{data, escaped};
}

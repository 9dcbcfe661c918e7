//! The analysis of a snapshot: who holds the memory, what leaks, why it ran out, and what
//! differs between two.

pub(crate) mod births;
pub(crate) mod casts;
pub(crate) mod categories;
pub(crate) mod causes;
pub(crate) mod device;
pub(crate) mod device_report;
pub(crate) mod diff;
pub(crate) mod fit;
pub(crate) mod fragmentation;
pub(crate) mod generations;
pub(crate) mod gradients;
pub(crate) mod heads;
pub(crate) mod history;
pub(crate) mod leak;
pub(crate) mod lingering;
mod meeting;
pub(crate) mod mirrors;
pub(crate) mod note;
pub(crate) mod notes;
pub(crate) mod oom;
pub(crate) mod passes;
pub(crate) mod paths;
pub(crate) mod phases;
pub(crate) mod pinned;
pub(crate) mod pools;
pub(crate) mod queues;
pub(crate) mod ranks;
pub(crate) mod roles;
pub(crate) mod sites;
pub(crate) mod skipped;
pub(crate) mod step_figures;
pub(crate) mod step_minima;
pub(crate) mod steps;
pub(crate) mod update_buffers;
pub(crate) mod what_if;
pub(crate) mod workspaces;

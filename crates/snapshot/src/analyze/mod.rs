//! The analysis of a snapshot: who holds the memory, what leaks, why it ran out, and what
//! differs between two.

pub mod births;
pub mod casts;
pub mod categories;
pub mod causes;
pub mod device;
pub mod device_report;
pub mod diff;
pub mod fit;
pub mod fragmentation;
pub mod generations;
pub mod gradients;
pub mod heads;
pub mod history;
pub mod leak;
pub mod lingering;
mod meeting;
pub mod mirrors;
pub mod note;
pub mod notes;
pub mod oom;
pub mod passes;
pub mod paths;
pub mod phases;
pub mod pinned;
pub mod pools;
pub mod queues;
pub mod ranks;
pub mod roles;
pub mod sites;
pub mod skipped;
pub mod step_figures;
pub mod step_minima;
pub mod steps;
pub mod update_buffers;
pub mod what_if;
pub mod workspaces;

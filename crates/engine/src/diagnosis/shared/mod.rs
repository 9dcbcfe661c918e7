//! What several diagnoses share.
//!
//! - `input`: what they judge. `figures`: the evidence of one, and the macro of their table.
//! - `growth`, `pressure`, `balance`: when growth, pressure and imbalance count, and how severe
//!   they are. `filling`, `run_end`, `taken_at_start`: what makes growth or pressure harmless.
//! - `trend_figures`, `growth_or`, and the figures of children, malloc, shared memory and kept
//!   blocks: evidence.
//! - `site_words`, `host_words`, `names`, `plan`: words.

pub(crate) mod balance;
pub(crate) mod children_figures;
pub(crate) mod figures;
pub(crate) mod filling;
pub(crate) mod growth;
pub(crate) mod growth_or;
pub(crate) mod host_words;
pub(crate) mod input;
pub(crate) mod kept_blocks;
pub(crate) mod malloc_figures;
pub(crate) mod names;
pub(crate) mod plan;
pub(crate) mod pressure;
pub(crate) mod run_end;
pub(crate) mod shm_figures;
pub(crate) mod site_words;
pub(crate) mod taken_at_start;
pub(crate) mod trend_figures;

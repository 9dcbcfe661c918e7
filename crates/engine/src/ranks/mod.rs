//! One rank: its life, its recent peaks, its life summed up, and what others see of it.

pub mod basis;
pub mod name_conflicts;
pub mod refusal;
pub mod table;

pub mod ended;
pub mod host;
pub mod lifecycle;
pub mod lifetime;
pub mod peaks;
pub mod state;
pub mod view;

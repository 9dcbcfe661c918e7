//! One rank: its lifecycle, its recent peaks, its incarnation summed up, and its public view.

pub mod basis;
pub mod name_conflicts;
pub mod refusal;
pub mod table;

pub mod container_view;
pub mod detectors;
pub mod ended;
pub mod floors;
pub mod history;
pub mod host;
pub mod lifecycle;
pub mod lifetime;
pub mod limits;
pub mod malloc;
pub mod peaks;
pub mod phase_floors;
pub mod planned_end;
pub mod state;
pub mod totals;
pub mod used_now;
pub mod view;

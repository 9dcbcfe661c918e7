//! One rank: its lifecycle, its recent peaks, its incarnation summed up, and its public view.

pub(crate) mod basis;
pub(crate) mod name_conflicts;
pub(crate) mod refusal;
pub(crate) mod table;

pub(crate) mod container_view;
pub(crate) mod detectors;
pub(crate) mod ended;
pub(crate) mod floors;
pub(crate) mod history;
pub(crate) mod host;
pub(crate) mod lifecycle;
pub(crate) mod lifetime;
pub(crate) mod limits;
pub(crate) mod malloc;
pub(crate) mod peaks;
pub(crate) mod phase_floors;
pub(crate) mod planned_end;
pub(crate) mod state;
pub(crate) mod totals;
pub(crate) mod used_now;
pub(crate) mod view;

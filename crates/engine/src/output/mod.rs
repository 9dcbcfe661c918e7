//! The engine's output: the status, the runs of summaries, and the state that outlasts a
//! restart.

pub mod history;
pub mod publish;
pub mod rank_status;
pub mod resume;
pub mod run;
pub mod saved_state;
pub mod snapshot_status;
pub mod status;

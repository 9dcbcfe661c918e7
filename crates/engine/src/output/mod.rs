//! The engine's output: the status, the runs of summaries, and the state that outlasts a
//! restart.

pub(crate) mod history;
pub(crate) mod publish;
pub(crate) mod rank_status;
pub(crate) mod resume;
pub(crate) mod run;
pub(crate) mod saved_state;
pub(crate) mod snapshot_status;
pub(crate) mod status;
pub(crate) mod status_words;

//! The command `explain`. `story` gathers what happened to one rank or process; `text` and
//! `words` render it. `live` renders what the status of an exporter knows of a rank; `json` has
//! both for programs.

pub mod json;
mod json_windows;
pub mod live;
pub mod story;
mod test_words;
pub mod text;
pub mod words;

//! The command `explain`: `story` gathers what happened to one rank or process, `text` and `words` render it.

pub mod story;
pub mod text;
pub mod words;

//! What became of one rank, step by step: `story` gathers it, `text` and `words` render it.

pub mod story;
pub mod text;
pub mod words;

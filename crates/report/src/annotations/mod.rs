//! The findings of runs as GitHub Actions shows them: annotations at the lines that they name,
//! and a summary in Markdown.

pub mod markdown;
pub mod place;
pub mod workflow_commands;

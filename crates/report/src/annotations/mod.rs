//! The findings of runs as GitHub Actions shows them: annotations at the lines that they name,
//! and a summary in Markdown.

mod markdown;
mod place;
mod workflow_commands;

pub use markdown::markdown;
pub use place::Directories;
pub use workflow_commands::workflow_commands;

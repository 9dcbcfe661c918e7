//! The command `explain`. `story` gathers what happened to one rank or process; `text` and
//! `words` render it, `test_words` what stopped a window. `live` renders what the status of an exporter knows of a rank; `json` has
//! both for programs.

pub(crate) mod json;
mod json_windows;
mod live;
pub(crate) mod story;
mod test_words;
pub(crate) mod text;
mod words;

pub use json::{RankTold, StoryTold, WindowsNow, WindowsRead};
pub use live::{render as render_live, windows};
pub use story::{LookTime, Story, SubjectFigures};
pub use text::render;

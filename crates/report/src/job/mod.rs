//! A whole job from a Prometheus-compatible engine that keeps the recorded set (docs/fleet.md):
//! `queries` asks, `answer` decodes, `launches` finds which launches there are, `model` is one
//! of them, which `build` makes of the answers and `text` puts into words.

pub(crate) mod answer;
mod build;
mod grid;
mod launches;
pub(crate) mod model;
mod queries;
mod text;

pub use answer::{Answer, AnswerError, SERIES_MAX};
pub use build::Answers;
pub use grid::{Grid, whole};
pub use launches::{Choice, JobLaunch, choose, launches};
pub use model::Job;
pub use queries::{LaunchQueries, launch as launch_query, launches as launches_query};
pub use text::{Shown, card, status};

//! A whole job from a Prometheus-compatible engine that keeps the recorded set (docs/fleet.md):
//! `queries` asks, `answer` decodes, `launches` finds which launches there are, `model` is one
//! of them, which `build` makes of the answers and `text` puts into words.

pub mod answer;
pub mod build;
pub mod grid;
pub mod launches;
pub mod model;
pub mod queries;
pub mod text;

//! The files of the page.

/// The document, with `{{…}}` where the exporter fills in its own.
pub(super) const INDEX: &str = include_str!("index.html");
/// The style, without comments and indentation.
pub(super) const STYLE: &str = include_str!(concat!(env!("OUT_DIR"), "/style.css"));
/// uPlot, which draws the charts, and its license.
pub(super) const CHARTS: &str = include_str!("vendor/uplot.js");
pub(super) const CHARTS_LICENSE: &str = include_str!("vendor/uplot.LICENSE");
/// All modules in one script.
pub(super) const SCRIPT: &str = include_str!(concat!(env!("OUT_DIR"), "/main.js"));

//! Two summaries, ours or TraceML's, or a status: read, compared and shown. The text holds no control character.

use serde_json::Value;
use stepmem::output::prometheus::{Format, render};
use stepmem_engine::status::Status;
use stepmem_report::compare::{self, OldNew};
use stepmem_report::summary::Summary;

pub fn run(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (first, second) = data.split_at(at);
    let second = second.get(1..).filter(|second| !second.is_empty()).unwrap_or(first);
    if let Ok(status) = serde_json::from_slice::<Status>(first) {
        render(&status, Format::OpenMetrics);
    }
    if let Ok(summary) = serde_json::from_slice::<Summary>(first) {
        summary.worst();
        serde_json::to_vec(&summary).expect("a summary is JSON");
    }
    let figures =
        |bytes: &[u8]| compare::read(serde_json::from_slice::<Value>(bytes).ok()?).ok();
    let Some((old, new)) = figures(first).zip(figures(second)) else { return };
    for (old, new) in [(&old, &new), (&new, &old), (&old, &old)] {
        let comparison = compare::compare(OldNew { old, new });
        serde_json::to_vec(&comparison).expect("a comparison is JSON");
        let shown = compare::render(&comparison);
        assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
    }
}

//! Pushes through the real socket: what is taken, what is refused and how, and what it does not disturb.

use crate::rig::{Exporter, record};

#[test]
fn a_bare_push_is_taken_and_shown_at_once() {
    let exporter = Exporter::start(&[]);
    let answer = exporter.post(record(0, 1, 1));
    assert_eq!((answer.status, answer.body.as_str()), (200, r#"{"accepted":1,"actions":[]}"#));
    let series = r#"stepmem_rank_memory_allocated_bytes{run="default",rank="0",uuid=""}"#;
    assert_eq!(exporter.metric(series), Some(1.0));
}

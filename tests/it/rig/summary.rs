//! `stepmem summary`, read.

use serde_json::Value;

use crate::rig::command::stepmem;

/// The summary of a recording.
pub fn summary(recording: &str) -> Value {
    asked(recording, &["--json"])
}

/// The summary of a recording, with the sections that TraceML's tools read.
pub fn traceml_export(recording: &str) -> Value {
    asked(recording, &["--format", "traceml"])
}

fn asked(recording: &str, form: &[&str]) -> Value {
    let ended = stepmem(&[&["summary", "-"], form].concat(), &[], recording.as_bytes());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    serde_json::from_str(&ended.out).unwrap()
}

/// The issue of a kind.
pub fn issue(summary: &Value, kind: &str) -> Option<Value> {
    summary["issues"].as_array().unwrap().iter().find(|issue| issue["kind"] == kind).cloned()
}

//! Two recordings, plain or packed, merged by time and looked at by both policies.

use std::path::PathBuf;

use stepmem::input::recording::{self, RecordingLine};
use stepmem_engine::wire::recorded::RecordingEntry;
use stepmem_report::traceml::card;
use stepmem_report::traceml::rows::PeakRows;

use crate::scratch;

/// What stands between the two files.
const SEPARATOR: &[u8] = b"\x00\xff--";

pub fn run(data: &[u8]) {
    let at = data.windows(SEPARATOR.len()).position(|part| part == SEPARATOR);
    let (first, second) = match at {
        Some(at) => (&data[..at], &data[at + SEPARATOR.len()..]),
        None => (data, &[][..]),
    };
    let files: [PathBuf; 2] =
        [scratch::write("first.jsonl", first), scratch::write("second.jsonl", second)];
    let mut rows = PeakRows::new(200);
    let mut n_entries = 0_u64;
    let merged = recording::merged(&files, |line| {
        n_entries += 1;
        match line {
            RecordingLine::Plain(RecordingEntry::Step(sample)) => rows.push(&sample),
            RecordingLine::Plain(RecordingEntry::Gpu(sample, _)) => rows.gpu(&sample),
            RecordingLine::Accepted(_, event) => assert!(event.at.0.as_secs_f64() >= 0.0),
        }
        Ok(())
    });
    if let Err(error) = merged {
        assert!(format!("{error:#}").len() < 64 * 1024);
    }
    assert!(n_entries <= data.len() as u64 * 1024, "a record has bytes");
    card::render(&rows.verdict());
}

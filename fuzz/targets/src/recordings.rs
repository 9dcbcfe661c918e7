//! Two recordings, plain or packed, merged by time and looked at by both policies.

use std::path::PathBuf;

use stepmem::input::recording;
use stepmem_engine::Event;
use stepmem_report::traceml::{self, PeakRows};

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
        match line.into_event() {
            Event::Steps(batch) => batch.iter().for_each(|sample| rows.push(sample)),
            Event::Reading(sample) => rows.gpu(&sample),
            _ => {}
        }
        Ok(())
    });
    if let Err(error) = merged {
        assert!(format!("{error:#}").len() < 64 * 1024);
    }
    assert!(n_entries <= data.len() as u64 * 1024, "a record has bytes");
    traceml::render(&rows.verdict());
}

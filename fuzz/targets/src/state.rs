//! A state file: any bytes, or the parts of a true state with some of their bytes changed and a right checksum. What is
//! taken is resumed, and goes on.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use stepmem::output::prometheus::{Format, render};
use stepmem::store::state::{self, StateLimits};
use stepmem_engine::config::EngineConfig;
use stepmem_engine::engine::Engine;
use stepmem_engine::event::Event;
use stepmem_engine::output::saved_state::{SaveCursor, SavedState};
use stepmem_engine::output::status::ExporterStatus;
use stepmem_engine::wire::control::decode_ack;
use stepmem_engine::wire::step::{Layout, decode};
use stepmem_types::ids::Run;
use stepmem_types::units::{Seconds, Uptime};

const RANKS_MAX: usize = 8;

/// With a first byte of 0, the rest is a file; else four bytes each change one byte of a true state: part, place (two
/// bytes) and value.
pub fn run(data: &[u8]) {
    match data.split_first() {
        None => {}
        Some((0, file)) => resume(file),
        Some((_, changes)) => {
            let mut parts = true_parts().clone();
            for [part, high, low, value] in changes.as_chunks::<4>().0 {
                let n_parts = parts.len();
                let part = &mut parts[usize::from(*part) % n_parts];
                let place = usize::from(u16::from_be_bytes([*high, *low])) % part.len();
                part[place] = *value;
            }
            resume(&sealed(&parts));
        }
    }
}

/// The file of these parts.
fn sealed(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut content = Vec::new();
    for part in parts {
        content.extend(u32::try_from(part.len()).expect("a part is short").to_le_bytes());
        content.extend(part);
    }
    content.extend([0; 4]);
    let checksum = crc32fast::hash(&content).to_le_bytes();
    [state::MAGIC.as_bytes(), &content, &checksum].concat()
}

fn resume(file: &[u8]) {
    let mut saved = SavedState::default();
    let limits = StateLimits {
        file_bytes_max: SavedState::bytes_max(RANKS_MAX) as u64,
        part_bytes_max: SavedState::PART_BYTES_MAX,
    };
    let read =
        state::read_from(file, Path::new("state"), limits, |part| saved.add(part, RANKS_MAX));
    if read.is_err() || !saved.is_whole() {
        return;
    }
    let mut engine = Engine::resume(EngineConfig::default(), saved, Uptime::default());
    let mut now = Uptime::default();
    for step in 200..204 {
        now = Uptime(now.0 + Duration::from_secs(2));
        let unix = Seconds::new(1.7e9 + 1000.0 + now.0.as_secs_f64()).expect("after 1970");
        engine.handle(&Event::ClockSet(unix), now).expect("a clock is set");
        push(&mut engine, step, now);
        engine.handle(&Event::Tick, now).expect("time passes");
    }
    let status = engine.status(now, ExporterStatus::default());
    render(&status, Format::OpenMetrics);
    serde_json::to_vec(&status).expect("a status is JSON");
    let mut cursor = SaveCursor::default();
    while let Some((part, next)) = engine.save(cursor, now) {
        state::part(&part).expect("a part can be written");
        cursor = next;
    }
}

fn push(engine: &mut Engine, step: u64, now: Uptime) {
    let time = 1.7e9 + now.0.as_secs_f64();
    for rank in 0..2 {
        let bytes = (step + rank) << 24;
        let body = format!(
            r#"{{"run":"r","rank":{rank},"step":{step},"time":{time},"pid":7,"allocated_bytes":{bytes},"peak_allocated_bytes":{bytes},"reserved_bytes":{bytes},"total_bytes":{}}}"#,
            1_u64 << 36
        );
        let batch = decode(body.as_bytes(), Layout::Json).expect("a step");
        // The resumed state may hold its rank for another process.
        engine.handle(&Event::Steps(batch), now).ok();
    }
}

/// The parts of an engine with two ranks that grow, findings and an acknowledgement.
fn true_parts() -> &'static Vec<Vec<u8>> {
    static PARTS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    PARTS.get_or_init(|| {
        let mut engine = Engine::new(EngineConfig::default(), 1.7e9);
        let mut now = Uptime::default();
        for step in 0..200 {
            now = Uptime(now.0 + Duration::from_secs(1));
            push(&mut engine, step, now);
            engine.handle(&Event::Tick, now).expect("time passes");
        }
        let run = Run::new("r").expect("a name");
        let body = br#"{"rank":0,"kind":"MEMORY_CREEP","for_seconds":3600,"reason":"known"}"#;
        if let Ok(ack) = decode_ack(run, body) {
            engine.handle(&Event::Ack(ack), now).ok();
        }
        let (mut parts, mut cursor) = (Vec::new(), SaveCursor::default());
        while let Some((part, next)) = engine.save(cursor, now) {
            parts.push(state::part(&part).expect("a part can be written"));
            cursor = next;
        }
        parts
    })
}

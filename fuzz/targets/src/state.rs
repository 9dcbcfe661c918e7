//! A state file: any bytes, or the parts of a true state with some of their numbers changed and a right checksum. What
//! is taken is resumed, and goes on for 200 pushes.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use stepmem::output::prometheus::{Format, render};
use stepmem::store::state::{self, StateLimits};
use stepmem_engine::saved::{SaveCursor, SavedState};
use stepmem_engine::status::ExporterStatus;
use stepmem_engine::wire::{
    Layout, decode_ack, decode_end, decode_holders, decode_recorded, decode_snapshot,
    decode_steps,
};
use stepmem_engine::{Engine, EngineConfig, Event, SnapshotSettings};
use stepmem_types::ids::Run;
use stepmem_types::units::{Seconds, Uptime};

pub const RANKS_MAX: usize = 8;
/// Ranks that push: by steps next to host memory, by steps in a container, on the host, and by time.
const RANKS: u64 = 4;
/// Pushes after a state was resumed.
const PUSHES: u64 = 200;
/// One push in so many is followed by a tick, and a reading of the devices.
const PUSHES_A_TICK: u64 = 20;
const STARTED: f64 = 1.7e9;
const MIB: u64 = 1 << 20;

/// With a first byte of 0, the rest is a file. With 1, five bytes each replace a number of a true state: part, place
/// (two bytes), kind and value. Else four bytes each change one byte of it: part, place (two bytes) and value.
pub fn run(data: &[u8]) {
    match data.split_first() {
        None => {}
        Some((0, file)) => resume(file),
        Some((1, changes)) => {
            let mut parts = true_parts().clone();
            for [part, high, low, kind, value] in changes.as_chunks::<5>().0 {
                let n_parts = parts.len();
                let part = &mut parts[usize::from(*part) % n_parts];
                let place = usize::from(u16::from_be_bytes([*high, *low])) % part.len();
                replace(part, place, (*kind, *value));
            }
            resume(&sealed(&parts));
        }
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

/// Writes a number over the one at a place: a float of eight bytes, one of four, or an integer of any length.
fn replace(part: &mut Vec<u8>, place: usize, (kind, value): (u8, u8)) {
    const FLOATS: [f64; 16] = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::MAX,
        f64::MIN,
        f64::MIN_POSITIVE,
        5e-324,
        0.0,
        -0.0,
        -1.0,
        1.0,
        1e60,
        -1e60,
        1e-9,
        9_007_199_254_740_992.0,
        253_402_300_799.0,
    ];
    const INTEGERS: [u64; 12] = [
        0,
        1,
        31,
        32,
        64,
        127,
        u32::MAX as u64 - 1,
        u32::MAX as u64,
        1 << 53,
        (1 << 53) - 1,
        u64::MAX - 1,
        u64::MAX,
    ];
    match kind % 4 {
        0 => part[place] = value,
        1 => {
            let float = FLOATS[usize::from(value) % FLOATS.len()].to_le_bytes();
            part.iter_mut().skip(place).zip(float).for_each(|(byte, with)| *byte = with);
        }
        2 => {
            let float = FLOATS[usize::from(value) % FLOATS.len()] as f32;
            let float = float.to_le_bytes();
            part.iter_mut().skip(place).zip(float).for_each(|(byte, with)| *byte = with);
        }
        _ => {
            let integer = INTEGERS[usize::from(value) % INTEGERS.len()];
            let written = postcard::to_allocvec(&integer).expect("an integer can be written");
            // All bytes of an integer but the last one have the highest bit.
            let ends = part.iter().skip(place).position(|byte| byte & 0x80 == 0);
            let end = ends.map_or(part.len(), |at| place + at + 1);
            part.splice(place..end, written);
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

fn config() -> EngineConfig {
    let snapshots = SnapshotSettings {
        on_creep: true,
        read_directory: Some("/snapshots".into()),
        ..SnapshotSettings::default()
    };
    EngineConfig { snapshots, heap_scans_on_creep: true, ..EngineConfig::default() }
}

fn resume(file: &[u8]) {
    let mut saved = SavedState::default();
    let limits = StateLimits {
        file_bytes_max: SavedState::bytes_max(RANKS_MAX) as u64,
        part_bytes_max: SavedState::PART_BYTES_MAX,
    };
    let add = |part| saved.add(part, RANKS_MAX);
    let is_read = state::read_from(file, Path::new("state"), limits, add).is_ok();
    if !is_read || !saved.is_whole() {
        return;
    }
    go_on(saved, PUSHES);
}

/// Resumes a state, and goes on for so many pushes.
pub fn go_on(saved: SavedState, n_pushes: u64) {
    let mut now = saved.rest.uptime.min(Uptime::MAX);
    let mut engine = Engine::resume(config(), saved, now);
    let unix = Seconds::new(STARTED + 1000.0).expect("after 1970");
    engine.handle(&Event::ClockSet(unix), now).expect("a clock is set");
    for n in 0..n_pushes {
        now = Uptime(now.0 + Duration::from_millis(500));
        push(&mut engine, (n % RANKS, 1000 + n / RANKS), now);
        if n % PUSHES_A_TICK == PUSHES_A_TICK - 1 {
            read(&mut engine, n, now);
            engine.handle(&Event::Tick, now).expect("time passes");
        }
    }
    let status = engine.status(now, ExporterStatus::default());
    let text = render(&status, Format::OpenMetrics);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        assert!(value.is_some_and(f64::is_finite), "{line}");
    }
    serde_json::to_vec(&status).expect("a status is JSON");
    for run in &status.runs {
        engine.run_history(&run.run);
        if let Some(view) = engine.run(&run.run, now) {
            stepmem_report::summary::Summary::of(&view, Some(engine.snapshots(&run.run)));
        }
    }
    parts_of(&engine, now);
}

/// Has a rank push one record, whose memory grows.
fn push(engine: &mut Engine, (rank, step): (u64, u64), now: Uptime) {
    let time = STARTED + now.0.as_secs_f64();
    let bytes = (64 + step) * 16 * MIB;
    let of_rank = match rank {
        0 => format!(
            r#""device":"GPU-0","host_allocated_bytes":{bytes},"host_total_bytes":{},"workers":2,"workers_bytes":{bytes},"workers_own_bytes":{bytes},"host_children_shared_bytes":{bytes},"process_used_bytes":{bytes}"#,
            1_u64 << 38
        ),
        1 => format!(
            r#""device":"GPU-1","container":"pod","container_limit_bytes":{},"container_used_bytes":{bytes},"container_oom_kills":0,"ooms":{}"#,
            1_u64 << 38,
            step / 90
        ),
        2 => r#""device":"cpu","marks":["eval"]"#.to_owned(),
        _ => r#""device":"GPU-3","phase":"sample""#.to_owned(),
    };
    let body = format!(
        r#"{{"run":"r","rank":{rank},"step":{step},"time":{time},"pid":7,"allocated_bytes":{bytes},"peak_allocated_bytes":{bytes},"reserved_bytes":{bytes},"peak_reserved_bytes":{bytes},"total_bytes":{},{of_rank}}}"#,
        1_u64 << 36
    );
    let batch = decode_steps(body.as_bytes(), Layout::Json).expect("a step");
    // The resumed state may hold its rank for another process.
    engine.handle(&Event::Steps(batch), now).ok();
}

/// Reads two devices: one of a rank, and one that nobody pushes about.
fn read(engine: &mut Engine, n: u64, now: Uptime) {
    let time = STARTED + now.0.as_secs_f64();
    let used = (128 + n) * 64 * MIB;
    for device in ["GPU-0", "GPU-9"] {
        let line = format!(
            r#"{{"nvml":true,"time":{time},"device":"{device}","used_bytes":{used},"total_bytes":{},"processes":[{{"pid":7,"used_bytes":{used}}}]}}"#,
            1_u64 << 36
        );
        let (event, _) = decode_recorded(line.as_bytes()).expect("a reading");
        engine.handle(&event, now).expect("a reading is taken");
    }
}

/// The parts of a state, as they are written.
fn parts_of(engine: &Engine, now: Uptime) -> Vec<Vec<u8>> {
    let (mut parts, mut cursor) = (Vec::new(), SaveCursor::default());
    while let Some((part, next)) = engine.save(cursor, now) {
        parts.push(state::part(&part).expect("a part can be written"));
        cursor = next;
    }
    parts
}

/// The parts of [`true_engine`].
fn true_parts() -> &'static Vec<Vec<u8>> {
    static PARTS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    PARTS.get_or_init(|| {
        let (engine, now) = true_engine();
        parts_of(&engine, now)
    })
}

/// An engine with four ranks that grow, one that ended, an unmanaged process, a container, requests, a holder, findings
/// and an acknowledgment.
pub fn true_engine() -> (Engine, Uptime) {
    let mut engine = Engine::new(config(), STARTED);
    let mut now = Uptime::default();
    for step in 0..200 {
        now = Uptime(now.0 + Duration::from_secs(1));
        (0..RANKS).for_each(|rank| push(&mut engine, (rank, step), now));
        if step % 5 == 0 {
            read(&mut engine, step, now);
        }
        engine.handle(&Event::Tick, now).expect("time passes");
    }
    let run = Run::new("r").expect("a name");
    let ended = r#"{"run":"r","rank":5,"step":9,"pid":8,"allocated_bytes":9}"#;
    let batch = decode_steps(ended.as_bytes(), Layout::Json).expect("a step");
    let ack = br#"{"rank":0,"kind":"CREEP_CONFIRMED","for_seconds":3600,"reason":"known"}"#;
    let end = br#"{"rank":5,"outcome":"oom","error_type":"E","error_message":"m","ooms":1}"#;
    let snapshot = br#"{"run":"r","rank":0,"outcome":"written","path":"/s/a","file":"a"}"#;
    let holders = br#"{"run":"r","rank":0,"outcome":"named","first_step":1,"last_step":9,"holders":[{"name":"`losses`","kind":"list","tensors":9,"bytes":9,"tensors_per_step":1,"bytes_per_step":9}]}"#;
    for event in [
        Event::Steps(batch),
        Event::End(run.clone(), decode_end(end).expect("an end")),
        Event::Ack(decode_ack(run, ack).expect("an acknowledgment")),
        Event::SnapshotReport(decode_snapshot(snapshot, None).expect("a report")),
        Event::HoldersReport(decode_holders(holders).expect("a report")),
    ] {
        engine.handle(&event, now).expect("the event is taken");
    }
    (engine, now)
}

#[cfg(test)]
mod tests {
    use crate::state::{RANKS, resume, sealed, true_parts};

    #[test]
    fn true_state_has_a_part_of_every_kind() {
        let mut kinds: Vec<u8> = true_parts().iter().map(|part| part[0]).collect();
        kinds.dedup();
        kinds.sort_unstable();
        assert_eq!(kinds, [0, 1, 2, 3, 4, 5, 6]);
        let n_ranks = true_parts().iter().filter(|part| part[0] == 0).count();
        assert_eq!(n_ranks as u64, RANKS + 1);
        resume(&sealed(true_parts()));
    }
}

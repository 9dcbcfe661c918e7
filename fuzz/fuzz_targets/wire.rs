//! Bytes from a socket or a recording are decoded or refused, and decoded records can be applied and rendered.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use stepmem::analysis::config::EngineConfig;
use stepmem::analysis::engine::Engine;
use stepmem::analysis::event::Event;
use stepmem::analysis::status::ExporterStatus;
use stepmem::input::push::wire::control::{decode_ack, decode_end, decode_release, decode_snapshot};
use stepmem::input::push::wire::recorded::{RecordingEntry, decode_recorded};
use stepmem::input::push::wire::step::{Layout, decode};
use stepmem::model::ids::Run;
use stepmem::model::units::Uptime;
use stepmem::output::prometheus::{Format, render};

fuzz_target!(|body: &[u8]| {
    drop(decode(body, Layout::Json));
    drop(decode_end(body));
    drop(decode_release(body));
    if let Ok(run) = Run::new("fuzzed") {
        drop(decode_ack(run, body));
    }
    drop(decode_snapshot(body));
    let mut engine = Engine::new(EngineConfig::default(), 0.0);
    let mut now = Uptime::default();
    let lines = body.split(|byte| *byte == b'\n');
    for recorded in lines.filter_map(|line| decode_recorded(line).ok()) {
        now = Uptime(now.0 + Duration::from_millis(700));
        let event = match recorded {
            RecordingEntry::Step(sample) => match engine.admit(vec![sample], now) {
                Ok(batch) => Event::Steps(batch),
                Err(_) => continue,
            },
            RecordingEntry::Gpu(sample, _) => Event::Gpu(sample),
        };
        engine.apply(event, now);
    }
    let status = engine.status(now, ExporterStatus::default());
    render(&status, Format::OpenMetrics);
});

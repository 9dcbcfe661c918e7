//! Lines of a recording, decoded, admitted and applied; what the engine publishes then is rendered in both formats.

use std::time::Duration;

use stepmem::output::prometheus::{Format, render};
use stepmem_engine::config::EngineConfig;
use stepmem_engine::engine::Engine;
use stepmem_engine::event::Event;
use stepmem_engine::output::status::ExporterStatus;
use stepmem_engine::wire::control::{decode_ack, decode_end};
use stepmem_engine::wire::recorded::{RecordingEntry, decode_recorded};
use stepmem_report::summary::model::Summary;
use stepmem_types::ids::Run;
use stepmem_types::units::Uptime;

/// Each line is an entry of a recording, or an end or acknowledgement of run `r`.
pub fn run(data: &[u8]) {
    let mut engine = Engine::new(EngineConfig::default(), 1.7e9);
    let run = Run::new("r").expect("a name");
    let mut now = Uptime::default();
    for line in data.split(|byte| *byte == b'\n') {
        let millis = 1 + line.len() as u64 * 37 % 4000;
        now = Uptime(now.0 + Duration::from_millis(millis));
        if let Some(event) = event(&mut engine, &run, line, now) {
            engine.apply(event, now);
            engine.apply(Event::Tick, now);
        }
    }
    let status = engine.status(now, ExporterStatus::default());
    let text = render(&status, Format::OpenMetrics);
    assert!(text.ends_with("# EOF\n"));
    serde_json::to_vec(&status).expect("a status is JSON");
    for shown in &status.runs {
        let view = engine.run(&shown.run, now).expect("a shown run is held");
        let summary = Summary::of(&view, Some(engine.snapshots(&shown.run)));
        assert!(summary.text.chars().all(|c| c == '\n' || !c.is_control()));
    }
}

fn event(engine: &mut Engine, run: &Run, line: &[u8], now: Uptime) -> Option<Event> {
    if let Ok(recorded) = decode_recorded(line) {
        return match recorded {
            RecordingEntry::Step(sample) => {
                engine.admit(vec![sample], now).ok().map(Event::Steps)
            }
            RecordingEntry::Gpu(sample, _) => Some(Event::Gpu(sample)),
        };
    }
    if let Ok(end) = decode_end(line) {
        return engine.admit_end(run.clone(), end).ok().map(Event::End);
    }
    let ack = decode_ack(run.clone(), line).ok()?;
    engine.admit_ack(ack).ok().map(Event::Ack)
}

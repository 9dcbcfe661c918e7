//! Lines of a recording, decoded and handled; what the engine publishes then is rendered in both formats.

use std::time::Duration;

use stepmem::output::prometheus::{Format, render};
use stepmem_engine::status::ExporterStatus;
use stepmem_engine::wire::{decode_ack, decode_end, decode_recorded};
use stepmem_engine::{Engine, EngineConfig, Event};
use stepmem_report::summary::Summary;
use stepmem_types::ids::Run;
use stepmem_types::units::Uptime;

/// Each line is an entry of a recording, or an end or acknowledgment of run `r`.
pub fn run(data: &[u8]) {
    let mut engine = Engine::new(EngineConfig::default(), 1.7e9);
    let run = Run::new("r").expect("a name");
    let mut now = Uptime::default();
    for line in data.split(|byte| *byte == b'\n') {
        let millis = 1 + line.len() as u64 * 37 % 4000;
        now = Uptime(now.0 + Duration::from_millis(millis));
        if let Some(event) = event(&run, line)
            && engine.handle(&event, now).is_ok()
        {
            engine.handle(&Event::Tick, now).expect("time passes");
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

fn event(run: &Run, line: &[u8]) -> Option<Event> {
    if let Ok((recorded, _)) = decode_recorded(line) {
        return Some(recorded);
    }
    if let Ok(end) = decode_end(line) {
        return Some(Event::End(run.clone(), end));
    }
    decode_ack(run.clone(), line).ok().map(Event::Ack)
}

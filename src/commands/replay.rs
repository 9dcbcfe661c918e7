//! Recordings through the engine, at their own time and as fast as it goes: transitions come out as JSON lines, and
//! the final status last. The same input gives the same bytes.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use crate::analysis::engine::{Engine, EngineConfig, Event, Transition};
use crate::analysis::status::{ExporterStatus, Status};
use crate::input::push::wire::recorded::Recorded;
use crate::input::recording::{Lines, READ_BUFFER_BYTES};
use crate::model::units::{Seconds, Uptime};

/// In a recording a device counts as read until this long after its last reading.
const GPU_TTL: Duration = Duration::from_mins(10);

/// Replays the files one after the other as one recording (`-` is standard input), and writes what it raised and
/// cleared, and the final status.
///
/// # Errors
/// As of [`play`], or `out` takes no more; what came before has been written then.
pub fn run<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    config: EngineConfig,
    out: impl Write,
) -> anyhow::Result<()> {
    let mut out = BufWriter::new(out);
    let played = play(files, config, |_, _, transitions| {
        for transition in transitions {
            write_line(&mut out, &Line::Transition(transition))?;
        }
        Ok(())
    });
    out.flush()?;
    let (engine, now) = played?;
    let exporter =
        ExporterStatus { version: env!("CARGO_PKG_VERSION"), ..ExporterStatus::default() };
    write_line(&mut out, &Line::Status { status: &engine.status(now, exporter) })?;
    out.flush()?;
    Ok(())
}

/// Applies the files one after the other as one recording (`-` is standard input) to a new engine, and shows it to
/// `see` after each record and after the end, with what that raised and cleared.
///
/// # Errors
/// A file cannot be read, a line is neither a push record nor a reading, a bound on ranks or runs is exceeded, or what
/// `see` says.
pub fn play<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    config: EngineConfig,
    see: impl FnMut(&Engine, Uptime, &[Transition]) -> anyhow::Result<()>,
) -> anyhow::Result<(Engine, Uptime)> {
    let mut replay = Replay::new(config, see);
    for file in files {
        let mut lines = Lines::open(file, READ_BUFFER_BYTES)?;
        while let Some(recorded) = lines.record()? {
            replay.take(recorded).with_context(|| lines.place())?;
        }
    }
    replay.finish()
}

/// Recorded records on their way through a new engine.
pub struct Replay<S> {
    config: EngineConfig,
    engine: Option<(Engine, f64)>,
    now: Uptime,
    see: S,
}

impl<S: FnMut(&Engine, Uptime, &[Transition]) -> anyhow::Result<()>> Replay<S> {
    /// A new engine, which is shown to `see` after each record and after the end, with what that raised and cleared.
    pub fn new(config: EngineConfig, see: S) -> Self {
        let config = EngineConfig { gpu_ttl: GPU_TTL, ..config };
        Self { config, engine: None, now: Uptime::default(), see }
    }

    /// Takes one record at its own time.
    ///
    /// # Errors
    /// A bound on ranks or runs is exceeded, or what `see` says.
    pub fn take(&mut self, recorded: Recorded) -> anyhow::Result<()> {
        let time = recorded.time();
        let (engine, started) = self.engine.get_or_insert_with(|| {
            let started = time.map_or(0.0, Seconds::get);
            (Engine::new(self.config.clone(), started), started)
        });
        if let Some(time) = time {
            let since = Duration::try_from_secs_f64(time.get() - *started).unwrap_or_default();
            self.now = self.now.max(Uptime(since));
        }
        let event = match recorded {
            Recorded::Step(sample) => {
                engine.admit(std::slice::from_ref(&sample), self.now)?;
                Event::Step(sample)
            }
            Recorded::Gpu(sample, _) => Event::Gpu(sample),
        };
        let transitions = engine.apply(event, self.now);
        (self.see)(engine, self.now, &transitions)
    }

    /// Judges once more, and gives the engine and the time of the last record.
    ///
    /// # Errors
    /// What `see` says.
    pub fn finish(mut self) -> anyhow::Result<(Engine, Uptime)> {
        let (mut engine, _) =
            self.engine.take().unwrap_or_else(|| (Engine::new(self.config.clone(), 0.0), 0.0));
        let transitions = engine.apply(Event::Tick, self.now);
        (self.see)(&engine, self.now, &transitions)?;
        Ok((engine, self.now))
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Transition(&'a Transition),
    Status { status: &'a Status },
}

fn write_line(out: &mut impl Write, line: &Line<'_>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

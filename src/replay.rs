//! Recordings through the engine, at their own time and as fast as it goes: transitions come out as JSON lines, and
//! the final status last. The same input gives the same bytes.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use crate::analysis::engine::{Engine, EngineConfig, Event, Transition};
use crate::analysis::sample::{Seconds, Uptime};
use crate::analysis::status::{ExporterStatus, Status};
use crate::input::wire::{self, Recorded};

/// The longest line that is read, in bytes.
pub const LINE_BYTES_MAX: u64 = 1024 * 1024;
/// The buffer between a recording and its lines, in bytes.
const READ_BUFFER_BYTES: usize = 256 * 1024;
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
    let mut replay = Replay {
        config: EngineConfig { gpu_ttl: GPU_TTL, ..config },
        engine: None,
        now: Uptime::default(),
        see,
    };
    for file in files {
        let lines: Box<dyn Read> = if file == Path::new("-") {
            Box::new(io::stdin().lock())
        } else {
            Box::new(File::open(file).with_context(|| file.display().to_string())?)
        };
        replay
            .read(BufReader::with_capacity(READ_BUFFER_BYTES, lines))
            .with_context(|| file.display().to_string())?;
    }
    replay.finish()
}

struct Replay<S> {
    config: EngineConfig,
    engine: Option<(Engine, f64)>,
    now: Uptime,
    see: S,
}

impl<S: FnMut(&Engine, Uptime, &[Transition]) -> anyhow::Result<()>> Replay<S> {
    fn read(&mut self, mut lines: impl BufRead) -> anyhow::Result<()> {
        let mut line = Vec::new();
        let mut number = 0_u64;
        loop {
            line.clear();
            number += 1;
            if lines.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            anyhow::ensure!(
                u64::try_from(line.len())? <= LINE_BYTES_MAX,
                "line {number} exceeds {LINE_BYTES_MAX} bytes"
            );
            let record = line.trim_ascii();
            if !record.is_empty() {
                self.take(record).with_context(|| format!("line {number}"))?;
            }
        }
    }

    fn take(&mut self, line: &[u8]) -> anyhow::Result<()> {
        let recorded = wire::decode_recorded(line)?;
        let time = match &recorded {
            Recorded::Step(sample) => sample.time,
            Recorded::Gpu(_, time) => Some(*time),
        };
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

    fn finish(mut self) -> anyhow::Result<(Engine, Uptime)> {
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

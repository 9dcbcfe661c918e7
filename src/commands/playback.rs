//! Runs recordings through a new engine, at their own time and as fast as possible. The same input gives the same
//! transitions.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

use crate::analysis::config::EngineConfig;
use crate::analysis::engine::Engine;
use crate::analysis::event::Event;
use crate::analysis::findings::Transition;
use crate::input::push::wire::recorded::RecordingEntry;
use crate::input::recording::{Lines, READ_BUFFER_BYTES};
use crate::model::units::{Seconds, Uptime};

/// Devices in a recording stay present until this long after their last reading.
const GPU_TTL: Duration = Duration::from_mins(10);

/// Runs the files, one after the other as one recording (`-` reads standard input), through a new engine. Calls
/// `see` after each record and after the end, with the transitions that it caused.
///
/// # Errors
/// A file cannot be read, a line is neither a push record nor a reading, a limit on ranks or runs is exceeded, or
/// `see` failed.
pub fn play<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    config: EngineConfig,
    see: impl FnMut(&Engine, Uptime, &[Transition]) -> anyhow::Result<()>,
) -> anyhow::Result<(Engine, Uptime)> {
    let mut playback = Playback::new(config, see);
    for file in files {
        let mut lines = Lines::open(file, READ_BUFFER_BYTES)?;
        while let Some(recorded) = lines.record()? {
            playback.take(recorded).with_context(|| lines.place())?;
        }
    }
    playback.finish()
}

/// Runs the entries of recordings through a new engine.
pub struct Playback<S> {
    config: EngineConfig,
    engine: Option<(Engine, f64)>,
    now: Uptime,
    see: S,
}

impl<S: FnMut(&Engine, Uptime, &[Transition]) -> anyhow::Result<()>> Playback<S> {
    /// Creates the engine. Calls `see` after each record and after the end, with the transitions that it caused.
    pub fn new(config: EngineConfig, see: S) -> Self {
        let config = EngineConfig { gpu_ttl: GPU_TTL, ..config };
        Self { config, engine: None, now: Uptime::default(), see }
    }

    /// Applies one entry at its own time.
    ///
    /// # Errors
    /// A limit on ranks or runs is exceeded, or `see` failed.
    pub fn take(&mut self, recorded: RecordingEntry) -> anyhow::Result<()> {
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
            RecordingEntry::Step(sample) => match engine.admit(vec![sample], self.now) {
                Ok(admitted) => Event::Steps(admitted),
                // A pusher would ask again, or take another name.
                Err(refusal) if refusal.is_contest() => Event::Tick,
                Err(refusal) => return Err(refusal.into()),
            },
            RecordingEntry::Gpu(sample, _) => Event::Gpu(sample),
        };
        let transitions = engine.apply(event, self.now);
        (self.see)(engine, self.now, &transitions)
    }

    /// Judges a last time; returns the engine and the time of the last entry.
    ///
    /// # Errors
    /// `see` failed.
    pub fn finish(mut self) -> anyhow::Result<(Engine, Uptime)> {
        let (mut engine, _) =
            self.engine.take().unwrap_or_else(|| (Engine::new(self.config.clone(), 0.0), 0.0));
        let transitions = engine.apply(Event::Tick, self.now);
        (self.see)(&engine, self.now, &transitions)?;
        Ok((engine, self.now))
    }
}

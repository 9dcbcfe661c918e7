//! Runs recordings through a new engine, at their own time and as fast as possible. The same
//! input gives the same transitions.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use crate::input::recording::{MissingPart, RecordingGap, RecordingLine, played};
use stepmem_engine::wire::{RecordedEvent, RecordingHead};
use stepmem_engine::{Engine, EngineConfig, Event, Refusal, Transition};
use stepmem_types::format::clean::shortened;
use stepmem_types::format::units::rfc3339;
use stepmem_types::units::{Seconds, Uptime};

/// Characters of the name of a file in a sentence.
const FILE_CHARS_MAX: usize = 200;
/// Time for which devices stay present after their last reading, in a recording that an
/// exporter did not write.
const GPU_TTL: Duration = Duration::from_mins(10);

/// Runs the files as one recording (`-` reads standard input) through a new engine: one after
/// the other, or in order of time if an exporter wrote them. Calls `see` after each record and
/// after the end, with the transitions that it caused.
///
/// # Errors
/// A file cannot be read, a line is neither a push record nor a reading, a limit on ranks or
/// runs is exceeded, or `see` failed.
pub fn play<'f>(
    files: impl IntoIterator<Item = &'f PathBuf>,
    config: EngineConfig,
    see: impl FnMut(&Engine, Uptime, &[Transition]) -> anyhow::Result<()>,
) -> anyhow::Result<(Engine, Uptime)> {
    let mut playback = Playback::new(config, see);
    let gaps = played(files, |line| playback.take(line))?;
    say(&gaps);
    playback.finish()
}

/// Returns the names of recordings for an error about what they have together.
pub(super) fn names(files: &[&PathBuf]) -> String {
    let first = files.first().map(|file| file.display().to_string()).unwrap_or_default();
    let first = shortened(&first, FILE_CHARS_MAX);
    match files.len() {
        0 | 1 => first,
        n_files => format!("{first} and {} more", n_files - 1),
    }
}

/// Reports the gaps of recordings on standard error.
pub(super) fn say(gaps: &[RecordingGap]) {
    for RecordingGap { file, run, missing } in gaps {
        let of = run.as_ref().map(|run| format!(" of run {run}")).unwrap_or_default();
        let sentence = match missing {
            MissingPart::Beginning(from) => {
                format!(
                    "the beginning{of} is missing: what is left starts at {}",
                    rfc3339(*from)
                )
            }
            MissingPart::Events(n_events) => {
                format!("{n_events} events{of} could not be written and are missing")
            }
            MissingPart::End => {
                format!("the recording{of} is cut short; all complete lines were read")
            }
        };
        // A reader of the answer may have closed it.
        let file = shortened(file, FILE_CHARS_MAX);
        writeln!(io::stderr(), "stepmem: {file}: {sentence}").ok();
    }
}

/// Runs the lines of recordings through a new engine.
pub struct Playback<S> {
    config: EngineConfig,
    engine: Option<(Engine, f64)>,
    /// Time from the engine's start to that of each exporter's session; zero if the session
    /// began earlier.
    sessions: BTreeMap<String, Duration>,
    now: Uptime,
    see: S,
}

impl<S: FnMut(&Engine, Uptime, &[Transition]) -> anyhow::Result<()>> Playback<S> {
    /// Creates the engine. Calls `see` after each record and after the end, with the
    /// transitions that it caused.
    pub fn new(config: EngineConfig, see: S) -> Self {
        Self { config, engine: None, sessions: BTreeMap::new(), now: Uptime::default(), see }
    }

    /// Lets the engine handle one line at its own time.
    ///
    /// # Errors
    /// A limit on ranks or runs is exceeded, or `see` failed.
    pub fn take(&mut self, line: RecordingLine) -> anyhow::Result<()> {
        match line {
            RecordingLine::Plain(event, time) => self.take_plain(&event, time),
            RecordingLine::Recorded(head, recorded) => self.take_recorded(&head, recorded),
        }
    }

    fn take_plain(&mut self, event: &Event, time: Option<Seconds>) -> anyhow::Result<()> {
        let first = time.map_or(0.0, Seconds::get);
        let started = self.begin(first, GPU_TTL);
        if let Some(time) = time {
            let since = Duration::try_from_secs_f64(time.get() - started).unwrap_or_default();
            self.now = self.now.max(Uptime(since));
        }
        self.handle(event)
    }

    /// Handles an event that an exporter took, at the time at which its engine took it.
    fn take_recorded(
        &mut self,
        head: &RecordingHead,
        recorded: RecordedEvent,
    ) -> anyhow::Result<()> {
        let RecordedEvent { at, mut event, .. } = recorded;
        let ttl = Duration::try_from_secs_f64(head.device_ttl_seconds.get());
        let started = self.begin(head.started.get(), ttl.unwrap_or(Duration::MAX));
        if !self.sessions.contains_key(&head.session) {
            let later = Duration::try_from_secs_f64(head.started.get() - started);
            self.sessions.insert(head.session.clone(), later.unwrap_or_default());
        }
        let later = self.sessions.get(&head.session).copied().unwrap_or_default();
        let by_engine = |uptime: Uptime| Uptime(later.saturating_add(uptime.0));
        if let Event::CauseFound(found) = &mut event {
            found.since = by_engine(found.since);
        }
        self.now = self.now.max(by_engine(at));
        self.handle(&event)
    }

    /// Creates the engine with the first line. Returns the Unix time of its start.
    fn begin(&mut self, started: f64, gpu_ttl: Duration) -> f64 {
        let (_, started) = self.engine.get_or_insert_with(|| {
            (Engine::new(EngineConfig { gpu_ttl, ..self.config.clone() }, started), started)
        });
        *started
    }

    fn handle(&mut self, event: &Event) -> anyhow::Result<()> {
        let Some((engine, _)) = &mut self.engine else { return Ok(()) };
        let transitions = match engine.handle(event, self.now) {
            Ok(handled) => handled.transitions,
            Err(refusal @ (Refusal::TooManyRanks { .. } | Refusal::TooManyRuns { .. })) => {
                return Err(refusal.into());
            }
            // It needs a beginning that is missing, or another process holds its rank.
            Err(_) => Vec::new(),
        };
        (self.see)(engine, self.now, &transitions)
    }

    /// Evaluates a last time. Returns the engine and the time of the last entry.
    ///
    /// # Errors
    /// `see` failed.
    pub fn finish(mut self) -> anyhow::Result<(Engine, Uptime)> {
        let (mut engine, _) =
            self.engine.take().unwrap_or_else(|| (Engine::new(self.config.clone(), 0.0), 0.0));
        let handled = engine.handle(&Event::Tick, self.now)?;
        (self.see)(&engine, self.now, &handled.transitions)?;
        Ok((engine, self.now))
    }
}

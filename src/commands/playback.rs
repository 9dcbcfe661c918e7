//! Runs recordings through a new engine, at their own time and as fast as possible. The same
//! input gives the same transitions.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use crate::input::recording::{MissingPart, RecordingGap, RecordingLine, played};
use stepmem_engine::config::EngineConfig;
use stepmem_engine::engine::Engine;
use stepmem_engine::event::Event;
use stepmem_engine::findings::Transition;
use stepmem_engine::ranks::refusal::Refusal;
use stepmem_engine::requests::causes::RecordedSite;
use stepmem_engine::wire::accepted::{Accepted, AcceptedEvent, RecordingHead};
use stepmem_engine::wire::recorded::RecordingEntry;
use stepmem_types::device::GpuUnavailable;
use stepmem_types::format::units::rfc3339;
use stepmem_types::nvml_code::known_code;
use stepmem_types::step::StepSample;
use stepmem_types::units::{Seconds, Uptime};

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

/// Reports the gaps of recordings on standard error.
pub(super) fn say(gaps: &[RecordingGap]) {
    for RecordingGap { file, run, missing } in gaps {
        let of = run.as_ref().map(|run| format!(" of run {run}")).unwrap_or_default();
        let sentence = match missing {
            MissingPart::Beginning(from) => {
                format!(
                    "the beginning{of} was given up: it is known from {} on",
                    rfc3339(*from)
                )
            }
            MissingPart::Events(n_events) => {
                format!("{n_events} events{of} could not be written and are missing")
            }
            MissingPart::End => {
                format!("the recording{of} is cut short; what is whole was read")
            }
        };
        // A reader of the answer may have closed it.
        writeln!(io::stderr(), "stepmem: {file}: {sentence}").ok();
    }
}

/// Runs the lines of recordings through a new engine.
pub struct Playback<S> {
    config: EngineConfig,
    engine: Option<(Engine, f64)>,
    /// Time from the engine's start to that of each exporter's session; zero if the session
    /// began earlier.
    lives: BTreeMap<String, Duration>,
    now: Uptime,
    see: S,
}

impl<S: FnMut(&Engine, Uptime, &[Transition]) -> anyhow::Result<()>> Playback<S> {
    /// Creates the engine. Calls `see` after each record and after the end, with the
    /// transitions that it caused.
    pub fn new(config: EngineConfig, see: S) -> Self {
        Self { config, engine: None, lives: BTreeMap::new(), now: Uptime::default(), see }
    }

    /// Applies one line at its own time.
    ///
    /// # Errors
    /// A limit on ranks or runs is exceeded, or `see` failed.
    pub fn take(&mut self, line: RecordingLine) -> anyhow::Result<()> {
        match line {
            RecordingLine::Plain(entry) => self.take_plain(entry),
            RecordingLine::Accepted(head, event) => self.take_accepted(&head, event),
        }
    }

    fn take_plain(&mut self, entry: RecordingEntry) -> anyhow::Result<()> {
        let time = entry.time();
        let (engine, started) = self.engine.get_or_insert_with(|| {
            let started = time.map_or(0.0, Seconds::get);
            let config = EngineConfig { gpu_ttl: GPU_TTL, ..self.config.clone() };
            (Engine::new(config, started), started)
        });
        if let Some(time) = time {
            let since = Duration::try_from_secs_f64(time.get() - *started).unwrap_or_default();
            self.now = self.now.max(Uptime(since));
        }
        let event = match entry {
            RecordingEntry::Step(sample) => step(engine, sample, self.now)?,
            RecordingEntry::Gpu(sample, _) => Event::Gpu(sample),
        };
        let transitions = engine.apply(event, self.now);
        (self.see)(engine, self.now, &transitions)
    }

    /// Applies an event that an exporter took, at the time at which its engine took it.
    fn take_accepted(
        &mut self,
        head: &RecordingHead,
        event: AcceptedEvent,
    ) -> anyhow::Result<()> {
        let (engine, started) = self.engine.get_or_insert_with(|| {
            let started = head.started.get();
            let ttl = Duration::try_from_secs_f64(head.device_ttl_seconds.get());
            let gpu_ttl = ttl.unwrap_or(Duration::MAX);
            (Engine::new(EngineConfig { gpu_ttl, ..self.config.clone() }, started), started)
        });
        if !self.lives.contains_key(&head.life) {
            let later = Duration::try_from_secs_f64(head.started.get() - *started);
            self.lives.insert(head.life.clone(), later.unwrap_or_default());
        }
        let later = self.lives.get(&head.life).copied().unwrap_or_default();
        self.now = self.now.max(Uptime(later.saturating_add(event.at.0)));
        let transitions = match happened(engine, event.what, later, self.now)? {
            Some(event) => engine.apply(event, self.now),
            None => Vec::new(),
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
        let transitions = engine.apply(Event::Tick, self.now);
        (self.see)(&engine, self.now, &transitions)?;
        Ok((engine, self.now))
    }
}

fn step(engine: &mut Engine, sample: StepSample, now: Uptime) -> Result<Event, Refusal> {
    match engine.admit(vec![sample], now) {
        Ok(admitted) => Ok(Event::Steps(admitted)),
        // A client would submit it again, or take another name.
        Err(refusal) if refusal.is_contest() => Ok(Event::Tick),
        Err(refusal) => Err(refusal),
    }
}

/// Returns the event that the engine is to take. `None` for the clock, and for an event that
/// needs a missing beginning. `later`: the time from the engine's start to that of the
/// exporter's session.
fn happened(
    engine: &mut Engine,
    what: Accepted,
    later: Duration,
    now: Uptime,
) -> Result<Option<Event>, Refusal> {
    let at = |since: Uptime| Uptime(later.saturating_add(since.0));
    Ok(Some(match what {
        Accepted::Step(sample) => step(engine, *sample, now)?,
        Accepted::End(run, end) => return Ok(engine.admit_end(run, end).ok().map(Event::End)),
        Accepted::Ack(ack) => return Ok(engine.admit_ack(ack).ok().map(Event::Ack)),
        Accepted::Holder(rank, holder, since) => {
            Event::Site(rank, RecordedSite::Holder(holder), at(since))
        }
        Accepted::Searched(rank, search, since) => {
            Event::Site(rank, RecordedSite::Searched(search), at(since))
        }
        Accepted::Verdict(rank, analysis, since) => {
            Event::Site(rank, RecordedSite::Snapshot(analysis), at(since))
        }
        Accepted::Reading(sample) => Event::Gpu(*sample),
        Accepted::Unavailable(device, code) => {
            let (code, message) = (known_code(&code), String::new());
            Event::GpuUnavailable(GpuUnavailable { device, code, message })
        }
        Accepted::Released => Event::GpuReleased,
        Accepted::Xid(device, xid) => Event::Xid(device, xid),
        Accepted::Clock(unix) => {
            engine.set_clock(now, unix.get());
            return Ok(None);
        }
        Accepted::Tick => Event::Tick,
    }))
}

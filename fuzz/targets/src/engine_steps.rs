//! Steps of four ranks and readings of their device, eight bytes each and repeated: growth, jumps, late records and long
//! silences that no text of this length holds. What is published has no figure that is not a number, and what is saved
//! fits its bounds and is resumed.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use stepmem::output::prometheus::{Format, render};
use stepmem::store::state::{self, StateLimits};
use stepmem_engine::saved::{SaveCursor, SavedState};
use stepmem_engine::status::ExporterStatus;
use stepmem_engine::wire::{decode_end, decode_recorded};
use stepmem_engine::{Engine, EngineConfig, Event};
use stepmem_types::device::GpuSample;
use stepmem_types::ids::{Rank, Run};
use stepmem_types::step::{Identity, Phase, StepFigures, StepSample, StepUnit};
use stepmem_types::units::{Bytes, Count, INTEGER_MAX, Seconds, Uptime};

const RANKS: usize = 4;
/// Steps of one input.
const STEPS_MAX: usize = 1024;
const STARTED: f64 = 1.7e9;

/// Eight bytes each: rank and what happens and how often; time; step; phase and which figures; change of the memory (two
/// bytes) and its unit; what comes on top of it.
pub fn run(data: &[u8]) {
    let mut job = Job::new();
    for event in data.as_chunks::<8>().0 {
        let [kind, time, ..] = *event;
        for _ in 0..1_u32 << (kind >> 5) {
            if job.n_steps == STEPS_MAX {
                break;
            }
            job.n_steps += 1;
            job.wait(time);
            job.take(event);
        }
    }
    job.check();
}

struct Job {
    engine: Engine,
    now: Uptime,
    run: Run,
    step: StepSample,
    reading: GpuSample,
    steps: [u64; RANKS],
    levels: [i64; RANKS],
    n_steps: usize,
}

impl Job {
    fn new() -> Self {
        let (step, reading) = templates();
        Self {
            engine: Engine::new(EngineConfig::default(), STARTED),
            now: Uptime::default(),
            run: step.run.clone(),
            step: step.clone(),
            reading: reading.clone(),
            steps: [0; RANKS],
            levels: [1 << 30; RANKS],
            n_steps: 0,
        }
    }

    /// Up to 10 s, or minutes to an hour.
    fn wait(&mut self, time: u8) {
        let passed = match time.checked_sub(250) {
            None => Duration::from_millis(u64::from(time) * 40),
            Some(long) => Duration::from_mins(10 * u64::from(long + 1)),
        };
        self.now = Uptime(self.now.0 + passed);
    }

    fn take(&mut self, event: &[u8; 8]) {
        let [kind, _, step, figures, high, low, unit, more] = *event;
        let idx = usize::from(kind) % RANKS;
        let change = i64::from(i16::from_be_bytes([high, low])) << (unit % 40);
        let level = self.levels[idx].saturating_add(change).clamp(0, INTEGER_MAX.cast_signed());
        self.levels[idx] = level;
        let level = level.cast_unsigned();
        let above =
            |shift: u32| Bytes::new((level + (u64::from(more) << shift)).min(INTEGER_MAX));
        let event = match kind >> 2 & 7 {
            6 => self.other(figures),
            5 => {
                let mut reading = self.reading.clone();
                if let Some(memory) = &mut reading.memory {
                    memory.used = above(24).expect("in range");
                }
                Event::Reading(Box::new(reading))
            }
            _ => {
                let last = self.steps[idx];
                self.steps[idx] = match step.cast_signed() {
                    i8::MAX => last.saturating_mul(1 << 20).min(INTEGER_MAX),
                    by => last.saturating_add_signed(i64::from(by)).min(INTEGER_MAX),
                };
                let sample = StepSample {
                    rank: Rank::new(idx as u64).expect("in range"),
                    time: (figures & 4 == 0).then(|| self.time(more)),
                    phase: Phase::ALL[usize::from(figures & 3) % Phase::ALL.len()],
                    identity: Identity {
                        attempt: Count::new(u64::from(figures >> 7)).expect("in range"),
                        memory_kind: None,
                        total_steps: (more & 1 == 1).then(|| {
                            Count::new(u64::from(more) << (figures & 7)).expect("in range")
                        }),
                        deadline: (more & 6 == 6).then(|| self.time(more)),
                        pid: Some(7 + u32::from(figures >> 6 & 1)),
                        unit: StepUnit::ALL[usize::from(more & 31 == 9)],
                        ..self.step.identity.clone()
                    },
                    figures: StepFigures {
                        step: Count::new(self.steps[idx]).expect("in range"),
                        allocated: Bytes::new(level).expect("in range"),
                        requested: (figures & 64 == 0)
                            .then(|| Bytes::new(level / 2).expect("in range")),
                        peak_allocated: (figures & 8 == 0)
                            .then(|| above(20).expect("in range")),
                        reserved: (figures & 16 == 0).then(|| above(16).expect("in range")),
                        free: (figures & 32 == 0).then(|| above(12).expect("in range")),
                        ..self.step.figures
                    },
                    ..self.step.clone()
                };
                Event::Steps(vec![sample])
            }
        };
        // A rank that another holds is refused.
        self.engine.handle(&event, self.now).ok();
    }

    /// When a step ended by a clock that is off by up to two minutes.
    fn time(&self, off: u8) -> Seconds {
        let off = f64::from(off.cast_signed());
        Seconds::new(STARTED + self.now.0.as_secs_f64() + off).expect("after 1970")
    }

    fn other(&mut self, figures: u8) -> Event {
        let ends = [
            r#"{"rank":0,"outcome":"oom"}"#,
            r#"{"rank":1,"outcome":"completed"}"#,
            r#"{"outcome":"completed"}"#,
        ];
        match figures % 6 {
            idx @ 0..3 => {
                let end = decode_end(ends[usize::from(idx)].as_bytes()).expect("an end");
                Event::End(self.run.clone(), end)
            }
            3 => Event::DevicesReleased,
            4 => Event::Scraped,
            _ => Event::Tick,
        }
    }

    fn check(&mut self) {
        self.engine.handle(&Event::Tick, self.now).expect("time passes");
        let status = self.engine.status(self.now, ExporterStatus::default());
        let text = render(&status, Format::OpenMetrics);
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
            assert!(value.is_some_and(f64::is_finite), "{line}");
        }
        let (mut saved, mut cursor) = (SavedState::default(), SaveCursor::default());
        let mut content = Vec::new();
        while let Some((part, next)) = self.engine.save(cursor, self.now) {
            let part = state::part(&part).expect("a part can be written");
            content.extend(u32::try_from(part.len()).expect("a part is short").to_le_bytes());
            content.extend(part);
            cursor = next;
        }
        content.extend([0; 4]);
        let checksum = crc32fast::hash(&content).to_le_bytes();
        let file = [state::MAGIC.as_bytes(), &content, &checksum].concat();
        let limits = StateLimits {
            file_bytes_max: SavedState::bytes_max(RANKS) as u64,
            part_bytes_max: SavedState::PART_BYTES_MAX,
        };
        let add = |part| saved.add(part, RANKS);
        let read = state::read_from(&file[..], Path::new("state"), limits, add);
        assert!(read.expect("we read what we write") && saved.is_whole());
        let resumed = Engine::resume(EngineConfig::default(), saved, Uptime::default());
        let n_ranks = resumed.status(Uptime::default(), ExporterStatus::default()).ranks.len();
        assert!(n_ranks <= RANKS);
    }
}

/// A step and a reading, decoded once.
fn templates() -> &'static (StepSample, GpuSample) {
    static TEMPLATES: OnceLock<(StepSample, GpuSample)> = OnceLock::new();
    TEMPLATES.get_or_init(|| {
        let event = |line: &str| decode_recorded(line.as_bytes()).expect("an event").0;
        let step = r#"{"run":"r","rank":0,"world_size":4,"step":0,"pid":7,"device":"GPU-0","allocated_bytes":0,"total_bytes":85899345920}"#;
        let reading = r#"{"nvml":true,"time":1700000000,"device":"GPU-0","used_bytes":0,"total_bytes":85899345920,"processes":[]}"#;
        match (event(step), event(reading)) {
            (Event::Steps(batch), Event::Reading(reading)) => (batch[0].clone(), *reading),
            _ => panic!("a step and a reading"),
        }
    })
}

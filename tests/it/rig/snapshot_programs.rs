//! Programs drawn from a seed: what becomes of the memory that a training step makes, and whether that leaks. Their recordings
//! have the shape of PyTorch's.

use std::collections::{BTreeSet, VecDeque};

use crate::rig::noise::Noise;
use crate::rig::snapshot_job::{Job, KIB};

/// The truth about a program, as far as a recording can show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    Leaks,
    /// Growth ends, or has a bound that the recording shows.
    Healthy,
    /// Growth has a bound that it has not reached at the end: nothing tells it from a leak.
    NotFullYet,
}

/// The fate of the memory of a line. Steps count from the recording's first.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// Each so-many-th step keeps some, and frees the rest some steps later.
    Keeps { every: u64, kept: u64, rest: u64, rest_steps: u64 },
    /// A step keeps one by chance.
    Sometimes { percent: usize },
    /// Keeps one for a new key, and by chance replaces that of an old one.
    Keyed { percent: usize },
    /// Keeps what three lines make: a graph.
    Graph,
    /// One buffer that is made anew and larger each time.
    Grows,
    /// The newest so many, beside one that is kept.
    RingAndKeeps { length: usize },
    /// The newest so many.
    Ring { length: usize, frees_first: bool },
    /// So many, of which any is replaced.
    Replaced { length: usize },
    /// Each lives for so many steps, by chance.
    Lives { least: u64, most: u64 },
    /// Emptied in each so-many-th step.
    Emptied { every: u64 },
    /// Emptied now and then.
    EmptiedBy { percent: usize },
    /// A block for each of so many keys, which comes again by chance and is replaced.
    Memo { n_keys: usize },
    /// A block in each so-many-th step until so many are there.
    Fills { every: u64, length: usize },
    /// A block for each of so many keys, which come by chance.
    Keys { n_keys: usize },
    /// The best so many, by chance.
    Best { length: usize },
}

/// A habit while the program runs.
#[derive(Clone, Debug)]
struct Activity {
    habit: Habit,
    /// The first step of it; `None`: it is older than the recording.
    from: Option<u64>,
    /// Largest and smallest size, in KiB.
    kib: [usize; 2],
    noise: u64,
}

/// The blocks that an activity holds.
#[derive(Default)]
struct Held {
    /// Addresses and the steps that free them.
    blocks: VecDeque<(u64, u64)>,
    keys: BTreeSet<usize>,
    /// Scores or keys of the blocks.
    scores: Vec<usize>,
    n_made: u64,
}

/// A program.
#[derive(Clone, Debug)]
pub struct Program {
    seed: u64,
    n_steps: u64,
    /// Steps before the recording, and whether its ring has overwritten them.
    before: (u64, bool),
    is_marked: bool,
    /// Samples of a batch vary by so many.
    n_varying: usize,
    own: Activity,
    others: Vec<Activity>,
}

/// The line that leaks, in `Program`s that leak.
pub const LEAKING_FILE: &str = "/job/keep.py";

impl Program {
    /// Draws a program of a kind.
    pub fn draw(seed: u64, truth: Truth) -> Self {
        let mut noise = Noise(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ 0x35);
        let noise = &mut noise;
        let (habit, n_steps, from) = match truth {
            Truth::Leaks => leaking(noise),
            Truth::Healthy => healthy(noise),
            Truth::NotFullYet => unfilled(noise),
        };
        let is_older = from.is_none();
        let is_before = is_older || noise.below(2) == 0;
        let before = if is_before { 4 + number(noise.below(40)) } else { 0 };
        let others = (0..noise.below(3)).map(|_| {
            let length = 2 + noise.below(4);
            let habit = match noise.below(4) {
                0 => Habit::Ring { length, frees_first: noise.below(2) == 0 },
                1 => Habit::Lives { least: 1, most: 3 },
                2 => Habit::Emptied { every: 2 },
                _ => Habit::Best { length: 1 },
            };
            activity(noise, habit, if before > 2 * number(length) { None } else { Some(0) })
        });
        let others = others.collect();
        Self {
            seed,
            n_steps,
            before: (before, noise.below(2) == 0),
            is_marked: noise.below(3) > 0,
            n_varying: if noise.below(2) == 0 { 0 } else { 4 },
            own: activity(noise, habit, from),
            others,
        }
    }

    /// Runs it; returns the file.
    pub fn run(&self) -> Vec<u8> {
        self.play(|_| {}).pickle()
    }

    /// Runs it; returns the files of what is alive at the end of each step.
    pub fn states(&self) -> Vec<Vec<u8>> {
        let mut states = Vec::new();
        self.play(|job| states.push(job.state()));
        states
    }

    /// Returns whether a line makes one buffer again, larger each time.
    pub fn makes_one_again(&self) -> bool {
        matches!(self.own.habit, Habit::Grows)
    }

    /// Runs it; `after` sees the job at the end of each step of the recording.
    fn play(&self, mut after: impl FnMut(&mut Job)) -> Job {
        let mut job = Job::new(4, self.is_marked);
        let mut noise = Noise(self.seed);
        let own = [5, 6, 7].map(|line| {
            let caller = ("/job/train.py", 33, "main");
            let script = ("/job/train.py", 90, "<module>");
            job.snapshot.stack(&[(LEAKING_FILE, line, "keep"), caller, script])
        });
        let other_lines: Vec<u32> = (0..self.others.len())
            .map(|place| {
                let line = 9 + number(place);
                let caller = ("/job/train.py", 34, "main");
                job.snapshot.stack(&[("/job/other.py", line, "other"), caller])
            })
            .collect();
        let mut held: Vec<Held> = (0..=self.others.len()).map(|_| Held::default()).collect();
        let (before, is_overwritten) = self.before;
        for step in 0..before + self.n_steps {
            if step == before && before > 0 {
                job.begin_recording(is_overwritten);
            }
            job.n_samples = 4 + number(noise.below(self.n_varying + 1));
            job.step(|job| {
                let lines = other_lines.iter().map(|line| [*line; 3]);
                let others = self.others.iter().zip(lines);
                let all = std::iter::once((&self.own, own)).chain(others);
                for ((activity, lines), held) in all.zip(&mut held) {
                    let first = activity.from.map_or(0, |from| before + from);
                    activity.act(job, held, lines, step.checked_sub(first));
                }
            });
            if step >= before {
                after(&mut job);
            }
        }
        job
    }
}

/// A leak, the steps of its recording, and the first that leaks.
fn leaking(noise: &mut Noise) -> (Habit, u64, Option<u64>) {
    let mut upto = |least: u64, most: u64| least + number(noise.below(index(most - least + 1)));
    let one = Habit::Keeps { every: 1, kept: 1, rest: 0, rest_steps: 0 };
    match upto(0, 10) {
        // Five to eight whole steps.
        0 => (one, upto(6, 9), Some(0)),
        1 => (Habit::Graph, upto(6, 9), Some(0)),
        // From the middle, also shortly before the end.
        2 => {
            let n_steps = upto(12, 60);
            (one, n_steps, Some(upto(n_steps / 4, n_steps - 8)))
        }
        3 => {
            let n_steps = upto(12, 60);
            (Habit::Graph, n_steps, Some(upto(n_steps / 4, n_steps - 8)))
        }
        4 => (one, upto(8, 40), None),
        // Stairs.
        5 => {
            let every = upto(2, 8);
            let n_steps = every * upto(5, 8) + 4;
            let from = upto(0, every * 2);
            let kept = upto(1, 3);
            let habit = Habit::Keeps { every, kept, rest: 0, rest_steps: 0 };
            (habit, n_steps + from, Some(from))
        }
        6 => {
            (Habit::Sometimes { percent: index(upto(40, 90)) }, upto(24, 60), Some(upto(0, 6)))
        }
        // The line also makes what is freed.
        7 => {
            let (rest, rest_steps) = (upto(1, 2), upto(0, 4));
            let habit = Habit::Keeps { every: 1, kept: 1, rest, rest_steps };
            (habit, upto(14, 40), Some(upto(0, 3)))
        }
        8 => (Habit::Keyed { percent: index(upto(10, 50)) }, upto(20, 50), Some(upto(0, 5))),
        9 => (Habit::Grows, upto(12, 40), Some(0)),
        _ => {
            let habit = Habit::RingAndKeeps { length: index(upto(3, 5)) };
            (habit, upto(18, 40), Some(upto(0, 2)))
        }
    }
}

/// A habit that leaks nothing, the steps of its recording, and the first of the habit.
fn healthy(noise: &mut Noise) -> (Habit, u64, Option<u64>) {
    let mut upto = |least: u64, most: u64| least + number(noise.below(index(most - least + 1)));
    let older = |from: u64, is_older: u64| (is_older == 1).then_some(from);
    match upto(0, 10) {
        // A ring that turns over, at the latest shortly before the end.
        0 | 1 => {
            let (length, from) = (upto(2, 12), upto(0, 10));
            let habit = Habit::Ring { length: index(length), frees_first: upto(0, 1) == 0 };
            (habit, from + length + upto(3, 25), older(from, upto(0, 2).min(1)))
        }
        2 => {
            let (length, from) = (upto(2, 8), upto(0, 10));
            let habit = Habit::Replaced { length: index(length) };
            (habit, from + length + upto(4, 25), older(from, upto(0, 2).min(1)))
        }
        3 => {
            let least = upto(1, 4);
            let habit = Habit::Lives { least, most: least + upto(1, 6) };
            (habit, upto(24, 50), older(upto(0, 5), upto(0, 2).min(1)))
        }
        // Emptied twice at least.
        4 => {
            let (every, from) = (upto(3, 10), upto(0, 6));
            (Habit::Emptied { every }, from + 2 * every + upto(2, 20), Some(from))
        }
        5 => {
            let (every, length, from) = (upto(1, 3), upto(1, 10), upto(0, 6));
            let habit = Habit::Fills { every, length: index(length) };
            (habit, from + every * length + upto(3 + 2 * every, 20), Some(from))
        }
        6 => {
            let n_keys = upto(2, 10);
            (Habit::Keys { n_keys: index(n_keys) }, 4 * n_keys + upto(2, 20), Some(upto(0, 3)))
        }
        7 => {
            let n_keys = upto(2, 10);
            let habit = Habit::Memo { n_keys: index(n_keys) };
            (habit, 4 * n_keys + upto(4, 20), older(upto(0, 3), upto(0, 1)))
        }
        8 => {
            (Habit::EmptiedBy { percent: index(upto(15, 40)) }, upto(30, 60), Some(upto(0, 4)))
        }
        9 => (Habit::Best { length: index(upto(1, 5)) }, upto(20, 50), Some(upto(0, 4))),
        _ => {
            let habit = Habit::Fills { every: 1, length: index(upto(1, 4)) };
            (habit, upto(10, 14), Some(0))
        }
    }
}

/// A habit with a bound that it has not reached, the steps of its recording, and the first of
/// the habit.
fn unfilled(noise: &mut Noise) -> (Habit, u64, Option<u64>) {
    let mut upto = |least: u64, most: u64| least + number(noise.below(index(most - least + 1)));
    let (from, n_made) = (upto(0, 12), upto(4, 30));
    let length = index(n_made + upto(1, 20));
    let habit = if upto(0, 1) == 0 {
        Habit::Ring { length, frees_first: false }
    } else {
        Habit::Fills { every: 1, length }
    };
    (habit, (from + n_made).max(6), Some(from))
}

fn activity(noise: &mut Noise, habit: Habit, from: Option<u64>) -> Activity {
    let most = [1_usize, 40, 768, 4096][noise.below(4)];
    let least = if noise.below(2) == 0 { most } else { most.div_ceil(4) };
    Activity { habit, from, kib: [most, least], noise: number(noise.below(1 << 30)) }
}

impl Activity {
    fn make(&self, job: &mut Job, held: &mut Held, line: u32) -> u64 {
        let [most, least] = self.kib;
        held.n_made += 1;
        let size = least + Noise(self.noise ^ held.n_made << 8).below(most - least + 1);
        job.make(number(size) * KIB, line)
    }

    fn keep(&self, job: &mut Job, held: &mut Held, line: u32, until: u64) {
        let block = self.make(job, held, line);
        held.blocks.push_back((block, until));
    }

    /// Does what it does in its so-many-th step, if it has begun.
    fn act(&self, job: &mut Job, held: &mut Held, lines: [u32; 3], step: Option<u64>) {
        let Some(step) = step else { return };
        let mut noise = Noise(self.noise ^ step << 20);
        let line = lines[0];
        while let Some(place) = held.blocks.iter().position(|(_, until)| *until <= step) {
            job.drop(held.blocks.remove(place).unwrap().0);
        }
        match self.habit {
            Habit::Keeps { every, kept, rest, rest_steps } if step.is_multiple_of(every) => {
                (0..kept).for_each(|_| self.keep(job, held, line, u64::MAX));
                (0..rest).for_each(|_| self.keep(job, held, line, step + 1 + rest_steps));
            }
            Habit::Sometimes { percent } if noise.below(100) < percent => {
                self.keep(job, held, line, u64::MAX);
            }
            Habit::Keyed { percent } => {
                if noise.below(100) < percent && !held.blocks.is_empty() {
                    let place = noise.below(held.blocks.len());
                    self.keep(job, held, line, u64::MAX);
                    job.drop(held.blocks.remove(place).unwrap().0);
                }
                self.keep(job, held, line, u64::MAX);
            }
            Habit::Graph => {
                for line in lines {
                    self.keep(job, held, line, u64::MAX);
                }
            }
            Habit::Grows => {
                let before = held.blocks.pop_back();
                let size = (step + 1) * number(self.kib[1]) * KIB;
                held.blocks.push_back((job.make(size, line), u64::MAX));
                if let Some((block, _)) = before {
                    job.drop(block);
                }
            }
            Habit::RingAndKeeps { length } => {
                self.keep(job, held, line, u64::MAX);
                self.keep(job, held, line, step + number(length));
            }
            Habit::Lives { least, most } => {
                let lived = least + number(noise.below(index(most - least + 1)));
                self.keep(job, held, line, step + lived);
            }
            Habit::Emptied { every } => {
                if step % every == every - 1 {
                    held.blocks.drain(..).for_each(|(block, _)| job.drop(block));
                }
                self.keep(job, held, line, u64::MAX);
            }
            Habit::EmptiedBy { percent } => {
                if noise.below(100) < percent {
                    held.blocks.drain(..).for_each(|(block, _)| job.drop(block));
                }
                self.keep(job, held, line, u64::MAX);
            }
            _ => self.bound(job, held, line, step),
        }
    }

    /// The same for habits with a length.
    fn bound(&self, job: &mut Job, held: &mut Held, line: u32, step: u64) {
        let mut noise = Noise(self.noise ^ step << 20);
        let drop = |job: &mut Job, held: &mut Held, place: usize| {
            job.drop(held.blocks.remove(place).unwrap().0);
        };
        match self.habit {
            Habit::Ring { length, frees_first } => {
                let is_full = held.blocks.len() >= length;
                if is_full && frees_first {
                    drop(job, held, 0);
                }
                self.keep(job, held, line, u64::MAX);
                if is_full && !frees_first {
                    drop(job, held, 0);
                }
            }
            Habit::Replaced { length } => {
                self.keep(job, held, line, u64::MAX);
                if held.blocks.len() > length {
                    let place = noise.below(length);
                    drop(job, held, place);
                }
            }
            Habit::Fills { every, length }
                if step.is_multiple_of(every) && held.blocks.len() < length =>
            {
                self.keep(job, held, line, u64::MAX);
            }
            Habit::Keys { n_keys } if held.keys.insert(noise.below(n_keys)) => {
                self.keep(job, held, line, u64::MAX);
            }
            Habit::Memo { n_keys } => {
                let key = noise.below(n_keys);
                let before = held.scores.iter().position(|known| *known == key);
                self.keep(job, held, line, u64::MAX);
                held.scores.push(key);
                if let Some(place) = before {
                    held.scores.remove(place);
                    drop(job, held, place);
                }
            }
            Habit::Best { length } => {
                let score = noise.below(1 << 30);
                self.keep(job, held, line, u64::MAX);
                held.scores.push(score);
                if held.scores.len() > length {
                    let worst =
                        (0..held.scores.len()).min_by_key(|at| held.scores[*at]).unwrap();
                    held.scores.remove(worst);
                    drop(job, held, worst);
                }
            }
            _ => {}
        }
    }
}

fn number(index: usize) -> u64 {
    u64::try_from(index).unwrap()
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

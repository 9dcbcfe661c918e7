//! Memory that only looks like a leak: models of one rank's memory, none of which ever fills the device. Whatever a detector pages here is false.
//!
//! A run lasts two days. Its scales are drawn by its seed. Levels are shares of the headroom, which is the device without what training
//! needs at its peak. Walks and level shifts are bounded, caches end below 30 % of the headroom.

/// Bytes of the device.
pub(crate) const TOTAL_BYTES: f64 = 85_520_809_984.0;
pub(crate) const RUN_DAYS: u32 = 2;
pub(crate) const STEP_SECONDS: u32 = 10;
const STEPS_PER_DAY: u32 = 86_400 / STEP_SECONDS;
const STEPS: u32 = RUN_DAYS * STEPS_PER_DAY;
const START_TIME: f64 = 1_760_000_000.0;
/// The highest level of walks.
const LEVEL_MAX: f64 = 0.9;
/// The highest level of level shifts: the model, its gradients, its optimizer and its copies are all there.
const SHIFTED_MAX: f64 = 0.6;
const CACHE_MAX: f64 = 0.3;
/// The allocator takes large segments in multiples of this.
const SEGMENT_BYTES: f64 = 2_097_152.0;
const BLOCK_BYTES: f64 = 512.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    RandomWalk,
    HeavyTailedWalk,
    JumpWalk,
    ExponentialCache,
    LogarithmicCache,
    PowerCache,
    LevelShifts,
    Sawtooth,
}

impl Model {
    pub(crate) const ALL: [Self; 8] = [
        Self::RandomWalk,
        Self::HeavyTailedWalk,
        Self::JumpWalk,
        Self::ExponentialCache,
        Self::LogarithmicCache,
        Self::PowerCache,
        Self::LevelShifts,
        Self::Sawtooth,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RandomWalk => "random_walk",
            Self::HeavyTailedWalk => "heavy_tailed_walk",
            Self::JumpWalk => "jump_walk",
            Self::ExponentialCache => "exponential_cache",
            Self::LogarithmicCache => "logarithmic_cache",
            Self::PowerCache => "power_cache",
            Self::LevelShifts => "level_shifts",
            Self::Sawtooth => "sawtooth",
        }
    }

    /// The model of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.name() == name)
    }
}

/// The record of a rank at the end of a step. Bytes are whole numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) step: u32,
    /// Unix time, in seconds.
    pub(crate) time: f64,
    pub(crate) allocated: f64,
    pub(crate) peak: f64,
    pub(crate) reserved: f64,
}

/// The runs of `days` rank-days: each has a seed of its own.
pub(crate) fn runs(model: Model, days: u32, seed: u64) -> impl Iterator<Item = Run> {
    (0..days / RUN_DAYS).map(move |n| Run::new(model, (seed << 32) + u64::from(n)))
}

/// One run: its records in order.
#[derive(Debug)]
pub(crate) struct Run {
    random: Random,
    path: Path,
    step: u32,
    /// Bytes that live all the time.
    base: f64,
    /// Bytes of a step's activations, and the share by which they vary.
    transient: f64,
    variation: f64,
    headroom: f64,
    reserved: f64,
}

impl Run {
    pub(crate) fn new(model: Model, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let base = TOTAL_BYTES * random.between(0.2, 0.45);
        let transient = TOTAL_BYTES * random.between(0.15, 0.4);
        let variation = random.between(0.0, 0.03);
        let headroom = TOTAL_BYTES - base - transient * (1.0 + variation);
        let path = Path::new(model, &mut random);
        Self { random, path, step: 0, base, transient, variation, headroom, reserved: 0.0 }
    }
}

impl Iterator for Run {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        if self.step == STEPS {
            return None;
        }
        self.step += 1;
        let level = self.path.next(self.step, &mut self.random);
        let allocated = in_units(self.base + level * self.headroom, BLOCK_BYTES);
        let varies = 1.0 + self.variation * self.random.between(-1.0, 1.0);
        let peak = in_units(allocated + self.transient * varies, BLOCK_BYTES);
        self.reserved = self.reserved.max(in_units(peak, SEGMENT_BYTES).min(TOTAL_BYTES));
        let time = START_TIME + f64::from(self.step) * f64::from(STEP_SECONDS);
        Some(Record { step: self.step, time, allocated, peak, reserved: self.reserved })
    }
}

fn in_units(bytes: f64, unit: f64) -> f64 {
    (bytes / unit).ceil() * unit
}

/// The level over time, as a share of the headroom.
#[derive(Debug)]
enum Path {
    Walk { level: f64, moves: Moves },
    Cache { curve: Curve, size: f64, n_units: u32, n_there: u32, next_at: f64 },
    Shifts { level: f64, chance: f64, size: f64 },
    Sawtooth { level: f64, height: f64, period: f64, jitter: f64, rise: f64, steps_left: f64 },
}

/// The move of a walk in a step; `scale` makes its standard deviation.
#[derive(Clone, Copy, Debug)]
enum Moves {
    Normal {
        scale: f64,
    },
    /// Student's t with three degrees of freedom.
    HeavyTailed {
        scale: f64,
    },
    /// Now and then, up or down by an exponential amount.
    Jumps {
        chance: f64,
        scale: f64,
    },
}

/// When a cache has filled to a share of its size.
#[derive(Clone, Copy, Debug)]
enum Curve {
    Exponential {
        steps: f64,
    },
    Logarithmic {
        steps: f64,
    },
    /// The rest that is still to be filled falls with a power of the time, as with keys of Zipf's law.
    Power {
        steps: f64,
        exponent: f64,
    },
}

impl Path {
    fn new(model: Model, random: &mut Random) -> Self {
        match model {
            Model::RandomWalk | Model::HeavyTailedWalk | Model::JumpWalk => {
                let per_day = random.scale(0.03, 0.6);
                let scale = per_day / f64::from(STEPS_PER_DAY).sqrt();
                let jumps = random.scale(3.0, 300.0);
                let moves = match model {
                    Model::RandomWalk => Moves::Normal { scale },
                    // Its variance is 3.
                    Model::HeavyTailedWalk => {
                        Moves::HeavyTailed { scale: scale / 3_f64.sqrt() }
                    }
                    _ => Moves::Jumps {
                        chance: jumps / f64::from(STEPS_PER_DAY),
                        scale: per_day / (2.0 * jumps).sqrt(),
                    },
                };
                Self::Walk { level: LEVEL_MAX / 2.0, moves }
            }
            Model::ExponentialCache => {
                Self::cache(Curve::Exponential { steps: random.scale(100.0, 30_000.0) }, random)
            }
            Model::LogarithmicCache => {
                Self::cache(Curve::Logarithmic { steps: random.scale(20.0, 2_000.0) }, random)
            }
            Model::PowerCache => {
                let steps = random.scale(20.0, 5_000.0);
                Self::cache(Curve::Power { steps, exponent: random.between(0.3, 1.5) }, random)
            }
            Model::LevelShifts => Self::Shifts {
                level: 0.0,
                chance: random.scale(1.0, 12.0) / f64::from(STEPS),
                size: random.scale(0.01, 0.15),
            },
            Model::Sawtooth => Self::Sawtooth {
                level: 0.0,
                height: random.scale(0.005, 0.1),
                period: random.scale(50.0, 3_000.0),
                jitter: random.between(0.0, 0.4),
                rise: 0.0,
                steps_left: 0.0,
            },
        }
    }

    fn cache(curve: Curve, random: &mut Random) -> Self {
        let size = random.scale(0.01, CACHE_MAX);
        Self::Cache {
            curve,
            size,
            n_units: random.count(20.0, 2_000.0),
            n_there: 0,
            next_at: 0.0,
        }
    }

    /// The level after a step.
    fn next(&mut self, step: u32, random: &mut Random) -> f64 {
        match self {
            Self::Walk { level, moves } => {
                *level = reflected(*level + moves.next(random), LEVEL_MAX);
                *level
            }
            Self::Cache { curve, size, n_units, n_there, next_at } => {
                while *n_there < *n_units && *next_at <= f64::from(step) {
                    *n_there += 1;
                    let share = (f64::from(*n_there) + random.uniform()) / f64::from(*n_units);
                    *next_at = curve.steps_until(share);
                }
                *size * f64::from(*n_there) / f64::from(*n_units)
            }
            Self::Shifts { level, chance, size } => {
                if random.uniform() < *chance {
                    let up = random.uniform() < 0.6;
                    let shift = *size * random.exponential() * if up { 1.0 } else { -1.0 };
                    *level = reflected(*level + shift, SHIFTED_MAX);
                }
                *level
            }
            Self::Sawtooth { level, height, period, jitter, rise, steps_left } => {
                if *steps_left < 1.0 {
                    *level = 0.0;
                    *steps_left = *period * (1.0 + *jitter * random.between(-1.0, 1.0));
                    *rise = *height / *period;
                }
                *steps_left -= 1.0;
                *level += *rise;
                *level
            }
        }
    }
}

impl Moves {
    fn next(self, random: &mut Random) -> f64 {
        match self {
            Self::Normal { scale } => scale * random.normal(),
            Self::HeavyTailed { scale } => {
                let squares: f64 = (0..3).map(|_| random.normal().powi(2)).sum();
                scale * random.normal() / (squares / 3.0).sqrt()
            }
            Self::Jumps { chance, scale } => {
                let up = random.uniform() < 0.5;
                let size = scale * random.exponential();
                if random.uniform() >= chance {
                    0.0
                } else if up {
                    size
                } else {
                    -size
                }
            }
        }
    }
}

impl Curve {
    /// Steps until a share of the cache is there; a logarithmic cache has its size at the run's end.
    fn steps_until(self, share: f64) -> f64 {
        match self {
            Self::Exponential { steps } => -steps * (1.0 - share).max(1e-9).ln(),
            Self::Logarithmic { steps } => {
                steps * (share * (f64::from(STEPS) / steps).ln_1p()).exp_m1()
            }
            Self::Power { steps, exponent } => {
                steps * ((1.0 - share).max(1e-9).powf(-1.0 / exponent) - 1.0)
            }
        }
    }
}

/// A level between 0 and `max`: what exceeds a bound is turned back. Far jumps stop at it.
fn reflected(level: f64, max: f64) -> f64 {
    let inside = level.abs();
    if inside > max { (2.0 * max - inside).max(0.0) } else { inside }
}

/// Steele, Lea and Flood's `SplitMix64`.
#[derive(Debug)]
struct Random {
    state: u64,
    /// The second of a pair of normal numbers.
    spare: Option<f64>,
}

impl Random {
    fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0xD134_2543_DE82_EF95), spare: None }
    }

    /// Above 0 and below 1.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^= bits >> 31;
        let high = u32::try_from(bits >> 32).unwrap_or(u32::MAX);
        (f64::from(high) + 0.5) / 4_294_967_296.0
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// Between two values, evenly in the logarithm.
    fn scale(&mut self, low: f64, high: f64) -> f64 {
        self.between(low.ln(), high.ln()).exp()
    }

    /// A whole number between two values, evenly in the logarithm.
    fn count(&mut self, low: f64, high: f64) -> u32 {
        let wanted = self.scale(low, high);
        (0..32).map(|bit| 1_u32 << bit).rev().fold(0, |found, bit| {
            if f64::from(found | bit) <= wanted { found | bit } else { found }
        })
    }

    fn exponential(&mut self) -> f64 {
        -self.uniform().ln()
    }

    /// By Box and Muller.
    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (2.0 * self.exponential()).sqrt();
        let (sine, cosine) = (std::f64::consts::TAU * self.uniform()).sin_cos();
        self.spare = Some(radius * sine);
        radius * cosine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_model_ever_fills_the_device() {
        for model in Model::ALL {
            for run in runs(model, 40, 1) {
                let base = run.base;
                for record in run {
                    assert!(record.allocated >= base, "{model:?} {record:?}");
                    assert!(record.peak < 0.99 * TOTAL_BYTES, "{model:?} {record:?}");
                    assert!(record.reserved >= record.peak, "{model:?} {record:?}");
                }
            }
        }
    }

    #[test]
    fn caches_end_below_their_share() {
        for model in [Model::ExponentialCache, Model::LogarithmicCache, Model::PowerCache] {
            for run in runs(model, 40, 2) {
                let limit = run.base + CACHE_MAX * run.headroom + BLOCK_BYTES;
                let mut last = 0.0;
                for record in run {
                    assert!(record.allocated >= last && record.allocated <= limit, "{model:?}");
                    last = record.allocated;
                }
            }
        }
    }

    #[test]
    fn a_run_is_the_same_again_and_as_long_as_it_should_be() {
        for model in Model::ALL {
            let (one, other): (Vec<_>, Vec<_>) =
                (Run::new(model, 3).collect(), Run::new(model, 3).collect());
            assert_eq!(one, other);
            assert_eq!(one.len(), 17_280);
            assert_ne!(one, Run::new(model, 4).collect::<Vec<_>>());
            assert_eq!(Model::named(model.name()), Some(model));
        }
    }

    #[test]
    fn moves_have_the_variance_of_their_scale() {
        let mut random = Random::new(5);
        let n = 200_000;
        for (moves, expected) in [
            (Moves::Normal { scale: 2.0 }, 4.0),
            (Moves::Jumps { chance: 0.1, scale: 2.0 }, 0.8),
        ] {
            let squares: f64 = (0..n).map(|_| moves.next(&mut random).powi(2)).sum();
            let variance = squares / f64::from(n);
            assert!((variance / expected - 1.0).abs() < 0.05, "{moves:?} {variance}");
        }
    }
}

//! The numbers by which a snapshot's line goes on rising, which `step_minima` judges. They are not the detector's, which
//! judges one sum of memory over thousands of steps and pages: a snapshot has a few steps, but
//! each block of them, its line and its end. So no random walk is tested, and nothing is weighed
//! against the memory that is left: what counts is which line keeps what it makes, step after
//! step. None bounds memory or time: those bounds are in docs/limits.md.

// The least that a line holds in each step.

/// A rise this many times the median one is a one-off.
pub(crate) const OUTLIER_FACTOR: i64 = 10;
/// Falls are at most this part of the rises.
pub(crate) const FALLS_RATIO: f64 = 0.1;
/// A rise is still there at the end, but for this part.
pub(crate) const LOST_RATIO: f64 = 0.1;
/// The longest time from the last rise to the end, in so many of the longest gaps, or so many
/// steps.
pub(crate) const SILENCE_GAPS: f64 = 1.5;
pub(crate) const SILENCE_STEPS: u32 = 2;
/// The second half of the rises is at least this part of the first.
pub(crate) const SLOWER_RATIO_MIN: f64 = 0.5;
/// Rises that come earlier in the window than so many standard deviations become rarer.
pub(crate) const EARLY_DEVIATIONS: f64 = 1.5;
/// A rise of so many steps is long enough in any window.
pub(crate) const SPAN_STEPS: u32 = 10;
/// Rises that a trend needs.
pub(crate) const RISES_MIN: usize = 3;

// The lines of a trace.

/// Whole steps that a verdict needs.
pub(crate) const STEPS_MIN: usize = 5;
/// Whole steps below which no step is left out at the window's edges but the last.
pub(crate) const STEPS_FEW: usize = 7;
/// Rises that one buffer needs that is made again and larger each time.
pub(crate) const REMADE_RISES_MIN: usize = 6;
/// Rises that a line needs that frees as it goes.
pub(crate) const FREEING_RISES_MIN: usize = 5;
/// The part of the active minimum's slope that suspects may exceed it by.
pub(crate) const SLOPE_RATIO_MIN: f64 = 0.5;
/// A frame to blame is over this much of the largest site's bytes, and its survival is this
/// part of the best.
pub(crate) const OVER_RATIO_MIN: f64 = 0.9;
pub(crate) const SURVIVAL_RATIO_MIN: f64 = 2.0 / 3.0;
/// Other lines grow likewise if their growth is this part of the suspect's.
pub(crate) const LIKEWISE_RATIO_MIN: f64 = 0.5;

// The steps in which kept blocks were born.

/// A block that lives for more steps than this is not in flight.
pub(crate) const IN_FLIGHT_STEPS: u32 = 2;
/// So many generations are a leak wherever it began.
pub(crate) const GENERATIONS_MIN: u32 = 5;
/// Generations are of nearly every step if there is one in so many.
pub(crate) const STEPS_PER_GENERATION: u32 = 3;
/// A line frees as it goes if it does in so many different steps.
pub(crate) const FREES_MIN: u32 = 3;
/// Fewer are regular if the longest gap between them is so many of the shortest, or so many
/// steps more.
pub(crate) const GAPS_RATIO: f64 = 1.5;
pub(crate) const GAPS_STEPS: f64 = 1.0;

// Lines that turn over.

/// Blocks that a line keeps, from which on it may be a queue.
pub(crate) const KEPT_MIN: u64 = 3;
/// A block is of a line whose blocks are at most so many times larger or smaller.
pub(crate) const SIZE_FACTOR: f64 = 4.0;
/// A rise up to this part of what a line turns over is by chance, where sizes differ.
pub(crate) const NOISE_RATIO: f64 = 0.5;

// Blocks born between states of a process.

/// States that a verdict needs.
pub(crate) const STATES_MIN: u32 = 5;
/// Stretches between states in which a line has to grow.
pub(crate) const STRETCHES_MIN: usize = 4;
/// Stretches of growth after which it is not known whether it goes on.
pub(crate) const POSSIBLE_STRETCHES_MIN: usize = 2;
/// The second half of the births is at most this part of the first where they become rarer.
pub(crate) const RARER_RATIO: f64 = 2.0 / 3.0;

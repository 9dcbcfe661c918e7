//! What a window or a flight of stairs is asked before its growth counts.

/// The end stands above all that left the window by this share of the growth; a sawtooth does
/// not.
pub(super) const NEW_HIGH_OF_GROWTH: f64 = 0.5;

/// What a window is asked before its growth counts, in the order of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gate {
    /// There are enough blocks: how many there are.
    Blocks,
    /// Every block knows the figure: how many do.
    Known,
    /// The last block is above the first: by how many bytes.
    Rise,
    /// The way there was straight: how many equal moves it is worth.
    Straight,
    /// The growth goes on: what the last quarter gained, as a share of what the first did.
    Steady,
    /// Slack gained along: its share of what reserved memory gained.
    SlackGain,
    /// The line through the window climbs: by how many bytes.
    Growth,
    /// It was never as high before in this life: how many bytes at the end.
    NewHigh,
    /// Slack carries the slope: its share of it.
    SlackSlope,
    /// The working set does not grow along: its slope by that of reserved memory, at most.
    WorkingSet,
    /// What larger batches explain taken off, the line still climbs: by how many bytes.
    BatchGrowth,
    /// The growth is a notable share of growth and headroom.
    Share,
    /// To creep, the window is long enough: how many records.
    Records,
    /// To creep, the end is near: how many seconds are left, at most.
    Horizon,
    /// Stairs are equally high: how far one is off, as a share of the height, at most.
    StairHeights,
    /// Stairs are evenly spaced: how far one is off, as a share of the distance, at most.
    StairDistances,
    /// It is level between stairs: how far it is off, as a share of the height, at most.
    StairLandings,
    /// The climb is that of the stairs: how far it is off, as a share of it, at most.
    StairClimb,
    /// Stairs are far enough apart not to be a ramp: how many steps.
    StairsApart,
    /// Of few stairs, few more fit: how many, at most.
    StairsLeft,
}

/// The gate that stopped a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateFailure {
    /// Which one.
    pub gate: Gate,
    /// What the window showed, in the unit of the gate.
    pub value: f64,
    /// What it had to show.
    pub limit: f64,
}

impl GateFailure {
    /// Whether the limit is the most that may be shown, not the least that must.
    pub fn is_at_most(&self) -> bool {
        match self.gate {
            Gate::Blocks
            | Gate::Known
            | Gate::Rise
            | Gate::Straight
            | Gate::Steady
            | Gate::SlackGain
            | Gate::Growth
            | Gate::NewHigh
            | Gate::SlackSlope
            | Gate::BatchGrowth
            | Gate::Share
            | Gate::Records
            | Gate::StairsApart => false,
            Gate::WorkingSet
            | Gate::Horizon
            | Gate::StairHeights
            | Gate::StairDistances
            | Gate::StairLandings
            | Gate::StairClimb
            | Gate::StairsLeft => true,
        }
    }

    pub(super) fn below(gate: Gate, value: f64, limit: f64) -> Result<(), Self> {
        Self::unless(value >= limit, gate, value, limit)
    }

    pub(super) fn above(gate: Gate, value: f64, limit: f64) -> Result<(), Self> {
        Self::unless(value <= limit, gate, value, limit)
    }

    /// Stops what is off by more than a share of `whole`.
    pub(super) fn off(gate: Gate, off: f64, whole: f64, limit: f64) -> Result<(), Self> {
        Self::unless(off <= limit * whole, gate, off / whole, limit)
    }

    pub(super) fn unless(
        is_passed: bool,
        gate: Gate,
        value: f64,
        limit: f64,
    ) -> Result<(), Self> {
        if is_passed { Ok(()) } else { Err(Self { gate, value, limit }) }
    }
}

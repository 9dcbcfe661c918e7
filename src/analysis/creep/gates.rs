//! The table of gates: every question that a window or a flight of stairs must pass before its
//! growth counts, with its unit, its direction and its words. The values of a gate are computed
//! where it is asked, in `window` and `stairs`.

/// The end stands above all that left the window by this share of the growth; a sawtooth does
/// not.
pub(super) const NEW_HIGH_OF_GROWTH: f64 = 0.5;

/// On which side of its limit a value passes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bound {
    /// At the limit or above it.
    AtLeast,
    /// At the limit or below it.
    AtMost,
}

/// The unit of a gate's value and limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GateUnit {
    Bytes,
    /// A whole number of things.
    Count,
    /// A number of things of which the value may be a fraction; the limit is whole.
    Fraction,
    /// A share, 1 for all.
    Share,
    Seconds,
}

/// What the table holds of one gate.
#[derive(Debug)]
pub struct GateRow {
    /// A word or two for what it stops, at most 12 characters.
    pub name: &'static str,
    /// The unit of its values.
    pub unit: GateUnit,
    /// On which side of the limit a value passes.
    pub bound: Bound,
    /// Writes a clause that explains a failure from the value and the limit as text.
    pub reason: fn(&str, &str) -> String,
    /// The entry of a glossary: what it means to be stopped by it.
    pub meaning: &'static str,
}

/// Makes [`Gate`] and its rows from one table, in the order of asking. A row: its doc, which
/// names the value; gate, bound and unit; name; reason with `{value}` and `{limit}`; meaning.
macro_rules! gates {
    ($(
        $(#[doc = $doc:literal])+
        $gate:ident $bound:ident $unit:ident $name:literal
            $reason:literal
            $meaning:literal,
    )+) => {
        /// What is asked before growth counts, in the order of asking.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Gate {
            $($(#[doc = $doc])+ $gate,)+
        }

        impl Gate {
            /// Every gate, in the order of asking.
            pub const ALL: &[Self] = &[$(Self::$gate),+];

            /// Returns the gate's row of the table.
            pub fn row(self) -> &'static GateRow {
                match self {
                    $(Self::$gate => &GateRow {
                        name: $name,
                        unit: GateUnit::$unit,
                        bound: Bound::$bound,
                        reason: |value, limit| format!($reason, value = value, limit = limit),
                        meaning: $meaning,
                    },)+
                }
            }
        }
    };
}

gates! {
    /// There are enough blocks: how many there are.
    Blocks AtLeast Count "too short"
        "it had {value} blocks and needs {limit}"
        "too few blocks",
    /// Every block knows the figure: how many do.
    Known AtLeast Count "unknown"
        "{value} of its {limit} blocks know the figure"
        "a figure is not known",
    /// The last block is above the first: by how many bytes.
    Rise AtLeast Bytes "no rise"
        "it rose by {value} and needs {limit}"
        "ends hardly above its beginning: by less than about 2% of what is left",
    /// The way there was straight: how many equal moves it is worth.
    Straight AtLeast Fraction "zigzag"
        "it went up and down: worth {value} equal moves, and needs {limit} to be no random walk"
        "goes up and down: worth fewer equal moves than no random walk is",
    /// The growth goes on: the last quarter's gain as a share of the first quarter's.
    Steady AtLeast Share "slows down"
        "it slows down: its last quarter gained {value} of what the first did, and needs {limit}"
        "its last quarter gained less than 80% of what its first did: a cache fills",
    /// Slack gained along: its share of the gain of reserved memory.
    SlackGain AtLeast Share "not slack"
        "unused memory carries {value} of the growth, and needs {limit}: the rest is live"
        "it is live memory that carries the growth of reserved memory",
    /// The line through the window climbs: by how many bytes.
    Growth AtLeast Bytes "no growth"
        "the line through it climbs by {value} and needs {limit}"
        "climbs less than its ends suggest",
    /// It was never as high before in this life: how many bytes at the end.
    NewHigh AtLeast Bytes "been there"
        "it had been as high before: it ends at {value} and needs {limit}"
        "ends not far enough above what this life had before: a sawtooth",
    /// Slack carries the slope: its share of it.
    SlackSlope AtLeast Share "not slack"
        "unused memory carries {value} of the growth, and needs {limit}: the rest is live"
        "it is live memory that carries the slope of reserved memory",
    /// The working set does not grow along: its slope as a share of reserved memory's.
    WorkingSet AtMost Share "working set"
        "the peak grows along, by {value} of the slope, and may by {limit}"
        "peaks grow along: larger steps, no fragmentation",
    /// Without what larger batches explain, the line still climbs: by how many bytes.
    BatchGrowth AtLeast Bytes "batch"
        "larger batches explain it: {value} of growth are left, and it needs {limit}"
        "larger batches explain it",
    /// A process that does not push takes no larger segments each time: Kendall's tau of its climbs.
    EverLarger AtMost Share "ever larger"
        "each of its few climbs is larger than the last: their tau is {value} and may be {limit}"
        "grows in few climbs, each larger than the last: so do larger batches",
    /// It did not grow from next to nothing: the growth as a share of what was held at first.
    Loading AtMost Share "loading"
        "it gained {value} of what it held at first, and may {limit}: a model is loaded like that"
        "gained more than it held at first: a model is being loaded",
    /// The end is near: how many times as long as the growth was seen the rest lasts.
    Soon AtMost Fraction "not urgent"
        "what is left lasts {value} times as long as it was seen, and may {limit}"
        "of the first steps: takes too long to be urgent, a window will show it",
    /// The growth is a notable share of growth and headroom.
    Share AtLeast Share "small"
        "it has eaten {value} of what there was to grow into, and needs {limit}"
        "has eaten too little of what is left; short windows need more",
    /// To creep, the window is long enough: how many records.
    Records AtLeast Count "short"
        "its window has {value} records and needs {limit}"
        "grows steadily, but over too few records to be called creep",
    /// To creep, the end is near: how many seconds are left.
    Horizon AtMost Seconds "far off"
        "what is left lasts {value}, and creep is what ends within {limit}"
        "grows steadily, but leaves more than three days",
    /// Stairs are equally high: how far one is off, as a share of the height.
    StairHeights AtMost Share "unequal"
        "one is {value} off the mean height, and may be {limit}"
        "said of stairs only",
    /// Stairs are evenly spaced: how far one is off, as a share of the distance.
    StairDistances AtMost Share "uneven"
        "one is {value} off the mean distance, and may be {limit}"
        "said of stairs only",
    /// It is level between stairs: how far it is off, as a share of the height.
    StairLandings AtMost Share "not level"
        "it is not level between them, {value} off, and may be {limit}"
        "said of stairs only",
    /// The climb is that of the stairs: how far it is off, as a share of it.
    StairClimb AtMost Share "not level"
        "it is not level between them, {value} off, and may be {limit}"
        "said of stairs only",
    /// Stairs are far enough apart not to be a ramp: how many steps.
    StairsApart AtLeast Count "ramp"
        "they are {value} steps apart and need {limit}"
        "said of stairs only",
    /// Of few stairs, each came with an evaluation, a checkpoint or a pause: how many did.
    StairMarks AtLeast Count "unmarked"
        "{value} of {limit} came with an evaluation, a checkpoint or a pause: only three say little"
        "said of stairs only",
    /// Evaluations, checkpoints and pauses come with a stair: the share of them that do.
    MarkStairs AtLeast Share "by chance"
        "{value} of the evaluations, checkpoints and pauses brought a stair, and must {limit}"
        "said of stairs only",
    /// Of few stairs without marks, no more fits: how many.
    StairsLeft AtMost Fraction "many left"
        "{value} more fit, and may be {limit} after only three"
        "said of stairs only",
}

/// The gate that stopped a window or a flight of stairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateFailure {
    pub gate: Gate,
    /// The value, in the unit of the gate.
    pub value: f64,
    /// The limit that the value had to keep.
    pub limit: f64,
}

impl Gate {
    /// Passes a value on the right side of its limit.
    ///
    /// # Errors
    /// The value is on the other side.
    pub(super) fn check(self, value: f64, limit: f64) -> Result<(), GateFailure> {
        self.check_share(value, 1.0, limit)
    }

    /// Passes a part of `whole` on the right side of the limit's share of it; `whole` > 0.
    ///
    /// # Errors
    /// The part is on the other side; the value is its share.
    pub(super) fn check_share(
        self,
        part: f64,
        whole: f64,
        limit: f64,
    ) -> Result<(), GateFailure> {
        let is_passed = match self.row().bound {
            Bound::AtLeast => part >= limit * whole,
            Bound::AtMost => part <= limit * whole,
        };
        self.require(is_passed, part / whole, limit)
    }

    /// Passes what meets a condition of more than the value and its limit.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn require(
        self,
        is_passed: bool,
        value: f64,
        limit: f64,
    ) -> Result<(), GateFailure> {
        if is_passed { Ok(()) } else { Err(GateFailure { gate: self, value, limit }) }
    }
}

#[cfg(test)]
mod tests {
    use crate::analysis::creep::gates::{Bound, Gate, GateFailure};

    #[test]
    fn value_at_the_limit_passes_on_both_sides() {
        let (above, below) = (Gate::Rise, Gate::Horizon);
        assert_eq!((above.row().bound, below.row().bound), (Bound::AtLeast, Bound::AtMost));
        for gate in [above, below] {
            assert_eq!(gate.check(3.0, 3.0), Ok(()));
        }
        let failure = |gate, value| Err(GateFailure { gate, value, limit: 3.0 });
        assert_eq!(above.check(2.0, 3.0), failure(above, 2.0));
        assert_eq!(below.check(4.0, 3.0), failure(below, 4.0));
        assert_eq!((above.check(4.0, 3.0), below.check(2.0, 3.0)), (Ok(()), Ok(())));
    }

    #[test]
    fn share_is_held_against_the_whole() {
        let gate = Gate::StairHeights;
        assert_eq!(gate.check_share(3.0, 10.0, 0.3), Ok(()));
        let failure = GateFailure { gate, value: 0.4, limit: 0.3 };
        assert_eq!(gate.check_share(4.0, 10.0, 0.3), Err(failure));
    }

    #[test]
    fn every_row_fits_the_tables_and_states_both_numbers() {
        for gate in Gate::ALL {
            let row = gate.row();
            assert!((1..=12).contains(&row.name.chars().count()), "{}", row.name);
            let reason = (row.reason)("VALUE", "LIMIT");
            assert!(reason.contains("VALUE") && reason.contains("LIMIT"), "{reason}");
            assert!(!row.meaning.ends_with('.') && !reason.ends_with('.'), "{reason}");
        }
    }
}

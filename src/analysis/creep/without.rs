//! Rules that can be left out and constants that can be changed, to measure what each is worth: only in builds with the
//! feature `without`. In any other build all are as they are.

/// Makes an enum from a table. A row: its doc, the item, its name.
macro_rules! named {
    ($(#[doc = $about:literal])+ $table:ident {
        $( $(#[doc = $doc:literal])+ $item:ident $name:literal, )+
    }) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub(super) enum $table {
            $($(#[doc = $doc])+ $item,)+
        }

        #[cfg(feature = "without")]
        impl $table {
            fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$item),)+
                    _ => None,
                }
            }
        }
    };
}

named! {
    /// A rule that can be left out.
    Rule {
        /// Growth of the first steps of a life is judged.
        FirstSteps "first-steps",
        /// A slope's interval is by how the blocks scatter, not a random walk's.
        Scatter "scatter",
        /// The window of a process that does not push counts by its time.
        ByTime "by-time",
        /// Stairs that come with marks are creep, and stairs without marks must be more.
        MarkedStairs "marked-stairs",
        /// A line that lasts needs a smaller share.
        SteadyLine "steady-line",
        /// A window is as straight as it is without what the batch leaves.
        BatchNoise "batch-noise",
        /// How much of the cache counts as left depends on how it grew.
        CacheLeft "cache-left",
        /// The time left follows growth that bends.
        Bends "bends",
        /// A process that does not push is judged by its climbs.
        Climbs "climbs",
        /// The first steps count growth from the top of their first jump too.
        FirstJump "first-jump",
        /// A window is as straight as it is without what each record's batch leaves.
        RecordNoise "record-noise",
        /// A window that was level before it grew is late in its life, and holds all its records.
        LevelFirst "level-first",
        /// The headroom of a process that does not push is at least a twentieth of the device.
        FullDevice "full-device",
        /// The slope is by the floors without what the batch leaves where those are straighter.
        NetSlope "net-slope",
        /// A slope's interval reaches lower by what a caching allocator may have added.
        Unsplit "unsplit",
        /// The slope of stairs is their climb since the first by the steps since then.
        StairsSlope "stairs-slope",
        /// Growth that is as fast as that of the first steps is judged when it sets in later, too.
        LaterSteps "later-steps",
        /// Stairs are of the floors without what the batch leaves.
        NetStairs "net-stairs",
        /// Two marked stairs that are alike are creep.
        PairOfStairs "pair-of-stairs",
        /// A process that grew in few climbs must have used more.
        FewClimbs "few-climbs",
        /// A line needs no smaller share up to where an earlier life settled.
        KnownLevel "known-level",
    }
}

named! {
    /// A constant that can be changed.
    Constant {
        /// The share at which live memory creeps.
        CreepingShare "creeping-share",
        /// The part of that share which is enough for a line that lasts.
        LineOfShare "line-of-share",
        /// What the last quarter of such a line gains, of the first quarter's gain.
        HardlySlows "hardly-slows",
        /// The same of any window.
        SteadyGain "steady-gain",
        /// The share at which stairs with marks creep.
        MarkedShare "marked-share",
        /// The share at which the first steps creep, however many they are.
        FirstShare "first-share",
        /// How many equal climbs of a process are many.
        ManyClimbs "many-climbs",
    }
}

/// The one thing that is other than usual.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(
    not(feature = "without"),
    expect(dead_code, reason = "nothing can be other without the feature")
)]
enum Variant {
    Off(Rule),
    Set(Constant, f64),
}

/// The rule that is left out or the constant that is changed, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Without {
    #[cfg(feature = "without")]
    change: Option<Variant>,
}

impl Without {
    /// Returns whether a rule is left out.
    pub(super) fn is_off(self, rule: Rule) -> bool {
        self.change() == Some(Variant::Off(rule))
    }

    /// Returns a constant's value: `usual` unless it is changed.
    pub(super) fn value(self, constant: Constant, usual: f64) -> f64 {
        match self.change() {
            Some(Variant::Set(changed, value)) if changed == constant => value,
            _ => usual,
        }
    }

    fn change(self) -> Option<Variant> {
        let Self {
            #[cfg(feature = "without")]
            change,
        } = self;
        #[cfg(not(feature = "without"))]
        let change = None;
        change
    }
}

#[cfg(feature = "without")]
impl Without {
    /// Reads the name of a rule to leave out, `CONSTANT=VALUE`, or nothing; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let change = match text.split_once('=') {
            None if text.is_empty() => None,
            None => Some(Variant::Off(Rule::named(text)?)),
            Some((name, value)) => {
                Some(Variant::Set(Constant::named(name)?, value.parse().ok()?))
            }
        };
        Some(Self { change })
    }
}

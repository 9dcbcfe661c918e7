//! The form of the table's rows, and the macro that reads them.

/// A row of the table: one kind of statement.
#[derive(Debug)]
pub struct ClaimRow {
    /// The name in JSON.
    pub name: &'static str,
    /// The group that it belongs to, in the documentation.
    pub group: ClaimGroup,
    /// The words; `…` stands for figures and names.
    pub words: &'static str,
    /// The figures that it needs, by their keys in JSON.
    pub needs: &'static [&'static str],
    /// The condition on which it may be said.
    pub when: &'static str,
    /// The error that its figure may have.
    pub within: Tolerance,
    /// The unit of its figure; `None` of a statement without one.
    pub unit: Option<ClaimUnit>,
}

/// The subject of a group of statements.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ClaimGroup {
    Growth,
    Cause,
    End,
    OutOfMemory,
    Amount,
    Advice,
    Story,
    Card,
    Comparison,
    Gate,
    Snapshot,
    Snapshots,
    Events,
    Series,
    Status,
}

impl ClaimGroup {
    /// Returns its heading.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Growth => "Growth",
            Self::Cause => "What is behind growth",
            Self::End => "How it ends",
            Self::OutOfMemory => "Out of memory",
            Self::Amount => "Amounts",
            Self::Advice => "Advice",
            Self::Story => "`stepmem explain`",
            Self::Card => "The card of a run",
            Self::Comparison => "`stepmem compare`",
            Self::Gate => "`stepmem run --fail-on`",
            Self::Snapshot => "A memory snapshot",
            Self::Snapshots => "Several memory snapshots",
            Self::Events => "`stepmem snapshot events`",
            Self::Series => "`stepmem judge`",
            Self::Status => "`stepmem status`",
        }
    }
}

/// The error that the figure of a statement may have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tolerance {
    /// No error: the figure is a copy, or a count.
    Exact,
    /// A share of the truth, in percent; of growth in stairs a larger one.
    Percent { of_truth: u8, in_stairs: u8 },
    /// A tenth of the run, or thirty steps.
    Onset,
    /// The statement has no figure: it is so, or is not.
    Words,
}

impl Tolerance {
    /// Returns it in words.
    pub fn words(self) -> String {
        match self {
            Self::Exact => "exact".to_owned(),
            Self::Percent { of_truth, in_stairs } if of_truth == in_stairs => {
                format!("{of_truth} %")
            }
            Self::Percent { of_truth, in_stairs } => {
                format!("{of_truth} %, in stairs {in_stairs} %")
            }
            Self::Onset => "10 % of the run, or 30 steps".to_owned(),
            Self::Words => "–".to_owned(),
        }
    }
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ClaimUnit {
    Bytes,
    BytesPerStep,
    BytesPerSecond,
    Seconds,
    /// A Unix time.
    Time,
    /// A number of steps.
    Steps,
    /// The number of a step.
    Step,
    /// A share, 1 for all.
    Ratio,
    Count,
}

impl ClaimUnit {
    /// Returns its name in JSON.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Bytes => "B",
            Self::BytesPerStep => "B/step",
            Self::BytesPerSecond => "B/s",
            Self::Seconds => "s",
            Self::Time => "unix_s",
            Self::Steps => "steps",
            Self::Step => "step",
            Self::Ratio => "1",
            Self::Count => "count",
        }
    }
}

/// Builds the enum of claims and its rows. A row has the claim, its name in JSON and its unit,
/// its words, the figures that it needs, when it may be said, and how far it may be off.
macro_rules! claims {
    ($($group:ident {
        $($claim:ident $name:literal $(($unit:ident))?: $words:literal,
            needs [$($need:literal),*], when $when:literal, $within:expr;)*
    })*) => {
        /// A kind of statement: a row of the table.
        #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Deserialize, Serialize)]
        pub enum Claim {
            $($(
                #[doc = $words]
                #[serde(rename = $name)]
                $claim,
            )*)*
        }

        impl Claim {
            /// Every claim, in the order of the table.
            pub const ALL: &[Self] = &[$($(Self::$claim,)*)*];

            /// Returns its row.
            pub fn row(self) -> &'static ClaimRow {
                match self {
                    $($(Self::$claim => &const { ClaimRow {
                        name: $name,
                        group: ClaimGroup::$group,
                        words: $words,
                        needs: &[$($need),*],
                        when: $when,
                        within: $within,
                        unit: claims!(@unit $($unit)?),
                    } },)*)*
                }
            }
        }
    };
    (@unit) => { None };
    (@unit $unit:ident) => { Some(ClaimUnit::$unit) };
}

pub(super) use claims;

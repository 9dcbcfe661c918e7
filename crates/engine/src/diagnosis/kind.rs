//! The parts of a diagnosis: its names and advice, the severity of a finding, and the text of
//! its evidence. The table in this module's root lists all diagnoses.

use serde::{Deserialize, Serialize};

use stepmem_detect::signal::Signal;

/// The names of a diagnosis and its text for people.
#[derive(Debug)]
pub struct About {
    /// The name in labels and recordings (`CREEP_CONFIRMED`).
    pub label: &'static str,
    /// The name on pages (`MEMORY CREEP`), TraceML's where it has one.
    pub title: &'static str,
    /// Its letter in the picture of `explain`.
    pub mark: char,
    /// When it holds, in one sentence.
    pub help: &'static str,
    /// The first thing to check.
    pub advice: &'static str,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know.
    Info = 1,
    /// Check it within the day.
    Warning = 2,
    /// Wakes people up.
    Critical = 3,
}

impl Severity {
    /// The value of the metric `diagnosis_severity`.
    pub fn level(self) -> u8 {
        match self {
            Self::Info => 1,
            Self::Warning => 2,
            Self::Critical => 3,
        }
    }

    /// The severity in words.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// The figures behind a finding, as people and summaries read them.
pub trait Figures {
    /// Returns the evidence in one sentence without a full stop.
    fn sentence(&self) -> String;

    /// Returns what the finding is measured by in a summary.
    fn score(&self) -> Score;

    /// Returns the signal that grows, if the finding is about one.
    fn signal(&self) -> Option<Signal> {
        None
    }

    /// Returns the first thing to check, where the figures know that better than their
    /// diagnosis.
    fn advice(&self) -> Option<String> {
        None
    }

    /// Returns whether it is about growth that has ended.
    fn is_level(&self) -> bool {
        false
    }

    /// Returns whether it is about growth that ends by itself before memory runs out.
    fn ends(&self) -> bool {
        false
    }
}

/// The measure of a finding in a summary: the higher, the worse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// The figure of the summary that it is about.
    pub metric: &'static str,
    /// The measured value.
    pub value: f64,
}

impl<T: Figures> Figures for Box<T> {
    fn sentence(&self) -> String {
        T::sentence(self)
    }

    fn score(&self) -> Score {
        T::score(self)
    }

    fn signal(&self) -> Option<Signal> {
        T::signal(self)
    }

    fn advice(&self) -> Option<String> {
        T::advice(self)
    }

    fn is_level(&self) -> bool {
        T::is_level(self)
    }

    fn ends(&self) -> bool {
        T::ends(self)
    }
}

/// Builds the table of diagnoses: the kinds, the worst first, and their evidence, each from the
/// file of its name.
///
/// A row has the file and the type of its evidence; the file has `ABOUT: About` and
/// `judge(&DiagnosisInput, &Subject) -> Option<(Severity, evidence)>`.
macro_rules! diagnoses {
    ($($kind:ident: $file:ident, $evidence:ty;)*) => {
        /// Which diagnosis. Kinds sort as their labels do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DiagnosisKind {
            $(
                #[doc = concat!("See [`", stringify!($file), "`].")]
                $kind,
            )*
        }

        /// The figures behind a finding, by its diagnosis.
        #[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
        #[serde(untagged)]
        pub enum Evidence {
            $(
                #[doc = concat!("Of [`", stringify!($file), "`].")]
                $kind($evidence),
            )*
        }

        impl DiagnosisKind {
            /// Every diagnosis, the worst first.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// Returns the names of the diagnosis and its text for people.
            pub fn about(self) -> &'static kind::About {
                match self {
                    $(Self::$kind => &$file::ABOUT,)*
                }
            }

            /// Judges one subject of the diagnosis input. It is pure: two calls on one input
            /// give the same answer.
            pub fn judge(
                self,
                input: &input::DiagnosisInput<'_>,
                subject: &input::Subject<'_, '_>,
            ) -> Option<(kind::Severity, Evidence)> {
                match self {
                    $(Self::$kind => $file::judge(input, subject)
                        .map(|(severity, evidence)| (severity, Evidence::$kind(evidence))),)*
                }
            }
        }

        impl Evidence {
            fn figures(&self) -> &dyn kind::Figures {
                match self {
                    $(Self::$kind(evidence) => evidence,)*
                }
            }
        }
    };
}

pub(super) use diagnoses;

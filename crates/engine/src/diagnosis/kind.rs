//! The parts of a diagnosis: its names and advice, the severity of a finding, and the text of
//! its evidence. The table in this module's root lists all diagnoses.

use serde::{Deserialize, Serialize};

use crate::diagnosis::DiagnosisKind;
use crate::diagnosis::trend_figures::TrendFigures;
use stepmem_detect::signal::Signal;
use stepmem_detect::trend::Stage;

/// The names of a diagnosis, its text for people, and what it judges.
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
    /// The signal of a rank whose growth it judges; `None` of one that judges no growth.
    pub signal: Option<Signal>,
    /// The stage of growth that it judges; `None` of one that judges no growth.
    pub stage: Option<Stage>,
    /// The name that diagnoses of one problem at several stages share: that of the last stage.
    pub family: DiagnosisKind,
    pub place: Place,
}

/// The memory that a diagnosis is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    /// The subject's own: a device's, or the host's where a rank has no device.
    Own,
    /// The host's, next to a device.
    Host {
        /// The diagnosis that says the same of the subject's own memory.
        own: DiagnosisKind,
    },
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

    /// Returns the growth that the finding is about, if it is about one.
    fn growth(&self) -> Option<&TrendFigures> {
        None
    }

    /// Returns the first thing to check, where the figures know that better than their
    /// diagnosis.
    fn advice(&self) -> Option<String> {
        None
    }

    /// Returns whether they name the code or the object behind the memory.
    fn names_cause(&self) -> bool {
        self.growth().is_some_and(|growth| growth.site.is_some() || growth.holder.is_some())
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

    fn growth(&self) -> Option<&TrendFigures> {
        T::growth(self)
    }

    fn advice(&self) -> Option<String> {
        T::advice(self)
    }

    fn names_cause(&self) -> bool {
        T::names_cause(self)
    }
}

/// Builds the table of diagnoses: the kinds, the worst first, and their evidence.
///
/// A row names the constant of type `About` and the function `judge(&DiagnosisInput, &Subject)
/// -> Option<(Severity, evidence)>` of the diagnosis's file, and the type of its evidence.
macro_rules! diagnoses {
    ($($kind:ident: $file:ident::{$about:ident, $judge:ident}, $evidence:ty;)*) => {
        /// Which diagnosis. Kinds sort as their labels do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DiagnosisKind {
            $(
                #[doc = concat!("See [`", stringify!($file), "`].")]
                $kind,
            )*
        }

        /// The figures behind a finding, by its diagnosis.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Evidence {
            $(
                #[doc = concat!("Of [`DiagnosisKind::", stringify!($kind), "`].")]
                $kind($evidence),
            )*
        }

        impl DiagnosisKind {
            /// Every diagnosis, the worst first.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// Returns the names of the diagnosis and its text for people.
            pub fn about(self) -> &'static kind::About {
                match self {
                    $(Self::$kind => &$file::$about,)*
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
                    $(Self::$kind => $file::$judge(input, subject)
                        .map(|(severity, evidence)| (severity, Evidence::$kind(evidence))),)*
                }
            }
        }

        impl Evidence {
            /// Decodes the evidence of a diagnosis from its JSON, which does not name it: several
            /// diagnoses have evidence of one type.
            ///
            /// # Errors
            ///
            /// The JSON is not evidence of that diagnosis.
            pub fn decode(
                kind: DiagnosisKind,
                json: &serde_json::Value,
            ) -> Result<Self, serde_json::Error> {
                match kind {
                    $(DiagnosisKind::$kind => {
                        serde::Deserialize::deserialize(json).map(Self::$kind)
                    })*
                }
            }

            fn figures(&self) -> &dyn kind::Figures {
                match self {
                    $(Self::$kind(evidence) => evidence,)*
                }
            }
        }

        impl serde::Serialize for Evidence {
            fn serialize<S: serde::Serializer>(
                &self,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                match self {
                    $(Self::$kind(evidence) => evidence.serialize(serializer),)*
                }
            }
        }
    };
}

pub(super) use diagnoses;

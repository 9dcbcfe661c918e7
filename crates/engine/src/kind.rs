//! The kinds of diagnoses: their names, in order, and what each is about. They are judged in
//! `diagnosis`.

use std::cmp::Ordering;
use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use stepmem_detect::{Signal, Stage};

/// Lists the kinds, the worst first, each with its name in labels and recordings.
macro_rules! kinds {
    ($($kind:ident $label:literal;)*) => {
        /// The kind of a diagnosis. Kinds sort as their labels do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DiagnosisKind {
            $(
                #[doc = concat!("`", $label, "`.")]
                $kind,
            )*
        }

        impl DiagnosisKind {
            /// Every kind, the worst first.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// Returns its name in labels and recordings (`CREEP_CONFIRMED`).
            pub fn label(self) -> &'static str {
                match self {
                    $(Self::$kind => $label,)*
                }
            }
        }
    };
}

kinds! {
    GpuLost "GPU_LOST";
    OutOfMemory "OUT_OF_MEMORY";
    CreepConfirmed "CREEP_CONFIRMED";
    HostCreep "HOST_CREEP_CONFIRMED";
    HighPressure "HIGH_PRESSURE";
    HostPressure "HOST_HIGH_PRESSURE";
    Imbalance "IMBALANCE";
    Fragmentation "FRAGMENTATION";
    OutsideAllocator "OUTSIDE_ALLOCATOR";
    PhaseRising "PHASE_RISING";
    CreepEarly "CREEP_EARLY";
    HostRising "HOST_CREEP_EARLY";
}

/// The names of a diagnosis, its text for people, and what it judges.
#[derive(Debug)]
pub struct About {
    /// The name on pages (`MEMORY CREEP`), TraceML's where it has one.
    pub title: &'static str,
    /// The letter in the picture of `explain`.
    pub mark: char,
    /// The condition under which it holds, in one sentence.
    pub help: &'static str,
    /// The first thing to check.
    pub advice: &'static str,
    /// The signal of a rank whose growth it judges; `None` of one that judges no growth.
    pub signal: Option<Signal>,
    /// The stage of growth that it judges; `None` of one that judges no growth.
    pub stage: Option<Stage>,
    /// The name that diagnoses of one problem at several stages share: that of the last stage.
    pub family: DiagnosisKind,
    /// The memory that it judges: the subject's own, or the host's next to it.
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

impl DiagnosisKind {
    /// Returns the kind of that label.
    pub fn from_label(label: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.label() == label)
    }

    /// Returns every label, the worst first, with commas between.
    pub fn labels() -> String {
        let labels: Vec<&str> = Self::ALL.iter().map(|kind| kind.label()).collect();
        labels.join(", ")
    }
}

impl Ord for DiagnosisKind {
    fn cmp(&self, other: &Self) -> Ordering {
        self.label().cmp(other.label())
    }
}

impl PartialOrd for DiagnosisKind {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for DiagnosisKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

impl Serialize for DiagnosisKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.label())
    }
}

impl<'de> Deserialize<'de> for DiagnosisKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let label = String::deserialize(deserializer)?;
        Self::from_label(&label)
            .ok_or_else(|| D::Error::custom(format_args!("{label:?} is not a diagnosis")))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::kind::DiagnosisKind;

    #[test]
    fn every_label_names_one_diagnosis() {
        let labels: BTreeSet<&str> =
            DiagnosisKind::ALL.iter().map(|kind| kind.label()).collect();
        assert_eq!(labels.len(), DiagnosisKind::ALL.len());
        for kind in DiagnosisKind::ALL {
            assert_eq!(DiagnosisKind::from_label(kind.label()), Some(*kind));
        }
        assert_eq!(DiagnosisKind::from_label("creep"), None);
    }
}

//! The figures behind a finding, and the macro of the table of diagnoses, which this module's
//! root has.

use crate::diagnosis::shared::trend_figures::TrendFigures;
use stepmem_types::claims::{Sentence, Statement};

/// The figures behind a finding, as people and summaries read them.
pub(crate) trait Figures {
    /// Returns the evidence in one sentence without a full stop.
    fn sentence(&self) -> Sentence;

    /// Returns the measure of the finding in a summary.
    fn score(&self) -> Score;

    /// Returns the growth that the finding is about, if it is about one.
    fn growth(&self) -> Option<&TrendFigures> {
        None
    }

    /// Returns the first thing to check, where the figures know that better than their
    /// diagnosis.
    fn advice(&self) -> Option<Statement> {
        None
    }

    /// Returns every form of it, with a value in every field.
    #[cfg(test)]
    fn examples() -> Vec<Self>
    where
        Self: Sized;

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
    fn sentence(&self) -> Sentence {
        T::sentence(self)
    }

    fn score(&self) -> Score {
        T::score(self)
    }

    fn growth(&self) -> Option<&TrendFigures> {
        T::growth(self)
    }

    fn advice(&self) -> Option<Statement> {
        T::advice(self)
    }

    fn names_cause(&self) -> bool {
        T::names_cause(self)
    }

    #[cfg(test)]
    fn examples() -> Vec<Self> {
        T::examples().into_iter().map(Self::new).collect()
    }
}

/// Builds the table of diagnoses, by kind.
///
/// A row names the constant of type `About` and the function `judge(&DiagnosisInput, &Subject)
/// -> Option<(Severity, evidence)>` of the diagnosis's file, and the type of its evidence.
macro_rules! diagnoses {
    ($($kind:ident: $file:ident::{$about:ident, $judge:ident}, $evidence:ty;)*) => {
        /// The figures behind a finding, by its diagnosis.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Evidence {
            $(
                #[doc = concat!("Of [`DiagnosisKind::", stringify!($kind), "`].")]
                $kind($evidence),
            )*
        }

        impl DiagnosisKind {
            /// Returns the names of the diagnosis and its text for people.
            pub fn about(self) -> &'static crate::kind::About {
                match self {
                    $(Self::$kind => &$file::$about,)*
                }
            }

            /// Judges one subject of the diagnosis input. It is pure: two calls on one input
            /// give the same answer.
            pub fn judge(
                self,
                input: &$crate::diagnosis::shared::input::DiagnosisInput<'_>,
                subject: &$crate::diagnosis::shared::input::Subject<'_, '_>,
            ) -> Option<(crate::kind::Severity, Evidence)> {
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

            /// Returns every form of a diagnosis's, with a value in every field.
            #[cfg(test)]
            fn examples(kind: DiagnosisKind) -> Vec<Self> {
                match kind {
                    $(DiagnosisKind::$kind => {
                        let examples = <$evidence as $crate::diagnosis::shared::figures::Figures>::examples();
                        examples.into_iter().map(Self::$kind).collect()
                    })*
                }
            }

            fn figures(&self) -> &dyn $crate::diagnosis::shared::figures::Figures {
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

pub(in crate::diagnosis) use diagnoses;

#[cfg(test)]
mod tests {
    use crate::diagnosis::Evidence;
    use crate::kind::{DiagnosisKind, Severity};
    use crate::output::status::FindingStatus;
    use stepmem_types::ids::{Rank, RankId, Run, SubjectId};

    #[test]
    fn finding_of_every_diagnosis_reads_back_as_it_was() {
        let subject = SubjectId::Rank(RankId {
            run: Run::new("job").unwrap(),
            rank: Rank::new(3).unwrap(),
        });
        for kind in DiagnosisKind::ALL {
            for evidence in Evidence::examples(*kind) {
                let finding = FindingStatus {
                    kind: *kind,
                    title: kind.about().title.into(),
                    subject: subject.clone(),
                    severity: Severity::Warning,
                    since: 1_764_897_183.25,
                    sentence: evidence.sentence().words().to_owned(),
                    advice: kind.about().advice.into(),
                    statements: evidence.sentence().into_statements(),
                    evidence,
                };
                let json = serde_json::to_string(&finding).unwrap();
                assert_eq!(
                    serde_json::from_str::<FindingStatus>(&json).unwrap(),
                    finding,
                    "{json}"
                );
            }
        }
    }

    #[test]
    fn evidence_of_another_diagnosis_is_refused() {
        for kind in DiagnosisKind::ALL {
            for evidence in Evidence::examples(*kind) {
                let json = serde_json::to_value(&evidence).unwrap();
                for other in DiagnosisKind::ALL {
                    let read = Evidence::decode(*other, &json);
                    let same = read.as_ref().is_ok_and(|read| *read == evidence);
                    assert_eq!(same, other == kind, "{kind} as {other}: {read:?}");
                }
            }
        }
    }

    #[test]
    fn every_figure_is_in_the_schema_of_the_status() {
        let schema = include_str!("../../../../../docs/status.schema.json");
        let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
        let finding = &schema["$defs"]["finding"];
        let known = finding["properties"]["evidence"]["properties"].as_object().unwrap();
        for kind in DiagnosisKind::ALL {
            for evidence in Evidence::examples(*kind) {
                let json = serde_json::to_value(&evidence).unwrap();
                let figures = json.as_object().unwrap().keys();
                let missing: Vec<&String> =
                    figures.filter(|figure| !known.contains_key(*figure)).collect();
                assert!(missing.is_empty(), "{kind}: {missing:?}");
            }
        }
    }
}

//! The evidence of a diagnosis that judges growth, and where nothing grows an amount.

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::diagnosis::shared::figures::{Figures, Score};
use crate::diagnosis::shared::trend_figures::TrendFigures;
use stepmem_types::claims::{Sentence, Statement};

/// The key that JSON of growth has, and that of an amount has not.
const SIGNAL: &str = "signal";

/// Growth, or else an amount. JSON has the figures of either.
#[derive(Clone, Debug, PartialEq)]
pub enum GrowthOr<A> {
    Growth(Box<TrendFigures>),
    Amount(A),
}

impl<A: Serialize> Serialize for GrowthOr<A> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Growth(growth) => growth.serialize(serializer),
            Self::Amount(amount) => amount.serialize(serializer),
        }
    }
}

impl<'de, A: DeserializeOwned> Deserialize<'de> for GrowthOr<A> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Value::deserialize(deserializer)?;
        let decoded = if json.get(SIGNAL).is_some() {
            serde_json::from_value(json).map(Self::Growth)
        } else {
            serde_json::from_value(json).map(Self::Amount)
        };
        decoded.map_err(D::Error::custom)
    }
}

impl<A: Figures> Figures for GrowthOr<A> {
    fn sentence(&self) -> Sentence {
        match self {
            Self::Growth(growth) => growth.sentence(),
            Self::Amount(amount) => amount.sentence(),
        }
    }

    fn score(&self) -> Score {
        match self {
            Self::Growth(growth) => growth.score(),
            Self::Amount(amount) => amount.score(),
        }
    }

    fn growth(&self) -> Option<&TrendFigures> {
        match self {
            Self::Growth(growth) => Some(growth),
            Self::Amount(_) => None,
        }
    }

    fn advice(&self) -> Option<Statement> {
        match self {
            Self::Growth(growth) if growth.is_level() || growth.is_run_first() => {
                growth.advice()
            }
            Self::Growth(_) => None,
            Self::Amount(amount) => amount.advice(),
        }
    }

    #[cfg(test)]
    fn examples() -> Vec<Self> {
        let growth = <Box<TrendFigures>>::examples().into_iter().map(Self::Growth);
        growth.chain(A::examples().into_iter().map(Self::Amount)).collect()
    }
}

//! JSON numbers whose range depends on the field.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use crate::wire::error::DecodeFault;
use stepmem_types::units::OutOfRange;

/// A JSON number of any kind. The field checks its range.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Unsigned(u64),
    Negative(i64),
    Float(f64),
}

impl Default for Number {
    fn default() -> Self {
        Self::Unsigned(0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberVisitor;
        impl Visitor<'_> for NumberVisitor {
            type Value = Number;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }
            fn visit_u64<E>(self, value: u64) -> Result<Number, E> {
                Ok(Number::Unsigned(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Number, E> {
                Ok(Number::Negative(value))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Number, E> {
                Ok(Number::Float(value))
            }
        }
        deserializer.deserialize_any(NumberVisitor)
    }
}

impl Number {
    pub(super) fn integer(self, min: u64, max: u64) -> Result<u64, DecodeFault> {
        let outside = |value: String| {
            OutOfRange::Number { value, min: min.to_string(), max: max.to_string() }.into()
        };
        match self {
            Self::Unsigned(value) if (min..=max).contains(&value) => Ok(value),
            Self::Unsigned(value) => Err(outside(value.to_string())),
            Self::Negative(value) => Err(outside(value.to_string())),
            Self::Float(value) => Err(DecodeFault::NotInteger(value)),
        }
    }

    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "a float is asked for"
    )]
    pub(super) fn float(self) -> f64 {
        match self {
            Self::Unsigned(value) => value as f64,
            Self::Negative(value) => value as f64,
            Self::Float(value) => value,
        }
    }
}

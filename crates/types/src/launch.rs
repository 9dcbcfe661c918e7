//! The process that sends a record, and the launch that started it.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::units::{OutOfRange, ascii_name, serialized};

/// The random number of one pushing process: 16 lower-case hexadecimal digits on the wire. It
/// is never shown, also not by `Debug`.
#[derive(Clone, Copy, Deserialize, Eq, PartialEq, Serialize)]
pub struct Instance(u64);

impl Instance {
    /// The number of digits.
    pub const DIGITS: usize = 16;

    /// Takes exactly [`Self::DIGITS`] lower-case hexadecimal digits.
    ///
    /// # Errors
    /// Names the digits that are asked for and the length of the text, not the text.
    pub fn new(text: &str) -> Result<Self, OutOfRange> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_hex = text.len() == Self::DIGITS && text.bytes().all(is_digit);
        let number = u64::from_str_radix(text, 16).ok().filter(|_| is_hex);
        number.map(Self).ok_or_else(|| OutOfRange::Form {
            text: format!("a text of {} bytes", text.len()),
            what: "16 lower-case hexadecimal digits",
        })
    }

    /// Returns its digits, for files that only this user reads.
    pub fn digits(self) -> String {
        format!("{:016x}", self.0)
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Instance(..)")
    }
}

/// The name of one launch of a run: the same for all its ranks and all its attempts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Launch(Arc<str>);

impl Launch {
    /// The longest name that is taken, in bytes.
    pub const BYTES_MAX: usize = 64;

    /// Takes a name of 1 to [`Self::BYTES_MAX`] bytes of letters, digits, `.`, `_`, `:` and
    /// `-`. `.` and `..` are refused: they are no names of files.
    ///
    /// # Errors
    ///
    /// Names the length, or the characters that are allowed.
    pub fn new(text: &str) -> Result<Self, OutOfRange> {
        let form = "letters, digits, '.', '_', ':' and '-', or is '.' or '..'";
        let name = ascii_name(text, Self::BYTES_MAX, b"._:-", form)?;
        let is_file = ![".", ".."].contains(&text);
        if is_file { Ok(Self(name)) } else { Err(OutOfRange::form(text, form)) }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

serialized!(Launch as Cow<'de, str>, serialize_str, as_str, |read| Launch::new(&read));

#[cfg(test)]
mod tests {
    use crate::launch::{Instance, Launch};

    #[test]
    fn instance_is_sixteen_lower_case_digits_and_is_not_shown() {
        let instance = Instance::new("00c0ffee00c0ffee").unwrap();
        assert_eq!(format!("{instance:?}"), "Instance(..)");
        for text in ["", "c0ffee", "00C0FFEE00C0FFEE", "+0c0ffee00c0ffee", "00c0ffee00c0ffeeg"]
        {
            assert!(Instance::new(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn launch_is_a_short_plain_name() {
        for text in ["job-1:a.b_c", "...", ".a", "a.."] {
            assert_eq!(Launch::new(text).unwrap().as_str(), text);
        }
        for text in ["", "a b", "ü", "a/b", ".", "..", &"x".repeat(65)] {
            assert!(Launch::new(text).is_err(), "{text:?}");
        }
    }
}

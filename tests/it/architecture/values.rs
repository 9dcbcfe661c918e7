//! The value of a constant from its text, and how a page writes it.

/// Seconds of one unit of a `Duration`'s constructor.
const CONSTRUCTORS: [(&str, f64); 5] = [
    ("from_millis", 0.001),
    ("from_secs", 1.0),
    ("from_mins", 60.0),
    ("from_hours", 3600.0),
    ("from_secs_f64", 1.0),
];

/// A number, and whether it is a time in seconds.
type Value = (f64, bool);

/// Evaluates an expression: numbers, `<<`, `+`, `-`, `*`, brackets and constructors of `Duration`. Returns `None` for
/// all else.
pub fn evaluate(text: &str) -> Option<Value> {
    let mut expression = Expression { rest: text };
    let value = expression.shift()?;
    expression.rest.trim_start().is_empty().then_some(value)
}

/// The part of an expression that is not read yet.
struct Expression<'t> {
    rest: &'t str,
}

impl<'t> Expression<'t> {
    fn shift(&mut self) -> Option<Value> {
        let mut value = self.sum()?;
        while self.take('<') {
            value.0 *= (self.take('<').then(|| self.sum())??.0).exp2();
        }
        Some(value)
    }

    fn sum(&mut self) -> Option<Value> {
        let mut value = self.product()?;
        loop {
            if self.take('+') {
                value.0 += self.product()?.0;
            } else if self.take('-') {
                value.0 -= self.product()?.0;
            } else {
                return Some(value);
            }
        }
    }

    fn product(&mut self) -> Option<Value> {
        let mut value = self.factor()?;
        while self.take('*') {
            value.0 *= self.factor()?.0;
        }
        Some(value)
    }

    fn factor(&mut self) -> Option<Value> {
        if self.take('(') {
            let value = self.shift()?;
            return self.take(')').then_some(value);
        }
        let word = self.word();
        if word == "Duration" {
            return self.duration();
        }
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        Some((is_number.then(|| word.replace('_', "").parse().ok())??, false))
    }

    /// Reads `::from_secs(10)`.
    fn duration(&mut self) -> Option<Value> {
        (self.take(':') && self.take(':')).then_some(())?;
        let word = self.word();
        let (_, seconds) = CONSTRUCTORS.iter().find(|(name, _)| *name == word)?;
        let (number, _) = self.factor()?;
        Some((number * seconds, true))
    }

    /// Reads a name or a number.
    fn word(&mut self) -> &'t str {
        let text = self.rest.trim_start();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let (word, rest) = text.split_at(text.find(|c| !is_part(c)).unwrap_or(text.len()));
        self.rest = rest;
        word
    }

    fn take(&mut self, sign: char) -> bool {
        let rest = self.rest.trim_start().strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }
}

/// Writes a value with its unit, which is in the name of its constant: `8 KiB`, `90 s`, `1,024`.
pub fn written(name: &str, (number, is_time): Value) -> String {
    if is_time || name.contains("SECONDS") {
        return time(number);
    }
    if name.contains("BYTES") {
        return bytes(number);
    }
    let unit = if name.contains("CHARS") { " characters" } else { "" };
    if number >= 40_f64.exp2() && number.log2().fract() == 0.0 {
        return format!("2^{}{unit}", number.log2());
    }
    format!("{}{unit}", grouped(number))
}

fn time(seconds: f64) -> String {
    let units = [("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)];
    units.iter().find(|(_, size)| seconds % size == 0.0).map_or_else(
        || format!("{} ms", grouped((seconds * 1e6).round() / 1e3)),
        |(unit, size)| format!("{} {unit}", grouped(seconds / size)),
    )
}

fn bytes(number: f64) -> String {
    let units = [("GiB", 30_f64), ("MiB", 20.0), ("KiB", 10.0), ("B", 0.0)];
    let fits = |exponent: f64| number % exponent.exp2() == 0.0;
    let (unit, exponent) = units.into_iter().find(|(_, exponent)| fits(*exponent)).unwrap();
    format!("{} {unit}", grouped(number / exponent.exp2()))
}

/// The digits in groups of three; a fraction stays as it is.
fn grouped(number: f64) -> String {
    let text = number.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let mut digits = String::new();
    for (idx, digit) in whole.chars().enumerate() {
        if idx > 0 && (whole.len() - idx).is_multiple_of(3) {
            digits.push(',');
        }
        digits.push(digit);
    }
    if fraction.is_empty() { digits } else { format!("{digits}.{fraction}") }
}

#[test]
fn values_are_read_and_written_with_their_units() {
    for (name, text, expected) in [
        ("A_MAX", "1_000_000", "1,000,000"),
        ("A_MAX", "(1 << 31) - 1", "2,147,483,647"),
        ("A_MAX", "1 << 53", "2^53"),
        ("A_MAX", "0.0005", "0.0005"),
        ("BYTES_MAX", "64 * 1024 * 1024 * 1024", "64 GiB"),
        ("BYTES_MAX", "2 << 30", "2 GiB"),
        ("BYTES_MAX", "5_000_000", "5,000,000 B"),
        ("IDLE_MAX", "Duration::from_secs(90)", "90 s"),
        ("IDLE_MAX", "Duration::from_millis(50)", "50 ms"),
        ("IDLE_MAX", "Duration::from_mins(10)", "10 min"),
        ("SLICE_SECONDS", "0.0025", "2.5 ms"),
        ("FOR_SECONDS_MAX", "30 * 24 * 3600", "30 d"),
        ("TEXT_CHARS_MAX", "64", "64 characters"),
    ] {
        let value = evaluate(text).map(|value| written(name, value));
        assert_eq!(value.as_deref(), Some(expected), "{text}");
    }
    for text in ["size_of::<Self>() + 4096", "2 *", "A_MAX", "Duration::MAX"] {
        assert_eq!(evaluate(text), None, "{text}");
    }
}

//! The part of a request that its refusal repeats.

use std::borrow::Cow;
use std::fmt::{self, Display, Write};

use stepmem_types::format::clean::{clean, is_raw};

/// Characters of a key or a value that a refusal repeats.
pub const ECHO_CHARS_MAX: usize = 64;
/// Characters of a message of the JSON parser.
const MESSAGE_CHARS_MAX: usize = 800;
/// Characters of such a message that are read for the names that it lists.
const READ_CHARS_MAX: usize = 8000;
/// The words of a message between an unknown field and the names of all known ones.
const EXPECTED: &str = ", expected one of ";

/// Returns the clean form of a text of at most so many characters: a longer one ends in an
/// ellipsis.
pub fn shortened(text: &str, chars_max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(chars_max) {
        None => clean(text),
        Some((end, _)) => clean(text.get(..end).unwrap_or_default()) + "…",
    }
}

/// Returns a message in which no quoted text has more than [`ECHO_CHARS_MAX`] characters, and an
/// unknown field stands beside the nearest known one instead of beside all. Writes a bounded
/// text, whatever the message quotes.
pub(super) fn message(message: &impl Display) -> String {
    let mut echo = Echo::default();
    // An error means that the rest is left out.
    write!(echo, "{message}").ok();
    let text = with_nearest(&echo.text).unwrap_or(echo.text);
    let end = text.char_indices().nth(MESSAGE_CHARS_MAX).map(|(end, _)| end);
    end.and_then(|end| text.get(..end)).map_or_else(|| text.clone(), str::to_owned)
}

/// Returns a message about an unknown field with the nearest of the known ones instead of all;
/// `None` of another message.
fn with_nearest(message: &str) -> Option<String> {
    let (field, expected) =
        message.strip_prefix("unknown field `").and_then(|rest| rest.split_once(EXPECTED))?;
    let name = field.strip_suffix('`')?;
    let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    let place = expected.rsplit_once(" at line ").map(|(_, place)| format!(" at line {place}"));
    let distance = |known: &&&str| strsim::osa_distance(name, known);
    let is_near = |known: &&&str| distance(known) <= 1 + name.chars().count() / 4;
    let nearest = known.iter().filter(is_near).min_by_key(distance).map_or_else(
        || format!("not one of the {} that are known", known.len()),
        |nearest| format!("perhaps `{nearest}`"),
    );
    Some(format!("unknown field `{name}`{}, {nearest}", place.unwrap_or_default()))
}

/// A message while it is written.
#[derive(Default)]
struct Echo {
    text: String,
    n_chars: usize,
    /// The quote that a text began with, and how much of it was written.
    quoted: Option<(char, usize)>,
    is_escaped: bool,
}

impl Echo {
    fn push(&mut self, c: char) -> fmt::Result {
        if self.n_chars >= READ_CHARS_MAX {
            return Err(fmt::Error);
        }
        self.n_chars += 1;
        self.text.push(c);
        Ok(())
    }

    /// Takes one character.
    fn take(&mut self, c: char) -> fmt::Result {
        let is_escaped = std::mem::take(&mut self.is_escaped);
        match &mut self.quoted {
            Some((quote, _)) if *quote == c && !is_escaped => {
                self.quoted = None;
                self.push(c)
            }
            Some((_, n_chars)) => {
                self.is_escaped = c == '\\' && !is_escaped;
                *n_chars += 1;
                match (*n_chars).cmp(&(ECHO_CHARS_MAX + 1)) {
                    std::cmp::Ordering::Less => self.push(c),
                    std::cmp::Ordering::Equal => self.push('…'),
                    std::cmp::Ordering::Greater => Ok(()),
                }
            }
            None => {
                self.quoted = ['"', '`'].contains(&c).then_some((c, 0));
                self.push(c)
            }
        }
    }
}

impl Write for Echo {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| {
            // No refusal repeats a raw character.
            if is_raw(c) {
                c.escape_default().try_for_each(|c| self.take(c))
            } else {
                self.take(c)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::wire::echo::{message, shortened};

    #[test]
    fn quoted_text_is_shortened_and_the_rest_stays() {
        let long = "k".repeat(5000);
        let expected = format!("unknown field `{}…`, expected `run`", "k".repeat(64));
        assert_eq!(message(&format!("unknown field `{long}`, expected `run`")), expected);
        let expected = format!("string \"{}…\", expected a number", "\\\"".repeat(32));
        let quoted = format!("string {:?}, expected a number", "\"".repeat(5000));
        assert_eq!(message(&quoted), expected);
        assert_eq!(message(&"missing field `step`"), "missing field `step`");
        let of_two = |field| {
            format!("unknown field `{field}`, expected one of `run`, `step` at line 1 column 9")
        };
        let near = "unknown field `stepp` at line 1 column 9, perhaps `step`";
        assert_eq!(message(&of_two("stepp")), near);
        let other = "unknown field `bytes` at line 1 column 9, not one of the 2 that are known";
        assert_eq!(message(&of_two("bytes")), other);
    }

    #[test]
    fn message_is_bounded_whatever_it_quotes() {
        let outside = format!("`{}", "`x".repeat(100_000));
        assert!(message(&outside).chars().count() <= 800);
        assert_eq!(shortened("größe", 3), "grö…");
        assert_eq!(shortened("größe", 5), "größe");
    }
}

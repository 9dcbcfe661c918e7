//! Text from data, made safe to print: a name in a file cannot steer a terminal or turn a line
//! around.

use std::borrow::Cow;
use std::fmt::{self, Write};

use crate::characters::{is_combining, is_hidden};

/// Characters of a foreign text that a refusal repeats.
pub const QUOTED_CHARS_MAX: usize = 64;
/// The spaces before the further lines of a text.
const FURTHER_INDENT: &str = "  ";

/// Returns the text with every raw character escaped (`\u{1b}`).
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_raw) {
        return Cow::Borrowed(text);
    }
    let mut cleaned = String::with_capacity(text.len());
    for c in text.chars() {
        if is_raw(c) {
            cleaned.extend(c.escape_default());
        } else {
            cleaned.push(c);
        }
    }
    Cow::Owned(cleaned)
}

/// Returns the clean text in at most `chars_max` characters: a longer one loses its middle to
/// an ellipsis.
pub fn shortened(text: &str, chars_max: usize) -> String {
    let ends = ends(text, chars_max);
    let cleaned = clean(&ends);
    let n_chars = cleaned.chars().count();
    if n_chars <= chars_max {
        return cleaned.into_owned();
    }
    let n_tail = chars_max.saturating_sub(1) / 2;
    let n_head = chars_max.saturating_sub(1 + n_tail);
    let head = cleaned.chars().take(n_head);
    let tail = cleaned.chars().skip(n_chars - n_tail);
    head.chain(['…'].into_iter().take(chars_max)).chain(tail).collect()
}

/// Returns the clean text with its line breaks, in at most `chars_max` characters: a longer one
/// loses its middle. Every line but the first is indented, so that none of them looks as if
/// another program had written it.
pub fn lines(text: &str, chars_max: usize) -> String {
    let ends = ends(text, chars_max);
    let mut lines = ends.split('\n').map(|line| clean(line.trim_end_matches('\r')));
    let mut cleaned = lines.next().unwrap_or_default().into_owned();
    for line in lines {
        cleaned.push('\n');
        if !line.starts_with(FURTHER_INDENT) && !line.is_empty() {
            cleaned.push_str(FURTHER_INDENT);
        }
        cleaned.push_str(&line);
    }
    let n_chars = cleaned.chars().count();
    if n_chars <= chars_max {
        return cleaned;
    }
    let n_tail = chars_max.saturating_sub(1) / 2;
    let head = cleaned.chars().take(chars_max.saturating_sub(1 + n_tail));
    head.chain(['…']).chain(cleaned.chars().skip(n_chars - n_tail)).collect()
}

/// Returns a JSON text without raw characters for a terminal: they occur in strings only, where
/// they are escaped.
pub fn plain_json(json: &str) -> Cow<'_, str> {
    let is_steering = |c: char| is_raw(c) && !['\n', '\r', '\t'].contains(&c);
    if !json.chars().any(is_steering) {
        return Cow::Borrowed(json);
    }
    let mut plain = String::with_capacity(json.len());
    for c in json.chars() {
        if is_steering(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(plain, "\\u{unit:04x}").ok();
            }
        } else {
            plain.push(c);
        }
    }
    Cow::Owned(plain)
}

/// A foreign text in quotes, as a refusal repeats it: at most [`QUOTED_CHARS_MAX`] characters of
/// it, none of them raw.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = *self;
        f.write_char('"')?;
        for (idx, c) in text.chars().take(QUOTED_CHARS_MAX).enumerate() {
            if is_raw(c) || c == '"' || c == '\\' || (idx == 0 && is_combining(c)) {
                write!(f, "{}", c.escape_default())?;
            } else {
                f.write_char(c)?;
            }
        }
        if text.chars().nth(QUOTED_CHARS_MAX).is_some() {
            f.write_char('…')?;
        }
        f.write_char('"')
    }
}

/// Returns the first and the last `chars_max` characters of a text that is longer than both:
/// what is between is not shown in so many characters, however long it is.
fn ends(text: &str, chars_max: usize) -> Cow<'_, str> {
    let head_end = text.char_indices().nth(chars_max).map_or(text.len(), |(at, _)| at);
    let (head, rest) = text.split_at_checked(head_end).unwrap_or((text, ""));
    let n_before = chars_max.saturating_sub(1);
    let tail_start = rest.char_indices().rev().nth(n_before).map_or(0, |(at, _)| at);
    let tail = rest.get(tail_start..).unwrap_or_default();
    if tail_start == 0 { Cow::Borrowed(text) } else { Cow::Owned([head, tail].concat()) }
}

/// Returns whether a character is raw: a control, or an invisible one that moves its neighbors
/// or hides among them. Such are bidirectional marks and overrides, zero-width characters, line
/// separators and tags.
pub fn is_raw(c: char) -> bool {
    c.is_control() || is_hidden(c)
}

#[cfg(test)]
mod tests {
    use crate::format::clean::{Quoted, clean, lines, shortened};

    #[test]
    fn raw_characters_are_escaped_and_letters_of_any_language_stay() {
        assert_eq!(clean("\u{1b}[2Jname\n"), "\\u{1b}[2Jname\\n");
        assert_eq!(clean("a\u{202e}b\u{9b}c\u{2066}d"), "a\\u{202e}b\\u{9b}c\\u{2066}d");
        assert_eq!(clean("größe 变量.py"), "größe 变量.py");
    }

    #[test]
    fn lines_stay_indented_and_bounded() {
        assert_eq!(lines("a\u{1b}b\nerror: c\r\n  d\n", 100), "a\\u{1b}b\n  error: c\n  d\n");
        let long = lines(&"x\n".repeat(100_000), 99);
        assert_eq!(long.chars().count(), 99);
    }

    #[test]
    fn quoted_text_is_short_and_clean() {
        assert_eq!(Quoted("a\u{202e}\"\\b").to_string(), r#""a\u{202e}\"\\b""#);
        assert_eq!(Quoted("\u{301}e\u{301}").to_string(), "\"\\u{301}e\u{301}\"");
        assert_eq!(Quoted(&"é".repeat(65)).to_string(), format!("\"{}…\"", "é".repeat(64)));
    }

    #[test]
    fn long_text_loses_its_middle() {
        assert_eq!(shortened("abcdefghij", 5), "ab…ij");
        assert_eq!(shortened("abcdefghij", 6), "abc…ij");
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened(&format!("ab{}yz", "\u{1b}".repeat(1_000_000)), 5), "ab…yz");
        assert_eq!(shortened("é".repeat(9).as_str(), 4), "éé…é");
        assert_eq!(shortened("ab\u{7}", 20), "ab\\u{7}");
        assert_eq!((shortened("abc", 1), shortened("abc", 0)), ("…".to_owned(), String::new()));
    }
}

//! Text from data, made safe to print: a name in a file cannot steer a terminal or turn a line
//! around.

use std::borrow::Cow;

use crate::characters::is_hidden;

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
    let cleaned = clean(text);
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

/// Returns whether a character is raw: a control, or an invisible one that moves its neighbors
/// or hides among them. Such are bidirectional marks and overrides, zero-width characters, line
/// separators and tags.
pub fn is_raw(c: char) -> bool {
    c.is_control() || is_hidden(c)
}

#[cfg(test)]
mod tests {
    use crate::format::clean::{clean, shortened};

    #[test]
    fn raw_characters_are_escaped_and_letters_of_any_language_stay() {
        assert_eq!(clean("\u{1b}[2Jname\n"), "\\u{1b}[2Jname\\n");
        assert_eq!(clean("a\u{202e}b\u{9b}c\u{2066}d"), "a\\u{202e}b\\u{9b}c\\u{2066}d");
        assert_eq!(clean("größe 变量.py"), "größe 变量.py");
    }

    #[test]
    fn long_text_loses_its_middle() {
        assert_eq!(shortened("abcdefghij", 5), "ab…ij");
        assert_eq!(shortened("abcdefghij", 6), "abc…ij");
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened("ab\u{7}", 20), "ab\\u{7}");
        assert_eq!((shortened("abc", 1), shortened("abc", 0)), ("…".to_owned(), String::new()));
    }
}

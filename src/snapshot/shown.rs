//! How quantities and strings of a file are shown: nothing of a file reaches a terminal raw.

use crate::snapshot::num::{real, signed_real};
use crate::text::units::bytes;

/// A string of the file without anything that a terminal would obey or that turns the line around.
pub fn clean(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_raw(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Whether a character is a control, or invisible and moves others.
pub fn is_raw(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A clean string of at most so many characters; the middle of a longer one is left out.
pub fn short(text: &str, width: usize) -> String {
    let clean = clean(text);
    let n_chars = clean.chars().count();
    if n_chars <= width {
        return clean;
    }
    let head = width / 2;
    let tail = width.saturating_sub(head + 1);
    let mut shown: String = clean.chars().take(head).collect();
    shown.push('…');
    shown.extend(clean.chars().skip(n_chars - tail));
    shown
}

/// A count with separators (`1,500,520`).
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut shown = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// A byte count with its sign.
pub fn signed_bytes(value: i64) -> String {
    let sign = if value > 0 { "+" } else { "" };
    format!("{sign}{}", bytes(signed_real(value)))
}

/// A part of a whole in percent.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        "0.0%".to_owned()
    } else {
        format!("{:.1}%", 100.0 * real(part) / real(whole))
    }
}

/// Words wrapped to a width, each line after an indent.
pub fn wrapped(text: &str, indent: &str, width: usize) -> String {
    let mut shown = String::new();
    let mut length = usize::MAX;
    for word in text.split_whitespace() {
        let next = word.chars().count();
        if length.saturating_add(next + 1) > width {
            if !shown.is_empty() {
                shown.push('\n');
            }
            shown.push_str(indent);
            shown.push_str(word);
            length = indent.chars().count() + next;
        } else {
            shown.push(' ');
            shown.push_str(word);
            length += next + 1;
        }
    }
    shown.push('\n');
    shown
}

/// Adds a line.
pub fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.push_str(&text.to_string());
    page.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_raw_is_shown() {
        assert_eq!(clean("\x1b[2Jname\n"), "\\u{1b}[2Jname\\n");
        assert_eq!(clean("a\u{202e}b\u{9b}c"), "a\\u{202e}b\\u{9b}c");
        assert_eq!(clean("größe 变量.py"), "größe 变量.py");
    }

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(short("abcdefghij", 5), "ab…ij");
        assert_eq!(short("abc", 5), "abc");
    }

    #[test]
    fn quantities_read_well() {
        assert_eq!(grouped(1_500_520), "1,500,520");
        assert_eq!(grouped(7), "7");
        assert_eq!(signed_bytes(1536), "+1.50 KiB");
        assert_eq!(signed_bytes(-3), "-3 B");
        assert_eq!(percent(1, 3), "33.3%");
    }

    #[test]
    fn words_wrap() {
        assert_eq!(wrapped("one two three", "  ", 9), "  one two\n  three\n");
    }
}

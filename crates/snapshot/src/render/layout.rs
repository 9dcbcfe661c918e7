//! The layout of a snapshot's page: parts of a whole, wrapped paragraphs, lines.

use crate::integer::real;

/// Writes a part of a whole in percent, with a decimal.
pub(crate) fn part_of(part: u64, whole: u64) -> String {
    if whole == 0 {
        "0.0%".to_owned()
    } else {
        format!("{:.1}%", 100.0 * real(part) / real(whole))
    }
}

/// Words wrapped to a width, each line after an indent.
pub(crate) fn wrapped(text: &str, indent: &str, width: usize) -> String {
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
pub(crate) fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.push_str(&text.to_string());
    page.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_one_decimal() {
        assert_eq!(part_of(1, 3), "33.3%");
        assert_eq!(part_of(0, 0), "0.0%");
    }

    #[test]
    fn words_wrap() {
        assert_eq!(wrapped("one two three", "  ", 9), "  one two\n  three\n");
    }
}

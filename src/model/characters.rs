//! Characters that names do not hold.

/// Returns whether a character is invisible and moves its neighbours or hides among them: bidirectional marks and
/// overrides, zero-width characters, line separators, tags.
pub fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

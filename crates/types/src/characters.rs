//! Characters that names do not hold.

/// Returns whether a character is invisible, and moves its neighbors or hides among them. These
/// are what Unicode 17 calls default-ignorable, line separators, and signs without ink.
/// Default-ignorable are bidirectional marks and overrides, zero-width characters, fillers,
/// variation selectors and tags.
pub fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{16fe4}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d159}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Returns whether a character is drawn onto the one before it. These are the combining marks
/// of all scripts, and the points and vowels of Hebrew, Arabic and Japanese.
pub fn is_combining(c: char) -> bool {
    matches!(
        c,
        '\u{300}'..='\u{36f}'
            | '\u{483}'..='\u{489}'
            | '\u{591}'..='\u{5bd}'
            | '\u{610}'..='\u{61a}'
            | '\u{64b}'..='\u{65f}'
            | '\u{670}'
            | '\u{6d6}'..='\u{6dc}'
            | '\u{6df}'..='\u{6e4}'
            | '\u{1ab0}'..='\u{1aff}'
            | '\u{1dc0}'..='\u{1dff}'
            | '\u{20d0}'..='\u{20ff}'
            | '\u{302a}'..='\u{302f}'
            | '\u{3099}'..='\u{309a}'
            | '\u{fe20}'..='\u{fe2f}'
            | '\u{101fd}'
            | '\u{1d165}'..='\u{1d169}'
            | '\u{1d16d}'..='\u{1d172}'
    )
}

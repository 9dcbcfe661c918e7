//! Text and data in a document: nothing that a file holds is read as markup or as a script.

use serde::Serialize;

use stepmem_types::format::clean::{clean, is_raw};

/// Returns text for an element, in which what stands between backticks is code.
pub(crate) fn with_code(text: &str) -> String {
    let shown = escaped(text);
    let mut parts = shown.split('`');
    let mut html = parts.next().unwrap_or_default().to_owned();
    while let Some(code) = parts.next() {
        match parts.next() {
            Some(after) => html.extend(["<code>", code, "</code>", after]),
            // A backtick without its partner is one of the text.
            None => html.extend(["`", code]),
        }
    }
    html
}

/// Returns text for an element or a quoted attribute.
pub fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in clean(text).chars() {
        match c {
            '&' => shown.push_str("&amp;"),
            '<' => shown.push_str("&lt;"),
            '>' => shown.push_str("&gt;"),
            '"' => shown.push_str("&quot;"),
            '\'' => shown.push_str("&#39;"),
            c => shown.push(c),
        }
    }
    shown
}

/// Returns JSON for a `script` element: it can neither end the element nor begin another one. The
/// value is dropped first, for it is large.
///
/// # Errors
/// The value has no JSON.
pub fn data(value: impl Serialize) -> Result<String, serde_json::Error> {
    let mut json = serde_json::to_string(&value)?;
    drop(value);
    json.shrink_to_fit();
    let mut shown = String::with_capacity(json.len());
    // Outside of strings, JSON has none of these.
    for c in json.chars() {
        if matches!(c, '<' | '>' | '&') || is_raw(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                shown.push_str("\\u");
                shown.extend([12, 8, 4, 0].map(|shift| hex(*unit >> shift)));
            }
        } else {
            shown.push(c);
        }
    }
    Ok(shown)
}

/// The lowest four bits as a digit.
fn hex(bits: u16) -> char {
    char::from_digit(u32::from(bits & 0xf), 16).unwrap_or('0')
}

#[cfg(test)]
mod tests {
    use crate::render::html::escape::{data, escaped};

    #[test]
    fn text_has_no_markup() {
        assert_eq!(escaped("<b a='1'>\"&\u{1b}"), "&lt;b a=&#39;1&#39;&gt;&quot;&amp;\\u{1b}");
    }

    #[test]
    fn data_cannot_end_its_element_and_is_the_same_value() {
        let value = ["</script><!--<script>", "a\u{2028}b\u{202e}\u{e0041}", "größe"];
        let json = data(value).unwrap();
        assert!(!json.contains(['<', '>', '&', '\u{2028}', '\u{202e}', '\u{e0041}']), "{json}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), value);
    }
}

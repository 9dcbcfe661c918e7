//! URLs that may hold secrets: shown without them.

/// Stands for the part of a URL that is not shown.
const HIDDEN: &str = "…";

/// A URL without its user and password, and these.
#[derive(Debug, PartialEq, Eq)]
pub struct SplitUrl<'u> {
    /// The URL without both.
    pub url: String,
    /// The user and password as they stand in the URL: percent-encoded, with a colon between
    /// them.
    pub user: Option<&'u str>,
}

/// Splits user and password from a URL, as RFC 3986 has them.
pub fn without_user(url: &str) -> SplitUrl<'_> {
    let (scheme, rest) = match url.find("://") {
        Some(at) => url.split_at_checked(at + 3).unwrap_or_default(),
        None => ("", url),
    };
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at_checked(end).unwrap_or((rest, ""));
    match authority.rsplit_once('@') {
        Some((user, host)) => {
            SplitUrl { url: format!("{scheme}{host}{path}"), user: Some(user) }
        }
        None => SplitUrl { url: url.to_owned(), user: None },
    }
}

/// Returns the part of a URL that people may read: no user, password, query or fragment. Also
/// takes a text that is no valid URL. A password that is not encoded may hold any character, so
/// that all up to the last `@` is hidden.
pub fn shown(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some(("unix", _)) => return url.to_owned(),
        Some((scheme, rest)) if !scheme.contains('@') => (Some(scheme), rest),
        _ => (None, url),
    };
    let (hidden, rest) = match rest.rsplit_once('@') {
        Some((_, rest)) => (HIDDEN, format!("@{rest}")),
        None => ("", rest.to_owned()),
    };
    let (rest, cut) = match rest.split_once(['?', '#']) {
        Some((rest, _)) => (rest, format!("?{HIDDEN}")),
        None => (&*rest, String::new()),
    };
    let scheme = scheme.map(|scheme| format!("{scheme}://")).unwrap_or_default();
    format!("{scheme}{hidden}{rest}{cut}")
}

/// Returns a text in which every URL is as [`shown`] has it.
pub fn shown_in(text: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || "\"'`<>".contains(c);
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_end).unwrap_or(rest.len());
        let (word, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
        // The value of a flag or a key.
        let (key, value) = match word.split_once('=') {
            Some((key, value)) if !key.contains("://") => (Some(key), value),
            _ => (None, word),
        };
        if let Some(key) = key {
            clean.push_str(key);
            clean.push('=');
        }
        if value.contains("://") {
            clean.push_str(&shown(value));
        } else {
            clean.push_str(value);
        }
        let n_ending = after.chars().next().map_or(0, char::len_utf8);
        let (ending, further) = after.split_at_checked(n_ending).unwrap_or_default();
        clean.push_str(ending);
        rest = further;
    }
    clean
}

/// Returns the bytes that a percent-encoded text stands for.
pub fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let pair = after.first_chunk::<2>().filter(|_| *first == b'%');
        let digits = pair.and_then(|pair| std::str::from_utf8(pair).ok());
        let is_hex = |text: &&str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let byte = digits.filter(is_hex).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        let n_taken = if byte.is_some() { 2 } else { 0 };
        rest = after.get(n_taken..).unwrap_or_default();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use crate::url::{SplitUrl, percent_decoded, shown, shown_in, without_user};

    #[test]
    fn user_and_password_are_split_off() {
        let check = |url: &str, expected: &str, user: Option<&str>| {
            assert_eq!(without_user(url), SplitUrl { url: expected.to_owned(), user });
        };
        check("http://c:4318/x", "http://c:4318/x", None);
        check("http://u:p@c:4318/x", "http://c:4318/x", Some("u:p"));
        check("https://u@c", "https://c", Some("u"));
        check("http://u:p%40q@[::1]:1?a=b@c", "http://[::1]:1?a=b@c", Some("u:p%40q"));
        check("http://u:a@b@c/", "http://c/", Some("u:a@b"));
        check("u:p@c:4317", "c:4317", Some("u:p"));
        check("http://c/a@b", "http://c/a@b", None);
    }

    #[test]
    fn nothing_of_a_url_is_shown_that_may_be_secret() {
        for (url, expected) in [
            ("http://c:4318/x", "http://c:4318/x"),
            ("http://u:hidden@c:4318/x", "http://…@c:4318/x"),
            ("http://u:hid/den@c", "http://…@c"),
            ("http://u:hid@den@c", "http://…@c"),
            ("u:hidden@c:4318", "…@c:4318"),
            ("http:u:hidden@c", "…@c"),
            ("u:hid@x://c", "…@x://c"),
            ("https://c/x?key=hidden", "https://c/x?…"),
            ("https://c/x#hidden", "https://c/x?…"),
            ("unix:///run/a@b.sock", "unix:///run/a@b.sock"),
        ] {
            assert_eq!(shown(url), expected, "{url}");
        }
        assert_eq!(
            shown_in("unexpected argument '--a=http://u:p@c' found: http://u:p@d ü"),
            "unexpected argument '--a=http://…@c' found: http://…@d ü"
        );
    }

    #[test]
    fn percent_encoding_is_decoded_and_what_is_none_stays() {
        assert_eq!(percent_decoded("a%40b%2Fc"), b"a@b/c");
        assert_eq!(percent_decoded("100%"), b"100%");
        assert_eq!(percent_decoded("%zz%4"), b"%zz%4");
    }
}

//! YAML, for the file of settings and that of `--web.config.file`.

use serde::de::DeserializeOwned;
use serde_saphyr::{Error, Options, UserMessageFormatter, options};

/// Reads a text by the rules of YAML 1.2: `yes` and `on` are texts, and so are `0755` and
/// `1_000`. An empty text is null.
///
/// # Errors
/// It is not YAML, or a value is wrong. The reason names key and line, and does not quote the
/// line, which may hold a password.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut key = None;
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, rules(), |yaml| {
        serde_path_to_error::deserialize(yaml).map_err(|error| {
            key = Some(error.path().to_string());
            error.into_inner()
        })
    });
    let reason = |error: Error| error.render_with_formatter(&UserMessageFormatter);
    read.map_err(reason).map_err(|reason| match key {
        Some(key) if key != "." && key != "?" => format!("{key}: {reason}"),
        _ => reason,
    })
}

fn rules() -> Options {
    options! {
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        with_snippet: false,
    }
}

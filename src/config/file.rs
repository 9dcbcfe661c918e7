//! The file of settings: TOML or YAML, keys nested or dotted.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::config::error::Mistake;
use crate::config::yaml;
use crate::store::open;
use stepmem_types::url::shown_in;

/// The longest file of settings, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Reads the values of a file by dotted key.
///
/// # Errors
/// The file cannot be read or parsed.
pub(super) fn read(
    path: &Path,
    source_name: &'static str,
) -> Result<BTreeMap<String, Vec<String>>, Mistake> {
    let shown = path.display().to_string();
    let mistake = |reason: String| Mistake::File { source_name, path: shown.clone(), reason };
    let bytes =
        open::read_regular(path, FILE_BYTES_MAX).map_err(|error| mistake(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|error| mistake(error.to_string()))?;
    let value: Value = match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => {
            toml::from_str(&text).map_err(|error| mistake(toml_reason(&error, &text)))?
        }
        Some("yaml" | "yml") => {
            yaml::read(&text).map_err(|reason| mistake(shown_in(&reason)))?
        }
        _ => {
            let reason = "the name ends in none of .toml, .yaml, .yml";
            return Err(mistake(reason.to_owned()));
        }
    };
    let mut values = BTreeMap::new();
    flatten("", &value, &mut values);
    Ok(values)
}

/// Returns the reason that a text is not TOML, without the line itself, which may hold a
/// password.
fn toml_reason(error: &toml::de::Error, text: &str) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map(|before| format!(" at line {}", before.matches('\n').count() + 1));
    format!("TOML parse error{}: {}", line.unwrap_or_default(), shown_in(error.message()))
}

/// Joins the keys of nested tables by dots.
fn flatten(prefix: &str, value: &Value, values: &mut BTreeMap<String, Vec<String>>) {
    match value {
        Value::Object(table) => {
            for (key, inner) in table {
                let key =
                    if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&key, inner, values);
            }
        }
        Value::Array(items) => {
            values.insert(prefix.to_owned(), items.iter().map(plain).collect());
        }
        Value::Null if prefix.is_empty() => {}
        scalar => {
            values.insert(prefix.to_owned(), vec![plain(scalar)]);
        }
    }
}

/// Returns a scalar in the form of a flag's value.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        // 1e3 is 1000.
        Value::Number(number) if number.as_f64().is_some_and(|of| of.fract() == 0.0) => {
            number.as_f64().map_or_else(String::new, |of| format!("{of:.0}"))
        }
        other => other.to_string(),
    }
}

//! JSON, looked into.

use serde_json::Value;

/// The items of a list.
pub fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}")).iter()
}

//! JSON, looked into.

use serde_json::Value;

/// The items of a list.
pub fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}")).iter()
}

/// Checks that an object has these values, and that the objects in it do; `null` stands for an absent one, too.
#[track_caller]
pub fn has(object: &Value, expected: &Value) {
    for (key, expected) in expected.as_object().unwrap() {
        match expected {
            Value::Object(_) => has(&object[key], expected),
            _ => assert_eq!(object[key], *expected, "{key} of {object:#}"),
        }
    }
}

/// The text of a field.
#[track_caller]
pub fn text_of<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("no text {key} in {value:#}"))
}

/// Removes what falls with the clock while no step comes: the seconds that are left, and the sentences and statements that name
/// them.
pub fn without_clock(value: &Value) -> Value {
    match value {
        // A statement of a time.
        Value::Object(fields) if fields.contains_key("claim") && value["unit"] == "s" => {
            Value::Object([("claim".to_owned(), value["claim"].clone())].into_iter().collect())
        }
        Value::Object(fields) => {
            let falls = |name: &str| {
                name.contains("oom_eta") && name.ends_with("seconds") || name == "sentence"
            };
            let stays = fields.iter().filter(|(name, _)| !falls(name));
            stays.map(|(name, value)| (name.clone(), without_clock(value))).collect()
        }
        Value::Array(values) => values.iter().map(without_clock).collect(),
        other => other.clone(),
    }
}

//! The schemas of docs/, and values that are held to them.

use serde_json::{Value, json};

use crate::rig::folder::root;

/// The schema `docs/NAME.schema.json`.
pub fn schema(name: &str) -> Value {
    let path = root().join(format!("docs/{name}.schema.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Holds a value to one of the definitions of `docs/NAME.schema.json`.
pub fn holds_definition(name: &str, definition: &str, value: &Value) {
    holds(&json!({"$ref": format!("{name}.schema.json#/$defs/{definition}")}), value);
}

/// Holds a value to the part of JSON Schema that ours use.
pub fn holds(schema: &Value, value: &Value) {
    holds_named(schema, value, "");
}

/// The same of a value with a name, with which the message of a mistake begins.
pub fn holds_named(schema: &Value, value: &Value, name: &str) {
    check(schema, schema, value, name);
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let (file, pointer) = name.split_once('#').unwrap();
        let other = file.strip_suffix(".schema.json").map(self::schema);
        let root = other.as_ref().unwrap_or(root);
        return check(root, root.pointer(pointer).unwrap(), value, at);
    }
    let is = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{at}: unknown type {other}"),
    };
    match &schema["type"] {
        Value::String(name) => assert!(is(name), "{at}: {value} is not of type {name}"),
        Value::Array(names) => {
            let fits = names.iter().any(|name| is(name.as_str().unwrap()));
            assert!(fits, "{at}: {value} is none of {names:?}");
        }
        _ => {}
    }
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{at}: {value} is none of {allowed:?}");
    }
    if let Some(only) = schema.get("const") {
        assert_eq!(value, only, "{at}");
    }
    if let (Some(minimum), Some(number)) = (schema["minimum"].as_f64(), value.as_f64()) {
        assert!(number >= minimum, "{at}: {number} is less than {minimum}");
    }
    // Ours give a type, or null.
    if let (Some(either), false) = (schema["anyOf"].as_array(), value.is_null()) {
        check(root, &either[0], value, at);
    }
    if let (Some(properties), Some(object)) =
        (schema["properties"].as_object(), value.as_object())
    {
        for key in schema["required"].as_array().into_iter().flatten() {
            assert!(object.contains_key(key.as_str().unwrap()), "{at}: {key} is missing");
        }
        for (key, value) in object {
            let at = format!("{at}/{key}");
            match properties.get(key) {
                Some(schema) => check(root, schema, value, &at),
                None => {
                    assert!(schema["additionalProperties"] != json!(false), "{at}: unknown");
                }
            }
        }
    }
    if let (Some(others), Some(object)) =
        (schema["additionalProperties"].as_object(), value.as_object())
    {
        let named = schema["properties"].as_object();
        let is_other = |key: &String| named.is_none_or(|named| !named.contains_key(key));
        for (key, value) in object.iter().filter(|(key, _)| is_other(key)) {
            check(root, &json!(others), value, &format!("{at}/{key}"));
        }
    }
    if let (Some(items), Some(array)) = (schema.get("items"), value.as_array()) {
        for (idx, value) in array.iter().enumerate() {
            check(root, items, value, &format!("{at}/{idx}"));
        }
    }
}

//! docs/snapshot.schema.json: what `stepmem snapshot show --json` prints keeps to it, and nothing is printed that it does not name.

use serde_json::{Value, json};

use crate::rig::folder::root;
use crate::rig::snapshot::{answer, data};

fn schema() -> Value {
    let text = std::fs::read_to_string(root().join("docs/snapshot.schema.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The words of JSON Schema that the file uses; panics with the path of what breaks a rule.
fn check(rule: &Value, value: &Value, whole: &Value, path: &str) {
    for (word, operand) in rule.as_object().unwrap() {
        match word.as_str() {
            "$ref" => {
                let place = operand.as_str().unwrap().trim_start_matches('#');
                check(whole.pointer(place).unwrap(), value, whole, path);
            }
            "type" => {
                let any = |kind: &Value| is_of(kind.as_str().unwrap(), value);
                let is_any =
                    operand.as_array().map_or_else(|| any(operand), |all| all.iter().any(any));
                assert!(is_any, "{path}: {value} is not {operand}");
            }
            "enum" => assert!(operand.as_array().unwrap().contains(value), "{path}: {value}"),
            "const" => assert_eq!(operand, value, "{path}"),
            "minimum" => {
                assert!(value.as_f64() >= operand.as_f64() || value.is_null(), "{path}");
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(operand, item, whole, &format!("{path}/{index}"));
                }
            }
            "required" if value.is_object() => {
                for name in operand.as_array().unwrap() {
                    assert!(
                        value.get(name.as_str().unwrap()).is_some(),
                        "{path} has no {name}"
                    );
                }
            }
            "properties" => {
                for (name, inner) in value.as_object().into_iter().flatten() {
                    let inner_rule = operand.get(name);
                    let inner_rule = inner_rule
                        .unwrap_or_else(|| panic!("{path}: {name} is not in the schema"));
                    check(inner_rule, inner, whole, &format!("{path}/{name}"));
                }
            }
            "anyOf" if !value.is_null() => check(&operand[0], value, whole, path),
            _ => {}
        }
    }
}

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        kind => panic!("{kind}"),
    }
}

#[test]
fn answers_keep_to_the_published_schema() {
    let schema = schema();
    for name in [
        "guides/amp1",
        "guides/oomloop.oom",
        "guides/ring_buffer_4",
        "vectors/oom_pending_free.oom",
        "vectors/no_stacks",
        "vectors/clean_cache_12",
        "vectors/ring_overflow_said",
        "vectors/pinned",
    ] {
        let file = data(&format!("{name}.pickle.gz"));
        let answer =
            answer(&["show", &file, "--json", "--batch-size", "8", "--capacity", "80GiB"]);
        check(&schema, &answer, &schema, name);
        for note in answer["devices"][0]["notes"].as_array().unwrap() {
            for field in ["kind", "text", "bytes", "in_steps", "location"] {
                assert!(note.get(field).is_some(), "{name}: {note} has no {field}");
            }
        }
    }
}

#[test]
fn a_field_that_is_not_published_is_noticed() {
    let schema = schema();
    let named = schema["properties"].as_object().unwrap();
    assert!(named.contains_key("devices") && !named.contains_key("extra"));
    assert_eq!(schema["additionalProperties"], json!(false));
    let device = schema.pointer("/properties/devices/items/properties").unwrap();
    let answer = answer(&["show", &data("guides/amp1.pickle.gz"), "--json"]);
    let printed = answer["devices"][0].as_object().unwrap();
    let printed: Vec<&String> = printed.keys().collect();
    let published: Vec<&String> = device.as_object().unwrap().keys().collect();
    assert_eq!(printed, published);
}

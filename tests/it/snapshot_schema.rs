//! docs/snapshot.schema.json and docs/snapshot-diff.schema.json: what `stepmem snapshot show` and `diff` print with `--json` keeps to them, and nothing
//! is printed that they do not name.

use serde_json::{Value, json};

use crate::rig::schema::{holds_named, schema};
use crate::rig::snapshot::{answer, data};

#[test]
fn answers_keep_to_the_published_schema() {
    let schema = schema("snapshot");
    for name in [
        "guides/amp1",
        "guides/oomloop.oom",
        "guides/ring_buffer_4",
        "vectors/oom_pending_free.oom",
        "vectors/no_stacks",
        "vectors/clean_cache_12",
        "vectors/ring_overflow_said",
        "vectors/pinned",
        "torch215/pools",
    ] {
        let file = data(&format!("{name}.pickle.gz"));
        let answer =
            answer(&["show", &file, "--json", "--batch-size", "8", "--capacity", "80GiB"]);
        holds_named(&schema, &answer, name);
        for note in answer["devices"][0]["notes"].as_array().unwrap() {
            for field in ["kind", "text", "bytes", "in_steps", "location"] {
                assert!(note.get(field).is_some(), "{name}: {note} has no {field}");
            }
        }
    }
}

#[test]
fn a_field_that_is_not_published_is_noticed() {
    let schema = schema("snapshot");
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

#[test]
fn comparisons_keep_to_the_published_schema() {
    let schema = schema("snapshot-diff");
    let vector = |name: &str| data(&format!("vectors/{name}.pickle.gz"));
    let guide = |name: &str| data(&format!("guides/{name}.pickle.gz"));
    for (before, after) in [
        (vector("before_after.step10"), vector("before_after")),
        (vector("two0"), vector("two1")),
        (vector("no_stacks"), vector("no_stacks")),
        (guide("amp1"), guide("accum")),
    ] {
        let answer = answer(&["diff", &before, &after, "--json"]);
        holds_named(&schema, &answer, &after);
        let printed: Vec<&String> = answer["devices"][0].as_object().unwrap().keys().collect();
        let published = schema.pointer("/properties/devices/items/required").unwrap();
        let mut published: Vec<&str> =
            published.as_array().unwrap().iter().filter_map(Value::as_str).collect();
        published.sort_unstable();
        assert_eq!(printed, published, "{after}");
    }
}

//! The lists that the exporter and its Python client share: keys of a record, and kinds of holders.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::Value;
use stepmem_engine::wire::KEYS;
use stepmem_types::site::holder_kind;

use crate::rig::folder::root;

/// The keys of the client's records, and the values that a packed record has.
const LISTS: &str = "
import json, sys
sys.path.insert(0, 'python')
from stepmem._settings import Identity
from stepmem._wire import *
written = ('step', 'time', 'dropped_records', 'steps', 'step_seconds', 'phase', 'marks', 'device', 'pid')
keys = [*Identity._fields, *written, *FIGURES, PROCESS_USED_STATE, DEVICE_MEMORY, TOTAL_STEPS, ON_DEADLINE, UNIT]
print(json.dumps([keys, len(RECORD.unpack(bytes(RECORD.size))) - len(FIGURES)]))
";

#[test]
fn client_and_exporter_have_the_same_keys_of_a_record() {
    let python =
        Command::new("python3").args(["-c", LISTS]).current_dir(root()).output().unwrap();
    assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
    let lists: Value = serde_json::from_slice(&python.stdout).unwrap();
    let set = |list: &Value| -> BTreeSet<String> {
        list.as_array().unwrap().iter().map(|key| key.as_str().unwrap().to_owned()).collect()
    };
    let known: BTreeSet<String> = KEYS.iter().map(|key| key.name.to_owned()).collect();
    assert_eq!(set(&lists[0]), known);
    assert_eq!(lists[1], 8, "values of a packed record before its figures");
}

#[test]
fn client_names_the_kinds_of_holders_that_have_words_of_their_own() {
    let folder = root().join("python/stepmem/_holders");
    let modules = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let modules = modules.filter(|path| path.extension().is_some_and(|ending| ending == "py"));
    let text: String = modules.map(|path| fs::read_to_string(path).unwrap()).collect();
    for kind in holder_kind::ALL {
        assert!(text.contains(&format!("\"{kind}\"")), "no module of _holders has {kind:?}");
    }
}

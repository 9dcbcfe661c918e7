//! Memory snapshots: the files of the tests, and what the command answers about them.

use serde_json::Value;

use crate::rig::command::{Ended, stepmem};
use crate::rig::folder::{root, text};

/// A file of `tests/data/snapshots`.
pub fn data(name: &str) -> String {
    text(&root().join("tests/data/snapshots").join(name))
}

/// What `stepmem snapshot` answers in JSON.
pub fn answer(arguments: &[&str]) -> Value {
    let Ended { code, out, err } = stepmem(&[&["snapshot"], arguments].concat(), &[], b"");
    assert_eq!(code, Some(0), "{arguments:?}: {err}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

//! Memory snapshots: the files of the tests, and what the command answers about them.

use serde_json::Value;

use crate::rig::command::stepmem;
use crate::rig::folder::{root, text};

/// A file of `tests/data/snapshots`.
pub fn data(name: &str) -> String {
    text(&root().join("tests/data/snapshots").join(name))
}

/// A file of the guides' programs.
pub fn guide(name: &str) -> String {
    data(&format!("guides/{name}.pickle.gz"))
}

/// The page that `stepmem snapshot` prints.
#[track_caller]
pub fn page(arguments: &[&str]) -> String {
    stepmem(&[&["snapshot"], arguments].concat(), &[], b"").done()
}

/// The answer of `stepmem snapshot` in JSON.
#[track_caller]
pub fn answer(arguments: &[&str]) -> Value {
    let page = page(arguments);
    serde_json::from_str(&page).unwrap_or_else(|error| panic!("{error}: {page}"))
}

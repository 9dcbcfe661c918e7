//! Which module of `src/` may import which: one table. What lies below may not import what lies above.

use std::fs;
use std::path::Path;

use crate::rig::folder::root;

/// The modules of the program, the highest first, each with those that it may import besides itself.
const LAYERS: [(&str, &[&str]); 8] = [
    ("commands", &["run", "exporter", "config", "input", "output", "net", "store"]),
    ("run", &["exporter", "config", "input", "output", "net", "store"]),
    ("exporter", &["config", "input", "output", "net", "store"]),
    ("config", &["input", "output", "net", "store"]),
    ("input", &["net", "store"]),
    ("output", &["net", "store"]),
    ("net", &[]),
    ("store", &[]),
];

/// Returns the imports of a file in `layer` that the table does not allow, with their lines.
fn upward(layer: &str, text: &str) -> Vec<String> {
    let (_, below) = LAYERS.iter().find(|(name, _)| *name == layer).expect("in the table");
    let mut found = Vec::new();
    for (idx, line) in
        text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
    {
        for after in line.split("crate::").skip(1) {
            let to = after
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
                .unwrap_or_default();
            if to != layer && !below.contains(&to) {
                found.push(format!("{}: {layer} imports {to}", idx + 1));
            }
        }
    }
    found
}

fn check(folder: &Path, layer: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            check(&path, layer, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let here = upward(layer, &text);
            found.extend(here.into_iter().map(|each| format!("{}:{each}", path.display())));
        }
    }
}

#[test]
fn modules_import_downwards_only() {
    let mut found = Vec::new();
    for (layer, _) in LAYERS {
        check(&root().join("src").join(layer), layer, &mut found);
    }
    assert!(found.is_empty(), "{found:#?}");
    assert_eq!(upward("net", "\nuse crate::commands::run;"), ["2: net imports commands"]);
}

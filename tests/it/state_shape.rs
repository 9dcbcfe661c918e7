//! The shape of the types that a state file has: a change of it needs another number in `MAGIC`, so that a file of the old shape is
//! not read as one of the new. `STEPMEM_BLESS=1` writes the shape after that.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{env, fs};

use stepmem::store::state::MAGIC;

use crate::rig::folder::root;

/// The definitions of types and constants, by name; one name may have several.
type Definitions = BTreeMap<String, String>;

/// Returns a line without its indentation and without visibility, which no saved byte depends on.
fn shaped(line: &str) -> String {
    let visibility = ["pub(crate) ", "pub(super) ", "pub "];
    visibility.iter().fold(line.trim().to_owned(), |line, word| line.replace(word, ""))
}

/// Adds the definitions of a file that begin a line, with their attributes and without comments.
fn define(text: &str, found: &mut Definitions) {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let mut attributes = String::new();
    let mut open: Option<(String, String)> = None;
    for line in lines {
        if let Some((name, item)) = &mut open {
            item.push_str(&shaped(line));
            if line == "}"
                || line == "];"
                || line == ");"
                || (!line.starts_with(' ') && line.ends_with(';'))
            {
                found.entry(name.clone()).or_default().push_str(item);
                open = None;
            }
            continue;
        }
        if line.starts_with("#[") {
            attributes.push_str(line);
            continue;
        }
        let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        let at =
            words.iter().position(|word| ["struct", "enum", "type", "const"].contains(word));
        let is_item =
            !line.starts_with(' ') && !line.starts_with("impl") && !line.contains("fn ");
        let name = at.filter(|_| is_item).and_then(|at| words.get(at + 1));
        // An assertion has no name, and is of no type.
        if let Some(name) = name.filter(|name| **name != "_") {
            let item = format!("{attributes}{}", shaped(line));
            if line.ends_with(';') || line.ends_with("{}") {
                found.entry((*name).to_owned()).or_default().push_str(&item);
            } else {
                open = Some(((*name).to_owned(), item));
            }
        }
        attributes.clear();
    }
}

fn read(folder: &Path, found: &mut Definitions) {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    for path in entries.collect::<BTreeSet<_>>() {
        if path.is_dir() {
            read(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            define(&fs::read_to_string(&path).unwrap(), found);
        }
    }
}

/// Returns the names in a definition that have definitions themselves.
fn names<'a>(item: &'a str, all: &'a Definitions) -> impl Iterator<Item = &'a String> {
    let words = item.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter_map(|word| all.get_key_value(word).map(|(name, _)| name))
}

/// Returns the definitions that saved types consist of, in order.
fn saved() -> String {
    let mut all = Definitions::new();
    for name in ["types", "forecast", "detect", "engine"] {
        read(&root().join(format!("crates/{name}/src")), &mut all);
    }
    let mut roots = Definitions::new();
    let path = root().join("crates/engine/src/output/saved_state.rs");
    define(&fs::read_to_string(path).unwrap(), &mut roots);
    let mut reached: BTreeSet<&String> = BTreeSet::new();
    let mut left: Vec<&String> = roots
        .keys()
        .filter(|name| name.starts_with("Saved"))
        .filter_map(|name| Some(all.get_key_value(name)?.0))
        .collect();
    while let Some(name) = left.pop() {
        if reached.insert(name) {
            left.extend(names(&all[name], &all));
        }
    }
    assert!(
        reached.contains(&"RankState".to_owned()) && reached.contains(&"Ladder".to_owned()),
        "{reached:?}"
    );
    reached.iter().flat_map(|name| [all[*name].as_str(), "\n"]).collect()
}

/// Returns the hash of a text by FNV-1a, which no version of a library changes.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn saved_types_have_the_shape_that_the_number_of_the_state_stands_for() {
    let number = MAGIC.split_whitespace().last().unwrap();
    let shape = format!("{number} {:016x}\n", hash(&saved()));
    let path = root().join("tests/data/state_shape.txt");
    let known = fs::read_to_string(&path).unwrap_or_default();
    let is_raised = known.split_whitespace().next() != Some(number);
    if env::var_os("STEPMEM_BLESS").is_some() && is_raised {
        fs::write(&path, &shape).unwrap();
    } else if is_raised {
        panic!("STEPMEM_BLESS=1 cargo test --test it state_shape writes the shape of {number}");
    } else {
        assert_eq!(
            shape, known,
            "a saved type has changed: raise the number in MAGIC (src/store/state.rs)"
        );
    }
}

#[test]
fn every_part_of_a_definition_counts() {
    let of = |text: &str| {
        let mut found = Definitions::new();
        define(text, &mut found);
        found
    };
    let text = "/// A.\n#[derive(Clone)]\npub struct A {\n    /// B.\n    pub b: [B; N_MAX],\n}\n\nimpl A {\n    const C: u8 = 1;\n}\nconst N_MAX: usize = 3;\npub enum B {\n    One,\n}\n";
    let found = of(text);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["A", "B", "N_MAX"]);
    assert_eq!(found["A"], "#[derive(Clone)]struct A {b: [B; N_MAX],}");
    assert_eq!(names(&found["A"], &found).collect::<Vec<_>>(), ["A", "B", "N_MAX"]);
    assert_eq!(of(&text.replace("/// B.", "/// C.")), found);
    assert_eq!(of(&text.replace("pub b", "pub(crate) b")), found);
    assert_ne!(of(&text.replace("One", "Two")), found);
}

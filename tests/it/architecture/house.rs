//! All files together: which modules there are, and which file imports which.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use crate::architecture::source::{Place, Source};
use crate::rig::folder::root;

/// The program with its crates, and the tests.
static STANDING: LazyLock<House> =
    LazyLock::new(|| House::of(&[files("src"), files("crates")].concat()));
static TESTS: LazyLock<House> = LazyLock::new(|| House::of(&files("tests/it")));

/// The files that a rule looks at.
pub struct House {
    pub files: Vec<Source>,
    /// Every module that a path may name.
    modules: BTreeSet<String>,
}

impl House {
    /// `src/` and `crates/` as they are.
    pub fn standing() -> &'static Self {
        &STANDING
    }

    /// `tests/it/` as it is.
    pub fn tests() -> &'static Self {
        &TESTS
    }

    /// These files alone, (path, text), among the modules of the standing house.
    pub fn planted(files: &[(&str, &str)]) -> Self {
        let texts = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        let mut house = Self::of(&texts.collect::<Vec<_>>());
        house.modules.extend(Self::standing().modules.iter().cloned());
        house
    }

    fn of(texts: &[(String, String)]) -> Self {
        let files: Vec<Source> =
            texts.iter().map(|(path, text)| Source::parse(path, text)).collect();
        let mut modules = BTreeSet::new();
        for file in &files {
            let mut name = file.module.as_str();
            modules.insert(name.to_owned());
            while let Some((room, _)) = name.rsplit_once("::") {
                modules.insert(room.to_owned());
                name = room;
            }
        }
        Self { files, modules }
    }

    pub fn has_module(&self, name: &str) -> bool {
        self.modules.contains(name)
    }

    /// The modules of this crate that a file names, but for itself; of an unknown one the first word.
    pub fn imports(&self, file: &Source) -> Vec<Place> {
        let aliases = self.aliases(file);
        let named = file.paths.iter().filter_map(|(path, line)| {
            let path = match path[0].as_str() {
                "crate" => path[1..].to_vec(),
                first => [aliases.get(first)?.clone(), path[1..].to_vec()].concat(),
            };
            let module = (1..=path.len())
                .rev()
                .map(|n| path[..n].join("::"))
                .find(|name| self.has_module(name));
            Some((module.or_else(|| path.first().cloned()).unwrap_or_default(), *line))
        });
        named.filter(|(module, _)| *module != file.module).collect()
    }

    /// The modules that a file may name by their last word alone, since it imports them whole.
    fn aliases(&self, file: &Source) -> BTreeMap<String, Vec<String>> {
        let whole = file.paths.iter().filter(|(path, _)| path[0] == "crate");
        whole
            .filter(|(path, _)| path.len() > 1 && self.has_module(&path[1..].join("::")))
            .map(|(path, _)| (path[path.len() - 1].clone(), path[1..].to_vec()))
            .collect()
    }
}

/// Fails with every violation.
pub fn holds(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}:\n{}", found.join("\n"));
}

/// Every Rust file of a folder with its text, by path.
fn files(folder: &str) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push((relative(&path), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned()
}

//! Which module of `src/` and of each crate may import which: one table. A module imports those of the rows below its own, and
//! no two files import each other, directly or by way of others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::rig::folder::root;

/// The modules of the program and of each crate, the highest row first. A part of a module that has a row of its own is below or
/// above the rest.
const LAYERS: [(&str, &[&[&str]]); 7] = [
    (
        "src",
        &[
            &["commands"],
            &["run"],
            &["exporter"],
            &["config"],
            &["input", "output"],
            &["net", "store"],
        ],
    ),
    (
        "crates/report/src",
        &[
            &["judge"],
            &["compare", "explain", "series"],
            &["job", "rank_table"],
            &["annotations", "closing"],
            &["gate"],
            &["summary", "traceml"],
            &["limits", "policy", "rates"],
        ],
    ),
    (
        "crates/engine/src",
        &[
            &["metrics"],
            &["effects", "output"],
            &["engine", "wire"],
            &["event"],
            &["config", "findings"],
            &["diagnosis"],
            &["containers", "devices", "processes"],
            &["ranks"],
            &["kind", "requests", "thresholds"],
        ],
    ),
    (
        "crates/snapshot/src",
        &[
            &["render"],
            &["events"],
            &["analyze::diff", "analyze::ranks"],
            &["analyze::births"],
            &["render::json"],
            &["render::words"],
            &["analyze", "render::layout", "write"],
            &["read", "replay"],
            &["model"],
            &["error", "integer"],
        ],
    ),
    (
        "crates/detect/src",
        &[
            &["tests"],
            &["detector"],
            &["readings", "witness"],
            &["series"],
            &["shifts"],
            &["intervals", "rapid", "tracker"],
            &["explanations"],
            &["overview"],
            &["headroom", "heights"],
            &["surroundings"],
            &["config"],
            &["batch", "ladder", "slack"],
            &["sample"],
        ],
    ),
    (
        "crates/forecast/src",
        &[
            &["outlook"],
            &["power_law", "remaining"],
            &["overview", "trend"],
            &["capacity", "followed", "pace", "slope_interval"],
            &["signal"],
            &["axis", "stats", "time_to_oom", "usage"],
        ],
    ),
    (
        "crates/types/src",
        &[
            &["step"],
            &["device", "end"],
            &["claims", "host", "ids", "launch", "site"],
            &["saved"],
            &["format", "units"],
            &["format::clean"],
            &["characters", "nvml_code", "refused", "url"],
        ],
    ),
];

/// The imports of a file, by its module below the folder of its crate.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Returns the paths that a text names after `crate::`, each as far as names of modules go, but for those of its tests.
fn named(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String = lines.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect();
    let mut paths = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let end = after.find(|c| !is_part(c)).unwrap_or(after.len());
        let (path, rest) = after.split_at(end);
        paths.insert(path.trim_end_matches(':').to_owned());
        let group = rest.strip_prefix('{').and_then(|rest| rest.split(';').next());
        for name in group.unwrap_or_default().split(|c| !is_part(c)) {
            paths.insert(format!("{path}{name}"));
        }
    }
    paths
}

/// Returns the module that a path names: the longest part of it that is one.
fn module<'a>(path: &'a str, all: &Imports) -> Option<&'a str> {
    let ends = path.match_indices("::").map(|(at, _)| at).chain([path.len()]);
    let heads = ends.map(|end| path.split_at(end).0);
    heads.filter(|head| all.contains_key(*head)).last()
}

fn read(folder: &Path, below: &str, found: &mut Imports) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let own = if below.is_empty() { name.to_owned() } else { format!("{below}::{name}") };
        if path.is_dir() {
            read(&path, &own, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let own = if name == "mod" { below.to_owned() } else { own };
            found.insert(own, named(&fs::read_to_string(&path).unwrap()));
        }
    }
}

/// Returns the modules of a crate, each with those that it imports.
fn imports(folder: &Path) -> Imports {
    let mut all = Imports::new();
    read(folder, "", &mut all);
    all.retain(|own, _| !["lib", "main", ""].contains(&own.as_str()));
    let of = |own: &String, paths: &BTreeSet<String>| {
        let modules = paths.iter().filter_map(|path| module(path, &all));
        modules.filter(|to| *to != own).map(str::to_owned).collect()
    };
    all.iter().map(|(own, paths)| (own.clone(), of(own, paths))).collect()
}

/// Returns the imports that the rows of a crate do not allow.
fn upward(rows: &[&[&str]], imports: &Imports) -> Vec<String> {
    let names = || {
        rows.iter()
            .enumerate()
            .flat_map(|(row, names)| names.iter().map(move |name| (row, *name)))
    };
    let place = |module: &str| {
        let within =
            names().filter(|(_, name)| format!("{module}::").starts_with(&format!("{name}::")));
        within.max_by_key(|(_, name)| name.len())
    };
    let mut found = Vec::new();
    for (own, to) in imports.iter().flat_map(|(own, all)| all.iter().map(move |to| (own, to))) {
        let allowed = match (place(own), place(to)) {
            (Some(own), Some(to)) => own == to || own.0 < to.0,
            _ => false,
        };
        if !allowed {
            found.push(format!("{own} imports {to}"));
        }
    }
    found
}

/// Returns the modules that import each other, directly or by way of others.
fn circles(imports: &Imports) -> Vec<&String> {
    let mut left: BTreeSet<&String> = imports.keys().collect();
    loop {
        let is_used = |own: &&String| left.iter().any(|user| imports[*user].contains(*own));
        let uses = |own: &&String| imports[*own].iter().any(|to| left.contains(to));
        let within: BTreeSet<&String> =
            left.iter().copied().filter(|own| is_used(own) && uses(own)).collect();
        if within.len() == left.len() {
            return within.into_iter().collect();
        }
        left = within;
    }
}

#[test]
fn modules_import_downwards_only_and_in_no_circle() {
    for (folder, rows) in LAYERS {
        let imports = imports(&root().join(folder));
        assert!(imports.len() > 10, "{folder}: {imports:?}");
        assert_eq!(upward(rows, &imports), Vec::<String>::new(), "{folder}");
        assert_eq!(circles(&imports), Vec::<&String>::new(), "{folder}");
    }
}

#[test]
fn planted_imports_are_found() {
    let text = "use crate::b::{self, deep::{Deep, er}};\nuse crate::a::one::One;\n// crate::c\n#[cfg(test)]\nmod tests {\n    use crate::d;";
    let named = named(text);
    for path in ["b::deep", "a::one::One"] {
        assert!(named.iter().any(|of| of.starts_with(path)), "{path}: {named:?}");
    }
    assert!(
        !named.iter().any(|path| path.starts_with('c') || path.starts_with('d')),
        "{named:?}"
    );
    let set = |all: &[&str]| all.iter().map(|to| (*to).to_owned()).collect::<BTreeSet<_>>();
    let planted = [
        ("a::one", set(&["b", "a::two"])),
        ("a::two", set(&[])),
        ("b", set(&["c"])),
        ("c", set(&["b", "a::two"])),
    ];
    let planted: Imports = planted.into_iter().map(|(own, to)| (own.to_owned(), to)).collect();
    assert_eq!(
        upward(&[&["a"], &["b", "c"]], &planted),
        ["b imports c", "c imports a::two", "c imports b"]
    );
    assert_eq!(circles(&planted), ["b", "c"]);
}

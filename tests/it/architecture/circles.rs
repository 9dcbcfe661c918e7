//! No file imports, by way of others, itself: not within a room either. The `mod` lines of a door do not count as imports.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::architecture::house::{House, holds};

/// Of each file, the files that it imports.
type Graph = BTreeMap<String, BTreeSet<String>>;

fn graph(house: &House) -> Graph {
    let imports = |file| {
        let named = house.imports(file).into_iter().map(|(to, _)| to);
        named.filter(|to| house.file(to).is_some()).collect::<BTreeSet<_>>()
    };
    house.files.iter().map(|file| (file.module.clone(), imports(file))).collect()
}

/// The shortest circle through each import, each circle once: `a -> b -> a`.
fn circles(house: &House) -> Vec<String> {
    let graph = graph(house);
    let through = graph.iter().flat_map(|(from, imports)| {
        imports
            .iter()
            .filter_map(|to| Some([vec![from.clone()], path(&graph, to, from)?].concat()))
    });
    let circles: BTreeSet<String> = through.map(|circle| written(&circle)).collect();
    circles.into_iter().collect()
}

/// The shortest way from a file to another, both included.
fn path(graph: &Graph, from: &str, to: &str) -> Option<Vec<String>> {
    let mut reached_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut next = VecDeque::from([from]);
    while let Some(at) = next.pop_front() {
        if at == to {
            let mut path = vec![to.to_owned()];
            let mut at = to;
            while at != from {
                at = reached_from[at];
                path.insert(0, at.to_owned());
            }
            return Some(path);
        }
        for import in &graph[at] {
            if import != from && !reached_from.contains_key(import.as_str()) {
                reached_from.insert(import, at);
                next.push_back(import);
            }
        }
    }
    None
}

/// A circle from its first name on; it begins and ends with the same file.
fn written(circle: &[String]) -> String {
    let names = &circle[1..];
    let first = (0..names.len()).min_by_key(|idx| &names[*idx]).unwrap_or_default();
    let turned = [&names[first..], &names[..=first]].concat();
    turned.join(" -> ")
}

#[test]
fn no_file_imports_itself_by_way_of_others() {
    holds("circles", &circles(House::standing()));
    holds("circles of the tests", &circles(House::tests()));
}

#[test]
fn a_planted_circle_is_found_as_a_path() {
    let house = House::planted(&[
        ("src/detect/mod.rs", "pub mod tests; pub mod tracker; pub mod trend;"),
        ("src/detect/tracker.rs", "use crate::detect::tests::Test;"),
        ("src/detect/tests.rs", "use super::trend::Trend;"),
        ("src/detect/trend.rs", "fn f() { crate::detect::tracker::Tracker::new(); }"),
        ("src/model/ids.rs", "use crate::model::units;"),
        ("src/model/units.rs", ""),
    ]);
    let expected = "detect::tests -> detect::trend -> detect::tracker -> detect::tests";
    assert_eq!(circles(&house), [expected]);
}

#[test]
fn a_planted_file_that_imports_its_own_door_is_found() {
    let door = "mod ladder; pub struct Trend; fn f() { ladder::push(); }";
    let house = House::planted(&[
        ("src/detect/mod.rs", door),
        ("src/detect/ladder.rs", "use super::Trend;"),
    ]);
    let expected = "detect -> detect::ladder -> detect";
    assert_eq!(circles(&house), [expected]);
}

//! docs/snapshot*.md and the README: every output of `stepmem snapshot` that they show is what the command prints.

use crate::rig::command::stepmem_in;
use crate::rig::folder::root;

/// Stands for lines that are left out.
const GAP: &str = "…";
/// The page that has the columns of each help.
const COLUMNS: &str = "docs/snapshot-reference.md";

/// The command lines of a page with the lines below each.
fn examples(page: &str) -> Vec<(Vec<&str>, Vec<&str>)> {
    let blocks = page.split("```text\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    blocks
        .filter_map(|block| {
            let mut lines = block.lines();
            let arguments = lines.next()?.strip_prefix("$ stepmem snapshot ")?;
            let command = ["snapshot"].into_iter().chain(arguments.split(' ')).collect();
            Some((command, lines.collect()))
        })
        .collect()
}

/// Returns the first piece between gaps that is not in the output, in order.
fn missing<'a>(shown: &[&'a str], output: &[&str]) -> Option<Vec<&'a str>> {
    let mut from = 0;
    for piece in shown.split(|line| *line == GAP).filter(|piece| !piece.is_empty()) {
        let rest = output.get(from..)?;
        match rest.windows(piece.len()).position(|window| window == piece) {
            Some(place) => from += place + piece.len(),
            None => return Some(piece.to_vec()),
        }
    }
    None
}

#[test]
fn every_output_that_is_shown_is_real() {
    let named = ["snapshots", "snapshot-leaks", "snapshot-interpretation", "snapshot-events"];
    let paths = named.map(|name| format!("docs/{name}.md")).into_iter();
    let pages: Vec<String> = paths
        .chain(["README.md".to_owned()])
        .map(|page| std::fs::read_to_string(root().join(page)).unwrap())
        .collect();
    let examples: Vec<_> = pages.iter().flat_map(|page| examples(page)).collect();
    assert!(examples.len() >= 24, "{} examples", examples.len());
    for (command, shown) in examples {
        let ended = stepmem_in(&root().join("tests/data/snapshots/vectors"), &command);
        assert_eq!(ended.code, Some(0), "{command:?}: {}", ended.err);
        let output: Vec<&str> = ended.out.lines().collect();
        if let Some(missing) = missing(&shown, &output) {
            panic!("{command:?} does not print {missing:#?} but {output:#?}");
        }
        let is_whole = !shown.contains(&GAP);
        assert!(!is_whole || shown.len() == output.len(), "{command:?} prints more");
    }
}

#[test]
fn a_line_that_is_not_printed_is_noticed() {
    let output = ["a", "b", "c", "d"];
    assert_eq!(missing(&["a", "b", GAP, "d"], &output), None);
    assert_eq!(missing(&["a", "c"], &output), Some(vec!["a", "c"]));
    assert_eq!(missing(&[GAP, "d", GAP, "a"], &output), Some(vec!["a"]));
}

#[test]
fn the_columns_that_the_help_explains_are_in_the_documentation() {
    let page = std::fs::read_to_string(root().join(COLUMNS)).unwrap();
    for command in ["show", "diff", "ranks", "events"] {
        let help = stepmem_in(&root(), &["snapshot", command, "--help"]).out;
        let (_, columns) = help.split_once("\nColumns:\n").expect(command);
        for line in columns.lines() {
            assert!(line.chars().count() <= 80, "{line}");
            assert!(page.contains(line), "{command}: {COLUMNS} lacks {line:?}");
        }
    }
}

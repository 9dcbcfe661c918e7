//! Every record of docs/adr has its parts and a row in the index, and there are few enough to read.

use std::fs;

use crate::rig::folder::root;

/// Records that a newcomer reads in an hour. Beyond that, merge those that decide one thing.
const RECORDS_MAX: usize = 30;
/// Beginnings of lines that each record has.
const PARTS: [&str; 5] =
    ["- Status: ", "- Date: ", "## Context", "## Decision", "## Consequences"];

#[test]
fn every_decision_has_its_parts_and_a_row_in_the_index() {
    let folder = root().join("docs/adr");
    let index = fs::read_to_string(folder.join("README.md")).unwrap();
    let rows: Vec<&str> = index.lines().filter(|line| line.starts_with("| [")).collect();
    let mut files: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "README.md")
        .collect();
    files.sort();
    assert!(files.len() <= RECORDS_MAX, "{} records", files.len());
    assert_eq!(rows.len(), files.len());
    for (idx, (file, row)) in files.iter().zip(rows).enumerate() {
        let record = fs::read_to_string(folder.join(file)).unwrap();
        let (number, slug) = file.split_once('-').unwrap();
        assert_eq!(number, format!("{:04}", idx + 1), "{slug}");
        for part in PARTS {
            assert!(record.lines().any(|line| line.starts_with(part)), "{file}: {part}");
        }
        let value = |part: &str| {
            record.lines().find_map(|line| line.strip_prefix(part)).unwrap_or_default()
        };
        let title = value(&format!("# {}. ", idx + 1));
        let status = value(PARTS[0]);
        let named = format!("| [{number}]({file}) | {title} | {status} | ");
        assert!(row.starts_with(&named), "{row}\nbegins otherwise: {named}");
    }
}

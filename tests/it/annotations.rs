//! `stepmem run --annotations`: what GitHub Actions makes of a run. Its commands are read by the grammar of its runner.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::rig::command::{Ended, stepmem};
use crate::rig::folder::{Folder, root, text};
use crate::rig::job::Job;
use crate::rig::units::{GIB, MIB};

/// Names that are commands, escapes and markup.
const RUN: &str = "::error::a,b:c%0A%25 ##[error]x <img src=x> [y](z) `q` *s* @everyone";
const HOLDER: &str = "`cache` %0A::stop-commands::x,y=z</pre><script>##[warning]w";
const FILE: &str = "a,b::c=%0A%2Cd/::error::train.py";

/// The workflow commands that GitHub turns into annotations.
const KINDS: [&str; 3] = ["error", "warning", "notice"];
const SHOWN_MAX: usize = 10;
const SUMMARY_BYTES_MAX: usize = 65_536;

/// A workflow command, decoded.
#[derive(Debug, PartialEq)]
struct WorkflowCommand {
    name: String,
    properties: BTreeMap<String, String>,
    message: String,
}

/// Decodes the escapes of a text; each `%` begins one of these.
fn decoded(text: &str, escapes: &[(&str, char)]) -> String {
    let mut parts = text.split('%');
    let mut decoded = parts.next().unwrap().to_owned();
    for part in parts {
        let known = escapes.iter().find_map(|(code, c)| Some((part.strip_prefix(code)?, c)));
        let (rest, c) = known.unwrap_or_else(|| panic!("%{part} in {text}"));
        decoded.push(*c);
        decoded += rest;
    }
    decoded
}

/// Decodes `::name key=value,…::message`, as the runner does: blanks before it do not count.
fn command(line: &str) -> Option<WorkflowCommand> {
    let (head, message) = line.trim_start().strip_prefix("::")?.split_once("::")?;
    let (name, properties) = head.split_once(' ').unwrap_or((head, ""));
    let data = [("25", '%'), ("0D", '\r'), ("0A", '\n')];
    let more = [("3A", ':'), ("2C", ',')];
    let property = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap();
        (key.to_owned(), decoded(value, &[&data[..], &more[..]].concat()))
    };
    let pairs = properties.split(',').filter(|pair| !pair.is_empty());
    Some(WorkflowCommand {
        name: name.to_owned(),
        properties: pairs.map(property).collect(),
        message: decoded(message, &data),
    })
}

/// The commands that the runner finds in an output, of which none has the older form.
fn commands(output: &str) -> Vec<WorkflowCommand> {
    let (found, other): (Vec<&str>, Vec<&str>) =
        output.lines().partition(|line| command(line).is_some());
    let older: Vec<&&str> = other.iter().filter(|line| line.contains("##[")).collect();
    assert!(older.is_empty(), "{older:?}");
    found.into_iter().filter_map(command).collect()
}

/// A command that pushes these bodies, each to its path.
fn pusher(folder: &Folder, bodies: &[(&str, Value)]) -> String {
    let post = |(idx, (path, body)): (usize, &(&str, Value))| {
        let file = folder.write(&format!("body-{idx}.json"), &body.to_string());
        format!(
            "curl --silent --show-error --fail --output /dev/null --noproxy '*' --max-time 60 \
             --unix-socket \"${{STEPMEM_PUSH_URL#unix://}}\" -H 'Content-Type: application/json' \
             --data-binary '@{file}' 'http://localhost{path}' || exit 9\n"
        )
    };
    bodies.iter().enumerate().map(post).collect()
}

/// Runs a shell script below `run` with these options and variables.
fn run(folder: &Folder, options: &[&str], variables: &[(&str, &str)], script: &str) -> Ended {
    let logs = text(&folder.path("logs"));
    let own = ["--no-nvml", "--no-record", "--web.listen-address", "127.0.0.1:0"];
    let own = [&["run"], &own[..], &["--summary.dir", &logs], options].concat();
    stepmem(&[&own[..], &["--", "sh", "-c", script]].concat(), variables, b"")
}

/// A job of which rank 2 leaks, and the place of what holds its memory, if that is known.
fn leak(run: &str, file: Option<&str>) -> Vec<(&'static str, Value)> {
    let records = Job::leaking(run, 1..600, 16 * MIB).records();
    let batches = records.chunks(2000).map(|batch| ("/v1/steps", Value::from(batch)));
    let held = file.map(|file| {
        json!({ "run": run, "rank": 2, "outcome": "named", "last_step": 590,
            "holders": [{ "name": HOLDER, "kind": "list", "file": file, "line": 7, "function": "fill",
                "tensors": 590, "bytes": 590 * 16 * MIB, "tensors_per_step": 1.0,
                "bytes_per_step": 16.0 * 1_048_576.0 }] })
    });
    batches.chain(held.map(|held| ("/v1/holders", held))).collect()
}

/// Runs under pressure with long names, two steps each.
fn full(n_runs: usize) -> Vec<(&'static str, Value)> {
    let of = |idx| {
        Job::new(1, 2)
            .run(&format!("run-{idx}-{}", "x".repeat(100)))
            .live(|_, _| 70 * GIB)
            .peak(|_, _| 79 * GIB)
            .records()
    };
    vec![("/v1/steps", (0..n_runs).flat_map(of).collect())]
}

/// A summary of a job to which an earlier command has written.
fn step_summary(folder: &Folder) -> String {
    folder.write("summary.md", "earlier")
}

fn in_actions<'a>(workspace: &'a str, summary: &'a str) -> [(&'a str, &'a str); 3] {
    [
        ("GITHUB_ACTIONS", "true"),
        ("GITHUB_WORKSPACE", workspace),
        ("GITHUB_STEP_SUMMARY", summary),
    ]
}

#[test]
fn finding_is_an_annotation_at_its_line_whatever_the_names_are() {
    let folder = Folder::new("annotations");
    let summary = step_summary(&folder);
    let (root, script) = (
        text(&root()),
        pusher(&folder, &leak(RUN, Some(&format!("{}/{FILE}", text(&root()))))),
    );
    let options = ["--annotations", "--fail-on", "creep:warning"];
    let script = script + "echo the program has ended >&2\n";
    let ended = run(&folder, &options, &in_actions(&root, &summary), &script);
    assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "{}", ended.err);
    let found = commands(&ended.err);
    let [annotation] = &found[..] else { panic!("{found:#?}\n{}", ended.err) };
    let properties = &annotation.properties;
    let title = properties["title"].as_str();
    assert!(KINDS[..2].contains(&annotation.name.as_str()), "{annotation:?}");
    assert!(title.starts_with("MEMORY CREEP (") && title.ends_with(") on rank 2"), "{title}");
    assert_eq!((properties["file"].as_str(), properties["line"].as_str()), (FILE, "7"));
    assert_eq!(properties.len(), 3, "{properties:?}");
    for part in [&format!("Run {RUN}: "), HOLDER, ".\nNext: Look at "] {
        assert!(annotation.message.contains(part), "{part:?} is not in {annotation:?}");
    }
    let at = |part: &str| ended.err.find(part).unwrap();
    assert!(at("the program has ended\n") < at("\n::"), "{}", ended.err);
    let last = ended.err.lines().last().unwrap();
    assert!(last.starts_with("stepmem: exit code 3: MEMORY CREEP"), "{last}");
    assert_markdown(&fs::read_to_string(&summary).unwrap());
}

/// Checks that the summary of the hostile run has its names as text, and no markup but ours.
fn assert_markdown(written: &str) {
    let added = written.strip_prefix("earlier\n").unwrap();
    assert!(added.starts_with("### stepmem: MEMORY CREEP "), "{added}");
    let (before, rest) = added.split_once("<pre>\n").unwrap();
    let (card, after) = rest.split_once("</pre>").unwrap();
    let unescaped = card.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let words = |text: &str| text.split_whitespace().collect::<String>();
    assert!(
        words(&unescaped).contains(&words(HOLDER)) && words(&unescaped).contains(&words(RUN)),
        "{card}"
    );
    let escaped = |name: &str| -> String {
        let of = |c: char| match c {
            '&' => "&amp;".to_owned(),
            '<' => "&lt;".to_owned(),
            '>' => "&gt;".to_owned(),
            c if c.is_ascii_punctuation() => format!("\\{c}"),
            c => c.to_string(),
        };
        name.chars().map(of).collect()
    };
    assert!(before.contains(&format!("\nRun {}\n", escaped(RUN))), "{before}");
    assert!(before.contains(&escaped(HOLDER)), "{before}");
    assert!(after.contains("\n**Exit code 3**: MEMORY CREEP \\("), "{after}");
    let ours = ["details>", "/details>", "summary>", "/summary>", "pre>", "/pre>"];
    for tag in added.split('<').skip(1) {
        assert!(ours.iter().any(|known| tag.starts_with(known)), "<{tag}");
    }
    // Backticks, brackets, stars and the like of others come with their backslash.
    let plain: Vec<char> = before.chars().collect();
    for (idx, c) in plain.iter().enumerate().filter(|(_, c)| "`[]@!_~|".contains(**c)) {
        assert_eq!(plain[idx - 1], '\\', "{c} at {idx} in {before}");
    }
}

#[test]
fn place_of_an_annotation_is_below_the_workspace_or_as_it_is_or_absent() {
    let parent = root().parent().unwrap().to_owned();
    let here = root().file_name().unwrap().to_str().unwrap().to_owned();
    let long = format!("/{}", "d".repeat(511));
    for (idx, (file, expected)) in [
        (Some("./src/../job/train.py"), Some(format!("{here}/job/train.py"))),
        (Some("/opt/venv/lib/x.py"), Some("/opt/venv/lib/x.py".to_owned())),
        (Some(long.as_str()), Some(long.clone())),
        (Some("<string>"), None),
        (Some("/a…/b.py"), None),
        (None, None),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = Folder::new(&format!("annotations-place-{idx}"));
        let (summary, parent) = (step_summary(&folder), text(&parent));
        let script = pusher(&folder, &leak("job", file));
        let ended = run(&folder, &["--annotations"], &in_actions(&parent, &summary), &script);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        let found = commands(&ended.err);
        let [annotation] = &found[..] else { panic!("{file:?}: {}", ended.err) };
        let properties = &annotation.properties;
        assert_eq!(properties.get("file"), expected.as_ref(), "{file:?}");
        let line = properties.get("line").map(String::as_str);
        assert_eq!(line, expected.map(|_| "7"), "{file:?}");
    }
}

#[test]
fn annotations_and_the_summary_have_bounds() {
    let folder = Folder::new("annotations-many");
    let summary = step_summary(&folder);
    let script = pusher(&folder, &full(64));
    let ended = run(&folder, &["--annotations"], &in_actions("/w", &summary), &script);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let found = commands(&ended.err);
    assert_eq!(found.len(), SHOWN_MAX, "{}", ended.err);
    assert!(found.iter().all(|of| of.name == "error"), "{found:#?}");
    assert!(
        ended.err.contains("stepmem: findings that are not annotated: 54"),
        "{}",
        ended.err
    );
    let written = fs::read_to_string(&summary).unwrap();
    assert!(written.len() <= SUMMARY_BYTES_MAX + "earlier".len(), "{}", written.len());
    assert!(written.contains("Run run\\-"), "{written}");
    assert!(written.ends_with("\nThe rest is in the log.\n"), "{written}");
}

#[test]
fn nothing_is_annotated_unless_asked_and_outside_of_github_actions_a_line_says_so() {
    let folder = Folder::new("annotations-off");
    let summary = step_summary(&folder);
    let script = pusher(&folder, &full(1));
    let off = run(&folder, &[], &in_actions("/w", &summary), &script);
    assert!(off.code == Some(0) && commands(&off.err).is_empty(), "{}", off.err);
    assert!(!off.err.contains("--annotations"), "{}", off.err);
    for value in ["", "false"] {
        let variables = [("GITHUB_ACTIONS", value), ("GITHUB_STEP_SUMMARY", &summary)];
        let outside = run(&folder, &["--annotations"], &variables, &script);
        assert!(
            outside.code == Some(0) && commands(&outside.err).is_empty(),
            "{}",
            outside.err
        );
        assert_eq!(
            outside.err.matches("--annotations does nothing outside GitHub Actions").count(),
            1
        );
    }
    assert_eq!(fs::read_to_string(&summary).unwrap(), "earlier");
}

#[test]
fn summary_that_cannot_be_written_is_one_warning_and_changes_no_exit_code() {
    let folder = Folder::new("annotations-unwritten");
    let (pipe, long) = (folder.path("pipe"), folder.path("long.md"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::write(&long, vec![b'x'; 1_048_570]).unwrap();
    let missing = text(&folder.path("missing/summary.md"));
    let cases = [
        ("", "GITHUB_STEP_SUMMARY: it names no absolute path"),
        ("summary.md", "GITHUB_STEP_SUMMARY: it names no absolute path"),
        (missing.as_str(), "No such file or directory"),
        (&text(&folder.path("")), "Is a directory"),
        // Opened for writing, a pipe without a reader is none.
        (&text(&pipe), "No such device or address"),
        (&text(&long), "it has 1048570 bytes, and GitHub shows none of more than 1048576"),
    ];
    for (path, reason) in cases {
        for (options, code) in
            [(&["--annotations"][..], 0), (&["--annotations", "--fail-on=creep"], 4)]
        {
            let ended = run(&folder, options, &in_actions("/w", path), "exit 0");
            assert_eq!(ended.code, Some(code), "{path}: {}", ended.err);
            let said = ended.err.lines().filter(|line| line.contains("the job has no summary"));
            let said: Vec<&str> = said.collect();
            assert!(said.len() == 1 && said[0].contains(reason), "{path}: {}", ended.err);
        }
        let failed = run(&folder, &["--annotations"], &in_actions("/w", path), "exit 7");
        assert_eq!(failed.code, Some(7), "{path}: {}", failed.err);
    }
    assert_eq!(fs::metadata(&long).unwrap().len(), 1_048_570);
    assert!(!Path::new(&missing).exists());
    let summary = step_summary(&folder);
    let unwatched = run(&folder, &["--annotations"], &in_actions("/w", &summary), "exit 0");
    assert_eq!(unwatched.code, Some(0), "{}", unwatched.err);
    let written = fs::read_to_string(&summary).unwrap();
    assert!(written.contains("### stepmem: nothing was watched\n"), "{written}");
}

//! The runbooks: every command of ours that they name exists and takes the arguments beside it, and none needs a shell in the
//! image.

use std::fs;

use crate::rig::command::stepmem;
use crate::rig::folder::root;

/// An address at which no exporter answers.
const NOWHERE: &str = "unix:///nowhere/push.sock";

/// The pages by name.
fn pages() -> Vec<(String, String)> {
    let folder = fs::read_dir(root().join("docs/runbooks")).unwrap();
    let mut pages: Vec<_> = folder
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect();
    pages.sort();
    pages
}

/// The commands of ours in the blocks for a shell, in words as a shell splits them, without the program's name.
fn commands(page: &str) -> Vec<Vec<String>> {
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines: Vec<String> = blocks
        .flat_map(|block| {
            let joined = block.replace("\\\n", " ");
            joined.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>()
        })
        .collect();
    lines
        .iter()
        .filter_map(|line| {
            let in_pod = line.strip_prefix("kubectl ").and_then(|rest| rest.split_once(" -- "));
            let own = in_pod.map_or(line.as_str(), |(_, own)| own.trim_start());
            own.strip_prefix("stepmem ").map(words)
        })
        .collect()
}

/// The commands of ours that stand within sentences.
fn mentions(page: &str) -> Vec<Vec<String>> {
    let text: String = page.split("```").step_by(2).collect();
    let code = text.split('`').skip(1).step_by(2);
    code.filter_map(|code| code.strip_prefix("stepmem ").map(words)).collect()
}

/// Returns the words that an operator writes for a placeholder.
fn filled_in(word: &str) -> &str {
    match word {
        "N" => "3",
        "PID" => "4711",
        "KIND" => "CREEP_CONFIRMED",
        word => word,
    }
}

fn words(line: &str) -> Vec<String> {
    let parts = line.split('"').enumerate();
    parts
        .flat_map(|(idx, part)| match idx % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        })
        .collect()
}

/// Returns the first word of a command that the program does not know.
fn unknown(command: &[String]) -> Option<&str> {
    let name = command.first().map_or("", String::as_str);
    let mut path: Vec<&str> = vec![name];
    // `snapshot` has commands of its own.
    path.extend(command.get(1).map(String::as_str).filter(|_| name == "snapshot"));
    let help = stepmem(&[&path[..], &["--help"]].concat(), &[], b"");
    if help.code != Some(0) {
        return Some(name);
    }
    let mut flags = command.iter().filter(|word| word.starts_with("--"));
    flags
        .find(|flag| help.out.split_whitespace().all(|known| known != *flag))
        .map(String::as_str)
}

#[test]
fn every_runbook_is_listed() {
    let pages = pages();
    let (_, list) = pages.iter().find(|(name, _)| name == "README.md").unwrap();
    for (name, _) in pages.iter().filter(|(name, _)| name != "README.md") {
        let row = format!("\n| [{}]({name}) | ", name.trim_end_matches(".md"));
        assert_eq!(list.matches(&row).count(), 1, "{name}");
    }
}

#[test]
fn every_command_of_a_runbook_exists() {
    for (name, page) in pages() {
        for command in [commands(&page), mentions(&page)].concat() {
            assert_eq!(unknown(&command), None, "{name}: {}", command.join(" "));
        }
    }
}

#[test]
fn every_verb_of_a_runbook_reaches_for_an_exporter_on_a_host_and_in_a_pod() {
    let mut n_verbs = 0;
    for (name, page) in pages() {
        for command in commands(&page) {
            let command: Vec<&str> = command.iter().map(|word| filled_in(word)).collect();
            let ended = stepmem(&[&command[..], &["--url", NOWHERE]].concat(), &[], b"");
            let place = format!("no exporter answers at {NOWHERE}");
            assert!(ended.err.contains(&place), "{name}: {command:?}: {}", ended.err);
            n_verbs += 1;
        }
        assert!(!page.contains("curl -"), "{name}: the image has no curl");
    }
    assert!(n_verbs >= 20, "{n_verbs} commands");
}

#[test]
fn every_command_on_a_host_has_its_form_in_a_pod() {
    let of = |page: &str, is_in_pod: bool| -> Vec<Vec<String>> {
        let lines = page.replace("\\\n", " ");
        let lines = lines.lines().map(str::trim);
        let own = lines.filter_map(|line| match line.split_once(" exec POD -c stepmem -- ") {
            Some((_, own)) if is_in_pod => own.trim().strip_prefix("stepmem "),
            None if !is_in_pod => line.strip_prefix("stepmem "),
            _ => None,
        });
        own.map(|own| words(own.split('`').next().unwrap())).collect()
    };
    // The first page explains the commands; all others are read alone.
    for (name, page) in pages().into_iter().filter(|(name, _)| name != "README.md") {
        let in_pod = of(&page, true);
        for command in of(&page, false) {
            // A process of no container is one of the node.
            let is_of_node = command.contains(&"--device".to_owned());
            assert!(is_of_node || in_pod.contains(&command), "{name}: {}", command.join(" "));
        }
        let has_other = page.contains("`stepmem status") || page.contains("`stepmem check");
        assert!(!has_other || !in_pod.is_empty(), "{name} has no command for a pod");
    }
}

#[test]
fn a_command_that_does_not_exist_is_noticed() {
    let page = "See `stepmem statsu`.\n```sh\n# on a host\nstepmem ack --because \"a b\"\n\
                kubectl -n N exec P -c stepmem -- \\\n  stepmem end --run R\n\
                kubectl logs P -c stepmem\n```\n`stepmem snapshot show FILE`";
    let [ack, end] = &commands(page)[..] else { panic!("{:?}", commands(page)) };
    assert_eq!(*ack, ["ack", "--because", "a b"]);
    assert_eq!(*end, ["end", "--run", "R"]);
    assert_eq!((unknown(ack), unknown(end)), (Some("--because"), None));
    let found: Vec<_> = mentions(page).iter().map(|own| unknown(own).is_some()).collect();
    assert_eq!(found, [true, false]);
}

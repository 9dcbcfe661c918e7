//! Completion scripts and manual pages: made from the tables of commands and settings, so they name what there is.

use std::fs;
use std::process::Command;

use stepmem::config::table::SETTINGS;

use crate::rig::command::stepmem;
use crate::rig::folder::{Folder, text};

fn printed(arguments: &[&str]) -> String {
    stepmem(arguments, &[], b"").quiet()
}

/// The words that bash offers for the last of these.
fn offers(script: &str, words: &[&str]) -> Vec<String> {
    let line = r#"
        source "$1" || exit 9
        shift
        COMP_WORDS=("$@")
        COMP_CWORD=$(($# - 1))
        _stepmem stepmem "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", line, "bash", script]).args(words);
    let output = bash.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_loads_its_script_and_offers_commands_settings_and_values() {
    let folder = Folder::new("completions");
    let script = folder.write("stepmem.bash", &printed(&["completions", "bash"]));
    assert_eq!(offers(&script, &["stepmem", "ru"]), ["run"]);
    assert_eq!(offers(&script, &["stepmem", "status", "--sort", "pr"]), ["pressure"]);
    let settings = offers(&script, &["stepmem", "serve", "--"]);
    let missing = SETTINGS.iter().map(|setting| format!("--{}", setting.key));
    let missing: Vec<String> = missing.filter(|flag| !settings.contains(flag)).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn every_shell_has_a_script_and_no_other_word_is_one() {
    for (shell, begin) in [("zsh", "#compdef stepmem"), ("fish", "# Print an optspec")] {
        let script = printed(&["completions", shell]);
        assert!(script.starts_with(begin), "{shell}: {}", &script[..60]);
        assert!(script.contains("release"), "{shell}");
    }
    assert_eq!(stepmem(&["completions", "tcsh"], &[], b"").code, Some(2));
}

#[test]
fn every_shown_command_has_a_manual_page_with_its_settings() {
    let folder = Folder::new("man");
    let directory = folder.path("pages");
    fs::create_dir(&directory).unwrap();
    printed(&["man", "--directory", &text(&directory)]);
    let help = printed(&["--help"]);
    let commands = help.split("Commands:\n").nth(1).unwrap().lines();
    let shown = commands.take_while(|line| !line.is_empty());
    let names: Vec<&str> = shown
        .filter_map(|line| line.strip_prefix("  ")?.split_once(' '))
        .map(|(name, _)| name)
        .collect();
    assert!(names.contains(&"run") && names.contains(&"man"), "{names:?}");
    for name in names.iter().filter(|name| !["", "help"].contains(name)) {
        let page = fs::read_to_string(directory.join(format!("stepmem-{name}.1"))).unwrap();
        assert_eq!(page, printed(&["man", name]), "{name}");
    }
    let serve = printed(&["man", "serve"]).replace("\\-", "-");
    for setting in SETTINGS {
        assert!(serve.contains(&format!("--{}", setting.key)), "{}", setting.key);
    }
    assert!(printed(&["man"]).contains("stepmem"));
    let unknown = stepmem(&["man", "nothing"], &[], b"");
    unknown.fails(2, "\"nothing\" is not a command of stepmem");
}

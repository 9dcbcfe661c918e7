//! The environment of the command: that of `run`, and the variables that its Python processes
//! need to push.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::config::environment;
use crate::run::processes::Ready;

/// Words in the form that system calls take.
pub(super) type Words = Vec<CString>;

/// The variables of the client.
pub(super) const PUSH_URL: &str = "STEPMEM_PUSH_URL";
const TOKEN_FILE: &str = "STEPMEM_PUSH_TOKEN_FILE";
const TRACES: &str = "STEPMEM_TRACES";
const SNAPSHOT_DIRECTORY: &str = "STEPMEM_SNAPSHOT_DIRECTORY";
const SNAPSHOT_ON_OOM: &str = "STEPMEM_SNAPSHOT_ON_OOM";
const TRACEMALLOC: &str = "STEPMEM_TRACEMALLOC";
const PYTHON_PATH: &str = "PYTHONPATH";

/// Variables that replace what was given.
pub(super) type Replaced = Vec<(&'static str, OsString)>;

/// Returns every variable of the command, some of them replaced.
pub(super) fn variables(ready: &Ready, replaced: &Replaced) -> Vec<(OsString, OsString)> {
    let mut variables = watched(environment::all(), ready);
    variables.retain(|(name, _)| replaced.iter().all(|(other, _)| name != other));
    variables.extend(replaced.iter().map(|(name, value)| (name.into(), value.clone())));
    variables
}

/// Returns `NAME=value` of every variable of the command.
pub(super) fn environment(ready: &Ready, replaced: &Replaced) -> Words {
    let pairs = variables(ready, replaced).into_iter();
    let pairs = pairs.map(|(name, value)| [name, value].join(OsStr::new("=")));
    c_strings(&pairs.collect::<Vec<_>>())
}

/// Returns words in the form that system calls take, without those that contain a zero byte.
pub(super) fn c_strings(words: &[OsString]) -> Words {
    words.iter().filter_map(|word| CString::new(word.as_bytes()).ok()).collect()
}

/// Adds the variables that a watched command needs; those that are already set have priority.
fn watched(
    mut variables: Vec<(OsString, OsString)>,
    ready: &Ready,
) -> Vec<(OsString, OsString)> {
    let on_oom = ready.snapshots.as_ref().map(|_| "1".to_owned());
    let tracemalloc = ready.traces_lines.then(|| "auto".to_owned());
    let defaults = [
        (PUSH_URL, &ready.push_url),
        (TOKEN_FILE, &ready.token_file),
        (TRACES, &ready.folder),
        (SNAPSHOT_DIRECTORY, &ready.snapshots),
        (SNAPSHOT_ON_OOM, &on_oom),
        (TRACEMALLOC, &tracemalloc),
    ];
    for (name, value) in defaults {
        let is_set = variables.iter().any(|(set, value)| set == name && !value.is_empty());
        if let (false, Some(value)) = (is_set, value) {
            variables.retain(|(set, _)| set != name);
            variables.push((name.into(), value.into()));
        }
    }
    if let (Some(client), true) = (&ready.client, ready.push_url.is_some()) {
        let before = variables.iter().position(|(name, _)| name == PYTHON_PATH);
        let before = before.map(|idx| variables.swap_remove(idx).1).unwrap_or_default();
        variables.push((PYTHON_PATH.into(), in_front(client, before)));
    }
    variables
}

/// Puts the client's directory in front of a search path, unless it is in it. Python finds its
/// `sitecustomize` there, which moves the directory to the end.
fn in_front(client: &str, path: OsString) -> OsString {
    if path.as_bytes().split(|byte| *byte == b':').any(|entry| entry == client.as_bytes()) {
        return path;
    }
    let mut longer = client.as_bytes().to_vec();
    if !path.is_empty() {
        longer.push(b':');
        longer.extend(path.as_bytes());
    }
    OsString::from_vec(longer)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsString;

    use crate::run::environment::watched;
    use crate::run::processes::Ready;

    fn check(before: &[(&str, &str)], ready: &Ready, after: &[(&str, &str)]) {
        let owned = |pairs: &[(&str, &str)]| -> Vec<(OsString, OsString)> {
            pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
        };
        let sorted = |pairs: Vec<_>| pairs.into_iter().collect::<BTreeMap<_, _>>();
        assert_eq!(sorted(watched(owned(before), ready)), sorted(owned(after)));
    }

    #[test]
    fn variables_that_are_set_win() {
        let ready = Ready {
            push_url: Some("unix:///r/push.sock".to_owned()),
            client: Some("/c/client".to_owned()),
            folder: Some("/r".to_owned()),
            token_file: None,
            snapshots: Some("/logs/.snapshots".to_owned()),
            traces_lines: true,
        };
        let ours = [
            ("STEPMEM_PUSH_URL", "unix:///r/push.sock"),
            ("STEPMEM_TRACES", "/r"),
            ("PYTHONPATH", "/c/client"),
            ("STEPMEM_SNAPSHOT_DIRECTORY", "/logs/.snapshots"),
            ("STEPMEM_SNAPSHOT_ON_OOM", "1"),
            ("STEPMEM_TRACEMALLOC", "auto"),
        ];
        check(&[], &ready, &ours);
        check(&[("PYTHONPATH", ""), ("STEPMEM_PUSH_URL", "")], &ready, &ours);
        check(
            &[
                ("PYTHONPATH", "/mine:/other"),
                ("STEPMEM_PUSH_URL", "http://node:9478"),
                ("STEPMEM_SNAPSHOT_DIRECTORY", "/mine"),
                ("STEPMEM_SNAPSHOT_ON_OOM", "0"),
                ("STEPMEM_TRACEMALLOC", "off"),
            ],
            &ready,
            &[
                ("STEPMEM_PUSH_URL", "http://node:9478"),
                ("STEPMEM_TRACES", "/r"),
                ("PYTHONPATH", "/c/client:/mine:/other"),
                ("STEPMEM_SNAPSHOT_DIRECTORY", "/mine"),
                ("STEPMEM_SNAPSHOT_ON_OOM", "0"),
                ("STEPMEM_TRACEMALLOC", "off"),
            ],
        );
        let inner =
            [("PYTHONPATH", "/mine:/c/client"), ours[0], ours[1], ours[3], ours[4], ours[5]];
        check(&inner, &ready, &inner);
    }

    #[test]
    fn command_without_an_exporter_has_the_environment_that_was_given() {
        let before = [("PYTHONPATH", "/mine"), ("A", "b")];
        check(&before, &Ready::default(), &before);
        let nowhere = Ready { client: Some("/c/client".to_owned()), ..Ready::default() };
        check(&before, &nowhere, &before);
    }
}

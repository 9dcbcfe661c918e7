//! The page: its files are served from the binary, and a browser reads them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use stepmem_types::device::OwnProcessState;

use crate::rig::access::users;
use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, root};
use crate::rig::nvml::{FakeNvml, driver, gpu, process};
use crate::rig::units::GIB;

/// The length of a module at most, in lines.
const MODULE_LINES_MAX: usize = 300;

/// The files of the page by name, with their content.
fn files() -> Vec<(String, String)> {
    let entries = fs::read_dir(root().join("src/output/page")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    paths
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}

/// The files that a module imports.
fn imports(module: &str) -> impl Iterator<Item = &str> {
    module.lines().filter_map(|line| line.split_once(" from \"./")?.1.strip_suffix("\";"))
}

#[test]
fn binary_serves_each_file_of_the_page_as_what_it_is_and_its_modules_as_one_script() {
    let exporter = Exporter::start(&[]);
    for (name, content_type, beginning) in [
        ("style.css", "text/css; charset=utf-8", ":root {"),
        ("uplot.js", "text/javascript; charset=utf-8", "/*! https://github.com/leeoniya/uPlot"),
        ("uplot.LICENSE", "text/plain; charset=utf-8", "The MIT License (MIT)"),
        ("main.js", "text/javascript; charset=utf-8", "const dom_js = (() => {\n"),
    ] {
        let path = format!("/page/{name}");
        let answer = exporter.get(&path, &[]);
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.body.starts_with(beginning), "{path}: {:.80}", answer.body);
        assert_eq!(answer.header("content-type"), content_type, "{path}");
        assert_eq!(answer.header("cache-control"), "no-cache", "{path}");
    }
    for unknown in ["/page/", "/page/index.html", "/page/story.js", "/page/a/main.js"] {
        assert_eq!(exporter.get(unknown, &[]).status, 404, "{unknown}");
    }
}

#[test]
fn modules_are_short_introduced_used_and_without_a_circle() {
    let files = files();
    let is_module = |name: &str| Path::new(name).extension().is_some_and(|it| it == "js");
    let modules: Vec<_> = files.iter().filter(|(name, _)| is_module(name)).collect();
    for (name, content) in &modules {
        let n_lines = content.lines().count();
        assert!(n_lines <= MODULE_LINES_MAX, "{name} has {n_lines} lines");
        assert!(content.starts_with("// "), "{name} does not say its job");
    }
    // Files in the order in which each only imports earlier ones.
    let mut placed = BTreeSet::new();
    loop {
        let next = modules.iter().filter(|(name, content)| {
            !placed.contains(name.as_str())
                && imports(content).all(|file| placed.contains(file))
        });
        let next: Vec<&str> = next.map(|(name, _)| name.as_str()).collect();
        if next.is_empty() {
            break;
        }
        placed.extend(next);
    }
    let all: BTreeSet<&str> = modules.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(placed, all, "the missing ones import each other or what is not there");
    let used = modules.iter().flat_map(|(_, content)| imports(content));
    assert_eq!(used.chain(["main.js"]).collect::<BTreeSet<_>>(), all);
}

#[test]
fn no_path_of_the_page_can_be_taken_by_the_metrics() {
    let name = "--web.telemetry-path";
    let ended = stepmem(&["serve", name, "/page/main.js"], &[], b"");
    assert!(ended.err.contains("is not a free path"), "{}", ended.err);
}

#[test]
fn browser_shows_ranks_processes_and_devices_with_their_findings() {
    let full = gpu("GPU-a").memory(80 * GIB, GIB, 78 * GIB).compute(&[process(4711, 78 * GIB)]);
    let fake = FakeNvml::new("page", &driver([full.clone(), gpu("GPU-b"), gpu("GPU-c")]));
    let exporter = fake.serve(&["--nvml.interval", "50ms"]);
    exporter.await_metrics("all devices", |metrics| {
        metrics.keys().filter(|series| series.starts_with("stepmem_device_info")).count() == 3
    });
    fake.set(&driver([full, gpu("GPU-b").code(15), gpu("GPU-c")]));
    // A rank that does not name its device could be any of the processes.
    exporter.push_step(&json!({ "run": "young", "rank": 0, "device": "GPU-c" }), 1, GIB);
    let demo = Exporter::start_command("demo", &["--fixed"], &[]);
    let folder = Folder::new("page-token");
    let token = folder.write("token", "a token of some length");
    let guarded = Exporter::start(&["--push.token-file", &token]);
    holds("page.mjs", &[&demo, &exporter, &guarded]);
}

#[test]
fn browser_tells_the_story_of_a_rank_from_recorded_answers() {
    holds("page_story.mjs", &[&Exporter::start(&[])]);
}

#[test]
fn page_says_why_memory_is_unknown_in_the_words_of_every_other_output() {
    let facts = fs::read_to_string(root().join("src/output/page/facts.js")).unwrap();
    for state in OwnProcessState::ALL {
        let said = format!("{}: \"NVML {}\"", state.as_label(), state.words());
        assert!(facts.contains(&said), "{said}");
    }
}

#[test]
fn browser_presses_the_buttons_of_an_admin() {
    let folder = Folder::new("page-buttons");
    let (token, file) = (folder.write("admin", "the admin tökén"), users(&folder, "horse"));
    let exporter = Exporter::start(&[
        "--web.admin",
        "--admin.token-file",
        &token,
        "--web.config.file",
        &file,
    ]);
    holds("page_buttons.mjs", &[&exporter]);
}

/// Reads the pages of exporters by a script of tests/ops; it says what does not hold.
fn holds(script: &str, exporters: &[&Exporter]) {
    let output = Command::new("node")
        .arg(root().join("tests/ops").join(script))
        .args(exporters.iter().map(|exporter| format!("http://{}/", exporter.web)))
        .output()
        .expect("no node: run make tools");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script} (run make tools?): {said}");
}

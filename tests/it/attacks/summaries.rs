//! Links and other things that a neighbor puts where summaries are written.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::job::Job;
use crate::rig::units::GIB;

/// Ends a run, and waits until its summary was written, or could not be.
fn summed_up(exporter: &Exporter, result: &str, n_so_far: f64) {
    let job = Job::new(2, 20).run("run").world(2).untimed().live(|_, _| 30 * GIB);
    let instance = |rank: u64| format!("{rank:016x}");
    let job = job.more(move |rank, _| json!({"launch": "a", "instance": instance(rank)}));
    exporter.push(&job.records());
    let answer = exporter.post_to("/v1/runs/run/end", r#"{"outcome":"completed"}"#);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let series = format!("stepmem_summaries_total{{result=\"{result}\"}}");
    exporter.await_metrics("the summary", |metrics| metrics[&series] >= n_so_far);
}

/// Starts an exporter on `out` of the folder, which has a directory of somebody else.
fn start(folder: &Folder) -> Exporter {
    fs::create_dir_all(folder.path("of-others")).unwrap();
    fs::write(folder.path("of-others/precious"), "precious").unwrap();
    fs::create_dir_all(folder.path("out")).unwrap();
    Exporter::start(&["--summary.dir", &text(&folder.path("out"))])
}

fn is_untouched(folder: &Folder) {
    assert_eq!(fs::read_dir(folder.path("of-others")).unwrap().count(), 1);
    assert_eq!(fs::read(folder.path("of-others/precious")).unwrap(), b"precious");
}

/// The one directory of a launch, as the exporter names it.
fn launch(folder: &Folder) -> String {
    let names = fs::read_dir(folder.path("out/run")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('2')).max().unwrap()
}

#[test]
fn link_where_a_run_has_its_directory_is_not_followed() {
    let folder = Folder::new("linked-run");
    let exporter = start(&folder);
    symlink(folder.path("of-others"), folder.path("out/run")).unwrap();
    summed_up(&exporter, "failed", 1.0);
    assert_eq!(exporter.logged("WARN", "is a link, which is not followed"), 1);
    is_untouched(&folder);
}

#[test]
fn link_where_a_launch_has_its_directory_is_not_followed() {
    let folder = Folder::new("linked-launch");
    let exporter = start(&folder);
    summed_up(&exporter, "written", 1.0);
    let first = folder.path("out/run").join(launch(&folder));
    fs::remove_dir_all(&first).unwrap();
    symlink(folder.path("of-others"), &first).unwrap();
    summed_up(&exporter, "written", 2.0);
    assert!(folder.path("out/run/latest/final_summary.json").exists());
    is_untouched(&folder);
}

#[test]
fn links_and_pipes_where_the_files_are_written_are_neither_followed_nor_waited_for() {
    let folder = Folder::new("linked-files");
    let exporter = start(&folder);
    summed_up(&exporter, "written", 1.0);
    let first = folder.path("out/run").join(launch(&folder));
    let precious = folder.path("of-others/precious");
    for (n, names) in [&["final_summary.json"][..], &["final_summary.txt"], &["launch.json"]]
        .iter()
        .enumerate()
    {
        for name in *names {
            let replace = |make: &dyn Fn(&Path)| {
                fs::remove_file(first.join(name)).unwrap();
                make(&first.join(name));
            };
            replace(&|path| symlink(&precious, path).unwrap());
            summed_up(&exporter, "written", 2.0 + 2.0 * f64::from(u32::try_from(n).unwrap()));
            is_untouched(&folder);
            replace(&|path| {
                assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
            });
            summed_up(&exporter, "written", 3.0 + 2.0 * f64::from(u32::try_from(n).unwrap()));
        }
    }
    is_untouched(&folder);
}

#[test]
fn latest_that_is_no_link_stays_and_the_summary_counts_as_written() {
    for is_folder in [false, true] {
        let folder = Folder::new(if is_folder { "latest-folder" } else { "latest-file" });
        let exporter = start(&folder);
        fs::create_dir_all(folder.path("out/run")).unwrap();
        let latest = folder.path("out/run/latest");
        if is_folder {
            fs::create_dir_all(latest.join("mine")).unwrap();
        } else {
            fs::write(&latest, "mine").unwrap();
        }
        summed_up(&exporter, "written", 1.0);
        let failed = exporter.metric("stepmem_summaries_total{result=\"failed\"}");
        assert_eq!(failed, Some(0.0));
        let written = folder.path("out/run").join(launch(&folder)).join("final_summary.json");
        assert!(written.exists());
        assert_eq!(latest.is_dir(), is_folder);
        assert_eq!(exporter.logged("WARN", "latest is not a link"), 1);
        // The next launch has its summary too.
        assert_eq!(exporter.logged("WARN", "summary not written"), 0);
    }
}

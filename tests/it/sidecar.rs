//! A sidecar never ends for what it finds at its start: it does without, says so, and fails towards closed.

use std::net::TcpListener;
use std::os::unix::net::UnixStream;

use serde_json::json;

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::units::GIB;

/// Checks that log and metric name the setting.
fn assert_named(exporter: &Exporter, setting: &str, reason: &str) {
    let series = format!("stepmem_startup_problem{{setting=\"{setting}\"}}");
    assert_eq!(exporter.metric(&series), Some(1.0), "{:#?}", exporter.log());
    let log = exporter.log();
    let is_it = |entry: &&serde_json::Value| {
        let fields = &entry["fields"];
        entry["level"] == "ERROR"
            && fields["setting"] == setting
            && fields["reason"].as_str().is_some_and(|text| text.contains(reason))
    };
    assert_eq!(log.iter().filter(is_it).count(), 1, "{setting}: {reason}: {log:#?}");
}

fn pushes(exporter: &Exporter) {
    exporter.push_step(&json!({ "rank": 0 }), 1, GIB);
    exporter.await_metrics("the rank", |metrics| {
        metrics.contains_key(r#"stepmem_rank_step{run="default",rank="0",uuid=""}"#)
    });
}

#[test]
fn a_bad_setting_keeps_its_default_and_the_rest_runs() {
    let exporter = Exporter::start_sidecar(
        &["--rank.ttl", "soon", "--imbalance.warning=0.5"],
        &[("STEPMEM_LOG_LEVEL", "loud"), ("OTEL_METRIC_EXPORT_INTERVAL", "1m")],
    );
    assert_named(&exporter, "rank.ttl", "\"soon\" is not a duration");
    assert_named(&exporter, "imbalance.warning", "exceeds imbalance.critical");
    assert_named(&exporter, "log.level", "\"loud\"");
    assert_named(&exporter, "OTEL_METRIC_EXPORT_INTERVAL", "milliseconds");
    pushes(&exporter);
    exporter.stop();
}

#[test]
fn a_sidecar_by_a_value_that_no_switch_takes_is_still_a_sidecar() {
    let exporter = Exporter::start_sidecar(&[], &[("STEPMEM_SIDECAR", "yes")]);
    assert_named(&exporter, "sidecar", "\"yes\"");
    pushes(&exporter);
}

#[test]
fn a_taken_port_of_the_page_is_replaced_and_one_of_pushes_is_left_out() {
    let taken = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [web, push] = taken.each_ref().map(|of| of.local_addr().unwrap().to_string());
    let arguments = ["--web.listen-address", &web, "--push.listen-address", &push];
    let exporter = Exporter::start_sidecar(&arguments, &[]);
    assert_named(&exporter, "web.listen-address", &format!("{web} is taken; port "));
    assert_named(&exporter, "push.listen-address", &format!("cannot listen on {push}"));
    // Its other addresses, and the free port instead of the taken one.
    assert_eq!(exporter.logged("INFO", "\"what\":\"web\""), 2);
    assert_eq!(exporter.logged("INFO", "\"what\":\"push\""), 1);
    pushes(&exporter);
}

#[test]
fn a_foreign_file_at_the_sockets_path_is_left_alone() {
    let folder = Folder::new("sidecar-socket");
    let file = folder.write("push.sock", "theirs");
    let exporter = Exporter::start_sidecar(&["--push.unix-socket", &file], &[]);
    assert_named(&exporter, "push.unix-socket", "is not a socket");
    pushes(&exporter);
    exporter.stop();
    assert_eq!(std::fs::read_to_string(file).unwrap(), "theirs");
}

#[test]
fn without_its_token_no_push_listener_opens() {
    let folder = Folder::new("sidecar-token");
    let (socket, missing) = (text(&folder.path("push.sock")), text(&folder.path("token")));
    let arguments = ["--push.unix-socket", &socket, "--push.token-file", &missing];
    let exporter = Exporter::start_sidecar(&arguments, &[]);
    assert_named(&exporter, "push.token-file", "No such file");
    assert_eq!((exporter.push.port(), UnixStream::connect(&socket).is_ok()), (0, false));
    exporter.stop();
}

#[test]
fn what_may_be_a_misspelled_token_closes_pushes_unless_the_token_is_given() {
    let folder = Folder::new("sidecar-unknown");
    let token = folder.write("token", "secret");
    let misspelled = format!("--push.tokn-file={token}");
    let file = folder.write("stepmem.yaml", "push.token_file: /token\n");
    let absent = text(&folder.path("absent.yaml"));
    for (arguments, setting) in [
        (vec![misspelled.as_str()], "command line"),
        (vec!["--push.tokn-file", &token], "command line"),
        (vec!["--config.file", &file], "config.file"),
        (vec!["--config.file", &absent], "config.file"),
    ] {
        let exporter = Exporter::start_sidecar(&arguments, &[]);
        let series = format!("stepmem_startup_problem{{setting=\"{setting}\"}}");
        assert_eq!(exporter.metric(&series), Some(1.0), "{arguments:?}");
        assert_eq!(exporter.push.port(), 0, "{arguments:?}");
        exporter.stop();
    }
    let variables = [("STEPMEM_PUSH_TOKEN_FILE", token.as_str())];
    let exporter = Exporter::start_sidecar(&[&misspelled], &variables);
    assert_eq!(exporter.post("[]").status, 401);
}

#[test]
fn without_sidecar_and_in_check_every_mistake_is_an_error() {
    for (command, variables) in
        [("serve", &[][..]), ("check", &[("STEPMEM_SIDECAR", "true")][..])]
    {
        let ended = stepmem(&[command, "--no-nvml", "--rank.ttl", "soon"], variables, b"");
        assert_eq!(ended.code, Some(1), "{command}: {}", ended.err);
        assert!(ended.err.contains("--rank.ttl: \"soon\""), "{command}: {}", ended.err);
    }
    let unknown = stepmem(&["serve", "--rank.tll", "1s"], &[], b"");
    assert_eq!(unknown.code, Some(2), "{}", unknown.err);
}

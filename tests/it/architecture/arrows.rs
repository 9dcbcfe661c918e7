//! Which file may import which.

use crate::architecture::house::{House, holds};
use crate::architecture::source::is_within;

/// Who may import what: a file or a room to the left, files and rooms to the right. The longest name to the left that
/// fits a file counts for it. Files of a room to the left may import each other, as far as `circles` lets them.
const ARROWS: &[(&str, &[&str])] = &[
    ("main", &["commands::args", "commands::program"]),
    (
        "commands",
        &[
            "analysis",
            "app",
            "config",
            "detect",
            "input::nvml",
            "input::push::wire",
            "input::recording",
            "model",
            "report",
            "snapshot",
            "store::atomic",
            "store::timelines",
            "store::zstd",
            "text",
        ],
    ),
    (
        "app",
        &[
            "analysis", "config", "input", "metrics", "model", "net", "output", "report",
            "store", "text",
        ],
    ),
    (
        "config",
        &[
            "analysis::captures",
            "analysis::config",
            "input::nvml::config",
            "input::push::bodies",
            "input::push::http",
            "input::push::roles",
            "model",
            "net::access",
            "net::passwords",
            "net::tls_config",
            "output::otlp",
            "output::web",
            "store::open",
        ],
    ),
    ("text", &["model::characters"]),
    ("model", &[]),
    ("store", &[]),
    ("net", &["model"]),
    ("input::recording", &["input::push::wire", "input::unpacked", "model"]),
    ("input::unpacked", &["store::zstd"]),
    (
        "input::push::wire",
        &[
            "analysis::acks",
            "analysis::capture",
            "analysis::challengers",
            "analysis::diagnosis",
            "analysis::episodes",
            "analysis::sites",
            "model",
        ],
    ),
    (
        "input::push",
        &[
            "analysis::acks",
            "analysis::capture",
            "analysis::refusal",
            "analysis::sites",
            "model",
            "net",
        ],
    ),
    ("input::owner", &["model"]),
    ("input::nvml", &["input::owner", "model"]),
    ("metrics", &["analysis::status", "model"]),
    ("output::prometheus", &["analysis::status", "metrics", "model"]),
    ("output::otlp", &["analysis::status", "metrics", "model"]),
    ("output::answers", &["model", "net"]),
    ("output::timelines", &["store::timelines"]),
    (
        "output::web",
        &[
            "analysis::status",
            "net",
            "output::answers",
            "output::prometheus",
            "output::timelines",
            "store::timelines",
        ],
    ),
    ("report", &["analysis", "detect", "model", "text"]),
    ("snapshot", &["text"]),
    ("detect", &["model::units"]),
    ("analysis::basis", &[]),
    ("analysis::challengers", &["model"]),
    (
        "analysis::rank",
        &["analysis::basis", "analysis::challengers", "analysis::sites", "detect", "model"],
    ),
    ("analysis::refusal", &["analysis::challengers", "model"]),
    ("analysis::processes", &["analysis::rank::peaks", "detect", "model"]),
    ("analysis::devices", &["analysis::rank::view", "model"]),
    (
        "analysis::ranks",
        &["analysis::challengers", "analysis::rank", "analysis::refusal", "detect", "model"],
    ),
    (
        "analysis::diagnosis",
        &[
            "analysis::basis",
            "analysis::devices",
            "analysis::processes",
            "analysis::rank::ended",
            "analysis::rank::host",
            "analysis::rank::view",
            "detect",
            "model",
            "text",
        ],
    ),
    ("analysis::acks", &["analysis::diagnosis", "analysis::refusal", "model"]),
    ("analysis::sites", &["model"]),
    ("analysis::episodes", &["model"]),
    ("analysis::looks", &["analysis::episodes", "analysis::sites", "model"]),
    ("analysis::capture", &["analysis::looks", "analysis::sites", "model"]),
    (
        "analysis::captures",
        &["analysis::capture", "analysis::episodes", "analysis::sites", "model"],
    ),
    ("analysis::snapshot_status", &["analysis::capture", "model"]),
    ("analysis::findings", &["analysis::acks", "analysis::diagnosis", "model"]),
    (
        "analysis::status",
        &[
            "analysis::acks",
            "analysis::basis",
            "analysis::devices",
            "analysis::diagnosis",
            "analysis::findings",
            "analysis::processes",
            "analysis::rank",
            "analysis::ranks",
            "analysis::snapshot_status",
            "detect",
            "model",
        ],
    ),
    (
        "analysis::runs",
        &["analysis::diagnosis", "analysis::findings", "analysis::rank", "model"],
    ),
    (
        "analysis::event",
        &["analysis::acks", "analysis::capture", "analysis::ranks", "analysis::sites", "model"],
    ),
    ("analysis::config", &["analysis", "detect", "model"]),
    ("analysis::saved", &["analysis", "detect", "model"]),
    ("analysis::engine", &["analysis", "detect", "model"]),
    ("analysis::publish", &["analysis", "detect", "model"]),
    ("analysis::rank_status", &["analysis", "detect", "model"]),
    ("analysis::resume", &["analysis", "model"]),
];

fn violations(house: &House) -> Vec<String> {
    house
        .files
        .iter()
        .flat_map(|file| {
            let row = ARROWS
                .iter()
                .filter(|(from, _)| file.is_in(from))
                .max_by_key(|(from, _)| from.len());
            let is_free = |to: &str| {
                let is_listed = |(from, to_list): &(&str, &[&str])| {
                    is_within(to, from) || to_list.iter().any(|room| is_within(to, room))
                };
                let is_own = file.is_door() && is_within(to, &file.module);
                is_own || row.is_some_and(is_listed)
            };
            let imports = house.imports(file).into_iter().filter(|(to, _)| !is_free(to));
            file.at(imports.map(|(to, line)| (format!("{} imports {to}", file.module), line)))
        })
        .collect()
}

#[test]
fn files_import_only_what_the_arrows_allow() {
    holds("arrows", &violations(House::standing()));
}

#[test]
fn no_arrow_leads_between_inputs_and_outputs() {
    let reach = |from: &str, to: &str| {
        let rows = ARROWS.iter().filter(|(room, _)| is_within(room, from));
        rows.flat_map(|(_, allowed)| *allowed)
            .any(|room| is_within(room, to) || is_within(to, room))
    };
    assert!(!reach("input", "output") && !reach("output", "input"));
    assert!(reach("app", "input") && reach("app", "output"), "the question finds arrows");
}

#[test]
fn every_arrow_is_between_files_that_exist() {
    for (from, to) in ARROWS {
        for name in [from].into_iter().chain(*to) {
            assert!(House::standing().has_module(name), "{name} is in ARROWS");
        }
    }
}

#[test]
fn a_planted_arrow_is_found() {
    for (path, text) in [
        ("src/detect/batch.rs", "use crate::model::ids::Run;"),
        ("src/detect/tests.rs", "use crate::{detect::stats, analysis::rank::tally::Tally};"),
        ("src/model/units.rs", "use crate::detect::config::Config;"),
        ("src/analysis/rank/tally.rs", "use super::super::event::Event;"),
        (
            "src/analysis/rank/tally.rs",
            "fn f() { super::super::super::config::settings::document(); }",
        ),
        ("src/analysis/diagnosis/imbalance.rs", "use super::super::engine::Engine as E;"),
        ("src/analysis/diagnosis/imbalance.rs", "use crate::analysis;"),
        ("src/analysis/mod.rs", "use crate::config::settings::SETTINGS;"),
        ("src/metrics/table.rs", "fn f(s: &crate::analysis::event::Event) {}"),
        ("src/output/prometheus.rs", "fn f() { x!(y, crate::config::settings::document()) }"),
        (
            "src/output/prometheus.rs",
            "use crate::analysis::status; use crate::metrics; fn f() { crate::report::card::of() }",
        ),
        ("src/output/web.rs", "mod m { use super::super::otlp::Config; }"),
        ("src/output/web.rs", "use crate::input::push::inbox::Inbox;"),
        ("src/input/push/http.rs", "use crate::{model::ids::Run, output::web};"),
        ("src/input/push/wire/step.rs", "use crate::input::push::inbox::Inbox;"),
        ("src/net/server.rs", "use crate::input;"),
        ("src/config/settings.rs", "use crate::output::*;"),
        ("src/commands/args.rs", "use crate::*;"),
        ("src/main.rs", "fn main() { stepmem::exporter::run() }"),
        ("src/nowhere/summary.rs", "use crate::model::ids::Run;"),
        ("src/text/units.rs", "use crate::report::summary::Summary;"),
        ("src/text/units.rs", "use crate::nowhere::Summary;"),
        ("src/input/nvml/error.rs", "use crate::analysis; fn f() { analysis::status::f() }"),
    ] {
        let house = House::planted(&[(path, text)]);
        assert!(!violations(&house).is_empty(), "{path}: {text}");
    }
}

#[test]
fn an_allowed_import_is_not_a_violation() {
    for (path, text) in [
        (
            "src/analysis/engine.rs",
            "use crate::analysis::{rank::tally::Tally, status::{self, Status}};",
        ),
        ("src/analysis/diagnosis/mod.rs", "mod imbalance; const X: X = imbalance::IMBALANCE;"),
        ("src/analysis/diagnosis/imbalance.rs", "use super::high_pressure::pressures;"),
        ("src/output/web.rs", "use crate::output::prometheus::{Format, render};"),
        ("src/input/nvml/mod.rs", "mod raw { use super::Row; } use raw::Row;"),
        (
            "src/net/server.rs",
            "pub(crate) struct S { pub(in crate::net::server) a: super::server::T }",
        ),
        (
            "src/app/mod.rs",
            "use crate::{input, output}; fn f() { input::push::http::router() }",
        ),
        ("src/lib.rs", "pub mod app; pub mod commands;"),
        ("src/detect/tests.rs", "use crate::{detect::stats, model::units::Bytes};"),
        (
            "src/detect/batch.rs",
            "/// Unlike `crate::exporter::run`.\nfn f() { \"crate::exporter\"; }",
        ),
        ("src/detect/batch.rs", "#[cfg(test)] mod tests { use crate::exporter; }"),
    ] {
        let found = violations(&House::planted(&[(path, text)]));
        assert!(found.is_empty(), "{path}: {text}: {found:?}");
    }
}

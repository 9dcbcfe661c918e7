//! Generated pages match their tables, and every name of a row elsewhere names a row that exists.
//! `STEPMEM_BLESS=1 cargo test --test it generated` rewrites the pages.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::Value;
use stepmem::config::page;
use stepmem::config::table::{SETTINGS, Setting};
use stepmem_engine::metrics::{self, METRICS};
use stepmem_engine::wire::{KEYS, Key};
use stepmem_engine::{DiagnosisKind, words};
use stepmem_types::claims::{self, Claim};
use stepmem_types::host::HostFigures;
use stepmem_types::step::StepFigures;

use crate::rig::command::stepmem;
use crate::rig::folder::root;

/// The metrics that were promised, without the prefix `stepmem_`.
const PROMISED: &[&str] = &[
    // from NVML
    "device_memory_total_bytes",
    "device_memory_used_bytes",
    "device_memory_free_bytes",
    "device_info",
    "device_memory_unattributed_bytes",
    "process_memory_used_bytes",
    "process_memory_other_bytes",
    "device_xid_errors_total",
    // as pushed
    "rank_step",
    "rank_steps_total",
    "rank_last_push_timestamp_seconds",
    "rank_memory_allocated_bytes",
    "rank_memory_peak_allocated_bytes",
    "rank_memory_reserved_bytes",
    "rank_memory_inactive_split_bytes",
    "rank_interval_peak_allocated_bytes",
    "rank_alloc_retries_total",
    "rank_dropped_records_total",
    "rank_info",
    // derived
    "creep_slope_bytes_per_step",
    "creep_slope_bytes_per_second",
    "creep_slope_lower_bytes_per_step",
    "creep_slope_upper_bytes_per_step",
    "creep_growth_bytes",
    "creep_onset_step",
    "creep_confidence_ratio",
    "oom_eta_seconds",
    "oom_eta_steps",
    "headroom_bytes",
    "pressure_ratio",
    "fragmentation_ratio",
    "memory_outside_allocator_bytes",
    "run_imbalance_ratio",
    "run_worst_rank",
    "run_ranks",
    "run_ranks_expected",
    "diagnosis_severity",
    "diagnosis_since_timestamp_seconds",
    // of the exporter itself
    "up",
    "build_info",
    "nvml_up",
    "nvml_last_success_timestamp_seconds",
    "nvml_errors_total",
    "pushes_total",
    "push_records_total",
    "push_duration_seconds",
    "inbox_depth",
    "collector_duration_seconds",
    "collector_success",
    "series",
    "series_dropped_total",
    "otlp_exports_total",
];

/// The kinds of diagnosis that were promised.
const PROMISED_KINDS: [&str; 6] = [
    "CREEP_CONFIRMED",
    "CREEP_EARLY",
    "HIGH_PRESSURE",
    "IMBALANCE",
    "FRAGMENTATION",
    "OUTSIDE_ALLOCATOR",
];

/// Compares a page with what is generated, or writes it when blessed.
fn is_current(page: &str, generated: &str) {
    let path = root().join("docs").join(page);
    if env::var_os("STEPMEM_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, generated).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let stale = generated.lines().zip(written.lines()).find(|(new, old)| new != old);
    assert!(
        written == generated,
        "docs/{page} is stale ({stale:?}): STEPMEM_BLESS=1 cargo test --test it generated"
    );
}

#[test]
fn the_page_of_metrics_is_as_the_table() {
    is_current("metrics.md", &metrics::document());
}

#[test]
fn the_page_of_settings_is_as_the_table() {
    is_current("settings.md", &page::document());
}

#[test]
fn the_page_of_diagnoses_is_as_the_table() {
    is_current("diagnoses.md", &words::diagnoses_document());
}

#[test]
fn the_page_of_claims_is_as_the_table() {
    is_current("claims.md", &claims::document());
}

#[test]
fn the_claims_of_the_schema_of_the_status_are_as_the_table() {
    let schema = fs::read_to_string(root().join("docs/status.schema.json")).unwrap();
    let open = "    \"claim\": {\n     \"type\": \"string\",\n     \"enum\": [";
    let (before, rest) = schema.split_once(open).unwrap();
    let (_, after) = rest.split_once(']').unwrap();
    let names: Vec<String> =
        Claim::ALL.iter().map(|claim| format!("      {:?}", claim.row().name)).collect();
    let names = names.join(",\n");
    is_current("status.schema.json", &format!("{before}{open}\n{names}\n     ]{after}"));
}

#[test]
fn the_kinds_of_the_schema_of_the_status_are_as_the_table() {
    let schema = fs::read_to_string(root().join("docs/status.schema.json")).unwrap();
    let kinds: Vec<String> =
        DiagnosisKind::ALL.iter().map(|kind| format!("      {:?}", kind.label())).collect();
    let kinds = format!("\n{}\n     ", kinds.join(",\n"));
    let open = "\"enum\": [";
    let mut parts = schema.split(open);
    let mut generated = parts.next().unwrap().to_owned();
    let mut n_lists = 0;
    for part in parts {
        let (names, rest) = part.split_once(']').unwrap();
        let is_of_kinds = names.contains(DiagnosisKind::ALL[0].label());
        n_lists += usize::from(is_of_kinds);
        let names = if is_of_kinds { &kinds } else { names };
        generated.extend([open, names, "]", rest]);
    }
    assert_eq!(n_lists, 2, "of findings and of acknowledgments");
    is_current("status.schema.json", &generated);
}

#[test]
fn the_kinds_of_the_schema_of_the_summary_are_as_the_table() {
    let schema = fs::read_to_string(root().join("docs/final_summary.schema.json")).unwrap();
    let (open, close) = ("Its name in labels: ", ", BALANCED, ");
    let (before, rest) = schema.split_once(open).unwrap();
    let (_, after) = rest.split_once(close).unwrap();
    let kinds = DiagnosisKind::labels();
    is_current("final_summary.schema.json", &format!("{before}{open}{kinds}{close}{after}"));
}

#[test]
fn the_keys_of_a_record_in_the_page_of_the_push_are_as_the_list() {
    let (begin, end) = ("<!-- keys of a record -->\n", "<!-- end of keys -->");
    let page = fs::read_to_string(root().join("docs/push.md")).unwrap();
    let (before, rest) = page.split_once(begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    let mut table =
        "| field | type, unit, range | required | meaning |\n|---|---|---|---|\n".to_owned();
    for key in KEYS {
        let required = if key.is_required() { "yes" } else { "no" };
        table +=
            &format!("| `{}` | {} | {required} | {} |\n", key.name, key.values, key.meaning);
    }
    is_current("push.md", &format!("{before}{begin}{table}{end}{after}"));
}

#[test]
fn the_figures_of_a_record_in_the_schema_of_the_status_are_as_the_lists() {
    let mut schema = fs::read_to_string(root().join("docs/status.schema.json")).unwrap();
    // A status has the figures of a step as a whole. What else it says of a rank begins with its state.
    let of_step = serde_json::to_value(StepFigures::default()).unwrap();
    let keys = KEYS.iter().filter(|key| key.name != "step");
    let keys = keys.filter_map(|key| Some((key.name, of_step.get(key.name).map(|_| key)?)));
    schema = with_figures(&schema, ["step_seconds", "state"], keys);
    // And those of host memory, before child processes.
    let of_host = serde_json::to_value(HostFigures::default()).unwrap();
    let keys = KEYS.iter().filter_map(|key| Some((key.name.strip_prefix("host_")?, key)));
    let keys = keys.filter(|(name, _)| of_host.get(name).is_some());
    schema = with_figures(&schema, ["shared_bytes", "workers"], keys);
    is_current("status.schema.json", &schema);
}

/// Returns the schema with these figures from the property `begin` up to `end`.
fn with_figures<'k>(
    schema: &str,
    [begin, end]: [&str; 2],
    keys: impl Iterator<Item = (&'k str, &'k Key)>,
) -> String {
    let (before, rest) = schema.split_once(&format!("    \"{begin}\": {{\n")).unwrap();
    let at = rest.find(&format!("    \"{end}\": {{\n")).unwrap();
    let mut generated = before.to_owned();
    for (name, key) in keys {
        let number = if key.values == "seconds" { "number" } else { "integer" };
        let types = if key.is_required() {
            format!("{number:?}")
        } else {
            format!("[\n      {number:?},\n      \"null\"\n     ]")
        };
        generated += &format!(
            "    {name:?}: {{\n     \"type\": {types},\n     \"description\": {:?}\n    }},\n",
            sentence(key)
        );
    }
    generated + &rest[at..]
}

/// The meaning of a key as a sentence, with what its count is of.
fn sentence(key: &Key) -> String {
    let since = key.values.strip_prefix("count ").map(|since| format!(", {since}"));
    let (first, rest) = key.meaning.split_at(1);
    format!("{}{rest}{}.", first.to_uppercase(), since.unwrap_or_default())
}

#[test]
fn every_diagnosis_has_a_mark_of_its_own_in_a_chart() {
    let marks: BTreeSet<char> =
        DiagnosisKind::ALL.iter().map(|kind| kind.about().mark).collect();
    assert_eq!(marks.len(), DiagnosisKind::ALL.len(), "{marks:?}");
}

#[test]
fn no_cell_of_a_generated_table_breaks_its_row() {
    for page in [metrics::document(), page::document()] {
        let mut n_columns = 0;
        for line in page.lines() {
            let n_bars = line.matches('|').count();
            if line.starts_with('|') && n_columns > 0 {
                assert_eq!(n_bars, n_columns, "{line}");
            }
            n_columns = if line.starts_with('|') { n_bars } else { 0 };
        }
    }
}

#[test]
fn every_promised_metric_is_in_the_table() {
    let names: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
    let missing: Vec<_> = PROMISED
        .iter()
        .filter(|name| !names.contains(format!("stepmem_{name}").as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(names.contains("process_resident_memory_bytes"));
    assert!(names.contains("process_cpu_seconds_total"));
}

#[test]
fn every_promised_diagnosis_is_in_the_table() {
    let kinds: BTreeSet<&str> = DiagnosisKind::ALL.iter().map(|kind| kind.label()).collect();
    let missing: Vec<&str> =
        PROMISED_KINDS.into_iter().filter(|kind| !kinds.contains(kind)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_metric_of_the_bundle_is_in_the_table() {
    let unknown: Vec<String> = ["dashboards", "alerts", "helm", "docs/runbooks"]
        .iter()
        .flat_map(|folder| files(&root().join(folder)))
        .flat_map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            unknown_metrics(&text)
                .into_iter()
                .map(|name| format!("{}: {name}", path.display()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}

/// The options that the help of a command lists, and its exit codes.
fn of_help(command: &str) -> BTreeSet<String> {
    let help = stepmem(&[command, "--help"], &[], b"").out;
    let option = |line: &str| {
        let name = line.trim_start().strip_prefix("--")?;
        Some(format!("--{}", name.split([' ', '=', ',']).next()?))
    };
    let codes = help.lines().find_map(|line| line.strip_prefix("Exit code: "));
    let codes = codes.into_iter().flat_map(|line| line.split(|char: char| !char.is_numeric()));
    let codes = codes.filter(|code| !code.is_empty()).map(str::to_owned);
    help.lines().filter_map(option).chain(codes).collect()
}

#[test]
fn the_page_of_run_names_every_option_of_its_own_every_exit_code_and_every_other_default() {
    let page = fs::read_to_string(root().join("docs/run.md")).unwrap();
    let (run, serve) = (of_help("run"), of_help("serve"));
    let own: Vec<&String> = run.difference(&serve).collect();
    assert!(own.len() > 6, "{own:?}");
    assert!(run.contains("--snapshots") && run.contains("127"), "{run:?}");
    let help = stepmem(&["run", "--help"], &[], b"").out;
    let defaults = help.split("Defaults that differ from serve's: ").nth(1).unwrap();
    let defaults = defaults.split(';').next().unwrap().split_whitespace();
    let defaults: Vec<String> = defaults.map(|one| one.replace('=', " ")).collect();
    assert!(defaults.len() > 2, "{defaults:?}");
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let named = |name: &&String| !words.contains(name.as_str());
    let missing: Vec<&String> = own.into_iter().chain(&defaults).filter(named).collect();
    assert!(missing.is_empty(), "docs/run.md does not name {missing:?}");
}

#[test]
fn every_diagnosis_without_an_alert_of_its_own_has_the_one_for_all_others() {
    let rules = fs::read_to_string(root().join("alerts/stepmem.rules.yaml")).unwrap();
    let rules: Value = serde_saphyr::from_str(&rules).unwrap();
    let rules = rules["groups"].as_array().unwrap().iter().flat_map(|group| {
        group["rules"].as_array().unwrap().iter().filter(|rule| rule["alert"].is_string())
    });
    let (others, own): (Vec<&Value>, Vec<&Value>) =
        rules.partition(|rule| rule["alert"] == "StepmemOtherFinding");
    let kinds = |rules: &[&Value], open: &str| -> BTreeSet<String> {
        let expressions = rules.iter().map(|rule| rule["expr"].as_str().unwrap());
        let lists = expressions.flat_map(|expr| expr.split(open).skip(1));
        let lists = lists.map(|list| list.split('"').next().unwrap());
        lists.flat_map(|list| list.split('|')).map(str::to_owned).collect()
    };
    let mut known = kinds(&own, "kind=\"");
    known.extend(kinds(&own, "kind=~\""));
    for other in &others {
        assert_eq!(kinds(&[other], "kind!~\""), known, "{}", other["labels"]["severity"]);
    }
    assert_eq!(others.len(), 2, "of critical and of warning");
    let named: BTreeSet<String> =
        DiagnosisKind::ALL.iter().map(|kind| kind.label().to_owned()).collect();
    assert!(known.is_subset(&named), "{known:?} are not all kinds");
}

#[test]
fn the_chart_accepts_the_settings_that_exist_with_values_of_their_kind() {
    let mut settings: Vec<&Setting> = SETTINGS.iter().collect();
    settings.sort_by_key(|setting| setting.key);
    let keys: Vec<String> =
        settings.iter().map(|setting| format!("{:?}", setting.key)).collect();
    let kinds = settings.iter().filter_map(|setting| {
        let is_optional = setting.default.is_empty() || setting.value_name == "ADDRESS";
        let optional = if is_optional { ", optional: true" } else { "" };
        let many = if setting.is_repeatable { ", many: true" } else { "" };
        Some(format!("{}: {{is: {}{optional}{many}}}\n", setting.key, kind_of(setting)?))
    });
    for (path, open, close, expected) in [
        ("values.schema.json", "\"propertyNames\": {\"enum\": [", "]", keys.join(", ")),
        ("templates/_settings.tpl", "define \"stepmem.kinds\" }}\n", "{{-", kinds.collect()),
    ] {
        let path = root().join("helm/stepmem").join(path);
        let text = fs::read_to_string(&path).unwrap();
        let (before, rest) = text.split_once(open).unwrap();
        let (known, after) = rest.split_once(close).unwrap();
        if env::var_os("STEPMEM_BLESS").is_some() {
            fs::write(&path, [before, open, &expected, close, after].concat()).unwrap();
        } else {
            assert_eq!(known, expected, "STEPMEM_BLESS=1 cargo test --test it generated");
        }
    }
}

/// The kind of a setting's values, for the chart; the help has their range or their list.
fn kind_of(setting: &Setting) -> Option<String> {
    let in_brackets = setting.help.split('(').skip(1).filter_map(|rest| rest.split(')').next());
    let range = in_brackets.filter_map(|text| text.split_once(" to ")).last();
    let bounded = |kind| {
        let (min, max) = range.unwrap_or_else(|| panic!("no range in {}", setting.help));
        format!("{kind}, min: {min}, max: {max}")
    };
    let words = || {
        let sentence = setting.help.split(". ").next().unwrap_or_default();
        let words = sentence.trim_end_matches('.').replace(" or ", ", ");
        words.split(", ").map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ")
    };
    Some(match setting.value_name {
        "" => "switch".to_owned(),
        "N" | "BYTES" => bounded("integer"),
        "[RUN=]N" => bounded("warmup"),
        "RATIO" => bounded("ratio"),
        "SIZE" if range.is_some() => bounded("size"),
        "SIZE" => "size".to_owned(),
        "DURATION" => "duration".to_owned(),
        "TIME" => "time".to_owned(),
        "ADDRESS" => "address".to_owned(),
        "URL" => "url".to_owned(),
        "LEVEL" | "FORMAT" | "PROTOCOL" => format!("word, words: [{}]", words()),
        _ => return None,
    })
}

#[test]
fn a_planted_unknown_metric_is_found() {
    let text = "expr: stepmem_oom_eta_seconds < 60 and stepmem_rank_stepp > 0\n\
                histogram_quantile(0.9, rate(stepmem_push_duration_seconds_bucket[5m]))\n\
                record: run:stepmem_imbalance:ratio # stepmem_creep_slope";
    assert_eq!(unknown_metrics(text), ["stepmem_rank_stepp", "stepmem_creep_slope"]);
}

/// The names of metrics in a text that no row of the table has. What stands between colons is a recording rule's.
fn unknown_metrics(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let is_known = |word: &str| {
        METRICS.iter().any(|metric| {
            let rest = word.strip_prefix(metric.name);
            rest.is_some_and(|rest| ["", "_bucket", "_count", "_sum"].contains(&rest))
        })
    };
    text.split(|c| !is_part(c))
        .filter(|word| word.starts_with("stepmem_") && !word.contains(':') && !is_known(word))
        .map(str::to_owned)
        .collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries
        .map(|entry| entry.unwrap().path())
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .collect()
}

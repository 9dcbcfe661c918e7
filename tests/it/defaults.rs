//! Defaults that stand in more than one place agree: the settings, the dashboards, the alerts and the chart.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;
use stepmem::config::table::SETTINGS;
use stepmem_engine::saved::SavedState;

use crate::rig::folder::root;

/// A setting and the alerts' name for the same figure.
const SHARED: [(&str, &str); 4] = [
    ("creep.critical-eta", "creepPageHorizon"),
    ("pressure.critical", "pressureCritical"),
    ("pressure.warning", "creepPagePressure"),
    ("imbalance.warning", "imbalanceRatio"),
];

/// A setting, the metric that its dashboards' panels show, and the color that begins at it.
const COLORED: [(&str, &str, &str); 5] = [
    ("pressure.warning", "stepmem_pressure_ratio", "orange"),
    ("pressure.critical", "stepmem_pressure_ratio", "red"),
    ("creep.critical-eta", "stepmem_oom_eta_seconds", "yellow"),
    ("imbalance.warning", "stepmem_rank_interval_peak_allocated_bytes", "orange"),
    ("imbalance.critical", "stepmem_rank_interval_peak_allocated_bytes", "red"),
];

/// A setting's default as a number; durations in seconds.
fn default_of(key: &str) -> f64 {
    let setting = SETTINGS.iter().find(|setting| setting.key == key).unwrap();
    let number = setting.default.parse().ok();
    number.unwrap_or_else(|| humantime::parse_duration(setting.default).unwrap().as_secs_f64())
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The numbers of the rules that have a name behind them, by name: `< 21600 # creepPageHorizon`.
fn named_in_rules(rules: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut numbers: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in rules.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let Some((before, name)) = line.split_once(" # ") else { continue };
        let number = before.rsplit([' ', ')']).next().unwrap_or_default();
        if number.parse::<f64>().is_ok() {
            numbers.entry(name).or_default().insert(number);
        }
    }
    numbers
}

/// The queries of each panel, and where each of its colors begins.
fn colored_panels() -> Vec<(String, BTreeMap<String, f64>)> {
    let mut panels = Vec::new();
    for file in fs::read_dir(root().join("dashboards")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            collect(&serde_json::from_slice(&fs::read(path).unwrap()).unwrap(), &mut panels);
        }
    }
    panels
}

fn collect(of: &Value, into: &mut Vec<(String, BTreeMap<String, f64>)>) {
    for panel in of["panels"].as_array().into_iter().flatten() {
        collect(panel, into);
        let steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"].as_array();
        let begins = steps.into_iter().flatten().filter_map(|step| {
            Some((step["color"].as_str()?.to_owned(), step["value"].as_f64()?))
        });
        let shown = panel["targets"].as_array().into_iter().flatten();
        let shown: Vec<&str> = shown.filter_map(|target| target["expr"].as_str()).collect();
        into.push((shown.join("\n"), begins.collect()));
    }
}

#[test]
fn alerts_page_where_the_settings_judge() {
    let rules = read("alerts/stepmem.rules.yaml");
    let numbers = named_in_rules(&rules);
    for (key, name) in SHARED {
        let found: Vec<f64> = numbers[name].iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(found, [default_of(key)], "{name} is not {key}");
    }
}

#[test]
fn the_chart_has_every_threshold_of_the_rules_and_its_number() {
    let rules = read("alerts/stepmem.rules.yaml");
    let values: Value = serde_saphyr::from_str(&read("helm/stepmem/values.yaml")).unwrap();
    let chart: BTreeMap<&str, BTreeSet<String>> = values["rules"]["thresholds"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, number)| (name.as_str(), BTreeSet::from([number.to_string()])))
        .collect();
    let named = named_in_rules(&rules).into_iter();
    let named: BTreeMap<&str, BTreeSet<String>> = named
        .map(|(name, numbers)| (name, numbers.into_iter().map(str::to_owned).collect()))
        .collect();
    assert_eq!(chart, named);
}

#[test]
fn dashboards_change_color_where_the_settings_judge() {
    let panels = colored_panels();
    for (key, metric, color) in COLORED {
        let of_metric = panels.iter().filter(|(shown, _)| shown.contains(metric));
        let begins: BTreeSet<String> =
            of_metric.filter_map(|(_, colors)| Some(colors.get(color)?.to_string())).collect();
        assert_eq!(begins, [default_of(key).to_string()].into(), "{color} of {metric}");
    }
}

#[test]
fn chart_counts_what_a_state_takes() {
    let template = read("helm/stepmem/templates/_sizes.tpl");
    let counted = |name: &str| {
        let begin = format!("{{{{- define \"stepmem.{name}\" -}}}}");
        let (_, rest) = template.split_once(&begin).unwrap();
        rest.split_once("{{-").unwrap().0.parse::<usize>().unwrap()
    };
    let other = SavedState::bytes_max(0);
    let rank = SavedState::bytes_max(1) - other;
    let kib = |bytes: usize| bytes.div_ceil(1024);
    assert_eq!((counted("rankKiB"), counted("otherKiB")), (kib(rank), kib(other)));
}

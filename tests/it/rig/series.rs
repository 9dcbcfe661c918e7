//! The text format, read back.

use std::collections::BTreeMap;

/// Samples by `name{labels}`.
pub type Metrics = BTreeMap<String, f64>;

/// The samples of a text.
pub fn samples(text: &str) -> Metrics {
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        })
        .collect()
}

/// Returns whether a family has a sample.
pub fn has_family(metrics: &Metrics, name: &str) -> bool {
    metrics.keys().any(|series| {
        let of = series.split('{').next().unwrap();
        of == name || of.strip_prefix(name) == Some("_count")
    })
}

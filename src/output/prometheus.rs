//! The metrics table as text: Prometheus text format 0.0.4 and OpenMetrics 1.0, with content
//! negotiation.

use std::fmt::Write as _;
use std::sync::LazyLock;

use stepmem_engine::metrics::{
    self, Kind, METRICS, Metric, RANK, Read, SeriesLabels, Visit, rank_labels,
};
use stepmem_engine::status::Status;
use stepmem_types::units::{DurationBucket, DurationCounts};

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text format 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The value of the header `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Chooses by the header `Accept`: OpenMetrics only if the client names it, in a supported
    /// version, with at least the weight of text.
    pub fn negotiate(accept: &str) -> Self {
        let mut open_metrics: f64 = 0.0;
        let mut text: f64 = 0.0;
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default().to_ascii_lowercase();
            let mut weight: f64 = 1.0;
            let mut version = None;
            for parameter in parts {
                match parameter.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
                    Some(("q", value)) => weight = value.parse().unwrap_or(0.0),
                    Some(("version", value)) => version = Some(value.trim_matches('"')),
                    _ => {}
                }
            }
            match media.as_str() {
                "application/openmetrics-text"
                    if matches!(version, None | Some("1.0.0" | "0.0.1")) =>
                {
                    open_metrics = weight.max(open_metrics);
                }
                "text/plain" if matches!(version, None | Some("0.0.4")) => {
                    text = weight.max(text);
                }
                _ => {}
            }
        }
        if open_metrics > 0.0 && open_metrics >= text { Self::OpenMetrics } else { Self::Text }
    }
}

/// Bytes of the exporter's own figures, and of a rank's, as they usually are.
const USUAL_BYTES: usize = 16 * 1024;
const USUAL_BYTES_OF_RANK: usize = 3 * 1024;

/// 2^53: larger whole numbers are not all exact.
const WHOLE_END: f64 = 9_007_199_254_740_992.0;

/// The lines above a metric's samples, in each format: they never change.
static HEADS: LazyLock<Vec<[String; 2]>> = LazyLock::new(|| {
    let in_both =
        |metric| [Format::Text, Format::OpenMetrics].map(|format| head(metric, format));
    METRICS.iter().map(in_both).collect()
});

/// Renders the whole table. Omits metrics without a series, with their HELP and TYPE.
pub fn render(status: &Status, format: Format) -> String {
    let usual = USUAL_BYTES + status.ranks.len().saturating_mul(USUAL_BYTES_OF_RANK);
    let mut page =
        Exposition { text: String::with_capacity(usual), of_ranks: RankLabels::of(status) };
    for (metric, [of_text, of_open_metrics]) in METRICS.iter().zip(HEADS.iter()) {
        let head = if format == Format::Text { of_text } else { of_open_metrics };
        page.family(metric, head, status);
    }
    if format == Format::OpenMetrics {
        page.text.push_str("# EOF\n");
    }
    page.text
}

/// Name and labels of one sample.
struct SampleName<'a> {
    name: &'a str,
    suffix: &'a str,
    label_names: &'a [&'a str],
    labels: SeriesLabels<'a>,
    /// Set when a label without a value is left out.
    leaves_out_empty: bool,
}

/// The labels that all series of a rank have, as text: escaped once, and not for each sample.
struct RankLabels {
    text: String,
    /// The ends of the ranks' parts of the text, in the order of the status.
    ends: Vec<usize>,
}

impl RankLabels {
    fn of(status: &Status) -> Self {
        let (mut text, mut ends) = (String::new(), Vec::with_capacity(status.ranks.len()));
        for rank in &status.ranks {
            let mut separator = '{';
            for (label, value) in RANK.iter().zip(rank_labels(rank)) {
                write_label(&mut text, separator, label, value);
                separator = ',';
            }
            ends.push(text.len());
        }
        Self { text, ends }
    }

    fn get(&self, rank: usize) -> &str {
        let begin = rank.checked_sub(1).and_then(|before| self.ends.get(before));
        let end = self.ends.get(rank).copied().unwrap_or_default();
        self.text.get(begin.copied().unwrap_or_default()..end).unwrap_or_default()
    }
}

struct Exposition {
    text: String,
    of_ranks: RankLabels,
}

impl Exposition {
    fn family(&mut self, metric: &Metric, head: &str, status: &Status) {
        match metric.read {
            Read::Series(read) | Read::Subjects(read) => {
                let mut is_begun = false;
                let mut take = |labels: SeriesLabels<'_>, value| {
                    if !is_begun {
                        self.text.push_str(head);
                        is_begun = true;
                    }
                    let series = SampleName {
                        name: metric.name,
                        suffix: "",
                        label_names: metric.labels,
                        labels,
                        leaves_out_empty: matches!(metric.read, Read::Subjects(_)),
                    };
                    self.sample(&series, value);
                };
                read(status, &mut Visit::new(&mut take));
            }
            Read::Durations(read) => {
                self.text.push_str(head);
                self.durations(metric, read(status));
            }
        }
    }

    fn durations(&mut self, metric: &Metric, durations: &DurationCounts) {
        let part = |suffix| SampleName {
            name: metric.name,
            suffix,
            label_names: &[],
            labels: SeriesLabels { rank: None, more: &[] },
            leaves_out_empty: false,
        };
        let bucket = SampleName { label_names: &["le"], ..part("_bucket") };
        for DurationBucket { within_seconds, count } in &durations.buckets {
            let upper = float(*within_seconds);
            let labels = SeriesLabels { rank: None, more: &[&upper] };
            self.sample(&SampleName { labels, ..bucket }, metrics::float(*count));
        }
        let all = metrics::float(durations.count);
        let labels = SeriesLabels { rank: None, more: &["+Inf"] };
        self.sample(&SampleName { labels, ..bucket }, all);
        self.sample(&part("_sum"), durations.sum_seconds);
        self.sample(&part("_count"), all);
    }

    fn sample(&mut self, series: &SampleName<'_>, value: f64) {
        let SampleName { name, suffix, label_names, labels, leaves_out_empty } = *series;
        self.text.push_str(name);
        self.text.push_str(suffix);
        let mut separator = '{';
        let mut names = label_names;
        if let Some(rank) = labels.rank {
            self.text.push_str(self.of_ranks.get(rank));
            separator = ',';
            names = label_names.get(RANK.len()..).unwrap_or_default();
        }
        for (label, value) in names.iter().zip(labels.more) {
            if leaves_out_empty && value.is_empty() {
                continue;
            }
            write_label(&mut self.text, separator, label, value);
            separator = ',';
        }
        if separator == ',' {
            self.text.push('}');
        }
        self.text.push(' ');
        write_value(&mut self.text, value);
        self.text.push('\n');
    }
}

fn write_label(text: &mut String, separator: char, label: &str, value: &str) {
    text.push(separator);
    text.push_str(label);
    text.push_str("=\"");
    escape(text, value, true);
    text.push('"');
}

/// Returns the lines above a metric's samples.
fn head(metric: &Metric, format: Format) -> String {
    let family = match (format, metric.kind) {
        (Format::OpenMetrics, Kind::Counter) => metric.name.trim_end_matches("_total"),
        (Format::OpenMetrics, Kind::Info) => metric.name.trim_end_matches("_info"),
        _ => metric.name,
    };
    let kind = match (format, metric.kind) {
        (_, Kind::Counter) => "counter",
        (_, Kind::Histogram) => "histogram",
        (Format::OpenMetrics, Kind::Info) => "info",
        (_, Kind::Gauge) | (Format::Text, Kind::Info) => "gauge",
    };
    let mut text = format!("# HELP {family} ");
    escape(&mut text, metric.help, format == Format::OpenMetrics);
    for part in ["\n# TYPE ", family, " ", kind, "\n"] {
        text.push_str(part);
    }
    if let (Format::OpenMetrics, Some(unit)) = (format, metric.unit.as_suffix()) {
        for part in ["# UNIT ", family, " ", unit, "\n"] {
            text.push_str(part);
        }
    }
    text
}

/// Writes a value as both formats have it.
fn write_value(text: &mut String, value: f64) {
    if value.is_nan() {
        text.push_str("NaN");
    } else if value.is_infinite() {
        text.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    } else if let Some(whole) = whole(value) {
        // Writing into a string cannot fail; a whole number is written in a third of the time.
        write!(text, "{whole}").ok();
    } else {
        write!(text, "{value}").ok();
    }
}

/// Returns a value that is a whole number of at least 1 as an integer.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "whole and in range"
)]
fn whole(value: f64) -> Option<u64> {
    ((1.0..WHOLE_END).contains(&value) && value.fract() == 0.0).then_some(value as u64)
}

/// A bucket's bound as OpenMetrics requires it: always with a fraction.
fn float(value: f64) -> String {
    format!("{value:?}")
}

fn escape(text: &mut String, raw: &str, with_quotes: bool) {
    let mut written = 0;
    for (at, byte) in raw.bytes().enumerate() {
        let escaped = match byte {
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'"' if with_quotes => "\\\"",
            _ => continue,
        };
        text.push_str(raw.get(written..at).unwrap_or_default());
        text.push_str(escaped);
        written = at + 1;
    }
    text.push_str(raw.get(written..).unwrap_or_default());
}

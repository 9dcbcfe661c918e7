//! The metrics table as text: Prometheus text format 0.0.4 and OpenMetrics 1.0, with content
//! negotiation.

use stepmem_engine::metrics::readers;
use stepmem_engine::metrics::table::METRICS;
use stepmem_engine::metrics::types::{Kind, Metric, Read};
use stepmem_engine::output::status::Status;
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

/// Renders the whole table. Omits metrics without a series, with their HELP and TYPE.
pub fn render(status: &Status, format: Format) -> String {
    let mut page = Exposition { text: String::with_capacity(16 * 1024), format };
    for metric in METRICS {
        page.family(metric, status);
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
    label_values: &'a [&'a str],
    /// Set when a label without a value is left out.
    leaves_out_empty: bool,
}

struct Exposition {
    text: String,
    format: Format,
}

impl Exposition {
    fn family(&mut self, metric: &Metric, status: &Status) {
        match metric.read {
            Read::Series(read) | Read::Subjects(read) => {
                let mut is_begun = false;
                read(status, &mut |labels, value| {
                    if !is_begun {
                        self.head(metric);
                        is_begun = true;
                    }
                    let series = SampleName {
                        name: metric.name,
                        suffix: "",
                        label_names: metric.labels,
                        label_values: labels,
                        leaves_out_empty: matches!(metric.read, Read::Subjects(_)),
                    };
                    self.sample(&series, value);
                });
            }
            Read::Durations(read) => {
                self.head(metric);
                self.durations(metric, read(status));
            }
        }
    }

    fn head(&mut self, metric: &Metric) {
        let family = match (self.format, metric.kind) {
            (Format::OpenMetrics, Kind::Counter) => metric.name.trim_end_matches("_total"),
            (Format::OpenMetrics, Kind::Info) => metric.name.trim_end_matches("_info"),
            _ => metric.name,
        };
        let kind = match (self.format, metric.kind) {
            (_, Kind::Counter) => "counter",
            (_, Kind::Histogram) => "histogram",
            (Format::OpenMetrics, Kind::Info) => "info",
            (_, Kind::Gauge) | (Format::Text, Kind::Info) => "gauge",
        };
        self.line(&["# HELP ", family, " "]);
        escape(&mut self.text, metric.help, self.format == Format::OpenMetrics);
        self.line(&["\n# TYPE ", family, " ", kind, "\n"]);
        if let (Format::OpenMetrics, Some(unit)) = (self.format, metric.unit.as_suffix()) {
            self.line(&["# UNIT ", family, " ", unit, "\n"]);
        }
    }

    fn durations(&mut self, metric: &Metric, durations: &DurationCounts) {
        let part = |suffix| SampleName {
            name: metric.name,
            suffix,
            label_names: &[],
            label_values: &[],
            leaves_out_empty: false,
        };
        let bucket = SampleName { label_names: &["le"], ..part("_bucket") };
        for DurationBucket { within_seconds, count } in &durations.buckets {
            let upper = float(*within_seconds);
            self.sample(
                &SampleName { label_values: &[&upper], ..bucket },
                readers::float(*count),
            );
        }
        let all = readers::float(durations.count);
        self.sample(&SampleName { label_values: &["+Inf"], ..bucket }, all);
        self.sample(&part("_sum"), durations.sum_seconds);
        self.sample(&part("_count"), all);
    }

    fn sample(&mut self, series: &SampleName<'_>, value: f64) {
        let SampleName { name, suffix, label_names, label_values, leaves_out_empty } = *series;
        self.line(&[name, suffix]);
        let mut separator = '{';
        for (label, label_value) in label_names.iter().zip(label_values) {
            if leaves_out_empty && label_value.is_empty() {
                continue;
            }
            self.text.push(separator);
            self.line(&[label, "=\""]);
            escape(&mut self.text, label_value, true);
            self.text.push('"');
            separator = ',';
        }
        if separator == ',' {
            self.text.push('}');
        }
        self.line(&[" ", &written(value), "\n"]);
    }

    fn line(&mut self, parts: &[&str]) {
        for part in parts {
            self.text.push_str(part);
        }
    }
}

/// A value as both formats write it.
fn written(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned()
    } else {
        value.to_string()
    }
}

/// A bucket's bound as OpenMetrics requires it: always with a fraction.
fn float(value: f64) -> String {
    format!("{value:?}")
}

fn escape(text: &mut String, raw: &str, with_quotes: bool) {
    for character in raw.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if with_quotes => text.push_str("\\\""),
            other => text.push(other),
        }
    }
}

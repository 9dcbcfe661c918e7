//! The configuration of the export, and the URL that it leads to.

use std::time::Duration;

/// The path of metrics below an endpoint of all signals, by the specification of OTLP over HTTP.
pub const METRICS_PATH: &str = "v1/metrics";

/// The configuration of the export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpConfig {
    pub endpoint: Endpoint,
    pub transport: Transport,
    /// The interval between exports.
    pub interval: Duration,
    /// The timeout of an export.
    pub timeout: Duration,
    /// Whether to also export the metrics of OpenTelemetry's hardware conventions.
    pub semconv: bool,
    /// The default of `service.instance.id`, which `OTEL_RESOURCE_ATTRIBUTES` overrides.
    pub instance: String,
}

impl OtlpConfig {
    /// Returns the URL that metrics are sent to.
    pub fn url(&self) -> String {
        match (&self.endpoint, self.transport) {
            (Endpoint::AllSignals(base), Transport::Http) => {
                format!("{}/{METRICS_PATH}", base.trim_end_matches('/'))
            }
            (Endpoint::AllSignals(url), Transport::Grpc) | (Endpoint::Metrics(url), _) => {
                url.clone()
            }
        }
    }
}

/// The URL of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Of all signals (`http://host:4318`): over HTTP, [`METRICS_PATH`] is appended.
    AllSignals(String),
    /// Of metrics: used as it is.
    Metrics(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Grpc,
    /// Protobuf over HTTP.
    Http,
}

impl Transport {
    /// The value of the setting.
    pub fn as_label(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Http => "http/protobuf",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Endpoint, OtlpConfig, Transport};

    #[test]
    fn metrics_have_the_path_of_the_specification_below_an_endpoint_of_all_signals() {
        let check = |endpoint: Endpoint, transport: Transport, expected: &str| {
            let config = OtlpConfig {
                endpoint,
                transport,
                interval: Duration::from_mins(1),
                timeout: Duration::from_secs(10),
                semconv: false,
                instance: String::new(),
            };
            assert_eq!(config.url(), expected);
        };
        let all = |url: &str| Endpoint::AllSignals(url.to_owned());
        let metrics = |url: &str| Endpoint::Metrics(url.to_owned());
        check(all("http://c:4318"), Transport::Http, "http://c:4318/v1/metrics");
        check(all("http://c:4318/"), Transport::Http, "http://c:4318/v1/metrics");
        check(
            all("http://p:9090/api/v1/otlp"),
            Transport::Http,
            "http://p:9090/api/v1/otlp/v1/metrics",
        );
        check(metrics("http://c:4318/x"), Transport::Http, "http://c:4318/x");
        check(all("http://c:4317"), Transport::Grpc, "http://c:4317");
    }
}

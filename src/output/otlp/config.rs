//! The configuration of the export, and the URL that results from it.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use stepmem_types::url::{percent_decoded, shown, without_user};

/// The path of metrics below an endpoint of all signals, by the specification of OTLP over
/// HTTP.
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
    /// Set to also export the metrics of OpenTelemetry's hardware conventions.
    pub semconv: bool,
    /// The default of `service.instance.id`, which `OTEL_RESOURCE_ATTRIBUTES` overrides.
    pub instance: String,
    /// Number of ranks that are held.
    pub ranks_max: usize,
}

impl OtlpConfig {
    /// Returns the URL that metrics are sent to, without user and password.
    pub fn url(&self) -> String {
        let url = without_user(self.endpoint.as_given()).url;
        match (&self.endpoint, self.transport) {
            (Endpoint::AllSignals(_), Transport::Http) => {
                format!("{}/{METRICS_PATH}", url.trim_end_matches('/'))
            }
            (Endpoint::AllSignals(_), Transport::Grpc) | (Endpoint::Metrics(_), _) => url,
        }
    }

    /// Returns the URL that metrics are sent to, in the form to show to people.
    pub fn shown_url(&self) -> String {
        shown(&self.url())
    }

    /// Returns the header `authorization` that carries user and password of the URL.
    pub fn authorization(&self) -> Option<String> {
        let user = percent_decoded(without_user(self.endpoint.as_given()).user?);
        let user = if user.contains(&b':') { user } else { [&user[..], b":"].concat() };
        Some(format!("Basic {}", STANDARD.encode(user)))
    }
}

/// The URL of a collector as configured, which may hold a user and a password.
#[derive(Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// The URL of all signals (`http://host:4318`): over HTTP, [`METRICS_PATH`] is appended.
    AllSignals(String),
    /// The URL of metrics, used as it is.
    Metrics(String),
}

impl Endpoint {
    fn as_given(&self) -> &str {
        match self {
            Self::AllSignals(url) | Self::Metrics(url) => url,
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::AllSignals(_) => "AllSignals",
            Self::Metrics(_) => "Metrics",
        };
        f.debug_tuple(name).field(&shown(self.as_given())).finish()
    }
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
                ranks_max: 1,
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
        check(all("http://u:p@c:4318/"), Transport::Http, "http://c:4318/v1/metrics");
        check(metrics("http://u:p@c:4318/x"), Transport::Http, "http://c:4318/x");
    }

    #[test]
    fn user_and_password_become_a_header_and_are_not_shown() {
        let config = |url: &str| OtlpConfig {
            endpoint: Endpoint::Metrics(url.to_owned()),
            transport: Transport::Http,
            interval: Duration::from_mins(1),
            timeout: Duration::from_secs(10),
            semconv: false,
            instance: String::new(),
            ranks_max: 1,
        };
        let authorization = |url: &str| config(url).authorization();
        assert_eq!(authorization("http://c:1/x"), None);
        // user:p@ss, and user without a password.
        let encoded = Some("Basic dXNlcjpwQHNz".to_owned());
        assert_eq!(authorization("http://user:p%40ss@c:1/x"), encoded);
        assert_eq!(authorization("http://user@c:1/x"), Some("Basic dXNlcjo=".to_owned()));
        let config = config("http://user:hidden@c:1/x?key=hidden");
        assert_eq!(config.shown_url(), "http://c:1/x?…");
        assert!(!format!("{config:?}").contains("hidden"), "{config:?}");
    }
}

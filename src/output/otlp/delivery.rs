//! Sends an export to the collector, counts the results, and logs the reason of the first of
//! consecutive failures.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, MetricExporterBuilder, Protocol, WithExportConfig,
    WithHttpConfig, WithTonicConfig,
};
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use prost::Message;
use reqwest::redirect;
use tonic::metadata::MetadataMap;

use crate::output::otlp::config::{OtlpConfig, Transport};
use stepmem_types::format::clean::shortened;

/// The longest reason of a collector that is logged, in characters.
const REASON_CHARS_MAX: usize = 256;

/// Counts of exports by result.
#[derive(Debug, Default)]
pub struct ExportCounts {
    success: AtomicU64,
    failure: AtomicU64,
    rejected_points: AtomicU64,
    /// Set where answers show the points that were refused.
    shows_rejected: AtomicBool,
}

impl ExportCounts {
    /// Exports by result.
    pub fn results(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("failure", self.failure.load(Ordering::Relaxed)),
            ("success", self.success.load(Ordering::Relaxed)),
        ]
    }

    /// Points that were refused of exports that were taken; `None` where answers do not show
    /// them.
    pub fn rejected_points(&self) -> Option<u64> {
        let is_shown = self.shows_rejected.load(Ordering::Relaxed);
        is_shown.then(|| self.rejected_points.load(Ordering::Relaxed))
    }
}

/// An exporter that counts its results and logs the first of consecutive failures.
pub(super) struct ReportingExporter {
    inner: MetricExporter,
    /// The URL to show to people.
    url: String,
    transport: Transport,
    /// The reason that the last request over HTTP failed.
    http_cause: HttpCause,
    counts: Arc<ExportCounts>,
    /// The number of failures since the last success.
    n_failures: AtomicU64,
}

impl ReportingExporter {
    /// Sets up the transport. Blocks for a moment. With gRPC, must be called within a runtime.
    pub(super) fn new(
        config: &OtlpConfig,
        counts: &Arc<ExportCounts>,
    ) -> Result<Self, ExporterBuildError> {
        let http_cause = HttpCause::default();
        let built = Self::transport(config, &http_cause, counts);
        counts.shows_rejected.store(config.transport == Transport::Http, Ordering::Relaxed);
        // The reason contains the part that cannot be parsed.
        let (raw, url) = (config.url(), config.shown_url());
        let inner = built.map_err(|error| {
            ExporterBuildError::InternalFailure(error.to_string().replace(&raw, &url))
        })?;
        let (transport, counts) = (config.transport, Arc::clone(counts));
        let n_failures = AtomicU64::default();
        Ok(Self { inner, url, transport, http_cause, counts, n_failures })
    }

    fn transport(
        config: &OtlpConfig,
        http_cause: &HttpCause,
        counts: &Arc<ExportCounts>,
    ) -> Result<MetricExporter, ExporterBuildError> {
        let authorization = authorization(config)?;
        let url = config.url();
        let builder = MetricExporterBuilder::new().with_temporality(Temporality::Cumulative);
        match config.transport {
            Transport::Grpc => {
                let mut metadata = MetadataMap::new();
                if let Some(value) = authorization {
                    metadata.as_mut().insert(AUTHORIZATION, value);
                }
                let builder = builder.with_tonic().with_timeout(config.timeout);
                builder.with_endpoint(&*url).with_metadata(metadata).build()
            }
            Transport::Http => builder
                .with_http()
                .with_protocol(Protocol::HttpBinary)
                .with_timeout(config.timeout)
                .with_http_client(Client {
                    inner: client(url.starts_with("https://"), config.timeout)?,
                    authorization,
                    cause: Arc::clone(http_cause),
                    counts: Arc::clone(counts),
                    is_partial: AtomicBool::default(),
                })
                .with_endpoint(&*url)
                .build(),
        }
    }

    fn failed(&self, error: &OTelSdkError) {
        self.counts.failure.fetch_add(1, Ordering::Relaxed);
        if self.n_failures.fetch_add(1, Ordering::Relaxed) > 0 {
            return;
        }
        let (url, protocol) = (&*self.url, self.transport.as_label());
        let http_cause = self.http_cause.lock().unwrap_or_else(PoisonError::into_inner).take();
        let cause = http_cause.unwrap_or_else(|| grpc_cause(error));
        tracing::warn!(
            url,
            protocol,
            cause,
            "OTLP export failed; until an export succeeds, further failures are only counted"
        );
    }

    fn succeeded(&self) {
        self.counts.success.fetch_add(1, Ordering::Relaxed);
        let n_failures = self.n_failures.swap(0, Ordering::Relaxed);
        if n_failures > 0 {
            tracing::info!(url = self.url, n_failures, "OTLP export works again");
        }
    }
}

impl fmt::Debug for ReportingExporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReportingExporter").field("url", &self.url).finish_non_exhaustive()
    }
}

impl PushMetricExporter for ReportingExporter {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let result = self.inner.export(metrics).await;
        match &result {
            Ok(()) => self.succeeded(),
            Err(error) => self.failed(error),
        }
        result
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.inner.temporality()
    }
}

/// Returns a client. Without TLS it needs none of the system's certificates, which a small
/// image lacks.
fn client(
    is_tls: bool,
    timeout: Duration,
) -> Result<reqwest::blocking::Client, ExporterBuildError> {
    // The answering server must not redirect the figures, and the headers that are secret, to
    // another receiver.
    let builder = reqwest::blocking::Client::builder()
        .timeout(timeout)
        .redirect(redirect::Policy::none());
    let builder = if is_tls { builder } else { builder.tls_certs_only([]) };
    builder.build().map_err(|error| ExporterBuildError::InternalFailure(chain(&error)))
}

/// Returns the header that carries the user and the password of the URL.
fn authorization(config: &OtlpConfig) -> Result<Option<HeaderValue>, ExporterBuildError> {
    let value = config.authorization().map(HeaderValue::try_from).transpose();
    let mut value = value.map_err(|_| {
        ExporterBuildError::InternalFailure(
            "user and password of the URL cannot be sent as a header".to_owned(),
        )
    })?;
    if let Some(value) = &mut value {
        value.set_sensitive(true);
    }
    Ok(value)
}

/// The reason that the last request failed; `None` after a success.
type HttpCause = Arc<Mutex<Option<String>>>;

/// A client that keeps the reason that its last request failed, which the exporter around it
/// does not report.
#[derive(Debug)]
struct Client {
    inner: reqwest::blocking::Client,
    /// Sent unless the configured headers have their own.
    authorization: Option<HeaderValue>,
    cause: HttpCause,
    counts: Arc<ExportCounts>,
    /// The last export that was taken was not taken whole.
    is_partial: AtomicBool,
}

impl Client {
    /// Counts the points that the collector refused of an export that it took. Logs the reason
    /// of the first of consecutive ones.
    fn took(&self, answer: &[u8]) {
        let partial =
            TakenExport::decode(answer).ok().and_then(|answer| answer.partial_success);
        // A reason without refused points is a warning.
        let partial = partial.filter(|it| it.rejected_points > 0 || !it.reason.is_empty());
        let was_partial = self.is_partial.swap(partial.is_some(), Ordering::Relaxed);
        let Some(PartialSuccess { rejected_points, reason }) = partial else { return };
        let n_points = u64::try_from(rejected_points).unwrap_or(0);
        self.counts.rejected_points.fetch_add(n_points, Ordering::Relaxed);
        if !was_partial {
            let reason = shortened(&reason, REASON_CHARS_MAX);
            tracing::warn!(
                rejected_points,
                reason,
                "OTLP export taken in part; until one is taken whole, further points are only counted"
            );
        }
    }
}

/// The answer to an export that was taken: `ExportMetricsServiceResponse` of OTLP.
#[derive(Clone, PartialEq, prost::Message)]
struct TakenExport {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

/// `ExportMetricsPartialSuccess` of OTLP.
#[derive(Clone, PartialEq, prost::Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_points: i64,
    #[prost(string, tag = "2")]
    reason: String,
}

impl HttpClient for Client {
    fn send_bytes<'c, 'f>(
        &'c self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>
    where
        'c: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            let mut request = request;
            if let Some(value) = &self.authorization {
                request.headers_mut().entry(AUTHORIZATION).or_insert_with(|| value.clone());
            }
            let result = self.inner.send_bytes(request).await.and_then(of_a_collector);
            let cause = match &result {
                Ok(response) if response.status().is_success() => {
                    self.took(response.body());
                    None
                }
                Ok(response) => Some(status_cause(response)),
                Err(error) => Some(http_cause(&**error)),
            };
            *self.cause.lock().unwrap_or_else(PoisonError::into_inner) = cause;
            result
        })
    }
}

/// Returns the answer, unless it is a web page: a login page in front of the collector answers
/// with one, and with 200.
fn of_a_collector(response: Response<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let media_type = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_page = |of: &[u8]| {
        let media_type = of.split(|byte| *byte == b';').next().unwrap_or_default();
        media_type.trim_ascii().eq_ignore_ascii_case(b"text/html")
    };
    if response.status().is_success() && media_type.is_some_and(is_page) {
        return Err("the answer is a web page (text/html), not a collector's".into());
    }
    Ok(response)
}

/// The cause of a request over HTTP that the collector refused.
fn status_cause(response: &Response<Bytes>) -> String {
    let status = response.status();
    let hint = if status.is_redirection() { ": redirects are not followed" } else { "" };
    format!("the collector answered {status}{hint}")
}

/// The cause of a request over HTTP without an answer.
fn http_cause(error: &(dyn Error + 'static)) -> String {
    let Some(error) = error.downcast_ref::<reqwest::Error>() else { return chain(error) };
    if error.is_timeout() {
        return "the collector did not answer in time".to_owned();
    }
    // The outermost message repeats the URL.
    let text = error.source().map_or_else(|| error.to_string(), chain);
    let is_of_hyper = causes(error).any(<dyn Error>::is::<hyper::Error>);
    if error.is_connect() || !is_of_hyper {
        return text;
    }
    format!(
        "{text}: the answer is not HTTP/1.1; is it a gRPC port? The collector's port for HTTP is often 4318, and \
         --otlp.protocol=grpc speaks gRPC"
    )
}

/// The cause of a failed export over gRPC.
fn grpc_cause(error: &OTelSdkError) -> String {
    const PREFIX: &str = "TonicMetricsClient export failed with ";
    let text = match error {
        OTelSdkError::InternalFailure(text) => text.strip_prefix(PREFIX).unwrap_or(text),
        other => return other.to_string(),
    };
    let has = |part| text.contains(part);
    let is_of_connection = has("tcp connect error") || has("dns error") || has("certificate");
    if is_of_connection || !(has("transport error") || has("http2 error") || has("h2 protocol"))
    {
        return text.to_owned();
    }
    format!(
        "{text}: the answer is not gRPC; is it an HTTP port? The collector's port for gRPC is often 4317, and \
         --otlp.protocol=http/protobuf speaks HTTP"
    )
}

fn causes<'e>(
    error: &'e (dyn Error + 'static),
) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

/// An error and its causes, without causes that repeat the text before them.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error).map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

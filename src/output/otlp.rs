//! The metrics table over OTLP: observable instruments that read the last published status, exported at an interval.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::metrics::{AsyncInstrument, Meter, MeterProvider};
use opentelemetry::{Key, KeyValue, Value};
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, MetricExporterBuilder, Protocol, WithExportConfig,
    WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{
    Instrument, PeriodicReader, SdkMeterProvider, Stream, Temporality,
};
use tokio::sync::watch;

use crate::analysis::status::Status;
use crate::metrics::readers::float;
use crate::metrics::table::METRICS;
use crate::metrics::types::{Kind, Metric, Read, Visit};
use crate::model::device::DeviceMemory;
use crate::model::units::DurationCounts;

/// Maximum number of series per instrument; the SDK sums up the rest. More than all ranks times all signals.
pub const SERIES_PER_INSTRUMENT_MAX: usize = 16 * 1024;
/// Timeout of the last export on shutdown.
pub const FLUSH_WITHIN: Duration = Duration::from_secs(5);

const SERVICE_NAME: Key = Key::from_static_str("service.name");
const SERVICE_INSTANCE: Key = Key::from_static_str("service.instance.id");

/// The configuration of the export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpConfig {
    /// The collector (`http://host:4318`); `None` leaves it to the variables `OTEL_EXPORTER_OTLP_…`.
    pub endpoint: Option<String>,
    pub transport: Transport,
    /// The interval between exports.
    pub interval: Duration,
    /// The timeout of an export.
    pub timeout: Duration,
    /// Whether to also export the metrics of OpenTelemetry's hardware conventions.
    pub semconv: bool,
    /// Whether the collector is reached over TLS.
    pub is_tls: bool,
    /// The default of `service.instance.id`, which `OTEL_RESOURCE_ATTRIBUTES` overrides.
    pub instance: String,
    /// Whether the variables `OTEL_EXPORTER_OTLP_…` name a collector.
    pub is_from_environment: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Grpc,
    /// Protobuf over HTTP.
    Http,
}

/// Counts of exports by result.
#[derive(Debug, Default)]
pub struct ExportCounts {
    success: AtomicU64,
    failure: AtomicU64,
}

impl ExportCounts {
    /// Exports by result.
    pub fn results(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("failure", self.failure.load(Ordering::Relaxed)),
            ("success", self.success.load(Ordering::Relaxed)),
        ]
    }
}

/// The running export.
#[derive(Debug)]
pub struct Export {
    provider: SdkMeterProvider,
}

impl Export {
    /// Starts the export. Blocks for a moment. With gRPC, must be called within a runtime, which then carries the
    /// connection.
    ///
    /// # Errors
    /// The endpoint is not a URL, or the transport cannot be set up.
    pub fn start(
        config: &OtlpConfig,
        latest: &watch::Receiver<Arc<Status>>,
        counts: &Arc<ExportCounts>,
    ) -> Result<Self, ExporterBuildError> {
        let exporter =
            CountingExporter { inner: exporter(config)?, counts: Arc::clone(counts) };
        let reader = PeriodicReader::builder(exporter).with_interval(config.interval).build();
        let bound = |_: &Instrument| {
            Stream::builder().with_cardinality_limit(SERIES_PER_INSTRUMENT_MAX).build().ok()
        };
        let provider = SdkMeterProvider::builder()
            .with_reader(reader)
            .with_resource(resource(&config.instance))
            .with_view(bound)
            .build();
        let meter = provider.meter("stepmem");
        for metric in METRICS {
            register(&meter, metric, latest);
        }
        if config.semconv {
            register_semconv(&meter, latest);
        }
        Ok(Self { provider })
    }

    /// Exports a last time and ends. Blocks for at most [`FLUSH_WITHIN`].
    pub fn stop(self) {
        if let Err(error) = self.provider.shutdown_with_timeout(FLUSH_WITHIN) {
            tracing::warn!(%error, "last OTLP export failed");
        }
    }
}

fn exporter(config: &OtlpConfig) -> Result<MetricExporter, ExporterBuildError> {
    let builder = MetricExporterBuilder::new().with_temporality(Temporality::Cumulative);
    let endpoint = config.endpoint.as_deref();
    match config.transport {
        Transport::Grpc => {
            let builder = builder.with_tonic().with_timeout(config.timeout);
            match endpoint {
                Some(endpoint) => builder.with_endpoint(endpoint).build(),
                None => builder.build(),
            }
        }
        Transport::Http => {
            let mut builder = builder.with_http().with_protocol(Protocol::HttpBinary);
            builder = builder.with_timeout(config.timeout);
            if !config.is_tls {
                builder = builder.with_http_client(plain_client(config.timeout)?);
            }
            match endpoint {
                Some(endpoint) => builder.with_endpoint(metrics_url(endpoint)).build(),
                None => builder.build(),
            }
        }
    }
}

/// The resource: `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, otherwise `stepmem`.
fn resource(instance: &str) -> Resource {
    let named = Resource::builder().build();
    // The SDK's name for a service without one.
    let is_unnamed = |name: Value| name.as_str().starts_with("unknown_service");
    let mut ours = vec![KeyValue::new("service.version", env!("CARGO_PKG_VERSION"))];
    if named.get(&SERVICE_NAME).is_none_or(is_unnamed) {
        ours.push(KeyValue::new(SERVICE_NAME, "stepmem"));
    }
    if named.get(&SERVICE_INSTANCE).is_none() {
        ours.push(KeyValue::new(SERVICE_INSTANCE, instance.to_owned()));
    }
    Resource::builder().with_attributes(ours).build()
}

/// A client that works without the system's certificates, which a small image lacks.
fn plain_client(timeout: Duration) -> Result<reqwest::blocking::Client, ExporterBuildError> {
    reqwest::blocking::Client::builder()
        .timeout(timeout)
        .tls_certs_only([])
        .build()
        .map_err(|error| ExporterBuildError::InternalFailure(error.to_string()))
}

/// The URL of metrics: an endpoint without a path gets that of the OTLP specification.
fn metrics_url(endpoint: &str) -> String {
    const PATH: &str = "/v1/metrics";
    let authority = endpoint.split_once("://").map_or(endpoint, |(_, authority)| authority);
    match authority.split_once('/') {
        None => format!("{endpoint}{PATH}"),
        Some((_, "")) => format!("{}{PATH}", endpoint.trim_end_matches('/')),
        Some(_) => endpoint.to_owned(),
    }
}

type SeriesReader = fn(&Status, &mut Visit<'_>);
type Latest = watch::Receiver<Arc<Status>>;

/// Registers one metric of the table; the SDK keeps it.
fn register(meter: &Meter, metric: &'static Metric, latest: &Latest) {
    let Some(name) = metric.otel else { return };
    let (unit, help) = (metric.unit.as_ucum(), metric.help);
    match (metric.kind, &metric.read) {
        (Kind::Gauge | Kind::Info, Read::Series(read) | Read::Subjects(read)) => {
            let builder = meter.f64_observable_gauge(name).with_unit(unit);
            builder.with_description(help).with_callback(series(metric, *read, latest)).build();
        }
        (_, Read::Series(read) | Read::Subjects(read)) => {
            let builder = meter.f64_observable_counter(name).with_unit(unit);
            builder.with_description(help).with_callback(series(metric, *read, latest)).build();
        }
        (_, Read::Durations(read)) => register_durations(meter, metric, *read, latest),
    }
}

/// The last status; does not block its publisher.
fn last(latest: &Latest) -> Arc<Status> {
    Arc::clone(&latest.borrow())
}

fn series(
    metric: &'static Metric,
    read: SeriesReader,
    latest: &Latest,
) -> impl Fn(&dyn AsyncInstrument<f64>) + Send + Sync + 'static {
    let latest = latest.clone();
    move |observer| {
        read(&last(&latest), &mut |values, value| {
            observer.observe(value, &attributes(metric, values));
        });
    }
}

fn attributes(metric: &Metric, values: &[&str]) -> Vec<KeyValue> {
    let labels = metric.labels.iter().zip(values).filter(|(_, value)| !value.is_empty());
    labels.map(|(label, value)| KeyValue::new(*label, (*value).to_owned())).collect()
}

/// The API lacks an observable histogram: its parts are exported as the counters that Prometheus makes of one.
fn register_durations(
    meter: &Meter,
    metric: &'static Metric,
    read: fn(&Status) -> &DurationCounts,
    latest: &Latest,
) {
    let name = metric.otel.unwrap_or(metric.name);
    let part = |part: &str| {
        meter.f64_observable_counter(format!("{name}.{part}")).with_description(metric.help)
    };
    let of = latest.clone();
    part("bucket")
        .with_callback(move |observer| {
            let status = last(&of);
            let durations = read(&status);
            for (upper, n_within) in &durations.buckets {
                let upper = KeyValue::new("le", format!("{upper:?}"));
                observer.observe(float(*n_within), &[upper]);
            }
            observer.observe(float(durations.count), &[KeyValue::new("le", "+Inf")]);
        })
        .build();
    let of = latest.clone();
    part("count")
        .with_callback(move |observer| observer.observe(float(read(&last(&of)).count), &[]))
        .build();
    let of = latest.clone();
    part("sum")
        .with_unit(metric.unit.as_ucum())
        .with_callback(move |observer| observer.observe(read(&last(&of)).sum_seconds, &[]))
        .build();
}

/// Device memory by OpenTelemetry's hardware conventions (`hw.gpu.memory.*`, in development).
fn register_semconv(meter: &Meter, latest: &Latest) {
    let bytes = |name| meter.f64_observable_up_down_counter(name).with_unit("By");
    bytes("hw.gpu.memory.limit")
        .with_description("Size of the GPU's memory.")
        .with_callback(memory(|memory| memory.total.as_f64(), latest))
        .build();
    bytes("hw.gpu.memory.usage")
        .with_description("GPU memory used.")
        .with_callback(memory(|memory| memory.used.as_f64(), latest))
        .build();
    let share = |memory: &DeviceMemory| memory.used.as_f64() / memory.total.as_f64().max(1.0);
    meter
        .f64_observable_gauge("hw.gpu.memory.utilization")
        .with_unit("1")
        .with_description("Fraction of GPU memory used.")
        .with_callback(memory(share, latest))
        .build();
}

fn memory(
    read: fn(&DeviceMemory) -> f64,
    latest: &Latest,
) -> impl Fn(&dyn AsyncInstrument<f64>) + Send + Sync + 'static {
    let latest = latest.clone();
    move |observer| {
        for device in &last(&latest).devices {
            let Some(memory) = &device.memory else { continue };
            let mut attributes = vec![KeyValue::new("hw.id", device.uuid.to_string())];
            let described = [
                ("hw.model", &device.info.model),
                ("hw.driver_version", &device.info.driver_version),
            ];
            attributes.extend(
                described
                    .into_iter()
                    .filter_map(|(name, value)| Some(KeyValue::new(name, value.clone()?))),
            );
            observer.observe(read(memory), &attributes);
        }
    }
}

/// Counts the results of another exporter.
struct CountingExporter {
    inner: MetricExporter,
    counts: Arc<ExportCounts>,
}

impl fmt::Debug for CountingExporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountingExporter").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl PushMetricExporter for CountingExporter {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let result = self.inner.export(metrics).await;
        match &result {
            Ok(()) => self.counts.success.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                tracing::warn!(%error, "OTLP export failed");
                self.counts.failure.fetch_add(1, Ordering::Relaxed)
            }
        };
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

#[cfg(test)]
mod tests {
    use super::metrics_url;

    #[test]
    fn an_endpoint_without_a_path_gets_that_of_metrics() {
        assert_eq!(metrics_url("http://c:4318"), "http://c:4318/v1/metrics");
        assert_eq!(metrics_url("http://c:4318/"), "http://c:4318/v1/metrics");
        assert_eq!(metrics_url("http://c:4318/x/v1/metrics"), "http://c:4318/x/v1/metrics");
    }
}

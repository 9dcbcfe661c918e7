//! The metrics table over OTLP: observable instruments that read the last published status,
//! exported at an interval.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Histogram, Meter, MeterProvider};
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::metrics::{Instrument, PeriodicReader, SdkMeterProvider, Stream};
use tokio::sync::watch;

use crate::output::otlp::config::OtlpConfig;
use crate::output::otlp::delivery::{ExportCounts, ReportingExporter};
use crate::output::otlp::resource::resource;
use stepmem_engine::metrics::{Kind, METRICS, Metric, Read, SeriesLabels, Visit};
use stepmem_engine::status::Status;
use stepmem_types::device::DeviceMemory;

/// Maximum number of series per instrument, unless there may be more ranks; the SDK sums up the
/// rest. Holds the processes of every device.
pub const SERIES_PER_INSTRUMENT_MAX: usize = 16 * 1024;
/// Maximum number of series of a rank in an instrument, with `--rank.max` ranks: more than it has
/// bases of pressure, signals or diagnoses at a time.
pub const SERIES_PER_RANK_MAX: usize = 8;
/// Timeout of the last export on shutdown.
pub const FLUSH_WITHIN: Duration = Duration::from_secs(5);

/// The running export.
#[derive(Debug)]
pub struct Export {
    provider: SdkMeterProvider,
    durations: Option<Histogram<f64>>,
}

impl Export {
    /// Starts the export; `bounds` are the upper bounds of the table's histogram. Blocks for a
    /// moment. With gRPC, must be called within a runtime, which then carries the connection.
    ///
    /// # Errors
    /// The endpoint is not a URL, or the transport cannot be set up.
    pub fn start(
        config: &OtlpConfig,
        latest: &watch::Receiver<Arc<Status>>,
        counts: &Arc<ExportCounts>,
        bounds: &[f64],
    ) -> Result<Self, ExporterBuildError> {
        let exporter = ReportingExporter::new(config, counts)?;
        let reader = PeriodicReader::builder(exporter).with_interval(config.interval).build();
        let series_max = series_max(config.ranks_max);
        let bound = move |_: &Instrument| {
            Stream::builder().with_cardinality_limit(series_max).build().ok()
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
        let durations = METRICS.iter().find_map(|metric| durations(&meter, metric, bounds));
        Ok(Self { provider, durations })
    }

    /// Returns a function that records a duration, in seconds, in the table's histogram: the
    /// SDK cannot read one from a status.
    pub fn recorder(&self) -> impl Fn(f64) + Send + Sync + 'static {
        let durations = self.durations.clone();
        move |seconds| {
            if let Some(durations) = &durations {
                durations.record(seconds, &[]);
            }
        }
    }

    /// Exports a last time and ends. Blocks for at most [`FLUSH_WITHIN`].
    pub fn stop(self) {
        // The reason for a failed export is already logged.
        if let Err(OTelSdkError::Timeout(within)) =
            self.provider.shutdown_with_timeout(FLUSH_WITHIN)
        {
            tracing::warn!(?within, "the last OTLP export did not end in time");
        }
    }
}

/// Returns the number of series that an instrument holds with so many ranks.
fn series_max(ranks_max: usize) -> usize {
    SERIES_PER_INSTRUMENT_MAX.max(SERIES_PER_RANK_MAX.saturating_mul(ranks_max))
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
        (_, Read::Durations(_)) => {}
    }
}

/// Creates the instrument of a histogram of the table.
fn durations(meter: &Meter, metric: &'static Metric, bounds: &[f64]) -> Option<Histogram<f64>> {
    let (Some(name), Read::Durations(_)) = (metric.otel, &metric.read) else { return None };
    let builder = meter.f64_histogram(name).with_unit(metric.unit.as_ucum());
    Some(builder.with_description(metric.help).with_boundaries(bounds.to_vec()).build())
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
        let status = last(&latest);
        let mut observe = |labels: SeriesLabels<'_>, value| {
            observer.observe(value, &attributes(metric, &labels.values(&status)));
        };
        read(&status, &mut Visit::new(&mut observe));
    }
}

fn attributes(metric: &Metric, values: &[&str]) -> Vec<KeyValue> {
    let labels = metric.labels.iter().zip(values).filter(|(_, value)| !value.is_empty());
    labels.map(|(label, value)| KeyValue::new(*label, (*value).to_owned())).collect()
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

#[cfg(test)]
mod tests {
    use super::series_max;

    #[test]
    fn every_rank_has_its_series_however_many_there_may_be() {
        assert_eq!(series_max(64), 16 * 1024);
        assert_eq!(series_max(1024), 16 * 1024);
        assert_eq!(series_max(20_000), 160_000);
    }
}

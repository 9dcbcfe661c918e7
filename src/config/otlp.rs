//! OTLP by OpenTelemetry's own variables, `OTEL_EXPORTER_OTLP_…` and
//! `OTEL_METRIC_EXPORT_INTERVAL`.

use std::time::Duration;

use crate::config::environment::Environment;
use crate::config::error::{Mistake, ValueError};
use crate::config::settings::OtlpDraft;
use crate::config::values::{milliseconds, transport};
use crate::output::otlp::config::{Endpoint, Transport};

/// OpenTelemetry's variable for the interval between exports, in milliseconds.
const INTERVAL_VARIABLE: &str = "OTEL_METRIC_EXPORT_INTERVAL";
/// OpenTelemetry's default interval between exports.
const INTERVAL_DEFAULT: Duration = Duration::from_mins(1);
/// OpenTelemetry's default timeout of an export.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// Returns the export that the environment asks for, with OpenTelemetry's defaults for the
/// rest. Variables for metrics override those for all signals.
pub(super) fn of_environment(
    environment: Environment<'_>,
    mistakes: &mut Vec<Mistake>,
) -> OtlpDraft {
    let variable = |name: &str| {
        let value = environment(name).filter(|value| !value.is_empty())?;
        Some(Variable { name: name.to_owned(), value })
    };
    let of_metrics = |name: &str| {
        let of_all = || variable(&format!("OTEL_EXPORTER_OTLP_{name}"));
        variable(&format!("OTEL_EXPORTER_OTLP_METRICS_{name}")).or_else(of_all)
    };
    let interval = environment(INTERVAL_VARIABLE)
        .map(|value| Variable { name: INTERVAL_VARIABLE.to_owned(), value });
    let timeout = of_metrics("TIMEOUT");
    let protocol = of_metrics("PROTOCOL");
    let endpoint = variable("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
        .map(|of_metrics| Endpoint::Metrics(of_metrics.value));
    let of_all = || {
        let of_all = variable("OTEL_EXPORTER_OTLP_ENDPOINT")?;
        Some(Endpoint::AllSignals(of_all.value))
    };
    OtlpDraft {
        endpoint: endpoint.or_else(of_all),
        transport: parsed(protocol, transport, mistakes).flatten().unwrap_or(Transport::Http),
        interval: parsed(interval, milliseconds, mistakes).unwrap_or(INTERVAL_DEFAULT),
        timeout: parsed(timeout, milliseconds, mistakes).unwrap_or(TIMEOUT_DEFAULT),
        semconv: false,
    }
}

struct Variable {
    name: String,
    value: String,
}

fn parsed<T>(
    variable: Option<Variable>,
    parse: impl FnOnce(&str) -> Result<T, ValueError>,
    mistakes: &mut Vec<Mistake>,
) -> Option<T> {
    let Variable { name, value } = variable?;
    match parse(&value) {
        Ok(parsed) => Some(parsed),
        Err(error) => {
            mistakes.push(Mistake::Value { source_name: name, error });
            None
        }
    }
}

//! The log on standard error.

use std::io;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::settings::LogSettings;

/// Installs the log of the process.
pub fn to_stderr(log: &LogSettings) {
    let level: LevelFilter = log.level.parse().unwrap_or(LevelFilter::INFO);
    let of_sdk = level.min(LevelFilter::WARN);
    let targets = Targets::new().with_default(level).with_target("opentelemetry_sdk", of_sdk);
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .with_target(false)
        // By default, tracing reports its own write error on standard error, and then panics.
        .log_internal_errors(false);
    if log.is_json {
        builder.json().finish().with(targets).init();
    } else {
        builder.finish().with(targets).init();
    }
}

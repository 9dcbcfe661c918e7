//! The log on standard error.

use std::io;

use tracing_subscriber::EnvFilter;

use crate::config::settings::LogSettings;

/// Installs the log of the process.
pub fn to_stderr(log: &LogSettings) {
    let builder = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .with_target(false)
        .with_env_filter(EnvFilter::new(match log.level.as_str() {
            "off" => "off".to_owned(),
            level => format!("{level},opentelemetry_sdk=warn"),
        }));
    if log.is_json { builder.json().init() } else { builder.init() }
}

//! Mistakes in settings. Each message names the setting, the value and the allowed values.

use std::fmt;
use std::net::SocketAddr;

use crate::config::keys;
use stepmem_types::units::OutOfRange;
use stepmem_types::url::shown;

/// A setting that a sidecar found wrong at its start and runs without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartupProblem {
    /// The key of the setting, or the OpenTelemetry variable; `command line` for unknown
    /// arguments.
    pub setting: String,
    /// The reason, with the value.
    pub reason: String,
}

impl fmt::Display for StartupProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.setting, self.reason)
    }
}

/// A mistake in the settings.
#[derive(Debug, thiserror::Error)]
pub enum Mistake {
    /// A value that its setting does not take.
    #[error("{source_name}: {error}")]
    Value {
        /// The flag, variable or key that has the value.
        source_name: String,
        /// The reason for its refusal.
        error: ValueError,
    },
    /// A setting that takes one value has several.
    #[error("{source_name}: given {n_values} times, but may be given only once")]
    Repeated {
        /// The flag, variable or key.
        source_name: String,
        n_values: usize,
    },
    /// A key of the file that is not a setting.
    #[error("{file}: {key}: no such setting{}", meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default())]
    UnknownKey {
        file: String,
        key: String,
        /// The setting of nearly this key.
        meant: Option<&'static str>,
    },
    /// The command line has an argument that is not a setting.
    #[error("{0}")]
    UnknownArgument(String),
    /// The file of settings cannot be read or parsed.
    #[error("{source_name}: {path}: {reason}")]
    File {
        /// The flag or variable that names it.
        source_name: &'static str,
        path: String,
        /// The reason, in the words of the system or of the parser.
        reason: String,
    },
    /// A warning begins above the critical finding.
    #[error("{name}.warning: {warning} exceeds {name}.critical, which is {critical}")]
    WarningAboveCritical {
        /// The first part of both settings' keys.
        name: &'static str,
        /// The ratio of the warning.
        warning: f64,
        /// The ratio of the critical finding.
        critical: f64,
    },
    /// Every client in the network could push.
    #[error(
        "push.listen-address: {0} accepts pushes from the network without a token: set --push.token-file, or --push.insecure to accept \
         them from anyone"
    )]
    OpenPush(SocketAddr),
    /// The page's buttons have no token that opens them.
    #[error("web.admin: the page's buttons need the token of --admin.token-file")]
    AdminWithoutToken,
    /// The token of admins would cross the network as plain text.
    #[error(
        "web.admin: the token of admins would reach {0} without TLS: set --web.config.file with tls_server_config, or listen on loopback \
         only (--web.listen-address 127.0.0.1:9477)"
    )]
    PlainAdmin(SocketAddr),
    /// The page and pushes, or two of a kind, would listen on one address.
    #[error(
        "{setting}: {address} is also of {other}: each listener needs an address of its own"
    )]
    SameAddress {
        /// The setting that is left without it.
        setting: &'static str,
        address: SocketAddr,
        /// The setting that keeps it.
        other: &'static str,
    },
    /// Ranks would be forgotten while they are still shown.
    #[error("rank.retention: it is shorter than rank.ttl")]
    RetentionBelowTtl,
}

impl Mistake {
    /// Returns the flag, variable or key that is wrong.
    pub(super) fn source_name(&self) -> &str {
        match self {
            Self::Value { source_name, .. } | Self::Repeated { source_name, .. } => source_name,
            Self::UnknownKey { .. } => "config.file",
            Self::File { source_name, .. } => source_name,
            Self::SameAddress { setting, .. } => setting,
            Self::UnknownArgument(_) => "command line",
            Self::WarningAboveCritical { name: "pressure", .. } => keys::PRESSURE_WARNING,
            Self::WarningAboveCritical { .. } => keys::IMBALANCE_WARNING,
            Self::OpenPush(_) => keys::PUSH_ADDRESS,
            Self::AdminWithoutToken | Self::PlainAdmin(_) => keys::WEB_ADMIN,
            Self::RetentionBelowTtl => keys::RANK_RETENTION,
        }
    }

    /// Returns whether the mistake may stand for a setting that is not known.
    pub(super) fn hides_settings(&self) -> bool {
        matches!(self, Self::UnknownKey { .. } | Self::File { .. } | Self::UnknownArgument(_))
    }
}

/// Reasons that a value is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ValueError {
    /// Not an integer within the range.
    #[error("{value:?} is not an integer of {min} to {max}")]
    Integer {
        value: String,
        /// The least value allowed.
        min: u64,
        /// The greatest value allowed.
        max: u64,
    },
    /// Not a number within the range.
    #[error("{value:?} is not a number of 0 to {max}")]
    Ratio {
        value: String,
        /// The greatest value allowed.
        max: f64,
    },
    /// Not a duration, or one above a year.
    #[error("{0:?} is not a duration such as 90s, 10m or 6h, up to a year")]
    Duration(String),
    /// A number without a unit where a duration is asked for.
    #[error("{0:?} has no unit: write {0}s, {0}m or {0}h")]
    UnitMissing(String),
    /// Neither a time nor a duration.
    #[error(
        "{0:?} is neither a time such as 2026-12-05T18:00:00+01:00 nor a duration such as 90m or 6h, up to a year"
    )]
    Deadline(String),
    /// A duration of zero where time must pass.
    #[error("a duration of 0 makes no sense here")]
    ZeroDuration,
    /// Not a size above 0.
    #[error("{0:?} is not a size such as 2GiB, 512MB or 1000000, from 1 byte to 8PiB")]
    Size(String),
    #[error("{value:?} is not a size of {} to {}", shown_size(*.min), shown_size(*.max))]
    SizeRange {
        value: String,
        /// The least size allowed, in bytes.
        min: u64,
        /// The greatest size allowed, in bytes.
        max: u64,
    },
    /// Not a number of milliseconds.
    #[error("{0:?} is not a number of milliseconds")]
    Milliseconds(String),
    #[error("{0:?} is neither true nor false")]
    Switch(String),
    /// Not a word of the list.
    #[error("{value:?} is none of {allowed}")]
    Word { value: String, allowed: String },
    /// Not a transport of OTLP.
    #[error("{0:?} is neither http/protobuf nor grpc")]
    Transport(String),
    #[error("{0:?} is not HOST:PORT or :PORT")]
    Address(String),
    /// Not a URL of a collector.
    #[error("{:?} begins with neither http:// nor https://", shown(.0))]
    Url(String),
    /// Not a URL at all.
    #[error("{:?} is not a URL such as http://collector:4318", shown(.0))]
    NotAUrl(String),
    /// The URL of metrics where that of all signals belongs.
    #[error("{:?} ends in v1/metrics, which is appended: write {}", shown(.value), shown(.base))]
    MetricsUrl {
        value: String,
        /// The value to write instead.
        base: String,
    },
    #[error("{0:?} is not the name of a host, without a port")]
    Host(String),
    /// Not a path for the metrics.
    #[error("{0:?} is not a free path of letters, digits and / - _ .")]
    TelemetryPath(String),
    #[error("{0:?} is not an absolute path")]
    RelativePath(String),
    /// Not the name of a pod.
    #[error("{0:?} is not NAMESPACE/NAME of a pod")]
    Pod(String),
    /// Not the mode of a socket.
    #[error("mode {0:?} is not octal, of 0 to 777")]
    Mode(String),
    /// A file that cannot be read.
    #[error("{path}: {reason}")]
    Unreadable {
        path: String,
        /// The reason, in the words of the system.
        reason: String,
    },
    /// A file of TLS and users with a mistake.
    #[error("{path}: {reason}")]
    WebFile {
        path: String,
        /// The reason, with the key.
        reason: String,
    },
    /// A token that is empty or too long.
    #[error("{path}: a token of {bytes} bytes is not one of 1 to {max}")]
    Token {
        path: String,
        /// The token's length, in bytes.
        bytes: usize,
        /// The longest token allowed, in bytes.
        max: usize,
    },
    /// Not the name of a run.
    #[error("{value:?}: run: {reason}")]
    Run {
        value: String,
        /// The reason that it cannot be a run.
        reason: OutOfRange,
    },
    /// Not the name of a workload.
    #[error("{0}, so it cannot be a workload")]
    Workload(String),
    /// Not a choice of devices.
    #[error("{0:?} is not all, visible, pushed or a UUID (GPU-…, MIG-…)")]
    Device(String),
    /// Not a device of CUDA's.
    #[error("{variable}: {word:?} is neither an index nor a UUID (GPU-…, MIG-…)")]
    VisibleDevice {
        variable: &'static str,
        /// The part of it that is not a device.
        word: String,
    },
}
/// Returns a whole number of MiB in the largest unit of which it is a whole number.
fn shown_size(bytes: u64) -> String {
    let units = [("PiB", 50), ("TiB", 40), ("GiB", 30)];
    let fits = |(_, shift): &(&str, u32)| bytes > 0 && bytes.trailing_zeros() >= *shift;
    let (unit, shift) = units.into_iter().find(fits).unwrap_or(("MiB", 20));
    format!("{}{unit}", bytes >> shift)
}
